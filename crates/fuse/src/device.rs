//! **Purpose.** Reads requests from a descriptor of `/dev/fuse`, and writes replies and notices.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{InvalidInodeOut, NOTIFY_INVAL_INODE, OutHeader};

/// The result of reading a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of this many bytes.
    Request(usize),
    /// The file system was unmounted.
    Unmounted,
}

/// The result of sending a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Arrived,
    /// No process waits for it any more.
    Unwanted,
}

/// Waits for a request, and puts it into `buffer`.
///
/// # Errors
/// Those of the device, except temporary ones.
pub(crate) fn receive(device: &impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(0) | Err(Errno::NODEV) => return Ok(Received::Unmounted),
            Ok(len) => return Ok(Received::Request(len)),
            // NOENT: the process was interrupted before its request was read.
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

/// Invalidates the attributes of a node in the kernel's cache, if it has cached them.
pub(crate) fn invalidate_attributes(device: &impl AsFd, node: u64) {
    /// A negative offset keeps the cached pages.
    const KEEP_PAGES: i64 = -1;
    let notice = InvalidInodeOut {
        header: OutHeader {
            len: u32::try_from(size_of::<InvalidInodeOut>()).unwrap_or(u32::MAX),
            error: NOTIFY_INVAL_INODE,
            unique: 0,
        },
        ino: node,
        off: KEEP_PAGES,
        len: 0,
    };
    if let Err(error) = send(device, &[IoSlice::new(notice.as_bytes())]) {
        tracing::warn!(node, %error, "attributes in the kernel's cache are not invalidated");
    }
}

/// A descriptor for one more worker: a clone if the kernel supports that, so that workers share no
/// queue of requests in progress; else a duplicate.
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
