//! **Purpose.** Many seeds on all cores, until enough crash states were checked.
//!
//! **Model.** A seed is a chain of histories: each begins on what recovery made of one crash state
//! of the one before. A seed is done as a whole or not at all, so a campaign is told by the first
//! seed that is not done, and goes on from there.
//!
//! A history whose threads wait for each other never ends, and neither does a recovery that goes
//! round in circles. So the caller's thread keeps watch over how long each of them takes, and
//! reports one that is overdue with its seed; its threads cannot be stopped and stay behind.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use fourscore_sync::{Arc, Condvar, Mutex, thread};

use super::session::{Name, Seen, Session};
use super::setup::Breaking;
use crate::explore::rng::{Rng, mix};

/// Histories in the chain of a seed.
const GENERATIONS: u32 = 3;

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
    /// How long one history, or the recovery of one state, may take. Both are a matter of
    /// milliseconds on a machine that does nothing else.
    pub patience: Duration,
    /// What the journal does wrong on purpose.
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
    /// ... whose journal was aborted, because its device broke.
    pub aborted: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// What their states showed.
    pub seen: Seen,
}

/// A crash state that is not good, or a journal that failed without a reason or never ended.
#[derive(Debug)]
pub struct Finding {
    /// The history.
    pub name: Name,
    /// The file it is in, if there is a history.
    pub file: Option<PathBuf>,
    /// What is wrong.
    pub error: Error,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Name { seed, generation } = self.name;
        writeln!(f, "seed {seed}, generation {generation}: {:#}", self.error)?;
        if let Some(file) = &self.file {
            write!(
                f,
                "look at it again: cargo xtask crash --replay {}",
                file.display()
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for Finding {}

impl Campaign {
    /// Works until enough states were checked.
    ///
    /// # Errors
    /// The first thing that was found; what was done besides is not told then. Threads that never
    /// end are left behind.
    ///
    /// # Panics
    /// If one of the threads does.
    pub fn run(&self) -> Result<Tally, Box<Finding>> {
        let work = Arc::new(Work {
            campaign: self.clone(),
            progress: Mutex::new(Progress {
                tally: Tally {
                    next_seed: self.first_seed,
                    ..Tally::default()
                },
                finding: None,
                begun: Vec::new(),
                at_work: self.threads,
            }),
            changed: Condvar::new(),
        });
        let start = |_| {
            let work = Arc::clone(&work);
            thread::spawn(move || work.seeds())
        };
        let threads: Vec<_> = (0..self.threads).map(start).collect();
        let tally = work.watch()?;
        for thread in threads {
            thread.join().expect("a thread of the campaign");
        }
        Ok(tally)
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
            let overdue = |&&(_, begun): &&(Name, Instant)| begun.elapsed() > patience;
            if let Some(&(name, _)) = progress.begun.iter().find(overdue) {
                progress.tally.seen.states = self.campaign.states;
                let error = anyhow!("no end after {patience:?}: somebody waits for ever");
                let file = None;
                return Err(Box::new(Finding { name, file, error }));
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
                seed
            };
            let result = self.seed(seed);
            let mut progress = self.progress.lock();
            progress.begun.retain(|(name, _)| name.seed != seed);
            match result {
                Ok(done) => progress.tally.add(&done),
                Err(finding) => progress.finding = Some(finding),
            }
        }
    }

    /// Notes that something begins that is a part of `name`, and that what was before has ended.
    fn begin(&self, name: Name) {
        let mut progress = self.progress.lock();
        progress.begun.retain(|(other, _)| other.seed != name.seed);
        progress.begun.push((name, Instant::now()));
    }

    /// The chain of a seed.
    fn seed(&self, seed: u64) -> Result<Tally, Box<Finding>> {
        let mut tally = Tally::default();
        let mut name = Name {
            seed,
            generation: 0,
        };
        let broken = |name| {
            move |error| {
                let file = None;
                Box::new(Finding { name, file, error })
            }
        };
        let breaking = self.campaign.breaking;
        self.begin(name);
        let mut session = Session::record(seed, breaking).map_err(broken(name))?;
        loop {
            let survivor = self.session(&session, &mut tally)?;
            name.generation += 1;
            if name.generation == GENERATIONS {
                return Ok(tally);
            }
            self.begin(name);
            session = session.go_on(&survivor, breaking).map_err(broken(name))?;
        }
    }

    /// Explores one history, and gives the recovered bytes of one of its states.
    fn session(&self, session: &Session, tally: &mut Tally) -> Result<Vec<u8>, Box<Finding>> {
        let name = session.name();
        let mut rng = Rng::new(mix(name.seed ^ u64::from(name.generation)));
        let mut survivor = session.history().base.clone();
        // Any state may be the one: the n-th replaces the choice with a probability of 1/n.
        let mut shown = 0;
        let effort = session.effort(self.campaign.samples, None);
        self.begin(name);
        let seen = session.explore(effort, |_, disk| {
            self.begin(name);
            shown += 1;
            if rng.happens(1, shown) {
                survivor = disk.bytes();
            }
        });
        let seen = seen.map_err(|failure| self.keep(session, failure.into()))?;
        tally.histories += 1;
        tally.aborted += u64::from(session.is_aborted());
        tally.transactions += u64::from(session.transactions());
        tally.seen.add(&seen);
        Ok(survivor)
    }

    /// Saves the history of a finding.
    fn keep(&self, session: &Session, error: Error) -> Box<Finding> {
        let name = session.name();
        let findings = &self.campaign.findings;
        let file = findings.join(format!("{}-{}.history", name.seed, name.generation));
        let saved = std::fs::create_dir_all(findings)
            .context("the folder of the findings")
            .and_then(|()| session.save(&file));
        match saved {
            Ok(()) => Box::new(Finding {
                name,
                file: Some(file),
                error,
            }),
            Err(trouble) => Box::new(Finding {
                name,
                file: None,
                error: error.context(format!("the history was not saved: {trouble:#}")),
            }),
        }
    }
}

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
    begun: Vec<(Name, Instant)>,
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

impl Tally {
    fn add(&mut self, done: &Self) {
        self.histories += done.histories;
        self.aborted += done.aborted;
        self.transactions += done.transactions;
        self.seen.add(&done.seen);
    }
}
