//! **Purpose.** Rounds one after the other, until the time is over or something is found.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::breaking::Breaking;
use super::round;
use super::shape::Shape;

/// What to do.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The seed of the first round; the next has the next.
    pub seed: u64,
    /// How long it goes on.
    pub span: Duration,
    /// No more rounds than this.
    pub rounds: u64,
    /// What is done wrong on purpose.
    pub breaking: Breaking,
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
        while tally.rounds < self.rounds && began.elapsed() < self.span {
            let seed = self.seed + tally.rounds;
            let shape = Shape::draw(seed);
            let calls = round::in_process(seed, &shape, self.breaking, &self.findings);
            tally.calls += calls.with_context(|| format!("seed {seed}, {shape:?}"))?;
            tally.rounds += 1;
        }
        Ok(tally)
    }
}
