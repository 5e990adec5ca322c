//! **Purpose.** What the file system asks of the thing it lives on.

use std::io::{self, IoSlice, IoSliceMut};

/// A device of bytes that many threads read and write at offsets at the same time.
///
/// Offsets and lengths are in bytes. Every call either transfers all of its bytes or fails: a
/// read past the end is an error of kind `UnexpectedEof`, a write past the end of kind
/// `StorageFull`.
pub trait BlockDevice: Send + Sync + std::fmt::Debug {
    /// The size of the device in bytes.
    fn len_bytes(&self) -> u64;

    /// Fills `buf` from `offset`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills `bufs` one after the other from `offset`.
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()>;

    /// Writes `buf` at `offset`. Durable only after [`BlockDevice::flush`].
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Writes `bufs` one after the other from `offset`. Durable only after a flush.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Makes durable all writes that were complete when the call began.
    fn flush(&self) -> io::Result<()>;
}
