//! **Purpose.** Stream allocation: goals at which the allocation of large files continues. There
//! are several, so that writers on different cores use different groups.
//!
//! **Model.** Which goal a request uses is tunable: one for all, as before Linux 6.17; by inode
//! number, as since; or by core. Goals by core are `min(cores, groups)`, each a group and an offset
//! in it. The shared ones are as in ext4: `min(cores, groups / 4)`, rounded up, groups without an
//! offset (with large blocks a group is too large for that), all beginning in group 0. Goals by
//! core begin up to four groups apart, or in neighbouring groups where there are fewer. So a core
//! shares its goal only where there are fewer groups than cores. The locality group of a core uses
//! the goal of the core, or none where goals are shared.
//!
//! A goal moves to the end of each run that was found from it. In ext4 it moves also when a file is
//! continued at its own goal, so that the next file begins behind the one that grew last. Shared
//! goals do the same here. A goal by core stays: otherwise a core that continues a file of another
//! core would follow it into the group in which that core allocates.
//!
//! **Locking.** One word for each goal on a line of its own, loaded and stored plainly, and stored
//! only when it changes.

use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{CachePadded, CoreNr};

use crate::num::len32;

/// The value of `mb_stream_goals` for a goal by core.
pub(crate) const BY_CORE: u32 = 2;

/// The most groups from one goal to the next when an allocator is made.
const MAX_APART: u32 = 4;

/// The goals of a file system.
#[derive(Debug)]
pub(crate) struct StreamGoals {
    /// Those by core, and after them the shared ones.
    goals: Box<[CachePadded<AtomicU64>]>,
    by_core: u32,
}

/// One of the goals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u32);

fn pack(group: GroupNr, offset: u32) -> u64 {
    u64::from(group.0) << 32 | u64::from(offset)
}

impl StreamGoals {
    pub(crate) fn new(groups: u32, cores: usize) -> Self {
        let cores = u32::try_from(cores).unwrap_or(u32::MAX);
        let by_core = cores.min(groups).max(1);
        let shared = cores.min(groups.div_ceil(4)).max(1);
        let apart = (groups / by_core).clamp(1, MAX_APART);
        // After the group in which a flex group keeps its metadata.
        let group = |i: u32| GroupNr((i * apart + 1) % groups);
        let start = (0..by_core).map(group);
        let start = start.chain((0..shared).map(|_| GroupNr(0)));
        Self {
            goals: start
                .map(|group| CachePadded::new(AtomicU64::new(pack(group, 0))))
                .collect(),
            by_core,
        }
    }

    /// The goal of a request, by the value of `mb_stream_goals`.
    pub(crate) fn slot(&self, sharing: u32, inode: InodeNr, core: CoreNr) -> Slot {
        let shared = || len32(self.goals.len()) - self.by_core;
        match sharing {
            0 => Slot(self.by_core),
            1 => Slot(self.by_core + inode.0 % shared()),
            _ => self.of_core(core),
        }
    }

    /// The goals by core.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        (0..self.by_core).map(Slot)
    }

    /// The goal of a core.
    pub(crate) fn of_core(&self, core: CoreNr) -> Slot {
        // Nearly always there is one for each core; this avoids a division, which takes as long as
        // a lock.
        let (index, count) = (len32(core.index()), self.by_core);
        Slot(if index < count { index } else { index % count })
    }

    pub(crate) fn get(&self, slot: Slot) -> (GroupNr, GroupOffset) {
        let packed = self.goals[slot.0 as usize].load(Ordering::Relaxed);
        let offset = u32::try_from(packed & u64::from(u32::MAX)).unwrap_or(0);
        (
            GroupNr(u32::try_from(packed >> 32).unwrap_or(0)),
            GroupOffset(offset),
        )
    }

    pub(crate) fn set(&self, slot: Slot, group: GroupNr, offset: u32) {
        let goal = &self.goals[slot.0 as usize];
        let offset = if slot.0 < self.by_core { offset } else { 0 };
        let packed = pack(group, offset);
        if goal.load(Ordering::Relaxed) != packed {
            goal.store(packed, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_goals_as_cores_and_each_begins_in_a_group_of_its_own() {
        for (groups, goals) in [(1000, 80), (81, 80), (80, 80), (13, 13), (1, 1)] {
            let streams = StreamGoals::new(groups, 80);
            let begin = streams.slots().map(|slot| streams.get(slot).0);
            let begin: std::collections::BTreeSet<u32> = begin.map(|group| group.0).collect();
            assert_eq!(
                (streams.slots().count(), begin.len()),
                (goals, goals),
                "{groups} groups"
            );
            assert!(begin.iter().all(|&group| group < groups));
        }
    }

    #[test]
    fn a_goal_of_a_core_remembers_group_and_offset() {
        let goals = StreamGoals::new(100, 8);
        let slot = goals.of_core(CoreNr::current());
        assert_eq!(slot, goals.slot(BY_CORE, InodeNr(5), CoreNr::current()));
        goals.set(slot, GroupNr(77), 500_000);
        assert_eq!(goals.get(slot), (GroupNr(77), GroupOffset(500_000)));
    }

    #[test]
    fn shared_goals_are_those_of_ext4() {
        let core = CoreNr::current();
        for (groups, count) in [(100, 8), (32, 8), (29, 8), (28, 7), (5, 2), (1, 1)] {
            let goals = StreamGoals::new(groups, 8);
            let slot = |inode| goals.slot(1, InodeNr(inode), core);
            assert_eq!(slot(11), slot(11 + count), "{groups} groups");
            assert_eq!(count == 1, slot(11) == slot(12), "{groups} groups");
            assert_eq!(goals.get(slot(11)), (GroupNr(0), GroupOffset(0)));
            assert!(goals.slots().all(|own| own != slot(11)));
            goals.set(slot(11), GroupNr(groups - 1), 500);
            assert_eq!(goals.get(slot(11)), (GroupNr(groups - 1), GroupOffset(0)));
            let of_all = goals.slot(0, InodeNr(5), core);
            assert_eq!(of_all, goals.slot(0, InodeNr(6), core));
        }
    }
}
