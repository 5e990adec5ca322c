//! **Purpose.** A socket beside the server, over which it tells its figures and takes new values of
//! tunables while it serves.
//!
//! **Model.** The socket has no place in the file system, but a name that follows from the number
//! of the mount's device, so that who knows the mount finds it. A request is a line, the reply is
//! everything up to the end of the stream:
//!
//! | request | reply |
//! |---|---|
//! | `stats` | the figures, as JSON |
//! | `tune NAME VALUE` | empty, or why not |
//! | `wait` | nothing, until the server has ended |
//!
//! Root and the user who runs the server are answered, others are hung up on: the kernel says who
//! somebody is. The client looks in the same way whether it talks to root or to its own user.
//!
//! **Locking.** One lock, held while a request is answered, so that a file system that is being
//! unmounted is in nobody else's hands.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

use fourscore::mballoc::Tunable;
use fourscore::{Arc, Fs};
use fourscore_fuse::Latencies;
use fourscore_sync::{Mutex, Weak, thread};
use serde_json::{Map, Value, json};

use crate::mb_stats::mb_stats_to_json;

/// The longest request, in bytes.
const LINE_BYTES: u64 = 256;

/// What a server tells of.
#[derive(Debug)]
pub(super) struct Figures {
    listener: Option<UnixListener>,
    fs: Arc<Mutex<Weak<Fs>>>,
}

impl Figures {
    /// A socket for the mount on `point`, to which nobody listens yet. Without one it is served all
    /// the same.
    pub(super) fn at(point: &Path) -> Self {
        let listener = address(point).and_then(|address| UnixListener::bind_addr(&address));
        Self {
            listener: listener.ok(),
            fs: Arc::default(),
        }
    }

    /// Answers in a thread of its own.
    pub(super) fn answer_for(&mut self, fs: &Arc<Fs>, latencies: Arc<Latencies>) {
        *self.fs.lock() = Arc::downgrade(fs);
        let Some(listener) = self.listener.take() else {
            return;
        };
        let fs = Arc::clone(&self.fs);
        thread::spawn(move || {
            // Those who wait; their streams end with the process.
            let mut waiting = Vec::new();
            for stream in listener.incoming() {
                let answered = stream.and_then(|stream| answer(stream, &fs, &latencies));
                waiting.extend(answered.ok().flatten());
            }
        });
    }

    /// Lets go of the file system.
    pub(super) fn end(&self) {
        *self.fs.lock() = Weak::new();
    }
}

/// Answers one request; gives the stream of somebody who waits.
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
        _ => "no such request".into(),
    };
    (&stream).write_all(reply.as_bytes())?;
    Ok(None)
}

fn tune(fs: &Fs, name: &str, value: &str) -> Result<(), String> {
    let value = value.parse().map_err(|_| "not a number".to_owned())?;
    let tunables = fs.tunables().map_err(|why| why.to_string())?;
    tunables
        .set_by_name(name, value)
        .map_err(|why| why.to_string())
}

fn stats(fs: &Fs, latencies: &Latencies) -> Value {
    let operations = latencies.told().into_iter().map(|operation| {
        let mean = operation.total / u32::try_from(operation.requests).unwrap_or(u32::MAX).max(1);
        let times = json!({
            "requests": operation.requests,
            "mean_us": mean.as_secs_f64() * 1e6,
            "below_2_to_the_i_us": operation.histogram,
        });
        (operation.name.to_owned(), times)
    });
    let mut all = json!({ "operations": operations.collect::<Map<_, _>>() });
    let buffers = fs.buffer_stats();
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
    // Of what was mounted for reading there is no more to tell.
    if let (Ok(mb_stats), Ok(journal), Ok(tunables)) =
        (fs.mb_stats(), fs.journal_stats(), fs.tunables())
    {
        all["mb_stats"] = mb_stats_to_json(&mb_stats.to_string());
        let longest = journal.gate_closed.iter().max();
        all["journal"] = json!({
            "commits": journal.commits,
            "log_blocks": journal.log_blocks,
            "log_blocks_in_use": journal.used_blocks,
            "gate_closed_longest_us": longest.map(|time| time.as_secs_f64() * 1e6),
            "plans_begun_anew": fs.plans_begun_anew().ok(),
        });
        let values = Tunable::ALL
            .iter()
            .map(|&tunable| (tunable.name().to_owned(), tunables.get(tunable).into()));
        all["tunables"] = Value::Object(values.collect());
    }
    all
}

/// Asks the server of the mount on `point`.
///
/// # Errors
/// `NotFound` if nothing is mounted there; `ConnectionRefused` if nobody answers for it, or
/// somebody who must not.
pub(crate) fn ask(point: &Path, request: &str) -> io::Result<String> {
    let mut reply = String::new();
    asked(point, request)?.read_to_string(&mut reply)?;
    Ok(reply)
}

/// The stream on which the reply comes.
pub(crate) fn asked(point: &Path, request: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&address(&point.canonicalize()?)?)?;
    if !is_trusted(&stream)? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    writeln!(stream, "{request}")?;
    stream.shutdown(Shutdown::Write)?;
    Ok(stream)
}

/// Whether the other side is root, or the user of this process.
fn is_trusted(stream: &UnixStream) -> io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
    Ok(peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

fn address(point: &Path) -> io::Result<SocketAddr> {
    let device = device_of(point).ok_or(io::ErrorKind::NotFound)?;
    SocketAddr::from_abstract_name(format!("fourscore/{device}"))
}

/// The number of the device that is mounted on a directory.
fn device_of(point: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let point = escaped(point.to_str()?);
    // Of several on one place the last one counts.
    mounts.lines().rev().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        (words.get(4) == Some(&point.as_str())).then(|| words[2].to_owned())
    })
}

/// A path as mountinfo writes it.
fn escaped(path: &str) -> String {
    let escapes = [
        ("\\", "\\134"),
        (" ", "\\040"),
        ("\t", "\\011"),
        ("\n", "\\012"),
    ];
    escapes.iter().fold(path.to_owned(), |path, (plain, code)| {
        path.replace(plain, code)
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
