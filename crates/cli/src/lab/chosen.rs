//! **Purpose.** What `lab run` was asked for: an experiment by its name with how much of it is run,
//! or a command of the user; its text, its run and its report.

use std::fmt::Write as _;
use std::path::Path;

use fourscore_lab::alloc::{Experiment, PredictedCell, Scale};
use fourscore_lab::scratch::Scratch;
use fourscore_lab::study::{Study, StudyScale, Surroundings, ThreadList};
use fourscore_lab::workload::Until;
use fourscore_lab::{MachineFacts, MonotonicClock, ThreadCount};
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::lab::command::{self, OnKinds};
use crate::lab::host::Host;
use crate::lab::report::{Cell, MissingSide, PublishedRow, Report};
use crate::lab::{alloc, study};

/// What is run.
pub(super) enum Chosen {
    /// An experiment on the block allocator.
    Alloc(Experiment, Scale),
    /// An experiment in cases, with the sides that this machine cannot run.
    Study(Study, StudyScale, Vec<MissingSide>),
    /// A command of the user.
    Command(OnKinds),
}

impl Chosen {
    /// The folder for file systems, if there are any; from here on a signal removes it.
    pub(super) fn host(&self, base: Option<&Path>) -> Result<Option<Host>> {
        let host_bytes = match self {
            Self::Alloc(..) => None,
            Self::Study(study, ..) => study.scratch.map(|size| size.host_bytes),
            Self::Command(_) => Some(command::HOST_BYTES),
        };
        let host = host_bytes.map(|bytes| Host::open(base, bytes));
        host.transpose()
    }

    /// Whether the time of a side can be divided into sections of a profile.
    pub(super) fn has_sections(&self) -> bool {
        match self {
            Self::Alloc(..) => true,
            Self::Study(study, scale, _) => {
                let mut sides = scale.sides.iter();
                sides.any(|side| study.measure.has_sections(side))
            }
            Self::Command(_) => false,
        }
    }

    /// What is known before the run.
    pub(super) fn head(&self) -> String {
        let command = self.command();
        let (mut text, sides, missing) = match self {
            Self::Alloc(experiment, scale) => {
                let sides = experiment.variants.iter();
                let sides: Vec<_> = sides.map(|side| (side.name, side.about)).collect();
                (alloc_head(experiment, scale, &command), sides, &[][..])
            }
            Self::Study(study, scale, missing) => {
                let sides = scale.sides.iter().map(|side| (side.name, side.about));
                let text = study_head(study, scale, &command);
                (text, sides.collect(), &missing[..])
            }
            Self::Command(on) => {
                let kinds = on.kinds.iter().map(|kind| (kind.name(), kind.about()));
                let text = format!("{}\nagain: {command}\n", on.line());
                (text, kinds.collect(), &on.missing[..])
            }
        };
        text.push_str("sides:\n");
        for (name, about) in sides {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "  {name:14} {about}");
        }
        for MissingSide { side, why } in missing {
            let _ = writeln!(text, "  {side:14} is left out: {why}");
        }
        text
    }

    /// Runs it, and passes what a cell did as text to `each` when it is complete.
    pub(super) fn run(
        &self,
        scratch: Option<&Scratch>,
        mut each: impl FnMut(&str) -> Result<()>,
    ) -> Result<Vec<Cell>> {
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
            Self::Study(known, scale, _) => {
                let around = Surroundings {
                    clock: &clock,
                    scratch,
                };
                let mut growth = study::Growth::default();
                let ended = known.run(scale, &around, |case, threads, sides| {
                    let mut cell = study::cell(case, threads, sides);
                    if known.threads == ThreadList::Doubling {
                        growth.add_to(&mut cell);
                    }
                    let text = study::cell_text(&cell);
                    done(cell, &text)
                });
                (known.name, ended)
            }
            Self::Command(on) => {
                let ended = on.run(scratch, &clock).and_then(|cell| {
                    let text = study::cell_text(&cell);
                    done(cell, &text)
                });
                (command::NAME, ended)
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
            Self::Study(study, scale, _) => {
                let cases: Vec<_> = scale.cases.iter().map(|case| case.name).collect();
                let steps = scale.steps.map(|steps| format!(" --steps {steps}"));
                let sides: Vec<_> = scale.sides.iter().map(|side| side.name).collect();
                let on = study.scratch.map(|_| format!(" --on {}", sides.join(",")));
                format!(
                    "fourscore lab run {} --cases {}{} --threads {}{} --rounds {}",
                    study.name,
                    cases.join(","),
                    on.unwrap_or_default(),
                    list(&scale.threads),
                    steps.unwrap_or_default(),
                    scale.rounds.0
                )
            }
            Self::Command(on) => on.command(),
        }
    }

    /// The report of cells.
    pub(super) fn report(&self, runs: Vec<Cell>) -> Report {
        let mut report = match self {
            Self::Alloc(known, scale) => Report {
                scenario: Some(scale.scenario.name.to_owned()),
                published: known.published.iter().map(PublishedRow::of).collect(),
                predicted: PredictedCell::of(&work_of(known.name)),
                ..Report::of(known.name, known.about, known.source, known.load)
            },
            Self::Study(known, _, missing) => Report {
                published: known.published.iter().map(PublishedRow::of).collect(),
                missing: missing.clone(),
                ..Report::of(known.name, known.about, known.source, known.load)
            },
            Self::Command(on) => on.report(),
        };
        report.command = self.command();
        report.machine = json!(MachineFacts::collect());
        report.runs = runs;
        report
    }
}

/// The short name of the publication that an experiment reproduces, which its own name begins with.
fn work_of(experiment: &str) -> String {
    let (work, _) = experiment.split_once('-').unwrap_or((experiment, ""));
    work.to_uppercase()
}

fn alloc_head(experiment: &Experiment, scale: &Scale, command: &str) -> String {
    let scenario = &scale.scenario;
    format!(
        "{}: {}\nafter {}\neach thread: {}\nfile system {}: {} GiB, blocks of {} KiB, \
         {} % used\nagain: {command}\n",
        experiment.name,
        experiment.about,
        experiment.source,
        experiment.load,
        scenario.name,
        scenario.bytes >> 30,
        1 << scenario.s_log_block_size,
        scenario.used_per_mille / 10,
    )
}

fn study_head(study: &Study, scale: &StudyScale, command: &str) -> String {
    let source = match study.source {
        "" => String::new(),
        source => format!("after {source}\n"),
    };
    let mut text = format!(
        "{}: {}\n{source}each thread: {}\nagain: {command}\ncases:\n",
        study.name, study.about, study.load,
    );
    for case in &scale.cases {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  {:14} {}", case.name, case.about);
    }
    text
}

/// Numbers of threads, separated by commas.
fn list(threads: &[ThreadCount]) -> String {
    let threads = threads.iter().map(ToString::to_string);
    threads.collect::<Vec<_>>().join(",")
}
