//! **Purpose.** Describes the data that an output holds, if it must not be overwritten without
//! consent.
//!
//! **Model.** A file is empty if all of it is zeroes: holes are skipped, and the search ends at the
//! first byte that is not zero. A block device is empty if it has no known signature, as for mke2fs
//! and wipefs: stale blocks without a signature do not count there.
//!
//! An image of this crate is recognised by its hash seed or its UUID. Both are derived from the
//! tree as UUIDs of version 8 (RFC 9562) unless the user gives others; mke2fs makes random ones.
//! Such an image may have been changed since. Every program that writes to a file system changes
//! the superblock: the times of the last write, mount and check, and the mount count. If one of
//! these differs from its initial value, all inodes are examined: an inode whose data, attributes
//! or names changed has a ctime after the creation time of the image. (A change in the second of
//! the creation is not detected.)
//!
//! **References.** RFC 9562, section 5.8.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use fourscore::{Fs, OpenOptions, Stat};
use fourscore_block::{Access, BlockDevice, FileDevice, Window};
use fourscore_mkfs::find_signature;
use fourscore_ondisk::superblock::{RawSuperblock, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_ondisk::{GroupNr, InodeNr, Timestamp};
use fourscore_sync::Arc;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use uuid::Uuid;

use crate::recognise;

const MAGIC: u16 = 0xEF53;
/// Version of UUIDs with application-defined content.
const CUSTOM_VERSION: usize = 8;
const READ_BYTES: usize = 1 << 20;
const START_BYTES: u64 = 4096;

/// Describes the data in this range of an output; `None` if the range may be overwritten. `file`
/// and `device` are the same file.
pub(super) fn describe(
    device: &Arc<FileDevice>,
    file: &File,
    range: &Range<u64>,
    is_block_device: bool,
) -> io::Result<Option<String>> {
    let window = Arc::new(Window::new(
        Arc::clone(device) as _,
        range.clone(),
        Access::ReadOnly,
    )?);
    let signature = find_signature(&*window)?;
    // Data after an image of this crate does not belong to it.
    let rest = match own_image(&window)? {
        Some(OwnImage::Changed) => {
            let what = "an image that was changed since it was built";
            return Ok(Some(what.to_owned()));
        }
        Some(OwnImage::AsMade { len_bytes }) => {
            let end = range.start.saturating_add(len_bytes).min(range.end);
            end..range.end
        }
        None => match signature {
            Some(signature) => return Ok(Some(signature.to_string())),
            None => range.clone(),
        },
    };
    if is_block_device {
        return Ok(None);
    }
    let Some(at) = first_data(file, rest.clone())? else {
        return Ok(None);
    };
    if rest.start > range.start {
        let what = format!("an image followed by other data at byte {at}");
        return Ok(Some(what));
    }
    let len = START_BYTES.min(range.end - range.start);
    let mut start = vec![0; usize::try_from(len).unwrap_or(0)];
    window.read_at(&mut start, 0)?;
    Ok(Some(match start.iter().all(|&byte| byte == 0) {
        true => format!("data of an unknown kind, at byte {at}"),
        false => recognise::describe(&start).to_owned(),
    }))
}

/// An image that was built by this crate.
enum OwnImage {
    /// Unchanged; the length of its file system.
    AsMade { len_bytes: u64 },
    /// Changed since it was built.
    Changed,
}

fn own_image(window: &Arc<Window>) -> io::Result<Option<OwnImage>> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    if window.len_bytes() < SUPERBLOCK_OFFSET_BYTES + bytes.len() as u64 {
        return Ok(None);
    }
    window.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    let Ok(raw) = RawSuperblock::from_bytes(&bytes) else {
        return Ok(None);
    };
    let mut seed = [0; 16];
    for (place, word) in seed.chunks_exact_mut(4).zip(raw.s_hash_seed) {
        place.copy_from_slice(&word.get().to_le_bytes());
    }
    let is_ours = [seed, raw.s_uuid]
        .map(Uuid::from_bytes)
        .iter()
        .any(|uuid| uuid.get_version_num() == CUSTOM_VERSION);
    if raw.s_magic.get() != MAGIC || !is_ours {
        return Ok(None);
    }
    let made = (raw.s_mkfs_time, raw.s_mkfs_time_hi);
    let is_as_made = (raw.s_wtime, raw.s_wtime_hi) == made
        && (raw.s_lastcheck, raw.s_lastcheck_hi) == made
        && raw.s_mtime.get() == 0
        && raw.s_mnt_count.get() == 0;
    if !is_as_made && !is_unchanged(window) {
        return Ok(Some(OwnImage::Changed));
    }
    let blocks = u64::from(raw.s_blocks_count_hi.get()) << 32 | u64::from(raw.s_blocks_count_lo);
    let bits = raw.s_log_block_size.get().saturating_add(10).min(16);
    let len_bytes = blocks.saturating_mul(1 << bits);
    Ok(Some(OwnImage::AsMade { len_bytes }))
}

/// Whether no inode of the file system was changed since it was made. An unreadable inode counts as
/// changed.
fn is_unchanged(window: &Arc<Window>) -> bool {
    let Ok(fs) = Fs::open(Arc::clone(window) as _, &OpenOptions::new()) else {
        return false;
    };
    let (sb, geometry) = (fs.superblock(), fs.geometry());
    let Some(made) = sb.mkfs_time() else {
        return false;
    };
    (0..geometry.groups()).map(GroupNr).all(|group| {
        let Ok(bitmap) = fs.inode_bitmap(group) else {
            return false;
        };
        let first = u64::from(group.0) * u64::from(geometry.inodes_per_group()) + 1;
        let used = (first..)
            .zip(0..bitmap.len())
            .filter(|&(_, bit)| bitmap.is_used(bit));
        let mut numbers = used.filter_map(|(number, _)| u32::try_from(number).ok().map(InodeNr));
        numbers.all(|inode| {
            let is_hidden = inode < sb.first_inode() && inode != InodeNr::ROOT;
            is_hidden || has_no_change_since(&fs, inode, made)
        })
    })
}

fn has_no_change_since(fs: &Fs, inode: InodeNr, made: Timestamp) -> bool {
    // An EA inode stores a reference count in its time fields.
    let holds_value = fs.holds_value(inode).unwrap_or(false);
    let is_older = |stat: Stat| stat.ctime.seconds() <= made.seconds();
    holds_value || fs.stat(inode).is_ok_and(is_older)
}

/// The offset of the first nonzero byte in a range of a file.
fn first_data(file: &File, range: Range<u64>) -> io::Result<Option<u64>> {
    let mut buffer = vec![0; READ_BYTES];
    let mut at = range.start;
    while at < range.end {
        match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => at = data.max(at),
            Err(Errno::NXIO) => return Ok(None),
            // The file system does not support SEEK_DATA.
            Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        if at >= range.end {
            return Ok(None);
        }
        let most = usize::try_from(range.end - at).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        let part = &mut buffer[..most];
        let count = match file.read_at(part, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        if count == 0 {
            return Ok(None);
        }
        if let Some(found) = part[..count].iter().position(|&byte| byte != 0) {
            return Ok(Some(at + found as u64));
        }
        at += count as u64;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_of_data_is_found_after_holes_and_zeroes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![0; 3 << 20]).expect("disk space");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.set_len(1 << 30).expect("disk space");
        let found = |range| first_data(&file, range).expect("readable");
        assert_eq!(found(0..1 << 30), None);
        file.write_all_at(b"x", (700 << 20) + 5)
            .expect("disk space");
        assert_eq!(found(0..1 << 30), Some((700 << 20) + 5));
        assert_eq!(found(0..700 << 20), None);
        assert_eq!(found((700 << 20) + 6..1 << 30), None);
    }
}
