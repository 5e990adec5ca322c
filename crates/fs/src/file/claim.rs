//! **Purpose.** Claims blocks for a hole in a file: in a cluster that the file has already, or in
//! new clusters from the allocator.
//!
//! **Not here.** Which blocks of a file share a cluster (`map::clusters`); entering the claimed
//! blocks into the map (`map::update`).
//!
//! **Locking.** The inode's lock is held; it guards the file's preallocation as well.

use fourscore_mballoc::{ClusterCount, FilePrealloc, Neighbour, Request, Sizing};
use fourscore_ondisk::{LogicalBlock, PhysBlock};
use fourscore_sync::Arc;

use crate::Result;
use crate::core::Core;
use crate::file::prepare::low32;
use crate::inode::cached::CachedInode;
use crate::inode::cell::Changing;
use crate::map::clusters::{self, Clusters, Place};
use crate::map::form::MapForm;
use crate::map::mapping::{Mapping, Target};
use crate::map::run::BlockRun;
use crate::map::{account, lookup};
use crate::txn::plan::Plan;
use crate::txn::slot::Slot;

/// A file for which a plan claims blocks.
pub(crate) struct Claimer<'a> {
    pub(crate) inode: &'a CachedInode,
    pub(crate) slot: Slot,
    pub(crate) locked: &'a mut Changing,
    /// How much to search for.
    pub(crate) sizing: Sizing,
    /// The end of the hole that contains the blocks, as far as the caller knows it.
    pub(crate) hole_end: LogicalBlock,
}

/// Finds blocks for a hole in a file that is going to be at least `end_bytes` long. They lie in a
/// cluster that the file has, or are new. Returns the first block and the number of blocks.
pub(crate) fn claim(
    core: &Core,
    plan: &mut Plan<'_>,
    file: &mut Claimer<'_>,
    hole: BlockRun,
    end_bytes: u64,
) -> Result<(PhysBlock, u32)> {
    let (inode, at) = (file.inode, hole.at);
    let blocks = match clusters::place_for(plan, inode, file.slot, hole)? {
        Place::There(block, blocks) => return Ok((block, blocks)),
        Place::New(blocks) => blocks,
    };
    let clusters = Clusters::of(core);
    let wanted = at..LogicalBlock(at.0.saturating_add(blocks));
    let start = clusters.floor(at);
    let before = start.0.checked_sub(1);
    let before = before.map(|block| lookup::map_locked(core, inode, LogicalBlock(block)));
    let before = before.transpose()?;
    let goal = account::goal_after(plan, inode, before.as_ref())?;
    let len = clusters.count(&wanted);
    let mut request = Request::data(inode.nr(), clusters.nr(at), len, goal);
    let size = inode.size_bytes().max(end_bytes);
    let cluster_bytes = core.geometry().cluster_size_bytes() as u64;
    request.size = ClusterCount(low32(size.div_ceil(cluster_bytes)));
    request.sizing = file.sizing;
    request.writers = file.locked.writers();
    request.reach = MapForm::of(inode).reach();
    request.left = before.and_then(|before| neighbour(&before, clusters));
    let behind = clusters.ceil(wanted.end);
    if behind >= file.hole_end {
        request.right = neighbour(&lookup::map_locked(core, inode, behind)?, clusters);
    }
    let prealloc = file
        .locked
        .prealloc
        .get_or_insert_with(|| Arc::new(FilePrealloc::default()));
    let (first, found) = plan.allocate(&request, Some(prealloc))?;
    let block = PhysBlock(first.0 + u64::from(clusters.inside(at)));
    Ok((block, blocks.min(clusters.blocks(ClusterCount(found), at))))
}

pub(crate) fn neighbour(mapping: &Mapping, clusters: Clusters) -> Option<Neighbour> {
    match mapping.target {
        Target::Hole => None,
        Target::Written(block) | Target::Unwritten(block) => Some(Neighbour {
            logical: clusters.nr(mapping.logical),
            block,
        }),
    }
}
