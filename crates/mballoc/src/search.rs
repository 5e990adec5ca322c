//! **Purpose.** The search for free clusters: finds a group by criteria over the indexes, and
//! claims a run in it.
//!
//! **Not here.** Preallocations and tokens ([`crate::Allocator`]); ext4's own search, which
//! tunables select for comparison ([`crate::ext4_scan`]).
//!
//! **Model.** First the goal, then the stream goal, then the goal's group, then the criteria in
//! turn. Each criterion is a lookup in one family of bins, which yields groups in the order in
//! which they are to be tried. A group that fits is locked and tested again, and the run is claimed
//! under the same lock.
//!
//! | criterion | groups looked up | takes |
//! |---|---|---|
//! | Power2Aligned | a free buddy of that order or above | the first such buddy |
//! | GoalLenFast | a largest extent in the bins that surely fit; then groups that need no I/O | the first fit |
//! | GoalLenSlow | the one bin whose groups may fit; then a group whose bitmap must be read | the first fit |
//! | BestAvailLen | the highest bin below, down to the trim limit (data only) | the longest |
//! | AnyFree | the highest bin of all; a bitmap is read before short runs are taken | the longest |
//!
//! GoalLenSlow comes before BestAvailLen, the reverse of ext4's order: in ext4 it walks over all
//! groups, so trimming is cheaper; here it is one lookup, so no request is trimmed while any group
//! has the whole length.
//!
//! **Invariants.** A search that returns nothing has locked and tested every group
//! ([`Search::exact_pass`]). That is the only walk over all groups, and it is counted. Every step
//! passes over a group that cannot be loaded. If nothing is found without it, and the device was
//! the reason, the search fails with that error.
//!
//! **Locking.** Group locks, one at a time. A busy group is skipped, except at the goal, where
//! waiting a microsecond is better than splitting a file, in AnyFree and in the exact pass.

use std::ops::Range;

use fourscore_ondisk::GroupNr;
use fourscore_sync::CoreNr;

use crate::criteria::Criterion;
use crate::error::Error;
use crate::geometry::Run;
use crate::group::LockedGroup;
use crate::num::floor_log2;
use crate::order_index::{Bins, Direction, Fitness, Settle, largest_bin, sure_bin};
use crate::placement::FLEX_WITH_METADATA_GROUP;
use crate::prefetch::{self, Started};
use crate::stats::{Count, CriterionCount, Hit, Quick, Tally};
use crate::stream::{Slot, StreamGoals};
use crate::table::{GroupState, GroupTable, Patience};
use crate::tunables::Tunable;
use crate::words;

/// The parameters of a search; all lengths in clusters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    /// The goal length.
    pub(crate) len: u32,
    /// The length of the caller's request; `len` may be trimmed to it without loss.
    pub(crate) asked: u32,
    /// Whether `len` is exactly the length of the request.
    pub(crate) is_request: bool,
    /// The shortest length that the caller can use.
    pub(crate) min_len: u32,
    /// Runs start at a multiple of this, counted from the file system's first cluster.
    pub(crate) align: u32,
    /// If more than 1, starts at multiples of this are preferred, for whole stripes of an array.
    pub(crate) stripe: u32,
    /// The first group that must not be used.
    pub(crate) limit: u32,
    /// Whether the clusters are for file data.
    pub(crate) is_data: bool,
    /// The goal: group, and offset in it.
    pub(crate) goal: (GroupNr, u32),
    /// Whether to try the goal itself: it would continue an extent.
    pub(crate) try_goal: bool,
    /// Whether to try nothing but the goal.
    pub(crate) goal_only: bool,
    /// Whether the stream goal is shared, and used as in ext4.
    pub(crate) shares_goal: bool,
    /// The stream goal to use.
    pub(crate) stream: Option<Slot>,
}

/// A search in progress.
pub(crate) struct Search<'a> {
    pub(crate) table: &'a GroupTable,
    pub(crate) streams: &'a StreamGoals,
    pub(crate) started: &'a Started,
    pub(crate) core: CoreNr,
    pub(crate) want: Want,
    pub(crate) tally: &'a mut Tally,
    /// Groups tried by the criteria.
    pub(crate) looks: u64,
    /// Those of them that did not fit.
    pub(crate) misses: u32,
    /// How the request was answered, if not by a criterion.
    pub(crate) hit: Option<Hit>,
    /// The first error of the device: the result if no group serves.
    pub(crate) failed: Option<Error>,
}

/// The free space that a group must have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// A free buddy of this order.
    Order(u32),
    /// A free extent of this length, aligned as wanted.
    Extent(u32),
    /// Any free extent of at least the first length; the longest is taken, up to the second.
    Longest(u32, u32),
}

impl Need {
    /// Whether a group with this free space can serve; alignment is tested under the lock.
    fn met_by(self, fitness: &Fitness) -> bool {
        fitness.free > 0
            && match self {
                Self::Order(order) => fitness.order >= order,
                Self::Extent(len) | Self::Longest(len, _) => fitness.largest >= len,
            }
    }
}

/// The result of trying a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Claimed(Run),
    /// It does not have the free space needed.
    Unfit,
    /// Another thread holds its lock.
    Busy,
}

/// After this many groups that turn out not to fit, because they are listed too high, the search
/// goes on to the next criterion. GoalLenSlow, whose bin holds groups above and below the length,
/// gives up after one.
const MAX_UNFIT: u32 = 2;
/// After this many busy groups the search goes on to the next criterion.
const MAX_BUSY: u32 = 8;
/// Groups in use by other streams that one criterion skips before it takes the first of them after
/// all. Each stream is in one group, so up to this many cores all such groups are skipped.
const MAX_OTHER_STREAMS: u32 = 256;
/// Power2Aligned skips groups that are reserved for metadata. At this many, and at each further
/// one, it leaves the bin: where little else is free, a bin may hold only these, one for each flex
/// group.
const MAX_METADATA_GROUPS: u32 = 8;
/// Requests from this length on start not at their stream goal but at the beginning of the free run
/// that ends there.
const MIN_LEN_TO_GO_BACK: u32 = 128;
/// Bitmaps that one criterion reads and waits for before the search goes on to the next.
const MAX_READS: u32 = 1;

impl<'a> Search<'a> {
    /// Finds and claims a run; `None` if an exact pass found none in any group.
    pub(crate) fn run(&mut self) -> Result<Option<Run>, Error> {
        if self.want.try_goal
            && let Some(run) = self.at_goal()
        {
            if self.want.shares_goal {
                self.move_stream(&run);
            }
            return Ok(Some(run));
        }
        if self.want.goal_only {
            return Ok(None);
        }
        if let Some(slot) = self.want.stream
            && let Some(run) = self.at_stream_goal(slot)
        {
            return Ok(Some(run));
        }
        let mut found = if self.uses_indexes() {
            self.read_ahead();
            self.indexed()
        } else {
            self.ext4_criteria(self.tunable(Tunable::MbOptimizeScan) != 0)
        };
        if found.is_none() {
            found = self.exact_pass();
        }
        self.table.shared.stats.note_looks(self.core, self.looks);
        if let Some(run) = &found {
            self.move_stream(run);
        }
        self.tally[Count::LenGoalHits] +=
            u64::from(found.is_some_and(|run| run.len.0 >= self.want.len));
        match (found, self.failed.take()) {
            (None, Some(error)) => Err(error),
            (found, _) => Ok(found),
        }
    }

    /// Loads a group if no other thread is loading it. A group that cannot be loaded is skipped.
    fn load(&mut self, group: GroupNr) {
        if let Err(error) = self.table.load(group, Patience::Skip, self.tally) {
            self.skip(error);
        }
    }

    /// Goes on without a group that could not be loaded. The source knows of damage by now, so only
    /// an error of the device is kept, in case that no other group serves.
    pub(crate) fn skip(&mut self, error: Error) {
        if matches!(error, Error::Source { .. }) {
            self.failed.get_or_insert(error);
        }
    }

    /// Whether the search is ours and not ext4's.
    fn uses_indexes(&self) -> bool {
        self.tunable(Tunable::MbOptimizeScan) != 0 && self.tunable(Tunable::MbIndexes) != 0
    }

    /// Moves the stream goal, if there is one, to the end of a run.
    fn move_stream(&self, run: &Run) {
        if let Some(slot) = self.want.stream {
            self.streams.set(slot, run.group, run.end());
            self.table.set_stream(run.group, slot);
        }
    }

    pub(crate) fn tunable(&self, tunable: Tunable) -> u32 {
        self.table.shared.tunables.get(tunable)
    }

    /// Reads bitmaps of the goal's flex group ahead, until all groups are loaded. With
    /// `mb_prefetch_test`, as in ext4, it never stops.
    fn read_ahead(&mut self) {
        let is_over = self.table.absent() == 0;
        if is_over && self.tunable(Tunable::MbPrefetchTest) == 0 {
            return;
        }
        prefetch::read_ahead(
            self.table,
            self.started,
            self.want.goal.0,
            self.core,
            self.tally,
        );
    }

    /// Claims the run at the goal if it has the full length; for a goal-only request a shorter one.
    fn at_goal(&mut self) -> Option<Run> {
        let (group, offset) = self.want.goal;
        if group.0 >= self.want.limit || !self.is_aligned(group, offset) {
            return None;
        }
        match self.table.state(group) {
            GroupState::Unusable => return None,
            GroupState::Loaded if self.table.hints(group).free == 0 => return None,
            _ => {}
        }
        let mut locked = match self.table.lock_loaded(group, self.tally) {
            Ok(locked) => locked,
            Err(error) => {
                self.skip(error);
                return None;
            }
        };
        let enough = if self.want.goal_only {
            self.want.min_len
        } else {
            self.want.len
        };
        let got = locked.buddy().free_run_at(offset, self.want.len);
        (got >= enough).then(|| self.claim_hit(&mut locked, Quick::Goal, offset, got))
    }

    /// Claims a run found without the criteria. If the request is complete with it and nothing else
    /// was counted, the group counts the request.
    fn claim_hit(
        &mut self,
        locked: &mut LockedGroup<'_>,
        quick: Quick,
        start: u32,
        len: u32,
    ) -> Run {
        let is_counted = self.want.is_request && len == self.want.len && self.tally.is_empty();
        if is_counted {
            locked.count(quick);
        }
        self.hit = Some(Hit { quick, is_counted });
        locked.claim(start, len)
    }

    /// Claims a run after the last one of this stream, in the same group.
    fn at_stream_goal(&mut self, slot: Slot) -> Option<Run> {
        let (group, offset) = self.streams.get(slot);
        self.want.goal = (group, offset.0);
        if self.want.shares_goal && !self.uses_indexes() {
            // In ext4 the criteria begin in its group, and it is not tried before them.
            return None;
        }
        let (len, limit) = (
            self.want.len,
            self.want.limit.min(self.table.geometry().groups()),
        );
        if group.0 >= limit || !Need::Extent(len).met_by(&self.table.hints(group)) {
            return None;
        }
        let Some(mut locked) = self.table.lock(group, Patience::Skip) else {
            self.tally[Count::BusyGroups] += 1;
            return None;
        };
        if len >= MIN_LEN_TO_GO_BACK {
            // A free run right before the goal was most likely this stream's own, and its bitmap
            // words are still in the cache.
            let back = words::clear_before(locked.buddy().bits(), offset.0);
            self.want.goal = (group, back);
        }
        let (start, len) = self.find_in(&mut locked, Need::Extent(len))?;
        let run = self.claim_hit(&mut locked, Quick::Stream, start, len);
        drop(locked);
        self.streams.set(slot, group, run.end());
        Some(run)
    }

    /// Tries the goal's group, whatever the indexes prefer, so that files of one directory stay
    /// together.
    fn in_goal_group(&mut self) -> Option<Run> {
        let group = self.want.goal.0;
        let (criterion, need) = match self.power_of_two() {
            Some(order) => (Criterion::Power2Aligned, Need::Order(order)),
            None => (Criterion::GoalLenFast, Need::Extent(self.want.len)),
        };
        if group.0 >= self.limit() || self.want.len < self.want.min_len {
            return None;
        }
        match self.table.state(group) {
            GroupState::Loaded if need.met_by(&self.table.hints(group)) => {}
            GroupState::Absent if self.table.source.descriptor(group).free.0 >= self.want.len => {
                self.load(group);
                if self.table.state(group) != GroupState::Loaded {
                    return None;
                }
            }
            _ => return None,
        }
        let Tried::Claimed(run) = self.try_group(criterion, group, need) else {
            return None;
        };
        self.tally[(criterion, CriterionCount::Hits)] += 1;
        Some(run)
    }

    /// Tries the criteria in turn over the indexes.
    fn indexed(&mut self) -> Option<Run> {
        if let Some(run) = self.in_goal_group() {
            return Some(run);
        }
        if let Some(order) = self.power_of_two()
            && let Some(run) =
                self.try_criterion(Criterion::Power2Aligned, Self::power2_aligned, order)
        {
            self.tally[Count::TwoOrderHits] += 1;
            return Some(run);
        }
        let len = self.want.len;
        let criteria: [(Criterion, Lookup<'a>, bool); 4] = [
            (
                Criterion::GoalLenFast,
                Self::goal_len_fast,
                len >= self.want.min_len,
            ),
            (
                Criterion::GoalLenSlow,
                Self::goal_len_slow,
                len >= self.want.min_len,
            ),
            (
                Criterion::BestAvailLen,
                Self::best_avail_len,
                self.want.is_data,
            ),
            (Criterion::AnyFree, Self::any_free, true),
        ];
        for (criterion, lookup, applies) in criteria {
            if applies && let Some(run) = self.try_criterion(criterion, lookup, len) {
                return Some(run);
            }
        }
        None
    }

    /// Tries one criterion, and counts the result.
    fn try_criterion(&mut self, criterion: Criterion, lookup: Lookup<'a>, arg: u32) -> Option<Run> {
        let found = lookup(self, arg);
        let count = if found.is_some() {
            CriterionCount::Hits
        } else {
            CriterionCount::UselessLoops
        };
        self.tally[(criterion, count)] += 1;
        found
    }

    /// The order of the buddy to look for, if the length is a power of two of at least
    /// `mb_order2_req`.
    pub(crate) fn power_of_two(&self) -> Option<u32> {
        let len = self.want.len;
        let order = floor_log2(len);
        let worth = order + 1 >= self.tunable(Tunable::MbOrder2Req) && order > 0;
        let geometry = self.table.geometry();
        // A buddy is aligned to its group; the caller's alignment is to the file system.
        let aligned = self.want.align == 1 && self.want.stripe <= 1;
        (len.is_power_of_two() && worth && order < geometry.orders() && aligned).then_some(order)
    }

    fn power2_aligned(&mut self, order: u32) -> Option<Run> {
        let family = &self.table.shared.index.by_order;
        self.walk(
            Criterion::Power2Aligned,
            family,
            order..u32::MAX,
            Direction::Upward,
            Need::Order(order),
        )
    }

    fn goal_len_fast(&mut self, len: u32) -> Option<Run> {
        let (criterion, need) = (Criterion::GoalLenFast, Need::Extent(len));
        let index = &self.table.shared.index;
        let found = self.walk(
            criterion,
            &index.by_largest,
            sure_bin(len)..u32::MAX,
            Direction::Upward,
            need,
        );
        if found.is_some() || self.table.absent() == 0 {
            return found;
        }
        self.walk(
            criterion,
            &index.uninit,
            ceil_log2(len)..u32::MAX,
            Direction::Upward,
            need,
        )
    }

    fn goal_len_slow(&mut self, len: u32) -> Option<Run> {
        let (criterion, need) = (Criterion::GoalLenSlow, Need::Extent(len));
        let index = &self.table.shared.index;
        let maybe = largest_bin(len)..sure_bin(len);
        let found = self.walk(criterion, &index.by_largest, maybe, Direction::Upward, need);
        if found.is_some() || self.table.absent() == 0 {
            return found;
        }
        let bins = ceil_log2(len) + self.table.likely_orders()..u32::MAX;
        let missed = self.misses;
        let found = self.walk(criterion, &index.unread, bins, Direction::Upward, need);
        if found.is_some() || self.misses > missed {
            self.table.note_guess(found.is_some());
        }
        found
    }

    fn best_avail_len(&mut self, len: u32) -> Option<Run> {
        let trim = self.tunable(Tunable::MbBestAvailMaxTrimOrder);
        let stripe = self.tunable(Tunable::Stripe);
        let least = (len >> trim.min(31))
            .max(self.want.asked.min(len))
            .max(stripe.min(len))
            .max(self.want.min_len);
        if least >= len {
            // Nothing may be trimmed.
            return None;
        }
        let family = &self.table.shared.index.by_largest;
        let need = Need::Longest(least, len);
        self.walk(
            Criterion::BestAvailLen,
            family,
            largest_bin(least)..u32::MAX,
            Direction::Downward,
            need,
        )
    }

    fn any_free(&mut self, len: u32) -> Option<Run> {
        let index = &self.table.shared.index;
        let any_absent = self.table.absent() > 0;
        let asked = self.want.asked.min(len).max(self.want.min_len);
        // As long as some bitmaps are not loaded, one of them is likely to have a longer run.
        let first = if any_absent { asked } else { self.want.min_len };
        for least in [first, self.want.min_len] {
            let need = Need::Longest(least, len);
            let sure = if least > self.want.min_len {
                sure_bin
            } else {
                largest_bin
            };
            let families = [
                (&index.by_largest, sure(least)),
                (&index.uninit, 0),
                (&index.unread, 0),
            ];
            let families = if any_absent {
                &families[..]
            } else {
                &families[..1]
            };
            for &(family, from) in families {
                let bins = from..u32::MAX;
                let found = self.walk(Criterion::AnyFree, family, bins, Direction::Downward, need);
                if found.is_some() || (least == self.want.min_len && !any_absent) {
                    return found;
                }
            }
        }
        None
    }

    /// Tries the groups of some bins until a run is claimed in one.
    pub(crate) fn walk(
        &mut self,
        criterion: Criterion,
        family: &'a Bins,
        bins: Range<u32>,
        direction: Direction,
        need: Need,
    ) -> Option<Run> {
        let (mut unfit, mut busy, mut reads, mut others, mut kept) = (0, 0, 0, 0, 0);
        // The first group in use by another stream, in case that there is no other.
        let mut first_other = None;
        let mut walk = family.walk(bins, direction, self.want.goal.0, self.limit());
        while let Some(group) = walk.next() {
            if criterion == Criterion::Power2Aligned && self.is_kept_for_metadata(group) {
                kept += 1;
                if kept >= MAX_METADATA_GROUPS {
                    walk.leave_bin();
                }
                continue;
            }
            if self.is_of_other_stream(group) {
                first_other = first_other.or(Some(group));
                others += 1;
                if others == MAX_OTHER_STREAMS {
                    break;
                }
                continue;
            }
            if self.table.state(group) == GroupState::Absent {
                if reads == MAX_READS {
                    return None;
                }
                reads += 1;
                self.load(group);
            }
            if self.table.state(group) != GroupState::Loaded {
                // Another thread is loading it, or found it unusable.
                continue;
            }
            match self.try_group(criterion, group, need) {
                Tried::Claimed(run) => return Some(run),
                Tried::Unfit => unfit += 1,
                Tried::Busy => busy += 1,
            }
            let is_guess = criterion == Criterion::GoalLenSlow && unfit > 0;
            if is_guess || unfit == MAX_UNFIT || busy == MAX_BUSY {
                break;
            }
        }
        let group = first_other?;
        // Stream goals are set when the allocator is made, so this group may not be loaded.
        if self.table.state(group) == GroupState::Absent && reads < MAX_READS {
            self.load(group);
        }
        if self.table.state(group) != GroupState::Loaded {
            return None;
        }
        match self.try_group(criterion, group, need) {
            Tried::Claimed(run) => Some(run),
            Tried::Unfit | Tried::Busy => None,
        }
    }

    /// Whether another stream has its goal in a group. Two streams in one group would compete for
    /// its lock and its bitmap's cache lines until it is full.
    fn is_of_other_stream(&self, group: GroupNr) -> bool {
        let Some(own) = self.want.stream else {
            return false;
        };
        let last = self.table.stream(group).filter(|&slot| slot != own);
        last.is_some_and(|slot| self.streams.get(slot).0 == group)
    }

    fn limit(&self) -> u32 {
        self.want.limit.min(self.table.geometry().groups())
    }

    /// Whether a group is the first of its flex group, which holds the others' metadata; file data
    /// in powers of two avoids it.
    pub(crate) fn is_kept_for_metadata(&self, group: GroupNr) -> bool {
        let flex = self.table.geometry().flex_groups();
        self.want.is_data && flex >= FLEX_WITH_METADATA_GROUP && group.0.is_multiple_of(flex)
    }

    /// Tries one group, and claims a run if it has one that meets the need.
    fn try_group(&mut self, criterion: Criterion, group: GroupNr, need: Need) -> Tried {
        self.looks += 1;
        self.tally[(criterion, CriterionCount::GroupsConsidered)] += 1;
        let patience = if criterion == Criterion::AnyFree {
            Patience::Wait
        } else {
            Patience::Skip
        };
        let fits = need.met_by(&self.table.hints(group));
        let Some(mut locked) = self.table.lock(group, patience) else {
            self.tally[Count::BusyGroups] += 1;
            return Tried::Busy;
        };
        self.tally[Count::GroupsScanned] += 1;
        let found = if need.met_by(&locked.fitness()) {
            self.find_in(&mut locked, need)
        } else {
            None
        };
        let Some((start, len)) = found else {
            self.tally[Count::StaleHints] += u64::from(!fits);
            locked.settle(Settle::Stale);
            self.misses += 1;
            return Tried::Unfit;
        };
        self.tally[(criterion, CriterionCount::ExtentsScanned)] += 1;
        if matches!(need, Need::Longest(..)) {
            // The next search for the longest run must not be sent here for the one claimed now.
            locked.settle(Settle::AtOnce);
        }
        Tried::Claimed(locked.claim(start, len))
    }

    /// Finds a run in a group that meets the need: its start and length.
    fn find_in(&self, locked: &mut LockedGroup<'_>, need: Need) -> Option<(u32, u32)> {
        match need {
            Need::Order(order) => Some((locked.buddy_mut().first_chunk(order)?, self.want.len)),
            Need::Extent(len) => {
                let (goal, offset) = self.want.goal;
                let from = if goal == locked.nr { offset } else { 0 };
                let start = self
                    .stripe_fit(locked, from, len)
                    .or_else(|| self.fit_from(locked, from, len));
                Some((start?, len))
            }
            Need::Longest(least, most) => {
                let mut len = locked.fitness().largest.min(most);
                loop {
                    if let Some(start) = self.fit_from(locked, 0, len) {
                        return Some((start, len));
                    }
                    // Alignment cuts off a part of the longest run.
                    len = len
                        .checked_sub(self.want.align)
                        .filter(|&len| len >= least.max(1))?;
                }
            }
        }
    }

    /// The first fit that begins at a stripe, searching from an offset on and then from the start
    /// of the group.
    fn stripe_fit(&self, locked: &mut LockedGroup<'_>, from: u32, len: u32) -> Option<u32> {
        let stripe = self.want.stripe;
        if stripe <= 1 {
            return None;
        }
        let behind = self.aligned_fit(locked, from, len, stripe);
        behind.or_else(|| self.aligned_fit(locked, 0, len, stripe))
    }

    /// The first fit with the alignment wanted, from an offset on, else from the start of the
    /// group.
    fn fit_from(&self, locked: &mut LockedGroup<'_>, from: u32, len: u32) -> Option<u32> {
        let align = self.want.align;
        let behind = self.aligned_fit(locked, from, len, align);
        if behind.is_some() || from == 0 {
            behind
        } else {
            self.aligned_fit(locked, 0, len, align)
        }
    }

    fn aligned_fit(
        &self,
        locked: &mut LockedGroup<'_>,
        mut from: u32,
        len: u32,
        align: u32,
    ) -> Option<u32> {
        if align == 1 && locked.buddy().is_free(from, len) {
            return Some(from);
        }
        loop {
            let start = locked.first_fit(from, len)?;
            if align == 1 {
                return Some(start);
            }
            let run = locked.buddy().free_run_at(start, u32::MAX);
            let skip = self.misalignment(locked.nr, start, align);
            if skip.checked_add(len).is_some_and(|needed| needed <= run) {
                return Some(start + skip);
            }
            from = start + run;
        }
    }

    /// The distance in clusters from an offset to the next multiple of `align` clusters of the file
    /// system.
    pub(crate) fn misalignment(&self, group: GroupNr, offset: u32, align: u32) -> u32 {
        if align == 1 {
            return 0;
        }
        let layout = self.table.geometry().layout();
        let block = self
            .table
            .geometry()
            .block_of(group, fourscore_ondisk::GroupOffset(offset))
            .0;
        let over = (block >> layout.cluster_bits) % u64::from(align);
        let skip = (u64::from(align) - over) % u64::from(align);
        u32::try_from(skip).unwrap_or(0)
    }

    fn is_aligned(&self, group: GroupNr, offset: u32) -> bool {
        self.misalignment(group, offset, self.want.align) == 0
    }

    /// Tries every group below the limit, loading its bitmap and waiting for its lock; claims the
    /// longest run of the first group that has the minimum length.
    fn exact_pass(&mut self) -> Option<Run> {
        self.tally[Count::ExactPasses] += 1;
        let goal = self.want.goal.0.0;
        let limit = self.limit();
        let need = Need::Longest(self.want.min_len, self.want.len);
        for group in (goal..limit).chain(0..goal.min(limit)).map(GroupNr) {
            if self.table.state(group) == GroupState::Unusable {
                continue;
            }
            match self.table.lock_loaded(group, self.tally) {
                Ok(mut locked) => {
                    let found = need
                        .met_by(&locked.fitness())
                        .then(|| self.find_in(&mut locked, need));
                    if let Some((start, len)) = found.flatten() {
                        self.tally[(Criterion::AnyFree, CriterionCount::Hits)] += 1;
                        return Some(locked.claim(start, len));
                    }
                }
                Err(error) => self.skip(error),
            }
        }
        None
    }
}

/// The lookup of one criterion: by an order for Power2Aligned, by a length for the others.
type Lookup<'a> = fn(&mut Search<'a>, u32) -> Option<Run>;

fn ceil_log2(value: u32) -> u32 {
    floor_log2(value) + u32::from(!value.is_power_of_two())
}
