//! **Purpose.** Writes group descriptors, all copies of them, and bitmaps.
//!
//! **Model.** The descriptor table is made in parts, each with the bitmaps of its groups. In large
//! file systems the copies of the table are nearly all that is written, so a part fits into the
//! cache of a core and is written to all copies before the next part is made.
//!
//! One thread does all of this. The host lets only one thread at a time write to an image file: a
//! second thread that made the next part meanwhile would save a tenth of the time, and lose more
//! than that waiting for the lock.

use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::GroupNr;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::group::{self, GroupFlags, RawGroupDesc, RawGroupDescHigh};
use fourscore_ondisk::superblock::MetadataChecksum;
use fourscore_ondisk::words::{high32, low16, low32};
use zerocopy::IntoBytes;

use super::pieces::{Piece, write_pieces};
use crate::error::{FormatError, FormatResult};
use crate::layout::Layout;
use crate::tables::GroupLayout;

/// Bytes of the descriptor table in a part; a multiple of every block size.
const PART_BYTES: usize = 512 << 10;
/// Groups whose bitmaps are in memory at once.
const GROUPS_AT_ONCE: usize = 256;

/// Memory that is used for one part after the other, because new memory must be cleared.
#[derive(Default)]
struct Buffers {
    table: Vec<u8>,
    /// Free blocks of each group.
    free: Vec<u64>,
    bitmaps: Bitmaps,
}

/// Bitmaps to write.
#[derive(Default)]
struct Bitmaps {
    blocks: Vec<u64>,
    bytes: Vec<u8>,
}

impl Bitmaps {
    /// Memory for the bitmap of `block`, with any content.
    fn add(&mut self, block: u64, block_bytes: usize) -> &mut [u8] {
        let start = self.blocks.len() * block_bytes;
        let end = start + block_bytes;
        self.blocks.push(block);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[start..end]
    }
}

impl Layout {
    /// Writes descriptors and bitmaps of all groups.
    pub(super) fn write_groups<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        let copies = geometry.groups_with_super();
        let copies: Vec<_> = copies.map(|group| self.table_block(group)).collect();
        let mut buffers = Buffers::default();
        let per_part = PART_BYTES / geometry.desc_size_bytes();
        for first in (0..self.groups.len()).step_by(per_part) {
            let end = (first + per_part).min(self.groups.len());
            self.write_part(device, first..end, &copies, &mut buffers)?;
        }
        Ok(())
    }

    fn write_part<D: BlockDevice + ?Sized>(
        &self,
        device: &D,
        groups: Range<usize>,
        copies: &[u64],
        buffers: &mut Buffers,
    ) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        let desc_bytes = geometry.desc_size_bytes();
        let Buffers {
            table,
            free,
            bitmaps,
        } = buffers;
        self.count_free(groups.clone(), free);
        let bytes = groups.len() * desc_bytes;
        table.clear();
        table.resize(bytes.next_multiple_of(geometry.block_size().bytes()), 0);
        let mut descs = table.chunks_exact_mut(desc_bytes).zip(free);
        for start in groups.clone().step_by(GROUPS_AT_ONCE) {
            let end = (start + GROUPS_AT_ONCE).min(groups.end);
            bitmaps.blocks.clear();
            for (index, (desc, free)) in (start..end).zip(&mut descs) {
                self.put_group(desc, index, *free, bitmaps)?;
            }
            self.write_bitmaps(device, bitmaps)?;
        }
        self.write_copies(device, groups.start, table, copies)
    }

    /// Counts the free blocks of each group in one pass over the taken runs.
    fn count_free(&self, groups: Range<usize>, free: &mut Vec<u64>) {
        let geometry = self.superblock.geometry();
        let blocks_of = |index| geometry.group_blocks(group_nr(index));
        free.clear();
        free.extend(groups.clone().map(|index| {
            let blocks = blocks_of(index);
            blocks.end.0 - blocks.start.0
        }));
        let (first, end) = (blocks_of(groups.start).start, blocks_of(groups.end - 1).end);
        let mut index = groups.start;
        for run in self.space.runs_in(first.0..end.0) {
            let mut start = run.start;
            while start < run.end {
                while blocks_of(index).end.0 <= start {
                    index += 1;
                }
                let end = run.end.min(blocks_of(index).end.0);
                free[index - groups.start] -= end - start;
                start = end;
            }
        }
    }

    fn write_bitmaps<D: BlockDevice + ?Sized>(
        &self,
        device: &D,
        bitmaps: &Bitmaps,
    ) -> FormatResult<()> {
        let block_bytes = self.superblock.geometry().block_size().bytes();
        let bytes = bitmaps.bytes.chunks_exact(block_bytes);
        let pieces = bitmaps.blocks.iter().zip(bytes);
        let pieces = pieces.map(|(&block, bytes)| Piece { block, bytes });
        let bits = self.superblock.geometry().block_size().bits();
        write_pieces(device, bits, pieces.collect())
    }

    /// Writes the part of the descriptor table that begins with that of the group `first` to
    /// all `copies` of the table, or with `meta_bg` into its own groups.
    fn write_copies<D: BlockDevice + ?Sized>(
        &self,
        device: &D,
        first: usize,
        part: &[u8],
        copies: &[u64],
    ) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        let block_bytes = geometry.block_size().bytes();
        let per_block = geometry.descs_per_block() as usize;
        let incompat = self.superblock.features().incompat;
        if incompat.contains(Incompat::META_BG) {
            let mut pieces = Vec::new();
            for (index, bytes) in part.chunks_exact(block_bytes).enumerate() {
                let start = first + index * per_block;
                let groups = start..(start + per_block).min(self.groups.len());
                let last = start + per_block - 1;
                let holders = groups.filter(|&group| group <= start + 1 || group == last);
                let blocks = holders.map(|group| self.table_block(group_nr(group)));
                pieces.extend(blocks.map(|block| Piece { block, bytes }));
            }
            let bits = geometry.block_size().bits();
            return write_pieces(device, bits, pieces);
        }
        let bits = geometry.block_size().bits();
        let into_table = (first / per_block) as u64;
        for &block in copies {
            device.write_at(part, (block + into_table) << bits)?;
        }
        Ok(())
    }

    /// The block at which the copy of the descriptors in a group begins.
    fn table_block(&self, number: GroupNr) -> u64 {
        let geometry = self.superblock.geometry();
        let start = match number.0 {
            0 => geometry.super_block(),
            _ => geometry.group_first_block(number),
        };
        start.0 + u64::from(geometry.has_super(number))
    }

    /// Makes the descriptor of a group, and those of its bitmaps that are written.
    fn put_group(
        &self,
        desc: &mut [u8],
        index: usize,
        free: u64,
        bitmaps: &mut Bitmaps,
    ) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        let block_bytes = geometry.block_size().bytes();
        let (number, group) = (group_nr(index), &self.groups[index]);
        let checksums = self.superblock.metadata_checksum();
        let is_made = |flag| checksums == MetadataChecksum::None || !group.flags.contains(flag);
        let mut bitmap_csums = [0; 2];
        let seal = |covered: &[u8]| match self.superblock.has_metadata_csum() {
            true => self
                .superblock
                .checksum_seed()
                .start()
                .update(covered)
                .value(),
            false => 0,
        };
        if is_made(GroupFlags::BLOCK_UNINIT) {
            let bitmap = bitmaps.add(group.block_bitmap, block_bytes);
            self.fill_block_bitmap(number, bitmap);
            bitmap_csums[0] = seal(&bitmap[..geometry.clusters_per_group() as usize / 8]);
        }
        if is_made(GroupFlags::INODE_UNINIT) {
            let bitmap = bitmaps.add(group.inode_bitmap, block_bytes);
            self.fill_inode_bitmap(group, bitmap);
            bitmap_csums[1] = seal(&bitmap[..geometry.inodes_per_group() as usize / 8]);
        }
        self.put_descriptor(desc, number, free, bitmap_csums)
    }

    fn put_descriptor(
        &self,
        desc: &mut [u8],
        number: GroupNr,
        free: u64,
        bitmap_csums: [u32; 2],
    ) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        let group = &self.groups[number.0 as usize];
        let free = free >> geometry.blocks_per_cluster_log();
        let free_inodes = u64::from(geometry.inodes_per_group() - group.used_inodes);
        let [block_csum, inode_csum] = bitmap_csums.map(u64::from);
        let (dirs, unused) = (u64::from(group.dirs), u64::from(group.itable_unused));
        let raw = RawGroupDesc {
            bg_block_bitmap_lo: low32(group.block_bitmap),
            bg_inode_bitmap_lo: low32(group.inode_bitmap),
            bg_inode_table_lo: low32(group.inode_table),
            bg_free_blocks_count_lo: low16(free),
            bg_free_inodes_count_lo: low16(free_inodes),
            bg_used_dirs_count_lo: low16(dirs),
            bg_flags: group.flags.bits().into(),
            bg_block_bitmap_csum_lo: low16(block_csum),
            bg_inode_bitmap_csum_lo: low16(inode_csum),
            bg_itable_unused_lo: low16(unused),
            ..RawGroupDesc::default()
        };
        let (base, more) = desc.split_at_mut(size_of::<RawGroupDesc>());
        base.copy_from_slice(raw.as_bytes());
        if let Some(more) = more.get_mut(..size_of::<RawGroupDescHigh>()) {
            let raw = RawGroupDescHigh {
                bg_block_bitmap_hi: high32(group.block_bitmap),
                bg_inode_bitmap_hi: high32(group.inode_bitmap),
                bg_inode_table_hi: high32(group.inode_table),
                bg_free_blocks_count_hi: low16(free >> 16),
                bg_free_inodes_count_hi: low16(free_inodes >> 16),
                bg_used_dirs_count_hi: low16(dirs >> 16),
                bg_itable_unused_hi: low16(unused >> 16),
                bg_block_bitmap_csum_hi: low16(block_csum >> 16),
                bg_inode_bitmap_csum_hi: low16(inode_csum >> 16),
                ..RawGroupDescHigh::default()
            };
            more.copy_from_slice(raw.as_bytes());
        }
        group::seal(desc, number, &self.superblock).map_err(FormatError::invalid)
    }

    /// Bits of taken clusters, of clusters that do not exist, and behind the last cluster.
    fn fill_block_bitmap(&self, number: GroupNr, bitmap: &mut [u8]) {
        let geometry = self.superblock.geometry();
        let log = geometry.blocks_per_cluster_log();
        let blocks = geometry.group_blocks(number);
        let clusters = geometry.clusters_per_group() as usize;
        bitmap.fill(0xff);
        bitmap[..clusters / 8].fill(0);
        let bit = |block: u64| usize::try_from((block - blocks.start.0) >> log).unwrap_or(clusters);
        for run in self.space.runs_in(blocks.start.0..blocks.end.0) {
            // A run ends with a cluster, or with the file system.
            set_bits(bitmap, bit(run.start)..bit(run.end + (1 << log) - 1));
        }
        set_bits(bitmap, bit(blocks.end.0)..clusters);
    }

    /// Inodes are used from the first on, without gaps.
    fn fill_inode_bitmap(&self, group: &GroupLayout, bitmap: &mut [u8]) {
        let inodes = self.superblock.geometry().inodes_per_group() as usize;
        bitmap.fill(0xff);
        bitmap[..inodes / 8].fill(0);
        set_bits(bitmap, 0..group.used_inodes as usize);
    }
}

/// Sets bits, the lowest of each byte first.
fn set_bits(bitmap: &mut [u8], bits: Range<usize>) {
    let Range { start, end } = bits;
    if start >= end {
        return;
    }
    let (first, last) = (start / 8, (end - 1) / 8);
    let head = 0xff_u8 << (start % 8);
    let tail = 0xff_u8 >> (7 - (end - 1) % 8);
    if first == last {
        bitmap[first] |= head & tail;
        return;
    }
    bitmap[first] |= head;
    bitmap[first + 1..last].fill(0xff);
    bitmap[last] |= tail;
}

fn group_nr(index: usize) -> GroupNr {
    GroupNr(u32::try_from(index).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exactly_the_bits_of_the_range_are_set(start in 0usize..64, length in 0usize..64) {
            let end = (start + length).min(64);
            let mut bitmap = [0; 8];
            set_bits(&mut bitmap, start..end);
            for bit in 0..64 {
                let set = bitmap[bit / 8] >> (bit % 8) & 1 == 1;
                prop_assert_eq!(set, (start..end).contains(&bit));
            }
        }
    }
}
