//! **Purpose.** Tells a device which blocks are free.

use fourscore_block::BlockDevice;
use fourscore_mballoc::{Allocator, Run};
use fourscore_ondisk::PhysBlock;
use fourscore_ondisk::superblock::Superblock;
use fourscore_sync::Arc;

use crate::Result;

/// Tells a device of blocks that are free.
#[derive(Debug)]
pub(crate) struct Discards {
    device: Arc<dyn BlockDevice>,
    superblock: Arc<Superblock>,
}

impl Discards {
    /// For the device of `fs`; `None` if it gives no space back.
    pub(crate) fn of(device: &Arc<dyn BlockDevice>, superblock: &Arc<Superblock>) -> Option<Self> {
        device.hints().discard.then(|| Self {
            device: Arc::clone(device),
            superblock: Arc::clone(superblock),
        })
    }

    /// Tells the device that a run is free, or is going to be.
    pub(crate) fn tell(&self, allocator: &Allocator, run: &Run) -> Result<()> {
        let geometry = self.superblock.geometry();
        let PhysBlock(first) = allocator.geometry().first_block(run);
        let blocks = u64::from(run.len.0) << geometry.blocks_per_cluster_log();
        // The last cluster may be longer than the file system.
        let end = first.saturating_add(blocks).min(geometry.blocks().0);
        let offset = |block| geometry.block_size().offset(PhysBlock(block));
        Ok(self.device.discard(offset(first)..offset(end))?)
    }

    /// Tells the device what was freed and need not wait any longer, and frees it then.
    pub(crate) fn release(&self, allocator: &Allocator) {
        if let Err(error) = allocator.release_visited(|run| self.tell(allocator, run)) {
            tracing::warn!(%error, "the device was not told of all that was freed");
        }
    }
}
