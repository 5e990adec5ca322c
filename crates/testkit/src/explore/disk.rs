//! **Purpose.** A small disk in memory that can go back to how it was: one disk serves for
//! thousands of crash states, each put on it and taken off again.
//!
//! **Model.** Plain bytes, and a list of what every write replaced since the last
//! [`CrashDisk::keep`]. [`CrashDisk::go_back`] undoes the list from its end. So a state costs
//! what it changes, not what the disk holds.
//!
//! **Locking.** One lock. A checker works on a disk of its own; nobody waits.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use fourscore_block::BlockDevice;
use fourscore_sync::Mutex;

/// A disk in memory with undo.
#[derive(Debug)]
pub struct CrashDisk {
    len_bytes: u64,
    content: Mutex<Content>,
}

#[derive(Debug)]
struct Content {
    bytes: Vec<u8>,
    /// Where writes went and how long they were, in order.
    written: Vec<(usize, usize)>,
    /// What they replaced, one after the other.
    replaced: Vec<u8>,
}

impl CrashDisk {
    /// A disk with these bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            len_bytes: bytes.len() as u64,
            content: Mutex::new(Content {
                bytes,
                written: Vec::new(),
                replaced: Vec::new(),
            }),
        }
    }

    /// What was written up to now stays.
    pub fn keep(&self) {
        let mut content = self.content.lock();
        content.written.clear();
        content.replaced.clear();
    }

    /// The disk is again as it was at the last [`CrashDisk::keep`].
    pub fn go_back(&self) {
        let mut content = self.content.lock();
        let Content {
            bytes,
            written,
            replaced,
        } = &mut *content;
        while let Some((at, len)) = written.pop() {
            let from = replaced.len() - len;
            bytes[at..at + len].copy_from_slice(&replaced[from..]);
            replaced.truncate(from);
        }
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.content.lock().bytes.clone()
    }

    /// The bytes of a transfer as a range; an error if the disk ends before it does.
    fn place(&self, offset: u64, len: usize) -> io::Result<usize> {
        let end = offset.checked_add(len as u64);
        let at = usize::try_from(offset).ok();
        match (at, end) {
            (Some(at), Some(end)) if end <= self.len_bytes => Ok(at),
            _ => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                format!("{len} bytes at byte {offset} of {}", self.len_bytes),
            )),
        }
    }
}

impl BlockDevice for CrashDisk {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let mut at = self.place(offset, bufs.iter().map(|buf| buf.len()).sum())?;
        let content = self.content.lock();
        for buf in bufs {
            let end = at + buf.len();
            buf.copy_from_slice(&content.bytes[at..end]);
            at = end;
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = self.place(offset, bufs.iter().map(|buf| buf.len()).sum())?;
        let mut content = self.content.lock();
        let Content {
            bytes,
            written,
            replaced,
        } = &mut *content;
        for buf in bufs {
            let place = &mut bytes[at..at + buf.len()];
            replaced.extend_from_slice(place);
            place.copy_from_slice(buf);
            written.push((at, buf.len()));
            at += buf.len();
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_back_undoes_overlapping_writes_up_to_what_was_kept() {
        let disk = CrashDisk::new(b"abcdefgh".to_vec());
        disk.write_at(b"12", 0).unwrap();
        disk.keep();
        let bufs = [IoSlice::new(b"xx"), IoSlice::new(b"yyy")];
        disk.write_vectored_at(&bufs, 1).unwrap();
        disk.write_at(b"z", 2).unwrap();
        assert_eq!(disk.bytes(), b"1xzyyygh");
        let mut two = [0; 2];
        disk.read_at(&mut two, 5).unwrap();
        assert_eq!(&two, b"yg");
        disk.go_back();
        assert_eq!(disk.bytes(), b"12cdefgh");
        disk.go_back();
        assert_eq!(disk.bytes(), b"12cdefgh");
        assert!(disk.write_at(b"xx", 7).is_err());
        assert!(disk.read_at(&mut two, u64::MAX).is_err());
    }
}
