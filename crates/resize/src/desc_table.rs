//! **Purpose.** The blocks of the table of descriptors, and those reserved behind it, in the block
//! bitmaps of the groups that have them.
//!
//! **Model.** Blocks are counted from the first one of the table. The block in front of it has the
//! superblock. In a file system with clusters (`bigalloc`) neither the table nor the reserved
//! blocks end where a cluster ends:
//!
//! ```text
//! cluster 0                    | cluster 1             | cluster 2
//! superblock | table, kept | given back                | given back, inode table
//! stays used                   | becomes free          | stays used
//! ```
//!
//! **Invariants.** A cluster becomes free only if it begins with a block that is given back, and
//! has no block of a bitmap or an inode table. What lies in front of the blocks that are given back
//! stays in use, and files share no cluster with metadata.

use std::ops::Range;

use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::{Geometry, GroupNr};

use crate::bitmap;
use crate::error::{ResizeError, Result};
use crate::volume::Volume;

/// The most bitmaps that a step stores, so that it fits into a small journal.
const BITMAPS_PER_STEP: usize = 16;

/// The first block of the table, or of its copy in a group that has one.
pub(crate) fn start(geometry: &Geometry, group: GroupNr) -> u64 {
    let superblock = match group.0 {
        0 => geometry.super_block(),
        _ => geometry.group_first_block(group),
    };
    superblock.0 + 1
}

/// Marks blocks as used, in all groups that have them. Returns the change of the number of free
/// clusters: 0 or less.
pub(crate) fn take(volume: &mut Volume<'_>, blocks: Range<u32>) -> Result<i64> {
    let geometry = *volume.geometry();
    let mut free = 0;
    for group in geometry.groups_with_super() {
        free += take_in(volume, group, blocks.clone())?;
    }
    Ok(free)
}

/// As [`take`], in one group.
pub(crate) fn take_in(volume: &mut Volume<'_>, group: GroupNr, blocks: Range<u32>) -> Result<i64> {
    if blocks.is_empty() {
        return Ok(0);
    }
    let clusters = clusters_of(volume, group, &blocks_in(volume, group, &blocks))?;
    let mut bits = volume.block_bitmap(group)?;
    bitmap::fill(&mut bits, clusters, true);
    volume.set_block_bitmap(group, bits)
}

/// Frees blocks behind the end of the table, or behind the reserved blocks, in all groups that have
/// them: see the module. Returns the change of the number of free clusters.
///
/// Bitmaps and inode tables of all groups that the superblock of `volume` has are taken to be in
/// use.
pub(crate) fn give_back(volume: &mut Volume<'_>, blocks: Range<u32>) -> Result<i64> {
    if blocks.is_empty() {
        return Ok(0);
    }
    let tables = Tables::of(volume)?;
    let geometry = *volume.geometry();
    let mut free = 0;
    for group in geometry.groups_with_super() {
        free += give_back_in(volume, &tables, group, &blocks)?;
    }
    Ok(free)
}

fn give_back_in(
    volume: &mut Volume<'_>,
    tables: &Tables,
    group: GroupNr,
    blocks: &Range<u32>,
) -> Result<i64> {
    let geometry = *volume.geometry();
    let mut blocks = blocks_in(volume, group, blocks);
    // The last group may have become shorter than they were.
    blocks.end = blocks.end.min(geometry.group_blocks(group).end.0);
    if blocks.is_empty() {
        return Ok(0);
    }
    let clusters = clusters_of(volume, group, &blocks)?;
    let mut bits = volume.block_bitmap(group)?;
    let log = geometry.blocks_per_cluster_log();
    let first = geometry.group_first_block(group).0;
    for bit in clusters {
        let own = first + (bit << log)..first + ((bit + 1) << log);
        if own.start >= blocks.start && !tables.overlap(&own) {
            bitmap::fill(&mut bits, bit..bit + 1, false);
        }
    }
    volume.set_block_bitmap(group, bits)
}

/// Stores the block bitmaps of `groups` that were never written, in steps of their own. Before the
/// number of blocks of descriptors changes, this is needed for all groups with a copy of them.
///
/// Linux computes such a bitmap when it needs it: from the number of blocks of descriptors, which
/// it takes from the superblock before it replays the log, and the number of reserved ones, which
/// it takes from there afterwards. If a step that is replayed changes both, Linux combines an old
/// number with a new one, and blocks of the table or reserved ones are free in the bitmap.
pub(crate) fn store_bitmaps(
    volume: &mut Volume<'_>,
    groups: impl Iterator<Item = GroupNr>,
) -> Result<()> {
    let mut missing = Vec::new();
    for group in groups {
        if (volume.desc(group)?.flags()).contains(GroupFlags::BLOCK_UNINIT) {
            missing.push(group);
        }
    }
    for batch in missing.chunks(BITMAPS_PER_STEP) {
        for &group in batch {
            let bits = volume.block_bitmap(group)?;
            volume.set_block_bitmap(group, bits)?;
        }
        volume.commit()?;
    }
    Ok(())
}

/// Where blocks of the table are in a group.
pub(crate) fn blocks_in(volume: &Volume<'_>, group: GroupNr, blocks: &Range<u32>) -> Range<u64> {
    let start = start(volume.geometry(), group);
    start + u64::from(blocks.start)..start + u64::from(blocks.end)
}

/// The clusters of some blocks, which have to be of one group, counted from its first one.
pub(crate) fn clusters_of(
    volume: &Volume<'_>,
    group: GroupNr,
    blocks: &Range<u64>,
) -> Result<Range<u64>> {
    let geometry = volume.geometry();
    let own = geometry.group_blocks(group);
    if blocks.is_empty() || blocks.start < own.start.0 || own.end.0 < blocks.end {
        return Err(ResizeError::Unsupported(
            "its groups are too short for that many descriptors".into(),
        ));
    }
    let log = geometry.blocks_per_cluster_log();
    let place = |block: u64| (block - own.start.0) >> log;
    Ok(place(blocks.start)..place(blocks.end - 1) + 1)
}

/// The bitmaps and inode tables of some groups, sorted.
pub(crate) struct Tables(Vec<Range<u64>>);

impl Tables {
    /// The bitmaps and inode tables of all groups.
    pub(crate) fn of(volume: &Volume<'_>) -> Result<Self> {
        Self::of_groups(volume, 0..volume.geometry().groups())
    }

    pub(crate) fn of_groups(volume: &Volume<'_>, groups: Range<u32>) -> Result<Self> {
        let table_blocks = u64::from(volume.geometry().inode_table_blocks());
        let mut runs = Vec::new();
        for group in groups.map(GroupNr) {
            let desc = volume.desc(group)?;
            let [blocks, inodes] = [desc.block_bitmap().0, desc.inode_bitmap().0];
            let table = desc.inode_table().0;
            let table = table..table.saturating_add(table_blocks);
            let block = |start: u64| start..start.saturating_add(1);
            runs.extend([block(blocks), block(inodes), table]);
        }
        runs.sort_by_key(|run| run.start);
        Ok(Self(runs))
    }

    /// The clusters in which they lie, each once, in order. A cluster has `1 << log` blocks.
    pub(crate) fn clusters(&self, log: u32) -> impl Iterator<Item = u64> {
        let mut next = 0;
        self.0.iter().flat_map(move |run| {
            let first = (run.start >> log).max(next);
            next = next.max((run.end.saturating_sub(1) >> log) + 1);
            first..next
        })
    }

    /// Whether one of them has a block of `blocks`. Takes a search in the sorted runs.
    pub(crate) fn overlap(&self, blocks: &Range<u64>) -> bool {
        let before = self.0.partition_point(|run| run.start < blocks.end);
        let before = self.0.get(..before).unwrap_or_default();
        // They do not overlap each other, so only the last one reaches so far.
        before.last().is_some_and(|run| run.end > blocks.start)
    }
}
