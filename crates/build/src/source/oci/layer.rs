//! **Purpose.** One layer: its entries, read by any thread, and what they do to the tree.
//!
//! **Model.** An empty file `.wh.NAME` removes NAME of the layers below, `.wh..wh..opq` all that
//! they have in its directory. Both concern the layers below only, wherever in the archive they
//! stand: so they come first, and then everything else.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use fourscore_sync::{Arc, Counter};

use super::digest::{blob_path, check};
use super::documents::Descriptor;
use super::packed::Packed;
use crate::source::Context;
use crate::source::fault::{Fault, Parsed, SourceError};
use crate::source::notices::Notices;
use crate::source::overlay;
use crate::source::spool::Spool;
use crate::source::tar::input::{FileInput, Input, StreamInput};
use crate::source::tar::{EndMark, Entry, Reader};
use crate::source::unpack::{Compression, unpacked};
use crate::tree::{FileId, Tree, TreeError};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Names that aufs keeps for itself.
const INTERNAL: &[u8] = b".wh..wh.";

/// How many bytes of entries are read before somebody is told.
const TOLD_BYTES: usize = 4 << 10;

/// A layer that nobody has looked into.
pub(super) struct Unread {
    place: String,
    descriptor: Descriptor,
    blob: Arc<File>,
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
    /// Opens the blob, and a place for its contents.
    pub(super) fn new(
        layout: &Path,
        descriptor: &Descriptor,
        place: String,
        tree: &mut Tree,
        context: &Context,
    ) -> Result<Self, SourceError> {
        let opened = open(layout, descriptor).and_then(|(blob, compression)| {
            let spool = match compression {
                Compression::None => None,
                _ => Some(Spool::create(context.scratch)?),
            };
            let file = spool.as_ref().map_or(&blob, Spool::file);
            let contents = tree.add_file(Arc::clone(file))?;
            tree.watch_file(Arc::clone(&blob), &place)?;
            Ok((blob, compression, spool, contents))
        });
        let (blob, compression, spool, contents) = opened.map_err(|fault| SourceError {
            place: place.clone(),
            entry: None,
            fault,
        })?;
        Ok(Self {
            place,
            descriptor: descriptor.clone(),
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
        let mut blob = &*self.blob;
        check(&mut blob, &self.descriptor).map_err(in_layer)?;
        blob.rewind().map_err(|error| in_layer(error.into()))?;
        // The digest has proved that nothing is missing.
        let end = EndMark::Optional;
        match self.spool {
            None => {
                let input = FileInput::new(self.blob, 0).map_err(|error| in_layer(error.into()))?;
                entries(
                    Reader::new(input, self.place, self.contents, end),
                    place,
                    read_bytes,
                    hold,
                )
            }
            Some(spool) => {
                let stream = unpacked(Shared(self.blob), self.compression);
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

/// A file that others have open as well; only this reader moves its position.
struct Shared(Arc<File>);

impl Read for Shared {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

fn open(layout: &Path, descriptor: &Descriptor) -> Parsed<(Arc<File>, Compression)> {
    let kind = descriptor.media_type.as_str();
    let known = ["", "tar", "tar+gzip", "tar+zstd", "tar.gzip", "tar.zstd"];
    let suffix = kind.rsplit_once(".v1.").map_or(kind, |(_, suffix)| suffix);
    let suffix = suffix.strip_prefix("nondistributable.").unwrap_or(suffix);
    let docker = kind.strip_prefix("application/vnd.docker.image.rootfs.");
    let docker = docker.and_then(|kind| kind.split_once("diff."));
    if !known.contains(&docker.map_or(suffix, |(_, suffix)| suffix)) {
        let why = format!("the media type {kind} is not known");
        return Err(Fault::Layout { why });
    }
    let mut blob = File::open(blob_path(layout, &descriptor.digest)?)?;
    let mut start = Vec::new();
    (&mut blob).take(8).read_to_end(&mut start)?;
    blob.seek(SeekFrom::Start(0))?;
    Ok((Arc::new(blob), Compression::of(&start)?))
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
