//! **Purpose.** Locks that note when they are taken. Releasing a lock notes nothing: it writes the
//! line that taking it has fetched.
//!
//! **Model.** Cores with clocks ([`super::clock`]) never wait in parking_lot: they try to take the
//! lock, and if it is held, they wait until its release wakes them, at the holder's time. A wait
//! with a timeout never times out there.

use std::fmt;
use std::time::Duration;

use std::ops::{Deref, DerefMut};

use super::Trace;
use super::clock::Wake;
use super::lines::Access;

/// The guards of the locks: each is the guard of parking_lot, and wakes cores that wait.
macro_rules! guard {
    ($(#[$doc:meta])* $name:ident, $wake:ident) => {
        $(#[$doc])*
        pub struct $name<'a, T: ?Sized> {
            /// Taken out only by the drop.
            inner: Option<parking_lot::$name<'a, T>>,
            trace: &'a Trace,
        }

        impl<T: ?Sized> Deref for $name<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                self.inner.as_ref().expect("only the drop takes it out")
            }
        }

        impl<T: ?Sized> Drop for $name<'_, T> {
            fn drop(&mut self) {
                let inner = self.inner.take();
                self.trace.release(Wake::$wake, || drop(inner));
            }
        }

        impl<T: ?Sized + fmt::Debug> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    };
    ($(#[$doc:meta])* $name:ident, $wake:ident, mut) => {
        guard!($(#[$doc])* $name, $wake);

        impl<T: ?Sized> DerefMut for $name<'_, T> {
            fn deref_mut(&mut self) -> &mut T {
                self.inner.as_mut().expect("only the drop takes it out")
            }
        }
    };
}

guard!(
    /// A locked [`Mutex`].
    MutexGuard, One, mut
);
guard!(
    /// Shared access to an [`RwLock`].
    RwLockReadGuard, All
);
guard!(
    /// Exclusive access to an [`RwLock`].
    RwLockWriteGuard, All, mut
);

impl Trace {
    /// Takes a lock: by `wait`, or, on a core with a clock, by `attempt` until it succeeds.
    #[track_caller]
    fn take<G>(&self, attempt: impl Fn() -> Option<G>, wait: impl FnOnce() -> G) -> G {
        if !super::has_clock() {
            self.write();
            return wait();
        }
        loop {
            // The attempt is made at the time at which the access begins, as in hardware.
            let taken = super::in_order(&attempt);
            self.note_now(Access::Write);
            match taken {
                Some(guard) => return guard,
                None => super::block(self),
            }
        }
    }

    /// Tries to take a lock. Notes a write if it took the lock, else a read.
    #[track_caller]
    fn attempt<G>(&self, attempt: impl FnOnce() -> Option<G>) -> Option<G> {
        let guard = super::in_order(attempt);
        match &guard {
            Some(_) => self.note_now(Access::Write),
            None => self.note_now(Access::Read),
        }
        guard
    }

    /// Releases a lock, and wakes cores that wait for it.
    fn release(&self, wake: Wake, release: impl FnOnce()) {
        // While a panic unwinds, the clock stands still.
        if std::thread::panicking() || !super::has_clock() {
            release();
            return;
        }
        super::in_order(release);
        super::wake(self, wake);
    }
}

/// Whether a wait ended by its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether it did.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// Mutual exclusion.
#[derive(Default)]
#[repr(C)]
pub struct Mutex<T: ?Sized> {
    trace: Trace,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self {
            trace: Trace::new(),
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let taken = self
            .trace
            .take(|| self.inner.try_lock(), || self.inner.lock());
        self.guard(taken)
    }

    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let taken = self.trace.attempt(|| self.inner.try_lock());
        taken.map(|inner| self.guard(inner))
    }

    fn guard<'a>(&'a self, inner: parking_lot::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard {
            inner: Some(inner),
            trace: &self.trace,
        }
    }

    /// Whether the lock is taken now.
    #[track_caller]
    pub fn is_locked(&self) -> bool {
        self.trace.read();
        self.inner.is_locked()
    }

    /// The value. The exclusive borrow makes a lock unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Many readers or one writer.
#[derive(Default)]
#[repr(C)]
pub struct RwLock<T: ?Sized> {
    trace: Trace,
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self {
            trace: Trace::new(),
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access. This is a write, of the number of readers.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let taken = self
            .trace
            .take(|| self.inner.try_read(), || self.inner.read());
        self.read_guard(taken)
    }

    /// Waits for exclusive access.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let taken = self
            .trace
            .take(|| self.inner.try_write(), || self.inner.write());
        self.write_guard(taken)
    }

    /// Takes shared access if no thread has exclusive access.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let taken = self.trace.attempt(|| self.inner.try_read());
        taken.map(|inner| self.read_guard(inner))
    }

    fn read_guard<'a>(
        &'a self,
        inner: parking_lot::RwLockReadGuard<'a, T>,
    ) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard {
            inner: Some(inner),
            trace: &self.trace,
        }
    }

    /// Takes exclusive access if no other thread has access.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let taken = self.trace.attempt(|| self.inner.try_write());
        taken.map(|inner| self.write_guard(inner))
    }

    fn write_guard<'a>(
        &'a self,
        inner: parking_lot::RwLockWriteGuard<'a, T>,
    ) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard {
            inner: Some(inner),
            trace: &self.trace,
        }
    }

    /// The value. The exclusive borrow makes a lock unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A condition variable. Waiting is a write; notifying is a read, since parking_lot first checks
/// whether there are waiters.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Condvar {
    trace: Trace,
    inner: parking_lot::Condvar,
}

impl Condvar {
    /// A condition variable without waiters.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            trace: Trace::new(),
            inner: parking_lot::Condvar::new(),
        }
    }

    /// Unlocks, waits to be notified, locks again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.trace.write();
        self.wait_by(guard, |inner| self.inner.wait(inner));
    }

    /// Waits until the condition ceases to hold.
    #[track_caller]
    pub fn wait_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        self.trace.write();
        while condition(&mut **guard) {
            self.wait_by(guard, |inner| self.inner.wait(inner));
        }
    }

    /// Waits to be notified, but no longer than `timeout`.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Duration,
    ) -> WaitTimeoutResult {
        self.trace.write();
        let mut timed_out = false;
        self.wait_by(guard, |inner| {
            timed_out = self.inner.wait_for(inner, timeout).timed_out();
        });
        WaitTimeoutResult(timed_out)
    }

    /// Waits by `wait`, or, on a core with a clock, until another core notifies it.
    fn wait_by<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        wait: impl FnOnce(&mut parking_lot::MutexGuard<'_, T>),
    ) {
        let trace = guard.trace;
        let inner = guard.inner.as_mut().expect("only the drop takes it out");
        if !super::has_clock() {
            wait(inner);
            return;
        }
        let mutex = parking_lot::MutexGuard::mutex(inner);
        parking_lot::MutexGuard::unlocked(inner, || {
            super::wake(trace, Wake::One);
            super::block(&self.trace);
            // No other core runs between the end of this loop and the lock.
            while super::in_order(|| mutex.is_locked()) {
                super::block(trace);
            }
        });
    }

    /// Wakes one waiter.
    #[track_caller]
    pub fn notify_one(&self) {
        self.trace.read();
        self.inner.notify_one();
        super::wake(&self.trace, Wake::One);
    }

    /// Wakes all waiters.
    #[track_caller]
    pub fn notify_all(&self) {
        self.trace.read();
        self.inner.notify_all();
        super::wake(&self.trace, Wake::All);
    }
}

/// A cell that is written at most once.
#[derive(Debug)]
#[repr(C)]
pub struct OnceLock<T> {
    trace: Trace,
    inner: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> OnceLock<T> {
    /// An empty cell.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            trace: Trace::new(),
            inner: std::sync::OnceLock::new(),
        }
    }

    /// The value, if it was written.
    #[track_caller]
    pub fn get(&self) -> Option<&T> {
        self.trace.read();
        self.inner.get()
    }

    /// Writes the value.
    ///
    /// # Errors
    /// `value`, if there was one already.
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), T> {
        self.trace.write();
        self.inner.set(value)
    }

    /// The value; if there is none yet, `make` makes it.
    #[track_caller]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if self.inner.get().is_some() {
            self.trace.read();
        } else {
            self.trace.write();
        }
        if !super::has_clock() {
            return self.inner.get_or_init(make);
        }
        // Another core may run in `make`: it must not find the cell busy. Of two values the first
        // stays.
        if let Some(value) = self.inner.get() {
            return value;
        }
        let made = make();
        self.inner.get_or_init(|| made)
    }
}
