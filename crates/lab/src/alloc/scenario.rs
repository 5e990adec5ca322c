//! **Purpose.** The file systems that the allocator is measured on. They have the sizes, used space
//! and fragmentation of file systems for which figures of ext4 have been published.

use fourscore_mballoc::geometry::LayoutError;
use fourscore_mballoc::{Geometry, Layout};
use fourscore_ondisk::BlockSize;

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// How the free space is fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// Groups are 97 % full or empty, as on a fresh file system.
    Packed {
        /// Mean bytes of a free extent in a group that is in use.
        mean_bytes: u64,
    },
    /// All groups are equally full, as on an aged file system.
    Everywhere {
        /// Mean bytes of a free extent.
        mean_bytes: u64,
    },
}

/// A file system.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
    /// log2 of the block size minus 10.
    pub s_log_block_size: u32,
    /// Used space in per mille.
    pub used_per_mille: u32,
    /// How the free space is fragmented.
    pub fragments: Fragments,
    /// The seed of the bitmaps.
    pub seed: u64,
}

const fn packed(name: &'static str, bytes: u64, used_per_mille: u32) -> Scenario {
    let fragments = Fragments::Packed {
        mean_bytes: 1 << 20,
    };
    Scenario {
        name,
        bytes,
        s_log_block_size: 2,
        used_per_mille,
        fragments,
        seed: 1,
    }
}

const fn aged(name: &'static str, bytes: u64, s_log_block_size: u32) -> Scenario {
    let fragments = Fragments::Everywhere {
        mean_bytes: 4 << 20,
    };
    Scenario {
        name,
        bytes,
        s_log_block_size,
        used_per_mille: 750,
        fragments,
        seed: 1,
    }
}

/// 95 % used in all groups, with free extents of 256 KiB: a nearly full file system.
const fn full(name: &'static str, bytes: u64) -> Scenario {
    Scenario {
        name,
        bytes,
        s_log_block_size: 2,
        used_per_mille: 950,
        fragments: Fragments::Everywhere {
            mean_bytes: 256 << 10,
        },
        seed: 1,
    }
}

impl Scenario {
    /// All scenarios: fresh file systems (842 GB 31 % full, 802 GB 68 %, 15 TiB 6 %, 133 GB at 25,
    /// 50 and 75 %), nearly full ones of a hundred, a thousand and eight million groups, and aged
    /// ones (75 % full with free extents of 4 MiB, in blocks of 4 and 64 KiB).
    pub const ALL: &[Self] = &[
        packed("842g", 842 * GIB, 310),
        packed("802g", 802 * GIB, 680),
        packed("15t", 15 * TIB, 60),
        packed("133g-25", 133 * GIB, 250),
        packed("133g-50", 133 * GIB, 500),
        packed("133g-75", 133 * GIB, 750),
        full("16g-95", 16 * GIB),
        full("133g-95", 133 * GIB),
        full("1p-95", 1024 * TIB),
        aged("16g-aged-4k", 16 * GIB, 2),
        aged("16g-aged-64k", 16 * GIB, 6),
        aged("100g-aged-4k", 100 * GIB, 2),
        aged("100g-aged-64k", 100 * GIB, 6),
    ];

    /// The scenario with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|scenario| scenario.name == name)
    }

    /// Its geometry, with flex groups of 16 groups.
    ///
    /// # Errors
    /// [`LayoutError`], if the size or the block size is not valid.
    pub fn geometry(&self) -> Result<Geometry, LayoutError> {
        let block_size = BlockSize::from_log(self.s_log_block_size);
        let block_size = block_size.ok_or(LayoutError::ClustersPerGroup { found: 0, most: 0 })?;
        let log = block_size.bits();
        Geometry::new(Layout {
            s_blocks_count: self.bytes >> log,
            s_first_data_block: u32::from(self.s_log_block_size == 0),
            block_size,
            // As mke2fs: the maximum is below what a bitmap block of 64 KiB could hold.
            s_clusters_per_group: (8 << log).min(65_528),
            cluster_bits: 0,
            s_log_groups_per_flex: Some(4),
            stripe: 0,
        })
    }
}
