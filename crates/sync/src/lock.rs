//! **Purpose.** Locks by their parking_lot names (no poisoning).

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::OnceLock;
