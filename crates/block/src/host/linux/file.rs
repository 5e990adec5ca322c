//! **Purpose.** A device that is a file of the host: an image file or a block device.
//!
//! **Not here.** Opening a path: `open`. Ioctls that only block devices have: the module `raw`.
//!
//! **Model.** Every call is one positioned system call (more only if the host transfers less than
//! requested). With direct I/O there are two descriptors of the same file: transfers whose offset,
//! length and memory are all aligned bypass the host's page cache, all others go through it. Linux
//! keeps the two coherent (a direct write drops the cached pages, a direct read writes them back
//! first), and metadata buffers, which are small, stay cached.
//!
//! **Locking.** None: the kernel's positioned calls are safe from many threads. Long concurrent
//! writes to a file on tmpfs are made through a memory map instead: see `memory_file`.
//!
//! **Crash safety.** `flush` is `fdatasync`, which covers both descriptors. `write_fua` uses
//! `RWF_DSYNC`.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use fourscore_sync::atomic::{AtomicU64, Ordering};
use rustix::fs::{Advice, FallocateFlags, FlockOperation};
use rustix::io::Errno;

use super::host_io::{self, Durability};
use super::memory_file::{self, MemoryFile};
use super::{raw, share};
use crate::device::{BlockDevice, Hints, HostRange, to_u64, total_bytes, write_zero_bytes};
use crate::error::{DeviceOp, Operation};

/// A file of the host as a device.
#[derive(Debug)]
pub struct FileDevice {
    cached: File,
    direct: Option<Direct>,
    /// Becomes larger only.
    len_bytes: AtomicU64,
    hints: Hints,
    discards: Discards,
    memory: Option<MemoryFile>,
}

/// The descriptor for direct I/O, and the alignment that it needs.
#[derive(Debug)]
struct Direct {
    file: File,
    align_bytes: u64,
}

/// How space is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discards {
    /// By punching holes.
    PunchHole,
    /// By the block device's discard command.
    Device,
}

/// The address and length of a buffer.
pub(crate) struct Memory {
    pub(crate) address: usize,
    pub(crate) len: usize,
}

impl Memory {
    fn of(buf: &[u8]) -> Self {
        Self {
            address: buf.as_ptr().addr(),
            len: buf.len(),
        }
    }
}

/// Releases the lock on an image explicitly. Closing the file would not always release it at once:
/// a child process that another thread has just forked holds all open descriptors until its exec.
impl Drop for FileDevice {
    fn drop(&mut self) {
        self.unlock();
    }
}

impl FileDevice {
    /// An image file with its current length. The caller has checked that it is a regular file and
    /// has opened it for writing unless `hints.read_only` is set.
    pub(crate) fn from_image(cached: File, hints: Hints) -> io::Result<Self> {
        let len_bytes = cached.metadata()?.len();
        Ok(Self {
            memory: MemoryFile::of(&cached),
            cached,
            direct: None,
            len_bytes: AtomicU64::new(len_bytes),
            hints,
            discards: Discards::PunchHole,
        })
    }

    /// A block device of the given length.
    pub(crate) fn from_block_device(cached: File, len_bytes: u64, hints: Hints) -> Self {
        Self {
            cached,
            direct: None,
            len_bytes: AtomicU64::new(len_bytes),
            hints,
            discards: Discards::Device,
            memory: None,
        }
    }

    /// Sends aligned transfers to `file`, the same file opened for direct I/O.
    pub(crate) fn with_direct(mut self, file: File, align_bytes: u64) -> Self {
        self.direct = Some(Direct { file, align_bytes });
        self
    }

    /// The descriptor for a transfer at `offset` from or to `memory`.
    pub(crate) fn fd_at(
        &self,
        offset: u64,
        mut memory: impl Iterator<Item = Memory>,
    ) -> BorrowedFd<'_> {
        let Some(direct) = &self.direct else {
            return self.cached.as_fd();
        };
        let aligned = |value: u64| value.is_multiple_of(direct.align_bytes);
        if aligned(offset)
            && memory.all(|part| aligned(to_u64(part.address)) && aligned(to_u64(part.len)))
        {
            direct.file.as_fd()
        } else {
            self.cached.as_fd()
        }
    }

    /// Makes `range` share the blocks of the host's file `source` from byte `from` on (a reflink).
    /// Returns `false` with nothing changed if the host cannot do that: then the caller must copy.
    /// It can if both files are on one file system with reflinks, and all three offsets are
    /// multiples of its block size.
    #[must_use]
    pub fn share(&self, range: Range<u64>, source: BorrowedFd<'_>, from: u64) -> bool {
        let operation = Operation::on_range(DeviceOp::Write, &range);
        let len_bytes = range.end.saturating_sub(range.start);
        self.check(&operation).is_ok()
            && share::share(self.cached.as_fd(), range.start, source, from, len_bytes)
    }

    /// Checks that the operation is inside the device and does not write a read-only one.
    pub(crate) fn check(&self, operation: &Operation) -> io::Result<()> {
        if self.hints.read_only && !matches!(operation.op, DeviceOp::Read | DeviceOp::Flush) {
            return Err(operation.read_only());
        }
        operation.check_inside(self.len_bytes())
    }

    fn write(&self, bufs: &[IoSlice<'_>], offset: u64, durability: Durability) -> io::Result<()> {
        let operation = Operation::new(DeviceOp::Write, offset, total_bytes(bufs));
        self.check(&operation)?;
        let memory = self.memory.as_ref();
        let memory = memory.filter(|_| memory_file::is_long(operation.len_bytes));
        let writer = memory.and_then(MemoryFile::try_lock);
        let is_busy = memory.is_some() && writer.is_none();
        if is_busy
            && let ([only], Durability::AfterFlush) = (bufs, durability)
            && memory_file::write_mapped(self.cached.as_fd(), only, offset)
        {
            return Ok(());
        }
        let fd = self.fd_at(offset, bufs.iter().map(|buf| Memory::of(buf)));
        host_io::write_all(fd, bufs, &operation, durability)
    }

    fn fallocate(&self, mode: FallocateFlags, operation: &Operation) -> Result<(), Errno> {
        let mode = mode | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.cached, mode, operation.offset, operation.len_bytes)
    }
}

/// Whether the error means that the host does not support the operation.
fn is_unsupported(error: Errno) -> bool {
    matches!(
        error,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV
    )
}

impl BlockDevice for FileDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Relaxed)
    }

    fn lengthen(&self, len_bytes: u64) -> io::Result<u64> {
        let operation = Operation::new(DeviceOp::Write, 0, 0);
        self.check(&operation)?;
        let mut now = raw::len_bytes(&self.cached)?;
        if now < len_bytes && self.discards == Discards::PunchHole {
            // Its last byte: a call that a sandbox allows anyway.
            let last = Operation::new(DeviceOp::Write, len_bytes - 1, 1);
            let zero = [IoSlice::new(&[0])];
            host_io::write_all(self.cached.as_fd(), &zero, &last, Durability::AfterFlush)?;
            now = len_bytes;
        }
        self.len_bytes.fetch_max(now, Ordering::Relaxed);
        Ok(self.len_bytes())
    }

    fn hints(&self) -> Hints {
        self.hints
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let operation = Operation::new(DeviceOp::Read, offset, total_bytes(bufs));
        self.check(&operation)?;
        let fd = self.fd_at(offset, bufs.iter().map(|buf| Memory::of(buf)));
        host_io::read_all(fd, bufs, &operation)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, Durability::AfterFlush)
    }

    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, Durability::AtOnce)
    }

    fn flush(&self) -> io::Result<()> {
        host_io::flush(self.cached.as_fd())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let operation = Operation::on_range(DeviceOp::Discard, &range);
        self.check(&operation)?;
        if range.is_empty() {
            return Ok(());
        }
        let done = match self.discards {
            Discards::PunchHole => self.fallocate(FallocateFlags::PUNCH_HOLE, &operation),
            Discards::Device => raw::discard(self.cached.as_fd(), &range),
        };
        done.map_err(|error| {
            if is_unsupported(error) {
                operation.unsupported()
            } else {
                operation.host(error)
            }
        })
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        let operation = Operation::on_range(DeviceOp::WriteZeroes, &range);
        self.check(&operation)?;
        if range.is_empty() {
            return Ok(());
        }
        let by_host = self
            .fallocate(FallocateFlags::ZERO_RANGE, &operation)
            .or_else(|_| self.fallocate(FallocateFlags::PUNCH_HOLE, &operation));
        match by_host {
            Ok(()) => Ok(()),
            Err(error) if is_unsupported(error) => write_zero_bytes(self, range),
            Err(error) => Err(operation.host(error)),
        }
    }

    fn unlock(&self) {
        // It cannot fail for an open file.
        let _ = rustix::fs::flock(&self.cached, FlockOperation::Unlock);
    }

    fn forget_cached(&self, range: Range<u64>) {
        /// The largest page size of any host. The host drops whole pages only.
        const PAGE_BYTES: u64 = 64 << 10;
        let start = range.start - range.start % PAGE_BYTES;
        let end = range.end.saturating_add(PAGE_BYTES);
        let len = NonZeroU64::new(end.saturating_sub(start));
        // A failure is ignored: this is only a hint.
        let _ = rustix::fs::fadvise(&self.cached, start, len, Advice::DontNeed);
    }

    fn is_being_written(&self) -> bool {
        self.memory
            .as_ref()
            .is_some_and(MemoryFile::is_being_written)
    }

    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        let inside = range.start <= range.end && range.end <= self.len_bytes();
        inside.then_some(HostRange {
            file: &self.cached,
            offset: range.start,
        })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
