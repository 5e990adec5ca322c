//! **Purpose.** A descriptor of `/dev/fuse`: requests come from it, replies and notices go into it.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{InvalidInodeOut, NOTIFY_INVAL_INODE, OutHeader};

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

/// Has the kernel ask for the attributes of a node when it next needs them. What it does not know
/// it need not forget.
pub(crate) fn forget_attributes(device: &impl AsFd, node: u64) {
    /// What is kept of the content stays.
    const NO_CONTENT: i64 = -1;
    let notice = InvalidInodeOut {
        header: OutHeader {
            len: u32::try_from(size_of::<InvalidInodeOut>()).unwrap_or(u32::MAX),
            error: NOTIFY_INVAL_INODE,
            unique: 0,
        },
        ino: node,
        off: NO_CONTENT,
        len: 0,
    };
    if let Err(error) = send(device, &[IoSlice::new(notice.as_bytes())]) {
        tracing::warn!(node, %error, "the kernel goes on with the attributes that it knows");
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
