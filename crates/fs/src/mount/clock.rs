//! **Purpose.** The clock for the time stamps of inodes and superblocks.
//!
//! **Invariants.** Inodes and superblocks are stamped by the same clock of the system (on Linux the
//! coarse one), so their stamps can be compared.

pub(crate) use crate::mount::host::now;
