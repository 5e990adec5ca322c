//! **Purpose.** Runs rounds until the time is over or a fault is found.

use std::fmt;
use std::path::PathBuf;
use std::process::exit;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fourscore_sync::{Arc, Mutex, thread};

use super::injected::InjectedFault;
use super::round::{self, Through};
use super::shape::Shape;
use super::theme::Theme;

/// A campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The seed of the first round; it grows by one each round.
    pub seed: u64,
    /// How long it runs.
    pub span: Duration,
    /// The largest number of rounds.
    pub rounds: u64,
    /// What the threads mostly do; if not given, each round draws its own.
    pub theme: Option<Theme>,
    /// How the threads reach the file system.
    pub through: Through,
    /// The fault to inject.
    pub injected: InjectedFault,
    /// The folder for images that show a failure.
    pub findings: PathBuf,
}

/// The results of a campaign.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Rounds that were run.
    pub rounds: u64,
    /// Calls whose results were judged.
    pub calls: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rounds, {} calls", self.rounds, self.calls)
    }
}

impl Campaign {
    /// Runs until the time is over.
    ///
    /// # Errors
    /// The first failure, with the seed and the shape of its round.
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
            let calls = {
                let setup = round::Setup {
                    seed,
                    shape: &shape,
                    through: self.through,
                    injected: self.injected,
                };
                round::run(&setup, &self.findings)
            };
            tally.calls += calls.with_context(|| format!("seed {seed}, {shape:?}"))?;
            tally.rounds += 1;
        }
        Ok(tally)
    }
}

/// The longest time for one round: much longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(240);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Ends the process if a round does not end: its threads are deadlocked, and cannot be stopped.
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
                    eprintln!("{what}: no end after {PATIENCE:?}: threads are deadlocked");
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
