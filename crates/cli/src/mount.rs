//! **Purpose.** `fourscore mount`: an image as a directory, through FUSE.
//!
//! **Model.** Without `-f` the command starts itself anew as the server, and hands on what that
//! says until it says that the mount can be used. Then the command ends, and nobody listens to the
//! server any more, which has left the terminal and the directory it was started in.
//!
//! SIGTERM, SIGINT and SIGHUP unmount. Who has something open keeps it until he is done; a second
//! signal makes durable what was done and ends the server at once.
//!
//! **Crash safety.** A server that fails a check of its own ends without writing any more, and the
//! next mount recovers the image.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use fourscore::{Fs, MountOptions, OpenOptions};
use fourscore_block::{Access, DeviceOptions, open_path};
use fourscore_fuse::{Session, SessionOptions, Unmounter};
use fourscore_sync::{Arc, Weak, thread};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result, say};
use crate::image::{ImageSpec, device};

/// What the server says when the mount can be used.
const READY: &str = "ready";
/// So long a mount waits for another server to let go of the image: Linux does not wait for the
/// server when it unmounts, so the last one may still be writing.
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
    let mut session = SessionOptions {
        source: image.clone(),
        ..SessionOptions::default()
    };
    let words = session.take(&args.options.join(","));
    let options = MountOptions::new().parse(&words);
    let options = options.map_err(|why| Failure::new(args.point.display().to_string(), why))?;
    // Where nothing may be in an unknown state, whoever finds one ends the server.
    let options = options.on_panic(|why| {
        say(why);
        std::process::abort();
    });
    let fs = open(args, &session, &options)?;
    let mounted = mount_and_serve(args, &session, &fs);
    let unmounted = fs.unmount().map_err(|why| Failure::new(image, why));
    mounted.and(unmounted)
}

/// Opens the file system: for reading if nothing is to be written.
fn open(args: &Mount, session: &SessionOptions, options: &MountOptions) -> Result<Arc<Fs>> {
    let opened = if session.is_read_only {
        let device = device(&args.image, DeviceOptions::default(), Access::ReadOnly)?;
        Fs::open(device, &OpenOptions::new())
    } else {
        wait_for_the_last_server(args);
        let device = device(&args.image, DeviceOptions::read_write(), Access::ReadWrite)?;
        Fs::mount(device, options)
    };
    opened.map_err(|why| Failure::new(args.image.path.display().to_string(), why))
}

/// Waits while somebody has the image open for writing, but not for long. Whether it can be opened
/// then is seen by opening it.
fn wait_for_the_last_server(args: &Mount) {
    let start = Instant::now();
    let is_busy = || {
        open_path(&args.image.path, DeviceOptions::read_write())
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
    let mounted = Session::mount(&args.point, session);
    let mounted = mounted.map_err(|why| Failure::new(point.as_str(), why))?;
    end_on_panics();
    unmount_on_signals(signals, mounted.unmounter(), Arc::downgrade(fs));
    let mut detached = Ok(());
    let served = mounted.serve(fs, || {
        if args.detach {
            detached = detach();
        }
    });
    served.and(detached).map_err(failed)
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

fn unmount_on_signals(mut signals: Signals, unmounter: Unmounter, fs: Weak<Fs>) {
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
