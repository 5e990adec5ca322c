//! **Purpose.** Makes every state in which a crash may leave a recorded device, and passes each to
//! a check of the caller.
//!
//! **Not here.** Images that crashed under the kernel ([`crate::crash`]).
//!
//! | module | responsibility |
//! |---|---|
//! | [`history`] | the events on a device, from a recording or a file |
//! | `window` | the open writes at a crash, and the ways in which they survive |
//! | [`disk`] | a disk with undo |
//! | [`rng`] | reproducible random numbers |
//!
//! # Fault model
//! - A flush makes durable every write that was complete when the flush began; a write with FUA
//!   is durable when it completes. The device never violates this.
//! - Any subset of the other writes has arrived, in units of sectors of 512 bytes. So writes are
//!   lost, reordered and torn; a sector is old or new as a whole.
//! - A write in flight, with FUA or not, is as open as a completed one without FUA.
//! - Of two writes to one sector, of which the second began after the first had completed, the
//!   first never covers the second; and where the second covers the sector in part and arrives, so
//!   has the first. Those that ran at the same time count as one after the other, as they ended.
//!
//! # Which cuts
//! The facts at a cut (which commits were acknowledged, which data is durable) only grow,
//! and so do the open writes, until a flush or FUA makes them durable. So a crash anywhere is one
//! of the states just before the next flush, before the next write with FUA (which is then in
//! flight) or at the end of the history, judged by the facts there; no other cut adds a state.
//!
//! # Which states
//! Where a cut leaves at most seven blocks open, every subset of them, and else random subsets: of
//! whole writes, of blocks, of sectors; many, few, all but one, only one, in order with a few
//! reordered. No survival of a cut is tried twice. The states follow from the history and a seed,
//! so a number identifies a state.

pub mod disk;
pub mod history;
pub mod rng;
mod window;

pub use disk::CrashDisk;
pub use history::History;
pub use rng::Rng;

use std::fmt;

use anyhow::{Error, Result};
use fourscore_block::{Durable, Event};
use fourscore_sync::Arc;

use window::Window;

/// How many states to try, and with which seed.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The seed of the random choices.
    pub seed: u64,
    /// Random survivals for each cut, beside the exhaustive ones.
    pub samples: usize,
    /// The block size in bytes: losses come in writes, blocks and sectors.
    pub block_bytes: u64,
    /// If set, only the state with this number is checked.
    pub only: Option<u64>,
    /// Bytes of the device that a write changes as a whole or not at all, however many sectors they
    /// are.
    pub whole: Option<(u64, u64)>,
}

/// A crash state.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// Its number in the history, from 0.
    pub number: u64,
    /// The number of events that had completed.
    pub cut: usize,
}

/// A bad crash state.
#[derive(Debug)]
pub struct Failure {
    /// The state.
    pub crash: Crash,
    /// What is wrong.
    pub error: Error,
    /// The open writes and which parts survive, minimised: as little is lost as shows the fault.
    pub survivors: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crash { number, cut } = self.crash;
        writeln!(
            f,
            "crash state {number}, behind event {cut}: {:#}",
            self.error
        )?;
        write!(f, "with these writes open:\n{}", self.survivors)
    }
}

impl std::error::Error for Failure {}

/// Calls `check` with every state that a crash in `history` may leave, and returns their number.
/// The check may change the disk; its changes are undone. It must be deterministic.
///
/// # Errors
/// The first state that `check` does not accept.
pub fn explore(
    history: &History,
    effort: Effort,
    mut check: impl FnMut(Crash, &Arc<CrashDisk>) -> Result<()>,
) -> Result<u64, Box<Failure>> {
    let disk = Arc::new(CrashDisk::new(history.base.clone()));
    let mut rng = Rng::new(effort.seed);
    let (mut durable, mut number) = (0, 0);
    for cut in cuts(&history.events) {
        let flushed = flushed(&history.events[..cut]).max(durable);
        settle(&history.events[durable..flushed], &disk);
        durable = flushed;
        let mut window = Window::new(&history.events, durable, cut, effort.block_bytes);
        if let Some((start, end)) = effort.whole {
            window.tie(start..end);
        }
        for survival in window.survivals(effort.samples, &mut rng) {
            let crash = Crash { number, cut };
            number += 1;
            if effort.only.is_some_and(|only| only != crash.number) {
                continue;
            }
            if let Err(error) = look(&disk, &window, &survival, crash, &mut check) {
                let fails = |less: &[bool]| look(&disk, &window, less, crash, &mut check).is_err();
                let survival = window.simplify(survival, fails);
                return Err(Box::new(Failure {
                    crash,
                    error,
                    survivors: window.describe(&survival),
                }));
            }
        }
    }
    Ok(number)
}

/// The cuts that cover all states, in order.
fn cuts(events: &[Event]) -> impl Iterator<Item = usize> {
    let closes = |event: &Event| {
        let at_once = matches!(
            event,
            Event::Write {
                durable: Durable::AtOnce,
                ..
            }
        );
        at_once || event.is_flush()
    };
    let inner = events
        .iter()
        .enumerate()
        .filter(move |(_, event)| closes(event));
    inner.map(|(index, _)| index).chain([events.len()])
}

/// The number of first `events` that the flushes among them make durable.
fn flushed(events: &[Event]) -> usize {
    // Flushes of two threads may complete in another order than they began.
    let covers = events.iter().map(|event| match event {
        Event::Flush { covers } => *covers,
        _ => 0,
    });
    covers.max().unwrap_or(0)
}

/// Applies `events` to the disk permanently.
fn settle(events: &[Event], disk: &CrashDisk) {
    let window = Window::new(events, 0, events.len(), 512);
    window
        .apply(&vec![true; window.units()], disk)
        .expect("the history was recorded on a device of this size");
    disk.keep();
}

/// Checks one survival, and undoes it.
fn look(
    disk: &Arc<CrashDisk>,
    window: &Window<'_>,
    survival: &[bool],
    crash: Crash,
    check: &mut impl FnMut(Crash, &Arc<CrashDisk>) -> Result<()>,
) -> Result<()> {
    window.apply(survival, disk)?;
    let result = check(crash, disk);
    disk.go_back();
    result
}

#[cfg(test)]
mod tests;
