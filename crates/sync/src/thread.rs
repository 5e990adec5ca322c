//! **Purpose.** Threads.

pub use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle, scope, spawn, yield_now};
