//! **Purpose.** Moves bitmaps and inode tables of groups that stay, if they lie behind the new end.
//!
//! **Model.** A table needs a run of free clusters. It is copied there, and one step changes the
//! descriptor. Tables of several groups may share a cluster, which is freed with the last of them.

use fourscore_ondisk::group::GroupDescMut;
use fourscore_ondisk::{GroupNr, PhysBlock};

use super::relocate::Relocation;
use crate::error::{ResizeError, Result};

impl Relocation<'_, '_> {
    /// Moves all tables of the first `groups` groups that lie behind the end.
    pub(crate) fn move_tables(&mut self, groups: u32) -> Result<()> {
        for group in (0..groups).map(GroupNr) {
            let desc = self.volume.desc(group)?;
            let table_blocks = u64::from(self.volume.geometry().inode_table_blocks());
            let old = [desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table()];
            let lengths = [1, 1, table_blocks];
            let mut new = old;
            for (place, blocks) in new.iter_mut().zip(lengths) {
                if place.0 + blocks > self.end.0 {
                    *place = self.copy_table(*place, blocks)?;
                }
            }
            if new == old {
                continue;
            }
            self.volume.change_desc(group, |bytes, sb| {
                let mut desc = GroupDescMut::new(bytes, sb).map_err(ResizeError::corrupt)?;
                desc.set_places(new[0], new[1], new[2]);
                Ok(())
            })?;
            for ((old, new), blocks) in old.into_iter().zip(new).zip(lengths) {
                if old != new {
                    self.free_table(old, blocks)?;
                }
            }
            self.commit()?;
        }
        Ok(())
    }

    fn copy_table(&mut self, from: PhysBlock, blocks: u64) -> Result<PhysBlock> {
        let log = self.volume.geometry().blocks_per_cluster_log();
        let clusters = blocks.div_ceil(1 << log);
        let to = self.space.take(self.volume, clusters, clusters)?.start;
        for offset in 0..blocks {
            let bytes = self.volume.read(PhysBlock(from.0 + offset))?;
            self.volume.write_now(PhysBlock(to.0 + offset), &bytes)?;
        }
        Ok(to)
    }

    /// Frees the clusters of a table that no other table lies in.
    fn free_table(&mut self, first: PhysBlock, blocks: u64) -> Result<()> {
        let geometry = *self.volume.geometry();
        let log = geometry.blocks_per_cluster_log();
        let cluster = |block: u64| block >> log;
        let mut others = Vec::new();
        if log > 0 {
            for group in (0..geometry.groups()).map(GroupNr) {
                let desc = self.volume.desc(group)?;
                let table = desc.inode_table().0;
                let end = table + u64::from(geometry.inode_table_blocks());
                let [blocks, inodes] = [desc.block_bitmap().0, desc.inode_bitmap().0];
                others.extend([blocks..blocks + 1, inodes..inodes + 1, table..end]);
            }
        }
        for block in first.0..first.0 + blocks {
            let is_shared = others.iter().any(|run| {
                cluster(run.start) <= cluster(block) && cluster(block) <= cluster(run.end - 1)
            });
            if !is_shared {
                self.space
                    .free(self.volume, &(PhysBlock(block)..PhysBlock(block + 1)));
            }
        }
        Ok(())
    }
}
