//! **Purpose.** Changing a group descriptor in place.
//!
//! **Model.** The fields of a descriptor that depend on a bitmap (free count, checksum, whether it
//! was ever written) are computed from it, and written in one step. The checksum of the descriptor
//! itself is stored by [`super::seal`].

use zerocopy::FromBytes;

use super::{GroupDesc, GroupDescError, GroupFlags, RawGroupDesc, RawGroupDescHigh};
use crate::superblock::Superblock;
use crate::types::PhysBlock;
use crate::words::{high32, low32};

/// The data about a bitmap that a descriptor holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapSummary {
    /// Free clusters or inodes.
    pub free: u32,
    /// The checksum of the bits; 0 without `metadata_csum`.
    pub checksum: u32,
    /// Clear bits after the last set one.
    pub unused_tail: u32,
}

impl BitmapSummary {
    /// Computes the summary of a bitmap block, of which the first `bits` bits are in use and the
    /// first `covered_bits` are covered by the checksum.
    #[must_use]
    pub fn of(bitmap: &[u8], bits: u32, covered_bits: u32, sb: &Superblock) -> Self {
        let mut used = 0;
        let mut last = None;
        for (index, bytes) in bitmap.chunks(8).enumerate() {
            let first = u32::try_from(index * 64).unwrap_or(u32::MAX);
            if first >= bits {
                break;
            }
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let mut word = u64::from_le_bytes(word);
            if bits - first < 64 {
                word &= (1 << (bits - first)) - 1;
            }
            used += word.count_ones();
            if word != 0 {
                last = Some(first + 63 - word.leading_zeros());
            }
        }
        let covered = bitmap.get(..covered_bits as usize / 8).unwrap_or(bitmap);
        let checksum = if sb.has_metadata_csum() {
            sb.checksum_seed().start().update(covered).value()
        } else {
            0
        };
        Self {
            free: bits.saturating_sub(used),
            checksum,
            unused_tail: last.map_or(bits, |last| bits - last - 1),
        }
    }
}

/// Descriptors in memory whose bitmaps have changed since they were written.
impl GroupDesc {
    /// The same descriptor with `checksum` as that of the block bitmap.
    #[must_use]
    pub fn with_block_bitmap_checksum(mut self, checksum: u32) -> Self {
        let (low, high) = halves(checksum);
        self.low.bg_block_bitmap_csum_lo = low.into();
        if let Some(half) = &mut self.high {
            half.bg_block_bitmap_csum_hi = high.into();
        }
        self
    }

    /// The same descriptor with `checksum` as that of the inode bitmap.
    #[must_use]
    pub fn with_inode_bitmap_checksum(mut self, checksum: u32) -> Self {
        let (low, high) = halves(checksum);
        self.low.bg_inode_bitmap_csum_lo = low.into();
        if let Some(half) = &mut self.high {
            half.bg_inode_bitmap_csum_hi = high.into();
        }
        self
    }
}

/// A descriptor that is being changed.
#[derive(Debug)]
pub struct GroupDescMut<'a> {
    low: &'a mut RawGroupDesc,
    high: Option<&'a mut RawGroupDescHigh>,
}

impl<'a> GroupDescMut<'a> {
    /// The descriptor at the start of `bytes`.
    ///
    /// # Errors
    /// [`GroupDescError::TooShort`].
    pub fn new(bytes: &'a mut [u8], sb: &Superblock) -> Result<Self, GroupDescError> {
        let needed_bytes = sb.geometry().desc_size_bytes();
        let found_bytes = bytes.len();
        let too_short = || GroupDescError::TooShort {
            found_bytes,
            needed_bytes,
        };
        let bytes = bytes.get_mut(..needed_bytes).ok_or_else(too_short)?;
        let (low, rest) = RawGroupDesc::mut_from_prefix(bytes).map_err(|_| too_short())?;
        let high = RawGroupDescHigh::mut_from_prefix(rest).ok();
        Ok(Self {
            low,
            high: high.map(|(high, _)| high),
        })
    }

    /// Stores the summary of the block bitmap, which was written.
    pub fn set_block_bitmap(&mut self, summary: &BitmapSummary) {
        let (free_lo, free_hi) = halves(summary.free);
        let (checksum_lo, checksum_hi) = halves(summary.checksum);
        self.low.bg_free_blocks_count_lo = free_lo.into();
        self.low.bg_block_bitmap_csum_lo = checksum_lo.into();
        if let Some(high) = &mut self.high {
            high.bg_free_blocks_count_hi = free_hi.into();
            high.bg_block_bitmap_csum_hi = checksum_hi.into();
        }
        self.clear_flag(GroupFlags::BLOCK_UNINIT);
    }

    /// Stores the summary of the inode bitmap, which was written. The part of the table that was
    /// never used does not grow.
    pub fn set_inode_bitmap(&mut self, summary: &BitmapSummary) {
        let (free_lo, free_hi) = halves(summary.free);
        let (checksum_lo, checksum_hi) = halves(summary.checksum);
        self.low.bg_free_inodes_count_lo = free_lo.into();
        self.low.bg_inode_bitmap_csum_lo = checksum_lo.into();
        let unused = self.itable_unused().min(summary.unused_tail);
        let (unused_lo, unused_hi) = halves(unused);
        self.low.bg_itable_unused_lo = unused_lo.into();
        if let Some(high) = &mut self.high {
            high.bg_free_inodes_count_hi = free_hi.into();
            high.bg_inode_bitmap_csum_hi = checksum_hi.into();
            high.bg_itable_unused_hi = unused_hi.into();
        }
        self.clear_flag(GroupFlags::INODE_UNINIT);
    }

    /// Stores the places of the bitmaps and of the inode table.
    pub fn set_places(&mut self, blocks: PhysBlock, inodes: PhysBlock, table: PhysBlock) {
        self.low.bg_block_bitmap_lo = low32(blocks.0);
        self.low.bg_inode_bitmap_lo = low32(inodes.0);
        self.low.bg_inode_table_lo = low32(table.0);
        if let Some(high) = &mut self.high {
            high.bg_block_bitmap_hi = high32(blocks.0);
            high.bg_inode_bitmap_hi = high32(inodes.0);
            high.bg_inode_table_hi = high32(table.0);
        }
    }

    /// Stores the number of free clusters of a group whose bitmap was never written.
    pub fn set_free_clusters(&mut self, free: u32) {
        let (free_lo, free_hi) = halves(free);
        self.low.bg_free_blocks_count_lo = free_lo.into();
        if let Some(high) = &mut self.high {
            high.bg_free_blocks_count_hi = free_hi.into();
        }
    }

    /// Changes the number of directories by `change`.
    pub fn change_used_dirs(&mut self, change: i32) {
        let high = self.high.as_ref();
        let before = whole(
            self.low.bg_used_dirs_count_lo.get(),
            high.map_or(0, |high| high.bg_used_dirs_count_hi.get()),
        );
        let (lo, hi) = halves(before.saturating_add_signed(change));
        self.low.bg_used_dirs_count_lo = lo.into();
        if let Some(high) = &mut self.high {
            high.bg_used_dirs_count_hi = hi.into();
        }
    }

    fn itable_unused(&self) -> u32 {
        let high = self.high.as_ref();
        whole(
            self.low.bg_itable_unused_lo.get(),
            high.map_or(0, |high| high.bg_itable_unused_hi.get()),
        )
    }

    fn clear_flag(&mut self, flag: GroupFlags) {
        let flags = self.low.bg_flags.get() & !flag.bits();
        self.low.bg_flags = flags.into();
    }
}

fn whole(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
fn halves(value: u32) -> (u16, u16) {
    (value as u16, (value >> 16) as u16)
}
