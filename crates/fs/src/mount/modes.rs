//! **Purpose.** Modes of a mount that both readers and writers query.
//!
//! **Not here.** Parsing them from mount options (`crate::mount::options`).

use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::superblock::{DefaultMountOpts, Superblock};

use crate::inode::cached::CachedInode;

/// When the data of files becomes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataMode {
    /// Data is at its home location before the transaction that maps it is durable.
    #[default]
    Ordered,
    /// Data reaches its home location at some time; the same as `Ordered` here.
    Writeback,
    /// Data goes through the journal: after a crash the file has the bytes from before a write or
    /// from after it, even where a write replaced older data.
    Journal,
}

impl DataMode {
    /// Reads the mode from the superblock, as Linux does.
    pub(crate) fn of(superblock: &Superblock) -> Self {
        let mode = superblock.default_mount_opts() & DefaultMountOpts::JMODE;
        match mode {
            DefaultMountOpts::JMODE => Self::Writeback,
            DefaultMountOpts::JMODE_DATA => Self::Journal,
            _ => Self::Ordered,
        }
    }
}

/// When access times are updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessTimes {
    /// At the first access after each change, and once a day.
    #[default]
    Relative,
    /// At each access.
    Strict,
    /// Never.
    Never,
}

impl AccessTimes {
    pub(crate) fn is_due(self, inode: &CachedInode, now: Timestamp) -> bool {
        let on_disk = inode.on_disk();
        let atime = on_disk.atime();
        if self == Self::Never || inode.has(InodeFlags::NOATIME_FL) || atime == now {
            return false;
        }
        self == Self::Strict
            || atime <= on_disk.mtime()
            || atime <= on_disk.ctime()
            || now.seconds().saturating_sub(atime.seconds()) >= SECONDS_PER_DAY
    }
}

pub(crate) const SECONDS_PER_DAY: i64 = 24 * 60 * 60;
