//! **Purpose.** Experiments whose runs are cases: a size, or a load. Some are on a part of the file
//! system alone, a published change against what was there before it and against ours; others are
//! on whole file systems of several kinds.
//!
//! **Not here.** Experiments on the block allocator ([`crate::alloc::experiment`]).
//!
//! **Model.** As with the allocator: in a round every side runs once, A B C A B C ..., each from an
//! empty state. A side's figure is the median of its rounds, the lower one of the middle two; its
//! facts are those of the round with that figure. The first side is the reference of ratios. A side
//! that this machine cannot run is left out, and named with what is missing.
//!
//! | module | responsibility |
//! |---|---|
//! | [`fast_commits`] | `s2-fastcommit`: records of new names by a search or by a link |
//! | [`xattr_cache`] | `s3-xattrcache`: one lock, a lock for each bucket, or no cache |
//! | [`peers`] | `peers` and `scale`: file systems of the kernel, fuse2fs and ours, side by side |
//! | [`aging`] | `aging`: file systems that are nearly full and whose files were replaced |

pub mod aging;
pub mod fast_commits;
pub mod peers;
pub mod xattr_cache;

use std::collections::BTreeMap;
use std::io;

use crate::alloc::Published;
use crate::clock::Clock;
use crate::comparison::{Rounds, ThreadCount};
use crate::profile::Profile;
use crate::scratch::Scratch;

/// A side of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Its name in reports.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
}

/// A size or a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
}

/// Further figures of a run, by name.
pub type Facts = BTreeMap<&'static str, f64>;

/// The figures of one run of one side.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Operations of all threads per second.
    pub operations_per_second: f64,
    /// Further figures.
    pub facts: Facts,
    /// Where the time of the threads went, if a profile was on and the side has sections.
    pub profile: Option<Profile>,
}

/// What a run uses.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The source of times.
    pub clock: &'a dyn Clock,
    /// The place for file systems; `None` for experiments without any.
    pub scratch: Option<&'a Scratch>,
}

impl Surroundings<'_> {
    fn scratch(&self) -> io::Result<&Scratch> {
        let missing = || io::Error::other("there is no folder for scratch file systems");
        self.scratch.ok_or_else(missing)
    }
}

/// The size of the file systems of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchSize {
    /// Bytes of each image, which is sparse.
    pub image_bytes: u64,
    /// Bytes that the images take at most at a time.
    pub host_bytes: u64,
}

/// The numbers of threads that an experiment runs with by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadList {
    /// One.
    One,
    /// One and two.
    OneAndTwo,
    /// 1, 2, 4, ... up to the cores of the machine, at least to four.
    Doubling,
}

impl ThreadList {
    /// The numbers on a machine with `cores` cores.
    #[must_use]
    pub fn counts(self, cores: usize) -> Vec<ThreadCount> {
        match self {
            Self::One => vec![ThreadCount::ONE],
            Self::OneAndTwo => vec![ThreadCount::ONE, ThreadCount::new(2)],
            Self::Doubling => ThreadCount::doubling_to(ThreadCount::new(cores.max(4))),
        }
    }
}

/// What a study measures.
pub trait Measure: Sync {
    /// Steps of each thread by default.
    fn steps(&self, case: &Case, threads: ThreadCount) -> u64;

    /// The most memory that a run takes, in bytes, with a margin.
    fn memory_bytes(&self, case: &Case) -> u64;

    /// What this machine lacks for a side; `None` if it can be run.
    fn missing(&self, _: &Side) -> Option<String> {
        None
    }

    /// Whether the time of a side is divided into sections while a profile is on.
    fn has_sections(&self, _: &Side) -> bool {
        false
    }

    /// Runs a side once.
    ///
    /// # Errors
    /// The first failure of a worker.
    fn run(
        &self,
        case: &Case,
        side: &Side,
        threads: ThreadCount,
        steps: u64,
        around: &Surroundings<'_>,
    ) -> io::Result<Sample>;
}

/// An experiment in cases.
#[derive(Clone, Copy)]
pub struct Study {
    /// Its name on the command line.
    pub name: &'static str,
    /// The question it answers.
    pub about: &'static str,
    /// Where the published figures are from; empty if nothing was published.
    pub source: &'static str,
    /// What each thread does, in a few words.
    pub load: &'static str,
    /// The cases.
    pub cases: &'static [Case],
    /// How many of the cases, from the first on, are in the smallest run.
    pub smallest_cases: usize,
    /// Steps of each thread in the smallest run.
    pub smallest_steps: u64,
    /// The sides, the base first and ours last.
    pub sides: &'static [Side],
    /// Figures of the publication; none if nothing was published.
    pub published: &'static [Published],
    /// Numbers of threads by default.
    pub threads: ThreadList,
    /// The size of its file systems, if it has any.
    pub scratch: Option<ScratchSize>,
    /// What is measured.
    pub measure: &'static dyn Measure,
}

/// How much of a study is run.
#[derive(Clone, Debug)]
pub struct StudyScale {
    /// The cases, one after the other.
    pub cases: Vec<Case>,
    /// The sides, in turns.
    pub sides: Vec<Side>,
    /// Numbers of threads, one after the other.
    pub threads: Vec<ThreadCount>,
    /// Steps of each thread; `None` for those of the case.
    pub steps: Option<u64>,
    /// Runs of each side; at least one is made.
    pub rounds: Rounds,
}

/// The runs of one side in one case.
#[derive(Clone, Debug, PartialEq)]
pub struct SideRuns {
    /// The side.
    pub side: Side,
    /// Operations per second of each round, in order.
    pub samples: Vec<f64>,
    /// The round with the median.
    pub median: Sample,
}

impl SideRuns {
    fn of(side: Side, mut rounds: Vec<Sample>) -> Option<Self> {
        let samples = rounds.iter().map(|sample| sample.operations_per_second);
        let samples: Vec<f64> = samples.collect();
        rounds.sort_by(|a, b| a.operations_per_second.total_cmp(&b.operations_per_second));
        let middle = rounds.len().saturating_sub(1) / 2;
        let median = rounds.into_iter().nth(middle)?;
        Some(Self {
            side,
            samples,
            median,
        })
    }
}

impl Study {
    /// All of them.
    pub const ALL: &[Self] = &[
        fast_commits::STUDY,
        xattr_cache::STUDY,
        peers::PEERS,
        peers::SCALE,
        aging::STUDY,
    ];

    /// The study with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|study| study.name == name)
    }

    /// The case with this name.
    #[must_use]
    pub fn case(&self, name: &str) -> Option<Case> {
        self.cases.iter().copied().find(|case| case.name == name)
    }

    /// The side with this name.
    #[must_use]
    pub fn side(&self, name: &str) -> Option<Side> {
        self.sides.iter().copied().find(|side| side.name == name)
    }

    /// The smallest run: the first cases with two threads, each side once.
    #[must_use]
    pub fn smallest(&self) -> StudyScale {
        StudyScale {
            cases: self
                .cases
                .iter()
                .take(self.smallest_cases)
                .copied()
                .collect(),
            sides: self.sides.to_vec(),
            threads: vec![ThreadCount::new(2)],
            steps: Some(self.smallest_steps),
            rounds: Rounds(1),
        }
    }

    /// The most memory that a run takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self, scale: &StudyScale) -> u64 {
        let each = scale
            .cases
            .iter()
            .map(|case| self.measure.memory_bytes(case));
        each.max().unwrap_or(0)
    }

    /// Runs every side in each case with each number of threads, and passes the results of one case
    /// and number to `each` when they are complete.
    ///
    /// # Errors
    /// The first failure of a worker, with the name of the side; or of `each`.
    pub fn run(
        &self,
        scale: &StudyScale,
        around: &Surroundings<'_>,
        mut each: impl FnMut(&Case, ThreadCount, &[SideRuns]) -> io::Result<()>,
    ) -> io::Result<()> {
        for case in &scale.cases {
            for &threads in &scale.threads {
                let steps = scale.steps;
                let steps = steps.unwrap_or_else(|| self.measure.steps(case, threads));
                let mut rounds = vec![Vec::new(); scale.sides.len()];
                for _ in 0..scale.rounds.0.max(1) {
                    for (side, samples) in scale.sides.iter().zip(&mut rounds) {
                        let sample = self.measure.run(case, side, threads, steps, around);
                        samples.push(sample.map_err(|why| named(side, &why))?);
                    }
                }
                let sides = scale.sides.iter().zip(rounds);
                let runs: Vec<SideRuns> = sides
                    .filter_map(|(&side, samples)| SideRuns::of(side, samples))
                    .collect();
                each(case, threads, &runs)?;
            }
        }
        Ok(())
    }
}

/// A failure, with the name of the side.
fn named(side: &Side, why: &io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{}: {why}", side.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;

    #[test]
    fn every_study_runs_at_its_smallest_size_and_the_last_side_is_ours() {
        let clock = MonotonicClock::default();
        let around = Surroundings {
            clock: &clock,
            scratch: None,
        };
        for study in Study::ALL {
            assert!(study.case("none").is_none());
            // The others need the command, which makes file systems: its tests run them.
            if study.scratch.is_some() {
                continue;
            }
            assert_eq!(study.sides.last().map(|side| side.name), Some("ours"));
            assert!(!study.published.is_empty());
            let scale = study.smallest();
            let mut seen = Vec::new();
            let run = study.run(&scale, &around, |case, threads, sides| {
                assert_eq!((threads.get(), sides.len()), (2, study.sides.len()));
                for runs in sides {
                    assert_eq!(runs.samples.len(), 1);
                    assert!(runs.median.operations_per_second > 0.0, "{runs:?}");
                    assert!(!runs.median.facts.is_empty());
                }
                seen.push(case.name);
                Ok(())
            });
            run.expect(study.name);
            let expected: Vec<_> = scale.cases.iter().map(|case| case.name).collect();
            assert_eq!(seen, expected);
            assert!(study.memory_bytes(&scale) > 0);
        }
    }

    #[test]
    fn threads_are_doubled_up_to_the_cores_and_to_four_at_least() {
        let counts = |list: ThreadList, cores| {
            let counts = list.counts(cores).into_iter();
            counts.map(ThreadCount::get).collect::<Vec<_>>()
        };
        assert_eq!(counts(ThreadList::Doubling, 2), [1, 2, 4]);
        assert_eq!(counts(ThreadList::Doubling, 12), [1, 2, 4, 8, 12]);
        assert_eq!(counts(ThreadList::OneAndTwo, 12), [1, 2]);
        assert_eq!(counts(ThreadList::One, 12), [1]);
    }

    #[test]
    fn without_a_folder_an_experiment_on_file_systems_fails_with_the_name_of_the_side() {
        let clock = MonotonicClock::default();
        let around = Surroundings {
            clock: &clock,
            scratch: None,
        };
        let study = Study::by_name("peers").expect("it exists");
        let run = study.run(&study.smallest(), &around, |_, _, _| Ok(()));
        let why = run.expect_err("no folder").to_string();
        assert!(why.starts_with("ext4: there is no folder"), "{why}");
    }

    #[test]
    fn the_facts_of_a_side_are_those_of_its_median() {
        let sample = |rate: f64| Sample {
            operations_per_second: rate,
            facts: Facts::from([("rate", rate)]),
            profile: None,
        };
        let side = Study::ALL[0].sides[0];
        let runs = SideRuns::of(side, [5.0, 1.0, 4.0, 2.0].map(sample).to_vec());
        let runs = runs.expect("rounds");
        assert_eq!(runs.median, sample(2.0));
        assert_eq!(runs.samples, [5.0, 1.0, 4.0, 2.0]);
        assert!(SideRuns::of(side, Vec::new()).is_none());
    }
}
