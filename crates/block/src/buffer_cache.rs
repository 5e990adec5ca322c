//! **Purpose.** The metadata blocks of one file system in memory, within a byte budget.
//!
//! **Not here.** What a block means and whether it is sound: callers hand in a check, which runs
//! once for the same bytes. How a buffer changes: [`crate::buffer`]. How the cache finds and
//! evicts: [`fourscore_cache`].
//!
//! **Model.** Block number -> [`Buffer`]. There are three ways in: a miss (one block, read by
//! one thread while others wait for it), read-ahead (runs of blocks, read together), and
//! [`BufferCache::create`] (not read at all). All hold the block's ticket (see `loading`) from
//! before the device is read until the buffer is in.
//!
//! **Invariants.**
//! - A block has at most one buffer that can be changed: eviction retires a buffer under its
//!   lock, and a retired buffer refuses changes, so a change is never made to bytes that nobody
//!   will find again.
//! - Buffers that are dirty or not checkpointed stay, even over the budget.
//! - Errors are not remembered: the next caller asks the device again.
//!
//! **Locking.** A hit pins an epoch and reads; it writes no shared memory. No lock and no guard
//! of this module is held across device I/O; a caller that holds a guard of its own while it
//! misses only delays the reuse of memory.

use std::io;

use fourscore_cache::{ClockCache, Config, HitCounting, Stats};
use fourscore_ondisk::{BlockCount, BlockSize, PhysBlock, Tid};
use fourscore_sync::epoch::{self, Guard};
use fourscore_sync::{Arc, Counter};

use crate::batch::Batch;
use crate::buffer::{Buffer, Joined, Retire, VerifiedAs};
use crate::device::{BlockDevice, to_u64};
use crate::io_buf::{IoBuf, zeroed_shared};
use crate::loading::{Loading, Ticket};

/// What a buffer costs beside its bytes: itself, its version, its entry in the cache.
const OVERHEAD_BYTES: usize = 256;
/// Read-ahead takes at most this share of the budget at a time, so that it cannot push out what
/// it was asked to help.
const READ_AHEAD_SHARE: usize = 8;
/// The most that one batch of read-ahead brings in.
const MOST_BATCH_BYTES: usize = 4 << 20;

/// How large a cache is and what it counts.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// The memory that clean buffers may take, in bytes.
    pub budget_bytes: usize,
    /// Whether lookups are counted.
    pub hits: HitCounting,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            budget_bytes: 64 << 20,
            hits: HitCounting::On,
        }
    }
}

/// What happened so far, summed over all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups (those of read-ahead included), insertions and evictions.
    pub cache: Stats,
    /// Blocks read because somebody wanted them at once.
    pub read_blocks: u64,
    /// Blocks read ahead.
    pub read_ahead_blocks: u64,
    /// Requests to the device that read-ahead made.
    pub read_ahead_requests: u64,
}

/// A block could not be read.
#[derive(Debug, thiserror::Error)]
#[error("block {block}: {source}")]
pub struct BlockError {
    /// The block.
    pub block: PhysBlock,
    /// What the device said.
    pub source: io::Error,
}

/// The metadata buffers of one device.
#[derive(Debug)]
pub struct BufferCache {
    device: Arc<dyn BlockDevice>,
    block_size: BlockSize,
    buffers: ClockCache<PhysBlock, Buffer>,
    loading: Loading,
    read_ahead_bytes: usize,
    read_blocks: Counter,
    read_ahead_blocks: Counter,
    read_ahead_requests: Counter,
}

impl BufferCache {
    /// An empty cache of blocks of `block_size` on `device`.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, block_size: BlockSize, options: CacheOptions) -> Self {
        let config = Config {
            number: |block: &PhysBlock| block.0,
            budget_bytes: options.budget_bytes,
            expected_weight_bytes: block_size.bytes() + OVERHEAD_BYTES,
            evictable: |buffer: &Buffer| buffer.retire() == Retire::Done,
            hits: options.hits,
        };
        Self {
            device,
            block_size,
            buffers: ClockCache::new(&config),
            loading: Loading::new(),
            read_ahead_bytes: options.budget_bytes / READ_AHEAD_SHARE,
            read_blocks: Counter::default(),
            read_ahead_blocks: Counter::default(),
            read_ahead_requests: Counter::default(),
        }
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// The size of a block.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The buffer of `block` if it is in memory. Writes nothing that other cores read.
    #[inline]
    #[must_use]
    pub fn cached<'g>(&self, block: PhysBlock, guard: &'g Guard) -> Option<&'g Buffer> {
        self.buffers.get(&block, guard)
    }

    /// The buffer of `block`, read from the device if need be. For callers that keep it: a share
    /// writes the buffer's reference count, which [`BufferCache::read`] does only on a miss. A
    /// clean buffer may leave the cache while somebody has a share in it, and then no longer
    /// shows what becomes of the block.
    ///
    /// # Errors
    /// Those of the device, with a [`BlockError`] as payload; `UnexpectedEof` for a block past
    /// the device's end.
    pub fn load(&self, block: PhysBlock) -> io::Result<Arc<Buffer>> {
        match self.buffers.get_arc(&block) {
            Some(buffer) => Ok(buffer),
            None => self.load_absent(block),
        }
    }

    #[cold]
    fn load_absent(&self, block: PhysBlock) -> io::Result<Arc<Buffer>> {
        let ticket = self.loading.ticket(block);
        // Whoever had the ticket before may have brought it.
        if let Some(buffer) = self.buffers.get_arc(&block) {
            return Ok(buffer);
        }
        let mut bytes = zeroed_shared(self.block_size.bytes());
        let fresh = Arc::get_mut(&mut bytes).expect("made a moment ago");
        self.device
            .read_at(fresh, self.block_size.offset(block))
            .map_err(|source| io::Error::new(source.kind(), BlockError { block, source }))?;
        self.read_blocks.add(1);
        Ok(self.put(&ticket, bytes))
    }

    fn put(&self, ticket: &Ticket<'_>, bytes: Arc<[u8]>) -> Arc<Buffer> {
        let block = ticket.block();
        let weight_bytes = self.block_size.bytes() + OVERHEAD_BYTES;
        self.buffers
            .insert(block, Arc::new(Buffer::new(block, bytes)), weight_bytes)
    }

    /// What `use_bytes` makes of the bytes of `block`, which are read from the device if need
    /// be. A guard is held while it runs, not while the device is read.
    ///
    /// # Errors
    /// As [`BufferCache::load`].
    pub fn read<R>(&self, block: PhysBlock, use_bytes: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        let guard = epoch::pin();
        if let Some(buffer) = self.cached(block, &guard) {
            return Ok(use_bytes(buffer.bytes(&guard)));
        }
        drop(guard);
        let buffer = self.load_absent(block)?;
        let guard = epoch::pin();
        Ok(use_bytes(buffer.bytes(&guard)))
    }

    /// As [`BufferCache::read`], after `check` has accepted the bytes as what `tag` says. The
    /// check is skipped if it accepted these very bytes before.
    ///
    /// # Errors
    /// As [`BufferCache::load`], and what `check` returns.
    pub fn read_verified<R, E: From<io::Error>>(
        &self,
        block: PhysBlock,
        tag: VerifiedAs,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
        use_bytes: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, E> {
        let guard = epoch::pin();
        if let Some(buffer) = self.cached(block, &guard) {
            return Ok(use_bytes(buffer.verified(tag, &guard, check)?));
        }
        drop(guard);
        let buffer = self.load_absent(block)?;
        let guard = epoch::pin();
        Ok(use_bytes(buffer.verified(tag, &guard, check)?))
    }

    /// Changes `block` within the running transaction `tid`, reading it first if need be, and
    /// vouches that the result is what `tag` says but for its checksum. Also returns the buffer,
    /// for the transaction's list, and whether it is new there.
    ///
    /// # Errors
    /// As [`BufferCache::load`]; nothing was changed then.
    pub fn modify<R>(
        &self,
        block: PhysBlock,
        tid: Tid,
        tag: VerifiedAs,
        mut change: impl FnOnce(&mut [u8]) -> R,
    ) -> io::Result<(R, Joined, Arc<Buffer>)> {
        loop {
            let buffer = self.load(block)?;
            change = match buffer.try_modify(tid, tag, change) {
                Ok((result, joined)) => return Ok((result, joined, buffer)),
                Err(change) => change,
            };
            self.drop_retired(&buffer);
        }
    }

    /// Takes out a buffer that was retired but is still found, so that the block can be loaded
    /// anew.
    fn drop_retired(&self, retired: &Arc<Buffer>) {
        self.buffers
            .remove_if(&retired.block(), |found| Arc::ptr_eq(found, retired));
    }

    /// A buffer for a `block` that was just allocated: what the device holds is not read. The
    /// caller overwrites all of it by [`Buffer::modify`] before anybody can find the block.
    #[must_use]
    pub fn create(&self, block: PhysBlock) -> Arc<Buffer> {
        let ticket = self.loading.ticket(block);
        loop {
            let buffer = self.put(&ticket, zeroed_shared(self.block_size.bytes()));
            if !buffer.is_retired() {
                buffer.set_new();
                return buffer;
            }
            self.drop_retired(&buffer);
        }
    }

    /// Forgets a block that the running transaction `tid` has freed: its changes in `tid` are
    /// given up and its buffer leaves the cache. What the committing transaction left in it can
    /// still be sealed by whoever holds the buffer.
    pub fn forget(&self, block: PhysBlock, tid: Tid) {
        let _ticket = self.loading.ticket(block);
        if let Some(buffer) = self.buffers.remove(&block) {
            buffer.forget(tid);
        }
    }

    /// Lets buffers go that a checkpoint has made clean, until the budget is met again.
    pub fn trim(&self) {
        self.buffers.trim();
    }

    /// Brings `count` blocks from `first` on into memory, in as few requests as possible, and
    /// says how many were read. Blocks that are in memory already or being loaded are left out.
    ///
    /// This is advice: it never fails, stops at the device's end and at an eighth of the budget,
    /// and a block that cannot be read is left for whoever wants it, who then gets the error.
    pub fn read_ahead(&self, first: PhysBlock, count: BlockCount) -> BlockCount {
        let end = PhysBlock(first.0.saturating_add(count.0));
        self.read_ahead_all((first.0..end.0).map(PhysBlock))
    }

    /// As [`BufferCache::read_ahead`] for any blocks. Those in ascending order that lie side by
    /// side become one request; all requests are in flight together where the device can.
    pub fn read_ahead_all(&self, blocks: impl IntoIterator<Item = PhysBlock>) -> BlockCount {
        let device_blocks = self.device.len_bytes() >> self.block_size.bits();
        let most = self.read_ahead_bytes >> self.block_size.bits();
        let mut runs = Runs::default();
        let mut read = 0;
        let wanted = blocks
            .into_iter()
            .take_while(|block| block.0 < device_blocks)
            .take(most);
        for block in wanted {
            if self.cached(block, &epoch::pin()).is_some() {
                continue;
            }
            let Some(ticket) = self.loading.try_ticket(block) else {
                continue;
            };
            if self.cached(block, &epoch::pin()).is_some() {
                continue;
            }
            runs.add(ticket);
            if runs.blocks << self.block_size.bits() >= MOST_BATCH_BYTES {
                read += self.bring_in(&runs);
                runs = Runs::default();
            }
        }
        BlockCount(read + self.bring_in(&runs))
    }

    /// Reads `runs` in one batch and puts in what could be read; returns how many blocks.
    fn bring_in(&self, runs: &Runs<'_>) -> u64 {
        let mut batch = Batch::with_capacity(runs.runs.len());
        for run in &runs.runs {
            let fresh = || IoBuf::from(zeroed_shared(self.block_size.bytes()));
            let bufs = run.iter().map(|_| fresh()).collect();
            let first = run.first().map_or(PhysBlock(0), Ticket::block);
            batch.read(bufs, self.block_size.offset(first));
        }
        if batch.is_empty() {
            return 0;
        }
        self.read_ahead_requests.add(to_u64(batch.len()));
        let outcomes = self.device.submit(batch).wait();
        let mut read = 0;
        for (run, outcome) in runs.runs.iter().zip(outcomes) {
            if outcome.result.is_err() {
                continue;
            }
            for (ticket, buf) in run.iter().zip(outcome.bufs) {
                let _buffer = self.put(ticket, buf.into_shared());
                read += 1;
            }
        }
        self.read_ahead_blocks.add(read);
        read
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            cache: self.buffers.stats(),
            read_blocks: self.read_blocks.sum(),
            read_ahead_blocks: self.read_ahead_blocks.sum(),
            read_ahead_requests: self.read_ahead_requests.sum(),
        }
    }

    /// The memory that buffers take now, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.buffers.weight_bytes()
    }
}

/// Blocks about to be read: runs of neighbours, each with the right to bring it in.
#[derive(Default)]
struct Runs<'a> {
    runs: Vec<Vec<Ticket<'a>>>,
    blocks: usize,
}

impl<'a> Runs<'a> {
    fn add(&mut self, ticket: Ticket<'a>) {
        self.blocks += 1;
        let block = ticket.block();
        let follows = |last: &Ticket<'_>| last.block().0.checked_add(1) == Some(block.0);
        match self.runs.last_mut() {
            Some(run) if run.last().is_some_and(follows) => run.push(ticket),
            _ => self.runs.push(vec![ticket]),
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;

#[cfg(all(test, feature = "count"))]
mod count_tests;
