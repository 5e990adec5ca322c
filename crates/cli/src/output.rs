//! **Purpose.** Standard output through one large buffer. A pipe is enlarged and takes spliced
//! pages without a copy; a regular file keeps holes.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, IoSlice, IsTerminal, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

use crate::failure::{Failure, Result};
use crate::text::printable;

/// Size of the buffer.
const BUFFER_BYTES: usize = 1 << 20;
/// Pieces of at least this length are written without being copied into the buffer.
const DIRECT_BYTES: usize = 64 << 10;
/// Bytes that are spliced in one call; a pipe takes no more at once.
const SPLICE_BYTES: u64 = 1 << 20;
/// At least this number of zeros becomes a hole, if that is possible.
const HOLE_BYTES_MIN: u64 = 4096;

/// Standard output. Bytes that are not flushed are lost, so every command ends with
/// [`Stdout::flush`].
#[derive(Debug)]
pub(crate) struct Stdout {
    file: File,
    is_pipe: bool,
    is_terminal: bool,
    /// A regular file, not in append mode.
    is_seekable: bool,
    ends_with_hole: bool,
    buffer: Vec<u8>,
}

/// The result of [`Stdout::splice`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spliced {
    pub(crate) bytes: u64,
}

impl Stdout {
    /// Opens standard output.
    pub(crate) fn open() -> Result<Self> {
        let fd = io::stdout().as_fd().try_clone_to_owned();
        Self::over(File::from(fd.map_err(|error| Failure::stdout(&error))?))
    }

    /// Takes another file as standard output.
    pub(crate) fn over(file: File) -> Result<Self> {
        let kind = file
            .metadata()
            .map_err(|error| Failure::stdout(&error))?
            .file_type();
        let is_pipe = kind.is_fifo();
        if is_pipe {
            // Refused if the user's pipes have too many pages already; the pipe keeps its size.
            let _ = rustix::pipe::fcntl_setpipe_size(&file, BUFFER_BYTES);
        }
        let flags = rustix::fs::fcntl_getfl(&file).unwrap_or(OFlags::APPEND);
        Ok(Self {
            is_terminal: file.is_terminal(),
            file,
            is_pipe,
            is_seekable: kind.is_file() && !flags.contains(OFlags::APPEND),
            ends_with_hole: false,
            buffer: Vec::with_capacity(BUFFER_BYTES),
        })
    }

    /// Writes bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() < DIRECT_BYTES && self.buffer.len() + bytes.len() <= BUFFER_BYTES {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.write_both(bytes)
            .map_err(|error| Failure::stdout(&error))
    }

    /// A name, or other text, of an image: as it is, but for a terminal with control characters
    /// escaped, which could be commands to it.
    pub(crate) fn shown<'n>(&self, name: &'n [u8]) -> Cow<'n, [u8]> {
        match self.is_terminal {
            true => printable(name).into_bytes().into(),
            false => name.into(),
        }
    }

    /// Writes a name, or other text, of an image, as [`Stdout::shown`].
    pub(crate) fn name(&mut self, name: &[u8]) -> Result<()> {
        let shown = self.shown(name);
        self.write(&shown)
    }

    /// Writes the buffer.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let done = self.file.write_all(&self.buffer);
        self.buffer.clear();
        done.map_err(|error| Failure::stdout(&error))
    }

    /// Writes `count` zeros: as a hole if standard output is a regular file that is written at its
    /// end.
    pub(crate) fn zeros(&mut self, mut count: u64) -> Result<()> {
        if count >= HOLE_BYTES_MIN && self.is_at_end_of_file() {
            self.flush()?;
            let moved = i64::try_from(count).map(SeekFrom::Current);
            let moved = moved.map_err(|_| io::ErrorKind::FileTooLarge.into());
            moved
                .and_then(|to| self.file.seek(to))
                .map_err(|error| Failure::stdout(&error))?;
            self.ends_with_hole = true;
            return Ok(());
        }
        const ZEROS: &[u8] = &[0; 32 << 10];
        while count > 0 {
            let part = usize::try_from(count).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            self.write(&ZEROS[..part])?;
            count -= part as u64;
        }
        Ok(())
    }

    /// Flushes, and extends a file that ends with a hole to its length.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.flush()?;
        if self.ends_with_hole {
            let len = self.file.stream_position();
            let grown = len.and_then(|len| match self.file.metadata()?.len() {
                found if found < len => self.file.set_len(len),
                _ => Ok(()),
            });
            grown.map_err(|error| Failure::stdout(&error))?;
        }
        Ok(())
    }

    /// Whether the next write extends a regular file. Append mode does not count, since a seek has
    /// no effect there.
    fn is_at_end_of_file(&mut self) -> bool {
        if !self.is_seekable {
            return false;
        }
        let position = self.file.stream_position().ok();
        let len = self.file.metadata().ok().map(|file| file.len());
        position
            .zip(len)
            .is_some_and(|(position, len)| position >= len)
    }

    /// Moves pages of `from` into standard output without copying them, as far as possible: only a
    /// pipe can take them. The caller writes the rest.
    pub(crate) fn splice(
        &mut self,
        from: impl AsFd,
        mut offset: u64,
        len_bytes: u64,
    ) -> Result<Spliced> {
        let mut spliced = Spliced { bytes: 0 };
        if !self.is_pipe {
            return Ok(spliced);
        }
        self.flush()?;
        while spliced.bytes < len_bytes {
            let len = usize::try_from((len_bytes - spliced.bytes).min(SPLICE_BYTES)).unwrap_or(0);
            let (from, flags) = (from.as_fd(), SpliceFlags::MORE | SpliceFlags::MOVE);
            match splice(from, Some(&mut offset), &self.file, None, len, flags) {
                // The file ends early; the caller finds that when it reads the rest.
                Ok(0) => break,
                Ok(count) => spliced.bytes += count as u64,
                Err(Errno::INTR) => {}
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => break,
                Err(errno) => return Err(Failure::stdout(&errno.into())),
            }
        }
        Ok(spliced)
    }

    /// Writes the buffer and `bytes` with as few calls as possible.
    fn write_both(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut buffered = self.buffer.as_slice();
        while !buffered.is_empty() {
            let slices = [IoSlice::new(buffered), IoSlice::new(bytes)];
            let count = match self.file.write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let from_buffered = count.min(buffered.len());
            buffered = &buffered[from_buffered..];
            bytes = &bytes[count - from_buffered..];
        }
        self.buffer.clear();
        self.file.write_all(bytes)
    }
}
