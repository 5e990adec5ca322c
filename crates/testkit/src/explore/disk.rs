//! **Purpose.** A small disk in memory with undo: one disk serves thousands of crash states, each
//! written to it and undone.
//!
//! **Model.** Plain bytes, and a list of what every write replaced since the last
//! [`CrashDisk::keep`]. [`CrashDisk::go_back`] undoes the list from its end. The cost of a state
//! follows its changes, not the size of the disk. So does that of [`CrashDisk::fingerprint`], which
//! identifies states: it is a sum over the sectors that differ from the initial ones.
//!
//! **Locking.** One lock, without contention: each checker has its own disk.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_sync::Mutex;

/// The unit of the fingerprint, in bytes.
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
    /// Offset and length of each write, in order.
    written: Vec<(usize, usize)>,
    /// The bytes that they replaced, concatenated.
    replaced: Vec<u8>,
    /// The sectors that were ever written.
    touched: HashMap<usize, Touched>,
    /// The fingerprint at the last [`CrashDisk::keep`].
    kept: u64,
}

/// A sector that was written.
#[derive(Clone, Copy, Debug)]
struct Touched {
    /// The hash of its initial bytes.
    first: u64,
    /// Its part of the fingerprint at the last [`CrashDisk::keep`].
    kept: u64,
}

impl Content {
    /// The sectors that contain `len` bytes from `at` on.
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

    /// Hashes sectors before they are written for the first time.
    fn touch(&mut self, sectors: Range<usize>) {
        for sector in sectors {
            if !self.touched.contains_key(&sector) {
                let first = self.hash(sector);
                self.touched.insert(sector, Touched { first, kept: 0 });
            }
        }
    }

    /// The sectors written since the last keep, each with its part of the fingerprint.
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

    /// Makes the writes so far permanent.
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

    /// A hash that is equal for two states of this disk with the same bytes, and differs otherwise
    /// but for a chance of 2^-64.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let content = self.content.lock();
        let changed = content.changed().into_iter();
        changed.fold(content.kept, |sum, (sector, adds)| {
            sum ^ content.touched[&sector].kept ^ adds
        })
    }

    /// Undoes all writes since the last [`CrashDisk::keep`].
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

    /// The index of a transfer; an error if it reaches past the end of the disk.
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
    fn going_back_undoes_overlapping_writes() {
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
    fn states_with_the_same_bytes_have_the_same_fingerprint() {
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
