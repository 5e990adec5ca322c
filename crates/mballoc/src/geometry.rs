//! **Purpose.** The division of a file system into groups and clusters, and conversions between
//! physical blocks and offsets in a group.
//!
//! **Model.** A cluster is `1 << cluster_bits` blocks (one block without bigalloc). Group `g`
//! starts at block `s_first_data_block + g * clusters_per_group * blocks_per_cluster`; only the
//! last group may be short. The allocator counts everything in clusters; only the functions of this
//! module turn clusters into blocks.

use std::fmt;

use fourscore_ondisk::{BlockSize, GroupNr, GroupOffset, PhysBlock};

/// A number of clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ClusterCount(pub u32);

impl fmt::Display for ClusterCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A cluster of a file: its logical block number divided by the blocks of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct LogicalCluster(pub u32);

impl fmt::Display for LogicalCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Contiguous clusters inside one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The group that holds all of them.
    pub group: GroupNr,
    /// The first of them, in clusters from the start of the group.
    pub start: GroupOffset,
    /// The number of clusters; a run that was allocated is never empty.
    pub len: ClusterCount,
}

impl Run {
    /// The first offset after the run, in clusters from the start of the group.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.start.0 + self.len.0
    }

    /// Splits the run into its first `len` clusters and the rest.
    ///
    /// # Panics
    /// If `len` is longer than the run.
    #[must_use]
    pub fn split_at(&self, len: ClusterCount) -> (Self, Self) {
        assert!(len <= self.len, "split a run of {} at {len}", self.len);
        let rest = Self {
            group: self.group,
            start: GroupOffset(self.start.0 + len.0),
            len: ClusterCount(self.len.0 - len.0),
        };
        (Self { len, ..*self }, rest)
    }
}

/// The superblock's fields for the division into groups.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Blocks of the file system.
    pub s_blocks_count: u64,
    /// The block at which group 0 starts.
    pub s_first_data_block: u32,
    /// The size of a block.
    pub block_size: BlockSize,
    /// Clusters of each group but the last; at most 8 for each byte of a block.
    pub s_clusters_per_group: u32,
    /// log2 of the blocks of a cluster.
    pub cluster_bits: u32,
    /// log2 of the groups of a flex group, if the file system has flex groups.
    pub s_log_groups_per_flex: Option<u32>,
    /// The stripe of the underlying array in clusters, or 0.
    pub stripe: u32,
}

/// The error of an impossible [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A group has no clusters, or more than its one-block bitmap has bits.
    #[error("s_clusters_per_group is {found}, not from 1 to {most}")]
    ClustersPerGroup {
        /// What the layout says.
        found: u32,
        /// The bits of a block.
        most: u32,
    },
    /// Clusters of more than 2^16 blocks.
    #[error("a cluster has 2^{found} blocks, more than 2^16")]
    ClusterBits {
        /// What the layout says.
        found: u32,
    },
    /// No block is left after `s_first_data_block`.
    #[error("s_blocks_count {blocks} does not reach past s_first_data_block {first}")]
    NoBlocks {
        /// What the layout says.
        blocks: u64,
        /// The first data block.
        first: u32,
    },
    /// More groups than a group number can name.
    #[error("{found} groups, more than a group number can name")]
    TooManyGroups {
        /// The groups it would take.
        found: u64,
    },
    /// A flex group of more than 2^31 groups.
    #[error("s_log_groups_per_flex is {found}, above 31")]
    FlexBits {
        /// What the layout says.
        found: u32,
    },
}

/// A checked [`Layout`], and the arithmetic on it.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    layout: Layout,
    groups: u32,
    /// Clusters of the last group.
    last_clusters: u32,
}

impl Geometry {
    /// Checks a layout.
    ///
    /// # Errors
    /// The first rule that the layout breaks.
    pub fn new(layout: Layout) -> Result<Self, LayoutError> {
        let most = 8 << layout.block_size.bits();
        let found = layout.s_clusters_per_group;
        if found == 0 || found > most {
            return Err(LayoutError::ClustersPerGroup { found, most });
        }
        if layout.cluster_bits > 16 {
            return Err(LayoutError::ClusterBits {
                found: layout.cluster_bits,
            });
        }
        if let Some(found) = layout.s_log_groups_per_flex.filter(|&bits| bits > 31) {
            return Err(LayoutError::FlexBits { found });
        }
        let first = layout.s_first_data_block;
        let blocks = layout.s_blocks_count.saturating_sub(u64::from(first));
        let clusters = blocks >> layout.cluster_bits;
        if clusters == 0 {
            return Err(LayoutError::NoBlocks {
                blocks: layout.s_blocks_count,
                first,
            });
        }
        let per_group = u64::from(found);
        let groups = clusters.div_ceil(per_group);
        let last = clusters - (groups - 1) * per_group;
        match (u32::try_from(groups), u32::try_from(last)) {
            (Ok(groups), Ok(last_clusters)) if groups < u32::MAX => Ok(Self {
                layout,
                groups,
                last_clusters,
            }),
            _ => Err(LayoutError::TooManyGroups { found: groups }),
        }
    }

    /// The layout it was made from.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How many groups there are; at least one.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// The clusters of a group, fewer in the last one; 0 past the last.
    #[must_use]
    pub fn clusters_in(&self, group: GroupNr) -> u32 {
        match (group.0 + 1).cmp(&self.groups) {
            std::cmp::Ordering::Less => self.layout.s_clusters_per_group,
            std::cmp::Ordering::Equal => self.last_clusters,
            std::cmp::Ordering::Greater => 0,
        }
    }

    /// Clusters of each group but the last.
    #[must_use]
    pub fn clusters_per_group(&self) -> u32 {
        self.layout.s_clusters_per_group
    }

    /// The bytes of a group's bitmap block that hold bits of clusters; a source fills only these.
    #[must_use]
    pub fn bitmap_bytes(&self) -> usize {
        self.layout.s_clusters_per_group.div_ceil(8) as usize
    }

    /// The number of buddy orders of a group: 0 to log2 of the block size plus 1, as in ext4.
    #[must_use]
    pub fn orders(&self) -> u32 {
        self.layout.block_size.bits() + 2
    }

    /// Groups of a flex group; 1 without flex groups.
    #[must_use]
    pub fn flex_groups(&self) -> u32 {
        self.layout
            .s_log_groups_per_flex
            .map_or(1, |bits| 1 << bits)
    }

    /// Bytes of a cluster.
    #[must_use]
    pub fn cluster_bytes(&self) -> u64 {
        1 << (self.layout.block_size.bits() + self.layout.cluster_bits)
    }

    /// The block at which a cluster of a group starts.
    #[must_use]
    pub fn block_of(&self, group: GroupNr, offset: GroupOffset) -> PhysBlock {
        let clusters =
            u64::from(group.0) * u64::from(self.layout.s_clusters_per_group) + u64::from(offset.0);
        PhysBlock(
            (clusters << self.layout.cluster_bits) + u64::from(self.layout.s_first_data_block),
        )
    }

    /// The first block of a run.
    #[must_use]
    pub fn first_block(&self, run: &Run) -> PhysBlock {
        self.block_of(run.group, run.start)
    }

    /// The group and offset of the cluster that holds a block; `None` outside of all groups.
    #[must_use]
    pub fn locate(&self, block: PhysBlock) -> Option<(GroupNr, GroupOffset)> {
        let from_first = block
            .0
            .checked_sub(u64::from(self.layout.s_first_data_block))?;
        let cluster = from_first >> self.layout.cluster_bits;
        let per_group = u64::from(self.layout.s_clusters_per_group);
        // Nearly always a power of two; this avoids a division, which takes as long as a lock.
        let (group, offset) = if per_group.is_power_of_two() {
            let bits = per_group.trailing_zeros();
            (cluster >> bits, cluster & (per_group - 1))
        } else {
            (cluster / per_group, cluster % per_group)
        };
        let group = GroupNr(u32::try_from(group).ok()?);
        let offset = GroupOffset(u32::try_from(offset).ok()?);
        (offset.0 < self.clusters_in(group)).then_some((group, offset))
    }

    /// Cuts `clusters` clusters from the one that holds `block` into one run for each group; `None`
    /// if some of them are outside of the file system or `clusters` is 0.
    #[must_use]
    pub fn runs(&self, block: PhysBlock, clusters: u64) -> Option<Vec<Run>> {
        let (mut group, mut start) = self.locate(block)?;
        let mut left = clusters;
        let mut runs = Vec::with_capacity(1);
        while left > 0 {
            let rest = self
                .clusters_in(group)
                .checked_sub(start.0)
                .filter(|&rest| rest > 0)?;
            let len = u32::try_from(left).map_or(rest, |left| left.min(rest));
            runs.push(Run {
                group,
                start,
                len: ClusterCount(len),
            });
            left -= u64::from(len);
            group = GroupNr(group.0 + 1);
            start = GroupOffset(0);
        }
        (!runs.is_empty()).then_some(runs)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout {
            s_blocks_count: 100_001,
            s_first_data_block: 1,
            block_size: BlockSize::from_log(0).unwrap(),
            s_clusters_per_group: 8192,
            cluster_bits: 0,
            s_log_groups_per_flex: Some(4),
            stripe: 0,
        }
    }

    #[test]
    fn the_last_group_is_short() {
        let geometry = Geometry::new(layout()).unwrap();
        assert_eq!(geometry.groups(), 13);
        assert_eq!(geometry.clusters_in(GroupNr(0)), 8192);
        assert_eq!(geometry.clusters_in(GroupNr(12)), 100_000 - 12 * 8192);
        assert_eq!(geometry.clusters_in(GroupNr(13)), 0);
    }

    #[test]
    fn blocks_and_offsets_convert_both_ways() {
        for cluster_bits in [0, 4] {
            let geometry = Geometry::new(Layout {
                cluster_bits,
                ..layout()
            })
            .unwrap();
            for block in [1, 2, 8192, 8193, 65_537, 100_000 & !15] {
                let (group, offset) = geometry.locate(PhysBlock(block)).unwrap();
                let start = geometry.block_of(group, offset).0;
                assert_eq!(start, ((block - 1) >> cluster_bits << cluster_bits) + 1);
            }
            assert_eq!(geometry.locate(PhysBlock(0)), None);
            assert_eq!(geometry.locate(PhysBlock(100_001)), None);
        }
    }

    #[test]
    fn a_long_range_becomes_one_run_for_each_group() {
        let geometry = Geometry::new(layout()).unwrap();
        let runs = geometry.runs(PhysBlock(8190), 8192 + 10).unwrap();
        let lens: Vec<_> = runs
            .iter()
            .map(|run| (run.group.0, run.start.0, run.len.0))
            .collect();
        assert_eq!(lens, [(0, 8189, 3), (1, 0, 8192), (2, 0, 7)]);
        assert_eq!(geometry.runs(PhysBlock(100_000), 2), None);
        assert_eq!(geometry.runs(PhysBlock(5), u64::MAX), None);
        assert_eq!(geometry.runs(PhysBlock(5), 0), None);
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let found = 8193;
        assert_eq!(
            Geometry::new(Layout {
                s_clusters_per_group: found,
                ..layout()
            })
            .unwrap_err(),
            LayoutError::ClustersPerGroup { found, most: 8192 }
        );
        assert_eq!(
            Geometry::new(Layout {
                s_blocks_count: 1,
                ..layout()
            })
            .unwrap_err(),
            LayoutError::NoBlocks {
                blocks: 1,
                first: 1
            }
        );
        assert_eq!(
            Geometry::new(Layout {
                s_blocks_count: u64::MAX,
                s_clusters_per_group: 1,
                ..layout()
            })
            .unwrap_err(),
            LayoutError::TooManyGroups {
                found: u64::MAX - 1
            }
        );
    }
}
