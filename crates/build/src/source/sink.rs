//! **Purpose.** Bytes into a file, in long writes wherever they lie side by side.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use fourscore_sync::Arc;

/// What fits a core's own cache, so that the copy into the host's page cache reads from there.
const BUFFER_BYTES: usize = 512 << 10;

/// A place in a file where bytes are put. They are there after [`Sink::flush`].
#[derive(Debug)]
pub(crate) struct Sink {
    file: Arc<File>,
    buffer: Box<[u8]>,
    /// How much of the buffer waits to be written.
    used: usize,
    /// Where in the file the buffer begins.
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

    /// Where the next byte goes.
    pub(crate) fn position(&self) -> u64 {
        self.start + self.used as u64
    }

    /// Goes on at byte `at` of the file.
    pub(crate) fn move_to(&mut self, at: u64) -> io::Result<()> {
        if self.position() != at {
            self.flush()?;
            self.start = at;
        }
        Ok(())
    }

    /// Takes up to `len_bytes` bytes of `from`; says how many there were before it ended.
    pub(crate) fn take(&mut self, from: &mut dyn Read, len_bytes: u64) -> io::Result<u64> {
        let mut left = len_bytes;
        while left > 0 {
            let room = self.room(left)?;
            let count = read_some(from, room)?;
            if count == 0 {
                break;
            }
            self.used += count;
            left -= count as u64;
        }
        Ok(len_bytes - left)
    }

    /// Takes `len_bytes` zeroes.
    pub(crate) fn take_zeroes(&mut self, len_bytes: u64) -> io::Result<()> {
        let mut left = len_bytes;
        while left > 0 {
            let room = self.room(left)?;
            room.fill(0);
            let count = room.len();
            self.used += count;
            left -= count as u64;
        }
        Ok(())
    }

    /// Memory for some of the next `wanted` bytes, at least one.
    fn room(&mut self, wanted: u64) -> io::Result<&mut [u8]> {
        if self.used == self.buffer.len() {
            self.flush()?;
        }
        let room = self.buffer.len() - self.used;
        let now = usize::try_from(wanted).map_or(room, |wanted| wanted.min(room));
        Ok(&mut self.buffer[self.used..self.used + now])
    }

    /// Writes what is only in memory yet.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file
            .write_all_at(&self.buffer[..self.used], self.start)?;
        self.start += self.used as u64;
        self.used = 0;
        Ok(())
    }
}

/// Reads once, and again if a signal came.
pub(crate) fn read_some(from: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
