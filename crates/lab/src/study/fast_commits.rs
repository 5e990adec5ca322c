//! **Purpose.** `s2-fastcommit`: what it costs to find the inode of each new name in a fast commit,
//! in the eight sizes of the publication.
//!
//! **Model.** As `fs_mark -s0 -S5`: each directory gets its empty files, then fsync is called of
//! each in order. The first call commits all of them. A step is a pass over all directories, from
//! an empty state. The directories are spread over the threads, where fs_mark had a thread for
//! each.

use std::io;
use std::time::Duration;

use crate::alloc::Published;
use crate::comparison::ThreadCount;
use crate::fast_commit::{Counts, FastCommitTarget, by_name};
use crate::fsync::{FsyncSize, FsyncWorkload};
use crate::study::{Case, Facts, Measure, Sample, Side, Study, Surroundings, ThreadList};

/// Files of all passes of a run together, by default, if a pass has fewer.
const FILES: u64 = 32_768;
const MOST_PASSES: u64 = 2000;
/// Bytes in memory for each file: its inode, and its place in lists and records.
const FILE_BYTES: u64 = 2048;

/// The experiment.
pub(super) const STUDY: Study = Study {
    name: "s2-fastcommit",
    about: "what finding the inode of each new name costs in a fast commit",
    source: "R. Harjani, ext4: improve fast_commit performance and scalability, 2022",
    load: "creates empty files in its directories, then calls fsync of each in order",
    cases: &[
        case("2x2", "order 1, taken as 1,1"),
        case("4x4", "order 2,2"),
        case("8x8", "order 3,3"),
        case("16x16", "order 4,4"),
        case("32x32", "order 5,5"),
        case("64x64", "order 6,6"),
        case("64x1024", "order 6,10"),
        case("64x16384", "order 6,14"),
    ],
    smallest_cases: 6,
    smallest_steps: 1,
    sides: &[
        Side {
            name: "quadratic",
            about: "a walk over the queue of inodes for each name, under one lock",
        },
        Side {
            name: "linear",
            about: "each name refers to its inode, under one lock",
        },
        Side {
            name: "ours",
            about: "lists of each core, which a commit takes and merges",
        },
    ],
    published: &[
        row("fs_mark, 2x2", 16.90, 17.51),
        row("fs_mark, 4x4", 32.08, 31.80),
        row("fs_mark, 8x8", 53.97, 55.01),
        row("fs_mark, 16x16", 78.94, 76.90),
        row("fs_mark, 32x32", 95.82, 95.37),
        row("fs_mark, 64x64", 87.92, 103.38),
        row("fs_mark, 64x1024", 0.73, 126.13),
        row("fs_mark, 64x16384", 2.33, 143.19),
    ],
    threads: ThreadList::OneAndTwo,
    scratch: None,
    measure: &Passes,
};

/// A case by the number of directories and that of files in each.
const fn case(name: &'static str, about: &'static str) -> Case {
    Case { name, about }
}

const fn row(what: &'static str, base: f64, patched: f64) -> Published {
    let unit = "thousand files/s";
    Published {
        what,
        unit,
        base,
        patched,
    }
}

/// The directories of a case, and the files in each.
fn size(case: &Case) -> Option<(usize, u32)> {
    let (directories, files) = case.name.split_once('x')?;
    Some((directories.parse().ok()?, files.parse().ok()?))
}

struct Passes;

impl Measure for Passes {
    fn steps(&self, case: &Case, _: ThreadCount) -> u64 {
        let files = size(case).map_or(1, |(directories, files)| {
            directories as u64 * u64::from(files)
        });
        (FILES / files.max(1)).clamp(1, MOST_PASSES)
    }

    fn memory_bytes(&self, case: &Case) -> u64 {
        let (directories, files) = size(case).unwrap_or_default();
        (directories as u64)
            .saturating_mul(u64::from(files))
            .saturating_mul(FILE_BYTES)
    }

    fn run(
        &self,
        case: &Case,
        side: &Side,
        threads: ThreadCount,
        steps: u64,
        around: &Surroundings<'_>,
    ) -> io::Result<Sample> {
        let (directories, files) = size(case).ok_or(io::ErrorKind::InvalidInput)?;
        let name = match side.name {
            "ours" => "fourscore",
            name => name,
        };
        let workload = FsyncWorkload::by_name("after-empty").ok_or(io::ErrorKind::InvalidInput)?;
        // More threads than directories would have more files.
        let size = FsyncSize {
            threads: ThreadCount::new(threads.get().min(directories)),
            directories,
            files,
        };
        let (mut operations, mut wall, mut longest) = (0, Duration::ZERO, Duration::ZERO);
        let mut counts = Counts::default();
        for _ in 0..steps.max(1) {
            let commits = by_name(name).ok_or(io::ErrorKind::InvalidInput)?;
            let target = FastCommitTarget::new(&*commits, directories);
            let run = workload.run(&target, size, around.clock)?;
            operations += run.operations;
            wall += run.wall;
            longest = longest.max(run.percentile(100));
            let made = target.counts();
            counts.fast_commits += made.fast_commits;
            counts.full_commits += made.full_commits;
            counts.records += made.records;
        }
        let facts = Facts::from([
            ("fast commits", counts.fast_commits as f64),
            ("full commits", counts.full_commits as f64),
            ("records", counts.records as f64),
            ("longest fsync, us", longest.as_secs_f64() * 1e6),
        ]);
        Ok(Sample {
            operations_per_second: operations as f64 / wall.as_secs_f64().max(1e-9),
            facts,
            profile: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;

    #[test]
    fn the_cases_have_the_sizes_of_the_orders_and_a_published_row_each() {
        for (nr, case) in STUDY.cases.iter().enumerate() {
            let (directories, files) = size(case).expect(case.name);
            assert!(directories.is_power_of_two() && files.is_power_of_two());
            assert!(
                STUDY.published[nr]
                    .what
                    .ends_with(&format!(", {}", case.name))
            );
        }
        let last = STUDY.cases.last().expect("there are some");
        assert_eq!(Passes.memory_bytes(last), (1 << 20) * FILE_BYTES);
        assert_eq!(Passes.steps(last, ThreadCount::ONE), 1);
        assert_eq!(Passes.steps(&STUDY.cases[3], ThreadCount::ONE), 128);
    }

    /// Time decides nothing here: the searched queue is slower by two orders of magnitude.
    #[test]
    fn a_search_for_each_name_costs_more_than_a_link() {
        let case = case("16x512", "");
        let clock = MonotonicClock::default();
        let around = Surroundings {
            clock: &clock,
            scratch: None,
        };
        let once = |side: &Side| {
            let sample = Passes.run(&case, side, ThreadCount::ONE, 1, &around);
            let sample = sample.expect(side.name);
            assert!(sample.facts["records"] >= 16.0 * 512.0 * 2.0, "{sample:?}");
            sample.operations_per_second
        };
        // The best of a few: other processes may be in the way.
        let rate = |side| (0..5).map(|_| once(side)).fold(0.0, f64::max);
        let rates: Vec<f64> = STUDY.sides.iter().map(rate).collect();
        assert!(rates[0] * 3.0 < rates[1], "{rates:?}");
        assert!(rates[0] * 3.0 < rates[2], "{rates:?}");
    }
}
