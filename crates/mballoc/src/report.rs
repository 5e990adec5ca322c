//! **Purpose.** Reports in the format of ext4's `mb_groups` and `mb_structs_summary`.

use std::fmt::{self, Write as _};

use fourscore_ondisk::GroupNr;
use fourscore_sync::CoreNr;

use crate::allocator::Allocator;
use crate::buddy::{Buddy, MAX_ORDERS};
use crate::error::Error;
use crate::geometry::ClusterCount;
use crate::order_index::{Bins, Fitness, OrderIndex};
use crate::stats::Tally;
use crate::tunables::Tunable;

/// A line of `mb_groups`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// The group.
    pub group: GroupNr,
    /// Free clusters.
    pub free: u32,
    /// Free extents.
    pub fragments: u32,
    /// The first free cluster; if none is free, the number of clusters per group.
    pub first: u32,
    /// Clusters of the largest free extent.
    pub largest: u32,
    /// Free buddies of each order.
    pub counters: Vec<u32>,
}

impl GroupReport {
    /// The figures of a group, from its buddy and the buddy's fitness.
    #[must_use]
    pub fn of(
        group: GroupNr,
        buddy: &mut Buddy,
        fitness: &Fitness,
        clusters_per_group: ClusterCount,
    ) -> Self {
        Self {
            group,
            free: fitness.free,
            fragments: fitness.fragments,
            first: buddy.first_free().unwrap_or(clusters_per_group.0),
            largest: fitness.largest,
            counters: buddy.counters().collect(),
        }
    }
}

/// The first line of `mb_groups`.
pub const GROUPS_HEAD: &str = "#group: free  frags first [ 2^0   2^1   2^2   2^3   2^4   2^5   \
                               2^6   2^7   2^8   2^9   2^10  2^11  2^12  2^13  ]";

/// Formats the line as ext4 does, with all orders, at least 14.
impl fmt::Display for GroupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            free,
            fragments,
            first,
            counters,
            ..
        } = self;
        write!(f, "#{:<5}: {free:<5} {fragments:<5} {first:<5} [", group.0)?;
        let padded = counters
            .iter()
            .copied()
            .chain(std::iter::repeat(0))
            .take(counters.len().max(14));
        padded
            .into_iter()
            .try_for_each(|count| write!(f, " {count:<5}"))?;
        write!(f, " ]")
    }
}

/// `mb_structs_summary`: the groups in each set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructsSummary {
    /// `mb_optimize_scan`.
    pub optimize_scan: u32,
    /// `max_free_order_lists`: groups by the order of their largest free buddy.
    pub max_free_order_lists: Vec<u32>,
    /// `avg_fragment_size_lists`: groups by the order of their average free extent.
    pub avg_fragment_size_lists: Vec<u32>,
    /// Groups by their largest free extent, as (smallest length of the bin, groups), without empty
    /// bins.
    pub largest_extent_lists: Vec<(u32, u32)>,
    /// Groups whose bitmap is not in memory.
    pub absent_groups: u32,
}

impl StructsSummary {
    /// The groups in the sets of an index.
    #[must_use]
    pub fn of(index: &OrderIndex, optimize_scan: u32, absent_groups: u32) -> Self {
        let counts = |bins: &Bins| {
            (0..bins.bins())
                .map(|bin| bins.count(bin))
                .collect::<Vec<_>>()
        };
        let largest = counts(&index.by_largest);
        let starts = crate::order_index::largest_bin_starts();
        let listed = starts.zip(largest).filter(|&(_, groups)| groups > 0);
        Self {
            optimize_scan,
            max_free_order_lists: counts(&index.by_order),
            avg_fragment_size_lists: counts(&index.by_average),
            largest_extent_lists: listed.collect(),
            absent_groups,
        }
    }

    /// The part that ext4 has too, in its format.
    #[must_use]
    pub fn of_ext4(&self) -> String {
        let mut text = format!("optimize_scan: {}\n", self.optimize_scan);
        for (name, lists) in [
            ("max_free_order_lists", &self.max_free_order_lists),
            ("avg_fragment_size_lists", &self.avg_fragment_size_lists),
        ] {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{name}:");
            for (order, groups) in lists.iter().enumerate() {
                let _ = writeln!(text, "\tlist_order_{order}_groups: {groups}");
            }
        }
        text
    }
}

/// Formats the part that ext4 has, and ours after it.
impl fmt::Display for StructsSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.of_ext4())?;
        writeln!(f, "largest_extent_lists:")?;
        for (len, groups) in &self.largest_extent_lists {
            writeln!(f, "\tfrom_{len}_clusters_groups: {groups}")?;
        }
        writeln!(f, "absent_groups: {}", self.absent_groups)
    }
}

impl Allocator {
    /// The figures of one group; loads it if necessary.
    ///
    /// # Errors
    /// [`Error::Source`] and [`Error::Group`].
    pub fn group_report(&self, group: GroupNr) -> Result<GroupReport, Error> {
        let core = CoreNr::current();
        let mut tally = Tally::default();
        let mut locked = self.table().lock_loaded(group, &mut tally)?;
        let per_group = ClusterCount(self.geometry().clusters_per_group());
        let fitness = locked.fitness();
        let report = GroupReport::of(group, locked.buddy_mut(), &fitness, per_group);
        drop(locked);
        self.stats().add(core, &tally);
        Ok(report)
    }

    /// Calls `extent` with the length of each free extent of a group, in order.
    ///
    /// # Errors
    /// [`Error::Source`] and [`Error::Group`].
    pub fn free_extents(&self, group: GroupNr, mut extent: impl FnMut(u32)) -> Result<(), Error> {
        let core = CoreNr::current();
        let mut tally = Tally::default();
        let clusters = self.geometry().clusters_in(group);
        let bits = self
            .table()
            .lock_loaded(group, &mut tally)?
            .buddy()
            .bits()
            .to_vec();
        let mut at = 0;
        while at < clusters {
            let start = crate::words::next_clear(&bits, at, clusters);
            at = crate::words::next_set(&bits, start, clusters);
            if start < at {
                extent(at - start);
            }
        }
        self.stats().add(core, &tally);
        Ok(())
    }

    /// The groups in each set; exact while no thread allocates.
    #[must_use]
    pub fn structs_summary(&self) -> StructsSummary {
        let optimize_scan = self.tunables().get(Tunable::MbOptimizeScan);
        StructsSummary::of(
            &self.table().shared.index,
            optimize_scan,
            self.absent_groups(),
        )
    }

    /// Recomputes the buddy of every loaded group, its hints and its listing.
    ///
    /// # Errors
    /// The first contradiction, for developers.
    pub fn check(&self) -> Result<(), String> {
        self.table().check()
    }
}

const _: () = assert!(MAX_ORDERS >= 14, "mb_groups shows 14 orders");
