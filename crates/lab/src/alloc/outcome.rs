//! **Purpose.** The result of a run on the block allocator alone, and its form as JSON.

use std::time::Duration;

use fourscore_mballoc::stats::{HoldHistogram, LooksHistogram, Tally};
use serde::Serialize;
use serde_json::{Value, json};

use crate::alloc::free_space::FreeSpace;
use crate::comparison::ThreadCount;
use crate::fairness::Fairness;
use crate::profile::Profile;

/// Commits of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Commits {
    /// Commits at the interval of periodic commits.
    pub periodic: u64,
    /// Commits by a worker that found no space while freed clusters waited for a commit.
    pub on_demand: u64,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct AllocOutcome {
    /// Number of threads.
    pub threads: ThreadCount,
    /// Steps of the workload by all threads.
    pub operations: u64,
    /// Time from the common start to the end of the last thread.
    pub wall: Duration,
    /// How evenly the threads made progress.
    pub fairness: Fairness,
    /// Requests to the allocator.
    pub allocations: u64,
    /// Extents that were added to files.
    pub extents: u64,
    /// Commits during the run.
    pub commits: Commits,
    /// The allocator's counters.
    pub tally: Tally,
    /// Histogram of the groups that a search considered.
    pub looks: LooksHistogram,
    /// Histogram of the hold times of group locks; empty if they were not measured.
    pub holds: HoldHistogram,
    /// Free space before the run; `None` if the run began without bitmaps.
    pub before: Option<FreeSpace>,
    /// Free space after the run; `None` if the run began without bitmaps.
    pub after: Option<FreeSpace>,
    /// Where the time of the threads went, if a profile was on.
    pub profile: Option<Profile>,
}

/// Groups that the searches of a run considered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GroupsConsidered {
    /// Searches; requests that needed none do not count.
    pub searches: u64,
    /// Mean groups of a search.
    pub mean: f64,
    /// The 99th percentile of groups.
    pub p99: u64,
}

impl AllocOutcome {
    /// Steps per second of all threads.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        self.operations as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Statistics of the groups that searches considered.
    #[must_use]
    pub fn groups_considered(&self) -> GroupsConsidered {
        let searches: u64 = self.looks.iter().sum();
        let looks: u64 = self.looks.iter().zip(0..).map(|(n, looks)| n * looks).sum();
        GroupsConsidered {
            searches,
            mean: looks as f64 / searches.max(1) as f64,
            p99: percentile_99(&self.looks),
        }
    }

    /// The 99th percentile of the hold times of group locks in nanoseconds, rounded up to a power
    /// of two; `None` if they were not measured.
    #[must_use]
    pub fn lock_held_p99_ns(&self) -> Option<u64> {
        let measured = self.holds.iter().any(|&count| count > 0);
        measured.then(|| 1 << percentile_99(&self.holds))
    }

    /// The result as JSON with stable names, without the allocator's counters: the caller prints
    /// [`Self::tally`] in the same way as those of a mount.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let space = |space: &Option<FreeSpace>| space.as_ref().map(FreeSpace::to_json);
        json!({
            "threads": self.threads.get(),
            "operations": self.operations,
            "wall_ns": u64::try_from(self.wall.as_nanos()).unwrap_or(u64::MAX),
            "operations_per_second": self.operations_per_second(),
            "fairness": self.fairness,
            "allocations": self.allocations,
            "extents": self.extents,
            "commits": self.commits,
            "groups_considered": self.groups_considered(),
            "extents_scanned": self.tally.extents_scanned(),
            "lock_held_p99_ns": self.lock_held_p99_ns(),
            "free_before": space(&self.before),
            "free_after": space(&self.after),
            "profile": self.profile,
        })
    }
}

/// The bucket of the 99th percentile of a histogram.
fn percentile_99(histogram: &[u64]) -> u64 {
    let all: u64 = histogram.iter().sum();
    let mut seen = 0;
    let mut buckets = histogram.iter().zip(0..);
    let at = buckets.find(|&(count, _)| {
        seen += count;
        seen * 100 >= all * 99
    });
    at.map_or(0, |(_, bucket)| bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_name_a_bucket() {
        assert_eq!(percentile_99(&[0, 0, 0]), 0);
        assert_eq!(percentile_99(&[99, 1, 0]), 0);
        assert_eq!(percentile_99(&[98, 1, 1]), 1);
        assert_eq!(percentile_99(&[0, 98, 0, 2]), 3);
    }
}
