//! **Purpose.** Runs of experiments in cases, as text and as parts of a report.

use std::fmt::Write as _;

use fourscore_lab::scratch::FsKind;
use fourscore_lab::study::{Case, SideRuns, Study, StudyScale};
use fourscore_lab::{Rounds, ThreadCount};
use serde_json::Map;

use crate::failure::{Failure, Result};
use crate::lab::Run;
use crate::lab::chosen::Chosen;
use crate::lab::report::{Cell, MissingSide, SideReport};

/// How much of a study is run, and the sides that this machine cannot run.
pub(super) fn choose(options: &Run, study: Study) -> Result<Chosen> {
    let mut scale = match options.smallest {
        true => study.smallest(),
        false => scale(options, &study)?,
    };
    if let Some(kinds) = super::kinds(options)? {
        let side = |kind: FsKind| {
            study.side(kind.name()).ok_or_else(|| {
                let why = format!("{} has no side {}", study.name, kind.name());
                Failure::usage("--on", why)
            })
        };
        scale.sides = kinds.into_iter().map(side).collect::<Result<_>>()?;
    }
    let mut missing = Vec::new();
    scale.sides.retain(|side| {
        let why = study.measure.missing(side);
        missing.extend(why.clone().map(|why| MissingSide {
            side: side.name.to_owned(),
            why,
        }));
        why.is_none()
    });
    if scale.sides.is_empty() {
        return Err(nothing_left(study.name, &missing));
    }
    Ok(Chosen::Study(study, scale, missing))
}

/// The failure of a run of which every side is missing.
pub(super) fn nothing_left(name: &str, missing: &[MissingSide]) -> Failure {
    let each = missing
        .iter()
        .map(|missing| format!("{}: {}", missing.side, missing.why));
    let each: Vec<_> = each.collect();
    Failure::new(format!("lab run {name}"), each.join("; "))
}

fn scale(options: &Run, study: &Study) -> Result<StudyScale> {
    let mut cases = Vec::new();
    for name in &options.cases {
        let case = study.case(name).ok_or_else(|| {
            let known: Vec<_> = study.cases.iter().map(|known| known.name).collect();
            let why = format!("{name} is not one of {}", known.join(", "));
            Failure::usage("--cases", why)
        })?;
        cases.push(case);
    }
    if cases.is_empty() {
        cases = study.cases.to_vec();
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(StudyScale {
        cases,
        sides: study.sides.to_vec(),
        threads: options.threads_or(study.threads.counts(cores)),
        steps: options.steps,
        rounds: Rounds(options.rounds),
    })
}

/// The speeds with the first number of threads, which those with more are compared with.
#[derive(Debug, Default)]
pub(super) struct Growth {
    case: Option<String>,
    first: Vec<SideReport>,
}

impl Growth {
    /// Adds how many times as fast as with the first number of threads each side is.
    pub(super) fn add_to(&mut self, cell: &mut Cell) {
        if self.case != cell.case {
            self.case.clone_from(&cell.case);
            self.first.clone_from(&cell.sides);
        }
        for (side, first) in cell.sides.iter_mut().zip(&self.first) {
            let times = side.operations_per_second / first.operations_per_second.max(1e-9);
            let name = "times the first number of threads";
            side.facts.insert(name.to_owned(), times);
        }
    }
}

/// What all sides did in a case, as a part of the report.
pub(super) fn cell(case: &Case, threads: ThreadCount, sides: &[SideRuns]) -> Cell {
    let side = |runs: &SideRuns| SideReport {
        side: runs.side.name.to_owned(),
        about: runs.side.about.to_owned(),
        operations_per_second: runs.median.operations_per_second,
        samples: runs.samples.clone(),
        ratio_to_first: 0.0,
        facts: {
            let facts = runs.median.facts.iter();
            facts
                .map(|(&name, &value)| (name.to_owned(), value))
                .collect()
        },
        profile: runs.median.profile.clone(),
        details: Map::new(),
    };
    let sides = sides.iter().map(side).collect();
    Cell::new(Some(case.name.to_owned()), threads.get(), sides)
}

/// The same as text.
pub(super) fn cell_text(cell: &Cell) -> String {
    let mut text = format!("\n{}\n", cell.name());
    for side in &cell.sides {
        let (least, most) = side.range();
        let facts = side.facts.iter();
        let facts: Vec<_> = facts
            .map(|(name, value)| format!("{name} {}", plain(*value)))
            .collect();
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "  {:14} {} operations/s ({} to {}), {:.2} of the first\n    {}",
            side.side,
            plain(side.operations_per_second),
            plain(least),
            plain(most),
            side.ratio_to_first,
            facts.join("; "),
        );
        if let Some(profile) = &side.profile {
            text.push_str(&profile.to_string());
        }
    }
    text
}

/// A number as text, with decimals only where it is small.
fn plain(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract().abs() <= 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_have_decimals() {
        let texts = [12_345.6, 7.0, 3.456_78, 0.012_34, 0.0].map(plain);
        assert_eq!(texts, ["12346", "7", "3.46", "0.0123", "0"]);
    }

    #[test]
    fn speeds_are_compared_with_the_first_number_of_threads_of_their_case() {
        let side = |rate: f64| SideReport {
            side: "ours".to_owned(),
            about: String::new(),
            operations_per_second: rate,
            samples: vec![rate],
            ratio_to_first: 0.0,
            facts: Default::default(),
            profile: None,
            details: Map::new(),
        };
        let mut growth = Growth::default();
        let mut times = |case: &str, threads, rate| {
            let mut cell = Cell::new(Some(case.to_owned()), threads, vec![side(rate)]);
            growth.add_to(&mut cell);
            cell.sides[0].facts["times the first number of threads"]
        };
        let found = [
            times("create", 1, 10.0),
            times("create", 2, 15.0),
            times("stat", 1, 30.0),
            times("stat", 4, 15.0),
        ];
        assert!(
            found
                .iter()
                .zip([1.0, 1.5, 1.0, 0.5])
                .all(|(a, b)| (a - b).abs() < 1e-9)
        );
    }
}
