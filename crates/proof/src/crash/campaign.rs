//! **Purpose.** Many seeds on all cores, until enough crash states were checked.
//!
//! **Model.** A seed is done as a whole or not at all, so a campaign is told by the first seed that
//! is not done, and goes on from there. A workload whose threads wait for each other never ends:
//! the caller's thread keeps watch, and reports a seed that is overdue.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, anyhow};
use fourscore_sync::{Arc, Condvar, Mutex, thread};

use super::breaking::Breaking;
use super::session::{Seen, Session, shorten};
use super::workload::Workload;

/// How often the watch looks for what is overdue.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

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
    /// What is done wrong on purpose.
    pub breaking: Breaking,
    /// Where a history with a bad state is kept.
    pub findings: PathBuf,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The first seed that was not done.
    pub next_seed: u64,
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

/// What the threads of a campaign share.
struct Work {
    campaign: Campaign,
    progress: Mutex<Progress>,
    /// A thread has ended.
    changed: Condvar,
}

struct Progress {
    tally: Tally,
    finding: Option<Box<Finding>>,
    /// What is being done now, and since when.
    begun: Vec<(u64, Instant)>,
    /// How many threads have not ended.
    at_work: usize,
}

/// Notes when dropped that a thread has ended, in whichever way.
struct Ended<'w>(&'w Work);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().at_work -= 1;
        self.0.changed.notify_all();
    }
}

impl Campaign {
    /// Works until enough states were checked.
    ///
    /// # Errors
    /// The first thing that was found; what was done besides is not told then. Threads that never
    /// end are left behind.
    pub fn run(&self) -> Result<Tally, Box<Finding>> {
        let tally = Tally {
            next_seed: self.first_seed,
            ..Tally::default()
        };
        let work = Arc::new(Work {
            campaign: self.clone(),
            progress: Mutex::new(Progress {
                tally,
                finding: None,
                begun: Vec::new(),
                at_work: self.threads,
            }),
            changed: Condvar::new(),
        });
        for _ in 0..self.threads {
            let work = Arc::clone(&work);
            thread::spawn(move || work.seeds());
        }
        work.watch()
    }
}

impl Work {
    /// Waits until all threads have ended, or something was found or takes too long.
    fn watch(&self) -> Result<Tally, Box<Finding>> {
        let mut progress = self.progress.lock();
        loop {
            if let Some(finding) = progress.finding.take() {
                // Others end when they see that there is nothing left to do.
                progress.tally.seen.states = self.campaign.states;
                return Err(finding);
            }
            if progress.at_work == 0 {
                return Ok(progress.tally);
            }
            let patience = self.campaign.patience;
            let overdue = |&&(_, begun): &&(u64, Instant)| begun.elapsed() > patience;
            if let Some(&(seed, _)) = progress.begun.iter().find(overdue) {
                progress.tally.seen.states = self.campaign.states;
                return Err(Box::new(Finding {
                    workload: Workload::of(seed),
                    file: None,
                    error: anyhow!("no end after {patience:?}: somebody waits for ever"),
                }));
            }
            self.changed.wait_for(&mut progress, WATCH_INTERVAL);
        }
    }

    fn seeds(&self) {
        let _ended = Ended(self);
        loop {
            let seed = {
                let mut progress = self.progress.lock();
                let has_finding = progress.finding.is_some();
                if has_finding || progress.tally.seen.states >= self.campaign.states {
                    return;
                }
                let seed = progress.tally.next_seed;
                progress.tally.next_seed += 1;
                progress.begun.push((seed, Instant::now()));
                seed
            };
            let result = self.seed(seed);
            let mut progress = self.progress.lock();
            progress.begun.retain(|&(other, _)| other != seed);
            match result {
                Ok(seen) => {
                    progress.tally.histories += 1;
                    progress.tally.seen.add(&seen);
                }
                Err(finding) => progress.finding = Some(finding),
            }
        }
    }

    fn seed(&self, seed: u64) -> Result<Seen, Box<Finding>> {
        let workload = Workload::of(seed);
        let (samples, breaking) = (self.campaign.samples, self.campaign.breaking);
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
        let findings = &self.campaign.findings;
        let workload = session.workload().clone();
        let file = findings.join(format!("fs-{}.history", workload.seed));
        let saved = std::fs::create_dir_all(findings)
            .context("the folder of the findings")
            .and_then(|()| session.save(&file));
        let (file, error) = match saved {
            Ok(()) => (Some(file), error),
            Err(trouble) => {
                let why = format!("the history was not saved: {trouble:#}");
                (None, error.context(why))
            }
        };
        Box::new(Finding {
            workload,
            file,
            error,
        })
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
