//! **Purpose.** When the readers that were under way at a point of time are gone, so that blocks
//! that were freed then can be given to others.
//!
//! **Model.** The quiet clock ticks once per commit, and when much was cut off a file. A free is
//! stamped with the time; a tick retires a token through the epochs, and when the last reader
//! from before the tick has left, the token is dropped and tells the allocator that everything
//! stamped so far is quiet. That wakes whoever sleeps for it ([`crate::txn::space`]).
//!
//! A commit is also when buddies leave memory that nobody has used since the commit before, if
//! there are more of them than the mount allows.
//!
//! **Locking.** None. The clock is a word that is written once per commit.

use fourscore_mballoc::{Allocator, Stamp};
use fourscore_ondisk::Tid;
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::epoch::{self, EpochCell};
use fourscore_sync::{Arc, OnceLock, Weak};

use crate::mount::discards::Discards;

/// Buddies that one commit takes out of memory at most, so that it does not take long.
const EVICTED_PER_COMMIT: u32 = 1024;

/// The quiet clock of one file system.
#[derive(Debug)]
pub(crate) struct Quiet {
    now: AtomicU64,
    current: EpochCell<Token>,
    allocator: OnceLock<Weak<Allocator>>,
    groups: u32,
    most_loaded: u32,
    /// Who is told what was freed, if the mount is for that.
    discards: Option<Discards>,
}

/// Dropped when nobody reads any more who did when it was retired.
#[derive(Debug)]
struct Token {
    stamp: Stamp,
    allocator: Weak<Allocator>,
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(allocator) = self.allocator.upgrade() {
            allocator.end_grace_period(self.stamp);
        }
    }
}

impl Quiet {
    /// The clock of a file system with so many `groups`, of which `most_loaded` may be in memory
    /// while nobody uses them.
    pub(crate) fn new(groups: u32, most_loaded: u32, discards: Option<Discards>) -> Self {
        Self {
            now: AtomicU64::new(1),
            current: EpochCell::new(None),
            allocator: OnceLock::new(),
            groups,
            most_loaded,
            discards,
        }
    }

    /// Tells `allocator` from now on.
    pub(crate) fn serve(&self, allocator: &Arc<Allocator>) {
        if self.discards.is_some() {
            allocator.hold_due();
        }
        // It is served by one who has just made it.
        let _ = self.allocator.set(Arc::downgrade(allocator));
    }

    /// What a free waits for that is made now.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp(self.now.load(Ordering::Acquire))
    }

    /// A commit is durable.
    pub(crate) fn committed(&self, tid: Tid) {
        let Some(allocator) = self.allocator.get().and_then(Weak::upgrade) else {
            return;
        };
        allocator.set_durable(tid);
        self.hurry();
        self.release(&allocator);
        let loaded = self.groups.saturating_sub(allocator.absent_groups());
        let too_many = loaded.saturating_sub(self.most_loaded);
        if too_many > 0 {
            allocator.evict_idle(too_many.min(EVICTED_PER_COMMIT));
        }
    }

    /// Frees what need not wait any longer, after the device was told of it.
    pub(crate) fn release(&self, allocator: &Allocator) {
        match &self.discards {
            Some(discards) => discards.release(allocator),
            None => {
                allocator.sweep();
            }
        }
    }

    /// Lets the clock tick: everything that was stamped before is quiet when the allocator's clock
    /// has reached the stamp that this returns.
    pub(crate) fn hurry(&self) -> Stamp {
        let Some(allocator) = self.allocator.get() else {
            return Stamp::default();
        };
        let stamp = Stamp(self.now.fetch_add(1, Ordering::AcqRel));
        self.current.store(Some(Box::new(Token {
            stamp,
            allocator: Weak::clone(allocator),
        })));
        // Retires it.
        self.current.store(None);
        epoch::flush();
        stamp
    }
}
