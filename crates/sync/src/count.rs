//! **Purpose.** Virtual cores, and the count of what moves between them (feature `count`).
//!
//! A machine with two cores cannot show what a hundred and ninety-two do to a cache line. This
//! build counts it instead: [`with_cores`] makes as many virtual cores as wanted on the thread
//! that calls it, [`Cores::run`] performs an operation on all of them in turn, and the [`Report`]
//! says how many cache lines changed hands, where, and after whose write.
//!
//! **Model.** Each line of 64 bytes that holds an atomic, a lock or an epoch cell remembers who
//! holds a copy and who wrote it last, as MESI does:
//!
//! ```text
//! read  by c: a transfer if another core wrote the line and c holds no copy since; c holds one now
//! write by c: a transfer if any other core holds a copy; c is the only holder now
//! ```
//!
//! So a write by A and reads by B and C are two transfers, and the next write by A is one. The
//! wrappers have the size and alignment of what they stand for, so two hot fields on one line
//! count against each other here as they do in the normal build.
//!
//! - An atomic's load is a read; everything else is a write, a failed exchange included.
//! - Taking a lock is a write, for reading as well as for writing. A `try_lock` that fails is a
//!   read. What the lock guards travels with it and is not counted again.
//! - Loading an epoch cell reads the cell and the first line of the value. A value put in is fresh
//!   on the core that made it.
//! - Entering an epoch touches only the thread's own line: it is not counted, nor is what retiring
//!   a batch costs (one write for each active thread and batch).
//! - An `Arc` is counted only by [`clone_arc`](crate::clone_arc); other plain memory not at all.
//!
//! A line is named by the place in the source that accessed it: the line of the *caller* of
//! `load`, `lock` and so on, as `perf c2c` does it. (A name given at construction would have to be
//! stored in the object, which would spread the fields over more lines than they really take.)
//! [`Cores::name`] puts a label in front of it.
//!
//! **Invariants.** A run is deterministic: one OS thread, cores in turn, no clock, no chance.
//! Everything is bound to the thread: tests in parallel do not see each other, and outside of
//! [`with_cores`] nothing is counted. Real threads take part through [`Cores::on`].

pub(crate) mod atomic;
mod heap;
mod lines;
pub(crate) mod lock;
mod report;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::mem;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;

use crate::CoreNr;
use crate::core_nr::machine;
pub use heap::LineHeap;
use lines::{Access, Recorder};
pub use report::{PerOperation, Report, Row};

/// The most virtual cores there can be.
pub const MAX_CORES: usize = lines::MAX_CORES;

/// Where this thread sits in a virtual machine.
#[derive(Clone)]
struct Seat {
    recorder: Arc<Recorder>,
    count: usize,
    core: usize,
}

thread_local! {
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

/// A machine with virtual cores.
pub struct Cores {
    recorder: Arc<Recorder>,
    count: usize,
}

/// Runs `body` on a machine with `count` virtual cores, sitting on the first.
///
/// What the body makes per core ([`PerCore`](crate::PerCore), [`Counter`](crate::Counter)) is
/// made for that many cores.
///
/// # Panics
/// If `count` is 0 or above [`MAX_CORES`].
pub fn with_cores<R>(count: usize, body: impl FnOnce(&Cores) -> R) -> R {
    assert!((1..=MAX_CORES).contains(&count), "{count} virtual cores");
    let cores = Cores {
        recorder: Arc::new(Recorder::default()),
        count,
    };
    cores.on(CoreNr::at(0), || body(&cores))
}

impl Cores {
    /// Performs `operation` once on every core in turn, `rounds` times, and reports what it cost.
    ///
    /// Counting starts anew, but the lines stay where they are: a first run warms up, and the
    /// report of a second one shows the steady state.
    pub fn run(&self, rounds: usize, mut operation: impl FnMut(CoreNr, usize)) -> Report {
        self.recorder.restart();
        for round in 0..rounds {
            for core in (0..self.count).map(CoreNr::at) {
                self.on(core, || operation(core, round));
            }
        }
        self.report(rounds * self.count)
    }

    /// Runs `body` as if this thread ran on `core`. Any thread may call it.
    ///
    /// # Panics
    /// If the machine has no such core.
    pub fn on<R>(&self, core: CoreNr, body: impl FnOnce() -> R) -> R {
        assert!(core.index() < self.count, "there is no {core:?}");
        let seat = Seat {
            recorder: Arc::clone(&self.recorder),
            count: self.count,
            core: core.index(),
        };
        let _back = Back(SEAT.replace(Some(seat)));
        body()
    }

    /// Starts counting anew; the lines stay where they are.
    pub fn restart(&self) {
        self.recorder.restart();
    }

    /// What was counted since the start, as the cost of `operations` operations.
    #[must_use]
    pub fn report(&self, operations: usize) -> Report {
        Report::new(self.count, operations, self.recorder.tallies())
    }

    /// Labels the memory of `value` (not what it points to) in reports. The label belongs to the
    /// address: name things when they are where they will stay.
    pub fn name<T: ?Sized>(&self, value: &T, label: &'static str) {
        let start = ptr::from_ref(value).cast::<()>().addr();
        self.recorder
            .name(start..start + mem::size_of_val(value), label);
    }
}

/// Leads a thread back to the seat it had before.
struct Back(Option<Seat>);

impl Drop for Back {
    fn drop(&mut self) {
        SEAT.set(self.0.take());
    }
}

fn with_seat(act: impl FnOnce(&Seat)) {
    // Late destructors of other thread-locals find no seat, and are not counted.
    let _ = SEAT.try_with(|seat| {
        if let Some(seat) = &*seat.borrow() {
            act(seat);
        }
    });
}

#[track_caller]
pub(crate) fn note_read<T>(address: *const T) {
    let site = Location::caller();
    with_seat(|seat| {
        seat.recorder
            .note(address.addr(), seat.core, Access::Read, site);
    });
}

#[track_caller]
pub(crate) fn note_write<T>(address: *const T) {
    let site = Location::caller();
    with_seat(|seat| {
        seat.recorder
            .note(address.addr(), seat.core, Access::Write, site);
    });
}

/// A value that this core has just made: whatever lay at its address before is forgotten.
#[track_caller]
pub(crate) fn note_fresh<T>(address: *const T) {
    let site = Location::caller();
    let start = address.addr();
    with_seat(|seat| {
        seat.recorder
            .fresh(start..start + size_of::<T>().max(1), seat.core, site);
    });
}

/// Something that was shared ends: its memory may become anything.
pub(crate) fn note_end<T>(address: *const T) {
    with_seat(|seat| seat.recorder.forget(address.addr()));
}

/// A value of which [`note_fresh`] spoke ends, all of it.
pub(crate) fn note_gone<T>(address: *const T) {
    with_seat(|seat| {
        let (start, len) = (address.addr(), size_of::<T>().max(1));
        seat.recorder.forget_all(start..start + len);
    });
}

pub(crate) fn core_count() -> usize {
    let mut count = None;
    with_seat(|seat| count = Some(seat.count));
    count.unwrap_or_else(machine::core_count)
}

pub(crate) fn current_index() -> usize {
    let mut core = None;
    with_seat(|seat| core = Some(seat.core));
    core.unwrap_or_else(machine::current_index)
}

/// The mark of a shared location: a field without size, first in its struct, whose address is the
/// location's.
#[derive(Debug, Default)]
pub(crate) struct Trace(());

impl Trace {
    pub(crate) const fn new() -> Self {
        Self(())
    }

    #[track_caller]
    pub(crate) fn read(&self) {
        note_read(ptr::from_ref(self));
    }

    #[track_caller]
    pub(crate) fn write(&self) {
        note_write(ptr::from_ref(self));
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        note_end(ptr::from_ref(self));
    }
}
