//! **Purpose.** Fsync in memory, in process: on devices whose flushes take a time, beside a thread
//! whose changes no fast commit expresses, and behind many pending changes.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use fourscore_lab::Ratio;

use super::ran::{Ran, median, ran};
use super::{Bench, Feature, Model, Promise, in_words};

/// Flush latencies in microseconds, and the appends of one thread alone.
const LATENCIES: [(u32, u32); 4] = [(0, 20_000), (20, 5_000), (100, 2_000), (1_000, 300)];
const THREADS: [u32; 3] = [1, 2, 64];
/// The latency at which other threads interfere.
const INTERFERENCE_US: u32 = 100;
const INTERFERENCE_APPENDS: u32 = 2_000;
/// Pending changes: files in each of 64 directories.
const PENDING: [u32; 4] = [1, 16, 256, 4096];
/// Most files in each of 64 directories for which the quadratic reference runs.
const MAX_QUADRATIC: u32 = 256;
/// The most processor time of a record with 262 144 pending files, by that with 64.
const MAX_GROWTH: f64 = 1.2;
/// The most time of an fsync beside the other thread, by that of one alone.
const MAX_INTERFERENCE: f64 = 1.5;

/// All runs, round by round.
pub(super) struct Memory {
    latencies: Vec<Vec<Ran>>,
    interference: Vec<Vec<Ran>>,
    pending: Vec<Vec<Ran>>,
}

impl Memory {
    /// Runs everything once in each round.
    pub(super) fn measure(bench: &Bench, rounds: u32) -> Result<Self> {
        let pending = bench.path("pending");
        // The changes of one core may take as many bytes in memory as the area has.
        let journal = ["-J", "size=4096,fast_commit_size=131072"];
        bench.make(&pending, Model::ManyInodes, Feature::FastCommit, &journal)?;
        let runs = Runs { bench, pending };
        let mut all = Self {
            latencies: Vec::new(),
            interference: Vec::new(),
            pending: Vec::new(),
        };
        for round in 0..rounds {
            println!("in memory, round {}", round + 1);
            all.latencies.push(runs.latencies()?);
            all.interference.push(runs.interference()?);
            all.pending.push(runs.pending()?);
        }
        Ok(all)
    }

    /// The tables.
    pub(super) fn to_markdown(&self) -> String {
        let mut text = String::from(
            "\n### append 4 KiB and fsync, by the latency of a flush\n\n\
             Each thread appends to its own file. A flush and a write with FUA take the latency \
             each; what they really took stands behind it.\n\n\
             | flush | threads | fsync/s, fast_commit | fsync/s, without | times | \
             fsyncs per flush, fast_commit | without |\n|---|---:|---:|---:|---:|---:|---:|\n",
        );
        for (nr, (micros, threads)) in latency_cases().enumerate() {
            let fast = Column(&self.latencies, 2 * nr);
            let full = Column(&self.latencies, 2 * nr + 1);
            let per_flush = |column: &Column<'_>| {
                column.median(|run| run.fsyncs / (run.flushes as f64).max(1.0))
            };
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "| {micros} us ({:.0} us) | {threads} | {:.0} | {:.0} | {} | {:.2} | {:.2} |",
                full.median(|run| run.flush_us),
                fast.median(|run| run.fsyncs_per_s),
                full.median(|run| run.fsyncs_per_s),
                fast.beside(&full, |run| run.fsyncs_per_s)
                    .map_or("-".to_owned(), in_words),
                per_flush(&fast),
                per_flush(&full),
            );
        }
        text.push_str(&self.interference_table());
        text.push_str(&self.pending_table());
        text
    }

    fn interference_table(&self) -> String {
        let mut text = format!(
            "\n### append 4 KiB and fsync beside a thread that sets an extended attribute\n\n\
             A flush takes {INTERFERENCE_US} us. The other thread sets an attribute of its own file \
             without a pause, and never calls fsync.\n\n\
             | image | other thread | median fsync | 99 % | times as long as alone | fast commits \
             | full commits | attributes set |\n|---|---|---:|---:|---:|---:|---:|---:|\n"
        );
        for (nr, feature) in Feature::ALL.into_iter().enumerate() {
            let alone = Column(&self.interference, 2 * nr);
            for (other, nr) in [("none", 2 * nr), ("sets attributes", 2 * nr + 1)] {
                let column = Column(&self.interference, nr);
                // Writing into a String cannot fail.
                let _ = writeln!(
                    text,
                    "| {} | {other} | {:.1} us | {:.1} us | {} | {:.0} | {:.0} | {:.0} |",
                    feature.name(),
                    column.median(|run| run.p50_us),
                    column.median(|run| run.p99_us),
                    column
                        .beside(&alone, |run| run.p50_us)
                        .map_or("-".to_owned(), in_words),
                    column.median(|run| run.fast_commits as f64),
                    column.median(|run| run.full_commits as f64),
                    column.median(|run| run.attributes_set as f64),
                );
            }
        }
        text
    }

    fn pending_table(&self) -> String {
        let mut text = String::from(
            "\n### one fsync behind many new files\n\n\
             Empty files in 64 directories, where earlier ones were removed; a fast-commit area of \
             128 MiB, a log of 4 GiB; flushes cost nothing. The files are created, made durable by \
             one fsync and removed, several times in one process: medians of the fsyncs. The \
             reference makes the records by a walk over all inodes for each name, as ext4 did \
             before Linux 5.18.\n\n\
             | files | records | time of the fsync | processor time | for each record | quadratic \
             reference, for each record | in full |\n|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for (nr, files) in PENDING.into_iter().enumerate() {
            let column = Column(&self.pending, nr);
            let quadratic = match files {
                0..=MAX_QUADRATIC => {
                    let ns = column.median(|run| run.quadratic_record_ns.unwrap_or(f64::NAN));
                    format!("{ns:.0} ns")
                }
                _ => "-".to_owned(),
            };
            // No records: a full commit was made.
            let each = match column.median(cpu_ns_per_record) {
                ns if ns.is_nan() => "-".to_owned(),
                ns => format!("{ns:.0} ns"),
            };
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "| {} | {:.0} | {:.1} us | {:.1} us | {each} | {quadratic} | {:.0} |",
                files * 64,
                column.median(records),
                column.median(|run| run.p50_us),
                column.median(|run| run.cpu_us),
                column.median(|run| run.ineligible as f64),
            );
        }
        text
    }

    /// The figures that are held against promises.
    pub(super) fn promises(&self) -> Vec<Promise> {
        let latencies: Vec<Ratio> = latency_cases()
            .enumerate()
            .filter_map(|(nr, _)| {
                let full = Column(&self.latencies, 2 * nr + 1);
                Column(&self.latencies, 2 * nr).beside(&full, |run| run.fsyncs_per_s)
            })
            .collect();
        let least = latencies
            .into_iter()
            .min_by(|a, b| a.median.total_cmp(&b.median));
        let interference =
            Column(&self.interference, 1).beside(&Column(&self.interference, 0), |run| run.p50_us);
        let growth = Column(&self.pending, 3).beside(&Column(&self.pending, 0), cpu_ns_per_record);
        let promise = |what: &str, ratio: Option<Ratio>, is_met: fn(f64) -> bool| Promise {
            what: what.to_owned(),
            figure: ratio.map_or("-".to_owned(), in_words),
            met: ratio.is_some_and(|ratio| is_met(ratio.median)),
        };
        vec![
            promise(
                "append and fsync at each latency and number of threads: with fast commits at least \
                 1 times as many as without (the least)",
                least,
                |times| times >= 1.0,
            ),
            promise(
                "an fsync beside a thread that sets attributes: at most 1.5 times as long as alone",
                interference,
                |times| times <= MAX_INTERFERENCE,
            ),
            promise(
                "processor time of a record of 262 144 pending files: at most 1.2 times that of one of 64",
                growth,
                |times| times <= MAX_GROWTH,
            ),
        ]
    }
}

/// Records of a fast commit.
fn records(run: &Ran) -> f64 {
    run.records as f64 / (run.fast_commits as f64).max(1.0)
}

/// The processor time of an fsync for each record; not a number if there are none.
fn cpu_ns_per_record(run: &Ran) -> f64 {
    match run.records {
        0 => f64::NAN,
        _ => run.cpu_us * 1e3 / records(run),
    }
}

/// Latencies and threads in the order of the table.
fn latency_cases() -> impl Iterator<Item = (u32, u32)> {
    let latencies = LATENCIES.into_iter();
    latencies.flat_map(|(micros, _)| THREADS.map(|threads| (micros, threads)))
}

/// The runs of one command in all rounds.
struct Column<'m>(&'m [Vec<Ran>], usize);

impl Column<'_> {
    fn all(&self, figure: impl Fn(&Ran) -> f64) -> Vec<f64> {
        let rounds = self.0.iter().filter_map(|round| round.get(self.1));
        rounds.map(figure).collect()
    }

    fn median(&self, figure: impl Fn(&Ran) -> f64) -> f64 {
        median(self.all(figure).into_iter())
    }

    /// A figure by that of another column, round by round.
    fn beside(&self, other: &Self, figure: fn(&Ran) -> f64) -> Option<Ratio> {
        Ratio::pairwise(&self.all(figure), &other.all(figure))
    }
}

/// Runs the command.
struct Runs<'b> {
    bench: &'b Bench,
    pending: PathBuf,
}

impl Runs<'_> {
    fn command(&self, flush_us: u32) -> Command {
        let mut command = Command::new(&self.bench.program);
        command.args(["bench", "fsync", "--json", "--in-memory", "--flush-us"]);
        command.arg(flush_us.to_string());
        command
    }

    /// Runs a workload on an image with and without fast commits, a run on each.
    fn on_both(&self, flush_us: u32, arguments: &[&str]) -> Result<Vec<Ran>> {
        let on = |feature| {
            let image = self.bench.model(Model::Usual, feature);
            ran(self.command(flush_us).args(arguments).arg(image))
        };
        Feature::ALL.into_iter().map(on).collect()
    }

    /// Two runs for each latency and number of threads: with fast commits, and without.
    fn latencies(&self) -> Result<Vec<Ran>> {
        let mut runs = Vec::new();
        for (micros, appends) in LATENCIES {
            for threads in THREADS {
                // Many threads have a flush in common.
                let files = (appends / threads.min(20)).max(300).to_string();
                let threads = threads.to_string();
                let arguments = ["--threads", &threads, "--files", &files];
                runs.extend(self.on_both(micros, &arguments)?);
            }
        }
        Ok(runs)
    }

    /// With fast commits alone and beside the other thread; the same without.
    fn interference(&self) -> Result<Vec<Ran>> {
        let appends = INTERFERENCE_APPENDS.to_string();
        let on = |workload| {
            let arguments = ["--files", &appends, "--workload", workload];
            self.on_both(INTERFERENCE_US, &arguments)
        };
        let (alone, beside) = (on("append")?, on("append-beside")?);
        let pairs = alone.into_iter().zip(beside);
        Ok(pairs.flat_map(|(alone, beside)| [alone, beside]).collect())
    }

    fn pending(&self) -> Result<Vec<Ran>> {
        let of = |files: u32| {
            let mut command = self.command(0);
            // No periodic commit comes in between.
            command.args(["-o", "commit=300", "--workload", "pending"]);
            command.args(["--directories", "64", "--files", &files.to_string()]);
            if files <= MAX_QUADRATIC {
                command.arg("--quadratic");
            }
            ran(command.arg(&self.pending))
        };
        PENDING.into_iter().map(of).collect()
    }
}
