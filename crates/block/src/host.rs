//! **Purpose.** Files of the host, by the calls that its operating system has. The only module of
//! this crate that differs between operating systems.
//!
//! | module | responsibility |
//! |---|---|
//! | `linux` | image files and block devices, by calls of Linux |
//! | `portable` | image files, by calls that std has on every system |
//!
//! **Model.** Each has a `FileDevice`, `open_path`, and the two translations of error numbers:
//! `errno_of` and `error_of_errno`. Tests compile the portable module on Linux as well, and test
//! both with the same tests. Other crates do so with the feature `testing`.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(test, feature = "testing", not(target_os = "linux")))]
pub mod portable;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

#[cfg(target_os = "linux")]
pub use linux::*;
#[cfg(not(target_os = "linux"))]
pub use portable::*;
