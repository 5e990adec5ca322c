//! **Purpose.** Which blocks of the file system to be are taken, and where the next free ones
//! are.
//!
//! **Model.** Sorted runs of taken blocks that never touch each other. A new file system has few:
//! some for each flex group, one for each backup superblock, whatever its size. Tables are placed
//! block by block; from [`Space::use_clusters`] on everything counts in clusters, as in ext4: a
//! cluster is taken if one of its blocks is.
//!
//! **Invariants.** Runs lie between `first` and `end`, do not overlap and have free blocks
//! between them.
//!
//! **References.** The order in which blocks are tried is that of libext2fs, so that file systems
//! come out as mke2fs makes them.

use std::collections::BTreeMap;
use std::ops::Range;

/// The taken blocks.
#[derive(Clone, Debug)]
pub(super) struct Space {
    first: u64,
    end: u64,
    cluster_log: u32,
    /// First block to one past the last.
    taken: BTreeMap<u64, u64>,
}

impl Space {
    /// All of `blocks` free.
    pub(super) fn new(blocks: Range<u64>) -> Self {
        Self {
            first: blocks.start,
            end: blocks.end,
            cluster_log: 0,
            taken: BTreeMap::new(),
        }
    }

    /// Counts in clusters of `2^cluster_log` blocks from now on.
    pub(super) fn use_clusters(&mut self, cluster_log: u32) {
        self.cluster_log = cluster_log;
        let runs = std::mem::take(&mut self.taken);
        for (start, end) in runs {
            self.take(start..end);
        }
    }

    /// The taken runs, in order.
    #[cfg(test)]
    fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        self.taken.iter().map(|(&start, &end)| start..end)
    }

    /// The taken blocks of `range`, as runs cut at its ends.
    pub(super) fn runs_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let from = self
            .run_around(range.start)
            .map_or(range.start, |r| r.start);
        self.taken
            .range(from..range.end)
            .map(move |(&start, &end)| start.max(range.start)..end.min(range.end))
    }

    /// How many blocks of `range` are free.
    pub(super) fn free_in(&self, range: Range<u64>) -> u64 {
        let taken: u64 = self.runs_in(range.clone()).map(|r| r.end - r.start).sum();
        range.end - range.start - taken
    }

    /// Takes these blocks, and the rest of their clusters. Taking twice is harmless.
    pub(super) fn take(&mut self, blocks: Range<u64>) {
        let mask = (1u64 << self.cluster_log) - 1;
        let mut start = blocks.start & !mask;
        let mut end = ((blocks.end + mask) & !mask).min(self.end);
        if let Some((&before, &stop)) = self.taken.range(..start).next_back()
            && stop >= start
        {
            (start, end) = (before, end.max(stop));
        }
        while let Some((&behind, &stop)) = self.taken.range(start..=end).next() {
            self.taken.remove(&behind);
            end = end.max(stop);
        }
        self.taken.insert(start, end);
    }

    /// The first free block from `goal` on, else from the start on.
    pub(super) fn first_free(&self, goal: u64) -> Option<u64> {
        let goal = self.clean_goal(goal);
        self.free_from(goal).or_else(|| self.free_from(self.first))
    }

    /// The first free run from `goal` on, else from the start on, cut at `most` blocks.
    pub(super) fn first_run(&self, goal: u64, most: u64) -> Option<Range<u64>> {
        let start = self.first_free(goal)?;
        let end = self.free_until(start).min(start.saturating_add(most));
        Some(start..end)
    }

    /// The first place for `count` free blocks that begins at `from` or later but before
    /// `before`. If `from` is not before `before`, the search goes on to the end and around.
    /// Block 0 stands for "where the file system begins".
    pub(super) fn place_for(&self, count: u64, from: u64, before: u64) -> Option<u64> {
        let from = if from == 0 { self.first } else { from };
        if from < before {
            return self.place_between(count, from, before);
        }
        self.place_between(count, from, self.end)
            .or_else(|| self.place_between(count, self.first, before))
    }

    fn place_between(&self, count: u64, from: u64, before: u64) -> Option<u64> {
        let mut at = from;
        while at < before {
            at = self.free_from(at).filter(|&at| at < before)?;
            let stop = self.free_until(at);
            if at + count <= stop {
                return Some(at);
            }
            at = stop;
        }
        None
    }

    fn clean_goal(&self, goal: u64) -> u64 {
        if goal == 0 || goal >= self.end {
            return self.first;
        }
        goal & !((1u64 << self.cluster_log) - 1)
    }

    fn run_around(&self, block: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.taken.range(..=block).next_back()?;
        (end > block).then_some(start..end)
    }

    fn free_from(&self, block: u64) -> Option<u64> {
        let at = block.max(self.first);
        let at = self.run_around(at).map_or(at, |run| run.end);
        (at < self.end).then_some(at)
    }

    fn free_until(&self, free: u64) -> u64 {
        let next = self.taken.range(free..).next();
        next.map_or(self.end, |(&start, _)| start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(taken: &[Range<u64>]) -> Space {
        let mut space = Space::new(1..100);
        taken.iter().cloned().for_each(|run| space.take(run));
        space
    }

    #[test]
    fn runs_that_touch_or_overlap_become_one() {
        let space = space(&[10..20, 30..40, 20..25, 24..31, 50..51]);
        assert_eq!(space.runs().collect::<Vec<_>>(), [10..40, 50..51]);
        assert_eq!(space.free_in(35..52), 17 - 6);
        assert_eq!(space.runs_in(35..51).collect::<Vec<_>>(), [35..40, 50..51]);
    }

    #[test]
    fn free_blocks_are_found_from_the_goal_and_around() {
        let space = space(&[1..10, 90..100]);
        assert_eq!(space.first_free(0), Some(10));
        assert_eq!(space.first_free(95), Some(10));
        assert_eq!(space.first_free(1000), Some(10));
        assert_eq!(space.first_run(80, 100), Some(80..90));
        assert_eq!(space.first_run(20, 5), Some(20..25));
    }

    #[test]
    fn places_begin_before_the_limit_but_may_end_behind_it() {
        let space = space(&[1..10, 15..20]);
        assert_eq!(space.place_for(5, 1, 11), Some(10));
        assert_eq!(space.place_for(6, 1, 20), None);
        assert_eq!(space.place_for(6, 1, 21), Some(20));
        assert_eq!(space.place_for(4, 97, 97), Some(10));
    }

    #[test]
    fn a_full_space_has_nothing_to_give() {
        let space = space(&[1..100]);
        assert_eq!(space.first_free(5), None);
        assert_eq!(space.place_for(1, 5, 5), None);
    }

    #[test]
    fn clusters_are_taken_as_a_whole() {
        let mut space = space(&[17..18]);
        space.use_clusters(4);
        assert_eq!(space.runs().collect::<Vec<_>>(), [16..32]);
        assert_eq!(space.first_free(20), Some(32));
    }
}
