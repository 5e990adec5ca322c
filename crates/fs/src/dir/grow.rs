//! **Purpose.** Plans new blocks at the end of a directory.
//!
//! **Not here.** What the blocks hold and how the index refers to them (`dir::entries`).
//!
//! **Locking.** The caller holds the directory's lock exclusively.

use fourscore_ondisk::LogicalBlock;

use crate::dir::changed::{ChangedDir, Place};
use crate::dir::structure::DirBlock;
use crate::map::update;
use crate::txn::plan::{Plan, RegionId};
use crate::txn::slot;
use crate::{Error, Result};

/// Appends a block to the directory, filled with zeroes.
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

/// Appends a block of entries to the directory.
pub(crate) fn append_leaf(
    plan: &mut Plan<'_>,
    dir: &mut ChangedDir<'_>,
    block: &[u8],
) -> Result<()> {
    let (_, region) = append_block(plan, dir, DirBlock::Leaf)?;
    plan.bytes_mut(region).copy_from_slice(block);
    Ok(())
}
