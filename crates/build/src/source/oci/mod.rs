//! **Purpose.** Reads a container image as a source: overlays its layers.
//!
//! | module | responsibility |
//! |---|---|
//! | `store` | locates documents and blobs |
//! | `archive` | reads tar archives of images |
//! | `choose` | selects one image of several |
//! | `platform` | compares platforms |
//! | `digest` | verifies digests of blobs |
//! | `documents` | parses index, manifest and descriptors |
//! | `layer` | reads the entries of one layer and applies them to the tree |
//! | `packed` | stores the entries of layers that are read ahead, in a few bytes each |
//!
//! **Model.** An image is in an OCI layout, in a directory of skopeo's `dir:` transport, or in an
//! archive of a layout or of `docker save`. Documents refer to one manifest, and the manifest to
//! the layers. Threads verify and decompress layers ahead, until the entries of layers that are not
//! applied yet take some megabytes; layers are applied to the tree in order. The documents are
//! parsed here instead of with the crate `oci-spec`, because only a few of their fields are needed.
//!
//! **References.** The OCI image specification 1.1: image-layout.md, image-index.md, manifest.md,
//! layer.md. containers-transports(5).

pub(super) mod archive;
mod choose;
mod digest;
mod documents;
mod layer;
mod packed;
mod platform;
mod store;

use std::path::{Path, PathBuf};

use fourscore_sync::{Condvar, Mutex, thread};

use crate::source::fault::{Fault, SourceError};
use crate::source::{Context, archive as files};
use crate::tree::Tree;
use archive::Catalog;
use choose::Choice;
use layer::{Expected, Layer, LayerSource, UnreadLayer};
pub use platform::{Platform, PlatformError};
use store::Store;

/// Limit for the memory of entries that are read ahead.
const AHEAD_BYTES: usize = 32 << 20;

/// The format of an image, with the transport names of container tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// `oci:`, the directory of an OCI layout.
    Layout,
    /// `dir:`, a directory written by skopeo.
    Directory,
    /// `oci-archive:`, a tar archive of an OCI layout.
    LayoutArchive,
    /// `docker-archive:`, what `docker save` writes.
    DockerArchive,
}

/// Each transport with its prefix on the command line, and the syntax to select one of several
/// images.
const TRANSPORTS: [(Transport, &str, &str); 4] = [
    (Transport::Layout, "oci:", "oci:DIR:TAG"),
    (Transport::Directory, "dir:", "dir:DIR"),
    (
        Transport::LayoutArchive,
        "oci-archive:",
        "oci-archive:FILE:TAG",
    ),
    (
        Transport::DockerArchive,
        "docker-archive:",
        "docker-archive:FILE:NAME:TAG",
    ),
];

/// A container image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciImage {
    /// The format of the image.
    pub transport: Transport,
    /// The directory or archive.
    pub path: PathBuf,
    /// The tag or name, if there are several images.
    pub tag: Option<String>,
}

impl OciImage {
    /// Parses `TRANSPORT:PATH` or `TRANSPORT:PATH:TAG`; `None` if the text does not begin with a
    /// transport. An existing path that contains a colon is taken as a whole.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (transport, rest) = TRANSPORTS
            .iter()
            .find_map(|(transport, prefix, _)| Some((*transport, text.strip_prefix(prefix)?)))?;
        let image = |path: &str, tag: Option<&str>| Self {
            transport,
            path: path.into(),
            tag: tag.map(str::to_owned),
        };
        let mut colons = rest.match_indices(':').map(|(at, _)| at);
        let at = match transport {
            _ if Path::new(rest).exists() => None,
            Transport::Directory => None,
            // A name has its own colon before the tag, and may have slashes.
            Transport::DockerArchive => {
                let is_path = |at: &usize| Path::new(&rest[..*at]).exists();
                colons.find(is_path)
            }
            _ => colons.next_back().filter(|&at| !rest[at..].contains('/')),
        };
        Some(match at {
            Some(at) => image(&rest[..at], Some(&rest[at + 1..])),
            None => image(rest, None),
        })
    }

    fn place(&self) -> String {
        let prefix = TRANSPORTS
            .iter()
            .find(|(transport, ..)| *transport == self.transport)
            .map_or("", |(_, prefix, _)| prefix);
        format!("{prefix}{}", self.path.display())
    }

    /// Applies the layers of the image to the tree.
    pub(super) fn add_to(
        &self,
        tree: &mut Tree,
        context: &mut Context<'_>,
    ) -> Result<(), SourceError> {
        let place = self.place();
        let failed = |fault| SourceError {
            place: place.clone(),
            entry: None,
            fault,
        };
        let store = match self.transport {
            Transport::Layout => Store::Layout(self.path.clone()),
            Transport::Directory => Store::Flat(self.path.clone()),
            Transport::LayoutArchive | Transport::DockerArchive => {
                let catalog = files::open_catalog(tree, &self.path, context).map_err(failed)?;
                let none = || wrong("is not an archive of a container image");
                Store::Archive(catalog.ok_or_else(|| failed(none()))?)
            }
        };
        let choice = Choice {
            tag: self.tag.as_deref(),
            platform: context.platform,
            form: form_of(self.transport),
        };
        add(tree, &store, choice, &place, context)
    }
}

fn form_of(wanted: Transport) -> &'static str {
    let found = TRANSPORTS
        .iter()
        .find(|(transport, ..)| *transport == wanted);
    found.map_or("", |(.., form)| form)
}

/// Applies the image in an archive to the tree.
pub(super) fn add_archive(
    tree: &mut Tree,
    catalog: Catalog,
    place: &str,
    context: &mut Context<'_>,
) -> Result<(), SourceError> {
    let transport = match catalog.has("oci-layout") {
        true => Transport::LayoutArchive,
        false => Transport::DockerArchive,
    };
    let choice = Choice {
        tag: None,
        platform: context.platform,
        form: form_of(transport),
    };
    add(tree, &Store::Archive(catalog), choice, place, context)
}

/// Applies the layers of the selected image to the tree.
fn add(
    tree: &mut Tree,
    store: &Store,
    choice: Choice<'_>,
    place: &str,
    context: &mut Context<'_>,
) -> Result<(), SourceError> {
    let layers = choice.layers(store).map_err(|fault| SourceError {
        place: place.to_owned(),
        entry: None,
        fault,
    })?;
    let count = layers.len();
    let unread = unread(layers, place, tree, context)?;
    let threads = context.threads.clamp(1, unread.len().max(1));
    let queue = LayerQueue::new(unread, AHEAD_BYTES);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| queue.run(context.read_bytes));
        }
        let applied = (0..count).try_for_each(|number| {
            let layer = queue.take(number)?;
            layer.apply(tree, context)
        });
        queue.close();
        applied
    })
}

/// Opens all layers.
fn unread(
    layers: Vec<LayerSource>,
    place: &str,
    tree: &mut Tree,
    context: &Context<'_>,
) -> Result<Vec<UnreadLayer>, SourceError> {
    let mut unread = Vec::new();
    for (number, found) in layers.into_iter().enumerate() {
        let digest = match &found.expected {
            Expected::Blob(descriptor) => &descriptor.digest,
            Expected::Decompressed(digest) => digest,
        };
        let place = format!("{place}: layer {} ({digest})", number + 1);
        unread.push(UnreadLayer::new(found, place, tree, context)?);
    }
    Ok(unread)
}

fn wrong(why: impl Into<String>) -> Fault {
    Fault::Layout { why: why.into() }
}

/// Distributes layers to the threads that read them, and returns the results in order.
///
/// **Invariants.** The layer that is applied next is never throttled, and layers are started in
/// order, so there is always one that progresses.
///
/// **Locking.** One mutex, held only to add or remove a layer, and to count bytes.
struct LayerQueue {
    ahead_bytes: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    unread: Vec<Option<UnreadLayer>>,
    next: usize,
    read: Vec<Option<Result<Layer, SourceError>>>,
    /// Bytes of entries in memory, by layer.
    held_bytes: Vec<usize>,
    /// The layer that is applied next.
    next_applied: usize,
    is_closed: bool,
}

impl LayerQueue {
    fn new(unread: Vec<UnreadLayer>, ahead_bytes: usize) -> Self {
        let state = State {
            read: unread.iter().map(|_| None).collect(),
            held_bytes: vec![0; unread.len()],
            unread: unread.into_iter().map(Some).collect(),
            next: 0,
            next_applied: 0,
            is_closed: false,
        };
        Self {
            ahead_bytes,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Reads layers until none is left.
    fn run(&self, read_bytes: &fourscore_sync::Counter) {
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
            let layer = unread.read(read_bytes, &|bytes| self.throttle(number, bytes));
            self.state.lock().read[number] = Some(layer);
            self.changed.notify_all();
        }
    }

    /// Counts entries of a layer, and blocks while layers read ahead exceed the limit.
    fn throttle(&self, number: usize, bytes: usize) {
        let mut state = self.state.lock();
        if let Some(held) = state.held_bytes.get_mut(number) {
            *held += bytes;
        }
        while number != state.next_applied
            && !state.is_closed
            && state.held_bytes.iter().sum::<usize>() > self.ahead_bytes
        {
            self.changed.wait(&mut state);
        }
    }

    /// Waits for a layer. Memory of the layers before it counts as freed.
    fn take(&self, number: usize) -> Result<Layer, SourceError> {
        let mut state = self.state.lock();
        state.next_applied = number;
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

    /// Stops all readers.
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

    use super::documents::Descriptor;
    use super::*;
    use crate::source::{Excludes, Notices};

    /// A compressed layer of empty files, in a layout.
    fn layer(layout: &Store, files: usize) -> LayerSource {
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
        let Store::Layout(directory) = layout else {
            panic!("a layout");
        };
        let blobs = directory.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).expect("disk space");
        std::fs::write(blobs.join(hex), packed).expect("disk space");
        LayerSource {
            blob: layout.blob(&descriptor.digest).expect("a blob"),
            expected: Expected::Blob(descriptor),
        }
    }

    /// With a limit of zero, a layer that is read ahead is throttled after its first entries: if
    /// two are throttled at once, two threads decompress at the same time.
    #[test]
    fn compressed_layers_are_decompressed_in_parallel() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = Store::Layout(directory.path().to_owned());
        let layers = [1000, 2000, 3000].map(|files| layer(&store, files));
        let count = layers.len();
        let (read_objects, read_bytes) = (Counter::default(), Counter::default());
        let mut context = Context {
            excludes: &Excludes::default(),
            saved: None,
            destination: None,
            scratch: directory.path(),
            threads: 3,
            read_objects: &read_objects,
            read_bytes: &read_bytes,
            notices: Notices::default(),
            platform: None,
        };
        let mut tree = Tree::new();
        let unread = unread(layers.into(), "image", &mut tree, &context).expect("layers");
        let queue = LayerQueue::new(unread, 0);
        let are_both_started = || {
            let state = queue.state.lock();
            let is_started =
                |layer: usize| state.held_bytes[layer] > 0 && state.read[layer].is_none();
            is_started(1) && is_started(2)
        };
        thread::scope(|scope| {
            for _ in 0..context.threads {
                scope.spawn(|| queue.run(&read_bytes));
            }
            let both = (0..20_000).any(|_| {
                thread::sleep(Duration::from_millis(1));
                are_both_started()
            });
            for number in 0..count {
                let layer = queue.take(number).expect("a good layer");
                layer.apply(&mut tree, &mut context).expect("good entries");
            }
            queue.close();
            assert!(both, "layers were decompressed one after another");
        });
        assert_eq!(tree.ids().count(), 1 + 3 + 6000);
    }

    /// A layer that is read ahead is throttled until it is next; the next one is not.
    #[test]
    fn memory_of_layers_read_ahead_is_bounded() {
        let queue = LayerQueue::new(Vec::new(), 100);
        queue.state.lock().held_bytes = vec![0; 3];
        let (reported, done) = (Mutex::new(false), Condvar::new());
        thread::scope(|scope| {
            queue.throttle(0, 1000);
            scope.spawn(|| {
                queue.throttle(2, 1);
                *reported.lock() = true;
                done.notify_all();
            });
            while queue.state.lock().held_bytes[2] == 0 {
                thread::yield_now();
            }
            queue.throttle(0, 1000);
            assert!(!*reported.lock(), "1000 bytes are read ahead already");
            let mut state = queue.state.lock();
            state.next_applied = 1;
            state.held_bytes[0] = 0;
            drop(state);
            queue.changed.notify_all();
            let mut reported = reported.lock();
            while !*reported {
                done.wait(&mut reported);
            }
        });
        queue.close();
    }

    #[test]
    fn paths_and_tags_are_parsed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let odd = directory.path().join("a:b");
        std::fs::create_dir(&odd).expect("disk space");
        let parsed = |text: &str| {
            let image = OciImage::parse(text).expect("a transport");
            (image.path.display().to_string(), image.tag)
        };
        let odd = odd.display().to_string();
        let tagged = |path: &str, tag: &str| (path.to_owned(), Some(tag.to_owned()));
        assert_eq!(parsed(&format!("oci:{odd}")), (odd.clone(), None));
        assert_eq!(parsed(&format!("oci:{odd}:v1")), tagged(&odd, "v1"));
        assert_eq!(parsed("oci:/x:y/z"), ("/x:y/z".to_owned(), None));
        assert_eq!(parsed("oci:image:latest"), tagged("image", "latest"));
        assert_eq!(parsed("dir:a:b"), ("a:b".to_owned(), None));
        let docker = format!("docker-archive:{odd}:host:5000/name:v1");
        assert_eq!(parsed(&docker), tagged(&odd, "host:5000/name:v1"));
        assert_eq!(OciImage::parse(&odd), None);
    }
}
