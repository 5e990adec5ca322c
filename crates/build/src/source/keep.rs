//! **Purpose.** Contents that can be read only once are kept somewhere on the way.

use std::io::{self, Read};

use crate::source::tar::sparse::Run;
use crate::tree::Piece;

/// A place for contents that flow by.
pub(crate) trait Keep {
    /// Takes the parts of one file that are not holes, sorted and apart, which come from `from`
    /// one after the other. `pieces` gets where they are; the result is how many bytes there were
    /// before `from` ended.
    fn keep(
        &mut self,
        parts: &[Run],
        from: &mut dyn Read,
        pieces: &mut Vec<Piece>,
    ) -> io::Result<u64>;

    /// Has everything that was kept be in its place, for others to read.
    fn flush(&mut self) -> io::Result<()>;
}

/// How many bytes these parts have.
pub(crate) fn total_bytes(parts: &[Run]) -> u64 {
    parts.iter().map(|part| part.len_bytes).sum()
}
