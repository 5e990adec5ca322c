//! **Purpose.** The part of an open file system that every module of the library uses: the device,
//! the superblock and the caches.
//!
//! **Not here.** The state of a read-write mount ([`crate::mount::state::Mount`]).
//!
//! **Invariants.** The fields do not change while the file system is open, except for the
//! superblock of one that grows ([`crate::grow`]): its sizes and counts become larger, and what it
//! says about existing groups stays the same. A core does not refer to a mount, so a mount and its
//! parts may keep counted references to their core.
//!
//! **Locking.** None of its own: the caches guard themselves.

use fourscore_block::{BlockDevice, BufferCache};
use fourscore_cache::ClockCache;
use fourscore_journal::Journal;
use fourscore_ondisk::InodeNr;
use fourscore_ondisk::geometry::Geometry;
use fourscore_ondisk::superblock::Superblock;
use fourscore_sync::{Arc, Serial, Versions};

use crate::dir::name_cache::NameCache;
use crate::group::table::Groups;
use crate::inode::cell::InodeCell;
use crate::inode::reuse::{ReuseClock, ReuseTime};
use crate::mount::damage::{FoundBy, JournalDamage};
use crate::mount::fast_commit::{DirChanges, FastCommitOverlay, InodeChange, RangeEdits};
use crate::mount::modes::DataMode;
use crate::mount::tune::InodeReadahead;
use crate::txn::fast_commit::FastCommits;
use crate::txn::faults::{Faults, Sabotage};
use crate::xattr::shared::SharedXattrs;

/// The device, the superblock and the caches of an open file system.
#[derive(Debug)]
pub(crate) struct Core {
    /// The device that reads go to, or the overlay of a replayed journal over it.
    pub(crate) device: Arc<dyn BlockDevice>,
    /// A growth publishes another version.
    pub(crate) superblock: Arc<Versions<Superblock>>,
    pub(crate) buffers: Arc<BufferCache>,
    pub(crate) inodes: ClockCache<InodeNr, InodeCell>,
    /// Numbers the lives of inodes in memory: each load of an inode begins another life.
    pub(crate) lives: Serial,
    pub(crate) names: NameCache,
    /// The changes of fast commits, which are in no block; `None` unless a crash left some.
    pub(crate) fast_commit: Option<FastCommitOverlay>,
    pub(crate) journal_damage: Option<JournalDamage>,
    pub(crate) journal_found_by: FoundBy,
    /// `None` in a file system that was opened for reading.
    pub(crate) live: Option<Live>,
    /// The fault that is injected for a test.
    pub(crate) faults: Faults,
    pub(crate) inode_readahead: InodeReadahead,
}

/// The parts of a read-write mount that readers need.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) journal: Arc<Journal>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) data: DataMode,
    /// `None` in a mount that makes no fast commits.
    pub(crate) fast_commits: Option<Arc<FastCommits>>,
    /// Locks and cache of attributes that inodes share.
    pub(crate) xattrs: Arc<SharedXattrs>,
    /// `None` in a mount with only one transaction, which reuses blocks at once.
    pub(crate) reuse: Option<Arc<ReuseClock>>,
    /// Clusters that are reserved for nodes of extent trees ([`crate::mount::metadata_reserve`]).
    pub(crate) kept_clusters: u64,
}

impl Core {
    /// Returns the superblock, with the changes of the replayed journal.
    pub(crate) fn superblock(&self) -> &Superblock {
        self.superblock.get()
    }

    /// Returns the geometry: sizes, counts and block numbers.
    pub(crate) fn geometry(&self) -> &Geometry {
        self.superblock().geometry()
    }

    /// Whether the file system is mounted for writing, so that it may change while a reader reads.
    pub(crate) fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Returns the time on the reuse clock, if there is one.
    pub(crate) fn reuse_time(&self) -> Option<ReuseTime> {
        Some(self.reuse_clock()?.now())
    }

    /// Whether the reuse clock has not advanced since `time`.
    pub(crate) fn has_reused_nothing(&self, time: Option<ReuseTime>) -> bool {
        let clock = self.reuse_clock().zip(time);
        clock.is_some_and(|(clock, time)| clock.is_still(time))
    }

    fn reuse_clock(&self) -> Option<&ReuseClock> {
        self.live.as_ref()?.reuse.as_deref()
    }

    /// Advances the reuse clock, if there is one.
    pub(crate) fn advance_reuse_clock(&self) {
        if let Some(clock) = self.reuse_clock() {
            clock.advance();
        }
    }

    /// Whether damage that was found without a lock is checked again under the lock. A file system
    /// that was opened for reading does not change, so the same damage would be found again.
    pub(crate) fn rechecks_damage(&self) -> bool {
        self.is_live() && !self.faults.lacks(Sabotage::UnsequencedKeyChange)
    }

    /// Returns the changes of fast commits to inode `nr`.
    pub(crate) fn inode_change(&self, nr: InodeNr) -> Option<&InodeChange> {
        self.fast_commit.as_ref()?.change_of(nr)
    }

    /// Returns the difference between the map of inode `nr` and its map on disk.
    pub(crate) fn range_edits(&self, nr: InodeNr) -> Option<&RangeEdits> {
        self.fast_commit.as_ref()?.ranges_of(nr)
    }

    /// Returns the difference between the names in directory `nr` and its names on disk.
    pub(crate) fn dir_changes(&self, nr: InodeNr) -> Option<&DirChanges> {
        self.fast_commit.as_ref()?.names_of(nr)
    }
}
