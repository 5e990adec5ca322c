//! **Purpose.** `fourscore bench`: runs workloads of the crate `lab` and prints their results.
//!
//! **Not here.** The workloads and the targets; the experiments, which `lab` runs.
//!
//! | module | responsibility |
//! |---|---|
//! | `alloc` | the block allocator alone on file systems in memory; the same workloads in a directory |
//! | `files` | creating, writing and removing files, in an image or a directory |
//! | `fsync` | making changes durable, in an image or a directory |
//! | `tree` | reading a tree, in an image or a directory |
//! | `xattrs` | setting extended attributes, in an image, a directory or a cache alone |

mod alloc;
mod files;
mod fsync;
mod tree;
mod xattrs;

use std::time::Duration;

use clap::{Args, Subcommand};
use fourscore_lab::workload::{Driven, Until};
use fourscore_lab::{Fairness, ThreadCount};
use serde_json::{Value, json};

use crate::failure::Result;
use crate::output::Stdout;

/// `bench`
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
enum What {
    /// Runs the block allocator alone, on a file system whose bitmaps are generated from a seed
    ///
    /// Commits are made at intervals, and when a request needs freed clusters. Prints operations
    /// per second, the allocator's counters under the kernel's names, and the free space before and
    /// after the run.
    #[command(after_help = alloc::help())]
    Alloc(alloc::Options),
    /// Creates, looks up, lists, writes, preallocates or removes files, and syncs the file system
    ///
    /// The measured time includes the sync. Each thread has its own directory, and removes its
    /// files at the end. IMAGE is changed.
    #[command(after_help = files::help())]
    Files(files::Options),
    /// Appends to files or creates them, and makes them durable with fsync
    ///
    /// Prints calls of fsync per second and how long one takes; for IMAGE also how many commits
    /// were made, fast ones and full ones. The files are left behind. IMAGE is changed.
    #[command(after_help = fsync::help())]
    Fsync(fsync::Options),
    /// Looks up every object of a tree, reads its attributes and its first 4 KiB
    #[command(
        name = "read-tree",
        after_help = "Example:\n  fourscore bench read-tree disk.img --threads 1,2"
    )]
    ReadTree(tree::Options),
    /// Sets extended attributes on many files with equal or different values
    ///
    /// The measured time includes a sync of the file system. The files exist and are durable when
    /// it begins, and are removed in the end. In an image with inodes of 128 bytes all attributes
    /// are in blocks, which files with equal attributes may share. IMAGE is changed.
    ///
    /// With --cache there is no file system: files take blocks from a cache in memory and give them
    /// back. `fourscore` is the sharing cache of a mount with the default options, `one-lock` the
    /// one that ext4 had before 2013, and `unshared` shares nothing.
    #[command(
        name = "xattr",
        after_help = "Examples:\n  fourscore bench xattr disk.img --values distinct --threads 1,2\n  \
                      fourscore bench xattr disk.img --values 10 -o no_mbcache\n  \
                      fourscore bench xattr --dir /mnt --workload mix --values 1000\n  \
                      fourscore bench xattr --cache one-lock --workload mix --values 1000"
    )]
    Xattr(xattrs::Options),
}

/// Runs the verb.
pub(crate) fn run(args: &Bench) -> Result<()> {
    match &args.what {
        What::Alloc(options) => alloc::run(options),
        What::Files(options) => files::run(options),
        What::Fsync(options) => fsync::run(options),
        What::ReadTree(options) => tree::run(options),
        What::Xattr(options) => xattrs::run(options),
    }
}

/// The threads of a benchmark, and the length of a run.
#[derive(Debug, Args)]
struct Extent {
    /// Number of threads; a list makes one run for each number
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2",
        value_name = "N,.."
    )]
    threads: Vec<usize>,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 2.0, value_name = "S")]
    seconds: f64,
    /// Number of steps of each thread, instead of --seconds
    #[arg(long, conflicts_with = "seconds", value_name = "N")]
    steps: Option<u64>,
}

impl Extent {
    fn threads(&self) -> impl Iterator<Item = ThreadCount> {
        self.threads.iter().copied().map(ThreadCount::new)
    }

    fn until(&self) -> Result<Until> {
        match self.steps {
            Some(steps) => Ok(Until::Steps(steps)),
            None => Ok(Until::Elapsed(seconds("--seconds", self.seconds)?)),
        }
    }
}

/// Checks that the value of `option` is a positive number of seconds.
pub(crate) fn seconds(option: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| {
            let why = format_args!("{seconds} is not a positive number of seconds");
            crate::failure::Failure::usage(option, why)
        })
}

/// Drives a target with each number of threads, and prints the results or, for JSON, returns them.
fn driven_runs(
    extent: &Extent,
    json: bool,
    out: &mut Stdout,
    drive: impl Fn(ThreadCount, Until) -> Result<Driven>,
) -> Result<Vec<Value>> {
    let until = extent.until()?;
    let mut runs = Vec::new();
    for threads in extent.threads() {
        let driven = drive(threads, until)?;
        runs.extend(report(threads, &driven, json, out)?);
    }
    Ok(runs)
}

/// Prints the result of a run or, for JSON, returns it.
fn report(
    threads: ThreadCount,
    driven: &Driven,
    json: bool,
    out: &mut Stdout,
) -> Result<Option<Value>> {
    let (total, fairness) = (driven.total(), driven.fairness());
    let per_second = driven.operations_per_second();
    if json {
        return Ok(Some(json!({
            "threads": threads,
            "operations": total.operations,
            "bytes": total.bytes,
            "seconds": total.wall.unwrap_or_default().as_secs_f64(),
            "sync_seconds": driven.sync.as_secs_f64(),
            "operations_per_second": per_second,
            "fairness": fairness,
            "profile": driven.profile,
        })));
    }
    out.write(speed_text(threads, per_second, fairness).as_bytes())?;
    if let Some(profile) = &driven.profile {
        out.write(profile.to_string().as_bytes())?;
    }
    out.flush()?;
    Ok(None)
}

/// The lines about speed in the result of every workload.
fn speed_text(threads: ThreadCount, per_second: f64, fairness: Fairness) -> String {
    format!(
        "threads {threads}: {per_second:.0} operations/s\n  \
         per thread: {:.0} to {:.0} operations/s, Jain index {:.3}\n",
        fairness.min, fairness.max, fairness.jain
    )
}
