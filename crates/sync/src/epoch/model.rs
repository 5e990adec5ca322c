//! **Purpose.** The collector of the `shuttle` build: the rules of [`crate::epoch`] in their
//! simplest form.
//!
//! **Model.** Every guard has a number. Retiring a value notes the guards that are active at that
//! moment; the value is dropped when the last of them is, which is as early as the rules allow.
//! Code that breaks the rules reads a dropped value in some schedule.
//!
//! All tasks of one shuttle execution are coroutines of one OS thread, so a thread-local of the
//! standard library holds exactly the state of one execution.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::mem;

use crate::atomic::Ordering;

pub(super) type Slot<T> = crate::atomic::AtomicPtr<T>;

#[derive(Default)]
struct State {
    next: u64,
    active: BTreeSet<u64>,
    retired: Vec<Retired>,
}

/// A retired value (an [`Owned`] with its type erased), and the guards that may still reach it.
struct Retired {
    readers: BTreeSet<u64>,
    value: Box<dyn Any>,
}

impl Drop for State {
    /// Leaks what is still retired when the OS thread ends: an execution that failed ended with
    /// guards open. Destructors of the values may touch shuttle's primitives, which panic outside
    /// of an execution.
    fn drop(&mut self) {
        mem::forget(mem::take(&mut self.retired));
    }
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

pub(super) struct Guard {
    number: u64,
    /// A guard belongs to its task.
    _not_send: PhantomData<*const ()>,
}

pub(super) fn pin() -> Guard {
    Guard {
        number: enter(),
        _not_send: PhantomData,
    }
}

/// Does nothing: there are no batches here.
pub(super) fn flush() {}

/// Does nothing: there are no batches here.
pub(super) fn count_bytes(_bytes: usize) {}

fn enter() -> u64 {
    STATE.with_borrow_mut(|state| {
        let number = state.next;
        state.next += 1;
        state.active.insert(number);
        number
    })
}

fn leave(number: u64) {
    let dead = STATE.with_borrow_mut(|state| {
        state.active.remove(&number);
        for retired in &mut state.retired {
            retired.readers.remove(&number);
        }
        let all = mem::take(&mut state.retired);
        let (waiting, dead): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|retired| !retired.readers.is_empty());
        state.retired = waiting;
        dead
    });
    // Outside of the borrow: destructors may pin, retire, and let other tasks run.
    for retired in dead {
        drop(retired.value);
    }
}

impl Guard {
    pub(super) fn protect<T>(&self, slot: &Slot<T>) -> *mut T {
        slot.load(Ordering::SeqCst)
    }

    pub(super) fn swap<T>(&self, slot: &Slot<T>, new: *mut T) -> *mut T {
        slot.swap(new, Ordering::SeqCst)
    }

    pub(super) fn compare_exchange<T>(
        &self,
        slot: &Slot<T>,
        expected: *mut T,
        new: *mut T,
    ) -> Result<*mut T, *mut T> {
        slot.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    /// # Safety
    /// `pointer` came from a box, and no guard entered from now on can reach it.
    pub(super) unsafe fn retire<T: Send + Sync + 'static>(&self, pointer: *mut T) {
        STATE.with_borrow_mut(|state| {
            let readers = state.active.clone();
            state.retired.push(Retired {
                readers,
                value: Box::new(Owned(pointer)),
            });
        });
    }

    pub(super) fn refresh(&mut self) {
        leave(self.number);
        self.number = enter();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        leave(self.number);
    }
}

pub(super) fn peek<T>(slot: &Slot<T>) -> *mut T {
    slot.load(Ordering::SeqCst)
}

/// A retired box. It stays a raw pointer until it is dropped, because readers still hold references
/// into it and a `Box` would claim exclusive access.
struct Owned<T>(*mut T);

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box and was retired once; its grace period has passed.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
