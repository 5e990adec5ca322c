//! **Purpose.** A device that is a file of the host: an image file or a block device.
//!
//! **Not here.** How a path is opened and judged: [`crate::open`]. What only block devices
//! have: the module `raw`.
//!
//! **Model.** Every call is one positioned system call (more only when the host transfers less
//! than asked). With direct I/O there are two descriptors of the same file: transfers whose
//! offset, length and memory are all aligned go around the host's page cache, all others
//! through it. Linux keeps the two coherent (a direct write drops the cached pages, a direct
//! read writes them back first), and metadata buffers, which are small, stay cached.
//!
//! **Locking.** None: the kernel's positioned calls are safe from many threads. Of a file in
//! memory, who writes much while another does goes a second way: `memory_file`.
//!
//! **Crash safety.** `flush` is `fdatasync`, which covers both descriptors. `write_fua` uses
//! `RWF_DSYNC`.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Advice, FallocateFlags, FlockOperation};
use rustix::io::Errno;

use crate::device::{BlockDevice, Hints, HostRange, to_u64, total_bytes, write_zeroes_by_hand};
use crate::error::{Asked, DeviceOp};
use crate::host_io::{self, Durability};
use crate::memory_file::{self, MemoryFile};
use crate::share;

/// A file of the host as a device.
#[derive(Debug)]
pub struct FileDevice {
    cached: File,
    direct: Option<Direct>,
    len_bytes: u64,
    hints: Hints,
    discards: Discards,
    memory: Option<MemoryFile>,
}

/// The descriptor for direct I/O, and what it asks for.
#[derive(Debug)]
struct Direct {
    file: File,
    align_bytes: u64,
}

/// How this file gives space back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discards {
    /// By punching holes.
    PunchHole,
    /// By the block device's own command.
    Device,
}

/// The lock on an image is given up at once. Closing the file would not always do that: a child
/// that another thread has just started holds what was open until it runs its own program.
impl Drop for FileDevice {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.cached, FlockOperation::Unlock);
    }
}

impl FileDevice {
    /// An image file of the length it has now. The caller has checked that it is a regular
    /// file and opened it for what `hints.read_only` says.
    pub(crate) fn from_image(cached: File, hints: Hints) -> io::Result<Self> {
        let len_bytes = cached.metadata()?.len();
        Ok(Self {
            memory: MemoryFile::of(&cached),
            cached,
            direct: None,
            len_bytes,
            hints,
            discards: Discards::PunchHole,
        })
    }

    /// A block device of the given length.
    pub(crate) fn from_block_device(cached: File, len_bytes: u64, hints: Hints) -> Self {
        Self {
            cached,
            direct: None,
            len_bytes,
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

    /// The descriptor for a transfer at `offset` from or to `memory`: addresses and lengths.
    pub(crate) fn fd_at(
        &self,
        offset: u64,
        mut memory: impl Iterator<Item = (usize, usize)>,
    ) -> BorrowedFd<'_> {
        let Some(direct) = &self.direct else {
            return self.cached.as_fd();
        };
        let aligned = |value: u64| value.is_multiple_of(direct.align_bytes);
        if aligned(offset)
            && memory.all(|(address, len)| aligned(to_u64(address)) && aligned(to_u64(len)))
        {
            direct.file.as_fd()
        } else {
            self.cached.as_fd()
        }
    }

    /// Has the bytes in `range` share the blocks of `source`, a file of the host, from byte `from`
    /// on. `false` where the host cannot do that: then nothing was changed, and the caller copies.
    /// It can where both are on a file system that shares blocks, and all three numbers are
    /// multiples of its block size.
    #[must_use]
    pub fn share(&self, range: Range<u64>, source: BorrowedFd<'_>, from: u64) -> bool {
        let asked = Asked::about(DeviceOp::Write, &range);
        let len_bytes = range.end.saturating_sub(range.start);
        self.admit(&asked).is_ok()
            && share::share(self.cached.as_fd(), range.start, source, from, len_bytes)
    }

    /// Checks that `asked` may be carried out here.
    pub(crate) fn admit(&self, asked: &Asked) -> io::Result<()> {
        if self.hints.read_only && !matches!(asked.op, DeviceOp::Read | DeviceOp::Flush) {
            return Err(asked.read_only());
        }
        asked.inside(self.len_bytes)
    }

    fn write(&self, bufs: &[IoSlice<'_>], offset: u64, wanted: Durability) -> io::Result<()> {
        let asked = Asked::new(DeviceOp::Write, offset, total_bytes(bufs));
        self.admit(&asked)?;
        let turn = self.memory.as_ref().and_then(MemoryFile::turn);
        if let (Some(_), None, [only], Durability::AfterFlush) = (&self.memory, &turn, bufs, wanted)
            && memory_file::write_beside(self.cached.as_fd(), only, offset)
        {
            return Ok(());
        }
        let fd = self.fd_at(
            offset,
            bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len())),
        );
        host_io::write_all(fd, bufs, &asked, wanted)
    }

    fn fallocate(&self, mode: FallocateFlags, asked: &Asked) -> Result<(), Errno> {
        let mode = mode | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.cached, mode, asked.offset, asked.len_bytes)
    }
}

/// Whether the host says that it cannot do this, as opposed to having failed at it.
fn cannot(error: Errno) -> bool {
    matches!(
        error,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV
    )
}

impl BlockDevice for FileDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn hints(&self) -> Hints {
        self.hints
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let asked = Asked::new(DeviceOp::Read, offset, total_bytes(bufs));
        self.admit(&asked)?;
        let fd = self.fd_at(
            offset,
            bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len())),
        );
        host_io::read_all(fd, bufs, &asked)
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
        let asked = Asked::about(DeviceOp::Discard, &range);
        self.admit(&asked)?;
        if range.is_empty() {
            return Ok(());
        }
        let done = match self.discards {
            Discards::PunchHole => self.fallocate(FallocateFlags::PUNCH_HOLE, &asked),
            Discards::Device => crate::raw::discard(self.cached.as_fd(), &range),
        };
        done.map_err(|error| {
            if cannot(error) {
                asked.unsupported()
            } else {
                asked.host(error)
            }
        })
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        let asked = Asked::about(DeviceOp::WriteZeroes, &range);
        self.admit(&asked)?;
        if range.is_empty() {
            return Ok(());
        }
        let by_host = self
            .fallocate(FallocateFlags::ZERO_RANGE, &asked)
            .or_else(|_| self.fallocate(FallocateFlags::PUNCH_HOLE, &asked));
        match by_host {
            Ok(()) => Ok(()),
            Err(error) if cannot(error) => write_zeroes_by_hand(self, range),
            Err(error) => Err(asked.host(error)),
        }
    }

    fn forget_cached(&self, range: Range<u64>) {
        /// The host forgets whole pages, and no host has larger ones.
        const PAGE_BYTES: u64 = 64 << 10;
        let start = range.start - range.start % PAGE_BYTES;
        let end = range.end.saturating_add(PAGE_BYTES);
        let len = NonZeroU64::new(end.saturating_sub(start));
        // A hint, as it is here.
        let _ = rustix::fs::fadvise(&self.cached, start, len, Advice::DontNeed);
    }

    fn is_being_written(&self) -> bool {
        self.memory
            .as_ref()
            .is_some_and(MemoryFile::is_being_written)
    }

    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        let inside = range.start <= range.end && range.end <= self.len_bytes;
        inside.then(|| HostRange {
            fd: self.cached.as_fd(),
            offset: range.start,
        })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
