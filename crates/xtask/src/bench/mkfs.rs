//! **Purpose.** Measures how fast empty file systems are made, side by side with mke2fs and the
//! same options.
//!
//! **Model.** Both write into a sparse image file on tmpfs, which is created again before each
//! round and outside of the measured time. A third side is the lower bound: dd writes as many bytes
//! as the image has then. The host lets only one thread at a time write to a file, so no program
//! can be faster than that.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    CommandLine, Comparison, ComparisonReport, MachineFacts, MonotonicClock, Report, Side,
    ThreadCount,
};

use super::Options;
use super::folder::Folder;
use crate::run::run as run_command;
use crate::workspace::Workspace;

const GIB: u64 = 1 << 30;

/// A file system to make.
struct Case {
    title: &'static str,
    size_bytes: u64,
    /// Options of mke2fs, for both programs.
    arguments: &'static str,
}

const fn case(title: &'static str, size_bytes: u64, arguments: &'static str) -> Case {
    Case {
        title,
        size_bytes,
        arguments,
    }
}

const CASES: &[Case] = &[
    case("1 GiB", GIB, "-t ext4"),
    case("1 TiB", 1024 * GIB, "-t ext4"),
    case("15 TiB", 15 * 1024 * GIB, "-t ext4"),
    case(
        "15 TiB with two backups",
        15 * 1024 * GIB,
        "-t ext4 -O sparse_super2,^resize_inode",
    ),
    case(
        "15 TiB with clusters of 64 KiB",
        15 * 1024 * GIB,
        "-t ext4 -O bigalloc -C 65536",
    ),
];

/// Measures all cases.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    let program = super::build_command(workspace)?;
    let folder = Folder::on_tmpfs()?;
    let machine = MachineFacts::collect().with_option(
        "image",
        &"a sparse file on tmpfs; both sides leave inode tables uninitialised, as by default",
    );
    let comparisons = CASES
        .iter()
        .map(|case| compare(case, &program, &folder, options))
        .collect::<Result<_>>()?;
    Ok(Report {
        machine,
        comparisons,
    })
}

fn compare(
    case: &Case,
    program: &Path,
    folder: &Folder,
    options: &Options,
) -> Result<ComparisonReport> {
    let Case {
        title,
        size_bytes,
        arguments,
    } = *case;
    let image = folder.join("image");
    let sparse = |len_bytes| {
        let image = image.clone();
        move || {
            // There is no image before the first round.
            let _ = fs::remove_file(&image);
            Ok(File::create(&image)?.set_len(len_bytes)?)
        }
    };
    let path = image.display();
    let theirs = format!("mke2fs -q -F {arguments} {path}");
    let ours = format!("{} mkfs -q -F {arguments} {path}", program.display());
    File::create(&image)?.set_len(size_bytes)?;
    run_command(Command::new("sh").args(["-c", &ours]))?;
    let written_mib = (fs::metadata(&image)?.blocks() * 512).div_ceil(1 << 20);
    let floor = format!("dd if=/dev/zero of={path} bs=1M count={written_mib} status=none");
    let side = |name: &str, line: &str, len_bytes| {
        Side::process(name, CommandLine::shell(line)).prepared_by(sparse(len_bytes))
    };
    let report = Comparison::new(format!("{title} ({arguments}; {written_mib} MiB written)"))
        .rounds(Rounds(options.rounds))
        .threads(&[ThreadCount::new(2)])
        .side(side("mke2fs", &theirs, size_bytes))
        .side(side("fourscore mkfs", &ours, size_bytes))
        .side(side("dd of as many bytes", &floor, 0))
        .run(&MonotonicClock::default())?;
    fs::remove_file(&image)?;
    Ok(report)
}
