//! **Purpose.** Bits of block and inode bitmaps.

use std::ops::Range;

use fourscore_ondisk::{Geometry, GroupNr};

/// Sets or clears bits, the lowest of each byte first. Bits behind the end are left out.
pub(crate) fn fill(bitmap: &mut [u8], bits: Range<u64>, is_set: bool) {
    for bit in bits {
        let byte = usize::try_from(bit / 8).ok();
        if let Some(byte) = byte.and_then(|at| bitmap.get_mut(at)) {
            match is_set {
                true => *byte |= 1 << (bit % 8),
                false => *byte &= !(1 << (bit % 8)),
            }
        }
    }
}

/// Whether a bit is set. Bits behind the end are.
pub(crate) fn is_set(bitmap: &[u8], bit: u64) -> bool {
    let byte = usize::try_from(bit / 8).ok().and_then(|at| bitmap.get(at));
    byte.is_none_or(|byte| byte >> (bit % 8) & 1 == 1)
}

/// The block bitmap of a group in which only its superblock, its descriptors and the blocks of
/// `tables` are used. Blocks of `tables` in other groups are left out.
pub(crate) fn of_group(geometry: &Geometry, group: GroupNr, tables: &[Range<u64>]) -> Vec<u8> {
    let mut bitmap = vec![0xff; geometry.block_size().bytes()];
    let blocks = geometry.group_blocks(group);
    let log = geometry.blocks_per_cluster_log();
    let clusters = u64::from(geometry.group_clusters(group));
    fill(&mut bitmap, 0..clusters, false);
    let base = u64::from(geometry.base_meta_blocks(group));
    let base = blocks.start.0..(blocks.start.0 + base).min(blocks.end.0);
    for run in std::iter::once(&base).chain(tables) {
        let start = run.start.max(blocks.start.0);
        let end = run.end.min(blocks.end.0);
        if start < end {
            let (start, end) = (start - blocks.start.0, end - blocks.start.0);
            fill(&mut bitmap, start >> log..((end - 1) >> log) + 1, true);
        }
    }
    bitmap
}

/// The bitmap of inodes of which none is used.
pub(crate) fn of_no_inodes(geometry: &Geometry) -> Vec<u8> {
    let mut bitmap = vec![0xff; geometry.block_size().bytes()];
    fill(&mut bitmap, 0..geometry.inodes_per_group().into(), false);
    bitmap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_and_cleared() {
        let mut bitmap = [0; 3];
        fill(&mut bitmap, 3..17, true);
        assert_eq!(bitmap, [0xf8, 0xff, 0x01]);
        fill(&mut bitmap, 7..9, false);
        assert_eq!(bitmap, [0x78, 0xfe, 0x01]);
        assert!(is_set(&bitmap, 3) && !is_set(&bitmap, 8) && is_set(&bitmap, 24));
    }
}
