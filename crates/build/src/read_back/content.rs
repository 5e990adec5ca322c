//! **Purpose.** Compares the data of a file with its source, and computes its checksum.
//!
//! **Model.** Data is read from the image and the source and compared. Where the image has a hole,
//! the source must have one too, or zeroes: only the data that the source has there is read.
//! Checksums include holes as zeroes.

use fourscore::Seek;
use fourscore_ondisk::InodeNr;
use sha2::{Digest as _, Sha256};

use super::{Checker, Difference};
use crate::error::{BuildError, BuildResult};
use crate::manifest::Sha256Sum;
use crate::tree::{Content, Kind, NodeId};
use crate::write::{OpenContent, ReadError, Reader};

const BUFFER_BYTES: usize = 256 << 10;

/// Reads file data, for one thread.
pub(super) struct DataChecker<'a> {
    checker: &'a Checker<'a>,
    reader: Reader<'a>,
    image_data: Vec<u8>,
    source_data: Vec<u8>,
}

impl<'a> DataChecker<'a> {
    pub(super) fn new(checker: &'a Checker<'a>) -> Self {
        Self {
            checker,
            reader: Reader::new(checker.tree()),
            image_data: vec![0; BUFFER_BYTES],
            source_data: vec![0; BUFFER_BYTES],
        }
    }

    /// Reads and compares a regular file; returns its checksum if requested. Ignores other objects.
    pub(super) fn read(&mut self, node: NodeId) -> BuildResult<Option<Sha256Sum>> {
        let checker = self.checker;
        let Kind::File(content) = checker.tree().kind(node) else {
            return Ok(None);
        };
        let source = match checker.is_compared {
            true => Some(self.open(node)?),
            false => None,
        };
        let inode = checker.layout.forms.numbers.inode(node);
        let len_bytes = content.len_bytes();
        let mut sum = checker.is_summed.then(Sha256::new);
        let mut at = 0;
        while at < len_bytes {
            let data = self.seek(node, inode, at, Seek::Data)?.unwrap_or(len_bytes);
            if let Some(source) = &source {
                self.compare_hole(node, &content, source, at..data)?;
            }
            if let Some(sum) = &mut sum {
                self.source_data.fill(0);
                for_each_part(at..data, |_, len| sum.update(&self.source_data[..len]));
            }
            at = data;
            if at == len_bytes {
                break;
            }
            let end = self.seek(node, inode, at, Seek::Hole)?.unwrap_or(len_bytes);
            while at < end {
                let len = part_len(at..end);
                self.read_image(node, inode, at, len)?;
                if let Some(source) = &source {
                    self.compare_data(node, source, at, len)?;
                }
                if let Some(sum) = &mut sum {
                    sum.update(&self.image_data[..len]);
                }
                at += len as u64;
            }
        }
        if let Some(source) = &source {
            let checked = self.reader.check(node, source);
            checked.map_err(|why| self.source_error(node, why))?;
        }
        Ok(sum.map(|sum| sum.finalize().into()))
    }

    fn open(&mut self, node: NodeId) -> BuildResult<OpenContent<'a>> {
        let opened = self.reader.open(node);
        opened.map_err(|why| self.source_error(node, why))
    }

    fn source_error(&self, node: NodeId, why: ReadError) -> BuildError {
        why.of(self.checker.tree().path_of(node))
    }

    fn seek(&self, node: NodeId, inode: InodeNr, at: u64, what: Seek) -> BuildResult<Option<u64>> {
        let found = self.checker.fs.seek(inode, at, what);
        found.map_err(self.checker.unreadable(node))
    }

    fn read_image(&mut self, node: NodeId, inode: InodeNr, at: u64, len: usize) -> BuildResult<()> {
        let checker = self.checker;
        let buffer = self.image_data.get_mut(..len).unwrap_or_default();
        let read = checker.fs.read_at(inode, buffer, at);
        let count = read.map_err(checker.unreadable(node))?;
        if count < len {
            let at = at + count as u64;
            return Err(checker.differs(node, Difference::Content { at }));
        }
        Ok(())
    }

    fn compare_data(
        &mut self,
        node: NodeId,
        source: &OpenContent<'_>,
        at: u64,
        len: usize,
    ) -> BuildResult<()> {
        let source_data = self.source_data.get_mut(..len).unwrap_or_default();
        let read = self.reader.read(node, source, at, source_data);
        read.map_err(|why| self.source_error(node, why))?;
        let pair = self.image_data.iter().zip(&self.source_data).take(len);
        if self.image_data.get(..len) != self.source_data.get(..len) {
            let same = pair
                .take_while(|(image_data, source_data)| image_data == source_data)
                .count();
            let at = at + same as u64;
            return Err(self.checker.differs(node, Difference::Content { at }));
        }
        Ok(())
    }

    /// Checks that the source has zeroes in a hole of the image.
    fn compare_hole(
        &mut self,
        node: NodeId,
        content: &Content,
        source: &OpenContent<'_>,
        hole: std::ops::Range<u64>,
    ) -> BuildResult<()> {
        let whole = [(0, content.len_bytes())];
        let pieces: Vec<(u64, u64)> = match content {
            Content::Sparse(sparse) => {
                let ends = |piece: &crate::tree::Piece| (piece.at, piece.at + piece.len_bytes);
                sparse.pieces.iter().map(ends).collect()
            }
            _ => whole.to_vec(),
        };
        for (start, end) in pieces {
            let (mut at, end) = (start.max(hole.start), end.min(hole.end));
            while at < end {
                let len = part_len(at..end);
                self.image_data.fill(0);
                self.compare_data(node, source, at, len)?;
                at += len as u64;
            }
        }
        Ok(())
    }
}

/// How much of a range is read at once.
fn part_len(range: std::ops::Range<u64>) -> usize {
    let len = range.end.saturating_sub(range.start);
    usize::try_from(len).map_or(BUFFER_BYTES, |len| len.min(BUFFER_BYTES))
}

fn for_each_part(range: std::ops::Range<u64>, mut visit: impl FnMut(u64, usize)) {
    let mut at = range.start;
    while at < range.end {
        let len = part_len(at..range.end);
        visit(at, len);
        at += len as u64;
    }
}
