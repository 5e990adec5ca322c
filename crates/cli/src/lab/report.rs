//! **Purpose.** The report of an experiment: what JSON has, and what pages, tables and comparisons
//! are made from.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fourscore_lab::alloc::{PredictedCell, Published};
use fourscore_lab::{Profile, Ratio};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The report of an experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) experiment: String,
    pub(super) about: String,
    pub(super) source: String,
    /// What each thread does.
    pub(super) load: String,
    /// The file system in memory, if there is one.
    pub(super) scenario: Option<String>,
    /// The command that runs the same again.
    pub(super) command: String,
    pub(super) machine: Value,
    pub(super) runs: Vec<Cell>,
    pub(super) published: Vec<PublishedRow>,
    /// Rates on other machines that a model gives. None was measured.
    #[serde(default)]
    pub(super) predicted: Vec<PredictedCell>,
    /// Sides that the machine could not run.
    #[serde(default)]
    pub(super) missing: Vec<MissingSide>,
}

/// A side that the machine could not run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MissingSide {
    pub(super) side: String,
    /// What is missing.
    pub(super) why: String,
}

/// All sides with one number of threads, in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    /// The case; `None` for experiments that have none.
    pub(super) case: Option<String>,
    pub(super) threads: usize,
    pub(super) sides: Vec<SideReport>,
}

/// The runs of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SideReport {
    pub(super) side: String,
    pub(super) about: String,
    /// The median of the rounds.
    pub(super) operations_per_second: f64,
    /// Of each round.
    pub(super) samples: Vec<f64>,
    pub(super) ratio_to_first: f64,
    /// Further figures of the round with the median.
    pub(super) facts: BTreeMap<String, f64>,
    /// Where the time of the threads went, in the same round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) profile: Option<Profile>,
    /// What only JSON has.
    #[serde(flatten)]
    pub(super) details: Map<String, Value>,
}

/// A published pair of figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PublishedRow {
    pub(super) what: String,
    pub(super) unit: String,
    pub(super) base: f64,
    pub(super) patched: f64,
    pub(super) ratio: f64,
}

impl PublishedRow {
    pub(super) fn of(row: &Published) -> Self {
        Self {
            what: row.what.to_owned(),
            unit: row.unit.to_owned(),
            base: row.base,
            patched: row.patched,
            ratio: row.patched / row.base,
        }
    }
}

impl Cell {
    /// A cell whose ratios are to the first side.
    pub(super) fn new(case: Option<String>, threads: usize, mut sides: Vec<SideReport>) -> Self {
        let base = sides.first().map_or(0.0, |side| side.operations_per_second);
        for side in &mut sides {
            side.ratio_to_first = side.operations_per_second / base.max(1e-9);
        }
        Self {
            case,
            threads,
            sides,
        }
    }

    /// Its name in tables.
    pub(super) fn name(&self) -> String {
        let threads = match self.threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        match &self.case {
            Some(case) => format!("{case}, {threads}"),
            None => threads,
        }
    }

    /// The ratio of a side to the first, round by round.
    pub(super) fn ratio(&self, side: &SideReport) -> Option<Ratio> {
        Ratio::pairwise(&side.samples, &self.sides.first()?.samples)
    }
}

impl SideReport {
    /// The slowest and the fastest round.
    pub(super) fn range(&self) -> (f64, f64) {
        let bounds = (f64::INFINITY, 0_f64);
        self.samples.iter().fold(bounds, |(least, most), &sample| {
            (least.min(sample), most.max(sample))
        })
    }
}

impl Report {
    /// A report without runs.
    pub(super) fn of(experiment: &str, about: &str, source: &str, load: &str) -> Self {
        Self {
            experiment: experiment.to_owned(),
            about: about.to_owned(),
            source: source.to_owned(),
            load: load.to_owned(),
            scenario: None,
            command: String::new(),
            machine: Value::Null,
            runs: Vec::new(),
            published: Vec::new(),
            predicted: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// The names of all sides, in order.
    pub(super) fn sides(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for side in self.runs.iter().flat_map(|cell| &cell.sides) {
            if !names.contains(&side.side.as_str()) {
                names.push(&side.side);
            }
        }
        names
    }

    /// The report as rows of comma-separated values, the published and predicted figures included.
    pub(super) fn to_csv(&self) -> String {
        let mut text =
            "kind,case,threads,side,unit,value,least,most,rounds,ratio_to_first\n".to_owned();
        for cell in &self.runs {
            for side in &cell.sides {
                let (least, most) = side.range();
                // Writing into a String cannot fail.
                let _ = writeln!(
                    text,
                    "measured,{},{},{},operations/s,{},{least},{most},{},{}",
                    quoted(cell.case.as_deref().unwrap_or_default()),
                    cell.threads,
                    quoted(&side.side),
                    side.operations_per_second,
                    side.samples.len(),
                    side.ratio_to_first,
                );
            }
        }
        for row in &self.published {
            let sides = [("base", row.base, 1.0), ("patched", row.patched, row.ratio)];
            for (side, value, ratio) in sides {
                let (what, unit) = (quoted(&row.what), quoted(&row.unit));
                let _ = writeln!(text, "published,{what},,{side},{unit},{value},,,,{ratio}");
            }
        }
        for cell in &self.predicted {
            let what = quoted(&format!("{}, {}", cell.machine, cell.what));
            let sides = [
                ("base", cell.base),
                ("patched", cell.patched),
                ("ours", cell.ours),
            ];
            for (side, value) in sides {
                let (threads, ratio) = (cell.threads, value / cell.base);
                let _ = writeln!(
                    text,
                    "predicted,{what},{threads},{side},operations/s,{value},,,,{ratio}"
                );
            }
        }
        text
    }
}

/// A field of comma-separated values (RFC 4180).
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A report with two cells of three sides.
    pub(crate) fn sample() -> Report {
        let side = |name: &str, samples: &[f64]| SideReport {
            side: name.to_owned(),
            about: format!("what \"{name}\" is <here> & there"),
            operations_per_second: samples[samples.len() / 2],
            samples: samples.to_vec(),
            ratio_to_first: 0.0,
            facts: BTreeMap::from([("records".to_owned(), 7.0)]),
            profile: None,
            details: Map::new(),
        };
        let cell = |case: &str, threads| {
            let sides = vec![
                side("base", &[10.0, 11.0, 12.0]),
                side("patched, a", &[20.0, 22.0, 25.0]),
                side("ours", &[4e6, 5e6, 6e6]),
            ];
            Cell::new(Some(case.to_owned()), threads, sides)
        };
        Report {
            experiment: "s9-test".to_owned(),
            about: "what it costs".to_owned(),
            source: "A. Uthor, a change, 2020".to_owned(),
            load: "does things".to_owned(),
            scenario: None,
            command: "fourscore lab run s9-test --threads 1,2".to_owned(),
            machine: serde_json::json!({ "cpu_model": "A <CPU>", "cores": 2 }),
            runs: vec![cell("small", 1), cell("large", 2)],
            published: vec![PublishedRow::of(&Published {
                what: "80 cores, 1 \"thread\"",
                unit: "operations/s",
                base: 100.0,
                patched: 250.0,
            })],
            predicted: [1, 8]
                .map(|threads| PredictedCell {
                    machine: "A <machine>".to_owned(),
                    what: "1 GB".to_owned(),
                    threads,
                    published_base: 100.0,
                    published_patched: 150.0,
                    base: 10.0,
                    patched: 12.0,
                    ours: 20.0,
                    is_fitted: threads == 8,
                })
                .to_vec(),
            missing: Vec::new(),
        }
    }

    #[test]
    fn a_table_of_values_has_a_row_for_each_side_and_published_figure() {
        let csv = sample().to_csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + 2 * 3 + 2 + 2 * 3);
        assert_eq!(
            lines[10],
            "predicted,\"A <machine>, 1 GB\",1,patched,operations/s,12,,,,1.2"
        );
        assert_eq!(
            lines[2],
            "measured,small,1,\"patched, a\",operations/s,22,20,25,3,2"
        );
        assert_eq!(
            lines[8],
            "published,\"80 cores, 1 \"\"thread\"\"\",,patched,operations/s,250,,,,2.5"
        );
    }

    #[test]
    fn a_report_survives_json() {
        let report = sample();
        let text = serde_json::to_string(&report).expect("JSON");
        let read: Report = serde_json::from_str(&text).expect("the same");
        assert_eq!(
            read.to_csv().lines().count(),
            report.to_csv().lines().count()
        );
        assert_eq!(
            read.runs[1].sides[2].samples,
            report.runs[1].sides[2].samples
        );
        assert_eq!(read.published[0].what, report.published[0].what);
        assert_eq!(read.sides(), ["base", "patched, a", "ours"]);
        assert_eq!(read.runs[1].name(), "large, 2 threads");
        let ratio = read.runs[0].ratio(&read.runs[0].sides[1]).expect("rounds");
        assert!(ratio.min <= 2.0 && 2.0 <= ratio.max);
    }
}
