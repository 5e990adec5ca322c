//! **Purpose.** The order in which locks are taken, asserted in debug builds; and how often and how
//! long locks of each kind were waited for.
//!
//! **Model.** A lock that has a place in the order has a [`Rank`], and among locks of one rank a
//! number: together its [`Place`]. Who waits for such a lock enters the place first and leaves it
//! when the lock is given back. A place must lie behind all places that the thread is in; so no
//! two threads can wait for each other, whatever else they do.
//!
//! ```text
//! rank 20 number 7 -> rank 20 number 9 -> rank 80     right
//! rank 20 number 9 -> rank 20 number 7                panics, though nobody waits yet
//! ```
//!
//! Attempts that do not wait (`try_lock`) need no place.
//!
//! In release builds a place is its level, what is held of it has no size, and entering does
//! nothing. A wait is timed where it begins, when the lock was tried for and somebody had it: who
//! does not wait writes nothing.
//!
//! **Locking.** None: the places are the thread's own, and waits are counted.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
// Waits are no part of a model, nor counted as traffic: who waits has met somebody already.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(debug_assertions)]
use std::cell::RefCell;

/// One more than the highest level.
const LEVELS: usize = 128;

/// The waits of the process for locks, by level.
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

/// How the locks of a rank were waited for since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How often somebody else had one.
    pub count: u64,
    /// How long that took in all.
    pub time: Duration,
}

/// A kind of lock, by its level in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    level: u8,
    name: &'static str,
}

impl Rank {
    /// The rank of the locks called `name`, behind all of a lower `level`, which is below 128.
    #[must_use]
    pub const fn new(level: u8, name: &'static str) -> Self {
        assert!((level as usize) < LEVELS, "there are 128 levels");
        Self { level, name }
    }

    /// What its locks are called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// How its locks were waited for in this process.
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

    /// The place of a lock of which a thread holds one at a time.
    #[must_use]
    pub const fn only(self) -> Place {
        self.place(0)
    }
}

/// Where a lock stands in the order.
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

impl Place {
    /// Enters the place, before the lock is waited for.
    ///
    /// # Panics
    /// In debug builds, if the thread is in a place that does not lie in front of this one.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn enter(self) -> Held {
        #[cfg(debug_assertions)]
        {
            let before = PLACES.with(|places| {
                let places = places.borrow();
                let before = |place: &&Place| place.key() >= self.key();
                places.iter().find(before).copied()
            });
            if let Some(before) = before {
                panic!(
                    "locks out of order: {} {} is wanted by who has {} {}",
                    self.name, self.number, before.name, before.number
                );
            }
            PLACES.with(|places| places.borrow_mut().push(self));
        }
        Held {
            #[cfg(debug_assertions)]
            place: self,
            not_send: PhantomData,
        }
    }

    /// Enters the place, and takes the lock that stands there: as `try_take` does if nobody has it,
    /// else as `wait` does.
    ///
    /// # Panics
    /// As [`Place::enter`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock<G>(
        self,
        try_take: impl FnOnce() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> Ranked<G> {
        let held = self.enter();
        // A model has both ways in one.
        let taken = if cfg!(feature = "shuttle") {
            None
        } else {
            try_take()
        };
        Ranked {
            guard: taken.unwrap_or_else(|| self.timed(wait)),
            _held: held,
        }
    }

    /// Enters the place with a lock that was not waited for.
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
    fn timed<G>(self, wait: impl FnOnce() -> G) -> G {
        let began = Instant::now();
        let guard = wait();
        WAITS[usize::from(self.level)].note(began.elapsed());
        guard
    }
}

/// The guard of a lock, with the place of the lock in the order.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
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
    /// The thread that entered leaves.
    not_send: PhantomData<*const ()>,
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        // A thread that is ending holds nothing any more.
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
    fn who_goes_back_is_refused_even_if_nobody_waits() {
        let _second = DIRECTORY.place(9).enter();
        assert!(is_refused(DIRECTORY.place(7)));
        assert!(is_refused(DIRECTORY.place(9)), "it would wait for itself");
        assert!(!is_refused(DIRECTORY.place(10)));
        let handle = HANDLE.only().enter();
        assert!(is_refused(DIRECTORY.place(10)));
        drop(handle);
        assert!(!is_refused(DIRECTORY.place(10)));
        let elsewhere = crate::thread::spawn(|| is_refused(DIRECTORY.place(7)));
        assert!(!elsewhere.join().expect("no panic"), "another thread's own");
    }

    #[test]
    fn waits_are_counted_and_timed() {
        const WAITED: Rank = Rank::new(101, "waited for");
        let lock = crate::Mutex::new(0);
        let take = || WAITED.only().lock(|| lock.try_lock(), || lock.lock());
        *take() += 1;
        assert_eq!(WAITED.waits(), Waits::default(), "nobody had it");
        // On a busy machine the other thread may come when the lock is free again.
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
