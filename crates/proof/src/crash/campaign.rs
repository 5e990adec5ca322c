//! **Purpose.** Many seeds on all cores, until enough crash states were checked.
//!
//! **Model.** A seed is done as a whole or not at all, so a campaign is told by the first seed that
//! is not done, and goes on from there. One that does not end is reported by the watch of the crew.

use std::any::Any;
use std::fmt;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, anyhow};
use fourscore_testkit::crew::{Crew, Watch, Work};
use fourscore_testkit::programs;

use super::breaking::Breaking;
use super::session::{Seen, Session, shorten};
use super::workload::{Format, Workload};

/// What to do.
#[derive(Clone, Debug)]
pub struct Campaign {
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
    /// What the file systems have of the format.
    pub format: Format,
    /// What is done wrong on purpose.
    pub breaking: Breaking,
    /// Where a history with a bad state is kept.
    pub findings: PathBuf,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Histories.
    pub histories: u64,
    /// What their states showed.
    pub seen: Seen,
}

/// A crash state that is not good, or a history that failed without a reason or never ended.
#[derive(Debug)]
pub struct Finding {
    /// What was done, as short as it could be made.
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
            write!(
                f,
                "look at it again: cargo xtask crash --fs --replay {file}"
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for Finding {}

impl Campaign {
    /// Works until enough states were checked. Gives the first seed that was not done, and what
    /// was done.
    ///
    /// # Errors
    /// The first thing that was found; what was done besides is not told then. Threads that never
    /// end are left behind.
    pub fn run(&self) -> Result<(u64, Tally), Box<Finding>> {
        let crew = Crew {
            first: self.first_seed,
            threads: self.threads,
            patience: self.patience,
        };
        crew.run(self.clone())
    }

    fn seed(&self, seed: u64) -> Result<Seen, Box<Finding>> {
        let workload = Workload::on(self.format, seed);
        let (samples, breaking) = (self.samples, self.breaking);
        let recorded = caught(|| Session::record(workload.clone(), breaking));
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
        if workload.is_repeatable()
            && let Ok((shorter, failure)) = caught(|| shorten(&workload, samples, breaking))
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
            workload: Workload::on(self.format, seed),
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

/// A panic as an error.
pub(super) fn caught<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(panic) => Err(anyhow!("panic: {}", text_of(&*panic))),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without words").to_owned()
}
