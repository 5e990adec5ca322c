//! **Purpose.** One block group in memory: its lock, the buddy and pending frees that the lock
//! guards, and hints that are read without it.
//!
//! **Not here.** Loading and evicting the bitmap ([`crate::table`]); choosing a group
//! ([`crate::search`]).
//!
//! **Model.** A cluster of a loaded group is in exactly one of these states:
//!
//! ```text
//! buddy   bitmap       kept in
//! free    free         -          free
//! used    free         -          claimed: counted in `claimed`, known to its holder
//! used    used         -          marked
//! used    used, free   freeing    its bit is being cleared by the thread that frees it
//! used    free         pending    freed, not to be allocated yet
//! ```
//!
//! So the buddy can be made again from the bitmap whenever nothing is claimed, being freed or
//! pending; at any other time the group stays in memory.
//!
//! **Invariants.** Hints (free clusters, extents, largest extent, largest order) equal the buddy's
//! whenever the lock is free, except that the buddy's largest extent and order may be smaller. The
//! group is listed in the index in the bins of its free space, or higher ([`crate::order_index`]).
//!
//! **Locking.** The lock is a leaf: no I/O happens under it, and only per-core words are changed
//! (asserted in debug builds). Lock, hints and the pointer to the rest share two cache lines, which
//! move to the core that works in the group; the state, which all cores read, is elsewhere
//! ([`crate::table`]).

use std::time::Instant;

use fourscore_ondisk::{GroupNr, GroupOffset, Tid};
use fourscore_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fourscore_sync::profile::Section;
use fourscore_sync::rank::{Rank, Ranked};
use fourscore_sync::{CoreNr, Mutex, MutexGuard, work};

use crate::buddy::Buddy;
use crate::geometry::{ClusterCount, Run};
use crate::order_index::{Fitness, Listing, OrderIndex, Settle};
use crate::pending::{Clocks, Pending, Stamp, Waiting};
use crate::shortage::{Discards, Waiter};
use crate::stats::{Quick, Stats};
use crate::stream::Slot;
use crate::tokens::Tokens;
use crate::tunables::{Tunable, Tunables};

/// The work on a run of so many clusters in the bitmap and in the lists of a group, in steps of
/// [`work`].
const fn run_work(clusters: u32) -> u64 {
    20 + clusters as u64 / 64
}

/// The state of a loaded group, guarded by its lock.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) buddy: Buddy,
    pub(crate) pending: Pending,
    /// Clusters claimed and neither marked nor given back, preallocations included.
    pub(crate) claimed: u32,
    /// Callers of [`LockedGroup::pin`].
    pins: u32,
    /// Runs whose bits are being cleared, as `(start, end)`; a few at a time.
    freeing: Vec<(u32, u32)>,
    pub(crate) listing: Listing,
    /// Whether the group was locked since the last eviction pass.
    pub(crate) touched: bool,
    /// The length from which on all free runs have been discarded; `None` if there is none.
    pub(crate) trimmed: Option<ClusterCount>,
}

impl Loaded {
    pub(crate) fn new(buddy: Buddy) -> Self {
        Self {
            buddy,
            pending: Pending::default(),
            claimed: 0,
            pins: 0,
            freeing: Vec::new(),
            listing: Listing::default(),
            touched: true,
            trimmed: None,
        }
    }

    /// Frees the pending clusters that need not wait any longer; returns how many.
    #[inline(never)]
    fn release_due(&mut self, shared: &Shared) -> u64 {
        let Self { buddy, pending, .. } = self;
        let mut released = 0;
        pending.release(&shared.clocks, |start, end| {
            work(run_work(end - start));
            buddy.mark_free(start, end - start);
            released += u64::from(end - start);
        });
        if released > 0 {
            self.trimmed = None;
        }
        released
    }

    /// Updates the hints and the index. As long as the index may lag behind, nothing is recomputed
    /// for it.
    #[inline(never)]
    fn publish(&mut self, nr: GroupNr, group: &Group, shared: &Shared, settle: Settle) {
        let Self { buddy, listing, .. } = self;
        let (drift, free, fragments) = (buddy.drift(), buddy.free_clusters(), buddy.fragments());
        if settle == Settle::Lagging && shared.index.may_stay(listing, drift, free, fragments) {
            group.publish_counts(free, fragments);
            return;
        }
        let fitness = buddy.fitness();
        group.publish(&fitness);
        shared.index.update(nr, listing, &fitness, settle);
        buddy.set_listed();
    }

    /// Whether the buddy can be made again from the bitmap, and no caller wants it to stay: nothing
    /// is claimed, being freed or pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.claimed == 0 && self.pins == 0 && self.freeing.is_empty() && self.pending.is_empty()
    }
}

/// A group; not loaded at first.
#[derive(Debug, Default)]
pub(crate) struct Group {
    lock: Mutex<Option<Box<Loaded>>>,
    free: AtomicU32,
    fragments: AtomicU32,
    largest: AtomicU32,
    order: AtomicU32,
    /// The slot of the stream goal that was last in this group, plus one; 0 if none ever was.
    stream: AtomicU32,
    /// Requests that were served here completely, by [`Quick`]. Written under the lock only.
    hits: [AtomicU64; Quick::IN_GROUPS],
}

/// The rank of the group locks: the last of all, after those of buffers.
pub const GROUP: Rank = Rank::new(95, "group");

/// A group whose lock is held.
pub(crate) type Locked<'a> = Ranked<MutexGuard<'a, Option<Box<Loaded>>>>;

impl Group {
    /// Locks the group, whose number is `nr`.
    #[inline]
    pub(crate) fn lock(&self, nr: GroupNr) -> Locked<'_> {
        let place = GROUP.place(nr.0.into());
        place.lock_in(
            Section::GroupLockWait,
            || self.lock.try_lock(),
            || self.lock.lock(),
        )
    }

    /// Locks the group unless another thread holds the lock.
    #[inline]
    pub(crate) fn try_lock(&self, nr: GroupNr) -> Option<Locked<'_>> {
        let guard = self.lock.try_lock()?;
        Some(GROUP.place(nr.0.into()).hold(guard))
    }

    /// Summarizes the pending clusters of the group, without releasing any.
    pub(crate) fn waiting(&self, nr: GroupNr) -> Waiting {
        let guard = self.lock(nr);
        guard
            .as_ref()
            .map_or_else(Waiting::default, |loaded| loaded.pending.waiting())
    }

    /// Requests that were served here completely, by [`Quick`].
    pub(crate) fn hits(&self) -> impl Iterator<Item = u64> {
        self.hits.iter().map(|hits| hits.load(Ordering::Relaxed))
    }

    /// The stream goal that was last in this group: a hint.
    pub(crate) fn stream(&self) -> Option<Slot> {
        self.stream.load(Ordering::Relaxed).checked_sub(1).map(Slot)
    }

    pub(crate) fn set_stream(&self, slot: Slot) {
        if self.stream() != Some(slot) {
            self.stream.store(slot.0 + 1, Ordering::Relaxed);
        }
    }

    /// See [`crate::Allocator::lay_out_as_ext4`]; `state` is the group's state word.
    #[cfg(feature = "count")]
    pub(crate) fn lay_out_as_ext4<S>(&self, cores: &fourscore_sync::count::Cores, state: &S) {
        cores.put_beside(state, &self.free);
        let [.., last] = &self.hits;
        cores.put_beside(&self.lock, last);
    }

    /// The free space of the group when its lock was last released. It is read without the lock and
    /// field by field: a hint.
    pub(crate) fn hints(&self) -> Fitness {
        Fitness {
            free: self.free.load(Ordering::Relaxed),
            fragments: self.fragments.load(Ordering::Relaxed),
            largest: self.largest.load(Ordering::Relaxed),
            order: self.order.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn publish(&self, fitness: &Fitness) {
        self.free.store(fitness.free, Ordering::Relaxed);
        self.fragments.store(fitness.fragments, Ordering::Relaxed);
        self.largest.store(fitness.largest, Ordering::Relaxed);
        self.order.store(fitness.order, Ordering::Relaxed);
    }

    /// Publishes the counts of a group whose largest extent and chunk have not grown.
    fn publish_counts(&self, free: u32, fragments: u32) {
        self.free.store(free, Ordering::Relaxed);
        self.fragments.store(fragments, Ordering::Relaxed);
    }
}

/// The parts of the allocator that locked groups use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) index: OrderIndex,
    pub(crate) clocks: Clocks,
    pub(crate) tokens: Tokens,
    pub(crate) stats: Stats,
    pub(crate) tunables: Tunables,
    pub(crate) discards: Discards,
    pub(crate) waiter: Waiter,
    /// Whether clusters that are due are held back until they have been discarded.
    pub(crate) holds_due: AtomicBool,
}

impl Shared {
    /// The time at which a lock was taken, if hold times are measured.
    #[inline]
    fn hold_start(&self) -> Option<Instant> {
        #[cold]
        fn now() -> Option<Instant> {
            Some(Instant::now())
        }
        match self.tunables.get(Tunable::MbHoldTimes) {
            0 => None,
            _ => now(),
        }
    }

    /// Adds the tokens of released clusters, before the group's lock is dropped.
    #[inline(never)]
    fn deposit(&self, released: u64) {
        self.tokens.deposit(CoreNr::current(), released);
    }

    /// Refills pools and notes the hold time, after a group's lock has been dropped.
    #[inline(never)]
    fn after_hold(&self, since: Option<Instant>) {
        // May take the lock of the pools, which does not belong under the group's.
        self.tokens.refill_if_short();
        if let Some(since) = since {
            self.stats
                .note_hold(CoreNr::current(), since.elapsed().as_nanos());
        }
    }
}

/// A loaded group whose lock this thread holds. Releasing it publishes what changed.
///
/// Every operation takes a lock or two, for a few dozen instructions. So the common path is inlined
/// and stays in registers. Rare paths are calls that are passed single fields, never `self`, which
/// would force the whole value into memory.
#[derive(Debug)]
pub(crate) struct LockedGroup<'a> {
    pub(crate) nr: GroupNr,
    group: &'a Group,
    /// Whether the buddy has changed, or the index is to be updated.
    changed: bool,
    settle: Settle,
    guard: Locked<'a>,
    /// Declared after the lock, so that it is dropped once the lock has been released.
    after: After<'a>,
}

/// The state that is needed once the lock has been released.
#[derive(Debug)]
struct After<'a> {
    shared: &'a Shared,
    /// Pending clusters that have become free.
    released: u64,
    since: Option<Instant>,
}

impl Drop for After<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.released > 0 || self.since.is_some() {
            self.shared.after_hold(self.since);
        }
    }
}

/// Some of the clusters to free are free, pending, or being freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotInUse;

impl<'a> LockedGroup<'a> {
    /// Wraps a lock that has been taken; `None` if the group is not loaded. Pending clusters that
    /// are due become free here, so that no list and no thread is needed for that.
    #[inline(always)]
    pub(crate) fn enter(
        nr: GroupNr,
        group: &'a Group,
        shared: &'a Shared,
        mut guard: Locked<'a>,
    ) -> Option<Self> {
        let loaded = guard.as_mut()?;
        if !loaded.touched {
            loaded.touched = true;
        }
        let waits = !loaded.pending.is_empty() && !shared.holds_due.load(Ordering::Relaxed);
        let since = shared.hold_start();
        let released = if waits { loaded.release_due(shared) } else { 0 };
        Some(Self {
            nr,
            group,
            changed: released > 0,
            settle: Settle::Lagging,
            guard,
            after: After {
                shared,
                released,
                since,
            },
        })
    }

    fn loaded(&self) -> &Loaded {
        // `enter` has checked it, and eviction needs the lock.
        self.guard.as_deref().expect("locked groups are loaded")
    }

    fn loaded_mut(&mut self) -> &mut Loaded {
        self.guard.as_deref_mut().expect("locked groups are loaded")
    }

    /// The buddy.
    pub(crate) fn buddy(&self) -> &Buddy {
        &self.loaded().buddy
    }

    /// The buddy, for queries that bring it up to date.
    pub(crate) fn buddy_mut(&mut self) -> &mut Buddy {
        &mut self.loaded_mut().buddy
    }

    /// The free space of the group, for the index.
    pub(crate) fn fitness(&mut self) -> Fitness {
        self.buddy_mut().fitness()
    }

    /// The first offset from `from` on with `len` free clusters.
    pub(crate) fn first_fit(&mut self, from: u32, len: u32) -> Option<u32> {
        self.buddy_mut().first_fit(from, len)
    }

    /// Frees the pending clusters that are due; their tokens are added when the lock is dropped.
    pub(crate) fn release_due(&mut self) {
        let shared = self.after.shared;
        let released = self.loaded_mut().release_due(shared);
        self.note_released(released);
    }

    fn note_released(&mut self, released: u64) {
        self.changed |= released > 0;
        self.after.released += released;
    }

    /// Claims the pending clusters that are due, instead of freeing them, and counts them as being
    /// discarded.
    pub(crate) fn claim_due(&mut self) -> Vec<Run> {
        let (nr, shared) = (self.nr, self.after.shared);
        let loaded = self.loaded_mut();
        let (mut runs, mut claimed) = (Vec::new(), 0);
        loaded.pending.release(&shared.clocks, |start, end| {
            claimed += end - start;
            runs.push(Run {
                group: nr,
                start: GroupOffset(start),
                len: ClusterCount(end - start),
            });
        });
        loaded.claimed += claimed;
        // Under the lock, so that a concurrent count meets them as pending or as being discarded.
        shared.discards.begin(claimed.into());
        runs
    }

    /// The length from which on all free runs have been discarded, if there is one.
    pub(crate) fn trimmed(&self) -> Option<ClusterCount> {
        self.loaded().trimmed
    }

    /// Notes which free runs have been discarded; the next free resets it.
    pub(crate) fn set_trimmed(&mut self, least: Option<ClusterCount>) {
        self.loaded_mut().trimmed = least;
    }

    /// Whether sweeps may skip the group: nothing is pending, and no tokens of released clusters
    /// are still to be added.
    pub(crate) fn is_swept(&self) -> bool {
        !self.has_pending() && self.after.released == 0
    }

    /// Whether any cluster is pending.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.loaded().pending.is_empty()
    }

    /// Summarizes the pending clusters.
    pub(crate) fn waiting(&self) -> Waiting {
        self.loaded().pending.waiting()
    }

    /// Claims free clusters.
    #[inline]
    pub(crate) fn claim(&mut self, start: u32, len: u32) -> Run {
        work(run_work(len));
        let loaded = self.loaded_mut();
        loaded.buddy.mark_used(start, len);
        loaded.claimed += len;
        self.changed = true;
        Run {
            group: self.nr,
            start: GroupOffset(start),
            len: ClusterCount(len),
        }
    }

    /// Counts a request that was served here completely.
    pub(crate) fn count(&self, quick: Quick) {
        let hits = &self.group.hits[quick as usize];
        // No other thread writes it: the lock is held.
        hits.store(hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Ends a claim: the clusters are free again.
    pub(crate) fn unclaim(&mut self, run: &Run) {
        debug_assert_eq!(run.group, self.nr);
        let loaded = self.loaded_mut();
        loaded.buddy.mark_free(run.start.0, run.len.0);
        loaded.claimed -= run.len.0;
        self.changed = true;
    }

    /// Ends a claim: the clusters are used on disk. They are fresh in the transaction `fresh_in`,
    /// if any.
    #[inline]
    pub(crate) fn mark(&mut self, run: &Run, fresh_in: Option<Tid>) {
        debug_assert_eq!(run.group, self.nr);
        let loaded = self.loaded_mut();
        debug_assert!(loaded.buddy.is_used(run.start.0, run.len.0));
        loaded.claimed -= run.len.0;
        if let Some(tid) = fresh_in {
            loaded.pending.note_marked(run.start.0, run.end(), tid);
        }
    }

    /// Begins to free marked clusters.
    #[inline]
    pub(crate) fn begin_free(&mut self, run: &Run) -> Result<(), NotInUse> {
        work(run_work(run.len.0));
        let (start, end) = (run.start.0, run.end());
        let loaded = self.loaded_mut();
        let meets = |&(from, to): &(u32, u32)| from < end && start < to;
        if !loaded.buddy.is_used(start, run.len.0)
            || loaded.pending.overlaps(start, end)
            || loaded.freeing.iter().any(meets)
        {
            return Err(NotInUse);
        }
        loaded.freeing.push((start, end));
        Ok(())
    }

    #[inline]
    fn end_freeing(&mut self, run: &Run) {
        let key = (run.start.0, run.end());
        let freeing = &mut self.loaded_mut().freeing;
        if let Some(at) = freeing.iter().position(|&entry| entry == key) {
            freeing.swap_remove(at);
        }
    }

    /// Ends a free without clearing the bits.
    pub(crate) fn cancel_free(&mut self, run: &Run) {
        self.end_freeing(run);
    }

    /// Ends a free whose bits are cleared: the clusters become pending, or free at once if they
    /// have to wait for no commit and no grace period.
    #[inline]
    pub(crate) fn finish_free(&mut self, run: &Run, tid: Tid, stamp: Stamp) {
        work(run_work(run.len.0));
        self.end_freeing(run);
        let shared = self.after.shared;
        let loaded = self.loaded_mut();
        let Loaded { buddy, pending, .. } = loaded;
        let mut released = 0;
        pending.free(
            run.start.0,
            run.end(),
            tid,
            stamp,
            &shared.clocks,
            |start, end| {
                buddy.mark_free(start, end - start);
                released += u64::from(end - start);
            },
        );
        if released > 0 {
            loaded.trimmed = None;
        }
        self.note_released(released);
    }

    /// Keeps the group in memory until [`LockedGroup::unpin`].
    pub(crate) fn pin(&mut self) {
        self.loaded_mut().pins += 1;
    }

    pub(crate) fn unpin(&mut self) {
        let pins = &mut self.loaded_mut().pins;
        *pins = pins.saturating_sub(1);
    }

    /// Makes the group `clusters` long; those behind its old end are used.
    pub(crate) fn lengthen(&mut self, clusters: u32) {
        let loaded = self.loaded_mut();
        if clusters > loaded.buddy.clusters() {
            loaded.buddy = loaded.buddy.lengthened(clusters);
            self.settle(Settle::AtOnce);
        }
    }

    /// Frees used clusters that no thread has claimed or freed. Their tokens are added when the
    /// lock is dropped.
    pub(crate) fn release(&mut self, run: &Run) {
        debug_assert_eq!(run.group, self.nr);
        let loaded = self.loaded_mut();
        loaded.buddy.mark_free(run.start.0, run.len.0);
        loaded.trimmed = None;
        self.note_released(run.len.0.into());
    }

    /// Updates the hints and the index if the group has changed.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        if std::mem::replace(&mut self.changed, false) {
            let (nr, group, settle, shared) = (self.nr, self.group, self.settle, self.after.shared);
            self.loaded_mut().publish(nr, group, shared, settle);
        }
    }

    /// Recomputes the buddy, and compares hints and listing with it.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        let hints = self.group.hints();
        let shared = self.after.shared;
        let Loaded { buddy, listing, .. } = self.loaded_mut();
        buddy.check()?;
        let fitness = buddy.fitness();
        let expected = Fitness {
            largest: fitness.largest.max(hints.largest),
            order: fitness.order.max(hints.order),
            ..fitness
        };
        if hints != expected {
            return Err(format!(
                "the hints are {hints:?}, the buddy says {fitness:?}"
            ));
        }
        if !shared.index.is_listed(listing, &fitness) {
            return Err(format!(
                "listed below its free space {fitness:?}: {listing:?}"
            ));
        }
        Ok(())
    }

    /// Sets how the group is listed when the lock is released.
    pub(crate) fn settle(&mut self, settle: Settle) {
        self.changed = true;
        self.settle = settle;
    }
}

impl Drop for LockedGroup<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.publish();
        // Under the lock, so that a thread which finds the clusters no longer pending finds tokens.
        if self.after.released > 0 {
            self.after.shared.deposit(self.after.released);
        }
    }
}
