//! **Purpose.** Computes how full the file system is.
//!
//! **Model.** The counters of the superblock are only written now and then. The exact values are
//! the sums over the group descriptors, which the kernel computes at each mount, too.
//!
//! In a mount that grows, the size and the sums are of one version ([`Groups::extent`]), so no
//! reader sees one size with the free blocks of another.
//!
//! [`Groups::extent`]: crate::group::table::Groups::extent

use fourscore_mballoc::Privilege;
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::superblock::{JournalPlace, Superblock};

use crate::Result;
use crate::core::Core;
use crate::group::descriptor;
use crate::inode::cache;
use crate::mount::metadata_reserve;
use crate::txn::faults::Sabotage;

/// How full a file system is, in blocks and inodes, as `statfs` of a mount returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatFs {
    /// The block size in bytes.
    pub block_bytes: usize,
    /// Blocks for users: all but the overhead of metadata and journal.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Blocks that are free for users other than root: without those that are reserved for root,
    /// and those that are kept for nodes of extent trees.
    pub available_blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Inodes that are free.
    pub free_inodes: u32,
    /// The longest name in bytes.
    pub max_name_bytes: usize,
}

/// Returns the free clusters and inodes of a file system that was opened for reading.
fn free_counts(core: &Core) -> Result<(u64, u32)> {
    let (mut free_clusters, mut free_inodes) = (0_u64, 0_u32);
    descriptor::for_each_group(core, |desc| {
        free_clusters = free_clusters.saturating_add(desc.free_clusters().into());
        free_inodes = free_inodes.saturating_add(desc.free_inodes());
    })?;
    Ok((free_clusters, free_inodes))
}

/// See [`Fs::statfs`](crate::Fs::statfs).
pub(crate) fn statfs(core: &Core) -> Result<StatFs> {
    let (superblock, (free_clusters, free_inodes), kept_clusters) = match &core.live {
        Some(live) => {
            let extent = live.groups.extent();
            let sums = live.groups.sums_in(extent);
            let free_inodes = u32::try_from(sums.free_inodes).unwrap_or(u32::MAX);
            let superblock = match core.faults.lacks(Sabotage::SizeBeforeSpace) {
                true => core.superblock(),
                false => &extent.superblock,
            };
            let free = (sums.free_clusters, free_inodes);
            (superblock, free, live.kept_clusters)
        }
        None => {
            let superblock = core.superblock();
            let kept = metadata_reserve::clusters(superblock, Privilege::User);
            (superblock, free_counts(core)?, kept)
        }
    };
    let geometry = superblock.geometry();
    let free_blocks = free_clusters << geometry.blocks_per_cluster_log();
    let kept_blocks = kept_clusters << geometry.blocks_per_cluster_log();
    let reserved = superblock.reserved_blocks().0.saturating_add(kept_blocks);
    Ok(StatFs {
        block_bytes: geometry.block_size().bytes(),
        blocks: geometry
            .blocks()
            .0
            .saturating_sub(overhead_blocks(core, superblock)?),
        free_blocks,
        available_blocks: free_blocks.saturating_sub(reserved),
        inodes: geometry.inodes(),
        free_inodes,
        max_name_bytes: fourscore_ondisk::dirent::MAX_NAME_BYTES,
    })
}

/// Returns the blocks that never hold data of users: metadata of the groups, and an internal
/// journal.
fn overhead_blocks(core: &Core, superblock: &Superblock) -> Result<u64> {
    let geometry = superblock.geometry();
    let stored = u64::from(superblock.overhead_clusters());
    if stored != 0 {
        return Ok(stored << geometry.blocks_per_cluster_log());
    }
    let mut blocks = geometry.overhead_blocks().0;
    if let Some(JournalPlace::Inode(journal)) = superblock.journal() {
        let journal = cache::inode_copy(core, journal)?;
        if journal.file_type() == FileType::Regular {
            blocks += journal.size_bytes() >> geometry.block_size().bits();
        }
    }
    Ok(blocks)
}
