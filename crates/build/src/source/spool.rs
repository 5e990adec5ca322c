//! **Purpose.** A file without a name that keeps the contents of an archive which cannot be read
//! twice, because it is compressed or comes through a pipe.
//!
//! **Model.** Contents are appended through one buffer. A big one begins at a multiple of the
//! block size, so that a file system that can share blocks may share them with the image.
//! The file vanishes with its last descriptor, however the program ends.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use fourscore_sync::Arc;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

const BUFFER_BYTES: usize = 1 << 20;
/// Contents from this length on begin at a multiple of [`ALIGNMENT_BYTES`].
const ALIGNED_FROM_BYTES: u64 = 64 << 10;
const ALIGNMENT_BYTES: u64 = 4096;
/// How often another name is tried where files must have one.
const NAMES_MAX: u32 = 1000;

/// Contents, one behind the other.
#[derive(Debug)]
pub(crate) struct Spool {
    file: Arc<File>,
    buffer: Vec<u8>,
    /// How much of the file is written.
    written_bytes: u64,
}

impl Spool {
    /// Makes the file in `directory`, which must have room for the contents.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let file = nameless(directory)?;
        Ok(Self {
            file: Arc::new(file),
            buffer: Vec::with_capacity(BUFFER_BYTES),
            written_bytes: 0,
        })
    }

    /// The file, complete after [`flush`](Self::flush).
    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Appends up to `len_bytes` bytes of `from`; returns where they begin, and how many there
    /// were before `from` ended.
    pub(crate) fn append(&mut self, from: &mut dyn Read, len_bytes: u64) -> io::Result<(u64, u64)> {
        if len_bytes >= ALIGNED_FROM_BYTES {
            self.flush()?;
            self.written_bytes = self.written_bytes.next_multiple_of(ALIGNMENT_BYTES);
        }
        let start = self.written_bytes + self.buffer.len() as u64;
        let mut left = len_bytes;
        while left > 0 {
            if self.buffer.len() == BUFFER_BYTES {
                self.flush()?;
            }
            let used = self.buffer.len();
            let room = BUFFER_BYTES - used;
            let wanted = usize::try_from(left).map_or(room, |left| left.min(room));
            self.buffer.resize(used + wanted, 0);
            let read = read_some(from, &mut self.buffer[used..]);
            self.buffer
                .truncate(used + read.as_ref().copied().unwrap_or(0));
            let count = read?;
            if count == 0 {
                break;
            }
            left -= count as u64;
        }
        Ok((start, len_bytes - left))
    }

    /// Writes what is only in memory yet.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.written_bytes)?;
        self.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
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

/// A file that has no name from the beginning, or, where the file system cannot do that, loses it
/// at once.
fn nameless(directory: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match openat(CWD, directory, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        opened => return Ok(opened?.into()),
    }
    for nr in 0..NAMES_MAX {
        let name = format!(".fourscore-{}-{nr}", std::process::id());
        let path = directory.join(name);
        match openat(CWD, &path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Err(Errno::EXIST) => {}
            opened => {
                let file = File::from(opened?);
                unlinkat(CWD, &path, AtFlags::empty())?;
                return Ok(file);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_come_back_and_big_ones_are_aligned() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let mut spool = Spool::create(place.path()).expect("room");
        let big = vec![b'b'; 3 << 20];
        assert_eq!(spool.append(&mut &b"small"[..], 5).expect("room"), (0, 5));
        let len = big.len() as u64;
        assert_eq!(spool.append(&mut &big[..], len).expect("room"), (4096, len));
        let at = 4096 + len;
        assert_eq!(spool.append(&mut &b"short"[..], 9).expect("room"), (at, 5));
        spool.flush().expect("room");
        let mut found = vec![0; 5];
        for (at, expected) in [(0, b"small"), (at, b"short"), (at - 5, b"bbbbb")] {
            spool.file().read_exact_at(&mut found, at).expect("written");
            assert_eq!(found, expected);
        }
        let names = std::fs::read_dir(place.path()).expect("it exists").count();
        assert_eq!(names, 0, "the file has no name");
    }
}
