//! **Purpose.** Who may be inside the running transaction: handles join it per core, and whoever
//! seals it closes the gate, waits until all have left, and opens the gate on the next one.
//!
//! **Not here.** What is done to the transaction while the gate is closed (`seal`), and how many
//! credits there are (`credits`); but the credits that lie with a core share the word of its slot,
//! so that joining with credits is one read-modify-write.
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
//!   between. So at least one sees the other: a joiner that found the gate open is seen by the
//!   sealer, which waits for it. Without the fence after the join, the slot could still lie in a
//!   store buffer when the sealer looks, and a handle would run in a transaction that was sealed.
//! - *No sealer sleeps for ever.* Leave and drain are the same protocol again: a leaver that finds
//!   the gate open is seen as gone by the sealer's next look; one that finds it closed, and nobody
//!   in any slot, wakes the sealer under the lock under which it looks. Of the last leavers of two
//!   slots at least one sees that the other has left: each writes its own slot, then reads the
//!   other's, with the fence between.
//! - A handle leaves the slot that it joined, wherever its thread runs by then; a slot's count of
//!   handles is never negative.
//! - Credits of a slot are taken out only by who is counted in some slot, or by the sealer when
//!   all are drained. A joiner that found the gate closed does not give its credits back: the
//!   sealer may have begun to count anew.
//! - *No credit outlives its transaction.* Somebody may join with credits after the sealer found
//!   all slots drained, and look at the gate only when it is open again. So the sealer drains once
//!   more when it has taken all credits out: who took some before that is counted, and sees the
//!   gate closed.
//!
//! # Locking
//! Joining and leaving write the line of this core's slot and read the gate's line, which is
//! written once per seal. The locks are taken only while the gate is closed, and are leaves.
//!
//! # Many more threads than cores
//! A thread that lost its core inside a handle keeps the gate closed until it has run again, behind
//! all that stand in the queue before it. So the queue must become short at once:
//! - Who finds the gate closed, and a handle open in its core's slot, sleeps without a second look:
//!   the handle may be that of a thread which waits for just this core. The sealer does the same.
//!   Only where the slot is empty it pays to look again for a few microseconds.
//! - Nobody waits on the way to sleep: the list of those who sleep is per core. One list for all
//!   made every thread that met its lock give up its core, with its handle's end still to come.
//! - The sealer is woken once, when all have left, not once per core.
//! - Who sleeps is woken by the sealer itself, after the gate was opened, and comes without a lock.
//!   With a condition variable each would wake the next when it gives the mutex back, and the last
//!   would come in after as many turns of the queue as there are threads.
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
/// The handles of a slot's word.
const HANDLES: u64 = 0xffff_ffff;
/// One credit in a slot's word.
const ONE_CREDIT: u64 = 1 << 32;

const CLOSED: u64 = 1 << 32;
const ABORTED: u64 = 1 << 33;
const ONE_TURN: u64 = 1 << 34;

/// How often the sealer looks again before it sleeps: some microseconds, which most seals take.
#[cfg(not(feature = "shuttle"))]
const SEALER_LOOKS: u32 = 200;
/// How often others do.
#[cfg(not(feature = "shuttle"))]
const JOINER_LOOKS: u32 = 50;

/// An atomic word: that of crate `sync`, or loom's.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    /// A fence that all threads see in one order.
    fn full_fence();
    /// Replaces the value by what `change` makes of it, unless that is nothing.
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

/// What the gate's word says.
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

/// Why a thread is not inside.
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
    /// Nobody waits for this.
    Quietly,
    /// The gate is closed and nobody is inside any more: its sealer may be waiting for just this.
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
    let is_of_no_matter = before & HANDLES > 1 || gate.load(Ordering::Relaxed) & CLOSED == 0;
    if is_of_no_matter || !is_drained(slots) {
        Left::Quietly
    } else {
        Left::Last
    }
}

/// Closes the gate: from now on nobody gets in, and who was inside can be waited for.
pub(crate) fn close<W: Word>(gate: &W) {
    gate.fetch_or(CLOSED, Ordering::AcqRel);
    W::full_fence();
}

/// Whether all have left; to be asked after [`close`].
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
    // Always succeeds; only an abort may interfere, and its bit is kept.
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
    /// Who found the gate closed on this core and sleeps, or is about to.
    joiners: PerCore<Mutex<Vec<Thread>>>,
    /// Held while the sealer looks whether to sleep, and while it is woken.
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

    /// What the gate says now.
    #[inline]
    pub(crate) fn state(&self) -> GateState {
        GateState(self.word.load(Ordering::Acquire))
    }

    /// Joins the running transaction with credits of this core.
    #[inline]
    pub(crate) fn join(&self, credits: u32) -> Result<Place, Refused> {
        // Who comes while the gate is closed stays away from the slots, so that it neither delays
        // the sealer nor has to wake it. Only who comes at that moment joins and leaves again.
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

    /// Leaves the place, and puts what is left of its credits with its core.
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

    /// Takes up to `most` credits out of the slot of `core`. Only for who has a place, or as the
    /// sealer behind a drained gate.
    pub(crate) fn take_credits(&self, core: CoreNr, most: u32) -> u32 {
        let mut taken = 0;
        let take = |word: u64| {
            let there = word / ONE_CREDIT;
            taken = u32::try_from(there).unwrap_or(u32::MAX).min(most);
            (taken > 0).then(|| word - u64::from(taken) * ONE_CREDIT)
        };
        // Fails only where there was nothing to take.
        let _ = self.slots.of(core).change(Ordering::AcqRel, take);
        taken
    }

    /// Puts credits into the slot of `core`. Only for who has a place.
    pub(crate) fn put_credits(&self, core: CoreNr, credits: u32) {
        if credits > 0 {
            let credits = u64::from(credits) * ONE_CREDIT;
            self.slots.of(core).fetch_add(credits, Ordering::AcqRel);
        }
    }

    /// Closes the gate and waits until everybody has left. One thread at a time.
    pub(crate) fn close_and_drain(&self) {
        close(&*self.word);
        self.drain();
    }

    /// Waits, behind the closed gate, until nobody is counted in any slot.
    pub(crate) fn drain(&self) {
        #[cfg(not(feature = "shuttle"))]
        if self.look(SEALER_LOOKS, || is_drained(self.slots.iter())) {
            return;
        }
        let mut sleeping = self.sleeping.lock();
        while !is_drained(self.slots.iter()) {
            self.left.wait(&mut sleeping);
        }
    }

    /// Looks up to `most` times whether `is_done`, as long as no thread that is inside may be
    /// waiting for this core.
    #[cfg(not(feature = "shuttle"))]
    fn look(&self, most: u32, is_done: impl Fn() -> bool) -> bool {
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
    /// slots drained again since. Who sleeps is let in by [`Gate::wake_joiners`].
    pub(crate) fn open(&self, tid: Tid) {
        open(&*self.word, tid);
    }

    /// Wakes those who found the gate closed.
    pub(crate) fn wake_joiners(&self) {
        let mut all = Vec::new();
        for joiners in self.joiners.iter() {
            // The list keeps its memory: who comes next does not ask for any under the lock.
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
        if self.look(JOINER_LOOKS, may_go) {
            return;
        }
        loop {
            // Whoever opens the gate does so before he takes the lists: he finds us on one, or we
            // find the gate open.
            let mut joiners = self.joiners.mine().lock();
            if may_go() {
                return;
            }
            joiners.push(thread::current());
            drop(joiners);
            thread::park();
        }
    }

    /// Refuses everybody from now on, and wakes who waits.
    pub(crate) fn abort(&self) {
        Word::fetch_or(&*self.word, ABORTED, Ordering::AcqRel);
        self.wake_joiners();
    }
}
