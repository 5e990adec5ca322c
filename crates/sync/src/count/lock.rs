//! **Purpose.** Locks that note when they are taken. Their guards are those of parking_lot and note
//! nothing: releasing a lock writes the line that taking it has fetched.

use std::fmt;
use std::time::Duration;

use super::Trace;

pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};

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
        self.trace.write();
        self.inner.lock()
    }

    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        note_attempt(&self.trace, self.inner.try_lock())
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

/// Notes a `try_*` call: a write if it took the lock, else a read.
#[track_caller]
fn note_attempt<G>(trace: &Trace, guard: Option<G>) -> Option<G> {
    if guard.is_some() {
        trace.write();
    } else {
        trace.read();
    }
    guard
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
        self.trace.write();
        self.inner.read()
    }

    /// Waits for exclusive access.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.trace.write();
        self.inner.write()
    }

    /// Takes shared access if no thread has exclusive access.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        note_attempt(&self.trace, self.inner.try_read())
    }

    /// Takes exclusive access if no other thread has access.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        note_attempt(&self.trace, self.inner.try_write())
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
        self.inner.wait(guard);
    }

    /// Waits until the condition ceases to hold.
    #[track_caller]
    pub fn wait_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) {
        self.trace.write();
        self.inner.wait_while(guard, condition);
    }

    /// Waits to be notified, but no longer than `timeout`.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Duration,
    ) -> WaitTimeoutResult {
        self.trace.write();
        self.inner.wait_for(guard, timeout)
    }

    /// Wakes one waiter.
    #[track_caller]
    pub fn notify_one(&self) {
        self.trace.read();
        self.inner.notify_one();
    }

    /// Wakes all waiters.
    #[track_caller]
    pub fn notify_all(&self) {
        self.trace.read();
        self.inner.notify_all();
    }
}

/// A cell that is written at most once.
#[derive(Debug, Default)]
#[repr(C)]
pub struct OnceLock<T> {
    trace: Trace,
    inner: std::sync::OnceLock<T>,
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
        self.inner.get_or_init(make)
    }
}
