//! **Purpose.** Frees blocks that move from one inode to another in the same fast commits.
//!
//! **Model.** With `data=writeback` Linux frees the blocks of files at once, and may give them to
//! another file in the transaction that frees them. So while a block that is to be claimed is in
//! use, blocks that inodes lose are freed first, in this order: blocks that changed runs no longer
//! map, deleted inodes, inodes that were on the orphan list. They are free at once: in a recovery
//! nothing reaches its home location before the commit, and there are no readers.
//!
//! **Invariants.** Wanted blocks that are free already are claimed until then, since removing
//! blocks from a map may allocate a node.

use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::{GroupNr, InodeNr, LogicalBlock, PhysBlock};

use crate::Result;
use crate::core::Core;
use crate::file::journal_data;
use crate::file::prepare::low32;
use crate::group::descriptor::{self, Bitmap};
use crate::inode::cache;
use crate::inode::cached::{CachedInode, Layout};
use crate::map::update;
use crate::mount::fast_commit::{FastCommitOverlay, InodeChange};
use crate::mount::fast_commit_parts::{self, Lay, claim_extent};
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::txn::slot;

/// Frees blocks that inodes lose, while blocks that other inodes will map are in use.
pub(crate) fn free_what_is_wanted(mount: &Mount, overlay: &FastCommitOverlay) -> Result<()> {
    let wanted = wanted_blocks(&mount.core, overlay)?;
    let (free, are_all) = free_among(mount, &wanted)?;
    if are_all {
        return Ok(());
    }
    let mut kept = Plan::new(mount).in_one_step();
    for (physical, blocks) in free {
        let extent = Extent {
            logical: LogicalBlock(0),
            physical,
            blocks,
            state: ExtentState::Written,
        };
        claim_extent(&mut kept, InodeNr::ROOT, extent, &mut Vec::new())?;
    }
    let steps: [fn(&Mount, &FastCommitOverlay) -> Result<()>; 3] =
        [free_left_runs, free_deleted, free_orphans];
    for step in steps {
        step(mount, overlay)?;
        if free_among(mount, &wanted)?.1 {
            break;
        }
    }
    Ok(())
}

/// Returns the runs of blocks that inodes will map and do not map yet: each block once, in
/// ascending order.
fn wanted_blocks(core: &Core, overlay: &FastCommitOverlay) -> Result<Vec<(PhysBlock, u32)>> {
    let mut wanted = Vec::new();
    for (nr, runs) in overlay.changed_maps() {
        let before = fast_commit_parts::before(core, overlay, nr)?;
        for run in runs.runs() {
            let parts = fast_commit_parts::parts(core, before.as_ref(), run)?.into_iter();
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

/// Returns the free parts of runs of blocks, and whether all blocks are free.
fn free_among(mount: &Mount, runs: &[(PhysBlock, u32)]) -> Result<(Vec<(PhysBlock, u32)>, bool)> {
    let (mut free, mut are_all) = (Vec::new(), true);
    let mut known: Option<(GroupNr, Bitmap)> = None;
    for &(first, blocks) in runs {
        let mut at = first;
        let in_groups = mount.allocator().geometry().runs(first, blocks.into());
        for run in in_groups.into_iter().flatten() {
            let bitmap = match known.take() {
                Some((group, bitmap)) if group == run.group => bitmap,
                _ => descriptor::block_bitmap(&mount.core, run.group)?,
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

/// Unmaps the blocks that the records remove from maps or replace.
fn free_left_runs(mount: &Mount, overlay: &FastCommitOverlay) -> Result<()> {
    for (nr, runs) in overlay.changed_maps() {
        let Some(inode) = fast_commit_parts::before(&mount.core, overlay, nr)? else {
            continue;
        };
        if !matches!(inode.layout(), Layout::Extents | Layout::BlockMap) {
            continue;
        }
        let mut plan = Plan::new(mount).in_one_step();
        let slot = slot::slot(&mut plan, nr)?;
        for run in runs.runs() {
            for part in fast_commit_parts::parts(&mount.core, Some(&inode), run)? {
                if part.before == Lay::Elsewhere {
                    let was = journal_data::content_of(&mount.core, &inode);
                    update::unmap(&mut plan, &inode, slot, part.at..part.end, was)?;
                }
            }
        }
        slot::end(&mut plan, slot)?;
        fast_commit_parts::apply_here(plan)?;
    }
    Ok(())
}

fn free_deleted(mount: &Mount, overlay: &FastCommitOverlay) -> Result<()> {
    for (nr, change) in overlay.changed_inodes() {
        if *change == InodeChange::Deleted {
            fast_commit_parts::free_life(mount, nr)?;
        }
    }
    Ok(())
}

/// Frees inodes without links that were on the orphan list before, and the blocks past the end of
/// the others on the list.
fn free_orphans(mount: &Mount, overlay: &FastCommitOverlay) -> Result<()> {
    for (nr, _) in mount.orphans().all() {
        if overlay.change_of(nr).is_some() || overlay.ranges_of(nr).is_some() {
            continue;
        }
        let inode = CachedInode::new(cache::load_inode(&mount.core, nr)?, mount.core.superblock())?;
        if inode.on_disk().links_count() == 0 {
            fast_commit_parts::free_life(mount, nr)?;
            continue;
        }
        let size = mount.core.geometry().block_size();
        let end = LogicalBlock(low32(inode.size_bytes().div_ceil(size.bytes() as u64)));
        let mut plan = Plan::new(mount).in_one_step();
        let slot = slot::slot(&mut plan, nr)?;
        update::free_map(&mut plan, &inode, slot, end)?;
        slot::end(&mut plan, slot)?;
        fast_commit_parts::apply_here(plan)?;
    }
    Ok(())
}
