//! **Purpose.** A file without a name that keeps the contents of an archive which cannot be read
//! twice, because it is compressed or comes through a pipe.
//!
//! **Not here.** Contents that go into the image at once (`draft`).
//!
//! **Model.** Contents are appended through one buffer. A big one begins at a multiple of the
//! block size, so that a file system that can share blocks may share them with the image.
//! The file vanishes with its last descriptor, however the program ends.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use fourscore_sync::Arc;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use crate::source::keep::{Keep, total_bytes};
use crate::source::sink::Sink;
use crate::source::tar::sparse::Run;
use crate::tree::Piece;

/// Contents from this length on begin at a multiple of [`ALIGNMENT_BYTES`].
const ALIGNED_FROM_BYTES: u64 = 64 << 10;
const ALIGNMENT_BYTES: u64 = 4096;
/// How often another name is tried where files must have one.
const NAMES_MAX: u32 = 1000;

/// Contents, one behind the other.
#[derive(Debug)]
pub(crate) struct Spool {
    sink: Sink,
}

impl Spool {
    /// Makes the file in `directory`, which must have room for the contents.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let sink = Sink::new(Arc::new(nameless(directory)?));
        Ok(Self { sink })
    }

    /// The file, complete after it was flushed.
    pub(crate) fn file(&self) -> &Arc<File> {
        self.sink.file()
    }
}

impl Keep for Spool {
    fn keep(
        &mut self,
        parts: &[Run],
        from: &mut dyn Read,
        pieces: &mut Vec<Piece>,
    ) -> io::Result<u64> {
        let len_bytes = total_bytes(parts);
        let mut start = self.sink.position();
        if len_bytes >= ALIGNED_FROM_BYTES {
            start = start.next_multiple_of(ALIGNMENT_BYTES);
            self.sink.move_to(start)?;
        }
        for part in parts {
            pieces.push(Piece {
                at: part.offset,
                from: start,
                len_bytes: part.len_bytes,
            });
            start += part.len_bytes;
        }
        self.sink.take(from, len_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// A file that has no name from the beginning, or, where the file system cannot do that, loses it
/// at once.
pub(crate) fn nameless(directory: &Path) -> io::Result<File> {
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
    use std::os::unix::fs::FileExt;

    #[test]
    fn contents_come_back_and_big_ones_are_aligned() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let mut spool = Spool::create(place.path()).expect("room");
        let mut keep = |mut bytes: &[u8], len_bytes| {
            let part = Run {
                offset: 0,
                len_bytes,
            };
            let mut pieces = Vec::new();
            let kept = spool.keep(&[part], &mut bytes, &mut pieces).expect("room");
            (pieces[0].from, kept)
        };
        let big = vec![b'b'; 3 << 20];
        assert_eq!(keep(b"small", 5), (0, 5));
        let len = big.len() as u64;
        assert_eq!(keep(&big, len), (4096, len));
        let at = 4096 + len;
        assert_eq!(keep(b"short", 9), (at, 5));
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
