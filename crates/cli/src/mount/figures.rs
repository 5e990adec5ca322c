//! **Purpose.** A socket of the server, which returns statistics and sets tunables of a mount.
//!
//! **Model.** The socket has an abstract name, which contains the device number of the mount, so
//! that a client can find it by the mount point. A request is one line, and the reply ends with the
//! stream:
//!
//! | request | reply |
//! |---|---|
//! | `stats` | the statistics as JSON |
//! | `tune NAME VALUE` | empty, or an error message |
//! | `resize SIZE` | `BEFORE AFTER BYTES`: blocks, and bytes of a block; or `error: ` and a message |
//! | `wait` | empty, when the server has ended |
//!
//! The server answers root and its own user, and closes the connections of others; the kernel gives
//! the peer's user (`SO_PEERCRED`). The client checks in the same way that the server runs as root
//! or as its own user.
//!
//! **Names that are used again.** The kernel may give the device number of a mount that has ended
//! to the next one. So a server closes its socket as soon as its mount has ended, before it commits
//! what is left, and a new server waits for the name.
//!
//! **Locking.** One lock is held while a request is answered, so that an unmount does not find
//! another reference to the file system.

use fourscore::Fs;
use fourscore::stats::JournalStats;
use fourscore_fuse::Latencies;
use fourscore_mballoc::Tunable;
use fourscore_ondisk::BlockCount;
use fourscore_resize::grow_mounted;
use fourscore_sync::{Arc, Mutex, Weak, thread};
use serde_json::{Map, Value, json};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::mb_stats::mb_stats_to_json;
use crate::resize::{NOT_A_SIZE, blocks_of};

const ONLY_GROWS: &str = "a mounted file system only grows: unmount it to make it smaller";

/// Precedes the message of a resize that failed.
pub(crate) const ERROR: &str = "error: ";

/// The longest request, in bytes.
const LINE_BYTES: u64 = 256;

/// How long a new server waits for the name of its socket.
const PATIENCE: Duration = Duration::from_secs(2);

/// The socket of a server.
#[derive(Debug)]
pub(super) struct Figures {
    listener: Option<Arc<UnixListener>>,
    fs: Arc<Mutex<Weak<Fs>>>,
}

impl Figures {
    /// Binds the socket for the mount on `point`. If that fails, the mount is served without it.
    pub(super) fn at(point: &Path) -> Self {
        let listener = address(point).and_then(|address| bind(&address));
        Self {
            listener: listener.ok().map(Arc::new),
            fs: Arc::default(),
        }
    }

    /// Answers requests in a new thread.
    pub(super) fn serve(&self, fs: &Arc<Fs>, latencies: Arc<Latencies>) {
        *self.fs.lock() = Arc::downgrade(fs);
        let Some(listener) = self.listener.clone() else {
            return;
        };
        let fs = Arc::clone(&self.fs);
        thread::spawn(move || {
            // Streams of clients that wait; they end with the process.
            let mut waiting = Vec::new();
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => {
                        let answered = answer(stream, &fs, &latencies);
                        waiting.extend(answered.ok().flatten());
                    }
                    // It was shut down.
                    Err(why) if why.kind() == io::ErrorKind::InvalidInput => break,
                    Err(_) => {}
                }
            }
            drop(listener);
            // The process ends soon, and with it the waiting of the clients.
            thread::park();
            drop(waiting);
        });
    }

    /// Drops the reference to the file system, and closes the socket. Clients that wait for the end
    /// of the server go on waiting.
    pub(super) fn end(&mut self) {
        *self.fs.lock() = Weak::new();
        if let Some(listener) = self.listener.take() {
            // It cannot fail: the socket listens.
            let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
        }
    }
}

/// Binds a socket; waits while the server of a mount that has ended still has one of that name.
fn bind(address: &SocketAddr) -> io::Result<UnixListener> {
    let began = Instant::now();
    loop {
        match UnixListener::bind_addr(address) {
            Err(why) if why.kind() == io::ErrorKind::AddrInUse && began.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(1));
            }
            bound => return bound,
        }
    }
}

/// Answers one request. Returns the stream of a client that waits.
fn answer(
    stream: UnixStream,
    fs: &Mutex<Weak<Fs>>,
    latencies: &Latencies,
) -> io::Result<Option<UnixStream>> {
    if !is_trusted(&stream)? {
        return Ok(None);
    }
    let mut line = String::new();
    BufReader::new((&stream).take(LINE_BYTES)).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let fs = fs.lock();
    let reply = match (words.as_slice(), fs.upgrade()) {
        (["wait"], _) => return Ok(Some(stream)),
        (_, None) => "the file system is being unmounted".into(),
        (["stats"], Some(fs)) => stats(&fs, latencies).to_string(),
        (["tune", name, value], Some(fs)) => tune(&fs, name, value).err().unwrap_or_default(),
        (["resize", size], Some(fs)) => resize(&fs, size),
        _ => "unknown request".into(),
    };
    (&stream).write_all(reply.as_bytes())?;
    Ok(None)
}

/// Makes the file system larger, and the image file with it. `-` is the size of the device.
fn resize(fs: &Fs, size: &str) -> String {
    let before = fs.geometry().blocks();
    let block_size = fs.geometry().block_size();
    let grown = match size {
        "-" => fs
            .device()
            .lengthen(0)
            .map_err(|why| why.to_string())
            .map(|has_bytes| BlockCount(has_bytes >> block_size.bits())),
        _ => blocks_of(size, block_size).ok_or_else(|| NOT_A_SIZE.into()),
    };
    let grown = grown.and_then(|wish| match wish < before {
        true if size == "-" => Ok(before),
        true => Err(ONLY_GROWS.into()),
        false => grow_mounted(fs, wish).map_err(|why| why.to_string()),
    });
    match grown {
        Ok(after) => format!("{} {} {}", before.0, after.0, block_size.bytes()),
        Err(why) => format!("{ERROR}{why}"),
    }
}

fn tune(fs: &Fs, name: &str, value: &str) -> Result<(), String> {
    let value = value
        .parse()
        .map_err(|_| format!("{value} is not a number"))?;
    fs.tune(name, value).map_err(|why| why.to_string())
}

fn journal_to_json(journal: &JournalStats, operation_restarts: u64) -> Value {
    let longest = journal.gate_closed.iter().max();
    json!({
        "commits": journal.commits,
        "log_blocks": journal.log_blocks,
        "new_blocks": journal.new_blocks,
        "log_blocks_in_use": journal.used_blocks,
        "waits": journal.waits,
        "gate_closed_longest_us": longest.map(|time| time.as_secs_f64() * 1e6),
        "operation_restarts": operation_restarts,
    })
}

fn stats(fs: &Fs, latencies: &Latencies) -> Value {
    let operations = latencies.operations().into_iter().map(|operation| {
        let mean = operation.total / u32::try_from(operation.requests).unwrap_or(u32::MAX).max(1);
        let times = json!({
            "requests": operation.requests,
            "mean_us": mean.as_secs_f64() * 1e6,
            "below_2_to_the_i_us": operation.histogram,
        });
        (operation.name.to_owned(), times)
    });
    let mut all = json!({ "operations": operations.collect::<Map<_, _>>() });
    let counted = fs.stats();
    let buffers = counted.buffers;
    all["buffers"] = json!({
        "loads": buffers.cache.loads,
        "insertions": buffers.cache.insertions,
        "evictions": buffers.cache.evictions,
        "waits_for_loads": buffers.cache.load_waits,
        "read_blocks": buffers.read_blocks,
        "read_ahead_blocks": buffers.read_ahead_blocks,
    });
    let waits = Fs::lock_waits().map(|(name, waits)| {
        let times = json!({
            "waits": waits.count,
            "total_us": waits.time.as_secs_f64() * 1e6,
        });
        (name.to_owned(), times)
    });
    all["locks"] = Value::Object(waits.collect());
    // A read-only mount has no more statistics.
    if let (Some(mount), Ok(tunables)) = (counted.mount, fs.tunables()) {
        let journal = mount.journal;
        if tunables.get(Tunable::MbStats) != 0 {
            all["mb_stats"] = mb_stats_to_json(&mount.allocator.to_string());
        }
        all["journal"] = journal_to_json(&journal, mount.plan_restarts);
        if let Some(shared) = mount.xattr_sharing {
            all["xattr_sharing"] = json!({
                "lookups": shared.lookups,
                "bypassed": shared.bypassed,
                "hits": shared.hits,
                "shared": shared.shared,
                "at_limit": shared.at_limit,
                "unequal": shared.unequal,
                "vanished": shared.vanished,
                "busy": shared.busy,
                "own_places": shared.own_places,
                "offered": shared.offered,
                "evictions": shared.evictions,
                "blocks_saved": shared.blocks_saved,
                "lookups_total_us": shared.time.as_secs_f64() * 1e6,
            });
        }
        if let Some(fast) = mount.fast_commits {
            let reasons = fast.reasons.into_iter();
            let reasons = reasons.map(|(name, count)| (name.to_owned(), count.into()));
            all["fc_info"] = json!({
                "commits": fast.commits,
                "ineligible": fast.ineligible,
                "numblks": fast.blocks,
                "avg_commit_time_us": fast.commit_time.as_secs_f64() * 1e6,
                "records": fast.records,
                "operations": fast.operations,
                "ineligible_reasons": Value::Object(reasons.collect()),
            });
        }
    }
    let values = fs.tunable_values().into_iter();
    let values = values.map(|(name, value)| (name.to_owned(), value.into()));
    all["tunables"] = Value::Object(values.collect());
    all
}

/// Sends a request to the server of the mount on `point` and returns the reply.
///
/// # Errors
/// `NotFound` if nothing is mounted there; `ConnectionRefused` if no server listens, or one of
/// another user.
pub(crate) fn request(point: &Path, request: &str) -> io::Result<String> {
    let mut reply = String::new();
    send(point, request)?.read_to_string(&mut reply)?;
    Ok(reply)
}

/// Sends a request and returns the stream of the reply.
pub(crate) fn send(point: &Path, request: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&address(&point.canonicalize()?)?)?;
    if !is_trusted(&stream)? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    writeln!(stream, "{request}")?;
    stream.shutdown(Shutdown::Write)?;
    Ok(stream)
}

/// Whether the peer is root or the user of this process.
fn is_trusted(stream: &UnixStream) -> io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
    Ok(peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

fn address(point: &Path) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "is not a mount point");
    let device = device_of(point).ok_or_else(none)?;
    SocketAddr::from_abstract_name(format!("fourscore/{device}"))
}

/// The device number of the mount on a directory.
fn device_of(point: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let point = escaped(point.to_str()?);
    // Of several mounts on one directory, the last one is visible.
    mounts.lines().rev().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        (words.get(4) == Some(&point.as_str())).then(|| words[2].to_owned())
    })
}

/// The directory on which fourscore has mounted `source`.
pub(crate) fn point_of(source: &OsStr) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let source = escaped(source.to_str()?);
    mounts.lines().rev().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let kind: Vec<&str> = kind.split(' ').collect();
        let is_ours = kind.first()?.ends_with(TYPE_SUFFIX);
        let is_same = kind.get(1) == Some(&source.as_str());
        let point = place.split(' ').nth(4).filter(|_| is_ours && is_same)?;
        Some(PathBuf::from(unescaped(point)))
    })
}

/// Ends the type of a mount of fourscore.
const TYPE_SUFFIX: &str = ".fourscore";

/// Characters that mountinfo has as octal numbers; the backslash is the first.
const ESCAPES: [(&str, &str); 4] = [
    ("\\", "\\134"),
    (" ", "\\040"),
    ("\t", "\\011"),
    ("\n", "\\012"),
];

/// A path in the format of mountinfo.
fn escaped(path: &str) -> String {
    ESCAPES.iter().fold(path.to_owned(), |path, (plain, code)| {
        path.replace(plain, code)
    })
}

/// The path of which `escaped` made the text.
fn unescaped(text: &str) -> String {
    let escapes = ESCAPES.iter().rev();
    escapes.fold(text.to_owned(), |path, (plain, code)| {
        path.replace(code, plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_mount_is_found() {
        let root = device_of(Path::new("/")).expect("it is mounted");
        assert_eq!(root.split(':').count(), 2, "{root}");
        assert_eq!(device_of(Path::new("/no/such/mount")), None);
        assert_eq!(escaped("/a b\\c"), "/a\\040b\\134c");
    }
}
