//! **Purpose.** Cuts ranges out of an extent tree, in steps that fit a plan, and frees the blocks
//! that were mapped there.
//!
//! **Locking.** The inode's lock is held.

use std::ops::Range;

use fourscore_ondisk::LogicalBlock;
use fourscore_ondisk::extent::{self, Extent, ExtentEditError, Node};

use crate::Result;
use crate::inode::cached::CachedInode;
use crate::map::account::Freed;
use crate::map::extents::{self, Mapped};
use crate::map::release;
use crate::txn::fast_commit::reason::Reason;
use crate::txn::plan::{Content, Plan};
use crate::txn::slot::{self, Slot};

/// The amount that is freed at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    extents: usize,
    blocks: u32,
}

/// Takes `blocks` out of the tree, and frees what was mapped there, from the front on and as far as
/// the plan has space.
pub(crate) fn cut_extents(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    blocks: Range<LogicalBlock>,
    was: Content,
) -> Result<Freed> {
    plan.taint(inode.nr(), Reason::RangeOperation);
    let file = Mapped { inode, slot };
    let capacity = plan.capacity();
    let (mut at, end) = (blocks.start, blocks.end);
    while plan.size() < capacity {
        let budget = budget(plan, capacity, was);
        let Some(part) = next_part(plan, file, at, end, budget)? else {
            shrink(plan, file)?;
            return Ok(Freed::All);
        };
        let mut pieces = Vec::new();
        extents::change_leaf(plan, file, part.start, 1, |leaf| {
            pieces.clear();
            leaf.remove(part.clone(), |piece| pieces.push(piece))
        })?;
        if pieces.is_empty() {
            // The key of another leaf covers the extent that this leaf should hold.
            return Err(file.broken(ExtentEditError::Shape));
        }
        at = pieces.last().map_or(end, Extent::logical_end).min(end);
        release::release(plan, inode, slot, &pieces, was)?;
    }
    Ok(Freed::Part)
}

/// Returns how much a plan may free at once if it must not become much larger than `capacity`. An
/// extent can reach across groups, and each block of metadata takes a revoke record.
pub(crate) fn budget(plan: &Plan<'_>, capacity: usize, was: Content) -> Budget {
    /// More blocks than most extents add to a plan.
    const BLOCKS_OF_EXTENT: usize = 4;
    let left = capacity.saturating_sub(plan.size());
    let blocks = match was {
        Content::Data => u32::MAX,
        Content::Metadata => {
            let revokes = plan.mount.revokes_per_credit().saturating_mul(left);
            u32::try_from(revokes).unwrap_or(u32::MAX).max(1)
        }
    };
    Budget {
        extents: (left / BLOCKS_OF_EXTENT).max(1),
        blocks,
    }
}

/// Returns the first blocks that are mapped between `from` and `end - 1`, all in one leaf, as many
/// as `budget` allows.
pub(crate) fn next_part(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    from: LogicalBlock,
    end: LogicalBlock,
    budget: Budget,
) -> Result<Option<Range<LogicalBlock>>> {
    let Some(first) = extents::next_extent(plan, file, from, end)? else {
        return Ok(None);
    };
    let start = first.logical.max(from);
    let path = extents::descend(plan, file, start)?;
    let mut part = start..start;
    let mut blocks = budget.blocks;
    if let Node::Leaf(leaf) = extents::node(plan, file, path.nodes.last())? {
        let skipped = leaf.position(start).min(leaf.len());
        for extent in leaf.iter().skip(skipped).take(budget.extents) {
            let from = extent.logical.max(start);
            let mapped = extent.logical_end().min(end).0.saturating_sub(from.0);
            let taken = mapped.min(blocks);
            blocks -= taken;
            if taken > 0 {
                part.end = LogicalBlock(from.0 + taken);
            }
        }
    }
    if part.is_empty() {
        return Err(file.broken(ExtentEditError::Shape));
    }
    Ok(Some(part))
}

/// Removes levels that a small tree does not need.
pub(crate) fn shrink(plan: &mut Plan<'_>, file: Mapped<'_>) -> Result<()> {
    loop {
        let path = extents::descend(plan, file, LogicalBlock(0))?;
        let Some(&child) = path.nodes.first() else {
            return Ok(());
        };
        let bytes = plan.bytes(child.region).to_vec();
        let shrunk = slot::edit(plan, file.slot, |inode| {
            extent::shrink(inode.i_block_mut(), &bytes)
        })?;
        if shrunk.is_err() {
            return Ok(());
        }
        extents::free_nodes(plan, file, &[child])?;
    }
}
