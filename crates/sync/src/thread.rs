//! **Purpose.** Threads.

pub use std::thread::{
    Builder, JoinHandle, Scope, ScopedJoinHandle, scope, sleep, spawn, yield_now,
};
