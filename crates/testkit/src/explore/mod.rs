//! **Purpose.** Every state in which a crash may leave a device, from a recording of what was
//! done to it, handed to somebody who can tell whether it is a good one.
//!
//! **Not here.** Images that the kernel left dirty ([`crate::crash`]).
//!
//! | module | responsibility |
//! |---|---|
//! | [`history`] | what was done to a device, from a recording or a file |
//! | `window` | the writes that a crash leaves open, and how they survive |
//! | [`disk`] | a disk that goes back to how it was |
//! | [`rng`] | random numbers that a seed repeats |
//!
//! # Fault model
//! - A flush makes durable every write that was complete when the flush began; a write with FUA
//!   is durable when it completes. Neither ever lies.
//! - Any subset of the other writes has arrived, in units of sectors of 512 bytes. So writes are
//!   lost, reordered and torn; a sector is old or new as a whole.
//! - A write that was under way is as open as a completed one, FUA or not.
//! - Of two writes to one sector, of which the second began after the first had completed, the
//!   first never covers the second; and where the second covers the sector in part and arrives, so
//!   has the first. Those that ran at the same time count as one after the other, as they ended.
//!
//! # Which cuts
//! What is known at a cut (which commits were acknowledged, which data is durable) only grows,
//! and so do the open writes, until a flush or FUA makes them durable. So a crash anywhere is one
//! of the states just before the next flush, before the next write with FUA (which is then under
//! way) or at the end of the history, judged by what is known there; no other cut adds a state.
//!
//! # Which states
//! Where a cut leaves at most seven blocks open, every subset of them, and else random subsets:
//! of whole writes, of blocks, of sectors; many, few, all but one, one alone, in order with a few
//! that overtook. No survival of a cut is tried twice. Everything follows from the history and a
//! seed: a state is named by its number.

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

/// How thoroughly to look, and from which seed.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Where the random choices come from.
    pub seed: u64,
    /// Random survivals for each cut, beside the exhaustive ones.
    pub samples: usize,
    /// The size of a block in bytes: the middle grain of what gets lost.
    pub block_bytes: u64,
    /// Only the state with this number is looked at.
    pub only: Option<u64>,
    /// Bytes of the device that a write changes as a whole or not at all, however many sectors they
    /// are.
    pub whole: Option<(u64, u64)>,
}

/// A crash state.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// Which one of its history, from 0.
    pub number: u64,
    /// How many events had completed.
    pub cut: usize,
}

/// A crash state that is not good.
#[derive(Debug)]
pub struct Failure {
    /// Which one.
    pub crash: Crash,
    /// Why it is not good.
    pub error: Error,
    /// The open writes and what is left of them, with as little lost as the fault allows.
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

/// Shows `check` every state that a crash in `history` may leave, and gives their number. The
/// disk is the check's to change until it returns. It must say the same for the same state.
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

/// The cuts that have all states among them, in order.
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

/// How many of the first `events` are durable by the flushes among them.
fn flushed(events: &[Event]) -> usize {
    // Flushes of two threads may end in another order than they began.
    let covers = events.iter().map(|event| match event {
        Event::Flush { covers } => *covers,
        _ => 0,
    });
    covers.max().unwrap_or(0)
}

/// Makes `events` part of what the disk goes back to.
fn settle(events: &[Event], disk: &CrashDisk) {
    let window = Window::new(events, 0, events.len(), 512);
    window
        .apply(&vec![true; window.units()], disk)
        .expect("the history was recorded on a device of this size");
    disk.keep();
}

/// Checks one survival, and takes it off the disk again.
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
