//! **Purpose.** How fast files are made, found, written and removed: in process, beside the
//! kernel's ext4 on a loop device, both on the same image.
//!
//! **Model.** `fourscore bench files` runs the same workload on both sides and times itself, from
//! when everything prepared is durable to the end of a sync of the whole file system. Before each
//! run the image, a sparse file on tmpfs, is a new copy. Needs root for the mount.

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
use crate::run::{cargo, run as run_command};
use crate::workspace::Workspace;

const IMAGE_BYTES: u64 = 8 << 30;
/// Size of the pieces in which the free space of the aged file system lies.
const PIECE_BYTES: u64 = 4 << 20;
/// So many such files are made, of which every third then goes.
const PIECES: u32 = 1800;

/// Workload, steps of each thread, and on which file system.
const CASES: &[(&str, u64, Age)] = &[
    ("create", 20_000, Age::Fresh),
    ("stat", 20_000, Age::Fresh),
    ("unlink", 20_000, Age::Fresh),
    ("readdir", 2_000, Age::Fresh),
    ("write", 512, Age::Fresh),
    ("fallocate2", 50_000, Age::Fresh),
    ("fallocate3", 300, Age::Fresh),
    ("fallocate3", 300, Age::Aged),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Fresh,
    /// Free in pieces.
    Aged,
}

/// Measures all cases.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    run_command(cargo(workspace).args(["build", "--release", "--package", "fourscore-cli"]))?;
    let bench = Bench::new(workspace.target().join("release/fourscore"))?;
    let machine = MachineFacts::collect().with_option(
        "image",
        &"8 GiB, ext4 of mke2fs's defaults, sparse on tmpfs; each thread in a directory of its own; \
          aged: free in pieces of 4 MiB",
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
    folder: PathBuf,
}

impl Bench {
    fn new(program: PathBuf) -> Result<Self> {
        let folder = PathBuf::from(format!("/dev/shm/fourscore-bench-{}", std::process::id()));
        let bench = Self { program, folder };
        fs::create_dir_all(bench.path("mount"))?;
        let fresh = bench.model(Age::Fresh);
        File::create(&fresh)?.set_len(IMAGE_BYTES)?;
        run_command(
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

    /// Makes the image of a run.
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

    fn compare(
        &self,
        &(workload, steps, age): &(&str, u64, Age),
        options: &Options,
    ) -> Result<ComparisonReport> {
        let image = self.path("image");
        let mount = self.path("mount");
        let of_kernel = |threads| {
            self.mount()?;
            let work = self.timed(&[Path::new("--dir"), &mount], workload, steps, threads);
            self.unmount()?;
            Ok(work?)
        };
        let ours = |threads| Ok(self.timed(&[&image], workload, steps, threads)?);
        let title = match age {
            Age::Fresh => format!("{workload}, {steps} for each thread"),
            Age::Aged => format!("{workload}, {steps} for each thread, aged"),
        };
        Ok(Comparison::new(title)
            .rounds(Rounds(options.rounds))
            .threads(&[ThreadCount::ONE, ThreadCount::new(2)])
            .side(
                Side::closure("kernel ext4 on a loop device", of_kernel)
                    .prepared_by(|| Ok(self.copy(age)?)),
            )
            .side(Side::closure("fourscore in process", ours).prepared_by(|| Ok(self.copy(age)?)))
            .run(&MonotonicClock::default())?)
    }

    /// Runs a workload and reads from its report what it did and how long that took.
    fn timed(
        &self,
        place: &[&Path],
        workload: &str,
        steps: u64,
        threads: ThreadCount,
    ) -> Result<Work> {
        let mut command = Command::new(&self.program);
        command.args(["bench", "files", "--json", "--workload", workload]);
        command.args(["--steps", &steps.to_string()]);
        command
            .args(["--threads", &threads.to_string()])
            .args(place);
        let output = command.output()?;
        if !output.status.success() {
            bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let of_run = |name: &str| &report["runs"][0][name];
        let seconds = of_run("seconds").as_f64().context("no seconds")?;
        Ok(Work {
            operations: of_run("operations").as_u64().context("no operations")?,
            bytes: of_run("bytes").as_u64().unwrap_or(0),
            wall: Some(Duration::from_secs_f64(seconds)),
        })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Not mounted unless something failed; what is left behind is named.
        let _ = Command::new("umount").arg(self.path("mount")).output();
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("bench: {} is left behind: {error}", self.folder.display());
        }
    }
}

/// Uses most of the space below `directory`, and leaves free pieces.
fn age(directory: &Path) -> Result<()> {
    let target = DirectoryTarget::new(directory.join("old"));
    fs::create_dir(directory.join("old"))?;
    let mut worker = target.worker(WorkerNr(0))?;
    for nr in (0..PIECES).map(FileNr) {
        let (offset, len) = (0, PIECE_BYTES);
        worker.apply(nr, Operation::Create)?;
        worker.apply(nr, Operation::Fallocate { offset, len })?;
        worker.apply(nr, Operation::Close)?;
    }
    for nr in (0..PIECES).step_by(3).map(FileNr) {
        worker.apply(nr, Operation::Unlink)?;
    }
    Ok(())
}

/// Runs a command that belongs to every round.
fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
