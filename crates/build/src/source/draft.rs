//! **Purpose.** An image that is begun before its sources are read, for contents that can be read
//! only once: they go to their blocks as they arrive.
//!
//! **Not here.** Which blocks these are and what may stay there (`layout::draft`).
//!
//! **Model.** The draft is the file without a name that becomes the image. There is none where a
//! content must be read again from somewhere else (`--verify`), where its place must not depend on
//! when it arrives (`--canonical`), where the image is written in place (which shall not change if
//! a source is damaged), where the host has no files without a name (a signal would leave it
//! behind) and where the features leave no choice of places. There contents wait in a
//! [`Spool`](super::spool::Spool).
//!
//! **Invariants.** The last block of a content is filled up with zeroes.

use std::io::{self, Read};
use std::path::PathBuf;

use fourscore_sync::Arc;

use super::Destination;
use crate::layout::{DraftSpace, Run as BlockRun};
use crate::read_back::Comparison;
use crate::source::keep::Keep;
use crate::source::sink::Sink;
use crate::source::tar::sparse::Run;
use crate::target::Target;
use crate::tree::{FileId, Piece, Tree};
use crate::write::Begun;

/// An image in which contents are placed as they arrive.
#[derive(Debug)]
pub(crate) struct Draft {
    begun: Begun,
    /// Of the target, as the caller named it.
    path: PathBuf,
    /// The file of the image among those of the tree.
    file: FileId,
    space: DraftSpace,
    sink: Sink,
    /// Where the blocks of the last content are.
    runs: Vec<BlockRun>,
}

impl Draft {
    /// Begins the image; `None` where contents must not be placed in it yet.
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
        // Whoever reads the source does not know about the image.
        let named = |why: io::Error| {
            let text = format!("{}: {why}", target.path().display());
            io::Error::new(why.kind(), text)
        };
        let Some((begun, file)) = Begun::nameless(target).map_err(named)? else {
            return Ok(None);
        };
        let sink = Sink::new(Arc::new(file));
        let file = tree.add_file(Arc::clone(sink.file()));
        Ok(Some(Self {
            begun,
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

    /// log2 of the size of the blocks in which contents were placed.
    pub(crate) fn block_bits(&self) -> u32 {
        self.space.block_bits()
    }

    pub(crate) fn is_for(&self, target: &Target) -> bool {
        self.path == target.path()
    }

    pub(crate) fn into_begun(self) -> Begun {
        self.begun
    }
}

impl Keep for &mut Draft {
    fn keep(
        &mut self,
        parts: &[Run],
        from: &mut dyn Read,
        pieces: &mut Vec<Piece>,
    ) -> io::Result<u64> {
        let lengths = parts.iter().map(|part| (part.offset, part.len_bytes));
        if !self.space.place(lengths, &mut self.runs) {
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
                self.sink.take_zeroes(first - at)?;
                pieces.push(Piece {
                    at: first,
                    from: place + (first - begin),
                    len_bytes: now,
                });
                let count = self.sink.take(from, now)?;
                taken += count;
                if count < now {
                    return Ok(taken);
                }
                at = first + now;
                if part_end > end {
                    // Its rest is in the next run.
                    break;
                }
                next = rest.next();
            }
            self.sink.take_zeroes(end - at)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
