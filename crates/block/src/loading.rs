//! **Purpose.** Who is bringing which block into the cache right now.
//!
//! **Model.** Whoever wants to read a block from the device into the cache first gets a
//! [`Ticket`] for it. While the ticket lives nobody else brings the block in, so it cannot be
//! loaded, changed, checkpointed and evicted behind the back of a slow reader, whose old bytes
//! would then enter the cache as new.
//!
//! **Locking.** A shard's lock is held to look at or change its list only. Waiting for a ticket
//! holds no lock and no other ticket: a thread that holds tickets asks for more only with
//! [`Loading::try_ticket`], which never waits, so tickets cannot form a ring.

use fourscore_ondisk::PhysBlock;
use fourscore_sync::{CachePadded, Condvar, Mutex};

/// Many more than threads that miss at once, so that they seldom meet.
const SHARD_BITS: u32 = 6;

/// The blocks being loaded.
#[derive(Debug)]
pub(crate) struct Loading {
    shards: Box<[CachePadded<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    /// A handful at most, so a list beats a set.
    blocks: Mutex<Vec<PhysBlock>>,
    ended: Condvar,
}

/// The right to bring one block in. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
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

    /// The ticket for `block`, after waiting for whoever has it.
    pub(crate) fn ticket(&self, block: PhysBlock) -> Ticket<'_> {
        let shard = self.shard(block);
        let mut blocks = shard.blocks.lock();
        while blocks.contains(&block) {
            shard.ended.wait(&mut blocks);
        }
        blocks.push(block);
        drop(blocks);
        Ticket { shard, block }
    }

    /// The ticket for `block`, unless somebody has it.
    pub(crate) fn try_ticket(&self, block: PhysBlock) -> Option<Ticket<'_>> {
        let shard = self.shard(block);
        let mut blocks = shard.blocks.lock();
        if blocks.contains(&block) {
            return None;
        }
        blocks.push(block);
        drop(blocks);
        Some(Ticket { shard, block })
    }

    fn shard(&self, block: PhysBlock) -> &Shard {
        /// 2^64 divided by the golden ratio: spreads neighbours over the shards.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let number = block.0.wrapping_mul(SPREAD) >> (u64::BITS - SHARD_BITS);
        &self.shards[usize::try_from(number).unwrap_or(0)]
    }
}

impl Ticket<'_> {
    /// The block that may be brought in.
    pub(crate) fn block(&self) -> PhysBlock {
        self.block
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.shard
            .blocks
            .lock()
            .retain(|&block| block != self.block);
        self.shard.ended.notify_all();
    }
}
