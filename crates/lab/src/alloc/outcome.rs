//! **Purpose.** Everything there is to say about a run on the bare allocator, and the same for
//! programs.

use std::time::Duration;

use fourscore_mballoc::stats::{HoldHistogram, LooksHistogram, Tally};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::alloc::free_space::FreeSpace;
use crate::comparison::ThreadCount;
use crate::fairness::Fairness;

/// Commits of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Commits {
    /// Because their time had come.
    pub periodic: u64,
    /// Because somebody found no space and freed clusters waited.
    pub on_demand: u64,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct AllocOutcome {
    /// Threads.
    pub threads: ThreadCount,
    /// Steps of the workload, of all threads.
    pub operations: u64,
    /// From the first step to the last.
    pub wall: Duration,
    /// How evenly the threads got on.
    pub fairness: Fairness,
    /// Requests to the allocator.
    pub allocations: u64,
    /// Extents that files got.
    pub extents: u64,
    /// Commits.
    pub commits: Commits,
    /// What the allocator counted.
    pub tally: Tally,
    /// Groups looked at by each search.
    pub looks: LooksHistogram,
    /// How long group locks were held, if that was measured.
    pub holds: HoldHistogram,
    /// Free space before; `None` if bitmaps were to be read in the run.
    pub before: Option<FreeSpace>,
    /// Free space after; `None` if bitmaps were to be read in the run.
    pub after: Option<FreeSpace>,
}

/// How many groups the searches of a run looked at.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GroupsConsidered {
    /// Searches; requests that were answered without one are not among them.
    pub searches: u64,
    /// Groups on average.
    pub mean: f64,
    /// Groups that 99 of 100 searches stayed at or below.
    pub p99: u64,
}

impl AllocOutcome {
    /// Steps per second, of all threads.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        self.operations as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// What the histogram of looks says.
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

    /// Nanoseconds that 99 of 100 holds of a group lock stayed below, if they were measured.
    #[must_use]
    pub fn lock_held_p99_ns(&self) -> Option<u64> {
        let measured = self.holds.iter().any(|&count| count > 0);
        measured.then(|| 1 << percentile_99(&self.holds))
    }

    /// With stable names.
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
            "mb_stats": mb_stats_to_json(&self.tally.to_string()),
            "free_before": space(&self.before),
            "free_after": space(&self.after),
        })
    }
}

/// The bucket of a histogram below or in which 99 of 100 entries are.
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

/// The text of `mb_stats`, ours or the kernel's, as an object: a line `name: value` is a member,
/// a line `name:` begins an object of the deeper lines below it. So both carry the same names.
#[must_use]
pub fn mb_stats_to_json(text: &str) -> Value {
    let mut whole = Map::new();
    let mut section: Option<(usize, String)> = None;
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        let Some((name, value)) = line.trim().split_once(':') else {
            continue;
        };
        if section.as_ref().is_some_and(|(own, _)| depth <= *own) {
            section = None;
        }
        match (value.trim().parse::<u64>(), &section) {
            (Ok(value), Some((_, section))) => {
                whole[section][name] = value.into();
            }
            (Ok(value), None) => {
                whole.insert(name.to_owned(), value.into());
            }
            // The head of the whole has no name of its own.
            (Err(_), _) if depth == 0 => {}
            (Err(_), _) => {
                whole.insert(name.to_owned(), json!({}));
                section = Some((depth, name.to_owned()));
            }
        }
    }
    whole.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mb_stats_keeps_its_names_and_sections() {
        let stats = mb_stats_to_json(&Tally::default().to_string());
        assert_eq!(stats["reqs"], 0);
        assert_eq!(stats["cr_best_avail_stats"]["extents_scanned"], 0);
        assert_eq!(stats["discarded"], 0);
        let kernel = "mballoc:\n\treqs: 7\n\tcr_p2_aligned_stats:\n\t\thits: 3\n\
                      \t\textents_scanned: 4\n\textents_scanned: 9\n\t\tgoal_hits: 2\n\
                      \tbuddies_generated: 1/40\n";
        let stats = mb_stats_to_json(kernel);
        assert_eq!(
            (&stats["reqs"], &stats["extents_scanned"]),
            (&json!(7), &json!(9))
        );
        assert_eq!(stats["cr_p2_aligned_stats"]["extents_scanned"], 4);
        assert_eq!(stats["goal_hits"], 2);
    }

    #[test]
    fn percentiles_name_a_bucket() {
        assert_eq!(percentile_99(&[0, 0, 0]), 0);
        assert_eq!(percentile_99(&[99, 1, 0]), 0);
        assert_eq!(percentile_99(&[98, 1, 1]), 1);
        assert_eq!(percentile_99(&[0, 98, 0, 2]), 3);
    }
}
