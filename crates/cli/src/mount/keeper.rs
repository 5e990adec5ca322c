//! **Purpose.** A process beside the server that can end the mount when the server, which has given
//! up the right to, wants it ended, and when the server has died.
//!
//! **Model.** The server starts it when the mount is there, before it locks itself up. Its standard
//! input is a pipe from the server: a byte asks for the unmount, and is answered with a line that
//! says why it failed, or is empty. When the pipe ends, so has the server; a mount that it left
//! behind is taken away, so that nobody meets a directory that only says that nobody is connected.
//! One that answers is another one, which has come to the same place meanwhile, and is left alone.
//!
//! It reads nothing of the image, and takes no word of the server's but to unmount.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use clap::Args;
use fourscore_fuse::Unmounter;
use fourscore_sync::{Arc, Mutex};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result};

/// What asks for the unmount.
const UNMOUNT: u8 = b'u';
/// How often it is asked at most, and how long in between, whether the server is there: a second.
const MOST_QUESTIONS: u32 = 100;
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(10);

/// `keep-mount`, for the server alone
#[derive(Debug, Args)]
pub(crate) struct KeepMount {
    point: PathBuf,
}

/// The process, as the server sees it.
#[derive(Clone, Debug)]
pub(super) struct Keeper(Arc<Mutex<Option<Pipes>>>);

#[derive(Debug)]
struct Pipes {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Keeper {
    /// Starts one for the mount on `point`.
    pub(super) fn start(point: &Path) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0("fourscore").arg("keep-mount").arg(point);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let (Some(asks), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::other("started without pipes"));
        };
        let mut answers = BufReader::new(answers);
        // It says when it can keep the mount.
        answers.read_line(&mut String::new())?;
        Ok(Self(Arc::new(Mutex::new(Some(Pipes {
            process,
            asks,
            answers,
        })))))
    }

    /// Has the mount ended, as [`Unmounter::unmount`] does.
    pub(super) fn unmount(&self) -> io::Result<()> {
        let mut pipes = self.0.lock();
        let Some(pipes) = pipes.as_mut() else {
            return Ok(());
        };
        pipes.asks.write_all(&[UNMOUNT])?;
        let mut why = String::new();
        pipes.answers.read_line(&mut why)?;
        match why.trim_end() {
            "" => Ok(()),
            why => Err(io::Error::other(why)),
        }
    }

    /// Waits until nothing of the mount is left. The server is done with it.
    pub(super) fn end(&self) {
        if let Some(Pipes {
            mut process, asks, ..
        }) = self.0.lock().take()
        {
            drop(asks);
            // Nobody can be told what it could not do; the mount shows it.
            let _ = process.wait();
        }
    }
}

/// Runs the process.
pub(crate) fn run(args: &KeepMount) -> Result<()> {
    let failed = |why: io::Error| Failure::new(args.point.display().to_string(), why);
    // They are the server's to understand; held here, they end nobody.
    let _held = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    std::env::set_current_dir("/").map_err(failed)?;
    let unmounter = Unmounter::of(args.point.clone());
    let (mut asks, mut answers) = (io::stdin().lock(), io::stdout().lock());
    let mut asked = [0];
    loop {
        // A server that has ended reads no answer.
        let _ = writeln!(answers).and_then(|()| answers.flush());
        match asks.read(&mut asked) {
            Ok(1) => {}
            _ => break,
        }
        if let Err(why) = unmounter.unmount() {
            let _ = write!(answers, "{}", why.to_string().replace('\n', " "));
        }
    }
    // Opened without asking anybody, it stays this mount whatever comes to its place.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(root) = rustix::fs::open(&args.point, flags, Mode::empty())
        && is_dead(&root)
    {
        unmounter.abandon_root(&root);
    }
    Ok(())
}

/// Whether nobody is connected to the mount with this root. The kernel is made to ask.
fn is_dead(root: &OwnedFd) -> bool {
    let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::EMPTY_PATH;
    for _ in 0..MOST_QUESTIONS {
        match rustix::fs::statx(root, "", flags, StatxFlags::BASIC_STATS) {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => return true,
            // A ring that goes cancels what it was about to hand on, and the next answer tells
            // whether its server goes with it.
            Err(Errno::CANCELED) => std::thread::sleep(BETWEEN_QUESTIONS),
            _ => return false,
        }
    }
    true
}
