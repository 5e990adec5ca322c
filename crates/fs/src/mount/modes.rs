//! **Purpose.** Modes of a mount that readers and writers ask for.

use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::superblock::{DefaultMountOpts, Superblock};

use crate::inode::cached::CachedInode;

/// How the content of files becomes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataMode {
    /// It is in its place before the transaction that maps it is durable.
    #[default]
    Ordered,
    /// It is in its place some time; the same as `Ordered` here.
    Writeback,
    /// It goes through the journal: a crash leaves what was there before a write or after it, also
    /// where content was overwritten.
    Journal,
}

impl DataMode {
    /// What the superblock says, as Linux reads it.
    pub(crate) fn of(superblock: &Superblock) -> Self {
        let mode = superblock.default_mount_opts() & DefaultMountOpts::JMODE;
        match mode {
            DefaultMountOpts::JMODE => Self::Writeback,
            DefaultMountOpts::JMODE_DATA => Self::Journal,
            _ => Self::Ordered,
        }
    }
}

/// When accesses are noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// The first after each change, and one a day.
    #[default]
    Relative,
    /// Each.
    Strict,
    /// None.
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
