//! **Purpose.** Usage and limits: the public calls of [`Fs`].
//!
//! **Not here.** The work itself ([`crate::quota`]).

use fourscore_ondisk::quota::{GraceTimes, QuotaKind, QuotaLimits};

use crate::quota::control::{self, QuotaReport};
use crate::{Fs, InodeNr, Result, StatFs};

impl Fs {
    /// Returns what all identifiers of a kind use and may use; `None` if the file system does not
    /// count that. Commits the running transaction first. In a file system that was opened for
    /// reading, changes of fast commits ([`Fs::has_fast_commits`]) are not counted.
    ///
    /// # Errors
    /// `Corrupt` for a broken quota file; `Io`.
    pub fn quota(&self, kind: QuotaKind) -> Result<Option<QuotaReport>> {
        control::report(&self.core, self.mount.as_deref(), kind)
    }

    /// Returns how full the file system is, as statfs(2) on `inode` reports it. As in Linux, that
    /// is about a project if new files in `inode` inherit its project (flag `PROJINHERIT`) and the
    /// mount enforces limits of projects: its limits are the size, and what it does not use is
    /// free.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub fn statfs_at(&self, inode: InodeNr) -> Result<StatFs> {
        control::statfs_at(&self.core, self.mount.as_deref(), inode)
    }

    /// Sets the limits of an identifier; 0 means no limit. They are enforced by mounts with the
    /// option for the kind (`usrquota`, `grpquota`, `prjquota`): an operation that would exceed
    /// them fails with `QuotaExceeded`, unless its caller is exempt
    /// ([`exempt_from_quota`](crate::exempt_from_quota)). Limits of space are rounded up to KiB.
    /// Durable with the next commit. Other operations wait meanwhile.
    ///
    /// # Errors
    /// `Unsupported` if the file system has no quota file of the kind; `Busy` if it is frozen;
    /// `NoSpace`, `ReadOnly`.
    pub fn set_quota(&self, kind: QuotaKind, id: u32, limits: QuotaLimits) -> Result<()> {
        control::set_limits(self.writable()?, kind, id, limits)
    }

    /// Sets how long soft limits of a kind may be exceeded, in seconds. Grace times that have begun
    /// keep their ends.
    ///
    /// # Errors
    /// As [`Fs::set_quota`].
    pub fn set_quota_grace(&self, kind: QuotaKind, times: GraceTimes) -> Result<()> {
        control::set_grace(self.writable()?, kind, times)
    }
}
