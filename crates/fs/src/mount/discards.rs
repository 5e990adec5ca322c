//! **Purpose.** Reports free blocks to a device that can discard them.
//!
//! **Not here.** Which blocks are reported, and when (`crate::mount::trim`, `crate::txn::grace`).
//!
//! **Locking.** None; no lock is held while the device works.

use fourscore_block::BlockDevice;
use fourscore_mballoc::{Allocator, Run};
use fourscore_ondisk::PhysBlock;
use fourscore_ondisk::superblock::Superblock;
use fourscore_sync::{Arc, Versions};

use crate::Result;

/// Reports free blocks to a device.
#[derive(Debug)]
pub(crate) struct Discards {
    device: Arc<dyn BlockDevice>,
    superblock: Arc<Versions<Superblock>>,
}

impl Discards {
    /// Returns the reporter for `device`; `None` if the device cannot discard.
    pub(crate) fn of(
        device: &Arc<dyn BlockDevice>,
        superblock: &Arc<Versions<Superblock>>,
    ) -> Option<Self> {
        device.hints().discard.then(|| Self {
            device: Arc::clone(device),
            superblock: Arc::clone(superblock),
        })
    }

    /// Discards on the device a run that is free, or is about to be.
    pub(crate) fn discard(&self, allocator: &Allocator, run: &Run) -> Result<()> {
        let geometry = self.superblock.get().geometry();
        let PhysBlock(first) = allocator.geometry().first_block(run);
        let blocks = u64::from(run.len.0) << geometry.blocks_per_cluster_log();
        // The last cluster may extend past the end of the file system.
        let end = first.saturating_add(blocks).min(geometry.blocks().0);
        let offset = |block| geometry.block_size().offset(PhysBlock(block));
        Ok(self.device.discard(offset(first)..offset(end))?)
    }

    /// Discards on the device what was freed and need not wait any longer, and then frees it in
    /// memory.
    pub(crate) fn release(&self, allocator: &Allocator) {
        if let Err(error) = allocator.release_visited(|run| self.discard(allocator, run)) {
            tracing::warn!(%error, "the device was not notified of all freed blocks");
        }
    }
}
