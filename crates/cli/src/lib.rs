//! **Purpose.** The `fourscore` command as a library: [`main`] runs it, [`command`] describes it
//! for man pages and shell completions.
//!
//! **Model.** Each verb is a module that calls the public library and prints. Errors are one line
//! `fourscore: WHAT: WHY (ADVICE)` on standard error. The exit status is 0 for success, 1 for an
//! error, and 2 for a wrong command line; `check` has the exit statuses of e2fsck. If the reader of
//! standard output closes it, the command ends without a message.
//!
//! | module | responsibility |
//! |---|---|
//! | `args` | verbs and options |
//! | `failure` | errors and their messages |
//! | `image` | `IMAGE[@OFFSET]` and opening it |
//! | `output` | standard output through one large buffer |
//! | `text`, `facts`, `time` | numbers and names as text, attributes of objects, times |
//! | `tree` | walks a tree with many threads and outputs in order |
//! | `content`, `progress` | data runs of a file, the progress bar |
//! | `mb_stats` | the allocator's counters as JSON |
//! | `build`, `info`, `ls`, `stat`, `cat`, `cp`, `extract`, `tar`, `walk`, `mount`, `mkfs`, `freefrag`, `filefrag`, `stats`, `bench`, `check`, `live`, `xattr_report` | the verbs |
#![forbid(unsafe_code)]

mod args;
mod bench;
mod build;
mod cat;
mod check;
mod content;
mod cp;
mod extract;
mod facts;
mod failure;
mod filefrag;
mod freefrag;
mod image;
mod info;
mod live;
mod ls;
mod mb_stats;
mod mkfs;
mod mount;
mod output;
mod progress;
mod stat;
mod stats;
mod tar;
mod text;
mod time;
mod tree;
mod walk;
mod xattr_report;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use fourscore::Follow;
use fourscore_ondisk::InodeNr;

use args::{Cli, Verb};
use failure::{Failure, Result};
use image::Image;
use mkfs::ProgramName;
use output::Stdout;
use walk::Hashing;
use walk::host::HostTree;
use walk::image::ImageTree;
use walk::line::Detail;

/// Threads at most: more help on no host, and each takes memory.
const MAX_THREADS: usize = 1024;

/// The definition of the command line, from which man pages and completions are generated.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command with `arguments`, the program's name first. If that is the name of mke2fs,
/// fuse2fs or a helper of mount(8), the arguments are those of that program.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_verb = |word: &OsStr| Cli::command().find_subcommand(word).is_some();
    if let Some(translated) = mount::names::translate(&arguments, is_verb) {
        arguments = translated;
    }
    let program = arguments.first().and_then(|name| ProgramName::of(name));
    if program.is_some() {
        arguments.insert(1, "mkfs".into());
    }
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.under_name(program),
        Err(error) => {
            // Help and version are printed to standard output and are not errors.
            let status = if error.use_stderr() { 2 } else { 0 };
            // If this cannot be printed, there is no other place for the message.
            let _ = error.print();
            return ExitCode::from(status);
        }
    };
    match run(cli.verb) {
        Ok(()) | Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(failure @ (Failure::AlreadyReported | Failure::ErrorsLeft)) => {
            ExitCode::from(failure.status())
        }
        Err(failure) => {
            failure::message(&failure.to_string());
            ExitCode::from(failure.status())
        }
    }
}

fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Info(args) => info::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Stat(args) => stat::run(&args),
        Verb::Cat(args) => cat::run(&args),
        Verb::Readlink(args) => cat::readlink(&args),
        Verb::Cp(args) => cp::run(&args),
        Verb::Extract(args) => extract(&args),
        Verb::Walk(args) => walk(&args),
        Verb::Build(args) => build::run(&args),
        Verb::Mount(args) => mount::run(&args),
        Verb::KeepMount(args) => mount::keeper::run(&args),
        Verb::Mkfs(args) => mkfs::run(&args),
        Verb::Freefrag(args) => freefrag::run(&args),
        Verb::Filefrag(args) => filefrag::run(&args),
        Verb::Stats(args) => stats::run(&args),
        Verb::XattrReport(args) => xattr_report::run(&args),
        Verb::Tune(args) => live::tune(&args),
        Verb::Umount(args) => live::umount(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Check(args) => check::run(&args),
    }
}

/// The number of threads: the one that was given, or as many as cores, up to [`MAX_THREADS`].
fn threads(given: Option<usize>) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    given.unwrap_or_else(cores).clamp(1, MAX_THREADS)
}

fn extract(args: &args::Extract) -> Result<()> {
    let image = Image::open(&args.image)?;
    let threads = threads(args.threads);
    if args.destination.as_os_str() == "-" {
        tar::to_stdout(&image, threads, &mut Stdout::open()?)
    } else {
        extract::to_directory(&image, &args.destination, threads)
    }
}

fn walk(args: &args::Walk) -> Result<()> {
    let format = walk::Format {
        detail: if args.full {
            Detail::Full
        } else {
            Detail::Portable
        },
        hashing: if args.hash {
            Hashing::Sha256
        } else {
            Hashing::No
        },
    };
    let threads = threads(args.threads);
    if let Some(directory) = &args.host {
        let tree = HostTree::open(directory)?;
        return walk::print(&tree, format, threads, None, &mut Stdout::open()?);
    }
    let Some(spec) = &args.image else {
        return Err(Failure::new("walk", "give IMAGE or --host DIR"));
    };
    let image = Image::open(spec)?;
    let root = match &args.path {
        Some(path) => image.resolve(path, Follow::No)?,
        None => InodeNr::ROOT,
    };
    walk::print(
        &ImageTree::new(&image, root),
        format,
        threads,
        args.path.is_none().then(|| image.objects()),
        &mut Stdout::open()?,
    )
}
