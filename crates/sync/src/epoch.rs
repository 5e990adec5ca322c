//! **Purpose.** Epoch-based reclamation: read guards, and cells whose old values stay alive until a
//! grace period has passed (as in RCU).
//!
//! **Model.** A reader calls [`pin`] and may then load any [`EpochCell`] as long as it holds the
//! [`Guard`]. A writer replaces the value of a cell as a whole; the old value is *retired*. It is
//! dropped after a grace period: when every guard that existed at that moment is dropped. All cells
//! of the process share one collector, so one guard serves a walk through any number of structures.
//!
//! **Invariants.**
//! - A value loaded under a guard stays alive until that guard is dropped, even if the cell is
//!   emptied, refilled or dropped meanwhile. That is why a loaded reference borrows only from the
//!   guard, why dropping a cell retires its value as a store does, and why a cell never gives out
//!   its value by `&mut` or by value: a reader may still hold a reference to it.
//! - Values are `Send + Sync + 'static`: any thread may read them, and the thread that drops the
//!   last guard drops them, at a time that no caller controls.
//!
//! **Locking.** Pinning and loading write only memory of this thread: a slot on cache lines of its
//! own says "active", and writers read all slots when they retire a batch of values. This is why
//! the collector is Hyaline ([`seize`]) and not crossbeam-epoch, whose readers regularly advance a
//! global epoch, which is one shared line written by all cores. On Linux entering needs no fence
//! either, because retiring a batch makes one `membarrier` call instead. A reader that was active
//! while a batch was retired does one atomic decrement on that batch when it leaves; other readers
//! do none.
//!
//! The destructor of a value runs inside a store, or when some unrelated guard is dropped: it must
//! take no lock and do no I/O. It may itself drop or change other cells. Retired values wait in a
//! batch of the thread that retired them, so a destructor may run late or, at the end of the
//! process, never: a value whose destructor has effects outside of the process (a file, a device)
//! does not belong into a cell.
//!
//! With the feature `shuttle` a simple model replaces the collector. It drops each value at the
//! earliest moment that these rules allow.
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

#[cfg(not(feature = "shuttle"))]
use std::alloc::{self, Layout};
#[cfg(debug_assertions)]
use std::cell::Cell;
use std::fmt;
use std::ptr;

/// Proof that values loaded under it stay alive.
///
/// It belongs to the thread that made it (it is neither `Send` nor `Sync`). A guard that is leaked
/// keeps alive all values that are retired from then on, and is otherwise harmless.
///
/// A value loaded under a guard cannot be used after the guard was dropped,
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
/// nor after a refresh,
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
/// Costs a few nanoseconds, and less when this thread already holds a guard. The guard may be held
/// across any operation, but should not be held for long: it keeps alive all values that are
/// replaced meanwhile.
#[inline]
pub fn pin() -> Guard {
    Guard(collector::pin(), Counted::new())
}

/// Asserts, in debug builds, that this thread holds no guard. To be called before a wait for a
/// thread that may itself wait for a grace period.
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

/// Calls `wait` with [`assert_not_pinned`] switched off, for a caller that holds a guard and cannot
/// drop it.
pub fn knowingly_pinned<R>(wait: impl FnOnce() -> R) -> R {
    #[cfg(debug_assertions)]
    let guards = GUARDS.with(|guards| guards.replace(0));
    let result = wait();
    #[cfg(debug_assertions)]
    GUARDS.with(|current| current.set(guards));
    result
}

#[cfg(debug_assertions)]
crate::thread::thread_local! {
    /// The number of guards that the thread holds.
    static GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// Exchanges the number of guards for another: a virtual core begins or ceases to run.
#[cfg(all(debug_assertions, feature = "count"))]
pub(crate) fn exchange_guards(other: &mut usize) {
    *other = GUARDS.with(|guards| guards.replace(*other));
}

/// Counts a guard in debug builds, and does nothing in release builds.
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
        // The counter may be gone already when the thread ends; then no wait follows.
        let _ = GUARDS.try_with(|guards| guards.set(guards.get().saturating_sub(1)));
    }
}

/// Starts dropping the values that this thread has retired so far, instead of waiting for a full
/// batch.
///
/// Values that a guard protects are dropped when it is. Batches of other threads are not touched.
/// Meant for grace periods, the end of a mount and tests: it costs a system call that interrupts
/// the other cores.
pub fn flush() {
    collector::flush();
}

/// Notes that a value which this thread retires holds `bytes` of memory outside of its box. When
/// many bytes were counted, the values are dropped without waiting for a full batch. Not all memory
/// has to be counted: the number of values in a batch is limited as well.
#[inline]
pub fn count_retired_bytes(bytes: usize) {
    collector::count_bytes(bytes);
}

impl Guard {
    /// Leaves the epoch and enters it again, so that a long scan does not keep alive all values
    /// that are replaced while it runs. References loaded before cannot be used any more. If the
    /// thread holds a second guard, this does nothing.
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
/// assert_eq!(before, Some(&[1, 2, 3]), "kept alive by the guard");
/// assert_eq!(limits.load(&guard), Some(&[4, 5, 6]));
/// # }
/// ```
pub struct EpochCell<T: Send + Sync + 'static> {
    /// Null, or a pointer made by `Box::into_raw`. It is retired exactly once, by the call that
    /// takes it out of the slot.
    slot: collector::Slot<T>,
}

/// The error of [`EpochCell::replace`]: the cell did not hold the expected value.
#[derive(Debug)]
pub struct Changed<'g, T> {
    /// The value found in the cell.
    pub found: Option<&'g T>,
    /// The new value, which was not stored.
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

    /// An empty cell.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            slot: collector::Slot::new(ptr::null_mut()),
        }
    }

    /// Returns the current value, which lives as long as the guard.
    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn load<'g>(&self, guard: &'g Guard) -> Option<&'g T> {
        // SAFETY: the pointer is null or came from a box that is retired only after it was taken
        // out of the slot; the guard, entered before this protected load, keeps it alive.
        unsafe { guard.0.protect(&self.slot).as_ref() }
    }

    /// Stores `value`; the old value is dropped after a grace period.
    #[cfg_attr(feature = "count", track_caller)]
    pub fn store(&self, value: Option<Box<T>>) {
        self.swap(value, &pin());
    }

    /// Stores `value` and returns the old value, which is retired and lives as long as the guard.
    #[cfg_attr(feature = "count", track_caller)]
    pub fn swap<'g>(&self, value: Option<Box<T>>, guard: &'g Guard) -> Option<&'g T> {
        let old = guard.0.swap(&self.slot, into_raw(value));
        // SAFETY: the swap took `old` out of the slot, so no other call retires it and no guard
        // entered from now on can load it; it came from a box (or is null).
        unsafe { retired(old, guard) }
    }

    /// Empties the cell and returns the old value, as [`EpochCell::swap`] with `None`.
    #[cfg_attr(feature = "count", track_caller)]
    pub fn take<'g>(&self, guard: &'g Guard) -> Option<&'g T> {
        self.swap(None, guard)
    }

    /// Stores `value` if the cell still holds the very object `current` (compared by address, which
    /// the guard keeps from being reused). Returns the old value.
    ///
    /// # Errors
    /// [`Changed`], with the value found and with `value`, if the cell holds another object.
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

    /// Whether the cell is empty now.
    #[must_use]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn is_empty(&self) -> bool {
        collector::peek(&self.slot).is_null()
    }
}

/// A cache line full of cells. A thread that is the only user of all of them shares the line with
/// no other thread.
#[derive(Debug)]
#[repr(align(64))]
pub struct CellLine<T: Send + Sync + 'static>([EpochCell<T>; CELLS_PER_LINE]);

/// The number of cells in a [`CellLine`].
pub const CELLS_PER_LINE: usize = 8;

impl<T: Send + Sync + 'static> CellLine<T> {
    /// Makes `lines` lines of empty cells. In the normal build their memory comes zeroed from the
    /// system, so pages without a stored value take no memory.
    #[must_use]
    pub fn empty_slice(lines: usize) -> Box<[Self]> {
        #[cfg(feature = "shuttle")]
        let lines = (0..lines)
            .map(|_| Self(std::array::from_fn(|_| EpochCell::empty())))
            .collect();
        // SAFETY: a cell is one atomic pointer here, and zeroes are its null.
        #[cfg(not(feature = "shuttle"))]
        let lines = unsafe { zeroed_slice(lines) };
        lines
    }

    /// The cells.
    #[inline]
    pub fn cells(&self) -> &[EpochCell<T>; CELLS_PER_LINE] {
        &self.0
    }
}

/// `Box::new_zeroed_slice`, which Rust has since 1.92 only.
///
/// # Safety
/// Bytes of zeroes are a valid `T`.
#[cfg(not(feature = "shuttle"))]
unsafe fn zeroed_slice<T>(len: usize) -> Box<[T]> {
    let layout = Layout::array::<T>(len).expect("it fits into the address space");
    if layout.size() == 0 {
        return Vec::new().into_boxed_slice();
    }
    // SAFETY: the size is not 0.
    let memory = unsafe { alloc::alloc_zeroed(layout) }.cast::<T>();
    if memory.is_null() {
        alloc::handle_alloc_error(layout);
    }
    // SAFETY: the memory was allocated by the global allocator with the layout of this slice, and
    // the caller guarantees that zeroes are values.
    unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(memory, len)) }
}

fn into_raw<T>(value: Option<Box<T>>) -> *mut T {
    value.map_or(ptr::null_mut(), Box::into_raw)
}

/// # Safety
/// `pointer` is null, or came from `Box::into_raw` and is owned by the caller.
unsafe fn from_raw<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: guaranteed by the caller.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// Retires `old`, and returns it for the lifetime of the guard.
///
/// # Safety
/// `old` is null, or came from a box and was taken out of its slot by the caller while `guard` was
/// held.
unsafe fn retired<T: Send + Sync + 'static>(old: *mut T, guard: &Guard) -> Option<&T> {
    if old.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that guards entered from now on cannot reach `old` and that
    // the caller owns it; the collector drops it only after `guard`, so the reference is valid for
    // that long.
    unsafe {
        guard.0.retire(old);
        Some(&*old)
    }
}

impl<T: Send + Sync + 'static> Drop for EpochCell<T> {
    fn drop(&mut self) {
        let last = *self.slot.get_mut();
        if !last.is_null() {
            // SAFETY: the cell is borrowed exclusively, so it cannot be loaded any more; the
            // collector waits for guards under which it was loaded before.
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
