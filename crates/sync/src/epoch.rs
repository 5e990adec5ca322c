//! **Purpose.** Read guards, and cells whose old values outlive their readers.
//!
//! **Model.** A reader calls [`pin`] and may then follow any [`EpochCell`] as long as it holds the
//! [`Guard`]. A writer replaces the content of a cell as a whole; the old content is *retired*,
//! and dropped once every guard that existed at that moment is gone. All cells of the process
//! share one collector, so one guard serves a walk through any number of structures.
//!
//! **Invariants.**
//! - A value loaded under a guard stays alive until that guard is dropped, even if the cell is
//!   emptied, refilled or dropped meanwhile. That is why a loaded reference borrows only from the
//!   guard, why dropping a cell retires its value like a store does, and why a cell never gives
//!   its value back by `&mut` or by value: a reader may still be looking at it.
//! - Values are `Send + Sync + 'static`: any thread may read them, and the thread that happens to
//!   leave last drops them, at a time nobody chose.
//!
//! **Locking.** Pinning and loading write only memory of this thread: a slot on cache lines of its
//! own says "active", and writers look at all slots when they retire a batch of values. This is
//! why the collector is Hyaline ([`seize`]) and not crossbeam-epoch, whose readers advance a global
//! epoch every so many pins, one shared line written by all cores. On Linux entering needs no
//! fence either; retiring a batch pays for it with one `membarrier` call. A reader that was active
//! while a batch was retired, and only such a reader, does one atomic decrement on that batch when
//! it leaves.
//!
//! The destructor of a value runs inside a store, or when some unrelated guard is dropped: it must
//! take no lock and do no I/O. It may itself drop or change other cells. Retired values wait in
//! batches of their writer's thread, so a destructor may run late or, at the end of the process,
//! never: nothing whose end must be seen from outside (a file, a device) belongs into a cell.
//!
//! With the feature `shuttle` a plain model stands in, which drops each value at the earliest
//! moment the rules allow.
//!
//! **References.** R. Nikolaev, B. Ravindran, "Snapshot-Free, Transparent, and Robust Memory
//! Reclamation for Lock-Free Data Structures" (PLDI 2021), the variant Hyaline-1.

#[cfg(feature = "shuttle")]
mod model;
#[cfg(feature = "shuttle")]
use model as collector;
#[cfg(not(feature = "shuttle"))]
mod reclaim;
#[cfg(not(feature = "shuttle"))]
use reclaim as collector;
#[cfg(test)]
mod tests;

#[cfg(debug_assertions)]
use std::cell::Cell;
use std::fmt;
use std::ptr;

/// Proof that values loaded under it stay alive.
///
/// It belongs to the thread that made it (it is neither `Send` nor `Sync`). A guard that is leaked
/// keeps everything retired from then on alive, and is otherwise harmless.
///
/// What was loaded under a guard cannot be used after it:
///
/// ```compile_fail,E0505
/// use fourscore_sync::epoch::{EpochCell, pin};
/// let cell = EpochCell::new(Some(Box::new(1)));
/// let guard = pin();
/// let value = cell.load(&guard);
/// drop(guard);
/// println!("{value:?}");
/// ```
///
/// nor after a refresh:
///
/// ```compile_fail,E0502
/// use fourscore_sync::epoch::{EpochCell, pin};
/// let cell = EpochCell::new(Some(Box::new(1)));
/// let mut guard = pin();
/// let value = cell.load(&guard);
/// guard.refresh();
/// println!("{value:?}");
/// ```
///
/// and a guard does not leave its thread:
///
/// ```compile_fail,E0277
/// let guard = fourscore_sync::epoch::pin();
/// fourscore_sync::thread::spawn(move || drop(guard));
/// ```
#[must_use = "values are protected only while the guard is held"]
pub struct Guard(collector::Guard, Counted);

/// Enters the epoch on this thread.
///
/// Costs a few nanoseconds, and less when this thread already holds a guard. May be held across
/// anything, but should not be held for long: it keeps alive what is replaced meanwhile.
#[inline]
pub fn pin() -> Guard {
    Guard(collector::pin(), Counted::new())
}

/// Asserts, in debug builds, that this thread holds no guard: before it waits for somebody who may
/// wait until all guards are gone.
///
/// # Panics
/// In debug builds, if it holds one.
#[inline]
#[cfg_attr(debug_assertions, track_caller)]
pub fn assert_not_pinned() {
    #[cfg(debug_assertions)]
    assert_eq!(
        GUARDS.with(Cell::get),
        0,
        "a thread waits with an epoch guard"
    );
}

#[cfg(debug_assertions)]
crate::thread::thread_local! {
    /// The guards that the thread holds.
    static GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// Counts a guard in debug builds, and is nothing in others.
struct Counted;

impl Counted {
    #[inline]
    fn new() -> Self {
        #[cfg(debug_assertions)]
        let _ = GUARDS.try_with(|guards| guards.set(guards.get() + 1));
        Self
    }
}

#[cfg(debug_assertions)]
impl Drop for Counted {
    fn drop(&mut self) {
        // A thread that is ending waits for nobody any more.
        let _ = GUARDS.try_with(|guards| guards.set(guards.get().saturating_sub(1)));
    }
}

/// Starts dropping what this thread has retired so far, instead of waiting for a full batch.
///
/// Values that a guard protects are dropped when it ends. Batches of other threads are not
/// touched. Meant for the end of a mount and for tests: it costs a system call.
pub fn flush() {
    collector::flush();
}

impl Guard {
    /// Ends the protection and starts it anew, so that a long scan does not keep alive everything
    /// that is replaced while it runs. References loaded before are gone; with an outer guard on
    /// the same thread this does nothing.
    pub fn refresh(&mut self) {
        self.0.refresh();
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

/// An optional boxed value that is read under a [`Guard`] and replaced as a whole.
///
/// It is one pointer wide in the normal build.
///
/// ```
/// # #[cfg(not(feature = "shuttle"))] {
/// use fourscore_sync::epoch::{EpochCell, pin};
/// let limits = EpochCell::new(Some(Box::new([1, 2, 3])));
/// let guard = pin();
/// let before = limits.load(&guard);
/// limits.store(Some(Box::new([4, 5, 6])));
/// assert_eq!(before, Some(&[1, 2, 3]), "still there for those who saw it");
/// assert_eq!(limits.load(&guard), Some(&[4, 5, 6]));
/// # }
/// ```
pub struct EpochCell<T: Send + Sync + 'static> {
    /// Null, or a pointer made by `Box::into_raw`. It is retired exactly once: by whoever takes
    /// it out of the slot.
    slot: collector::Slot<T>,
}

/// What [`EpochCell::replace`] hands back when the cell held something else than expected.
#[derive(Debug)]
pub struct Changed<'g, T> {
    /// The value found in the cell.
    pub found: Option<&'g T>,
    /// The value that was not put in.
    pub rejected: Option<Box<T>>,
}

impl<T: Send + Sync + 'static> EpochCell<T> {
    /// A cell that holds `value`.
    #[must_use]
    pub fn new(value: Option<Box<T>>) -> Self {
        Self {
            slot: collector::Slot::new(into_raw(value)),
        }
    }

    /// A cell that holds nothing.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            slot: collector::Slot::new(ptr::null_mut()),
        }
    }

    /// The value now; it lives as long as the guard.
    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn load<'g>(&self, guard: &'g Guard) -> Option<&'g T> {
        // SAFETY: the pointer is null or came from a box that is retired only after it was taken
        // out of the slot; the guard, entered before this protected load, keeps it alive.
        unsafe { guard.0.protect(&self.slot).as_ref() }
    }

    /// Puts `value` in; the old value is dropped when its readers are gone.
    #[cfg_attr(feature = "count", track_caller)]
    pub fn store(&self, value: Option<Box<T>>) {
        self.swap(value, &pin());
    }

    /// Puts `value` in and returns the old value, which is retired and lives as long as the guard.
    #[cfg_attr(feature = "count", track_caller)]
    pub fn swap<'g>(&self, value: Option<Box<T>>, guard: &'g Guard) -> Option<&'g T> {
        let old = guard.0.swap(&self.slot, into_raw(value));
        // SAFETY: the swap took `old` out of the slot, so nobody else retires it and no guard
        // entered from now on can load it; it came from a box (or is null).
        unsafe { retired(old, guard) }
    }

    /// Empties the cell; the same as [`EpochCell::swap`] with nothing.
    #[cfg_attr(feature = "count", track_caller)]
    pub fn take<'g>(&self, guard: &'g Guard) -> Option<&'g T> {
        self.swap(None, guard)
    }

    /// Puts `value` in if the cell still holds the very object `current` (compared by address,
    /// which the guard keeps from being reused). Returns the old value.
    ///
    /// # Errors
    /// [`Changed`] with the value found, and `value` back, if it held something else.
    #[cfg_attr(feature = "count", track_caller)]
    pub fn replace<'g>(
        &self,
        current: Option<&'g T>,
        value: Option<Box<T>>,
        guard: &'g Guard,
    ) -> Result<Option<&'g T>, Changed<'g, T>> {
        let expected = current.map_or(ptr::null_mut(), |value| ptr::from_ref(value).cast_mut());
        let new = into_raw(value);
        match guard.0.compare_exchange(&self.slot, expected, new) {
            // SAFETY: as in `swap`: the exchange took `old` out of the slot.
            Ok(old) => Ok(unsafe { retired(old, guard) }),
            Err(found) => Err(Changed {
                // SAFETY: as in `load`: a failed exchange is a protected load.
                found: unsafe { found.as_ref() },
                // SAFETY: `new` came from a box (or is null) and was not put into the slot.
                rejected: unsafe { from_raw(new) },
            }),
        }
    }

    /// Whether the cell holds nothing now.
    #[must_use]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn is_empty(&self) -> bool {
        collector::peek(&self.slot).is_null()
    }
}

/// Cells that fill a cache line together, so that who uses some of them is alone on the line if he
/// has all.
#[derive(Debug)]
#[repr(align(64))]
pub struct CellLine<T: Send + Sync + 'static>([EpochCell<T>; CELLS_PER_LINE]);

/// How many cells make a [`CellLine`].
pub const CELLS_PER_LINE: usize = 8;

impl<T: Send + Sync + 'static> CellLine<T> {
    /// Lines of cells that hold nothing. In the normal build their memory comes zeroed from the
    /// system, so pages nobody stores to cost nothing.
    #[must_use]
    pub fn empty_slice(lines: usize) -> Box<[Self]> {
        #[cfg(feature = "shuttle")]
        let lines = (0..lines)
            .map(|_| Self(std::array::from_fn(|_| EpochCell::empty())))
            .collect();
        // SAFETY: a cell is one atomic pointer here, and zeroes are its null.
        #[cfg(not(feature = "shuttle"))]
        let lines = unsafe { Box::new_zeroed_slice(lines).assume_init() };
        lines
    }

    /// The cells.
    #[inline]
    pub fn cells(&self) -> &[EpochCell<T>; CELLS_PER_LINE] {
        &self.0
    }
}

fn into_raw<T>(value: Option<Box<T>>) -> *mut T {
    value.map_or(ptr::null_mut(), Box::into_raw)
}

/// # Safety
/// `pointer` is null, or came from `Box::into_raw` and is owned by the caller.
unsafe fn from_raw<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: promised by the caller.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// Retires `old` and returns it for as long as the guard protects it.
///
/// # Safety
/// `old` is null, or came from a box and was taken out of its slot by the caller while `guard`
/// was held.
unsafe fn retired<T: Send + Sync + 'static>(old: *mut T, guard: &Guard) -> Option<&T> {
    if old.is_null() {
        return None;
    }
    // SAFETY: unreachable for guards entered from now on, and owned by the caller, as promised;
    // the collector drops it only after `guard`, so the reference is good for that long.
    unsafe {
        guard.0.retire(old);
        Some(&*old)
    }
}

impl<T: Send + Sync + 'static> Drop for EpochCell<T> {
    fn drop(&mut self) {
        let last = *self.slot.get_mut();
        if !last.is_null() {
            // SAFETY: we own the cell, so nobody can load from it any more; those who did are
            // waited for.
            unsafe { collector::pin().retire(last) };
        }
    }
}

impl<T: Send + Sync + 'static> Default for EpochCell<T> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for EpochCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EpochCell")
            .field(&self.load(&pin()))
            .finish()
    }
}
