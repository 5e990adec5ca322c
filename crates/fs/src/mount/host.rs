//! **Purpose.** What a mount asks of the operating system. The only module of this crate that
//! differs between operating systems.
//!
//! | module | responsibility |
//! |---|---|
//! | `linux` | calls of Linux |
//! | `portable` | the same as far as std can do it on every system |
//!
//! Tests on Linux compile the portable module as well.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(test, not(target_os = "linux")))]
mod portable;

#[cfg(target_os = "linux")]
pub(crate) use linux::now;
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::now;
