//! **Purpose.** `fourscore bench alloc`: runs workloads on the block allocator without the rest of
//! the file system.
//!
//! **Model.** Every name is checked before anything runs, and the error of an unknown name lists
//! the known ones.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use fourscore::profile::{self, Sampling};
use fourscore_lab::alloc::bench::Bitmaps;
use fourscore_lab::alloc::{AllocBench, AllocOutcome, FreeSpace, NamedWorkload, Scenario, Switch};
use fourscore_lab::{DirectoryTarget, MonotonicClock, drive};
use fourscore_mballoc::{Tunable, Tunables};
use serde_json::{Value, json};

use crate::bench::{Extent, driven_runs, seconds, speed_text};
use crate::failure::{Failure, Result};
use crate::freefrag::{Histogram, histogram_text};
use crate::mb_stats::mb_stats_to_json;
use crate::output::Stdout;

/// The names of scenarios, workloads, switches and tunables, and examples.
pub(super) fn help() -> String {
    let mut text = "Scenarios:\n ".to_owned();
    for scenario in Scenario::ALL {
        let _ = write!(text, " {}", scenario.name);
    }
    text.push_str("\nWorkloads:\n");
    for named in NamedWorkload::ALL {
        let _ = writeln!(text, "  {:13} {}", named.name, named.about);
    }
    text.push_str("Switches:\n");
    for switch in Switch::ALL {
        let _ = writeln!(
            text,
            "  {:13} {} ({})",
            switch.name, switch.about, switch.values
        );
    }
    text.push_str("Tunables:\n");
    for tunable in Tunable::ALL {
        let _ = writeln!(text, "  {}", tunable.name());
    }
    text.push_str(
        "Examples:\n  fourscore bench alloc --workload fallocate3 --threads 1,2,64\n  \
         fourscore bench alloc --scenario 16g-aged-64k --workload files --switch trim=0 \\\n    \
         --set mb_group_prealloc=64\n  \
         fourscore bench alloc --workload fallocate2 --dir /mnt",
    );
    text
}

/// `bench alloc`
#[derive(Debug, Args)]
pub(super) struct Options {
    /// File system in memory
    #[arg(long, default_value = "133g-50", value_parser = scenario_names(), hide_possible_values = true)]
    scenario: String,
    /// Workload of each thread
    #[arg(long, default_value = "fallocate2", value_parser = workload_names(), hide_possible_values = true)]
    workload: String,
    #[command(flatten)]
    extent: Extent,
    /// Sets a tunable of the allocator
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Turns a feature of the allocator on or off
    #[arg(long, value_name = "NAME=VALUE")]
    switch: Vec<String>,
    /// Interval of periodic commits in seconds
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    commit_every: f64,
    /// Directory of this host, on any file system, instead of the allocator alone
    #[arg(long, conflicts_with_all = ["scenario", "set", "switch", "commit_every"])]
    dir: Option<PathBuf>,
    /// Says where the time goes: in handles, maps, the choice of groups, waits for group locks,
    /// bitmaps, the journal, the device, or in none of them
    #[arg(long, conflicts_with = "dir")]
    profile: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

fn scenario_names() -> PossibleValuesParser {
    Scenario::ALL
        .iter()
        .map(|scenario| scenario.name)
        .collect::<Vec<_>>()
        .into()
}

fn workload_names() -> PossibleValuesParser {
    NamedWorkload::ALL
        .iter()
        .map(|named| named.name)
        .collect::<Vec<_>>()
        .into()
}

/// Runs the verb.
pub(super) fn run(options: &Options) -> Result<()> {
    let workload = NamedWorkload::by_name(&options.workload)
        .ok_or_else(|| Failure::usage("--workload", &options.workload))?;
    if let Some(directory) = &options.dir {
        return on_directory(options, workload, directory);
    }
    let bench = bench(options)?;
    let until = options.extent.until()?;
    let mut out = Stdout::open()?;
    let mut runs = Vec::new();
    if options.profile {
        profile::start(Sampling::Some);
    }
    if !options.json {
        out.write(head(&bench, workload).as_bytes())?;
    }
    for threads in options.extent.threads() {
        let outcome = bench
            .run(
                workload.workload,
                threads,
                until,
                &MonotonicClock::default(),
            )
            .map_err(|why| Failure::new(format!("bench alloc, {threads} threads"), why))?;
        if options.json {
            runs.push(run_json(&outcome));
        } else {
            out.write(as_text(&bench.scenario, &outcome).as_bytes())?;
            out.flush()?;
        }
    }
    if options.json {
        out.write(format!("{:#}\n", as_json(&bench, workload, &runs)).as_bytes())?;
    }
    out.flush()
}

/// The run of these options, with every name and value checked.
fn bench(options: &Options) -> Result<AllocBench> {
    let scenario = Scenario::by_name(&options.scenario)
        .ok_or_else(|| Failure::usage("--scenario", &options.scenario))?;
    let mut bench = AllocBench::on(scenario);
    bench.commit_every = seconds("--commit-every", options.commit_every)?;
    for text in &options.switch {
        let (name, value) = split("--switch", text)?;
        Switch::set(&mut bench, name, value).map_err(|why| Failure::usage("--switch", why))?;
    }
    let geometry = scenario
        .geometry()
        .map_err(|why| Failure::new(scenario.name, why))?;
    for text in &options.set {
        let (name, value) = split("--set", text)?;
        let value = value.parse().map_err(|_| {
            let why = format_args!("{name}={value}: {value} is not a number");
            Failure::usage("--set", why)
        })?;
        bench.tunables.push((name.to_owned(), value));
    }
    let tunables = Tunables::new(geometry);
    for (name, value) in &bench.tunables {
        tunables
            .set_by_name(name, *value)
            .map_err(|why| Failure::usage("--set", why))?;
    }
    Ok(bench)
}

fn split<'t>(option: &str, text: &'t str) -> Result<(&'t str, &'t str)> {
    text.split_once('=').ok_or_else(|| {
        let why = format_args!("{text} does not have the form NAME=VALUE");
        Failure::usage(option, why)
    })
}

fn head(bench: &AllocBench, workload: NamedWorkload) -> String {
    let scenario = &bench.scenario;
    let mut text = format!(
        "scenario {}: {} GiB, blocks of {} KiB, {} % used\nworkload {}: {}\n",
        scenario.name,
        scenario.bytes >> 30,
        1 << scenario.s_log_block_size,
        scenario.used_per_mille / 10,
        workload.name,
        workload.about,
    );
    if bench.bitmaps == Bitmaps::Absent {
        text.push_str("bitmaps are not loaded before the run\n");
    }
    for (name, value) in &bench.tunables {
        let _ = writeln!(text, "{name} = {value}");
    }
    text
}

fn as_text(scenario: &Scenario, outcome: &AllocOutcome) -> String {
    let mut text = format!(
        "\n{}",
        speed_text(
            outcome.threads,
            outcome.operations_per_second(),
            outcome.fairness
        )
    );
    let (commits, groups) = (outcome.commits, outcome.groups_considered());
    // Writing into a String cannot fail.
    let _ = write!(
        text,
        "  {} requests, {} extents; {} periodic commits, {} on demand\n  \
         groups considered: mean {:.2}, p99 {}, in {} searches; {} extents scanned\n",
        outcome.allocations,
        outcome.extents,
        commits.periodic,
        commits.on_demand,
        groups.mean,
        groups.p99,
        groups.searches,
        outcome.tally.extents_scanned(),
    );
    if let Some(nanoseconds) = outcome.lock_held_p99_ns() {
        let _ = writeln!(text, "  group locks held: p99 below {nanoseconds} ns");
    }
    if let Some(profile) = &outcome.profile {
        text.push_str(&profile.to_string());
    }
    let _ = write!(text, "{}", outcome.tally);
    for (when, space) in [("before", &outcome.before), ("after", &outcome.after)] {
        if let Some(space) = space {
            let _ = write!(text, "\nfree space {when}:{}", free_text(scenario, space));
        }
    }
    text
}

/// The free space in the format of e2freefrag. The clusters of scenarios are one block.
fn free_text(scenario: &Scenario, space: &FreeSpace) -> String {
    let mut histogram = Histogram::new(None);
    for (log, bucket) in space.buckets.iter().enumerate() {
        histogram.extents[log] = bucket.extents;
        histogram.blocks[log] = bucket.clusters;
    }
    (histogram.min, histogram.max) = (space.min, space.max);
    histogram_text(
        &histogram,
        1024 << scenario.s_log_block_size,
        space.clusters(),
    )
}

/// The result of a run as JSON.
fn run_json(outcome: &AllocOutcome) -> Value {
    let mut run = outcome.to_json();
    run["mb_stats"] = mb_stats_to_json(&outcome.tally.to_string());
    run
}

fn as_json(bench: &AllocBench, workload: NamedWorkload, runs: &[Value]) -> Value {
    json!({
        "scenario": bench.scenario.name,
        "workload": workload.name,
        "tunables": bench.tunables.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "runs": runs,
    })
}

/// Runs the workload on a directory of this host.
fn on_directory(options: &Options, workload: NamedWorkload, directory: &Path) -> Result<()> {
    let (target, clock) = (DirectoryTarget::new(directory), MonotonicClock::default());
    let drive = |threads, until| {
        drive(&target, workload.workload, threads, until, &clock)
            .map_err(|why| Failure::new(directory.display().to_string(), why))
    };
    let mut out = Stdout::open()?;
    let runs = driven_runs(&options.extent, options.json, &mut out, drive)?;
    if options.json {
        let all = json!({ "dir": directory, "workload": workload.name, "runs": runs });
        out.write(format!("{all:#}\n").as_bytes())?;
    }
    out.flush()
}
