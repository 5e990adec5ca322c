//! **Purpose.** `fourscore bench files`: creating, looking up, writing and removing files, in an
//! image in this process or in a directory of the host. The measured time includes a sync at the
//! end.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use fourscore::profile::{self, Sampling};
use fourscore::{Fs, MountOptions};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_lab::files::FileWorkload;
use fourscore_lab::fs_target::FsTarget;
use fourscore_lab::{DirectoryTarget, MonotonicClock, Placement, Target, ThreadCount};
use fourscore_sync::Arc;
use serde_json::json;

use crate::bench::report;
use crate::failure::{Failure, Result};
use crate::output::Stdout;

/// The names of the workloads, and examples.
pub(super) fn help() -> String {
    let mut text = "Workloads:\n".to_owned();
    for workload in FileWorkload::ALL {
        text.push_str(&format!("  {:11} {}\n", workload.name, workload.about));
    }
    text.push_str(
        "Examples:\n  fourscore bench files disk.img --workload create --threads 1,2\n  \
         fourscore bench files --dir /mnt --workload create --threads 1,2",
    );
    text
}

/// `bench files`
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Image file or block device; it is changed
    #[arg(required_unless_present = "dir", conflicts_with = "dir")]
    image: Option<PathBuf>,
    /// Directory of this host, on any file system, instead of IMAGE
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Workload of each thread
    #[arg(long, default_value = "create", value_parser = workload_names(), hide_possible_values = true)]
    workload: String,
    /// Number of threads; a list makes one run for each number
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2",
        value_name = "N,.."
    )]
    threads: Vec<usize>,
    /// Number of steps of each thread
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    steps: u32,
    /// All threads use one directory, instead of one each
    #[arg(long)]
    one_directory: bool,
    /// Says where the time goes: in handles, maps, the choice of groups, waits for group locks,
    /// bitmaps, the journal, the device, or in none of them
    #[arg(long, conflicts_with = "dir")]
    profile: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Options {
    fn placement(&self) -> Placement {
        match self.one_directory {
            true => Placement::OneDirectory,
            false => Placement::Apart,
        }
    }
}

fn workload_names() -> PossibleValuesParser {
    let names = FileWorkload::ALL.iter().map(|workload| workload.name);
    names.collect::<Vec<_>>().into()
}

/// Runs the verb.
pub(super) fn run(options: &Options) -> Result<()> {
    let workload = FileWorkload::by_name(&options.workload)
        .ok_or_else(|| Failure::usage("--workload", &options.workload))?;
    if options.profile {
        profile::start(Sampling::Some);
    }
    match (&options.image, &options.dir) {
        (Some(image), _) => {
            let name = image.display().to_string();
            let device = open_path(image, DeviceOptions::read_write())
                .map_err(|why| Failure::new(name.as_str(), why))?;
            let fs = Fs::mount(Arc::new(device), &MountOptions::new())
                .map_err(|why| Failure::new(name.as_str(), why))?;
            let target = FsTarget::new(fs).placed(options.placement());
            drive(options, &name, &target, workload)?;
            let unmounted = target.into_fs().unmount();
            unmounted.map_err(|why| Failure::new(name.as_str(), why))
        }
        (None, Some(directory)) => {
            let name = directory.display().to_string();
            let target = DirectoryTarget::new(directory).placed(options.placement());
            drive(options, &name, &target, workload)
        }
        (None, None) => Err(Failure::usage("bench files", "give IMAGE or --dir")),
    }
}

fn drive(options: &Options, name: &str, target: &dyn Target, workload: FileWorkload) -> Result<()> {
    let clock = MonotonicClock::default();
    let mut out = Stdout::open()?;
    if !options.json {
        let (what, about) = (workload.name, workload.about);
        out.write(format!("{name}, workload {what}: {about}\n").as_bytes())?;
    }
    let mut runs = Vec::new();
    for threads in options.threads.iter().copied().map(ThreadCount::new) {
        let driven = workload
            .run(target, threads, options.steps.into(), &clock)
            .map_err(|why| Failure::new(name, why))?;
        runs.extend(report(threads, &driven, options.json, &mut out)?);
    }
    if options.json {
        let all = json!({ "target": name, "workload": workload.name, "runs": runs });
        out.write(format!("{all:#}\n").as_bytes())?;
    }
    out.flush()
}
