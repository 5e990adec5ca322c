//! **Purpose.** The form of a map: extent tree or block pointers.

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
    /// The form of the map of `inode`.
    pub(crate) fn of(inode: &CachedInode) -> Self {
        // The layout would not tell of a link that is just being given its first block.
        if inode.has(InodeFlags::EXTENTS_FL) {
            Self::Tree
        } else {
            Self::Pointers
        }
    }

    /// The form that the maps of new inodes have.
    pub(crate) fn of_new(superblock: &Superblock) -> Self {
        let incompat = superblock.features().incompat;
        if incompat.contains(Incompat::EXTENTS) {
            Self::Tree
        } else {
            Self::Pointers
        }
    }

    /// The flags of an inode whose map has this form.
    pub(crate) fn flags(self) -> InodeFlags {
        match self {
            Self::Tree => InodeFlags::EXTENTS_FL,
            Self::Pointers => InodeFlags::empty(),
        }
    }

    /// Which blocks the map can lead to.
    pub(crate) fn reach(self) -> Reach {
        match self {
            Self::Tree => Reach::Full,
            Self::Pointers => Reach::Bits32,
        }
    }
}
