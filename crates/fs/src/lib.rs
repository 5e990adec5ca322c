//! **Purpose.** ext4 in user space, made for many cores: open an image of ext2, ext3 or ext4, read
//! everything in it and change it, from any number of threads.
//!
//! ```no_run
//! use fourscore::block::{DeviceOptions, open_path};
//! use fourscore::{Follow, Fs, OpenOptions};
//!
//! let device = open_path("disk.ext4".as_ref(), DeviceOptions::default())?;
//! let fs = Fs::open(fourscore::Arc::new(device), &OpenOptions::new())?;
//! let hosts = fs.resolve(b"/etc/hosts", Follow::Yes)?;
//! let mut content = vec![0; 4096];
//! let len = fs.read_at(hosts, &mut content, 0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Calls take inode numbers. There is nothing to close: a number is looked up in the inode cache
//! by each call, which costs some ten nanoseconds and writes no memory that another core reads,
//! where a counted handle would be a line that all its users fight for.
//!
//! | module | responsibility |
//! |---|---|
//! | `open` | from a device to an [`Fs`] |
//! | `replay` | the journal of a crashed file system, replayed in memory |
//! | `fast_commit` | what fast commits change, kept beside the device |
//! | `consistent` | reading beside writers: the order in which changes become visible |
//! | `inode` | decoded inodes, the inode cache, [`Stat`] |
//! | `map` | from a block of a file to where it lies |
//! | `file` | reading content, extents, holes |
//! | `dir` | the forms of directories, finding a name |
//! | `dir_blocks` | going through the blocks of a directory |
//! | `listing` | listing a directory, also while it changes |
//! | `index` | finding a name through the hash index |
//! | `names` | what names are equal, and how encrypted ones are shown |
//! | `name_cache` | names that were found before |
//! | `path` | from a path to an inode |
//! | `symlink` | targets of symbolic links |
//! | `inline` | content that is kept inside the inode |
//! | `xattr` | extended attributes |
//! | `orphans` | inodes that a crash left half deleted |
//! | `group` | group descriptors, bitmaps, inode tables |
//! | `statfs` | how full the file system is |
//! | `metadata` | metadata blocks, checked for what they are used as |
//! | `write` | opening for writing, and every operation that changes something |
//! | `permission` | who may do what |
//! | `error` | [`Error`] and its errno |
//!
//! # Invariants
//! No byte of the image makes a call panic, loop for ever or take unbounded memory. A file system
//! opened with [`Fs::open`] writes nothing to its device.
//!
//! # Locking
//! The read path takes no lock on a hit; on a miss those of the caches, never across I/O. The
//! order for writers: rename lock (directory renames only) -> directory inodes by number -> file
//! inodes by number -> leaf of a directory -> block of attributes -> record of orphans -> inodes of
//! a group -> handle -> directory, xattr and extent buffers -> group -> core-local state.
#![forbid(unsafe_code)]

mod consistent;
mod dir;
mod dir_blocks;
mod error;
mod fast_commit;
mod file;
mod group;
mod index;
mod inline;
mod inode;
mod listing;
mod map;
mod metadata;
mod name_cache;
mod names;
mod open;
mod orphans;
mod path;
mod permission;
mod replay;
mod statfs;
mod symlink;
mod write;
mod xattr;

use fourscore_block::{BlockDevice, BufferCache};
use fourscore_cache::ClockCache;
use fourscore_ondisk::geometry::Geometry;
use fourscore_ondisk::superblock::Superblock;

use crate::fast_commit::FastCommitOverlay;
use crate::inode::InodeCell;
use crate::name_cache::NameCache;
use crate::write::Writer;

pub use crate::dir::{DirEntry, OwnedDirEntry};
pub use crate::error::{Error, Result};
pub use crate::file::{EXTENTS_AT_ONCE, Seek};
pub use crate::group::Bitmap;
pub use crate::inode::{Scanned, Stat};
pub use crate::open::{OpenOptions, Replay, SuperblockCopy};
pub use crate::path::Follow;
pub use crate::permission::{Caller, Capabilities, Wish};
pub use crate::replay::{FoundBy, JournalDamage};
pub use crate::statfs::StatFs;
#[cfg(feature = "sabotage")]
pub use crate::write::Sabotage;
pub use crate::write::{
    AccessTimes, AttributeChange, Barriers, DataMode, Discard, Fallocate, MountOptions,
    NewAttributes, Noted, NotedTimes, OnError, OpenInode, Privileges, Replace, SetXattr, Times,
    Trim, WrittenAt,
};
pub use crate::xattr::{MAX_VALUE_BYTES, Xattr, XattrPlace};
pub use fourscore_block as block;
pub use fourscore_mballoc as mballoc;
pub use fourscore_ondisk as ondisk;
pub use fourscore_ondisk::extent::{Extent, ExtentState};
pub use fourscore_ondisk::inode::FileType;
pub use fourscore_ondisk::{Corrupt, CorruptKind, InodeNr, LogicalBlock, PhysBlock};
pub use fourscore_sync::Arc;
use fourscore_sync::Serial;

/// A file system that was opened. Shared between threads in an [`Arc`]; every call takes `&self`.
#[derive(Debug)]
pub struct Fs {
    /// What reads go to: the device, or the overlay of a replayed journal over it.
    device: Arc<dyn BlockDevice>,
    superblock: Arc<Superblock>,
    buffers: Arc<BufferCache>,
    inodes: ClockCache<InodeNr, InodeCell>,
    /// Numbers for the lives of directories in memory.
    lives: Serial,
    names: NameCache,
    /// Changes of fast commits, which are in no block; `None` but after a crash with some.
    fast_commit: Option<FastCommitOverlay>,
    journal_damage: Option<JournalDamage>,
    journal_found_by: FoundBy,
    /// What writing takes; `None` in a file system that was opened for reading.
    writer: Option<Box<Writer>>,
}

impl Fs {
    /// The superblock, as the journal left it.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// What the cache of metadata did since it was opened.
    #[must_use]
    pub fn buffer_stats(&self) -> fourscore_block::buffer_cache::CacheStats {
        self.buffers.stats()
    }

    /// Sizes, counts and places.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.superblock.geometry()
    }

    /// The transaction at the journal's end that was not replayed because it is damaged, if there
    /// is one. `None` also where no journal was replayed.
    #[must_use]
    pub fn journal_damage(&self) -> Option<JournalDamage> {
        self.journal_damage
    }

    /// How the journal was found that was replayed.
    #[must_use]
    pub fn journal_found_by(&self) -> FoundBy {
        self.journal_found_by
    }

    /// Whether changes of fast commits are kept beside the device: the blocks of the device alone
    /// then do not tell what the file system holds.
    #[must_use]
    pub fn has_fast_commits(&self) -> bool {
        self.fast_commit.is_some()
    }

    /// What reads go to. Its `host_range` tells where bytes lie in a file of the host.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }
}
