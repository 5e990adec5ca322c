//! **Purpose.** A device that is an image file of the host, by the calls of std.
//!
//! **Model.** Every buffer is one positioned call (more only if the host transfers less than
//! requested). Batches are those of [`BlockDevice`]'s default implementation.
//!
//! **Locking.** None: positioned calls are safe from many threads.
//!
//! **Crash safety.** `flush` is [`File::sync_data`]: `F_FULLFSYNC` on macOS, which makes the disk
//! write its own cache out and fails where a file system cannot, and `FlushFileBuffers` on Windows.
//! `write_fua` is a write and a flush.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::profile::{self, Section};

use crate::device::{BlockDevice, Hints, HostRange, to_u64, total_bytes};
use crate::error::{DeviceOp, Operation};
use crate::positioned;

/// An image file of the host as a device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// Becomes larger only.
    len_bytes: AtomicU64,
    hints: Hints,
    is_locked: bool,
}

/// Releases the lock on an image explicitly. Closing the file would not always release it at once:
/// on unix a child process that was just forked holds all open files until its exec, and Windows
/// says only that it happens some time later.
impl Drop for FileDevice {
    fn drop(&mut self) {
        self.unlock();
    }
}

impl FileDevice {
    /// An image file with its current length. The caller has checked that it is a regular file, and
    /// has opened it for writing unless `hints.read_only` is set.
    pub(super) fn new(file: File, hints: Hints, is_locked: bool) -> io::Result<Self> {
        let len_bytes = file.metadata()?.len();
        Ok(Self {
            file,
            len_bytes: AtomicU64::new(len_bytes),
            hints,
            is_locked,
        })
    }

    /// Checks that the operation is inside the device and does not write a read-only one.
    fn check(&self, operation: &Operation) -> io::Result<()> {
        if self.hints.read_only && !matches!(operation.op, DeviceOp::Read | DeviceOp::Flush) {
            return Err(operation.read_only());
        }
        operation.check_inside(self.len_bytes())
    }

    /// Fills the part of a read that begins `done_bytes` after its start, and returns how many
    /// bytes of the read are done then.
    fn read_part(
        &self,
        operation: &Operation,
        mut done_bytes: u64,
        mut buf: &mut [u8],
    ) -> io::Result<u64> {
        while !buf.is_empty() {
            match positioned::read_once(&self.file, buf, operation.offset + done_bytes) {
                Ok(0) => return Err(operation.no_progress(done_bytes)),
                Ok(got) => {
                    done_bytes += to_u64(got);
                    buf = &mut buf[got..];
                }
                Err(error) => return Err(operation.host(error)),
            }
        }
        Ok(done_bytes)
    }

    /// Writes the part that begins `done_bytes` after the start, and returns how many bytes are
    /// done then.
    fn write_part(
        &self,
        operation: &Operation,
        mut done_bytes: u64,
        mut buf: &[u8],
    ) -> io::Result<u64> {
        while !buf.is_empty() {
            match positioned::write_once(&self.file, buf, operation.offset + done_bytes) {
                Ok(0) => return Err(operation.no_progress(done_bytes)),
                Ok(wrote) => {
                    done_bytes += to_u64(wrote);
                    buf = &buf[wrote..];
                }
                Err(error) => return Err(operation.host(error)),
            }
        }
        Ok(done_bytes)
    }
}

impl BlockDevice for FileDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Relaxed)
    }

    fn lengthen(&self, len_bytes: u64) -> io::Result<u64> {
        self.check(&Operation::new(DeviceOp::Write, 0, 0))?;
        let mut now = self.file.metadata()?.len();
        if now < len_bytes {
            // Its last byte. Setting the length could shorten a file that another process makes
            // longer meanwhile.
            let last = Operation::new(DeviceOp::Write, len_bytes - 1, 1);
            self.write_part(&last, 0, &[0])?;
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
        let _section = profile::enter(Section::Device);
        let read = |done_bytes, buf| self.read_part(&operation, done_bytes, buf);
        bufs.iter_mut().map(|buf| &mut **buf).try_fold(0, read)?;
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let operation = Operation::new(DeviceOp::Write, offset, total_bytes(bufs));
        self.check(&operation)?;
        let _section = profile::enter(Section::Device);
        let write = |done_bytes, buf| self.write_part(&operation, done_bytes, buf);
        bufs.iter().map(|buf| &**buf).try_fold(0, write)?;
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        if self.hints.read_only {
            // Nothing was written, and Windows refuses to flush what was opened for reading.
            return Ok(());
        }
        let _section = profile::enter(Section::Device);
        let flushed = self.file.sync_data();
        flushed.map_err(|error| Operation::flush().host(error))
    }

    fn unlock(&self) {
        if self.is_locked {
            // It cannot fail for an open file, but for one that is unlocked already.
            let _ = self.file.unlock();
        }
    }

    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        let inside = range.start <= range.end && range.end <= self.len_bytes();
        inside.then_some(HostRange {
            file: &self.file,
            offset: range.start,
        })
    }
}
