//! **Purpose.** The table of all groups: loads their bitmaps, evicts idle ones, and locks a group.
//!
//! **Model.** The state of a group is one word: not loaded, being loaded by one thread, loaded, or
//! unusable. The words of all groups lie side by side, apart from the groups: once all are loaded
//! no thread writes them, every core keeps them in its cache, and testing one costs a plain load.
//!
//! ```text
//! Absent -> Loading -> Loaded -> Absent   (evicted: nothing claimed, nothing pending)
//!              |  \--> Absent             (the device failed: the next request tries again)
//!              \-----> Unusable           (the bitmap is damaged, or contradicts the descriptor)
//! ```
//!
//! The thread that finds a group unusable retires its tokens and notes it in the source
//! ([`GroupSource::unusable`]). Requests for space go on with other groups.
//!
//! **Invariants.** One thread at a time makes a buddy of a bitmap, and no bitmap of a group that is
//! not loaded changes (claims and frees load first). So no buddy is ever made from a bitmap older
//! than an allocation. The free count of a group's descriptor does not change while it is not
//! loaded, for the same reason. `absent` is the number of groups with free clusters that are not
//! loaded and not unusable; each flex group has such a count of its own. A full group has nothing
//! to be found and is read only when clusters of it are freed, so it does not count. A group takes
//! memory once it, or a neighbour, was used.
//!
//! The table has space for more groups than there are ([`crate::Allocator::with_room`]). They are
//! `Absent` and in no count, and the geometry does not name them, until [`GroupTable::grow`] adds
//! them.
//!
//! **Locking.** Reading a bitmap and making the buddy hold no lock. A thread that needs a group
//! which another thread is loading waits on a condition variable; a search for space skips it.

use std::time::Instant;

use fourscore_ondisk::GroupNr;
use fourscore_sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use fourscore_sync::profile::{self, Section};
use fourscore_sync::{CachePadded, Condvar, Mutex, Sparse, Versions};

use crate::allocator::Options;
use crate::bitset::BitSet;
use crate::buddy::Buddy;
use crate::error::{Error, GroupProblem};
use crate::geometry::Geometry;
use crate::group::{Group, Loaded, LockedGroup, Shared};
use crate::num::floor_log2;
use crate::order_index::{OrderIndex, Settle};
use crate::pending::{Clocks, Waiting};
use crate::shortage::{Discards, Waiter};
use crate::source::{BitmapState, Descriptor, GroupSource, ReadError};
use crate::stats::{Count, Stats, Tally};
use crate::stream::Slot;
use crate::tokens::Tokens;
use crate::tunables::Tunables;

/// The state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupState {
    /// Its bitmap is not in memory.
    Absent,
    /// A thread is loading it.
    Loading,
    /// Its buddy is in memory.
    Loaded,
    /// Its bitmap is damaged or contradicts its descriptor: nothing is allocated or freed in it.
    Unusable,
}

/// The bits of a state word that hold the state.
const STATE_BITS: u8 = 3;
/// The bit of a state word that says that reading ahead has begun.
const READ_STARTED: u8 = 4;

impl GroupState {
    fn of(word: u8) -> Self {
        match word & STATE_BITS {
            0 => Self::Absent,
            1 => Self::Loading,
            2 => Self::Loaded,
            _ => Self::Unusable,
        }
    }

    fn bits(self) -> u8 {
        match self {
            Self::Absent => 0,
            Self::Loading => 1,
            Self::Loaded => 2,
            Self::Unusable => 3,
        }
    }
}

/// Bounds of the guess from a descriptor's free count, which does not say how long the free extents
/// are. At first a group with at least four times (2 orders more than) the length free is taken to
/// have an extent of that length; each wrong guess raises the factor by an order.
const LIKELY_ORDERS: std::ops::RangeInclusive<u32> = 2..=10;

/// The number of queues for threads that wait for a group to be loaded, chosen by its number.
const WAIT_SLOTS: u32 = 16;

#[derive(Debug, Default)]
struct WaitSlot {
    lock: Mutex<()>,
    done: Condvar,
}

/// All groups, and the structures that they share.
pub(crate) struct GroupTable {
    geometry: Versions<Geometry>,
    /// The most groups that it can get.
    room: u32,
    pub(crate) source: Box<dyn GroupSource>,
    pub(crate) shared: Shared,
    /// Groups with pending clusters. A sweep clears the bit of a group when nothing is pending any
    /// more and the tokens of released clusters have been added.
    pub(crate) waiting: BitSet,
    states: Box<[AtomicU8]>,
    groups: Sparse<Group>,
    /// Groups with free clusters that are not loaded: zero means that nothing is left to prefetch.
    absent: CachePadded<AtomicU32>,
    flex_absent: Box<[AtomicU32]>,
    /// Groups that are not loaded, full ones included.
    not_loaded: CachePadded<AtomicU32>,
    wait_slots: Box<[CachePadded<WaitSlot>]>,
    /// See [`GroupTable::likely_orders`]; written when a bitmap had to be waited for.
    likely_orders: CachePadded<AtomicU32>,
    /// Where the next eviction pass goes on.
    evict_cursor: Mutex<u32>,
}

impl std::fmt::Debug for GroupTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupTable")
            .field("geometry", self.geometry())
            .finish_non_exhaustive()
    }
}

/// Whether to wait for a busy group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Skip the group.
    Skip,
    /// Wait.
    Wait,
}

impl GroupTable {
    /// Makes a table with nothing loaded, which can get `room` groups; reads each descriptor once.
    pub(crate) fn new(
        geometry: Geometry,
        source: Box<dyn GroupSource>,
        options: &Options,
        room: u32,
    ) -> Self {
        let groups = geometry.groups();
        let room = room.max(groups);
        let flex = geometry.flex_groups();
        let index = OrderIndex::new(room, geometry.orders());
        let (mut free, mut absent) = (0, 0);
        let mut flex_absent = vec![0; room.div_ceil(flex) as usize];
        for group in (0..groups).map(GroupNr) {
            let descriptor = source.descriptor(group);
            free += u64::from(descriptor.free.0.min(geometry.clusters_in(group)));
            list_absent(&index, group, &descriptor);
            let counts = u32::from(has_space(&descriptor));
            absent += counts;
            flex_absent[(group.0 / flex) as usize] += counts;
        }
        Self {
            source,
            shared: Shared {
                index,
                clocks: Clocks::new(options.durable),
                tokens: Tokens::new(free, options.root_clusters, options.reserved_clusters),
                stats: Stats::default(),
                tunables: Tunables::new(geometry),
                discards: Discards::default(),
                waiter: Waiter::default(),
                holds_due: AtomicBool::new(false),
            },
            waiting: BitSet::new(room),
            states: (0..room).map(|_| AtomicU8::new(0)).collect(),
            groups: Sparse::new(room as usize),
            absent: CachePadded::new(AtomicU32::new(absent)),
            flex_absent: flex_absent.into_iter().map(AtomicU32::new).collect(),
            not_loaded: CachePadded::new(AtomicU32::new(groups)),
            wait_slots: (0..WAIT_SLOTS).map(|_| CachePadded::default()).collect(),
            likely_orders: CachePadded::new(AtomicU32::new(*LIKELY_ORDERS.start())),
            evict_cursor: Mutex::new(0),
            geometry: Versions::new(geometry),
            room,
        }
    }

    /// The division into groups, which changes when the file system grows.
    #[inline]
    pub(crate) fn geometry(&self) -> &Geometry {
        self.geometry.get()
    }

    /// The most groups that there can be.
    pub(crate) fn room(&self) -> u32 {
        self.room
    }

    /// Publishes a geometry with more clusters, whose new groups the source has already. Returns
    /// the free clusters of the new groups. No other thread grows the table meanwhile.
    ///
    /// The counts of absent groups grow first, since a thread that loads a new group decrements
    /// them. The groups are also listed before the geometry: until it is published, no search looks
    /// so far.
    pub(crate) fn grow(&self, new: Geometry) -> u64 {
        let old = self.geometry().groups();
        let added = (old..new.groups().min(self.room)).map(GroupNr);
        let mut free = 0;
        for nr in added {
            let descriptor = self.source.descriptor(nr);
            self.count_absent(nr, &descriptor, |n| n + 1);
            list_absent(&self.shared.index, nr, &descriptor);
            free += u64::from(descriptor.free.0.min(new.clusters_in(nr)));
        }
        self.geometry.publish(new);
        free
    }

    fn group(&self, nr: GroupNr) -> &Group {
        let group = self.groups.get(nr.0 as usize);
        group.expect("a group of this file system")
    }

    fn state_word(&self, group: GroupNr) -> &AtomicU8 {
        &self.states[group.0 as usize]
    }

    /// See [`crate::Allocator::lay_out_as_ext4`].
    #[cfg(feature = "count")]
    pub(crate) fn lay_out_as_ext4(&self, cores: &fourscore_sync::count::Cores) {
        for nr in (0..self.geometry().groups()).map(GroupNr) {
            self.group(nr).lay_out_as_ext4(cores, self.state_word(nr));
        }
    }

    /// The state of a group: one plain load.
    pub(crate) fn state(&self, group: GroupNr) -> GroupState {
        GroupState::of(self.state_word(group).load(Ordering::Acquire))
    }

    /// Groups with free clusters that are not loaded.
    pub(crate) fn absent(&self) -> u32 {
        self.absent.load(Ordering::Relaxed)
    }

    /// Groups that are not loaded, full ones included.
    pub(crate) fn not_loaded(&self) -> u32 {
        self.not_loaded.load(Ordering::Relaxed)
    }

    /// Groups of a group's flex group that have free clusters and are not loaded.
    pub(crate) fn flex_absent(&self, group: GroupNr) -> u32 {
        self.flex_absent[(group.0 / self.geometry().flex_groups()) as usize].load(Ordering::Relaxed)
    }

    /// The free space of a loaded group when its lock was last released.
    pub(crate) fn hints(&self, group: GroupNr) -> crate::order_index::Fitness {
        self.group(group).hints()
    }

    /// Adds the requests that groups have counted.
    pub(crate) fn add_hits(&self, sum: &mut Tally) {
        for group in self.groups.allocated() {
            sum.add_quick(group.hits());
        }
    }

    /// The order of the factor by which the free count of a group that is not loaded must exceed a
    /// length, so that the group is likely to have an extent of that length.
    pub(crate) fn likely_orders(&self) -> u32 {
        self.likely_orders.load(Ordering::Relaxed)
    }

    /// Adjusts the guess by whether a group that was loaded for an extent had it. Concurrent
    /// adjustments may get lost.
    pub(crate) fn note_guess(&self, was_right: bool) {
        let orders = self.likely_orders();
        let next = if was_right { orders - 1 } else { orders + 1 };
        if LIKELY_ORDERS.contains(&next) {
            self.likely_orders.store(next, Ordering::Relaxed);
        }
    }

    /// The stream goal that was last in a group: a hint.
    pub(crate) fn stream(&self, group: GroupNr) -> Option<Slot> {
        self.group(group).stream()
    }

    /// Notes that a stream goal is in a group.
    pub(crate) fn set_stream(&self, group: GroupNr, slot: Slot) {
        self.group(group).set_stream(slot);
    }

    /// Whether a group is not loaded and reading its bitmap has not begun: one plain load.
    pub(crate) fn is_unread(&self, group: GroupNr) -> bool {
        let word = self.state_word(group).load(Ordering::Relaxed);
        GroupState::of(word) == GroupState::Absent && word & READ_STARTED == 0
    }

    /// Notes that a group's bitmap is being read ahead; returns whether this call was the first.
    /// Takes the word's cache line exclusively either way.
    pub(crate) fn start_read(&self, group: GroupNr) -> bool {
        let before = self
            .state_word(group)
            .fetch_or(READ_STARTED, Ordering::AcqRel);
        GroupState::of(before) == GroupState::Absent && before & READ_STARTED == 0
    }

    /// Locks a loaded group; `None` if it is not loaded or, with [`Patience::Skip`], busy.
    #[inline(always)]
    pub(crate) fn lock(&self, nr: GroupNr, patience: Patience) -> Option<LockedGroup<'_>> {
        let group = self.group(nr);
        let guard = match patience {
            Patience::Skip => group.try_lock(nr)?,
            Patience::Wait => group.lock(nr),
        };
        LockedGroup::enter(nr, group, &self.shared, guard)
    }

    /// Counts the clusters that are going to become free: those pending and those being discarded.
    pub(crate) fn becoming_free(&self) -> Waiting {
        let mut waiting = Waiting::default();
        self.waiting.for_each_leaf(|nr| {
            waiting.add(&self.group(GroupNr(nr)).waiting(GroupNr(nr)));
        });
        // Last: clusters that have left their group are being discarded by now, or have been.
        waiting.clusters += self.shared.discards.clusters();
        waiting
    }

    /// Locks a group, loading it first if it is not loaded.
    ///
    /// # Errors
    /// Those of [`GroupTable::load`].
    pub(crate) fn lock_loaded(
        &self,
        nr: GroupNr,
        tally: &mut Tally,
    ) -> Result<LockedGroup<'_>, Error> {
        loop {
            // An eviction may come between loading and locking; then load again.
            if let Some(locked) = self.lock(nr, Patience::Wait) {
                return Ok(locked);
            }
            self.load(nr, Patience::Wait, tally)?;
        }
    }

    /// Loads a group, unless it is loaded. With [`Patience::Skip`], returns at once if another
    /// thread is loading it.
    ///
    /// # Errors
    /// [`Error::Source`] if the device fails, [`Error::Group`] if the bitmap is damaged or
    /// contradicts the descriptor.
    pub(crate) fn load(
        &self,
        nr: GroupNr,
        patience: Patience,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let word = self.state_word(nr);
        loop {
            match self.state(nr) {
                GroupState::Loaded => return Ok(()),
                GroupState::Unusable => {
                    return Err(Error::Group {
                        group: nr,
                        problem: GroupProblem::Unusable,
                    });
                }
                GroupState::Loading if patience == Patience::Skip => return Ok(()),
                GroupState::Loading => self.wait_for(nr),
                GroupState::Absent => {
                    let now = word.load(Ordering::Relaxed);
                    let loading = (now & !STATE_BITS) | GroupState::Loading.bits();
                    let mine = GroupState::of(now) == GroupState::Absent
                        && word
                            .compare_exchange(now, loading, Ordering::AcqRel, Ordering::Relaxed)
                            .is_ok();
                    if mine {
                        let descriptor = self.source.descriptor(nr);
                        let result = self.load_buddy(nr, &descriptor, tally);
                        self.finish_loading(nr, &descriptor, &result);
                        return result;
                    }
                }
            }
        }
    }

    /// Waits until the thread that loads a group has finished.
    fn wait_for(&self, nr: GroupNr) {
        let slot = &self.wait_slots[(nr.0 % WAIT_SLOTS) as usize];
        let mut guard = slot.lock.lock();
        while self.state(nr) == GroupState::Loading {
            slot.done.wait(&mut guard);
        }
    }

    /// Makes the buddy and installs it. This thread has set the state to `Loading`.
    fn load_buddy(
        &self,
        nr: GroupNr,
        descriptor: &Descriptor,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let _section = profile::enter(Section::Bitmap);
        let mut bitmap = vec![0; self.geometry().bitmap_bytes()];
        match self.source.read_bitmap(nr, &mut bitmap) {
            Ok(()) => {}
            Err(ReadError::Failed(error)) => return Err(Error::Source { group: nr, error }),
            Err(ReadError::Corrupt(error)) => {
                unlist_absent(&self.shared.index, nr, descriptor);
                return Err(self.unusable(nr, descriptor, Error::Source { group: nr, error }));
            }
        }
        let since = Instant::now();
        let buddy = Buddy::new(
            self.geometry().clusters_in(nr),
            self.geometry().orders(),
            &bitmap,
        );
        tally[Count::BuddiesGenerated] += 1;
        tally[Count::BuddiesTimeUsed] +=
            u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (found, expected) = (buddy.free_clusters(), descriptor.free.0);
        unlist_absent(&self.shared.index, nr, descriptor);
        if found != expected {
            let problem = GroupProblem::FreeCount { found, expected };
            return Err(self.unusable(nr, descriptor, Error::Group { group: nr, problem }));
        }
        let group = self.group(nr);
        let mut guard = group.lock(nr);
        let mut loaded = Box::new(Loaded::new(buddy));
        let fitness = loaded.buddy.fitness();
        group.publish(&fitness);
        self.shared
            .index
            .update(nr, &mut loaded.listing, &fitness, Settle::AtOnce);
        loaded.buddy.set_listed();
        *guard = Some(loaded);
        Ok(())
    }

    /// Retires the tokens of a group that is not going to be used, and notes the reason in the
    /// source. Returns the error for the caller.
    fn unusable(&self, nr: GroupNr, descriptor: &Descriptor, why: Error) -> Error {
        // The tokens were made from the descriptor.
        let counted = descriptor.free.0.min(self.geometry().clusters_in(nr));
        self.shared.tokens.retire(u64::from(counted));
        self.source.unusable(nr, why);
        let problem = GroupProblem::Unusable;
        Error::Group { group: nr, problem }
    }

    fn finish_loading(&self, nr: GroupNr, descriptor: &Descriptor, result: &Result<(), Error>) {
        let state = match result {
            Ok(()) => GroupState::Loaded,
            Err(Error::Source { .. }) => GroupState::Absent,
            Err(_) => GroupState::Unusable,
        };
        if state != GroupState::Absent {
            self.count_absent(nr, descriptor, |n| n - 1);
        }
        let slot = &self.wait_slots[(nr.0 % WAIT_SLOTS) as usize];
        let guard = slot.lock.lock();
        self.set_state(nr, state);
        drop(guard);
        slot.done.notify_all();
    }

    fn set_state(&self, nr: GroupNr, state: GroupState) {
        let change = |word: u8| Some((word & !STATE_BITS) | state.bits());
        // The closure never declines.
        let _ = self
            .state_word(nr)
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
    }

    fn count_absent(&self, nr: GroupNr, descriptor: &Descriptor, change: fn(u32) -> u32) {
        let flex = &self.flex_absent[(nr.0 / self.geometry().flex_groups()) as usize];
        let counts = [&*self.not_loaded, &*self.absent, flex];
        let applying = if has_space(descriptor) { 3 } else { 1 };
        for count in &counts[..applying] {
            // The closure never declines.
            let _ = count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| Some(change(n)));
        }
    }

    /// Evicts the buddy of a group, unless clusters are claimed or pending in it, or it was used
    /// since the last pass. Returns whether it did.
    fn evict(&self, nr: GroupNr) -> bool {
        // The descriptor of an idle group does not change before the group is locked again.
        let descriptor = self.source.descriptor(nr);
        let group = self.group(nr);
        let Some(mut guard) = group.try_lock(nr) else {
            return false;
        };
        let Some(loaded) = guard.as_mut() else {
            return false;
        };
        let unused = !std::mem::replace(&mut loaded.touched, false);
        if !unused || !loaded.is_idle() || loaded.buddy.free_clusters() != descriptor.free.0 {
            return false;
        }
        self.shared.index.forget(nr, &mut loaded.listing);
        *guard = None;
        list_absent(&self.shared.index, nr, &descriptor);
        self.count_absent(nr, &descriptor, |n| n + 1);
        let absent = |word: u8| Some(word & !STATE_BITS & !READ_STARTED);
        // The closure never declines. Last, because from here on another thread may load the group.
        let _ = self
            .state_word(nr)
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, absent);
        true
    }

    /// Recomputes and compares hints and listing of every loaded group.
    pub(crate) fn check(&self) -> Result<(), String> {
        for nr in (0..self.geometry().groups()).map(GroupNr) {
            if self.state(nr) != GroupState::Loaded {
                continue;
            }
            let Some(mut locked) = self.lock(nr, Patience::Wait) else {
                continue;
            };
            // Locking may have released pending clusters, which are not published yet.
            locked.publish();
            locked
                .check()
                .map_err(|what| format!("group {nr}: {what}"))?;
        }
        Ok(())
    }

    /// Evicts up to `most` idle groups, beginning where the last pass ended, and returns how many
    /// it evicted. A group that was used since the last pass is spared once.
    pub(crate) fn evict_idle(&self, most: u32) -> u32 {
        let mut evicted = 0;
        for _ in 0..self.geometry().groups().saturating_mul(2) {
            if evicted >= most {
                break;
            }
            let nr = {
                let mut cursor = self.evict_cursor.lock();
                let nr = *cursor;
                *cursor = (nr + 1) % self.geometry().groups();
                GroupNr(nr)
            };
            if self.state(nr) == GroupState::Loaded && self.evict(nr) {
                evicted += 1;
            }
        }
        evicted
    }
}

/// Whether a search can find anything in a group.
fn has_space(descriptor: &Descriptor) -> bool {
    descriptor.free.0 > 0
}

fn absent_bin(descriptor: &Descriptor) -> Option<u32> {
    has_space(descriptor).then(|| floor_log2(descriptor.free.0))
}

/// The family of bins for a group that is not loaded. A free count too large for the bins goes to
/// the last one.
fn absent_family<'a>(
    index: &'a OrderIndex,
    descriptor: &Descriptor,
) -> &'a crate::order_index::Bins {
    match descriptor.state {
        BitmapState::Uninit => &index.uninit,
        BitmapState::Written => &index.unread,
    }
}

fn list_absent(index: &OrderIndex, group: GroupNr, descriptor: &Descriptor) {
    if let Some(bin) = absent_bin(descriptor) {
        let family = absent_family(index, descriptor);
        family.insert(bin.min(family.bins() - 1), group);
    }
}

fn unlist_absent(index: &OrderIndex, group: GroupNr, descriptor: &Descriptor) {
    if let Some(bin) = absent_bin(descriptor) {
        let family = absent_family(index, descriptor);
        family.remove(bin.min(family.bins() - 1), group);
    }
}
