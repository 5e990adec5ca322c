//! **Purpose.** The state behind a shard's lock (its weight and its pending loads), and eviction by
//! the clock algorithm.
//!
//! **Model.** The clock hand walks the shard's buckets. An entry that was hit since the last visit
//! loses its referenced flag and stays. One that was not is offered to the eviction hook, and is
//! evicted if the hook agrees. A second round of the same sweep ignores the flags: otherwise
//! readers that set them as fast as the hand clears them could keep the shard over its budget.
//!
//! If even that frees too little, the hook has refused all entries that are left. The shard then
//! exceeds its budget, and the next sweep starts only when it has grown by another sixteenth, so
//! that a cache full of dirty blocks is not swept with every insertion. A caller that makes many
//! entries evictable at once starts a sweep itself ([`ClockCache::trim`](crate::ClockCache::trim)).
//!
//! Entries are removed without the lock and without an update of the shard's weight. So the weight
//! is an upper bound, and a sweep first recounts it, unless less than a quarter of the budget was
//! inserted since the last recount. A shard may therefore evict a little too much, never too
//! little.

use fourscore_sync::Arc;
use fourscore_sync::epoch::{self, CELLS_PER_LINE, CellLine, EpochCell, Guard};

use crate::bucket::{Bucket, Entry};
use crate::load::PendingLoad;

/// The part of the cache behind one lock.
#[derive(Debug)]
pub(crate) struct Shard<K, V> {
    /// The weight of the entries, including those that were removed since the last recount.
    weight_bytes: usize,
    /// The weight of the insertions since the last recount.
    inserted_bytes: usize,
    /// The next bucket to visit, as an index into the shard's own buckets.
    hand: usize,
    /// No sweep starts before the weight reaches this.
    next_sweep_bytes: usize,
    /// The pending loads. There are a few at most, so a list is faster than a map.
    pub(crate) loads: Vec<Arc<PendingLoad<K, V>>>,
}

/// The counts of a sweep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Swept {
    pub(crate) evicted: u64,
    /// The number of entries that the hook refused to evict.
    pub(crate) refused: u64,
}

/// The limits of a sweep.
struct Sweep<V> {
    /// The sweep ends when the weight is at most this.
    target_bytes: usize,
    /// The eviction hook.
    evictable: fn(&V) -> bool,
    round: Round,
}

/// The rounds of a sweep over all buckets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Spares entries that were hit since the last visit.
    First,
    /// Offers all entries to the hook.
    Second,
}

impl<K, V> Default for Shard<K, V> {
    fn default() -> Self {
        Self {
            weight_bytes: 0,
            inserted_bytes: usize::MAX,
            hand: 0,
            next_sweep_bytes: 0,
            loads: Vec::new(),
        }
    }
}

impl<K, V> Shard<K, V>
where
    K: Clone + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Evicts until `need_bytes` more fit into `budget_bytes`, or no other entry is evictable.
    pub(crate) fn evict(
        &mut self,
        lines: &[CellLine<Bucket<K, V>>],
        need_bytes: usize,
        budget_bytes: usize,
        evictable: fn(&V) -> bool,
        guard: &Guard,
    ) -> Swept {
        let mut swept = Swept::default();
        let target_bytes = budget_bytes.saturating_sub(need_bytes);
        if self.weight_bytes <= target_bytes {
            self.next_sweep_bytes = 0;
            return swept;
        }
        if self.weight_bytes < self.next_sweep_bytes {
            return swept;
        }
        if self.inserted_bytes >= budget_bytes / 4 {
            self.recount(lines, guard);
            if self.weight_bytes <= target_bytes {
                self.next_sweep_bytes = 0;
                return swept;
            }
        }
        let buckets = lines.len() * CELLS_PER_LINE;
        for visits in 0..buckets * 2 {
            let visited = &lines[self.hand / CELLS_PER_LINE].cells()[self.hand % CELLS_PER_LINE];
            self.hand = (self.hand + 1) % buckets;
            let sweep = Sweep {
                target_bytes,
                evictable,
                round: if visits < buckets {
                    Round::First
                } else {
                    Round::Second
                },
            };
            self.visit(visited, &sweep, guard, &mut swept);
            if self.weight_bytes <= target_bytes {
                self.next_sweep_bytes = 0;
                return swept;
            }
        }
        self.next_sweep_bytes = self.weight_bytes.saturating_add(self.weight_bytes / 16);
        swept
    }

    /// Visits one bucket with the clock hand.
    fn visit(
        &mut self,
        cell: &EpochCell<Bucket<K, V>>,
        sweep: &Sweep<V>,
        guard: &Guard,
        swept: &mut Swept,
    ) {
        let Some(mut bucket) = cell.load(guard) else {
            return;
        };
        // One bit for each victim: so the hook is called once for each entry, and a bucket that
        // keeps its entries is not copied. Entries past the 64th, which a good hash never
        // produces, stay.
        let mut victims = 0_u64;
        let before_bytes = self.weight_bytes;
        for (index, entry) in bucket.iter().enumerate().take(64) {
            if self.weight_bytes <= sweep.target_bytes {
                break;
            }
            if entry.take_reference() && sweep.round == Round::First {
                continue;
            }
            if !(sweep.evictable)(&entry.value) {
                swept.refused += 1;
                continue;
            }
            victims |= 1 << index;
            self.subtract_weight(entry.weight_bytes);
            swept.evicted += 1;
        }
        if victims == 0 {
            return;
        }
        let seen = bucket;
        let is_victim = |entry: &Entry<K, V>| {
            let victims = seen
                .iter()
                .enumerate()
                .take(64)
                .filter(|(index, _)| victims >> index & 1 == 1);
            victims
                .map(|(_, victim)| &victim.value)
                .any(|value| Arc::ptr_eq(value, &entry.value))
        };
        // Retried if another thread has removed an entry meanwhile.
        while let Err(changed) = cell.replace(
            Some(bucket),
            bucket.filtered(|entry| !is_victim(entry)),
            guard,
        ) {
            match changed.found {
                Some(found) => bucket = found,
                None => return,
            }
        }
        epoch::count_retired_bytes(before_bytes - self.weight_bytes);
    }

    /// Recounts the weight of the entries.
    fn recount(&mut self, lines: &[CellLine<Bucket<K, V>>], guard: &Guard) {
        let buckets = lines.iter().flat_map(CellLine::cells);
        let entries = buckets
            .filter_map(|cell| cell.load(guard))
            .flat_map(Bucket::iter);
        self.weight_bytes = entries.map(|entry| entry.weight_bytes).sum();
        self.inserted_bytes = 0;
    }

    /// Allows the next sweep at any weight over the budget.
    pub(crate) fn allow_sweep(&mut self) {
        self.next_sweep_bytes = 0;
    }

    /// Adds the weight of an inserted entry.
    pub(crate) fn add_weight(&mut self, weight_bytes: usize) {
        self.weight_bytes = self.weight_bytes.saturating_add(weight_bytes);
        self.inserted_bytes = self.inserted_bytes.saturating_add(weight_bytes);
    }

    /// Subtracts the weight of an evicted entry.
    fn subtract_weight(&mut self, weight_bytes: usize) {
        self.weight_bytes = self.weight_bytes.saturating_sub(weight_bytes);
    }
}
