//! **Purpose.** An image in an OCI layout as a source: its layers, one over the other.
//!
//! | module | responsibility |
//! |---|---|
//! | `digest` | blobs by their digests, checked |
//! | `documents` | index, manifest and descriptors |
//! | `layer` | the entries of one layer, and what they do to the tree |
//! | `packed` | entries that wait for their turn, in few bytes each |
//!
//! **Model.** `index.json` leads, through further indexes by platform, to one manifest, and that to
//! the layers. Threads check and unpack layers ahead, as far as the entries that wait for their
//! turn take some megabytes; they are laid over the tree in their order.
//! Documents are the few fields that are needed here, not those of the crate `oci-spec`: it would
//! bring a registry's worth of types for them.
//!
//! **References.** The OCI image specification 1.1: image-layout.md, image-index.md, manifest.md,
//! layer.md.

mod digest;
mod documents;
mod layer;
mod packed;

use std::path::{Path, PathBuf};

use fourscore_sync::{Condvar, Mutex, thread};

use crate::source::Context;
use crate::source::fault::{Fault, SourceError};
use crate::tree::Tree;
use digest::blob_path;
use documents::{Descriptor, Document, Index, Platform};
use layer::{Layer, Unread};

/// Indexes that lead to indexes; more is a joke.
const INDEX_DEPTH_MAX: u32 = 8;

/// Entries of layers whose turn has not come take at most about this.
const AHEAD_BYTES: usize = 32 << 20;

/// An image in a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciImage {
    /// The directory of the layout.
    pub directory: PathBuf,
    /// The reference (`org.opencontainers.image.ref.name`), where there are several images.
    pub tag: Option<String>,
}

impl OciImage {
    /// Takes `DIR` or `DIR:TAG` apart. A directory whose name has a colon counts as it is.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let whole = || Self {
            directory: text.into(),
            tag: None,
        };
        match text.rsplit_once(':') {
            Some((directory, tag)) if !tag.contains('/') && !Path::new(text).is_dir() => Self {
                directory: directory.into(),
                tag: Some(tag.to_owned()),
            },
            _ => whole(),
        }
    }

    fn place(&self) -> String {
        format!("oci:{}", self.directory.display())
    }

    /// Lays the layers over the tree.
    pub(super) fn add_to(&self, tree: &mut Tree, context: &mut Context) -> Result<(), SourceError> {
        let layers = self.layers().map_err(|fault| SourceError {
            place: self.place(),
            entry: None,
            fault,
        })?;
        let unread = self.unread(&layers, tree, context)?;
        let threads = context.threads.clamp(1, unread.len().max(1));
        let desk = Desk::new(unread, AHEAD_BYTES);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| desk.work(context.read_bytes));
            }
            let applied = (0..layers.len()).try_for_each(|number| {
                let layer = desk.take(number)?;
                layer.apply(tree, context)
            });
            desk.close();
            applied
        })
    }

    /// Opens the layers.
    fn unread(
        &self,
        layers: &[Descriptor],
        tree: &mut Tree,
        context: &Context,
    ) -> Result<Vec<Unread>, SourceError> {
        let mut unread = Vec::new();
        for (number, descriptor) in layers.iter().enumerate() {
            let (place, digest) = (self.place(), &descriptor.digest);
            let place = format!("{place}: layer {} ({digest})", number + 1);
            let directory = &self.directory;
            unread.push(Unread::new(directory, descriptor, place, tree, context)?);
        }
        Ok(unread)
    }

    /// The layers of the image, the lowest first.
    fn layers(&self) -> Result<Vec<Descriptor>, Fault> {
        let layout = read_small(&self.directory.join("oci-layout"))?;
        documents::check_layout(&layout)?;
        let index: Index = documents::parse("index.json", &read_small(&self.index_path())?)?;
        let mut chosen = self.choose(&index)?.clone();
        for _ in 0..INDEX_DEPTH_MAX {
            let path = blob_path(&self.directory, &chosen.digest)?;
            let bytes = digest::read_checked(&path, &chosen)?;
            match documents::parse_manifest_or_index(&chosen.digest, &bytes)? {
                Document::Manifest(manifest) => return Ok(manifest.layers),
                Document::Index(index) => chosen = self.of_platform(&index)?.clone(),
            }
        }
        Err(wrong("indexes lead to indexes without an end"))
    }

    fn index_path(&self) -> PathBuf {
        self.directory.join("index.json")
    }

    /// The entry of the outermost index that the tag names, or the only one.
    fn choose<'a>(&self, index: &'a Index) -> Result<&'a Descriptor, Fault> {
        let Some(tag) = &self.tag else {
            return self.of_platform(index);
        };
        let found = index
            .manifests
            .iter()
            .find(|one| one.tag() == Some(tag.as_str()));
        found.ok_or_else(|| {
            let known: Vec<&str> = index.manifests.iter().filter_map(Descriptor::tag).collect();
            wrong(format!(
                "there is no image '{tag}', only: {}",
                known.join(", ")
            ))
        })
    }

    /// The only image, or the only one for this machine.
    fn of_platform<'a>(&self, index: &'a Index) -> Result<&'a Descriptor, Fault> {
        let images: Vec<&Descriptor> = index.images().collect();
        if let [only] = images[..] {
            return Ok(only);
        }
        let host = Platform::of_host();
        let fitting: Vec<&Descriptor> = images
            .iter()
            .copied()
            .filter(|one| {
                one.platform
                    .as_ref()
                    .is_none_or(|platform| *platform == host)
            })
            .collect();
        match fitting[..] {
            [only] => Ok(only),
            [] => Err(wrong(format!("there is no image for {host}"))),
            _ => {
                let known: Vec<&str> = fitting.iter().filter_map(|one| one.tag()).collect();
                let known = known.join(", ");
                Err(wrong(format!(
                    "there are several images, name one as in oci:DIR:TAG: {known}"
                )))
            }
        }
    }
}

/// A document of which nothing says how long it is.
fn read_small(path: &Path) -> Result<Vec<u8>, Fault> {
    let name = path.file_name().unwrap_or_default().display().to_string();
    let bytes = digest::read_limited(path);
    bytes.map_err(|error| wrong(format!("{name}: {error} (is this an OCI layout?)")))
}

fn wrong(why: impl Into<String>) -> Fault {
    Fault::Layout { why: why.into() }
}

/// Where threads fetch layers to read and leave those they have read.
///
/// **Invariants.** The layer whose turn it is never waits, and layers are begun in their order: so
/// somebody always goes on.
///
/// **Locking.** One mutex, held only to move a layer in or out, and to count.
struct Desk {
    ahead_bytes: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    unread: Vec<Option<Unread>>,
    next: usize,
    read: Vec<Option<Result<Layer, SourceError>>>,
    /// Bytes of entries in memory, by layer.
    held_bytes: Vec<usize>,
    /// The layer whose turn it is.
    turn: usize,
    is_closed: bool,
}

impl Desk {
    fn new(unread: Vec<Unread>, ahead_bytes: usize) -> Self {
        let state = State {
            read: unread.iter().map(|_| None).collect(),
            held_bytes: vec![0; unread.len()],
            unread: unread.into_iter().map(Some).collect(),
            next: 0,
            turn: 0,
            is_closed: false,
        };
        Self {
            ahead_bytes,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Reads layers until none is left.
    fn work(&self, read_bytes: &fourscore_sync::Counter) {
        loop {
            let mut state = self.state.lock();
            let number = state.next;
            let Some(unread) = state.unread.get_mut(number).and_then(Option::take) else {
                return;
            };
            if state.is_closed {
                return;
            }
            state.next += 1;
            drop(state);
            let layer = unread.read(read_bytes, &|bytes| self.hold(number, bytes));
            self.state.lock().read[number] = Some(layer);
            self.changed.notify_all();
        }
    }

    /// Counts entries of a layer, and waits while there are too many of later ones.
    fn hold(&self, number: usize, bytes: usize) {
        let mut state = self.state.lock();
        if let Some(held) = state.held_bytes.get_mut(number) {
            *held += bytes;
        }
        while number != state.turn
            && !state.is_closed
            && state.held_bytes.iter().sum::<usize>() > self.ahead_bytes
        {
            self.changed.wait(&mut state);
        }
    }

    /// Waits for a layer; what was taken before is done with.
    fn take(&self, number: usize) -> Result<Layer, SourceError> {
        let mut state = self.state.lock();
        state.turn = number;
        state
            .held_bytes
            .iter_mut()
            .take(number)
            .for_each(|held| *held = 0);
        self.changed.notify_all();
        loop {
            match state.read.get_mut(number).and_then(Option::take) {
                Some(layer) => return layer,
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// No more layers are wanted.
    fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fourscore_sync::Counter;
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::source::{Excludes, Notices};

    /// A compressed layer of empty files, in a layout; what leads to it.
    fn layer(layout: &Path, files: usize) -> Descriptor {
        let mut archive = Vec::new();
        for number in 0..files {
            let mut header = [0; 512];
            let name = format!("layer-of-{files}/{number}");
            header[..name.len()].copy_from_slice(name.as_bytes());
            header[100..108].copy_from_slice(b"0000644\0");
            header[124..136].copy_from_slice(b"00000000000\0");
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
            header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            archive.extend(header);
        }
        archive.resize(archive.len() + 1024, 0);
        let packed = zstd::encode_all(&archive[..], 1).expect("memory");
        let hash = Sha256::digest(&packed);
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let descriptor = Descriptor {
            digest: format!("sha256:{hex}"),
            size: packed.len() as u64,
            ..Descriptor::default()
        };
        let path = blob_path(layout, &descriptor.digest).expect("a digest");
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("room");
        std::fs::write(path, packed).expect("room");
        descriptor
    }

    /// Nothing may be read ahead here, so a layer whose turn has not come stops after its first
    /// entries: two that stop there at once are unpacked by two threads at the same time.
    #[test]
    fn compressed_layers_are_unpacked_side_by_side() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let layers: Vec<Descriptor> = [1000, 2000, 3000]
            .map(|files| layer(place.path(), files))
            .into();
        let image = OciImage {
            directory: place.path().to_owned(),
            tag: None,
        };
        let (read_objects, read_bytes) = (Counter::default(), Counter::default());
        let mut context = Context {
            excludes: &Excludes::default(),
            saved: None,
            destination: None,
            scratch: place.path(),
            threads: 3,
            read_objects: &read_objects,
            read_bytes: &read_bytes,
            notices: Notices::default(),
        };
        let mut tree = Tree::new();
        let unread = image.unread(&layers, &mut tree, &context).expect("layers");
        let desk = Desk::new(unread, 0);
        let are_both_begun = || {
            let state = desk.state.lock();
            let is_begun =
                |layer: usize| state.held_bytes[layer] > 0 && state.read[layer].is_none();
            is_begun(1) && is_begun(2)
        };
        thread::scope(|scope| {
            for _ in 0..context.threads {
                scope.spawn(|| desk.work(&read_bytes));
            }
            let both = (0..20_000).any(|_| {
                thread::sleep(Duration::from_millis(1));
                are_both_begun()
            });
            for number in 0..layers.len() {
                let layer = desk.take(number).expect("a good layer");
                layer.apply(&mut tree, &mut context).expect("good entries");
            }
            desk.close();
            assert!(both, "layers were unpacked one after the other");
        });
        assert_eq!(tree.ids().count(), 1 + 3 + 6000);
    }

    /// A layer ahead waits until its turn comes; the one whose turn it is goes on.
    #[test]
    fn what_is_read_ahead_is_bounded() {
        let desk = Desk::new(Vec::new(), 100);
        desk.state.lock().held_bytes = vec![0; 3];
        let (told, done) = (Mutex::new(false), Condvar::new());
        thread::scope(|scope| {
            desk.hold(0, 1000);
            scope.spawn(|| {
                desk.hold(2, 1);
                *told.lock() = true;
                done.notify_all();
            });
            while desk.state.lock().held_bytes[2] == 0 {
                thread::yield_now();
            }
            desk.hold(0, 1000);
            assert!(!*told.lock(), "1000 bytes wait already");
            let mut state = desk.state.lock();
            state.turn = 1;
            state.held_bytes[0] = 0;
            drop(state);
            desk.changed.notify_all();
            let mut told = told.lock();
            while !*told {
                done.wait(&mut told);
            }
        });
        desk.close();
    }

    #[test]
    fn directories_and_tags() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let odd = place.path().join("a:b");
        std::fs::create_dir(&odd).expect("room");
        let parsed = |text: &str| {
            let image = OciImage::parse(text);
            (image.directory.display().to_string(), image.tag)
        };
        let odd = odd.display().to_string();
        assert_eq!(parsed(&odd), (odd.clone(), None));
        assert_eq!(parsed(&format!("{odd}:v1")), (odd, Some("v1".to_owned())));
        assert_eq!(parsed("/x:y/z"), ("/x:y/z".to_owned(), None));
        assert_eq!(
            parsed("image:latest"),
            ("image".to_owned(), Some("latest".to_owned()))
        );
    }
}
