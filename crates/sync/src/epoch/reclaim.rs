//! **Purpose.** The collector of the normal and the counting build: one process-wide [`seize`]
//! collector. In the counting build each access is noted.

use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use seize::Guard as _;

use crate::CoreNr;

pub(super) type Slot<T> = AtomicPtr<T>;

/// The number of values that a thread collects in a batch before it retires them. A batch costs one
/// `membarrier`, which interrupts all other cores of the process, and one write for each active
/// thread. So it must not be small. A batch can be retired only if it holds a value for each active
/// thread.
const BATCH: usize = 1024;

/// A batch may be retired before it is full: when this many bytes were counted ([`count_bytes`])
/// since the last time that the limit was reached or the batch was flushed. An idle thread should
/// not keep much memory.
const BATCH_BYTES: usize = 1 << 20;

thread_local! {
    /// The bytes that were counted since [`BATCH_BYTES`] were reached or the batch was flushed.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

static COLLECTOR: LazyLock<seize::Collector> =
    LazyLock::new(|| seize::Collector::new().batch_size(batch_size()));

fn batch_size() -> usize {
    BATCH.max(CoreNr::count())
}

pub(super) struct Guard(seize::LocalGuard<'static>);

#[inline]
pub(super) fn pin() -> Guard {
    Guard(COLLECTOR.enter())
}

pub(super) fn flush() {
    BYTES.set(0);
    let guard = pin();
    // A batch is retired when it is full. Then it holds a value for each active thread, so this
    // has an effect even while other threads are active. What is left in the next batch is nothing.
    for _ in 0..batch_size() {
        let nothing = std::ptr::dangling_mut::<u8>();
        // SAFETY: `keep` does not use the pointer.
        unsafe { guard.0.defer_retire(nothing, keep) };
    }
}

pub(super) fn count_bytes(bytes: usize) {
    let sum_bytes = BYTES.get().saturating_add(bytes);
    if sum_bytes < BATCH_BYTES {
        return BYTES.set(sum_bytes);
    }
    BYTES.set(0);
    // Retires the batch if it has a value for each active thread; else it grows further.
    pin().0.flush();
}

/// Drops nothing, in place of the destructor of a value.
///
/// # Safety
/// None is required; the type of a destructor demands the keyword.
unsafe fn keep(_: *mut u8, _: &seize::Collector) {}

impl Guard {
    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    pub(super) fn protect<T>(&self, slot: &Slot<T>) -> *mut T {
        let value = self.0.protect(slot, Ordering::Acquire);
        note_read(slot, value);
        value
    }

    #[cfg_attr(feature = "count", track_caller)]
    pub(super) fn swap<T>(&self, slot: &Slot<T>, new: *mut T) -> *mut T {
        note_write(slot, new);
        self.0.swap(slot, new, Ordering::AcqRel)
    }

    #[cfg_attr(feature = "count", track_caller)]
    pub(super) fn compare_exchange<T>(
        &self,
        slot: &Slot<T>,
        expected: *mut T,
        new: *mut T,
    ) -> Result<*mut T, *mut T> {
        note_write(slot, new);
        self.0
            .compare_exchange(slot, expected, new, Ordering::AcqRel, Ordering::Acquire)
    }

    /// # Safety
    /// `pointer` came from a box, and no guard entered from now on can reach it.
    pub(super) unsafe fn retire<T>(&self, pointer: *mut T) {
        // SAFETY: guaranteed by the caller. Retiring through the guard (and not through the
        // collector) keeps the value alive for references that this thread itself holds.
        unsafe { self.0.defer_retire(pointer, reclaim) };
    }

    pub(super) fn refresh(&mut self) {
        self.0.refresh();
    }
}

/// Drops a value that no thread can reach any more.
///
/// # Safety
/// `pointer` came from a box, and is retired once.
unsafe fn reclaim<T>(pointer: *mut T, collector: &seize::Collector) {
    // Its memory may be reused.
    #[cfg(feature = "count")]
    crate::count::forget_value(pointer);
    // SAFETY: guaranteed by the caller.
    unsafe { seize::reclaim::boxed(pointer, collector) };
}

#[inline]
#[cfg_attr(feature = "count", track_caller)]
pub(super) fn peek<T>(slot: &Slot<T>) -> *mut T {
    let value = slot.load(Ordering::Acquire);
    note_read(slot, std::ptr::null_mut::<T>());
    value
}

/// Notes a load: it reads the cell and the value that the cell points to.
#[inline]
#[cfg_attr(feature = "count", track_caller)]
fn note_read<T>(slot: &Slot<T>, value: *mut T) {
    #[cfg(feature = "count")]
    {
        crate::count::note_read(slot);
        if !value.is_null() {
            crate::count::note_read(value);
        }
    }
    let _ = (slot, value);
}

/// Notes a store: it writes the cell, and the new value was made on this core.
#[inline]
#[cfg_attr(feature = "count", track_caller)]
fn note_write<T>(slot: &Slot<T>, new: *mut T) {
    #[cfg(feature = "count")]
    {
        crate::count::note_write(slot);
        if !new.is_null() {
            crate::count::note_new_value(new);
        }
    }
    let _ = (slot, new);
}
