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
    Report, Side, Target, ThreadCount, Work, WorkerNr,
};

use super::Options;
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
    steps_per_thread: u64,
    age: Age,
}

const fn case(workload: &'static str, steps_per_thread: u64, age: Age) -> Case {
    Case {
        workload,
        steps_per_thread,
        age,
    }
}

const CASES: &[Case] = &[
    case("create", 20_000, Age::Fresh),
    case("stat", 20_000, Age::Fresh),
    case("unlink", 20_000, Age::Fresh),
    case("readdir", 2_000, Age::Fresh),
    case("write", 512, Age::Fresh),
    case("fallocate2", 50_000, Age::Fresh),
    case("fallocate3", 300, Age::Fresh),
    case("fallocate3", 300, Age::Aged),
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
        &"8 GiB, ext4 of mke2fs's defaults, sparse on tmpfs; each thread in a directory of its own; \
          aged: free extents of 4 MiB",
    );
    let cases = CASES.iter();
    let comparisons = cases.map(|case| bench.compare(case, options));
    Ok(Report {
        machine,
        comparisons: comparisons.collect::<Result<_>>()?,
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
        let Case { workload, age, .. } = *case;
        let image = self.path("image");
        let mount = self.path("mount");
        let kernel = |threads| {
            self.mount()?;
            let work = self.timed(case, &[Path::new("--dir"), &mount], threads);
            self.unmount()?;
            Ok(work?)
        };
        let ours = |threads| Ok(self.timed(case, &[&image], threads)?);
        let steps = case.steps_per_thread;
        let title = match age {
            Age::Fresh => format!("{workload}, {steps} for each thread"),
            Age::Aged => format!("{workload}, {steps} for each thread, aged"),
        };
        Ok(Comparison::new(title)
            .rounds(Rounds(options.rounds))
            .threads(&[ThreadCount::ONE, ThreadCount::new(2)])
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
        command.args(["--steps", &case.steps_per_thread.to_string()]);
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
