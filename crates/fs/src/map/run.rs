//! **Purpose.** Runs of adjacent blocks of a file.
//!
//! **Not here.** What blocks of a file map to ([`crate::map::mapping`]).

use fourscore_ondisk::LogicalBlock;

/// Adjacent blocks of a file: the first one, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRun {
    pub(crate) at: LogicalBlock,
    pub(crate) blocks: u32,
}

impl BlockRun {
    /// Returns the block behind the last one.
    pub(crate) fn end(self) -> LogicalBlock {
        LogicalBlock(self.at.0.saturating_add(self.blocks))
    }
}
