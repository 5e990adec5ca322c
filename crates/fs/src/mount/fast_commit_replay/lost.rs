//! **Purpose.** Blocks that go from one inode to another in the same fast commits.
//!
//! **Model.** With `data=writeback` Linux frees the blocks of files at once, and may give them to
//! another file in the transaction that frees them. So as long as a block that is to be claimed is
//! in use, what inodes lose is freed first: what runs leave, then inodes that are gone, then those
//! that were on record. It is free at once: in a recovery nothing reaches its place before the
//! commit, and nobody else reads.
//!
//! **Invariants.** What is wanted and free already is kept until then, since a map from which
//! something is taken may need a node.

use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::{GroupNr, InodeNr, LogicalBlock, PhysBlock};

use crate::file::write::low32;
use crate::group::descriptor::Bitmap;
use crate::inode::cache::{CachedInode, Layout};
use crate::mount::fast_commit::{FastCommitOverlay, InodeChange};
use crate::mount::fast_commit_replay::{Lay, claim_extent};
use crate::mount::writer::Writer;
use crate::txn::plan::Plan;
use crate::{Fs, Result};

impl Fs {
    /// Frees what inodes lose, as long as blocks that others are told to map are in use.
    pub(crate) fn free_what_is_wanted(
        &self,
        writer: &Writer,
        overlay: &FastCommitOverlay,
    ) -> Result<()> {
        let wanted = self.wanted_blocks(overlay)?;
        let (free, are_all) = self.free_among(writer, &wanted)?;
        if are_all {
            return Ok(());
        }
        let mut kept = Plan::new(self, writer).in_one_step();
        for (physical, blocks) in free {
            let extent = Extent {
                logical: LogicalBlock(0),
                physical,
                blocks,
                state: ExtentState::Written,
            };
            claim_extent(&mut kept, InodeNr::ROOT, extent, &mut Vec::new())?;
        }
        let steps = [
            Self::free_left_runs,
            Self::free_deleted,
            Self::free_what_is_on_record,
        ];
        for step in steps {
            step(self, writer, overlay)?;
            if self.free_among(writer, &wanted)?.1 {
                break;
            }
        }
        Ok(())
    }

    /// Where blocks lie that inodes are told to map and have not: each once, in ascending order.
    fn wanted_blocks(&self, overlay: &FastCommitOverlay) -> Result<Vec<(PhysBlock, u32)>> {
        let mut wanted = Vec::new();
        for (nr, runs) in overlay.changed_maps() {
            let before = self.before(overlay, nr)?;
            for run in runs.runs() {
                let parts = self.parts(before.as_ref(), run)?.into_iter();
                let parts = parts.filter(|part| part.before != Lay::There);
                wanted.extend(parts.filter_map(|part| Some((part.physical?, part.blocks()))));
            }
        }
        wanted.sort_unstable();
        let mut end = PhysBlock(0);
        wanted.retain_mut(|(first, blocks)| {
            let known = end.0.saturating_sub(first.0);
            let left = u64::from(*blocks).saturating_sub(known);
            (*first, *blocks) = (PhysBlock(first.0 + known), low32(left));
            end = end.max(PhysBlock(first.0.saturating_add(left)));
            left > 0
        });
        Ok(wanted)
    }

    /// What is free among runs of blocks, and whether all of it is.
    fn free_among(
        &self,
        writer: &Writer,
        runs: &[(PhysBlock, u32)],
    ) -> Result<(Vec<(PhysBlock, u32)>, bool)> {
        let (mut free, mut are_all) = (Vec::new(), true);
        let mut known: Option<(GroupNr, Bitmap)> = None;
        for &(first, blocks) in runs {
            let mut at = first;
            let in_groups = writer.allocator().geometry().runs(first, blocks.into());
            for run in in_groups.into_iter().flatten() {
                let bitmap = match known.take() {
                    Some((group, bitmap)) if group == run.group => bitmap,
                    _ => self.block_bitmap(run.group)?,
                };
                let mut bit = run.start.0;
                let end = bit + run.len.0;
                while bit < end {
                    let is_used = bitmap.is_used(bit);
                    let same = (bit..end).take_while(|&bit| bitmap.is_used(bit) == is_used);
                    let count = low32(same.count() as u64);
                    if !is_used {
                        free.push((at, count));
                    }
                    are_all &= !is_used;
                    (bit, at) = (bit + count, PhysBlock(at.0 + u64::from(count)));
                }
                known = Some((run.group, bitmap));
            }
        }
        Ok((free, are_all))
    }

    /// Takes from maps what the records take from them.
    fn free_left_runs(&self, writer: &Writer, overlay: &FastCommitOverlay) -> Result<()> {
        for (nr, runs) in overlay.changed_maps() {
            let Some(inode) = self.before(overlay, nr)? else {
                continue;
            };
            if !matches!(inode.layout(), Layout::Extents | Layout::BlockMap) {
                continue;
            }
            let mut plan = Plan::new(self, writer).in_one_step();
            let slot = plan.slot(nr)?;
            for run in runs.runs() {
                for part in self.parts(Some(&inode), run)? {
                    if part.before == Lay::Elsewhere {
                        let was = self.content_of(&inode);
                        plan.unmap(&inode, slot, (part.at, part.end), was)?;
                    }
                }
            }
            plan.end(slot)?;
            self.carry_out_here(plan)?;
        }
        Ok(())
    }

    fn free_deleted(&self, writer: &Writer, overlay: &FastCommitOverlay) -> Result<()> {
        for (nr, change) in overlay.changed_inodes() {
            if *change == InodeChange::Deleted {
                self.free_life(writer, nr)?;
            }
        }
        Ok(())
    }

    /// Frees inodes that were on record before, and what lies behind the ends of others there.
    fn free_what_is_on_record(&self, writer: &Writer, overlay: &FastCommitOverlay) -> Result<()> {
        for (nr, _) in writer.orphans().all() {
            if overlay.change_of(nr).is_some() || overlay.ranges_of(nr).is_some() {
                continue;
            }
            let inode = CachedInode::new(self.load_inode(nr)?, self)?;
            if inode.on_disk().links_count() == 0 {
                self.free_life(writer, nr)?;
                continue;
            }
            let size = self.geometry().block_size();
            let end = LogicalBlock(low32(inode.size_bytes().div_ceil(size.bytes() as u64)));
            let mut plan = Plan::new(self, writer).in_one_step();
            let slot = plan.slot(nr)?;
            plan.free_map(&inode, slot, end)?;
            plan.end(slot)?;
            self.carry_out_here(plan)?;
        }
        Ok(())
    }
}
