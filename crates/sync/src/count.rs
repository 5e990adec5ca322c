//! **Purpose.** Virtual cores, and the count of cache line transfers between them (feature
//! `count`).
//!
//! A machine with two cores cannot show how 192 cores compete for a cache line. This build counts
//! the transfers instead: [`with_cores`] makes the wanted number of virtual cores on the calling
//! thread, [`Cores::run`] performs an operation on all of them in turn, and the [`Report`] lists
//! the transfers of each place in the source, and the writes that made them necessary.
//!
//! **Model.** For each line of 64 bytes that holds an atomic, a lock or an epoch cell, the recorder
//! knows which cores hold a copy and which access wrote it last, as in the MESI protocol:
//!
//! ```text
//! read  by c: a transfer if another core wrote the line and c holds no copy since; c holds one now
//! write by c: a transfer if any other core holds a copy; c is the only holder now
//! ```
//!
//! So a write by A and reads by B and C are two transfers, and the next write by A is one. The
//! wrappers have the size and alignment of the types they replace, so two hot fields on one line
//! count against each other here as they do in the normal build.
//!
//! - An atomic's load is a read; everything else is a write, a failed exchange included.
//! - Taking a lock is a write, for reading as well as for writing. A `try_lock` that fails is a
//!   read. The data that the lock guards moves with it and is not counted again.
//! - Loading an epoch cell reads the cell and the first line of the value. A value that is stored
//!   is held only by the core that made it.
//! - Entering an epoch touches only the thread's own line, so it is not counted. The cost of
//!   retiring a batch (one write for each active thread and batch) is not counted either.
//! - An `Arc` is counted only by [`clone_arc`](crate::clone_arc); other plain memory not at all.
//!
//! A line is named by the place in the source that accessed it: the line of the *caller* of `load`,
//! `lock` and so on, as `perf c2c` does it. (A name given at construction would have to be stored
//! in the object, which would spread the fields over more lines than they really take.)
//! [`Cores::name`] adds a label to it.
//!
//! [`Cores::race`] gives the cores clocks and lets them run against each other, for the time a
//! [`Machine`] would take ([`clock`]).
//!
//! **Invariants.** A run is deterministic: it uses one OS thread, takes the cores in turn (in a
//! race: in the order of their clocks), and depends on neither time nor random numbers. The current
//! virtual core is a thread-local, so tests in parallel do not see each other, and outside of
//! [`with_cores`] nothing is counted. Further threads take part through [`Cores::on`].

pub(crate) mod atomic;
mod clock;
mod heap;
mod lines;
pub(crate) mod lock;
mod report;
#[cfg(all(test, feature = "count"))]
mod tests;

use std::cell::RefCell;
use std::mem;
use std::panic::Location;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::CoreNr;
use crate::core_nr::machine;
pub use clock::Machine;
use clock::{Clocks, Wake};
pub use heap::LineHeap;
use lines::{Access, Recorder};
pub use report::{PerOperation, Report, Row};

/// The most virtual cores there can be.
pub const MAX_CORES: usize = lines::MAX_CORES;

/// The virtual core that this thread runs on.
#[derive(Clone)]
struct CurrentCore {
    recorder: Arc<Recorder>,
    count: usize,
    core: usize,
    /// In a race.
    clocks: Option<Rc<Clocks>>,
}

thread_local! {
    static CURRENT: RefCell<Option<CurrentCore>> = const { RefCell::new(None) };
}

/// A machine with virtual cores.
pub struct Cores {
    recorder: Arc<Recorder>,
    count: usize,
}

/// Runs `body` on the first core of a machine with `count` virtual cores.
///
/// Per-core values that the body makes ([`PerCore`](crate::PerCore), [`Counter`](crate::Counter))
/// have a slot for each of these cores.
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
    /// Performs `operation` once on every core in turn, `rounds` times, and reports its cost.
    ///
    /// The counts restart from 0, but the state of the lines stays: a first run warms up, and the
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
        let current = CurrentCore {
            recorder: Arc::clone(&self.recorder),
            count: self.count,
            core: core.index(),
            clocks: None,
        };
        let _restore = RestoreCore(CURRENT.replace(Some(current)));
        body()
    }

    /// Runs `body` on all cores at once, and returns what they returned, in the order of cores.
    /// Each core has a clock that begins at 0 and advances as on `machine`. The state of the lines
    /// stays, and counts go on.
    ///
    /// # Panics
    /// If a core panics, or if all wait for each other.
    pub fn race<R>(&self, machine: Machine, body: impl Fn(CoreNr) -> R) -> Vec<R> {
        let clocks = Rc::new(Clocks::new(machine, self.count));
        let locals: Vec<_> = (0..self.count).map(|_| RefCell::default()).collect();
        clocks.run(&|core| body(CoreNr::at(core)), |core, run| {
            let current = CurrentCore {
                recorder: Arc::clone(&self.recorder),
                count: self.count,
                core,
                clocks: Some(Rc::clone(&clocks)),
            };
            let _restore = RestoreCore(CURRENT.replace(Some(current)));
            let _locals = Locals::of(&locals[core]);
            run();
        })
    }

    /// Counts accesses to `value` as if it were on the line of `other`, to count another layout
    /// than the program's. The value must not move any more.
    pub fn put_beside<T, U>(&self, value: &T, other: &U) {
        let address = |pointer: *const ()| pointer.addr();
        let value = address(ptr::from_ref(value).cast());
        self.recorder
            .put_beside(value, address(ptr::from_ref(other).cast()));
    }

    /// Restarts the counts from 0; the state of the lines stays.
    pub fn restart(&self) {
        self.recorder.restart();
    }

    /// The counts since the last restart, as the cost of `operations` operations.
    #[must_use]
    pub fn report(&self, operations: usize) -> Report {
        Report::new(self.count, operations, self.recorder.tallies())
    }

    /// Labels the memory of `value` (not the memory it points to) in reports. The label belongs to
    /// the address: name a value only when it will not move any more.
    pub fn name<T: ?Sized>(&self, value: &T, label: &'static str) {
        let start = ptr::from_ref(value).cast::<()>().addr();
        self.recorder
            .name(start..start + mem::size_of_val(value), label);
    }
}

/// The thread-locals of this crate that belong to a virtual core, while it does not run.
#[derive(Default)]
struct CoreLocals {
    #[cfg(debug_assertions)]
    places: Vec<crate::rank::Place>,
    #[cfg(debug_assertions)]
    guards: usize,
}

/// Gives the thread the thread-locals of a core until it is dropped.
struct Locals<'l>(&'l RefCell<CoreLocals>);

impl<'l> Locals<'l> {
    fn of(locals: &'l RefCell<CoreLocals>) -> Self {
        locals.borrow_mut().exchange();
        Self(locals)
    }
}

impl Drop for Locals<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().exchange();
    }
}

impl CoreLocals {
    fn exchange(&mut self) {
        #[cfg(debug_assertions)]
        {
            crate::rank::exchange_places(&mut self.places);
            crate::epoch::exchange_guards(&mut self.guards);
        }
        #[cfg(not(debug_assertions))]
        let Self {} = self;
    }
}

/// Restores the virtual core that the thread was on before.
struct RestoreCore(Option<CurrentCore>);

impl Drop for RestoreCore {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

fn with_current(act: impl FnOnce(&CurrentCore)) {
    // Destructors of other thread-locals may run after this one is gone. They are not counted.
    let _ = CURRENT.try_with(|current| {
        if let Some(current) = &*current.borrow() {
            act(current);
        }
    });
}

/// The time on the clock of the current core; `None` outside of a race.
#[must_use]
pub fn now() -> Option<Duration> {
    let mut now = None;
    with_current(|current| {
        let clocks = current.clocks.as_ref();
        now = clocks.map(|clocks| clocks.now(current.core));
    });
    now
}

/// Passes the time of `steps` steps on the clock of the current core, if it has one.
pub(crate) fn pass(steps: u64) {
    with_clocks(|clocks, core| clocks.work(core, steps));
}

/// Calls `act` with the clocks and the number of the current core, if it has a clock. Other cores
/// may run meanwhile.
fn with_clocks(act: impl FnOnce(&Clocks, usize)) {
    let mut found = None;
    with_current(|current| found = current.clocks.clone().map(|clocks| (clocks, current.core)));
    if let Some((clocks, core)) = found {
        act(&clocks, core);
    }
}

/// Whether the current core has a clock.
pub(crate) fn has_clock() -> bool {
    let mut has = false;
    with_clocks(|_, _| has = true);
    has
}

/// Waits until another core wakes those that wait for the address. For cores with a clock.
fn block<T>(address: *const T) {
    with_clocks(|clocks, core| clocks.block(core, address.addr()));
}

/// Passes the time of an access that must be in the order of times, and then performs it.
fn in_order<R>(act: impl FnOnce() -> R) -> R {
    with_clocks(|clocks, core| clocks.access(core, true, || false));
    act()
}

/// Wakes cores that wait for the address.
fn wake<T>(address: *const T, wake: Wake) {
    with_clocks(|clocks, core| clocks.wake(core, address.addr(), wake));
}

#[track_caller]
pub(crate) fn note_read<T>(address: *const T) {
    note(address.addr(), Access::Read, Location::caller());
}

#[track_caller]
pub(crate) fn note_write<T>(address: *const T) {
    note(address.addr(), Access::Write, Location::caller());
}

/// Counts an access, and passes its time.
fn note(address: usize, access: Access, site: &'static Location<'static>) {
    with_clocks(|clocks, core| {
        clocks.access(core, access == Access::Write, || {
            let mut moves = false;
            with_current(|current| moves = current.recorder.moves(address, core, access));
            !moves
        });
    });
    with_current(|current| current.note_now(address, access, site));
}

impl CurrentCore {
    /// Counts an access whose own time has passed, and passes the time of the transfer.
    fn note_now(&self, address: usize, access: Access, site: &'static Location<'static>) {
        let from = self.recorder.note(address, self.core, access, site);
        if let (Some(clocks), Some(from)) = (&self.clocks, from) {
            clocks.transfer(self.core, self.recorder.line(address), from.iter());
        }
    }
}

/// Notes a value that this core has just made; the former state of its lines is forgotten.
#[track_caller]
pub(crate) fn note_new_value<T>(address: *const T) {
    let site = Location::caller();
    let start = address.addr();
    with_current(|current| {
        let range = start..start + size_of::<T>().max(1);
        current.recorder.written(range, current.core, site);
    });
}

/// Forgets the line of a shared location that is dropped: its memory may be reused.
pub(crate) fn forget_location<T>(address: *const T) {
    with_current(|current| current.recorder.forget(address.addr()));
}

/// Forgets all lines of a value that was noted by [`note_new_value`] and is dropped.
pub(crate) fn forget_value<T>(address: *const T) {
    with_current(|current| {
        let (start, len) = (address.addr(), size_of::<T>().max(1));
        current.recorder.forget_all(start..start + len);
    });
}

pub(crate) fn core_count() -> usize {
    let mut count = None;
    with_current(|current| count = Some(current.count));
    count.unwrap_or_else(machine::core_count)
}

pub(crate) fn current_index() -> usize {
    let mut core = None;
    with_current(|current| core = Some(current.core));
    core.unwrap_or_else(machine::current_index)
}

/// Marks a shared location: a zero-sized field, first in its struct, whose address is that of the
/// location.
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

    /// Notes an access whose own time has passed.
    #[track_caller]
    fn note_now(&self, access: Access) {
        let (address, site) = (ptr::from_ref(self).addr(), Location::caller());
        with_current(|current| current.note_now(address, access, site));
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        forget_location(ptr::from_ref(self));
    }
}
