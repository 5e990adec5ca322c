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
//! | [`sparse`] | long slices of which only what is used takes memory |
//! | [`rank`] | the order of locks, asserted in debug builds |
//! | `model` | (feature `shuttle`) running a test in every order of its threads' steps |
//! | `count` | (feature `count`) virtual cores, and the report of what moved between them |
//!
//! # How a dependent crate takes part
//! It passes the features on and never turns them on by itself:
//!
//! ```toml
//! [features]
//! shuttle = ["fourscore-sync/shuttle"]
//! count = ["fourscore-sync/count"]
//! ```
//!
//! Features are united over all packages of one cargo invocation, so a single
//! `cargo test -p fourscore-cache --features shuttle` puts the whole tree below the tested crate
//! into that build. The two exclude each other. Tests of the special builds stand under
//! `#[cfg(all(test, feature = "shuttle"))]` and `#[cfg(all(test, feature = "count"))]`.
//!
//! In the shuttle build the primitives work only inside `model::check` and its siblings, so
//! ordinary tests stand under `#[cfg(not(feature = "shuttle"))]`; and shuttle takes every ordering
//! for sequentially consistent, so an argument that rests on a weaker one needs a loom model too.
//! In the counting build ordinary tests run as ever, uncounted.
//!
//! What all three builds offer is the subset of parking_lot's and std's interfaces that the
//! wrappers in [`lock`] have; code that compiles in the normal build only uses more than that.

#[cfg(all(feature = "shuttle", feature = "count"))]
compile_error!("the features `shuttle` and `count` exclude each other");

pub mod atomic;
pub mod core_nr;
#[cfg(feature = "count")]
pub mod count;
pub mod epoch;
pub mod lock;
#[cfg(feature = "shuttle")]
pub mod model;
pub mod rank;
pub mod sparse;
pub mod thread;

pub use core_nr::{CoreNr, Counter, PerCore, Serial};
pub use crossbeam_utils::CachePadded;
pub use lock::{Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use sparse::Sparse;
pub use std::sync::{Arc, Weak};

/// A new share in `arc`, counted as what it is: a write to the line of the reference count, which
/// all owners have in common. `Arc` itself cannot be replaced in the counting build (it must keep
/// turning into `Arc<dyn Trait>`), so hot paths that clone say so with this function.
#[inline]
#[cfg_attr(feature = "count", track_caller)]
#[must_use]
pub fn clone_arc<T: ?Sized>(arc: &Arc<T>) -> Arc<T> {
    #[cfg(feature = "count")]
    {
        // The two counts lie in front of the value, at the start of the allocation.
        let counts_bytes = (2 * size_of::<usize>()).max(align_of_val(&**arc));
        count::note_write(Arc::as_ptr(arc).cast::<u8>().wrapping_sub(counts_bytes));
    }
    Arc::clone(arc)
}
