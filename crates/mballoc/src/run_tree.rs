//! **Purpose.** Finds the largest free extent of a group, and the first free extent of a given
//! length, both exactly and without walking over the extents.
//!
//! **Model.** A binary tree over the group's bitmap (1 = used) whose leaves cover 512 clusters
//! each, a cache line of the bitmap. A node holds three lengths for its span: the free clusters at
//! its front, those at its end, and its longest free run. The root's longest run is the largest
//! free extent of the group. A search for `len` enters only nodes in which the run can begin.
//!
//! The tree is brought up to date when it is queried: a run that is claimed and soon freed again,
//! or claimed piece by piece, costs one update or none.
//!
//! **Invariants.** Each node is computed from the bits below it, except those above the few leaves
//! in `stale`. Clusters past the end of the group count as used.
//!
//! **References.** Nothing in ext4 corresponds to it: ext4 knows the largest buddy, which may be a
//! quarter of the largest extent, and finds the rest by scanning. This tree costs 1.5 KiB a group
//! at 4 KiB blocks and a few dozen nanoseconds for each change.

use std::ops::Range;

use crate::num::len32;
use crate::words;

/// Clusters of a leaf.
const LEAF: u32 = 512;
const LEAF_WORDS: usize = (LEAF / 64) as usize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Node {
    prefix: u32,
    suffix: u32,
    longest: u32,
}

impl Node {
    /// The leaf of some bits.
    fn of_bits(bits: &[u64]) -> Self {
        // Most leaves of a large change are free or used as a whole.
        let (any, all) = bits
            .iter()
            .fold((0, u64::MAX), |(any, all), word| (any | word, all & word));
        if any == 0 {
            let len = len32(bits.len()) * 64;
            return Self {
                prefix: len,
                suffix: len,
                longest: len,
            };
        }
        if all == u64::MAX {
            return Self::default();
        }
        let mut node = Self::default();
        let mut only_free = true;
        // The free run that ends where the next word begins.
        let mut carry = 0;
        for &word in bits {
            if word == 0 {
                carry += 64;
                continue;
            }
            let run = carry + word.trailing_zeros();
            if only_free {
                node.prefix = run;
                only_free = false;
            }
            node.longest = node.longest.max(run);
            carry = word.leading_zeros();
            // A run inside the word is seldom the longest; compute it only if it can be.
            if word != u64::MAX && word.count_zeros() > node.longest.max(carry) {
                node.longest = node.longest.max(longest_ones(!word));
            }
        }
        if only_free {
            node.prefix = carry;
        }
        node.longest = node.longest.max(carry);
        node.suffix = carry;
        node
    }

    /// The node above two nodes of `width` clusters each.
    fn join(left: &Self, right: &Self, width: u32) -> Self {
        let past = |own: u32, beyond: u32| if own == width { width + beyond } else { own };
        Self {
            prefix: past(left.prefix, right.prefix),
            suffix: past(right.suffix, left.suffix),
            longest: (left.suffix + right.prefix)
                .max(left.longest)
                .max(right.longest),
        }
    }
}

/// The length of the longest run of ones in a word, at most 63, by doubling and bisecting.
fn longest_ones(word: u64) -> u32 {
    // `starts[k]` has the bits at which a run of 2^k ones begins.
    let mut starts = [word; 6];
    for k in 1..6 {
        starts[k] = starts[k - 1] & (starts[k - 1] >> (1 << (k - 1)));
    }
    let (mut len, mut at) = (0, u64::MAX);
    for (k, start) in starts.into_iter().enumerate().rev() {
        let longer = at & (start >> len);
        if longer != 0 {
            at = longer;
            len += 1 << k;
        }
    }
    len
}

/// The tree of one group.
#[derive(Debug, PartialEq, Eq)]
pub struct RunTree {
    /// Node 1 is the root, and below node `i` are nodes `2i` and `2i + 1`. The second half are the
    /// leaves.
    nodes: Box<[Node]>,
    /// Leaves whose bits have changed since the tree was brought up to date.
    stale: Range<u32>,
}

const ROOT: u32 = 1;
/// The most stale leaves: a change that would make more brings the tree up to date first, so that
/// no query pays for many.
const MAX_STALE: u32 = 4;

impl RunTree {
    /// The number of bits that a bitmap of `clusters` clusters must have for a complete tree: a
    /// power of two.
    #[must_use]
    pub fn leaf_clusters(clusters: u32) -> u32 {
        clusters.next_power_of_two().max(LEAF)
    }

    /// The tree of a bitmap of [`RunTree::leaf_clusters`] bits; those past the group's end are set.
    #[must_use]
    pub fn new(bits: &[u64]) -> Self {
        let mut tree = Self {
            nodes: vec![Node::default(); 2 * bits.len() / LEAF_WORDS].into(),
            stale: 0..len32(bits.len() / LEAF_WORDS),
        };
        tree.refresh(bits);
        tree
    }

    fn leaves(&self) -> u32 {
        len32(self.nodes.len()) / 2
    }

    /// Notes a change of bits `start` to `end - 1`, which has been made in `bits` already.
    pub fn changed(&mut self, bits: &[u64], start: u32, end: u32) {
        let leaves = start / LEAF..(end - 1) / LEAF + 1;
        if self.stale.is_empty() {
            self.stale = leaves;
            return;
        }
        let both = self.stale.start.min(leaves.start)..self.stale.end.max(leaves.end);
        if both.end - both.start <= MAX_STALE {
            self.stale = both;
        } else {
            self.refresh(bits);
            self.stale = leaves;
        }
    }

    /// Brings the tree up to date with `bits`, its bitmap.
    pub fn refresh(&mut self, bits: &[u64]) {
        let stale = std::mem::take(&mut self.stale);
        if stale.is_empty() {
            return;
        }
        let leaves = self.leaves();
        let (mut first, mut last) = (leaves + stale.start, leaves + stale.end - 1);
        let mut differs = false;
        for leaf in stale {
            let at = leaf as usize * LEAF_WORDS;
            let node = Node::of_bits(&bits[at..at + LEAF_WORDS]);
            differs |= self.replace(leaves + leaf, node);
        }
        let mut width = LEAF;
        while first > ROOT && differs {
            first /= 2;
            last /= 2;
            differs = false;
            for i in first..=last {
                let (left, right) = (2 * i as usize, 2 * i as usize + 1);
                let node = Node::join(&self.nodes[left], &self.nodes[right], width);
                differs |= self.replace(i, node);
            }
            width *= 2;
        }
    }

    /// Replaces a node; returns whether it has changed.
    fn replace(&mut self, i: u32, node: Node) -> bool {
        std::mem::replace(&mut self.nodes[i as usize], node) != node
    }

    /// Clusters of the largest free extent, if the tree is up to date.
    #[must_use]
    pub fn largest(&self) -> u32 {
        debug_assert!(self.stale.is_empty());
        self.nodes[ROOT as usize].longest
    }

    /// The first offset from `from` on at which `len` clusters are free. The tree must be up to
    /// date with `bits`, its bitmap, and `len` must not be 0.
    #[must_use]
    pub fn first_fit(&self, bits: &[u64], from: u32, len: u32) -> Option<u32> {
        debug_assert!(self.stale.is_empty());
        let mut search = Search {
            tree: self,
            bits,
            from,
            len,
            carry: 0,
        };
        search.enter(ROOT, 0, self.leaves() * LEAF)
    }
}

/// A search from left to right; `carry` is the length of the free run that ends at its position.
struct Search<'a> {
    tree: &'a RunTree,
    bits: &'a [u64],
    from: u32,
    len: u32,
    carry: u32,
}

impl Search<'_> {
    /// Searches node `i`, which covers `width` clusters from `start` on.
    fn enter(&mut self, i: u32, start: u32, width: u32) -> Option<u32> {
        if start + width <= self.from {
            return None;
        }
        let node = self.tree.nodes[i as usize];
        if start >= self.from {
            if self.carry + node.prefix >= self.len {
                return Some(start - self.carry);
            }
            if node.longest < self.len {
                self.carry = if node.prefix == width {
                    self.carry + width
                } else {
                    node.suffix
                };
                return None;
            }
        } else if node.longest < self.len.min(width) && node.suffix == 0 {
            // Begins before `from`, holds no fit, and carries nothing over its end.
            return None;
        }
        if width == LEAF {
            return self.enter_leaf(start);
        }
        let half = width / 2;
        self.enter(2 * i, start, half)
            .or_else(|| self.enter(2 * i + 1, start + half, half))
    }

    fn enter_leaf(&mut self, start: u32) -> Option<u32> {
        let end = start + LEAF;
        let mut at = start.max(self.from);
        loop {
            let stop = words::next_set(self.bits, at, end);
            if self.carry + (stop - at) >= self.len {
                return Some(at - self.carry);
            }
            if stop == end {
                self.carry += stop - at;
                return None;
            }
            self.carry = 0;
            at = words::next_clear(self.bits, stop, end);
            if at == end {
                return None;
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive_first_fit(bits: &[u64], from: u32, len: u32) -> Option<u32> {
        let end = len32(bits.len()) * 64;
        (from..end).find(|&at| at + len <= end && words::all_clear(bits, at, at + len))
    }

    fn naive_largest(bits: &[u64]) -> u32 {
        let (mut best, mut at, end) = (0, 0, len32(bits.len()) * 64);
        while at < end {
            let start = words::next_clear(bits, at, end);
            at = words::next_set(bits, start, end);
            best = best.max(at - start);
        }
        best
    }

    proptest! {
        #[test]
        fn the_tree_agrees_with_the_bits(
            clusters in prop::sample::select(vec![1_u32, 200, 256, 257, 2048, 5000, 20_000]),
            steps in prop::collection::vec(
                (any::<u32>(), 1..3000_u32, any::<bool>(), any::<bool>()),
                1..60,
            ),
            asks in prop::collection::vec((any::<u32>(), 1..4000_u32), 10),
        ) {
            let mut bits = vec![0_u64; RunTree::leaf_clusters(clusters) as usize / 64];
            let all = len32(bits.len()) * 64;
            words::set(&mut bits, clusters, all);
            let mut tree = RunTree::new(&bits);
            for (start, len, used, ask) in steps {
                let start = start % clusters;
                let end = (start + len).min(clusters);
                let change = if used { words::set } else { words::clear };
                change(&mut bits, start, end);
                tree.changed(&bits, start, end);
                if ask {
                    tree.refresh(&bits);
                    prop_assert_eq!(tree.largest(), naive_largest(&bits));
                }
            }
            tree.refresh(&bits);
            prop_assert_eq!(&tree, &RunTree::new(&bits));
            for (from, len) in asks {
                let from = from % clusters;
                let expected = naive_first_fit(&bits, from, len);
                prop_assert_eq!(tree.first_fit(&bits, from, len), expected);
            }
        }
    }
}
