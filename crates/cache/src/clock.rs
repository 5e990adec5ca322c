//! **Purpose.** What a shard's lock guards: its books, its loads under way, and eviction.
//!
//! **Model.** The clock hand walks the shard's buckets. An entry that was hit since the last visit
//! loses its flag and stays; one that was not is offered to the hook, and leaves if the hook
//! agrees. A second round no longer looks at the flags: readers may set them as fast as the hand
//! clears them, and the budget holds against them too.
//!
//! If even that made no room, the rest refuses. The shard then runs over its share, and the next
//! attempt waits until it has grown by another sixteenth, so that a cache full of dirty blocks is
//! not swept again with every insertion. Whoever makes many entries evictable at once calls for a
//! sweep himself ([`ClockCache::trim`](crate::ClockCache::trim)).
//!
//! Entries are removed without the lock, and nobody tells the books. So these are an upper bound:
//! before anybody has to leave they are made anew, unless that was done while less than a quarter
//! of the share has come. A shard that runs over may so evict a little too much, never too little.

use fourscore_sync::Arc;
use fourscore_sync::epoch::{CELLS_PER_LINE, CellLine, EpochCell, Guard};

use crate::bucket::{Bucket, Entry};
use crate::flight::Flight;

/// The part of the cache behind one lock.
#[derive(Debug)]
pub(crate) struct Shard<K, V> {
    /// What the entries weigh, and those that were removed since the books were made.
    weight_bytes: usize,
    /// What has come since then.
    came_bytes: usize,
    /// The next bucket to visit, as an index into the shard's own buckets.
    hand: usize,
    /// No sweep before the weight exceeds this.
    patience_bytes: usize,
    /// The loads under way. A handful at most, so a list beats a map.
    pub(crate) flights: Vec<Arc<Flight<K, V>>>,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Swept {
    pub(crate) evicted: u64,
    /// How often the hook refused.
    pub(crate) refused: u64,
}

/// Whom a round spares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mercy {
    /// Entries that were hit since the last visit.
    Referenced,
    /// Nobody.
    None,
}

impl<K, V> Default for Shard<K, V> {
    fn default() -> Self {
        Self {
            weight_bytes: 0,
            came_bytes: usize::MAX,
            hand: 0,
            patience_bytes: 0,
            flights: Vec::new(),
        }
    }
}

impl<K, V> Shard<K, V>
where
    K: Clone + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Evicts until `need_bytes` more fit into `share_bytes`, or nothing else wants to go.
    pub(crate) fn make_room(
        &mut self,
        lines: &[CellLine<Bucket<K, V>>],
        need_bytes: usize,
        share_bytes: usize,
        evictable: fn(&V) -> bool,
        guard: &Guard,
    ) -> Swept {
        let mut swept = Swept::default();
        let target_bytes = share_bytes.saturating_sub(need_bytes);
        if self.weight_bytes <= target_bytes {
            self.patience_bytes = 0;
            return swept;
        }
        if self.weight_bytes < self.patience_bytes {
            return swept;
        }
        if self.came_bytes >= share_bytes / 4 {
            self.make_books(lines, guard);
            if self.weight_bytes <= target_bytes {
                self.patience_bytes = 0;
                return swept;
            }
        }
        let buckets = lines.len() * CELLS_PER_LINE;
        for visits in 0..buckets * 2 {
            let visited = &lines[self.hand / CELLS_PER_LINE].cells()[self.hand % CELLS_PER_LINE];
            self.hand = (self.hand + 1) % buckets;
            let mercy = if visits < buckets {
                Mercy::Referenced
            } else {
                Mercy::None
            };
            self.visit(visited, target_bytes, mercy, evictable, guard, &mut swept);
            if self.weight_bytes <= target_bytes {
                self.patience_bytes = 0;
                return swept;
            }
        }
        self.patience_bytes = self.weight_bytes.saturating_add(self.weight_bytes / 16);
        swept
    }

    /// The clock hand at one bucket.
    fn visit(
        &mut self,
        cell: &EpochCell<Bucket<K, V>>,
        target_bytes: usize,
        mercy: Mercy,
        evictable: fn(&V) -> bool,
        guard: &Guard,
        swept: &mut Swept,
    ) {
        let Some(mut bucket) = cell.load(guard) else {
            return;
        };
        // One bit for each victim: the hook is asked once, and nothing is copied for a bucket
        // that keeps its entries. Entries past the 64th, which no fair hash produces, stay.
        let mut victims = 0_u64;
        for (place, entry) in bucket.iter().enumerate().take(64) {
            if self.weight_bytes <= target_bytes {
                break;
            }
            if entry.take_reference() && mercy == Mercy::Referenced {
                continue;
            }
            if !evictable(&entry.value) {
                swept.refused += 1;
                continue;
            }
            victims |= 1 << place;
            self.forget(entry.weight_bytes);
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
                .filter(|(at, _)| victims >> at & 1 == 1);
            victims
                .map(|(_, victim)| &victim.value)
                .any(|value| Arc::ptr_eq(value, &entry.value))
        };
        // Again if somebody has removed an entry meanwhile.
        while let Err(changed) =
            cell.replace(Some(bucket), bucket.only(|entry| !is_victim(entry)), guard)
        {
            match changed.found {
                Some(found) => bucket = found,
                None => return,
            }
        }
    }

    /// Finds out what the entries weigh.
    fn make_books(&mut self, lines: &[CellLine<Bucket<K, V>>], guard: &Guard) {
        let buckets = lines.iter().flat_map(CellLine::cells);
        let entries = buckets
            .filter_map(|cell| cell.load(guard))
            .flat_map(Bucket::iter);
        self.weight_bytes = entries.map(|entry| entry.weight_bytes).sum();
        self.came_bytes = 0;
    }

    /// Lets the next sweep start in any case.
    pub(crate) fn lose_patience(&mut self) {
        self.patience_bytes = 0;
    }

    /// Books an entry.
    pub(crate) fn note(&mut self, weight_bytes: usize) {
        self.weight_bytes = self.weight_bytes.saturating_add(weight_bytes);
        self.came_bytes = self.came_bytes.saturating_add(weight_bytes);
    }

    /// Takes an entry off the books.
    fn forget(&mut self, weight_bytes: usize) {
        self.weight_bytes = self.weight_bytes.saturating_sub(weight_bytes);
    }
}
