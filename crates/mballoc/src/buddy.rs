//! **Purpose.** The buddy system of one group: which clusters are free for allocation, in which
//! aligned power-of-two chunks, and in how many extents.
//!
//! **Not here.** Why a cluster is not free (used on disk, claimed, freed and waiting): that is
//! [`crate::group`]'s; locks.
//!
//! **Model.** A binary tree of bits, in heap order: below node `n` are nodes `2n` and `2n + 1`, and
//! the nodes of the last level are the clusters, so `node >> 1` is the block around a block and
//! `node ^ 1` its other half. A node of order `k` is an aligned block of `2^k` clusters; its bit is
//! 0 if the block is free as a whole, which it is if both its halves are. The last level is thus
//! the bitmap (1 = not allocatable). `whole[k]` counts the free blocks of order `k`.
//!
//! A *chunk* is a free block that is no half of a larger free one, which is what ext4's maps and
//! counters show. Its other half is not free, so a level tells its chunks by itself, and there are
//! `whole[k] - 2 * whole[k + 1]` of order `k`.
//!
//! **Invariants.** All levels and counts follow from the bitmap; `fragments` is the number of
//! maximal runs of free clusters. [`Buddy::check`] recomputes all of it.
//!
//! **References.** `Documentation/filesystems/ext4/blockgroup.rst`, and the head of
//! `fs/ext4/mballoc.c` for the sense of the counters.

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
    fragments: u32,
    whole: [u32; MAX_ORDERS],
    /// Clusters of a full tree: a power of two.
    leaves: u32,
    /// One bit for each node, and a spare one in front.
    nodes: Box<[u64]>,
    runs: RunTree,
}

/// What becomes of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    Free,
    Used,
}

impl Becomes {
    /// A count of free ones after `change` of them have become so.
    fn count(self, free: u32, change: u32) -> u32 {
        match self {
            Self::Free => free + change,
            Self::Used => free - change,
        }
    }
}

impl Buddy {
    /// The buddy of a group of `clusters` clusters with `orders` orders, whose bitmap block
    /// starts with `bitmap`. Bits past the group's end count as used, whatever they are; missing
    /// bytes as well.
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
                buddy.change(start, at, Becomes::Free);
            }
        }
        buddy
    }

    /// Free clusters.
    #[must_use]
    pub fn free_clusters(&self) -> u32 {
        self.whole[0]
    }

    /// The order of the largest free chunk; `None` if nothing is free.
    #[must_use]
    pub fn largest_order(&self) -> Option<u32> {
        (0..self.orders)
            .rev()
            .find(|&order| self.whole[order as usize] > 0)
    }

    /// Free chunks of an order.
    fn chunks(&self, order: u32) -> u32 {
        let order = order as usize;
        let above = self.whole.get(order + 1).copied().unwrap_or(0);
        self.whole[order] - 2 * above
    }

    /// Free chunks of each order.
    pub fn counters(&self) -> impl Iterator<Item = u32> {
        (0..self.orders).map(|order| self.chunks(order))
    }

    /// The first free cluster; `None` if nothing is free.
    #[must_use]
    pub fn first_free(&self) -> Option<u32> {
        let first = words::next_clear(self.bits(), 0, self.clusters);
        (first < self.clusters).then_some(first)
    }

    /// Maximal runs of free clusters.
    #[must_use]
    pub fn fragments(&self) -> u32 {
        self.fragments
    }

    /// What the index wants to know.
    pub fn fitness(&mut self) -> Fitness {
        Fitness {
            free: self.free_clusters(),
            fragments: self.fragments,
            largest: self.runs().largest(),
            order: self.largest_order().unwrap_or(0),
        }
    }

    /// The tree of the free runs, up to date.
    fn runs(&mut self) -> &RunTree {
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
    pub fn is_free(&self, start: u32, len: u32) -> bool {
        start
            .checked_add(len)
            .is_some_and(|end| end <= self.clusters && words::all_clear(self.bits(), start, end))
    }

    /// Whether the clusters `start` to `start + len - 1` are all used; `false` past the end.
    #[must_use]
    pub fn is_used(&self, start: u32, len: u32) -> bool {
        start
            .checked_add(len)
            .is_some_and(|end| end <= self.clusters && words::all_set(self.bits(), start, end))
    }

    /// How many clusters are free from `start` on in one run, at most `most`.
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

    /// An aligned run of `2^order` free clusters, cut from the smallest chunk that has one: from
    /// the first chunk of the first order at or above `order` that has any. Its start.
    #[must_use]
    pub fn first_chunk(&self, order: u32) -> Option<u32> {
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

    /// Counts what a change of `start` to `end - 1` does to the number of extents: whether the
    /// clusters on both sides are free.
    fn free_sides(&self, start: u32, end: u32) -> u32 {
        let left = start > 0 && !words::get(self.bits(), start - 1);
        let right = end < self.clusters && !words::get(self.bits(), end);
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
        self.change(start, end, Becomes::Used);
        self.runs
            .changed(&self.nodes[self.leaves as usize / 64..], start, end);
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
        self.change(start, end, Becomes::Free);
        self.runs
            .changed(&self.nodes[self.leaves as usize / 64..], start, end);
    }

    /// Changes the clusters `start` to `end - 1` in the tree and the counts. Of the next order
    /// those blocks change that the run covers, and at each of its ends one more if the other half
    /// of that is free.
    fn change(&mut self, start: u32, end: u32, becomes: Becomes) {
        let (mut first, mut end) = (self.leaves + start, self.leaves + end);
        let mut order = 0;
        while end - first > 1 {
            match becomes {
                Becomes::Free => words::clear(&mut self.nodes, first, end),
                Becomes::Used => words::set(&mut self.nodes, first, end),
            }
            self.whole[order] = becomes.count(self.whole[order], end - first);
            let is_left_free = first % 2 == 1 && self.is_whole(first - 1);
            let is_right_free = end % 2 == 1 && self.is_whole(end);
            first = (first + u32::from(!is_left_free)) / 2;
            end = (end + u32::from(is_right_free)) / 2;
            order += 1;
            if first >= end || order == self.orders as usize {
                return;
            }
        }
        self.change_block(order, first, becomes);
    }

    /// Changes one block, and those above it that it is half of, as long as the other half is
    /// free: what is left of most runs after an order or two.
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
    /// What does not agree.
    pub fn check(&mut self) -> Result<(), String> {
        let bytes: Vec<u8> = self
            .bits()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
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
