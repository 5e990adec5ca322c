//! **Purpose.** The measuring runner that every benchmark of fourscore uses: sides measured in
//! turns on the same machine, summed up by medians, and reported with the facts needed to judge
//! and repeat the figures.
//!
//! **Not here.** The workloads' subjects: a workload sees a [`Target`], not a file system.
//!
//! **Model.** A [`Comparison`] has sides A, B, ... and runs them as A B A B ..., so that slow
//! drifts of the machine (heat, other tenants, caches) meet all sides alike. The ratio of two
//! sides is taken within each round and its median reported; a claim is that ratio with its
//! spread, never one absolute figure.
//!
//! | module | responsibility |
//! |---|---|
//! | [`alloc`] | the bare allocator on file systems in memory |
//! | [`clock`] | where times come from, so that statistics can be tested exactly |
//! | [`files`] | files made, looked up, written and removed, all of it durable in the end |
//! | [`fairness`] | how evenly threads got on |
//! | [`stats`] | medians, extremes, spread, ratios |
//! | [`comparison`] | sides run in turns |
//! | [`process`] | a whole command line as a side, with its CPU time and memory |
//! | [`machine`] | what the figures were measured on |
//! | [`mounted`] | what programs do to a mounted file system |
//! | [`report`] | text tables, JSON, Markdown rows |
//! | [`target`] | what a workload runs against: a directory, a file system in process, an allocator |
//! | [`tree`] | reading a tree that exists |
//! | `fs_target` | (feature `fs`) a file system that is mounted for writing, in this process |
//! | `fs_tree` | (feature `fs`) a tree inside an image, read in this process |
//! | [`workload`] | workloads and the threads that drive them |
#![forbid(unsafe_code)]

pub mod alloc;
pub mod clock;
pub mod comparison;
pub mod fairness;
pub mod files;
#[cfg(feature = "fs")]
pub mod fs_target;
#[cfg(feature = "fs")]
pub mod fs_tree;
pub mod machine;
pub mod mounted;
pub mod process;
pub mod report;
pub mod stats;
pub mod target;
pub mod tree;
pub mod workload;

pub use clock::{Clock, MonotonicClock};
pub use comparison::{Comparison, LabError, Rounds, Side, ThreadCount, Work};
pub use fairness::Fairness;
pub use machine::MachineFacts;
pub use process::CommandLine;
pub use report::{ComparisonReport, Report};
pub use stats::{Ratio, Summary};
pub use target::{DirectoryTarget, FileNr, Operation, Target, Worker, WorkerNr};
pub use workload::{Driven, Fallocate2, ReadFiles, Until, Workload, drive};
