//! **Purpose.** The cache itself: lookup, insertion, removal and loading.

use std::fmt;

use fourscore_sync::epoch::{self, CELLS_PER_LINE, CellLine, EpochCell, Guard};
use fourscore_sync::{Arc, CachePadded, CoreNr, Counter, Mutex, MutexGuard};

use crate::bucket::{Bucket, Entry};
use crate::clock::Shard;
use crate::flight::Flight;
use crate::hash::Seed;

/// How a cache is laid out and what it may evict.
#[derive(Debug)]
pub struct Config<K, V> {
    /// A number that tells keys apart. Those of which eight lie side by side, from a multiple of
    /// eight on, share a cache line of the table with each other and with nobody else: who comes
    /// and goes with such numbers meets others nowhere.
    pub number: fn(&K) -> u64,
    /// The sum of weights the cache aims to stay below.
    pub budget_bytes: usize,
    /// The weight of a typical entry; with the budget it sets the number of buckets.
    pub expected_weight_bytes: usize,
    /// Whether this value may leave now. Called under a shard lock: it must be quick and take no
    /// lock. When it says yes, the entry is gone; readers that found the value before may still
    /// hold it. A user who *modifies* cached values therefore makes the answer a step that only
    /// one side can win (say, a compare-exchange from clean to evicted here, and from clean to
    /// dirty there), and looks the key up again when the value turns out to be evicted.
    pub evictable: fn(&V) -> bool,
    /// Whether lookups are counted.
    pub hits: HitCounting,
}

/// Whether a cache counts its lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitCounting {
    /// On a counter of the core, which costs a few nanoseconds and no shared line.
    On,
    /// Not at all.
    Off,
}

/// What happened so far, summed over all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lookups that found their key (0 unless [`HitCounting::On`]).
    pub hits: u64,
    /// Lookups by [`ClockCache::get`] and [`ClockCache::get_arc`] that did not (0 unless
    /// [`HitCounting::On`]).
    pub absent: u64,
    /// Loaders run.
    pub loads: u64,
    /// Callers that waited for the loader of another one.
    pub load_waits: u64,
    /// Entries put in.
    pub insertions: u64,
    /// Entries that had to leave.
    pub evictions: u64,
    /// How often an entry refused to leave.
    pub refusals: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: Counter,
    absent: Counter,
    loads: Counter,
    load_waits: Counter,
    insertions: Counter,
    evictions: Counter,
    refusals: Counter,
}

type PaddedShard<K, V> = CachePadded<Mutex<Shard<K, V>>>;

/// A concurrent cache with a byte budget. See the crate's head for its structure.
///
/// Keys are cheap to clone (numbers, as a rule). Values are dropped late and on any thread, by the
/// rules of [`fourscore_sync::epoch`]: their destructors take no lock and do no I/O.
pub struct ClockCache<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Put into under the lock of the shard that owns the bucket; taken out of and read by anyone.
    buckets: Box<[CellLine<Bucket<K, V>>]>,
    shards: Box<[PaddedShard<K, V>]>,
    seed: Seed,
    number: fn(&K) -> u64,
    /// What is shifted out of a hash to get a line's index.
    line_shift: u32,
    /// What is shifted out of a line's index to get its shard's.
    shard_shift: u32,
    share_bytes: usize,
    evictable: fn(&V) -> bool,
    hit_counting: HitCounting,
    counters: Counters,
}

const LINE_BITS: u32 = CELLS_PER_LINE.ilog2();
const MIN_BUCKET_BITS: u32 = 4;
/// Two GiB worth of pointers, of which only the pages in use exist.
const MAX_BUCKET_BITS: u32 = 28;
const MAX_SHARD_BITS: u32 = 9;
/// A shard that holds fewer typical entries than this would evict by accident of the hash.
const MIN_ENTRIES_PER_SHARD_BITS: u32 = 6;

/// Where a key's bucket is.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    cell: usize,
}

impl<K, V> ClockCache<K, V>
where
    K: Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// An empty cache. Memory for the buckets is reserved now and used as they fill.
    #[must_use]
    pub fn new(config: &Config<K, V>) -> Self {
        let entries = config.budget_bytes / config.expected_weight_bytes.max(1);
        // Twice as many as entries, since a bucket that is not empty costs a copy to insert into.
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
            share_bytes: config.budget_bytes >> shard_bits,
            evictable: config.evictable,
            hit_counting: config.hits,
            counters: Counters::default(),
        }
    }

    /// The value of `key`, for as long as the guard. Writes no memory that other cores read.
    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn get<'g>(&self, key: &K, guard: &'g Guard) -> Option<&'g V> {
        self.look_up(key, guard).map(|entry| &*entry.value)
    }

    /// A share in the value of `key`. Unlike [`ClockCache::get`] this writes the value's reference
    /// count, a line that all users of the value share.
    #[cfg_attr(feature = "count", track_caller)]
    pub fn get_arc(&self, key: &K) -> Option<Arc<V>> {
        let guard = epoch::pin();
        self.look_up(key, &guard)
            .map(|entry| fourscore_sync::clone_arc(&entry.value))
    }

    /// Puts `value` in unless `key` is there already: the first one wins. Returns the one that is
    /// in the cache.
    pub fn insert(&self, key: K, value: Arc<V>, weight_bytes: usize) -> Arc<V> {
        let guard = epoch::pin();
        let place = self.place(&key);
        let mut shard = self.lock(place);
        self.insert_locked(&mut shard, place, key, value, weight_bytes, &guard)
    }

    /// The value of `key`; if there is none, `load` brings it and its weight in bytes.
    ///
    /// No lock is held while `load` runs. Callers that want the same key meanwhile wait for its
    /// outcome instead of loading it as well. If the key is removed meanwhile, those who waited
    /// get the value, but it does not enter the cache. `load` must not ask for its own key.
    ///
    /// # Errors
    /// What `load` returned. Errors are not remembered: each caller that waited loads itself.
    pub fn get_or_try_load<E>(
        &self,
        key: &K,
        load: impl FnOnce() -> Result<(Arc<V>, usize), E>,
    ) -> Result<Arc<V>, E> {
        let place = self.place(key);
        loop {
            match self.find_or_take_off(key, place) {
                Found::Value(value) => return Ok(value),
                Found::Flight(flight) => {
                    self.counters.load_waits.add(1);
                    if let Some(value) = flight.wait() {
                        return Ok(value);
                    }
                }
                Found::Pilot(pilot) => {
                    self.counters.loads.add(1);
                    let (value, weight_bytes) = load()?;
                    return Ok(pilot.land(value, weight_bytes));
                }
            }
        }
    }

    /// Takes `key` out, and keeps a load of it that is under way from putting it in.
    pub fn remove(&self, key: &K) -> Option<Arc<V>> {
        self.remove_if(key, |_| true)
    }

    /// As [`ClockCache::remove`], but only if `condition` holds for the value there. It may be
    /// asked again when the bucket has changed meanwhile.
    ///
    /// A value that is there is taken out without the shard's lock: no load of its key is under
    /// way. What it weighed the shard learns when it runs over its share.
    pub fn remove_if(&self, key: &K, condition: impl Fn(&Arc<V>) -> bool) -> Option<Arc<V>> {
        let guard = epoch::pin();
        let place = self.place(key);
        if let Some(removed) = self.take_out(key, place, &condition, &guard) {
            return removed;
        }
        let mut shard = self.lock(place);
        shard.flights.retain(|flight| flight.key != *key);
        // It may have come in the meantime.
        self.take_out(key, place, &condition, &guard).flatten()
    }

    /// Takes `key` out without the shard's lock, and writes nothing if it is not there. For keys
    /// that nobody loads: a load that is under way is not kept from putting its value in.
    pub fn take(&self, key: &K) -> Option<Arc<V>> {
        let guard = epoch::pin();
        self.take_out(key, self.place(key), &|_| true, &guard)
            .flatten()
    }

    /// Takes `key` out if the condition holds; `None` if it is not there.
    fn take_out(
        &self,
        key: &K,
        place: Place,
        condition: &impl Fn(&Arc<V>) -> bool,
        guard: &Guard,
    ) -> Option<Option<Arc<V>>> {
        let cell = self.cell(place);
        let mut bucket = cell.load(guard)?;
        loop {
            let entry = bucket.find(key)?;
            if !condition(&entry.value) {
                return Some(None);
            }
            let left = bucket.only(|other| other.key != *key);
            match cell.replace(Some(bucket), left, guard) {
                Ok(_) => return Some(Some(Arc::clone(&entry.value))),
                Err(changed) => bucket = changed.found?,
            }
        }
    }

    /// Evicts what may leave until every shard is within its share again. Insertions do this by
    /// themselves, but rarely while entries refuse; a checkpoint that made many of them evictable
    /// calls this.
    pub fn trim(&self) {
        let guard = epoch::pin();
        for (number, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            shard.lose_patience();
            self.make_room(&mut shard, number, 0, &guard);
        }
    }

    /// Shows every entry to `visit`. Entries that come or go meanwhile may be missed.
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

    /// The number of entries; exact once writers are quiet.
    #[must_use]
    pub fn len(&self) -> usize {
        let mut len = 0;
        self.for_each_entry(|_| len += 1);
        len
    }

    /// Whether there are no entries; exact once writers are quiet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum of the entries' weights; exact once writers are quiet.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        let mut weight_bytes = 0;
        self.for_each_entry(|entry| weight_bytes += entry.weight_bytes);
        weight_bytes
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            hits: counters.hits.sum(),
            absent: counters.absent.sum(),
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
            .cell(self.place(key))
            .load(guard)
            .and_then(|bucket| bucket.find(key));
        if let Some(entry) = found {
            entry.reference();
        }
        if self.hit_counting == HitCounting::On {
            let counter = if found.is_some() {
                &self.counters.hits
            } else {
                &self.counters.absent
            };
            counter.add(1);
        }
        found
    }

    /// Where the key's bucket is: the line by a hash of its neighbourhood, and within the line no
    /// two of a neighbourhood in one bucket. Which of them begins is for the hash to say, so that
    /// keys at equal distances are spread over all buckets.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most MAX_BUCKET_BITS are left"
    )]
    fn place(&self, key: &K) -> Place {
        let number = (self.number)(key);
        let hash = self.seed.hash(&(number >> LINE_BITS));
        Place {
            line: (hash >> self.line_shift) as usize,
            cell: ((number ^ hash) % CELLS_PER_LINE as u64) as usize,
        }
    }

    #[inline]
    fn cell(&self, place: Place) -> &EpochCell<Bucket<K, V>> {
        &self.buckets[place.line].cells()[place.cell]
    }

    #[cfg_attr(feature = "count", track_caller)]
    fn lock(&self, place: Place) -> MutexGuard<'_, Shard<K, V>> {
        self.shards[place.line >> self.shard_shift].lock()
    }

    fn insert_locked(
        &self,
        shard: &mut Shard<K, V>,
        place: Place,
        key: K,
        value: Arc<V>,
        weight_bytes: usize,
        guard: &Guard,
    ) -> Arc<V> {
        let cell = self.cell(place);
        if let Some(entry) = cell.load(guard).and_then(|bucket| bucket.find(&key)) {
            return Arc::clone(&entry.value);
        }
        // Where there is an entry there is no load under way, which removals rely on.
        shard.flights.retain(|flight| flight.key != key);
        self.make_room(shard, place.line >> self.shard_shift, weight_bytes, guard);
        // Loaded again: making room may have replaced this very bucket.
        let mut bucket = cell.load(guard);
        let mut entry = Entry::new(key, Arc::clone(&value), weight_bytes);
        while let Err(changed) = cell.replace(bucket, Some(Bucket::with(bucket, entry)), guard) {
            // Somebody has taken an entry out.
            bucket = changed.found;
            entry = changed.rejected.expect("not put in").into_first();
        }
        shard.note(weight_bytes);
        self.counters.insertions.add(1);
        value
    }

    fn make_room(&self, shard: &mut Shard<K, V>, number: usize, need_bytes: usize, guard: &Guard) {
        let first = number << self.shard_shift;
        let mine = &self.buckets[first..first + (1 << self.shard_shift)];
        let swept = shard.make_room(mine, need_bytes, self.share_bytes, self.evictable, guard);
        if swept.evicted + swept.refused > 0 {
            self.counters.evictions.add(swept.evicted);
            self.counters.refusals.add(swept.refused);
        }
    }

    /// The value, or a load of it to wait for, or the duty to load it.
    fn find_or_take_off<'c>(&'c self, key: &K, place: Place) -> Found<'c, K, V> {
        let guard = epoch::pin();
        let cell = self.cell(place);
        let find = || cell.load(&guard).and_then(|bucket| bucket.find(key));
        if let Some(entry) = find() {
            return self.hit(entry);
        }
        let mut shard = self.lock(place);
        if let Some(entry) = find() {
            return self.hit(entry);
        }
        if let Some(flight) = shard.flights.iter().find(|flight| flight.key == *key) {
            return Found::Flight(Arc::clone(flight));
        }
        let flight = Arc::new(Flight::new(key.clone()));
        shard.flights.push(Arc::clone(&flight));
        Found::Pilot(Pilot {
            cache: self,
            place,
            flight,
            landed: false,
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
    Flight(Arc<Flight<K, V>>),
    Pilot(Pilot<'c, K, V>),
}

/// The one who loads. Dropped without a landing (an error, a panic), it sends everybody who waits
/// off to load the value themselves.
struct Pilot<'c, K, V>
where
    K: Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    cache: &'c ClockCache<K, V>,
    place: Place,
    flight: Arc<Flight<K, V>>,
    landed: bool,
}

impl<K, V> Pilot<'_, K, V>
where
    K: Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Puts the value in, unless the flight was struck off the list, and tells everybody.
    fn land(mut self, value: Arc<V>, weight_bytes: usize) -> Arc<V> {
        let guard = epoch::pin();
        let mut shard = self.cache.lock(self.place);
        let key = &self.flight.key;
        let value = if self.strike_off(&mut shard) {
            self.cache.insert_locked(
                &mut shard,
                self.place,
                key.clone(),
                value,
                weight_bytes,
                &guard,
            )
        } else {
            // Whoever struck it off has put another value in, or has taken it out.
            let there = self.cache.cell(self.place).load(&guard);
            let there = there.and_then(|bucket| bucket.find(key));
            there.map_or(value, |entry| Arc::clone(&entry.value))
        };
        drop(shard);
        self.flight.land(Some(Arc::clone(&value)));
        self.landed = true;
        value
    }

    /// Takes the flight off the list. False if it was not there any more.
    fn strike_off(&self, shard: &mut Shard<K, V>) -> bool {
        let before = shard.flights.len();
        shard
            .flights
            .retain(|flight| !Arc::ptr_eq(flight, &self.flight));
        shard.flights.len() < before
    }
}

impl<K, V> Drop for Pilot<'_, K, V>
where
    K: Eq + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn drop(&mut self) {
        if !self.landed {
            self.strike_off(&mut self.cache.lock(self.place));
            self.flight.land(None);
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
            .field("share_bytes", &self.share_bytes)
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
