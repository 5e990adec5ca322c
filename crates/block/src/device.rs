//! **Purpose.** The trait [`BlockDevice`]: the interface between the file system and its device.
//!
//! **Model.** A device is an array of bytes that never becomes shorter. Any number of threads may
//! read and write at any offset at the same time; if two of these overlap, the result may be a
//! mixture. A write is *complete* when the call returns and *durable* after a later
//! [`BlockDevice::flush`] (or at once with [`BlockDevice::write_fua`]). Callers with many requests
//! submit a [`Batch`], whose requests a backend may have in flight all at once.
//!
//! **Invariants.** Every call transfers all of its bytes or fails with a
//! [`DeviceError`](crate::error::DeviceError) as its payload; which part of a failed transfer was
//! carried out is unknown. A backend never retries a failed flush: the writes before it may be lost
//! for good, and only the caller can handle that.
//!
//! **Crash safety.** After a crash, any subset of the writes since the last successful flush may be
//! on the device, each torn at sector boundaries.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_sync::Arc;
use fourscore_sync::profile::{self, Section};

use crate::batch::{Batch, InFlight};
use crate::error::{DeviceOp, Operation};
use crate::io_buf::ZEROES;

/// Properties of a device for performance decisions. None is needed for correctness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// The logical sector size of the device in bytes; a power of two.
    pub logical_sector_bytes: u32,
    /// Whether seeks are slow, as on a rotating disk.
    pub rotational: bool,
    /// The longest useful single transfer, in bytes.
    pub max_segment_bytes: u32,
    /// Whether the device supports [`BlockDevice::discard`].
    pub discard: bool,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            logical_sector_bytes: 512,
            rotational: false,
            max_segment_bytes: 1 << 20,
            discard: false,
            read_only: false,
        }
    }
}

/// The location of bytes of a device in a file of the host.
#[derive(Clone, Copy, Debug)]
pub struct HostRange<'a> {
    /// The file, open for reading. Its own position means nothing.
    pub file: &'a File,
    /// The byte of the file at which the range begins.
    pub offset: u64,
}

/// A device of bytes that many threads read and write at offsets at the same time.
///
/// Offsets and lengths are in bytes. A read past the end is an error of kind `UnexpectedEof`, a
/// write past the end of kind `StorageFull`, a write to a read-only device of kind
/// `ReadOnlyFilesystem`.
pub trait BlockDevice: Send + Sync + Debug {
    /// The size of the device in bytes. It changes only by [`BlockDevice::lengthen`].
    fn len_bytes(&self) -> u64;

    /// Makes an image file at least `len_bytes` long, with zeroes behind its old end. Asks a block
    /// device for its size again, which may have become larger. Returns the size in bytes from now
    /// on; durable after a flush. A device never becomes shorter, and most have a fixed size.
    fn lengthen(&self, len_bytes: u64) -> io::Result<u64> {
        let _ = len_bytes;
        Ok(self.len_bytes())
    }

    /// Properties for performance decisions.
    fn hints(&self) -> Hints {
        Hints::default()
    }

    /// Fills `bufs` one after the other from `offset`.
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()>;

    /// Writes `bufs` one after the other from `offset`. Durable only after a flush.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Makes durable all writes that were complete when the call began.
    fn flush(&self) -> io::Result<()>;

    /// Fills `buf` from `offset`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_vectored_at(&mut [IoSliceMut::new(buf)], offset)
    }

    /// Writes `buf` at `offset`. Durable only after [`BlockDevice::flush`].
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_vectored_at(&[IoSlice::new(buf)], offset)
    }

    /// Writes `bufs` from `offset`; these bytes are durable when the call returns. Earlier writes
    /// need not be durable then.
    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write_vectored_at(bufs, offset)?;
        self.flush()
    }

    /// Discards the bytes in `range`: they are not needed any more. Until they are written again, a
    /// read returns the old bytes or zeroes.
    ///
    /// Errors: kind `Unsupported` where [`Hints::discard`] is false.
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        Err(Operation::on_range(DeviceOp::Discard, &range).unsupported())
    }

    /// Makes the bytes in `range` read as zeroes, durable after a flush like any write.
    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        write_zero_bytes(self, range)
    }

    /// Starts all requests of `batch`. The default implementation carries them out one after the
    /// other before it returns; a backend that can have them in flight together overrides it.
    fn submit(&self, batch: Batch) -> InFlight {
        InFlight::finished(batch.run_on(self))
    }

    /// Drops the bytes in `range` from the host's page cache, so that the next read goes to the
    /// device itself: for blocks that another host may write. A device that has no such cache does
    /// nothing.
    fn forget_cached(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Releases the lock that keeps other processes away from the image, if the device holds one.
    /// For a caller that does not use the device any more and does not drop it at once: a process
    /// that is about to exit.
    fn unlock(&self) {}

    /// Whether a long write would be slower now because another thread is writing. A caller with
    /// other work does that first. Only a hint.
    fn is_being_written(&self) -> bool {
        false
    }

    /// The location of the bytes in `range` in a file of the host, so that a caller can splice,
    /// send or reflink them without copying. `None` for devices that are not simply a file.
    ///
    /// The bytes may change at any time, as with any read. A write is visible in the file at the
    /// latest when it completes.
    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        let _ = range;
        None
    }
}

/// Zeroes `range` by plain writes of zero bytes.
pub(crate) fn write_zero_bytes<D>(device: &D, range: Range<u64>) -> io::Result<()>
where
    D: BlockDevice + ?Sized,
{
    Operation::on_range(DeviceOp::WriteZeroes, &range).check_inside(device.len_bytes())?;
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let piece = &ZEROES[..left.min(ZEROES.len())];
        device.write_at(piece, at)?;
        at += to_u64(piece.len());
    }
    Ok(())
}

/// The total length of `bufs`. A sum that overflows saturates, and is longer than any device.
pub(crate) fn total_bytes<'a, B>(bufs: &'a [B]) -> u64
where
    B: std::ops::Deref<Target = [u8]> + 'a,
{
    bufs.iter()
        .fold(0, |sum: u64, buf| sum.saturating_add(to_u64(buf.len())))
}

/// A length in memory as a length on a device; exact on every supported machine.
pub(crate) const fn to_u64(len: usize) -> u64 {
    len as u64
}

/// A shared device. Transfers and flushes through it are in the section `Device` of a profile,
/// whatever the backend is. A call on the `dyn BlockDevice` itself does not pass through here, so
/// backends enter the section for requests to the host as well.
impl<D: BlockDevice + ?Sized> BlockDevice for Arc<D> {
    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }
    fn lengthen(&self, len_bytes: u64) -> io::Result<u64> {
        (**self).lengthen(len_bytes)
    }
    fn hints(&self) -> Hints {
        (**self).hints()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let _section = profile::enter(Section::Device);
        (**self).read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let _section = profile::enter(Section::Device);
        (**self).write_vectored_at(bufs, offset)
    }
    fn flush(&self) -> io::Result<()> {
        let _section = profile::enter(Section::Device);
        (**self).flush()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let _section = profile::enter(Section::Device);
        (**self).read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let _section = profile::enter(Section::Device);
        (**self).write_at(buf, offset)
    }
    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let _section = profile::enter(Section::Device);
        (**self).write_fua(bufs, offset)
    }
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let _section = profile::enter(Section::Device);
        (**self).discard(range)
    }
    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        let _section = profile::enter(Section::Device);
        (**self).write_zeroes(range)
    }
    fn submit(&self, batch: Batch) -> InFlight {
        let _section = profile::enter(Section::Device);
        (**self).submit(batch)
    }
    fn forget_cached(&self, range: Range<u64>) {
        (**self).forget_cached(range);
    }
    fn unlock(&self) {
        (**self).unlock();
    }
    fn is_being_written(&self) -> bool {
        (**self).is_being_written()
    }
    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        (**self).host_range(range)
    }
}
