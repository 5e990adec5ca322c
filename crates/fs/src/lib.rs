//! **Purpose.** ext4 in user space, made for many cores: open an image of ext2, ext3 or ext4, read
//! everything in it and change it, from any number of threads.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use fourscore::block::{DeviceOptions, open_path};
//! use fourscore::{Fs, OpenOptions};
//!
//! let device = open_path("disk.ext4".as_ref(), DeviceOptions::default())?;
//! let fs = Fs::open(Arc::new(device), &OpenOptions::new())?;
//! let hosts = fs.paths().read_to_string("/etc/hosts")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Paths`] has the calls of `std::fs`: by path, and with files that implement `Read`, `Write` and
//! `Seek`. The calls of [`Fs`] take inode numbers, and there is nothing to close. Each call looks
//! its number up in the inode cache. That costs some ten nanoseconds and writes no memory that
//! another core reads; the reference count of a handle would be a cache line that all its users
//! contend for.
//!
//! | module | responsibility |
//! |---|---|
//! | `paths` | files by path: the calls in the manner of `std::fs`, over those of [`Fs`] |
//! | `facade` | the public calls of [`Fs`], one line each |
//! | `core` | device, superblock and caches, which every module uses |
//! | `metadata` | metadata blocks, each checked as the structure it is read as |
//! | `guard` | the epoch guard of readers, and what they do on a cache miss |
//! | `mount` | opening, replay, recovery, the state of a read-write mount |
//! | `txn` | operations: planned first, then applied in one handle |
//! | `group` | group descriptors and bitmaps |
//! | `grow` | more groups while the file system is mounted |
//! | `inode` | inodes in memory, their attributes, the orphan list |
//! | `map` | maps a block of a file to its block on the device |
//! | `file` | file data |
//! | `dir` | directories and names |
//! | `xattr` | extended attributes and access control lists |
//! | `quota` | usage and limits of users, groups and projects |
//! | `error` | [`Error`] and its errno |
//!
//! # Invariants
//! No image makes a call panic, loop for ever or take unbounded memory, whatever its bytes are. A
//! file system opened with [`Fs::open`] writes nothing to its device. Source files do not depend on
//! each other in circles; functions take the core, the mount or the plan of an operation, never
//! [`Fs`].
//!
//! # Locking
//! The read path takes no lock on a hit; on a miss it takes those of the caches, never across I/O.
//! Writers take locks in the order of `txn::order`, which debug builds assert.
#![forbid(unsafe_code)]

mod core;
mod dir;
mod error;
mod facade;
mod file;
mod group;
mod grow;
mod guard;
mod inode;
mod map;
mod metadata;
mod mount;
mod paths;
mod quota;
mod txn;
mod xattr;

use fourscore_block::BlockDevice;
use fourscore_sync::Arc;

use crate::core::Core;
use crate::mount::state::Mount;

pub use fourscore_ondisk::extent::{Extent, ExtentState};
pub use fourscore_ondisk::inode::{DeviceNr, FileMode, FileType, InodeFlags};
pub use fourscore_ondisk::quota::{GraceTimes, QuotaCounts, QuotaEntry, QuotaKind, QuotaLimits};
pub use fourscore_ondisk::{
    BlockCount, BlockSize, Corrupt, CorruptKind, Geometry, GroupDesc, GroupNr, InodeGeneration,
    InodeNr, LogicalBlock, PhysBlock, Superblock, Timestamp,
};

pub use crate::dir::find::{DirEntry, OwnedDirEntry};
pub use crate::dir::new_inode::NewAttributes;
pub use crate::dir::path::Follow;
pub use crate::dir::rename::Replace;
pub use crate::error::{Error, Result};
pub use crate::facade::open_inode::OpenInode;
pub use crate::facade::replace::replace_blocks;
pub use crate::facade::staged::Staged;
pub use crate::facade::stats::{FastCommitStats, MountStats, Stats};
pub use crate::file::fallocate::Fallocate;
pub use crate::file::finish::WrittenAt;
pub use crate::file::read::Seek;
pub use crate::file::write::WriteOutcome;
pub use crate::group::descriptor::Bitmap;
pub use crate::grow::{GroupBitmap, Growth, GrowthStep};
pub use crate::inode::attributes::{Noted, NotedTimes, Privileges};
pub use crate::inode::caller::{AttributeChange, Caller, Capabilities, Wish};
pub use crate::inode::lazy_list::Times;
pub use crate::inode::stat::{Scanned, Stat};
pub use crate::mount::damage::{FoundBy, JournalDamage};
pub use crate::mount::error_policy::OnError;
pub use crate::mount::modes::{AccessTimes, DataMode};
pub use crate::mount::open_options::{OpenOptions, Replay, SuperblockCopy};
pub use crate::mount::options::{Barriers, BitmapLoading, Discard, MountOptions};
pub use crate::mount::statfs::StatFs;
pub use crate::mount::trim::Trim;
pub use crate::paths::as_path::AsPath;
pub use crate::paths::file::File;
pub use crate::paths::options::FileOptions;
pub use crate::paths::view::Paths;
pub use crate::paths::walk::{Walk, WalkEntry};
pub use crate::quota::control::QuotaReport;
pub use crate::quota::limits::exempt_from_quota;
pub use crate::xattr::get::{MAX_VALUE_BYTES, Xattr, XattrPlace};
pub use crate::xattr::set::SetXattr;
pub use crate::xattr::share::{
    BypassLimits, XATTR_SHARING_ENTRY_BYTES, XattrSharing, XattrSharingStats,
};

#[cfg(feature = "sabotage")]
pub use crate::txn::faults::Sabotage;

/// Parts of the library without a file system around them, for measurements.
#[cfg(feature = "lab")]
pub mod lab {
    pub use crate::txn::fast_commit::alone::{ChangeTime, FastCommitsAlone};
    pub use crate::xattr::share::alone::{SharingAlone, TakenBlock};
}

/// Devices: what a file system is opened on.
pub mod block {
    pub use fourscore_block::{
        Access, BlockDevice, Caching, DeviceError, DeviceOp, DeviceOptions, FileDevice, Hints,
        HostRange, RamDevice, Sharing, Window, create_image, open_path,
    };
}

/// The journal: what [`MountOptions::journal`] takes.
pub mod journal {
    pub use fourscore_journal::{
        Background, Batching, Credits, FastCommitArea, JournalOptions, NewChecksums,
    };
}

/// The allocator of blocks: its tunables.
pub mod mballoc {
    pub use fourscore_mballoc::tunables::TunableError;
    pub use fourscore_mballoc::{Tunable, Tunables};
}

/// What the bytes on disk mean: the parts that calls of [`Fs`] return or take.
pub mod ondisk {
    pub use fourscore_ondisk::superblock::SuperblockRejected;
    pub use fourscore_ondisk::{acl, corrupt, features, group, superblock};
}

/// A profile of where the time of operations goes.
///
/// The program marks its operations, and the library times its sections inside of them, in a sample
/// of the operations. The sums are those of the process, in [`Stats::profile`].
///
/// ```
/// use fourscore::profile::{self, Sampling};
///
/// profile::start(Sampling::Some);
/// {
///     let _operation = profile::operation();
///     // Calls of the library.
/// }
/// profile::stop();
/// ```
pub mod profile {
    pub use fourscore_sync::profile::{
        Operation, Sampling, Section, SectionTime, Sums, Totals, is_on, operation, start, stop,
        sums,
    };
}

/// The parts of [`Stats`].
pub mod stats {
    pub use fourscore_block::CacheStats;
    pub use fourscore_cache::Stats as CacheCounts;
    pub use fourscore_journal::JournalStats;
    pub use fourscore_mballoc::criteria::Criterion;
    pub use fourscore_mballoc::stats::{Count, CriterionCount, Tally};
    pub use fourscore_sync::rank::Waits;
}

/// An open file system. It is shared between threads in an [`Arc`]; every call takes `&self`.
#[derive(Debug)]
pub struct Fs {
    pub(crate) core: Arc<Core>,
    /// `None` in a file system that was opened for reading.
    pub(crate) mount: Option<Box<Mount>>,
}

impl Fs {
    /// Returns the superblock, with the changes of the replayed journal.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.core.superblock()
    }

    /// Returns the geometry: sizes, counts and block numbers.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.core.geometry()
    }

    /// Returns the transaction at the journal's end that was not replayed because it is damaged, if
    /// there is one. `None` also if no journal was replayed.
    #[must_use]
    pub fn journal_damage(&self) -> Option<JournalDamage> {
        self.core.journal_damage
    }

    /// Returns how the journal that was replayed was found.
    #[must_use]
    pub fn journal_found_by(&self) -> FoundBy {
        self.core.journal_found_by
    }

    /// Whether changes of fast commits are kept in memory beside the device. If so, the blocks of
    /// the device alone do not have the whole state of the file system.
    #[must_use]
    pub fn has_fast_commits(&self) -> bool {
        self.core.fast_commit.is_some()
    }

    /// Returns the device that reads go to. Its `host_range` says where bytes lie in a file of the
    /// host.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.core.device
    }

    /// Returns the state of the read-write mount, for a call that changes something.
    ///
    /// # Errors
    /// `ReadOnly` if it was opened for reading, or must not be written any more after an error.
    pub(crate) fn writable(&self) -> Result<&Mount> {
        let opened_for_reading = || Error::ReadOnly("opened for reading".into());
        let mount = self.mount.as_deref().ok_or_else(opened_for_reading)?;
        mount.errors.check()?;
        Ok(mount)
    }
}
