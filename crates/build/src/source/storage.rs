//! **Purpose.** An interface to store file data of a stream while it is read.

use std::io::{self, Read};

use crate::source::tar::sparse::Run;
use crate::tree::Piece;

/// Storage for file data from a stream.
pub(crate) trait Storage {
    /// Stores the data of one file: reads the ranges in `parts`, which are sorted and disjoint, one
    /// after another from `from`. Appends to `pieces` where they are stored. Returns the number of
    /// bytes read, which is less than the total if `from` ended early.
    fn store(
        &mut self,
        parts: &[Run],
        from: &mut dyn Read,
        pieces: &mut Vec<Piece>,
    ) -> io::Result<u64>;

    /// Writes out buffered data, so that other threads can read it.
    fn flush(&mut self) -> io::Result<()>;
}

/// The total length of all parts.
pub(crate) fn total_bytes(parts: &[Run]) -> u64 {
    parts.iter().map(|part| part.len_bytes).sum()
}
