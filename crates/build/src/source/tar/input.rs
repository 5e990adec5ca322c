//! **Purpose.** Reads the bytes of an archive from a file or a stream.
//!
//! **Model.** For an uncompressed archive in a file, only headers are read; file data stays in the
//! archive and is identified by its offset. Any other archive is read once, and its file data is
//! stored on the way ([`Storage`]).

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use fourscore_sync::Arc;

use crate::source::fault::{Fault, Parsed};
use crate::source::sink::read_some;
use crate::source::storage::{Storage, total_bytes};
use crate::source::tar::header::BLOCK_BYTES;
use crate::source::tar::sparse::Run;
use crate::tree::Piece;

/// Size of one read: headers of small files are close together.
const WINDOW_BYTES: usize = 64 << 10;
const STREAM_BYTES: usize = 256 << 10;

/// The bytes of an archive in order.
pub(crate) trait Input {
    /// Offset of the next byte.
    fn position(&self) -> u64;

    /// Fills `buffer` as far as the archive has bytes, and moves past them.
    fn read(&mut self, buffer: &mut [u8]) -> Parsed<usize>;

    /// Moves past `len_bytes` bytes.
    fn skip(&mut self, len_bytes: u64) -> Parsed<()>;

    /// Moves past the data of a file: its parts without holes, one after another. Appends to
    /// `pieces` where they are stored.
    fn store(&mut self, parts: &[Run], pieces: &mut Vec<Piece>) -> Parsed<()>;

    /// Reads to the end, so that a checksum after the archive is verified.
    fn finish(&mut self) -> Parsed<()>;
}

/// Reads the next block; `None` at the end.
pub(super) fn next_block(input: &mut impl Input) -> Parsed<Option<[u8; BLOCK_BYTES]>> {
    let mut block = [0; BLOCK_BYTES];
    match input.read(&mut block)? {
        0 => Ok(None),
        BLOCK_BYTES => Ok(Some(block)),
        _ => Err(cut_off(input)),
    }
}

/// The error for an archive that ends here.
pub(super) fn cut_off(input: &impl Input) -> Fault {
    Fault::CutOff {
        at: input.position(),
    }
}

/// An uncompressed archive in a file, which also stores the file data.
#[derive(Debug)]
pub(crate) struct FileInput {
    file: Arc<File>,
    /// End of the archive in the file.
    end: u64,
    at: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl FileInput {
    /// `range` is the archive in the file.
    pub(crate) fn new(file: Arc<File>, range: Range<u64>) -> Self {
        Self {
            file,
            end: range.end,
            at: range.start,
            window: Vec::new(),
            window_at: 0,
        }
    }

    fn fill_window(&mut self) -> io::Result<()> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(WINDOW_BYTES);
        let most = left.min(WINDOW_BYTES);
        self.window.resize(most, 0);
        self.window_at = self.at;
        let mut len = 0;
        while len < most {
            match self
                .file
                .read_at(&mut self.window[len..], self.at + len as u64)
            {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.window.truncate(len);
        Ok(())
    }

    /// The rest of the window.
    fn remaining(&self) -> &[u8] {
        let passed = self.at.checked_sub(self.window_at);
        let passed = passed.and_then(|passed| usize::try_from(passed).ok());
        passed
            .and_then(|passed| self.window.get(passed..))
            .unwrap_or_default()
    }
}

impl Input for FileInput {
    fn position(&self) -> u64 {
        self.at
    }

    fn read(&mut self, buffer: &mut [u8]) -> Parsed<usize> {
        let mut len = 0;
        while len < buffer.len() {
            if self.remaining().is_empty() {
                self.fill_window()?;
            }
            let remaining = self.remaining();
            let count = remaining.len().min(buffer.len() - len);
            if count == 0 {
                break;
            }
            buffer[len..len + count].copy_from_slice(&remaining[..count]);
            self.at += count as u64;
            len += count;
        }
        Ok(len)
    }

    fn skip(&mut self, len_bytes: u64) -> Parsed<()> {
        match self.at.checked_add(len_bytes) {
            Some(end) if end <= self.end => self.at = end,
            _ => return Err(Fault::CutOff { at: self.end }),
        }
        Ok(())
    }

    fn store(&mut self, parts: &[Run], pieces: &mut Vec<Piece>) -> Parsed<()> {
        for part in parts {
            pieces.push(Piece {
                at: part.offset,
                from: self.at,
                len_bytes: part.len_bytes,
            });
            self.skip(part.len_bytes)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Parsed<()> {
        Ok(())
    }
}

/// An archive that is read once.
#[derive(Debug)]
pub(crate) struct StreamInput<R, K> {
    from: R,
    store: K,
    at: u64,
}

impl<R: Read, K: Storage> StreamInput<R, K> {
    pub(crate) fn new(from: R, store: K) -> Self {
        Self { from, store, at: 0 }
    }

    fn source_error<T>(done: io::Result<T>) -> Parsed<T> {
        done.map_err(Fault::Unpack)
    }
}

impl<R: Read, K: Storage> Input for StreamInput<R, K> {
    fn position(&self) -> u64 {
        self.at
    }

    fn read(&mut self, buffer: &mut [u8]) -> Parsed<usize> {
        let mut len = 0;
        while len < buffer.len() {
            match Self::source_error(read_some(&mut self.from, &mut buffer[len..]))? {
                0 => break,
                count => len += count,
            }
        }
        self.at += len as u64;
        Ok(len)
    }

    fn skip(&mut self, mut len_bytes: u64) -> Parsed<()> {
        let mut buffer = [0; BLOCK_BYTES * 8];
        while len_bytes > 0 {
            let part = usize::try_from(len_bytes).map_or(buffer.len(), |n| n.min(buffer.len()));
            if self.read(&mut buffer[..part])? < part {
                return Err(cut_off(self));
            }
            len_bytes -= part as u64;
        }
        Ok(())
    }

    fn store(&mut self, parts: &[Run], pieces: &mut Vec<Piece>) -> Parsed<()> {
        let mut from = FailingRead {
            from: &mut self.from,
            failed: None,
        };
        let stored = self.store.store(parts, &mut from, pieces);
        if let Some(error) = from.failed {
            return Err(Fault::Unpack(error));
        }
        let count = stored?;
        self.at += count;
        if count < total_bytes(parts) {
            return Err(cut_off(self));
        }
        Ok(())
    }

    fn finish(&mut self) -> Parsed<()> {
        let mut buffer = vec![0; STREAM_BYTES];
        while self.read(&mut buffer)? > 0 {}
        Ok(self.store.flush()?)
    }
}

/// Distinguishes read errors of the source from write errors of the store.
struct FailingRead<'a, R> {
    from: &'a mut R,
    failed: Option<io::Error>,
}

impl<R: Read> Read for FailingRead<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_some(self.from, buffer).or_else(|error| {
            self.failed = Some(error);
            Ok(0)
        })
    }
}
