//! **Purpose.** Undo files: before a byte of the image changes, the old one is saved, in the format
//! that `e2undo` applies.
//!
//! **Model.** A device over the image. The first write of each unit of 1 KiB appends the old unit
//! to the file. The file consists of blocks of 1 KiB:
//! ```text
//! header | superblock as it is at the end | key block | saved units | key block | saved units |
//! ... ```
//! A key says where a run of saved units belongs, how long it is, and its checksum.
//!
//! **Crash safety.** What is saved, and the header that counts it, are durable before the image is
//! written. The header of a file whose repair did not end is not marked as finished: `e2undo` then
//! wants to be forced (`-f`). If something could not be saved, the image is not written any more:
//! the file stays as it was, and undoes all that was written.
//!
//! **Locking.** The file is locked while it is written, because the write of the image has to wait
//! for it in any case.
//!
//! **References.** The comments of `lib/ext2fs/undo_io.c` in e2fsprogs, from version 1.43 on.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::{Path, PathBuf};

use fourscore_block::{BlockDevice, Hints, positioned};
use fourscore_ondisk::checksum::Crc32c;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_sync::{Arc, Mutex};

/// The size of the blocks of the file, and of the units of the image that keys count in.
const BLOCK_BYTES: usize = 1024;
const MAGIC: &[u8; 8] = b"E2UNDO02";
const HEADER_BYTES: usize = 512;
/// The place of `s_magic` in a superblock.
const MAGIC_AT: usize = 0x38;
const SUPER_AT: u64 = BLOCK_BYTES as u64;
const KEYS_AT: u64 = 2 * BLOCK_BYTES as u64;
const FINISHED: u32 = 1;
/// The header gives the offset of the file system.
const HAS_OFFSET: u32 = 1;
const KEY_BLOCK_MAGIC: u32 = 0xcade_cade;
const KEY_BYTES: usize = 16;
/// The head of a key block takes the space of a key.
const KEYS_PER_BLOCK: usize = BLOCK_BYTES / KEY_BYTES - 1;
/// The longest run of a key.
const MOST_UNITS: u64 = 512;

/// A device that saves what is overwritten.
#[derive(Debug)]
pub struct UndoDevice {
    base: Arc<dyn BlockDevice>,
    file: Mutex<UndoFile>,
}

#[derive(Debug)]
struct UndoFile {
    file: File,
    path: PathBuf,
    /// The byte of the disk at which the file system begins.
    offset: u64,
    saved: HashSet<u64>,
    /// Something could not be saved, and the rest of the state may be ahead of the file.
    has_failed: bool,
    keys: u64,
    key_block: [u8; BLOCK_BYTES],
    /// Where the key block is, and where the file ends.
    key_block_at: u64,
    end: u64,
}

impl UndoDevice {
    /// A device over `base`, which begins at byte `offset` of its disk. The undo file must not
    /// exist yet; only its owner can read it.
    ///
    /// # Errors
    /// The file exists or cannot be written.
    pub fn create(path: &Path, base: Arc<dyn BlockDevice>, offset: u64) -> io::Result<Self> {
        // Directories and files of all users are saved.
        let file = positioned::create_private(path)?;
        let mut undo = UndoFile {
            file,
            path: path.to_owned(),
            offset,
            saved: HashSet::new(),
            has_failed: false,
            keys: 0,
            key_block: [0; BLOCK_BYTES],
            key_block_at: KEYS_AT,
            end: KEYS_AT,
        };
        undo.write_head(&*base, 0)?;
        let file = Mutex::new(undo);
        Ok(Self { base, file })
    }

    /// Marks the file as finished: the image is now what it is to be undone from.
    ///
    /// # Errors
    /// The file or the image cannot be used, or something could not be saved before.
    pub fn finish(&self) -> io::Result<()> {
        let mut undo = self.file.lock();
        undo.require_sound()?;
        undo.write_head(&*self.base, FINISHED)
    }

    /// Ends a change that was refused or has failed: removes the file if nothing was saved in it,
    /// or only the block that keeps other hosts away (feature `mmp`), and that is as before: the
    /// image is as it was then. A file in which anything else was saved stays, not marked as
    /// finished.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn abandon(&self) -> io::Result<()> {
        let undo = self.file.lock();
        match undo.saved.is_empty() || undo.has_only_what_is_there(&*self.base) {
            true => std::fs::remove_file(&undo.path),
            false => Ok(()),
        }
    }
}

impl UndoFile {
    /// Saves the units of a range that were not saved before. After a failure every call fails, so
    /// that nothing is overwritten that is not in the file.
    fn save(&mut self, base: &dyn BlockDevice, at: u64, bytes: u64) -> io::Result<()> {
        self.require_sound()?;
        let saved = self.save_new(base, at, bytes);
        self.has_failed = saved.is_err();
        saved
    }

    /// Whether one run of units was saved, and the image has these bytes.
    fn has_only_what_is_there(&self, base: &dyn BlockDevice) -> bool {
        let is_there = |(at, bytes): &(u64, Vec<u8>)| {
            let mut now = vec![0; bytes.len()];
            base.read_at(&mut now, *at).is_ok() && now == *bytes
        };
        let saved = read_keys(&self.file, self.keys.min(1));
        self.keys == 1 && saved.is_ok_and(|saved| saved.iter().all(is_there))
    }

    fn require_sound(&self) -> io::Result<()> {
        match self.has_failed {
            true => Err(io::Error::other("the undo file could not be written")),
            false => Ok(()),
        }
    }

    fn save_new(&mut self, base: &dyn BlockDevice, at: u64, bytes: u64) -> io::Result<()> {
        let unit = BLOCK_BYTES as u64;
        let units = at / unit..at.saturating_add(bytes).div_ceil(unit);
        let mut run: Option<std::ops::Range<u64>> = None;
        let mut runs = Vec::new();
        for unit in units.clone().filter(|unit| !self.saved.contains(unit)) {
            match &mut run {
                Some(run) if run.end == unit && run.end - run.start < MOST_UNITS => run.end += 1,
                _ => runs.extend(run.replace(unit..unit + 1)),
            }
        }
        runs.extend(run);
        if runs.is_empty() {
            return Ok(());
        }
        for run in runs {
            self.append(base, run)?;
        }
        self.write_head(base, 0)?;
        self.saved.extend(units);
        Ok(())
    }

    fn append(&mut self, base: &dyn BlockDevice, units: std::ops::Range<u64>) -> io::Result<()> {
        let unit = BLOCK_BYTES as u64;
        let nth = usize::try_from(self.keys % KEYS_PER_BLOCK as u64).unwrap_or(0);
        if nth == 0 {
            self.key_block = [0; BLOCK_BYTES];
            self.key_block_at = self.end;
            self.end += unit;
        }
        let start = units.start * unit;
        let length = (units.end * unit)
            .min(base.len_bytes())
            .saturating_sub(start);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        base.read_at(&mut bytes, start)?;
        positioned::write_all(&self.file, &bytes, self.end)?;
        let crc = Crc32c::START.update(&bytes).value();
        let key = [
            &units.start.to_le_bytes()[..],
            &crc.to_le_bytes(),
            &u32::try_from(length).unwrap_or(0).to_le_bytes(),
        ]
        .concat();
        put(&mut self.key_block, (nth + 1) * KEY_BYTES, &key);
        self.end += length.next_multiple_of(unit);
        self.file.set_len(self.end)?;
        self.keys += 1;
        put(&mut self.key_block, 0, &KEY_BLOCK_MAGIC.to_le_bytes());
        put(&mut self.key_block, 4, &[0; 4]);
        let crc = Crc32c::START.update(&self.key_block).value();
        put(&mut self.key_block, 4, &crc.to_le_bytes());
        positioned::write_all(&self.file, &self.key_block, self.key_block_at)
    }

    /// Writes the superblock that the image has now, and the header, and makes all durable.
    fn write_head(&mut self, base: &dyn BlockDevice, state: u32) -> io::Result<()> {
        let mut superblock = [0; SUPERBLOCK_SIZE_BYTES];
        base.read_at(&mut superblock, SUPERBLOCK_OFFSET_BYTES)?;
        let checksum = Crc32c::START.update(&superblock).value();
        invert_magic(&mut superblock);
        positioned::write_all(&self.file, &superblock, SUPER_AT)?;
        let block = u32::try_from(BLOCK_BYTES).unwrap_or(0);
        let mut header = [0; BLOCK_BYTES];
        put(&mut header, 0, MAGIC);
        put(&mut header, 8, &self.keys.to_le_bytes());
        put(
            &mut header,
            16,
            &(SUPER_AT / BLOCK_BYTES as u64).to_le_bytes(),
        );
        put(
            &mut header,
            24,
            &(KEYS_AT / BLOCK_BYTES as u64).to_le_bytes(),
        );
        put(&mut header, 32, &block.to_le_bytes());
        put(&mut header, 36, &block.to_le_bytes());
        put(&mut header, 40, &checksum.to_le_bytes());
        put(&mut header, 44, &state.to_le_bytes());
        let compatible = if self.offset > 0 { HAS_OFFSET } else { 0 };
        put(&mut header, 48, &compatible.to_le_bytes());
        put(&mut header, 64, &self.offset.to_le_bytes());
        let crc = header_checksum(&header);
        put(&mut header, HEADER_BYTES - 4, &crc.to_le_bytes());
        positioned::write_all(&self.file, &header, 0)?;
        self.file.sync_data()
    }
}

impl BlockDevice for UndoDevice {
    fn len_bytes(&self) -> u64 {
        self.base.len_bytes()
    }

    fn hints(&self) -> Hints {
        Hints {
            discard: false,
            ..self.base.hints()
        }
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.base.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.file.lock().save(&*self.base, offset, bytes)?;
        self.base.write_vectored_at(bufs, offset)
    }

    fn forget_cached(&self, range: std::ops::Range<u64>) {
        self.base.forget_cached(range);
    }

    fn flush(&self) -> io::Result<()> {
        self.base.flush()
    }

    fn unlock(&self) {
        self.base.unlock();
    }
}

/// Why an undo file cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// It is none, or it is damaged.
    #[error("{0}")]
    Invalid(&'static str),
    /// The file or the device cannot be used.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Writes back what an undo file saved. Nothing is written unless the whole file is sound, and the
/// image is as the repair left it. Returns the number of bytes written back. With the feature `mmp`
/// other hosts are kept away meanwhile, and the block for that is not written back.
///
/// # Errors
/// As above; `Invalid` also if the file system was changed since; `Io` of kind `ResourceBusy` if
/// another host has the file system.
pub fn apply_undo(path: &Path, device: Arc<dyn BlockDevice>) -> Result<u64, UndoError> {
    let file = File::open(path)?;
    let mut header = [0; BLOCK_BYTES];
    let is_read = positioned::read_exact(&file, &mut header, 0).is_ok();
    if !is_read || !header.starts_with(MAGIC) {
        return Err(UndoError::Invalid("no undo file"));
    }
    if word(&header, HEADER_BYTES - 4) != header_checksum(&header) {
        return Err(UndoError::Invalid("its header is damaged"));
    }
    if word(&header, 32) as usize != BLOCK_BYTES || word(&header, 36) as usize != BLOCK_BYTES {
        return Err(UndoError::Invalid(
            "made by another program; e2undo applies it",
        ));
    }
    let mut superblock = [[0; SUPERBLOCK_SIZE_BYTES]; 2];
    positioned::read_exact(&file, &mut superblock[0], SUPER_AT)?;
    invert_magic(&mut superblock[0]);
    device.read_at(&mut superblock[1], SUPERBLOCK_OFFSET_BYTES)?;
    let is_finished = word(&header, 44) & FINISHED != 0;
    if is_finished && superblock[0] != superblock[1] {
        return Err(UndoError::Invalid(
            "the file system was changed since the repair",
        ));
    }
    let keys = u64::from(word(&header, 8)) | u64::from(word(&header, 12)) << 32;
    let saved = read_keys(&file, keys)?;
    let claimed = super::claim(device)?;
    let mut written = 0;
    for (at, bytes) in &saved {
        write_but(&**claimed.device(), *at, bytes, claimed.place())?;
        written += bytes.len() as u64;
    }
    claimed.release().map_err(io::Error::from)?;
    Ok(written)
}

/// Writes bytes, but for those in the range `kept`.
fn write_but(
    device: &dyn BlockDevice,
    at: u64,
    bytes: &[u8],
    kept: Option<Range<u64>>,
) -> io::Result<()> {
    let end = at + bytes.len() as u64;
    let kept = kept.map_or(end..end, |kept| {
        kept.start.clamp(at, end)..kept.end.clamp(at, end)
    });
    for part in [at..kept.start, kept.end..end] {
        let index = |byte: u64| usize::try_from(byte - at).unwrap_or(usize::MAX);
        if let Some(bytes) = bytes.get(index(part.start)..index(part.end))
            && !bytes.is_empty()
        {
            device.write_at(bytes, part.start)?;
        }
    }
    Ok(())
}

/// What was saved, each run with its place.
fn read_keys(file: &File, keys: u64) -> Result<Vec<(u64, Vec<u8>)>, UndoError> {
    let damaged = UndoError::Invalid("it is damaged");
    let mut saved = Vec::new();
    let mut at = KEYS_AT;
    let mut left = keys;
    while left > 0 {
        let mut block = [0; BLOCK_BYTES];
        positioned::read_exact(file, &mut block, at)?;
        let crc = word(&block, 4);
        put(&mut block, 4, &[0; 4]);
        if word(&block, 0) != KEY_BLOCK_MAGIC || Crc32c::START.update(&block).value() != crc {
            return Err(damaged);
        }
        at += BLOCK_BYTES as u64;
        let count = left.min(KEYS_PER_BLOCK as u64);
        for nth in 1..=usize::try_from(count).unwrap_or(0) {
            let key = nth * KEY_BYTES;
            let unit = u64::from(word(&block, key)) | u64::from(word(&block, key + 4)) << 32;
            let length = u64::from(word(&block, key + 12));
            if length > MOST_UNITS * BLOCK_BYTES as u64 {
                return Err(damaged);
            }
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            positioned::read_exact(file, &mut bytes, at)?;
            if Crc32c::START.update(&bytes).value() != word(&block, key + 8) {
                return Err(damaged);
            }
            at += length.next_multiple_of(BLOCK_BYTES as u64);
            saved.push((unit.saturating_mul(BLOCK_BYTES as u64), bytes));
        }
        left -= count;
    }
    Ok(saved)
}

/// The magic number of the copy is inverted, so that no tool takes the file for a file system.
fn invert_magic(superblock: &mut [u8; SUPERBLOCK_SIZE_BYTES]) {
    for byte in superblock.iter_mut().skip(MAGIC_AT).take(2) {
        *byte = !*byte;
    }
}

fn header_checksum(header: &[u8; BLOCK_BYTES]) -> u32 {
    let covered = header.get(..HEADER_BYTES - 4).unwrap_or(&[]);
    Crc32c::START.update(covered).value()
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = to.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use fourscore_block::RamDevice;

    use super::*;

    /// A unit whose old content could not be saved is not overwritten, also by a later write when
    /// the file could be written again; and what was written before can be undone.
    #[test]
    fn nothing_is_overwritten_that_could_not_be_saved() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("undo");
        let base = Arc::new(RamDevice::new(64 << 10));
        base.write_at(&[1; 64 << 10], 0).expect("RAM");
        let device = UndoDevice::create(&path, Arc::<RamDevice>::clone(&base), 0).expect("space");
        device.write_at(&[2; 4096], 8192).expect("saved");
        let read_only = File::open(&path).expect("the undo file");
        let writable = std::mem::replace(&mut device.file.lock().file, read_only);
        device.write_at(&[3; 4096], 16_384).expect_err("not saved");
        device.file.lock().file = writable;
        for at in [16_384, 32_768] {
            device.write_at(&[4; 4096], at).expect_err("refused");
        }
        device.finish().expect_err("not complete");
        let content = || {
            let mut bytes = vec![0; 64 << 10];
            base.read_at(&mut bytes, 0).expect("RAM");
            bytes
        };
        let mut expected = vec![1; 64 << 10];
        expected[8192..12_288].fill(2);
        assert!(content() == expected);
        apply_undo(&path, Arc::<RamDevice>::clone(&base)).expect("a sound file");
        assert!(content() == vec![1; 64 << 10]);
    }

    #[test]
    fn a_file_in_which_nothing_could_be_saved_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("undo");
        let base = Arc::new(RamDevice::new(64 << 10));
        let device = UndoDevice::create(&path, base, 0).expect("space");
        device.file.lock().file = File::open(&path).expect("the undo file");
        device.write_at(&[3; 4096], 0).expect_err("not saved");
        device.abandon().expect("permission");
        assert!(!path.exists());
    }
}
