//! **Purpose.** `fourscore lab`: lists the experiments of the crate `lab` and runs one: what ext4
//! did before a published change, with it, and ours, beside the published figures.
//!
//! **Model.** Every name, the memory and the directory of the report are checked before anything
//! runs, and the error of an unknown name lists those that exist. An experiment runs in memory and
//! mounts nothing, so that nothing but a report stays behind, whenever it is interrupted.
//!
//! | module | responsibility |
//! |---|---|
//! | `alloc` | runs on the block allocator |
//! | `study` | runs of experiments in cases |
//! | `report` | the report: JSON and comma-separated values |
//! | `page`, `plot` | the report as a page with plots |
//! | `compare` | two reports side by side |
//! | `room` | whether there is enough memory, and a place for the report |

mod alloc;
mod compare;
mod page;
mod plot;
mod report;
mod room;
mod study;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use fourscore_lab::alloc::{Experiment, Published, Scale, Scenario};
use fourscore_lab::study::{Study, StudyScale};
use fourscore_lab::workload::Until;
use fourscore_lab::{MachineFacts, MonotonicClock, Rounds, ThreadCount};
use serde_json::json;

use crate::bench::seconds;
use crate::failure::{Failure, Result};
use crate::lab::report::{Cell, PublishedRow, Report};
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
    /// Runs an experiment and prints its sides beside the published figures
    ///
    /// Sides run in turns; a figure is the median of the rounds, the counters are those of the
    /// round with that figure. The first side is what was there before the change, the last one is
    /// ours. Published figures are of other machines: compare directions and ratios.
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
    experiment: String,
    /// File system in memory, as of `bench alloc`, instead of the experiment's own
    #[arg(long)]
    scenario: Option<String>,
    /// Cases of the experiment, instead of all
    #[arg(long, value_delimiter = ',', value_name = "CASE,..")]
    cases: Vec<String>,
    /// Number of threads; a list makes one run for each number
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2",
        value_name = "N,.."
    )]
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

/// An experiment by its name, with how much of it is run.
enum Chosen {
    Alloc(Experiment, Scale),
    Study(Study, StudyScale),
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
         fourscore lab run s5-bestavail --scenario 16g-aged-4k --report s5",
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
        let _ = writeln!(text, "{name:14} {about}\n{:14} {source}", "");
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
    let is_text = !options.json && !options.csv;
    let mut out = Stdout::open()?;
    if is_text {
        out.write(chosen.head().as_bytes())?;
        out.flush()?;
    }
    let cells = chosen.run(|text| match is_text {
        true => out.write(text.as_bytes()).and_then(|()| out.flush()),
        false => Ok(()),
    })?;
    let report = chosen.report(cells);
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

/// The experiment, with every name and value checked.
fn choose(options: &Run) -> Result<Chosen> {
    let name = options.experiment.as_str();
    if let Some(experiment) = Experiment::by_name(name) {
        if !options.cases.is_empty() {
            return Err(Failure::usage("--cases", format!("{name} has no cases")));
        }
        let scale = alloc_scale(options, &experiment)?;
        return Ok(Chosen::Alloc(experiment, scale));
    }
    let Some(study) = Study::by_name(name) else {
        let why = format!("{name} is not one of {}", names());
        return Err(Failure::usage("EXPERIMENT", why));
    };
    let lacks = [
        ("--scenario", options.scenario.is_some(), "file system"),
        ("--seconds", options.seconds.is_some(), "length in seconds"),
    ];
    if let Some((option, _, what)) = lacks.into_iter().find(|(_, is_given, _)| *is_given) {
        return Err(Failure::usage(option, format!("{name} has no {what}")));
    }
    let scale = study::scale(options, &study)?;
    Ok(Chosen::Study(study, scale))
}

impl Run {
    fn threads(&self) -> Vec<ThreadCount> {
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
    let threads = options.threads();
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

impl Chosen {
    /// What is known before the run.
    fn head(&self) -> String {
        let command = self.command();
        let (mut text, sides) = match self {
            Self::Alloc(experiment, scale) => {
                let scenario = &scale.scenario;
                let text = format!(
                    "{}: {}\nafter {}\neach thread: {}\nfile system {}: {} GiB, blocks of {} KiB, \
                     {} % used\nagain: {command}\nsides:\n",
                    experiment.name,
                    experiment.about,
                    experiment.source,
                    experiment.load,
                    scenario.name,
                    scenario.bytes >> 30,
                    1 << scenario.s_log_block_size,
                    scenario.used_per_mille / 10,
                );
                let sides = experiment.variants.iter();
                let sides: Vec<_> = sides.map(|side| (side.name, side.about)).collect();
                (text, sides)
            }
            Self::Study(study, scale) => {
                let mut text = format!(
                    "{}: {}\nafter {}\neach thread: {}\nagain: {command}\ncases:\n",
                    study.name, study.about, study.source, study.load,
                );
                for case in &scale.cases {
                    // Writing into a String cannot fail.
                    let _ = writeln!(text, "  {:14} {}", case.name, case.about);
                }
                text.push_str("sides:\n");
                let sides = study.sides.iter().map(|side| (side.name, side.about));
                (text, sides.collect())
            }
        };
        for (name, about) in sides {
            let _ = writeln!(text, "  {name:14} {about}");
        }
        text
    }

    /// Runs it, and passes what a cell did as text to `each` when it is complete.
    fn run(&self, mut each: impl FnMut(&str) -> Result<()>) -> Result<Vec<Cell>> {
        let (mut cells, mut failed) = (Vec::new(), None);
        let mut done = |cell: Cell, text: &str| {
            cells.push(cell);
            each(text).map_err(|failure| {
                failed = Some(failure);
                std::io::ErrorKind::Other.into()
            })
        };
        let clock = MonotonicClock::default();
        let (name, ended) = match self {
            Self::Alloc(experiment, scale) => {
                let ended = experiment.run(scale, &clock, |threads, sides| {
                    let text = alloc::run_text(&scale.scenario, threads, sides);
                    done(alloc::cell(&scale.scenario, threads, sides), &text)
                });
                (experiment.name, ended)
            }
            Self::Study(known, scale) => {
                let ended = known.run(scale, &clock, |case, threads, sides| {
                    let cell = study::cell(case, threads, sides);
                    let text = study::cell_text(&cell);
                    done(cell, &text)
                });
                (known.name, ended)
            }
        };
        match (failed, ended) {
            (Some(failure), _) => Err(failure),
            (None, Err(why)) => Err(Failure::new(format!("lab run {name}"), why)),
            (None, Ok(())) => Ok(cells),
        }
    }

    /// The command that runs the same again.
    fn command(&self) -> String {
        let list = |threads: &[ThreadCount]| {
            let threads = threads.iter().map(ToString::to_string);
            threads.collect::<Vec<_>>().join(",")
        };
        match self {
            Self::Alloc(experiment, scale) => {
                let length = match scale.until {
                    Until::Steps(steps) => format!("--steps {steps}"),
                    Until::Elapsed(time) => format!("--seconds {}", time.as_secs_f64()),
                };
                format!(
                    "fourscore lab run {} --scenario {} --threads {} {length} --rounds {}",
                    experiment.name,
                    scale.scenario.name,
                    list(&scale.threads),
                    scale.rounds.0
                )
            }
            Self::Study(study, scale) => {
                let cases: Vec<_> = scale.cases.iter().map(|case| case.name).collect();
                let steps = scale.steps.map(|steps| format!(" --steps {steps}"));
                format!(
                    "fourscore lab run {} --cases {} --threads {}{} --rounds {}",
                    study.name,
                    cases.join(","),
                    list(&scale.threads),
                    steps.unwrap_or_default(),
                    scale.rounds.0
                )
            }
        }
    }

    fn report(&self, runs: Vec<Cell>) -> Report {
        let (name, about, source, load, scenario, published): (_, _, _, _, _, &[Published]) =
            match self {
                Self::Alloc(known, scale) => {
                    let scenario = Some(scale.scenario.name.to_owned());
                    let (about, source) = (known.about, known.source);
                    (
                        known.name,
                        about,
                        source,
                        known.load,
                        scenario,
                        known.published,
                    )
                }
                Self::Study(known, _) => {
                    let (about, source) = (known.about, known.source);
                    (known.name, about, source, known.load, None, known.published)
                }
            };
        Report {
            experiment: name.to_owned(),
            about: about.to_owned(),
            source: source.to_owned(),
            load: load.to_owned(),
            scenario,
            command: self.command(),
            machine: json!(MachineFacts::collect()),
            runs,
            published: published.iter().map(PublishedRow::of).collect(),
        }
    }
}

fn published_text(published: &[PublishedRow]) -> String {
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
