//! **Purpose.** Whole transfers over a file descriptor of the host.
//!
//! **Model.** The host may be interrupted, may transfer less than asked and takes at most 1024
//! buffers at a time. Here each call goes on until every byte is transferred. A transfer of 0
//! bytes ends it with an error, so a file that shrank can never make it spin.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, ReadWriteFlags};

use crate::device::to_u64;
use crate::error::Asked;

/// The most buffers that one system call takes (`IOV_MAX`).
const MOST_BUFFERS: usize = 1024;

/// What is durable when a write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Nothing until a flush.
    AfterFlush,
    /// The bytes written.
    AtOnce,
}

/// Fills all of `bufs` from `asked.offset`.
pub(crate) fn read_all(
    fd: BorrowedFd<'_>,
    mut bufs: &mut [IoSliceMut<'_>],
    asked: &Asked,
) -> io::Result<()> {
    let mut done_bytes = 0;
    IoSliceMut::advance_slices(&mut bufs, 0);
    while !bufs.is_empty() {
        let at = asked.offset + done_bytes;
        let now = bufs.len().min(MOST_BUFFERS);
        let got = match &mut bufs[..now] {
            [only] => rustix::io::pread(fd, &mut **only, at),
            several => rustix::io::preadv(fd, several, at),
        };
        match got {
            Ok(0) => return Err(asked.no_progress(done_bytes)),
            Ok(got) => {
                done_bytes += to_u64(got);
                IoSliceMut::advance_slices(&mut bufs, got);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(asked.host(error)),
        }
    }
    Ok(())
}

/// Writes all of `bufs` from `asked.offset`.
pub(crate) fn write_all(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    asked: &Asked,
    durability: Durability,
) -> io::Result<()> {
    let mut done_bytes = 0;
    for bufs in bufs.chunks(MOST_BUFFERS) {
        let len_bytes = crate::device::total_bytes(bufs);
        let wrote = write_once(fd, bufs, asked, done_bytes, durability)?;
        done_bytes += wrote;
        if wrote < len_bytes {
            done_bytes += write_rest(fd, bufs, asked, done_bytes, wrote, durability)?;
        }
    }
    Ok(())
}

/// Goes on with a write of `bufs` of which `wrote_bytes` are done. Rare, so it may allocate.
pub(crate) fn write_rest(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    asked: &Asked,
    done_bytes: u64,
    wrote_bytes: u64,
    durability: Durability,
) -> io::Result<u64> {
    let mut copy = bufs.to_vec();
    let mut rest = copy.as_mut_slice();
    IoSlice::advance_slices(&mut rest, to_len(wrote_bytes));
    let mut more_bytes = 0;
    while !rest.is_empty() {
        let wrote = write_once(fd, rest, asked, done_bytes + more_bytes, durability)?;
        more_bytes += wrote;
        IoSlice::advance_slices(&mut rest, to_len(wrote));
    }
    Ok(more_bytes)
}

/// One transfer, repeated only when a signal interrupts it. 0 bytes for something is an error.
fn write_once(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    asked: &Asked,
    done_bytes: u64,
    durability: Durability,
) -> io::Result<u64> {
    if bufs.iter().all(|buf| buf.is_empty()) {
        return Ok(0);
    }
    let at = asked.offset + done_bytes;
    loop {
        let wrote = match (durability, bufs) {
            (Durability::AtOnce, _) => rustix::io::pwritev2(fd, bufs, at, ReadWriteFlags::DSYNC),
            (Durability::AfterFlush, [only]) => rustix::io::pwrite(fd, only, at),
            (Durability::AfterFlush, several) => rustix::io::pwritev(fd, several, at),
        };
        match wrote {
            Ok(0) => return Err(asked.no_progress(done_bytes)),
            Ok(wrote) => return Ok(to_u64(wrote)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(asked.host(error)),
        }
    }
}

/// A count that came from a length in memory, as one again.
fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Makes everything written through any descriptor of this file durable. Not retried: after a
/// failure the host may have dropped the pages it could not write.
pub(crate) fn flush(fd: BorrowedFd<'_>) -> io::Result<()> {
    rustix::fs::fdatasync(fd).map_err(|error| Asked::flush().host(error))
}
