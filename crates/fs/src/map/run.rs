//! **Purpose.** Ranges of a file: of its bytes and of its blocks.
//!
//! **Not here.** What blocks of a file map to ([`crate::map::mapping`]).

use fourscore_ondisk::LogicalBlock;

/// Bytes of a file, from `offset` up to `end`, which does not belong to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "for the operations on file data")]
pub(crate) struct ByteRange {
    pub(crate) offset: u64,
    pub(crate) end: u64,
}

/// Adjacent blocks of a file: the first one, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "for the operations on file data")]
pub(crate) struct BlockRun {
    pub(crate) at: LogicalBlock,
    pub(crate) blocks: u32,
}

#[allow(dead_code, reason = "for the operations on file data")]
impl BlockRun {
    /// Returns the block behind the last one.
    pub(crate) fn end(self) -> LogicalBlock {
        LogicalBlock(self.at.0.saturating_add(self.blocks))
    }
}
