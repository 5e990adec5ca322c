//! **Purpose.** `fourscore bench fsync`: how long it takes to make changes durable, in an image in
//! this process or in a directory of the host.
//!
//! **Model.** With `--in-memory` the image is only read, and what is written stays in memory, on a
//! device whose flushes take the time that `--flush-us` gives.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use fourscore::{Fs, MountOptions};
use fourscore_block::{BlockDevice, DeviceOptions, open_path};
use fourscore_lab::fs_target::FsTarget;
use fourscore_lab::fsync::quadratic;
use fourscore_lab::slow_memory::SlowMemory;
use fourscore_lab::{
    DirectoryTarget, FsyncRun, FsyncSize, FsyncWorkload, MonotonicClock, Target, ThreadCount,
};
use fourscore_sync::Arc;
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::output::Stdout;

/// The names of the workloads, and examples.
pub(super) fn help() -> String {
    let mut text = "Workloads:\n".to_owned();
    for workload in FsyncWorkload::ALL {
        let _ = writeln!(text, "  {:13} {}", workload.name, workload.about);
    }
    text.push_str(
        "Examples:\n  fourscore bench fsync disk.img --workload each --threads 2\n  \
         fourscore bench fsync disk.img --in-memory --flush-us 100 --threads 64\n  \
         fourscore bench fsync --dir /mnt --workload after --directories 64 --files 1024",
    );
    text
}

/// `bench fsync`
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Image file or block device; it is changed, unless --in-memory is given
    #[arg(required_unless_present = "dir", conflicts_with = "dir")]
    image: Option<PathBuf>,
    /// Directory of this host, on any file system, instead of IMAGE
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Workload of each thread
    #[arg(long, default_value = "append", value_parser = workload_names(), hide_possible_values = true)]
    workload: String,
    /// Number of threads
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Number of directories of all threads together [default: one for each thread]
    #[arg(long, default_value_t = 1, hide_default_value = true, value_name = "N")]
    directories: usize,
    /// Number of files in each directory, or of appends to one file in it
    #[arg(long, default_value_t = 1000, value_name = "N")]
    files: u32,
    /// Keeps what is written in memory and leaves IMAGE as it is
    #[arg(long, conflicts_with = "dir")]
    in_memory: bool,
    /// How long a flush of the memory takes, in microseconds
    #[arg(long, default_value_t = 0, requires = "in_memory", value_name = "US")]
    flush_us: u64,
    /// Options of the mount, as mount(8) has them
    #[arg(
        short,
        default_value = "",
        conflicts_with = "dir",
        value_name = "OPTIONS"
    )]
    options: String,
    /// Also makes the records of as many new files by a walk over all inodes for each name, as
    /// ext4 did before Linux 5.18
    #[arg(long)]
    quadratic: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

fn workload_names() -> PossibleValuesParser {
    let names = FsyncWorkload::ALL.iter().map(|workload| workload.name);
    names.collect::<Vec<_>>().into()
}

/// Runs the verb.
pub(super) fn run(options: &Options) -> Result<()> {
    let workload = FsyncWorkload::by_name(&options.workload)
        .ok_or_else(|| Failure::usage("--workload", &options.workload))?;
    match (&options.image, &options.dir) {
        (Some(image), _) => in_image(options, workload, &image.display().to_string()),
        (None, Some(directory)) => {
            let name = directory.display().to_string();
            let target = DirectoryTarget::new(directory);
            prepare(options, workload, &name, &target)?;
            let done = drive(options, workload, &name, &target)?;
            print(options, workload, &name, &done, &Counts::new())
        }
        (None, None) => Err(Failure::usage("bench fsync", "give IMAGE or --dir")),
    }
}

/// Runs it in an image.
fn in_image(options: &Options, workload: FsyncWorkload, name: &str) -> Result<()> {
    let failed = |why| Failure::new(name, why);
    let Place { device, memory } = open(options, name)?;
    let mount_options = MountOptions::new().parse(&options.options);
    let mount_options = mount_options.map_err(|why| Failure::usage("-o", why))?;
    let target = FsTarget::new(Fs::mount(device, &mount_options).map_err(failed)?);
    prepare(options, workload, name, &target)?;
    let before = counts(&target, memory.as_deref());
    let done = drive(options, workload, name, &target)?;
    let mut made = counts(&target, memory.as_deref());
    for (counted, count) in &mut made {
        *count = count.saturating_sub(before.get(counted).copied().unwrap_or(0));
    }
    print(options, workload, name, &done, &made)?;
    // An image whose changes stay in memory needs no end.
    if memory.is_none() {
        target.into_fs().unmount().map_err(failed)?;
    }
    Ok(())
}

/// The device of a run.
struct Place {
    device: Arc<dyn BlockDevice>,
    /// The same device, with `--in-memory`.
    memory: Option<Arc<SlowMemory>>,
}

fn open(options: &Options, name: &str) -> Result<Place> {
    let open = |how| open_path(Path::new(name), how).map_err(|why| Failure::new(name, why));
    if !options.in_memory {
        let (device, memory) = (Arc::new(open(DeviceOptions::read_write())?), None);
        return Ok(Place { device, memory });
    }
    let base = Arc::new(open(DeviceOptions::default())?);
    let latency = Duration::from_micros(options.flush_us);
    let memory = Arc::new(SlowMemory::over(base, latency));
    let device: Arc<dyn BlockDevice> = Arc::<SlowMemory>::clone(&memory);
    let memory = Some(memory);
    Ok(Place { device, memory })
}

fn size(options: &Options) -> FsyncSize {
    FsyncSize {
        threads: ThreadCount::new(options.threads),
        directories: options.directories,
        files: options.files,
    }
}

fn prepare(
    options: &Options,
    workload: FsyncWorkload,
    name: &str,
    target: &dyn Target,
) -> Result<()> {
    let prepared = workload.prepare(target, size(options));
    prepared.map_err(|why| Failure::new(name, why))
}

fn drive(
    options: &Options,
    workload: FsyncWorkload,
    name: &str,
    target: &dyn Target,
) -> Result<FsyncRun> {
    let done = workload.run(target, size(options), &MonotonicClock::default());
    done.map_err(|why| Failure::new(name, why))
}

/// What a mount and its device have counted, by name.
type Counts = BTreeMap<String, u64>;

fn counts(target: &FsTarget, memory: Option<&SlowMemory>) -> Counts {
    let mut counts = Counts::new();
    let mut add = |name: &str, count| counts.insert(name.to_owned(), count);
    if let Some(mount) = target.fs().stats().mount {
        add("full_commits", mount.journal.commits);
        add("log_blocks", mount.journal.log_blocks);
        if let Some(fast) = mount.fast_commits {
            add("fast_commits", fast.commits);
            add("fast_commit_blocks", fast.blocks);
            add("fast_commit_records", fast.records);
            add("fast_commit_operations", fast.operations);
            add("ineligible", fast.ineligible);
            for (reason, count) in fast.reasons {
                if count > 0 {
                    add(&format!("ineligible, {reason}"), count);
                }
            }
        }
    }
    if let Some(memory) = memory {
        let flushes = memory.flushes();
        add("flushes", flushes.count);
        let took = u64::try_from(flushes.time.as_nanos()).unwrap_or(u64::MAX);
        add("flushing_ns", took);
    }
    counts
}

/// Prints what a run did.
fn print(
    options: &Options,
    workload: FsyncWorkload,
    name: &str,
    run: &FsyncRun,
    counts: &Counts,
) -> Result<()> {
    let mut out = Stdout::open()?;
    let reference = options.quadratic.then(|| {
        let files = run.operations / (run.latencies.len() as u64).max(1);
        let files = u32::try_from(files).unwrap_or(u32::MAX);
        quadratic::commit(files, &MonotonicClock::default())
    });
    let text = if options.json {
        let mut report = as_json(options, workload, name, run, counts);
        if let Some(made) = reference {
            let ns = nanoseconds(made.time);
            report["quadratic"] = json!({ "records": made.records, "bytes": made.bytes, "ns": ns });
        }
        format!("{report:#}\n")
    } else {
        let mut text = as_text(options, workload, name, run, counts);
        if let Some(made) = reference {
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "  quadratic: {} records in {:?}",
                made.records, made.time
            );
        }
        text
    };
    out.write(text.as_bytes())?;
    out.flush()
}

fn as_json(
    options: &Options,
    workload: FsyncWorkload,
    name: &str,
    run: &FsyncRun,
    counts: &Counts,
) -> Value {
    json!({
        "target": name,
        "workload": workload.name,
        "threads": options.threads,
        "operations": run.operations,
        "seconds": run.wall.as_secs_f64(),
        "operations_per_second": run.operations_per_second(),
        "fsyncs": run.latencies.len(),
        "fsyncs_per_second": run.syncs_per_second(),
        "fsync_p50_ns": nanoseconds(run.percentile(50)),
        "fsync_p99_ns": nanoseconds(run.percentile(99)),
        "fsync_max_ns": nanoseconds(run.percentile(100)),
        "fsync_cpu_p50_ns": nanoseconds(run.time_percentile(50)),
        "attributes_set": run.attributes_set,
        "counts": counts,
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn as_text(
    options: &Options,
    workload: FsyncWorkload,
    name: &str,
    run: &FsyncRun,
    counts: &Counts,
) -> String {
    let (what, about) = (workload.name, workload.about);
    let us = |percent| run.percentile(percent).as_secs_f64() * 1e6;
    let mut text = format!(
        "{name}, workload {what}: {about}\nthreads {}: {:.0} operations/s\n  \
         {} calls of fsync, {:.0} per second: half of them in {:.1} us, 99 % in {:.1} us\n",
        options.threads,
        run.operations_per_second(),
        run.latencies.len(),
        run.syncs_per_second(),
        us(50),
        us(99),
    );
    if run.attributes_set > 0 {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  attributes set meanwhile: {}", run.attributes_set);
    }
    for (name, count) in counts {
        let _ = writeln!(text, "  {name}: {count}");
    }
    text
}
