//! **Purpose.** `fourscore bench`: workloads of the lab, run and told about.
//!
//! | module | responsibility |
//! |---|---|
//! | `alloc` | the bare allocator on file systems in memory, or a mounted directory beside it |
//! | `files` | files made, written and removed, in an image or on this host |
//! | `tree` | reading a tree, in an image or on this host |

mod alloc;
mod files;
mod tree;

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

/// What is run.
#[derive(Debug, Subcommand)]
enum What {
    /// Allocates and frees, on a file system whose bitmaps are made from a seed
    ///
    /// Commits come every few seconds and when somebody needs one. Prints operations per second,
    /// the allocator's counters under the kernel's names, and the free space before and after.
    #[command(after_help = alloc::help())]
    Alloc(alloc::Options),
    /// Makes, finds, lists, writes, preallocates or removes files, and makes that durable
    ///
    /// The time goes to the end of a sync of the whole file system. Each thread has a directory of
    /// its own, and removes its files in the end. An image is written to.
    #[command(after_help = files::help())]
    Files(files::Options),
    /// Looks every object of a tree up, asks for its attributes and reads its first 4 KiB
    #[command(
        name = "read-tree",
        after_help = "Example:\n  fourscore bench read-tree disk.img --threads 1,2"
    )]
    ReadTree(tree::Options),
}

/// Runs the verb.
pub(crate) fn run(args: &Bench) -> Result<()> {
    match &args.what {
        What::Alloc(options) => alloc::run(options),
        What::Files(options) => files::run(options),
        What::ReadTree(options) => tree::run(options),
    }
}

/// How many, and for how long.
#[derive(Debug, Args)]
struct Extent {
    /// How many threads to run, one run for each number
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2",
        value_name = "N,.."
    )]
    threads: Vec<usize>,
    /// How long each run takes
    #[arg(long, default_value_t = 2.0, value_name = "S")]
    seconds: f64,
    /// Runs so many steps on each thread instead
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

/// A time of more than nothing.
fn seconds(option: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| {
            let why = format_args!("{seconds} is not a time in seconds");
            crate::failure::Failure::usage(option, why)
        })
}

/// Drives a target with each number of threads, and prints what came of it or, as JSON, returns
/// it.
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
        runs.extend(told(threads, &driven, json, out)?);
    }
    Ok(runs)
}

/// Prints what came of a run or, as JSON, returns it.
fn told(
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
            "operations_per_second": per_second,
            "fairness": fairness,
        })));
    }
    out.write(speed_text(threads, per_second, fairness).as_bytes())?;
    out.flush()?;
    Ok(None)
}

/// The lines about speed that every workload has.
fn speed_text(threads: ThreadCount, per_second: f64, fairness: Fairness) -> String {
    format!(
        "threads {threads}: {per_second:.0} operations/s\n  \
         per thread: {:.0} to {:.0} operations/s, Jain index {:.3}\n",
        fairness.min, fairness.max, fairness.jain
    )
}
