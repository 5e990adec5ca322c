//! **Purpose.** `fourscore edit`: changes an image without mounting it.
//!
//! | module | responsibility |
//! |---|---|
//! | [`verbs`] | the verbs and their arguments |
//! | [`script`] | splits scripts into words |
//! | [`session`] | opens the image, and makes the changes durable |
//! | [`names`] | rm, rmdir, mkdir, mv, ln, mknod |
//! | [`data`] | write, truncate, touch |
//! | [`attributes`] | chmod, chown, chattr, setfattr |
//! | [`acl`] | setfacl |
//! | [`quota`] | setquota |
//! | [`mode`], [`ids`] | permissions, users and groups as text |
//!
//! **Model.** A command line has one change, a script any number of them, one on a line. The image
//! is mounted once. The first error ends the script; it is reported with its line. A change of a
//! command line goes on with its other paths, and with the rest of a tree, unless it is atomic.
//! What is made belongs to user and group 0, with umask 022: the user who edits an image has no
//! meaning in it.
//!
//! **Crash safety.** With `--atomic` a crash, and an error, leave all changes or none: [`session`].

mod acl;
mod attributes;
pub(crate) mod data;
pub(crate) mod ids;
mod mode;
mod names;
mod quota;
mod script;
mod session;
mod verbs;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, ValueEnum};
use fourscore::{Error, Fs};
use uuid::Uuid;

use crate::failure::{Failure, Problems, Result};
use crate::glob;
use crate::image::ImageSpec;
use script::ScriptLine;
use session::Session;
use verbs::{EditVerb, Line};

/// `edit`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = false,
    subcommand_negates_reqs = true
)]
pub(crate) struct Edit {
    /// Image file or block device, with @OFFSET for a partition
    image: ImageSpec,
    /// Reads changes from standard input, one on a line
    #[arg(value_name = "-", value_parser = ["-"], hide_possible_values = true)]
    standard_input: Option<String>,
    /// Reads changes from a file, one on a line; - is standard input
    #[arg(
        short = 'f',
        long,
        value_name = "FILE",
        conflicts_with = "standard_input"
    )]
    file: Option<PathBuf>,
    /// All changes are made or none, whatever happens: by one transaction of the journal, or in a
    /// copy of the image that replaces it
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "journal")]
    atomic: Option<Atomic>,
    #[command(subcommand)]
    verb: Option<EditVerb>,
}

/// How all changes are made at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Atomic {
    /// By one transaction of the journal
    Journal,
    /// In a copy that replaces the image
    Copy,
}

/// Runs `edit`.
pub(crate) fn run(args: &Edit) -> Result<()> {
    let script = match (&args.file, &args.standard_input) {
        (Some(file), _) if file.as_os_str() != "-" => {
            let name = file.display().to_string();
            let text = std::fs::read(file).map_err(|why| Failure::new(name.as_str(), why))?;
            Some((name, text, Stdin::IsFree))
        }
        (None, None) => None,
        _ => {
            let mut text = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut text);
            read.map_err(|why| Failure::new("standard input", why))?;
            Some(("standard input".to_owned(), text, Stdin::IsScript))
        }
    };
    let run: &dyn Fn(&Fs) -> Result<()> = match (&args.verb, &script) {
        (Some(verb), None) => &|fs| {
            let image = args.image.path.display();
            let report = Report {
                image: image.to_string(),
                problems: Problems::default(),
            };
            let failing = match args.atomic {
                None => Failing::IsReported(&report),
                Some(_) => Failing::Ends,
            };
            let changed = change(fs, verb, Input::Standard, failing);
            changed.map_err(|failure| failure.within(image))?;
            report.problems.result()
        },
        (None, Some((name, text, stdin))) => &|fs| run_script(fs, name, text, *stdin),
        (Some(_), Some(_)) => {
            let why = "gives changes in two ways; use a script, or one change after the image";
            return Err(Failure::usage("edit", why));
        }
        (None, None) => {
            let why = "give a change, as in `fourscore edit disk.img rm /x`, -f FILE or -";
            return Err(Failure::usage("edit", why));
        }
    };
    let session = Session::begin(&args.image, args.atomic)?;
    match run(session.fs()) {
        Ok(()) => session.finish(),
        Err(failure) => {
            // The first error is the one that counts.
            let _ = session.give_up();
            Err(failure)
        }
    }
}

/// What standard input is while a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stdin {
    IsFree,
    IsScript,
}

/// Makes the changes of a script.
fn run_script(fs: &Fs, name: &str, text: &[u8], stdin: Stdin) -> Result<()> {
    // Built once: that takes longer than a change.
    let mut command = Line::command();
    for line in script::lines(text) {
        let line =
            line.map_err(|wrong| Failure::new(format!("{name}:{}", wrong.number), wrong.why))?;
        let place = format!("{name}:{}", line.number);
        run_line(fs, &mut command, &line, stdin).map_err(|failure| failure.within(place))?;
    }
    Ok(())
}

fn run_line(fs: &Fs, command: &mut clap::Command, line: &ScriptLine, stdin: Stdin) -> Result<()> {
    let first = line
        .words
        .first()
        .map_or(OsStr::new("<"), OsString::as_os_str);
    let parsed = command
        .try_get_matches_from_mut(&line.words)
        .and_then(|matches| Line::from_arg_matches(&matches));
    let verb = parsed.map_err(|error| {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let reason = text.split("\n\n").next().unwrap_or_default();
        let words: Vec<&str> = reason.split_whitespace().collect();
        Failure::usage(first.display().to_string(), words.join(" "))
    })?;
    let input = match (&verb.verb, &line.input, stdin) {
        (EditVerb::Write(_), Some(file), _) => Input::File(file.into()),
        (EditVerb::Write(_), None, Stdin::IsScript) => {
            let why = "has no data: standard input is the script; give <FILE";
            return Err(Failure::usage("write", why));
        }
        (EditVerb::Write(_), None, Stdin::IsFree) | (_, None, _) => Input::Standard,
        (_, Some(_), _) => {
            let why = "takes no <FILE; only write does";
            return Err(Failure::usage(first.display().to_string(), why));
        }
    };
    change(fs, &verb.verb, input, Failing::Ends)
}

/// Makes one change.
fn change(fs: &Fs, verb: &EditVerb, input: Input, failing: Failing<'_>) -> Result<()> {
    tracing::info!(change = ?verb, "edit");
    match verb {
        EditVerb::Rm(args) => names::rm(fs, args, failing),
        EditVerb::Rmdir(args) => names::rmdir(fs, args, failing),
        EditVerb::Mkdir(args) => names::mkdir(fs, args, failing),
        EditVerb::Mv(args) => names::mv(fs, args, failing),
        EditVerb::Ln(args) => names::ln(fs, args),
        EditVerb::Mknod(args) => names::mknod(fs, args),
        EditVerb::Write(args) => data::write(fs, args, input),
        EditVerb::Truncate(args) => data::truncate(fs, args, failing),
        EditVerb::Touch(args) => data::touch(fs, args, failing),
        EditVerb::Chmod(args) => attributes::chmod(fs, args, failing),
        EditVerb::Chown(args) => attributes::chown(fs, args, failing),
        EditVerb::Chattr(args) => attributes::chattr(fs, args, failing),
        EditVerb::Setfattr(args) => attributes::setfattr(fs, args, failing),
        EditVerb::Setfacl(args) => acl::setfacl(fs, args, failing),
        EditVerb::Setquota(args) => quota::setquota(fs, args),
        EditVerb::Label(args) => {
            let label = args.label.as_encoded_bytes();
            fs.set_label(label)
                .map_err(|why| Failure::new("label", why))
        }
        EditVerb::Uuid(args) => set_uuid(fs, &args.uuid),
    }
}

fn set_uuid(fs: &Fs, text: &str) -> Result<()> {
    let uuid = fourscore_mkfs::parse_uuid("uuid", text);
    let uuid = uuid.map_err(|why| {
        let failure = Failure::usage("uuid", why.to_string());
        failure.advise("give a UUID, random or clear")
    })?;
    let uuid = uuid.map_or_else(random_uuid, Ok)?;
    fs.set_uuid(uuid).map_err(|why| {
        let is_dependent = matches!(why, Error::Unsupported(_));
        let failure = Failure::new("uuid", why);
        match is_dependent {
            true => failure.advise("use tune2fs -U, which writes all checksums"),
            false => failure,
        }
    })
}

/// A random UUID.
pub(crate) fn random_uuid() -> Result<Uuid> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|why| Failure::new("/dev/urandom", why))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

/// Where data to write comes from.
enum Input {
    Standard,
    File(PathBuf),
}

/// Open data to write.
struct Source {
    name: String,
    reader: Box<dyn Read>,
}

impl Input {
    fn open(self) -> Result<Source> {
        match self {
            Self::Standard => Ok(Source {
                name: "standard input".into(),
                reader: Box::new(io::stdin()),
            }),
            Self::File(path) => {
                let name = path.display().to_string();
                let file = File::open(&path).map_err(|why| Failure::new(name.as_str(), why))?;
                Ok(Source {
                    name,
                    reader: Box::new(file),
                })
            }
        }
    }
}

/// What follows when a change fails at one of several paths, or at an object of a tree.
#[derive(Clone, Copy)]
enum Failing<'r> {
    /// The change ends: in a script, and with `--atomic`.
    Ends,
    /// It is reported and the others are changed, as by the programs of the same names.
    IsReported(&'r Report),
}

/// The failures of a change that goes on.
struct Report {
    image: String,
    problems: Problems,
}

impl Failing<'_> {
    fn meet(self, failure: Failure) -> Result<()> {
        match self {
            Self::Ends => Err(failure),
            Self::IsReported(report) => {
                report.problems.report(&failure.within(&report.image));
                Ok(())
            }
        }
    }
}

/// The paths that paths and patterns stand for.
fn expanded(fs: &Fs, paths: &[verbs::InImage], failing: Failing<'_>) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::with_capacity(paths.len());
    for verbs::InImage(path) in paths {
        match glob::expand(fs, path).map_err(wrong(path)) {
            Ok(found) => all.extend(found),
            Err(failure) => failing.meet(failure)?,
        }
    }
    Ok(all)
}

/// Makes a change at each of the paths that paths and patterns stand for.
fn at_each(
    fs: &Fs,
    paths: &[verbs::InImage],
    failing: Failing<'_>,
    mut change: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    for path in &expanded(fs, paths, failing)? {
        change(path).or_else(|failure| failing.meet(failure))?;
    }
    Ok(())
}

/// Makes an error about a path inside the image.
fn wrong(path: &[u8]) -> impl Fn(Error) -> Failure {
    move |why| Failure::at(path, why)
}

/// Permissions as an octal number.
fn octal(text: &str) -> Result<u16> {
    let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u16::from_str_radix(text, 8).ok().filter(|_| digits);
    mode.filter(|&mode| mode <= 0o7777)
        .ok_or_else(|| Failure::usage(format!("-m '{text}'"), "is no octal number up to 7777"))
}
