//! **Purpose.** Pending frees: freed clusters of one group that may not be allocated yet.
//!
//! **Model.** A freed run waits for a [`Release`]: for the full commit of the transaction that
//! freed it (with its revoke records), and for a grace period, as in RCU. The caller numbers the
//! grace periods and reports their ends: once grace period `n` has ended, every reader, checkpoint
//! write and data write that was under way when a free was stamped `n` is over. A free with stamp 0
//! waits for no grace period.
//!
//! A run that was marked in the running transaction and is freed in it again (create, fallocate,
//! truncate) need not wait for the commit: no durable state ever referred to it. So each group
//! keeps the runs marked in the latest transaction as *fresh*; none are fresh where a fast commit
//! may refer to them ([`Options::fast_commits`](crate::Options::fast_commits)).
//!
//! **Invariants.** At most two batches for each transaction: a closed one, and an open one that
//! still takes runs and whose stamp grows. With a single batch, steady frees would push its stamp
//! ahead of the ended grace periods for ever.
//!
//! **Locking.** Under the group's lock. The clocks are two words that every core reads and that are
//! written once for each commit.

use fourscore_ondisk::Tid;
use fourscore_sync::CachePadded;
use fourscore_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::intervals::Intervals;

/// The number of a grace period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

/// What a freed run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The transaction whose full commit must be durable; `None` if none has to be.
    pub tid: Option<Tid>,
    /// The grace period that must have ended.
    pub stamp: Stamp,
}

/// The latest durable transaction, and the latest grace period that has ended.
#[derive(Debug)]
pub struct Clocks {
    words: CachePadded<Words>,
}

#[derive(Debug)]
struct Words {
    durable: AtomicU32,
    grace: AtomicU64,
}

impl Clocks {
    /// Clocks at the last durable transaction.
    #[must_use]
    pub fn new(durable: Tid) -> Self {
        let words = Words {
            durable: AtomicU32::new(durable.0),
            grace: AtomicU64::new(0),
        };
        Self {
            words: CachePadded::new(words),
        }
    }

    /// Notes that the full commit of `tid` is durable. Never goes back.
    pub fn set_durable(&self, tid: Tid) {
        let later = |now| tid.is_after(Tid(now)).then_some(tid.0);
        // An error says that the clock is at or past `tid` already.
        let _ = self
            .words
            .durable
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// Notes that grace period `stamp`, and with it every earlier one, has ended. Calls with an
    /// earlier stamp than before have no effect.
    pub fn end_grace_period(&self, stamp: Stamp) {
        self.words.grace.fetch_max(stamp.0, Ordering::AcqRel);
    }

    /// Whether grace period `stamp` has ended.
    pub(crate) fn has_ended(&self, stamp: Stamp) -> bool {
        stamp.0 <= self.words.grace.load(Ordering::Acquire)
    }

    /// Whether a run that waits for `release` may be allocated.
    #[must_use]
    pub fn reached(&self, release: &Release) -> bool {
        let durable = Tid(self.words.durable.load(Ordering::Acquire));
        release.tid.is_none_or(|tid| !tid.is_after(durable)) && self.has_ended(release.stamp)
    }
}

/// How many clusters are pending, and the newest transaction they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Clusters.
    pub(crate) clusters: u64,
    /// The newest of the transactions that some of them wait for.
    pub(crate) newest: Option<Tid>,
}

impl Waiting {
    pub(crate) fn add(&mut self, other: &Self) {
        self.clusters += other.clusters;
        let is_newer = |tid: &Tid| self.newest.is_none_or(|newest| tid.is_after(newest));
        self.newest = other.newest.filter(is_newer).or(self.newest);
    }
}

/// Runs with a common [`Release`].
#[derive(Debug)]
struct Batch {
    release: Release,
    runs: Intervals,
}

/// The pending frees of one group, and its fresh runs.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    batches: Vec<Batch>,
    fresh_tid: Tid,
    fresh: Intervals,
}

impl Pending {
    /// Whether no run is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Summarizes the pending runs.
    pub(crate) fn waiting(&self) -> Waiting {
        let mut waiting = Waiting::default();
        for batch in &self.batches {
            waiting.add(&Waiting {
                clusters: batch.runs.total(),
                newest: batch.release.tid,
            });
        }
        waiting
    }

    /// Whether any cluster from `start` to `end - 1` is pending.
    pub(crate) fn overlaps(&self, start: u32, end: u32) -> bool {
        self.batches
            .iter()
            .any(|batch| batch.runs.overlaps(start, end))
    }

    /// Notes that clusters have been marked in a transaction.
    pub(crate) fn note_marked(&mut self, start: u32, end: u32, tid: Tid) {
        if self.fresh_tid != tid {
            self.fresh_tid = tid;
            self.fresh.clear();
        }
        self.fresh.insert(start, end);
    }

    /// Frees clusters in a transaction: those that are fresh in it wait for the grace period only.
    /// Calls `released` with each part that need not wait at all.
    pub(crate) fn free(
        &mut self,
        start: u32,
        end: u32,
        tid: Tid,
        stamp: Stamp,
        clocks: &Clocks,
        mut released: impl FnMut(u32, u32),
    ) {
        let batches = &mut self.batches;
        let mut wait = |from: u32, to: u32, tid: Option<Tid>| {
            let release = Release { tid, stamp };
            if clocks.reached(&release) {
                released(from, to);
            } else {
                add(batches, from, to, release);
            }
        };
        let mut at = start;
        if self.fresh_tid == tid {
            self.fresh.take(start, end, |from, to| {
                if at < from {
                    wait(at, from, Some(tid));
                }
                wait(from, to, None);
                at = to;
            });
        }
        if at < end {
            wait(at, end, Some(tid));
        }
    }

    /// Removes the batches that need not wait any longer, and calls `released` with each run.
    pub(crate) fn release(&mut self, clocks: &Clocks, mut released: impl FnMut(u32, u32)) {
        self.batches.retain(|batch| {
            let reached = clocks.reached(&batch.release);
            if reached {
                batch
                    .runs
                    .iter()
                    .for_each(|(start, end)| released(start, end));
            }
            !reached
        });
    }
}

/// Adds a run to the open batch of its transaction, or opens one.
fn add(batches: &mut Vec<Batch>, start: u32, end: u32, release: Release) {
    let mut same = batches
        .iter_mut()
        .filter(|batch| batch.release.tid == release.tid);
    let first = same.next();
    let second = same.next();
    // A closed batch takes only runs that wait no longer than itself; the second batch is open.
    let open = match (first, second) {
        (Some(first), None) => Some(first).filter(|first| release.stamp <= first.release.stamp),
        (_, second) => second,
    };
    match open {
        Some(batch) => {
            batch.release.stamp = batch.release.stamp.max(release.stamp);
            batch.runs.insert(start, end);
        }
        None => {
            let mut runs = Intervals::default();
            runs.insert(start, end);
            batches.push(Batch { release, runs });
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Frees a run that must not be released at once.
    fn free(pending: &mut Pending, clocks: &Clocks, start: u32, end: u32, tid: Tid, stamp: Stamp) {
        pending.free(start, end, tid, stamp, clocks, |_, _| {
            panic!("it has to wait")
        });
    }

    fn released(pending: &mut Pending, clocks: &Clocks) -> Vec<(u32, u32)> {
        let mut runs = Vec::new();
        pending.release(clocks, |start, end| runs.push((start, end)));
        runs.sort_unstable();
        runs
    }

    #[test]
    fn a_free_waits_for_its_commit_and_its_grace_period() {
        let clocks = Clocks::new(Tid(4));
        let mut pending = Pending::default();
        free(&mut pending, &clocks, 10, 20, Tid(5), Stamp(3));
        assert!(released(&mut pending, &clocks).is_empty());
        clocks.end_grace_period(Stamp(3));
        assert!(released(&mut pending, &clocks).is_empty());
        clocks.set_durable(Tid(5));
        assert!(pending.overlaps(19, 30) && !pending.overlaps(20, 30));
        assert_eq!(released(&mut pending, &clocks), [(10, 20)]);
        assert!(pending.is_empty());
    }

    #[test]
    fn a_run_marked_in_the_same_transaction_waits_for_the_grace_period_only() {
        let clocks = Clocks::new(Tid(4));
        let mut pending = Pending::default();
        pending.note_marked(10, 20, Tid(5));
        pending.note_marked(20, 30, Tid(5));
        let mut at_once = Vec::new();
        pending.free(5, 20, Tid(5), Stamp(0), &clocks, |from, to| {
            at_once.push((from, to));
        });
        assert_eq!(at_once, [(10, 20)]);
        free(&mut pending, &clocks, 20, 30, Tid(5), Stamp(1));
        assert!(released(&mut pending, &clocks).is_empty());
        clocks.end_grace_period(Stamp(1));
        assert_eq!(released(&mut pending, &clocks), [(20, 30)]);
        let newest = Some(Tid(5));
        assert_eq!(
            pending.waiting(),
            Waiting {
                clusters: 5,
                newest
            }
        );
        clocks.set_durable(Tid(5));
        assert_eq!(released(&mut pending, &clocks), [(5, 10)]);
        // Marked in 6, freed in 7: the commit of 6 may have sealed the mark.
        pending.note_marked(10, 20, Tid(6));
        free(&mut pending, &clocks, 10, 20, Tid(7), Stamp(0));
        assert!(released(&mut pending, &clocks).is_empty());
    }

    #[test]
    fn steady_frees_do_not_delay_the_first_one() {
        let clocks = Clocks::new(Tid(4));
        let mut pending = Pending::default();
        for stamp in 1..100 {
            let start = u32::try_from(stamp).unwrap() * 2;
            free(
                &mut pending,
                &clocks,
                start,
                start + 1,
                Tid(4),
                Stamp(stamp),
            );
            assert!(pending.batches.len() <= 2);
        }
        clocks.end_grace_period(Stamp(1));
        assert_eq!(released(&mut pending, &clocks), [(2, 3)]);
        clocks.end_grace_period(Stamp(99));
        assert_eq!(released(&mut pending, &clocks).len(), 98);
    }

    #[test]
    fn the_clocks_never_go_back_and_the_tid_may_wrap() {
        let clocks = Clocks::new(Tid(u32::MAX));
        clocks.set_durable(Tid(1));
        clocks.set_durable(Tid(0));
        assert!(clocks.reached(&Release {
            tid: Some(Tid(1)),
            stamp: Stamp(0)
        }));
        assert!(!clocks.reached(&Release {
            tid: Some(Tid(2)),
            stamp: Stamp(0)
        }));
        clocks.end_grace_period(Stamp(9));
        clocks.end_grace_period(Stamp(5));
        assert!(clocks.reached(&Release {
            tid: None,
            stamp: Stamp(9)
        }));
    }
}
