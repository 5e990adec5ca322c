//! **Purpose.** The buffer cache: the metadata blocks of one file system in memory, within a byte
//! budget.
//!
//! **Not here.** The meaning and validity of a block: callers supply a check, which runs once for
//! the same bytes. How a buffer changes: [`crate::buffer`]. Lookup and eviction:
//! [`fourscore_cache`].
//!
//! **Model.** Block number -> [`Buffer`]. A buffer enters the cache in three ways: by a miss (one
//! block, read by one thread while others wait for it), by read-ahead (runs of blocks, read
//! together), and by [`BufferCache::create`] (not read at all). All hold the block's load lock (see
//! `loading`) from before the read of the device until the buffer is in the cache.
//!
//! **Invariants.**
//! - A block has at most one buffer that can be changed: eviction retires a buffer under its lock,
//!   and a retired buffer refuses changes, so a change is never lost with an evicted buffer.
//! - Buffers that are dirty, not checkpointed or kept ([`Kept`]) stay in the cache, even over the
//!   budget.
//! - Errors are not cached: the next caller reads the device again.
//!
//! **Locking.** A hit pins an epoch and reads; it writes no shared memory. No lock and no guard of
//! this module is held across device I/O, except the load lock. The caller of a function that may
//! read the device holds no guard either, except for [`BufferCache::load_pinned`].

use std::io;

use fourscore_cache::{ClockCache, Config, HitCounting, Stats};
use fourscore_ondisk::{BlockCount, BlockSize, PhysBlock, Tid};
use fourscore_sync::epoch::{self, Guard};
use fourscore_sync::{Arc, Counter};

use crate::batch::Batch;
use crate::buffer::{Buffer, Joined, Kept, Novelty, Retire, VerifiedAs};
use crate::device::{BlockDevice, to_u64};
use crate::io_buf::{IoBuf, zeroed_shared};
use crate::loading::{LoadLock, Loading};

/// The memory of a buffer beside its bytes: for itself, its version and its cache entry.
const OVERHEAD_BYTES: usize = 256;
/// One call of read-ahead reads at most this fraction of the budget, so that it does not evict the
/// blocks of the operation that it serves.
const READ_AHEAD_SHARE: usize = 8;
/// The maximum that one batch of read-ahead reads.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// The size of a cache, and whether it counts lookups.
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

/// Counts since the cache was made, summed over all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups (those of read-ahead included), insertions and evictions.
    pub cache: Stats,
    /// Blocks read by misses.
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
    /// The error of the device.
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

    /// Returns the buffer of `block`, read from the device if it is not cached. For callers that
    /// keep the buffer: this writes its reference count, which [`BufferCache::read`] does only on a
    /// miss. A clean buffer may leave the cache while a caller keeps it; then it no longer receives
    /// changes of the block.
    ///
    /// # Errors
    /// Those of the device, with a [`BlockError`] as payload; `UnexpectedEof` for a block past the
    /// device's end.
    pub fn load(&self, block: PhysBlock) -> io::Result<Arc<Buffer>> {
        match self.buffers.get_arc(&block) {
            Some(buffer) => Ok(buffer),
            None => self.load_absent(block),
        }
    }

    /// As [`BufferCache::load`], for a caller that holds an epoch guard and cannot drop it: memory
    /// that other threads retire is not freed before the device has answered.
    ///
    /// # Errors
    /// As [`BufferCache::load`].
    pub fn load_pinned(&self, block: PhysBlock) -> io::Result<Arc<Buffer>> {
        match self.buffers.get_arc(&block) {
            Some(buffer) => Ok(buffer),
            None => self.read_absent(block),
        }
    }

    #[cold]
    fn load_absent(&self, block: PhysBlock) -> io::Result<Arc<Buffer>> {
        epoch::assert_not_pinned();
        self.read_absent(block)
    }

    fn read_absent(&self, block: PhysBlock) -> io::Result<Arc<Buffer>> {
        let load_lock = self.loading.lock(block);
        // The thread that held the lock before may have loaded the block.
        if let Some(buffer) = self.buffers.get_arc(&block) {
            return Ok(buffer);
        }
        let mut bytes = zeroed_shared(self.block_size.bytes());
        let new = Arc::get_mut(&mut bytes).expect("not shared yet");
        self.device
            .read_at(new, self.block_size.offset(block))
            .map_err(|source| io::Error::new(source.kind(), BlockError { block, source }))?;
        self.read_blocks.add(1);
        Ok(self.insert(&load_lock, Buffer::new(block, bytes)))
    }

    /// Adds a buffer of the locked block, if there is none; returns the one in the cache.
    fn insert(&self, load_lock: &LoadLock<'_>, buffer: Buffer) -> Arc<Buffer> {
        let block = load_lock.block();
        let weight_bytes = self.block_size.bytes() + OVERHEAD_BYTES;
        self.buffers.insert(block, Arc::new(buffer), weight_bytes)
    }

    /// Calls `use_bytes` with the bytes of `block`, which are read from the device if it is not
    /// cached. An epoch guard is held during the call, but not while the device is read.
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

    /// As [`BufferCache::read`], after `check` has accepted the bytes as the structure of `tag`.
    /// The check is skipped if these very bytes have passed it before.
    ///
    /// # Errors
    /// As [`BufferCache::load`], and the error of `check`.
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

    /// Changes `block` within the running transaction `tid` as [`Buffer::modify`] does, and reads
    /// it first if it is not cached. Also returns the buffer, for the transaction's list, and
    /// whether it is new there.
    ///
    /// # Errors
    /// As [`BufferCache::load`]; then nothing was changed.
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

    /// Removes a retired buffer that is still in the cache, so that the block can be loaded again.
    fn drop_retired(&self, retired: &Arc<Buffer>) {
        self.buffers
            .remove_if(&retired.block(), |found| Arc::ptr_eq(found, retired));
    }

    /// Makes a buffer for a `block` that was just allocated, without reading the device. The caller
    /// overwrites all of it by [`Buffer::modify`] before any other block refers to it. A buffer
    /// that is still in the cache is returned as it is: its last content may be in the log.
    #[must_use]
    pub fn create(&self, block: PhysBlock) -> Arc<Buffer> {
        self.make(block, Novelty::Allocated)
    }

    /// As [`BufferCache::create`], for a block that the running transaction has not allocated, but
    /// whose content no thread reads: it has a fixed place and was never used, such as a bitmap or
    /// a part of an inode table, or it is preallocated. If another thread has begun to use it
    /// meanwhile, the buffer of that thread is returned.
    #[must_use]
    pub fn create_unused(&self, block: PhysBlock) -> Arc<Buffer> {
        self.make(block, Novelty::Unused)
    }

    fn make(&self, block: PhysBlock, novelty: Novelty) -> Arc<Buffer> {
        let load_lock = self.loading.lock(block);
        loop {
            let bytes = zeroed_shared(self.block_size.bytes());
            let buffer = self.insert(&load_lock, Buffer::made(block, bytes, novelty));
            if !buffer.is_retired() {
                return buffer;
            }
            self.drop_retired(&buffer);
        }
    }

    /// Forgets a block that the running transaction `tid` has freed: its changes in `tid` are
    /// discarded and its buffer leaves the cache. A committing transaction, which holds the buffer
    /// on its list, can still seal it.
    pub fn forget(&self, block: PhysBlock, tid: Tid) {
        let _load_lock = self.loading.lock(block);
        if let Some(buffer) = self.buffers.remove(&block) {
            buffer.forget(tid);
        }
    }

    /// Keeps the buffer of `block` in the cache as long as the result lives. `None` if the block is
    /// not in the cache.
    #[must_use]
    pub fn keep(&self, block: PhysBlock) -> Option<Kept> {
        let buffer = self.buffers.get_arc(&block)?;
        let kept = Kept::new(&buffer);
        if kept.is_none() {
            self.drop_retired(&buffer);
        }
        kept
    }

    /// Evicts buffers that a checkpoint has made clean, until the cache is within its budget again.
    pub fn trim(&self) {
        self.buffers.trim();
    }

    /// Reads `count` blocks from `first` on into the cache, in as few requests as possible, and
    /// returns how many were read. Skips blocks that are cached already or being loaded.
    ///
    /// This is a hint: it never fails, and stops at the device's end and at an eighth of the
    /// budget. A block that cannot be read is skipped; a later load of it returns the error.
    pub fn read_ahead(&self, first: PhysBlock, count: BlockCount) -> BlockCount {
        let end = PhysBlock(first.0.saturating_add(count.0));
        self.read_ahead_all((first.0..end.0).map(PhysBlock))
    }

    /// As [`BufferCache::read_ahead`] for any blocks. Those in ascending order that lie side by
    /// side become one request; all requests are in flight together where the device can.
    pub fn read_ahead_all(&self, blocks: impl IntoIterator<Item = PhysBlock>) -> BlockCount {
        let device_blocks = self.device.len_bytes() >> self.block_size.bits();
        let max_blocks = self.read_ahead_bytes >> self.block_size.bits();
        let mut runs = Runs::default();
        let mut read = 0;
        let wanted = blocks
            .into_iter()
            .take_while(|block| block.0 < device_blocks)
            .take(max_blocks);
        for block in wanted {
            if self.cached(block, &epoch::pin()).is_some() {
                continue;
            }
            let Some(load_lock) = self.loading.try_lock(block) else {
                continue;
            };
            if self.cached(block, &epoch::pin()).is_some() {
                continue;
            }
            runs.add(load_lock);
            if runs.blocks << self.block_size.bits() >= MAX_BATCH_BYTES {
                read += self.load_runs(&runs);
                runs = Runs::default();
            }
        }
        BlockCount(read + self.load_runs(&runs))
    }

    /// Reads `runs` in one batch and inserts the blocks that could be read; returns their number.
    fn load_runs(&self, runs: &Runs<'_>) -> u64 {
        let mut batch = Batch::with_capacity(runs.runs.len());
        for run in &runs.runs {
            let new_buf = || IoBuf::from(zeroed_shared(self.block_size.bytes()));
            let bufs = run.iter().map(|_| new_buf()).collect();
            let first = run.first().map_or(PhysBlock(0), LoadLock::block);
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
            for (load_lock, buf) in run.iter().zip(outcome.bufs) {
                let buffer = Buffer::new(load_lock.block(), buf.into_shared());
                let _buffer = self.insert(load_lock, buffer);
                read += 1;
            }
        }
        self.read_ahead_blocks.add(read);
        read
    }

    /// The counts so far.
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

/// The load locks of blocks to be read, as runs of consecutive blocks.
#[derive(Default)]
struct Runs<'a> {
    runs: Vec<Vec<LoadLock<'a>>>,
    blocks: usize,
}

impl<'a> Runs<'a> {
    fn add(&mut self, load_lock: LoadLock<'a>) {
        self.blocks += 1;
        let block = load_lock.block();
        let follows = |last: &LoadLock<'_>| last.block().0.checked_add(1) == Some(block.0);
        match self.runs.last_mut() {
            Some(run) if run.last().is_some_and(follows) => run.push(load_lock),
            _ => self.runs.push(vec![load_lock]),
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;

#[cfg(all(test, feature = "count"))]
mod count_tests;
