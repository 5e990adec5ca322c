//! **Purpose.** A process outside the sandbox that unmounts: on request of the server, whose
//! sandbox forbids it, and when the server has died.
//!
//! **Model.** The server starts this process after mounting, before it enters its sandbox. The
//! process's standard input is a pipe from the server. A byte requests the unmount; the reply is a
//! line with the error, or an empty line. When the pipe ends, the server has ended. If the mount is
//! still there, it is removed, so that no process finds a directory that fails with `ENOTCONN`. A
//! mount that answers is a new one on the same directory, and stays.
//!
//! The process reads nothing of the image, and the only request it takes from the server is to
//! unmount.

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

/// The request to unmount.
const UNMOUNT: u8 = b'u';
/// Number of probes whether a server answers, and the pause between them: a second in all.
const MAX_PROBES: u32 = 100;
const PROBE_INTERVAL: Duration = Duration::from_millis(10);

/// `keep-mount`, which only the server calls
#[derive(Debug, Args)]
pub(crate) struct KeepMount {
    point: PathBuf,
}

/// The server's handle of the process.
#[derive(Clone, Debug)]
pub(super) struct Keeper(Arc<Mutex<Option<Pipes>>>);

#[derive(Debug)]
struct Pipes {
    process: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Keeper {
    /// Starts the process for the mount on `point`.
    pub(super) fn start(point: &Path) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0("fourscore").arg("keep-mount").arg(point);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let (Some(requests), Some(replies)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::other("the process has no pipes"));
        };
        let mut replies = BufReader::new(replies);
        // The first line comes when the process is ready.
        replies.read_line(&mut String::new())?;
        Ok(Self(Arc::new(Mutex::new(Some(Pipes {
            process,
            requests,
            replies,
        })))))
    }

    /// Unmounts, as [`Unmounter::unmount`] does.
    pub(super) fn unmount(&self) -> io::Result<()> {
        let mut pipes = self.0.lock();
        let Some(pipes) = pipes.as_mut() else {
            return Ok(());
        };
        pipes.requests.write_all(&[UNMOUNT])?;
        let mut why = String::new();
        pipes.replies.read_line(&mut why)?;
        match why.trim_end() {
            "" => Ok(()),
            why => Err(io::Error::other(why)),
        }
    }

    /// Ends the process, which removes the mount if it is still there, and waits for that.
    pub(super) fn end(&self) {
        if let Some(Pipes {
            mut process,
            requests,
            ..
        }) = self.0.lock().take()
        {
            drop(requests);
            // There is no place for an error; a mount that is left behind shows it.
            let _ = process.wait();
        }
    }
}

/// Runs the process.
pub(crate) fn run(args: &KeepMount) -> Result<()> {
    let failed = |why: io::Error| Failure::new(args.point.display().to_string(), why);
    // The server handles these signals. Caught here, they do not end this process.
    let _held = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    std::env::set_current_dir("/").map_err(failed)?;
    let unmounter = Unmounter::of(args.point.clone());
    let (mut requests, mut replies) = (io::stdin().lock(), io::stdout().lock());
    let mut request = [0];
    loop {
        // A server that has ended reads no reply.
        let _ = writeln!(replies).and_then(|()| replies.flush());
        match requests.read(&mut request) {
            Ok(1) => {}
            _ => break,
        }
        if let Err(why) = unmounter.unmount() {
            let _ = write!(replies, "{}", why.to_string().replace('\n', " "));
        }
    }
    // O_PATH sends no request to the server, and refers to this mount even if another one is
    // mounted over it.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(root) = rustix::fs::open(&args.point, flags, Mode::empty())
        && is_dead(&root)
    {
        unmounter.abandon_root(&root);
    }
    Ok(())
}

/// `STATX_FORCE_SYNC` of statx(2), which rustix has for glibc only.
const STATX_FORCE_SYNC: AtFlags = AtFlags::from_bits_retain(0x2000);

/// Whether the mount with this root has no server. [`STATX_FORCE_SYNC`] makes the kernel send a
/// request.
fn is_dead(root: &OwnedFd) -> bool {
    let flags = STATX_FORCE_SYNC | AtFlags::EMPTY_PATH;
    for _ in 0..MAX_PROBES {
        match rustix::fs::statx(root, "", flags, StatxFlags::BASIC_STATS) {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => return true,
            // A ring that is closed cancels its pending requests. The next probe shows whether the
            // server has ended.
            Err(Errno::CANCELED) => std::thread::sleep(PROBE_INTERVAL),
            _ => return false,
        }
    }
    true
}
