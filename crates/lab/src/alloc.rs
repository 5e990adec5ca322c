//! **Purpose.** The allocator without the rest: file systems of any size and age whose bitmaps
//! live in memory, and the workloads of the works on ext4's allocation run against them.
//!
//! | module | responsibility |
//! |---|---|
//! | [`scenario`] | which file system: size, block size, how full, how fragmented |
//! | [`ram`] | its bitmaps, made from a seed |
//! | [`target`] | files as sets of extents, and commits |
//! | [`workloads`] | pairs, fallocate3, small files, mixed appends (fallocate2 is everybody's) |
//! | [`mod@bench`] | one run: set up, drive, report |

pub mod bench;
pub mod ram;
pub mod scenario;
pub mod target;
pub mod workloads;

pub use bench::{AllocBench, AllocOutcome, FreeSpace};
pub use ram::RamGroups;
pub use scenario::{Fragments, Scenario};
pub use target::AllocTarget;
pub use workloads::{AllocFree, Fallocate3, MixedAppend, SmallFiles};
