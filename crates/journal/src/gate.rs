//! **Purpose.** The gate admits handles to the running transaction: they join and leave it per
//! core. To seal the transaction, the sealer closes the gate, waits until all handles have left,
//! and opens it on the next transaction.
//!
//! **Not here.** The work on the transaction while the gate is closed (`seal`), and the number of
//! credits (`credits`). But the credits of a core share the word of its slot, so that joining with
//! credits is one read-modify-write.
//!
//! # Model
//! ```text
//! slot of a core: | credits of this core, 32 | handles joined here, 32 |
//! gate word:      | turns, 30 | aborted | closed | running tid, 32 |
//!
//! join   slot += 1, slot.credits -= n     close   gate |= closed
//!        fence                                    fence
//!        gate closed? leave again : in            every slot's handles == 0? drained : wait
//! leave  slot -= 1, slot.credits += rest
//!        fence
//!        gate closed and every slot's handles == 0? wake the sealer
//! ```
//!
//! # Invariants
//! - *No handle is inside while the gate is closed and drained.* Join and close are the two sides
//!   of Dekker's protocol: each writes its own word, then reads the other's, with a full fence
//!   between. So at least one sees the other: if a joiner found the gate open, the sealer sees it
//!   in its slot and waits for it. Without the fence after the join, the slot could still be in a
//!   store buffer when the sealer reads it, and a handle would run in a sealed transaction.
//! - *No sealer sleeps for ever.* Leave and drain use the same protocol: if a leaver finds the gate
//!   open, the sealer's next read sees that it has left; if it finds the gate closed and all slots
//!   empty, it wakes the sealer under the lock under which the sealer reads the slots. Of the last
//!   leavers of two slots at least one sees that the other has left: each writes its own slot, then
//!   reads the other's, with the fence between.
//! - A handle leaves the slot that it joined, wherever its thread runs by then; a slot's count of
//!   handles is never negative.
//! - Credits are taken out of a slot only by a thread that is counted in some slot, or by the
//!   sealer when all slots are drained. A joiner that found the gate closed does not return its
//!   credits: the sealer may have reset them.
//! - *No credit outlives its transaction.* A thread may join with credits after the sealer found
//!   all slots drained, and read the gate only when it is open again. So the sealer drains once
//!   more when it has taken all credits out: a thread that took credits before that is counted, and
//!   sees the gate closed.
//!
//! # Locking
//! Joining and leaving write the line of this core's slot and read the gate's line, which is
//! written once per seal. The locks are taken only while the gate is closed, and are leaves.
//!
//! # Many more threads than cores
//! A thread that was preempted inside a handle keeps the gate closed until it has run again, after
//! all threads before it in the run queue of its core. So the run queue must become short at once:
//! - A thread that finds the gate closed, and a handle open in its core's slot, sleeps without
//!   spinning: the handle may belong to a thread that waits for just this core. The sealer does the
//!   same. Spinning for a few microseconds pays only if the slot is empty.
//! - No thread blocks on its way to sleep: the list of sleeping threads is per core. With one list
//!   for all, threads gave up their cores at its lock, some of them inside a handle.
//! - The sealer is woken once, when all have left, not once per core.
//! - The sealer itself unparks the sleeping threads, after it has opened the gate, and they need no
//!   lock to go on. With a condition variable each would wake the next when it releases the mutex,
//!   and the last would join after as many turns of the run queue as there are threads.
//!
//! # References
//! The argument is checked by loom in `gate/loom_tests.rs`, on these very functions.

#[cfg(all(test, not(feature = "shuttle"), not(feature = "count")))]
mod loom_tests;

use fourscore_ondisk::Tid;
use fourscore_sync::atomic::{AtomicU64, Ordering, fence};
use fourscore_sync::thread::{self, Thread};
use fourscore_sync::{CachePadded, Condvar, CoreNr, Mutex, PerCore};

/// One handle in a slot's word.
const ONE_HANDLE: u64 = 1;
/// The bits of a slot's word that count handles.
const HANDLES: u64 = 0xffff_ffff;
/// One credit in a slot's word.
const ONE_CREDIT: u64 = 1 << 32;

const CLOSED: u64 = 1 << 32;
const ABORTED: u64 = 1 << 33;
const ONE_TURN: u64 = 1 << 34;

/// How often the sealer spins before it sleeps: for some microseconds, as long as most seals take.
#[cfg(not(feature = "shuttle"))]
const SEALER_SPINS: u32 = 200;
/// How often other threads spin.
#[cfg(not(feature = "shuttle"))]
const JOINER_SPINS: u32 = 50;

/// An atomic word: of crate `sync`, or of loom.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    /// A sequentially consistent fence.
    fn full_fence();
    /// Replaces the value by the result of `change`, unless that is `None`.
    fn change(&self, success: Ordering, change: impl FnMut(u64) -> Option<u64>)
    -> Result<u64, u64>;
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_add(self, value, order)
    }
    #[inline]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_or(self, value, order)
    }
    #[inline]
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
    #[inline]
    fn change(
        &self,
        success: Ordering,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        self.fetch_update(success, Ordering::Relaxed, change)
    }
}

/// The value of the gate's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GateState(u64);

impl GateState {
    /// The running transaction; while the gate is closed, the one that is being sealed.
    pub(crate) fn tid(self) -> Tid {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the tid")]
        let tid = self.0 as u32;
        Tid(tid)
    }

    fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    pub(crate) fn is_aborted(self) -> bool {
        self.0 & ABORTED != 0
    }

    /// How often the gate was opened. Wraps around.
    pub(crate) fn turn(self) -> u64 {
        self.0 / ONE_TURN
    }
}

/// Why a thread could not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A transaction is being sealed.
    Closed,
    /// The journal was aborted.
    Aborted,
    /// This core has too few credits; the slot was not joined.
    Credits,
}

/// The outcome of [`leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The gate is open, or other handles are still inside.
    NotLast,
    /// The gate is closed and no handle is inside any more: the sealer may be waiting for this.
    Last,
}

/// Joins `slot` with `credits` of its credits.
#[inline]
pub(crate) fn join<W: Word>(slot: &W, gate: &W, credits: u32) -> Result<GateState, Refused> {
    let cost = u64::from(credits) * ONE_CREDIT;
    let take = |word: u64| Some(word.checked_sub(cost)? + ONE_HANDLE);
    slot.change(Ordering::AcqRel, take)
        .map_err(|_| Refused::Credits)?;
    W::full_fence();
    let state = GateState(gate.load(Ordering::Acquire));
    if state.0 & (CLOSED | ABORTED) == 0 {
        return Ok(state);
    }
    Err(if state.is_aborted() {
        Refused::Aborted
    } else {
        Refused::Closed
    })
}

/// Leaves `slot`, which was joined and is one of `slots`, and puts `credits` back into it.
#[inline]
pub(crate) fn leave<'w, W: Word + 'w>(
    slot: &W,
    slots: impl IntoIterator<Item = &'w W>,
    gate: &W,
    credits: u32,
) -> Left {
    let back = u64::from(credits) * ONE_CREDIT;
    // The handles do not underflow: one of them is ours.
    let before = slot.fetch_add(back.wrapping_sub(ONE_HANDLE), Ordering::AcqRel);
    W::full_fence();
    let is_not_last = before & HANDLES > 1 || gate.load(Ordering::Relaxed) & CLOSED == 0;
    if is_not_last || !is_drained(slots) {
        Left::NotLast
    } else {
        Left::Last
    }
}

/// Closes the gate: from now on no handle can join.
pub(crate) fn close<W: Word>(gate: &W) {
    gate.fetch_or(CLOSED, Ordering::AcqRel);
    W::full_fence();
}

/// Whether all handles have left; meaningful after [`close`].
#[cold]
pub(crate) fn is_drained<'w, W: Word + 'w>(slots: impl IntoIterator<Item = &'w W>) -> bool {
    slots
        .into_iter()
        .all(|slot| slot.load(Ordering::Acquire) & HANDLES == 0)
}

/// Opens the gate on the transaction `tid`.
pub(crate) fn open<W: Word>(gate: &W, tid: Tid) {
    let turned = |word: u64| {
        let turn = (word & !(ONE_TURN - 1)).wrapping_add(ONE_TURN);
        Some(turn | (word & ABORTED) | u64::from(tid.0))
    };
    // Always succeeds. Only an abort may change the word meanwhile; its bit is kept.
    let _ = gate.change(Ordering::AcqRel, turned);
}

/// A place in the running transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The core whose slot was joined.
    pub(crate) core: CoreNr,
    /// The transaction.
    pub(crate) tid: Tid,
}

/// The gate of a journal.
#[derive(Debug)]
pub(crate) struct Gate {
    word: CachePadded<AtomicU64>,
    slots: PerCore<AtomicU64>,
    /// Threads that found the gate closed on this core and sleep, or are about to.
    joiners: PerCore<Mutex<Vec<Thread>>>,
    /// Held while the sealer tests whether to sleep, and while it is woken.
    sleeping: Mutex<()>,
    left: Condvar,
}

impl Gate {
    /// A gate open on the transaction `tid`.
    pub(crate) fn new(tid: Tid) -> Self {
        Self {
            word: CachePadded::new(AtomicU64::new(u64::from(tid.0))),
            slots: PerCore::default(),
            joiners: PerCore::default(),
            sleeping: Mutex::new(()),
            left: Condvar::new(),
        }
    }

    /// The current state.
    #[inline]
    pub(crate) fn state(&self) -> GateState {
        GateState(self.word.load(Ordering::Acquire))
    }

    /// Joins the running transaction with credits of this core.
    #[inline]
    pub(crate) fn join(&self, credits: u32) -> Result<Place, Refused> {
        // A thread that finds the gate closed does not touch the slots, so that it neither delays
        // the sealer nor has to wake it. Only if the gate is closed between this test and the join
        // does it join and leave again.
        let state = self.state();
        if state.is_aborted() {
            return Err(Refused::Aborted);
        }
        if state.is_closed() {
            return Err(Refused::Closed);
        }
        let core = CoreNr::current();
        match join(self.slots.of(core), &*self.word, credits) {
            Ok(state) => Ok(Place {
                core,
                tid: state.tid(),
            }),
            Err(Refused::Credits) => Err(Refused::Credits),
            Err(refused) => {
                self.leave_slot(core, 0);
                Err(refused)
            }
        }
    }

    /// Leaves the place, and returns the rest of its credits to its core.
    #[inline]
    pub(crate) fn leave(&self, place: Place, credits: u32) {
        self.leave_slot(place.core, credits);
    }

    #[inline]
    fn leave_slot(&self, core: CoreNr, credits: u32) {
        let slot = self.slots.of(core);
        if leave(slot, self.slots.iter(), &*self.word, credits) == Left::Last {
            self.wake_sealer();
        }
    }

    #[cold]
    fn wake_sealer(&self) {
        drop(self.sleeping.lock());
        self.left.notify_all();
    }

    /// Takes up to `most` credits out of the slot of `core`. Only for a thread that has a place, or
    /// for the sealer while the gate is drained.
    pub(crate) fn take_credits(&self, core: CoreNr, most: u32) -> u32 {
        let mut taken = 0;
        let take = |word: u64| {
            let there = word / ONE_CREDIT;
            taken = u32::try_from(there).unwrap_or(u32::MAX).min(most);
            (taken > 0).then(|| word - u64::from(taken) * ONE_CREDIT)
        };
        // Fails only if there was nothing to take.
        let _ = self.slots.of(core).change(Ordering::AcqRel, take);
        taken
    }

    /// Puts credits into the slot of `core`. Only for a thread that has a place.
    pub(crate) fn put_credits(&self, core: CoreNr, credits: u32) {
        if credits > 0 {
            let credits = u64::from(credits) * ONE_CREDIT;
            self.slots.of(core).fetch_add(credits, Ordering::AcqRel);
        }
    }

    /// Closes the gate and waits until all handles have left. One thread at a time.
    pub(crate) fn close_and_drain(&self) {
        close(&*self.word);
        self.drain();
    }

    /// Waits, while the gate is closed, until no handle is counted in any slot.
    pub(crate) fn drain(&self) {
        #[cfg(not(feature = "shuttle"))]
        if self.spin(SEALER_SPINS, || is_drained(self.slots.iter())) {
            return;
        }
        let mut sleeping = self.sleeping.lock();
        while !is_drained(self.slots.iter()) {
            self.left.wait(&mut sleeping);
        }
    }

    /// Spins up to `most` times until `is_done`, as long as no handle is open in this core's slot,
    /// whose thread may be waiting for this core. Returns whether it is done.
    #[cfg(not(feature = "shuttle"))]
    fn spin(&self, most: u32, is_done: impl Fn() -> bool) -> bool {
        for _ in 0..most {
            if is_done() {
                return true;
            }
            if self.slots.mine().load(Ordering::Relaxed) & HANDLES > 0 {
                return false;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Opens the gate on `tid`. The credits of all cores must have been taken out before, and the
    /// slots drained again since. Does not wake sleeping threads; [`Gate::wake_joiners`] does.
    pub(crate) fn open(&self, tid: Tid) {
        open(&*self.word, tid);
    }

    /// Wakes the threads that found the gate closed.
    pub(crate) fn wake_joiners(&self) {
        let mut all = Vec::new();
        for joiners in self.joiners.iter() {
            // The list keeps its memory, so that the next push does not allocate under the lock.
            all.append(&mut joiners.lock());
        }
        all.iter().for_each(Thread::unpark);
    }

    /// Waits until the gate is open, or has been opened since `turn` if that is given, or the
    /// journal is aborted.
    pub(crate) fn wait_open(&self, turn: Option<u64>) {
        let may_go = || {
            let state = self.state();
            let turned = turn.is_none_or(|turn| state.turn() != turn);
            state.is_aborted() || (turned && !state.is_closed())
        };
        #[cfg(not(feature = "shuttle"))]
        if self.spin(JOINER_SPINS, may_go) {
            return;
        }
        loop {
            // The sealer opens the gate before it takes the lists: it finds this thread on one, or
            // this thread finds the gate open.
            let mut joiners = self.joiners.mine().lock();
            if may_go() {
                return;
            }
            joiners.push(thread::current());
            drop(joiners);
            thread::park();
        }
    }

    /// Refuses all joins from now on, and wakes the threads that found the gate closed.
    pub(crate) fn abort(&self) {
        Word::fetch_or(&*self.word, ABORTED, Ordering::AcqRel);
        self.wake_joiners();
    }
}
