//! **Purpose.** The result of looking up a block in a map: where it lies, for how many blocks that
//! holds, and in which state they are.
//!
//! **Not here.** The lookup (`map::lookup`).

use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::{LogicalBlock, PhysBlock};

/// What a run of a file's blocks maps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nothing: reads as zeroes.
    Hole,
    /// Blocks that belong to the file and read as zeroes.
    Unwritten(PhysBlock),
    /// Blocks that hold data.
    Written(PhysBlock),
}

/// A run of a file's blocks, starting at the block that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// First block of the run.
    pub(crate) logical: LogicalBlock,
    /// Length of the run, at least 1.
    pub(crate) blocks: u32,
    /// The target of the run.
    pub(crate) target: Target,
}

impl Mapping {
    /// Returns a hole from `logical` up to `end`.
    pub(crate) fn hole(logical: LogicalBlock, end: LogicalBlock) -> Self {
        let blocks = end.0.saturating_sub(logical.0).max(1);
        Self {
            logical,
            blocks,
            target: Target::Hole,
        }
    }

    /// Returns the part of `extent` that begins at `logical`, which lies inside.
    pub(crate) fn inside(extent: &Extent, logical: LogicalBlock) -> Self {
        let skipped = logical.0.saturating_sub(extent.logical.0);
        let physical = PhysBlock(extent.physical.0.saturating_add(skipped.into()));
        let target = match extent.state {
            ExtentState::Written => Target::Written(physical),
            ExtentState::Unwritten => Target::Unwritten(physical),
        };
        Self {
            logical,
            blocks: extent.blocks.saturating_sub(skipped).max(1),
            target,
        }
    }

    /// Returns the run cut off at `end`, which lies behind its first block.
    pub(crate) fn until(self, end: LogicalBlock) -> Self {
        let space = end.0.saturating_sub(self.logical.0).max(1);
        Self {
            blocks: self.blocks.min(space),
            ..self
        }
    }

    /// Returns the block behind the last block of the run.
    pub(crate) fn end(&self) -> LogicalBlock {
        LogicalBlock(self.logical.0.saturating_add(self.blocks))
    }

    /// Returns the run as an extent; `None` for a hole.
    pub(crate) fn extent(&self) -> Option<Extent> {
        let (physical, state) = match self.target {
            Target::Hole => return None,
            Target::Unwritten(physical) => (physical, ExtentState::Unwritten),
            Target::Written(physical) => (physical, ExtentState::Written),
        };
        Some(Extent {
            logical: self.logical,
            physical,
            blocks: self.blocks,
            state,
        })
    }
}
