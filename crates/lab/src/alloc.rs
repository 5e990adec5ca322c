//! **Purpose.** Benchmarks of the block allocator without the rest of the file system: file systems
//! of any size and age whose bitmaps are in memory, and the workloads with which changes of ext4's
//! allocator were measured.
//!
//! | module | responsibility |
//! |---|---|
//! | [`scenario`] | a file system: size, block size, used space, fragmentation |
//! | [`ram`] | its bitmaps, generated from a seed |
//! | [`target`] | files as lists of extents, and commits |
//! | [`workloads`] | pairs, fallocate3, small files, mixed appends (fallocate2 is in `workload`) |
//! | [`catalogue`] | workloads and switches by name |
//! | [`experiment`] | a published change against what was there before it, and against ours |
//! | [`published`] | the experiments and the published figures |
//! | [`mod@bench`] | one run: sets up, drives the workload, commits meanwhile |
//! | [`free_space`] | histogram of free extents |
//! | [`outcome`] | the result of a run |
//! | `predict` | (feature `count`) rates on machines with many cores, predicted |
//! | [`predicted`] | the cells that were predicted, for reports |
//! | `transfers` | (feature `count`) cache line transfers between virtual cores |

pub mod bench;
pub mod catalogue;
pub mod experiment;
pub mod free_space;
pub mod outcome;
#[cfg(feature = "count")]
pub mod predict;
pub mod predicted;
pub mod published;
pub mod ram;
pub mod scenario;
pub mod target;
#[cfg(feature = "count")]
pub mod transfers;
pub mod workloads;

pub use bench::AllocBench;
pub use catalogue::{NamedWorkload, Switch};
pub use experiment::{Experiment, Measured, Published, Scale, Variant};
pub use free_space::FreeSpace;
pub use outcome::AllocOutcome;
pub use predicted::PredictedCell;
pub use ram::RamGroups;
pub use scenario::{Fragments, Scenario};
pub use target::AllocTarget;
pub use workloads::{AllocFree, Fallocate3, LargeGoals, MixedAppend, SmallFiles};
