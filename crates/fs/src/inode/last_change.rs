//! **Purpose.** The last change of an inode: its transaction and its time. They determine what
//! fsync waits for.
//!
//! **Locking.** Written by threads that hold the inode's lock, exclusive or shared.

use fourscore_journal::{Handle, LastTid};
use fourscore_ondisk::Tid;
use fourscore_sync::atomic::{AtomicU64, Ordering};

use crate::txn::fast_commit::time::Time;

/// The last change of an inode, or one that may have been made before it was loaded.
#[derive(Debug, Default)]
pub(crate) struct LastChange {
    tid: LastTid,
    /// Stays 0 in a mount without fast commits.
    time: AtomicU64,
}

impl LastChange {
    /// For an inode that has not been changed.
    pub(crate) const fn new() -> Self {
        Self {
            tid: LastTid::new(),
            time: AtomicU64::new(0),
        }
    }

    /// For an inode that was changed in `tid` and at `time` at the latest.
    pub(crate) fn of(tid: Option<Tid>, time: Time) -> Self {
        Self {
            tid: LastTid::of(tid),
            time: AtomicU64::new(time.0),
        }
    }

    /// Returns the transaction, if any has changed the inode.
    pub(crate) fn tid(&self) -> Option<Tid> {
        self.tid.get()
    }

    /// Returns the time.
    pub(crate) fn time(&self) -> Time {
        Time(self.time.load(Ordering::Acquire))
    }

    /// Notes a change in the handle's transaction.
    pub(crate) fn note(&self, handle: &Handle<'_>) {
        handle.note(&self.tid);
    }

    /// Notes a change at `time`.
    pub(crate) fn reach(&self, time: Time) {
        self.time.fetch_max(time.0, Ordering::AcqRel);
    }
}
