//! **Purpose.** Prefetch: reads block bitmaps ahead, at no cost once all are loaded.
//!
//! **Model.** Three tests, cheapest first: the number of groups not loaded, one word for the whole
//! file system that no thread writes any more once it is zero; the same number for the flex group;
//! the group's own state. The descriptor is read only if all three pass. Groups whose reading has
//! begun are in a list of the core that began it; when their bitmaps have arrived, later requests
//! of that core make the buddies, a few each. A request of a core whose own list has nothing to do
//! looks into the list of one other core, each time of the next one, so a list is emptied although
//! its core allocates no more. A thread that needs a group before that loads it itself. Bitmaps
//! that were never written need no I/O and have arrived at once.
//!
//! **Locking.** A locked list for each core. One count of the groups in all lists, written when a
//! batch is begun or finished, is all that a request loads while nothing is being read. The lists
//! of other cores are tried, never waited for.
//!
//! **References.** ext4 repeats the walk over the states for each criterion of each allocation, and
//! its state words lie in the groups. For comparison, `mb_prefetch_test` restores its test of a
//! group as it was before 2026, and after each of two patches of that year.

use fourscore_ondisk::GroupNr;
use fourscore_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use fourscore_sync::{CachePadded, CoreNr, Mutex, PerCore};

use crate::num::len32;
use crate::stats::{Count, Tally};
use crate::table::{GroupTable, Patience};
use crate::tunables::Tunable;

/// Groups whose bitmaps are being read.
#[derive(Debug)]
pub(crate) struct Started {
    /// Groups in all lists.
    count: CachePadded<AtomicU32>,
    cores: PerCore<List>,
}

#[derive(Debug)]
struct List {
    groups: Mutex<Vec<GroupNr>>,
    /// The core whose list this core has last looked into.
    visited: AtomicUsize,
}

impl Started {
    pub(crate) fn new() -> Self {
        Self {
            count: CachePadded::new(AtomicU32::new(0)),
            cores: PerCore::new(|core| List {
                groups: Mutex::new(Vec::new()),
                visited: AtomicUsize::new(core.index()),
            }),
        }
    }

    fn add(&self, core: CoreNr, groups: &[GroupNr]) {
        // First: the groups of a list are never more than those counted.
        self.count.fetch_add(len32(groups.len()), Ordering::Relaxed);
        self.cores.of(core).groups.lock().extend_from_slice(groups);
    }

    /// Whether no group is in any list: one plain load.
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Removes and returns up to `most` groups for which `arrived` holds, from the list of a core,
    /// or else from that of one other core.
    fn take_arrived(
        &self,
        core: CoreNr,
        most: usize,
        arrived: impl Fn(GroupNr) -> bool,
    ) -> Vec<GroupNr> {
        let own = self.cores.of(core);
        let mut taken = take_from(&mut own.groups.lock(), most, &arrived);
        if taken.is_empty() {
            let next = CoreNr::new(own.visited.load(Ordering::Relaxed) + 1);
            let other = next.or(CoreNr::new(0)).unwrap_or(core);
            own.visited.store(other.index(), Ordering::Relaxed);
            if let Some(mut groups) = self.cores.of(other).groups.try_lock() {
                taken = take_from(&mut groups, most, &arrived);
            }
        }
        if !taken.is_empty() {
            self.count.fetch_sub(len32(taken.len()), Ordering::Relaxed);
        }
        taken
    }
}

/// Removes and returns up to `most` groups of a list for which `arrived` holds.
fn take_from(
    groups: &mut Vec<GroupNr>,
    most: usize,
    arrived: impl Fn(GroupNr) -> bool,
) -> Vec<GroupNr> {
    let mut taken = Vec::new();
    groups.retain(|&group| {
        let take = taken.len() < most && arrived(group);
        if take {
            taken.push(group);
        }
        !take
    });
    taken
}

/// How a group's state is tested: the values of `mb_prefetch_test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    /// As at the head of this module.
    Counted,
    /// The descriptor, then a locked read-modify-write.
    Locked,
    /// The descriptor, a plain load, and the read-modify-write only where that asks for it.
    DescriptorFirst,
    /// The plain load before the other two.
    Plain,
}

impl Test {
    fn of(tunable: u32) -> Self {
        match tunable {
            0 => Self::Counted,
            1 => Self::Locked,
            2 => Self::DescriptorFirst,
            _ => Self::Plain,
        }
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
    let groups = table.geometry().groups();
    let flex = table.geometry().flex_groups();
    let mut most = table.shared.tunables.get(Tunable::MbPrefetch);
    if flex > 1 {
        most = most.min(flex - from.0 % flex);
    }
    let most = most.min(groups - from.0);
    let end = GroupNr((from.0 + most) % groups);
    let test = Test::of(table.shared.tunables.get(Tunable::MbPrefetchTest));
    if test == Test::Counted && (table.absent() == 0 || (flex > 1 && table.flex_absent(from) == 0))
    {
        return (end, 0);
    }
    let mut batch = Vec::new();
    for group in (from.0..from.0 + most).map(GroupNr) {
        if wants_reading(table, group, test, tally) {
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

/// Tests whether the caller is to begin reading a group's bitmap.
fn wants_reading(table: &GroupTable, group: GroupNr, test: Test, tally: &mut Tally) -> bool {
    let fetch = |tally: &mut Tally| {
        tally[Count::PrefetchDescriptors] += 1;
        table.source.descriptor(group)
    };
    let first = matches!(test, Test::Locked | Test::DescriptorFirst).then(|| fetch(tally));
    if test != Test::Locked {
        tally[Count::PrefetchTests] += 1;
        if !table.is_unread(group) {
            return false;
        }
    }
    tally[Count::PrefetchLockedTests] += 1;
    if !table.start_read(group) {
        return false;
    }
    first.unwrap_or_else(|| fetch(tally)).free.0 > 0
}

/// Makes buddies of bitmaps that were prefetched and that have arrived. Errors are ignored here; a
/// request that needs the group gets them.
pub(crate) fn finish(table: &GroupTable, started: &Started, core: CoreNr, tally: &mut Tally) {
    if started.is_empty() {
        return;
    }
    let arrived = |group| table.source.has_arrived(group);
    for group in started.take_arrived(core, MAX_FINISHED, arrived) {
        let _ = table.load(group, Patience::Skip, tally);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn what_every_core_began_one_core_finishes() {
        let (started, core) = (Started::new(), CoreNr::current());
        let groups = [GroupNr(3), GroupNr(4)];
        CoreNr::all().for_each(|core| started.add(core, &groups));
        assert!(started.take_arrived(core, 8, |_| false).is_empty());
        // A request looks into its own list and into one other.
        let requests = 0..CoreNr::count() + 1;
        let taken = requests.map(|_| started.take_arrived(core, 8, |_| true).len());
        assert_eq!(taken.sum::<usize>(), groups.len() * CoreNr::count());
        assert!(started.is_empty());
    }
}
