//! **Purpose.** Runs many seeds on all cores, until enough crash states were checked.
//!
//! **Model.** A seed is done completely or not at all, so the progress of a campaign is the first
//! seed that is not done. The worker pool reports a seed that takes too long.

use std::any::Any;
use std::fmt;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, anyhow};
use fourscore_testkit::programs;
use fourscore_testkit::worker_pool::{Watch, Work, WorkerPool};

use super::injected::InjectedFault;
use super::session::{Seen, Session, shorten};
use super::workload::{Format, Workload};

/// A campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
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
    /// The format of the file systems.
    pub format: Format,
    /// The journal of the file systems.
    pub log: Log,
    /// The fault to inject.
    pub injected: InjectedFault,
    /// Whether a history that shows a failure is made as short as it can be, for people to read it.
    /// It takes many times as long as to find it.
    pub shortens: bool,
    /// The folder for histories that show a failure.
    pub findings: PathBuf,
}

/// The journal of the file systems of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Log {
    /// What the seed says: a journal without fast commits, or none.
    #[default]
    Usual,
    /// A journal with fast commits.
    FastCommits,
}

/// The results of a campaign.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Recorded histories.
    pub histories: u64,
    /// Counts of their states.
    pub seen: Seen,
}

/// A crash state that was recovered wrongly, or a history that failed or did not end.
#[derive(Debug)]
pub struct Finding {
    /// The workload, as short as it could be made if that was asked for.
    pub workload: Workload,
    /// The file the history is in, if there is one.
    pub file: Option<PathBuf>,
    /// What is wrong.
    pub error: Error,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:#}", self.workload.seed, self.error)?;
        writeln!(f, "{}", self.workload.describe())?;
        if let Some(file) = &self.file {
            let file = file.display();
            write!(f, "replay it with: cargo xtask crash --fs --replay {file}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Finding {}

impl Campaign {
    /// Runs until enough states were checked. Returns the first seed that was not done, and the
    /// results.
    ///
    /// # Errors
    /// The first failure, without the other results. Threads that do not end are left running.
    pub fn run(&self) -> Result<(u64, Tally), Box<Finding>> {
        let pool = WorkerPool {
            first: self.first_seed,
            threads: self.threads,
            patience: self.patience,
        };
        pool.run(self.clone())
    }

    fn workload(&self, seed: u64) -> Workload {
        match self.log {
            Log::Usual => Workload::on(self.format, seed),
            Log::FastCommits => Workload::with_fast_commits(seed),
        }
    }

    fn seed(&self, seed: u64) -> Result<Seen, Box<Finding>> {
        let workload = self.workload(seed);
        let (samples, injected) = (self.samples, self.injected);
        let recorded = caught(|| Session::record(workload.clone(), injected));
        let session = match recorded {
            Ok(session) => session,
            Err(error) => {
                let file = None;
                return Err(Box::new(Finding {
                    workload,
                    file,
                    error,
                }));
            }
        };
        let failure = match caught(|| Ok(session.explore(samples, None))) {
            Ok(Ok(seen)) => return Ok(seen),
            Ok(Err(failure)) => Error::from(failure),
            Err(panic) => return Err(self.keep(&session, panic)),
        };
        if self.shortens
            && workload.is_repeatable()
            && let Ok((shorter, failure)) = caught(|| shorten(&workload, samples, injected))
        {
            return Err(self.keep(&shorter, failure.into()));
        }
        Err(self.keep(&session, failure))
    }

    /// Saves the history of a finding.
    fn keep(&self, session: &Session, error: Error) -> Box<Finding> {
        let workload = session.workload().clone();
        let file = format!("fs-{}", workload.seed);
        let (file, error) = programs::keep(&self.findings, &file, error, |file| session.save(file));
        Box::new(Finding {
            workload,
            file,
            error,
        })
    }
}

impl Work for Campaign {
    type Part = u64;
    type Done = Tally;
    type Finding = Box<Finding>;

    fn is_enough(&self, _: u64, done: &Tally) -> bool {
        done.seen.states >= self.states
    }

    fn piece(&self, seed: u64, watch: &Watch<'_, u64>) -> Result<Tally, Box<Finding>> {
        watch.begins(seed);
        Ok(Tally {
            histories: 1,
            seen: self.seed(seed)?,
        })
    }

    fn overdue(&self, seed: u64, error: Error) -> Box<Finding> {
        Box::new(Finding {
            workload: self.workload(seed),
            file: None,
            error,
        })
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, done: Self) {
        self.histories += done.histories;
        self.seen.add(&done.seen);
    }
}

/// Runs `work`, and returns a panic as an error.
pub(super) fn caught<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(panic) => Err(anyhow!("panic: {}", text_of(&*panic))),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_owned()
}
