//! **Purpose.** The buddy system of one group: which clusters are free for allocation, in which
//! aligned power-of-two chunks, and in how many extents.
//!
//! **Not here.** Why a cluster is not free (used on disk, claimed, freed and waiting): that is
//! [`crate::group`]'s; locks.
//!
//! **Model.** `bits` has one bit for each cluster (1 = not allocatable). For each order `k >= 1`
//! a map has one bit for each aligned chunk of `2^k` clusters, 0 if the chunk is free as a whole
//! and not part of a larger free chunk (the sense of ext4's buddy). Order 0 has no map of its
//! own: a free cluster whose buddy is used is a chunk of order 0. `counters[k]` counts the chunks
//! of order `k`, so `free = sum of counters[k] << k`.
//!
//! **Invariants.** No two buddies of the same order are both free chunks unless they are of the
//! highest order; every free cluster is in exactly one chunk; `fragments` is the number of
//! maximal runs of free clusters. [`Buddy::check`] recomputes all of it.
//!
//! **References.** `Documentation/filesystems/ext4/blockgroup.rst`, and the head of
//! `fs/ext4/mballoc.c` for the sense of the maps and counters.

use crate::num::len32;
use crate::order_index::Fitness;
use crate::run_tree::RunTree;
use crate::words;

/// The most orders a group can have: 0 to 17, at 64 KiB blocks.
pub const MAX_ORDERS: usize = 18;

/// The buddy of one group.
#[derive(Debug)]
pub struct Buddy {
    clusters: u32,
    orders: u32,
    free: u32,
    fragments: u32,
    counters: [u32; MAX_ORDERS],
    bits: Box<[u64]>,
    /// `maps[k - 1]` belongs to order `k`.
    maps: Box<[Box<[u64]>]>,
    runs: RunTree,
}

impl Buddy {
    /// The buddy of a group of `clusters` clusters with `orders` orders, whose bitmap block
    /// starts with `bitmap`. Bits past the group's end count as used, whatever they are; missing
    /// bytes as well.
    #[must_use]
    pub fn new(clusters: u32, orders: u32, bitmap: &[u8]) -> Self {
        let mut bits = vec![u64::MAX; RunTree::words_for(clusters)].into_boxed_slice();
        for (word, bytes) in bits.iter_mut().zip(bitmap.chunks(8)) {
            let mut whole = [0xff; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        let all = len32(bits.len()) * 64;
        words::set(&mut bits, clusters, all);
        let maps = (1..orders)
            .map(|order| vec![u64::MAX; ((all >> order).max(1).div_ceil(64)) as usize].into())
            .collect();
        let runs = RunTree::new(&bits);
        let mut buddy = Self {
            clusters,
            orders,
            free: 0,
            fragments: 0,
            counters: [0; MAX_ORDERS],
            bits,
            maps,
            runs,
        };
        let mut at = 0;
        while at < clusters {
            let start = words::next_clear(&buddy.bits, at, clusters);
            at = words::next_set(&buddy.bits, start, clusters);
            if start < at {
                buddy.fragments += 1;
                buddy.free += at - start;
                buddy.put_chunks(start, at);
            }
        }
        buddy
    }

    /// Free clusters.
    #[must_use]
    pub fn free_clusters(&self) -> u32 {
        self.free
    }

    /// The order of the largest free chunk; `None` if nothing is free.
    #[must_use]
    pub fn largest_order(&self) -> Option<u32> {
        (0..self.orders)
            .rev()
            .find(|&order| self.counters[order as usize] > 0)
    }

    /// Free chunks of each order.
    #[must_use]
    pub fn counters(&self) -> &[u32] {
        &self.counters[..self.orders as usize]
    }

    /// The first free cluster; `None` if nothing is free.
    #[must_use]
    pub fn first_free(&self) -> Option<u32> {
        let first = words::next_clear(&self.bits, 0, self.clusters);
        (first < self.clusters).then_some(first)
    }

    /// What the index wants to know.
    #[must_use]
    pub fn fitness(&self) -> Fitness {
        Fitness {
            free: self.free,
            fragments: self.fragments,
            largest: self.runs.largest(),
            order: self.largest_order().unwrap_or(0),
        }
    }

    /// The bitmap (1 = not allocatable), in words of 64 clusters.
    #[must_use]
    pub fn bits(&self) -> &[u64] {
        &self.bits
    }

    /// Whether the clusters `start` to `start + len - 1` are all free; `false` past the end.
    #[must_use]
    pub fn is_free(&self, start: u32, len: u32) -> bool {
        start
            .checked_add(len)
            .is_some_and(|end| end <= self.clusters && words::all_clear(&self.bits, start, end))
    }

    /// Whether the clusters `start` to `start + len - 1` are all used; `false` past the end.
    #[must_use]
    pub fn is_used(&self, start: u32, len: u32) -> bool {
        start
            .checked_add(len)
            .is_some_and(|end| end <= self.clusters && words::all_set(&self.bits, start, end))
    }

    /// How many clusters are free from `start` on in one run, at most `most`.
    #[must_use]
    pub fn free_run_at(&self, start: u32, most: u32) -> u32 {
        let end = start.saturating_add(most).min(self.clusters);
        words::next_set(&self.bits, start, end).saturating_sub(start)
    }

    /// The first offset from `from` on with `len` free clusters.
    #[must_use]
    pub fn first_fit(&self, from: u32, len: u32) -> Option<u32> {
        self.runs.first_fit(&self.bits, from, len)
    }

    /// An aligned run of `2^order` free clusters, cut from the smallest chunk that has one: from
    /// the first chunk of the first order at or above `order` that has any. Its start.
    #[must_use]
    pub fn first_chunk(&self, order: u32) -> Option<u32> {
        let order = (order..self.orders).find(|&order| self.counters[order as usize] > 0)?;
        if order == 0 {
            return self.first_free();
        }
        let chunks = self.clusters >> order;
        let chunk = words::next_clear(self.map(order), 0, chunks);
        (chunk < chunks).then_some(chunk << order)
    }

    fn map(&self, order: u32) -> &[u64] {
        &self.maps[order as usize - 1]
    }

    /// The order of the chunk that holds cluster `at`; `None` if it is used.
    fn order_at(&self, at: u32) -> Option<u32> {
        if words::get(&self.bits, at) {
            return None;
        }
        (1..self.orders)
            .find(|&order| !words::get(self.map(order), at >> order))
            .or(Some(0))
    }

    /// Notes that the chunk of `order` at `start` is a free chunk.
    fn put(&mut self, order: u32, start: u32) {
        if order > 0 {
            words::clear_bit(&mut self.maps[order as usize - 1], start >> order);
        }
        self.counters[order as usize] += 1;
    }

    /// Notes that the chunk of `order` at `start` is no free chunk any more.
    fn take(&mut self, order: u32, start: u32) {
        if order > 0 {
            words::set_bit(&mut self.maps[order as usize - 1], start >> order);
        }
        self.counters[order as usize] -= 1;
    }

    /// The order of the largest aligned chunk that starts at `start` and ends at or before `end`.
    fn chunk_order(&self, start: u32, end: u32) -> u32 {
        let fits = (end - start).ilog2();
        start.trailing_zeros().min(fits).min(self.orders - 1)
    }

    /// Puts the chunks of a run that has used or foreign clusters on both sides.
    fn put_chunks(&mut self, mut start: u32, end: u32) {
        while start < end {
            let order = self.chunk_order(start, end);
            self.put(order, start);
            start += 1 << order;
        }
    }

    /// Counts what a change of `start` to `end - 1` does to the number of extents: whether the
    /// clusters on both sides are free.
    fn free_sides(&self, start: u32, end: u32) -> u32 {
        let left = start > 0 && !words::get(&self.bits, start - 1);
        let right = end < self.clusters && !words::get(&self.bits, end);
        u32::from(left) + u32::from(right)
    }

    /// Takes `len` free clusters from `start` on out of the free ones.
    ///
    /// # Panics
    /// If some of them are not free, or `len` is 0: the caller has looked under the same lock.
    pub fn mark_used(&mut self, start: u32, len: u32) {
        assert!(
            len > 0 && self.is_free(start, len),
            "{len} clusters at {start} are not all free"
        );
        let end = start + len;
        // Both sides free: one extent becomes two; both used: it vanishes.
        self.fragments = self.fragments + self.free_sides(start, end) - 1;
        let mut at = start;
        while at < end {
            let order = self.order_at(at).unwrap_or(0);
            let chunk = at >> order << order;
            let chunk_end = chunk + (1 << order);
            self.take(order, chunk);
            if chunk < at {
                self.put_chunks(chunk, at);
            }
            if end < chunk_end {
                self.put_chunks(end, chunk_end);
            }
            at = chunk_end;
        }
        words::set(&mut self.bits, start, end);
        self.free -= len;
        self.runs.changed(&self.bits, start, end);
    }

    /// Puts `len` used clusters from `start` on back.
    ///
    /// # Panics
    /// If some of them are free already, or `len` is 0: the caller has looked under the same
    /// lock.
    pub fn mark_free(&mut self, start: u32, len: u32) {
        assert!(
            len > 0 && self.is_used(start, len),
            "{len} clusters at {start} are not all used"
        );
        let end = start + len;
        self.fragments = self.fragments + 1 - self.free_sides(start, end);
        let mut at = start;
        while at < end {
            let order = self.chunk_order(at, end);
            self.put_merged(order, at);
            at += 1 << order;
        }
        words::clear(&mut self.bits, start, end);
        self.free += len;
        self.runs.changed(&self.bits, start, end);
    }

    /// Puts a chunk, joined with its free buddies as far up as it goes.
    fn put_merged(&mut self, mut order: u32, mut start: u32) {
        while order + 1 < self.orders {
            let buddy = start ^ (1 << order);
            if !self.is_chunk(order, buddy) {
                break;
            }
            self.take(order, buddy);
            start = start.min(buddy);
            order += 1;
        }
        self.put(order, start);
    }

    /// Whether the clusters at `start` are a free chunk of exactly this order. During a change
    /// the bits still show the state before it, and chunks put meanwhile are seen in the maps.
    fn is_chunk(&self, order: u32, start: u32) -> bool {
        if start + (1 << order) > self.clusters {
            return false;
        }
        if order > 0 {
            return !words::get(self.map(order), start >> order);
        }
        self.order_at(start) == Some(0)
    }

    /// Recomputes everything from the bits.
    ///
    /// # Errors
    /// What does not agree.
    pub fn check(&self) -> Result<(), String> {
        let bytes: Vec<u8> = self
            .bits
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let fresh = Self::new(self.clusters, self.orders, &bytes);
        let pairs = [
            ("free", self.free, fresh.free),
            ("fragments", self.fragments, fresh.fragments),
            ("largest", self.runs.largest(), fresh.runs.largest()),
        ];
        for (what, found, expected) in pairs {
            if found != expected {
                return Err(format!("{what} is {found}, the bitmap says {expected}"));
            }
        }
        if self.counters != fresh.counters {
            return Err(format!(
                "counters {:?}, the bitmap says {:?}",
                self.counters, fresh.counters
            ));
        }
        if self.maps != fresh.maps {
            return Err("the order maps do not follow from the bitmap".to_owned());
        }
        let sum: u32 = self
            .counters
            .iter()
            .enumerate()
            .map(|(order, count)| count << order)
            .sum();
        if sum != self.free {
            return Err(format!(
                "the counters make {sum} free clusters, not {}",
                self.free
            ));
        }
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
