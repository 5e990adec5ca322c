//! **Purpose.** Frees the clusters of a file's blocks that were unmapped, and forgets their buffers
//! where they held metadata.
//!
//! **Not here.** Taking blocks out of the map (`map::cut`, `map::pointers`).
//!
//! **Locking.** The inode's lock is held.

use fourscore_mballoc::ClusterCount;
use fourscore_ondisk::LogicalBlock;
use fourscore_ondisk::extent::Extent;

use crate::Result;
use crate::inode::cached::CachedInode;
use crate::map::account;
use crate::map::clusters::{Clusters, own_clusters};
use crate::txn::memory::Readers;
use crate::txn::plan::{Content, Plan};
use crate::txn::slot::Slot;

/// Frees the clusters of `pieces` of which no block is left in the map. The pieces were taken out
/// of the map and are in ascending order.
pub(crate) fn release(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    pieces: &[Extent],
    was: Content,
) -> Result<()> {
    if !pieces.is_empty() {
        plan.count_free();
    }
    let clusters = Clusters::of(&plan.mount.core);
    let mut freed = LogicalBlock(0);
    for piece in pieces {
        let blocks = piece.logical..piece.logical_end();
        let own = own_clusters(plan, inode, slot, blocks)?;
        // Two pieces may have lain in one cluster.
        let own = own.start.max(freed)..own.end;
        let count = clusters.count(&own);
        if count > ClusterCount(0) {
            let place = clusters.place(piece, own.start);
            let first = place.map_err(|error| error.in_inode(inode.nr()))?;
            // A cluster of several blocks may hold blocks of another piece.
            let readers = match was == Content::Data && clusters.are_blocks() {
                true => plan.readers_of(piece),
                false => Readers::Possible,
            };
            plan.free_clusters(first, count, readers)?;
            account::count_clusters(plan, slot, -i64::from(count.0))?;
            freed = own.end;
        }
        if was == Content::Metadata {
            plan.forget(piece.physical, piece.blocks);
        }
    }
    Ok(())
}
