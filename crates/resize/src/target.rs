//! **Purpose.** The superblock of a file system of another size: counts, descriptor blocks, and
//! where the descriptors of new groups are.
//!
//! **Model.** A last group too short for its own metadata and [`LEAST_USEFUL_BLOCKS`] more is left
//! out, as resize2fs does it. Descriptors of new groups go
//!
//! ```text
//! to the blocks reserved for them, as long as there are enough for all
//! else from then on into the groups themselves (meta_bg)
//! ```
//!
//! resize2fs moves the tables of all groups with a backup in the second case. Linux switches to
//! `meta_bg` when it grows a mounted file system. The same is done here: nothing that exists has to
//! move.
//!
//! **Not here.** Free counts, which depend on the content.

use fourscore_ondisk::features::{Compat, Incompat};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::words::{high32, low32};
use fourscore_ondisk::{GroupNr, RawSuperblock};

use crate::error::{ResizeError, Result};

/// Blocks that a short last group must have beyond its own metadata.
pub(crate) const LEAST_USEFUL_BLOCKS: u64 = 50;

/// The superblock of a file system like `old` with at most so many blocks.
pub(crate) fn of(old: &Superblock, blocks: u64) -> Result<Superblock> {
    let geometry = old.geometry();
    let too_large = |why| Err(ResizeError::TooLarge { blocks, why });
    let incompat = old.features().incompat;
    if !incompat.contains(Incompat::BIT64) && blocks > u32::MAX.into() {
        return too_large("without the feature 64bit a file system has less than 2^32 blocks");
    }
    let mut kept = blocks >> geometry.blocks_per_cluster_log() << geometry.blocks_per_cluster_log();
    loop {
        let room = kept.saturating_sub(geometry.first_data_block().0);
        let per_group = u64::from(geometry.blocks_per_group());
        let groups = room.div_ceil(per_group);
        let inodes = groups.saturating_mul(geometry.inodes_per_group().into());
        let (Ok(groups), Ok(inodes)) = (u32::try_from(groups), u32::try_from(inodes)) else {
            return too_large("it would have 2^32 inodes or more");
        };
        if groups == 0 {
            return Err(too_few(old, blocks));
        }
        let raw = counts(old, kept, groups, inodes)?;
        let new = Superblock::try_from(&raw).map_err(ResizeError::corrupt)?;
        let rest = room % per_group;
        let last = GroupNr(groups - 1);
        let own = new.geometry().base_meta_blocks(last) + 2 + geometry.inode_table_blocks();
        let useful = if groups > 1 { LEAST_USEFUL_BLOCKS } else { 0 };
        if rest == 0 || rest >= u64::from(own) + useful {
            return Ok(new);
        }
        if groups == 1 {
            return Err(too_few(old, blocks));
        }
        kept -= rest;
    }
}

/// The superblock of a file system like `now`, of the size of `wish`, and with its reserved blocks.
pub(crate) fn with_counts_of(now: &Superblock, wish: &Superblock) -> Result<Superblock> {
    let mut raw = *of(now, wish.geometry().blocks().0)?.raw();
    raw.s_r_blocks_count_lo = wish.raw().s_r_blocks_count_lo;
    raw.s_r_blocks_count_hi = wish.raw().s_r_blocks_count_hi;
    if now.has_metadata_csum() {
        raw.seal();
    }
    Superblock::try_from(&raw).map_err(ResizeError::corrupt)
}

fn too_few(old: &Superblock, blocks: u64) -> ResizeError {
    let geometry = old.geometry();
    let own = geometry.base_meta_blocks(GroupNr(0)) + 2 + geometry.inode_table_blocks();
    ResizeError::TooSmall {
        blocks,
        least: geometry.first_data_block().0 + u64::from(own),
        block_bytes: geometry.block_size().bytes(),
    }
}

fn counts(old: &Superblock, blocks: u64, groups: u32, inodes: u32) -> Result<RawSuperblock> {
    let mut raw = *old.raw();
    raw.s_blocks_count_lo = low32(blocks);
    raw.s_blocks_count_hi = high32(blocks);
    let used = old.geometry().inodes().saturating_sub(old.free_inodes());
    raw.s_inodes_count = inodes.into();
    raw.s_free_inodes_count = inodes.saturating_sub(used).into();
    let reserved = share(old.reserved_blocks().0, old.geometry().blocks().0, blocks);
    raw.s_r_blocks_count_lo = low32(reserved);
    raw.s_r_blocks_count_hi = high32(reserved);
    for backup in &mut raw.s_backup_bgs {
        if backup.get() >= groups {
            *backup = 0.into();
        }
    }
    set_descriptors(&mut raw, old, groups)?;
    if old.has_metadata_csum() {
        raw.seal();
    }
    Ok(raw)
}

/// As many of `blocks` as `part` is of `whole`, in the arithmetic of resize2fs.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a percentage"
)]
fn share(part: u64, whole: u64, blocks: u64) -> u64 {
    let percent = part as f64 * 100.0 / whole.max(1) as f64;
    (percent * blocks as f64 / 100.0) as u64
}

fn set_descriptors(raw: &mut RawSuperblock, old: &Superblock, groups: u32) -> Result<()> {
    let geometry = old.geometry();
    let features = old.features();
    let needed = groups.div_ceil(geometry.descs_per_block());
    if let Some(first) = geometry.first_meta_bg() {
        raw.s_first_meta_bg = first.min(needed).into();
        return Ok(());
    }
    let (had, reserved) = (geometry.desc_blocks(), u32::from(old.reserved_gdt_blocks()));
    let has_resize_inode = features.compat.contains(Compat::RESIZE_INODE);
    let pointers = u32::try_from(geometry.block_size().bytes() / 4).unwrap_or(u32::MAX);
    let left = match needed.checked_sub(had) {
        Some(more) => reserved.checked_sub(more),
        None if has_resize_inode => Some((reserved + had - needed).min(pointers)),
        None => Some(reserved),
    };
    if let Some(left) = left {
        let left = u16::try_from(left).map_err(ResizeError::corrupt)?;
        raw.s_reserved_gdt_blocks = left.into();
        return Ok(());
    }
    raw.s_first_meta_bg = (had + reserved).into();
    raw.s_reserved_gdt_blocks = 0.into();
    raw.s_feature_incompat = (raw.s_feature_incompat.get() | Incompat::META_BG.bits()).into();
    raw.s_feature_compat = (raw.s_feature_compat.get() & !Compat::RESIZE_INODE.bits()).into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_blocks_keep_their_share() {
        assert_eq!(share(5, 100, 1000), 50);
        assert_eq!(share(0, 100, 1000), 0);
        assert_eq!(share(1638, 32768, 65536), 3276);
    }
}
