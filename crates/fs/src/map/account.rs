//! **Purpose.** Helpers that all changes of a map share: the allocation goal for new blocks, and
//! the inode's count of its space.
//!
//! **Not here.** Claiming and freeing clusters (`map::clusters`, `map::release`).
//!
//! **Locking.** The inode's lock is held.

use fourscore_mballoc::Content as Wanted;
use fourscore_ondisk::{LogicalBlock, PhysBlock};

use crate::inode::cached::CachedInode;
use crate::map::lookup;
use crate::map::mapping::{Mapping, Target};
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::{Error, Result};

/// How much of a map was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// All of the range.
    All,
    /// The part for which one transaction has space.
    Part,
}

/// Returns the allocation goal for a block of `inode` that should follow the blocks before `at`:
/// the block behind the preceding one, or else a block in the group of the inode.
pub(crate) fn goal_behind(
    plan: &Plan<'_>,
    inode: &CachedInode,
    at: LogicalBlock,
) -> Result<PhysBlock> {
    let before = at.0.checked_sub(1);
    let before =
        before.map(|block| lookup::map_locked(&plan.mount.core, inode, LogicalBlock(block)));
    goal_after(plan, inode, before.transpose()?.as_ref())
}

/// As [`goal_behind`], for a caller that has looked the preceding block up; `None` if there is no
/// such block.
pub(crate) fn goal_after(
    plan: &Plan<'_>,
    inode: &CachedInode,
    before: Option<&Mapping>,
) -> Result<PhysBlock> {
    let core = &*plan.mount.core;
    let before = before.map_or(Target::Hole, |before| before.target);
    if let Target::Written(block) | Target::Unwritten(block) = before {
        return Ok(PhysBlock(block.0 + 1));
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

/// Adds `change` clusters to the space that the inode counts; a negative number subtracts.
pub(crate) fn count_clusters(plan: &mut Plan<'_>, slot: Slot, change: i64) -> Result<()> {
    let geometry = plan.mount.core.geometry();
    let bits = geometry.block_size().bits() + geometry.blocks_per_cluster_log() - SECTOR_BITS;
    let set = slot::edit(plan, slot, |inode| {
        let before = inode.sectors();
        inode.set_sectors(before.saturating_add_signed(change << bits))
    })?;
    set.map_err(|_| Error::FileTooLarge)
}

/// The binary logarithm of the unit in which an inode counts its space: sectors of 512 bytes.
pub(crate) const SECTOR_BITS: u32 = 9;
