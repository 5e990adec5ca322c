//! **Purpose.** The hits that a sharing cache of a given size would have had.
//!
//! **Model.** The cache holds the current copy of each content. Attributes are set once for each
//! inode, in the order of the inodes: the content is looked up, and a hit adds a user to the
//! copy. After a miss there is a new copy, which enters the cache. A copy that has as many users
//! as it can count leaves. A full cache evicts by a clock: a hit marks an entry, the hand clears
//! marks, and the first entry without a mark is evicted. A new entry has no mark, so contents that
//! are met once leave before those that are shared.
//!
//! ```text
//! entries = size in bytes / bytes of an entry
//! ```
//!
//! This is one clock. A cache that is divided into shards has one for each, which makes no
//! difference as long as the shards are filled evenly.

use std::collections::HashMap;

use super::contents::ContentNr;

/// The part of a cache's memory that an entry takes: that of fourscore's own cache.
pub(super) const ENTRY_BYTES: u64 = fourscore::XATTR_SHARING_ENTRY_BYTES;

/// What is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Block(ContentNr),
    Value(ContentNr),
}

/// What a simulated cache has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) lookups: u64,
    pub(super) hits: u64,
    pub(super) evictions: u64,
    /// Entries that left because their copy had as many users as possible.
    pub(super) full: u64,
}

impl Tally {
    /// Hits of 100 lookups.
    pub(super) fn hit_percent(&self) -> f64 {
        self.hits as f64 * 100.0 / self.lookups.max(1) as f64
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// `None` for an entry that has left.
    key: Option<Key>,
    users: u64,
    is_marked: bool,
}

/// A simulated cache.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) size_bytes: u64,
    slots: Vec<Slot>,
    free: Vec<usize>,
    places: HashMap<Key, usize>,
    hand: usize,
    pub(super) tally: Tally,
}

impl Clock {
    pub(super) fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            slots: Vec::new(),
            free: Vec::new(),
            places: HashMap::new(),
            hand: 0,
            tally: Tally::default(),
        }
    }

    /// The number of entries that fit; at least one.
    pub(super) fn entries(&self) -> u64 {
        (self.size_bytes / ENTRY_BYTES).max(1)
    }

    /// Looks `key` up for a new user; a copy may have `most_users`.
    pub(super) fn look_up(&mut self, key: Key, most_users: u64) {
        self.tally.lookups += 1;
        let found = self.places.get(&key).copied();
        let Some((place, slot)) = found.and_then(|at| Some((at, self.slots.get_mut(at)?))) else {
            return self.insert(key, most_users);
        };
        self.tally.hits += 1;
        slot.is_marked = true;
        slot.users += 1;
        if slot.users >= most_users {
            slot.key = None;
            self.tally.full += 1;
            self.places.remove(&key);
            self.free.push(place);
        }
    }

    fn insert(&mut self, key: Key, most_users: u64) {
        if most_users <= 1 {
            return;
        }
        let slot = Slot {
            key: Some(key),
            users: 1,
            is_marked: false,
        };
        let place = match self.free.pop() {
            Some(place) => place,
            None if (self.slots.len() as u64) < self.entries() => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
            None => self.evict(),
        };
        if let Some(old) = self.slots.get_mut(place) {
            *old = slot;
            self.places.insert(key, place);
        }
    }

    /// Evicts the first entry without a mark and returns its place. All slots are in use.
    fn evict(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len().max(1);
            let Some(slot) = self.slots.get_mut(place) else {
                return place;
            };
            if slot.is_marked {
                slot.is_marked = false;
                continue;
            }
            if let Some(key) = slot.key.take() {
                self.places.remove(&key);
                self.tally.evictions += 1;
            }
            return place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1024;

    fn of(size_bytes: u64, contents: impl IntoIterator<Item = u32>) -> Tally {
        let mut clock = Clock::new(size_bytes);
        for nr in contents {
            clock.look_up(Key::Block(ContentNr(nr)), LIMIT);
        }
        assert!(clock.places.len() as u64 <= clock.entries());
        clock.tally
    }

    #[test]
    fn contents_in_turns_need_an_entry_each() {
        let turns = || (0..1000).map(|nr| nr % 10);
        let all = of(10 * ENTRY_BYTES, turns());
        assert_eq!((all.lookups, all.hits, all.evictions), (1000, 990, 0));
        let few = of(5 * ENTRY_BYTES, turns());
        assert_eq!((few.hits, few.evictions), (0, 995));
    }

    #[test]
    fn a_content_that_is_hit_outlives_those_that_are_not() {
        // 7 is shared; each of the others is met once.
        let mixed = (0..1000).map(|nr| if nr % 3 == 0 { 7 } else { 10_000 + nr });
        let tally = of(4 * ENTRY_BYTES, mixed);
        assert_eq!(tally.hits, 333);
    }

    #[test]
    fn a_full_copy_leaves_and_the_next_user_makes_another() {
        let tally = of(ENTRY_BYTES, (0..3000).map(|_| 1));
        // Copies of 1024, 1024 and 952 users: each is made after a miss.
        assert_eq!((tally.hits, tally.full, tally.evictions), (2997, 2, 0));
    }

    #[test]
    fn blocks_and_values_with_one_number_are_different() {
        let mut clock = Clock::new(1 << 10);
        clock.look_up(Key::Block(ContentNr(0)), LIMIT);
        clock.look_up(Key::Value(ContentNr(0)), u64::MAX);
        assert_eq!(clock.tally.hits, 0);
        assert_eq!(clock.tally.hit_percent().to_bits(), 0.0_f64.to_bits());
    }
}
