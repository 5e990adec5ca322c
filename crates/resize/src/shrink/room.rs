//! **Purpose.** How far a file system can shrink at once.
//!
//! **Model.** A size can be reached at once if the clusters in use behind its end, without the
//! metadata of groups that vanish, fit into the free clusters in front of it:
//!
//! ```text
//! used(groups from g on) - own metadata there <= free(groups before g) - spare
//! ```
//!
//! With `flex_bg` the tables of groups that vanish lie in front of the end, and are free only when
//! the groups have vanished. So a size may be reached in several passes, and not at once.
//!
//! **Not here.** Whether there are runs of free clusters that are long enough for a table. If not,
//! a step finds no space, and the caller goes on in smaller ones.

use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{Geometry, GroupNr, PhysBlock};

use crate::bitmap;
use crate::error::Result;
use crate::volume::Volume;

/// Clusters that are left over, for a table that moves and for maps that get longer.
const SPARE: u64 = 64;
/// In addition, one for so many clusters that move.
const SPARE_SHARE: u64 = 64;

/// Counts of the groups, by which sizes are compared.
pub(super) struct Room {
    geometry: Geometry,
    /// By group, in clusters.
    groups: Vec<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    used: u64,
    free: u64,
    /// What the group's own bitmaps and inode table take.
    tables: u64,
    /// Where the last of them ends.
    tables_end: u64,
    /// Superblock and descriptors.
    base: u64,
}

impl Room {
    pub(super) fn of(volume: &Volume<'_>) -> Result<Self> {
        let geometry = *volume.geometry();
        let log = geometry.blocks_per_cluster_log();
        let table = u64::from(geometry.inode_table_blocks());
        let counts = |group| {
            let desc = volume.desc(group)?;
            let (free, all) = (desc.free_clusters(), geometry.group_clusters(group));
            let ends = [
                desc.block_bitmap().0 + 1,
                desc.inode_bitmap().0 + 1,
                desc.inode_table().0 + table,
            ];
            Ok(Counts {
                used: all.saturating_sub(free).into(),
                free: free.into(),
                tables: (table + 2) >> log,
                tables_end: ends.into_iter().max().unwrap_or(0),
                base: u64::from(geometry.base_meta_blocks(group)) >> log,
            })
        };
        let groups = (0..geometry.groups()).map(GroupNr).map(counts);
        Ok(Self {
            geometry,
            groups: groups.collect::<Result<_>>()?,
        })
    }

    /// Whether there is space to shrink to `new` at once.
    pub(super) fn is_enough_for(&self, volume: &Volume<'_>, new: &Superblock) -> Result<bool> {
        let groups = new.geometry().groups();
        let last = GroupNr(groups - 1);
        let log = self.geometry.blocks_per_cluster_log();
        let clusters = u64::from(new.geometry().group_clusters(last));
        let all = u64::from(self.geometry.group_clusters(last));
        let bits = volume.block_bitmap(last)?;
        let used = (clusters..all)
            .filter(|&bit| bitmap::is_set(&bits, bit))
            .count() as u64;
        let lost = all.saturating_sub(clusters).saturating_sub(used);
        let end = new.geometry().data_blocks().end;
        Ok(self.is_enough(groups, end, Cut { used, lost }, log))
    }

    /// The least number of groups that is reached at once; at least `least`.
    pub(super) fn least_groups(&self, least: u32) -> u32 {
        let log = self.geometry.blocks_per_cluster_log();
        let (mut low, mut high) = (least, self.geometry.groups());
        while low < high {
            let middle = low + (high - low) / 2;
            let end = self.geometry.group_first_block(GroupNr(middle));
            match self.is_enough(middle, end, Cut::default(), log) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        high
    }

    /// Whether what lies behind `end`, in groups from `groups` on and in the cut end of the one
    /// before them, fits in front of it.
    fn is_enough(&self, groups: u32, end: PhysBlock, cut: Cut, log: u32) -> bool {
        let (staying, going) = self.groups.split_at(self.groups.len().min(groups as usize));
        let free: u64 = staying.iter().map(|group| group.free).sum();
        let used: u64 = going.iter().map(|group| group.used).sum();
        let own = |group: &Counts| match group.tables_end > end.0 {
            true => group.base + group.tables,
            false => group.base,
        };
        let own: u64 = going.iter().map(own).sum();
        let moving = (used + cut.used).saturating_sub(own);
        let table = u64::from(self.geometry.inode_table_blocks()) >> log;
        let spare = SPARE + table + moving / SPARE_SHARE;
        moving + spare <= free.saturating_sub(cut.lost)
    }
}

/// Clusters of the last group that stays, behind the end.
#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    used: u64,
    /// Free, but not in front of the end.
    lost: u64,
}
