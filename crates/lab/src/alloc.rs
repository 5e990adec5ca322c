//! **Purpose.** The allocator without the rest: file systems of any size and age whose bitmaps
//! live in memory, and the workloads of the works on ext4's allocation run against them.
//!
//! | module | responsibility |
//! |---|---|
//! | [`scenario`] | which file system: size, block size, how full, how fragmented |
//! | [`ram`] | its bitmaps, made from a seed |
//! | [`target`] | files as sets of extents, and commits |
//! | [`workloads`] | pairs, fallocate3, small files, mixed appends (fallocate2 is everybody's) |
//! | [`catalogue`] | workloads and switches by name |
//! | [`mod@bench`] | one run: set up, drive, commit meanwhile |
//! | [`free_space`] | free extents by length |
//! | [`outcome`] | what a run gave |
//! | `transfers` | (feature `count`) cache lines that move between virtual cores |

pub mod bench;
pub mod catalogue;
pub mod free_space;
pub mod outcome;
pub mod ram;
pub mod scenario;
pub mod target;
#[cfg(feature = "count")]
pub mod transfers;
pub mod workloads;

pub use bench::AllocBench;
pub use catalogue::{NamedWorkload, Switch};
pub use free_space::FreeSpace;
pub use outcome::AllocOutcome;
pub use ram::RamGroups;
pub use scenario::{Fragments, Scenario};
pub use target::AllocTarget;
pub use workloads::{AllocFree, Fallocate3, MixedAppend, SmallFiles};
