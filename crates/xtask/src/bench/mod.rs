//! **Purpose.** Measurements with other people's programs beside them. Each prints its tables and
//! can record them in `docs/results`, from which the tables of `docs/PERFORMANCE.md` follow.
//!
//! | module | responsibility |
//! |---|---|
//! | [`alloc`] | the bare allocator, against what was promised of it |
//! | [`build`] | building images of directories |
//! | [`check`] | checking a file system |
//! | [`fs`] | files made, found, written and removed in process |
//! | [`fuse`] | the mount, against what was promised of it |
//! | [`journal`] | handles, seals and commits, against what was promised of them |
//! | [`mkfs`] | making empty file systems |
//! | [`read`] | reading images: extract, walk, info, threads |

mod alloc;
mod build;
mod check;
mod fs;
mod fuse;
mod journal;
mod mkfs;
mod read;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::workspace::Workspace;

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// The measurement.
    what: What,
    /// Replaces the measurement's record in docs/results, and the tables that follow from it.
    #[arg(long)]
    record: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// The tree of this machine that the image is made of.
    #[arg(long, default_value = "/usr")]
    tree: std::path::PathBuf,
    /// How many files the file system to be checked has.
    #[arg(long, default_value_t = 1_000_000)]
    files: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// The bare allocator, each figure beside what was promised.
    Alloc,
    /// Building images: a real tree, one large directory, many small files.
    Build,
    /// Checking a file system of a million files, or of as many as `--files` says.
    Check,
    /// Files made, found, written and removed in process, beside the kernel's ext4.
    Fs,
    /// The mount, beside the kernel's ext4, fuse2fs and a FUSE file system that does nothing.
    Fuse,
    /// Handles, seals and commits of the journal.
    Journal,
    /// Making empty file systems, of 1 GiB to 15 TiB.
    Mkfs,
    /// Reading images: extract, walk, info, and threads on one file system.
    Read,
}

/// Measures, prints, and records if asked to.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let (name, markdown) = match options.what {
        What::Alloc => ("alloc", alloc::run(workspace, options)?),
        What::Build => ("build", build::run(workspace, options)?.to_markdown()),
        What::Check => ("check", check::run(workspace, options)?.to_markdown()),
        What::Fs => ("fs", fs::run(workspace, options)?.to_markdown()),
        What::Fuse => ("fuse", fuse::run(workspace, options)?),
        What::Journal => ("journal", journal::run(workspace, options)?),
        What::Mkfs => ("mkfs", mkfs::run(workspace, options)?.to_markdown()),
        What::Read => ("read", read::run(workspace, options)?.to_markdown()),
    };
    println!("\n{markdown}");
    if options.record {
        record(workspace, name, &markdown)
    } else {
        Ok(())
    }
}

/// Puts the report between the marks of its record, and renews the documents.
fn record(workspace: &Workspace, name: &str, markdown: &str) -> Result<()> {
    let path = workspace.path(&format!("docs/results/{name}.md"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let (begin, end) = (
        format!("<!-- bench {name} -->\n"),
        format!("<!-- end {name} -->"),
    );
    let start = text
        .find(&begin)
        .with_context(|| format!("no mark {begin:?}"))?
        + begin.len();
    let stop = text
        .find(&end)
        .with_context(|| format!("no mark {end:?}"))?;
    let before = text.get(..start).unwrap_or_default();
    let after = text.get(stop..).unwrap_or_default();
    std::fs::write(&path, format!("{before}{markdown}{after}"))?;
    println!("recorded in {}", path.display());
    crate::documents::write(workspace)
}
