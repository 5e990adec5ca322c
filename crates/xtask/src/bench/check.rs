//! **Purpose.** Measures how fast a file system is checked, side by side with `e2fsck -fn`: one
//! million files, or as many as `--files` says, in an image of 100 GiB.
//!
//! **Model.** A tar archive with directories of a hundred files each is piped into
//! `fourscore build`, which makes a sparse image of it. All sides read the same image, whose
//! metadata a warm-up round brings into the page cache. Each side must find the image clean, or the
//! benchmark fails.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use fourscore_lab::comparison::Rounds;
use fourscore_lab::{
    CommandLine, Comparison, MachineFacts, MonotonicClock, Report, Side, ThreadCount,
};

use super::Options;
use super::folder::Folder;
use super::tar::{RECORD_BYTES, header};
use crate::workspace::Workspace;

/// Files in the file system, unless `--files` is given.
const FILES: u32 = 1_000_000;
pub(super) const FILES_PER_DIRECTORY: u32 = 100;
const SIZE: &str = "100G";

/// Builds the image, measures, and removes it.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<Report> {
    let fourscore = super::build_command(workspace)?;
    let folder = Folder::in_directory(&workspace.target())?;
    let image = folder.join("image");
    let files = options.files.unwrap_or(FILES);
    let directories = files.div_ceil(FILES_PER_DIRECTORY);
    let files = directories * FILES_PER_DIRECTORY;
    build(&fourscore, &image, SIZE, directories)?;
    let machine = MachineFacts::collect()
        .with_option(
            "image",
            &format!("{SIZE}, sparse, metadata in the page cache"),
        )
        .with_option("files", &files)
        .with_option("directories", &directories);
    let (program, image) = (fourscore.display(), image.display());
    let mut comparison = Comparison::new(format!("check, 100 GiB with {files} files"))
        .warm_up(Rounds(1))
        .rounds(Rounds(options.rounds))
        .threads(&[ThreadCount::new(2)]);
    let sides = [
        ("e2fsck -fn", format!("e2fsck -fn {image} >/dev/null 2>&1")),
        (
            "fourscore check -n --threads 1",
            format!("{program} check -n --threads 1 {image} >/dev/null"),
        ),
        (
            "fourscore check -n --threads 2",
            format!("{program} check -n --threads 2 {image} >/dev/null"),
        ),
    ];
    for (name, line) in sides {
        comparison = comparison.side(Side::process(name, CommandLine::shell(&line)));
    }
    Ok(Report {
        machine,
        comparisons: vec![comparison.run(&MonotonicClock::default())?],
    })
}

/// Builds the image of the tar archive.
pub(super) fn build(fourscore: &Path, image: &Path, size: &str, directories: u32) -> Result<()> {
    let mut builder = Command::new(fourscore)
        .args(["build", "-", "--size", size, "-o"])
        .arg(image)
        .stdin(Stdio::piped())
        .spawn()
        .context("fourscore build")?;
    let pipe = builder
        .stdin
        .take()
        .context("fourscore build has no standard input")?;
    write_tar(BufWriter::with_capacity(1 << 20, pipe), directories)?;
    ensure!(builder.wait()?.success(), "fourscore build failed");
    Ok(())
}

fn write_tar(mut out: impl Write, directories: u32) -> Result<()> {
    let mut content = [0; RECORD_BYTES];
    for directory in 0..directories {
        let parent = format!("directory-{directory}/");
        out.write_all(&header(&parent, b'5', 0))?;
        for file in 0..FILES_PER_DIRECTORY {
            let name = format!("{parent}a-file-with-a-name-{file}");
            out.write_all(&header(&name, b'0', name.len()))?;
            content.fill(0);
            for (to, from) in content.iter_mut().zip(name.bytes()) {
                *to = from;
            }
            out.write_all(&content)?;
        }
    }
    out.write_all(&[0; 2 * RECORD_BYTES])?;
    Ok(out.flush()?)
}
