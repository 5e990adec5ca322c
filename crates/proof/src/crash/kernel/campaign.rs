//! **Purpose.** Runs many seeds on the kernel's ext4, until enough crash states were checked.
//!
//! **Model.** As the campaigns of our own file system: a seed is done completely or not at all.

use std::fmt;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result};
use fourscore_testkit::programs;
use fourscore_testkit::worker_pool::{Watch, Work, WorkerPool};

use super::session::{KernelSeen, KernelSession};
use super::workload::of_seed;
use crate::crash::campaign::caught;
use crate::crash::workload::Workload;

/// A campaign.
#[derive(Clone, Debug)]
pub struct KernelCampaign {
    /// The first seed.
    pub first_seed: u64,
    /// The least number of crash states to check.
    pub states: u64,
    /// Random selections of surviving writes for each cut.
    pub samples: usize,
    /// The number of threads.
    pub threads: usize,
    /// How long a seed may take.
    pub patience: Duration,
    /// The folder for histories that show a failure.
    pub findings: PathBuf,
}

/// The results of a campaign.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelTally {
    /// Recorded histories.
    pub histories: u64,
    /// Counts of their states.
    pub seen: KernelSeen,
}

/// A crash state that was recovered wrongly, or a history that could not be recorded.
#[derive(Debug)]
pub struct KernelFinding {
    /// The workload, as short as it could be made.
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
                "replay it with: cargo xtask crash --kernel --replay {file}"
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for KernelFinding {}

impl KernelCampaign {
    /// Runs until enough states were checked. Returns the first seed that was not done, and the
    /// results.
    ///
    /// # Errors
    /// The first failure; or too many results that known bugs explain.
    pub fn run(&self) -> Result<(u64, KernelTally)> {
        let pool = WorkerPool {
            first: self.first_seed,
            threads: self.threads,
            patience: self.patience,
        };
        let (next_seed, tally) = pool.run(self.clone())?;
        tally.seen.ensure_few_known_bugs()?;
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
