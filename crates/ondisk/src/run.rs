//! **Purpose.** Runs of a file's blocks, from which whole maps are built: extent trees
//! ([`crate::extent::build`]) and block maps ([`crate::blockmap::build`]).

use crate::types::{LogicalBlock, PhysBlock};

/// Blocks that are adjacent both in the file and on disk. Unlike an extent, a run may be of any
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRun {
    /// First logical block.
    pub logical: LogicalBlock,
    /// First physical block.
    pub physical: PhysBlock,
    /// Length in blocks.
    pub blocks: u32,
}
