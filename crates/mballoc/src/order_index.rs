//! **Purpose.** The index of groups by free space: for each property of a group (the largest buddy
//! order, the average free extent, the largest free extent, the free count of a group whose bitmap
//! is not loaded) the groups in bins by that property, each bin a [`BitSet`].
//!
//! **Not here.** The free space itself (`group`), and the order in which the families of bins are
//! searched (`search`).
//!
//! **Model.** A loaded group with free clusters is in one bin of each of the first three families.
//! The bins of the largest extent are four to an octave (a factor of two). So a request for `len`
//! surely fits every group in the bins whose lower bound is `len` or more. These leave out only
//! groups whose largest extent is less than a quarter longer than `len`, which are all in the one
//! bin below.
//!
//! **Invariants.** A group is never listed below its true bin, so no fitting group is hidden. It
//! may be listed above it for some changes: a file that is written and truncated again and again
//! would otherwise move its group back and forth, and each move writes words that other cores read.
//! The number of such changes, the patience, is learned for each group. It begins small. When the
//! group comes back to a bin that it need not have left, the patience grows beyond the number of
//! changes that this took and beyond twice its old value, up to [`MAX_PATIENCE`]. When a search
//! finds the group in a wrong bin, it drops to zero. So where space is plentiful nothing is
//! written, and where it is short the bins are exact.
//!
//! **Locking.** A group's listing changes under its lock only. Searches take no lock.

use std::ops::Range;

use fourscore_ondisk::GroupNr;

use crate::bitset::BitSet;
use crate::num::floor_log2;

/// The largest patience: the most changes in a row that may leave a group listed too high.
pub const MAX_PATIENCE: u16 = 512;
/// The patience of a group at first.
const FIRST_PATIENCE: u16 = 8;

/// Bins of groups by one property.
#[derive(Debug)]
pub struct Bins {
    /// Which bins may have members.
    used: BitSet,
    sets: Box<[BitSet]>,
}

/// The order in which bins are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the lowest bin that can serve: does not split the largest extents.
    Upward,
    /// From the highest bin: finds the largest extents.
    Downward,
}

impl Bins {
    /// `bins` empty bins for groups below `groups`.
    #[must_use]
    pub fn new(bins: u32, groups: u32) -> Self {
        Self {
            used: BitSet::new(bins),
            sets: (0..bins).map(|_| BitSet::new(groups)).collect(),
        }
    }

    /// Puts a group into a bin.
    pub fn insert(&self, bin: u32, group: GroupNr) {
        self.sets[bin as usize].insert(group.0);
        self.used.insert(bin);
    }

    /// Takes a group out of a bin.
    pub fn remove(&self, bin: u32, group: GroupNr) {
        let set = &self.sets[bin as usize];
        if set.remove(group.0) {
            self.used.remove(bin);
            if set.maybe_any() {
                self.used.insert(bin);
            }
        }
    }

    /// Moves a group from one bin to another.
    fn relist(&self, group: GroupNr, from: Option<u32>, to: Option<u32>) {
        if from == to {
            return;
        }
        // Insert before remove, so that the group is always in some bin.
        if let Some(bin) = to {
            self.insert(bin, group);
        }
        if let Some(bin) = from {
            self.remove(bin, group);
        }
    }

    /// The number of bins.
    #[must_use]
    pub fn bins(&self) -> u32 {
        self.used.capacity()
    }

    /// The number of groups in a bin; exact while nothing changes.
    #[must_use]
    pub fn count(&self, bin: u32) -> u32 {
        self.sets[bin as usize].count()
    }

    /// Whether a group is in a bin.
    #[must_use]
    pub fn contains(&self, bin: u32, group: GroupNr) -> bool {
        self.sets[bin as usize].contains(group.0)
    }

    /// Iterates over the groups of `bins`: first those from `goal` to `limit`, bin after bin, then
    /// those before `goal`, bin after bin again.
    #[must_use]
    pub fn walk(
        &self,
        bins: Range<u32>,
        direction: Direction,
        goal: GroupNr,
        limit: u32,
    ) -> Walk<'_> {
        let bins = bins.start.min(self.bins())..bins.end.min(self.bins());
        let mut walk = Walk {
            family: self,
            left: bins.clone(),
            bins,
            direction,
            bin: None,
            next: goal.0,
            goal: goal.0,
            limit,
            wrapped: false,
        };
        walk.enter_bin();
        walk
    }
}

/// The iterator of [`Bins::walk`].
#[derive(Debug)]
pub struct Walk<'a> {
    family: &'a Bins,
    bins: Range<u32>,
    /// Bins not entered yet in this round.
    left: Range<u32>,
    direction: Direction,
    bin: Option<u32>,
    next: u32,
    goal: u32,
    limit: u32,
    wrapped: bool,
}

impl Walk<'_> {
    /// Skips the rest of the current bin, in this round.
    pub fn leave_bin(&mut self) {
        if self.bin.is_some() {
            self.enter_bin();
        }
    }

    /// Goes to the next bin that may have members.
    fn enter_bin(&mut self) {
        self.bin = match self.direction {
            Direction::Upward => {
                let bin = self.family.used.next_at_or_after(self.left.start);
                let bin = bin.filter(|&bin| bin < self.left.end);
                self.left.start = bin.map_or(self.left.end, |bin| bin + 1);
                bin
            }
            Direction::Downward => {
                let mut bins = self.left.clone().rev();
                let bin = bins.find(|&bin| self.family.used.contains(bin));
                self.left.end = bin.unwrap_or(self.left.start);
                bin
            }
        };
        self.next = if self.wrapped { 0 } else { self.goal };
    }
}

impl Iterator for Walk<'_> {
    type Item = GroupNr;

    fn next(&mut self) -> Option<GroupNr> {
        loop {
            let end = if self.wrapped {
                self.goal.min(self.limit)
            } else {
                self.limit
            };
            let Some(bin) = self.bin else {
                if self.wrapped || self.goal == 0 {
                    return None;
                }
                self.wrapped = true;
                self.left = self.bins.clone();
                self.enter_bin();
                continue;
            };
            match self.family.sets[bin as usize].next_at_or_after(self.next) {
                Some(group) if group < end => {
                    self.next = group + 1;
                    return Some(GroupNr(group));
                }
                _ => self.enter_bin(),
            }
        }
    }
}

/// The free space of a loaded group, as far as the index uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fitness {
    /// Free clusters.
    pub free: u32,
    /// Free extents.
    pub fragments: u32,
    /// Clusters of the largest free extent.
    pub largest: u32,
    /// The largest order that has a free buddy; meaningless when nothing is free.
    pub order: u32,
}

/// How the free space of a group has changed since it was listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drift {
    /// It is the same.
    Nothing,
    /// Clusters were claimed: no chunk and no extent is larger. (The average extent may be:
    /// claiming a short one raises it.)
    Claimed,
    /// Clusters may have been freed.
    Gained,
}

/// The bins in which a group is listed, and how many changes may have left it below them. Kept with
/// the group, under its lock.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    bins: [Option<u32>; 3],
    /// Whether they were the true ones when the group was listed.
    is_exact: bool,
    /// Changes in a row that may have left the group below its bins.
    below: u16,
    /// The limit of `below`.
    patience: u16,
    /// Changes since the group last came back to a bin.
    changes: u16,
}

impl Default for Listing {
    fn default() -> Self {
        Self {
            bins: [None; 3],
            is_exact: false,
            below: 0,
            patience: FIRST_PATIENCE,
            changes: 0,
        }
    }
}

impl Listing {
    /// Whether the listing may stay as it is for one more change, and counts that change.
    fn may_lag(&mut self) -> bool {
        let may = self.below < self.patience;
        self.below += u16::from(may);
        self.changes = self.changes.saturating_add(u16::from(may));
        may
    }
}

/// When a group that is listed too high moves down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Once its patience is used up.
    Lagging,
    /// Now.
    AtOnce,
    /// Now, and the patience becomes zero: a search found the group in a wrong bin.
    Stale,
}

/// All families.
#[derive(Debug)]
pub struct OrderIndex {
    /// By the largest buddy order (`max_free_order_lists` of `mb_structs_summary`).
    pub by_order: Bins,
    /// By the order of the average free extent (`avg_fragment_size_lists`).
    pub by_average: Bins,
    /// By the largest free extent, four bins to an octave.
    pub by_largest: Bins,
    /// Groups that are loaded without I/O (BLOCK_UNINIT), by log2 of the descriptor's free count.
    pub uninit: Bins,
    /// Groups whose bitmap has to be read first, by log2 of the descriptor's free count.
    pub unread: Bins,
    orders: u32,
}

/// Octaves of the largest free extent: 1 to 2^19 clusters.
const OCTAVES: u32 = 20;

/// The bin of a largest free extent of `len` clusters.
#[must_use]
pub fn largest_bin(len: u32) -> u32 {
    let octave = floor_log2(len).min(OCTAVES - 1);
    let quarter = if octave >= 2 {
        (len >> (octave - 2)) & 3
    } else {
        (len << (2 - octave)) & 3
    };
    octave * 4 + quarter
}

/// The lowest bin in which every group has a free extent of `len` clusters.
#[must_use]
pub fn sure_bin(len: u32) -> u32 {
    let bin = largest_bin(len);
    let octave = bin / 4;
    let bound = u64::from(4 + bin % 4) << octave >> 2;
    bin + u32::from(bound < u64::from(len))
}

/// The smallest length of each bin of largest free extents.
pub fn largest_bin_starts() -> impl Iterator<Item = u32> {
    (0..OCTAVES * 4).map(|bin| (4 + bin % 4) << (bin / 4) >> 2)
}

impl OrderIndex {
    /// Empty bins for `groups` groups of `orders` buddy orders.
    #[must_use]
    pub fn new(groups: u32, orders: u32) -> Self {
        Self {
            by_order: Bins::new(orders, groups),
            by_average: Bins::new(orders, groups),
            by_largest: Bins::new(OCTAVES * 4, groups),
            uninit: Bins::new(OCTAVES, groups),
            unread: Bins::new(OCTAVES, groups),
            orders,
        }
    }

    /// The bin of an average free extent of `len` clusters, by ext4's rule: half of `len` and less
    /// is one order less.
    #[must_use]
    pub fn average_bin(&self, len: u32) -> u32 {
        floor_log2(len).saturating_sub(1).min(self.orders - 1)
    }

    /// The true bins of a group; a group without free clusters has none.
    fn targets(&self, fitness: &Fitness) -> [Option<u32>; 3] {
        if fitness.free == 0 {
            return [None; 3];
        }
        let average = fitness.free / fitness.fragments.max(1);
        [
            Some(fitness.order),
            Some(self.average_bin(average)),
            Some(largest_bin(fitness.largest)),
        ]
    }

    /// Whether a group may stay listed as it is after a change, and counts that change. `free` and
    /// `fragments` are its counts now; `drift` compares its free space with that at the last
    /// [`OrderIndex::update`]. Costs a few comparisons.
    #[inline]
    pub fn may_stay(&self, listing: &mut Listing, drift: Drift, free: u32, fragments: u32) -> bool {
        if drift == Drift::Nothing && listing.is_exact {
            listing.below = 0;
            listing.changes = listing.changes.saturating_add(1);
            return true;
        }
        drift < Drift::Gained && self.covers_average(listing, free, fragments) && listing.may_lag()
    }

    /// Whether a group is listed in the bin of its average extent, or in a higher one.
    fn covers_average(&self, listing: &Listing, free: u32, fragments: u32) -> bool {
        // The last bin takes all; the others end where the next begins.
        listing.bins[1].is_some_and(|bin| {
            bin + 1 >= self.orders || u64::from(free) < u64::from(fragments) << (bin + 2)
        })
    }

    fn families(&self) -> [&Bins; 3] {
        [&self.by_order, &self.by_average, &self.by_largest]
    }

    /// Lists a group by its free space now. `listing` must be that of the last call for the group.
    pub fn update(&self, group: GroupNr, listing: &mut Listing, fitness: &Fitness, settle: Settle) {
        let targets = self.targets(fitness);
        listing.is_exact = listing.bins == targets;
        if listing.is_exact {
            listing.below = 0;
            listing.changes = listing.changes.saturating_add(1);
            return;
        }
        let moves = || listing.bins.iter().zip(&targets);
        // A group without free clusters is below every bin.
        let is_too_high = moves().any(|(bin, to)| bin > to);
        let comes_back = moves().any(|(bin, to)| bin.is_some() && bin < to);
        if comes_back {
            let took = std::mem::take(&mut listing.changes);
            let longer = took
                .max(2 * listing.patience)
                .saturating_add(FIRST_PATIENCE);
            listing.patience = longer.min(MAX_PATIENCE);
        }
        let stays = is_too_high && settle == Settle::Lagging && listing.may_lag();
        listing.changes = listing.changes.saturating_add(u16::from(!stays));
        let bins = self.families().into_iter().zip(&mut listing.bins);
        for ((family, bin), target) in bins.zip(targets) {
            if *bin < target || !stays {
                family.relist(group, *bin, target);
                *bin = target;
            }
        }
        if !stays {
            listing.is_exact = true;
            listing.below = 0;
        }
        if is_too_high && settle == Settle::Stale {
            listing.patience = 0;
        }
    }

    /// Removes a group from all families of loaded groups.
    pub fn forget(&self, group: GroupNr, listing: &mut Listing) {
        for (family, bin) in self.families().into_iter().zip(&mut listing.bins) {
            family.relist(group, bin.take(), None);
        }
    }

    /// Whether a group is listed in its true bins or above.
    #[must_use]
    pub fn is_listed(&self, listing: &Listing, fitness: &Fitness) -> bool {
        let targets = self.targets(fitness);
        listing.bins.iter().zip(&targets).all(|(bin, to)| bin >= to)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_sure_bin_holds_only_fits(len in 1_u32..=1 << 19, largest in 1_u32..=1 << 19) {
            if largest_bin(largest) >= sure_bin(len) {
                prop_assert!(largest >= len);
            } else if largest >= len {
                // The sure bins leave out extents that are less than a quarter longer.
                prop_assert!(u64::from(largest) * 4 < u64::from(len) * 5 || len < 4);
                prop_assert_eq!(largest_bin(largest), largest_bin(len));
            }
            prop_assert!(largest_bin(largest) < OCTAVES * 4);
        }
    }

    fn fitness(largest: u32) -> Fitness {
        Fitness {
            free: largest,
            fragments: 1,
            largest,
            order: floor_log2(largest),
        }
    }

    #[test]
    fn a_walk_begins_at_the_goal_and_wraps() {
        let bins = Bins::new(4, 1000);
        for (bin, group) in [(1, 10), (1, 700), (2, 500), (3, 20), (0, 600)] {
            bins.insert(bin, GroupNr(group));
        }
        let walk = |range, direction, goal, limit| -> Vec<u32> {
            bins.walk(range, direction, GroupNr(goal), limit)
                .map(|group| group.0)
                .collect()
        };
        assert_eq!(walk(1..4, Direction::Upward, 400, 1000), [700, 500, 10, 20]);
        assert_eq!(
            walk(1..4, Direction::Downward, 400, 1000),
            [500, 700, 20, 10]
        );
        assert_eq!(walk(0..2, Direction::Upward, 0, 650), [600, 10]);
        assert_eq!(walk(1..4, Direction::Upward, 999, 15), [10]);
        assert_eq!(walk(3..9, Direction::Upward, 5, 1000), [20]);
        assert!(walk(4..9, Direction::Upward, 5, 1000).is_empty());
        let mut leaves = bins.walk(1..4, Direction::Upward, GroupNr(0), 1000);
        let mut first_of_each = Vec::new();
        while let Some(group) = leaves.next() {
            first_of_each.push(group.0);
            leaves.leave_bin();
        }
        assert_eq!(first_of_each, [10, 500, 20]);
    }

    #[test]
    fn a_group_may_stay_listed_while_its_free_space_has_not_grown() {
        let index = OrderIndex::new(100, 14);
        let (group, mut listing) = (GroupNr(7), Listing::default());
        index.update(group, &mut listing, &fitness(2048), Settle::AtOnce);
        let mut stays =
            |drift, free, fragments| index.may_stay(&mut listing, drift, free, fragments);
        // Claimed and freed again, any number of times.
        for _ in 0..100 {
            assert!(stays(Drift::Claimed, 2046, 1));
            assert!(stays(Drift::Nothing, 2048, 1));
        }
        assert!(!stays(Drift::Gained, 2048, 1));
        // An average of 2048 to 4095 is one bin.
        assert!(stays(Drift::Claimed, 4095, 1));
        assert!(!stays(Drift::Claimed, 4096, 1));
        assert!(stays(Drift::Claimed, 8190, 2));
        assert!(!stays(Drift::Claimed, 0, 0));
        // Only for as long as the first patience lasts.
        let more = (0..100)
            .take_while(|_| stays(Drift::Claimed, 10, 1))
            .count();
        assert_eq!(more, usize::from(FIRST_PATIENCE) - 2);
        assert!(
            stays(Drift::Nothing, 2048, 1),
            "it is listed in its true bins"
        );
        // Listed too high when it was listed: every change counts.
        index.update(group, &mut listing, &fitness(100), Settle::Lagging);
        let stayed = (1..100).take_while(|_| index.may_stay(&mut listing, Drift::Nothing, 100, 1));
        assert_eq!(stayed.count(), usize::from(FIRST_PATIENCE) - 1);
    }

    #[test]
    fn groups_rise_at_once_and_sink_later_and_later() {
        let index = OrderIndex::new(100, 14);
        let (group, mut listing) = (GroupNr(7), Listing::default());
        let listed = |len| index.by_largest.contains(largest_bin(len), group);
        let mut changes_until_listed = |settle| {
            index.update(group, &mut listing, &fitness(2048), Settle::Lagging);
            assert!(listed(2048), "up at once");
            let mut changes = 0;
            while !listed(100) {
                index.update(group, &mut listing, &fitness(100), settle);
                changes += 1;
            }
            assert!(!listed(2048));
            changes
        };
        // Each time it comes back up, its patience is longer.
        let waits: Vec<_> = (0..7)
            .map(|_| changes_until_listed(Settle::Lagging))
            .collect();
        assert_eq!(waits, [9, 25, 57, 121, 249, 505, 513]);
        assert_eq!(changes_until_listed(Settle::AtOnce), 1);
        assert_eq!(changes_until_listed(Settle::Lagging), 513);
        assert_eq!(changes_until_listed(Settle::Stale), 1);
        assert_eq!(changes_until_listed(Settle::Lagging), 11);
        let full = Fitness {
            free: 0,
            fragments: 0,
            largest: 0,
            order: 0,
        };
        index.update(group, &mut listing, &full, Settle::AtOnce);
        // Filled for 100 changes and emptied, again and again: one round is enough to learn that.
        let (regular, mut listing) = (GroupNr(8), Listing::default());
        let mut sinks_in_a_round = || {
            index.update(regular, &mut listing, &fitness(2048), Settle::Lagging);
            (0..100).for_each(|_| {
                index.update(regular, &mut listing, &fitness(100), Settle::Lagging);
            });
            !index.by_largest.contains(largest_bin(2048), regular)
        };
        let sank: Vec<_> = (0..4).map(|_| sinks_in_a_round()).collect();
        assert_eq!(sank, [true, false, false, false]);
        index.forget(regular, &mut listing);
        assert!(!index.by_largest.used.maybe_any() && !index.by_order.used.maybe_any());
    }
}
