//! **Purpose.** Locks of the `shuttle` build: parking_lot's interface over shuttle's locks.
//!
//! Poisoning is ignored: a panic fails the whole execution anyway. Waits with a timeout never time
//! out here, so a lost wake-up that only the timeout hides shows as a deadlock.
//!
//! A static keeps its value from one execution to the next, so models make their shared data inside
//! the checked closure.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

use crate::atomic::{AtomicBool, Ordering};

pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Mutual exclusion.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

/// A locked [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized>(
    /// Taken out only while a condition variable waits.
    Option<shuttle::sync::MutexGuard<'a, T>>,
);

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }

    /// Whether the lock is taken now.
    pub fn is_locked(&self) -> bool {
        self.0.try_lock().is_err()
    }

    /// The value. The exclusive borrow makes a lock unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
            .as_ref()
            .expect("taken out only during a wait, which borrows the guard")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0
            .as_mut()
            .expect("taken out only during a wait, which borrows the guard")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Many readers or one writer.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::RwLock::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for exclusive access.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes shared access if no task has exclusive access.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    /// Takes exclusive access if no other task has access.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }

    /// The value. The exclusive borrow makes a lock unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// Whether a wait ended by its timeout; it never does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(());

impl WaitTimeoutResult {
    /// False.
    #[must_use]
    pub fn timed_out(self) -> bool {
        false
    }
}

impl Condvar {
    /// A condition variable without waiters.
    #[must_use]
    pub const fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    /// Unlocks, waits to be notified, locks again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.0.take() {
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits until the condition ceases to hold.
    pub fn wait_while<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// As [`Condvar::wait`]: the timeout never ends.
    pub fn wait_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _timeout: Duration,
    ) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult(())
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A cell that is written at most once.
#[derive(Debug)]
pub struct OnceLock<T> {
    /// Whether there is a value. Other tasks see the value from the moment this is set.
    written: AtomicBool,
    /// Held by the task that makes the value.
    making: shuttle::sync::Mutex<()>,
    /// Accessed only between two scheduling points of the model, so it never blocks.
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    /// An empty cell.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            written: AtomicBool::new(false),
            making: shuttle::sync::Mutex::new(()),
            value: std::sync::OnceLock::new(),
        }
    }

    /// The value, if it was written.
    pub fn get(&self) -> Option<&T> {
        if self.written.load(Ordering::SeqCst) {
            self.value.get()
        } else {
            None
        }
    }

    /// Writes the value.
    ///
    /// # Errors
    /// `value`, if there was one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock();
        self.value.set(value)?;
        self.written.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The value; if there is none yet, `make` makes it.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _making = self.making.lock();
        if self.value.get().is_none() {
            let made = make();
            self.value.get_or_init(|| made);
            self.written.store(true, Ordering::SeqCst);
        }
        self.value
            .get()
            .expect("written above, or by the task that held the lock before")
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}
