//! **Purpose.** A descriptor of `/dev/fuse`: requests come from it, replies go into it.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

/// What reading a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// The file system was unmounted.
    Unmounted,
}

/// What became of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Arrived,
    /// Nobody waits for it any more.
    Unwanted,
}

/// Waits for a request, and puts it into `buffer`.
///
/// # Errors
/// Those of the device, but for those that say to try again.
pub(crate) fn receive(device: &impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(0) | Err(Errno::NODEV) => return Ok(Received::Unmounted),
            Ok(len) => return Ok(Received::Request(len)),
            // NOENT: whoever asked was interrupted before the request was read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends a reply.
///
/// # Errors
/// Those of the device.
pub(crate) fn send(device: &impl AsFd, reply: &[IoSlice<'_>]) -> Result<Sent, Errno> {
    loop {
        match rustix::io::writev(device, reply) {
            Ok(_) => return Ok(Sent::Arrived),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::NOENT | Errno::NODEV) => return Ok(Sent::Unwanted),
            Err(error) => return Err(error),
        }
    }
}

/// A descriptor for one more worker: one of its own where the kernel can, so that workers share no
/// queue of requests under way; else the same.
///
/// # Errors
/// Those of the host: too many open files.
pub(crate) fn for_worker(session: &impl AsFd) -> std::io::Result<OwnedFd> {
    match crate::clone_device::clone_of(session) {
        Ok(own) => Ok(own),
        Err(error) => {
            tracing::debug!(%error, "workers share a descriptor");
            session.as_fd().try_clone_to_owned()
        }
    }
}
