//! **Purpose.** A directory that an operation changes: its inode, its format, its slot in the plan,
//! and its planned length.
//!
//! **Not here.** The changes themselves (`dir::entries`, `dir::grow`).

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::dirent::DirFormat;
use fourscore_ondisk::{Corrupt, InodeSeed, LogicalBlock, PhysBlock};

use crate::core::Core;
use crate::dir::structure::{self, DirBlock};
use crate::inode::cached::{CachedInode, Layout};
use crate::txn::slot::Slot;
use crate::{Error, Result};

/// A directory whose names are changed.
#[derive(Debug)]
pub(crate) struct ChangedDir<'d> {
    pub(crate) inode: &'d CachedInode,
    pub(crate) slot: Slot,
    pub(crate) format: DirFormat,
    /// The length of the directory with the blocks that the plan adds.
    pub(crate) end: LogicalBlock,
}

impl<'d> ChangedDir<'d> {
    pub(crate) fn new(core: &Core, inode: &'d CachedInode, slot: Slot) -> Result<Self> {
        Ok(Self {
            inode,
            slot,
            format: structure::dir_format(core, inode),
            end: structure::size_in_blocks(core, inode)?,
        })
    }

    pub(crate) fn format(&self) -> &DirFormat {
        &self.format
    }

    /// Whether its names are inside its inode.
    pub(crate) fn is_inline(&self) -> bool {
        self.inode.layout() == Layout::Inline
    }

    pub(crate) fn tag(&self, what: DirBlock) -> VerifiedAs {
        let structure = match what {
            DirBlock::Leaf => Structure::DirectoryLeaf,
            DirBlock::Root | DirBlock::Node => Structure::DirectoryIndex,
        };
        tag(structure, self.inode)
    }

    pub(crate) fn broken(&self, error: impl Into<Corrupt>) -> Error {
        Error::Corrupt(error.into().in_inode(self.inode.nr()))
    }
}

/// Returns the tag of a block of `inode`, with the seed of its checksums.
pub(crate) fn tag(structure: Structure, inode: &CachedInode) -> VerifiedAs {
    let seed = inode.seed().unwrap_or(InodeSeed::from_value(0));
    VerifiedAs::new(structure, inode.nr()).seeded(seed)
}

/// A block of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) at: LogicalBlock,
    pub(crate) block: PhysBlock,
}
