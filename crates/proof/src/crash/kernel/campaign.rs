//! **Purpose.** Many seeds of the kernel's, until enough crash states were checked.
//!
//! **Model.** As the campaigns of our own file system: a seed is done as a whole or not at all.

use std::fmt;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result};
use fourscore_testkit::crew::{Crew, Watch, Work};
use fourscore_testkit::programs;

use super::session::{KernelSeen, KernelSession};
use super::workload::of_seed;
use crate::crash::campaign::caught;
use crate::crash::workload::Workload;

/// What to do.
#[derive(Clone, Debug)]
pub struct KernelCampaign {
    /// The first seed.
    pub first_seed: u64,
    /// Crash states to be checked at least.
    pub states: u64,
    /// Random survivals for each cut.
    pub samples: usize,
    /// How many threads work.
    pub threads: usize,
    /// How long a seed may take.
    pub patience: Duration,
    /// Where a history with a bad state is kept.
    pub findings: PathBuf,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelTally {
    /// Histories.
    pub histories: u64,
    /// What their states showed.
    pub seen: KernelSeen,
}

/// A crash state that is not good, or a history that could not be recorded.
#[derive(Debug)]
pub struct KernelFinding {
    /// What was done, as short as it could be made.
    pub workload: Workload,
    /// The file the history is in, if there is one.
    pub file: Option<PathBuf>,
    /// What is wrong.
    pub error: Error,
}

impl fmt::Display for KernelFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:#}", self.workload.seed, self.error)?;
        let log = self.workload.shape.log;
        writeln!(f, "{log:?}, {}", self.workload.describe())?;
        if let Some(file) = &self.file {
            let file = file.display();
            write!(
                f,
                "look at it again: cargo xtask crash --kernel --replay {file}"
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for KernelFinding {}

impl KernelCampaign {
    /// Works until enough states were checked. Gives the first seed that was not done, and what
    /// was done.
    ///
    /// # Errors
    /// The first thing that was found; more faults that are told of than there can be.
    pub fn run(&self) -> Result<(u64, KernelTally)> {
        let crew = Crew {
            first: self.first_seed,
            threads: self.threads,
            patience: self.patience,
        };
        let (next_seed, tally) = crew.run(self.clone())?;
        tally.seen.ensure_little_is_forgiven()?;
        Ok((next_seed, tally))
    }

    fn seed(&self, seed: u64) -> Result<KernelSeen, Box<KernelFinding>> {
        let workload = of_seed(seed);
        let session = match caught(|| KernelSession::record(workload.clone())) {
            Ok(session) => session,
            Err(error) => {
                let file = None;
                return Err(Box::new(KernelFinding {
                    workload,
                    file,
                    error,
                }));
            }
        };
        let failure = match caught(|| Ok(session.explore(self.samples, None))) {
            Ok(Ok(seen)) => return Ok(seen),
            Ok(Err(failure)) => Error::from(failure),
            Err(panic) => panic,
        };
        match caught(|| KernelSession::shorten(&workload, self.samples)) {
            Ok((shorter, failure)) => Err(self.keep(&shorter, failure.into())),
            Err(_) => Err(self.keep(&session, failure)),
        }
    }

    /// Saves the history of a finding.
    fn keep(&self, session: &KernelSession, error: Error) -> Box<KernelFinding> {
        let workload = session.workload().clone();
        let file = format!("kernel-{}", workload.seed);
        let (file, error) = programs::keep(&self.findings, &file, error, |file| session.save(file));
        Box::new(KernelFinding {
            workload,
            file,
            error,
        })
    }
}

impl Work for KernelCampaign {
    type Part = u64;
    type Done = KernelTally;
    type Finding = Box<KernelFinding>;

    fn is_enough(&self, _: u64, done: &KernelTally) -> bool {
        done.seen.states >= self.states
    }

    fn piece(&self, seed: u64, watch: &Watch<'_, u64>) -> Result<KernelTally, Box<KernelFinding>> {
        watch.begins(seed);
        Ok(KernelTally {
            histories: 1,
            seen: self.seed(seed)?,
        })
    }

    fn overdue(&self, seed: u64, error: Error) -> Box<KernelFinding> {
        Box::new(KernelFinding {
            workload: of_seed(seed),
            file: None,
            error,
        })
    }
}

impl AddAssign for KernelTally {
    fn add_assign(&mut self, done: Self) {
        self.histories += done.histories;
        self.seen.add(&done.seen);
    }
}
