//! **Purpose.** The search as ext4 does it: over its order sets (`mb_optimize_scan=1`) or over the
//! groups one by one (`mb_optimize_scan=0`), with its scan of the extents of a group. Tunables
//! select it on any mount, for comparison.
//!
//! **Model.** The criteria come in ext4's order. Fast criteria skip groups whose bitmap must be
//! read; BestAvailLen exists with sets only; GoalLenSlow and AnyFree walk over all groups from the
//! goal. Each visited group is scanned extent by extent: a fast criterion skips extents shorter
//! than the goal, others measure all, up to `mb_max_to_scan`, and take the best.
//!
//! **Locking.** The scan works on a copy of the bitmap, taken in slices of 4 KiB with the lock held
//! while one slice is copied, and tests an extent again under the lock before it claims it. ext4
//! holds the lock for the whole scan, for which its threads contend (83 % of the time of a run with
//! 64 of them). `mb_scan_locked` restores that. `mb_wait_busy`, `mb_skip_short` and `mb_best_avail`
//! restore what ext4 did before the changes that they are named after.
//!
//! **References.** `fs/ext4/mballoc.c` of Linux 6.17.

use std::ops::ControlFlow;

use fourscore_ondisk::{GroupNr, GroupOffset};
use fourscore_sync::work;

use crate::criteria::Criterion;
use crate::geometry::{ClusterCount, Run};
use crate::group::LockedGroup;
use crate::num::{floor_log2, len32};
use crate::order_index::{Direction, Fitness, Settle};
use crate::prefetch;
use crate::search::Search;
use crate::source::BitmapState;
use crate::stats::{Count, CriterionCount};
use crate::table::{GroupState, Patience};
use crate::tunables::Tunable;
use crate::words;

/// The work of finding the next free extent in a bitmap, in steps of [`work`].
const EXTENT_WORK: u64 = 6;

/// Words copied at a time.
const SLICE_WORDS: usize = 512;

/// The state of one request over all its scans.
struct Scan<'a> {
    /// Extents measured.
    found: u32,
    /// The best of them that was not claimed.
    best: Option<Run>,
    /// Whether to take the first extent found.
    first_fit: bool,
    /// The group that is being scanned, if its lock is held for the whole scan.
    held: Option<LockedGroup<'a>>,
}

impl Scan<'_> {
    fn new(first_fit: bool) -> Self {
        Self {
            found: 0,
            best: None,
            first_fit,
            held: None,
        }
    }
}

/// The state of a walk over groups.
struct Visit {
    criterion: Criterion,
    /// The length wanted in this round.
    len: u32,
    /// Whether the group comes from a set.
    by_sets: bool,
    /// The next group at which to read ahead.
    prefetch_at: GroupNr,
    /// Bitmaps read ahead by this request.
    prefetched: u32,
}

impl<'a> Search<'a> {
    /// Tries ext4's criteria in turn; `sets` says whether the order sets are used. A hit in the
    /// group of a shared stream goal counts as one at the stream goal too, as in ext4.
    pub(crate) fn ext4_criteria(&mut self, sets: bool) -> Option<Run> {
        let goal = self.want.goal.0;
        let found = self.ladder(sets);
        if self.want.shares_goal && found.is_some_and(|run| run.group == goal) {
            self.tally[Count::StreamGoalHits] += 1;
        }
        found
    }

    fn ladder(&mut self, sets: bool) -> Option<Run> {
        let mut scan = Scan::new(false);
        let start = if self.power_of_two().is_some() {
            Criterion::Power2Aligned
        } else {
            Criterion::GoalLenFast
        };
        // The criterion at which the walk ends, which counts what is claimed after it.
        let mut last = Criterion::AnyFree;
        for &criterion in Criterion::ALL
            .iter()
            .filter(|&&criterion| criterion >= start)
        {
            let applies = criterion != Criterion::BestAvailLen
                || (sets && self.want.is_data && self.tunable(Tunable::MbBestAvail) != 0);
            if !applies {
                continue;
            }
            match self.criterion(criterion, sets, &mut scan) {
                ControlFlow::Break(Some(run)) => {
                    self.tally[(criterion, CriterionCount::Hits)] += 1;
                    return Some(run);
                }
                ControlFlow::Break(None) => {
                    self.tally[Count::Breaks] += 1;
                    last = criterion;
                    break;
                }
                ControlFlow::Continue(()) => {
                    self.tally[(criterion, CriterionCount::UselessLoops)] += 1;
                }
            }
        }
        let best = scan.best?;
        if let Some(run) = self.claim_again(&best, self.want.len, &mut scan) {
            self.tally[(last, CriterionCount::Hits)] += 1;
            return Some(run);
        }
        self.tally[Count::Lost] += 1;
        self.first_fit()
    }

    /// Takes the first extent of any length, after another thread has claimed the best one found.
    fn first_fit(&mut self) -> Option<Run> {
        let mut scan = Scan::new(true);
        match self.criterion(Criterion::AnyFree, false, &mut scan) {
            ControlFlow::Break(Some(run)) => {
                self.tally[(Criterion::AnyFree, CriterionCount::Hits)] += 1;
                Some(run)
            }
            ControlFlow::Break(None) | ControlFlow::Continue(()) => None,
        }
    }

    fn criterion(
        &mut self,
        criterion: Criterion,
        sets: bool,
        scan: &mut Scan<'a>,
    ) -> ControlFlow<Option<Run>> {
        let mut visit = Visit {
            criterion,
            len: self.want.len,
            by_sets: sets && criterion < Criterion::GoalLenSlow,
            prefetch_at: self.want.goal.0,
            prefetched: 0,
        };
        match criterion {
            Criterion::BestAvailLen => self.best_avail_over_sets(&visit, scan),
            Criterion::Power2Aligned | Criterion::GoalLenFast if sets => {
                self.over_sets(&visit, scan)
            }
            _ => self.over_groups(&mut visit, scan, u32::MAX),
        }
    }

    /// Visits all groups from the goal on, at most `most`.
    fn over_groups(
        &mut self,
        visit: &mut Visit,
        scan: &mut Scan<'a>,
        most: u32,
    ) -> ControlFlow<Option<Run>> {
        let goal = self.want.goal.0.0;
        let limit = self.want.limit.min(self.table.geometry().groups());
        for group in (goal..limit)
            .chain(0..goal.min(limit))
            .take(most as usize)
            .map(GroupNr)
        {
            self.read_ahead_at(group, visit);
            if let ControlFlow::Break(end) = self.visit(group, visit, scan) {
                return ControlFlow::Break(end);
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits groups of the order sets, or of the average-fragment sets, from the request's order
    /// up.
    fn over_sets(&mut self, visit: &Visit, scan: &mut Scan<'a>) -> ControlFlow<Option<Run>> {
        let linear = self.tunable(Tunable::MbMaxLinearGroups);
        let mut first = Visit {
            by_sets: false,
            ..*visit
        };
        if let ControlFlow::Break(end) = self.over_groups(&mut first, scan, linear) {
            return ControlFlow::Break(end);
        }
        let index = &self.table.shared.index;
        let (family, from) = match visit.criterion {
            Criterion::Power2Aligned => (&index.by_order, floor_log2(visit.len)),
            _ => (&index.by_average, index.average_bin(visit.len)),
        };
        let limit = self.want.limit.min(self.table.geometry().groups());
        for group in family.walk(from..u32::MAX, Direction::Upward, self.want.goal.0, limit) {
            if let ControlFlow::Break(end) = self.visit(group, visit, scan) {
                return ControlFlow::Break(end);
            }
        }
        ControlFlow::Continue(())
    }

    /// Halves the goal until an average-fragment set has a group, down to the trim limit.
    fn best_avail_over_sets(
        &mut self,
        visit: &Visit,
        scan: &mut Scan<'a>,
    ) -> ControlFlow<Option<Run>> {
        let order = floor_log2(self.want.len);
        let trim = self.tunable(Tunable::MbBestAvailMaxTrimOrder);
        let stripe = self.tunable(Tunable::Stripe);
        let floor = |len: u32| floor_log2(len) + u32::from(!len.is_power_of_two());
        let mut least = order
            .saturating_sub(trim)
            .max(floor(self.want.asked))
            .max(floor(self.want.min_len));
        if stripe > 0 {
            least = least.max(floor(stripe));
        }
        let goal_len = self.want.len;
        for order in (least..=order).rev() {
            self.want.len = goal_len.min(1 << order);
            let round = Visit {
                len: self.want.len,
                ..*visit
            };
            let end = self.in_average_bin(&round, scan);
            self.want.len = goal_len;
            if let ControlFlow::Break(end) = end {
                return ControlFlow::Break(end);
            }
        }
        ControlFlow::Continue(())
    }

    fn in_average_bin(&mut self, visit: &Visit, scan: &mut Scan<'a>) -> ControlFlow<Option<Run>> {
        let index = &self.table.shared.index;
        let bin = index.average_bin(visit.len);
        let limit = self.want.limit.min(self.table.geometry().groups());
        for group in index
            .by_average
            .walk(bin..bin + 1, Direction::Upward, self.want.goal.0, limit)
        {
            if let ControlFlow::Break(end) = self.visit(group, visit, scan) {
                return ControlFlow::Break(end);
            }
        }
        ControlFlow::Continue(())
    }

    fn read_ahead_at(&mut self, group: GroupNr, visit: &mut Visit) {
        let fast = visit.criterion < Criterion::GoalLenSlow;
        let limited = fast && visit.prefetched >= self.tunable(Tunable::MbPrefetchLimit);
        if group != visit.prefetch_at || limited {
            return;
        }
        let (next, begun) =
            prefetch::read_ahead(self.table, self.started, group, self.core, self.tally);
        visit.prefetch_at = next;
        visit.prefetched += begun;
    }

    /// Tests a group, loads it if the criterion is worth it, and scans it.
    fn visit(
        &mut self,
        group: GroupNr,
        visit: &Visit,
        scan: &mut Scan<'a>,
    ) -> ControlFlow<Option<Run>> {
        self.looks += 1;
        self.tally[(visit.criterion, CriterionCount::GroupsConsidered)] += 1;
        if self.table.state(group) == GroupState::Absent && !self.load_for(group, visit.criterion) {
            return ControlFlow::Continue(());
        }
        if !self.is_good(visit, group, &self.table.hints(group)) {
            // The group is in a wrong set: correct that.
            if visit.by_sets
                && let Some(mut locked) = self.table.lock(group, Patience::Skip)
            {
                locked.settle(Settle::Stale);
            }
            return ControlFlow::Continue(());
        }
        self.tally[Count::GroupsScanned] += 1;
        let stripe = self.tunable(Tunable::Stripe);
        let in_stripes = stripe > 1 && visit.len.is_multiple_of(stripe);
        match visit.criterion {
            Criterion::Power2Aligned => self.simple_scan(group, visit),
            Criterion::GoalLenFast | Criterion::BestAvailLen if in_stripes => {
                let end = self.stripe_scan(group, visit, stripe);
                // Without the fallback a request for stripes could repeat for ever.
                if end.is_break() {
                    end
                } else {
                    self.complex_scan(group, visit, scan)
                }
            }
            _ => self.complex_scan(group, visit, scan),
        }
    }

    /// Loads a group for a criterion; returns whether it is loaded now. A fast criterion does no
    /// I/O, except for the first group of a flex group.
    fn load_for(&mut self, group: GroupNr, criterion: Criterion) -> bool {
        let descriptor = self.table.source.descriptor(group);
        let first = group.0.is_multiple_of(self.table.geometry().flex_groups())
            && self.table.geometry().flex_groups() > 1;
        let fast = criterion < Criterion::BestAvailLen;
        if descriptor.free.0 == 0 || (fast && !first && descriptor.state == BitmapState::Written) {
            return false;
        }
        let patience = if criterion == Criterion::AnyFree {
            Patience::Wait
        } else {
            Patience::Skip
        };
        match self.table.load(group, patience, self.tally) {
            Ok(()) => true,
            Err(error) => {
                self.skip(error);
                false
            }
        }
    }

    /// Whether a group is worth scanning, by ext4's rules.
    fn is_good(&self, visit: &Visit, group: GroupNr, fitness: &Fitness) -> bool {
        if fitness.free == 0 || fitness.fragments == 0 {
            return false;
        }
        match visit.criterion {
            Criterion::Power2Aligned => {
                !self.is_kept_for_metadata(group) && fitness.order >= floor_log2(visit.len)
            }
            Criterion::GoalLenFast | Criterion::BestAvailLen => {
                fitness.free / fitness.fragments >= visit.len
            }
            Criterion::GoalLenSlow => fitness.free >= visit.len,
            Criterion::AnyFree => true,
        }
    }

    fn patience(&self, criterion: Criterion) -> Patience {
        if criterion == Criterion::AnyFree || self.tunable(Tunable::MbWaitBusy) != 0 {
            Patience::Wait
        } else {
            Patience::Skip
        }
    }

    fn simple_scan(&mut self, group: GroupNr, visit: &Visit) -> ControlFlow<Option<Run>> {
        let Some(mut locked) = self.table.lock(group, self.patience(visit.criterion)) else {
            self.tally[Count::BusyGroups] += 1;
            return ControlFlow::Continue(());
        };
        let Some(start) = locked.buddy_mut().first_chunk(floor_log2(visit.len)) else {
            return ControlFlow::Continue(());
        };
        self.tally[(visit.criterion, CriterionCount::ExtentsScanned)] += 1;
        self.tally[Count::TwoOrderHits] += 1;
        ControlFlow::Break(Some(locked.claim(start, visit.len)))
    }

    /// Looks for the request at multiples of the stripe.
    fn stripe_scan(
        &mut self,
        group: GroupNr,
        visit: &Visit,
        stripe: u32,
    ) -> ControlFlow<Option<Run>> {
        let Some(mut locked) = self.table.lock(group, self.patience(visit.criterion)) else {
            self.tally[Count::BusyGroups] += 1;
            return ControlFlow::Continue(());
        };
        let mut start = self.misalignment(group, 0, stripe);
        while start < self.table.geometry().clusters_in(group) {
            if locked.buddy().is_free(start, visit.len) {
                self.tally[(visit.criterion, CriterionCount::ExtentsScanned)] += 1;
                return ControlFlow::Break(Some(locked.claim(start, visit.len)));
            }
            start += stripe;
        }
        ControlFlow::Continue(())
    }

    /// Measures the free extents of a group in order.
    fn complex_scan(
        &mut self,
        group: GroupNr,
        visit: &Visit,
        scan: &mut Scan<'a>,
    ) -> ControlFlow<Option<Run>> {
        let end = self.scan_slices(group, visit, scan);
        scan.held = None;
        end
    }

    /// Copies the words of a group's bitmap from cluster `base` on, and returns how many; `None` if
    /// the group is busy.
    fn copy_slice(
        &mut self,
        group: GroupNr,
        base: u32,
        slice: &mut [u64; SLICE_WORDS],
        visit: &Visit,
        scan: &mut Scan<'a>,
    ) -> Option<usize> {
        let held = scan.held.take();
        let Some(locked) = held.or_else(|| self.table.lock(group, self.patience(visit.criterion)))
        else {
            self.tally[Count::BusyGroups] += 1;
            return None;
        };
        let bits = &locked.buddy().bits()[(base / 64) as usize..];
        let copied = bits.len().min(SLICE_WORDS);
        slice[..copied].copy_from_slice(&bits[..copied]);
        work(copied as u64 / 8);
        scan.held = Some(locked).filter(|_| self.tunable(Tunable::MbScanLocked) != 0);
        Some(copied)
    }

    fn scan_slices(
        &mut self,
        group: GroupNr,
        visit: &Visit,
        scan: &mut Scan<'a>,
    ) -> ControlFlow<Option<Run>> {
        let mut slice = [0; SLICE_WORDS];
        let clusters = self.table.geometry().clusters_in(group);
        // The start of the extent that reached the end of the last slice.
        let mut open = None;
        let mut base = 0;
        while base < clusters {
            let Some(copied) = self.copy_slice(group, base, &mut slice, visit, scan) else {
                return ControlFlow::Continue(());
            };
            let end = (len32(copied) * 64).min(clusters - base);
            let mut at = 0;
            while at < end {
                work(EXTENT_WORK);
                let start = open
                    .take()
                    .unwrap_or_else(|| base + words::next_clear(&slice, at, end));
                at = words::next_set(&slice, start.max(base) - base, end);
                if at == end && base + end < clusters && start < base + end {
                    open = Some(start);
                } else if start < base + at {
                    let extent = Run {
                        group,
                        start: GroupOffset(start),
                        len: ClusterCount(base + at - start),
                    };
                    self.measure(extent, visit, scan)?;
                }
            }
            base += end;
        }
        self.check_limits(group, true, visit, scan)
    }

    /// Compares an extent with the best so far; claims it if it fits exactly.
    fn measure(
        &mut self,
        extent: Run,
        visit: &Visit,
        scan: &mut Scan<'a>,
    ) -> ControlFlow<Option<Run>> {
        let fast = visit.criterion < Criterion::GoalLenSlow;
        if fast && extent.len.0 < visit.len && self.tunable(Tunable::MbSkipShort) != 0 {
            return ControlFlow::Continue(());
        }
        scan.found += 1;
        self.tally[(visit.criterion, CriterionCount::ExtentsScanned)] += 1;
        if extent.len.0 < self.want.min_len {
            return ControlFlow::Continue(());
        }
        if scan.first_fit || extent.len.0 == visit.len {
            return match self.claim_again(&extent, visit.len, scan) {
                Some(run) => ControlFlow::Break(Some(run)),
                None => ControlFlow::Continue(()),
            };
        }
        let is_better = scan.best.is_none_or(|best| {
            if best.len.0 < visit.len {
                extent.len > best.len
            } else {
                extent.len.0 > visit.len && extent.len < best.len
            }
        });
        if is_better {
            scan.best = Some(extent);
        }
        self.check_limits(extent.group, false, visit, scan)
    }

    /// Ends the scan when enough extents have been examined.
    fn check_limits(
        &mut self,
        group: GroupNr,
        group_done: bool,
        visit: &Visit,
        scan: &mut Scan<'a>,
    ) -> ControlFlow<Option<Run>> {
        if scan.found > self.tunable(Tunable::MbMaxToScan) && !scan.first_fit {
            return ControlFlow::Break(None);
        }
        let Some(best) = scan
            .best
            .filter(|best| best.len.0 >= visit.len && best.group == group)
        else {
            return ControlFlow::Continue(());
        };
        if !group_done && scan.found <= self.tunable(Tunable::MbMinToScan) {
            return ControlFlow::Continue(());
        }
        match self.claim_again(&best, visit.len, scan) {
            Some(run) => ControlFlow::Break(Some(run)),
            None => {
                scan.best = None;
                ControlFlow::Continue(())
            }
        }
    }

    /// Claims an extent that was found, as far as it is still free and up to `most` clusters, if it
    /// still has the minimum length. Takes the group's lock, unless the scan holds it.
    fn claim_again(&mut self, extent: &Run, most: u32, scan: &mut Scan<'a>) -> Option<Run> {
        let held = scan.held.take();
        let is_held = held.is_some();
        let mut locked = held.or_else(|| self.table.lock(extent.group, Patience::Wait))?;
        let skip = self.misalignment(extent.group, extent.start.0, self.want.align);
        let rest = extent.len.0.checked_sub(skip)?;
        let start = extent.start.0 + skip;
        let wanted = rest.min(most);
        let got = locked.buddy().free_run_at(start, wanted);
        let run = (got > 0 && got >= self.want.min_len).then(|| locked.claim(start, got));
        scan.held = Some(locked).filter(|_| is_held);
        run
    }
}
