//! **Purpose.** One layer: its entries, read by any thread, and what they do to the tree.
//!
//! **Model.** An empty file `.wh.NAME` removes NAME of the layers below, `.wh..wh..opq` all that
//! they have in its directory. Both concern the layers below only, wherever in the archive they
//! stand: so they come first, and then everything else.

use std::io::Read;

use fourscore_sync::{Arc, Counter};

use super::digest::{Digest, check_bytes};
use super::documents::Descriptor;
use super::packed::Packed;
use super::store::Blob;
use crate::source::Context;
use crate::source::fault::{Fault, Parsed, SourceError};
use crate::source::notices::Notices;
use crate::source::overlay;
use crate::source::spool::Spool;
use crate::source::tar::input::{FileInput, Input, StreamInput};
use crate::source::tar::{EndMark, Entry, Reader};
use crate::source::unpack::{Compression, unpacked};
use crate::target::Location;
use crate::tree::{FileId, Tree, TreeError};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Names that aufs keeps for itself.
const INTERNAL: &[u8] = b".wh..wh.";

/// How many bytes of entries are read before somebody is told.
const TOLD_BYTES: usize = 4 << 10;

/// What was promised of a layer.
#[derive(Clone, Debug)]
pub(super) enum Promise {
    /// Digest and length of the blob, and its media type.
    Blob(Descriptor),
    /// The digest of the archive when it is unpacked.
    Unpacked(String),
}

/// A layer of an image: what was promised, and where it is.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) promise: Promise,
    pub(super) blob: Blob,
}

/// A layer that nobody has looked into.
pub(super) struct Unread {
    place: String,
    promise: Promise,
    blob: Blob,
    compression: Compression,
    /// Where the contents will be; `None` if they stay in the blob.
    spool: Option<Spool>,
    contents: FileId,
}

/// The entries of a layer.
pub(super) struct Layer {
    place: String,
    whiteouts: Packed,
    others: Packed,
    notices: Notices,
}

impl Unread {
    /// Compares the blob with what was promised.
    fn check(&self) -> Parsed<()> {
        match (&self.promise, self.compression) {
            (Promise::Blob(promised), _) => check_bytes(&mut self.blob.reader(), promised),
            (Promise::Unpacked(digest), Compression::None) => {
                Digest::parse(digest)?.check(&mut self.blob.reader())?;
                Ok(())
            }
            (Promise::Unpacked(digest), compression) => {
                let mut stream = unpacked(self.blob.reader(), compression)?;
                Digest::parse(digest)?.check(&mut stream)?;
                Ok(())
            }
        }
    }

    /// Takes the blob, and opens a place for its contents.
    pub(super) fn new(
        found: Found,
        place: String,
        tree: &mut Tree,
        context: &Context<'_>,
    ) -> Result<Self, SourceError> {
        let Found { promise, blob } = found;
        let opened = compression_of(&blob).and_then(|compression| {
            context.refuse_output(&Location::of(&blob.file, blob.range.clone())?)?;
            let spool = match compression {
                Compression::None => None,
                _ => Some(Spool::create(context.scratch)?),
            };
            let file = spool.as_ref().map_or(&blob.file, Spool::file);
            let contents = tree.add_file(Arc::clone(file))?;
            tree.watch_file(Arc::clone(&blob.file), &place)?;
            Ok((compression, spool, contents))
        });
        let (compression, spool, contents) = opened.map_err(|fault| SourceError {
            place: place.clone(),
            entry: None,
            fault,
        })?;
        Ok(Self {
            place,
            promise,
            blob,
            compression,
            spool,
            contents,
        })
    }

    /// Checks the digest, then reads all entries. `hold` is told now and then how many bytes of
    /// them were read since it was told last, and may have the reader wait.
    pub(super) fn read(
        self,
        read_bytes: &Counter,
        hold: &dyn Fn(usize),
    ) -> Result<Layer, SourceError> {
        let place = self.place.clone();
        let in_layer = |fault| SourceError {
            place: place.clone(),
            entry: None,
            fault,
        };
        self.check().map_err(in_layer)?;
        // The digest has proved that nothing is missing.
        let end = EndMark::Optional;
        match self.spool {
            None => {
                let input = FileInput::new(self.blob.file, self.blob.range);
                entries(
                    Reader::new(input, self.place, self.contents, end),
                    place,
                    read_bytes,
                    hold,
                )
            }
            Some(spool) => {
                let stream = unpacked(self.blob.reader(), self.compression);
                let stream = stream.map_err(|error| in_layer(error.into()))?;
                let input = StreamInput::new(stream, spool);
                entries(
                    Reader::new(input, self.place, self.contents, end),
                    place,
                    read_bytes,
                    hold,
                )
            }
        }
    }
}

/// How a layer is compressed: what it begins with says so.
fn compression_of(blob: &Blob) -> Parsed<Compression> {
    let mut start = Vec::new();
    blob.reader().take(8).read_to_end(&mut start)?;
    Compression::of(&start)
}

/// Refuses a layer of a kind that cannot be read.
pub(super) fn check_media_type(kind: &str) -> Parsed<()> {
    let known = ["", "tar", "tar+gzip", "tar+zstd", "tar.gzip", "tar.zstd"];
    let suffix = kind.rsplit_once(".v1.").map_or(kind, |(_, suffix)| suffix);
    let suffix = suffix.strip_prefix("nondistributable.").unwrap_or(suffix);
    let docker = kind.strip_prefix("application/vnd.docker.image.rootfs.");
    let docker = docker.and_then(|kind| kind.split_once("diff."));
    if !known.contains(&docker.map_or(suffix, |(_, suffix)| suffix)) {
        let why = format!("the media type {kind} is not known");
        return Err(Fault::Layout { why });
    }
    Ok(())
}

fn entries<I: Input>(
    mut reader: Reader<I>,
    place: String,
    read_bytes: &Counter,
    hold: &dyn Fn(usize),
) -> Result<Layer, SourceError> {
    let (mut whiteouts, mut others) = (Packed::default(), Packed::default());
    let mut seen = 0;
    let mut new_bytes = 0;
    while let Some(entry) = reader.next()? {
        let list = match split(&entry.path).1.starts_with(WHITEOUT) {
            true => &mut whiteouts,
            false => &mut others,
        };
        let kept_bytes = list.push(entry).ok_or_else(|| SourceError {
            place: place.clone(),
            entry: None,
            fault: Fault::Tree(TreeError::Full),
        })?;
        new_bytes += kept_bytes;
        if new_bytes >= TOLD_BYTES {
            hold(std::mem::take(&mut new_bytes));
        }
        read_bytes.add(reader.position() - seen);
        seen = reader.position();
    }
    Ok(Layer {
        place,
        whiteouts,
        others,
        notices: reader.into_notices(),
    })
}

impl Layer {
    /// Lays the layer over the tree.
    pub(super) fn apply(self, tree: &mut Tree, context: &mut Context) -> Result<(), SourceError> {
        for Entry { path, .. } in self.whiteouts.into_entries() {
            remove(tree, &path).map_err(|fault| SourceError {
                place: self.place.clone(),
                entry: Some(path),
                fault,
            })?;
        }
        for entry in self.others.into_entries() {
            overlay::put(tree, entry, context.excludes, &self.place)?;
        }
        context.notices.append(self.notices);
        Ok(())
    }
}

/// The directory of a path, and its last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    slash.map_or((b"", path), |slash| (&path[..slash], &path[slash + 1..]))
}

/// Does what a whiteout says.
fn remove(tree: &mut Tree, path: &[u8]) -> Parsed<()> {
    if path.split(|&byte| byte == b'/').any(|name| name == b"..") {
        let path = path.to_vec();
        return Err(Fault::Tree(TreeError::Climbs { path }));
    }
    let (directory, name) = split(path);
    if name == OPAQUE {
        tree.clear(directory)?;
        return Ok(());
    }
    if name.starts_with(INTERNAL) {
        return Ok(());
    }
    match &name[WHITEOUT.len()..] {
        b"" | b"." | b".." => Err(Fault::Whiteout),
        hidden => {
            // What is removed need not be there, nor the directory it would be in.
            match tree.remove(&[directory, b"/", hidden].concat()) {
                Ok(_) | Err(TreeError::NotADirectory { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
    }
}
