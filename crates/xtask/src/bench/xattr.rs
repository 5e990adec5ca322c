//! **Purpose.** Measures how fast extended attributes are set that do not fit into inodes: by
//! fourscore in process, and by the kernel's ext4 on a loop device, each with the sharing of
//! attribute blocks and without; and compares the figures with their targets.
//!
//! **Model.** `fourscore bench xattr` runs the same workload on all sides and measures its own
//! time, which begins when all files exist and are durable, and ends with a sync of the whole file
//! system. Each run has a new file system in the same file on tmpfs, whose inodes have no space for
//! attributes. Figures whose ratio is promised are taken in the same round. The mounts need
//! root.
//!
//! A run that sets attributes does so twice, with the same files and in the same process and mount,
//! and the second time counts. The first time includes clearing the memory that is touched first,
//! and on a virtual machine the time in which its host supplies that memory, which can be several
//! times that of the work.
//!
//! | module | responsibility |
//! |---|---|
//! | `promises` | the targets |
//! | `transfers` | lines that move between cores |
//! | `trees` | what trees of several kinds share, and whether the automatic bypass suits them |

mod promises;
mod transfers;
mod trees;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fourscore_lab::attribute_cache::{self, PUBLISHED_AIM7};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    Comparison, ComparisonReport, MachineFacts, MonotonicClock, Ratio, Side, ThreadCount, Work,
};
use serde_json::Value;

use super::Options;
use super::folder::{Folder, run_quietly};
use crate::workspace::Workspace;

const IMAGE_BYTES: u64 = 4 << 30;
/// The sizes of inodes: without space for attributes, and as mke2fs makes them.
const INODE_BYTES: [&str; 2] = ["128", "256"];
/// Files of all threads together, unless `--files` is given.
const FILES: u32 = 20_000;
/// Steps of the mix for that many files: each has four or six operations.
const FILES_PER_MIX_STEP: u32 = 4;
/// Steps for each file in a cache alone, which is much faster than a file system.
const CACHE_STEPS_PER_FILE: u32 = 10;
/// Many threads on few cores.
const MANY_THREADS: usize = 64;

/// A program, and whether it shares blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contender {
    program: Program,
    sharing: Sharing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Kernel,
    Fourscore,
    /// A cache of attribute blocks alone.
    Cache(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// As mounted by default. By fourscore: where lookups pay.
    On,
    /// By fourscore with `mbcache`: without the bypass.
    Always,
    /// With `no_mbcache`.
    Off,
}

const KERNEL: Contender = Contender::of(Program::Kernel, Sharing::On);
const KERNEL_OFF: Contender = Contender::of(Program::Kernel, Sharing::Off);
const OURS: Contender = Contender::of(Program::Fourscore, Sharing::On);
const OURS_ALWAYS: Contender = Contender::of(Program::Fourscore, Sharing::Always);
const OURS_OFF: Contender = Contender::of(Program::Fourscore, Sharing::Off);

impl Contender {
    const fn of(program: Program, sharing: Sharing) -> Self {
        Self { program, sharing }
    }

    fn name(self) -> &'static str {
        match (self.program, self.sharing) {
            (Program::Kernel, Sharing::On | Sharing::Always) => "kernel ext4 on a loop device",
            (Program::Kernel, Sharing::Off) => "kernel ext4 on a loop device, no_mbcache",
            (Program::Fourscore, Sharing::On) => "fourscore in process",
            (Program::Fourscore, Sharing::Always) => "fourscore in process, mbcache",
            (Program::Fourscore, Sharing::Off) => "fourscore in process, no_mbcache",
            (Program::Cache(name), _) => name,
        }
    }

    fn options(self) -> &'static str {
        match self.sharing {
            Sharing::On => "",
            Sharing::Always => "mbcache",
            Sharing::Off => "no_mbcache",
        }
    }
}

/// A workload of `fourscore bench xattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    workload: &'static str,
    values: &'static str,
    /// The size of the image's inodes.
    inode_bytes: &'static str,
}

const fn load(workload: &'static str, values: &'static str) -> Load {
    Load {
        workload,
        values,
        inode_bytes: "128",
    }
}

const fn set(values: &'static str) -> Load {
    load("set", values)
}

/// Files are made with the attributes of those in the image [`Bench::tree`].
const fn like_tree(inode_bytes: &'static str) -> Load {
    Load {
        inode_bytes,
        ..load("like", "")
    }
}

const SAME: Load = set("same");
const DISTINCT: Load = set("distinct");
const TEN: Load = set("10");
const THOUSAND: Load = set("1000");

const fn mix(values: &'static str) -> Load {
    load("mix", values)
}

const MIX: Load = mix("1000");
const DISTINCT_MIX: Load = mix("distinct");

/// Loads that all sides run.
const LOADS: &[(&str, Load)] = &[
    ("identical values", SAME),
    ("distinct values", DISTINCT),
    ("10 values, which reach the limit of users", TEN),
    ("1000 values", THOUSAND),
    ("mix of creating, changing and removing, 1000 values", MIX),
    (
        "mix of creating, changing and removing, distinct values",
        DISTINCT_MIX,
    ),
];

/// A run: what and by which side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    contender: Contender,
    load: Load,
    threads: usize,
}

const fn run_of(contender: Contender, load: Load, threads: usize) -> Run {
    Run {
        contender,
        load,
        threads,
    }
}

/// Figures of sides that take turns.
struct Measured {
    report: ComparisonReport,
    /// Operations per second, in the order of the rounds, those to warm up first.
    rates: Vec<(Run, f64)>,
}

impl Measured {
    fn rates(&self, run: Run) -> Vec<f64> {
        let all = self.rates.iter().filter(|(of, _)| *of == run);
        let all: Vec<f64> = all.map(|&(_, rate)| rate).collect();
        let warm_up = all.len().saturating_sub(self.report.rounds as usize);
        all.into_iter().skip(warm_up).collect()
    }

    /// How many times as fast one run is as another one.
    fn ratio(&self, run: Run, beside: Run) -> Option<Ratio> {
        Ratio::pairwise(&self.rates(run), &self.rates(beside))
    }
}

/// Measures everything, and returns the record.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<String> {
    let files = options.files.unwrap_or(FILES);
    let bench = Bench::new(super::build_command(workspace)?, files)?;
    let machine = MachineFacts::collect()
        .with_option("rounds", &options.rounds)
        .with_option("files", &files);
    let mut text = format!(
        "{machine}\n\nA value of 200 bytes on each of {files} files; images of 4 GiB with inodes \
         of 128 bytes; each thread in a directory of its own; the time includes a sync.\n"
    );
    let mut all = Vec::new();
    for &(title, load) in LOADS {
        all.push(bench.beside_the_kernel(title, load, options)?);
    }
    let measured = Figures {
        beside_the_kernel: all,
        bypass: bench.bypass(options)?,
        few: bench.few_values(options)?,
        same: bench.by_threads("identical values by threads", SAME, options)?,
        distinct: bench.by_threads("distinct values by threads", DISTINCT, options)?,
    };
    for measured in measured.all() {
        // Writing into a String cannot fail.
        let _ = write!(text, "\n{}", measured.report.to_markdown());
    }
    text.push_str(&bench.caches_alone(options)?);
    let transfers = transfers::count(workspace)?;
    text.push_str(&transfers.to_markdown());
    let trees = trees::measure(&bench, options)?;
    text.push_str(trees.to_markdown());
    text.push_str("\n## Promises\n\n| promise | figure | met |\n|---|---|---|\n");
    let mut promises = measured.promises();
    promises.extend([transfers.promise(), trees.promise()]);
    for promise in promises {
        text.push_str(&promise.to_markdown());
    }
    Ok(text)
}

/// The speeds that are held against promises.
struct Figures {
    /// In the order of [`LOADS`].
    beside_the_kernel: Vec<Measured>,
    bypass: Measured,
    few: Measured,
    same: Measured,
    distinct: Measured,
}

impl Figures {
    fn all(&self) -> impl Iterator<Item = &Measured> {
        let others = [&self.bypass, &self.few, &self.same, &self.distinct];
        self.beside_the_kernel.iter().chain(others)
    }
}

/// The folder on tmpfs with the image and the mount.
struct Bench {
    program: PathBuf,
    folder: Folder,
    files: u32,
}

impl Bench {
    fn new(program: PathBuf, files: u32) -> Result<Self> {
        let folder = Folder::on_tmpfs()?;
        let bench = Self {
            program,
            folder,
            files,
        };
        fs::create_dir_all(bench.path("mount"))?;
        File::create(bench.path("image"))?.set_len(IMAGE_BYTES)?;
        Ok(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes the file system of a run. The file keeps its pages: a new page of tmpfs can cost more
    /// than what is measured.
    fn make(&self, inode_bytes: &str) -> Result<()> {
        // The files, the directories of many threads, and a third of inodes that stay free.
        let inodes = self.files.saturating_mul(2).max(16_384).to_string();
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-E", "nodiscard"]);
        mke2fs.args(["-I", inode_bytes, "-N", &inodes]);
        run_quietly(mke2fs.arg(self.path("image")))
    }

    /// The image of a tree whose attributes are used.
    fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    /// All sides with one and two threads.
    fn beside_the_kernel(&self, title: &str, load: Load, options: &Options) -> Result<Measured> {
        let threads = [ThreadCount::ONE, ThreadCount::new(2)];
        let sides = [KERNEL, KERNEL_OFF, OURS, OURS_OFF].map(|contender| {
            let name = contender.name().to_owned();
            (name, run_of(contender, load, 0))
        });
        self.compare(title, &threads, &sides, options)
    }

    /// Distinct values with the bypass, without lookups, and with nothing else.
    fn bypass(&self, options: &Options) -> Result<Measured> {
        let threads = [ThreadCount::ONE, ThreadCount::new(2)];
        let sides = [OURS_OFF, OURS_ALWAYS, OURS].map(|contender| {
            let name = contender.name().to_owned();
            (name, run_of(contender, DISTINCT, 0))
        });
        let title = "distinct values, with and without lookups";
        self.compare_for(close(options), title, &threads, &sides)
    }

    /// Values with more users than a block can count, and values with fewer.
    fn few_values(&self, options: &Options) -> Result<Measured> {
        let threads = [ThreadCount::ONE, ThreadCount::new(2)];
        let sides = [THOUSAND, TEN].map(|load| {
            let name = format!("{}, {} values", OURS.name(), load.values);
            (name, run_of(OURS, load, 0))
        });
        self.compare("1000 and 10 values", &threads, &sides, options)
    }

    /// The caches alone, with the figures that were published of the work of 2013.
    fn caches_alone(&self, options: &Options) -> Result<String> {
        let mut text = String::from(
            "\n## The cache alone\n\nFiles take blocks from a cache in memory and give them back, \
             as in the mix above. `fourscore` is our sharing cache with its automatic bypass, \
             `unshared` is none. `one-lock` is the cache of ext4 before 2013; the work that gave it \
             several locks made loads of aim7 on 90 cores faster by ",
        );
        let published = PUBLISHED_AIM7.map(|(load, percent)| format!("{percent} % ({load})"));
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{}.", published.join(", "));
        let threads = [1, 2, MANY_THREADS].map(ThreadCount::new);
        let loads = [
            ("mix in the cache alone, identical values", mix("same")),
            ("mix in the cache alone, 1000 values", MIX),
            ("mix in the cache alone, distinct values", DISTINCT_MIX),
        ];
        for (title, load) in loads {
            let sides = attribute_cache::NAMES.map(|name| {
                let contender = Contender::of(Program::Cache(name), Sharing::On);
                (name.to_owned(), run_of(contender, load, 0))
            });
            let measured = self.compare(title, &threads, &sides, options)?;
            let _ = write!(text, "\n{}", measured.report.to_markdown());
        }
        Ok(text)
    }

    /// Numbers of threads in turns. The column `threads` of the table has no meaning.
    fn by_threads(&self, title: &str, load: Load, options: &Options) -> Result<Measured> {
        let sides = [1, 2, MANY_THREADS].map(|threads| {
            let name = format!("{}, threads: {threads}", OURS.name());
            (name, run_of(OURS, load, threads))
        });
        self.compare(title, &[ThreadCount::ONE], &sides, options)
    }

    /// Runs sides in turns; one whose number of threads is 0 has that of the comparison.
    fn compare(
        &self,
        title: &str,
        threads: &[ThreadCount],
        sides: &[(String, Run)],
        options: &Options,
    ) -> Result<Measured> {
        self.compare_for(Rounds(options.rounds), title, threads, sides)
    }

    /// As [`Bench::compare`], with another number of rounds.
    fn compare_for(
        &self,
        rounds: Rounds,
        title: &str,
        threads: &[ThreadCount],
        sides: &[(String, Run)],
    ) -> Result<Measured> {
        println!("{title}");
        let rates = RefCell::new(Vec::new());
        let mut comparison = Comparison::new(title).rounds(rounds).threads(threads);
        for (name, side) in sides {
            let prepare = move || Ok(self.make(side.load.inode_bytes)?);
            let rates = &rates;
            let action = move |threads: ThreadCount| {
                let mut run = *side;
                if run.threads == 0 {
                    run.threads = threads.get();
                }
                let work = self.run(run)?;
                let seconds = work.wall.unwrap_or_default().as_secs_f64().max(1e-9);
                let rate = work.operations as f64 / seconds;
                rates.borrow_mut().push((run, rate));
                Ok(work)
            };
            let closure = Side::closure(name.as_str(), action);
            comparison = comparison.side(match side.contender.program {
                Program::Cache(_) => closure,
                Program::Kernel | Program::Fourscore => closure.prepared_by(prepare),
            });
        }
        let report = comparison.run(&MonotonicClock::default())?;
        Ok(Measured {
            report,
            rates: rates.into_inner(),
        })
    }

    fn run(&self, run: Run) -> Result<Work> {
        let (image, mount) = (self.path("image"), self.path("mount"));
        let files = match (run.contender.program, run.load.workload) {
            (Program::Cache(_), _) => self.files.saturating_mul(CACHE_STEPS_PER_FILE),
            (_, "mix") => self.files / FILES_PER_MIX_STEP,
            _ => self.files,
        };
        let mut command = Command::new(&self.program);
        command.args(["bench", "xattr", "--json"]);
        match run.load.workload {
            "like" => command.arg("--like").arg(self.tree()),
            workload => command.args(["--workload", workload, "--values", run.load.values]),
        };
        command.args(["--files", &files.to_string()]);
        let threads = run.threads.to_string();
        command.args(["--threads", &threads]);
        if matches!(run.contender.program, Program::Fourscore | Program::Kernel)
            && run.load.workload == "set"
        {
            command.args(["--threads", &threads]);
        }
        let options = run.contender.options();
        match run.contender.program {
            Program::Cache(name) => return work_of(command.args(["--cache", name])),
            Program::Fourscore => return work_of(command.arg(image).args(["-o", options])),
            Program::Kernel => {}
        }
        let options = format!("loop,noinit_itable,{options}");
        let options = options.trim_end_matches(',');
        run_quietly(
            Command::new("mount")
                .args(["-t", "ext4", "-o", options])
                .args([&image, &mount]),
        )
        .context("the comparison with the kernel needs root and loop devices")?;
        let done = work_of(command.arg("--dir").arg(&mount));
        run_quietly(Command::new("umount").arg(&mount))?;
        done
    }
}

/// The rounds of a comparison whose sides may differ by a few percent only.
fn close(options: &Options) -> Rounds {
    Rounds(options.rounds.saturating_mul(2))
}

impl Drop for Bench {
    fn drop(&mut self) {
        // It is mounted only if a run has failed. The folder goes after this.
        let _ = Command::new("umount").arg(self.path("mount")).output();
    }
}

/// Runs the command, and returns the work of the last run in its report.
fn work_of(command: &mut Command) -> Result<Work> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let last = report["runs"].as_array().and_then(|runs| runs.last());
    let run = last.unwrap_or(&Value::Null);
    let operations = run["operations"].as_u64();
    let seconds = run["seconds"].as_f64();
    let (operations, seconds) = operations
        .zip(seconds)
        .with_context(|| format!("{command:?}: the report has no operations or no time"))?;
    Ok(Work {
        operations,
        bytes: 0,
        wall: Some(Duration::from_secs_f64(seconds)),
    })
}
