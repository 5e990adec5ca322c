//! **Purpose.** Atomics under the names of std: those of std, shuttle or the counting build.

#[cfg(not(any(feature = "shuttle", feature = "count")))]
pub use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
};

#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
};

#[cfg(feature = "count")]
pub use crate::count::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};
#[cfg(feature = "count")]
pub use std::sync::atomic::fence;

pub use std::sync::atomic::Ordering;
