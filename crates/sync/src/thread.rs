//! **Purpose.** Threads, and what is local to one.
//!
//! In the model a task is a coroutine: a thread-local of the standard library would be shared by
//! all of them, so `thread_local!` comes from here as well.

#[cfg(not(feature = "shuttle"))]
pub use std::thread::{
    Builder, JoinHandle, LocalKey, Scope, ScopedJoinHandle, Thread, current, park, scope, sleep,
    spawn, yield_now,
};
#[cfg(not(feature = "shuttle"))]
pub use std::thread_local;

#[cfg(feature = "shuttle")]
pub use shuttle::thread::{
    Builder, JoinHandle, LocalKey, Scope, ScopedJoinHandle, Thread, current, park, scope, sleep,
    spawn, yield_now,
};
#[cfg(feature = "shuttle")]
pub use shuttle::thread_local;

pub use std::thread::{available_parallelism, panicking};
