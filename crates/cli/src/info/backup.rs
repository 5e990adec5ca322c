//! **Purpose.** `info --superblock BLOCK`: a device for reading on which the superblock and the
//! group descriptors are those of a backup.
//!
//! **Model.** As in dumpe2fs. The superblock is shown as it is stored in the backup. Descriptors
//! are those behind it; with `meta_bg`, those in the second group of each meta block group. The
//! kernel does not update them, so a group that is marked as unused there may be in use since. For
//! that reason a file system with checksums of descriptors has the marks for bitmaps that were
//! never written cleared, and its inode tables count as used in full. The checksums are those of
//! the changed descriptors then. Bitmaps are the only ones that there are, so they match the
//! checksums of the backup only if the group has not changed ([`BitmapCheck`]).
//!
//! **References.** dumpe2fs(8), `-o superblock`; `ext2fs_open2` of e2fsprogs.
//!
//! [`BitmapCheck`]: super::groups::BitmapCheck

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_block::{BlockDevice, Hints};
use fourscore_ondisk::group::{self, GroupFlags, RawGroupDesc, RawGroupDescHigh};
use fourscore_ondisk::superblock::{MetadataChecksum, SUPERBLOCK_OFFSET_BYTES};
use fourscore_ondisk::{GroupNr, PhysBlock, RawSuperblock, Superblock};
use fourscore_sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// The device.
#[derive(Debug)]
pub(super) struct Backup {
    base: Arc<dyn BlockDevice>,
    /// Bytes that differ from those of the device, and where they are.
    parts: Vec<(u64, Vec<u8>)>,
}

impl Backup {
    /// Takes the superblock `raw` of the backup in `block`, and the descriptors that belong to it.
    ///
    /// # Errors
    /// The host's.
    pub(super) fn new(
        base: Arc<dyn BlockDevice>,
        raw: &RawSuperblock,
        block: PhysBlock,
    ) -> io::Result<Self> {
        let sb = Superblock::try_from(raw).map_err(io::Error::other)?;
        let mut parts = vec![(SUPERBLOCK_OFFSET_BYTES, raw.as_bytes().to_vec())];
        let geometry = sb.geometry();
        let block_size = geometry.block_size();
        let step = usize::try_from(geometry.descs_per_block()).map_err(io::Error::other)?;
        for first in (0..geometry.groups()).step_by(step).map(GroupNr) {
            let Some(place) = geometry.desc_place(first) else {
                continue;
            };
            let mut bytes = vec![0; block_size.bytes()];
            let from = descriptors(&sb, first, block, place.block);
            base.read_at(&mut bytes, block_size.offset(from))?;
            distrust(&mut bytes, first, &sb)?;
            parts.push((block_size.offset(place.block), bytes));
        }
        Ok(Self { base, parts })
    }
}

/// The block with the copy of the descriptors of `first` and the groups behind it that belongs to
/// the superblock in `block`. Their own place is `place`.
fn descriptors(sb: &Superblock, first: GroupNr, block: PhysBlock, place: PhysBlock) -> PhysBlock {
    let geometry = sb.geometry();
    let nth = first.0 / geometry.descs_per_block();
    if geometry.first_meta_bg().is_none_or(|meta| nth < meta) {
        return PhysBlock(block.0 + 1 + u64::from(nth));
    }
    let second = GroupNr(first.0 + 1);
    match second.0 < geometry.groups() {
        true => {
            let behind = u64::from(geometry.has_super(second));
            PhysBlock(geometry.group_first_block(second).0 + behind)
        }
        false => place,
    }
}

/// Clears what a descriptor of a backup may say wrongly, in a block of descriptors.
fn distrust(block: &mut [u8], first: GroupNr, sb: &Superblock) -> io::Result<()> {
    if sb.metadata_checksum() == MetadataChecksum::None {
        return Ok(());
    }
    let size_bytes = sb.geometry().desc_size_bytes();
    let groups = first.0..sb.geometry().groups();
    for (bytes, nr) in block.chunks_exact_mut(size_bytes).zip(groups) {
        if let Ok((raw, rest)) = RawGroupDesc::mut_from_prefix(bytes) {
            let flags = GroupFlags::from_bits_retain(raw.bg_flags.get());
            let unwritten = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
            raw.bg_flags = (flags - unwritten).bits().into();
            raw.bg_itable_unused_lo = 0.into();
            if let Ok((high, _)) = RawGroupDescHigh::mut_from_prefix(rest) {
                high.bg_itable_unused_hi = 0.into();
            }
        }
        group::seal(bytes, GroupNr(nr), sb).map_err(io::Error::other)?;
    }
    Ok(())
}

impl BlockDevice for Backup {
    fn len_bytes(&self) -> u64 {
        self.base.len_bytes()
    }

    fn hints(&self) -> Hints {
        self.base.hints()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs.iter_mut() {
            self.base.read_at(buf, at)?;
            for (place, bytes) in &self.parts {
                put(buf, at, *place, bytes);
            }
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn write_vectored_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: Range<u64>) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// Copies the bytes at `place` into a buffer at `at`, as far as they meet.
fn put(buf: &mut [u8], at: u64, place: u64, bytes: &[u8]) {
    let from = at.max(place);
    let end = (at + buf.len() as u64).min(place + bytes.len() as u64);
    let inside = |start: u64| {
        let index = |byte: u64| usize::try_from(byte.checked_sub(start)?).ok();
        Some(index(from)?..index(end)?)
    };
    if from < end
        && let (Some(to), Some(of)) = (inside(at), inside(place))
        && let (Some(to), Some(of)) = (buf.get_mut(to), bytes.get(of))
    {
        to.copy_from_slice(of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_where_they_meet_a_buffer() {
        let put = |at, place| {
            let mut buf = [0; 4];
            put(&mut buf, at, place, &[1, 2, 3]);
            buf
        };
        assert_eq!(put(10, 10), [1, 2, 3, 0]);
        assert_eq!(put(10, 12), [0, 0, 1, 2]);
        assert_eq!(put(10, 9), [2, 3, 0, 0]);
        assert_eq!(put(10, 14), [0; 4]);
        assert_eq!(put(10, 7), [0; 4]);
    }
}
