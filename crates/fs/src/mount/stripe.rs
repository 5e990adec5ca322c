//! **Purpose.** The stripe of the array below a file system, to which the allocator aligns requests
//! of whole stripes.
//!
//! **Model.** The mount option counts first, then the stripe over all data disks in the superblock,
//! then the stride of one disk. A value that is zero or longer than a group is passed over. With
//! clusters of several blocks, a stripe that is not made of whole clusters cannot be kept, so there
//! is none.
//!
//! **References.** `ext4_get_stripe_size` and its caller in `fs/ext4/super.c` of Linux.

use fourscore_ondisk::superblock::Superblock;

/// Returns the stripe of a mount in clusters, 0 for none. `option` is the mount option `stripe=`,
/// in blocks.
pub(crate) fn stripe_clusters(superblock: &Superblock, option: Option<u32>) -> u32 {
    let geometry = superblock.geometry();
    let cluster_bits = geometry.blocks_per_cluster_log();
    let candidates = [
        option.unwrap_or(0),
        superblock.raid_stripe_width_blocks(),
        superblock.raid_stride_blocks().into(),
    ];
    let group_clusters = geometry.clusters_per_group();
    stripe_of(candidates, group_clusters, cluster_bits).unwrap_or_else(|blocks| {
        let cluster_blocks = 1_u64 << cluster_bits;
        tracing::warn!(
            blocks,
            cluster_blocks,
            "not a stripe of whole clusters; there is none"
        );
        0
    })
}

/// Chooses among `candidates`, in blocks; `Err` if the choice is not made of whole clusters.
fn stripe_of(
    candidates: [u32; 3],
    group_clusters: u32,
    cluster_bits: u32,
) -> std::result::Result<u32, u32> {
    let group_blocks = u64::from(group_clusters) << cluster_bits;
    let fits = |&blocks: &u32| blocks > 0 && u64::from(blocks) <= group_blocks;
    let blocks = candidates.into_iter().find(fits).unwrap_or(0);
    // A stripe of one block asks for nothing.
    if blocks <= 1 {
        return Ok(0);
    }
    let clusters = blocks >> cluster_bits;
    match u64::from(clusters) << cluster_bits == u64::from(blocks) {
        true => Ok(clusters),
        false => Err(blocks),
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn the_first_stripe_that_fits_a_group_counts() {
        let stripe = |candidates| stripe_of(candidates, 32_768, 0);
        assert_eq!(stripe([48, 64, 16]), Ok(48));
        assert_eq!(stripe([0, 64, 16]), Ok(64));
        assert_eq!(stripe([0, 0, 16]), Ok(16));
        assert_eq!(stripe([32_769, 65_536, 16]), Ok(16));
        assert_eq!(stripe([0, 32_768, 16]), Ok(32_768));
        assert_eq!(stripe([0, 0, 0]), Ok(0));
        // Found, and turned off.
        assert_eq!(stripe([1, 64, 16]), Ok(0));
    }

    #[test]
    fn a_stripe_counts_in_clusters() {
        let stripe = |blocks| stripe_of([0, blocks, 0], 2048, 4);
        assert_eq!(stripe(64), Ok(4));
        assert_eq!(stripe(16), Ok(1));
        assert_eq!(stripe(2048 * 16), Ok(2048));
        assert_eq!(stripe(24), Err(24));
        assert_eq!(stripe(8), Err(8));
    }
}
