//! **Purpose.** `fourscore mount`: mounts an image on a directory, through FUSE.
//!
//! **Model.** Without `-f` the command starts itself again as the server and forwards the server's
//! messages until the server prints that the mount can be used. Then the command ends. The server
//! has left the terminal and the working directory by then, and its messages are no longer read.
//!
//! SIGTERM, SIGINT and SIGHUP unmount (under nohup, SIGHUP does nothing); open files stay usable
//! until they are closed. A second signal syncs the file system and ends the server at once.
//!
//! The server enters its sandbox (`fourscore_fuse::sandbox`) before it reads the image. So the
//! image is opened and the directory mounted first, and an error in the image removes the mount
//! again.
//!
//! If Linux waits for the server when it unmounts, the server ends as soon as it has answered that
//! request: after it, another program may use the device. Otherwise the server ends after it has
//! unmounted the file system.
//!
//! | module | responsibility |
//! |---|---|
//! | `figures` | a socket for statistics and tunables |
//! | `keeper` | a process outside the sandbox that can unmount |
//! | `names` | the command lines of fuse2fs, mount(8) and mount.fuse(8) |
//! | `notify` | notifies systemd |
//!
//! **Crash safety.** A server that finds an internal error ends without another write, and the next
//! mount recovers the image from the journal.

pub(crate) mod figures;
pub(crate) mod keeper;
pub(crate) mod names;
mod notify;

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use fourscore::{Error, Fs, MountOptions, OpenOptions, Replay};
use fourscore_block::{Access, BlockDevice, DeviceOptions, open_path};
use fourscore_fuse::sandbox::{self, SandboxError};
use fourscore_fuse::{Session, SessionOptions};
use fourscore_ondisk::superblock::SuperblockRejected;
use fourscore_sync::{Arc, Weak, thread};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result, message};
use crate::image::{ImageSpec, advice, device, parse_size};
use crate::signals;
use crate::verbosity::Verbosity;
use figures::Figures;
use keeper::Keeper;
use notify::Manager;

/// The line that the server prints when the mount can be used.
const READY: &str = "ready";
/// Time limit of the wait for another server to close the image. Linux does not wait for the server
/// of a user when it unmounts, so the server of the last mount may still be writing.
const BUSY_TIMEOUT: Duration = Duration::from_secs(3);
const BUSY_POLL: Duration = Duration::from_millis(10);

/// `mount`
#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// Image file or block device, with @OFFSET for a partition
    image: ImageSpec,
    /// Mount point, an empty directory
    #[arg(value_name = "DIR")]
    point: PathBuf,
    /// Options of the mount and of ext4, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Runs in the foreground until it is unmounted
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Runs the server without its sandbox
    #[arg(long)]
    no_sandbox: bool,
    /// Prints a line to standard error when it is ready, and then leaves the terminal
    #[arg(long, hide = true, requires = "foreground")]
    detach: bool,
}

impl Mount {
    /// The arguments of the server, after the flags that make it one.
    fn server_arguments(&self, verbosity: Verbosity) -> Vec<OsString> {
        let sandbox = self.no_sandbox.then_some("--no-sandbox");
        let flags = sandbox.into_iter().chain(verbosity.as_option());
        let mut image = self.image.path.clone().into_os_string();
        image.push(format!("@{}", self.image.offset_bytes));
        let mut line: Vec<OsString> = flags.map(OsString::from).collect();
        for options in &self.options {
            line.extend(["-o".into(), options.into()]);
        }
        line.extend(["--".into(), image, self.point.clone().into()]);
        line
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Mount, verbosity: Verbosity) -> Result<()> {
    match args.foreground {
        true => serve(args),
        false => start(args, verbosity),
    }
}

/// Starts the server, and waits until it is ready.
fn start(args: &Mount, verbosity: Verbosity) -> Result<()> {
    let failed = |why: io::Error| Failure::new("the server", why);
    let mut server = Command::new(std::env::current_exe().map_err(failed)?);
    server.arg0("fourscore");
    server.args(["mount", "--foreground", "--detach"]);
    server.args(args.server_arguments(verbosity));
    let null = Stdio::null;
    server.stdin(null()).stdout(null()).stderr(Stdio::piped());
    let mut server = server.spawn().map_err(failed)?;
    if let Some(messages) = server.stderr.take() {
        for line in BufReader::new(messages).lines() {
            match line.map_err(failed)? {
                ready if ready == READY => return Ok(()),
                message => forward(&message),
            }
        }
    }
    // It has printed an error, unless a signal has ended it.
    let status = server.wait().map_err(failed)?;
    match status.code() {
        Some(_) => Err(Failure::AlreadyReported),
        None => Err(Failure::new("the server", format!("ended by {status}"))),
    }
}

/// Prints a message of the server.
fn forward(line: &str) {
    // If standard error is closed, there is no other place for the message.
    let _ = writeln!(io::stderr(), "{line}");
}

fn serve(args: &Mount) -> Result<()> {
    let request = Request::of(args)?;
    let opened = Opened {
        device: open_device(&request)?,
        options: request.open_options()?,
        foreign: crate::foreign::failure(&request.image),
    };
    let point = args.point.display().to_string();
    let failed = |why: io::Error| Failure::new(point.as_str(), why);
    // Before the mount exists, so that no signal leaves it behind.
    let signals = Signals::new(signals::ending()).map_err(failed)?;
    let manager = Arc::new(Manager::of_environment());
    let session = Session::mount(&args.point, &request.session);
    let session = session.map_err(|why| Failure::new(point.as_str(), why))?;
    let keeper = Keeper::start(session.unmounter().point()).map_err(|why| {
        session.unmounter().abandon();
        failed(why)
    })?;
    let figures = Figures::at(session.unmounter().point());
    let mount = Mounted {
        session,
        figures,
        signals,
        manager,
        keeper: keeper.clone(),
    };
    let served = serve_mounted(args, &request, opened, mount);
    keeper.end();
    served
}

/// The devices of a file system, opened before the sandbox is entered.
struct Opened {
    device: Arc<dyn BlockDevice>,
    /// With the device of an external journal.
    options: OpenOptions,
    /// What to say of a file that holds no file system.
    foreign: Option<Failure>,
}

/// A mount, and what can end it.
struct Mounted {
    session: Session,
    figures: Figures,
    signals: Signals,
    manager: Arc<Manager>,
    keeper: Keeper,
}

/// Serves a mount until it ends. `/dev/fuse` is closed when this returns, so that no process waits
/// for a reply.
fn serve_mounted(
    args: &Mount,
    request: &Request,
    opened: Opened,
    mut mount: Mounted,
) -> Result<()> {
    let Opened {
        device,
        options,
        foreign,
    } = opened;
    let image = request.image.path.display().to_string();
    let in_image = |why| Failure::new(image.as_str(), why);
    let not_locked = |why: SandboxError| {
        let advice = "use --no-sandbox to run without it";
        Failure::new("the sandbox", why).advise(advice)
    };
    let enclosed = match args.no_sandbox {
        true => None,
        false => Some(sandbox::enclose().map_err(not_locked)?),
    };
    let options = match request.options.cache_size() {
        Some(bytes) => options.cache_bytes(bytes),
        None => options,
    };
    let fs = match request.session.is_read_only {
        true => Fs::open(device, &options),
        false => Fs::mount(device, &request.options.clone().open(options)),
    };
    let fs = fs.map_err(|why| match (&why, foreign) {
        (Error::Refused(SuperblockRejected::NotExt4 { .. }), Some(foreign)) => foreign,
        _ => match advice(&why) {
            Some(advice) => in_image(why).advise(advice),
            None => in_image(why),
        },
    })?;
    abort_on_panics();
    let manager = Arc::clone(&mount.manager);
    unmount_on_signals(mount.signals, mount.keeper, Arc::downgrade(&fs), manager);
    let latencies = mount.session.latencies();
    mount.figures.serve(&fs, latencies);
    let ready = || {
        if args.detach {
            leave_terminal()?;
        }
        if let Some(enclosed) = enclosed {
            enclosed.lock().map_err(io::Error::other)?;
        }
        if args.detach {
            writeln!(io::stderr(), "{READY}")?;
        }
        mount.manager.ready();
        Ok(())
    };
    let served = mount.session.serve(&fs, ready, exit_after_reply);
    drop(mount.session);
    mount.figures.end();
    let unmounted = fs.unmount().map_err(in_image);
    let point = args.point.display().to_string();
    served.map_err(|why| Failure::new(point, why))?;
    unmounted
}

/// The command line, with its options parsed.
#[derive(Debug)]
struct Request {
    image: ImageSpec,
    /// The device of an external journal.
    journal: Option<ImageSpec>,
    session: SessionOptions,
    replay: Replay,
    options: MountOptions,
}

impl Request {
    fn of(args: &Mount) -> Result<Self> {
        let mut session = SessionOptions {
            source: source_of(&args.image),
            ..SessionOptions::default()
        };
        let mut image = args.image.clone();
        let mut replay = Replay::InMemory;
        let mut journal = None;
        let mut words = Vec::new();
        let others = session.take(&args.options.join(","));
        for word in others.split(',') {
            match word.split_once('=') {
                // As in fuse2fs, a file system that is not recovered is not written to.
                None if matches!(word, "norecovery" | "noload") => {
                    replay = Replay::Ignore;
                    session.is_read_only = true;
                }
                Some(("journal_path", path)) => journal = Some(journal_spec(path)?),
                Some(("offset", offset)) => image.offset_bytes = offset_of(&image, offset)?,
                _ => words.push(word),
            }
        }
        let options = MountOptions::new().parse(&words.join(","));
        let options = options.map_err(|why| Failure::new(args.point.display().to_string(), why))?;
        Ok(Self {
            image,
            journal,
            session,
            replay,
            // With errors=panic, an error ends the server.
            options: options.on_panic(|why| {
                message(why);
                std::process::abort();
            }),
        })
    }
}

impl Request {
    /// Opens the image or the journal, for writing unless the mount is read-only.
    fn device(&self, spec: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
        match self.session.is_read_only {
            true => device(spec, DeviceOptions::default(), Access::ReadOnly),
            false => device(spec, DeviceOptions::read_write(), Access::ReadWrite),
        }
    }

    /// The options of opening the file system.
    fn open_options(&self) -> Result<OpenOptions> {
        let options = OpenOptions::new().replay(self.replay);
        Ok(match &self.journal {
            Some(journal) => options.journal_device(self.device(journal)?),
            None => options,
        })
    }
}

/// Parses the option `journal_path=`, the device of an external journal.
fn journal_spec(text: &str) -> Result<ImageSpec> {
    let refused = |why| Failure::new(format!("journal_path={text}"), why);
    ImageSpec::parse(text.as_ref()).map_err(refused)
}

/// Parses the option `offset=`, the offset of the file system.
fn offset_of(image: &ImageSpec, text: &str) -> Result<u64> {
    let refused = |why: &str| Err(Failure::new(format!("offset={text}"), why));
    match parse_size(text) {
        _ if image.offset_bytes != 0 => {
            refused("the image already has an offset after its @; give one of them")
        }
        Some(offset_bytes) => Ok(offset_bytes),
        None => refused("is not a number of bytes, as in offset=1M"),
    }
}

/// The source of the mount in `/proc/mounts`: the canonical path of the image, under which
/// umount(8), findmnt(8) and `mount -a` look for it. The offset in the name of the image follows
/// it, in the largest unit that it is a multiple of.
pub(crate) fn source_of(image: &ImageSpec) -> OsString {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "T"),
        (1 << 30, "G"),
        (1 << 20, "M"),
        (1 << 10, "K"),
    ];
    let path = std::fs::canonicalize(&image.path);
    // An error is reported when the image is opened.
    let mut source = path.unwrap_or_else(|_| image.path.clone()).into_os_string();
    let bytes = image.offset_bytes;
    if bytes > 0 {
        let unit = UNITS.iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
        let (unit, letter) = unit.unwrap_or(&(1, ""));
        source.push(format!("@{}{letter}", bytes / unit));
    }
    source
}

/// Opens the image, for writing unless the mount is read-only.
fn open_device(request: &Request) -> Result<Arc<dyn BlockDevice>> {
    if !request.session.is_read_only {
        wait_while_busy(&request.image);
    }
    request.device(&request.image)
}

/// Waits while another process has the image open for writing, for [`BUSY_TIMEOUT`] at most. The
/// caller finds out whether the image can be opened then.
fn wait_while_busy(image: &ImageSpec) {
    let start = Instant::now();
    let is_busy = || {
        open_path(&image.path, DeviceOptions::read_write())
            .is_err_and(|why| why.kind() == io::ErrorKind::ResourceBusy)
    };
    while start.elapsed() < BUSY_TIMEOUT && is_busy() {
        std::thread::sleep(BUSY_POLL);
    }
}

/// Ends a server for whose reply the kernel has waited, and which must not write any more.
fn exit_after_reply(ended: fourscore::Result<()>) {
    let status = match ended {
        Ok(()) => 0,
        Err(why) => {
            message(&why.to_string());
            1
        }
    };
    std::process::exit(status);
}

/// Leaves the terminal and the working directory of the command, so that the server does not keep
/// them busy.
fn leave_terminal() -> io::Result<()> {
    std::env::set_current_dir("/")?;
    rustix::process::setsid()?;
    Ok(())
}

/// Makes a panic of a worker end the server. Otherwise its requests would never be answered, and
/// what it was changing would stay half done. The journal recovers the image.
fn abort_on_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}

fn unmount_on_signals(mut signals: Signals, keeper: Keeper, fs: Weak<Fs>, manager: Arc<Manager>) {
    thread::spawn(move || {
        let mut is_first = true;
        for _ in signals.forever() {
            if !is_first {
                if let Some(fs) = fs.upgrade()
                    && let Err(why) = fs.sync()
                {
                    message(&why.to_string());
                }
                std::process::exit(1);
            }
            is_first = false;
            manager.stopping();
            // In another thread, so that this one can take the second signal.
            let keeper = keeper.clone();
            thread::spawn(move || {
                if let Err(why) = keeper.unmount() {
                    message(&format!("unmount: {why}"));
                }
            });
        }
    });
}
