//! **Purpose.** Clusters of several blocks (`bigalloc`): which blocks of a file share a cluster,
//! and so when a cluster is claimed and when it is freed.
//!
//! **Model.** A map refers to blocks, the allocator gives clusters. A cluster of the file system
//! belongs to one cluster of one file, block for block:
//!
//! ```text
//! logical % blocks_per_cluster = physical % blocks_per_cluster
//! ```
//!
//! So the first block of a file's cluster that is mapped claims the cluster, other blocks find
//! their location in it, and the last block that is unmapped frees it. Blocks of a cluster that are
//! not mapped are never read, and are not zeroed. A node of a tree and a block of attributes take a
//! cluster each, as in Linux. An inode counts its space in clusters.
//!
//! Without `bigalloc` a cluster is a block, and nothing is looked up.
//!
//! **Invariants.** At the end of a transaction no cluster of the file system holds blocks of two
//! clusters of files.
//!
//! **Locking.** The inode's lock is held.

use std::ops::Range;

use fourscore_mballoc::{ClusterCount, LogicalCluster};
use fourscore_ondisk::extent::{Extent, LOGICAL_END};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, LogicalBlock, PhysBlock};

use crate::Result;
use crate::core::Core;
use crate::inode::cached::CachedInode;
use crate::map::extents;
use crate::map::run::BlockRun;
use crate::txn::plan::Plan;
use crate::txn::slot::Slot;

/// The division of a file's blocks into clusters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clusters {
    bits: u32,
}

/// The location for blocks that are to be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// A number of blocks from this block on, in a cluster that the file has.
    There(PhysBlock, u32),
    /// A number of blocks in new clusters.
    New(u32),
}

impl Clusters {
    pub(crate) fn of(core: &Core) -> Self {
        Self {
            bits: core.geometry().blocks_per_cluster_log(),
        }
    }

    /// Whether each cluster is one block.
    pub(crate) fn are_blocks(self) -> bool {
        self.bits == 0
    }

    /// Returns the first block of the cluster that holds `at`.
    pub(crate) fn floor(self, at: LogicalBlock) -> LogicalBlock {
        LogicalBlock(at.0 >> self.bits << self.bits)
    }

    /// Returns `at` if a cluster begins there, else the first block of the next cluster; at most
    /// the end of the longest file.
    pub(crate) fn ceil(self, at: LogicalBlock) -> LogicalBlock {
        let mask = (1 << self.bits) - 1;
        let up = at.0.checked_add(mask).map(|up| up & !mask);
        up.map_or(LOGICAL_END, LogicalBlock)
    }

    /// Returns the blocks of the cluster that holds `at`.
    fn around(self, at: LogicalBlock) -> Range<LogicalBlock> {
        self.floor(at)..self.ceil(LogicalBlock(at.0.saturating_add(1)))
    }

    /// Returns the number of blocks in front of `at` in its cluster.
    pub(crate) fn inside(self, at: LogicalBlock) -> u32 {
        at.0 - self.floor(at).0
    }

    /// Returns the number of the file's cluster that holds `at`.
    pub(crate) fn nr(self, at: LogicalBlock) -> LogicalCluster {
        LogicalCluster(at.0 >> self.bits)
    }

    /// Returns the number of clusters that hold a block of `blocks`.
    pub(crate) fn count(self, blocks: &Range<LogicalBlock>) -> ClusterCount {
        match blocks.end.0.checked_sub(1) {
            Some(last) if blocks.start < blocks.end => {
                ClusterCount((last >> self.bits) - (blocks.start.0 >> self.bits) + 1)
            }
            _ => ClusterCount(0),
        }
    }

    /// Returns the number of blocks that `clusters` hold, counted from block `at` of the first one.
    pub(crate) fn blocks(self, clusters: ClusterCount, at: LogicalBlock) -> u32 {
        let all = u64::from(clusters.0) << self.bits;
        let behind = all.saturating_sub(self.inside(at).into());
        u32::try_from(behind).unwrap_or(u32::MAX)
    }

    /// Returns the physical block for block `at` of a file that has `extent` in the same cluster,
    /// or in adjoining clusters.
    pub(crate) fn place(
        self,
        extent: &Extent,
        at: LogicalBlock,
    ) -> std::result::Result<PhysBlock, Corrupt> {
        let first = extent.physical.0 + u64::from(at.0);
        let apart = extent.physical.0 ^ u64::from(extent.logical.0);
        match first.checked_sub(extent.logical.0.into()) {
            Some(place) if apart & ((1 << self.bits) - 1) == 0 => Ok(PhysBlock(place)),
            _ => Err(RelationError::Cluster {
                logical: extent.logical,
                physical: extent.physical,
            }
            .into()),
        }
    }
}

/// Returns the physical block for block `at`, if the file has other blocks of its cluster in the
/// state that the plan makes.
pub(crate) fn place_in_cluster(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    at: LogicalBlock,
) -> Result<Option<PhysBlock>> {
    let clusters = Clusters::of(&plan.mount.core);
    if clusters.are_blocks() {
        return Ok(None);
    }
    let Some(found) = extents::first_extent(plan, inode, slot, clusters.around(at))? else {
        return Ok(None);
    };
    let place = clusters.place(&found, at);
    Ok(Some(place.map_err(|error| error.in_inode(inode.nr()))?))
}

/// Returns a location for the unmapped blocks at the front of `hole`, for as many as have the same
/// kind of location.
pub(crate) fn place_for(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    hole: BlockRun,
) -> Result<Place> {
    let BlockRun { at, blocks } = hole;
    if let Some(place) = place_in_cluster(plan, inode, slot, at)? {
        let clusters = Clusters::of(&plan.mount.core);
        let left = clusters.around(at).end.0 - at.0;
        return Ok(Place::There(place, blocks.min(left)));
    }
    let clusters = Clusters::of(&plan.mount.core);
    let end = LogicalBlock(at.0.saturating_add(blocks));
    let last = clusters.floor(end);
    // The file may have the last of the clusters already, for blocks behind these.
    let is_cut =
        at < last && extents::first_extent(plan, inode, slot, end..clusters.ceil(end))?.is_some();
    Ok(Place::New(if is_cut { last.0 - at.0 } else { blocks }))
}

/// Returns the clusters, as a range of whole clusters, that hold some of `blocks` and no other
/// mapped block. None of `blocks` is mapped.
pub(crate) fn own_clusters(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    blocks: Range<LogicalBlock>,
) -> Result<Range<LogicalBlock>> {
    let clusters = Clusters::of(&plan.mount.core);
    if clusters.are_blocks() {
        return Ok(blocks);
    }
    let mut own = clusters.floor(blocks.start)..clusters.ceil(blocks.end);
    let head = own.start..blocks.start;
    if extents::first_extent(plan, inode, slot, head)?.is_some() {
        own.start = clusters.around(own.start).end;
    }
    let tail = blocks.end..own.end;
    if own.start < own.end && extents::first_extent(plan, inode, slot, tail)?.is_some() {
        own.end = clusters.floor(blocks.end);
    }
    own.end = own.end.max(own.start);
    Ok(own)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use fourscore_ondisk::extent::ExtentState;

    const FOUR: Clusters = Clusters { bits: 2 };

    #[test]
    fn blocks_fall_into_clusters() {
        let floor = |at| FOUR.floor(LogicalBlock(at)).0;
        let ceil = |at| FOUR.ceil(LogicalBlock(at)).0;
        assert_eq!([floor(0), floor(3), floor(4), floor(7)], [0, 0, 4, 4]);
        assert_eq!([ceil(0), ceil(1), ceil(4), ceil(5)], [0, 4, 4, 8]);
        assert_eq!(ceil(u32::MAX - 2), u32::MAX, "no file reaches further");
        let count = |from, to| FOUR.count(&(LogicalBlock(from)..LogicalBlock(to))).0;
        assert_eq!(
            [count(3, 3), count(3, 4), count(3, 5), count(4, 8)],
            [0, 1, 2, 1]
        );
        let blocks = |clusters, at| FOUR.blocks(ClusterCount(clusters), LogicalBlock(at));
        assert_eq!([blocks(1, 4), blocks(1, 7), blocks(3, 5)], [4, 1, 11]);
    }

    #[test]
    fn a_block_has_its_place_beside_others_of_its_cluster() {
        let extent = |logical, physical| Extent {
            logical: LogicalBlock(logical),
            physical: PhysBlock(physical),
            blocks: 1,
            state: ExtentState::Written,
        };
        let place = |extent, at| FOUR.place(&extent, LogicalBlock(at)).map(|place| place.0);
        assert_eq!(place(extent(6, 102), 4), Ok(100));
        assert_eq!(place(extent(6, 102), 7), Ok(103));
        assert!(
            place(extent(6, 101), 7).is_err(),
            "not the same place in a cluster"
        );
        assert!(
            place(extent(6, 2), 3).is_err(),
            "in front of the first block"
        );
        let blocks = Clusters { bits: 0 };
        assert_eq!(
            blocks.place(&extent(6, 101), LogicalBlock(6)),
            Ok(PhysBlock(101))
        );
    }
}
