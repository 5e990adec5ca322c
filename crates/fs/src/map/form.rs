//! **Purpose.** The two forms of a map: extent tree, and block pointers as in ext2 and ext3.
//!
//! **Invariants.** A flag of the inode says which form its map has.

use fourscore_mballoc::Reach;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::superblock::Superblock;

use crate::inode::cached::CachedInode;

/// The form of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapForm {
    /// A tree of extents.
    Tree,
    /// Direct and indirect pointers.
    Pointers,
}

impl MapForm {
    /// Returns the form of the map of `inode`.
    pub(crate) fn of(inode: &CachedInode) -> Self {
        // The layout does not say it for a symbolic link that is just being given its first block.
        if inode.has(InodeFlags::EXTENTS_FL) {
            Self::Tree
        } else {
            Self::Pointers
        }
    }

    /// Returns the form of the maps of new inodes.
    pub(crate) fn of_new(superblock: &Superblock) -> Self {
        let incompat = superblock.features().incompat;
        if incompat.contains(Incompat::EXTENTS) {
            Self::Tree
        } else {
            Self::Pointers
        }
    }

    /// Returns the flags of an inode whose map has this form.
    pub(crate) fn flags(self) -> InodeFlags {
        match self {
            Self::Tree => InodeFlags::EXTENTS_FL,
            Self::Pointers => InodeFlags::empty(),
        }
    }

    /// Returns which blocks the map can refer to.
    pub(crate) fn reach(self) -> Reach {
        match self {
            Self::Tree => Reach::Full,
            Self::Pointers => Reach::Bits32,
        }
    }
}
