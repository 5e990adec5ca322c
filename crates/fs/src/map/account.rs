//! **Purpose.** What changes of a map share: where blocks go, and how many an inode has.

use fourscore_mballoc::Content as Wanted;
use fourscore_ondisk::{LogicalBlock, PhysBlock};
use fourscore_sync::epoch;

use crate::inode::cached::CachedInode;
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::{Error, Result};

/// How much of a map was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// Everything that was asked for.
    All,
    /// What one transaction has room for.
    Part,
}

/// Where to look for a block of `inode` that shall follow the blocks before `at`.
pub(crate) fn goal_behind(
    plan: &Plan<'_>,
    inode: &CachedInode,
    at: LogicalBlock,
) -> Result<PhysBlock> {
    let core = &*plan.mount.core;
    let guard = epoch::pin();
    if let Some(before) = at.0.checked_sub(1) {
        let mapping = lookup::map(core, inode, LogicalBlock(before), &guard)?;
        if let Target::Written(block) | Target::Unwritten(block) = mapping.target {
            return Ok(PhysBlock(block.0 + 1));
        }
    }
    let (group, _) = core
        .geometry()
        .inode_group(inode.nr())
        .ok_or(Error::NotFound)?;
    let content = match inode.file_type() {
        fourscore_ondisk::inode::FileType::Regular => Wanted::Data,
        _ => Wanted::Metadata,
    };
    let group = plan.mount.inodes().placement().goal(group, content);
    Ok(core.geometry().group_first_block(group))
}

/// Counts clusters that the inode has more, or fewer.
pub(crate) fn count_clusters(plan: &mut Plan<'_>, slot: Slot, change: i64) -> Result<()> {
    let geometry = plan.mount.core.geometry();
    let bits = geometry.block_size().bits() + geometry.blocks_per_cluster_log() - SECTOR_BITS;
    let set = slot::edit(plan, slot, |inode| {
        let before = inode.sectors();
        inode.set_sectors(before.saturating_add_signed(change << bits))
    })?;
    set.map_err(|_| Error::FileTooLarge)
}

/// Units in which an inode counts its space.
pub(crate) const SECTOR_BITS: u32 = 9;
