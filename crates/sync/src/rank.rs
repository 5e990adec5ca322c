//! **Purpose.** The order in which locks are taken, asserted in debug builds (as by lockdep in
//! Linux), and statistics of the waits for locks.
//!
//! **Model.** A lock that takes part in the order has a [`Rank`] and, among the locks of one rank,
//! a number. Both together are its [`Place`] in the order. A thread enters the place before it
//! waits for the lock, and leaves it when it releases the lock. A place must come after all places
//! that the thread is in, by rank and then number. So no two threads can wait for each other.
//!
//! ```text
//! rank 20 number 7 -> rank 20 number 9 -> rank 80     right
//! rank 20 number 9 -> rank 20 number 7                panics, even if the lock is free
//! ```
//!
//! Attempts that do not wait (`try_lock`) need no place.
//!
//! In release builds a place is only its level, [`Held`] has no size, and entering does nothing. A
//! wait is counted and timed only if the lock was not free at the first attempt: taking a free lock
//! writes no statistics.
//!
//! **Locking.** None: the places are thread-local, and the statistics are atomic counters.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
// Of std even in the other builds: statistics are no part of a model, and a thread that waits has
// already caused a transfer.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(debug_assertions)]
use std::cell::RefCell;

use crate::profile::{self, Section};
use crate::spin::{WAKE_UP, spin};

/// One more than the highest level.
const LEVELS: usize = 128;

/// The waits for locks in this process, by level.
static WAITS: [WaitCounter; LEVELS] = [const { WaitCounter::new() }; LEVELS];

struct WaitCounter {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl WaitCounter {
    const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        }
    }

    fn note(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The waits for the locks of a rank since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How often a thread had to wait for one of the locks.
    pub count: u64,
    /// The total duration of these waits.
    pub time: Duration,
}

/// A kind of lock, by its level in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    level: u8,
    name: &'static str,
}

impl Rank {
    /// The rank of the locks called `name`, after all ranks of a lower `level`; levels are
    /// below 128.
    #[must_use]
    pub const fn new(level: u8, name: &'static str) -> Self {
        assert!((level as usize) < LEVELS, "a level is below 128");
        Self { level, name }
    }

    /// The name of its locks.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The waits for its locks in this process.
    #[must_use]
    pub fn waits(self) -> Waits {
        let counter = &WAITS[usize::from(self.level)];
        Waits {
            count: counter.count.load(Ordering::Relaxed),
            time: Duration::from_nanos(counter.nanoseconds.load(Ordering::Relaxed)),
        }
    }

    /// The place of the lock with this number among those of the rank.
    #[must_use]
    pub const fn place(self, number: u64) -> Place {
        #[cfg(not(debug_assertions))]
        let _ = number;
        Place {
            level: self.level,
            #[cfg(debug_assertions)]
            name: self.name,
            #[cfg(debug_assertions)]
            number,
        }
    }

    /// The place of a lock of a rank of which a thread holds only one lock at a time.
    #[must_use]
    pub const fn only(self) -> Place {
        self.place(0)
    }
}

/// The place of a lock in the order: its rank and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    level: u8,
    #[cfg(debug_assertions)]
    name: &'static str,
    #[cfg(debug_assertions)]
    number: u64,
}

#[cfg(debug_assertions)]
impl Place {
    fn key(&self) -> (u8, u64) {
        (self.level, self.number)
    }
}

#[cfg(debug_assertions)]
crate::thread::thread_local! {
    /// The places that the thread is in.
    static PLACES: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

/// Exchanges the places that the thread is in for others: a virtual core begins or ceases to run.
#[cfg(all(debug_assertions, feature = "count"))]
pub(crate) fn exchange_places(other: &mut Vec<Place>) {
    PLACES.with(|places| std::mem::swap(&mut *places.borrow_mut(), other));
}

impl Place {
    /// Enters the place. To be called before the thread waits for the lock.
    ///
    /// # Panics
    /// In debug builds, if the thread is in a place that does not come before this one.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn enter(self) -> Held {
        #[cfg(debug_assertions)]
        {
            // The list is gone when the thread ends. What other thread-local values do then is not
            // checked.
            let later = PLACES.try_with(|places| {
                let places = places.borrow();
                let not_before = |place: &&Place| place.key() >= self.key();
                places.iter().find(not_before).copied()
            });
            if let Ok(Some(held)) = later {
                panic!(
                    "locks out of order: a thread that holds {} {} waits for {} {}",
                    held.name, held.number, self.name, self.number
                );
            }
            let _ = PLACES.try_with(|places| places.borrow_mut().push(self));
        }
        Held {
            #[cfg(debug_assertions)]
            place: self,
            not_send: PhantomData,
        }
    }

    /// Enters the place and takes its lock: by `try_take` if the lock is free, else after a wait,
    /// which is counted and timed. The thread tries for some microseconds more before it calls
    /// `wait`, in which it may sleep.
    ///
    /// # Panics
    /// As [`Place::enter`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock<G>(
        self,
        try_take: impl FnMut() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> Ranked<G> {
        self.take(None, try_take, wait)
    }

    /// As [`Place::lock`]. A wait is in `section` of the profile.
    ///
    /// # Panics
    /// As [`Place::enter`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock_in<G>(
        self,
        section: Section,
        try_take: impl FnMut() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> Ranked<G> {
        self.take(Some(section), try_take, wait)
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    fn take<G>(
        self,
        section: Option<Section>,
        mut try_take: impl FnMut() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> Ranked<G> {
        let held = self.enter();
        // In a model, one way of taking the lock means fewer schedules and the same outcomes.
        let taken = if cfg!(feature = "shuttle") {
            None
        } else {
            try_take()
        };
        Ranked {
            guard: taken.unwrap_or_else(|| self.timed(section, try_take, wait)),
            _held: held,
        }
    }

    /// Enters the place of a lock that was taken without waiting; `guard` is the lock's guard.
    ///
    /// # Panics
    /// As [`Place::enter`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn hold<G>(self, guard: G) -> Ranked<G> {
        Ranked {
            guard,
            _held: self.enter(),
        }
    }

    #[cold]
    fn timed<G>(
        self,
        section: Option<Section>,
        try_take: impl FnMut() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> G {
        let _section = section.map(profile::enter);
        let began = Instant::now();
        let guard = spin(WAKE_UP, try_take).unwrap_or_else(wait);
        WAITS[usize::from(self.level)].note(began.elapsed());
        guard
    }
}

/// The guard of a lock, with the place of the lock in the order.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct Ranked<G> {
    guard: G,
    _held: Held,
}

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// A place that the thread is in until this is dropped.
#[derive(Debug)]
#[must_use = "the place is left when this is dropped"]
pub struct Held {
    #[cfg(debug_assertions)]
    place: Place,
    /// The thread that entered the place is the one that leaves it.
    not_send: PhantomData<*const ()>,
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        // The list may be gone already when the thread ends.
        let _ = PLACES.try_with(|places| {
            let mut places = places.borrow_mut();
            if let Some(at) = places.iter().rposition(|place| *place == self.place) {
                places.swap_remove(at);
            }
        });
    }
}

#[cfg(all(test, debug_assertions, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    const DIRECTORY: Rank = Rank::new(20, "directory");
    const HANDLE: Rank = Rank::new(80, "handle");

    fn is_refused(wanted: Place) -> bool {
        catch_unwind(|| drop(wanted.enter())).is_err()
    }

    #[test]
    fn places_are_entered_in_order_and_left_in_any() {
        let first = DIRECTORY.place(7).enter();
        let second = DIRECTORY.place(9).enter();
        let third = HANDLE.only().enter();
        drop(first);
        drop(third);
        let third = HANDLE.only().enter();
        drop((second, third));
        drop(DIRECTORY.place(1).enter());
    }

    #[test]
    fn a_place_out_of_order_is_refused_even_if_its_lock_is_free() {
        let _second = DIRECTORY.place(9).enter();
        assert!(is_refused(DIRECTORY.place(7)));
        assert!(is_refused(DIRECTORY.place(9)), "self-deadlock");
        assert!(!is_refused(DIRECTORY.place(10)));
        let handle = HANDLE.only().enter();
        assert!(is_refused(DIRECTORY.place(10)));
        drop(handle);
        assert!(!is_refused(DIRECTORY.place(10)));
        let other_thread = crate::thread::spawn(|| is_refused(DIRECTORY.place(7)));
        let is_refused = other_thread.join().expect("no panic");
        assert!(!is_refused, "each thread has its own places");
    }

    /// A value that is kept in a thread-local may take locks when it is dropped with the thread.
    #[test]
    fn places_are_entered_when_a_thread_ends() {
        struct AtEnd;
        impl Drop for AtEnd {
            fn drop(&mut self) {
                drop(DIRECTORY.place(7).enter());
            }
        }
        thread_local! {
            static AT_END: AtEnd = const { AtEnd };
        }
        // The list of places is made later, so it is gone earlier. A panic would end the process.
        let thread = crate::thread::spawn(|| {
            AT_END.with(|_| ());
            drop(DIRECTORY.place(7).enter());
        });
        thread.join().expect("no panic");
    }

    #[test]
    fn waits_are_counted_and_timed() {
        const WAITED: Rank = Rank::new(101, "waited for");
        let lock = crate::Mutex::new(0);
        let take = || WAITED.only().lock(|| lock.try_lock(), || lock.lock());
        *take() += 1;
        assert_eq!(WAITED.waits(), Waits::default(), "the lock was free");
        // On a busy machine the lock may be free again before the other thread tries to take it.
        let is_counted = (0..1000).any(|_| {
            let first = take();
            crate::thread::scope(|scope| {
                scope.spawn(|| *take() += 1);
                std::thread::sleep(Duration::from_millis(10));
                drop(first);
            });
            WAITED.waits().count == 1
        });
        assert!(is_counted && *take() > 1);
        let waits = WAITED.waits();
        assert!(waits.count == 1 && waits.time > Duration::ZERO, "{waits:?}");
    }
}
