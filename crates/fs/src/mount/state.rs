//! **Purpose.** The state of a read-write mount: journal, allocator, locks and everything else that
//! operations share while the file system is written.
//!
//! **Not here.** The state that readers need as well ([`crate::core::Core`]); beginning and ending
//! a mount ([`crate::mount::read_write`]).
//!
//! **Locking.** All threads share the fields; each field synchronizes its own accesses. The order
//! of the locks is that of [`crate::txn::order`].

use fourscore_block::BlockDevice;
use fourscore_journal::{Credits, Handle, Journal};
use fourscore_mballoc::{Allocator, Privilege, Stamp};
use fourscore_ondisk::Tid;
use fourscore_sync::rank::Ranked;
use fourscore_sync::{Arc, Counter, Mutex, MutexGuard};

use crate::core::Core;
use crate::group::load_all::LoadAll;
use crate::group::table::Groups;
use crate::inode::free_inodes::Inodes;
use crate::inode::lazy_list::LazyTimes;
use crate::inode::orphans::Orphans;
use crate::mount::error_policy::Errors;
use crate::mount::freezer::{Freezer, Rest};
use crate::mount::mmp::Mmp;
use crate::mount::modes::{AccessTimes, DataMode};
use crate::quota::state::Quota;
use crate::txn::fast_commit::FastCommits;
use crate::txn::grace::GracePeriod;
use crate::txn::order;
use crate::txn::space::SpaceQueue;
use crate::txn::striped::StripedLocks;
use crate::xattr::share::{Sharing, Space as SpaceToShare};
use crate::xattr::shared::SharedXattrs;
use crate::{Error, Result};

/// The state of a read-write mount.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) core: Arc<Core>,
    /// The device of the file system. Its flushes are effective even if the mount has no barriers.
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) inodes: Inodes,
    pub(crate) orphans: Orphans,
    pub(crate) grace: Arc<GracePeriod>,
    pub(crate) space: SpaceQueue,
    /// Serializes renames of directories, so that none becomes its own ancestor.
    pub(crate) renames: Mutex<()>,
    pub(crate) leaves: StripedLocks,
    pub(crate) errors: Errors,
    /// Locks and cache of attributes that inodes share.
    pub(crate) xattrs: Arc<SharedXattrs>,
    pub(crate) access_times: AccessTimes,
    pub(crate) nodiratime: bool,
    /// `None` if times are written at once.
    pub(crate) lazy_times: Option<LazyTimes>,
    pub(crate) data: DataMode,
    pub(crate) fast_commits: Option<Arc<FastCommits>>,
    /// `None` if the file system has no quota files.
    pub(crate) quota: Option<Arc<Quota>>,
    /// Whether new inodes get the group of their directory.
    pub(crate) bsd_groups: bool,
    pub(crate) retries: Counter,
    pub(crate) privilege: Privilege,
    pub(crate) revokes_per_credit: usize,

    /// The only transaction of the mount, if it has just one.
    pub(crate) only: Option<Tid>,
    pub(crate) freezer: Freezer,
    /// Keeps other hosts away, with the feature `mmp`; set at mount.
    pub(crate) mmp: Mutex<Option<Mmp>>,
    /// Loads all bitmaps; `None` if the mount does not ask for that.
    pub(crate) load_all: Option<LoadAll>,
}

impl Mount {
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Opens a handle with `credits`.
    pub(crate) fn start(&self, credits: Credits) -> Result<Handle<'_>> {
        use fourscore_journal::Error as Refusal;
        let Some(tid) = self.only else {
            return Ok(self.journal.start(credits)?);
        };
        self.journal
            .start_in(tid, credits)
            .map_err(|error| match error {
                Refusal::TooManyCredits { .. } => Error::ReadOnly(
                    "the fast commits in the journal are more than one transaction has space for"
                        .into(),
                ),
                other => other.into(),
            })
    }

    /// Returns the fast commits, if the mount makes any.
    pub(crate) fn fast_commits(&self) -> Option<&FastCommits> {
        self.fast_commits.as_deref()
    }

    pub(crate) fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    pub(crate) fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    pub(crate) fn inodes(&self) -> &Inodes {
        &self.inodes
    }

    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// Returns the target size, in blocks, of a plan that frees what is mapped: a fraction of a
    /// transaction, so that a transaction can hold many of them, and at most what is applied
    /// quickly.
    pub(crate) fn step_capacity(&self) -> usize {
        (self.most_credits() / 4).clamp(8, 512)
    }

    /// Returns the most credits that a handle can have.
    pub(crate) fn most_credits(&self) -> usize {
        self.journal.most_credits().0 as usize
    }

    /// Returns the freezer, which keeps operations out while the file system is frozen.
    pub(crate) fn freezer(&self) -> &Freezer {
        &self.freezer
    }

    /// Returns the numbers of blocks and inodes that are free on disk.
    pub(crate) fn free_on_disk(&self) -> (u64, u64) {
        let sums = self.groups.sums();
        let blocks = sums.free_clusters << self.core.geometry().blocks_per_cluster_log();
        (blocks, sums.free_inodes)
    }

    pub(crate) fn rest_mmp(&self, rest: Rest) {
        if let Some(mmp) = &*self.mmp.lock() {
            match rest {
                Rest::Begins => mmp.rest(),
                Rest::Ends => mmp.go_on(),
            }
        }
    }

    /// Locks out other renames of directories.
    pub(crate) fn lock_renames(&self) -> Ranked<MutexGuard<'_, ()>> {
        order::RENAMES
            .only()
            .lock(|| self.renames.try_lock(), || self.renames.lock())
    }

    pub(crate) fn access_times(&self) -> AccessTimes {
        self.access_times
    }

    /// Whether access times of directories are not updated.
    pub(crate) fn skips_directories(&self) -> bool {
        self.nodiratime
    }

    /// Returns the locks of leaves of directories.
    pub(crate) fn leaves(&self) -> &StripedLocks {
        &self.leaves
    }

    /// Whether new inodes get the group of their directory.
    pub(crate) fn gives_group(&self) -> bool {
        self.bsd_groups
    }

    /// Returns the locks of blocks of attributes.
    pub(crate) fn xattr_blocks(&self) -> &StripedLocks {
        &self.xattrs.blocks
    }

    /// Returns the locks of inodes that hold the values of attributes.
    pub(crate) fn values(&self) -> &StripedLocks {
        &self.xattrs.values
    }

    /// Returns the cache of attributes to share; `None` if they are not shared.
    pub(crate) fn sharing(&self) -> Option<&Sharing> {
        self.xattrs.cache.as_ref()
    }

    /// Returns whether attributes may take space that sharing would save.
    pub(crate) fn space_for_sharing(&self) -> SpaceToShare {
        match self.space.is_short() {
            true => SpaceToShare::Short,
            false => SpaceToShare::Enough,
        }
    }

    /// Returns whether the blocks reserved for the super-user may be used.
    pub(crate) fn privilege(&self) -> Privilege {
        self.privilege
    }

    /// Returns the stamp of a free made now: besides its commit, the free waits for the grace
    /// period of the stamp. A mount with only one transaction has no readers, so there is no grace
    /// period.
    pub(crate) fn stamp(&self) -> Stamp {
        match self.only {
            None => self.grace.stamp(),
            Some(_) => Stamp::default(),
        }
    }

    /// Begins a grace period for everything that was freed so far.
    #[cfg(test)]
    pub(crate) fn expedite_grace_period(&self) {
        self.grace.expedite();
    }

    /// Notes that `bytes` were cut off a file. Begins a grace period when much was cut off.
    pub(crate) fn note_cut_off(&self, bytes: u64) {
        self.grace.note_cut_off(bytes);
    }

    /// Returns the least number of blocks that one credit revokes.
    pub(crate) fn revokes_per_credit(&self) -> usize {
        self.revokes_per_credit
    }

    /// Returns the times that are in memory only, if the mount has the option `lazytime`.
    pub(crate) fn lazy_times(&self) -> Option<&LazyTimes> {
        self.lazy_times.as_ref()
    }

    /// Counts a plan that was restarted.
    pub(crate) fn count_retry(&self) {
        self.retries.add(1);
    }
}
