//! **Purpose.** Locks for blocks of one kind, far fewer than there are blocks.
//!
//! **Model.** A block's number chooses one of 64 locks for each core, at least 256, which it has in
//! common with many others.
//!
//! **Locking.** A thread holds at most one lock of a kind: two blocks may have the same.

use fourscore_ondisk::PhysBlock;
use fourscore_sync::rank::{Rank, Ranked};
use fourscore_sync::{CachePadded, CoreNr, Mutex, MutexGuard};

/// Enough that two threads seldom want the same, however many there are.
const LOCKS_PER_CORE: usize = 64;

/// For few cores, on which more threads than cores may work.
const LEAST_LOCKS: usize = 256;

/// The locks of blocks of one kind.
#[derive(Debug)]
pub(crate) struct BlockLocks {
    rank: Rank,
    locks: Box<[CachePadded<Mutex<()>>]>,
}

/// Nobody else changes the block, or another that has the same lock.
pub(crate) type BlockGuard<'l> = Ranked<MutexGuard<'l, ()>>;

impl BlockLocks {
    /// Locks that stand where `rank` says.
    pub(crate) fn new(rank: Rank) -> Self {
        let count = (LOCKS_PER_CORE * CoreNr::count()).max(LEAST_LOCKS);
        Self {
            rank,
            locks: (0..count).map(|_| CachePadded::default()).collect(),
        }
    }

    pub(crate) fn lock(&self, block: PhysBlock) -> BlockGuard<'_> {
        // The upper half, scaled to the locks.
        let spread = block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let nth = (spread * self.locks.len() as u64) >> 32;
        let lock = &self.locks[usize::try_from(nth).unwrap_or(0)];
        self.rank.only().lock(|| lock.try_lock(), || lock.lock())
    }
}
