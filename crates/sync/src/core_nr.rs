//! **Purpose.** Core numbers, and values kept once per core.
//!
//! **Model.** A core number is below [`CoreNr::count`], which is fixed for the life of the process
//! and covers every CPU that the process may ever run on (the *possible* ones: a CPU brought online
//! later has its slot already). The current core is a hint: the scheduler may move the thread right
//! after it read the number, so the value in a per-core slot must allow access from any thread. On
//! systems other than Linux each thread has a fixed number instead (`host::portable`).
//!
//! In the `shuttle` build there are two cores, and a task moves to the other one with every second
//! query of its number, so that tests catch code that relies on staying on one core. In the
//! counting build the numbers are those of the virtual cores inside `count::with_cores`.

#[cfg(not(feature = "shuttle"))]
pub(crate) mod machine;
#[cfg(feature = "shuttle")]
mod model;
#[cfg(test)]
mod tests;
use crate::CachePadded;
use crate::atomic::{AtomicU64, Ordering};

#[cfg(feature = "count")]
use crate::count::{core_count, current_index};
#[cfg(not(any(feature = "shuttle", feature = "count")))]
use machine::{core_count, current_index};
#[cfg(feature = "shuttle")]
use model::{core_count, current_index};

/// The number of a core, below [`CoreNr::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CoreNr(u16);

impl CoreNr {
    /// The core this thread runs on now. A hint: the thread may be moved at any time.
    ///
    /// Costs about two nanoseconds on Linux: glibc reads the number from the thread's rseq area.
    #[must_use]
    #[inline]
    pub fn current() -> Self {
        let count = Self::count();
        let index = current_index();
        // The comparison is always true on a sane system, and cheaper than a division.
        Self::at(if index < count { index } else { index % count })
    }

    /// The number of cores this process may ever run on: the possible ones, not those online now.
    #[must_use]
    #[inline]
    pub fn count() -> usize {
        core_count()
    }

    /// The core with this number, if there is one.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        (index < Self::count()).then(|| Self::at(index))
    }

    /// All cores.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::count()).map(Self::at)
    }

    /// The number as an index.
    #[must_use]
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the machine clamps the count far below"
    )]
    pub(crate) const fn at(index: usize) -> Self {
        Self(index as u16)
    }
}

/// One `T` per core, each on cache lines of its own.
#[derive(Debug)]
pub struct PerCore<T> {
    slots: Box<[CachePadded<T>]>,
}

impl<T> PerCore<T> {
    /// Makes one value for each core.
    pub fn new(mut make: impl FnMut(CoreNr) -> T) -> Self {
        Self {
            slots: CoreNr::all()
                .map(|core| CachePadded::new(make(core)))
                .collect(),
        }
    }

    /// The value of the core this thread runs on. Another thread may use it at the same time.
    #[must_use]
    #[inline]
    pub fn mine(&self) -> &T {
        self.of(CoreNr::current())
    }

    /// The value of a given core.
    #[must_use]
    #[inline]
    pub fn of(&self, core: CoreNr) -> &T {
        // In the counting build the value may have been made outside of the virtual machine. It
        // then has fewer slots than the machine has cores, and the resulting sharing is counted.
        self.slots
            .get(core.index())
            .unwrap_or_else(|| &self.slots[core.index() % self.slots.len()])
    }

    /// All values, in core order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map(|slot| &**slot)
    }
}

impl<T: Default> Default for PerCore<T> {
    fn default() -> Self {
        Self::new(|_| T::default())
    }
}

/// A counter with one cache line for each core; reading it adds them up.
#[derive(Debug, Default)]
pub struct Counter(PerCore<AtomicU64>);

impl Counter {
    /// Adds `n` on this core.
    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn add(&self, n: u64) {
        self.0.mine().fetch_add(n, Ordering::Relaxed);
    }

    /// The sum over all cores; exact while no thread adds to the counter.
    #[must_use]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn sum(&self) -> u64 {
        let mut sum = 0_u64;
        for slot in self.0.iter() {
            sum = sum.wrapping_add(slot.load(Ordering::Relaxed));
        }
        sum
    }
}

/// A generator of unique numbers, with one cache line for each core.
#[derive(Debug)]
pub struct Serial(PerCore<AtomicU64>);

impl Default for Serial {
    fn default() -> Self {
        Self(PerCore::new(|core| AtomicU64::new(core.index() as u64)))
    }
}

impl Serial {
    /// Returns a number that no call has returned before.
    #[must_use]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn next(&self) -> u64 {
        // All numbers of a slot have the same remainder modulo the number of slots.
        let step = self.0.slots.len() as u64;
        self.0.mine().fetch_add(step, Ordering::Relaxed)
    }
}
