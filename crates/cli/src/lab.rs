//! **Purpose.** `fourscore lab`: lists the experiments of the crate `lab` and runs one: what ext4
//! did before a published change, with it, and ours, beside the published figures.
//!
//! **Model.** Every name, the memory and the directory of the report are checked before anything
//! runs, and the error of an unknown name lists those that exist. Most experiments run in memory
//! and mount nothing. Those on whole file systems, and a command of the user, run on images in a
//! folder of their own; a signal unmounts and removes all of them, so that nothing but a report
//! stays behind, whenever a run is interrupted.
//!
//! | module | responsibility |
//! |---|---|
//! | `alloc` | runs on the block allocator |
//! | `chosen` | what the command line asks for: its text, its run and its report |
//! | `command` | runs of a command of the user on file systems of several kinds |
//! | `host` | the folder for file systems, and what a signal undoes |
//! | `study` | runs of experiments in cases |
//! | `report` | the report: JSON and comma-separated values |
//! | `page` | the report as a page |
//! | `plot`, `curves` | its plots: rows of values, and curves over numbers of threads |
//! | `compare` | two reports side by side |
//! | `room` | whether there is enough memory, and a place for the report |

mod alloc;
mod chosen;
mod command;
mod compare;
mod curves;
mod host;
mod page;
mod plot;
mod report;
mod room;
mod study;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use fourscore::profile::{self, Sampling};
use fourscore_lab::alloc::{Experiment, Scale, Scenario};
use fourscore_lab::scratch::FsKind;
use fourscore_lab::study::Study;
use fourscore_lab::workload::Until;
use fourscore_lab::{Rounds, ThreadCount};
use serde_json::json;

use crate::bench::seconds;
use crate::failure::{Failure, Result};
use crate::lab::chosen::Chosen;
use crate::lab::report::PublishedRow;
use crate::lab::room::ReportDirectory;
use crate::output::Stdout;

/// `lab`
#[derive(Debug, Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists the experiments
    #[command(after_help = "Example:\n  fourscore lab list")]
    List,
    /// Runs an experiment and prints its sides beside the published figures, or runs a command on
    /// several file systems
    ///
    /// Sides run in turns; a figure is the median of the rounds, the counters are those of the
    /// round with that figure. The first side is what was there before the change, the last one is
    /// ours. Published figures are of other machines: compare directions and ratios.
    ///
    /// peers, scale and aging compare whole file systems on image files: the kernel's, fuse2fs and
    /// ours. COMMAND runs in an empty directory of each of them, with the name of its kind in
    /// $LAB_KIND, without standard input, and with its output as messages; its time is the figure.
    /// What this machine lacks for one of them is printed, and the others run. At the end, or after
    /// a signal, everything is unmounted and removed.
    #[command(after_help = help())]
    Run(Run),
    /// Compares two reports of an experiment
    ///
    /// For each side and number of threads, prints the second report's operations per second by
    /// those of the first, with a confidence interval from the rounds of both. With fewer than four
    /// rounds each, no interval has 95 %.
    #[command(after_help = "Example:\n  fourscore lab compare before.json after.json")]
    Compare(compare::Options),
}

/// `lab run`
#[derive(Debug, Args)]
struct Run {
    /// Name of an experiment
    #[arg(required_unless_present = "command")]
    experiment: Option<String>,
    /// Command and its arguments, instead of an experiment
    #[arg(
        last = true,
        conflicts_with_all = ["experiment", "scenario", "cases", "threads", "seconds", "steps", "smallest"]
    )]
    command: Vec<OsString>,
    /// File system in memory, as of `bench alloc`, instead of the experiment's own
    #[arg(long)]
    scenario: Option<String>,
    /// Cases of the experiment, instead of all
    #[arg(long, value_delimiter = ',', value_name = "CASE,..")]
    cases: Vec<String>,
    /// Kinds of file systems, instead of all: ext4, xfs, btrfs, fuse2fs, mount, in-process
    #[arg(long, value_delimiter = ',', value_name = "KIND,..")]
    on: Vec<String>,
    /// Directory for the images of file systems [default: /dev/shm if it has the space]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Size of the file systems for COMMAND [default: 8G]
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Number of threads; a list makes one run for each number [default: 1,2; of scale 1,2,4,..; of
    /// aging 1]
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    threads: Vec<usize>,
    /// Length of a run in seconds, instead of the experiment's own
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Number of steps of each thread, instead of a time
    #[arg(long, conflicts_with = "seconds", value_name = "N")]
    steps: Option<u64>,
    /// Runs of each side
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: u32,
    /// Runs each side once with two threads, for a second or two in all
    #[arg(long, conflicts_with_all = ["threads", "seconds", "steps", "rounds", "cases"])]
    smallest: bool,
    /// Says where the time of our library goes: in handles, maps, the choice of groups, waits for
    /// group locks, bitmaps, the journal, the device, or in none of them
    #[arg(long, conflicts_with = "command")]
    profile: bool,
    /// Prints JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Prints comma-separated values
    #[arg(long)]
    csv: bool,
    /// Writes a page with tables and plots, and the JSON, into this new or empty directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

fn names() -> String {
    let alloc = Experiment::ALL.iter().map(|known| known.name);
    let names = alloc.chain(Study::ALL.iter().map(|known| known.name));
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names.join(", ")
}

fn help() -> String {
    let mut text = format!("Experiments: {}\n", names());
    for study in Study::ALL {
        let cases = study.cases.iter().map(|case| case.name);
        let cases: Vec<_> = cases.collect();
        // Writing into a String cannot fail.
        let _ = writeln!(text, "Cases of {}: {}", study.name, cases.join(", "));
    }
    text.push_str(
        "Examples:\n  fourscore lab run s1-prefetch --threads 1,2\n  \
         fourscore lab run s2-fastcommit --cases 64x64,64x1024 --rounds 1\n  \
         fourscore lab run s5-bestavail --scenario 16g-aged-4k --report s5\n  \
         fourscore lab run peers --on ext4,mount --cases create,append\n  \
         fourscore lab run s4-goals --profile\n  \
         fourscore lab run --rounds 1 -- tar xf /usr/src/linux.tar",
    );
    text
}

/// Runs the verb.
pub(crate) fn run(lab: &Lab) -> Result<()> {
    match &lab.what {
        What::List => list(),
        What::Run(options) => experiment(options),
        What::Compare(options) => compare::run(options),
    }
}

fn list() -> Result<()> {
    let alloc = Experiment::ALL.iter();
    let alloc = alloc.map(|known| (known.name, known.about, known.source));
    let studies = Study::ALL.iter();
    let studies = studies.map(|known| (known.name, known.about, known.source));
    let mut all: Vec<_> = alloc.chain(studies).collect();
    all.sort_unstable();
    let mut text = String::new();
    for (name, about, source) in all {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{name:14} {about}");
        if !source.is_empty() {
            let _ = writeln!(text, "{:14} {source}", "");
        }
    }
    let mut out = Stdout::open()?;
    out.write(text.as_bytes())?;
    out.flush()
}

fn experiment(options: &Run) -> Result<()> {
    let chosen = choose(options)?;
    room::check_memory(&chosen)?;
    let directory = options.report.as_deref().map(ReportDirectory::open);
    let directory = directory.transpose()?;
    let host = chosen.host(options.scratch.as_deref())?;
    let is_text = !options.json && !options.csv;
    let mut out = Stdout::open()?;
    if is_text {
        out.write(chosen.head().as_bytes())?;
        out.flush()?;
    }
    if options.profile {
        profile::start(Sampling::Some);
    }
    let scratch = host.as_ref().map(host::Host::scratch);
    let ended = chosen.run(scratch, |text| match is_text {
        true => out.write(text.as_bytes()).and_then(|()| out.flush()),
        false => Ok(()),
    });
    if let Some(host) = &host {
        host.wait_if_interrupted();
    }
    let mut report = chosen.report(ended?);
    if options.profile {
        report.command.push_str(" --profile");
    }
    if let Some(directory) = directory {
        directory.write(&report)?;
    }
    let text = if options.json {
        format!("{:#}\n", json!(report))
    } else if options.csv {
        report.to_csv()
    } else {
        published_text(&report.published)
    };
    out.write(text.as_bytes())?;
    out.flush()
}

/// What is asked for, with every name and value checked.
fn choose(options: &Run) -> Result<Chosen> {
    let Some(name) = options.experiment.as_deref() else {
        return command::choose(options).map(Chosen::Command);
    };
    if let Some(experiment) = Experiment::by_name(name) {
        let lacks = [
            ("--cases", !options.cases.is_empty(), "cases"),
            ("--on", !options.on.is_empty(), "kinds of file systems"),
            ("--scratch", options.scratch.is_some(), "images"),
            ("--size", options.size.is_some(), "size to choose"),
        ];
        refuse(name, &lacks)?;
        let scale = alloc_scale(options, &experiment)?;
        return Ok(Chosen::Alloc(experiment, scale));
    }
    let Some(study) = Study::by_name(name) else {
        let why = format!("{name} is not one of {}", names());
        return Err(Failure::usage("EXPERIMENT", why));
    };
    let has_images = study.scratch.is_some();
    let lacks = [
        (
            "--scenario",
            options.scenario.is_some(),
            "file system in memory",
        ),
        ("--seconds", options.seconds.is_some(), "length in seconds"),
        (
            "--on",
            !options.on.is_empty() && !has_images,
            "kinds of file systems",
        ),
        (
            "--scratch",
            options.scratch.is_some() && !has_images,
            "images",
        ),
        ("--size", options.size.is_some(), "size to choose"),
    ];
    refuse(name, &lacks)?;
    let chosen = study::choose(options, study)?;
    if options.profile && !chosen.has_sections() {
        let why = format!("{name} runs nothing that is divided into sections");
        return Err(Failure::usage("--profile", why));
    }
    Ok(chosen)
}

/// Refuses the first option that is given and has no meaning for an experiment.
fn refuse(name: &str, lacks: &[(&str, bool, &str)]) -> Result<()> {
    match lacks.iter().find(|(_, is_given, _)| *is_given) {
        Some((option, _, what)) => Err(Failure::usage(*option, format!("{name} has no {what}"))),
        None => Ok(()),
    }
}

/// The kinds of file systems of an option; `None` if it is not given.
fn kinds(options: &Run) -> Result<Option<Vec<FsKind>>> {
    let kinds = options.on.iter().map(|name| {
        FsKind::by_name(name).ok_or_else(|| {
            let known: Vec<_> = FsKind::ALL.iter().map(|kind| kind.name()).collect();
            let why = format!("{name} is not one of {}", known.join(", "));
            Failure::usage("--on", why)
        })
    });
    let kinds: Vec<FsKind> = kinds.collect::<Result<_>>()?;
    Ok((!kinds.is_empty()).then_some(kinds))
}

impl Run {
    /// The numbers of threads, or those of the experiment.
    fn threads_or(&self, default: Vec<ThreadCount>) -> Vec<ThreadCount> {
        if self.threads.is_empty() {
            return default;
        }
        let threads = self.threads.iter().copied().map(ThreadCount::new);
        threads.collect()
    }
}

/// How much of an experiment on the block allocator is run.
fn alloc_scale(options: &Run, experiment: &Experiment) -> Result<Scale> {
    let name = options.scenario.as_deref().unwrap_or(experiment.scenario);
    let scenario = Scenario::by_name(name).ok_or_else(|| {
        let known: Vec<_> = Scenario::ALL.iter().map(|known| known.name).collect();
        let why = format!("{name} is not one of {}", known.join(", "));
        Failure::usage("--scenario", why)
    })?;
    if options.smallest {
        return Ok(experiment.smallest(scenario));
    }
    let threads = options.threads_or(vec![ThreadCount::ONE, ThreadCount::new(2)]);
    let until = match (options.steps, options.seconds.or(experiment.seconds)) {
        (Some(steps), _) => Until::Steps(steps),
        (None, Some(time)) => Until::Elapsed(seconds("--seconds", time)?),
        (None, None) => {
            let most = threads.iter().map(|threads| threads.get() as u64).max();
            Until::Steps(experiment.steps / most.unwrap_or(1))
        }
    };
    Ok(Scale {
        scenario,
        threads,
        until,
        rounds: Rounds(options.rounds),
    })
}

fn published_text(published: &[PublishedRow]) -> String {
    if published.is_empty() {
        return String::new();
    }
    let mut text = "\npublished (other machines)\n".to_owned();
    for row in published {
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "  {}: {} -> {} {}, {:.2} of the first",
            row.what,
            plot::published(row.base),
            plot::published(row.patched),
            row.unit,
            row.ratio,
        );
    }
    text
}
