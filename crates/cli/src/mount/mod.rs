//! **Purpose.** `fourscore mount`: an image as a directory, through FUSE.
//!
//! **Model.** Without `-f` the command starts itself anew as the server, and hands on what that
//! says until it says that the mount can be used. Then the command ends, and nobody listens to the
//! server any more, which has left the terminal and the directory it was started in.
//!
//! SIGTERM, SIGINT and SIGHUP unmount. Who has something open keeps it until he is done; a second
//! signal makes durable what was done and ends the server at once.
//!
//! The server locks itself up before it looks at the image (`fourscore_fuse::sandbox`): image and
//! mount are opened first, and whatever is wrong with the image takes the mount away again.
//!
//! Where Linux waits for the server when it unmounts, the server ends as soon as it has answered:
//! then the device is somebody else's. Elsewhere it ends after it has unmounted the file system.
//!
//! | module | responsibility |
//! |---|---|
//! | `figures` | a socket over which the server tells its figures |
//! | `keeper` | a process outside of the sandbox that can unmount |
//! | `names` | the command lines of fuse2fs, mount(8) and mount.fuse(8) |
//! | `notify` | systemd is told when it is ready |
//!
//! **Crash safety.** A server that fails a check of its own ends without writing any more, and the
//! next mount recovers the image.

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
use fourscore_sync::{Arc, Weak, thread};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result, say};
use crate::image::{ImageSpec, JOURNAL_ADVICE, device, parse_size};
use figures::Figures;
use keeper::Keeper;
use notify::Manager;

/// What the server says when the mount can be used.
const READY: &str = "ready";
/// So long a mount waits for another server to let go of the image: Linux does not wait for the
/// server of a user when it unmounts, so the last one may still be writing.
const PATIENCE: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(10);

/// `mount`
#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// Image file or block device, with @OFFSET for a partition
    image: ImageSpec,
    /// An empty directory
    #[arg(value_name = "DIR")]
    point: PathBuf,
    /// Options of the mount and of ext4, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stays in the foreground, until it is unmounted
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Leaves the server all rights that it was started with
    #[arg(long)]
    no_sandbox: bool,
    /// Says on standard error when it is ready, and leaves the terminal then
    #[arg(long, hide = true, requires = "foreground")]
    detach: bool,
}

impl Mount {
    /// The command line for the server, behind the flags that make it one.
    fn again(&self) -> Vec<OsString> {
        let sandbox = self.no_sandbox.then_some("--no-sandbox");
        let mut image = self.image.path.clone().into_os_string();
        image.push(format!("@{}", self.image.offset_bytes));
        let mut line: Vec<OsString> = sandbox.into_iter().map(OsString::from).collect();
        for options in &self.options {
            line.extend(["-o".into(), options.into()]);
        }
        line.extend(["--".into(), image, self.point.clone().into()]);
        line
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Mount) -> Result<()> {
    match args.foreground {
        true => serve(args),
        false => start(args),
    }
}

/// Starts the server, and waits until it is ready.
fn start(args: &Mount) -> Result<()> {
    let failed = |why: io::Error| Failure::new("the server", why);
    let mut server = Command::new(std::env::current_exe().map_err(failed)?);
    server.arg0("fourscore");
    server.args(["mount", "--foreground", "--detach"]);
    server.args(args.again());
    let null = Stdio::null;
    server.stdin(null()).stdout(null()).stderr(Stdio::piped());
    let mut server = server.spawn().map_err(failed)?;
    if let Some(said) = server.stderr.take() {
        for line in BufReader::new(said).lines() {
            match line.map_err(failed)? {
                ready if ready == READY => return Ok(()),
                told => tell(&told),
            }
        }
    }
    // It has told why, unless something ended it.
    let status = server.wait().map_err(failed)?;
    match status.code() {
        Some(_) => Err(Failure::AlreadyTold),
        None => Err(Failure::new("the server", format!("ended by {status}"))),
    }
}

/// Hands on what the server said.
fn tell(line: &str) {
    // When standard error is gone there is no other place to say so.
    let _ = writeln!(io::stderr(), "{line}");
}

fn serve(args: &Mount) -> Result<()> {
    let wanted = Wanted::of(args)?;
    let device = open_device(&wanted)?;
    let reading = wanted.open_options()?;
    let point = args.point.display().to_string();
    let failed = |why: io::Error| Failure::new(point.as_str(), why);
    // Before the mount is there, so that no signal leaves it behind.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let manager = Arc::new(Manager::of_environment());
    let session = Session::mount(&args.point, &wanted.session);
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
    let served = serve_mounted(args, &wanted, (device, reading), mount);
    keeper.end();
    served
}

/// A mount, and what can end it.
struct Mounted {
    session: Session,
    figures: Figures,
    signals: Signals,
    manager: Arc<Manager>,
    keeper: Keeper,
}

/// Serves a mount until it ends. `/dev/fuse` is closed when this returns, so that nobody waits for
/// an answer.
fn serve_mounted(
    args: &Mount,
    wanted: &Wanted,
    (device, reading): (Arc<dyn BlockDevice>, OpenOptions),
    mut mount: Mounted,
) -> Result<()> {
    let image = wanted.image.path.display().to_string();
    let in_image = |why| Failure::new(image.as_str(), why);
    let not_locked = |why: SandboxError| {
        let advice = "--no-sandbox goes without";
        Failure::new("the sandbox", why).advise(advice)
    };
    let enclosed = match args.no_sandbox {
        true => None,
        false => Some(sandbox::enclose().map_err(not_locked)?),
    };
    let fs = match wanted.session.is_read_only {
        true => Fs::open(device, &reading),
        false => Fs::mount(device, &wanted.options.clone().open(reading)),
    };
    let fs = fs.map_err(|why| match why {
        Error::JournalNotGiven { .. } => in_image(why).advise(JOURNAL_ADVICE),
        _ => in_image(why),
    })?;
    end_on_panics();
    let on_signals = (mount.keeper, Arc::downgrade(&fs));
    unmount_on_signals(mount.signals, on_signals, Arc::clone(&mount.manager));
    let latencies = mount.session.latencies();
    mount.figures.answer_for(&fs, latencies);
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
    let served = mount.session.serve(&fs, ready, farewell);
    drop(mount.session);
    mount.figures.end();
    let unmounted = fs.unmount().map_err(in_image);
    let point = args.point.display().to_string();
    served.map_err(|why| Failure::new(point, why))?;
    unmounted
}

/// What the command line asks for.
#[derive(Debug)]
struct Wanted {
    image: ImageSpec,
    /// The device of an external journal.
    journal: Option<ImageSpec>,
    session: SessionOptions,
    replay: Replay,
    options: MountOptions,
}

impl Wanted {
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
                // As with fuse2fs, what is not recovered is not written either.
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
            // Where nothing may be in an unknown state, whoever finds one ends the server.
            options: options.on_panic(|why| {
                say(why);
                std::process::abort();
            }),
        })
    }
}

impl Wanted {
    /// The image or the journal, opened for writing unless nothing is to be written.
    fn device(&self, spec: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
        match self.session.is_read_only {
            true => device(spec, DeviceOptions::default(), Access::ReadOnly),
            false => device(spec, DeviceOptions::read_write(), Access::ReadWrite),
        }
    }

    /// How the file system is read.
    fn open_options(&self) -> Result<OpenOptions> {
        let options = OpenOptions::new().replay(self.replay);
        Ok(match &self.journal {
            Some(journal) => options.journal_device(self.device(journal)?),
            None => options,
        })
    }
}

/// The device of an external journal, by the option `journal_path=`.
fn journal_spec(text: &str) -> Result<ImageSpec> {
    let refused = |why| Failure::new(format!("journal_path={text}"), why);
    ImageSpec::parse(text.as_ref()).map_err(refused)
}

/// Where the file system begins, by the option `offset=`.
fn offset_of(image: &ImageSpec, text: &str) -> Result<u64> {
    let refused = |why: &str| Err(Failure::new(format!("offset={text}"), why));
    match parse_size(text) {
        _ if image.offset_bytes != 0 => refused("the image has an offset behind its @ already"),
        Some(offset_bytes) => Ok(offset_bytes),
        None => refused("not a number of bytes"),
    }
}

/// What the mount is called in `/proc/mounts`: the image by the name under which umount(8),
/// findmnt(8) and `mount -a` look for it, which is its canonical path. An offset of the image's own
/// name follows it in the largest unit that it is a multiple of.
fn source_of(image: &ImageSpec) -> OsString {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "T"),
        (1 << 30, "G"),
        (1 << 20, "M"),
        (1 << 10, "K"),
    ];
    let path = std::fs::canonicalize(&image.path);
    // Whatever is wrong with it is told when it is opened.
    let mut source = path.unwrap_or_else(|_| image.path.clone()).into_os_string();
    let bytes = image.offset_bytes;
    if bytes > 0 {
        let unit = UNITS.iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
        let (unit, letter) = unit.unwrap_or(&(1, ""));
        source.push(format!("@{}{letter}", bytes / unit));
    }
    source
}

/// Opens the image: for reading if nothing is to be written.
fn open_device(wanted: &Wanted) -> Result<Arc<dyn BlockDevice>> {
    if !wanted.session.is_read_only {
        wait_for_the_last_server(&wanted.image);
    }
    wanted.device(&wanted.image)
}

/// Waits while somebody has the image open for writing, but not for long. Whether it can be opened
/// then is seen by opening it.
fn wait_for_the_last_server(image: &ImageSpec) {
    let start = Instant::now();
    let is_busy = || {
        open_path(&image.path, DeviceOptions::read_write())
            .is_err_and(|why| why.kind() == io::ErrorKind::ResourceBusy)
    };
    while start.elapsed() < PATIENCE && is_busy() {
        std::thread::sleep(STEP);
    }
}

/// The end of a server for which the kernel has waited, and which must not write any more.
fn farewell(ended: fourscore::Result<()>) {
    let status = match ended {
        Ok(()) => 0,
        Err(why) => {
            say(&why.to_string());
            1
        }
    };
    std::process::exit(status);
}

/// Leaves the terminal and the directory of the command that started this, which must not be kept
/// busy by its server.
fn leave_terminal() -> io::Result<()> {
    std::env::set_current_dir("/")?;
    rustix::process::setsid()?;
    Ok(())
}

/// A worker that panics would leave its requests unanswered, and whatever it was changing in
/// between: the server ends instead, and the journal brings the image back.
fn end_on_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

fn unmount_on_signals(
    mut signals: Signals,
    (keeper, fs): (Keeper, Weak<Fs>),
    manager: Arc<Manager>,
) {
    thread::spawn(move || {
        let mut is_first = true;
        for _ in signals.forever() {
            if !is_first {
                if let Some(fs) = fs.upgrade()
                    && let Err(why) = fs.sync()
                {
                    say(&why.to_string());
                }
                std::process::exit(1);
            }
            is_first = false;
            manager.stopping();
            // In a thread of its own, so that another signal is heard meanwhile.
            let keeper = keeper.clone();
            thread::spawn(move || {
                if let Err(why) = keeper.unmount() {
                    say(&format!("unmount: {why}"));
                }
            });
        }
    });
}
