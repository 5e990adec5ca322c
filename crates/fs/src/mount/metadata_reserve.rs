//! **Purpose.** Computes how many clusters are kept for nodes of extent trees.
//!
//! **Model.** Some calls promise to need no space and still need a node: punching a hole into an
//! extent, or writing to a part of a preallocated one, makes several extents of one. As in Linux,
//! 2% of the clusters, at most 4096, are kept for that, and nothing else uses them. The number is
//! computed at mount and stays when the file system grows. A mount that may use the blocks of the
//! super-user ([`MountOptions::use_reserve`]) keeps none: it has an image for itself.
//!
//! **References.** `ext4_calculate_resv_clusters` of Linux.
//!
//! [`MountOptions::use_reserve`]: crate::MountOptions::use_reserve

use fourscore_mballoc::Privilege;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::superblock::Superblock;

/// The most clusters that are kept.
const MOST_CLUSTERS: u64 = 4096;

/// Returns the number of clusters that a mount with `privilege` keeps for nodes of extent trees.
pub(crate) fn clusters(superblock: &Superblock, privilege: Privilege) -> u64 {
    let has_trees = superblock.features().incompat.contains(Incompat::EXTENTS);
    match privilege {
        Privilege::User if has_trees => {
            let geometry = superblock.geometry();
            let all = geometry.blocks().0 >> geometry.blocks_per_cluster_log();
            (all / 50).min(MOST_CLUSTERS)
        }
        _ => 0,
    }
}
