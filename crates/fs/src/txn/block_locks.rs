//! **Purpose.** A fixed set of locks for blocks of one kind, far fewer than there are blocks.
//!
//! **Model.** A block's number chooses one of 64 locks per core (at least 256 in all). Many blocks
//! share one lock.
//!
//! **Locking.** A thread holds at most one lock of a kind, since two blocks may have the same lock.

use fourscore_ondisk::PhysBlock;
use fourscore_sync::rank::{Rank, Ranked};
use fourscore_sync::{CachePadded, CoreNr, Mutex, MutexGuard};

/// Locks per core: enough that two threads seldom want the same lock, on any number of cores.
const LOCKS_PER_CORE: usize = 64;

/// The least number of locks, for few cores, on which more threads than cores may work.
const LEAST_LOCKS: usize = 256;

/// The locks of blocks of one kind.
#[derive(Debug)]
pub(crate) struct BlockLocks {
    rank: Rank,
    locks: Box<[CachePadded<Mutex<()>>]>,
}

/// While it lives no other thread changes the block, or another block that has the same lock.
pub(crate) type BlockGuard<'l> = Ranked<MutexGuard<'l, ()>>;

impl BlockLocks {
    /// Returns locks with the rank `rank`.
    pub(crate) fn new(rank: Rank) -> Self {
        let count = (LOCKS_PER_CORE * CoreNr::count()).max(LEAST_LOCKS);
        Self {
            rank,
            locks: (0..count).map(|_| CachePadded::default()).collect(),
        }
    }

    pub(crate) fn lock(&self, block: PhysBlock) -> BlockGuard<'_> {
        // The upper half of the product, scaled to the number of locks.
        let spread = block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let nth = (spread * self.locks.len() as u64) >> 32;
        let lock = &self.locks[usize::try_from(nth).unwrap_or(0)];
        self.rank.only().lock(|| lock.try_lock(), || lock.lock())
    }
}
