//! **Purpose.** Benchmarks: workloads, the targets they run against, and a runner that measures
//! several sides in turns on the same machine, takes medians, and reports them with the facts
//! needed to judge and repeat the figures.
//!
//! The library is what `fourscore bench` and `cargo xtask bench` use. `examples/` holds the
//! measuring programs, which need other crates of the workspace: `cargo xtask bench` builds and
//! runs some of them, the others are for `perf` and callgrind.
//!
//! | program | measures |
//! |---|---|
//! | `build_tree`, `mkext4_tree` | building an image of a directory, with fourscore and with the crate mkext4 |
//! | `cache_hit_cost` | a hit of the cache, and its parts |
//! | `check_small` | checking a small image in memory |
//! | `journal_cost` | handles, seals and commits of the journal |
//! | `names_cost` | operations on names, and reads and writes of one block |
//! | `null_fuse` | nothing: it mounts the null file system, the upper bound for a FUSE mount |
//! | `readers_beside_writer` | reads of a file while another thread changes it |
//!
//! **Not here.** The file systems that are measured: a workload sees a [`Target`].
//!
//! **Model.** A [`Comparison`] has sides A, B, ... and runs them as A B A B ..., so that slow
//! drifts of the machine (heat, other tenants, caches) affect all sides alike. The ratio of two
//! sides is taken within each round and its median reported. A claim is that ratio with its
//! spread, never one absolute figure.
//!
//! | module | responsibility |
//! |---|---|
//! | [`alloc`] | the block allocator alone, on file systems in memory |
//! | [`attribute_cache`] | caches of attribute blocks alone |
//! | [`fast_commit`] | ways to make the records of new files alone |
//! | [`clock`] | the source of times, which tests replace |
//! | [`files`] | creating, looking up, writing and removing files, with a sync at the end |
//! | [`fairness`] | how evenly threads make progress |
//! | [`fsync`] | appending, creating files and preparing changes, with calls of fsync |
//! | [`interval`] | a ratio of two sets of samples with a confidence interval |
//! | [`stats`] | medians, extremes, spread, ratios |
//! | [`comparison`] | sides run in turns |
//! | [`profile`] | where the time of a run went |
//! | [`process`] | a whole command line as a side, with its CPU time and memory |
//! | [`machine`] | the machine and the code that were measured |
//! | [`mounted`] | loads on a mounted file system |
//! | [`report`] | text tables, JSON, Markdown rows |
//! | `scratch` | (feature `fs`) file systems of several kinds on image files, made for one run |
//! | `study` | (feature `fs`) experiments in cases: fast commits, attribute blocks, whole file systems |
//! | [`target`] | the interface of targets: a directory, a file system in process, an allocator |
//! | [`tree`] | reading an existing tree |
//! | `fs_attributes` | (feature `fs`) making files with the attributes that those of an image have |
//! | `fs_target` | (feature `fs`) a file system that is mounted for writing in this process |
//! | `slow_memory` | (feature `fs`) a device in memory whose flushes take a time |
//! | `fs_tree` | (feature `fs`) a tree inside an image, read in this process |
//! | [`workload`] | workloads and the threads that drive them |
//! | [`xattrs`] | setting, changing and removing extended attributes of many files |
#![forbid(unsafe_code)]

pub mod alloc;
pub mod attribute_cache;
pub mod clock;
pub mod comparison;
pub mod fairness;
pub mod fast_commit;
pub mod files;
#[cfg(feature = "fs")]
pub mod fs_attributes;
#[cfg(feature = "fs")]
pub mod fs_target;
#[cfg(feature = "fs")]
pub mod fs_tree;
pub mod fsync;
pub mod interval;
pub mod machine;
pub mod mounted;
pub mod process;
pub mod profile;
pub mod report;
#[cfg(feature = "fs")]
pub mod scratch;
#[cfg(feature = "fs")]
pub mod slow_memory;
pub mod stats;
#[cfg(feature = "fs")]
pub mod study;
pub mod target;
pub mod tree;
pub mod workload;
pub mod xattrs;

pub use clock::{Clock, MonotonicClock};
pub use comparison::{Comparison, LabError, Rounds, Side, ThreadCount, Work};
pub use fairness::Fairness;
pub use fsync::{FsyncRun, FsyncSize, FsyncWorkload};
pub use interval::RatioInterval;
pub use machine::MachineFacts;
pub use process::CommandLine;
pub use profile::Profile;
pub use report::{ComparisonReport, Report};
pub use stats::{Ratio, Summary};
pub use target::{
    AttributeValue, DirectoryTarget, FileNr, Operation, Placement, Target, Worker, WorkerNr,
};
pub use workload::{Driven, Fallocate2, ReadFiles, Until, Workload, drive};
pub use xattrs::{Values, XattrLoad, XattrWorkload};
