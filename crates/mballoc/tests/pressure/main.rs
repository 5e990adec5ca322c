//! Tests how many groups the allocator tries, and how much it fragments, on file systems of a
//! thousand to eight million groups that are half full to nearly full.

mod aged;
mod trace;

use fourscore_mballoc::Tunable;
use fourscore_mballoc::stats::Count;
use fourscore_ondisk::GroupNr;

use aged::Aged;
use trace::Trace;

/// Clusters of a free extent, on average.
const MEAN_FREE: u32 = 48;

/// Whether the bitmaps are in memory when the trace begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bitmaps {
    Loaded,
    Absent,
}

/// Runs a trace and asserts how many groups its searches tried: at most two on average, and at most
/// four in 99 of 100. Requests that need no search are not counted.
fn looks(groups: u32, used: u32, bitmaps: Bitmaps) {
    let mut trace = Trace::new(groups, Aged::new(used, MEAN_FREE, 1), 7);
    if bitmaps == Bitmaps::Loaded {
        (0..groups).for_each(|group| trace.allocator.load(GroupNr(group)).unwrap());
    }
    trace.run(20_000);
    let tally = trace.allocator.mb_stats();
    let histogram = trace.allocator.stats().looks();
    let searches: u64 = histogram.iter().sum();
    let what = format!("{groups} groups, {used} % used, {bitmaps:?}: {histogram:?}");
    println!("{what}");
    assert!(searches > 2000, "the trace has too few searches: {what}");
    assert!(tally.groups_considered() <= 2 * searches, "{what}");
    let more_than_four: u64 = histogram[5..].iter().sum();
    assert!(more_than_four * 100 <= searches, "{what}");
    assert_eq!(tally[Count::ExactPasses], 0, "{what}");
}

#[test]
fn a_search_tries_two_groups_of_a_thousand() {
    for used in [50, 75, 95] {
        for bitmaps in [Bitmaps::Loaded, Bitmaps::Absent] {
            looks(1000, used, bitmaps);
        }
    }
}

#[test]
fn a_search_tries_two_groups_of_a_hundred_thousand() {
    for used in [50, 75, 95] {
        looks(100_000, used, Bitmaps::Absent);
    }
    looks(100_000, 95, Bitmaps::Loaded);
}

#[test]
#[ignore = "takes more than a gigabyte of memory"]
fn a_search_tries_two_groups_of_eight_million() {
    for used in [50, 75, 95] {
        looks(8_000_000, used, Bitmaps::Absent);
    }
}

/// The fragmentation after several traces, added up.
#[derive(Debug, Default)]
struct Outcome {
    files: u64,
    extents: u64,
    free_extents: u64,
    free_clusters: u64,
    /// Searches that found less than the goal length.
    trimmed: u64,
}

impl Outcome {
    /// Runs a trace with these values of tunables.
    fn add(&mut self, used: u32, seed: u64, tunables: &[(Tunable, u32)]) {
        const GROUPS: u32 = 200;
        /// Requests are shorter than most free extents, and normalized requests are longer.
        const MEAN_FREE: u32 = 200;
        let mut trace = Trace::new(GROUPS, Aged::new(used, MEAN_FREE, seed), seed);
        for &(tunable, value) in tunables {
            trace.allocator.tunables().set(tunable, value).unwrap();
        }
        (0..GROUPS).for_each(|group| trace.allocator.load(GroupNr(group)).unwrap());
        trace.run(20_000);
        trace.allocator.discard_preallocations();
        for group in (0..GROUPS).map(GroupNr) {
            let count = |len| {
                self.free_clusters += u64::from(len);
                self.free_extents += 1;
            };
            trace.allocator.free_extents(group, count).unwrap();
        }
        let searches: u64 = trace.allocator.stats().looks().iter().sum();
        let tally = trace.allocator.mb_stats();
        // The trace asks for nothing at the goal alone, so every hit at a goal has the full length.
        let at_goals = tally[Count::GoalHits] + tally[Count::StreamGoalHits];
        self.trimmed += searches - (tally[Count::LenGoalHits] - at_goals);
        self.files += trace.written;
        self.extents += trace.extents;
    }

    /// Extents per thousand files.
    fn extents_of_files(&self) -> u64 {
        self.extents * 1000 / self.files
    }

    /// Clusters per thousand free extents.
    fn mean_free(&self) -> u64 {
        self.free_clusters * 1000 / self.free_extents
    }
}

#[test]
fn the_indexes_trim_less_and_fragment_less_than_order_sets() {
    let order_sets = [(Tunable::MbIndexes, 0), (Tunable::MbOptimizeScan, 1)];
    for used in [50, 75, 95] {
        let (mut sets, mut indexes) = (Outcome::default(), Outcome::default());
        for seed in 1..=5 {
            sets.add(used, seed, &order_sets);
            indexes.add(used, seed, &[]);
        }
        println!("{used} % used: {sets:?} against {indexes:?}");
        assert!(indexes.trimmed * 3 < sets.trimmed * 2);
        assert!(indexes.extents_of_files() < sets.extents_of_files());
        // One percent of tolerance: the scheduler decides which core's goals are used.
        assert!(indexes.mean_free() * 100 >= sets.mean_free() * 99);
    }
}
