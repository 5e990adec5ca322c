//! **Purpose.** Reads the entries of one layer, on any thread, and applies them to the tree.
//!
//! **Model.** An empty file `.wh.NAME` (a whiteout) removes NAME of the lower layers,
//! `.wh..wh..opq` removes everything that they have in its directory. Both apply to lower layers
//! only, wherever they are in the archive: so whiteouts are applied first, then all other entries.

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
use crate::source::unpack::{Compression, decompress};
use crate::target::Location;
use crate::tree::{FileId, Tree, TreeError};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of names that are internal to aufs.
const INTERNAL: &[u8] = b".wh..wh.";

/// How many bytes of entries are read between two calls of the throttle.
const REPORT_BYTES: usize = 4 << 10;

/// The expected digest of a layer.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    /// Digest, length and media type of the blob.
    Blob(Descriptor),
    /// The digest of the uncompressed archive.
    Decompressed(String),
}

/// A layer of an image: its expected digest and its blob.
#[derive(Debug)]
pub(super) struct LayerSource {
    pub(super) expected: Expected,
    pub(super) blob: Blob,
}

/// A layer whose entries are not read yet.
pub(super) struct UnreadLayer {
    place: String,
    expected: Expected,
    blob: Blob,
    compression: Compression,
    /// Where the data of files is stored; `None` if it stays in the blob.
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

impl UnreadLayer {
    /// Verifies the blob.
    fn check(&self) -> Parsed<()> {
        match (&self.expected, self.compression) {
            (Expected::Blob(expected), _) => check_bytes(&mut self.blob.reader(), expected),
            (Expected::Decompressed(digest), Compression::None) => {
                Digest::parse(digest)?.check(&mut self.blob.reader())?;
                Ok(())
            }
            (Expected::Decompressed(digest), compression) => {
                let mut stream = decompress(self.blob.reader(), compression)?;
                Digest::parse(digest)?.check(&mut stream)?;
                Ok(())
            }
        }
    }

    /// Opens a layer, with a spool for its data if it is compressed.
    pub(super) fn new(
        found: LayerSource,
        place: String,
        tree: &mut Tree,
        context: &Context<'_>,
    ) -> Result<Self, SourceError> {
        let LayerSource { expected, blob } = found;
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
            expected,
            blob,
            compression,
            spool,
            contents,
        })
    }

    /// Verifies the digest, then reads all entries. `throttle` is called repeatedly with the bytes
    /// of entries since its last call, and may block.
    pub(super) fn read(
        self,
        read_bytes: &Counter,
        throttle: &dyn Fn(usize),
    ) -> Result<Layer, SourceError> {
        let place = self.place.clone();
        let in_layer = |fault| SourceError {
            place: place.clone(),
            entry: None,
            fault,
        };
        self.check().map_err(in_layer)?;
        // The digest has proved that the archive is complete.
        let end = EndMark::Optional;
        match self.spool {
            None => {
                let input = FileInput::new(self.blob.file, self.blob.range);
                entries(
                    Reader::new(input, self.place, self.contents, end),
                    place,
                    read_bytes,
                    throttle,
                )
            }
            Some(spool) => {
                let stream = decompress(self.blob.reader(), self.compression);
                let stream = stream.map_err(|error| in_layer(error.into()))?;
                let input = StreamInput::new(stream, spool);
                entries(
                    Reader::new(input, self.place, self.contents, end),
                    place,
                    read_bytes,
                    throttle,
                )
            }
        }
    }
}

/// Detects the compression of a layer by its first bytes.
fn compression_of(blob: &Blob) -> Parsed<Compression> {
    let mut start = Vec::new();
    blob.reader().take(8).read_to_end(&mut start)?;
    Compression::of(&start)
}

/// Returns an error for an unsupported media type.
pub(super) fn check_media_type(kind: &str) -> Parsed<()> {
    let known = ["", "tar", "tar+gzip", "tar+zstd", "tar.gzip", "tar.zstd"];
    let suffix = kind.rsplit_once(".v1.").map_or(kind, |(_, suffix)| suffix);
    let suffix = suffix.strip_prefix("nondistributable.").unwrap_or(suffix);
    let docker = kind.strip_prefix("application/vnd.docker.image.rootfs.");
    let docker = docker.and_then(|kind| kind.split_once("diff."));
    if !known.contains(&docker.map_or(suffix, |(_, suffix)| suffix)) {
        let why = format!("the media type {kind} is not supported");
        return Err(Fault::Layout { why });
    }
    Ok(())
}

fn entries<I: Input>(
    mut reader: Reader<I>,
    place: String,
    read_bytes: &Counter,
    throttle: &dyn Fn(usize),
) -> Result<Layer, SourceError> {
    let (mut whiteouts, mut others) = (Packed::default(), Packed::default());
    let mut seen = 0;
    let mut new_bytes = 0;
    while let Some(entry) = reader.next()? {
        let list = match split(&entry.path).1.starts_with(WHITEOUT) {
            true => &mut whiteouts,
            false => &mut others,
        };
        let heap_bytes = list.push(entry).ok_or_else(|| SourceError {
            place: place.clone(),
            entry: None,
            fault: Fault::Tree(TreeError::Full),
        })?;
        new_bytes += heap_bytes;
        if new_bytes >= REPORT_BYTES {
            throttle(std::mem::take(&mut new_bytes));
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
    /// Applies the layer to the tree.
    pub(super) fn apply(self, tree: &mut Tree, context: &mut Context) -> Result<(), SourceError> {
        for Entry { path, .. } in self.whiteouts.into_entries() {
            remove(tree, &path).map_err(|fault| SourceError {
                place: self.place.clone(),
                entry: Some(path),
                fault,
            })?;
        }
        for entry in self.others.into_entries() {
            overlay::apply(tree, entry, context.excludes, &self.place)?;
        }
        context.notices.append(self.notices);
        Ok(())
    }
}

/// Splits a path into its directory and its last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    slash.map_or((b"", path), |slash| (&path[..slash], &path[slash + 1..]))
}

/// Applies a whiteout.
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
            // The removed object, or its directory, may be missing.
            match tree.remove(&[directory, b"/", hidden].concat()) {
                Ok(_) | Err(TreeError::NotADirectory { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
    }
}
