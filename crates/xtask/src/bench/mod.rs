//! **Purpose.** `cargo xtask bench`: measures fourscore, in most cases side by side with other
//! programs that do the same. Each benchmark prints its tables and can record them in
//! `docs/results`, from which the tables of `docs/PERFORMANCE.md` are generated.
//!
//! **Not here.** The runner, the workloads and the measuring programs: they are in the crate `lab`
//! (the programs are its examples). A benchmark here builds them, runs them and lays out the
//! tables.
//!
//! | module | responsibility |
//! |---|---|
//! | [`alloc`] | the block allocator alone, with its targets |
//! | [`build`] | building images of directories |
//! | [`check`] | checking a file system |
//! | [`control`] | writes without a file system |
//! | [`folder`] | the temporary folder of a benchmark |
//! | [`fs`] | creating, looking up, writing and removing files in process |
//! | [`fsync`] | making changes durable, with targets |
//! | [`fuse`] | the mount, with its targets |
//! | [`journal`] | handles, seals and commits, with their targets |
//! | [`mkfs`] | making empty file systems |
//! | [`processors`] | processor time that other programs take |
//! | [`read`] | reading images: extract, walk, info, threads |
//! | [`repair`] | repairing a damaged file system |
//! | [`resize`] | shrinking to the least size |
//! | [`tar`] | tar archives of made-up trees |
//! | [`xattr`] | setting extended attributes that files share or do not, with targets |

mod alloc;
mod build;
mod check;
mod control;
mod folder;
mod fs;
mod fsync;
mod fuse;
mod journal;
mod mkfs;
mod processors;
mod read;
mod repair;
mod resize;
mod tar;
mod xattr;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::run::{cargo, run as run_command};
use crate::workspace::Workspace;

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// What is measured.
    benchmark: Benchmark,
    /// Replaces the benchmark's record in docs/results, and the tables that follow from it.
    #[arg(long)]
    record: bool,
    /// Number of rounds; each side runs once in a round.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// The directory of this machine that images are made of (build, fuse, read, xattr).
    #[arg(long, default_value = "/usr")]
    tree: PathBuf,
    /// Number of files in the file system [default: 1000000 (check), 200000 (repair), 60000
    /// (resize), 20000 (xattr)].
    #[arg(long)]
    files: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Benchmark {
    /// The block allocator alone, each figure with its target.
    Alloc,
    /// Building images: a real tree, one large directory, many small files.
    Build,
    /// Checking a file system of a million files, or of --files files.
    Check,
    /// Creating, looking up, writing and removing files in process, and with the kernel's ext4.
    Fs,
    /// Making changes durable in process, with the kernel's ext4, and with slow flushes.
    Fsync,
    /// The mount, and the kernel's ext4, fuse2fs and a FUSE file system that does nothing.
    Fuse,
    /// Handles, seals and commits of the journal, each figure with its target.
    Journal,
    /// Making empty file systems of 1 GiB to 15 TiB.
    Mkfs,
    /// Reading images: extract, walk, info, and threads on one file system.
    Read,
    /// Repairing a file system of which one inode in a hundred is damaged.
    Repair,
    /// Shrinking a file system to its least size.
    Resize,
    /// Extended attributes in blocks, which files share or do not, and the kernel's ext4.
    Xattr,
}

/// Runs the benchmark, prints its report, and records it with `--record`.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let (name, markdown) = match options.benchmark {
        Benchmark::Alloc => ("alloc", alloc::run(workspace, options)?),
        Benchmark::Build => ("build", build::run(workspace, options)?.to_markdown()),
        Benchmark::Check => ("check", check::run(workspace, options)?.to_markdown()),
        Benchmark::Fs => ("fs", fs::run(workspace, options)?.to_markdown()),
        Benchmark::Fsync => ("fsync", fsync::run(workspace, options)?),
        Benchmark::Fuse => ("fuse", fuse::run(workspace, options)?),
        Benchmark::Journal => ("journal", journal::run(workspace, options)?),
        Benchmark::Mkfs => ("mkfs", mkfs::run(workspace, options)?.to_markdown()),
        Benchmark::Read => ("read", read::run(workspace, options)?.to_markdown()),
        Benchmark::Repair => ("repair", repair::run(workspace, options)?.to_markdown()),
        Benchmark::Resize => ("resize", resize::run(workspace, options)?.to_markdown()),
        Benchmark::Xattr => ("xattr", xattr::run(workspace, options)?),
    };
    println!("\n{markdown}");
    if options.record {
        record(workspace, name, &markdown)
    } else {
        Ok(())
    }
}

/// Builds the `fourscore` command for release and returns its path.
fn build_command(workspace: &Workspace) -> Result<PathBuf> {
    run_command(cargo(workspace).args(["build", "--release", "--package", "fourscore-cli"]))?;
    Ok(workspace.target().join("release/fourscore"))
}

/// Builds a measuring program, which is an example of the crate `lab`, for release and returns its
/// path.
fn build_program(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let package = ["build", "--release", "--package", "fourscore-lab"];
    run_command(cargo(workspace).args(package).args(["--example", name]))?;
    Ok(workspace.target().join("release/examples").join(name))
}

/// Puts the report between the marks of its record, and renews the documents.
fn record(workspace: &Workspace, name: &str, markdown: &str) -> Result<()> {
    let path = workspace.path(&format!("docs/results/{name}.md"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let (begin, end) = (
        format!("<!-- bench {name} -->\n"),
        format!("<!-- end {name} -->"),
    );
    let missing_mark = |mark: &str| format!("{} has no line {:?}", path.display(), mark.trim_end());
    let start = text.find(&begin).with_context(|| missing_mark(&begin))? + begin.len();
    let stop = text.find(&end).with_context(|| missing_mark(&end))?;
    let before = text.get(..start).unwrap_or_default();
    let after = text.get(stop..).unwrap_or_default();
    std::fs::write(&path, format!("{before}{markdown}{after}"))?;
    println!("recorded in {}", path.display());
    crate::documents::write(workspace)
}
