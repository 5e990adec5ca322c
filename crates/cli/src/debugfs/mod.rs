//! **Purpose.** The command under the name `debugfs`: its options, and the requests that scripts
//! use.
//!
//! | module | responsibility |
//! |---|---|
//! | [`request`] | the table of requests, and the words of a line |
//! | [`session`] | the image, the working directory, and paths |
//! | [`show`] | ls, stat, ea_list, ea_get, blocks, bmap, ncheck |
//! | [`content`] | cat, dump, rdump, write |
//! | [`change`] | mkdir, rm, ln, and other changes of names and attributes |
//!
//! **Model.** Requests are given with `-R`, in a file with `-f`, or on standard input. The image is
//! opened once. As in debugfs, a request that fails says so on standard error, the next one runs,
//! and only unknown requests count for the exit status, not even an image that cannot be opened.
//! With `-R` and `-f` the status is their number, on standard input it is 0.
//!
//! **Not as in debugfs.** A change leaves a sound file system: `ln` counts the link, `rm` frees
//! what has no name left, and a journal is replayed first. `unlink`, `freei` and other requests
//! that make damage on purpose are not there. `ls` shows the least length of an entry, and `stat`
//! shows neither checksums nor the blocks of the map itself. Over 255 unknown requests give 255,
//! where the status of debugfs is the low byte of their number, which may be 0.
//!
//! **References.** debugfs(8).

mod change;
mod content;
mod request;
mod session;
mod show;

use std::ffi::OsString;
use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use clap::Args;

use crate::failure::{self, Failure, Result};
use crate::image::ImageSpec;
use crate::output::Stdout;
use session::Session;

/// `debugfs`
#[derive(Debug, Args)]
pub(crate) struct Debugfs {
    /// Image file or block device, with @p2 or @OFFSET for a partition
    image: Option<ImageSpec>,
    /// Opens the file system for changes
    #[arg(short = 'w')]
    write: bool,
    /// Bitmaps are not read before they are needed, which is so in any case
    #[arg(short = 'c')]
    catastrophic: bool,
    /// One request
    #[arg(short = 'R', value_name = "REQUEST", conflicts_with = "file")]
    request: Option<OsString>,
    /// Reads requests from a file, one on a line; - is standard input
    #[arg(short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
}

/// What happens after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Quit,
}

/// Runs `debugfs`.
pub(crate) fn run(args: &Debugfs) -> Result<()> {
    // As in debugfs, an image that cannot be opened is reported, and so is each request for it.
    let session = args
        .image
        .as_ref()
        .map(|spec| Session::open(spec, args.write));
    let mut session = session.transpose().unwrap_or_else(|failure| {
        failure::message(&failure.to_string());
        None
    });
    let mut out = Stdout::open()?;
    let mut unknown = 0_u8;
    if let Some(request) = &args.request {
        run_line(
            &mut session,
            request.as_encoded_bytes(),
            &mut out,
            &mut unknown,
        )?;
    } else {
        let mut lines = input(args)?;
        let mut line = Vec::new();
        let failed = |why| Failure::new("requests", why);
        while lines.read_until(b'\n', &mut line).map_err(failed)? > 0 {
            let text = line.trim_ascii();
            // As in debugfs, the requests of a script are printed with what they print.
            match text.first() {
                Some(b'#') if args.file.is_some() => out.write(&[text, b"\n"].concat())?,
                Some(_) if args.file.is_some() => {
                    out.write(&[b"debugfs: ", text, b"\n"].concat())?;
                }
                _ => {}
            }
            let next = run_line(&mut session, text, &mut out, &mut unknown)?;
            // As in debugfs, `quit` ends the requests of standard input, but no script.
            if next == Next::Quit && args.file.is_none() {
                break;
            }
            line.clear();
        }
    }
    out.finish()?;
    session.map_or(Ok(()), Session::close)?;
    match (unknown, &args.request, &args.file) {
        // Requests of standard input without `-f -` are those of a user at a terminal.
        (0, _, _) | (_, None, None) => Ok(()),
        (count, _, _) => Err(Failure::UnknownRequests { count }),
    }
}

fn input(args: &Debugfs) -> Result<Box<dyn BufRead>> {
    let text: Box<dyn Read> = match &args.file {
        Some(path) if path.as_os_str() != "-" => {
            let file = std::fs::File::open(path);
            Box::new(file.map_err(|why| Failure::new(path.display().to_string(), why))?)
        }
        _ => Box::new(io::stdin()),
    };
    Ok(Box::new(io::BufReader::new(text)))
}

/// Runs the request of a line, and reports its failure.
fn run_line(
    session: &mut Option<Session>,
    line: &[u8],
    out: &mut Stdout,
    unknown: &mut u8,
) -> Result<Next> {
    if line.is_empty() || line.starts_with(b"#") {
        return Ok(Next::Continue);
    }
    let ended = request::words(line).and_then(|words| request::run(session, &words, out));
    // Standard error and standard output may be one terminal.
    out.flush()?;
    match ended {
        Ok(next) => Ok(next),
        Err(Failure::BrokenPipe) => Err(Failure::BrokenPipe),
        Err(failure) => {
            let is_unknown = matches!(failure, Failure::Usage { .. });
            *unknown = unknown.saturating_add(u8::from(is_unknown));
            failure::message(&failure.to_string());
            Ok(Next::Continue)
        }
    }
}
