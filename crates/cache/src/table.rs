//! **Purpose.** The cache itself: lookup, insertion, removal and loading.

use std::fmt;

use fourscore_sync::epoch::{self, CELLS_PER_LINE, CellLine, EpochCell, Guard};
use fourscore_sync::{Arc, CachePadded, CoreNr, Counter, Mutex, MutexGuard};

use crate::bucket::{Bucket, Entry};
use crate::clock::Shard;
use crate::hash::Seed;
use crate::load::PendingLoad;

/// The layout of a cache and its eviction hook.
#[derive(Debug)]
pub struct Config<K, V> {
    /// The number of a key. Eight keys with consecutive numbers, from a multiple of eight on, share
    /// a cache line of the table. So a thread that inserts and removes keys with such numbers
    /// shares no line of the table with threads that use other numbers, except by chance of the
    /// hash.
    pub number: fn(&K) -> u64,
    /// The sum of weights that the cache tries not to exceed.
    pub budget_bytes: usize,
    /// The weight of a typical entry; with the budget it determines the number of buckets.
    pub expected_weight_bytes: usize,
    /// The eviction hook: whether this value may be evicted now. Called under a shard lock, so it
    /// must be quick and take no lock. If it returns true, the entry is evicted, but readers that
    /// have found the value before may still hold it. A user that *modifies* cached values must
    /// therefore decide between eviction and modification by an atomic step (for example a
    /// compare-exchange from clean to evicted here, and from clean to dirty there), and look the
    /// key up again if the value was evicted.
    pub evictable: fn(&V) -> bool,
    /// Whether lookups are counted.
    pub hits: HitCounting,
}

/// Whether a cache counts its lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitCounting {
    /// Lookups are counted on per-core counters, which costs a few nanoseconds and no shared line.
    On,
    /// Lookups are not counted.
    Off,
}

/// Counts since the cache was made, summed over all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lookups that found their key (0 unless [`HitCounting::On`]).
    pub hits: u64,
    /// Lookups by [`ClockCache::get`] and [`ClockCache::get_arc`] that did not find their key (0
    /// unless [`HitCounting::On`]).
    pub misses: u64,
    /// Loaders that were run.
    pub loads: u64,
    /// Calls that waited for the loader of another call.
    pub load_waits: u64,
    /// Entries inserted.
    pub insertions: u64,
    /// Entries evicted.
    pub evictions: u64,
    /// Entries that the hook refused to evict.
    pub refusals: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: Counter,
    misses: Counter,
    loads: Counter,
    load_waits: Counter,
    insertions: Counter,
    evictions: Counter,
    refusals: Counter,
}

type PaddedShard<K, V> = CachePadded<Mutex<Shard<K, V>>>;

/// A concurrent cache with a byte budget. The crate documentation describes its structure.
///
/// Keys are cheap to clone (usually numbers). Values are dropped after a grace period and on any
/// thread, by the rules of [`fourscore_sync::epoch`]: their destructors must take no lock and do no
/// I/O.
pub struct ClockCache<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Insertions hold the lock of the shard that owns the bucket; removals and lookups hold none.
    buckets: Box<[CellLine<Bucket<K, V>>]>,
    shards: Box<[PaddedShard<K, V>]>,
    seed: Seed,
    number: fn(&K) -> u64,
    /// A hash shifted right by this is the index of a line.
    line_shift: u32,
    /// The index of a line shifted right by this is the index of its shard.
    shard_shift: u32,
    /// The budget of each shard.
    shard_budget_bytes: usize,
    evictable: fn(&V) -> bool,
    hit_counting: HitCounting,
    counters: Counters,
}

const LINE_BITS: u32 = CELLS_PER_LINE.ilog2();
const MIN_BUCKET_BITS: u32 = 4;
/// 2 GiB of pointers, of which only the pages in use take memory.
const MAX_BUCKET_BITS: u32 = 28;
const MAX_SHARD_BITS: u32 = 9;
/// In a shard with fewer typical entries than this, evictions would depend on chance of the hash.
const MIN_ENTRIES_PER_SHARD_BITS: u32 = 6;

/// The index of a bucket.
#[derive(Clone, Copy)]
struct BucketIndex {
    line: usize,
    cell: usize,
}

impl<K, V> ClockCache<K, V>
where
    K: Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// An empty cache. Memory for the buckets is reserved now and allocated as they fill.
    #[must_use]
    pub fn new(config: &Config<K, V>) -> Self {
        let entries = config.budget_bytes / config.expected_weight_bytes.max(1);
        // Two buckets for each entry, since an insertion into a bucket copies its entries.
        let entry_bits = bits_for(entries).clamp(MIN_BUCKET_BITS, MAX_BUCKET_BITS - 1);
        let line_bits = entry_bits + 1 - LINE_BITS;
        let shard_bits = bits_for(CoreNr::count().saturating_mul(4))
            .min(entry_bits.saturating_sub(MIN_ENTRIES_PER_SHARD_BITS))
            .min(MAX_SHARD_BITS)
            .min(line_bits);
        Self {
            buckets: CellLine::empty_slice(1 << line_bits),
            shards: (0..1 << shard_bits)
                .map(|_| CachePadded::default())
                .collect(),
            seed: Seed::new(),
            number: config.number,
            line_shift: u64::BITS - line_bits,
            shard_shift: line_bits - shard_bits,
            shard_budget_bytes: config.budget_bytes >> shard_bits,
            evictable: config.evictable,
            hit_counting: config.hits,
            counters: Counters::default(),
        }
    }

    /// Returns the value of `key`, borrowed from the guard. Writes no memory that other cores read.
    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn get<'g>(&self, key: &K, guard: &'g Guard) -> Option<&'g V> {
        self.look_up(key, guard).map(|entry| &*entry.value)
    }

    /// Returns a new reference to the value of `key`. Unlike [`ClockCache::get`] this writes the
    /// value's reference count, a line that all users of the value share.
    #[cfg_attr(feature = "count", track_caller)]
    pub fn get_arc(&self, key: &K) -> Option<Arc<V>> {
        let guard = epoch::pin();
        self.look_up(key, &guard)
            .map(|entry| fourscore_sync::clone_arc(&entry.value))
    }

    /// Inserts `value` unless `key` has an entry already. Returns the value that is in the cache.
    pub fn insert(&self, key: K, value: Arc<V>, weight_bytes: usize) -> Arc<V> {
        let guard = epoch::pin();
        let index = self.bucket_of(&key);
        let mut shard = self.lock_shard_of(index);
        self.insert_locked(&mut shard, index, key, value, weight_bytes, &guard)
    }

    /// Returns the value of `key`. If there is none, `load` returns it with its weight in bytes.
    ///
    /// No lock is held while `load` runs. Other callers with the same key wait for its outcome
    /// instead of loading it as well. If the key is removed meanwhile, this caller and the waiters
    /// get the value, but it is not inserted. `load` must not load its own key.
    ///
    /// # Errors
    /// The error of `load`. Errors are not cached: each caller that waited loads the value itself.
    pub fn get_or_try_load<E>(
        &self,
        key: &K,
        load: impl FnOnce() -> Result<(Arc<V>, usize), E>,
    ) -> Result<Arc<V>, E> {
        let index = self.bucket_of(key);
        loop {
            match self.find_or_start_load(key, index) {
                Found::Value(value) => return Ok(value),
                Found::Pending(pending) => {
                    self.counters.load_waits.add(1);
                    if let Some(value) = pending.wait() {
                        return Ok(value);
                    }
                }
                Found::Absent(loader) => {
                    self.counters.loads.add(1);
                    let (value, weight_bytes) = load()?;
                    return Ok(loader.insert(value, weight_bytes));
                }
            }
        }
    }

    /// Removes `key`, and prevents a pending load of it from inserting a value.
    pub fn remove(&self, key: &K) -> Option<Arc<V>> {
        self.remove_if(key, |_| true)
    }

    /// As [`ClockCache::remove`], but only if `condition` holds for the value. The condition may be
    /// evaluated again if the bucket has changed meanwhile.
    ///
    /// If the key has an entry, it is removed without the shard's lock, since then no load of the
    /// key is pending. The weight of the shard is corrected by the next recount.
    pub fn remove_if(&self, key: &K, condition: impl Fn(&Arc<V>) -> bool) -> Option<Arc<V>> {
        let guard = epoch::pin();
        let index = self.bucket_of(key);
        if let Some(removed) = self.remove_entry(key, index, &condition, &guard) {
            return removed;
        }
        let mut shard = self.lock_shard_of(index);
        shard.loads.retain(|pending| pending.key != *key);
        // The entry may have been inserted in the meantime.
        self.remove_entry(key, index, &condition, &guard).flatten()
    }

    /// Removes `key` without the shard's lock, and writes nothing if it has no entry. For keys that
    /// are never loaded: a pending load is not prevented from inserting its value.
    pub fn take(&self, key: &K) -> Option<Arc<V>> {
        let guard = epoch::pin();
        self.remove_entry(key, self.bucket_of(key), &|_| true, &guard)
            .flatten()
    }

    /// Removes the entry of `key` if the condition holds. `None` if the key has no entry,
    /// `Some(None)` if the condition does not hold.
    fn remove_entry(
        &self,
        key: &K,
        index: BucketIndex,
        condition: &impl Fn(&Arc<V>) -> bool,
        guard: &Guard,
    ) -> Option<Option<Arc<V>>> {
        let cell = self.cell(index);
        let mut bucket = cell.load(guard)?;
        loop {
            let entry = bucket.find(key)?;
            if !condition(&entry.value) {
                return Some(None);
            }
            let left = bucket.filtered(|other| other.key != *key);
            match cell.replace(Some(bucket), left, guard) {
                Ok(_) => return Some(Some(Arc::clone(&entry.value))),
                Err(changed) => bucket = changed.found?,
            }
        }
    }

    /// Evicts entries until every shard is within its budget again. Insertions do this by
    /// themselves, but rarely while entries refuse eviction. To be called by a checkpoint, which
    /// makes many of them evictable.
    pub fn trim(&self) {
        let guard = epoch::pin();
        for (number, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            shard.allow_sweep();
            self.evict(&mut shard, number, 0, &guard);
        }
    }

    /// Calls `visit` for every entry. Entries that are inserted or removed meanwhile may be missed.
    pub fn for_each(&self, mut visit: impl FnMut(&K, &Arc<V>)) {
        self.for_each_entry(|entry| visit(&entry.key, &entry.value));
    }

    fn for_each_entry(&self, mut visit: impl FnMut(&Entry<K, V>)) {
        let mut guard = epoch::pin();
        for cell in self.buckets.iter().flat_map(CellLine::cells) {
            if let Some(bucket) = cell.load(&guard) {
                bucket.iter().for_each(&mut visit);
                guard.refresh();
            }
        }
    }

    /// The number of entries; exact while no thread inserts or removes.
    #[must_use]
    pub fn len(&self) -> usize {
        let mut len = 0;
        self.for_each_entry(|_| len += 1);
        len
    }

    /// Whether there are no entries; exact while no thread inserts or removes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum of the entries' weights; exact while no thread inserts or removes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        let mut weight_bytes = 0;
        self.for_each_entry(|entry| weight_bytes += entry.weight_bytes);
        weight_bytes
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            hits: counters.hits.sum(),
            misses: counters.misses.sum(),
            loads: counters.loads.sum(),
            load_waits: counters.load_waits.sum(),
            insertions: counters.insertions.sum(),
            evictions: counters.evictions.sum(),
            refusals: counters.refusals.sum(),
        }
    }

    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    fn look_up<'g>(&self, key: &K, guard: &'g Guard) -> Option<&'g Entry<K, V>> {
        let found = self
            .cell(self.bucket_of(key))
            .load(guard)
            .and_then(|bucket| bucket.find(key));
        if let Some(entry) = found {
            entry.reference();
        }
        if self.hit_counting == HitCounting::On {
            let counter = if found.is_some() {
                &self.counters.hits
            } else {
                &self.counters.misses
            };
            counter.add(1);
        }
        found
    }

    /// The index of the key's bucket. The line is given by a hash of `number / 8`, so that eight
    /// neighbouring numbers share a line; within the line they use eight different buckets. The
    /// bucket of the first one depends on the hash, so that keys at equal distances are spread over
    /// all buckets.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most MAX_BUCKET_BITS are left"
    )]
    fn bucket_of(&self, key: &K) -> BucketIndex {
        let number = (self.number)(key);
        let hash = self.seed.hash(&(number >> LINE_BITS));
        BucketIndex {
            line: (hash >> self.line_shift) as usize,
            cell: ((number ^ hash) % CELLS_PER_LINE as u64) as usize,
        }
    }

    #[inline]
    fn cell(&self, index: BucketIndex) -> &EpochCell<Bucket<K, V>> {
        &self.buckets[index.line].cells()[index.cell]
    }

    #[cfg_attr(feature = "count", track_caller)]
    fn lock_shard_of(&self, index: BucketIndex) -> MutexGuard<'_, Shard<K, V>> {
        self.shards[index.line >> self.shard_shift].lock()
    }

    fn insert_locked(
        &self,
        shard: &mut Shard<K, V>,
        index: BucketIndex,
        key: K,
        value: Arc<V>,
        weight_bytes: usize,
        guard: &Guard,
    ) -> Arc<V> {
        let cell = self.cell(index);
        if let Some(entry) = cell.load(guard).and_then(|bucket| bucket.find(&key)) {
            return Arc::clone(&entry.value);
        }
        // A key with an entry has no pending load: removals rely on this.
        shard.loads.retain(|pending| pending.key != key);
        self.evict(shard, index.line >> self.shard_shift, weight_bytes, guard);
        // Loaded again: the eviction may have replaced this very bucket.
        let mut bucket = cell.load(guard);
        let mut entry = Entry::new(key, Arc::clone(&value), weight_bytes);
        while let Err(changed) = cell.replace(bucket, Some(Bucket::with(bucket, entry)), guard) {
            // Another thread has removed an entry.
            bucket = changed.found;
            entry = changed.rejected.expect("not stored").into_first();
        }
        shard.add_weight(weight_bytes);
        self.counters.insertions.add(1);
        value
    }

    /// Evicts entries of the shard with the given number until `need_bytes` more fit into it.
    fn evict(&self, shard: &mut Shard<K, V>, number: usize, need_bytes: usize, guard: &Guard) {
        let first = number << self.shard_shift;
        let lines = &self.buckets[first..first + (1 << self.shard_shift)];
        let budget_bytes = self.shard_budget_bytes;
        let swept = shard.evict(lines, need_bytes, budget_bytes, self.evictable, guard);
        if swept.evicted + swept.refused > 0 {
            self.counters.evictions.add(swept.evicted);
            self.counters.refusals.add(swept.refused);
        }
    }

    /// Finds the value or a pending load of it. If there is neither, starts a load, which the
    /// caller has to carry out.
    fn find_or_start_load<'c>(&'c self, key: &K, index: BucketIndex) -> Found<'c, K, V> {
        let guard = epoch::pin();
        let cell = self.cell(index);
        let find = || cell.load(&guard).and_then(|bucket| bucket.find(key));
        if let Some(entry) = find() {
            return self.hit(entry);
        }
        let mut shard = self.lock_shard_of(index);
        if let Some(entry) = find() {
            return self.hit(entry);
        }
        if let Some(pending) = shard.loads.iter().find(|pending| pending.key == *key) {
            return Found::Pending(Arc::clone(pending));
        }
        let pending = Arc::new(PendingLoad::new(key.clone()));
        shard.loads.push(Arc::clone(&pending));
        Found::Absent(Loader {
            cache: self,
            index,
            pending,
            ended: false,
        })
    }

    fn hit(&self, entry: &Entry<K, V>) -> Found<'_, K, V> {
        entry.reference();
        if self.hit_counting == HitCounting::On {
            self.counters.hits.add(1);
        }
        Found::Value(fourscore_sync::clone_arc(&entry.value))
    }
}

enum Found<'c, K, V>
where
    K: Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    Value(Arc<V>),
    /// Another caller loads the value.
    Pending(Arc<PendingLoad<K, V>>),
    /// This caller has to load the value.
    Absent(Loader<'c, K, V>),
}

/// The duty to load a value. If it is dropped without a value (by an error or a panic), the load
/// ends as failed, and each waiter loads the value itself.
struct Loader<'c, K, V>
where
    K: Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    cache: &'c ClockCache<K, V>,
    index: BucketIndex,
    pending: Arc<PendingLoad<K, V>>,
    ended: bool,
}

impl<K, V> Loader<'_, K, V>
where
    K: Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Inserts the value, unless a removal or an insertion took the load off the shard's list, and
    /// ends the load.
    fn insert(mut self, value: Arc<V>, weight_bytes: usize) -> Arc<V> {
        let guard = epoch::pin();
        let mut shard = self.cache.lock_shard_of(self.index);
        let key = &self.pending.key;
        let value = if self.take_off_list(&mut shard) {
            self.cache.insert_locked(
                &mut shard,
                self.index,
                key.clone(),
                value,
                weight_bytes,
                &guard,
            )
        } else {
            // The key has the value of another insertion now, or it was removed.
            let bucket = self.cache.cell(self.index).load(&guard);
            let entry = bucket.and_then(|bucket| bucket.find(key));
            entry.map_or(value, |entry| Arc::clone(&entry.value))
        };
        drop(shard);
        self.pending.end(Some(Arc::clone(&value)));
        self.ended = true;
        value
    }

    /// Takes the load off the shard's list. Returns false if it was not there any more.
    fn take_off_list(&self, shard: &mut Shard<K, V>) -> bool {
        let before = shard.loads.len();
        shard
            .loads
            .retain(|pending| !Arc::ptr_eq(pending, &self.pending));
        shard.loads.len() < before
    }
}

impl<K, V> Drop for Loader<'_, K, V>
where
    K: Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn drop(&mut self) {
        if !self.ended {
            self.take_off_list(&mut self.cache.lock_shard_of(self.index));
            self.pending.end(None);
        }
    }
}

impl<K, V> fmt::Debug for ClockCache<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClockCache")
            .field("buckets", &self.buckets.len())
            .field("shards", &self.shards.len())
            .field("shard_budget_bytes", &self.shard_budget_bytes)
            .finish_non_exhaustive()
    }
}

/// The smallest `bits` with `1 << bits` at least `number`.
fn bits_for(number: usize) -> u32 {
    number.max(1).next_power_of_two().trailing_zeros()
}

#[cfg(all(test, feature = "count"))]
mod count_tests;
#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
