//! **Purpose.** Rounds one after the other, until the time is over or something is found.

use std::fmt;
use std::path::PathBuf;
use std::process::exit;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fourscore::Arc;
use fourscore_sync::{Mutex, thread};

use super::injected::InjectedFault;
use super::round::{self, Through};
use super::shape::{Shape, Theme};

/// What to do.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The seed of the first round; the next has the next.
    pub seed: u64,
    /// How long it goes on.
    pub span: Duration,
    /// No more rounds than this.
    pub rounds: u64,
    /// What the threads mostly do; drawn for each round unless said.
    pub theme: Option<Theme>,
    /// How the threads reach the file system.
    pub through: Through,
    /// What is done wrong on purpose.
    pub injected: InjectedFault,
    /// Where images are kept with which something is wrong.
    pub findings: PathBuf,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Rounds.
    pub rounds: u64,
    /// Calls whose answers were judged.
    pub calls: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rounds, {} calls", self.rounds, self.calls)
    }
}

impl Campaign {
    /// Goes on until the time is over.
    ///
    /// # Errors
    /// The first thing that is wrong, with the seed and the shape of its round.
    pub fn run(&self) -> Result<Tally> {
        let began = Instant::now();
        let mut tally = Tally::default();
        let watch = Watch::start();
        while tally.rounds < self.rounds && began.elapsed() < self.span {
            let seed = self.seed + tally.rounds;
            let shape = Shape::draw(seed, self.theme.or(self.injected.theme()));
            let shape = match self.through {
                Through::Library => shape,
                Through::Mount => shape.for_mount(),
            };
            watch.begins(format!("seed {seed}, {shape:?}"));
            let calls = round::run(seed, &shape, (self.through, self.injected), &self.findings);
            tally.calls += calls.with_context(|| format!("seed {seed}, {shape:?}"))?;
            tally.rounds += 1;
        }
        Ok(tally)
    }
}

/// How long a round may take: much more than on the busiest of machines.
const PATIENCE: Duration = Duration::from_secs(240);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Ends the program when a round does not: its threads wait for each other, and cannot be stopped.
struct Watch(Arc<Mutex<(Instant, String)>>);

impl Watch {
    fn start() -> Self {
        let now = Arc::new(Mutex::new((Instant::now(), String::new())));
        let watched = Arc::downgrade(&now);
        thread::spawn(move || {
            while let Some(now) = watched.upgrade() {
                let (since, what) = now.lock().clone();
                drop(now);
                if since.elapsed() > PATIENCE {
                    eprintln!("{what}: no end after {PATIENCE:?}: somebody waits for ever");
                    exit(1);
                }
                thread::sleep(LOOK_INTERVAL);
            }
        });
        Self(now)
    }

    fn begins(&self, what: String) {
        *self.0.lock() = (Instant::now(), what);
    }
}
