//! **Purpose.** A mount and the worker threads that serve it.
//!
//! **Model.** Each worker waits for a request, answers it, and waits for the next one. Requests
//! come through ring queues if the kernel has them, else through `/dev/fuse`. Without rings each
//! worker has a descriptor of `/dev/fuse`, and there are two workers for each core, since one that
//! waits for the disk (fsync) does not keep a core busy. With rings a single worker reads
//! `/dev/fuse`, for the requests that rings do not carry. If the kernel refuses the entries of a
//! ring's worker, that worker serves `/dev/fuse` from then on.
//!
//! Everything is opened before the first worker serves: descriptors, and rings, which are
//! restricted and enabled by then. After that a worker needs only the system calls to read, write
//! and enter rings.
//!
//! Unmounting ends the session. If root made the mount, the kernel sends a last request (DESTROY),
//! and `umount` waits for the reply: before it everything is written to the device, and afterwards
//! nothing is written any more. Other mounts get no such request: each worker sees the end at its
//! next read or from its ring, and the user has to wait for the server's end to know that
//! everything has been written. Data that was synced before is durable in any case.
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
use crate::negotiate::{self, Agreed, Granularity, Rings};
use crate::options::{SessionOptions, Transport};
use crate::reply::Reply;
use crate::request::Request;
use crate::ring::{Ended, RingWorker};
use crate::serve::{Farewell, Serve};
use crate::server::Server;
use crate::{classic, ring};

const WORKERS_PER_CORE: usize = 2;
/// With fewer workers, two that wait for the disk could block all other requests.
const MIN_WORKERS: usize = 4;
const MAX_WORKERS: usize = 128;

/// A mount. Until it is served, programs that use it wait.
#[derive(Debug)]
pub struct Session {
    device: OwnedFd,
    unmounter: Unmounter,
    options: SessionOptions,
    latencies: Arc<Latencies>,
    pages: u16,
}

/// The resources of the workers.
struct Opened {
    agreed: Agreed,
    /// The descriptors of workers beside the first one.
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
            pages: negotiate::max_pages(),
        })
    }

    /// The unmounter of this mount, for use in any thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// The latencies of answered requests.
    #[must_use]
    pub fn latencies(&self) -> Arc<Latencies> {
        Arc::clone(&self.latencies)
    }

    /// Serves `fs` until it is unmounted and no file on it is open. Calls `ready` when everything
    /// is opened and the mount can be used; if that fails, the mount is not served. When this
    /// returns, only synced changes are durable: the caller has to call [`Fs::unmount`].
    ///
    /// Calls `farewell` if the kernel waited for the server at the unmount. At that point `fs` is
    /// frozen, and everything has been written to its device, or the argument has the error. The
    /// user may already use the device for something else. So no thread may write to it any more,
    /// not even to unmount `fs`, and the process should exit: a thread that still reads ahead may
    /// be waiting for `fs` to thaw.
    ///
    /// # Errors
    /// `Unsupported` for a kernel that is too old, or has no rings although the options demand
    /// them: nothing is mounted then; those of `/dev/fuse`.
    pub fn serve(
        &self,
        fs: &Fs,
        ready: impl FnOnce() -> io::Result<()>,
        farewell: impl Fn(fourscore::Result<()>) + Sync,
    ) -> io::Result<()> {
        let device = Some(&self.device);
        let server = |agreed| Server::new(fs, device, agreed, &self.options, &self.latencies);
        self.serve_with(server, granularity_of(fs), ready, &farewell)
    }

    /// As [`Session::serve`], with any server.
    pub(crate) fn serve_with<S: Serve>(
        &self,
        server: impl FnOnce(Agreed) -> S,
        granularity: Granularity,
        ready: impl FnOnce() -> io::Result<()>,
        farewell: Farewell<'_>,
    ) -> io::Result<()> {
        let opened = match self.open(granularity) {
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

    /// Runs all workers until the file system is unmounted.
    fn run(&self, opened: Opened, server: &impl Serve, farewell: Farewell<'_>) -> io::Result<()> {
        let has_failed = AtomicBool::new(false);
        let noted = |result: io::Result<()>| {
            if let Err(error) = result {
                tracing::error!(%error, "a worker ended with an error");
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

    /// Serves a ring or, if the kernel refuses its entries, `/dev/fuse`.
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

    /// Answers INIT, and opens everything. `None` if the file system was unmounted before that.
    fn open(&self, granularity: Granularity) -> io::Result<Option<Opened>> {
        // Before INIT is answered: after that the kernel waits for their entries.
        let mut rings = self.rings()?;
        let availability = match rings.is_empty() {
            true => Rings::Unavailable,
            false => Rings::Available,
        };
        let Some(agreed) = self.agree(availability, granularity)? else {
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

    /// Workers with rings; empty if the kernel has no rings and the options do not demand them.
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

    /// Answers INIT. `None` if the file system was unmounted before that.
    fn agree(&self, rings: Rings, granularity: Granularity) -> io::Result<Option<Agreed>> {
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
            let answer = negotiate::answer(&request, &self.options, rings, self.pages, granularity);
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

/// The granularity of timestamps: the kernel sets some timestamps itself, and must round them to
/// what inodes can store.
fn granularity_of(fs: &Fs) -> Granularity {
    /// The size of an inode without extra fields, as in ext2.
    const BYTES_OF_EXT2: usize = 128;
    match fs.geometry().inode_size_bytes() {
        BYTES_OF_EXT2 => Granularity::Seconds,
        _ => Granularity::Nanoseconds,
    }
}

fn no_rings(why: &dyn std::fmt::Display) -> io::Error {
    let text = format!("the kernel has no rings for FUSE: {why}");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

fn workers_wanted() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (cores * WORKERS_PER_CORE).clamp(MIN_WORKERS, MAX_WORKERS)
}

#[cfg(test)]
mod tests;
