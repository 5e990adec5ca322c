//! **Purpose.** Appends blocks to a directory.

use fourscore_ondisk::LogicalBlock;

use crate::dir::changed::{ChangedDir, Place};
use crate::dir::structure::DirBlock;
use crate::map::update;
use crate::txn::plan::{Plan, RegionId};
use crate::txn::slot;
use crate::{Error, Result};

/// Adds a block at the directory's end, all zeroes so far.
pub(crate) fn append_block(
    plan: &mut Plan<'_>,
    dir: &mut ChangedDir<'_>,
    what: DirBlock,
) -> Result<(Place, RegionId)> {
    let at = dir.end;
    let (block, region) = update::new_block(plan, dir.inode, dir.slot, at, dir.tag(what))?;
    dir.end = LogicalBlock(at.0 + 1);
    let size = u64::from(dir.end.0) << plan.mount.core.geometry().block_size().bits();
    let sized = slot::edit(plan, dir.slot, |inode| inode.set_size_bytes(size))?;
    sized.map_err(|_| Error::FileTooLarge)?;
    Ok((Place { at, block }, region))
}

/// Adds a block of entries at the directory's end.
pub(crate) fn append_leaf(
    plan: &mut Plan<'_>,
    dir: &mut ChangedDir<'_>,
    block: &[u8],
) -> Result<()> {
    let (_, region) = append_block(plan, dir, DirBlock::Leaf)?;
    plan.bytes_mut(region).copy_from_slice(block);
    Ok(())
}
