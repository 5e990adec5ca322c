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
//! whenever the lock is free, but that the largest extent may have become shorter since. The group
//! is listed in the index by what it has, or a little above ([`crate::order_index`]).
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

    /// Whether the bitmap says all that there is to know.
    pub(crate) fn is_idle(&self) -> bool {
        self.claimed == 0 && self.freeing.is_empty() && self.pending.is_empty()
    }
}

/// A group.
#[derive(Debug)]
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

/// The last of all locks, after those of buffers.
const GROUP: Rank = Rank::new(95, "group");

/// A group whose lock is held.
pub(crate) type Locked<'a> = Ranked<MutexGuard<'a, Option<Box<Loaded>>>>;

impl Group {
    /// Waits for the lock of the group, which has the number `nr`.
    pub(crate) fn lock(&self, nr: GroupNr) -> Locked<'_> {
        GROUP.place(nr.0.into()).lock(|| self.lock.lock())
    }

    /// The same, unless somebody has it.
    pub(crate) fn try_lock(&self, nr: GroupNr) -> Option<Locked<'_>> {
        let guard = self.lock.try_lock()?;
        Some(GROUP.place(nr.0.into()).lock(|| guard))
    }

    pub(crate) fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            lock: Mutex::new(None),
            free: zero(),
            fragments: zero(),
            largest: zero(),
            order: zero(),
            stream: zero(),
            hits: std::array::from_fn(|_| AtomicU64::new(0)),
        }
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

    /// Publishes what a claim has changed, but for the largest extent, if that leaves the group
    /// no better than it was published to be. (Whoever claims the last of a short extent raises
    /// the average.)
    fn publish_claim(&self, buddy: &Buddy) -> bool {
        let no_better = buddy.fragments() >= self.fragments.load(Ordering::Relaxed);
        if no_better {
            self.free.store(buddy.free_clusters(), Ordering::Relaxed);
            self.fragments.store(buddy.fragments(), Ordering::Relaxed);
            let order = buddy.largest_order().unwrap_or(0);
            self.order.store(order, Ordering::Relaxed);
        }
        no_better
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
    /// Whether what need not wait any longer waits to be visited before it is free.
    pub(crate) holds_due: AtomicBool,
}

/// A loaded group whose lock this thread holds. Releasing it publishes what changed.
#[derive(Debug)]
pub(crate) struct LockedGroup<'a> {
    pub(crate) nr: GroupNr,
    group: &'a Group,
    shared: &'a Shared,
    /// Some until the lock is released.
    guard: Option<Locked<'a>>,
    change: Change,
    settle: Settle,
    /// Clusters that became free by their waiting having ended.
    released: u64,
    since: Option<Instant>,
}

/// What has happened to the buddy under the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Nothing,
    /// Clusters were claimed: the group can only have become worse, to within the average.
    Claimed,
    /// Clusters became free, or the index needs to know what there is.
    Gained,
}

/// Some of the clusters to free are free, waiting, or being freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotInUse;

impl<'a> LockedGroup<'a> {
    /// Wraps a lock that has been taken; `None` if the group is not loaded. What waited in the
    /// group and need not any more becomes free here, so no list and no thread has to do it.
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
        let waiting = !loaded.pending.is_empty();
        let since = (shared.tunables.get(Tunable::MbHoldTimes) != 0).then(Instant::now);
        let settle = Settle::Lagging;
        let guard = Some(guard);
        let mut locked = Self {
            nr,
            group,
            shared,
            guard,
            change: Change::Nothing,
            settle,
            released: 0,
            since,
        };
        if waiting && !shared.holds_due.load(Ordering::Relaxed) {
            locked.release_due();
        }
        Some(locked)
    }

    fn loaded(&self) -> &Loaded {
        // `enter` has seen that it is there, and nothing takes it while the lock is held.
        self.guard
            .as_ref()
            .and_then(|guard| guard.as_deref())
            .expect("locked groups are loaded")
    }

    fn loaded_mut(&mut self) -> &mut Loaded {
        self.guard
            .as_mut()
            .and_then(|guard| guard.as_deref_mut())
            .expect("locked groups are loaded")
    }

    /// The buddy.
    pub(crate) fn buddy(&self) -> &Buddy {
        &self.loaded().buddy
    }

    /// What the group has.
    pub(crate) fn fitness(&mut self) -> Fitness {
        self.loaded_mut().buddy.fitness()
    }

    /// The first offset from `from` on with `len` free clusters.
    pub(crate) fn first_fit(&mut self, from: u32, len: u32) -> Option<u32> {
        self.loaded_mut().buddy.first_fit(from, len)
    }

    /// Frees what has waited long enough; tokens are made of it once the lock is released.
    pub(crate) fn release_due(&mut self) {
        let shared = self.shared;
        let Loaded { buddy, pending, .. } = self.loaded_mut();
        let mut released = 0;
        pending.release(&shared.clocks, |start, end| {
            buddy.mark_free(start, end - start);
            released += u64::from(end - start);
        });
        self.note_released(released);
    }

    fn note_released(&mut self, released: u64) {
        if released > 0 {
            self.change = Change::Gained;
            self.released += released;
            self.loaded_mut().trimmed = None;
        }
    }

    /// Claims what has waited long enough, instead of freeing it.
    pub(crate) fn claim_due(&mut self) -> Vec<Run> {
        let (nr, shared) = (self.nr, self.shared);
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

    /// Whether anything waits here still.
    pub(crate) fn has_pending(&self) -> bool {
        !self.loaded().pending.is_empty()
    }

    /// What waits here.
    pub(crate) fn waiting(&self) -> Waiting {
        self.loaded().pending.waiting()
    }

    /// Claims free clusters.
    pub(crate) fn claim(&mut self, start: u32, len: u32) -> Run {
        let loaded = self.loaded_mut();
        loaded.buddy.mark_used(start, len);
        loaded.claimed += len;
        self.change = self.change.max(Change::Claimed);
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
        self.change = Change::Gained;
    }

    /// Ends a claim: the clusters are used on disk from this transaction on.
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
    pub(crate) fn finish_free(&mut self, run: &Run, tid: Tid, stamp: Stamp) {
        self.end_freeing(run);
        let shared = self.shared;
        let Loaded { buddy, pending, .. } = self.loaded_mut();
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
        self.note_released(released);
    }

    /// Tells the hints and the index what has changed. After claims alone the index may lag
    /// behind, and then nothing is recomputed for it.
    pub(crate) fn publish(&mut self) {
        let (nr, group, settle, shared) = (self.nr, self.group, self.settle, self.shared);
        let change = std::mem::replace(&mut self.change, Change::Nothing);
        let Loaded { buddy, listing, .. } = match change {
            Change::Nothing => return,
            _ => self.loaded_mut(),
        };
        if change == Change::Claimed
            && settle == Settle::Lagging
            && listing.may_lag()
            && group.publish_claim(buddy)
        {
            return;
        }
        let fitness = buddy.fitness();
        group.publish(&fitness);
        shared.index.update(nr, listing, &fitness, settle);
    }

    /// Recomputes what is known of the group.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        let hints = self.group.hints();
        let shared = self.shared;
        let Loaded { buddy, listing, .. } = self.loaded_mut();
        buddy.check()?;
        let fitness = buddy.fitness();
        let largest = fitness.largest.max(hints.largest);
        if hints != (Fitness { largest, ..fitness }) {
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
        self.change = Change::Gained;
        self.settle = settle;
    }
}

impl Drop for LockedGroup<'_> {
    fn drop(&mut self) {
        self.publish();
        self.guard = None;
        // Returning tokens may take the lock of the pools, which does not belong under this one.
        if self.released > 0 {
            self.shared.tokens.add(CoreNr::current(), self.released);
        }
        if let Some(since) = self.since {
            self.shared
                .stats
                .note_hold(CoreNr::current(), since.elapsed().as_nanos());
        }
    }
}
