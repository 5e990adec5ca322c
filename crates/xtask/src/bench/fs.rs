//! **Purpose.** Measures how fast files are created, looked up, written and removed: by fourscore
//! in process, and by the kernel's ext4 on a loop device, both on the same image.
//!
//! **Model.** `fourscore bench files` runs the same workload on both sides and measures its own
//! time, which begins when everything prepared is durable and ends with a sync of the whole file
//! system. Each run has a new copy of the image, a sparse file on tmpfs. The mount needs root.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    Comparison, ComparisonReport, DirectoryTarget, FileNr, MachineFacts, MonotonicClock, Operation,
    Placement, Report, Side, Target, ThreadCount, Work, WorkerNr,
};

use super::Options;
use super::control::{self, Writes};
use super::folder::{Folder, run_quietly};
use crate::workspace::Workspace;

const IMAGE_BYTES: u64 = 8 << 30;
/// Size of the free extents of the aged file system.
const FREE_EXTENT_BYTES: u64 = 4 << 20;
/// Files of that size that ageing creates; it then removes every third of them.
const AGEING_FILES: u32 = 1800;

/// A workload of `fourscore bench files`.
struct Case {
    workload: &'static str,
    /// The steps of each thread, if there are one or two. More threads share the steps of two.
    steps_per_thread: u64,
    age: Age,
    placement: Placement,
    /// The most threads: many more than cores, as long as the image has the space.
    many: usize,
}

impl Case {
    const fn new(workload: &'static str, steps_per_thread: u64) -> Self {
        Self {
            workload,
            steps_per_thread,
            age: Age::Fresh,
            placement: Placement::Apart,
            many: 64,
        }
    }

    const fn with_at_most(self, many: usize) -> Self {
        Self { many, ..self }
    }

    const fn aged(self) -> Self {
        Self {
            age: Age::Aged,
            ..self
        }
    }

    const fn in_one_directory(self) -> Self {
        Self {
            placement: Placement::OneDirectory,
            ..self
        }
    }

    fn title(&self) -> String {
        let Self {
            workload,
            steps_per_thread: steps,
            ..
        } = self;
        let mut title = format!("{workload}, {steps} for each thread");
        if self.placement == Placement::OneDirectory {
            title.push_str(", in one directory");
        }
        if self.age == Age::Aged {
            title.push_str(", aged");
        }
        title
    }

    fn steps(&self, threads: ThreadCount) -> u64 {
        let threads = threads.get() as u64;
        self.steps_per_thread * 2 / threads.max(2)
    }
}

const CASES: &[Case] = &[
    Case::new("create", 20_000),
    Case::new("create", 20_000).in_one_directory(),
    Case::new("stat", 20_000),
    Case::new("stat", 20_000).in_one_directory(),
    Case::new("unlink", 20_000),
    Case::new("unlink", 20_000).in_one_directory(),
    Case::new("readdir", 2_000),
    Case::new("write", 512),
    Case::new("append", 50_000),
    Case::new("fallocate2", 50_000),
    // With more threads the kernel runs out of space before it commits what was freed.
    Case::new("fallocate3", 2_000).with_at_most(2),
    Case::new("fallocate3", 2_000).with_at_most(2).aged(),
];

/// The writes of the workloads `write` and `append`, without a file system.
const CONTROLS: [Writes; 2] = [
    Writes {
        title: "write, 1 MiB at a time",
        step_bytes: 1 << 20,
        range_bytes: 64 << 20,
        steps: 512,
    },
    Writes {
        title: "append, 4 KiB at a time",
        step_bytes: 4 << 10,
        range_bytes: 1 << 20,
        steps: 50_000,
    },
];

/// The state of the file system before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    /// Empty.
    Fresh,
    /// Its free space is fragmented into extents of [`FREE_EXTENT_BYTES`].
    Aged,
}

/// Measures all cases.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    let bench = Bench::new(super::build_command(workspace)?)?;
    let machine = MachineFacts::collect().with_option(
        "image",
        &"8 GiB, ext4 of mke2fs's defaults, sparse on tmpfs; each thread in a directory of its own, \
          unless it says one directory; more than two threads share the steps of two; aged: free extents of 4 MiB",
    );
    let cases = CASES.iter();
    let comparisons = cases.map(|case| bench.compare(case, options));
    let mut comparisons: Vec<_> = comparisons.collect::<Result<_>>()?;
    for writes in CONTROLS {
        comparisons.push(control::compare(&bench.folder, writes, options.rounds)?);
    }
    Ok(Report {
        machine,
        comparisons,
    })
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
        let fresh = bench.model(Age::Fresh);
        File::create(&fresh)?.set_len(IMAGE_BYTES)?;
        run_quietly(
            Command::new("mke2fs")
                .args(["-q", "-F", "-t", "ext4"])
                .arg(&fresh),
        )?;
        bench.copy(Age::Fresh)?;
        bench.mount()?;
        age(&bench.path("mount"))?;
        bench.unmount()?;
        fs::rename(bench.path("image"), bench.model(Age::Aged))?;
        Ok(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn model(&self, age: Age) -> PathBuf {
        self.path(match age {
            Age::Fresh => "fresh",
            Age::Aged => "aged",
        })
    }

    /// Copies the model to the image of a run.
    fn copy(&self, age: Age) -> Result<()> {
        let (from, to) = (self.model(age), self.path("image"));
        run_quietly(Command::new("cp").arg("--sparse=always").args([&from, &to]))
    }

    fn mount(&self) -> Result<()> {
        run_quietly(
            Command::new("mount")
                .args(["-t", "ext4", "-o", "loop,noinit_itable"])
                .args([self.path("image"), self.path("mount")]),
        )
        .context("the comparison with the kernel needs root and loop devices")
    }

    fn unmount(&self) -> Result<()> {
        run_quietly(Command::new("umount").arg(self.path("mount")))
    }

    fn compare(&self, case: &Case, options: &Options) -> Result<ComparisonReport> {
        let age = case.age;
        let image = self.path("image");
        let mount = self.path("mount");
        let kernel = |threads| {
            self.mount()?;
            let work = self.timed(case, &[Path::new("--dir"), &mount], threads);
            self.unmount()?;
            Ok(work?)
        };
        let ours = |threads| Ok(self.timed(case, &[&image], threads)?);
        let mut threads = vec![1, 2, case.many];
        threads.dedup();
        let threads: Vec<_> = threads.into_iter().map(ThreadCount::new).collect();
        Ok(Comparison::new(case.title())
            .rounds(Rounds(options.rounds))
            .threads(&threads)
            .side(
                Side::closure("kernel ext4 on a loop device", kernel)
                    .prepared_by(|| Ok(self.copy(age)?)),
            )
            .side(Side::closure("fourscore in process", ours).prepared_by(|| Ok(self.copy(age)?)))
            .run(&MonotonicClock::default())?)
    }

    /// Runs the case on `target`, which is an image or `--dir` and a directory, and takes the work
    /// done and its time from the report.
    fn timed(&self, case: &Case, target: &[&Path], threads: ThreadCount) -> Result<Work> {
        let mut command = Command::new(&self.program);
        command.args(["bench", "files", "--json", "--workload", case.workload]);
        command.args(["--steps", &case.steps(threads).to_string()]);
        if case.placement == Placement::OneDirectory {
            command.arg("--one-directory");
        }
        command
            .args(["--threads", &threads.to_string()])
            .args(target);
        let output = command.output()?;
        if !output.status.success() {
            bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let of_run = |name: &str| &report["runs"][0][name];
        let seconds = of_run("seconds")
            .as_f64()
            .context("the report has no seconds")?;
        Ok(Work {
            operations: of_run("operations")
                .as_u64()
                .context("the report has no operations")?,
            bytes: of_run("bytes").as_u64().unwrap_or(0),
            wall: Some(Duration::from_secs_f64(seconds)),
        })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // It is mounted only if a run has failed. The folder goes after this.
        let _ = Command::new("umount").arg(self.path("mount")).output();
    }
}

/// Uses most of the space below `directory` and fragments the rest.
fn age(directory: &Path) -> Result<()> {
    let target = DirectoryTarget::new(directory.join("old"));
    fs::create_dir(directory.join("old"))?;
    let mut worker = target.worker(WorkerNr(0))?;
    for nr in (0..AGEING_FILES).map(FileNr) {
        let (offset, len) = (0, FREE_EXTENT_BYTES);
        worker.apply(nr, Operation::Create)?;
        worker.apply(nr, Operation::Fallocate { offset, len })?;
        worker.apply(nr, Operation::Close)?;
    }
    for nr in (0..AGEING_FILES).step_by(3).map(FileNr) {
        worker.apply(nr, Operation::Unlink)?;
    }
    Ok(())
}
