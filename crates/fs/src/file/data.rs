//! **Purpose.** The data of a write, with its place in the file.

use crate::file::prepare::index;

/// The data of a write: its bytes, and the offset of the first in the file.
#[derive(Clone, Copy)]
pub(crate) struct Data<'d> {
    pub(crate) bytes: &'d [u8],
    pub(crate) offset: u64,
}

impl<'d> Data<'d> {
    /// Returns the offset behind the last byte.
    pub(crate) fn end(self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// Returns the bytes between two offsets in the file.
    pub(crate) fn between(self, from: u64, to: u64) -> &'d [u8] {
        &self.bytes[index(from - self.offset)..index(to - self.offset)]
    }
}
