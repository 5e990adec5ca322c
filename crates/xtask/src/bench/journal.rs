//! **Purpose.** Measures what the journal costs, and compares every figure with its target: one
//! row for each target.
//!
//! **Model.** Each figure is a run of the lab's program `journal_cost`, a process with a new
//! journal in memory. In a round every command runs once; the figure is the median over the rounds,
//! and a ratio is taken within each round. The speeds of two threads and of two processes differ by
//! less than the machine's own speed changes within seconds. So these two run one after the other
//! several times in each round, and take turns at running first. Transfers between cores are
//! counted by `cargo xtask count`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use fourscore_lab::MachineFacts;

use super::Options;
use crate::workspace::Workspace;

/// Flush latencies of the device in the table of group commits, in microseconds.
const LATENCIES: [&str; 4] = ["0", "20", "100", "1000"];

/// How often two threads and two processes are compared in a round. It is even, so that each runs
/// first as often as the other.
const PAIRS: u32 = 4;

/// The numbers that a run printed, by name.
type Printed = BTreeMap<String, f64>;

/// What the processes of each command printed in one round.
type Round = BTreeMap<String, Vec<Printed>>;

/// All runs of `journal_cost`.
struct Runs {
    program: PathBuf,
    rounds: Vec<Round>,
    /// The speed of two threads by that of two processes, pair by pair.
    pairs: Vec<f64>,
}

/// Builds, runs everything, and returns the section.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<String> {
    let mut runs = Runs {
        program: super::build_program(workspace, "journal_cost")?,
        rounds: Vec::new(),
        pairs: Vec::new(),
    };
    let disk = workspace.target();
    for round in 0..options.rounds {
        println!("round {}", round + 1);
        runs.round(&disk)?;
    }
    let machine = MachineFacts::collect().with_option("rounds", &options.rounds);
    let mut text = format!("{machine}\n\n| target | figure |\n|---|---:|\n");
    for (target, figure) in runs.rows() {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "| {target} | {figure} |");
    }
    text.push_str("\nAcknowledged commits/s (transactions):\n\n");
    text.push_str(
        "| flush | one waiter | 64 waiters | 64, adaptive batching |\n|---|---:|---:|---:|\n",
    );
    for row in group_rows(&disk) {
        let cell = |command: &str, batching: &str| {
            let acknowledged = format!("acknowledged_per_s_{batching}");
            let per_commit = format!("waiters_per_commit_{batching}");
            let median = |name: &str| runs.median(command, name, |printed| printed);
            let per_s = median(&acknowledged);
            format!("{per_s:.0} ({:.0})", per_s / median(&per_commit).max(1.0))
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            row.name,
            cell(&row.one_waiter, "off"),
            cell(&row.many_waiters, "off"),
            cell(&row.many_waiters, "adaptive"),
        );
    }
    Ok(text)
}

/// A row of the table of group commits.
struct GroupRow {
    name: String,
    /// The command with one thread that waits for commits.
    one_waiter: String,
    /// The command with 64 of them.
    many_waiters: String,
}

fn group_rows(disk: &Path) -> Vec<GroupRow> {
    let on_ram = |micros: &&str| GroupRow {
        name: format!("{micros} us, RAM"),
        one_waiter: format!("group 1 {micros}"),
        many_waiters: format!("group 64 {micros}"),
    };
    let mut rows: Vec<_> = LATENCIES.iter().map(on_ram).collect();
    let disk = disk.display();
    rows.push(GroupRow {
        name: "the real disk".to_owned(),
        one_waiter: format!("disk 1 {disk}"),
        many_waiters: format!("disk 64 {disk}"),
    });
    rows
}

/// Which side of a pair runs first.
#[derive(Clone, Copy)]
enum First {
    Threads,
    Processes,
}

impl Runs {
    /// Runs every command once, and the pairs [`PAIRS`] times.
    fn round(&mut self, disk: &Path) -> Result<()> {
        let alone = [
            "handles 1",
            "handles 2",
            "sealed 2",
            "commit 10000 flat",
            "commit 10000 sparse",
            "gate 2 10",
            "gate 2 100000",
            "gate 64 10",
            "gate 64 100000",
            "baseline 2",
            "baseline 64",
        ];
        let rows = group_rows(disk);
        let group = rows
            .iter()
            .flat_map(|row| [row.one_waiter.as_str(), row.many_waiters.as_str()]);
        let mut round = Round::new();
        for command in alone.into_iter().chain(group) {
            let printed = together(&self.program, command, 1)?;
            round.insert(command.to_owned(), printed);
        }
        self.rounds.push(round);
        for nr in 0..PAIRS {
            let first = if nr % 2 == 0 {
                First::Threads
            } else {
                First::Processes
            };
            self.pair(first)?;
        }
        Ok(())
    }

    /// Runs two threads in one process, and one thread in each of two processes.
    fn pair(&mut self, first: First) -> Result<()> {
        let speed = |command, processes| -> Result<f64> {
            Ok(handles_per_s(&together(&self.program, command, processes)?))
        };
        let threads = || speed("handles 2", 1);
        let processes = || speed("handles 1", 2);
        let ratio = match first {
            First::Threads => threads()? / processes()?,
            First::Processes => {
                let processes = processes()?;
                threads()? / processes
            }
        };
        self.pairs.push(ratio);
        Ok(())
    }

    /// The median over the rounds of the number `name`, summed over the processes of a command and
    /// converted by `scale`.
    fn median(&self, command: &str, name: &str, scale: impl Fn(f64) -> f64) -> f64 {
        let of_round = |round: &Round| {
            let processes = round.get(command)?;
            Some(
                processes
                    .iter()
                    .filter_map(|printed| printed.get(name))
                    .sum(),
            )
        };
        let values: Vec<f64> = self.rounds.iter().filter_map(of_round).map(scale).collect();
        median(values)
    }

    /// The median over the rounds of the handles per second of command `above` divided by those of
    /// `below`.
    fn ratio(&self, above: &str, below: &str) -> f64 {
        let speed = |round: &Round, command: &str| -> Option<f64> {
            Some(handles_per_s(round.get(command)?))
        };
        let values = self.rounds.iter();
        let values = values.filter_map(|round| Some(speed(round, above)? / speed(round, below)?));
        median(values.collect())
    }

    /// Each target with its figure.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let plain = |command: &str, name: &str| self.median(command, name, |value| value);
        let closed = |command: &str| {
            let (half, most) = (
                plain(command, "closed_p50_us"),
                plain(command, "closed_p99_us"),
            );
            format!("{most:.1} us (p50 {half:.1} us)")
        };
        let both = |few: &str, many: &str| format!("{}; {}", closed(few), closed(many));
        let baseline = "... baseline: an empty gate";
        vec![
            (
                "handle start + dirty a joined buffer + stop, one thread: at most 120 ns",
                format!("{:.1} ns", plain("handles 1", "handle_ns")),
            ),
            (
                "2 threads: at least 0.95 of two processes with a journal each",
                spread(&self.pairs),
            ),
            (
                "a seal every 20 ms: at least 0.95 of the speed without",
                format!("{:.2}", self.ratio("sealed 2", "handles 2")),
            ),
            (
                "commit of 10 000 dirty blocks on RAM: at least 0.6 of memcpy + crc32c",
                format!(
                    "{:.2} (sparse RAM device: {:.2})",
                    plain("commit 10000 flat", "of_memcpy_crc"),
                    plain("commit 10000 sparse", "of_memcpy_crc")
                ),
            ),
            (
                "gate closed, 2 threads, p99: at most 20 us; with 10 and with 100 000 dirty buffers",
                both("gate 2 10", "gate 2 100000"),
            ),
            (baseline, closed("baseline 2")),
            (
                "gate closed, 64 threads on 2 cores, p99: at most 500 us; with 10 and with 100 000",
                both("gate 64 10", "gate 64 100000"),
            ),
            (baseline, closed("baseline 64")),
        ]
    }
}

/// Handles per second of all processes of a run.
fn handles_per_s(processes: &[Printed]) -> f64 {
    let each = processes.iter();
    each.filter_map(|printed| printed.get("handles_per_s"))
        .sum()
}

/// The median, the extremes and the number of values, as text.
fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let half = median(values.to_vec());
    format!(
        "{half:.2} ({least:.2} to {most:.2}, {} pairs)",
        values.len()
    )
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs `command` in `processes` processes at the same time.
fn together(program: &Path, command: &str, processes: usize) -> Result<Vec<Printed>> {
    let start = |_| {
        let mut started = Command::new(program);
        started
            .args(command.split_whitespace())
            .stdout(Stdio::piped());
        started
            .spawn()
            .with_context(|| format!("{}", program.display()))
    };
    let started: Vec<_> = (0..processes).map(start).collect::<Result<_>>()?;
    let finish = |child: std::process::Child| {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("journal_cost {command}: {}", output.status);
        }
        parse(&String::from_utf8_lossy(&output.stdout))
    };
    started.into_iter().map(finish).collect()
}

/// Parses the lines `name value` that a run prints.
fn parse(text: &str) -> Result<Printed> {
    let line = |line: &str| {
        let (name, value) = line
            .split_once(' ')
            .with_context(|| format!("journal_cost printed {line:?}"))?;
        Ok((name.to_owned(), value.parse()?))
    };
    text.lines().map(line).collect()
}
