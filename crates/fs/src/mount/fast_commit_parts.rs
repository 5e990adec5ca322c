//! **Purpose.** Parts of files whose mapping fast commits change, and the freeing of inodes that
//! they delete.
//!
//! **Not here.** The order of these steps (`crate::mount::fast_commit_replay`). All plans here are
//! applied in the only transaction of the recovery.

use fourscore_mballoc::{ClusterCount, LogicalCluster, Request, Sizing};
use fourscore_ondisk::extent::{Extent, ExtentState, MAX_UNWRITTEN_BLOCKS};
use fourscore_ondisk::jbd2::JournalError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock};

use crate::core::Core;
use crate::dir::lost_name;
use crate::group::descriptor;
use crate::inode::cache;
use crate::inode::cached::CachedInode;
use crate::inode::orphans::OrphanPlace;
use crate::map::account::Freed;
use crate::map::lookup;
use crate::map::mapping::{Mapping, Target};
use crate::mount::fast_commit::{Base, FastCommitOverlay, InodeChange};
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, Result};

/// A part of a run that fast commits change. All of its blocks were mapped in the same way before.
pub(crate) struct Part {
    pub(crate) at: LogicalBlock,
    pub(crate) end: LogicalBlock,
    /// The first block that it will be mapped to, if it will not be a hole.
    pub(crate) physical: Option<PhysBlock>,
    pub(crate) before: Lay,
}

impl Part {
    pub(crate) fn blocks(&self) -> u32 {
        self.end.0 - self.at.0
    }
}

/// The mapping of blocks of a file before the fast commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lay {
    Nowhere,
    Elsewhere,
    /// To the blocks that they will be mapped to.
    There,
}

/// Returns an inode as it was before the fast commits; `None` if they made it, or if it is deleted.
pub(crate) fn before(
    core: &Core,
    overlay: &FastCommitOverlay,
    nr: InodeNr,
) -> Result<Option<CachedInode>> {
    match overlay.change_of(nr) {
        Some(InodeChange::Deleted) => Ok(None),
        Some(InodeChange::Patched(patch)) if patch.base == Base::Zeroes => Ok(None),
        _ => CachedInode::new(cache::load_inode(core, nr)?, core.superblock()).map(Some),
    }
}

/// Frees the inode that had this number before the fast commits deleted it, or reused the number
/// for another inode.
pub(crate) fn free_life(mount: &Mount, nr: InodeNr) -> Result<()> {
    let Some((group, index)) = mount.core.geometry().inode_group(nr) else {
        return Err(Error::NotFound);
    };
    if !descriptor::inode_bitmap(&mount.core, group)?.is_used(index.0) {
        return Ok(());
    }
    let place = place_on_record(mount, nr);
    let inode = CachedInode::new(cache::load_inode(&mount.core, nr)?, mount.core.superblock())?;
    let mut plan = Plan::new(mount).in_one_step();
    let slot = slot::slot(&mut plan, nr)?;
    // The number is free on disk from here on, so the inode must not look as if it were in use.
    slot::edit(&mut plan, slot, |inode| inode.set_links_count(0))?;
    let freed = lost_name::plan_end(mount, &mut plan, &inode, slot, place)?;
    debug_assert_eq!(freed, Freed::All);
    apply_here(plan)
}

pub(crate) fn place_on_record(mount: &Mount, nr: InodeNr) -> Option<OrphanPlace> {
    let all = mount.orphans().all().into_iter();
    all.filter(|&(found, _)| found == nr)
        .map(|(_, place)| place)
        .next()
}

/// Splits a run by how its parts were mapped before. A run that will be a hole is one part: one
/// record may make a hole of a whole file.
pub(crate) fn parts(core: &Core, before: Option<&CachedInode>, run: &Mapping) -> Result<Vec<Part>> {
    let first = match run.target {
        Target::Written(first) | Target::Unwritten(first) => first,
        Target::Hole => {
            return Ok(vec![Part {
                at: run.logical,
                end: run.end(),
                physical: None,
                before: Lay::Elsewhere,
            }]);
        }
    };
    let mut parts = Vec::new();
    let mut at = run.logical;
    while at < run.end() {
        let found = match before {
            Some(inode) => Some(lookup::map_locked(core, inode, at)?),
            None => None,
        };
        let left = run.end().0 - at.0;
        let blocks = found.map_or(left, |found| found.blocks.min(left));
        let end = LogicalBlock(at.0 + blocks);
        let skipped = u64::from(at.0 - run.logical.0);
        let physical = PhysBlock(first.0 + skipped);
        let mapped = found.and_then(|found| found.extent());
        parts.push(Part {
            at,
            end,
            physical: Some(physical),
            before: match mapped {
                None => Lay::Nowhere,
                Some(mapped) if mapped.physical == physical => Lay::There,
                Some(_) => Lay::Elsewhere,
            },
        });
        at = end;
    }
    Ok(parts)
}

pub(crate) fn apply_here(plan: Plan<'_>) -> Result<()> {
    plan.apply(&[]).map(drop)
}

/// Claims the blocks of an extent, and plans to map them.
pub(crate) fn claim_extent(
    plan: &mut Plan<'_>,
    nr: InodeNr,
    extent: Extent,
    pieces: &mut Vec<Piece>,
) -> Result<()> {
    let mut done = 0;
    while done < extent.blocks {
        let wanted = (extent.blocks - done).min(MAX_UNWRITTEN_BLOCKS.into());
        let logical = LogicalBlock(extent.logical.0 + done);
        let goal = PhysBlock(extent.physical.0 + u64::from(done));
        let len = ClusterCount(wanted);
        let mut request = Request::data(nr, LogicalCluster(logical.0), len, goal);
        request.sizing = Sizing::GoalOnly;
        let (physical, blocks) = match plan.allocate(&request, None) {
            Err(Error::NoSpace) => {
                let error = JournalError::FastCommitInUse { block: goal };
                return Err(Corrupt::from(error).in_inode(nr).into());
            }
            claimed => claimed?,
        };
        pieces.push(Piece::Map(Extent {
            logical,
            physical,
            blocks,
            state: extent.state,
        }));
        done += blocks;
    }
    Ok(())
}

/// One change of a map.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    Unmap(LogicalBlock, LogicalBlock),
    Map(Extent),
    SetState(LogicalBlock, LogicalBlock, ExtentState),
}
