//! **Purpose.** Measures the block allocator alone, and compares every figure with its target: one
//! row for each target.
//!
//! **Model.** Each run is a process `fourscore bench alloc --json` with a new file system in
//! memory. In a round every side runs once; a ratio is taken within each round, and its median is
//! the figure. A run during which other programs used the processors is repeated, and the least
//! disturbed attempt counts. Cache line transfers between cores come from a build that counts them,
//! in which every figure repeats exactly.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fourscore_lab::{MachineFacts, Ratio};
use serde_json::Value;

use super::Options;
use super::processors::Processors;
use crate::run::{cargo, run as run_command};
use crate::workspace::Workspace;

/// Length of a timed run.
const SECONDS: &str = "1";
/// A run is repeated if other programs take a larger share of the processors than this.
const MAX_SHARE_OF_OTHERS: f64 = 0.03;
/// Attempts of one run at most.
const MAX_ATTEMPTS: u32 = 3;
/// No run is repeated after this time, so that the benchmark takes less than five minutes.
const REPEAT_UNTIL: Duration = Duration::from_secs(140);
/// Workloads and rounds of the counted runs. Each is preceded by as many rounds of warm-up, in
/// which every group adapts, once, how long it stays in its bins.
const COUNTED: [(&str, &str); 2] = [("fallocate2", "2048"), ("fallocate3", "20")];
const VIRTUAL_CORES: &str = "2,80,192";
/// Fewer transfers per operation than this count as none.
const NO_TRANSFERS: f64 = 0.001;
/// Scenarios and options of the searches whose groups are counted: for windows of up to 8 MiB, on
/// 500 to 8 million groups, with 6 to 95 % of the space used.
const SEARCHES: [(&str, &str); 5] = [
    ("15t", "--workload append"),
    ("100g-aged-4k", "--workload fallocate3"),
    ("133g-95", "--workload append"),
    ("133g-95", "--workload append --switch bitmaps=absent"),
    ("1p-95", "--workload append"),
];
/// Criteria under which the hold times of group locks are measured, with the value of the switch
/// `indexes`.
const LOCK_HOLDS: [(&str, &str); 2] = [("indexes", "on"), ("ladder of ext4", "off")];
/// Workloads and block sizes whose requests are larger than the free extents of an aged file
/// system, which are of 4 MiB: files that grow to 8 MiB, and with blocks of 64 KiB also the
/// preallocations of small files.
const FRAGMENTED: [(&str, &str); 3] = [("append", "4k"), ("append", "64k"), ("files", "64k")];

/// A command line that is measured.
struct Side {
    name: String,
    arguments: Vec<String>,
    /// Processes that run it at the same time.
    processes: usize,
    /// Whether its speed is compared, and not only its counters.
    is_timed: bool,
    /// Whether it runs in the first round only: it takes long, and its counters repeat exactly.
    is_once: bool,
}

impl Side {
    fn new(name: impl Into<String>, arguments: &str) -> Self {
        Self {
            name: name.into(),
            arguments: arguments.split_whitespace().map(str::to_owned).collect(),
            processes: 1,
            is_timed: false,
            is_once: false,
        }
    }
}

/// By side, the reports of its processes in each round.
#[derive(Default)]
struct Figures(BTreeMap<String, Vec<Vec<Value>>>);

/// A target, the figure measured, and whether the figure meets the target.
struct Row {
    target: String,
    figure: String,
    is_met: bool,
}

/// Builds, runs everything, and returns the section.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<String> {
    let counting = build_counting(workspace)?;
    let fourscore = super::build_command(workspace)?;
    let machine = MachineFacts::collect()
        .with_option("rounds", &options.rounds)
        .with_option("seconds of a timed run", &SECONDS);

    let sides = sides();
    let mut figures = Figures::default();
    let mut disturbed = 0;
    let began = Instant::now();
    for round in 0..options.rounds {
        println!("round {}", round + 1);
        for side in sides.iter().filter(|side| round == 0 || !side.is_once) {
            let (run, others) = undisturbed(&fourscore, side, began)?;
            figures.0.entry(side.name.clone()).or_default().push(run);
            disturbed += u32::from(side.is_timed && others > MAX_SHARE_OF_OTHERS);
        }
    }
    let counted = count(&counting)?;
    let mut rows = figures.rows()?;
    rows.extend(counted.rows()?);
    let timed = sides.iter().filter(|side| side.is_timed).count();
    let all = options.rounds * u32::try_from(timed)?;
    let mut text = format!(
        "{machine}\n\nIn {disturbed} of {all} timed runs other programs used more than {:.0} % of \
         the processors even after repetition.\n\n| target | figure | met |\n|---|---|---|\n",
        MAX_SHARE_OF_OTHERS * 100.0
    );
    for row in rows {
        let met = if row.is_met { "yes" } else { "**no**" };
        // Writing into a String cannot fail.
        let _ = writeln!(text, "| {} | {} | {met} |", row.target, row.figure);
    }
    text.push_str(&figures.table());
    text.push_str(&counted.table());
    Ok(text)
}

/// Builds the program that counts transfers between cores and returns its path.
fn build_counting(workspace: &Workspace) -> Result<PathBuf> {
    let mut command = cargo(workspace);
    command.args(["build", "--release", "--package", "fourscore-lab"]);
    run_command(command.args(["--features", "count", "--bin", "transfers"]))?;
    Ok(workspace.target().join("release/transfers"))
}

fn sides() -> Vec<Side> {
    let timed = |name: &str, scenario: &str, workload: &str, threads: u32, more: &str| {
        let arguments = format!(
            "--scenario {scenario} --workload {workload} --threads {threads} \
             --seconds {SECONDS} {more}"
        );
        Side {
            is_timed: true,
            ..Side::new(name, &arguments)
        }
    };
    let mut sides = vec![
        timed("pair", "133g-50", "pair", 1, ""),
        timed("one goal", "133g-50", "fallocate2", 1, "--switch goals=one"),
        timed(
            "many goals",
            "133g-50",
            "fallocate2",
            1,
            "--switch goals=core",
        ),
    ];
    for workload in ["fallocate2", "fallocate3"] {
        sides.push(Side {
            processes: 2,
            ..timed(
                &format!("{workload}, 2 processes"),
                "133g-50",
                workload,
                1,
                "",
            )
        });
        for threads in [2, 64] {
            let name = format!("{workload}, {threads} threads");
            sides.push(timed(&name, "133g-50", workload, threads, ""));
        }
        sides.push(timed(
            &format!("{workload}, 15 TiB"),
            "15t",
            workload,
            2,
            "",
        ));
    }
    for (workload, block) in FRAGMENTED {
        for (name, switches) in [
            ("trim off", "--switch indexes=off --switch trim=0"),
            ("trim on", "--switch indexes=off --switch trim=3"),
            ("indexes", "--switch indexes=on --switch trim=3"),
        ] {
            let arguments = format!(
                "--scenario 100g-aged-{block} --workload {workload} --threads 2 --steps 20000 \
                 {switches}"
            );
            sides.push(Side::new(
                format!("{workload}, aged {block}, {name}"),
                &arguments,
            ));
        }
    }
    sides.extend(counted_sides());
    for block in ["4k", "64k"] {
        for threads in [1, 4, 16] {
            let scenario = format!("16g-aged-{block}");
            let name = format!("{scenario}, {threads} threads");
            sides.push(Side {
                is_timed: false,
                ..timed(&name, &scenario, "fallocate3", threads, "")
            });
        }
    }
    sides
}

/// Sides of which only counters and lock hold times are reported.
fn counted_sides() -> Vec<Side> {
    let mut sides = Vec::new();
    for (scenario, arguments) in SEARCHES {
        let arguments = format!("--scenario {scenario} {arguments} --threads 1 --steps 50000");
        sides.push(Side {
            is_once: true,
            ..Side::new(search_name(scenario, &arguments), &arguments)
        });
    }
    for (name, indexes) in LOCK_HOLDS {
        let arguments = format!(
            "--scenario 100g-aged-64k --workload files --threads 64 --steps 2000 \
             --switch hold_times=on --switch indexes={indexes}"
        );
        sides.push(Side::new(format!("locks, {name}"), &arguments));
    }
    sides
}

/// Runs a side, and repeats the run while other programs disturb it. Returns the least disturbed
/// run, and the share of the processors that other programs took during it.
fn undisturbed(fourscore: &Path, side: &Side, began: Instant) -> Result<(Vec<Value>, f64)> {
    let mut best: Option<(Vec<Value>, f64)> = None;
    for _ in 0..MAX_ATTEMPTS {
        let before = Processors::read()?;
        let run = run_side(fourscore, side)?;
        let others = Processors::read()?.others_since(&before);
        if best.as_ref().is_none_or(|(_, least)| others < *least) {
            best = Some((run, others));
        }
        if !side.is_timed || others <= MAX_SHARE_OF_OTHERS || began.elapsed() > REPEAT_UNTIL {
            break;
        }
    }
    best.context("no attempt")
}

/// Runs the processes of a side at the same time and returns the report of each one's run.
fn run_side(fourscore: &Path, side: &Side) -> Result<Vec<Value>> {
    let start = || {
        let mut command = Command::new(fourscore);
        command
            .args(["bench", "alloc", "--json"])
            .args(&side.arguments);
        command.stdout(Stdio::piped()).spawn()
    };
    let children = (0..side.processes)
        .map(|_| start())
        .collect::<Result<Vec<_>, _>>()?;
    let reports = children.into_iter().map(|child| {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("{}: {}", side.name, output.status);
        }
        let report: Value = serde_json::from_slice(&output.stdout)?;
        Ok(report["runs"][0].clone())
    });
    reports.collect()
}

impl Figures {
    /// A figure of a side in each round, summed over its processes. `figure` is a JSON pointer.
    fn of(&self, side: &str, figure: &str) -> Result<Vec<f64>> {
        let rounds = self
            .0
            .get(side)
            .with_context(|| format!("there is no side {side}"))?;
        let value = |run: &Value| {
            let found = run.pointer(figure).and_then(Value::as_f64);
            found.with_context(|| format!("{side}: the report has no {figure}"))
        };
        rounds
            .iter()
            .map(|runs| runs.iter().map(value).sum())
            .collect()
    }

    fn ratio(&self, side: &str, reference: &str, figure: &str) -> Result<Ratio> {
        let ratio = Ratio::pairwise(&self.of(side, figure)?, &self.of(reference, figure)?);
        ratio.with_context(|| format!("{side} against {reference}"))
    }

    fn speed(&self, side: &str, reference: &str) -> Result<Ratio> {
        self.ratio(side, reference, "/operations_per_second")
    }

    /// All rows but those of the counted transfers.
    fn rows(&self) -> Result<Vec<Row>> {
        let rates = self.of("pair", "/operations_per_second")?;
        let nanoseconds = Ratio::pairwise(&vec![1e9; rates.len()], &rates)
            .context("a run of the side pair did nothing")?;
        let mut rows = vec![Row {
            target: "(a) 8 KiB allocated and freed, one thread: at most 400 ns".to_owned(),
            figure: spread(nanoseconds, 0, " ns"),
            is_met: nanoseconds.median <= 400.0,
        }];
        for workload in ["fallocate2", "fallocate3"] {
            let two = format!("{workload}, 2 threads");
            rows.push(Row::at_least(
                format!("(b) {workload}: 2 threads at least 0.95 of 2 processes on 2 file systems"),
                self.speed(&two, &format!("{workload}, 2 processes"))?,
                0.95,
            ));
            rows.push(Row::at_least(
                format!("(c) {workload}: 64 threads at least 0.95 of 2"),
                self.speed(&format!("{workload}, 64 threads"), &two)?,
                0.95,
            ));
            let large = self.speed(&format!("{workload}, 15 TiB"), &two)?;
            rows.push(Row {
                target: format!("(e) {workload}: 15 TiB within 10 % of 133 GiB"),
                figure: spread(large, 2, ""),
                is_met: (0.9..=1.1).contains(&large.median),
            });
        }
        for (workload, block) in FRAGMENTED {
            let off = format!("{workload}, aged {block}, trim off");
            for (name, least) in [("trim on", 5.0), ("indexes", 20.0)] {
                let side = format!("{workload}, aged {block}, {name}");
                let fewer = self.ratio(&off, &side, SCANNED)?;
                let target = format!("(d) {side}: at least {least} times fewer extents scanned");
                rows.push(Row::at_least(target, fewer, least));
            }
        }
        rows.push(Row::at_least(
            "(g) many goals cost one thread at most 2 %".to_owned(),
            self.speed("many goals", "one goal")?,
            0.98,
        ));
        rows.extend(self.commits()?);
        rows.extend(self.locks()?);
        rows.extend(self.searches()?);
        Ok(rows)
    }

    fn locks(&self) -> Result<Vec<Row>> {
        let rows = LOCK_HOLDS.iter().map(|(name, _)| {
            let held = self.of(&format!("locks, {name}"), "/lock_held_p99_ns")?;
            let most = held.into_iter().fold(0.0, f64::max);
            Ok(Row {
                target: format!(
                    "group locks held, {name}, 100 GiB aged, 64 KiB blocks, 64 threads: 99 of 100 \
                     for at most 5000 ns"
                ),
                figure: format!("less than {most:.0} ns"),
                is_met: most <= 5000.0,
            })
        });
        rows.collect()
    }

    fn searches(&self) -> Result<Vec<Row>> {
        let sides = self.0.keys().filter(|name| name.starts_with(SEARCH_PREFIX));
        let rows = sides.map(|name| {
            let first = |figure: &str| {
                let figures = self.of(name, figure)?;
                figures.first().copied().context("no round was run")
            };
            let mean = first("/groups_considered/mean")?;
            let p99 = first("/groups_considered/p99")?;
            let searches = first("/groups_considered/searches")?;
            Ok(Row {
                target: format!("{name}: 2 groups on average at most, 4 in 99 of 100"),
                figure: format!("{mean:.2}, {p99} in {searches} searches"),
                is_met: mean <= 2.0 && p99 <= 4.0,
            })
        });
        rows.collect()
    }

    /// Rows of target (h). A run that gets ENOSPC fails, so none is left to count.
    fn commits(&self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for block in ["4k", "64k"] {
            let mut most: f64 = 0.0;
            for threads in [1, 4, 16] {
                let side = format!("16g-aged-{block}, {threads} threads");
                let on_demand = self.of(&side, "/commits/on_demand")?;
                let wall = self.of(&side, "/wall_ns")?;
                let per_second = on_demand
                    .iter()
                    .zip(wall)
                    .map(|(commits, ns)| commits / ns * 1e9);
                most = per_second.fold(most, f64::max);
            }
            rows.push(Row {
                target: format!(
                    "(h) 16g-aged-{block}: fallocate3 at 1, 4, 16 threads: no ENOSPC, at most one \
                     commit per second to free clusters"
                ),
                figure: format!("no ENOSPC; at most {most:.2} commits per second to free clusters"),
                is_met: most <= 1.0,
            });
        }
        Ok(rows)
    }

    /// The table of all sides.
    fn table(&self) -> String {
        let mut text = "\n| run | operations/s | slowest to fastest thread | Jain | groups \
                        considered, mean (p99) | extents scanned | mean free extent, before -> \
                        after |\n|---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
        for (side, rounds) in &self.0 {
            let rates = self.of(side, "/operations_per_second").unwrap_or_default();
            let ones = vec![1.0; rates.len()];
            let rate = Ratio::pairwise(&rates, &ones);
            let Some(run) = rounds.last().and_then(|runs| runs.first()) else {
                continue;
            };
            let figure = |name: &str| run.pointer(name).and_then(Value::as_f64).unwrap_or(0.0);
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "| {side} | {} | {:.0} to {:.0} | {:.3} | {:.2} ({}) | {} | {} -> {} |",
                rate.map_or_else(String::new, |rate| spread(rate, 0, "")),
                figure("/fairness/min"),
                figure("/fairness/max"),
                figure("/fairness/jain"),
                figure("/groups_considered/mean"),
                figure("/groups_considered/p99"),
                figure(SCANNED),
                figure("/free_before/mean_clusters"),
                figure("/free_after/mean_clusters"),
            );
        }
        text
    }
}

/// The names of the sides of [`SEARCHES`] begin with this.
const SEARCH_PREFIX: &str = "groups considered, ";

fn search_name(scenario: &str, arguments: &str) -> String {
    let mut words = arguments
        .split_whitespace()
        .skip_while(|word| *word != "--workload");
    let workload = words.nth(1).unwrap_or_default();
    let absent = if arguments.contains("bitmaps=absent") {
        ", bitmaps absent"
    } else {
        ""
    };
    format!("{SEARCH_PREFIX}{workload} on {scenario}{absent}")
}

const SCANNED: &str = "/extents_scanned";

impl Row {
    fn at_least(target: String, ratio: Ratio, least: f64) -> Self {
        Self {
            target,
            figure: spread(ratio, 2, ""),
            is_met: ratio.median >= least,
        }
    }
}

fn spread(ratio: Ratio, digits: usize, unit: &str) -> String {
    let Ratio { median, min, max } = ratio;
    format!("{median:.digits$}{unit} ({min:.digits$} to {max:.digits$})")
}

/// The reports of the counting build: workload, and one report for each number of cores.
struct Counted(Vec<(&'static str, Vec<Value>)>);

fn count(counting: &Path) -> Result<Counted> {
    let mut all = Vec::new();
    for (workload, rounds) in COUNTED {
        println!("counting {workload}");
        let output = Command::new(counting)
            .args(["15t", workload, rounds])
            .args(VIRTUAL_CORES.split(','))
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            bail!("counting {workload}: {}", output.status);
        }
        let text = String::from_utf8(output.stdout)?;
        let reports = text
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        all.push((workload, reports));
    }
    Ok(Counted(all))
}

impl Counted {
    fn rows(&self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (workload, reports) in &self.0 {
            let transfers = reports.iter().map(|report| report[TRANSFERS].as_f64());
            let transfers = transfers
                .collect::<Option<Vec<_>>>()
                .with_context(|| format!("counting {workload}: no {TRANSFERS}"))?;
            let (least, most) = transfers
                .iter()
                .fold((f64::MAX, 0.0_f64), |(least, most), &t| {
                    (least.min(t), most.max(t))
                });
            let figures: Vec<_> = transfers.iter().map(|t| format!("{t:.3}")).collect();
            let figure = format!("{} at {VIRTUAL_CORES} cores", figures.join(", "));
            let is_flat = most <= (least * 1.05).max(NO_TRANSFERS);
            rows.push(Row {
                target: format!(
                    "(f) {workload}: transfers per operation flat within 5 % from 2 to 192 cores"
                ),
                figure: figure.clone(),
                is_met: is_flat,
            });
            if *workload == "fallocate2" {
                rows.push(Row {
                    target: "(f) fallocate2: at most 0.1 transfers per operation".to_owned(),
                    figure,
                    is_met: most <= 0.1,
                });
            }
        }
        Ok(rows)
    }

    /// The table of the locations at which the transfers of fallocate3 happen.
    fn table(&self) -> String {
        let mut text = String::new();
        for (workload, reports) in self.0.iter().filter(|(name, _)| *name == "fallocate3") {
            let _ = write!(text, "\n| location in {workload} |");
            for report in reports {
                let _ = write!(text, " {} cores |", report["cores"]);
            }
            let _ = writeln!(text, "\n|---|{}", "---:|".repeat(reports.len()));
            let mut locations: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            for (nr, report) in reports.iter().enumerate() {
                let operations = report["operations"].as_f64().unwrap_or(1.0);
                for row in report["locations"].as_array().into_iter().flatten() {
                    let name = row["location"].as_str().unwrap_or_default().to_owned();
                    let figures = locations
                        .entry(name)
                        .or_insert_with(|| vec![0.0; reports.len()]);
                    figures[nr] = row["transfers"].as_f64().unwrap_or(0.0) / operations;
                }
            }
            locations.retain(|_, figures| figures.iter().any(|&figure| figure > 0.0));
            for (name, figures) in locations {
                let figures: Vec<_> = figures
                    .iter()
                    .map(|figure| format!("{figure:.3}"))
                    .collect();
                let _ = writeln!(text, "| `{name}` | {} |", figures.join(" | "));
            }
        }
        text
    }
}

const TRANSFERS: &str = "transfers_per_operation";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn figures(rates: &[(&str, &[f64])]) -> Figures {
        let run = |&rate: &f64| vec![json!({ "operations_per_second": rate })];
        let side =
            |(name, rates): &(&str, &[f64])| ((*name).to_owned(), rates.iter().map(run).collect());
        Figures(rates.iter().map(side).collect())
    }

    #[test]
    fn ratios_are_taken_round_by_round_and_processes_add_up() {
        let mut figures = figures(&[
            ("ours", &[10.0, 30.0, 9.0]),
            ("theirs", &[10.0, 30.0, 10.0]),
        ]);
        let ratio = figures.speed("ours", "theirs").unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (1.0, 0.9, 1.0));
        for runs in figures.0.get_mut("theirs").unwrap() {
            runs.push(runs[0].clone());
        }
        assert_eq!(figures.speed("ours", "theirs").unwrap().median, 0.5);
        assert!(
            figures
                .of("no such side", "/operations_per_second")
                .is_err()
        );
        assert!(figures.of("ours", "/no/such/figure").is_err());
    }

    #[test]
    fn targets_of_transfers_can_be_missed() {
        let report = |transfers: f64| json!({ "transfers_per_operation": transfers });
        let counted =
            |figures: [f64; 2]| Counted(vec![("fallocate2", figures.map(report).to_vec())]);
        let met = |figures| {
            let rows = counted(figures).rows().unwrap();
            rows.iter().map(|row| row.is_met).collect::<Vec<_>>()
        };
        assert_eq!(met([0.0, 0.0005]), [true, true]);
        assert_eq!(met([0.0, 0.01]), [false, true]);
        assert_eq!(met([0.05, 0.05]), [true, true]);
        assert_eq!(met([0.05, 0.06]), [false, true]);
        assert_eq!(met([0.2, 0.2]), [true, false]);
    }

    #[test]
    fn targets_of_searches_and_locks_can_be_missed() {
        let searches = |mean: f64, p99: u64| {
            let considered = json!({ "mean": mean, "p99": p99, "searches": 10 });
            let run = vec![json!({ "groups_considered": considered })];
            let sides = [(search_name("15t", ""), vec![run])];
            let rows = Figures(sides.into()).searches().unwrap();
            rows.iter().map(|row| row.is_met).collect::<Vec<_>>()
        };
        assert_eq!(searches(1.9, 4), [true]);
        assert_eq!(searches(2.1, 4), [false]);
        assert_eq!(searches(1.0, 5), [false]);
        let locks = |nanoseconds: [u64; 2]| {
            let rounds = nanoseconds.map(|ns| vec![json!({ "lock_held_p99_ns": ns })]);
            let side = |(name, _)| (format!("locks, {name}"), rounds.to_vec());
            let rows = Figures(LOCK_HOLDS.map(side).into()).locks().unwrap();
            rows.iter().map(|row| row.is_met).collect::<Vec<_>>()
        };
        assert_eq!(locks([1024, 4096]), [true, true]);
        assert_eq!(locks([8192, 4096]), [false, false]);
    }

    #[test]
    fn the_names_of_the_sides_are_unique() {
        let sides = sides();
        let names: std::collections::BTreeSet<_> = sides.iter().map(|side| &side.name).collect();
        assert_eq!(names.len(), sides.len());
    }
}
