//! **Purpose.** A mount, and the threads that serve it.
//!
//! **Model.** Each worker waits for a request, answers it, and waits for the next one. Workers have
//! descriptors and buffers of their own. There are two for each core, since a worker that waits for
//! the disk (fsync) keeps no core busy.
//!
//! Unmounting ends the session. A mount that root made is told so by a last request (DESTROY), for
//! whose reply `umount` waits: before it everything is brought to its place, and afterwards nothing
//! is written any more. Other mounts are not told: every worker finds it out by its next read, and
//! whoever unmounts has to wait for the server's end to know that everything is in its place. What
//! was synced before is durable in any case.
//!
//! **Locking.** Workers share the tables of the server.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use fourscore::Fs;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::thread;

use crate::abi::opcode;
use crate::device::{self, Received, Sent};
use crate::mount::{self, MountError, Unmounter};
use crate::negotiate::{self, Agreed};
use crate::options::SessionOptions;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::{Answered, Server};

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
    pages: u16,
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
            pages: negotiate::most_pages(),
        })
    }

    /// What ends the mount, from any thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Serves `fs` until it is unmounted and nobody has anything open on it. Calls `ready` when the
    /// mount can be used. Nothing that was not synced is durable when this returns:
    /// [`Fs::unmount`] sees to that.
    ///
    /// Calls `farewell` where the kernel waited for the server when it unmounted: `fs` is frozen
    /// then, its device holds all of it, or could not, and whoever unmounted may already be using
    /// it. So nobody may write to it any more, not even to unmount it, and the process is best
    /// ended there: a thread that reads ahead for nobody may be waiting for `fs` to thaw.
    ///
    /// # Errors
    /// `Unsupported` for a kernel that is too old: nothing is mounted then; those of `/dev/fuse`.
    pub fn serve(
        &self,
        fs: &Fs,
        ready: impl FnOnce(),
        farewell: impl Fn(fourscore::Result<()>) + Sync,
    ) -> io::Result<()> {
        let agreed = match self.agree() {
            Ok(Some(agreed)) => agreed,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.unmounter.abandon();
                return Err(error);
            }
        };
        ready();
        let server = Server::new(fs, agreed, &self.options);
        let has_failed = AtomicBool::new(false);
        let farewell = &farewell;
        thread::scope(|scope| {
            for _ in 1..workers_wanted() {
                let device = match device::for_worker(&self.device) {
                    Ok(device) => device,
                    Err(error) => {
                        tracing::warn!(%error, "fewer workers than wanted");
                        break;
                    }
                };
                let (server, has_failed) = (&server, &has_failed);
                scope.spawn(move || self.work(&device, server, farewell, has_failed));
            }
            self.work(&self.device, &server, farewell, &has_failed);
        });
        match has_failed.load(Ordering::Relaxed) {
            true => Err(io::Error::other("/dev/fuse failed")),
            false => Ok(()),
        }
    }

    /// Answers the first request. `None` if it was unmounted before that.
    fn agree(&self) -> io::Result<Option<Agreed>> {
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
            let answer = negotiate::answer(&request, &self.options, self.pages);
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

    /// Answers requests until there are none.
    fn work(
        &self,
        device: &OwnedFd,
        server: &Server<'_>,
        farewell: impl Fn(fourscore::Result<()>),
        has_failed: &AtomicBool,
    ) {
        let mut buffer = vec![0; negotiate::request_bytes(self.pages)];
        let mut reply = Reply::new(negotiate::request_bytes(self.pages));
        loop {
            let len = match device::receive(device, &mut buffer) {
                Ok(Received::Request(len)) => len,
                Ok(Received::Unmounted) => return,
                Err(error) => {
                    tracing::error!(%error, "/dev/fuse cannot be read");
                    has_failed.store(true, Ordering::Relaxed);
                    return;
                }
            };
            let Some(request) = Request::parse(&buffer[..len]) else {
                tracing::error!(len, "not a request");
                continue;
            };
            let answered = server.answer(&request, &mut reply);
            if matches!(answered, Answered::WithoutReply) {
                continue;
            }
            match device::send(device, &reply.slices()) {
                Ok(Sent::Arrived) => {}
                Ok(Sent::Unwanted) => server.take_back(&mut reply),
                Err(error) => tracing::error!(%error, "a reply was refused"),
            }
            if let Answered::Farewell(ended) = answered {
                farewell(ended);
            }
        }
    }
}

fn workers_wanted() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (cores * WORKERS_PER_CORE).clamp(FEWEST_WORKERS, MOST_WORKERS)
}
