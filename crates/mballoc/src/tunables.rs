//! **Purpose.** Tunables, under ext4's names and with its defaults and bounds; and a few switches
//! of our own, each of which turns one improvement over ext4 off for comparison.
//!
//! **Model.** Each tunable is one word in a block of words that every request reads and that is
//! written only when a tunable is set. A request sees each change at once, but may see one of two
//! changes before the other.
//!
//! **References.** `Documentation/ABI/testing/sysfs-fs-ext4` for names and meaning.

use fourscore_sync::CachePadded;
use fourscore_sync::atomic::{AtomicU32, Ordering};

use crate::geometry::Geometry;

/// The error of setting a tunable: an unknown name, or a value out of bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunableError {
    /// No tunable has this name.
    #[error("there is no tunable {name}; there are: {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// All names.
        known: String,
    },
    /// The value is out of bounds.
    #[error("{name} takes values from {least} to {most}, not {found}")]
    OutOfBounds {
        /// The tunable.
        name: &'static str,
        /// The smallest value.
        least: u32,
        /// The largest value.
        most: u32,
        /// The value given.
        found: u32,
    },
}

macro_rules! tunables {
    ($($(#[$doc:meta])*
        $variant:ident = $name:literal, $least:expr, $most:expr, $default:expr;)*) => {
        /// A tunable of the allocator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Tunable {
            $($(#[$doc])* $variant,)*
        }

        impl Tunable {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name, as in sysfs where ext4 has it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The smallest and largest value on a file system.
            #[must_use]
            pub fn bounds(self, geometry: &Geometry) -> (u32, u32) {
                match self { $(Self::$variant => {
                    let least: fn(&Geometry) -> u32 = $least;
                    let most: fn(&Geometry) -> u32 = $most;
                    (least(geometry), most(geometry))
                })* }
            }

            /// The value to begin with on a file system, within the bounds.
            #[must_use]
            pub fn default_on(self, geometry: &Geometry) -> u32 {
                let (least, most) = self.bounds(geometry);
                let default: fn(&Geometry) -> u32 = match self { $(Self::$variant => $default,)* };
                default(geometry).clamp(least, most)
            }
        }
    };
}

tunables! {
    /// Extents that a complex scan examines before it takes the best so far.
    MbMaxToScan = "mb_max_to_scan", |_| 1, |_| u32::MAX, |_| 200;
    /// Extents that a complex scan examines for a better fit once one fits.
    MbMinToScan = "mb_min_to_scan", |_| 0, |_| u32::MAX, |_| 10;
    /// Requests for a power of two of at least `2^(this - 1)` clusters try the buddy first.
    MbOrder2Req = "mb_order2_req", |_| 1, |g| g.orders() + 1, |_| 2;
    /// Files up to this many clusters use their core's locality group; larger ones stream.
    MbStreamReq = "mb_stream_req", |_| 0, |_| u32::MAX, |_| 16;
    /// Clusters of a locality group's preallocation; 0 turns locality groups off.
    MbGroupPrealloc = "mb_group_prealloc", |_| 0, Geometry::clusters_per_group, group_prealloc;
    /// Groups that the indexed criteria visit in a row before they use the index.
    MbMaxLinearGroups = "mb_max_linear_groups", |_| 0, |_| u32::MAX, |_| 0;
    /// Orders by which the best-available criterion may trim a request.
    MbBestAvailMaxTrimOrder = "mb_best_avail_max_trim_order", |_| 0, |g| g.orders() - 1, |_| 3;
    /// Bitmaps that are read ahead in one batch; 0 turns reading ahead off.
    MbPrefetch = "mb_prefetch", |_| 0, Geometry::groups, |g| {
        if g.flex_groups() > 1 { g.flex_groups().saturating_mul(8) } else { 32 }
    };
    /// Bitmaps that one request reads ahead at the fast criteria.
    MbPrefetchLimit = "mb_prefetch_limit", |_| 0, |_| u32::MAX, |g| {
        Tunable::MbPrefetch.default_on(g).saturating_mul(4)
    };
    /// 0: walk over groups one by one, as ext4 before 5.13. 1: use the order sets. (ext4 uses them
    /// from 16 groups on only; here they cost no more with fewer.)
    MbOptimizeScan = "mb_optimize_scan", |_| 0, |_| 1, |_| 1;
    /// The stripe in clusters to which requests of whole stripes are aligned; 0 for none. A stripe
    /// longer than a group is none.
    Stripe = "stripe", |_| 0, Geometry::clusters_per_group, |g| {
        Some(g.layout().stripe).filter(|&stripe| stripe <= g.clusters_per_group()).unwrap_or(0)
    };
    /// 1: use the largest-extent and free-count indexes too. 0: the last criteria walk over groups,
    /// as ext4 does.
    MbIndexes = "mb_indexes", |_| 0, |_| 1, |_| 1;
    /// How a group's state is tested before its bitmap is read ahead. 0: by a plain load, and not
    /// at all once all groups are loaded. 1: for every group of the walk, by a locked
    /// read-modify-write, with the descriptor fetched first, as in ext4 before 2026. 2: as 1, with
    /// a plain load before the read-modify-write. 3: as 2, with the descriptor fetched last.
    MbPrefetchTest = "mb_prefetch_test", |_| 0, |_| 3, |_| 0;
    /// How stream goals are shared: 0 by the whole file system, as in ext4 before 6.17; 1 by inodes
    /// with the same number modulo the number of goals, as since; 2 by the threads of a core.
    MbStreamGoals = "mb_stream_goals", |_| 0, |_| 2, |_| 2;
    /// 1: measure how long group locks are held.
    MbHoldTimes = "mb_hold_times", |_| 0, |_| 1, |_| 0;
    /// 1: count requests and searches for `mb_stats`. 0: count only what costs nothing. (ext4's
    /// default is 0; here counting is cheap.)
    MbStats = "mb_stats", |_| 0, |_| 1, |_| 1;
    /// Of ext4's search, 0: without the best-available criterion, as before 6.5.
    MbBestAvail = "mb_best_avail", |_| 0, |_| 1, |_| 1;
    /// Of ext4's search, 0: a fast criterion measures extents shorter than the goal too, as before
    /// 6.5.
    MbSkipShort = "mb_skip_short", |_| 0, |_| 1, |_| 1;
    /// Of ext4's search, 1: the group's lock is held for the whole scan of its extents, as there.
    MbScanLocked = "mb_scan_locked", |_| 0, |_| 1, |_| 0;
    /// Of ext4's search, 1: it waits for busy groups, as before 6.17.
    MbWaitBusy = "mb_wait_busy", |_| 0, |_| 1, |_| 0;
}

/// ext4's 512 blocks, at least 32 clusters, rounded up to whole stripes.
fn group_prealloc(geometry: &Geometry) -> u32 {
    let clusters = (512 >> geometry.layout().cluster_bits.min(9)).max(32);
    match Tunable::Stripe.default_on(geometry) {
        0 | 1 => clusters,
        stripe => clusters
            .checked_next_multiple_of(stripe)
            .unwrap_or(clusters),
    }
}

/// The values of all tunables of a file system.
#[derive(Debug)]
pub struct Tunables {
    geometry: Geometry,
    values: CachePadded<[AtomicU32; Tunable::ALL.len()]>,
}

impl Tunables {
    /// The defaults for a file system.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let value = |i: usize| AtomicU32::new(Tunable::ALL[i].default_on(&geometry));
        Self {
            geometry,
            values: CachePadded::new(std::array::from_fn(value)),
        }
    }

    /// The current value.
    #[must_use]
    pub fn get(&self, tunable: Tunable) -> u32 {
        self.values[tunable as usize].load(Ordering::Relaxed)
    }

    /// Changes a value, for every request that begins after it.
    ///
    /// # Errors
    /// [`TunableError::OutOfBounds`].
    pub fn set(&self, tunable: Tunable, value: u32) -> Result<(), TunableError> {
        let (least, most) = tunable.bounds(&self.geometry);
        if value < least || value > most {
            return Err(TunableError::OutOfBounds {
                name: tunable.name(),
                least,
                most,
                found: value,
            });
        }
        self.values[tunable as usize].store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Changes a value by name.
    ///
    /// # Errors
    /// [`TunableError`].
    pub fn set_by_name(&self, name: &str, value: u32) -> Result<(), TunableError> {
        match Tunable::ALL.iter().find(|tunable| tunable.name() == name) {
            Some(&tunable) => self.set(tunable, value),
            None => {
                let known: Vec<_> = Tunable::ALL.iter().map(|tunable| tunable.name()).collect();
                Err(TunableError::Unknown {
                    name: name.to_owned(),
                    known: known.join(", "),
                })
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::geometry::Layout;
    use fourscore_ondisk::BlockSize;

    fn geometry(cluster_bits: u32, stripe: u32) -> Geometry {
        Geometry::new(Layout {
            s_blocks_count: 100 * 32_768,
            s_first_data_block: 0,
            block_size: BlockSize::from_log(2).unwrap(),
            s_clusters_per_group: 32_768,
            cluster_bits,
            s_log_groups_per_flex: Some(4),
            stripe,
        })
        .unwrap()
    }

    #[test]
    fn the_defaults_are_those_of_ext4() {
        let tunables = Tunables::new(geometry(0, 0));
        let expected = [
            (Tunable::MbMaxToScan, 200),
            (Tunable::MbMinToScan, 10),
            (Tunable::MbOrder2Req, 2),
            (Tunable::MbStreamReq, 16),
            (Tunable::MbGroupPrealloc, 512),
            (Tunable::MbBestAvailMaxTrimOrder, 3),
            (Tunable::MbPrefetch, 100),
            (Tunable::MbPrefetchLimit, 400),
            (Tunable::MbOptimizeScan, 1),
        ];
        for (tunable, value) in expected {
            assert_eq!(tunables.get(tunable), value, "{}", tunable.name());
        }
        assert_eq!(
            Tunables::new(geometry(4, 0)).get(Tunable::MbGroupPrealloc),
            32
        );
        assert_eq!(
            Tunables::new(geometry(0, 48)).get(Tunable::MbGroupPrealloc),
            528
        );
        assert_eq!(Tunables::new(geometry(0, 48)).get(Tunable::Stripe), 48);
        let longer_than_a_group = Tunables::new(geometry(0, 32_769));
        assert_eq!(longer_than_a_group.get(Tunable::Stripe), 0);
        assert_eq!(longer_than_a_group.get(Tunable::MbGroupPrealloc), 512);
    }

    #[test]
    fn tunables_share_no_cache_line_with_data_that_is_written() {
        let tunables = Tunables::new(geometry(0, 0));
        let first = std::ptr::from_ref(&tunables.values[0]).addr();
        let behind = std::ptr::from_ref(&tunables).addr() + size_of::<Tunables>();
        assert_eq!(first % 64, 0);
        assert!(behind >= (first + size_of_val(&*tunables.values)).next_multiple_of(64));
    }

    #[test]
    fn bad_values_and_names_are_refused() {
        let tunables = Tunables::new(geometry(0, 0));
        assert_eq!(
            tunables.set_by_name("mb_best_avail_max_trim_order", 14),
            Err(TunableError::OutOfBounds {
                name: "mb_best_avail_max_trim_order",
                least: 0,
                most: 13,
                found: 14
            })
        );
        assert!(matches!(
            tunables.set_by_name("mb_nothing", 1),
            Err(TunableError::Unknown { .. })
        ));
        tunables.set_by_name("mb_stream_req", 32).unwrap();
        assert_eq!(tunables.get(Tunable::MbStreamReq), 32);
    }
}
