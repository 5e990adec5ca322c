//! **Purpose.** Complete transfers over a file descriptor of the host.
//!
//! **Model.** A system call may be interrupted, may transfer less than requested and takes at most
//! 1024 buffers. Each function here continues until every byte is transferred. A transfer of 0
//! bytes ends it with an error, so a file that shrank cannot cause an endless loop.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use fourscore_sync::profile::{self, Section};
use rustix::io::{Errno, ReadWriteFlags};

use crate::device::to_u64;
use crate::error::Operation;

/// The maximum number of buffers of one system call (`IOV_MAX`).
const MAX_BUFFERS: usize = 1024;

/// When the bytes of a write are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// After a later flush.
    AfterFlush,
    /// When the write returns.
    AtOnce,
}

/// Fills all of `bufs` from `operation.offset`.
pub(crate) fn read_all(
    fd: BorrowedFd<'_>,
    mut bufs: &mut [IoSliceMut<'_>],
    operation: &Operation,
) -> io::Result<()> {
    let _section = profile::enter(Section::Device);
    let mut done_bytes = 0;
    IoSliceMut::advance_slices(&mut bufs, 0);
    while !bufs.is_empty() {
        let at = operation.offset + done_bytes;
        let now = bufs.len().min(MAX_BUFFERS);
        let got = match &mut bufs[..now] {
            [only] => rustix::io::pread(fd, &mut **only, at),
            several => rustix::io::preadv(fd, several, at),
        };
        match got {
            Ok(0) => return Err(operation.no_progress(done_bytes)),
            Ok(got) => {
                done_bytes += to_u64(got);
                IoSliceMut::advance_slices(&mut bufs, got);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(operation.host(error)),
        }
    }
    Ok(())
}

/// Writes all of `bufs` from `operation.offset`.
pub(crate) fn write_all(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    operation: &Operation,
    durability: Durability,
) -> io::Result<()> {
    let _section = profile::enter(Section::Device);
    let mut done_bytes = 0;
    for bufs in bufs.chunks(MAX_BUFFERS) {
        let len_bytes = crate::device::total_bytes(bufs);
        let wrote = write_once(fd, bufs, operation, done_bytes, durability)?;
        done_bytes += wrote;
        if wrote < len_bytes {
            done_bytes += write_rest(fd, bufs, operation, done_bytes, wrote, durability)?;
        }
    }
    Ok(())
}

/// Continues a write of `bufs` of which `wrote_bytes` are done. Returns the number of further
/// bytes. This is rare, so it may allocate.
pub(crate) fn write_rest(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    operation: &Operation,
    done_bytes: u64,
    wrote_bytes: u64,
    durability: Durability,
) -> io::Result<u64> {
    let mut copy = bufs.to_vec();
    let mut rest = copy.as_mut_slice();
    IoSlice::advance_slices(&mut rest, to_len(wrote_bytes));
    let mut more_bytes = 0;
    while !rest.is_empty() {
        let wrote = write_once(fd, rest, operation, done_bytes + more_bytes, durability)?;
        more_bytes += wrote;
        IoSlice::advance_slices(&mut rest, to_len(wrote));
    }
    Ok(more_bytes)
}

/// Makes one write, repeated only if a signal interrupts it. A write of 0 of several bytes is an
/// error.
fn write_once(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    operation: &Operation,
    done_bytes: u64,
    durability: Durability,
) -> io::Result<u64> {
    if bufs.iter().all(|buf| buf.is_empty()) {
        return Ok(0);
    }
    let at = operation.offset + done_bytes;
    loop {
        let wrote = match (durability, bufs) {
            (Durability::AtOnce, _) => rustix::io::pwritev2(fd, bufs, at, ReadWriteFlags::DSYNC),
            (Durability::AfterFlush, [only]) => rustix::io::pwrite(fd, only, at),
            (Durability::AfterFlush, several) => rustix::io::pwritev(fd, several, at),
        };
        match wrote {
            Ok(0) => return Err(operation.no_progress(done_bytes)),
            Ok(wrote) => return Ok(to_u64(wrote)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(operation.host(error)),
        }
    }
}

/// The inverse of [`to_u64`]: a count of bytes that came from a length in memory.
fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Makes all completed writes through any descriptor of this file durable. Not retried: after a
/// failure the host may have dropped the pages that it could not write.
pub(crate) fn flush(fd: BorrowedFd<'_>) -> io::Result<()> {
    let _section = profile::enter(Section::Device);
    rustix::fs::fdatasync(fd).map_err(|error| Operation::flush().host(error))
}
