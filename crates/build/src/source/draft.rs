//! **Purpose.** An image that is begun before its sources are read: the data of streams is written
//! directly to its final blocks as it arrives.
//!
//! **Not here.** The allocation of these blocks (`layout::draft`).
//!
//! **Model.** The draft is the unlinked file that becomes the image. There is no draft in these
//! cases, and data waits in a [`Spool`](super::spool::Spool) instead: if the data must be read
//! again from another file (`--verify`); if its blocks must not depend on the order of arrival
//! (`--canonical`); if the image is written in place (the output must not change when a source is
//! damaged); if the host has no unlinked temporary files (a signal would leave the file behind); or
//! if the features determine where data goes.
//!
//! **Invariants.** The last block of a file's data is padded with zeroes.

use std::io::{self, Read};
use std::path::PathBuf;

use fourscore_sync::Arc;

use super::Destination;
use crate::layout::{DraftFile, DraftSpace, Run as BlockRun};
use crate::read_back::Comparison;
use crate::source::sink::Sink;
use crate::source::storage::Storage;
use crate::source::tar::sparse::Run;
use crate::target::Target;
use crate::tree::{FileId, Piece, Tree};
use crate::write::NewImage;

/// An image whose file data is written as it arrives.
#[derive(Debug)]
pub(crate) struct Draft {
    new_image: NewImage,
    /// Path of the target as the caller gave it.
    path: PathBuf,
    /// The image among the open files of the tree.
    file: FileId,
    space: DraftSpace,
    sink: Sink,
    /// The blocks of the last file.
    runs: Vec<BlockRun>,
}

impl Draft {
    /// Begins the image; `None` if file data must not be written to it yet.
    pub(crate) fn begin(
        destination: &Destination<'_>,
        tree: &mut Tree,
    ) -> io::Result<Option<Self>> {
        let Destination { options, target } = *destination;
        if options.canonical || options.read_back.comparison == Comparison::Everything {
            return Ok(None);
        }
        let Some(space) = DraftSpace::of(options) else {
            return Ok(None);
        };
        // The errors of reading a source do not name the image.
        let named = |why: io::Error| {
            let text = format!("{}: {why}", target.path().display());
            io::Error::new(why.kind(), text)
        };
        let Some((new_image, file)) = NewImage::unlinked_file(target).map_err(named)? else {
            return Ok(None);
        };
        let sink = Sink::new(Arc::new(file));
        let file = tree.add_file(Arc::clone(sink.file()));
        Ok(Some(Self {
            new_image,
            path: target.path().to_owned(),
            file: file.map_err(io::Error::other)?,
            space,
            sink,
            runs: Vec::new(),
        }))
    }

    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// The draft as the layout needs it.
    pub(crate) fn draft_file(&self) -> DraftFile {
        DraftFile {
            file: self.file,
            block_bits: self.space.block_bits(),
        }
    }

    pub(crate) fn is_for(&self, target: &Target) -> bool {
        self.path == target.path()
    }

    pub(crate) fn into_new_image(self) -> NewImage {
        self.new_image
    }
}

impl Storage for &mut Draft {
    fn store(
        &mut self,
        parts: &[Run],
        from: &mut dyn Read,
        pieces: &mut Vec<Piece>,
    ) -> io::Result<u64> {
        let ranges = parts
            .iter()
            .map(|part| part.offset..part.offset + part.len_bytes);
        if !self.space.place(ranges, &mut self.runs) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let bits = self.space.block_bits();
        let mut rest = parts.iter().copied();
        let mut next = rest.next();
        let mut taken = 0;
        for run in &self.runs {
            let begin = run.logical << bits;
            let end = (run.logical + run.blocks) << bits;
            let place = run.physical << bits;
            self.sink.move_to(place)?;
            let mut at = begin;
            while let Some(part) = next.filter(|part| part.offset < end) {
                let (first, part_end) = (part.offset.max(at), part.offset + part.len_bytes);
                let now = part_end.min(end) - first;
                self.sink.write_zeroes(first - at)?;
                pieces.push(Piece {
                    at: first,
                    from: place + (first - begin),
                    len_bytes: now,
                });
                let count = self.sink.copy(from, now)?;
                taken += count;
                if count < now {
                    return Ok(taken);
                }
                at = first + now;
                if part_end > end {
                    // The rest of the part is in the next run.
                    break;
                }
                next = rest.next();
            }
            self.sink.write_zeroes(end - at)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
