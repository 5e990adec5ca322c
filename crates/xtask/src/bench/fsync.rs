//! **Purpose.** Measures how fast changes are made durable by fsync: by fourscore in process, and
//! by the kernel's ext4 on a loop device, each with fast commits and without; and compares the
//! figures with their targets.
//!
//! **Model.** `fourscore bench fsync` runs the same workload on all sides and measures its own
//! time. Each run has a new copy of an image, a sparse file on tmpfs, where a flush costs nothing:
//! what is measured is the processor time of an fsync. What fewer flushes are worth is measured in
//! memory ([`memory`]). The mounts need root.
//!
//! | module | responsibility |
//! |---|---|
//! | [`memory`] | flushes that take a time, other threads, many pending changes |
//! | `ran` | runs the command and reads its report |

mod memory;
mod ran;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    Comparison, ComparisonReport, MachineFacts, MonotonicClock, Ratio, Side, ThreadCount, Work,
};

use super::Options;
use super::folder::{Folder, run_quietly};
use crate::workspace::Workspace;
use memory::Memory;
use ran::{Ran, median, ran};

/// Rounds of a workload of a million files at most: each takes a minute.
const MAX_LONG_ROUNDS: u32 = 3;

/// A workload of `fourscore bench fsync`.
struct Case {
    title: &'static str,
    /// Its name in promises.
    promised: &'static str,
    workload: &'static str,
    directories: Directories,
    files_per_directory: u32,
    model: Model,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Directories {
    /// One for each thread.
    OfThreads,
    /// 64, as in the table of the commit that made the kernel's fast commits linear.
    Many,
}

impl Directories {
    fn count(self) -> u32 {
        match self {
            Self::OfThreads => 1,
            Self::Many => 64,
        }
    }
}

/// How an image is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Model {
    /// 8 GiB with mke2fs's defaults.
    Usual,
    /// 16 GiB with inodes for a million files.
    ManyInodes,
}

const CASES: &[Case] = &[
    Case {
        title: "append 4 KiB and fsync, 5000 times for each thread",
        promised: "append 4 KiB and fsync",
        workload: "append",
        directories: Directories::OfThreads,
        files_per_directory: 5000,
        model: Model::Usual,
    },
    Case {
        title: "file of 4 KiB and fsync (fs_mark -S1), 3000 for each thread",
        promised: "file of 4 KiB and fsync",
        workload: "each",
        directories: Directories::OfThreads,
        files_per_directory: 3000,
        model: Model::Usual,
    },
    Case {
        title: "file of 16 KiB and fsync (fs_mark -S1), 3000 for each thread",
        promised: "file of 16 KiB and fsync",
        workload: "each-16k",
        directories: Directories::OfThreads,
        files_per_directory: 3000,
        model: Model::Usual,
    },
    Case {
        title: "files of 4 KiB, then fsync of each (fs_mark -S5), 10000 for each thread",
        promised: "files of 4 KiB, then fsync of each",
        workload: "after",
        directories: Directories::OfThreads,
        files_per_directory: 10_000,
        model: Model::Usual,
    },
    Case {
        title: "(6,6): 64 empty files in each of 64 directories, then fsync of each",
        promised: "(6,6): 4096 empty files, then fsync of each",
        workload: "after-empty",
        directories: Directories::Many,
        files_per_directory: 64,
        model: Model::Usual,
    },
    Case {
        title: "(6,14): 16384 empty files in each of 64 directories, then fsync of each",
        promised: "(6,14): a million empty files, then fsync of each",
        workload: "after-empty",
        directories: Directories::Many,
        files_per_directory: 16_384,
        model: Model::ManyInodes,
    },
];

/// A program and whether the image has the feature `fast_commit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contender {
    program: Program,
    feature: Feature,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Kernel,
    Fourscore,
}

/// Whether an image has the feature `fast_commit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    FastCommit,
    None,
}

impl Feature {
    const ALL: [Self; 2] = [Self::FastCommit, Self::None];

    fn name(self) -> &'static str {
        match self {
            Self::FastCommit => "fast_commit",
            Self::None => "without",
        }
    }
}

impl Contender {
    /// The sides of a comparison, the reference first.
    const ALL: [Self; 4] = [
        Self::of(Program::Kernel, Feature::FastCommit),
        Self::of(Program::Kernel, Feature::None),
        Self::of(Program::Fourscore, Feature::FastCommit),
        Self::of(Program::Fourscore, Feature::None),
    ];

    const fn of(program: Program, feature: Feature) -> Self {
        Self { program, feature }
    }

    fn name(self) -> String {
        let program = match self.program {
            Program::Kernel => "kernel ext4 on a loop device",
            Program::Fourscore => "fourscore in process",
        };
        format!("{program}, {}", self.feature.name())
    }
}

/// A promise, the figures that are held against it, and whether they keep it.
struct Promise {
    what: String,
    figure: String,
    met: bool,
}

/// Measures everything, and returns the record.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<String> {
    let bench = Bench::new(super::build_command(workspace)?)?;
    let machine = MachineFacts::collect().with_option("rounds", &options.rounds);
    let mut promises = Vec::new();
    let mut text = format!(
        "{machine}\n\n## On tmpfs, where flushes are free\n\n\
         Images of 8 GiB (of the last comparison: 16 GiB with 1.2 million inodes) of mke2fs's \
         defaults, with the feature `fast_commit` and without it; each thread in directories of \
         its own.\n"
    );
    for case in CASES {
        println!("{}", case.title);
        let compared = bench.compare(case, options)?;
        // Writing into a String cannot fail.
        let _ = write!(text, "\n{}", compared.report.to_markdown());
        let _ = write!(text, "\n{}", compared.details());
        promises.extend(compared.promises(case));
    }
    let memory = Memory::measure(&bench, options.rounds)?;
    text.push_str("\n## In memory, in process\n");
    text.push_str(&memory.to_markdown());
    promises.extend(memory.promises());
    text.push_str("\n## Promises\n\n| promise | figure | met |\n|---|---|---|\n");
    for Promise { what, figure, met } in promises {
        let met = if met { "yes" } else { "**no**" };
        let _ = writeln!(text, "| {what} | {figure} | {met} |");
    }
    Ok(text)
}

/// The folder on tmpfs with the images and the mount.
struct Bench {
    program: PathBuf,
    folder: Folder,
}

impl Bench {
    fn new(program: PathBuf) -> Result<Self> {
        let folder = Folder::on_tmpfs()?;
        let bench = Self { program, folder };
        fs::create_dir_all(bench.path("mount"))?;
        for feature in Feature::ALL {
            for model in [Model::Usual, Model::ManyInodes] {
                bench.make(&bench.model(model, feature), model, feature, &[])?;
            }
        }
        Ok(bench)
    }

    /// Makes an image; the options of mke2fs follow those of the model.
    fn make(&self, path: &Path, model: Model, feature: Feature, more: &[&str]) -> Result<()> {
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4"]);
        let bytes: u64 = match model {
            Model::Usual => 8 << 30,
            Model::ManyInodes => {
                mke2fs.args(["-N", "1200000"]);
                16 << 30
            }
        };
        if feature == Feature::FastCommit {
            mke2fs.args(["-O", "fast_commit"]);
        }
        File::create(path)?.set_len(bytes)?;
        run_quietly(mke2fs.args(more).arg(path))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn model(&self, model: Model, feature: Feature) -> PathBuf {
        let size = match model {
            Model::Usual => "usual",
            Model::ManyInodes => "many-inodes",
        };
        self.path(&format!("{size}-{}", feature.name()))
    }

    fn compare(&self, case: &Case, options: &Options) -> Result<Compared> {
        let runs = RefCell::new(Vec::new());
        let rounds = match case.model {
            Model::Usual => options.rounds,
            Model::ManyInodes => options.rounds.min(MAX_LONG_ROUNDS),
        };
        let mut comparison = Comparison::new(case.title)
            .rounds(Rounds(rounds))
            .threads(&[ThreadCount::ONE, ThreadCount::new(2)]);
        if case.model == Model::ManyInodes {
            comparison = comparison.warm_up(Rounds(0));
        }
        for contender in Contender::ALL {
            let model = self.model(case.model, contender.feature);
            let prepare = move || {
                let mut cp = Command::new("cp");
                let cp = cp.arg("--sparse=always").arg(&model);
                Ok(run_quietly(cp.arg(self.path("image")))?)
            };
            let runs = &runs;
            let run = move |threads| {
                let ran = self.run_case(case, contender.program, threads)?;
                let work = Work {
                    operations: ran.operations,
                    bytes: 0,
                    wall: Some(ran.wall),
                };
                runs.borrow_mut().push((contender, threads, ran));
                Ok(work)
            };
            comparison = comparison.side(Side::closure(contender.name(), run).prepared_by(prepare));
        }
        let report = comparison.run(&MonotonicClock::default())?;
        Ok(Compared {
            report,
            rounds: rounds as usize,
            runs: runs.into_inner(),
        })
    }

    fn run_case(&self, case: &Case, program: Program, threads: ThreadCount) -> Result<Ran> {
        let (image, mount) = (self.path("image"), self.path("mount"));
        let mut command = Command::new(&self.program);
        command.args(["bench", "fsync", "--json", "--workload", case.workload]);
        command.args(["--files", &case.files_per_directory.to_string()]);
        command.args(["--directories", &case.directories.count().to_string()]);
        command.args(["--threads", &threads.to_string()]);
        if program == Program::Fourscore {
            // The kernel's caches may take all memory.
            return ran(command.args(["-o", "cache_size=1G"]).arg(image));
        }
        run_quietly(
            Command::new("mount")
                .args(["-t", "ext4", "-o", "loop,noinit_itable"])
                .args([&image, &mount]),
        )
        .context("the comparison with the kernel needs root and loop devices")?;
        let done = ran(command.arg("--dir").arg(&mount));
        let counts = kernel_commits(&mount);
        run_quietly(Command::new("umount").arg(&mount))?;
        let mut done = done?;
        (done.fast_commits, done.full_commits) = counts?;
        Ok(done)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // It is mounted only if a run has failed. The folder goes after this.
        let _ = Command::new("umount").arg(self.path("mount")).output();
    }
}

/// Fast and full commits since the mount, from `/proc`.
fn kernel_commits(mount: &Path) -> Result<(u64, u64)> {
    let findmnt = Command::new("findmnt")
        .args(["-n", "-o", "SOURCE"])
        .arg(mount)
        .output()?;
    let device = String::from_utf8_lossy(&findmnt.stdout);
    let device = device.trim().trim_start_matches("/dev/").to_owned();
    let number = |path: String, is_line: fn(&str) -> bool| -> Result<u64> {
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = text.lines().find(|line| is_line(line));
        let count = line.and_then(|line| line.split_whitespace().next());
        count
            .and_then(|count| count.parse().ok())
            .with_context(|| format!("{path} has no such count"))
    };
    // The journal's inode is 8.
    Ok((
        number(format!("/proc/fs/ext4/{device}/fc_info"), |line| {
            line.ends_with(" commits")
        })?,
        number(format!("/proc/fs/jbd2/{device}-8/info"), |line| {
            line.contains(" transactions ")
        })?,
    ))
}

/// What was measured of a case.
struct Compared {
    report: ComparisonReport,
    rounds: usize,
    runs: Vec<(Contender, ThreadCount, Ran)>,
}

impl Compared {
    /// The measured runs of a side; those to warm up are left out.
    fn of(&self, contender: Contender, threads: ThreadCount) -> Vec<&Ran> {
        let runs = self.runs.iter();
        let runs = runs.filter(|run| run.0 == contender && run.1 == threads);
        let all: Vec<&Ran> = runs.map(|run| &run.2).collect();
        let warm_up = all.len().saturating_sub(self.rounds);
        all.into_iter().skip(warm_up).collect()
    }

    /// How many times as fast as the kernel fourscore is, both on images with the same features.
    fn ratio(&self, feature: Feature, threads: ThreadCount) -> Option<Ratio> {
        let rates = |program| -> Vec<f64> {
            let runs = self.of(Contender::of(program, feature), threads);
            runs.iter().map(|run| run.per_second()).collect()
        };
        Ratio::pairwise(&rates(Program::Fourscore), &rates(Program::Kernel))
    }

    /// A table of the calls of fsync of each side.
    fn details(&self) -> String {
        let mut text = String::from(
            "| side | threads | fsync/s | median fsync | 99 % | fast commits | full commits | \
             beside the kernel |\n|---|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for row in &self.report.rows {
            for contender in Contender::ALL {
                let runs = self.of(contender, row.threads);
                let of = |what: fn(&Ran) -> f64| median(runs.iter().map(|run| what(run)));
                let beside = match contender.program {
                    Program::Kernel => None,
                    Program::Fourscore => self.ratio(contender.feature, row.threads),
                };
                // Writing into a String cannot fail.
                let _ = writeln!(
                    text,
                    "| {} | {} | {:.0} | {:.1} us | {:.1} us | {:.0} | {:.0} | {} |",
                    contender.name(),
                    row.threads,
                    of(|run| run.fsyncs_per_s),
                    of(|run| run.p50_us),
                    of(|run| run.p99_us),
                    of(|run| run.fast_commits as f64),
                    of(|run| run.full_commits as f64),
                    beside.map_or("-".to_owned(), in_words),
                );
            }
        }
        text
    }

    /// Not slower than the kernel, with the feature and without.
    fn promises(&self, case: &Case) -> Vec<Promise> {
        let of = |feature: Feature| {
            let threads = self.report.rows.iter().map(|row| row.threads);
            let ratios: Vec<Ratio> = threads
                .filter_map(|threads| self.ratio(feature, threads))
                .collect();
            let name = case.promised;
            let figures: Vec<String> = ratios.iter().copied().map(in_words).collect();
            Promise {
                what: format!(
                    "{name}, {}, 1 and 2 threads: at least 1 times the kernel's ext4",
                    feature.name()
                ),
                figure: figures.join("; "),
                met: !ratios.is_empty() && ratios.iter().all(|ratio| ratio.median >= 1.0),
            }
        };
        Feature::ALL.map(of).into()
    }
}

fn in_words(ratio: Ratio) -> String {
    format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max)
}
