//! Tests of the gate's protocol under loom, which models the reordering of weak memory. shuttle
//! treats every access as sequentially consistent, so it would not detect a missing fence.
//!
//! Relaxed counters model the changes of a transaction: if a handle is still inside when its
//! transaction is sealed, or the sealer may not see its changes, a sum is wrong in some execution.
//! loom also reports a sealer that sleeps for ever.

use loom::sync::Arc;
use loom::sync::atomic as loomed;

use super::*;

/// A word of loom, with the full fence or without it.
struct Loomed<const FENCED: bool>(loomed::AtomicU64);

impl<const FENCED: bool> Word for Loomed<FENCED> {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
    fn full_fence() {
        if FENCED {
            loomed::fence(Ordering::SeqCst);
        }
    }
    fn change(
        &self,
        success: Ordering,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        self.0.fetch_update(success, Ordering::Relaxed, change)
    }
}

const RUNNING: Tid = Tid(7);

struct Shared<const FENCED: bool> {
    gate: Loomed<FENCED>,
    slots: [Loomed<FENCED>; 2],
    /// How many changes of each core's handles the running transaction holds.
    changes: [loomed::AtomicU64; 2],
    /// Wakes the sealer; a wake-up that comes before it sleeps is kept.
    wake: loom::sync::Notify,
}

impl<const FENCED: bool> Shared<FENCED> {
    fn new() -> Arc<Self> {
        let word = |value| Loomed(loomed::AtomicU64::new(value));
        Arc::new(Self {
            gate: word(u64::from(RUNNING.0)),
            slots: [word(2 * ONE_CREDIT), word(2 * ONE_CREDIT)],
            changes: [loomed::AtomicU64::new(0), loomed::AtomicU64::new(0)],
            wake: loom::sync::Notify::new(),
        })
    }

    /// Runs one handle on `core`, which makes a change if it can join; returns its transaction.
    fn handle(&self, core: usize) -> Option<Tid> {
        let joined = join(&self.slots[core], &self.gate, 1);
        if joined.is_ok() {
            // Load and store are separate, so that an overlap with the sealer loses a change.
            let changes = self.changes[core].load(Ordering::Relaxed);
            self.changes[core].store(changes + 1, Ordering::Relaxed);
        }
        if leave(&self.slots[core], &self.slots, &self.gate, 0) == Left::Last {
            self.wake.notify();
        }
        joined.ok().map(GateState::tid)
    }

    /// Seals the running transaction; returns its number of changes.
    fn seal(&self) -> u64 {
        close(&self.gate);
        while !is_drained(&self.slots) {
            self.wake.wait();
        }
        let sealed = self.take_changes();
        open(&self.gate, RUNNING.next());
        sealed
    }

    fn take_changes(&self) -> u64 {
        let mut sum = 0;
        for changes in &self.changes {
            sum += changes.load(Ordering::Relaxed);
            changes.store(0, Ordering::Relaxed);
        }
        sum
    }
}

/// One handle on each core against one seal.
fn every_change_is_sealed_with_its_transaction<const FENCED: bool>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::<FENCED>::new();
        let handles = [0, 1].map(|core| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.handle(core))
        });
        let sealed = shared.seal();
        let tids = handles.map(|handle| handle.join().unwrap());
        let of = |tid| tids.iter().filter(|&&found| found == Some(tid)).count() as u64;
        assert_eq!(sealed, of(RUNNING), "{tids:?}");
        assert_eq!(shared.take_changes(), of(RUNNING.next()), "{tids:?}");
        assert!(is_drained(&shared.slots));
    });
}

#[test]
fn a_seal_takes_the_changes_of_its_handles_only() {
    every_change_is_sealed_with_its_transaction::<true>();
}

#[test]
#[should_panic]
fn without_the_fences_loom_finds_a_handle_in_a_sealed_transaction() {
    every_change_is_sealed_with_its_transaction::<false>();
}

#[test]
fn credits_of_one_core_are_never_taken_twice() {
    loom::model(|| {
        let shared = Shared::<true>::new();
        let taken = [0, 0].map(|core| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                let joined = join(&shared.slots[core], &shared.gate, 2).is_ok();
                if joined {
                    leave(&shared.slots[core], &shared.slots, &shared.gate, 1);
                }
                joined
            })
        });
        let taken = taken.map(|task| task.join().unwrap());
        let left = shared.slots[0].load(Ordering::Relaxed) / ONE_CREDIT;
        let joined = taken.iter().filter(|&&joined| joined).count() as u64;
        assert_eq!((left, joined >= 1), (2 - joined, true));
    });
}
