//! **Purpose.** Runs of experiments in cases, as text and as parts of a report.

use std::fmt::Write as _;

use fourscore_lab::study::{Case, SideRuns, Study, StudyScale};
use fourscore_lab::{Rounds, ThreadCount};
use serde_json::Map;

use crate::failure::{Failure, Result};
use crate::lab::Run;
use crate::lab::report::{Cell, SideReport};

/// How much of a study is run.
pub(super) fn scale(options: &Run, study: &Study) -> Result<StudyScale> {
    if options.smallest {
        return Ok(study.smallest());
    }
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
    Ok(StudyScale {
        cases,
        threads: options.threads(),
        steps: options.steps,
        rounds: Rounds(options.rounds),
    })
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
            .map(|(name, value)| format!("{name} {value:.0}"))
            .collect();
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "  {:14} {:.0} operations/s ({least:.0} to {most:.0}), {:.2} of the first\n    {}",
            side.side,
            side.operations_per_second,
            side.ratio_to_first,
            facts.join("; "),
        );
    }
    text
}
