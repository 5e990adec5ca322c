//! **Purpose.** A decoded inode: its fields, and the layout of its data.
//!
//! **Model.** Decoding determines the layout of the data once and checks the root of the inode's
//! map. A decoded inode is immutable; a change of the inode creates a new one
//! ([`crate::inode::cell`]).

use fourscore_ondisk::checksum::InodeSeed;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::{FileType, Inode, InodeFlags};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{Corrupt, InodeNr, blockmap, extent};

use crate::{Error, Result};

/// The smallest size of a symbolic link's target that does not fit in `i_block` with a NUL behind
/// it.
const FAST_SYMLINK_BYTES: u64 = 60;

/// How the data of an inode is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// An extent tree with its root in `i_block`.
    Extents,
    /// Direct and indirect pointers in `i_block`.
    BlockMap,
    /// In `i_block`, continued in the attribute `system.data`.
    Inline,
    /// A symbolic link whose target is in `i_block`.
    FastSymlink,
    /// No data: devices, pipes, sockets.
    Nothing,
}

/// A decoded inode.
#[derive(Clone, Debug)]
pub(crate) struct CachedInode {
    inode: Inode,
    file_type: FileType,
    layout: Layout,
    seed: Option<InodeSeed>,
}

impl CachedInode {
    /// Determines the layout of `inode` and checks the root of its map.
    pub(crate) fn new(inode: Inode, superblock: &Superblock) -> Result<Self> {
        let nr = inode.number();
        // A free inode has no type.
        let Some(file_type) = inode.file_type() else {
            return Err(Error::NotFound);
        };
        let layout = layout(&inode, file_type, superblock);
        let physical = superblock.geometry().data_blocks();
        match layout {
            Layout::Extents => extent::check_root(inode.i_block(), &physical)
                .map_err(|error| Corrupt::from(error).in_inode(nr))?,
            Layout::BlockMap => blockmap::check_root(inode.i_block(), &physical)
                .map_err(|error| Corrupt::from(error).in_inode(nr))?,
            Layout::Inline | Layout::FastSymlink | Layout::Nothing => {}
        }
        let seed = superblock
            .has_metadata_csum()
            .then(|| inode.checksum_seed());
        Ok(Self {
            inode,
            file_type,
            layout,
            seed,
        })
    }

    /// Returns the inode as it is on disk.
    pub(crate) fn on_disk(&self) -> &Inode {
        &self.inode
    }

    pub(crate) fn nr(&self) -> InodeNr {
        self.inode.number()
    }

    pub(crate) fn file_type(&self) -> FileType {
        self.file_type
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the seed of the checksums of its blocks; `None` without `metadata_csum`.
    pub(crate) fn seed(&self) -> Option<InodeSeed> {
        self.seed
    }

    /// Returns the size of its data.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.inode.size_bytes()
    }

    /// Returns the root of its map, its inline data, or the target of a symbolic link.
    pub(crate) fn i_block(&self) -> &[u8] {
        self.inode.i_block()
    }

    /// Whether its data is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.has(InodeFlags::ENCRYPT_FL)
    }

    /// Whether its data or its names are stored in the inode.
    pub(crate) fn is_inline(&self) -> bool {
        self.layout == Layout::Inline
    }

    pub(crate) fn has(&self, flag: InodeFlags) -> bool {
        self.inode.flags().contains(flag)
    }

    /// Returns the inode, if it is a directory.
    ///
    /// # Errors
    /// `NotADirectory`.
    pub(crate) fn as_directory(&self) -> Result<&Self> {
        match self.file_type {
            FileType::Directory => Ok(self),
            _ => Err(Error::NotADirectory),
        }
    }

    /// Returns the inode, unless it holds the value of an attribute: such an inode is reached
    /// through the attribute only. Its times hold the value's hash and the count of its users, so
    /// treating it as a file would destroy them.
    ///
    /// # Errors
    /// `NotFound`: a caller that has only the number has it from an inode that was deleted, and
    /// whose number is used again. A name that refers to such an inode is damage, which
    /// [`find_name`](crate::dir::find::find_name) reports.
    pub(crate) fn not_a_value(&self) -> Result<&Self> {
        match self.has(InodeFlags::EA_INODE_FL) {
            true => Err(Error::NotFound),
            false => Ok(self),
        }
    }

    /// Returns the error for an inode that holds the value of an attribute and has a name.
    #[cold]
    pub(crate) fn named_value(&self) -> Error {
        let error = Corrupt::from(RelationError::UnexpectedEaInode);
        error.in_inode(self.nr()).into()
    }

    /// Returns the bytes of this value and of its heap memory, for the cache's budget.
    pub(crate) fn weight_bytes(&self) -> usize {
        size_of::<Self>() + self.inode.heap_bytes()
    }
}

fn layout(inode: &Inode, file_type: FileType, superblock: &Superblock) -> Layout {
    match file_type {
        FileType::Regular | FileType::Directory | FileType::Symlink => {}
        _ => return Layout::Nothing,
    }
    let flags = inode.flags();
    let inline_data = superblock
        .features()
        .incompat
        .contains(Incompat::INLINE_DATA);
    if inline_data && flags.contains(InodeFlags::INLINE_DATA_FL) {
        Layout::Inline
    } else if file_type == FileType::Symlink && is_fast_symlink(inode, superblock) {
        Layout::FastSymlink
    } else if flags.contains(InodeFlags::EXTENTS_FL) {
        Layout::Extents
    } else {
        Layout::BlockMap
    }
}

/// Whether a symbolic link has its target in `i_block`. This is so if it uses no space besides its
/// xattr block. The size says nothing, since a short target may have been written to a block. It
/// decides only where values of attributes may be in inodes, whose space counts for the link too.
fn is_fast_symlink(inode: &Inode, superblock: &Superblock) -> bool {
    let incompat = superblock.features().incompat;
    if incompat.contains(Incompat::EA_INODE) {
        return (1..FAST_SYMLINK_BYTES).contains(&inode.size_bytes());
    }
    let cluster_sectors = (superblock.geometry().cluster_size_bytes() / 512) as u64;
    let xattr_sectors = inode.file_acl().map_or(0, |_| cluster_sectors);
    inode.sectors() <= xattr_sectors
}
