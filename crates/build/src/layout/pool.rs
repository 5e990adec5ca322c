//! **Purpose.** Allocates free blocks so that files are contiguous and no block is wasted.
//!
//! **Model.** The free runs of a new file system are few and long; they are separated by the tables
//! of a flex group or a backup of the superblock. Requests are served in order from the current
//! run. A request that does not fit into the rest of it is served from the next run that can hold
//! it whole, and later, smaller requests fill the rest; a request is split only if no run can hold
//! it. So an allocation fails only if too few blocks are free.
//!
//! **Invariants.** Every block is allocated at most once; runs begin and end at cluster boundaries.

use std::ops::Range;

/// A set of free runs.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    runs: Vec<Range<u64>>,
    /// The first run that is not empty.
    current: usize,
    /// Where the search for a run that holds a whole request begins.
    ahead: usize,
    left: u64,
}

impl Pool {
    /// Creates a pool of free runs, which must be sorted.
    pub(crate) fn new(runs: Vec<Range<u64>>) -> Self {
        let left = runs.iter().map(|run| run.end - run.start).sum();
        Self {
            runs,
            current: 0,
            ahead: 0,
            left,
        }
    }

    /// Number of free blocks.
    #[cfg(test)]
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Allocates `count` blocks and calls `piece` for each contiguous part, of which there is
    /// nearly always one. Returns false, and allocates nothing, if fewer blocks are free.
    pub(crate) fn take(&mut self, count: u64, mut piece: impl FnMut(Range<u64>)) -> bool {
        if count == 0 {
            return true;
        }
        if count > self.left {
            return false;
        }
        self.left -= count;
        self.skip_empty();
        if let Some(index) = self.run_that_holds(count) {
            piece(self.cut(index, count));
            return true;
        }
        self.cut_next(count, piece);
        true
    }

    /// As [`take`](Self::take), but allocates the next free blocks, in any number of parts.
    pub(crate) fn take_next(&mut self, count: u64, piece: impl FnMut(Range<u64>)) -> bool {
        if count > self.left {
            return false;
        }
        self.left -= count;
        self.cut_next(count, piece);
        true
    }

    fn cut_next(&mut self, mut missing: u64, mut piece: impl FnMut(Range<u64>)) {
        while missing > 0 {
            self.skip_empty();
            let now = missing.min(self.length(self.current));
            piece(self.cut(self.current, now));
            missing -= now;
        }
    }

    /// The allocated parts of the runs in `all`, in order.
    pub(crate) fn taken(&self, all: &[Range<u64>]) -> Vec<Range<u64>> {
        all.iter()
            .zip(&self.runs)
            .map(|(whole, rest)| whole.start..rest.start)
            .filter(|run| run.start < run.end)
            .collect()
    }

    fn skip_empty(&mut self) {
        while self.current + 1 < self.runs.len() && self.length(self.current) == 0 {
            self.current += 1;
        }
    }

    fn run_that_holds(&mut self, count: u64) -> Option<usize> {
        if self.length(self.current) >= count {
            return Some(self.current);
        }
        // Runs before `ahead` were too short for an earlier request, but may hold a smaller one.
        let first = self.ahead.max(self.current + 1);
        let after = (first..self.runs.len()).find(|&index| self.length(index) >= count);
        if let Some(index) = after {
            self.ahead = index;
            return Some(index);
        }
        (self.current + 1..first).find(|&index| self.length(index) >= count)
    }

    fn length(&self, index: usize) -> u64 {
        self.runs.get(index).map_or(0, |run| run.end - run.start)
    }

    fn cut(&mut self, index: usize, count: u64) -> Range<u64> {
        let run = &mut self.runs[index];
        let start = run.start;
        run.start += count;
        start..run.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take(pool: &mut Pool, count: u64) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        assert!(pool.take(count, |piece| pieces.push(piece)));
        pieces
    }

    #[test]
    fn large_requests_are_contiguous_and_small_ones_fill_gaps() {
        let mut pool = Pool::new(vec![0..10, 20..120, 200..300]);
        assert_eq!(take(&mut pool, 4), [0..4]);
        assert_eq!(take(&mut pool, 50), [20..70]);
        assert_eq!(take(&mut pool, 6), [4..10]);
        assert_eq!(take(&mut pool, 80), [200..280]);
        assert_eq!(
            take(&mut pool, 60),
            [70..120, 280..290],
            "no run is long enough"
        );
        assert_eq!(take(&mut pool, 10), [290..300]);
        assert!(!pool.take(1, |_| unreachable!()));
    }

    proptest! {
        #[test]
        fn every_block_is_allocated_once(
            lengths in proptest::collection::vec(1u64..40, 1..12),
            counts in proptest::collection::vec(1u64..50, 1..40),
        ) {
            let mut all = Vec::new();
            let mut at = 0;
            for length in lengths {
                all.push(at..at + length);
                at += length + 3;
            }
            let mut pool = Pool::new(all.clone());
            let mut given = Vec::new();
            for count in counts {
                let before = pool.left();
                let mut sum = 0;
                let fits = pool.take(count, |piece| {
                    sum += piece.end - piece.start;
                    given.extend(piece);
                });
                prop_assert_eq!(fits, count <= before);
                prop_assert_eq!(sum, if fits { count } else { 0 });
                prop_assert_eq!(pool.left(), before - sum);
            }
            given.sort_unstable();
            let taken: Vec<u64> = pool.taken(&all).into_iter().flatten().collect();
            prop_assert_eq!(given, taken);
        }
    }
}
