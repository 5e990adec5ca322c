//! **Purpose.** A small disk in memory that can go back to how it was: one disk serves for
//! thousands of crash states, each put on it and taken off again.
//!
//! **Model.** Plain bytes, and a list of what every write replaced since the last
//! [`CrashDisk::keep`]. [`CrashDisk::go_back`] undoes the list from its end. So a state costs
//! what it changes, not what the disk holds. So does [`CrashDisk::fingerprint`], by which states
//! are known again: it is the sum of what each sector adds that is not what it was at first.
//!
//! **Locking.** One lock. A checker works on a disk of its own; nobody waits.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_sync::Mutex;

/// The parts of which the disk knows whether they are what they were, in bytes.
const SECTOR_BYTES: usize = 512;

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
    /// The sectors that were ever written.
    touched: HashMap<usize, Touched>,
    /// The fingerprint of what was kept.
    kept: u64,
}

/// A sector that was written.
#[derive(Clone, Copy, Debug)]
struct Touched {
    /// The hash of what it held at first.
    first: u64,
    /// What it adds to the fingerprint of what was kept.
    kept: u64,
}

impl Content {
    /// The sectors that `len` bytes from `at` on lie in.
    fn sectors(at: usize, len: usize) -> Range<usize> {
        at / SECTOR_BYTES..(at + len).div_ceil(SECTOR_BYTES)
    }

    fn hash(&self, sector: usize) -> u64 {
        let start = sector * SECTOR_BYTES;
        let end = self.bytes.len().min(start + SECTOR_BYTES);
        let mut hasher = DefaultHasher::new();
        hasher.write_usize(sector);
        hasher.write(&self.bytes[start..end]);
        hasher.finish()
    }

    /// Notes what a sector holds before it is written for the first time.
    fn touch(&mut self, sectors: Range<usize>) {
        for sector in sectors {
            if !self.touched.contains_key(&sector) {
                let first = self.hash(sector);
                self.touched.insert(sector, Touched { first, kept: 0 });
            }
        }
    }

    /// The sectors that were written since something was kept, and what each adds now.
    fn changed(&self) -> Vec<(usize, u64)> {
        let written = self.written.iter();
        let mut sectors: Vec<_> = written
            .flat_map(|&(at, len)| Self::sectors(at, len))
            .collect();
        sectors.sort_unstable();
        sectors.dedup();
        let adds = |sector| (sector, self.hash(sector) ^ self.touched[&sector].first);
        sectors.into_iter().map(adds).collect()
    }
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
                touched: HashMap::new(),
                kept: 0,
            }),
        }
    }

    /// What was written up to now stays.
    pub fn keep(&self) {
        let mut content = self.content.lock();
        for (sector, adds) in content.changed() {
            if let Some(touched) = content.touched.get_mut(&sector) {
                let before = std::mem::replace(&mut touched.kept, adds);
                content.kept ^= before ^ adds;
            }
        }
        content.written.clear();
        content.replaced.clear();
    }

    /// A number that two states of this disk share if they hold the same bytes, and else only by
    /// a chance of one in 2^64.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let content = self.content.lock();
        let changed = content.changed().into_iter();
        changed.fold(content.kept, |sum, (sector, adds)| {
            sum ^ content.touched[&sector].kept ^ adds
        })
    }

    /// The disk is again as it was at the last [`CrashDisk::keep`].
    pub fn go_back(&self) {
        let mut content = self.content.lock();
        let Content {
            bytes,
            written,
            replaced,
            ..
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
        content.touch(Content::sectors(at, bufs.iter().map(|buf| buf.len()).sum()));
        let Content {
            bytes,
            written,
            replaced,
            ..
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

    #[test]
    fn states_with_the_same_bytes_have_the_same_fingerprint_on_whatever_way() {
        let disk = CrashDisk::new(vec![7; 2_000]);
        let first = disk.fingerprint();
        disk.write_at(&[1; 600], 500).unwrap();
        let changed = disk.fingerprint();
        assert_ne!(changed, first);
        disk.keep();
        assert_eq!(disk.fingerprint(), changed);
        disk.write_at(&[7; 600], 500).unwrap();
        assert_eq!(disk.fingerprint(), first);
        disk.go_back();
        assert_eq!(disk.fingerprint(), changed);
        disk.write_at(&[2; 10], 1_990).unwrap();
        let end = disk.fingerprint();
        disk.go_back();
        disk.write_at(&[3; 20], 1_980).unwrap();
        disk.write_at(&[7; 10], 1_980).unwrap();
        assert_ne!(disk.fingerprint(), end);
        disk.write_at(&[2; 10], 1_990).unwrap();
        assert_eq!(disk.fingerprint(), end);
    }
}
