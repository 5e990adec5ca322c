//! **Purpose.** `fourscore lab compare`: two reports of one experiment, with confidence intervals.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use fourscore_lab::RatioInterval;
use fourscore_lab::interval::CONFIDENCE;
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::lab::report::{Cell, Report, SideReport};
use crate::output::Stdout;

/// `lab compare`
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Report of `lab run --json` that is the base
    a: PathBuf,
    /// Report that is compared with it
    b: PathBuf,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A side that both reports have.
struct Row<'r> {
    cell: String,
    side: &'r str,
    a: &'r SideReport,
    b: &'r SideReport,
    /// `None` if there is a sample that is not positive.
    interval: Option<RatioInterval>,
}

impl Row<'_> {
    fn verdict(&self) -> &'static str {
        match self.interval {
            None => "not comparable",
            Some(found) if !found.is_confident() => "too few rounds for 95 %",
            Some(found) if found.low > 1.0 => "faster",
            Some(found) if found.high < 1.0 => "slower",
            Some(_) => "no difference shown",
        }
    }
}

/// Runs the verb.
pub(super) fn run(options: &Options) -> Result<()> {
    let (a, b) = (read(&options.a)?, read(&options.b)?);
    if a.experiment != b.experiment {
        let why = format!(
            "it is of {}, the other one of {}",
            b.experiment, a.experiment
        );
        return Err(Failure::usage(options.b.display().to_string(), why));
    }
    let rows = rows(&a, &b);
    if rows.is_empty() {
        let why = "no side with the same number of threads is in both";
        return Err(Failure::new(options.b.display().to_string(), why));
    }
    let only = [only_in(&a, &b), only_in(&b, &a)];
    let text = match options.json {
        true => format!("{:#}\n", to_json(&a, &b, &rows, &only)),
        false => to_text(&a, &b, &rows, &only),
    };
    let mut out = Stdout::open()?;
    out.write(text.as_bytes())?;
    out.flush()
}

fn read(path: &Path) -> Result<Report> {
    let name = || path.display().to_string();
    let text = fs::read(path).map_err(|why| Failure::new(name(), why))?;
    serde_json::from_slice(&text).map_err(|why| {
        let why = format!("it is not a report: {why}");
        Failure::new(name(), why).advise("`fourscore lab run --json` makes one")
    })
}

/// The cell of a report that is like this one.
fn same_cell<'r>(report: &'r Report, like: &Cell) -> Option<&'r Cell> {
    let mut cells = report.runs.iter();
    cells.find(|cell| cell.case == like.case && cell.threads == like.threads)
}

fn same_side<'r>(report: &'r Report, cell: &Cell, side: &str) -> Option<&'r SideReport> {
    let mut sides = same_cell(report, cell)?.sides.iter();
    sides.find(|known| known.side == side)
}

fn rows<'r>(a: &'r Report, b: &'r Report) -> Vec<Row<'r>> {
    let mut rows = Vec::new();
    for cell in &a.runs {
        for side in &cell.sides {
            if let Some(other) = same_side(b, cell, &side.side) {
                rows.push(Row {
                    cell: cell.name(),
                    side: &side.side,
                    a: side,
                    b: other,
                    interval: RatioInterval::of(&other.samples, &side.samples),
                });
            }
        }
    }
    rows
}

/// What `other` lacks.
fn only_in(report: &Report, other: &Report) -> Vec<String> {
    let mut names = Vec::new();
    for cell in &report.runs {
        for side in &cell.sides {
            if same_side(other, cell, &side.side).is_none() {
                names.push(format!("{}, {}", cell.name(), side.side));
            }
        }
    }
    names
}

/// A fact of a report's machine as text.
fn fact<'r>(report: &'r Report, name: &str) -> &'r str {
    report.machine[name].as_str().unwrap_or("unknown")
}

fn to_text(a: &Report, b: &Report, rows: &[Row<'_>], only: &[Vec<String>; 2]) -> String {
    let mut text = format!("{}: {}\n", a.experiment, a.about);
    // Writing into a String cannot fail.
    for (name, report) in [("A", a), ("B", b)] {
        let facts = ["git_revision", "cpu_model", "date"].map(|name| fact(report, name));
        let _ = writeln!(text, "{name}: {}\n   {}", facts.join(", "), report.command);
    }
    let mut last = "";
    for row in rows {
        if row.cell != last {
            last = &row.cell;
            let _ = writeln!(text, "\n{last}");
        }
        let interval = row.interval.map_or_else(String::new, |found| {
            format!(
                "{:.3} ({:.3} to {:.3} with {:.0} %), ",
                found.ratio,
                found.low,
                found.high,
                found.confidence * 100.0
            )
        });
        let _ = writeln!(
            text,
            "  {:14} {:.0} -> {:.0} operations/s, {interval}{}",
            row.side,
            row.a.operations_per_second,
            row.b.operations_per_second,
            row.verdict()
        );
    }
    for (name, only) in ["A", "B"].into_iter().zip(only) {
        for what in only {
            let _ = writeln!(text, "only in {name}: {what}");
        }
    }
    text
}

fn to_json(a: &Report, b: &Report, rows: &[Row<'_>], only: &[Vec<String>; 2]) -> Value {
    let row = |row: &Row<'_>| {
        json!({
            "cell": row.cell,
            "side": row.side,
            "a": row.a.operations_per_second,
            "b": row.b.operations_per_second,
            "interval": row.interval,
            "verdict": row.verdict(),
        })
    };
    json!({
        "experiment": a.experiment,
        "confidence": CONFIDENCE,
        "a": { "machine": a.machine, "command": a.command, "only": only[0] },
        "b": { "machine": b.machine, "command": b.command, "only": only[1] },
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::report::tests::sample;

    fn scaled(factor: f64, rounds: usize) -> Report {
        let mut report = sample();
        for side in report.runs.iter_mut().flat_map(|cell| &mut cell.sides) {
            let first = side.samples[0];
            let noise = |nr: usize| first * factor * (1.0 + 0.01 * nr as f64);
            side.samples = (0..rounds).map(noise).collect();
        }
        report
    }

    #[test]
    fn verdicts_follow_the_intervals() {
        let base = scaled(1.0, 4);
        for (factor, rounds, verdict) in [
            (1.0, 4, "no difference shown"),
            (1.5, 4, "faster"),
            (0.5, 4, "slower"),
            (1.5, 2, "too few rounds for 95 %"),
            (0.0, 4, "not comparable"),
        ] {
            let other = scaled(factor, rounds);
            let rows = rows(&base, &other);
            assert_eq!(rows.len(), 6);
            assert!(rows.iter().all(|row| row.verdict() == verdict), "{factor}");
        }
    }

    #[test]
    fn what_one_report_lacks_is_named() {
        let (a, mut b) = (sample(), sample());
        b.runs[0].sides.pop();
        b.runs[1].threads = 16;
        let rows = rows(&a, &b);
        assert_eq!(rows.len(), 2);
        let only = [only_in(&a, &b), only_in(&b, &a)];
        assert_eq!(only[0][0], "small, 1 thread, ours");
        assert_eq!(only[0].len(), 4);
        assert_eq!(only[1][0], "large, 16 threads, base");
        let text = to_text(&a, &b, &rows, &only);
        assert!(
            text.contains("only in B: large, 16 threads, ours"),
            "{text}"
        );
    }
}
