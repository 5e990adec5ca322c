//! **Purpose.** Core numbers, and values kept once per core.

use crate::CachePadded;
use crate::atomic::{AtomicU64, Ordering};

/// The number of a core, below [`CoreNr::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CoreNr(u16);

impl CoreNr {
    /// The core this thread runs on now. A hint: the thread may be moved at any time.
    #[must_use]
    pub fn current() -> Self {
        let cpu = rustix::thread::sched_getcpu();
        Self((cpu % Self::count()) as u16)
    }

    /// How many cores this process may meet (the possible ones, not the ones online now).
    #[must_use]
    pub fn count() -> usize {
        static COUNT: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// The number as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
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
        let slots =
            (0..CoreNr::count()).map(|nr| CachePadded::new(make(CoreNr(nr as u16)))).collect();
        Self { slots }
    }

    /// The value of the core this thread runs on. Another thread may use it at the same time.
    #[must_use]
    pub fn mine(&self) -> &T {
        &self.slots[CoreNr::current().index()]
    }

    /// The value of a given core.
    #[must_use]
    pub fn of(&self, core: CoreNr) -> &T {
        &self.slots[core.index()]
    }

    /// All values, in core order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map(|slot| &**slot)
    }
}

/// A counter that every core bumps on a line of its own; the sum is taken when it is read.
#[derive(Debug)]
pub struct Counter(PerCore<AtomicU64>);

impl Default for Counter {
    fn default() -> Self {
        Self(PerCore::new(|_| AtomicU64::new(0)))
    }
}

impl Counter {
    /// Adds `n` on this core.
    pub fn add(&self, n: u64) {
        self.0.mine().fetch_add(n, Ordering::Relaxed);
    }

    /// The sum over all cores; exact once the writers are quiet.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, slot| sum.wrapping_add(slot.load(Ordering::Relaxed)))
    }
}
