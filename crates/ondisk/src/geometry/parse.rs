//! **Purpose.** The checks that turn fields of the superblock into a [`Geometry`] that cannot
//! overflow.

use super::{Backups, Geometry, SuperblockError};
use crate::features::{Compat, FeatureSet, Incompat, RoCompat};
use crate::superblock::RawSuperblock;
use crate::types::BlockSize;

/// The inode size of revision 0, and the smallest of revision 1.
const GOOD_OLD_INODE_SIZE: u16 = 128;
/// The largest cluster: 1 GiB, counted from 1 KiB.
const MAX_LOG_CLUSTER_SIZE: u32 = 20;

impl Geometry {
    /// Checks all sizes and counts of the superblock against each other.
    ///
    /// # Errors
    /// The first invalid field.
    pub(crate) fn from_superblock(
        raw: &RawSuperblock,
        features: FeatureSet,
    ) -> Result<Self, SuperblockError> {
        let block_size = block_size(raw)?;
        let blocks_per_cluster_log = blocks_per_cluster_log(raw, features)?;
        let (blocks_per_group, clusters_per_group) =
            group_size(raw, features, block_size, blocks_per_cluster_log)?;
        let first_data_block = first_data_block(raw, block_size, blocks_per_cluster_log)?;
        let blocks = blocks_count(raw, features, block_size, first_data_block)?;
        let groups = (blocks - u64::from(first_data_block)).div_ceil(blocks_per_group.into());
        let inode_size_bytes = inode_size(raw, block_size)?;
        let inodes_per_group =
            inodes_per_group(raw, block_size, blocks_per_group, inode_size_bytes)?;

        let inodes = raw.s_inodes_count.get();
        // A hostile group count times inodes per group stays under 2^53 * 2^19.
        let expected = u128::from(groups) * u128::from(inodes_per_group);
        if u128::from(inodes) != expected {
            let expected = u64::try_from(expected).unwrap_or(u64::MAX);
            return Err(SuperblockError::InodesCount {
                found: inodes,
                expected,
            });
        }
        let groups =
            u32::try_from(groups).map_err(|_| SuperblockError::BlocksCount { found: blocks })?;

        let mut geometry = Self {
            block_size,
            blocks_per_cluster_log,
            first_data_block,
            blocks,
            groups,
            blocks_per_group,
            clusters_per_group,
            inodes_per_group,
            inodes,
            inode_size_bytes,
            desc_size_bytes: desc_size(raw, features)?,
            reserved_gdt_blocks: reserved_gdt_blocks(raw, block_size)?,
            backups: backups(raw, features),
            first_meta_bg: None,
        };
        // If the field is invalid, all descriptors are assumed to be at their locations without
        // meta_bg.
        let meta_bg = features.incompat.contains(Incompat::META_BG);
        let most = geometry.desc_blocks();
        geometry.first_meta_bg = meta_bg.then(|| raw.s_first_meta_bg.get().min(most));
        Ok(geometry)
    }
}

fn block_size(raw: &RawSuperblock) -> Result<BlockSize, SuperblockError> {
    let found = raw.s_log_block_size.get();
    BlockSize::from_log(found).ok_or(SuperblockError::LogBlockSize { found })
}

fn bitmap_bits(block_size: BlockSize) -> u32 {
    8 << block_size.bits()
}

fn blocks_per_cluster_log(
    raw: &RawSuperblock,
    features: FeatureSet,
) -> Result<u32, SuperblockError> {
    let found = raw.s_log_cluster_size.get();
    let log_block_size = raw.s_log_block_size.get();
    let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
    match found.checked_sub(log_block_size) {
        Some(0) => Ok(0),
        Some(log) if bigalloc && found <= MAX_LOG_CLUSTER_SIZE => Ok(log),
        _ => Err(SuperblockError::LogClusterSize {
            found,
            log_block_size,
        }),
    }
}

/// Blocks and clusters per group. Without `bigalloc` the cluster field is a remnant of the
/// fragments of ext2 and is ignored.
fn group_size(
    raw: &RawSuperblock,
    features: FeatureSet,
    block_size: BlockSize,
    blocks_per_cluster_log: u32,
) -> Result<(u32, u32), SuperblockError> {
    let blocks = raw.s_blocks_per_group.get();
    let clusters = match features.ro_compat.contains(RoCompat::BIGALLOC) {
        true => raw.s_clusters_per_group.get(),
        false => blocks,
    };
    let bitmap_bits = bitmap_bits(block_size);
    let fits = clusters > 0 && clusters <= bitmap_bits;
    if fits && u64::from(clusters) << blocks_per_cluster_log == u64::from(blocks) {
        Ok((blocks, clusters))
    } else {
        Err(SuperblockError::BlocksPerGroup {
            blocks,
            clusters,
            bitmap_bits,
        })
    }
}

fn first_data_block(
    raw: &RawSuperblock,
    block_size: BlockSize,
    blocks_per_cluster_log: u32,
) -> Result<u32, SuperblockError> {
    let found = raw.s_first_data_block.get();
    let expected = u32::from(block_size.bytes() == 1024 && blocks_per_cluster_log == 0);
    if found == expected {
        Ok(found)
    } else {
        Err(SuperblockError::FirstDataBlock { found, expected })
    }
}

fn blocks_count(
    raw: &RawSuperblock,
    features: FeatureSet,
    block_size: BlockSize,
    first_data_block: u32,
) -> Result<u64, SuperblockError> {
    let found = raw.wide(features, raw.s_blocks_count_lo, raw.s_blocks_count_hi);
    // Byte offsets must fit the signed 64 bits of the system calls.
    let most = i64::MAX.cast_unsigned() >> block_size.bits();
    // The superblock itself must be inside.
    let least = 1 + (2047 >> block_size.bits()).max(u64::from(first_data_block));
    if (least..=most).contains(&found) {
        Ok(found)
    } else {
        Err(SuperblockError::BlocksCount { found })
    }
}

fn inode_size(raw: &RawSuperblock, block_size: BlockSize) -> Result<u16, SuperblockError> {
    if raw.s_rev_level.get() == 0 {
        return Ok(GOOD_OLD_INODE_SIZE);
    }
    let found = raw.s_inode_size.get();
    let block_size_bytes = block_size.bytes();
    let fits = found >= GOOD_OLD_INODE_SIZE && usize::from(found) <= block_size_bytes;
    if fits && found.is_power_of_two() {
        Ok(found)
    } else {
        Err(SuperblockError::InodeSize {
            found,
            block_size_bytes,
        })
    }
}

fn inodes_per_group(
    raw: &RawSuperblock,
    block_size: BlockSize,
    blocks_per_group: u32,
    inode_size_bytes: u16,
) -> Result<u32, SuperblockError> {
    let found = raw.s_inodes_per_group.get();
    let least = (1u32 << block_size.bits()) / u32::from(inode_size_bytes);
    let most = bitmap_bits(block_size).min(blocks_per_group.saturating_mul(least));
    if (least..=most).contains(&found) {
        Ok(found)
    } else {
        Err(SuperblockError::InodesPerGroup { found, least, most })
    }
}

fn desc_size(raw: &RawSuperblock, features: FeatureSet) -> Result<u16, SuperblockError> {
    if !features.incompat.contains(Incompat::BIT64) {
        return Ok(32);
    }
    let found = raw.s_desc_size.get();
    if (64..=1024).contains(&found) && found.is_power_of_two() {
        Ok(found)
    } else {
        Err(SuperblockError::DescSize { found })
    }
}

fn reserved_gdt_blocks(raw: &RawSuperblock, block_size: BlockSize) -> Result<u16, SuperblockError> {
    let found = raw.s_reserved_gdt_blocks.get();
    let most = (1 << block_size.bits()) / 4;
    if u32::from(found) <= most {
        Ok(found)
    } else {
        Err(SuperblockError::ReservedGdtBlocks { found, most })
    }
}

fn backups(raw: &RawSuperblock, features: FeatureSet) -> Backups {
    if features.compat.contains(Compat::SPARSE_SUPER2) {
        Backups::Two(raw.s_backup_bgs.map(|group| group.get()))
    } else if features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
        Backups::Sparse
    } else {
        Backups::Everywhere
    }
}
