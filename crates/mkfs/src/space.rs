//! **Purpose.** The taken blocks of a file system under construction, and searches for free ones.
//!
//! **Model.** Sorted runs of taken blocks that never touch each other. A new file system has few:
//! some for each flex group, one for each backup superblock, whatever its size. Tables are placed
//! block by block; from [`Space::use_clusters`] on everything counts in clusters, as in ext4: a
//! cluster is taken if one of its blocks is.
//!
//! **Invariants.** Runs lie between `first` and `end`, do not overlap and have free blocks
//! between them. The list of runs is cut into chunks so that a run is inserted in the middle at a
//! cost that does not grow with the file system.
//!
//! **References.** The order in which blocks are tried is that of libext2fs, so that file systems
//! equal those of mke2fs.

use std::ops::Range;

/// Runs in one chunk of the list, at most.
const CHUNK_RUNS: usize = 512;
/// How many runs around the last place a search tries before it searches the whole list.
const NEAR_RUNS: usize = 3;

/// The taken blocks.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    first: u64,
    end: u64,
    cluster_log: u32,
    taken: Runs,
}

/// Sorted runs in chunks, none of which is empty.
#[derive(Clone, Debug, Default)]
struct Runs {
    chunks: Vec<Vec<Range<u64>>>,
    /// Where the last search ended. The tables of a flex group are placed side by side, so the
    /// next search most often ends a run or two from there. Only a hint: any value is right.
    near: Place,
}

/// Where a run is in the list.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    chunk: usize,
    index: usize,
}

impl Runs {
    fn get(&self, place: Place) -> Option<&Range<u64>> {
        self.chunks.get(place.chunk)?.get(place.index)
    }

    /// The last run that begins at `block` or before.
    fn last_from(&self, block: u64) -> Option<Place> {
        let after = self
            .chunks
            .partition_point(|chunk| chunk.first().is_some_and(|run| run.start <= block));
        let chunk = after.checked_sub(1)?;
        let index = self.chunks[chunk].partition_point(|run| run.start <= block) - 1;
        Some(Place { chunk, index })
    }

    /// As [`Self::last_from`], and fast if the last search ended near `block`.
    fn seek(&mut self, block: u64) -> Option<Place> {
        let found = self.near_from(block).or_else(|| self.last_from(block));
        self.near = found.unwrap_or_default();
        found
    }

    /// The last run that begins at `block` or before, if it is near the last one found.
    fn near_from(&self, block: u64) -> Option<Place> {
        let Place { chunk, index } = self.near;
        let least = index.saturating_sub(NEAR_RUNS);
        let runs = self.chunks.get(chunk)?.get(least..)?;
        let behind = runs
            .iter()
            .take(3 * NEAR_RUNS)
            .position(|run| run.start > block)?;
        let index = least + behind.checked_sub(1)?;
        Some(Place { chunk, index })
    }

    /// The place after this one; the first place for `None`.
    fn next(&self, place: Option<Place>) -> Place {
        match place {
            None => Place { chunk: 0, index: 0 },
            Some(Place { chunk, index }) if index + 1 < self.chunks[chunk].len() => Place {
                chunk,
                index: index + 1,
            },
            Some(Place { chunk, .. }) => Place {
                chunk: chunk + 1,
                index: 0,
            },
        }
    }

    /// Inserts a run after `place`, or as the first. Returns its place.
    fn insert_after(&mut self, place: Option<Place>, run: Range<u64>) -> Place {
        let Some(Place { chunk, index }) = place else {
            self.chunks.insert(0, vec![run]);
            return Place { chunk: 0, index: 0 };
        };
        let runs = &mut self.chunks[chunk];
        runs.insert(index + 1, run);
        if runs.len() <= CHUNK_RUNS {
            return Place {
                chunk,
                index: index + 1,
            };
        }
        let half = runs.len() / 2;
        let upper = runs.split_off(half);
        self.chunks.insert(chunk + 1, upper);
        if index + 1 < half {
            Place {
                chunk,
                index: index + 1,
            }
        } else {
            Place {
                chunk: chunk + 1,
                index: index + 1 - half,
            }
        }
    }

    fn remove(&mut self, place: Place) {
        let runs = &mut self.chunks[place.chunk];
        runs.remove(place.index);
        if runs.is_empty() {
            self.chunks.remove(place.chunk);
        }
    }

    /// Adds a run and joins it with those it touches.
    fn join(&mut self, run: Range<u64>) {
        let before = self.seek(run.start);
        let touching = before.filter(|&place| {
            self.get(place)
                .is_some_and(|before| before.end >= run.start)
        });
        let place = touching.unwrap_or_else(|| self.insert_after(before, run.clone()));
        let mut end = run.end.max(self.chunks[place.chunk][place.index].end);
        loop {
            let next = self.next(Some(place));
            match self.get(next) {
                Some(behind) if behind.start <= end => end = end.max(behind.end),
                _ => break,
            }
            self.remove(next);
        }
        self.chunks[place.chunk][place.index].end = end;
    }
}

impl Space {
    /// A space map of `blocks`, all of them free.
    pub(crate) fn new(blocks: Range<u64>) -> Self {
        Self {
            first: blocks.start,
            end: blocks.end,
            cluster_log: 0,
            taken: Runs::default(),
        }
    }

    /// Makes the space map count in clusters of `2^cluster_log` blocks from now on.
    pub(crate) fn use_clusters(&mut self, cluster_log: u32) {
        if cluster_log == 0 {
            return;
        }
        self.cluster_log = cluster_log;
        let runs = std::mem::take(&mut self.taken);
        for run in runs.chunks.into_iter().flatten() {
            self.take(run);
        }
    }

    /// The taken runs, in order.
    #[cfg(test)]
    fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        self.taken.chunks.iter().flatten().cloned()
    }

    /// The taken blocks of `range`, as runs cut at its ends.
    pub(crate) fn runs_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut place = match self.taken.last_from(range.start) {
            Some(place) => place,
            None => self.taken.next(None),
        };
        std::iter::from_fn(move || {
            loop {
                let run = self.taken.get(place)?;
                if run.start >= range.end {
                    return None;
                }
                place = self.taken.next(Some(place));
                let cut = run.start.max(range.start)..run.end.min(range.end);
                if cut.start < cut.end {
                    return Some(cut);
                }
            }
        })
    }

    /// How many blocks of `range` are free.
    pub(crate) fn free_in(&self, range: Range<u64>) -> u64 {
        let taken: u64 = self.runs_in(range.clone()).map(|r| r.end - r.start).sum();
        range.end - range.start - taken
    }

    /// Takes these blocks, and the rest of their clusters. Blocks may be taken twice.
    pub(crate) fn take(&mut self, blocks: Range<u64>) {
        let mask = (1u64 << self.cluster_log) - 1;
        let start = blocks.start & !mask;
        let end = ((blocks.end + mask) & !mask).min(self.end);
        self.taken.join(start..end);
    }

    /// The first free block at `goal` or behind it, else the first of all.
    pub(crate) fn first_free(&mut self, goal: u64) -> Option<u64> {
        let goal = self.clean_goal(goal);
        self.free_from(goal).or_else(|| self.free_from(self.first))
    }

    /// The first free run at `goal` or behind it, else the first of all, cut at `most` blocks.
    pub(crate) fn first_run(&mut self, goal: u64, most: u64) -> Option<Range<u64>> {
        let start = self.first_free(goal)?;
        let end = self.free_until(start).min(start.saturating_add(most));
        Some(start..end)
    }

    /// The first place for `count` free blocks that begins at `from` or later but before
    /// `before`. If `from` is not before `before`, the search goes on to the end and around.
    /// A `from` of 0 is the first block of the file system.
    pub(crate) fn place_for(&mut self, count: u64, from: u64, before: u64) -> Option<u64> {
        let from = if from == 0 { self.first } else { from };
        if from < before {
            return self.place_between(count, from, before);
        }
        self.place_between(count, from, self.end)
            .or_else(|| self.place_between(count, self.first, before))
    }

    fn place_between(&mut self, count: u64, from: u64, before: u64) -> Option<u64> {
        let mut at = from.max(self.first);
        let mut place = self.taken.seek(at);
        if let Some(run) = place.and_then(|place| self.taken.get(place)) {
            at = at.max(run.end);
        }
        while at < before.min(self.end) {
            let next = self.taken.next(place);
            let (stop, resume) = match self.taken.get(next) {
                Some(run) => (run.start, run.end),
                None => (self.end, self.end),
            };
            if at + count <= stop {
                return Some(at);
            }
            (at, place) = (resume, Some(next));
            if resume == self.end {
                return None;
            }
        }
        None
    }

    fn clean_goal(&self, goal: u64) -> u64 {
        if goal == 0 || goal >= self.end {
            return self.first;
        }
        goal & !((1u64 << self.cluster_log) - 1)
    }

    fn free_from(&mut self, block: u64) -> Option<u64> {
        let at = block.max(self.first);
        let place = self.taken.seek(at);
        let run = place.and_then(|place| self.taken.get(place));
        let at = run.map_or(at, |run| at.max(run.end));
        (at < self.end).then_some(at)
    }

    fn free_until(&mut self, free: u64) -> u64 {
        let place = self.taken.seek(free);
        let next = self.taken.next(place);
        self.taken.get(next).map_or(self.end, |run| run.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        let mut space = space(&[1..10, 90..100]);
        assert_eq!(space.first_free(0), Some(10));
        assert_eq!(space.first_free(95), Some(10));
        assert_eq!(space.first_free(1000), Some(10));
        assert_eq!(space.first_run(80, 100), Some(80..90));
        assert_eq!(space.first_run(20, 5), Some(20..25));
    }

    #[test]
    fn places_begin_before_the_limit_but_may_end_behind_it() {
        let mut space = space(&[1..10, 15..20]);
        assert_eq!(space.place_for(5, 1, 11), Some(10));
        assert_eq!(space.place_for(6, 1, 20), None);
        assert_eq!(space.place_for(6, 1, 21), Some(20));
        assert_eq!(space.place_for(4, 97, 97), Some(10));
    }

    #[test]
    fn a_full_space_has_nothing_to_give() {
        let mut space = space(&[1..50, 50..100]);
        assert_eq!(space.first_free(5), None);
        assert_eq!(space.place_for(1, 5, 5), None);
    }

    proptest! {
        #[test]
        fn any_runs_in_any_order_equal_a_bitmap(
            runs in proptest::collection::vec((1u64..4000, 1u64..6), 0..1500),
            goal in 0u64..4000,
            count in 1u64..9,
        ) {
            let mut space = Space::new(1..4001);
            let index = |block: u64| usize::try_from(block).unwrap();
            let mut bitmap = vec![false; 4001];
            for (start, length) in runs {
                let end = (start + length).min(4001);
                space.take(start..end);
                (start..end).for_each(|block| bitmap[index(block)] = true);
            }
            let is_free = |block: u64| block >= 1 && !bitmap[index(block)];
            let free = (1..4001).filter(|&block| is_free(block)).count() as u64;
            prop_assert_eq!(space.free_in(1..4001), free);
            let runs: Vec<_> = space.runs().collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            let first = (goal.max(1)..4001).chain(1..4001).find(|&block| is_free(block));
            prop_assert_eq!(space.first_free(goal), first);
            let fits = |at: u64| at + count <= 4001 && (at..at + count).all(is_free);
            let expected = (goal.max(1)..4001).find(|&at| fits(at));
            prop_assert_eq!(space.place_for(count, goal, 4001), expected);
        }
    }

    #[test]
    fn clusters_are_taken_as_a_whole() {
        let mut space = space(&[17..18, 50..51]);
        space.use_clusters(4);
        assert_eq!(space.runs().collect::<Vec<_>>(), [16..32, 48..64]);
        assert_eq!(space.first_free(20), Some(32));
    }
}
