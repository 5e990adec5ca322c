//! **Purpose.** A mount, and the threads that serve it.
//!
//! **Model.** Each worker waits for a request, answers it, and waits for the next one. Requests
//! come through rings where the kernel has them, and through `/dev/fuse` everywhere, of which
//! workers have descriptors of their own: two workers for each core, since one that waits for the
//! disk (fsync) keeps no core busy. Beside rings a single one reads what comes there all the same.
//! If the kernel refuses a ring's worker after all, that one serves through `/dev/fuse` from then
//! on.
//!
//! Everything is opened before the first worker serves: descriptors, and rings, which are
//! restricted and enabled by then. A worker needs nothing but the system calls to read, write and
//! enter rings.
//!
//! Unmounting ends the session. A mount that root made is told so by a last request (DESTROY), for
//! whose reply `umount` waits: before it everything is brought to its place, and afterwards nothing
//! is written any more. Other mounts are not told: every worker finds it out by its next read or
//! from its ring, and whoever unmounts has to wait for the server's end to know that everything is
//! in its place. What was synced before is durable in any case.
//!
//! **Locking.** Workers share the tables of the server.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use fourscore::Fs;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};

use crate::abi::{init, opcode};
use crate::device::{self, Received};
use crate::latencies::Latencies;
use crate::mount::{self, MountError, Unmounter};
use crate::negotiate::{self, Agreed, Rings, Ticks};
use crate::options::{SessionOptions, Transport};
use crate::reply::Reply;
use crate::request::Request;
use crate::ring::{Ended, RingWorker};
use crate::serve::{Farewell, Serve};
use crate::server::Server;
use crate::{classic, ring};

const WORKERS_PER_CORE: usize = 2;
/// Fewer would let two that wait for the disk keep all others waiting.
const FEWEST_WORKERS: usize = 4;
const MOST_WORKERS: usize = 128;

/// A mount whose requests are not answered yet: programs that use it wait.
#[derive(Debug)]
pub struct Session {
    device: OwnedFd,
    unmounter: Unmounter,
    options: SessionOptions,
    latencies: Arc<Latencies>,
    pages: u16,
}

/// What workers need, all of it opened.
struct Opened {
    agreed: Agreed,
    /// For workers beside the first one.
    devices: Vec<OwnedFd>,
    rings: Vec<RingWorker>,
}

impl Session {
    /// Mounts on the directory `point`.
    ///
    /// # Errors
    /// See [`MountError`]; nothing is mounted then.
    pub fn mount(point: &Path, options: &SessionOptions) -> Result<Self, MountError> {
        let (device, unmounter) = mount::mount(point, options)?;
        Ok(Self {
            device,
            unmounter,
            options: options.clone(),
            latencies: Arc::new(Latencies::new()),
            pages: negotiate::most_pages(),
        })
    }

    /// What ends the mount, from any thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// How long requests took, as far as they were answered.
    #[must_use]
    pub fn latencies(&self) -> Arc<Latencies> {
        Arc::clone(&self.latencies)
    }

    /// Serves `fs` until it is unmounted and nobody has anything open on it. Calls `ready` when
    /// everything is opened and the mount can be used; if that fails, it is not served. Nothing
    /// that was not synced is durable when this returns: [`Fs::unmount`] sees to that.
    ///
    /// Calls `farewell` where the kernel waited for the server when it unmounted: `fs` is frozen
    /// then, its device holds all of it, or could not, and whoever unmounted may already be using
    /// it. So nobody may write to it any more, not even to unmount it, and the process is best
    /// ended there: a thread that reads ahead for nobody may be waiting for `fs` to thaw.
    ///
    /// # Errors
    /// `Unsupported` for a kernel that is too old, or has no rings where they were asked for:
    /// nothing is mounted then; those of `/dev/fuse`.
    pub fn serve(
        &self,
        fs: &Fs,
        ready: impl FnOnce() -> io::Result<()>,
        farewell: impl Fn(fourscore::Result<()>) + Sync,
    ) -> io::Result<()> {
        let known = (fs, Some(&self.device));
        let server = |agreed| Server::new(known, agreed, &self.options, &self.latencies);
        self.serve_with(server, ticks_of(fs), ready, &farewell)
    }

    /// As [`Session::serve`], whatever answers.
    pub(crate) fn serve_with<S: Serve>(
        &self,
        server: impl FnOnce(Agreed) -> S,
        ticks: Ticks,
        ready: impl FnOnce() -> io::Result<()>,
        farewell: Farewell<'_>,
    ) -> io::Result<()> {
        let opened = match self.open(ticks) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.unmounter.abandon();
                return Err(error);
            }
        };
        let server = server(opened.agreed);
        ready()?;
        self.run(opened, &server, farewell)
    }

    /// Has all workers answer until there are no more requests.
    fn run(&self, opened: Opened, server: &impl Serve, farewell: Farewell<'_>) -> io::Result<()> {
        let has_failed = AtomicBool::new(false);
        let noted = |result: io::Result<()>| {
            if let Err(error) = result {
                tracing::error!(%error, "a worker ends");
                has_failed.store(true, Ordering::Relaxed);
            }
        };
        thread::scope(|scope| {
            let noted = &noted;
            for device in opened.devices {
                scope.spawn(move || noted(self.serve_device(&device, server, farewell)));
            }
            for worker in opened.rings {
                scope.spawn(move || noted(self.serve_ring(worker, server, farewell)));
            }
            noted(self.serve_device(&self.device, server, farewell));
        });
        match has_failed.load(Ordering::Relaxed) {
            true => Err(io::Error::other("/dev/fuse failed")),
            false => Ok(()),
        }
    }

    fn serve_device(
        &self,
        device: &OwnedFd,
        server: &impl Serve,
        farewell: Farewell<'_>,
    ) -> io::Result<()> {
        classic::serve(
            device,
            negotiate::request_bytes(self.pages),
            server,
            farewell,
        )
    }

    /// Answers what comes through a ring or, if the kernel does not take that, through `/dev/fuse`.
    fn serve_ring(
        &self,
        worker: RingWorker,
        server: &impl Serve,
        farewell: Farewell<'_>,
    ) -> io::Result<()> {
        match worker.serve(server, farewell) {
            Ended::Unmounted => Ok(()),
            Ended::Failed(error) => Err(error),
            Ended::Refused => {
                let device = device::for_worker(&self.device)?;
                self.serve_device(&device, server, farewell)
            }
        }
    }

    /// Agrees with the kernel, and opens everything. `None` if it was unmounted before that.
    fn open(&self, ticks: Ticks) -> io::Result<Option<Opened>> {
        // Before they are agreed on: then the kernel waits for them.
        let mut rings = self.rings()?;
        let are_there = match rings.is_empty() {
            true => Rings::Missing,
            false => Rings::There,
        };
        let Some(agreed) = self.agree(are_there, ticks)? else {
            return Ok(None);
        };
        if !agreed.has(init::OVER_IO_URING) {
            if self.options.transport == Transport::Ring {
                return Err(no_rings(&"it does not offer them"));
            }
            rings.clear();
        }
        let mut devices = Vec::new();
        if rings.is_empty() {
            for _ in 1..workers_wanted() {
                match device::for_worker(&self.device) {
                    Ok(device) => devices.push(device),
                    Err(error) => {
                        tracing::warn!(%error, "fewer workers than wanted");
                        break;
                    }
                }
            }
        }
        Ok(Some(Opened {
            agreed,
            devices,
            rings,
        }))
    }

    /// Workers with rings; none where there are no rings, and need not be.
    fn rings(&self) -> io::Result<Vec<RingWorker>> {
        let transport = self.options.transport;
        if transport == Transport::Classic || transport == Transport::Auto && !ring::are_allowed() {
            return Ok(Vec::new());
        }
        match ring::workers(&self.device, negotiate::payload_bytes(self.pages)) {
            Err(error) if transport == Transport::Ring => Err(no_rings(&error)),
            Err(error) => {
                tracing::info!(%error, "requests come through /dev/fuse");
                Ok(Vec::new())
            }
            rings => rings,
        }
    }

    /// Answers the first request. `None` if it was unmounted before that.
    fn agree(&self, rings: Rings, ticks: Ticks) -> io::Result<Option<Agreed>> {
        let mut buffer = vec![0; negotiate::request_bytes(self.pages)];
        let mut reply = Reply::new(size_of::<crate::abi::InitOut>());
        loop {
            let Received::Request(len) = device::receive(&self.device, &mut buffer)? else {
                return Ok(None);
            };
            let request = Request::parse(&buffer[..len]);
            let Some(request) = request.filter(|request| request.header.opcode == opcode::INIT)
            else {
                return Err(io::Error::other("the kernel did not begin with INIT"));
            };
            reply.clear();
            let limits = (self.pages, ticks);
            let answer = negotiate::answer(&request, &self.options, rings, limits);
            let pushed = answer.and_then(|(out, agreed)| reply.push(&out).map(|()| agreed));
            reply.finish(request.header.unique, pushed.map(|_| ()));
            device::send(&self.device, &reply.slices())?;
            match pushed {
                Ok(None) => {}
                Ok(Some(agreed)) => return Ok(Some(agreed)),
                Err(_) => {
                    let why = "the kernel is too old for this: Linux 5.4 is needed";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, why));
                }
            }
        }
    }
}

/// What the times of inodes are told apart by: the kernel makes some of them itself, and must not
/// make what cannot be kept.
fn ticks_of(fs: &Fs) -> Ticks {
    /// So long is an inode that has room for what ext2 knew.
    const BYTES_OF_EXT2: usize = 128;
    match fs.geometry().inode_size_bytes() {
        BYTES_OF_EXT2 => Ticks::Seconds,
        _ => Ticks::Nanoseconds,
    }
}

fn no_rings(why: &dyn std::fmt::Display) -> io::Error {
    let text = format!("the kernel has no rings for FUSE: {why}");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

fn workers_wanted() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (cores * WORKERS_PER_CORE).clamp(FEWEST_WORKERS, MOST_WORKERS)
}

#[cfg(test)]
mod tests;
