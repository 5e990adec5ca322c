//! **Purpose.** The figures of a run, as text tables for people, JSON for programs and Markdown
//! rows for docs/PERFORMANCE.md.

use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::Serialize;

use crate::comparison::{Measurement, ThreadCount};
use crate::machine::MachineFacts;
use crate::process::Usage;
use crate::stats::{Ratio, Summary};

/// All figures of one run of the lab.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine they were measured on.
    pub machine: MachineFacts,
    /// The comparisons in the order in which they ran.
    pub comparisons: Vec<ComparisonReport>,
}

/// The figures of one comparison.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// Its name.
    pub name: String,
    /// Rounds that were discarded.
    pub warm_up: u32,
    /// Rounds that were measured.
    pub rounds: u32,
    /// One row for each thread count.
    pub rows: Vec<Row>,
}

/// The sides at one thread count.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The thread count.
    pub threads: ThreadCount,
    /// The sides in their order; the first is the reference of all ratios.
    pub sides: Vec<SideReport>,
}

/// The figures of one side at one thread count.
#[derive(Clone, Debug, Serialize)]
pub struct SideReport {
    /// The name of the side.
    pub name: String,
    /// The command line, if the side is a process.
    pub command: Option<String>,
    /// Wall-clock time of a round in nanoseconds.
    pub wall_ns: Summary,
    /// CPU time in user mode in nanoseconds, for processes.
    pub user_ns: Option<Summary>,
    /// CPU time in the kernel in nanoseconds, for processes.
    pub system_ns: Option<Summary>,
    /// The largest peak memory of any round, for processes.
    pub max_rss_bytes: Option<u64>,
    /// The median over the rounds of operations per second.
    pub operations_per_second: f64,
    /// The median over the rounds of bytes per second; 0 if bytes have no meaning.
    pub bytes_per_second: f64,
    /// Operations per second relative to the first side, round by round: above 1 is faster.
    pub speed: Option<Ratio>,
}

impl SideReport {
    /// Summarises the rounds `taken`, relative to the rounds of the `reference` side.
    pub(crate) fn of(
        name: String,
        command: Option<String>,
        taken: &[Measurement],
        reference: &[Measurement],
    ) -> Self {
        let rates = |rounds: &[Measurement]| -> Vec<f64> {
            rounds
                .iter()
                .map(|m| per_second(m.work.operations, m.wall))
                .collect()
        };
        let byte_rates: Vec<f64> = taken
            .iter()
            .map(|m| per_second(m.work.bytes, m.wall))
            .collect();
        let usages: Option<Vec<Usage>> = taken.iter().map(|m| m.usage).collect();
        let of_usage = |part: fn(&Usage) -> Duration| summary_ns(usages.as_ref()?.iter().map(part));
        let own = rates(taken);
        Self {
            name,
            command,
            wall_ns: summary_ns(taken.iter().map(|m| m.wall)).unwrap_or(Summary {
                median: 0,
                min: 0,
                max: 0,
                spread: 0.0,
                samples: Vec::new(),
            }),
            user_ns: of_usage(|usage| usage.user),
            system_ns: of_usage(|usage| usage.system),
            max_rss_bytes: usages
                .as_ref()
                .and_then(|all| all.iter().map(|usage| usage.max_rss_bytes).max()),
            operations_per_second: median(&own),
            bytes_per_second: median(&byte_rates),
            speed: Ratio::pairwise(&own, &rates(reference)),
        }
    }
}

fn summary_ns(times: impl Iterator<Item = Duration>) -> Option<Summary> {
    let samples: Vec<u64> = times
        .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        .collect();
    Summary::of(&samples)
}

fn median(values: &[f64]) -> f64 {
    let ones = vec![1.0; values.len()];
    Ratio::pairwise(values, &ones).map_or(0.0, |ratio| ratio.median)
}

fn per_second(count: u64, wall: Duration) -> f64 {
    if wall.is_zero() {
        0.0
    } else {
        count as f64 / wall.as_secs_f64()
    }
}

impl Report {
    /// The whole report as JSON with stable names.
    ///
    /// # Errors
    ///
    /// Only if a figure is not a number, which JSON cannot express.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// The report as a section for docs/PERFORMANCE.md: the machine, then one table for each
    /// comparison.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = format!("{}\n", self.machine);
        for comparison in &self.comparisons {
            // Writing into a String cannot fail.
            let _ = write!(text, "\n{}", comparison.to_markdown());
        }
        text
    }
}

impl ComparisonReport {
    /// A heading and a Markdown table, one row for each side and thread count.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = format!("### {}\n\nMedian of {} rounds.\n\n", self.name, self.rounds);
        text.push_str("| side | threads | median | min to max | operations/s | speed |\n");
        text.push_str("|---|---:|---:|---:|---:|---:|\n");
        for cells in self.cells() {
            text.push_str("| ");
            text.push_str(&cells[..6].join(" | "));
            text.push_str(" |\n");
        }
        text
    }

    /// The cells of each side and thread count: name, threads, median, range, rate, speed, CPU,
    /// memory.
    fn cells(&self) -> Vec<[String; 8]> {
        let sides = |row: &Row| -> Vec<[String; 8]> {
            row.sides
                .iter()
                .map(|side| side.cells(row.threads))
                .collect()
        };
        self.rows.iter().flat_map(sides).collect()
    }
}

impl SideReport {
    fn cells(&self, threads: ThreadCount) -> [String; 8] {
        let cpu = match (&self.user_ns, &self.system_ns) {
            (Some(user), Some(system)) => {
                format!("{} + {}", seconds(user.median), seconds(system.median))
            }
            _ => String::new(),
        };
        [
            self.name.clone(),
            threads.to_string(),
            seconds(self.wall_ns.median),
            format!(
                "{} to {}",
                seconds(self.wall_ns.min),
                seconds(self.wall_ns.max)
            ),
            significant(self.operations_per_second),
            self.speed.map_or_else(String::new, |ratio| {
                format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max)
            }),
            cpu,
            self.max_rss_bytes.map_or_else(String::new, |bytes| {
                format!("{} MiB", bytes.div_ceil(1 << 20))
            }),
        ]
    }
}

/// Nanoseconds with a unit and three or more significant digits.
fn seconds(nanoseconds: u64) -> String {
    let ns = nanoseconds as f64;
    match nanoseconds {
        0..10_000 => format!("{nanoseconds} ns"),
        10_000..10_000_000 => format!("{:.1} us", ns / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

fn significant(value: f64) -> String {
    if value >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

impl fmt::Display for MachineFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} cores", self.cpu_model, self.cores)?;
        if self.virtual_machine {
            f.write_str(" (virtual machine)")?;
        }
        write!(
            f,
            ", {} MiB memory, {}",
            self.memory_bytes >> 20,
            self.kernel
        )?;
        if let Some(governor) = &self.governor {
            write!(f, ", governor {governor}")?;
        }
        write!(f, "; {}", self.date)?;
        if let Some(revision) = &self.git_revision {
            write!(f, "; commit {revision}")?;
        }
        for (name, value) in &self.options {
            write!(f, "; {name} {value}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ComparisonReport {
    /// The text table: columns aligned, numbers to the right.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = [
            "side",
            "threads",
            "median",
            "min to max",
            "op/s",
            "speed",
            "user + system",
            "memory",
        ];
        let mut lines = vec![heading.map(str::to_owned)];
        lines.extend(self.cells());
        let mut widths = [0; 8];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        writeln!(
            f,
            "{} ({} rounds after {} to warm up)",
            self.name, self.rounds, self.warm_up
        )?;
        for line in &lines {
            let mut text = format!("  {:<width$}", line[0], width = widths[0]);
            for (cell, width) in line.iter().zip(widths).skip(1) {
                // Writing into a String cannot fail.
                let _ = write!(text, "  {cell:>width$}");
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        for comparison in &self.comparisons {
            write!(f, "\n{comparison}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;
    use crate::comparison::{Comparison, Rounds, Side, Work};

    fn sample() -> Report {
        let clock = FakeClock::default();
        let side = |name, ms| {
            let clock = &clock;
            Side::closure(name, move |_| {
                clock.advance(Duration::from_millis(ms));
                Ok(Work::ONCE)
            })
        };
        let comparison = Comparison::new("two sides")
            .rounds(Rounds(3))
            .side(side("reference", 50))
            .side(side("ours", 20))
            .run(&clock)
            .expect("no side fails");
        let machine = MachineFacts {
            cpu_model: "CPU".into(),
            cores: 2,
            virtual_machine: true,
            kernel: "Linux 6 x86_64".into(),
            memory_bytes: 1 << 30,
            governor: None,
            date: "2026-01-01T00:00:00Z".into(),
            git_revision: Some("abc".into()),
            options: [("files".to_owned(), "7".to_owned())].into(),
        };
        Report {
            machine,
            comparisons: vec![comparison],
        }
    }

    #[test]
    fn text_table_is_aligned() {
        let expected = "\
CPU, 2 cores (virtual machine), 1024 MiB memory, Linux 6 x86_64; 2026-01-01T00:00:00Z; commit abc; files 7

two sides (3 rounds after 1 to warm up)
  side       threads   median          min to max   op/s                speed  user + system  memory
  reference        1  50.0 ms  50.0 ms to 50.0 ms  20.00  1.00 (1.00 to 1.00)
  ours             1  20.0 ms  20.0 ms to 20.0 ms  50.00  2.50 (2.50 to 2.50)
";
        assert_eq!(sample().to_string(), expected);
    }

    #[test]
    fn markdown_rows() {
        let text = sample().to_markdown();
        let row = "| ours | 1 | 20.0 ms | 20.0 ms to 20.0 ms | 50.00 | 2.50 (2.50 to 2.50) |\n";
        assert!(text.ends_with(row), "{text}");
    }

    #[test]
    fn json_names_are_stable() {
        let json = sample().to_json().expect("all figures are numbers");
        let value: serde_json::Value = serde_json::from_str(&json).expect("own output parses");
        let side = &value["comparisons"][0]["rows"][0]["sides"][1];
        assert_eq!(side["wall_ns"]["median"], 20_000_000);
        assert_eq!(side["speed"]["median"], 2.5);
        assert_eq!(value["comparisons"][0]["rows"][0]["threads"], 1);
        assert_eq!(value["machine"]["options"]["files"], "7");
    }

    #[test]
    fn times_keep_their_digits() {
        assert_eq!(seconds(999), "999 ns");
        assert_eq!(seconds(12_345), "12.3 us");
        assert_eq!(seconds(12_345_678), "12.3 ms");
        assert_eq!(seconds(12_345_678_901), "12.35 s");
    }
}
