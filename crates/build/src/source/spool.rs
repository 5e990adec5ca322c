//! **Purpose.** An unlinked temporary file that stores the data of an archive which can be read
//! only once, because it is compressed or comes through a pipe.
//!
//! **Not here.** Data that is written to the image directly (`draft`).
//!
//! **Model.** Data is appended through one buffer. Large files begin at a multiple of the block
//! size, so that a host file system with reflinks may share their blocks with the image. The file
//! is freed when its last descriptor is closed, however the program ends.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use fourscore_sync::Arc;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use crate::source::sink::Sink;
use crate::source::storage::{Storage, total_bytes};
use crate::source::tar::sparse::Run;
use crate::tree::Piece;

/// Files of at least this length begin at a multiple of [`ALIGNMENT_BYTES`].
const ALIGNED_FROM_BYTES: u64 = 64 << 10;
const ALIGNMENT_BYTES: u64 = 4096;
/// How many names are tried if the file must be created with a name first.
const NAMES_MAX: u32 = 1000;

/// File data, appended one after another.
#[derive(Debug)]
pub(crate) struct Spool {
    sink: Sink,
}

impl Spool {
    /// Creates the file in `directory`, whose file system must have space for the data.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let sink = Sink::new(Arc::new(unlinked_file(directory)?));
        Ok(Self { sink })
    }

    /// The file; complete after a flush.
    pub(crate) fn file(&self) -> &Arc<File> {
        self.sink.file()
    }
}

impl Storage for Spool {
    fn store(
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
        self.sink.copy(from, len_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// Creates an unlinked file with `O_TMPFILE`, or, where the file system does not support it, by
/// creating a file and unlinking it at once.
pub(crate) fn unlinked_file(directory: &Path) -> io::Result<File> {
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
    fn data_is_stored_and_large_files_are_aligned() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut spool = Spool::create(directory.path()).expect("disk space");
        let mut store = |mut bytes: &[u8], len_bytes| {
            let part = Run {
                offset: 0,
                len_bytes,
            };
            let mut pieces = Vec::new();
            let stored = spool
                .store(&[part], &mut bytes, &mut pieces)
                .expect("disk space");
            (pieces[0].from, stored)
        };
        let big = vec![b'b'; 3 << 20];
        assert_eq!(store(b"small", 5), (0, 5));
        let len = big.len() as u64;
        assert_eq!(store(&big, len), (4096, len));
        let at = 4096 + len;
        assert_eq!(store(b"short", 9), (at, 5));
        spool.flush().expect("disk space");
        let mut found = vec![0; 5];
        for (at, expected) in [(0, b"small"), (at, b"short"), (at - 5, b"bbbbb")] {
            spool.file().read_exact_at(&mut found, at).expect("written");
            assert_eq!(found, expected);
        }
        let names = std::fs::read_dir(directory.path())
            .expect("it exists")
            .count();
        assert_eq!(names, 0, "the file is unlinked");
    }
}
