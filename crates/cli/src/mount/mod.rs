//! **Purpose.** `fourscore mount`: an image as a directory, through FUSE.
//!
//! **Model.** Without `-f` the command starts itself anew as the server, and hands on what that
//! says until it says that the mount can be used. Then the command ends, and nobody listens to the
//! server any more, which has left the terminal and the directory it was started in.
//!
//! SIGTERM, SIGINT and SIGHUP unmount. Who has something open keeps it until he is done; a second
//! signal makes durable what was done and ends the server at once.
//!
//! Where Linux waits for the server when it unmounts, the server ends as soon as it has answered:
//! then the device is somebody else's. Elsewhere it ends after it has unmounted the file system.
//!
//! | module | responsibility |
//! |---|---|
//! | `notify` | systemd is told when it is ready |
//!
//! **Crash safety.** A server that fails a check of its own ends without writing any more, and the
//! next mount recovers the image.

mod notify;

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use fourscore::{Fs, MountOptions, OpenOptions, Replay};
use fourscore_block::{Access, DeviceOptions, open_path};
use fourscore_fuse::{Session, SessionOptions, Unmounter};
use fourscore_sync::{Arc, Weak, thread};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result, say};
use crate::image::{ImageSpec, device, parse_size};
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
    /// Says on standard error when it is ready, and leaves the terminal then
    #[arg(long, hide = true, requires = "foreground")]
    detach: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Mount) -> Result<()> {
    match args.foreground {
        true => serve(args),
        false => start(),
    }
}

/// Starts the server, and waits until it is ready.
fn start() -> Result<()> {
    let failed = |why: io::Error| Failure::new("the server", why);
    let mut server = Command::new(std::env::current_exe().map_err(failed)?);
    // The arguments behind the verb, as they were typed.
    server.args(["mount", "--foreground", "--detach"]);
    server.args(std::env::args_os().skip(2));
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
    let image = args.image.path.display().to_string();
    let wanted = Wanted::of(args)?;
    let fs = open(&wanted)?;
    let mounted = mount_and_serve(args, &wanted.session, &fs);
    let unmounted = fs.unmount().map_err(|why| Failure::new(image, why));
    mounted.and(unmounted)
}

/// What the command line asks for.
#[derive(Debug)]
struct Wanted {
    image: ImageSpec,
    session: SessionOptions,
    replay: Replay,
    options: MountOptions,
}

impl Wanted {
    fn of(args: &Mount) -> Result<Self> {
        let mut session = SessionOptions {
            source: args.image.path.display().to_string(),
            ..SessionOptions::default()
        };
        let mut image = args.image.clone();
        let mut replay = Replay::InMemory;
        let mut words = Vec::new();
        let others = session.take(&args.options.join(","));
        for word in others.split(',') {
            match word.split_once('=') {
                // As with fuse2fs, what is not recovered is not written either.
                None if matches!(word, "norecovery" | "noload") => {
                    replay = Replay::Ignore;
                    session.is_read_only = true;
                }
                Some(("offset", offset)) => image.offset_bytes = offset_of(&image, offset)?,
                _ => words.push(word),
            }
        }
        let options = MountOptions::new().parse(&words.join(","));
        let options = options.map_err(|why| Failure::new(args.point.display().to_string(), why))?;
        Ok(Self {
            image,
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

/// Where the file system begins, by the option `offset=`.
fn offset_of(image: &ImageSpec, text: &str) -> Result<u64> {
    let refused = |why: &str| Err(Failure::new(format!("offset={text}"), why));
    match parse_size(text) {
        _ if image.offset_bytes != 0 => refused("the image has an offset behind its @ already"),
        Some(offset_bytes) => Ok(offset_bytes),
        None => refused("not a number of bytes"),
    }
}

/// Opens the file system: for reading if nothing is to be written.
fn open(wanted: &Wanted) -> Result<Arc<Fs>> {
    let image = &wanted.image;
    let opened = if wanted.session.is_read_only {
        let device = device(image, DeviceOptions::default(), Access::ReadOnly)?;
        Fs::open(device, &OpenOptions::new().replay(wanted.replay))
    } else {
        wait_for_the_last_server(image);
        let device = device(image, DeviceOptions::read_write(), Access::ReadWrite)?;
        Fs::mount(device, &wanted.options)
    };
    opened.map_err(|why| Failure::new(image.path.display().to_string(), why))
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

fn mount_and_serve(args: &Mount, session: &SessionOptions, fs: &Arc<Fs>) -> Result<()> {
    let point = args.point.display().to_string();
    let failed = |why: io::Error| Failure::new(point.as_str(), why);
    // Before the mount is there, so that no signal leaves it behind.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let manager = Arc::new(Manager::of_environment());
    let mounted = Session::mount(&args.point, session);
    let mounted = mounted.map_err(|why| Failure::new(point.as_str(), why))?;
    end_on_panics();
    let on_signals = (mounted.unmounter(), Arc::downgrade(fs));
    unmount_on_signals(signals, on_signals, Arc::clone(&manager));
    let mut detached = Ok(());
    let ready = || {
        if args.detach {
            detached = detach();
        }
        manager.ready();
    };
    let served = mounted.serve(fs, ready, farewell);
    served.and(detached).map_err(failed)
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

/// Tells the command that started this that the mount can be used, and leaves its terminal.
fn detach() -> io::Result<()> {
    // The directory the command stood in must not be kept busy by its server.
    std::env::set_current_dir("/")?;
    rustix::process::setsid()?;
    writeln!(io::stderr(), "{READY}")
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
    (unmounter, fs): (Unmounter, Weak<Fs>),
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
            let unmounter = unmounter.clone();
            thread::spawn(move || {
                if let Err(why) = unmounter.unmount() {
                    say(&format!("unmount: {why}"));
                }
            });
        }
    });
}
