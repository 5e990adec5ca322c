//! **Purpose.** Decompresses streams on a thread of their own.
//!
//! **Model.** The thread fills buffers and passes them to the reader through a short queue; the
//! reader returns empty ones. Either side may end early: the thread stops when the reader is
//! dropped, and the reader gets the error of the thread in place of the end.
//!
//! **Locking.** The queue is one mutex and one condition variable, which are not held while bytes
//! are read or decompressed.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;
use fourscore_sync::{Arc, Condvar, Mutex, thread};

use crate::source::fault::{Fault, Parsed};
use crate::source::sink::read_some;

const PIECE_BYTES: usize = 256 << 10;
/// Largest number of full buffers in the queue.
const QUEUE_PIECES: usize = 8;
const INPUT_BYTES: usize = 256 << 10;

const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// The compression of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Detects the compression by the first bytes of a stream.
    pub(crate) fn of(start: &[u8]) -> Parsed<Self> {
        let others: [(&[u8], &'static str); 4] = [
            (b"\xfd7zXZ\0", "xz"),
            (b"BZh", "bzip2"),
            (b"LZIP", "lzip"),
            (b"\x04\x22\x4d\x18", "lz4"),
        ];
        if let Some((_, with)) = others.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(Fault::Compression { with });
        }
        // A zstd stream may begin with a skippable frame.
        let skipped = matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
        Ok(match start {
            start if start.starts_with(GZIP) => Self::Gzip,
            start if start.starts_with(ZSTD) || skipped => Self::Zstd,
            _ => Self::None,
        })
    }
}

/// Decompresses `packed` on a new thread, which works ahead of the reader.
pub(crate) fn decompress(
    packed: impl Read + Send + 'static,
    compression: Compression,
) -> io::Result<Decompressed> {
    let queue = Arc::new(Queue::default());
    let thread_queue = Arc::clone(&queue);
    thread::Builder::new()
        .name("unpack".to_owned())
        .spawn(move || thread_queue.run(packed, compression))?;
    Ok(Decompressed {
        queue,
        piece: Vec::new(),
        at: 0,
    })
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    full: VecDeque<Vec<u8>>,
    empty: Vec<Vec<u8>>,
    /// The result of the thread.
    end: Option<io::Result<()>>,
    reader_dropped: bool,
}

impl Queue {
    /// The function of the thread.
    fn run(&self, packed: impl Read, compression: Compression) {
        let input = BufReader::with_capacity(INPUT_BYTES, packed);
        let end = match compression {
            Compression::None => self.copy(input),
            Compression::Gzip => self.copy(Gzip(Some(GzDecoder::new(input)))),
            Compression::Zstd => {
                zstd::Decoder::with_buffer(input).and_then(|decoder| self.copy(decoder))
            }
        };
        self.state.lock().end = Some(end);
        self.changed.notify_all();
    }

    fn copy(&self, mut from: impl Read) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let mut len = 0;
            while len < PIECE_BYTES {
                match read_some(&mut from, &mut piece[len..])? {
                    0 => break,
                    count => len += count,
                }
            }
            piece.truncate(len);
            if len == 0 {
                return Ok(());
            }
            match self.exchange_full(piece) {
                Some(empty) => piece = empty,
                None => return Ok(()),
            }
            piece.resize(PIECE_BYTES, 0);
        }
    }

    /// Exchanges a full buffer for an empty one; `None` if the reader was dropped.
    fn exchange_full(&self, piece: Vec<u8>) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        while state.full.len() >= QUEUE_PIECES && !state.reader_dropped {
            self.changed.wait(&mut state);
        }
        if state.reader_dropped {
            return None;
        }
        state.full.push_back(piece);
        let empty = state.empty.pop().unwrap_or_default();
        drop(state);
        self.changed.notify_all();
        Some(empty)
    }

    /// Exchanges an empty buffer for a full one; `None` at the end.
    fn exchange_empty(&self, empty: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        let mut state = self.state.lock();
        state.empty.push(empty);
        loop {
            if let Some(piece) = state.full.pop_front() {
                drop(state);
                self.changed.notify_all();
                return Ok(Some(piece));
            }
            match state.end.take() {
                None => self.changed.wait(&mut state),
                Some(Ok(())) => {
                    state.end = Some(Ok(()));
                    return Ok(None);
                }
                Some(Err(error)) => {
                    state.end = Some(Ok(()));
                    return Err(error);
                }
            }
        }
    }
}

/// The reading side.
#[derive(Debug)]
pub(crate) struct Decompressed {
    queue: Arc<Queue>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for Decompressed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            let empty = std::mem::take(&mut self.piece);
            self.at = 0;
            match self.queue.exchange_empty(empty)? {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let rest = &self.piece[self.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

impl Drop for Decompressed {
    fn drop(&mut self) {
        self.queue.state.lock().reader_dropped = true;
        self.queue.changed.notify_all();
    }
}

/// A sequence of gzip members, which may be followed by zeroes (padding on tapes).
struct Gzip<R: BufRead>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.0 {
            let count = decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let Some(mut input) = self.0.take().map(GzDecoder::into_inner) else {
                break;
            };
            if !only_zeros_left(&mut input)? {
                self.0 = Some(GzDecoder::new(input));
            }
        }
        Ok(0)
    }
}

/// Skips zeroes; returns whether only zeroes were left.
fn only_zeros_left(input: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(true);
        }
        let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        let is_all = zeros == bytes.len();
        input.consume(zeros);
        if !is_all {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn text() -> Vec<u8> {
        (0..400_000_u32).flat_map(u32::to_le_bytes).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory")
    }

    fn all(packed: Vec<u8>) -> io::Result<Vec<u8>> {
        let compression = Compression::of(&packed).expect("known");
        let mut found = Vec::new();
        decompress(io::Cursor::new(packed), compression)?.read_to_end(&mut found)?;
        Ok(found)
    }

    #[test]
    fn compressed_data_is_restored() {
        let text = text();
        let (one, two) = text.split_at(text.len() / 3);
        let zstd = |bytes| zstd::encode_all(bytes, 1).expect("memory");
        assert_eq!(all(text.clone()).expect("plain"), text);
        assert_eq!(all([gzip(one), gzip(two)].concat()).expect("gzip"), text);
        assert_eq!(all([zstd(one), zstd(two)].concat()).expect("zstd"), text);
        let padded = [gzip(&text), vec![0; 10_000]].concat();
        assert_eq!(all(padded).expect("gzip"), text);
    }

    #[test]
    fn damaged_streams_are_errors() {
        let mut packed = gzip(&text());
        packed.truncate(packed.len() - 4);
        assert!(all(packed).is_err(), "gzip cut off in its checksum");
        let mut packed = zstd::encode_all(&text()[..], 1).expect("memory");
        packed.truncate(packed.len() - 1);
        assert!(all(packed).is_err(), "zstd cut off");
        let mut packed = gzip(&text());
        let middle = packed.len() / 2;
        packed[middle] ^= 0x55;
        assert!(all(packed).is_err(), "gzip with a wrong byte");
        let garbage = [gzip(b"x"), b"garbage".to_vec()].concat();
        assert!(all(garbage).is_err(), "garbage after gzip");
    }

    #[test]
    fn dropping_the_reader_ends_the_thread() {
        let queue = {
            let mut reader = decompress(io::repeat(1), Compression::None).expect("a thread");
            reader.read_exact(&mut [0; 10]).expect("endless");
            Arc::clone(&reader.queue)
        };
        let mut state = queue.state.lock();
        while state.end.is_none() {
            queue.changed.wait(&mut state);
        }
        assert!(state.reader_dropped);
    }

    #[test]
    fn unsupported_compressions_are_named() {
        let with = |start: &[u8]| match Compression::of(start) {
            Err(Fault::Compression { with }) => with,
            _ => "",
        };
        assert_eq!(with(b"\xfd7zXZ\0\0"), "xz");
        assert_eq!(with(b"BZh9"), "bzip2");
        assert_eq!(Compression::of(b"").expect("nothing"), Compression::None);
    }
}
