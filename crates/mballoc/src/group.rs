//! **Purpose.** One block group in memory: its state, its lock, what the lock guards, and what
//! others may read without it.
//!
//! **Not here.** Bringing the bitmap in and throwing it out ([`crate::table`]); choosing a group
//! ([`crate::search`]).
//!
//! **Model.** A cluster of a loaded group is in exactly one of these states:
//!
//! ```text
//! buddy   bitmap       kept in
//! free    free         -          free
//! used    free         -          claimed: counted in `claimed`, known to its holder
//! used    used         -          marked
//! used    used, free   freeing    its bit is being cleared by whoever frees it
//! used    free         pending    freed, not to be handed out yet
//! ```
//!
//! so the buddy can be made again from the bitmap whenever nothing is claimed, being freed or
//! pending; at any other time the group stays in memory.
//!
//! **Invariants.** Hints (free clusters, extents, largest extent, largest order) equal the buddy's
//! whenever the lock is free, but that the largest extent and order may have become less since. The
//! group is listed in the index by what it has, or a little above ([`crate::order_index`]).
//!
//! **Locking.** The lock is a leaf: no I/O, and no other lock but core-local words, under it
//! (asserted in debug builds).
//! Lock, hints and the pointer to the rest share two cache lines that belong to whoever works in
//! the group; the state, which everybody reads, is elsewhere ([`crate::table`]).

use std::time::Instant;

use fourscore_ondisk::{GroupNr, GroupOffset, Tid};
use fourscore_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fourscore_sync::rank::{Rank, Ranked};
use fourscore_sync::{CoreNr, Mutex, MutexGuard};

use crate::buddy::Buddy;
use crate::geometry::{ClusterCount, Run};
use crate::order_index::{Fitness, Listing, OrderIndex, Settle};
use crate::pending::{Clocks, Pending, Stamp, Waiting};
use crate::shortage::{Bell, Telling};
use crate::stats::{Quick, Stats};
use crate::stream::Slot;
use crate::tokens::Tokens;
use crate::tunables::{Tunable, Tunables};

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) buddy: Buddy,
    pub(crate) pending: Pending,
    /// Clusters claimed and neither marked nor given back, preallocations included.
    pub(crate) claimed: u32,
    /// Runs whose bits are being cleared, as `(start, end)`; a few at a time.
    freeing: Vec<(u32, u32)>,
    pub(crate) listing: Listing,
    /// Whether anybody has been here since the last eviction pass.
    pub(crate) touched: bool,
    /// The device knows of all free runs from this length on, if of any.
    pub(crate) trimmed: Option<ClusterCount>,
}

impl Loaded {
    pub(crate) fn new(buddy: Buddy) -> Self {
        Self {
            buddy,
            pending: Pending::default(),
            claimed: 0,
            freeing: Vec::new(),
            listing: Listing::default(),
            touched: true,
            trimmed: None,
        }
    }

    /// Frees what has waited long enough, and says how many clusters that were.
    #[inline(never)]
    fn release_due(&mut self, shared: &Shared) -> u64 {
        let Self { buddy, pending, .. } = self;
        let mut released = 0;
        pending.release(&shared.clocks, |start, end| {
            buddy.mark_free(start, end - start);
            released += u64::from(end - start);
        });
        if released > 0 {
            self.trimmed = None;
        }
        released
    }

    /// Tells the hints and the index what has changed. As long as the index may lag behind, nothing
    /// is recomputed for it.
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

    /// Whether the bitmap says all that there is to know.
    pub(crate) fn is_idle(&self) -> bool {
        self.claimed == 0 && self.freeing.is_empty() && self.pending.is_empty()
    }
}

/// A group; one that is not loaded to begin with.
#[derive(Debug, Default)]
pub(crate) struct Group {
    lock: Mutex<Option<Box<Loaded>>>,
    free: AtomicU32,
    fragments: AtomicU32,
    largest: AtomicU32,
    order: AtomicU32,
    /// The stream goal that was last in this group, plus one; 0 if none ever was.
    stream: AtomicU32,
    /// Requests that were answered here in full, by [`Quick`]. Written under the lock only.
    hits: [AtomicU64; Quick::IN_GROUPS],
}

/// The rank of the locks of groups: the last of all, after those of buffers.
pub const GROUP: Rank = Rank::new(95, "group");

/// A group whose lock is held.
pub(crate) type Locked<'a> = Ranked<MutexGuard<'a, Option<Box<Loaded>>>>;

impl Group {
    /// Waits for the lock of the group, which has the number `nr`.
    #[inline]
    pub(crate) fn lock(&self, nr: GroupNr) -> Locked<'_> {
        let place = GROUP.place(nr.0.into());
        place.lock(|| self.lock.try_lock(), || self.lock.lock())
    }

    /// The same, unless somebody has it.
    #[inline]
    pub(crate) fn try_lock(&self, nr: GroupNr) -> Option<Locked<'_>> {
        let guard = self.lock.try_lock()?;
        Some(GROUP.place(nr.0.into()).hold(guard))
    }

    /// What waits in the group; nothing is released by looking.
    pub(crate) fn waiting(&self, nr: GroupNr) -> Waiting {
        let guard = self.lock(nr);
        guard
            .as_ref()
            .map_or_else(Waiting::default, |loaded| loaded.pending.waiting())
    }

    /// Requests that were answered here in full, by [`Quick`].
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

    /// What the group had when its lock was last released, read without the lock and word by
    /// word: a hint.
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

    /// Publishes the counts of a group that has no larger extent and chunk than were published.
    fn publish_counts(&self, free: u32, fragments: u32) {
        self.free.store(free, Ordering::Relaxed);
        self.fragments.store(fragments, Ordering::Relaxed);
    }
}

/// What locked groups need of the allocator around them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) index: OrderIndex,
    pub(crate) clocks: Clocks,
    pub(crate) tokens: Tokens,
    pub(crate) stats: Stats,
    pub(crate) tunables: Tunables,
    pub(crate) telling: Telling,
    pub(crate) bell: Bell,
    /// Whether what need not wait any longer waits to be visited before it is free.
    pub(crate) holds_due: AtomicBool,
}

impl Shared {
    /// When a lock was taken, if that is to be measured.
    #[inline]
    fn hold_begins(&self) -> Option<Instant> {
        #[cold]
        fn now() -> Option<Instant> {
            Some(Instant::now())
        }
        match self.tunables.get(Tunable::MbHoldTimes) {
            0 => None,
            _ => now(),
        }
    }

    /// Makes tokens of what was released, before the group's lock is.
    #[inline(never)]
    fn deposit(&self, released: u64) {
        self.tokens.deposit(CoreNr::current(), released);
    }

    /// What is left to do once a group's lock is released.
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
/// Every operation takes a lock or two, for a few dozen instructions. So what nearly always happens
/// is in line, where it stays in registers, and the rest is called with what it needs of this,
/// never with this itself, which would have to be in memory for that.
#[derive(Debug)]
pub(crate) struct LockedGroup<'a> {
    pub(crate) nr: GroupNr,
    group: &'a Group,
    /// Whether the buddy has changed, or the index needs to know what there is.
    changed: bool,
    settle: Settle,
    guard: Locked<'a>,
    /// Below the lock, so that it is dropped when that has been released.
    after: After<'a>,
}

/// What is to be known once the lock is released.
#[derive(Debug)]
struct After<'a> {
    shared: &'a Shared,
    /// Clusters that became free by their waiting having ended.
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

/// Some of the clusters to free are free, waiting, or being freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotInUse;

impl<'a> LockedGroup<'a> {
    /// Wraps a lock that has been taken; `None` if the group is not loaded. What waited in the
    /// group and need not any more becomes free here, so no list and no thread has to do it.
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
        let since = shared.hold_begins();
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
        // `enter` has seen that it is there, and nothing takes it while the lock is held.
        self.guard.as_deref().expect("locked groups are loaded")
    }

    fn loaded_mut(&mut self) -> &mut Loaded {
        self.guard.as_deref_mut().expect("locked groups are loaded")
    }

    /// The buddy.
    pub(crate) fn buddy(&self) -> &Buddy {
        &self.loaded().buddy
    }

    /// The buddy, for questions that bring it up to date.
    pub(crate) fn buddy_mut(&mut self) -> &mut Buddy {
        &mut self.loaded_mut().buddy
    }

    /// What the group has.
    pub(crate) fn fitness(&mut self) -> Fitness {
        self.buddy_mut().fitness()
    }

    /// The first offset from `from` on with `len` free clusters.
    pub(crate) fn first_fit(&mut self, from: u32, len: u32) -> Option<u32> {
        self.buddy_mut().first_fit(from, len)
    }

    /// Frees what has waited long enough; tokens are made of it once the lock is released.
    pub(crate) fn release_due(&mut self) {
        let shared = self.after.shared;
        let released = self.loaded_mut().release_due(shared);
        self.note_released(released);
    }

    fn note_released(&mut self, released: u64) {
        self.changed |= released > 0;
        self.after.released += released;
    }

    /// Claims what has waited long enough, instead of freeing it.
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
        // Under the lock, so that whoever counts what waits meets it here or there.
        shared.telling.begin(claimed.into());
        runs
    }

    /// The length from which on the device knows of all free runs, if of any.
    pub(crate) fn trimmed(&self) -> Option<ClusterCount> {
        self.loaded().trimmed
    }

    /// Notes what the device knows; lasts until something is freed.
    pub(crate) fn set_trimmed(&mut self, least: Option<ClusterCount>) {
        self.loaded_mut().trimmed = least;
    }

    /// Whether there is nothing here that the group has to be visited for: nothing waits, and no
    /// tokens are going to be made of what did.
    pub(crate) fn is_swept(&self) -> bool {
        !self.has_pending() && self.after.released == 0
    }

    /// Whether anything waits here still.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.loaded().pending.is_empty()
    }

    /// What waits here.
    pub(crate) fn waiting(&self) -> Waiting {
        self.loaded().pending.waiting()
    }

    /// Claims free clusters.
    #[inline]
    pub(crate) fn claim(&mut self, start: u32, len: u32) -> Run {
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

    /// Counts a request that was answered here in full.
    pub(crate) fn count(&self, quick: Quick) {
        let hits = &self.group.hits[quick as usize];
        // Nobody else writes it meanwhile.
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

    /// Ends a claim: the clusters are used on disk from this transaction on.
    #[inline]
    pub(crate) fn mark(&mut self, run: &Run, tid: Tid) {
        debug_assert_eq!(run.group, self.nr);
        let loaded = self.loaded_mut();
        debug_assert!(loaded.buddy.is_used(run.start.0, run.len.0));
        loaded.claimed -= run.len.0;
        loaded.pending.note_marked(run.start.0, run.end(), tid);
    }

    /// Notes that a durable record may refer to the clusters.
    pub(crate) fn logged(&mut self, run: &Run) {
        self.loaded_mut()
            .pending
            .note_logged(run.start.0, run.end());
    }

    /// Begins to free marked clusters.
    #[inline]
    pub(crate) fn begin_free(&mut self, run: &Run) -> Result<(), NotInUse> {
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

    /// The bits stay as they are.
    pub(crate) fn cancel_free(&mut self, run: &Run) {
        self.end_freeing(run);
    }

    /// The bits are cleared: the clusters wait, or are free at once if there is nothing that has
    /// not been reached.
    #[inline]
    pub(crate) fn finish_free(&mut self, run: &Run, tid: Tid, stamp: Stamp) {
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

    /// Tells the hints and the index what has changed.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        if std::mem::replace(&mut self.changed, false) {
            let (nr, group, settle, shared) = (self.nr, self.group, self.settle, self.after.shared);
            self.loaded_mut().publish(nr, group, shared, settle);
        }
    }

    /// Recomputes what is known of the group.
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
            return Err(format!("listed below what it has: {listing:?}"));
        }
        Ok(())
    }

    /// How to list the group when the lock is released.
    pub(crate) fn settle(&mut self, settle: Settle) {
        self.changed = true;
        self.settle = settle;
    }
}

impl Drop for LockedGroup<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.publish();
        // Under the lock: what waited here has tokens for everybody who no longer finds it waiting.
        if self.after.released > 0 {
            self.after.shared.deposit(self.after.released);
        }
    }
}
