//! **Purpose.** Locks with the interface of parking_lot (no poisoning), and `OnceLock`.

#[cfg(not(any(feature = "shuttle", feature = "count")))]
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
#[cfg(not(any(feature = "shuttle", feature = "count")))]
pub use std::sync::OnceLock;

#[cfg(feature = "shuttle")]
mod model;
#[cfg(feature = "shuttle")]
pub use model::{
    Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
    WaitTimeoutResult,
};

#[cfg(feature = "count")]
pub use crate::count::lock::{
    Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
    WaitTimeoutResult,
};

#[cfg(test)]
mod tests;
