//! **Purpose.** The allocator's counters, under the names of ext4's `mb_stats`.
//!
//! **Model.** A request counts in plain words of its own ([`Tally`]), made when there is something
//! to count, and adds the words that are not zero to its core's block when it ends; readers add up
//! the cores. Most requests are served completely without a search: these count in a single word,
//! from which the reader derives several counters ([`Quick`]). Those served at a goal count in the
//! group, under the lock that they hold anyway, where counting is an addition without a locked
//! instruction. So counting is cheap enough to be on by default. Without `mb_stats` only the groups
//! count, since that costs nothing.
//!
//! **Locking.** None; no two cores write the same line.

use std::fmt;
use std::ops::{Index, IndexMut};

use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{CoreNr, PerCore};

use crate::criteria::Criterion;
use crate::tunables::{Tunable, Tunables};

macro_rules! counts {
    ($($(#[$doc:meta])* $variant:ident,)*) => {
        /// The counters, without those of each criterion.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count { $($(#[$doc])* $variant,)* }
        /// The number of counters.
        const COUNTS: usize = [$(Count::$variant),*].len();
    };
}

counts! {
    /// Requests (`reqs`).
    Reqs,
    /// Requests that got the full length (`success`).
    Success,
    /// Groups that were locked and searched (`groups_scanned`).
    GroupsScanned,
    /// Requests answered at their goal (`goal_hits`).
    GoalHits,
    /// Requests answered at a stream goal (`stream_goal_hits`).
    StreamGoalHits,
    /// Requests that got the length of the normalized request, at a goal or by a criterion
    /// (`len_goal_hits`).
    LenGoalHits,
    /// Requests answered from the buddy of a power of two (`2^n_hits`).
    TwoOrderHits,
    /// Complex scans that ended at `mb_max_to_scan` (`breaks`).
    Breaks,
    /// Extents found that another thread claimed first (`lost`).
    Lost,
    /// Buddies made from bitmaps (`buddies_generated`).
    BuddiesGenerated,
    /// Nanoseconds that making them took (`buddies_time_used`).
    BuddiesTimeUsed,
    /// Clusters put into preallocations (`preallocated`).
    Preallocated,
    /// Clusters of preallocations given back (`discarded`).
    Discarded,
    /// Requests answered from an inode's preallocation.
    InodePreallocHits,
    /// Requests answered from a locality group.
    GroupPreallocHits,
    /// Groups skipped because another thread held their lock.
    BusyGroups,
    /// Groups that the index returned and that did not fit.
    StaleHints,
    /// Passes over all groups before a request was refused.
    ExactPasses,
    /// Group states tested for prefetching by a plain load.
    PrefetchTests,
    /// Group states tested for prefetching by a locked read-modify-write.
    PrefetchLockedTests,
    /// Descriptors fetched for prefetching.
    PrefetchDescriptors,
    /// Bitmaps whose reading was started ahead.
    PrefetchedBitmaps,
    /// Groups of the file system. Not counted but set in the sums, for `buddies_generated`, which
    /// ext4 shows beside it.
    Groups,
}

/// The way in which a request was served completely without a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quick {
    /// At its goal.
    Goal,
    /// At its stream goal.
    Stream,
    /// From an inode's preallocation.
    InodePrealloc,
    /// From a locality group.
    GroupPrealloc,
}

impl Quick {
    const ALL: [Self; 4] = [
        Self::Goal,
        Self::Stream,
        Self::InodePrealloc,
        Self::GroupPrealloc,
    ];
    /// The number of variants that groups count: the first ones.
    pub(crate) const IN_GROUPS: usize = 2;

    /// Whether the request took its full length at a goal. (Clusters of a preallocation were found
    /// by an earlier request.)
    fn is_len_goal(self) -> bool {
        matches!(self, Self::Goal | Self::Stream)
    }

    /// The counter of this way.
    pub(crate) fn count(self) -> Count {
        match self {
            Self::Goal => Count::GoalHits,
            Self::Stream => Count::StreamGoalHits,
            Self::InodePrealloc => Count::InodePreallocHits,
            Self::GroupPrealloc => Count::GroupPreallocHits,
        }
    }
}

/// How a request was served, if not by a criterion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) quick: Quick,
    /// Whether the group has counted it.
    pub(crate) is_counted: bool,
}

impl From<Quick> for Hit {
    fn from(quick: Quick) -> Self {
        let is_counted = false;
        Self { quick, is_counted }
    }
}

/// The counters of each criterion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriterionCount {
    /// Requests answered (`hits`).
    Hits,
    /// Groups tried (`groups_considered`).
    GroupsConsidered,
    /// Extents examined (`extents_scanned`).
    ExtentsScanned,
    /// Searches that found nothing (`useless_loops`).
    UselessLoops,
}

const CRITERION_COUNTS: usize = 4;
const WORDS: usize = COUNTS + Criterion::ALL.len() * CRITERION_COUNTS;

fn slot(criterion: Criterion, count: CriterionCount) -> usize {
    COUNTS + criterion as usize * CRITERION_COUNTS + count as usize
}

type Words = [u64; WORDS];

/// The values of all counters, of one request or added up.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Allocated when something is counted: most requests count nothing here.
    words: Option<Box<Words>>,
}

impl Tally {
    fn word(&self, i: usize) -> &u64 {
        self.words.as_ref().map_or(&0, |words| &words[i])
    }

    fn words_mut(&mut self) -> &mut Words {
        self.words.get_or_insert_with(|| Box::new([0; WORDS]))
    }
}

impl Index<Count> for Tally {
    type Output = u64;
    fn index(&self, count: Count) -> &u64 {
        self.word(count as usize)
    }
}

impl IndexMut<Count> for Tally {
    fn index_mut(&mut self, count: Count) -> &mut u64 {
        &mut self.words_mut()[count as usize]
    }
}

impl Index<(Criterion, CriterionCount)> for Tally {
    type Output = u64;
    fn index(&self, key: (Criterion, CriterionCount)) -> &u64 {
        let (criterion, count) = key;
        self.word(slot(criterion, count))
    }
}

impl IndexMut<(Criterion, CriterionCount)> for Tally {
    fn index_mut(&mut self, key: (Criterion, CriterionCount)) -> &mut u64 {
        let (criterion, count) = key;
        &mut self.words_mut()[slot(criterion, count)]
    }
}

impl Tally {
    /// Whether nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_none()
    }

    /// Adds requests that were served completely without a search, in the order of [`Quick::ALL`].
    pub(crate) fn add_quick(&mut self, requests: impl IntoIterator<Item = u64>) {
        for (quick, requests) in Quick::ALL.into_iter().zip(requests) {
            self[Count::Reqs] += requests;
            self[Count::Success] += requests;
            self[quick.count()] += requests;
            if quick.is_len_goal() {
                self[Count::LenGoalHits] += requests;
            }
        }
    }

    /// Groups tried by all criteria.
    #[must_use]
    pub fn groups_considered(&self) -> u64 {
        self.sum(CriterionCount::GroupsConsidered)
    }

    /// Extents examined by all criteria.
    #[must_use]
    pub fn extents_scanned(&self) -> u64 {
        self.sum(CriterionCount::ExtentsScanned)
    }

    fn sum(&self, count: CriterionCount) -> u64 {
        Criterion::ALL
            .iter()
            .map(|&criterion| self[(criterion, count)])
            .sum()
    }

    /// The difference from an earlier reading of the same file system.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut difference = self.clone();
        for (i, word) in difference.words_mut().iter_mut().enumerate() {
            *word = word.wrapping_sub(*before.word(i));
        }
        difference[Count::Groups] = self[Count::Groups];
        difference
    }
}

/// Formats the counters as `mb_stats` does, in its order and with its names; counters that ext4
/// does not have follow.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "mballoc:")?;
        writeln!(f, "\treqs: {}", self[Count::Reqs])?;
        writeln!(f, "\tsuccess: {}", self[Count::Success])?;
        writeln!(f, "\tgroups_scanned: {}", self[Count::GroupsScanned])?;
        for &criterion in Criterion::ALL {
            writeln!(f, "\t{}:", criterion.stats_name())?;
            writeln!(f, "\t\thits: {}", self[(criterion, CriterionCount::Hits)])?;
            let considered = self[(criterion, CriterionCount::GroupsConsidered)];
            writeln!(f, "\t\tgroups_considered: {considered}")?;
            writeln!(
                f,
                "\t\textents_scanned: {}",
                self[(criterion, CriterionCount::ExtentsScanned)]
            )?;
            writeln!(
                f,
                "\t\tuseless_loops: {}",
                self[(criterion, CriterionCount::UselessLoops)]
            )?;
        }
        let hits = [
            ("extents_scanned", self.extents_scanned()),
            ("\tgoal_hits", self[Count::GoalHits]),
            ("\tstream_goal_hits", self[Count::StreamGoalHits]),
            ("\tlen_goal_hits", self[Count::LenGoalHits]),
            ("\t2^n_hits", self[Count::TwoOrderHits]),
            ("\tbreaks", self[Count::Breaks]),
            ("\tlost", self[Count::Lost]),
        ];
        let (buddies, groups) = (self[Count::BuddiesGenerated], self[Count::Groups]);
        let rest = [
            ("buddies_time_used", self[Count::BuddiesTimeUsed]),
            ("preallocated", self[Count::Preallocated]),
            ("discarded", self[Count::Discarded]),
            ("inode_prealloc_hits", self[Count::InodePreallocHits]),
            ("group_prealloc_hits", self[Count::GroupPreallocHits]),
            ("busy_groups", self[Count::BusyGroups]),
            ("stale_hints", self[Count::StaleHints]),
            ("exact_passes", self[Count::ExactPasses]),
            ("prefetch_tests", self[Count::PrefetchTests]),
            ("prefetch_locked_tests", self[Count::PrefetchLockedTests]),
            ("prefetch_descriptors", self[Count::PrefetchDescriptors]),
            ("prefetched_bitmaps", self[Count::PrefetchedBitmaps]),
        ];
        hits.iter()
            .try_for_each(|(name, value)| writeln!(f, "\t{name}: {value}"))?;
        writeln!(f, "\tbuddies_generated: {buddies}/{groups}")?;
        rest.iter()
            .try_for_each(|(name, value)| writeln!(f, "\t{name}: {value}"))
    }
}

/// A histogram of the groups that searches tried: `[i]` counts searches that tried `i` groups, the
/// last entry those that tried more.
pub type LooksHistogram = [u64; 18];

/// A histogram of hold times of group locks: `[i]` counts times below `2^i` nanoseconds and at
/// least half of that.
pub type HoldHistogram = [u64; 32];

#[derive(Debug)]
struct CoreBlock {
    words: [AtomicU64; WORDS],
    quick: [AtomicU64; 4],
    looks: [AtomicU64; 18],
    holds: [AtomicU64; 32],
}

/// The counters of a file system.
#[derive(Debug)]
pub struct Stats {
    cores: PerCore<CoreBlock>,
}

impl Default for Stats {
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        Self {
            cores: PerCore::new(|_| CoreBlock {
                words: std::array::from_fn(zero),
                quick: std::array::from_fn(zero),
                looks: std::array::from_fn(zero),
                holds: std::array::from_fn(zero),
            }),
        }
    }
}

impl Stats {
    /// Adds the counts of a request.
    pub(crate) fn add(&self, core: CoreNr, tally: &Tally) {
        let block = self.cores.of(core);
        for (word, &value) in block
            .words
            .iter()
            .zip(tally.words.iter().flat_map(|words| words.iter()))
        {
            if value != 0 {
                word.fetch_add(value, Ordering::Relaxed);
            }
        }
    }

    /// Notes how many groups a search tried.
    pub(crate) fn note_looks(&self, core: CoreNr, looks: u64) {
        let block = self.cores.of(core);
        let bucket = usize::try_from(looks).map_or(17, |looks| looks.min(17));
        block.looks[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// Notes for how long a group lock was held.
    pub(crate) fn note_hold(&self, core: CoreNr, nanos: u128) {
        let bits = (u128::BITS - nanos.leading_zeros()).min(31);
        self.cores.of(core).holds[bits as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that has ended, and whether it got its full length.
    #[inline]
    pub(crate) fn end(
        &self,
        tunables: &Tunables,
        core: CoreNr,
        hit: Option<Hit>,
        is_whole: bool,
        tally: &mut Tally,
    ) {
        let is_counted = hit.is_some_and(|hit| hit.is_counted) && tally.is_empty();
        if !is_counted && tunables.get(Tunable::MbStats) != 0 {
            self.count_end(core, hit, is_whole, tally);
        }
    }

    fn count_end(&self, core: CoreNr, hit: Option<Hit>, is_whole: bool, tally: &mut Tally) {
        match hit {
            Some(hit) if hit.is_counted => {}
            Some(hit) if is_whole && tally.is_empty() => {
                let word = &self.cores.of(core).quick[hit.quick as usize];
                word.fetch_add(1, Ordering::Relaxed);
                return;
            }
            _ => {
                tally[Count::Reqs] += 1;
                tally[Count::Success] += u64::from(is_whole);
                if let Some(Hit { quick, .. }) = hit {
                    tally[quick.count()] += 1;
                    tally[Count::LenGoalHits] += u64::from(is_whole && quick.is_len_goal());
                }
            }
        }
        if !tally.is_empty() {
            self.add(core, tally);
        }
    }

    /// The sums over all cores, without the counts in groups; exact while no request is in
    /// progress.
    pub(crate) fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        for block in self.cores.iter() {
            for (sum, word) in sum.words_mut().iter_mut().zip(&block.words) {
                *sum += word.load(Ordering::Relaxed);
            }
            let requests = block.quick.iter().map(|word| word.load(Ordering::Relaxed));
            sum.add_quick(requests);
        }
        sum
    }

    /// The histogram of groups tried.
    #[must_use]
    pub fn looks(&self) -> LooksHistogram {
        let mut sum = [0; 18];
        for block in self.cores.iter() {
            for (sum, word) in sum.iter_mut().zip(&block.looks) {
                *sum += word.load(Ordering::Relaxed);
            }
        }
        sum
    }

    /// The histogram of hold times of group locks, measured while `mb_hold_times` was 1.
    #[must_use]
    pub fn holds(&self) -> HoldHistogram {
        let mut sum = [0; 32];
        for block in self.cores.iter() {
            for (sum, word) in sum.iter_mut().zip(&block.holds) {
                *sum += word.load(Ordering::Relaxed);
            }
        }
        sum
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn sums_are_printed_under_the_names_of_ext4() {
        let stats = Stats::default();
        let mut tally = Tally::default();
        tally[Count::Reqs] += 3;
        tally[(Criterion::BestAvailLen, CriterionCount::ExtentsScanned)] += 7;
        stats.add(CoreNr::current(), &tally);
        stats.add(CoreNr::current(), &tally);
        let text = stats.sum().to_string();
        assert!(text.contains("\treqs: 6\n"));
        assert!(text.contains("\tcr_best_avail_stats:\n\t\thits: 0\n\t\tgroups_considered: 0\n\t\textents_scanned: 14\n"));
        assert!(text.contains("\textents_scanned: 14\n\t\tgoal_hits: 0\n"));
        assert_eq!(stats.sum().since(&tally)[Count::Reqs], 3);
        let tunables = Tunables::new(crate::testdisk::geometry(4, 1024));
        let quick = Quick::GroupPrealloc;
        for is_counted in [true, false] {
            let hit = Some(Hit { quick, is_counted });
            stats.end(
                &tunables,
                CoreNr::current(),
                hit,
                true,
                &mut Tally::default(),
            );
        }
        let sum = stats.sum();
        assert_eq!(
            (
                sum[Count::Reqs],
                sum[Count::Success],
                sum[Count::GroupPreallocHits]
            ),
            (7, 1, 1)
        );
    }

    #[test]
    fn nothing_is_added_while_mb_stats_is_off() {
        let (stats, core) = (Stats::default(), CoreNr::current());
        let tunables = Tunables::new(crate::testdisk::geometry(4, 1024));
        let requests = |is_on| {
            tunables.set(Tunable::MbStats, is_on).unwrap();
            for hit in [None, Some(Hit::from(Quick::InodePrealloc))] {
                stats.end(&tunables, core, hit, true, &mut Tally::default());
            }
            stats.sum()[Count::Reqs]
        };
        assert_eq!([requests(0), requests(1), requests(0)], [0, 2, 2]);
    }

    #[test]
    fn buddies_are_shown_beside_the_groups() {
        let mut tally = Tally::default();
        tally[Count::BuddiesGenerated] = 5;
        tally[Count::Groups] = 128;
        let line = "\tlost: 0\n\tbuddies_generated: 5/128\n\tbuddies_time_used: 0\n";
        let text = tally.to_string();
        assert!(text.contains(line), "{text}");
        assert_eq!(tally.since(&tally.clone())[Count::Groups], 128);
    }

    #[test]
    fn histograms_put_large_values_last() {
        let stats = Stats::default();
        stats.note_looks(CoreNr::current(), 2);
        stats.note_looks(CoreNr::current(), 1000);
        stats.note_hold(CoreNr::current(), 1000);
        assert_eq!(
            (stats.looks()[2], stats.looks()[17], stats.holds()[10]),
            (1, 1, 1)
        );
    }
}
