//! **Purpose.** Writes a layout to a device.
//!
//! | module | responsibility |
//! |---|---|
//! | `groups` | group descriptors, all copies of them, and bitmaps |
//! | `pieces` | writes of adjacent blocks in one call |
//!
//! **Model.** Blocks that are known to read as zeroes are not written: a discarded image file stays
//! sparse, and unused groups cost only their descriptor. Everything else goes out in long writes.
//! Descriptors and bitmaps are made while they are written.
//!
//! **Crash safety.** The old primary superblock is cleared and flushed first; the new one is
//! written after everything else is durable. So a crash leaves a complete file system or none.

mod groups;
mod pieces;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::superblock::{RawSuperblock, SUPERBLOCK_OFFSET_BYTES, State};
use fourscore_ondisk::words::{low16, put};
use fourscore_ondisk::{GroupOffset, PhysBlock};
use zerocopy::IntoBytes;

use crate::error::{FormatError, FormatResult};
use crate::layout::Layout;
use crate::options::OldContent;
use crate::tables::GroupLayout;
use pieces::{Piece, write_pieces};

/// The start of the device that is wiped: it holds the superblock, and the signatures of most other
/// formats.
const OLD_HEAD: Range<u64> = 0..4096;
/// The end of the device that is wiped, in bytes: software RAID keeps its superblock there.
const OLD_TAIL_BYTES: u64 = 64 << 10;

impl Layout {
    /// Writes the file system, which begins at the first byte of `device`. It is durable when the
    /// call returns.
    ///
    /// # Errors
    /// [`FormatError::Io`]; then the device holds no file system any more.
    pub fn write<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        self.prepare(device)?;
        self.complete(device)
    }

    /// The first half of [`Layout::write`]: afterwards the device holds no file system, and
    /// the blocks that must be zero are zero. A builder writes its files after this call.
    ///
    /// # Errors
    /// [`FormatError::Io`], and a device too small.
    pub fn prepare<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        if device.len_bytes() < geometry.size_bytes() {
            let why = format!(
                "the device has {} bytes, the file system {}",
                device.len_bytes(),
                geometry.size_bytes()
            );
            return Err(FormatError::option("size", why));
        }
        self.clear(device)
    }

    /// The second half of [`Layout::write`]: writes the metadata, and when all is durable the
    /// superblock.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub fn complete<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        let raw = self.final_superblock();
        self.write_content(device, &raw)?;
        device.flush()?;
        device.write_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)?;
        device.flush()?;
        Ok(())
    }

    /// Wipes the old content and zeroes the blocks that must be zero.
    fn clear<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        let size_bytes = self.superblock.geometry().size_bytes();
        if wipe(device, size_bytes, self.old_content, self.discard)? {
            return Ok(());
        }
        device.write_zeroes(size_bytes.saturating_sub(OLD_TAIL_BYTES)..size_bytes)?;
        let bits = self.superblock.geometry().block_size().bits();
        for run in merged(self.zero.iter().cloned().chain(self.tables_to_zero())) {
            device.write_zeroes(run.start << bits..run.end << bits)?;
        }
        Ok(())
    }

    /// The parts of inode tables that must be zero: whole tables where the descriptor has
    /// `INODE_ZEROED`, else up to the last inode in use.
    fn tables_to_zero(&self) -> impl Iterator<Item = Range<u64>> {
        let geometry = self.superblock.geometry();
        let (per_group, per_block) = (geometry.inodes_per_group(), geometry.inodes_per_block());
        let whole = u64::from(geometry.inode_table_blocks());
        let lazy = self.superblock.metadata_checksum()
            != fourscore_ondisk::superblock::MetadataChecksum::None;
        self.groups.iter().map(move |group| {
            let blocks = if !lazy || group.flags.contains(GroupFlags::INODE_ZEROED) {
                whole
            } else {
                u64::from((per_group - group.itable_unused).div_ceil(per_block))
            };
            group.inode_table..group.inode_table + blocks
        })
    }

    /// The primary superblock, with the number of bytes written.
    fn final_superblock(&self) -> RawSuperblock {
        let mut raw = *self.superblock.raw();
        if raw.s_kbytes_written.get() > 0 {
            let geometry = self.superblock.geometry();
            let block_bytes = geometry.block_size().bytes() as u64;
            let bitmaps: u64 = self.groups.iter().map(bitmaps_of).sum();
            let files = self.blocks.len() as u64 + 1;
            let copies = geometry.groups_with_super().count() as u64;
            let table = (u64::from(geometry.desc_blocks()) + 1) * block_bytes;
            let bytes = (bitmaps + files) * block_bytes + copies * table;
            raw.s_kbytes_written = (1 + (bytes >> 10)).into();
        }
        self.seal(&mut raw);
        raw
    }

    fn seal(&self, raw: &mut RawSuperblock) {
        if self.superblock.has_metadata_csum() {
            raw.seal();
        }
    }

    /// Writes everything but the primary superblock.
    fn write_content<D: BlockDevice + ?Sized>(
        &self,
        device: &D,
        raw: &RawSuperblock,
    ) -> FormatResult<()> {
        self.write_groups(device)?;
        self.write_backups(device, raw)?;
        self.write_files(device)
    }

    fn write_backups<D: BlockDevice + ?Sized>(
        &self,
        device: &D,
        raw: &RawSuperblock,
    ) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        let mut block = vec![0; geometry.block_size().bytes()];
        for number in geometry.groups_with_super().skip(1) {
            let mut copy = *raw;
            let state = State::from_bits_retain(raw.s_state.get()) - State::VALID_FS;
            copy.s_state = state.bits().into();
            copy.s_block_group_nr = low16(number.0.min(u16::MAX.into()).into());
            self.seal(&mut copy);
            put(&mut block, 0, copy.as_bytes());
            let first = geometry.group_first_block(number).0;
            device.write_at(&block, first << geometry.block_size().bits())?;
        }
        Ok(())
    }

    /// Blocks with content of their own, and the blocks of inode tables with inodes in use.
    fn write_files<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        let mut tables: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (&number, inode) in &self.inodes {
            let in_group = (number - 1) / geometry.inodes_per_group();
            let index = GroupOffset((number - 1) % geometry.inodes_per_group());
            let Some(group) = self.groups.get(in_group as usize) else {
                continue;
            };
            let place = geometry.inode_place(PhysBlock(group.inode_table), index);
            let block = tables
                .entry(place.block.0)
                .or_insert_with(|| vec![0; geometry.block_size().bytes()]);
            put(block, place.offset_bytes, inode);
        }
        let blocks = self.blocks.iter().chain(&tables);
        let pieces = blocks.map(|(&block, bytes)| Piece { block, bytes });
        let bits = geometry.block_size().bits();
        write_pieces(device, bits, pieces.collect())
    }
}

/// Clears the old superblock durably, and discards the first `size_bytes` bytes. Returns whether
/// these read as zeroes now.
pub(crate) fn wipe<D: BlockDevice + ?Sized>(
    device: &D,
    size_bytes: u64,
    old_content: OldContent,
    discard: bool,
) -> FormatResult<bool> {
    if old_content == OldContent::AllZero {
        return Ok(true);
    }
    device.write_zeroes(OLD_HEAD.start..OLD_HEAD.end.min(size_bytes))?;
    device.flush()?;
    if discard && device.hints().discard {
        match device.discard(0..size_bytes) {
            Ok(()) => return Ok(old_content == OldContent::ZeroAfterDiscard),
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// The number of bitmaps of a group that are written.
fn bitmaps_of(group: &GroupLayout) -> u64 {
    let uninit = [GroupFlags::BLOCK_UNINIT, GroupFlags::INODE_UNINIT];
    2 - uninit
        .iter()
        .filter(|&&flag| group.flags.contains(flag))
        .count() as u64
}

/// Sorted runs, joined where they touch or overlap.
fn merged(runs: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut runs: Vec<_> = runs.collect();
    runs.sort_unstable_by_key(|run| run.start);
    let mut found: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match found.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => found.push(run),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_touch_are_zeroed_in_one_call() {
        let runs = [5..7, 1..3, 3..4, 10..11];
        assert_eq!(merged(runs.into_iter()), [1..4, 5..7, 10..11]);
    }
}
