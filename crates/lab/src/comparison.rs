//! **Purpose.** Runs sides in turns, A B A B ..., and measures their time.
//!
//! **Model.** For each thread count there are `warm_up` rounds, which are discarded, and then
//! `rounds` measured rounds. In a round every side runs once, in the order in which the sides were
//! added. The first side is the reference of all ratios: it should be the other program.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::clock::Clock;
use crate::process::CommandLine;
use crate::report::{ComparisonReport, Row, SideReport};

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A closure side or a workload failed.
    #[error("side {side}: {source}")]
    Side {
        /// The name of the side.
        side: String,
        /// Its error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A command line could not be started.
    #[error("{command}: cannot be started: {source}")]
    Start {
        /// The command line.
        command: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A command line ended with a failure.
    #[error("{command}: ended with {status}")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status in words.
        status: String,
    },
    /// A comparison without sides, rounds or thread counts.
    #[error("comparison {comparison}: it needs at least one side, one round and one thread count")]
    Empty {
        /// The name of the comparison.
        comparison: String,
    },
}

/// A number of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds(pub u32);

/// A number of threads, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ThreadCount(usize);

impl ThreadCount {
    /// One thread.
    pub const ONE: Self = Self(1);

    /// `count` threads, or one for 0.
    #[must_use]
    pub const fn new(count: usize) -> Self {
        Self(if count == 0 { 1 } else { count })
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> usize {
        self.0
    }

    /// 1, 2, 4, ... up to `last`, and `last` itself.
    #[must_use]
    pub fn doubling_to(last: Self) -> Vec<Self> {
        let mut counts: Vec<Self> = std::iter::successors(Some(1_usize), |&n| n.checked_mul(2))
            .take_while(|&n| n < last.0)
            .map(Self)
            .collect();
        counts.push(last);
        counts
    }
}

impl fmt::Display for ThreadCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The work of one run of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Operations done; 1 for a side of which only the time matters.
    pub operations: u64,
    /// Bytes moved, or 0 if that has no meaning.
    pub bytes: u64,
    /// The time, if the side measures it itself because its preparation must not count.
    pub wall: Option<Duration>,
}

impl Work {
    /// One operation.
    pub const ONCE: Self = Self {
        operations: 1,
        bytes: 0,
        wall: None,
    };
}

/// A program or closure that is measured, and its name in reports.
pub struct Side<'a> {
    name: String,
    action: Action<'a>,
    prepare: Option<Box<dyn FnMut() -> SideResult<()> + 'a>>,
}

type SideResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

enum Action<'a> {
    Closure(Box<dyn FnMut(ThreadCount) -> SideResult<Work> + 'a>),
    Process(CommandLine),
}

impl<'a> Side<'a> {
    /// A side that runs `action` in this process.
    pub fn closure(
        name: impl Into<String>,
        action: impl FnMut(ThreadCount) -> SideResult<Work> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            action: Action::Closure(Box::new(action)),
            prepare: None,
        }
    }

    /// A side that runs `command` as a process.
    pub fn process(name: impl Into<String>, command: CommandLine) -> Self {
        Self {
            name: name.into(),
            action: Action::Process(command),
            prepare: None,
        }
    }

    /// Calls `prepare` before each run of this side, outside of the measured time.
    #[must_use]
    pub fn prepared_by(mut self, prepare: impl FnMut() -> SideResult<()> + 'a) -> Self {
        self.prepare = Some(Box::new(prepare));
        self
    }

    fn run(&mut self, threads: ThreadCount, clock: &dyn Clock) -> Result<Measurement, LabError> {
        let name = &self.name;
        let in_side = |source| LabError::Side {
            side: name.clone(),
            source,
        };
        if let Some(prepare) = &mut self.prepare {
            prepare().map_err(in_side)?;
        }
        let start = clock.now();
        match &mut self.action {
            Action::Closure(action) => {
                let work = action(threads).map_err(in_side)?;
                let wall = clock.now().saturating_sub(start);
                Ok(Measurement {
                    wall: work.wall.unwrap_or(wall),
                    work,
                    usage: None,
                })
            }
            Action::Process(command) => {
                let usage = command.run(threads)?;
                Ok(Measurement {
                    wall: clock.now().saturating_sub(start),
                    work: Work::ONCE,
                    usage: Some(usage),
                })
            }
        }
    }
}

/// One run of one side.
#[derive(Clone, Debug)]
pub(crate) struct Measurement {
    pub(crate) wall: Duration,
    pub(crate) work: Work,
    pub(crate) usage: Option<crate::process::Usage>,
}

/// Sides to compare, and the numbers of rounds and threads.
pub struct Comparison<'a> {
    name: String,
    sides: Vec<Side<'a>>,
    warm_up: Rounds,
    rounds: Rounds,
    threads: Vec<ThreadCount>,
}

impl<'a> Comparison<'a> {
    /// A comparison without sides: one warm-up round, five measured rounds, one thread.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            sides: Vec::new(),
            warm_up: Rounds(1),
            rounds: Rounds(5),
            threads: vec![ThreadCount::ONE],
        }
    }

    /// Adds a side. The first one added is the reference of the ratios.
    #[must_use]
    pub fn side(mut self, side: Side<'a>) -> Self {
        self.sides.push(side);
        self
    }

    /// Sets the number of rounds before the measured ones.
    #[must_use]
    pub fn warm_up(mut self, rounds: Rounds) -> Self {
        self.warm_up = rounds;
        self
    }

    /// Sets the number of measured rounds.
    #[must_use]
    pub fn rounds(mut self, rounds: Rounds) -> Self {
        self.rounds = rounds;
        self
    }

    /// Sets the thread counts; all rounds of all sides run at each.
    #[must_use]
    pub fn threads(mut self, counts: &[ThreadCount]) -> Self {
        self.threads = counts.to_vec();
        self
    }

    /// Runs everything.
    ///
    /// # Errors
    ///
    /// The first failure of a side ends the comparison: figures beside a failed run mean nothing.
    pub fn run(mut self, clock: &dyn Clock) -> Result<ComparisonReport, LabError> {
        if self.sides.is_empty() || self.rounds.0 == 0 || self.threads.is_empty() {
            return Err(LabError::Empty {
                comparison: self.name,
            });
        }
        let mut rows = Vec::with_capacity(self.threads.len());
        for &threads in &self.threads {
            let mut measured: Vec<Vec<Measurement>> = vec![Vec::new(); self.sides.len()];
            for round in 0..self.warm_up.0.saturating_add(self.rounds.0) {
                for (side, taken) in self.sides.iter_mut().zip(&mut measured) {
                    let measurement = side.run(threads, clock)?;
                    if round >= self.warm_up.0 {
                        taken.push(measurement);
                    }
                }
            }
            rows.push(self.row(threads, &measured));
        }
        Ok(ComparisonReport {
            name: self.name,
            warm_up: self.warm_up.0,
            rounds: self.rounds.0,
            rows,
        })
    }

    fn row(&self, threads: ThreadCount, measured: &[Vec<Measurement>]) -> Row {
        let reference = measured.first().map_or(&[][..], Vec::as_slice);
        let sides = self
            .sides
            .iter()
            .zip(measured)
            .map(|(side, taken)| {
                let command = match &side.action {
                    Action::Closure(_) => None,
                    Action::Process(command) => Some(command.to_string()),
                };
                SideReport::of(side.name.clone(), command, taken, reference)
            })
            .collect();
        Row { threads, sides }
    }
}

#[cfg(test)]
mod tests;
