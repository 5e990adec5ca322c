//! **Purpose.** The bytes of an archive, whether they can be read twice or only once.
//!
//! **Model.** A plain archive in a file is read where its headers are; the content of its files
//! stays where it is and is named by its offset. Anything else flows by once, and the contents
//! are kept on the way ([`Keep`]).

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use fourscore_sync::Arc;

use crate::source::fault::{Fault, Parsed};
use crate::source::keep::{Keep, total_bytes};
use crate::source::sink::read_some;
use crate::source::tar::header::BLOCK_BYTES;
use crate::source::tar::sparse::Run;
use crate::tree::Piece;

/// How much of a file is read at once: headers of small files stand close together.
const WINDOW_BYTES: usize = 64 << 10;
const STREAM_BYTES: usize = 256 << 10;

/// An archive as a row of bytes.
pub(crate) trait Input {
    /// How many bytes have gone by.
    fn position(&self) -> u64;

    /// Fills as much of `buffer` as there is, and moves past it.
    fn read(&mut self, buffer: &mut [u8]) -> Parsed<usize>;

    /// Moves past `len_bytes` bytes.
    fn skip(&mut self, len_bytes: u64) -> Parsed<()>;

    /// Moves past the content of a file: its parts that are not holes, one after the other.
    /// `pieces` gets where in the file of contents they are.
    fn keep(&mut self, parts: &[Run], pieces: &mut Vec<Piece>) -> Parsed<()>;

    /// Reads to the very end, so that checksums behind the archive are checked.
    fn finish(&mut self) -> Parsed<()>;
}

/// The next block; `None` at the end.
pub(super) fn block(input: &mut impl Input) -> Parsed<Option<[u8; BLOCK_BYTES]>> {
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

/// A plain archive in a file, which is the file of contents as well.
#[derive(Debug)]
pub(crate) struct FileInput {
    file: Arc<File>,
    /// Where in the file it ends.
    end: u64,
    at: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl FileInput {
    /// The archive is this range of the file.
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

    /// What of the window is still ahead.
    fn ahead(&self) -> &[u8] {
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
            if self.ahead().is_empty() {
                self.fill_window()?;
            }
            let ahead = self.ahead();
            let count = ahead.len().min(buffer.len() - len);
            if count == 0 {
                break;
            }
            buffer[len..len + count].copy_from_slice(&ahead[..count]);
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

    fn keep(&mut self, parts: &[Run], pieces: &mut Vec<Piece>) -> Parsed<()> {
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

/// An archive that flows by.
#[derive(Debug)]
pub(crate) struct StreamInput<R, K> {
    from: R,
    kept: K,
    at: u64,
}

impl<R: Read, K: Keep> StreamInput<R, K> {
    pub(crate) fn new(from: R, kept: K) -> Self {
        Self { from, kept, at: 0 }
    }

    fn unpacked<T>(done: io::Result<T>) -> Parsed<T> {
        done.map_err(Fault::Unpack)
    }
}

impl<R: Read, K: Keep> Input for StreamInput<R, K> {
    fn position(&self) -> u64 {
        self.at
    }

    fn read(&mut self, buffer: &mut [u8]) -> Parsed<usize> {
        let mut len = 0;
        while len < buffer.len() {
            match Self::unpacked(read_some(&mut self.from, &mut buffer[len..]))? {
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

    fn keep(&mut self, parts: &[Run], pieces: &mut Vec<Piece>) -> Parsed<()> {
        let mut from = Marked {
            from: &mut self.from,
            failed: None,
        };
        let kept = self.kept.keep(parts, &mut from, pieces);
        if let Some(error) = from.failed {
            return Err(Fault::Unpack(error));
        }
        let count = kept?;
        self.at += count;
        if count < total_bytes(parts) {
            return Err(cut_off(self));
        }
        Ok(())
    }

    fn finish(&mut self) -> Parsed<()> {
        let mut buffer = vec![0; STREAM_BYTES];
        while self.read(&mut buffer)? > 0 {}
        Ok(self.kept.flush()?)
    }
}

/// Tells a source that fails from a place for its contents that does.
struct Marked<'a, R> {
    from: &'a mut R,
    failed: Option<io::Error>,
}

impl<R: Read> Read for Marked<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_some(self.from, buffer).or_else(|error| {
            self.failed = Some(error);
            Ok(0)
        })
    }
}
