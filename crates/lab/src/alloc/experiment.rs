//! **Purpose.** Experiments: a published change of ext4's allocator against what was there before
//! it and against ours, on a file system and with a workload like those of the publication.
//!
//! **Not here.** The experiments themselves ([`crate::alloc::published`]).
//!
//! **Model.** Every side is the same allocator with other switches, so that sides differ in what
//! the change is about and in nothing else. In a round every side runs once, A B C A B C ..., each
//! on a file system of its own from the same seed. A side's figure is the median of its rounds; its
//! counters are those of the round with that figure. The first side is the reference of ratios.
//! Published figures are of other machines: they stand beside ours for direction and ratio.

use std::io;

use crate::alloc::bench::AllocBench;
use crate::alloc::catalogue::{Switch, SwitchError};
use crate::alloc::outcome::AllocOutcome;
use crate::alloc::scenario::Scenario;
use crate::clock::Clock;
use crate::comparison::{Rounds, ThreadCount};
use crate::workload::{Until, Workload};

/// A side of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its name in reports.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// The switches by which it differs from the defaults: name and value.
    pub switches: &'static [(&'static str, &'static str)],
}

/// A published pair of figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Machine, file system and row of the table.
    pub what: &'static str,
    /// The unit of both figures.
    pub unit: &'static str,
    /// Before the change.
    pub base: f64,
    /// With it.
    pub patched: f64,
}

/// How much of an experiment is run.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The file system.
    pub scenario: Scenario,
    /// Numbers of threads, one after the other.
    pub threads: Vec<ThreadCount>,
    /// The length of each run.
    pub until: Until,
    /// Runs of each side with each number of threads; at least one is made.
    pub rounds: Rounds,
}

/// An experiment.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The question it answers.
    pub about: &'static str,
    /// Where the published figures are from.
    pub source: &'static str,
    /// What each thread does, in a few words.
    pub load: &'static str,
    /// What each thread does.
    pub workload: &'static dyn Workload,
    /// The name of the scenario it runs on by default.
    pub scenario: &'static str,
    /// Seconds of a run by default; `None` for a number of steps, because files stay.
    pub seconds: Option<f64>,
    /// Steps of all threads together by default, if a run is not limited by time.
    pub steps: u64,
    /// Steps of each thread in the smallest run, which takes a second or two.
    pub smallest_steps: u64,
    /// The sides, the base first and ours last.
    pub variants: &'static [Variant],
    /// Figures of the publication.
    pub published: &'static [Published],
}

/// The runs of one side with one number of threads.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The side.
    pub variant: Variant,
    /// Operations per second of each round, in order.
    pub samples: Vec<f64>,
    /// The outcome of the round with the median.
    pub outcome: AllocOutcome,
}

impl Measured {
    /// The median of the rounds, the lower one of the middle two.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        self.outcome.operations_per_second()
    }

    /// The slowest and the fastest round.
    #[must_use]
    pub fn range(&self) -> (f64, f64) {
        let bounds = (f64::INFINITY, 0_f64);
        self.samples.iter().fold(bounds, |(least, most), &sample| {
            (least.min(sample), most.max(sample))
        })
    }

    fn of(variant: Variant, mut rounds: Vec<AllocOutcome>) -> Option<Self> {
        let samples = rounds.iter().map(AllocOutcome::operations_per_second);
        let samples: Vec<f64> = samples.collect();
        rounds.sort_by(|a, b| {
            let (a, b) = (a.operations_per_second(), b.operations_per_second());
            a.total_cmp(&b)
        });
        let middle = rounds.len().saturating_sub(1) / 2;
        let outcome = rounds.into_iter().nth(middle)?;
        Some(Self {
            variant,
            samples,
            outcome,
        })
    }
}

impl Experiment {
    /// The run of a side on a file system.
    ///
    /// # Errors
    /// [`SwitchError`], if the side names a switch or a value that does not exist.
    pub fn bench(&self, variant: &Variant, scenario: Scenario) -> Result<AllocBench, SwitchError> {
        let mut bench = AllocBench::on(scenario);
        let mut switches = variant.switches.iter();
        switches.try_for_each(|(name, value)| Switch::set(&mut bench, name, value))?;
        Ok(bench)
    }

    /// The smallest run: with two threads, each side once.
    #[must_use]
    pub fn smallest(&self, scenario: Scenario) -> Scale {
        Scale {
            scenario,
            threads: vec![ThreadCount::new(2)],
            until: Until::Steps(self.smallest_steps),
            rounds: Rounds(1),
        }
    }

    /// Runs every side with each number of threads, and passes the results of one number to `each`
    /// when they are complete.
    ///
    /// # Errors
    /// A file system cannot be set up, or the first failure of a worker.
    pub fn run(
        &self,
        scale: &Scale,
        clock: &dyn Clock,
        mut each: impl FnMut(ThreadCount, &[Measured]) -> io::Result<()>,
    ) -> io::Result<()> {
        for &threads in &scale.threads {
            let mut outcomes: Vec<Vec<AllocOutcome>> = vec![Vec::new(); self.variants.len()];
            for _ in 0..scale.rounds.0.max(1) {
                for (variant, outcomes) in self.variants.iter().zip(&mut outcomes) {
                    let bench = self.bench(variant, scale.scenario);
                    let bench = bench.map_err(io::Error::other)?;
                    let outcome = bench.run(self.workload, threads, scale.until, clock)?;
                    outcomes.push(outcome);
                }
            }
            let sides = self.variants.iter().zip(outcomes);
            let measured: Vec<Measured> = sides
                .filter_map(|(&variant, outcomes)| Measured::of(variant, outcomes))
                .collect();
            each(threads, &measured)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::workload::Fallocate2;

    #[test]
    fn the_counters_of_a_side_are_those_of_its_median() {
        let bench = AllocBench::on(Scenario::by_name("16g-aged-64k").expect("it exists"));
        let run = || {
            let clock = MonotonicClock::default();
            bench.run(&Fallocate2, ThreadCount::ONE, Until::Steps(10), &clock)
        };
        let walls = [50, 10, 40, 20].map(std::time::Duration::from_millis);
        let rounds = walls.map(|wall| AllocOutcome {
            wall,
            ..run().expect("a run")
        });
        let variant = Variant {
            name: "ours",
            about: "",
            switches: &[],
        };
        let measured = Measured::of(variant, rounds.to_vec()).expect("rounds");
        assert_eq!(measured.outcome.wall, walls[2]);
        assert_eq!(measured.samples.len(), 4);
        let (least, most) = measured.range();
        assert!(least < measured.operations_per_second());
        assert!(most > 2.0 * measured.operations_per_second());
    }
}
