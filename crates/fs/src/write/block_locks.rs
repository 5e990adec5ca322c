//! **Purpose.** Locks for blocks of one kind, far fewer than there are blocks.
//!
//! **Model.** A block's number chooses one of 256 locks, which it has in common with many others.
//!
//! **Locking.** A thread holds at most one lock of a kind: two blocks may have the same.

use fourscore_ondisk::PhysBlock;
use fourscore_sync::rank::{Rank, Ranked};
use fourscore_sync::{CachePadded, Mutex, MutexGuard};

/// Enough that two threads seldom want the same.
const LOCKS: usize = 256;

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
        Self {
            rank,
            locks: (0..LOCKS).map(|_| CachePadded::default()).collect(),
        }
    }

    pub(crate) fn lock(&self, block: PhysBlock) -> BlockGuard<'_> {
        let spread = block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        let nth = usize::try_from(spread).unwrap_or(0) % self.locks.len();
        let lock = &self.locks[nth];
        self.rank.only().lock(|| lock.try_lock(), || lock.lock())
    }
}
