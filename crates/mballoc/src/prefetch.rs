//! **Purpose.** Prefetch: reads block bitmaps ahead, at no cost once all are loaded.
//!
//! **Model.** Three tests, cheapest first: the number of groups not loaded, one word for the whole
//! file system that no thread writes any more once it is zero; the same number for the flex group;
//! the group's own state. The descriptor is read only if all three pass. Groups whose reading
//! has begun are in a list of the core that began it; when their bitmaps have arrived, later
//! requests of that core make the buddies, a few each. A thread that needs a group before that
//! loads it itself. Bitmaps that were never written need no I/O and have arrived at once.
//!
//! **Locking.** A locked list for each core, with a count beside its lock, so that testing an empty
//! list costs a load.
//!
//! **References.** Ext4 repeats the walk over the states for each criterion of each allocation;
//! `mb_prefetch_locked` brings back what it did before 2026, a locked read-modify-write and a
//! descriptor for each group of the walk, for comparison.

use fourscore_ondisk::GroupNr;
use fourscore_sync::atomic::{AtomicU32, Ordering};
use fourscore_sync::{CoreNr, Mutex, PerCore};

use crate::num::len32;
use crate::stats::{Count, Tally};
use crate::table::{GroupTable, Patience};
use crate::tunables::Tunable;

/// Groups whose bitmaps are being read.
#[derive(Debug)]
pub(crate) struct Started {
    cores: PerCore<List>,
}

#[derive(Debug)]
struct List {
    count: AtomicU32,
    groups: Mutex<Vec<GroupNr>>,
}

impl Started {
    pub(crate) fn new() -> Self {
        Self {
            cores: PerCore::new(|_| List {
                count: AtomicU32::new(0),
                groups: Mutex::new(Vec::new()),
            }),
        }
    }

    fn add(&self, core: CoreNr, groups: &[GroupNr]) {
        let list = self.cores.of(core);
        let mut guard = list.groups.lock();
        guard.extend_from_slice(groups);
        list.count.store(len32(guard.len()), Ordering::Relaxed);
    }

    /// Removes and returns up to `most` groups for which `arrived` holds.
    fn take_arrived(
        &self,
        core: CoreNr,
        most: usize,
        arrived: impl Fn(GroupNr) -> bool,
    ) -> Vec<GroupNr> {
        let list = self.cores.of(core);
        if list.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut guard = list.groups.lock();
        let mut taken = Vec::new();
        guard.retain(|&group| {
            let take = taken.len() < most && arrived(group);
            if take {
                taken.push(group);
            }
            !take
        });
        list.count.store(len32(guard.len()), Ordering::Relaxed);
        taken
    }
}

/// The most buddies that one request makes of bitmaps that have arrived, so that no request pays
/// for all.
const MAX_FINISHED: usize = 8;

/// Begins to read bitmaps from `from` on: up to `mb_prefetch` groups, within one flex group.
/// Returns the group after the last it tested, and how many reads it began.
pub(crate) fn read_ahead(
    table: &GroupTable,
    started: &Started,
    from: GroupNr,
    core: CoreNr,
    tally: &mut Tally,
) -> (GroupNr, u32) {
    let groups = table.geometry.groups();
    let flex = table.geometry.flex_groups();
    let mut most = table.shared.tunables.get(Tunable::MbPrefetch);
    if flex > 1 {
        most = most.min(flex - from.0 % flex);
    }
    let most = most.min(groups - from.0);
    let end = GroupNr((from.0 + most) % groups);
    let locked = table.shared.tunables.get(Tunable::MbPrefetchLocked) != 0;
    if !locked && (table.absent() == 0 || (flex > 1 && table.flex_absent(from) == 0)) {
        return (end, 0);
    }
    let mut batch = Vec::new();
    for group in (from.0..from.0 + most).map(GroupNr) {
        if wants_reading(table, group, locked, tally) {
            batch.push(group);
        }
    }
    if !batch.is_empty() {
        tally[Count::PrefetchedBitmaps] += u64::from(len32(batch.len()));
        table.source.prefetch(&batch);
        started.add(core, &batch);
    }
    (end, len32(batch.len()))
}

/// Tests whether the caller is to begin reading a group's bitmap. The `locked` variant, as in ext4
/// before 2026, fetches the descriptor and takes the state's cache line whatever the state is.
fn wants_reading(table: &GroupTable, group: GroupNr, locked: bool, tally: &mut Tally) -> bool {
    let mut descriptor = None;
    if locked {
        tally[Count::PrefetchDescriptors] += 1;
        descriptor = Some(table.source.descriptor(group));
    } else {
        tally[Count::PrefetchTests] += 1;
        if !table.is_unread(group) {
            return false;
        }
    }
    tally[Count::PrefetchLockedTests] += 1;
    if !table.start_read(group) {
        return false;
    }
    let descriptor = descriptor.unwrap_or_else(|| {
        tally[Count::PrefetchDescriptors] += 1;
        table.source.descriptor(group)
    });
    descriptor.free.0 > 0
}

/// Makes buddies of bitmaps that this core prefetched and that have arrived. Errors are ignored
/// here; a request that needs the group gets them.
pub(crate) fn finish(table: &GroupTable, started: &Started, core: CoreNr, tally: &mut Tally) {
    let arrived = |group| table.source.has_arrived(group);
    for group in started.take_arrived(core, MAX_FINISHED, arrived) {
        let _ = table.load(group, Patience::Skip, tally);
    }
}
