//! **Purpose.** Aged file systems of any number of groups, whose bitmaps are made from a seed when
//! they are read.

use fourscore_mballoc::{
    BitmapState, ClusterCount, Descriptor, Geometry, GroupSource, Layout, ReadError,
};
use fourscore_ondisk::{BlockSize, GroupNr};

/// Clusters of a group, of 1 KiB each.
pub(crate) const PER_GROUP: u32 = 4096;

/// A stream of random numbers (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        u32::try_from((drawn * u64::from(bound)) >> 32).unwrap()
    }
}

/// The number of different groups; later groups repeat them.
const PATTERNS: u32 = 251;

/// The groups: each pattern with its free clusters.
pub(crate) struct Aged {
    patterns: Vec<(Vec<u8>, u32)>,
}

impl Aged {
    /// Makes groups of which `used` percent are in use on average, and whose free extents have
    /// `mean_free` clusters on average.
    pub(crate) fn new(used: u32, mean_free: u32, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let patterns = (0..PATTERNS).map(|_| pattern(used, mean_free, &mut random));
        Self {
            patterns: patterns.collect(),
        }
    }

    fn of(&self, group: GroupNr) -> &(Vec<u8>, u32) {
        &self.patterns[(group.0 % PATTERNS) as usize]
    }
}

fn pattern(used: u32, mean_free: u32, random: &mut Random) -> (Vec<u8>, u32) {
    let mut bitmap = vec![0; PER_GROUP as usize / 8];
    let mean_used = mean_free * used / (100 - used);
    let (mut at, mut free) = (0, 0);
    while at < PER_GROUP {
        let end = (at + 1 + random.below(2 * mean_used)).min(PER_GROUP);
        for i in at..end {
            bitmap[i as usize / 8] |= 1 << (i % 8);
        }
        at = (end + 1 + random.below(2 * mean_free)).min(PER_GROUP);
        free += at - end;
    }
    (bitmap, free)
}

pub(crate) fn geometry(groups: u32) -> Geometry {
    Geometry::new(Layout {
        s_blocks_count: u64::from(groups) * u64::from(PER_GROUP) + 1,
        s_first_data_block: 1,
        block_size: BlockSize::from_log(0).unwrap(),
        s_clusters_per_group: PER_GROUP,
        cluster_bits: 0,
        s_log_groups_per_flex: Some(4),
        stripe: 0,
    })
    .unwrap()
}

impl GroupSource for Aged {
    fn descriptor(&self, group: GroupNr) -> Descriptor {
        Descriptor {
            free: ClusterCount(self.of(group).1),
            state: BitmapState::Written,
        }
    }

    fn read_bitmap(&self, group: GroupNr, bitmap: &mut [u8]) -> Result<(), ReadError> {
        bitmap.copy_from_slice(&self.of(group).0);
        Ok(())
    }

    fn prefetch(&self, _groups: &[GroupNr]) {}

    fn has_arrived(&self, _group: GroupNr) -> bool {
        true
    }
}
