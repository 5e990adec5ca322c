//! **Purpose.** The buddy system of one group: which clusters are free for allocation, in which
//! aligned power-of-two chunks, and in how many extents.
//!
//! **Not here.** The reason why a cluster is not free (used on disk, claimed, pending), which
//! `group` knows; locks.
//!
//! **Model.** A binary tree of bits, in heap order: below node `n` are nodes `2n` and `2n + 1`, and
//! the nodes of the last level are the clusters, so `node >> 1` is the block around a block and
//! `node ^ 1` its other half. A node of order `k` is an aligned block of `2^k` clusters; its bit is
//! 0 if the block is free as a whole, which it is if both its halves are. The last level is thus
//! the bitmap (1 = not allocatable). `whole[k]` counts the free blocks of order `k`.
//!
//! A *chunk* is a free block that is not half of a larger free one; ext4's maps and counters hold
//! the chunks. The other half of a chunk is not free, so the chunks of a level can be seen in the
//! level alone, and there are `whole[k] - 2 * whole[k + 1]` of order `k`.
//!
//! The levels above the last, and the tree of runs, are brought up to date when they are queried.
//! Until then the last level differs from them in one run, the deferred change. It grows with
//! claims next to it, and vanishes when the same clusters are freed again. So a claim that is soon
//! given back, and a file that is written and truncated, change the bitmap and a few counts only.
//!
//! **Invariants.** All levels and counts follow from the bitmap, except that the levels above it
//! lack the `deferred` change. `fragments` is the number of maximal runs of free clusters. A change
//! that cannot be merged with the deferred one first brings the trees up to date. [`Buddy::check`]
//! recomputes all of it.
//!
//! **References.** `Documentation/filesystems/ext4/blockgroup.rst`, and the head of
//! `fs/ext4/mballoc.c` for the meaning of the counters.

use crate::order_index::{Drift, Fitness};
use crate::run_tree::RunTree;
use crate::words;

/// The most orders a group can have: 0 to 17, at 64 KiB blocks.
pub const MAX_ORDERS: usize = 18;

/// The buddy of one group.
#[derive(Debug)]
pub struct Buddy {
    clusters: u32,
    orders: u32,
    fragments: u32,
    /// Free blocks of each order: exact for order 0, for the others without the deferred change.
    whole: [u32; MAX_ORDERS],
    deferred: Deferred,
    /// The change of the trees since [`Buddy::set_listed`].
    drift: Drift,
    /// The leaves of a full tree, in clusters: a power of two.
    leaves: u32,
    /// One bit for each node, and a spare one in front.
    nodes: Box<[u64]>,
    runs: RunTree,
}

/// The state to which clusters change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    Free,
    Used,
}

impl Becomes {
    /// A count of free blocks after `change` of them have changed to this state.
    fn count(self, free: u32, change: u32) -> u32 {
        match self {
            Self::Free => free + change,
            Self::Used => free - change,
        }
    }

    fn drift(self) -> Drift {
        match self {
            Self::Free => Drift::Gained,
            Self::Used => Drift::Claimed,
        }
    }
}

/// A change of clusters `start` to `end - 1` that the bitmap has and the trees do not have yet;
/// empty if they agree.
#[derive(Clone, Copy, Debug)]
struct Deferred {
    start: u32,
    end: u32,
    /// The state of the clusters in the bitmap.
    becomes: Becomes,
}

/// The most clusters of a deferred change, so that no query pays for many.
const MAX_DEFERRED: u32 = 2048;

impl Deferred {
    const NONE: Self = Self {
        start: 0,
        end: 0,
        becomes: Becomes::Used,
    };

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Merges two changes, if the result is one run: `next` alone, both side by side, or the rest
    /// when one undoes a part of the other.
    fn merge(self, next: Self) -> Option<Self> {
        if self.is_empty() {
            return Some(next);
        }
        if self.becomes == next.becomes {
            let (start, end) = (self.start.min(next.start), self.end.max(next.end));
            let touch = self.end == next.start || next.end == self.start;
            let both = Self { start, end, ..next };
            return (touch && end - start <= MAX_DEFERRED).then_some(both);
        }
        // The shared clusters are unchanged; the rest belongs to the longer change.
        let (start, end) = if self.start == next.start {
            (self.end.min(next.end), self.end.max(next.end))
        } else if self.end == next.end {
            (self.start.min(next.start), self.start.max(next.start))
        } else {
            return None;
        };
        let longer = if next.end - next.start > self.end - self.start {
            next
        } else {
            self
        };
        Some(Self {
            start,
            end,
            ..longer
        })
    }
}

impl Buddy {
    /// The buddy of a group of `clusters` clusters with `orders` orders, whose bitmap block starts
    /// with `bitmap`. Bits past the group's end count as used, whatever they are; missing bytes as
    /// well.
    #[must_use]
    pub fn new(clusters: u32, orders: u32, bitmap: &[u8]) -> Self {
        let leaves = RunTree::leaf_clusters(clusters);
        let mut bits = vec![u64::MAX; leaves as usize / 64];
        for (word, bytes) in bits.iter_mut().zip(bitmap.chunks(8)) {
            let mut whole = [0xff; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        words::set(&mut bits, clusters, leaves);
        let mut buddy = Self {
            clusters,
            orders,
            fragments: 0,
            whole: [0; MAX_ORDERS],
            deferred: Deferred::NONE,
            drift: Drift::Nothing,
            leaves,
            nodes: vec![u64::MAX; 2 * bits.len()].into(),
            runs: RunTree::new(&bits),
        };
        let mut at = 0;
        while at < clusters {
            let start = words::next_clear(&bits, at, clusters);
            at = words::next_set(&bits, start, clusters);
            if start < at {
                buddy.fragments += 1;
                buddy.whole[0] += at - start;
                words::flip(&mut buddy.nodes, leaves + start, leaves + at);
                buddy.change_above(start, at, Becomes::Free);
            }
        }
        buddy
    }

    /// The same buddy for a group of `clusters` clusters, of which those behind the old end are
    /// used.
    #[must_use]
    pub fn lengthened(&self, clusters: u32) -> Self {
        let words = self.bits().iter();
        let bitmap: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        Self::new(clusters, self.orders, &bitmap)
    }

    /// Clusters of the group.
    #[must_use]
    pub fn clusters(&self) -> u32 {
        self.clusters
    }

    /// Free clusters.
    #[must_use]
    pub fn free_clusters(&self) -> u32 {
        self.whole[0]
    }

    /// The order of the largest free chunk; `None` if nothing is free.
    #[must_use]
    pub fn largest_order(&mut self) -> Option<u32> {
        self.catch_up();
        (0..self.orders)
            .rev()
            .find(|&order| self.whole[order as usize] > 0)
    }

    /// The number of free chunks of an order, if the levels are up to date.
    fn chunks(&self, order: u32) -> u32 {
        let order = order as usize;
        let above = self.whole.get(order + 1).copied().unwrap_or(0);
        self.whole[order] - 2 * above
    }

    /// The number of free chunks of each order.
    pub fn counters(&mut self) -> impl Iterator<Item = u32> {
        self.catch_up();
        (0..self.orders).map(|order| self.chunks(order))
    }

    /// The first free cluster; `None` if nothing is free.
    #[must_use]
    pub fn first_free(&self) -> Option<u32> {
        let first = words::next_clear(self.bits(), 0, self.clusters);
        (first < self.clusters).then_some(first)
    }

    /// The number of maximal runs of free clusters.
    #[must_use]
    pub fn fragments(&self) -> u32 {
        self.fragments
    }

    /// The free space, for the index.
    pub fn fitness(&mut self) -> Fitness {
        Fitness {
            free: self.free_clusters(),
            fragments: self.fragments,
            largest: self.runs().largest(),
            order: self.largest_order().unwrap_or(0),
        }
    }

    /// Notes that the group has been listed by its free space now.
    pub fn set_listed(&mut self) {
        self.catch_up();
        self.drift = Drift::Nothing;
    }

    /// How the free space has changed since [`Buddy::set_listed`]. Brings nothing up to date.
    #[must_use]
    #[inline]
    pub fn drift(&self) -> Drift {
        if self.deferred.is_empty() {
            return self.drift;
        }
        self.drift.max(self.deferred.becomes.drift())
    }

    /// The tree of the free runs, up to date.
    fn runs(&mut self) -> &RunTree {
        self.catch_up();
        self.runs.refresh(&self.nodes[self.leaves as usize / 64..]);
        &self.runs
    }

    /// The bitmap (1 = not allocatable), in words of 64 clusters.
    #[must_use]
    pub fn bits(&self) -> &[u64] {
        &self.nodes[self.leaves as usize / 64..]
    }

    /// Whether the clusters `start` to `start + len - 1` are all free; `false` past the end.
    #[must_use]
    #[inline]
    pub fn is_free(&self, start: u32, len: u32) -> bool {
        start
            .checked_add(len)
            .is_some_and(|end| end <= self.clusters && words::all_clear(self.bits(), start, end))
    }

    /// Whether the clusters `start` to `start + len - 1` are all used; `false` past the end.
    #[must_use]
    #[inline]
    pub fn is_used(&self, start: u32, len: u32) -> bool {
        start
            .checked_add(len)
            .is_some_and(|end| end <= self.clusters && words::all_set(self.bits(), start, end))
    }

    /// The length of the free run at `start`, at most `most`.
    #[must_use]
    pub fn free_run_at(&self, start: u32, most: u32) -> u32 {
        let end = start.saturating_add(most).min(self.clusters);
        words::next_set(self.bits(), start, end).saturating_sub(start)
    }

    /// The first offset from `from` on with `len` free clusters.
    pub fn first_fit(&mut self, from: u32, len: u32) -> Option<u32> {
        self.runs();
        self.runs.first_fit(self.bits(), from, len)
    }

    /// The start of an aligned run of `2^order` free clusters, in the smallest chunk that has one:
    /// the first chunk of the lowest order from `order` up that has any.
    #[must_use]
    pub fn first_chunk(&mut self, order: u32) -> Option<u32> {
        self.catch_up();
        let order = (order..self.orders).find(|&order| self.chunks(order) > 0)?;
        let first = self.leaves >> order;
        let node = if order + 1 == self.orders {
            words::next_clear(&self.nodes, first, 2 * first)
        } else {
            words::next_lone_clear(&self.nodes, first, 2 * first)
        };
        (node < 2 * first).then(|| (node - first) << order)
    }

    /// Whether the block of a node is free as a whole.
    fn is_whole(&self, node: u32) -> bool {
        !words::get(&self.nodes, node)
    }

    /// The number of free neighbours of the clusters `start` to `end - 1`: 0, 1 or 2.
    fn free_sides(&self, start: u32, end: u32) -> u32 {
        let left = start > 0 && self.is_whole(self.leaves + start - 1);
        let right = end < self.clusters && self.is_whole(self.leaves + end);
        u32::from(left) + u32::from(right)
    }

    /// Marks the `len` free clusters from `start` on as used.
    ///
    /// # Panics
    /// If some of them are not free, or `len` is 0: the caller must have checked that under the
    /// same lock.
    pub fn mark_used(&mut self, start: u32, len: u32) {
        assert!(
            len > 0 && self.is_free(start, len),
            "{len} clusters at {start} are not all free"
        );
        // Both neighbours free: one extent becomes two; both used: it vanishes.
        self.fragments = self.fragments + self.free_sides(start, start + len) - 1;
        self.change(start, start + len, Becomes::Used);
    }

    /// Marks the `len` used clusters from `start` on as free.
    ///
    /// # Panics
    /// If some of them are free already, or `len` is 0: the caller must have checked that under the
    /// same lock.
    pub fn mark_free(&mut self, start: u32, len: u32) {
        assert!(
            len > 0 && self.is_used(start, len),
            "{len} clusters at {start} are not all used"
        );
        self.fragments = self.fragments + 1 - self.free_sides(start, start + len);
        self.change(start, start + len, Becomes::Free);
    }

    /// Changes the clusters `start` to `end - 1` in the bitmap, and defers the change of the trees.
    fn change(&mut self, start: u32, end: u32, becomes: Becomes) {
        let next = Deferred {
            start,
            end,
            becomes,
        };
        self.deferred = self.deferred.merge(next).unwrap_or_else(|| {
            // Before the bits next to the deferred change change.
            self.catch_up();
            next
        });
        words::flip(&mut self.nodes, self.leaves + start, self.leaves + end);
        self.whole[0] = becomes.count(self.whole[0], end - start);
    }

    /// Brings the levels up to date, and notes the stale leaves of the tree of runs.
    #[inline]
    fn catch_up(&mut self) {
        if !self.deferred.is_empty() {
            self.apply_deferred();
        }
    }

    fn apply_deferred(&mut self) {
        let Deferred {
            start,
            end,
            becomes,
        } = std::mem::replace(&mut self.deferred, Deferred::NONE);
        self.drift = self.drift.max(becomes.drift());
        self.change_above(start, end, becomes);
        self.runs
            .changed(&self.nodes[self.leaves as usize / 64..], start, end);
    }

    /// Applies a change of the clusters `start` to `end - 1` to the levels above the bitmap and
    /// their counts. On each level those blocks change that the run covers, and at each end one
    /// more if its other half is free.
    fn change_above(&mut self, start: u32, end: u32, becomes: Becomes) {
        let (mut first, mut end) = (self.leaves + start, self.leaves + end);
        for order in 1..self.orders as usize {
            let is_left_free = first % 2 == 1 && self.is_whole(first - 1);
            let is_right_free = end % 2 == 1 && self.is_whole(end);
            first = (first + u32::from(!is_left_free)) / 2;
            end = (end + u32::from(is_right_free)) / 2;
            if first >= end {
                return;
            }
            if end - first == 1 {
                return self.change_block(order, first, becomes);
            }
            words::flip(&mut self.nodes, first, end);
            self.whole[order] = becomes.count(self.whole[order], end - first);
        }
    }

    /// Changes one block, and the blocks above it as long as the other half is free. Most runs are
    /// down to one block after an order or two.
    fn change_block(&mut self, order: usize, mut node: u32, becomes: Becomes) {
        for whole in &mut self.whole[order..self.orders as usize] {
            *whole = becomes.count(*whole, 1);
            // The root's other half is the spare bit, which is set.
            if words::flip_one_of_pair(&mut self.nodes, node) {
                return;
            }
            node /= 2;
        }
    }

    /// Recomputes everything from the bits.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&mut self) -> Result<(), String> {
        let bytes: Vec<u8> = self
            .bits()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        self.catch_up();
        let fresh = Self::new(self.clusters, self.orders, &bytes);
        if self.fragments != fresh.fragments {
            return Err(format!(
                "{} fragments, the bitmap says {}",
                self.fragments, fresh.fragments
            ));
        }
        if *self.runs() != fresh.runs {
            return Err("the tree of runs does not follow from the bitmap".to_owned());
        }
        if self.whole != fresh.whole {
            return Err(format!(
                "free blocks of each order are {:?}, the bitmap says {:?}",
                self.whole, fresh.whole
            ));
        }
        if self.nodes != fresh.nodes {
            return Err("the tree does not follow from the bitmap".to_owned());
        }
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
