//! **Purpose.** Measures how fast a file system of which one inode in a hundred is damaged is
//! repaired, side by side with `e2fsck -fy`.
//!
//! **Model.** An image of 200 000 files, or as many as `--files` says, is built on tmpfs as for the
//! check (`check`), and debugfs sets one field of each hundredth inode to a wrong value: in turn
//! its link count, its count of blocks, its size, its time of deletion, its type, the first word of
//! its map, its flags and its checksum. Each run has a fresh sparse copy, made outside of the
//! measured time.
//!
//! Before anything is measured each side runs once, and e2fsck must find its result clean.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    CommandLine, Comparison, MachineFacts, MonotonicClock, Report, Side, ThreadCount,
};

use super::Options;
use super::check::{FILES_PER_DIRECTORY, build};
use super::folder::{Folder, copy_sparse, run_quietly};
use crate::workspace::Workspace;

/// Files in the file system, unless `--files` is given.
const FILES: u32 = 200_000;
const SIZE: &str = "16G";
/// One inode of so many is damaged.
const SHARE: u32 = 100;
/// The first inode that is damaged: behind those of the file system itself.
const FIRST_INODE: u32 = 20;

/// Fields that debugfs sets, and their wrong values.
const FIELDS: [&str; 8] = [
    "links_count 7",
    "blocks 99",
    "size 77777",
    "dtime 20200101000000",
    "mode 0",
    "block[0] 0x4711",
    "flags 0x10",
    "checksum 0x12345678",
];

/// Builds the image, measures, and removes it.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    let fourscore = super::build_command(workspace)?;
    let folder = Folder::on_tmpfs()?;
    let (original, image) = (folder.join("original"), folder.join("image"));
    let directories = options.files.unwrap_or(FILES).div_ceil(FILES_PER_DIRECTORY);
    let files = directories * FILES_PER_DIRECTORY;
    build(&fourscore, &original, SIZE, directories)?;
    let damaged = damage(&folder.join("script"), &original, files)?;
    let machine = MachineFacts::collect()
        .with_option("image", &format!("{SIZE}, a sparse file on tmpfs"))
        .with_option("files", &files)
        .with_option("damaged inodes", &damaged);
    let (program, path) = (fourscore.display(), image.display());
    // Both end with status 1: errors were found, and repaired.
    let sides = [
        (
            "e2fsck -fy",
            format!("e2fsck -fy {path} >/dev/null 2>&1; test $? = 1"),
        ),
        (
            "fourscore check -y --threads 1",
            format!("{program} check -y --threads 1 {path} >/dev/null; test $? = 1"),
        ),
        (
            "fourscore check -y --threads 2",
            format!("{program} check -y --threads 2 {path} >/dev/null; test $? = 1"),
        ),
    ];
    let mut comparison = Comparison::new(format!("repair, {damaged} damaged inodes of {files}"))
        .warm_up(Rounds(0))
        .rounds(Rounds(options.rounds))
        .threads(&[ThreadCount::new(2)]);
    for (name, line) in sides {
        copy_sparse(&original, &image)?;
        run_quietly(Command::new("sh").args(["-c", &*line]))?;
        let check = run_quietly(Command::new("e2fsck").arg("-fn").arg(&image));
        check.with_context(|| format!("after {name}"))?;
        let prepare = || copy_sparse(&original, &image).map_err(Into::into);
        let side = Side::process(name, CommandLine::shell(&line));
        comparison = comparison.side(side.prepared_by(prepare));
    }
    Ok(Report {
        machine,
        comparisons: vec![comparison.run(&MonotonicClock::default())?],
    })
}

/// Damages inodes by a script of debugfs; returns how many.
fn damage(script: &PathBuf, image: &PathBuf, files: u32) -> Result<u32> {
    let mut text = String::new();
    let inodes = (FIRST_INODE..files).step_by(SHARE as usize);
    let mut damaged = 0;
    for (inode, field) in inodes.zip(FIELDS.iter().cycle()) {
        writeln!(text, "set_inode_field <{inode}> {field}")?;
        damaged += 1;
    }
    fs::write(script, text)?;
    let debugfs = ["-w".as_ref(), "-f".as_ref(), script.as_os_str()];
    run_quietly(Command::new("debugfs").args(debugfs).arg(image))?;
    Ok(damaged)
}
