//! **Purpose.** The one door to locks, atomics, epochs, threads and core numbers.
//!
//! Every crate of the workspace takes what it shares between threads from here, so that three
//! builds of the same code are possible: the normal one (std, parking_lot, seize), the model
//! checked one (feature `shuttle`) and the counting one (feature `count`), in which every shared
//! location knows which virtual core touched it last.
//!
//! | module | responsibility |
//! |---|---|
//! | [`atomic`] | integers, booleans, pointers and fences |
//! | [`lock`] | mutex, read-write lock, condition variable, once cells |
//! | [`epoch`] | read guards and cells whose old values outlive their readers |
//! | [`core_nr`] | the number of the core a thread runs on, and values kept per core |
//! | [`thread`] | spawning, scoping, yielding |

pub mod atomic;
pub mod core_nr;
pub mod epoch;
pub mod lock;
pub mod thread;

pub use core_nr::{CoreNr, Counter, PerCore};
pub use crossbeam_utils::CachePadded;
pub use lock::{Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::{Arc, Weak};

/// A new share in `arc`, counted as what it is: a write to the line of the reference count, which
/// all owners have in common. `Arc` itself cannot be replaced in the counting build (it must keep
/// turning into `Arc<dyn Trait>`), so hot paths that clone say so with this function.
#[inline]
#[cfg_attr(feature = "count", track_caller)]
#[must_use]
pub fn clone_arc<T: ?Sized>(arc: &Arc<T>) -> Arc<T> {
    Arc::clone(arc)
}
