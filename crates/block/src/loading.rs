//! **Purpose.** Load locks: one thread at a time loads a block into the cache.
//!
//! **Model.** A thread that reads a block from the device into the cache holds the [`LoadLock`] of
//! the block meanwhile. Otherwise, during a slow read, other threads could load, change, checkpoint
//! and evict the block, and the stale bytes of that read would then be inserted into the cache.
//!
//! **Locking.** A shard's lock is held only to read or change its list. Waiting for a load lock
//! holds no lock and no other load lock: a thread that holds load locks takes more only with
//! [`Loading::try_lock`], which never waits, so there is no deadlock.

use fourscore_ondisk::PhysBlock;
use fourscore_sync::{CachePadded, Condvar, Mutex};

/// There are many more shards than threads that miss at once, so that these seldom contend.
const SHARD_BITS: u32 = 6;

/// The blocks being loaded.
#[derive(Debug)]
pub(crate) struct Loading {
    shards: Box<[CachePadded<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    /// There are a few at most, so a list is faster than a set.
    blocks: Mutex<Vec<PhysBlock>>,
    ended: Condvar,
}

/// The right to load one block. It is released when dropped.
#[derive(Debug)]
pub(crate) struct LoadLock<'a> {
    shard: &'a Shard,
    block: PhysBlock,
}

impl Loading {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..1 << SHARD_BITS)
                .map(|_| CachePadded::default())
                .collect(),
        }
    }

    /// Takes the load lock of `block`; waits while another thread holds it.
    pub(crate) fn lock(&self, block: PhysBlock) -> LoadLock<'_> {
        let shard = self.shard(block);
        let mut blocks = shard.blocks.lock();
        while blocks.contains(&block) {
            shard.ended.wait(&mut blocks);
        }
        blocks.push(block);
        drop(blocks);
        LoadLock { shard, block }
    }

    /// Takes the load lock of `block` unless another thread holds it.
    pub(crate) fn try_lock(&self, block: PhysBlock) -> Option<LoadLock<'_>> {
        let shard = self.shard(block);
        let mut blocks = shard.blocks.lock();
        if blocks.contains(&block) {
            return None;
        }
        blocks.push(block);
        drop(blocks);
        Some(LoadLock { shard, block })
    }

    fn shard(&self, block: PhysBlock) -> &Shard {
        /// 2^64 divided by the golden ratio: spreads neighbours over the shards.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let number = block.0.wrapping_mul(SPREAD) >> (u64::BITS - SHARD_BITS);
        &self.shards[usize::try_from(number).unwrap_or(0)]
    }
}

impl LoadLock<'_> {
    /// The block that may be loaded.
    pub(crate) fn block(&self) -> PhysBlock {
        self.block
    }
}

impl Drop for LoadLock<'_> {
    fn drop(&mut self) {
        self.shard
            .blocks
            .lock()
            .retain(|&block| block != self.block);
        self.shard.ended.notify_all();
    }
}
