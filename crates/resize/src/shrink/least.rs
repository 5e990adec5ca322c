//! **Purpose.** The least size.
//!
//! **Model.** What files use must fit into the clusters that the metadata of the groups leaves, and
//! the inodes in use into the groups. Some clusters are left over: maps that are written again, and
//! files that get cut into more extents.

use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{BlockCount, Geometry, GroupNr};

use crate::error::Result;
use crate::target;
use crate::volume::Volume;

/// Clusters that are left over: this many, and one for each [`SPARE_SHARE`] in use.
const SPARE: u64 = 48;
const SPARE_SHARE: u64 = 512;

/// The least number of blocks to which the content can move.
pub(crate) fn blocks(volume: &Volume<'_>) -> Result<BlockCount> {
    let sb = volume.sb();
    let geometry = *volume.geometry();
    let mut used = 0;
    for group in (0..geometry.groups()).map(GroupNr) {
        let desc = volume.desc(group)?;
        let free = desc.free_clusters();
        used += u64::from(geometry.group_clusters(group).saturating_sub(free));
    }
    let files = used.saturating_sub(fixed(&geometry));
    let inodes = geometry.inodes().saturating_sub(sb.free_inodes());
    // While the last group vanishes its tables are still there.
    let tables = u64::from(geometry.inode_table_blocks()) + 2;
    let spare = SPARE + tables + files / SPARE_SHARE;
    let needed = files + spare;
    let (mut too_small, mut enough) = (0, geometry.blocks().0);
    while too_small + 1 < enough {
        let middle = too_small + (enough - too_small) / 2;
        match target::of(sb, middle) {
            Ok(new) if fits(&new, needed, inodes) => enough = middle,
            _ => too_small = middle,
        }
    }
    Ok(match target::of(sb, enough) {
        Ok(new) => new.geometry().blocks(),
        Err(_) => geometry.blocks(),
    })
}

fn fits(new: &Superblock, needed: u64, inodes: u32) -> bool {
    let geometry = new.geometry();
    let all: u64 = (0..geometry.groups())
        .map(|group| u64::from(geometry.group_clusters(GroupNr(group))))
        .sum();
    inodes <= geometry.inodes() && all >= fixed(geometry).saturating_add(needed)
}

/// Clusters of superblocks, descriptors, bitmaps and inode tables.
fn fixed(geometry: &Geometry) -> u64 {
    let before = geometry.first_data_block().0;
    let blocks = geometry.overhead_blocks().0.saturating_sub(before);
    blocks >> geometry.blocks_per_cluster_log()
}
