//! **Purpose.** New groups: where their bitmaps and inode tables are, and their content.
//!
//! **Model.** With `flex_bg`, the new groups of a flex group have their tables in one row:
//!
//! ```text
//! block bitmaps | inode bitmaps | inode tables
//! ```
//!
//! from the first new group on, behind superblock and descriptors, as Linux places them when it
//! grows a mounted file system. Without `flex_bg`, and where a row does not fit, each group has its
//! own.
//!
//! **Invariants.** A table lies in one group, inside the new groups. Nothing of the file system of
//! the old size is written.

use std::ops::Range;

use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::group::{
    BitmapSummary, GroupDescMut, GroupFlags, RawGroupDesc, RawGroupDescHigh,
};
use fourscore_ondisk::superblock::{MetadataChecksum, Superblock};
use fourscore_ondisk::words::{high32, low16, low32};
use fourscore_ondisk::{Geometry, GroupNr, PhysBlock};
use zerocopy::IntoBytes as _;

use crate::bitmap;
use crate::error::{ResizeError, Result};
use crate::volume::Volume;

/// The first blocks of the tables of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) group: u32,
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
}

/// The tables of all groups from `first` on.
pub(crate) fn place(sb: &Superblock, first: u32) -> Result<Vec<Tables>> {
    let geometry = sb.geometry();
    let has_flex = sb.features().incompat.contains(Incompat::FLEX_BG);
    let per_flex = if has_flex { sb.groups_per_flex() } else { 1 };
    let mut placed = Vec::new();
    let mut start = first;
    while start < geometry.groups() {
        let next = (start / per_flex + 1).saturating_mul(per_flex);
        let end = next.min(geometry.groups());
        match row(geometry, start..end) {
            Some(tables) => placed.extend(tables),
            None => {
                for group in start..end {
                    let own = row(geometry, group..group + 1);
                    let why = || ResizeError::corrupt("groups too small for their tables");
                    placed.extend(own.ok_or_else(why)?);
                }
            }
        }
        start = end;
    }
    Ok(placed)
}

/// The tables of some groups in one row; `None` if they do not fit.
fn row(geometry: &Geometry, groups: Range<u32>) -> Option<Vec<Tables>> {
    let mut cursor = Cursor {
        geometry,
        group: groups.start,
        end: groups.end,
        offset: geometry.base_meta_blocks(GroupNr(groups.start)),
    };
    let mut tables: Vec<Tables> = groups
        .map(|group| Tables {
            group,
            ..Tables::default()
        })
        .collect();
    for tables in &mut tables {
        tables.block_bitmap = cursor.take(1)?;
    }
    for tables in &mut tables {
        tables.inode_bitmap = cursor.take(1)?;
    }
    for tables in &mut tables {
        tables.inode_table = cursor.take(geometry.inode_table_blocks())?;
    }
    Some(tables)
}

/// The next place of a row.
struct Cursor<'a> {
    geometry: &'a Geometry,
    group: u32,
    end: u32,
    offset: u32,
}

impl Cursor<'_> {
    fn take(&mut self, blocks: u32) -> Option<u64> {
        while self.group < self.end {
            let group = GroupNr(self.group);
            let behind = self.offset.checked_add(blocks)?;
            if behind <= self.geometry.group_length(group) {
                let start = self.geometry.group_first_block(group).0;
                let place = start + u64::from(self.offset);
                self.offset = behind;
                return Some(place);
            }
            self.group += 1;
            self.offset = self.geometry.base_meta_blocks(GroupNr(self.group));
        }
        None
    }
}

/// Writes bitmaps and inode tables of new groups, and adds their descriptors to the step. Returns
/// the number of free clusters.
pub(crate) fn write(volume: &mut Volume<'_>, tables: &[Tables]) -> Result<i64> {
    let geometry = *volume.geometry();
    let table_blocks = u64::from(geometry.inode_table_blocks());
    let mut runs: Vec<Range<u64>> = Vec::with_capacity(tables.len() * 3);
    for tables in tables {
        let [blocks, inodes] = [tables.block_bitmap, tables.inode_bitmap];
        let table = tables.inode_table;
        runs.extend([
            blocks..blocks + 1,
            inodes..inodes + 1,
            table..table + table_blocks,
        ]);
    }
    runs.sort_by_key(|run| run.start);
    let mut free = 0;
    for tables in tables {
        let blocks = geometry.group_blocks(GroupNr(tables.group));
        let from = runs.partition_point(|run| run.end <= blocks.start.0);
        let to = runs.partition_point(|run| run.start < blocks.end.0);
        free += i64::from(write_group(volume, tables, &runs[from..to.max(from)])?);
    }
    Ok(free)
}

/// Writes a group, in which the blocks of `own` hold tables. Returns its free clusters.
fn write_group(volume: &mut Volume<'_>, tables: &Tables, own: &[Range<u64>]) -> Result<u32> {
    let geometry = *volume.geometry();
    let group = GroupNr(tables.group);
    let checksums = volume.sb().metadata_checksum();
    let has_flags = checksums != MetadataChecksum::None;
    let is_last = group.0 + 1 == geometry.groups();
    let has_clusters = geometry.blocks_per_cluster_log() > 0;
    let bitmap = bitmap::of_group(&geometry, group, own);
    let bits = geometry.group_clusters(group);
    let covered = geometry.clusters_per_group();
    let summary = BitmapSummary::of(&bitmap, bits, covered, volume.sb());
    let mut flags = GroupFlags::empty();
    if has_flags && own.is_empty() && !is_last && !has_clusters {
        flags |= GroupFlags::BLOCK_UNINIT;
    } else {
        volume.write_now(PhysBlock(tables.block_bitmap), &bitmap)?;
    }
    let inodes = bitmap::of_no_inodes(&geometry);
    if has_flags {
        flags |= GroupFlags::INODE_UNINIT;
    } else {
        let block_size = geometry.block_size();
        volume.write_now(PhysBlock(tables.inode_bitmap), &inodes)?;
        let end = tables.inode_table + u64::from(geometry.inode_table_blocks());
        let range =
            block_size.offset(PhysBlock(tables.inode_table))..block_size.offset(PhysBlock(end));
        volume.device().write_zeroes(range)?;
    }
    volume.change_desc(group, |bytes, sb| {
        put_descriptor(bytes, sb, tables, flags);
        let mut desc = GroupDescMut::new(bytes, sb).map_err(ResizeError::corrupt)?;
        match flags.contains(GroupFlags::BLOCK_UNINIT) {
            true => desc.set_free_clusters(summary.free),
            false => desc.set_block_bitmap(&summary),
        }
        Ok(())
    })?;
    Ok(summary.free)
}

/// A descriptor of a group whose inodes were never used.
fn put_descriptor(bytes: &mut [u8], sb: &Superblock, tables: &Tables, flags: GroupFlags) {
    let inodes = u64::from(sb.geometry().inodes_per_group());
    let unused = match sb.metadata_checksum() {
        MetadataChecksum::None => 0,
        _ => inodes,
    };
    let raw = RawGroupDesc {
        bg_block_bitmap_lo: low32(tables.block_bitmap),
        bg_inode_bitmap_lo: low32(tables.inode_bitmap),
        bg_inode_table_lo: low32(tables.inode_table),
        bg_free_inodes_count_lo: low16(inodes),
        bg_flags: flags.bits().into(),
        bg_itable_unused_lo: low16(unused),
        ..RawGroupDesc::default()
    };
    bytes.fill(0);
    let (base, more) = bytes.split_at_mut(size_of::<RawGroupDesc>());
    base.copy_from_slice(raw.as_bytes());
    if let Some(more) = more.get_mut(..size_of::<RawGroupDescHigh>()) {
        let raw = RawGroupDescHigh {
            bg_block_bitmap_hi: high32(tables.block_bitmap),
            bg_inode_bitmap_hi: high32(tables.inode_bitmap),
            bg_inode_table_hi: high32(tables.inode_table),
            bg_free_inodes_count_hi: low16(inodes >> 16),
            bg_itable_unused_hi: low16(unused >> 16),
            ..RawGroupDescHigh::default()
        };
        more.copy_from_slice(raw.as_bytes());
    }
}
