//! **Purpose.** Lock striping: a fixed set of locks for numbered objects (blocks, inodes), far
//! fewer than there are objects.
//!
//! **Model.** An object's number chooses one of 64 locks per core (at least 256 in all). Many
//! objects share one lock.
//!
//! **Locking.** A thread that wants the locks of several objects takes them in the order of the
//! locks ([`StripedLocks::nth`]), each once: two objects may have the same lock.

use fourscore_sync::rank::{Rank, Ranked};
use fourscore_sync::{CachePadded, CoreNr, Mutex, MutexGuard};

/// Locks per core: enough that two threads seldom want the same lock, on any number of cores.
const LOCKS_PER_CORE: usize = 64;

/// The least number of locks, for few cores, on which more threads than cores may work.
const LEAST_LOCKS: usize = 256;

/// The locks of objects of one kind.
#[derive(Debug)]
pub(crate) struct StripedLocks {
    rank: Rank,
    locks: Box<[CachePadded<Mutex<()>>]>,
}

/// While it lives no other thread changes the object, or another one that has the same lock.
pub(crate) type StripeGuard<'l> = Ranked<MutexGuard<'l, ()>>;

/// The place of a lock among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LockNr(usize);

impl StripedLocks {
    /// Returns locks with the rank `rank`.
    pub(crate) fn new(rank: Rank) -> Self {
        let count = (LOCKS_PER_CORE * CoreNr::count()).max(LEAST_LOCKS);
        Self {
            rank,
            locks: (0..count).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Returns which lock the object with this number has.
    pub(crate) fn nth(&self, number: u64) -> LockNr {
        // The upper half of the product, scaled to the number of locks.
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let nth = (spread * self.locks.len() as u64) >> 32;
        LockNr(usize::try_from(nth).unwrap_or(0))
    }

    /// Waits for the lock of the object with this number.
    pub(crate) fn lock(&self, number: u64) -> StripeGuard<'_> {
        self.lock_nth(self.nth(number))
    }

    pub(crate) fn lock_nth(&self, nth: LockNr) -> StripeGuard<'_> {
        let lock = &self.locks[nth.0];
        let place = self.rank.place(nth.0 as u64);
        place.lock(|| lock.try_lock(), || lock.lock())
    }

    /// Takes the lock if it is free. This does not wait, so it is allowed in any order.
    pub(crate) fn try_lock_nth(&self, nth: LockNr) -> Option<MutexGuard<'_, ()>> {
        self.locks[nth.0].try_lock()
    }
}
