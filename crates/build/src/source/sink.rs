//! **Purpose.** Writes bytes to a file through a buffer, joining adjacent ranges into large writes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use fourscore_sync::Arc;

/// Fits into the cache of one core, so that the copy to the page cache reads from there.
const BUFFER_BYTES: usize = 512 << 10;

/// A buffered writer with a position in a file. Data is in the file after [`Sink::flush`].
#[derive(Debug)]
pub(crate) struct Sink {
    file: Arc<File>,
    buffer: Box<[u8]>,
    /// Number of buffered bytes.
    used: usize,
    /// Offset of the buffer in the file.
    start: u64,
}

impl Sink {
    pub(crate) fn new(file: Arc<File>) -> Self {
        Self {
            file,
            buffer: vec![0; BUFFER_BYTES].into(),
            used: 0,
            start: 0,
        }
    }

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.start + self.used as u64
    }

    /// Continues at byte `at` of the file.
    pub(crate) fn move_to(&mut self, at: u64) -> io::Result<()> {
        if self.position() != at {
            self.flush()?;
            self.start = at;
        }
        Ok(())
    }

    /// Copies up to `len_bytes` bytes from `from`; returns how many there were.
    pub(crate) fn copy(&mut self, from: &mut dyn Read, len_bytes: u64) -> io::Result<u64> {
        let mut left = len_bytes;
        while left > 0 {
            let free = self.free_buffer(left)?;
            let count = read_some(from, free)?;
            if count == 0 {
                break;
            }
            self.used += count;
            left -= count as u64;
        }
        Ok(len_bytes - left)
    }

    /// Writes `len_bytes` zeroes.
    pub(crate) fn write_zeroes(&mut self, len_bytes: u64) -> io::Result<()> {
        let mut left = len_bytes;
        while left > 0 {
            let free = self.free_buffer(left)?;
            free.fill(0);
            let count = free.len();
            self.used += count;
            left -= count as u64;
        }
        Ok(())
    }

    /// Buffer space for up to `wanted` bytes, at least one.
    fn free_buffer(&mut self, wanted: u64) -> io::Result<&mut [u8]> {
        if self.used == self.buffer.len() {
            self.flush()?;
        }
        let free = self.buffer.len() - self.used;
        let now = usize::try_from(wanted).map_or(free, |wanted| wanted.min(free));
        Ok(&mut self.buffer[self.used..self.used + now])
    }

    /// Writes out the buffer.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file
            .write_all_at(&self.buffer[..self.used], self.start)?;
        self.start += self.used as u64;
        self.used = 0;
        Ok(())
    }
}

/// Reads once, retrying if a signal interrupts the call.
pub(crate) fn read_some(from: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
