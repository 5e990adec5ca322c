//! **Purpose.** Group descriptors: the locations of a group's bitmaps and inode table, its free
//! counts, and the parts that were never initialised.
//!
//! **Not here.** The locations of descriptors
//! ([`Geometry::desc_place`](crate::geometry::Geometry)).
//!
//! **Model.** A descriptor has 32 bytes; with `64bit` it has a second half (64 bytes or more in
//! all) with the high words of the same fields. Bytes past 64 are not defined yet, but are covered
//! by the checksum.
//!
//! **Invariants.** Of a [`GroupDesc`] both bitmaps and the whole inode table are inside the file
//! system (inside the group without `flex_bg`), and do not overlap each other, the superblock or
//! the primary descriptors. Counts are not checked by parsing, because the file system can be read
//! with wrong counts: see [`GroupDesc::check_counts`].
//!
//! **References.** Documentation/filesystems/ext4/group_descr.rst of the kernel.

mod edit;

use std::mem::{offset_of, size_of};

use bitflags::bitflags;
use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{ChecksumMismatch, Crc16};
use crate::features::Incompat;
use crate::superblock::{MetadataChecksum, Superblock};
use crate::types::{BlockCount, GroupNr, PhysBlock};

/// The first half of a descriptor, all of it without `64bit`.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the accessors of GroupDesc describe the fields"
)]
pub struct RawGroupDesc {
    pub bg_block_bitmap_lo: U32,      // 0x00
    pub bg_inode_bitmap_lo: U32,      // 0x04
    pub bg_inode_table_lo: U32,       // 0x08
    pub bg_free_blocks_count_lo: U16, // 0x0c
    pub bg_free_inodes_count_lo: U16, // 0x0e
    pub bg_used_dirs_count_lo: U16,   // 0x10
    pub bg_flags: U16,                // 0x12
    pub bg_exclude_bitmap_lo: U32,    // 0x14
    pub bg_block_bitmap_csum_lo: U16, // 0x18
    pub bg_inode_bitmap_csum_lo: U16, // 0x1a
    pub bg_itable_unused_lo: U16,     // 0x1c
    pub bg_checksum: U16,             // 0x1e
}

/// The second half of a descriptor with `64bit`.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the accessors of GroupDesc describe the fields"
)]
pub struct RawGroupDescHigh {
    pub bg_block_bitmap_hi: U32,      // 0x20
    pub bg_inode_bitmap_hi: U32,      // 0x24
    pub bg_inode_table_hi: U32,       // 0x28
    pub bg_free_blocks_count_hi: U16, // 0x2c
    pub bg_free_inodes_count_hi: U16, // 0x2e
    pub bg_used_dirs_count_hi: U16,   // 0x30
    pub bg_itable_unused_hi: U16,     // 0x32
    pub bg_exclude_bitmap_hi: U32,    // 0x34
    pub bg_block_bitmap_csum_hi: U16, // 0x38
    pub bg_inode_bitmap_csum_hi: U16, // 0x3a
    pub bg_reserved: U32,             // 0x3c
}

const _: () = {
    assert!(size_of::<RawGroupDesc>() == 32);
    assert!(size_of::<RawGroupDescHigh>() == 32);
    assert!(offset_of!(RawGroupDesc, bg_flags) == 0x12);
    assert!(offset_of!(RawGroupDesc, bg_checksum) == 0x1e);
    assert!(offset_of!(RawGroupDescHigh, bg_itable_unused_hi) == 0x32 - 32);
    assert!(offset_of!(RawGroupDescHigh, bg_inode_bitmap_csum_hi) == 0x3a - 32);
};

pub use edit::{BitmapSummary, GroupDescMut};

bitflags! {
    /// `bg_flags`. Unknown bits are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap was never written; all inodes are free.
        const INODE_UNINIT = 0x1;
        /// The block bitmap was never written; only metadata blocks are in use.
        const BLOCK_UNINIT = 0x2;
        /// The inode table was zeroed past the inodes ever used.
        const INODE_ZEROED = 0x4;
    }
}

/// The reason why bytes are not a valid descriptor of a group.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GroupDescError {
    /// Fewer bytes than a descriptor.
    #[error("group descriptor: {found_bytes} bytes where {needed_bytes} are needed")]
    TooShort {
        /// The bytes found.
        found_bytes: usize,
        /// The size of a descriptor.
        needed_bytes: usize,
    },
    /// `bg_checksum` is not the checksum of the bytes.
    #[error("group descriptor: bg_checksum: {0}")]
    Checksum(ChecksumMismatch),
    /// A bitmap or the inode table is outside the file system, or outside the group without
    /// `flex_bg`.
    #[error("group descriptor: {field} at block {found} ({count} blocks) is out of range")]
    Outside {
        /// The field's name without `_lo` and `_hi`.
        field: &'static str,
        /// The first block.
        found: PhysBlock,
        /// The number of its blocks.
        count: u32,
    },
    /// A bitmap or the inode table overlaps the superblock, the descriptors, or another of the
    /// three.
    #[error("group descriptor: {field} at block {found} lies on {other}")]
    Overlap {
        /// The field's name without `_lo` and `_hi`.
        field: &'static str,
        /// The first block.
        found: PhysBlock,
        /// The structure it overlaps.
        other: &'static str,
    },
    /// A count is larger than the group.
    #[error("group descriptor: {field} {found} is over {most}")]
    Count {
        /// The field's name without `_lo` and `_hi`.
        field: &'static str,
        /// Its value.
        found: u32,
        /// The maximum.
        most: u32,
    },
    /// The block bitmap does not match its checksum in the descriptor.
    #[error("block bitmap: {0}")]
    BlockBitmapChecksum(ChecksumMismatch),
    /// The inode bitmap does not match its checksum in the descriptor.
    #[error("inode bitmap: {0}")]
    InodeBitmapChecksum(ChecksumMismatch),
    /// A bitmap of fewer bytes than its checksum covers.
    #[error("bitmap: {found_bytes} bytes where {needed_bytes} are needed")]
    BitmapTooShort {
        /// The bytes found.
        found_bytes: usize,
        /// The bytes the group's bits fill.
        needed_bytes: usize,
    },
}

/// A checked descriptor of 32 or 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDesc {
    low: RawGroupDesc,
    /// `None` without `64bit`.
    high: Option<RawGroupDescHigh>,
}

impl GroupDesc {
    /// The descriptor of `group` at the start of `bytes`, with its checksum and locations checked.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn parse(bytes: &[u8], group: GroupNr, sb: &Superblock) -> Result<Self, GroupDescError> {
        verify(bytes, group, sb)?;
        let this = Self::unchecked(bytes, sb)?;
        this.check_places(group, sb)?;
        Ok(this)
    }

    /// The descriptor at the start of `bytes` without checks, for callers that report every fault
    /// instead of only the first.
    ///
    /// # Errors
    /// [`GroupDescError::TooShort`].
    pub fn unchecked(bytes: &[u8], sb: &Superblock) -> Result<Self, GroupDescError> {
        Self::from_checked_length(desc_bytes(bytes, sb)?)
    }

    fn from_checked_length(bytes: &[u8]) -> Result<Self, GroupDescError> {
        let too_short = || GroupDescError::TooShort {
            found_bytes: bytes.len(),
            needed_bytes: 32,
        };
        let (low, rest) = RawGroupDesc::read_from_prefix(bytes).map_err(|_| too_short())?;
        let high = RawGroupDescHigh::read_from_prefix(rest)
            .ok()
            .map(|(high, _)| high);
        Ok(Self { low, high })
    }

    /// The first half's bytes.
    #[must_use]
    pub fn raw(&self) -> &RawGroupDesc {
        &self.low
    }

    /// The second half's bytes; `None` without `64bit`.
    #[must_use]
    pub fn raw_high(&self) -> Option<&RawGroupDescHigh> {
        self.high.as_ref()
    }

    fn block(&self, low: U32, high: fn(&RawGroupDescHigh) -> U32) -> PhysBlock {
        let high = self.high.map_or(0, |half| high(&half).get());
        PhysBlock(u64::from(low.get()) | (u64::from(high) << 32))
    }

    fn count(&self, low: U16, high: fn(&RawGroupDescHigh) -> U16) -> u32 {
        let high = self.high.map_or(0, |half| high(&half).get());
        u32::from(low.get()) | (u32::from(high) << 16)
    }

    /// The block of the block bitmap.
    #[must_use]
    pub fn block_bitmap(&self) -> PhysBlock {
        self.block(self.low.bg_block_bitmap_lo, |high| high.bg_block_bitmap_hi)
    }

    /// The block of the inode bitmap.
    #[must_use]
    pub fn inode_bitmap(&self) -> PhysBlock {
        self.block(self.low.bg_inode_bitmap_lo, |high| high.bg_inode_bitmap_hi)
    }

    /// The first block of the inode table.
    #[must_use]
    pub fn inode_table(&self) -> PhysBlock {
        self.block(self.low.bg_inode_table_lo, |high| high.bg_inode_table_hi)
    }

    /// Free clusters (blocks without `bigalloc`).
    #[must_use]
    pub fn free_clusters(&self) -> u32 {
        self.count(self.low.bg_free_blocks_count_lo, |high| {
            high.bg_free_blocks_count_hi
        })
    }

    /// Free inodes.
    #[must_use]
    pub fn free_inodes(&self) -> u32 {
        self.count(self.low.bg_free_inodes_count_lo, |high| {
            high.bg_free_inodes_count_hi
        })
    }

    /// Inodes that are directories.
    #[must_use]
    pub fn used_dirs(&self) -> u32 {
        self.count(self.low.bg_used_dirs_count_lo, |high| {
            high.bg_used_dirs_count_hi
        })
    }

    /// Inodes at the end of the table that were never used and need not be read. Meaningful only
    /// with descriptor checksums.
    #[must_use]
    pub fn itable_unused(&self) -> u32 {
        self.count(self.low.bg_itable_unused_lo, |high| {
            high.bg_itable_unused_hi
        })
    }

    /// The flags for parts that were never initialised.
    #[must_use]
    pub fn flags(&self) -> GroupFlags {
        GroupFlags::from_bits_retain(self.low.bg_flags.get())
    }

    /// The stored checksum of the descriptor.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        self.low.bg_checksum.get()
    }

    /// Checks the counts of free blocks, inodes, directories and unused inodes against the size of
    /// the group.
    ///
    /// # Errors
    /// [`GroupDescError::Count`] for the first that is too large.
    pub fn check_counts(&self, group: GroupNr, sb: &Superblock) -> Result<(), GroupDescError> {
        let geometry = sb.geometry();
        let inodes = geometry.inodes_per_group();
        let used = inodes.saturating_sub(self.free_inodes());
        let counts = [
            (
                "bg_free_blocks_count",
                self.free_clusters(),
                geometry.group_clusters(group),
            ),
            ("bg_free_inodes_count", self.free_inodes(), inodes),
            ("bg_used_dirs_count", self.used_dirs(), used),
            ("bg_itable_unused", self.itable_unused(), self.free_inodes()),
        ];
        match counts.into_iter().find(|(_, found, most)| found > most) {
            Some((field, found, most)) => Err(GroupDescError::Count { field, found, most }),
            None => Ok(()),
        }
    }

    /// Checks that bitmaps and inode table are inside the file system (without `flex_bg`: inside
    /// the group), and do not overlap the primary descriptors or each other.
    ///
    /// # Errors
    /// [`GroupDescError::Outside`], [`GroupDescError::Overlap`].
    pub fn check_places(&self, group: GroupNr, sb: &Superblock) -> Result<(), GroupDescError> {
        let geometry = sb.geometry();
        let flex = sb.features().incompat.contains(Incompat::FLEX_BG);
        let allowed = match flex {
            true => geometry.first_data_block()..PhysBlock(geometry.blocks().0),
            false => geometry.group_blocks(group),
        };
        let primary = geometry.primary_table();
        let places = [
            ("bg_block_bitmap", self.block_bitmap(), 1),
            ("bg_inode_bitmap", self.inode_bitmap(), 1),
            (
                "bg_inode_table",
                self.inode_table(),
                geometry.inode_table_blocks(),
            ),
        ];
        for (i, &(field, found, count)) in places.iter().enumerate() {
            let end = PhysBlock(found.0.saturating_add(count.into()));
            let inside = allowed.start <= found && end <= allowed.end;
            if !inside || !geometry.contains(found, BlockCount(count.into())) {
                return Err(GroupDescError::Outside {
                    field,
                    found,
                    count,
                });
            }
            if found < primary.end && primary.start < end {
                let other = "the superblock or its descriptors";
                return Err(GroupDescError::Overlap {
                    field,
                    found,
                    other,
                });
            }
            for &(other, start, length) in places.iter().take(i) {
                if found.0 < start.0 + u64::from(length) && start < end {
                    return Err(GroupDescError::Overlap {
                        field,
                        found,
                        other,
                    });
                }
            }
        }
        Ok(())
    }

    /// Checks the checksum of the group's block bitmap, given as the whole block. Always `Ok`
    /// without `metadata_csum`.
    ///
    /// # Errors
    /// [`GroupDescError::BlockBitmapChecksum`], [`GroupDescError::BitmapTooShort`].
    pub fn verify_block_bitmap(
        &self,
        bitmap: &[u8],
        sb: &Superblock,
    ) -> Result<(), GroupDescError> {
        let bits = sb.geometry().clusters_per_group();
        let stored = self.low.bg_block_bitmap_csum_lo;
        self.verify_bitmap(
            bitmap,
            bits,
            stored,
            |high| high.bg_block_bitmap_csum_hi,
            sb,
        )?
        .map_err(GroupDescError::BlockBitmapChecksum)
    }

    /// Checks the checksum of the group's inode bitmap, given as the whole block. Always `Ok`
    /// without `metadata_csum`.
    ///
    /// # Errors
    /// [`GroupDescError::InodeBitmapChecksum`], [`GroupDescError::BitmapTooShort`].
    pub fn verify_inode_bitmap(
        &self,
        bitmap: &[u8],
        sb: &Superblock,
    ) -> Result<(), GroupDescError> {
        let bits = sb.geometry().inodes_per_group();
        let stored = self.low.bg_inode_bitmap_csum_lo;
        self.verify_bitmap(
            bitmap,
            bits,
            stored,
            |high| high.bg_inode_bitmap_csum_hi,
            sb,
        )?
        .map_err(GroupDescError::InodeBitmapChecksum)
    }

    /// The outer error is a bitmap too short to check, the inner one a wrong checksum. Without
    /// the second half only the low 16 bits are stored.
    fn verify_bitmap(
        &self,
        bitmap: &[u8],
        bits: u32,
        low: U16,
        high: fn(&RawGroupDescHigh) -> U16,
        sb: &Superblock,
    ) -> Result<Result<(), ChecksumMismatch>, GroupDescError> {
        if !sb.has_metadata_csum() {
            return Ok(Ok(()));
        }
        let needed_bytes = bits as usize / 8;
        let covered = bitmap
            .get(..needed_bytes)
            .ok_or(GroupDescError::BitmapTooShort {
                found_bytes: bitmap.len(),
                needed_bytes,
            })?;
        let crc = sb.checksum_seed().start().update(covered);
        let expected = if self.high.is_some() {
            crc.value()
        } else {
            crc.low16().into()
        };
        Ok(ChecksumMismatch::check(self.count(low, high), expected))
    }
}

/// Checks `bg_checksum` of the descriptor of `group` at the start of `bytes`. Always `Ok` in a file
/// system without descriptor checksums.
///
/// # Errors
/// [`GroupDescError::Checksum`], [`GroupDescError::TooShort`].
pub fn verify(bytes: &[u8], group: GroupNr, sb: &Superblock) -> Result<(), GroupDescError> {
    let bytes = desc_bytes(bytes, sb)?;
    match checksum(bytes, group, sb) {
        Some(expected) => ChecksumMismatch::check(stored_checksum(bytes).into(), expected.into())
            .map_err(GroupDescError::Checksum),
        None => Ok(()),
    }
}

/// Computes and stores the checksum of the descriptor of `group` at the start of `bytes`. Does
/// nothing in a file system without descriptor checksums.
///
/// # Errors
/// [`GroupDescError::TooShort`].
pub fn seal(bytes: &mut [u8], group: GroupNr, sb: &Superblock) -> Result<(), GroupDescError> {
    let value = checksum(desc_bytes(bytes, sb)?, group, sb);
    if let (Some(value), Ok((raw, _))) = (value, RawGroupDesc::mut_from_prefix(bytes)) {
        raw.bg_checksum = value.into();
    }
    Ok(())
}

/// Exactly the descriptor's bytes.
fn desc_bytes<'a>(bytes: &'a [u8], sb: &Superblock) -> Result<&'a [u8], GroupDescError> {
    let needed_bytes = sb.geometry().desc_size_bytes();
    let found_bytes = bytes.len();
    bytes.get(..needed_bytes).ok_or(GroupDescError::TooShort {
        found_bytes,
        needed_bytes,
    })
}

fn stored_checksum(bytes: &[u8]) -> u16 {
    RawGroupDesc::ref_from_prefix(bytes).map_or(0, |(raw, _)| raw.bg_checksum.get())
}

/// The checksum of these bytes; `None` in a file system without descriptor checksums. crc16 skips
/// its own field, which ends the first half; crc32c treats it as zero.
fn checksum(bytes: &[u8], group: GroupNr, sb: &Superblock) -> Option<u16> {
    let (low, rest) = RawGroupDesc::read_from_prefix(bytes).ok()?;
    match sb.metadata_checksum() {
        MetadataChecksum::None => None,
        MetadataChecksum::Crc16 => {
            let (covered, _) = low
                .as_bytes()
                .split_at(offset_of!(RawGroupDesc, bg_checksum));
            let crc = Crc16::START
                .update(&sb.raw().s_uuid)
                .update(&group.0.to_le_bytes());
            Some(crc.update(covered).update(rest).value())
        }
        MetadataChecksum::Crc32c => {
            let zeroed = RawGroupDesc {
                bg_checksum: 0.into(),
                ..low
            };
            let crc = sb.checksum_seed().start().update_le32(group.0);
            Some(crc.update(zeroed.as_bytes()).update(rest).low16())
        }
    }
}

#[cfg(test)]
mod tests;
