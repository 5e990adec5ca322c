//! **Purpose.** The `fourscore` command as a library: [`main`] runs it, [`command`] describes it
//! for man pages and shell completions.
//!
//! **Model.** Each verb is a module that calls the public library and prints. Errors are one line
//! `fourscore: WHAT: WHY (ADVICE)` on standard error. The exit status is 0 for success, 1 for an
//! error, and 2 for a wrong command line, or what the program gives by whose name the command is
//! called; `check` has the exit statuses of e2fsck. If the reader of standard output closes it, the
//! command ends without a message: with status 0 where the output is a list or data of files, of
//! which a reader may want the beginning (`ls`, `walk`, `cat`), and else with 141, since what it
//! would have said or written is not there.
//!
//! | module | responsibility |
//! |---|---|
//! | `args` | verbs and options |
//! | `failure` | errors and their messages |
//! | `image`, `partition` | `IMAGE[@PART]` and opening it |
//! | `qcow2` | reads images in the qcow2 format |
//! | `foreign` | what a file is that is no image |
//! | `spelling`, `glob` | `IMAGE:PATH`, and patterns in paths |
//! | `verbosity` | `-q` and `-v` |
//! | `signals` | the signals that end a command |
//! | `output` | standard output through one large buffer |
//! | `text`, `facts`, `time` | numbers and names as text, attributes of objects, times |
//! | `tree` | walks a tree with many threads and outputs in order |
//! | `content`, `progress` | data runs of a file, the progress bar |
//! | `mb_stats` | the allocator's counters as JSON |
//! | `build`, `info`, `ls`, `stat`, `cat`, `cp`, `edit`, `extract`, `tar`, `walk`, `mount`, `mkfs`, `freefrag`, `filefrag`, `stats`, `bench`, `lab`, `check`, `live`, `tune`, `resize`, `xattr_report`, `manual` | the verbs |
#![forbid(unsafe_code)]

mod args;
mod bench;
mod build;
mod cat;
mod check;
mod content;
mod cp;
mod debugfs;
mod e2fsprogs;
mod edit;
mod extract;
mod facts;
mod failure;
mod filefrag;
mod foreign;
mod freefrag;
mod glob;
mod image;
mod info;
mod lab;
mod live;
mod ls;
mod manual;
mod mb_stats;
mod mkfs;
mod mount;
mod output;
mod partition;
mod progress;
mod qcow2;
mod resize;
mod signals;
mod spelling;
mod stat;
mod stats;
mod tar;
mod text;
mod time;
mod tree;
mod tune;
mod verbosity;
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
/// another program of e2fsprogs, fuse2fs or a helper of mount(8), the arguments are those of that
/// program.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_verb = |word: &OsStr| Cli::command().find_subcommand(word).is_some();
    // An argument of another program may be the path of an image, and looks like a call by
    // mount.fuse(8) then.
    let mut usage_status = 2;
    let mut other_program = None;
    if let Some(translated) = e2fsprogs::translate(&arguments) {
        let translated = match translated {
            Ok(translated) => translated,
            Err(refused) => {
                failure::message(&refused.message);
                return ExitCode::from(refused.status);
            }
        };
        if let Some(warning) = translated.warning {
            failure::message(warning);
        }
        (arguments, usage_status) = (translated.arguments, translated.program.usage_status());
        other_program = Some(translated.program);
    } else if let Some(translated) = mount::names::translate(&arguments, is_verb) {
        arguments = translated;
    }
    let mut arguments = spelling::split(arguments);
    let program = arguments.first().and_then(|name| ProgramName::of(name));
    if program.is_some() {
        usage_status = 1;
        arguments.insert(1, "mkfs".into());
    }
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.under_name(program),
        Err(error) => {
            // Help and version are printed to standard output and are not errors.
            let status = if error.use_stderr() { usage_status } else { 0 };
            // If this cannot be printed, there is no other place for the message.
            let _ = error.print();
            return ExitCode::from(status);
        }
    };
    cli.verbosity.begin();
    let image = match &cli.verb {
        Verb::Info(args) => args.image.clone(),
        _ => None,
    };
    let may_stop = matches!(cli.verb, Verb::Ls(_) | Verb::Walk(_) | Verb::Cat(_));
    let Err(failure) = run(cli) else {
        return ExitCode::SUCCESS;
    };
    match failure {
        Failure::BrokenPipe if may_stop => return ExitCode::SUCCESS,
        Failure::BrokenPipe
        | Failure::AlreadyReported
        | Failure::UnknownRequests { .. }
        | Failure::ErrorsLeft
        | Failure::ErrorsMended => {}
        _ => failure::message(&failure.to_string()),
    }
    ExitCode::from(match failure {
        Failure::Usage { .. } => usage_status,
        _ => other_program
            .and_then(|program| program.failure_status(image.as_ref(), &failure))
            .unwrap_or_else(|| failure.status()),
    })
}

fn run(cli: Cli) -> Result<()> {
    let verbosity = cli.verbosity;
    match cli.verb {
        Verb::Info(args) => info::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Stat(args) => stat::run(&args),
        Verb::Cat(args) => cat::run(&args),
        Verb::Readlink(args) => cat::readlink(&args),
        Verb::Cp(args) => cp::run(&args),
        Verb::Edit(args) => edit::run(&args),
        Verb::Extract(args) => extract(&args),
        Verb::Walk(args) => walk(&args),
        Verb::Build(args) => build::run(&args),
        Verb::Mount(args) => mount::run(&args, verbosity),
        Verb::KeepMount(args) => mount::keeper::run(&args),
        Verb::Mkfs(args) => mkfs::run(&args, verbosity),
        Verb::Freefrag(args) => freefrag::run(&args),
        Verb::Filefrag(args) => filefrag::run(&args),
        Verb::Stats(args) => stats::run(&args),
        Verb::XattrReport(args) => xattr_report::run(&args),
        Verb::Tune(args) => tune::run(&args),
        Verb::Debugfs(args) => debugfs::run(&args),
        Verb::Resize(args) => resize::run(&args),
        Verb::PrintLabel(args) => tune::print_label(&args),
        Verb::Umount(args) => live::umount(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Lab(args) => lab::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Completions(args) => manual::completions(&args),
        Verb::Man(args) => manual::man(&args),
    }
}

/// The number of threads: the one that was given, or as many as cores, up to [`MAX_THREADS`].
fn threads(given: Option<usize>) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    given.unwrap_or_else(cores).clamp(1, MAX_THREADS)
}

fn extract(args: &args::Extract) -> Result<()> {
    let to_archive = args.destination.as_os_str() == "-";
    if to_archive && !args.paths.is_empty() {
        let why = "are extracted to a directory; an archive has the whole tree";
        return Err(Failure::usage("paths", why));
    }
    let image = Image::open(&args.image)?;
    let threads = threads(args.threads);
    if !args.paths.is_empty() {
        extract::paths(&image, &args.destination, &args.paths, threads)
    } else if to_archive {
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
        form: match args.json {
            true => walk::Form::Json,
            false => walk::Form::Lines,
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
