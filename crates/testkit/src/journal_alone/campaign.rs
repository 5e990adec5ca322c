//! **Purpose.** Many seeds on all cores, until enough crash states were checked.
//!
//! **Model.** A seed is a chain of histories: each begins on one recovered crash state of the
//! previous one. A seed is done completely or not at all, so the first seed that is not done
//! describes the progress, and a later campaign can continue there.
//!
//! The watchdog of the worker pool measures each history and each recovery, so that one that does
//! not end is reported with its seed.

use std::fmt;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result};

use super::session::{Name, Seen, Session};
use super::setup::Breaking;
use crate::explore::rng::{Rng, mix};
use crate::programs;
use crate::worker_pool::{Watch, Work, WorkerPool};

/// Histories in the chain of a seed.
const GENERATIONS: u32 = 3;

/// The parameters of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The first seed.
    pub first_seed: u64,
    /// Crash states to be checked at least.
    pub states: u64,
    /// Random survivals for each cut.
    pub samples: usize,
    /// The number of threads.
    pub threads: usize,
    /// How long one history, or the recovery of one state, may take. Both are a matter of
    /// milliseconds on a machine that does nothing else.
    pub patience: Duration,
    /// The injected fault of the journal.
    pub breaking: Breaking,
    /// The folder for histories with a bad state.
    pub findings: PathBuf,
}

/// Counts of what was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Histories.
    pub histories: u64,
    /// ... whose journal was aborted because its device failed.
    pub aborted: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Counts over their states.
    pub seen: Seen,
}

/// A bad crash state, or a journal that failed without a cause or did not end.
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
    /// Works until enough states were checked. Returns the first seed that was not done, and the
    /// counts.
    ///
    /// # Errors
    /// The first finding, without the counts. Threads that never end are left running.
    ///
    /// # Panics
    /// If one of the threads does.
    pub fn run(&self) -> Result<(u64, Tally), Box<Finding>> {
        let worker_pool = WorkerPool {
            first: self.first_seed,
            threads: self.threads,
            patience: self.patience,
        };
        worker_pool.run(self.clone())
    }

    /// Runs the chain of a seed.
    fn seed(&self, seed: u64, watch: &Watch<'_, Name>) -> Result<Tally, Box<Finding>> {
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
        let breaking = self.breaking;
        watch.begins(name);
        let mut session = Session::record(seed, breaking).map_err(broken(name))?;
        loop {
            let survivor = self.session(&session, &mut tally, watch)?;
            name.generation += 1;
            if name.generation == GENERATIONS {
                return Ok(tally);
            }
            watch.begins(name);
            session = session.go_on(&survivor, breaking).map_err(broken(name))?;
        }
    }

    /// Explores one history, and returns the recovered bytes of one of its states.
    fn session(
        &self,
        session: &Session,
        tally: &mut Tally,
        watch: &Watch<'_, Name>,
    ) -> Result<Vec<u8>, Box<Finding>> {
        let name = session.name();
        let mut rng = Rng::new(mix(name.seed ^ u64::from(name.generation)));
        let mut survivor = session.history().base.clone();
        // A uniform choice: the n-th state replaces the choice with a probability of 1/n.
        let mut shown = 0;
        let effort = session.effort(self.samples, None);
        watch.begins(name);
        let seen = session.explore(effort, |_, disk| {
            watch.begins(name);
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
        let file = format!("{}-{}", name.seed, name.generation);
        let (file, error) = programs::keep(&self.findings, &file, error, |file| session.save(file));
        Box::new(Finding { name, file, error })
    }
}

impl Work for Campaign {
    type Part = Name;
    type Done = Tally;
    type Finding = Box<Finding>;

    fn is_enough(&self, _: u64, done: &Tally) -> bool {
        done.seen.states >= self.states
    }

    fn piece(&self, seed: u64, watch: &Watch<'_, Name>) -> Result<Tally, Box<Finding>> {
        self.seed(seed, watch)
    }

    fn overdue(&self, name: Name, error: Error) -> Box<Finding> {
        let file = None;
        Box::new(Finding { name, file, error })
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, done: Self) {
        self.histories += done.histories;
        self.aborted += done.aborted;
        self.transactions += done.transactions;
        self.seen.add(&done.seen);
    }
}
