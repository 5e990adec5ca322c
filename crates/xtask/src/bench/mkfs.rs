//! **Purpose.** How fast empty file systems are made, beside mke2fs with the same options.
//!
//! **Model.** Both write into an image file on tmpfs that has the right length and no blocks; it is
//! made anew before each round, outside of the time. A third side writes as many bytes as the
//! image then has, with dd, in one piece: what the host takes for that nobody can go below, since
//! it lets only one thread at a time write to a file.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    CommandLine, Comparison, ComparisonReport, MachineFacts, MonotonicClock, Report, Side,
    ThreadCount,
};

use super::Options;
use crate::run::{cargo, run as run_command};
use crate::workspace::Workspace;

const GIB: u64 = 1 << 30;

/// Title, size, and options for both.
const CASES: &[(&str, u64, &str)] = &[
    ("1 GiB", GIB, "-t ext4"),
    ("1 TiB", 1024 * GIB, "-t ext4"),
    ("15 TiB", 15 * 1024 * GIB, "-t ext4"),
    (
        "15 TiB with two backups",
        15 * 1024 * GIB,
        "-t ext4 -O sparse_super2,^resize_inode",
    ),
    (
        "15 TiB with clusters of 64 KiB",
        15 * 1024 * GIB,
        "-t ext4 -O bigalloc -C 65536",
    ),
];

/// Measures all cases.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    run_command(cargo(workspace).args(["build", "--release", "--package", "fourscore-cli"]))?;
    let program = workspace.target().join("release/fourscore");
    let folder = Folder::new()?;
    let machine = MachineFacts::collect().with_option(
        "image",
        &"a sparse file on tmpfs; both sides lazy about inode tables, as by default",
    );
    let comparisons = CASES
        .iter()
        .map(|case| compare(case, &program, &folder.0, options))
        .collect::<Result<_>>()?;
    Ok(Report {
        machine,
        comparisons,
    })
}

fn compare(
    (title, size_bytes, arguments): &(&str, u64, &str),
    program: &Path,
    folder: &Path,
    options: &Options,
) -> Result<ComparisonReport> {
    let image = folder.join("image");
    let sparse = |len_bytes| {
        let image = image.clone();
        move || {
            // Not there before the first round.
            let _ = fs::remove_file(&image);
            Ok(File::create(&image)?.set_len(len_bytes)?)
        }
    };
    let path = image.display();
    let theirs = format!("mke2fs -q -F {arguments} {path}");
    let ours = format!("{} mkfs -q -F {arguments} {path}", program.display());
    File::create(&image)?.set_len(*size_bytes)?;
    run_command(Command::new("sh").args(["-c", &ours]))?;
    let written_mib = (fs::metadata(&image)?.blocks() * 512).div_ceil(1 << 20);
    let floor = format!("dd if=/dev/zero of={path} bs=1M count={written_mib} status=none");
    let side = |name: &str, line: &str, len_bytes| {
        Side::process(name, CommandLine::shell(line)).prepared_by(sparse(len_bytes))
    };
    let report = Comparison::new(format!("{title} ({arguments}; {written_mib} MiB written)"))
        .rounds(Rounds(options.rounds))
        .threads(&[ThreadCount::new(2)])
        .side(side("mke2fs", &theirs, *size_bytes))
        .side(side("fourscore mkfs", &ours, *size_bytes))
        .side(side("dd of as many bytes", &floor, 0))
        .run(&MonotonicClock::default())?;
    fs::remove_file(&image)?;
    Ok(report)
}

/// A folder on tmpfs that disappears in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let folder = PathBuf::from(format!("/dev/shm/fourscore-bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("bench: {} is left behind: {error}", self.0.display());
        }
    }
}
