//! **Purpose.** Clocks for virtual cores: how long a run would take on a machine with these cores,
//! and which core waits for which.
//!
//! **Not here.** Which access moves a line ([`super::lines`]); what the cores do.
//!
//! **Model.** Every core has a clock. A [`Machine`] says what an access costs:
//!
//! ```text
//! work between two accesses   as many steps as the caller says ([`crate::work`]), and a fixed time
//! access, line held           a fixed time for a read, another for a write
//! access, line moves          and the latency between the two cores
//! ```
//!
//! A line moves to one core at a time: a transfer begins at the core's time or when the last
//! transfer of this line has ended, whichever is later. So a word that all cores write takes as
//! long as all its transfers together. Copies that a write invalidates are invalidated at the same
//! time; the farthest copy counts.
//!
//! A lock is taken at the time of the core that takes it, and is free again at the time of its
//! holder. A core that comes earlier waits, and those that wait are served in the order in which
//! they came; with `try_lock` the core goes on instead.
//!
//! Every core is a coroutine of one thread. The core that is furthest behind runs, and each access
//! decides which one that is. So an access happens after all accesses of earlier times. There is
//! one exception, for speed: an access that moves no line may happen early, by less than the
//! shortest transfer of the machine. A real core does not see another core's write any sooner than
//! that.
//!
//! **Invariants.** A run depends only on what the cores do: not on time, and on addresses only as
//! far as they decide which values share a line ([`super::LineHeap`] settles that). A core that
//! panics, or cores that all wait, end the run with a panic.
//!
//! **Locking.** None: all belongs to one thread. Code that runs under clocks must wait by means of
//! this crate's locks and condition variables. Parking, sleeping and channels of the standard
//! library would stop all cores, and thread-locals are common to all of them, except those of this
//! crate ([`crate::rank`], [`crate::epoch`]).
//!
//! **References.** J. Miller et al., "Graphite: A Distributed Parallel Simulator for Multicores"
//! (HPCA 2010) describes clocks that may run apart within limits.

mod machine;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeSet, VecDeque};
use std::ptr::NonNull;
use std::time::Duration;

use corosensei::{Coroutine, CoroutineResult, Yielder};

pub use machine::Machine;

use super::lines::AddressMap;

/// What suspends the coroutine of a core.
type Suspend = Yielder<(), ()>;

/// Which of the cores that wait for an address go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    One,
    All,
}

#[derive(Debug)]
struct State {
    /// The time of each core in picoseconds.
    now: Vec<u64>,
    /// The cores that could run, by time and number. Not the one that runs.
    ready: BTreeSet<(u64, usize)>,
    /// The cores that wait for a lock or a condition variable, by its address, in order.
    waiting: AddressMap<usize, VecDeque<usize>>,
    /// When the last transfer of a line has ended, by the line's number.
    settled: AddressMap<usize, u64>,
}

/// The clocks of a run.
#[derive(Debug)]
pub(super) struct Clocks {
    machine: Machine,
    state: RefCell<State>,
    /// For each core that has begun.
    suspends: Vec<Cell<Option<NonNull<Suspend>>>>,
}

impl Clocks {
    /// Clocks of cores that all begin at 0.
    pub(super) fn new(machine: Machine, cores: usize) -> Self {
        let state = State {
            now: vec![0; cores],
            ready: (0..cores).map(|core| (0, core)).collect(),
            waiting: AddressMap::default(),
            settled: AddressMap::default(),
        };
        Self {
            machine,
            state: RefCell::new(state),
            suspends: (0..cores).map(|_| Cell::new(None)).collect(),
        }
    }

    /// Runs `body` on every core, to the end of all; returns what they returned. `resume` is called
    /// with a core and a function that lets it run until it is another core's turn.
    ///
    /// # Panics
    /// If a core panics, or if all wait.
    pub(super) fn run<R>(
        &self,
        body: &dyn Fn(usize) -> R,
        resume: impl Fn(usize, &mut dyn FnMut()),
    ) -> Vec<R> {
        let coroutine = |core: usize| {
            let main = move |suspend: &Suspend, ()| {
                self.suspends[core].set(Some(NonNull::from(suspend)));
                body(core)
            };
            // SAFETY: all that `main` borrows outlives this call, and the coroutine does not: it is
            // dropped at the end, which unwinds it if it has not ended.
            unsafe { Coroutine::with_stack_unchecked(Default::default(), main) }
        };
        let mut coroutines: Vec<Coroutine<(), (), R>> =
            (0..self.suspends.len()).map(coroutine).collect();
        let mut ends: Vec<Option<R>> = coroutines.iter().map(|_| None).collect();
        loop {
            let next = self.state().ready.pop_first();
            let Some((_, core)) = next else {
                break;
            };
            resume(core, &mut || {
                if let CoroutineResult::Return(end) = coroutines[core].resume(()) {
                    ends[core] = Some(end);
                }
            });
        }
        let ends: Option<Vec<R>> = ends.into_iter().collect();
        ends.expect("a core waits that no other core can wake")
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Lets other cores run, until it is the turn of this core again.
    fn suspend(&self, core: usize) {
        let suspend = self.suspends[core].get().expect("the core has begun");
        // SAFETY: it is on the stack of the coroutine, whose function has not returned, since it is
        // what calls this: only a core that runs calls methods with its own number.
        unsafe { suspend.as_ref() }.suspend(());
    }

    /// The time of a core.
    pub(super) fn now(&self, core: usize) -> Duration {
        Duration::from_nanos(self.state().now[core] / 1000)
    }

    /// Passes time without an access.
    pub(super) fn work(&self, core: usize, steps: u64) {
        self.state().now[core] += steps * self.machine.step_ps;
    }

    /// Passes the time of an access, and lets cores run that are further behind. `stays` says
    /// whether the access moves no line, in which case it may happen a little early.
    pub(super) fn access(&self, core: usize, is_write: bool, stays: impl FnOnce() -> bool) {
        let mut state = self.state();
        state.now[core] += if is_write {
            self.machine.write_ps
        } else {
            self.machine.read_ps
        };
        let now = state.now[core];
        let Some(&(behind, other)) = state.ready.first() else {
            return;
        };
        let is_early = now < behind + self.machine.shortest_ps();
        if (behind, other) > (now, core) || (is_early && stays()) {
            return;
        }
        // A coroutine that is being unwound cannot be suspended.
        if std::thread::panicking() {
            return;
        }
        state.ready.insert((now, core));
        drop(state);
        self.suspend(core);
    }

    /// Passes the time that a line takes to move to a core. `from` are the cores it moves from.
    pub(super) fn transfer(&self, core: usize, line: usize, from: impl Iterator<Item = usize>) {
        let latency = from
            .map(|other| self.machine.latency_ps(core, other))
            .max()
            .unwrap_or(0);
        let mut state = self.state();
        let begin = state.settled.get(&line).map_or(0, |&settled| settled);
        let end = begin.max(state.now[core]) + latency;
        state.settled.insert(line, end);
        state.now[core] = end;
    }

    /// Waits until another core wakes those that wait for the address.
    pub(super) fn block(&self, core: usize, address: usize) {
        let mut state = self.state();
        state.waiting.entry(address).or_default().push_back(core);
        drop(state);
        self.suspend(core);
    }

    /// Lets cores that wait for the address go on, no earlier than the time of this core.
    pub(super) fn wake(&self, core: usize, address: usize, wake: Wake) {
        let mut state = self.state();
        let now = state.now[core];
        let Some(mut queue) = state.waiting.remove(&address) else {
            return;
        };
        let rest = match wake {
            Wake::One => queue.split_off(1.min(queue.len())),
            Wake::All => VecDeque::new(),
        };
        for waiter in queue {
            state.now[waiter] = state.now[waiter].max(now);
            let time = state.now[waiter];
            state.ready.insert((time, waiter));
        }
        if !rest.is_empty() {
            state.waiting.insert(address, rest);
        }
    }
}
