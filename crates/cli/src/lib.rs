//! **Purpose.** The `fourscore` command as a library: [`main`] runs it, [`command`] describes it
//! for man pages and shell completions.
//!
//! **Model.** Each verb reads an image through the public library and prints. Errors are one line
//! `fourscore: WHAT: WHY (what to do)` on standard error; the exit status is 0 when everything was
//! done, 1 when something failed, 2 when the command line was wrong; `check` has e2fsck's.
//! A reader of standard output that goes away ends the command quietly.
//!
//! | module | responsibility |
//! |---|---|
//! | `args` | verbs and options |
//! | `failure` | errors as people meet them |
//! | `image` | `IMAGE[@OFFSET]` and opening it |
//! | `output` | standard output through one big buffer |
//! | `text`, `facts` | numbers, names, stat facts as bytes |
//! | `tree` | a tree walked by many threads, its output in order |
//! | `content`, `progress`, `time` | runs of a file, the progress bar, moments for people |
//! | `build`, `info`, `ls`, `stat`, `cat`, `cp`, `extract`, `tar`, `walk`, `mount`, `mkfs`, `freefrag`, `filefrag`, `stats`, `bench`, `check`, `live` | the verbs |
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

/// More threads help nobody, and no host has any number of them.
const MOST_THREADS: usize = 1024;

/// The command line, for what is generated from it.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command with `arguments`, the program's name first. Under a name of mke2fs, fuse2fs or
/// a helper of mount(8) the arguments are that program's.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_verb = |word: &OsStr| Cli::command().find_subcommand(word).is_some();
    if let Some(translated) = mount::names::translated(&arguments, is_verb) {
        arguments = translated;
    }
    let program = arguments.first().and_then(|name| ProgramName::of(name));
    if program.is_some() {
        arguments.insert(1, "mkfs".into());
    }
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.under_name(program),
        Err(error) => {
            // Help and version go to standard output and are no error.
            let status = if error.use_stderr() { 2 } else { 0 };
            // Nobody is left to tell when this cannot be printed.
            let _ = error.print();
            return ExitCode::from(status);
        }
    };
    match run(cli.verb) {
        Ok(()) | Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(failure @ (Failure::AlreadyTold | Failure::ErrorsLeft)) => {
            ExitCode::from(failure.status())
        }
        Err(failure) => {
            failure::say(&failure.to_string());
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
        Verb::Tune(args) => live::tune(&args),
        Verb::Umount(args) => live::umount(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Check(args) => check::run(&args),
    }
}

/// As many threads as asked for, within reason, or as this process may run at once.
fn threads(asked: Option<usize>) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.unwrap_or_else(cores).clamp(1, MOST_THREADS)
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
        return Err(Failure::new(
            "walk",
            "neither an image nor a directory was named",
        ));
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
