//! **Purpose.** Locks, atomics, epochs, threads and core numbers for all crates of the workspace.
//!
//! Every crate takes the primitives for data shared between threads from here, so that there can be
//! three builds of the same code: the normal one (std, parking_lot, seize), the model-checked one
//! (feature `shuttle`) and the counting one (feature `count`), which counts for every shared
//! location how often its cache line moves between virtual cores.
//!
//! | module | responsibility |
//! |---|---|
//! | [`atomic`] | integers, booleans, pointers and fences |
//! | [`lock`] | mutex, read-write lock, condition variable, once cells |
//! | [`epoch`] | read guards, and cells whose old values live until a grace period has passed |
//! | [`core_nr`] | the number of the core a thread runs on, and per-core values |
//! | `host` | what differs between operating systems |
//! | [`thread`], [`spin`] | spawning, scoping, yielding; waits of a few microseconds |
//! | [`versions`] | values that are replaced a few times and read without a guard |
//! | [`sparse`] | long slices whose memory is allocated in chunks on first use |
//! | [`rank`] | the order of locks, asserted in debug builds |
//! | [`profile`] | the sections in which operations spend their time |
//! | `model` | (feature `shuttle`) runs a test under many schedules of its threads |
//! | `count` | (feature `count`) virtual cores, and the report of transfers between them |
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
//! into that build. The two exclude each other. Tests of these builds are marked
//! `#[cfg(all(test, feature = "shuttle"))]` and `#[cfg(all(test, feature = "count"))]`.
//!
//! In the shuttle build the primitives work only inside `model::check` and the like, so ordinary
//! tests are marked `#[cfg(not(feature = "shuttle"))]`. Shuttle treats every memory ordering as
//! sequentially consistent, so an argument that rests on a weaker one needs a loom model too. In
//! the counting build ordinary tests run as in the normal one, uncounted.
//!
//! All three builds offer the subset of the interfaces of parking_lot and std that the wrappers in
//! [`lock`] have. Code that compiles only in the normal build uses more than that.

#[cfg(all(feature = "shuttle", feature = "count"))]
compile_error!("the features `shuttle` and `count` exclude each other");

pub mod atomic;
pub mod core_nr;
#[cfg(feature = "count")]
pub mod count;
pub mod epoch;
mod host;
pub mod lock;
#[cfg(feature = "shuttle")]
pub mod model;
pub mod profile;
pub mod rank;
pub mod sparse;
pub mod spin;
pub mod thread;
pub mod versions;

pub use core_nr::{CoreNr, Counter, PerCore, Serial};
pub use crossbeam_utils::CachePadded;
pub use lock::{Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use sparse::Sparse;
pub use std::sync::{Arc, Weak};
pub use versions::Versions;

/// Says that the work from here to the next access to shared memory takes `steps` steps, of about a
/// nanosecond each, more than usual. It matters only to a race of virtual cores in the counting
/// build, and is compiled away in the others.
#[inline(always)]
pub fn work(steps: u64) {
    #[cfg(feature = "count")]
    count::pass(steps);
    #[cfg(not(feature = "count"))]
    let _ = steps;
}

/// Clones `arc`, and counts this as a write to the line of its reference count, which all owners
/// share. `Arc` itself cannot be replaced in the counting build (it must still coerce to
/// `Arc<dyn Trait>`), so hot paths clone with this function.
#[inline]
#[cfg_attr(feature = "count", track_caller)]
#[must_use]
pub fn clone_arc<T: ?Sized>(arc: &Arc<T>) -> Arc<T> {
    #[cfg(feature = "count")]
    {
        // The two counts are before the value, at the start of the allocation.
        let counts_bytes = (2 * size_of::<usize>()).max(align_of_val(&**arc));
        count::note_write(Arc::as_ptr(arc).cast::<u8>().wrapping_sub(counts_bytes));
    }
    Arc::clone(arc)
}
