//! **Purpose.** The state of a read-write mount: journal, allocator, locks and everything else that
//! operations share while the file system is written.
//!
//! **Not here.** What readers need as well ([`crate::core::Core`]); how a mount begins and ends
//! ([`crate::mount::read_write`]).
//!
//! **Locking.** The fields are shared by all threads; each guards itself. The order of the locks
//! is that of [`crate::txn::order`].

use fourscore_block::BlockDevice;
use fourscore_journal::{Credits, Handle, Journal};
use fourscore_mballoc::{Allocator, Privilege, Stamp};
use fourscore_ondisk::Tid;
use fourscore_sync::rank::Ranked;
use fourscore_sync::{Arc, Counter, Mutex, MutexGuard};

use crate::core::Core;
use crate::group::table::Groups;
use crate::inode::free_inodes::Inodes;
use crate::inode::lazy_list::LazyTimes;
use crate::inode::orphans::Orphans;
use crate::mount::error_policy::Errors;
use crate::mount::freezer::{Freezer, Rest};
use crate::mount::mmp::Mmp;
use crate::mount::modes::{AccessTimes, DataMode};
use crate::txn::block_locks::BlockLocks;
use crate::txn::grace::Quiet;
use crate::txn::order;
use crate::txn::space::SpaceQueue;
use crate::{Error, Result};

/// The state of a read-write mount.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) core: Arc<Core>,
    /// What the file system lies on, with flushes that count.
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) inodes: Inodes,
    pub(crate) orphans: Orphans,
    pub(crate) quiet: Arc<Quiet>,
    pub(crate) space: SpaceQueue,
    /// Renames of directories, so that none becomes its own ancestor.
    pub(crate) renames: Mutex<()>,
    pub(crate) leaves: BlockLocks,
    pub(crate) errors: Errors,
    pub(crate) xattr_blocks: BlockLocks,
    /// Inodes of values that several attributes have.
    pub(crate) values: Mutex<()>,
    pub(crate) access_times: AccessTimes,
    pub(crate) nodiratime: bool,
    /// `None` if times are written at once.
    pub(crate) lazy_times: Option<LazyTimes>,
    pub(crate) data: DataMode,
    /// Whether every directory gives its group to what is made in it.
    pub(crate) bsd_groups: bool,
    pub(crate) retries: Counter,
    pub(crate) privilege: Privilege,
    pub(crate) revokes_per_credit: usize,

    /// The transaction in which everything has to be, if that is so.
    pub(crate) only: Option<Tid>,
    pub(crate) freezer: Freezer,
    /// Keeps other hosts away, with the feature `mmp`; set when the file system is mounted.
    pub(crate) mmp: Mutex<Option<Mmp>>,
}

impl Mount {
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Opens a handle.
    pub(crate) fn start(&self, credits: Credits) -> Result<Handle<'_>> {
        use fourscore_journal::Error as Refusal;
        let Some(tid) = self.only else {
            return Ok(self.journal.start(credits)?);
        };
        self.journal
            .start_in(tid, credits)
            .map_err(|error| match error {
                Refusal::TooManyCredits { .. } => Error::ReadOnly(
                    "the fast commits in the journal are more than one transaction has room for"
                        .into(),
                ),
                other => other.into(),
            })
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

    /// How many blocks a plan should come to that frees what is mapped: a fraction of a
    /// transaction, so that many can be in one, and at most what is quickly done.
    pub(crate) fn room_of_a_step(&self) -> usize {
        (self.journal.most_credits().0 as usize / 4).clamp(8, 512)
    }

    /// Lets nobody in while the file system is frozen.
    pub(crate) fn freezer(&self) -> &Freezer {
        &self.freezer
    }

    /// Blocks and inodes that are free on disk.
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

    /// Keeps others from moving directories.
    pub(crate) fn lock_renames(&self) -> Ranked<MutexGuard<'_, ()>> {
        order::RENAMES
            .only()
            .lock(|| self.renames.try_lock(), || self.renames.lock())
    }

    pub(crate) fn access_times(&self) -> AccessTimes {
        self.access_times
    }

    /// Whether accesses of directories are not noted.
    pub(crate) fn skips_directories(&self) -> bool {
        self.nodiratime
    }

    /// The locks of leaves of directories.
    pub(crate) fn leaves(&self) -> &BlockLocks {
        &self.leaves
    }

    /// Whether every directory gives its group to what is made in it.
    pub(crate) fn gives_group(&self) -> bool {
        self.bsd_groups
    }

    /// The locks of blocks of attributes.
    pub(crate) fn xattr_blocks(&self) -> &BlockLocks {
        &self.xattr_blocks
    }

    /// Keeps others out of the inodes of values that several attributes have.
    pub(crate) fn lock_values(&self) -> Ranked<MutexGuard<'_, ()>> {
        order::VALUES
            .only()
            .lock(|| self.values.try_lock(), || self.values.lock())
    }

    /// Whether the blocks that are kept for the super-user may be used.
    pub(crate) fn privilege(&self) -> Privilege {
        self.privilege
    }

    /// What a free has to wait for, beside its commit. While there is only one transaction nobody
    /// else reads.
    pub(crate) fn stamp(&self) -> Stamp {
        match self.only {
            None => self.quiet.stamp(),
            Some(_) => Stamp::default(),
        }
    }

    /// Has it seen whether those who read what was freed so far are gone.
    pub(crate) fn hurry_readers(&self) {
        self.quiet.hurry();
    }

    /// How many blocks one credit revokes, at the least.
    pub(crate) fn revokes_per_credit(&self) -> usize {
        self.revokes_per_credit
    }

    /// The times that are in memory only, if the mount has the option `lazytime`.
    pub(crate) fn lazy_times(&self) -> Option<&LazyTimes> {
        self.lazy_times.as_ref()
    }

    /// Counts a plan that was begun anew.
    pub(crate) fn count_retry(&self) {
        self.retries.add(1);
    }
}
