//! **Purpose.** Stream allocation: goals at which the allocation of large files continues. There
//! are several, so that writers on different cores use different groups.
//!
//! **Model.** `min(cores, groups)` goals, each a group and an offset in it (ext4 keeps the group
//! only; with large blocks a group is too large for that). Which goal a request uses is tunable:
//! one for all, as before Linux 6.17; by inode number, as since; or by core. Goals begin up to four
//! groups apart, or in neighbouring groups where there are fewer, and advance from there. So a core
//! shares its goal only where there are fewer groups than cores. The locality group of a core
//! always uses the goal of the core.
//!
//! **Locking.** One word for each goal on a line of its own, loaded and stored plainly, and stored
//! only when it changes.

use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{CachePadded, CoreNr};

use crate::num::len32;

/// The most groups from one goal to the next when an allocator is made.
const MAX_APART: u32 = 4;

/// The goals of a file system.
#[derive(Debug)]
pub(crate) struct StreamGoals {
    goals: Box<[CachePadded<AtomicU64>]>,
}

/// One of the goals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u32);

fn pack(group: GroupNr, offset: u32) -> u64 {
    u64::from(group.0) << 32 | u64::from(offset)
}

impl StreamGoals {
    pub(crate) fn new(groups: u32, cores: usize) -> Self {
        let count = u32::try_from(cores).unwrap_or(u32::MAX).min(groups).max(1);
        let apart = (groups / count).clamp(1, MAX_APART);
        // After the group in which a flex group keeps its metadata.
        let group = |i: u32| GroupNr((i * apart + 1) % groups);
        let start = |i: u32| CachePadded::new(AtomicU64::new(pack(group(i), 0)));
        Self {
            goals: (0..count).map(start).collect(),
        }
    }

    /// The goal of a request, by the value of `mb_stream_goals`.
    pub(crate) fn slot(&self, sharing: u32, inode: InodeNr, core: CoreNr) -> Slot {
        let count = len32(self.goals.len());
        match sharing {
            0 => Slot(0),
            1 => Slot(inode.0 % count),
            _ => self.of_core(core),
        }
    }

    /// All goals.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        (0..len32(self.goals.len())).map(Slot)
    }

    /// The goal of a core.
    pub(crate) fn of_core(&self, core: CoreNr) -> Slot {
        // Nearly always there is one for each core; this avoids a division, which takes as long as
        // a lock.
        let (index, count) = (core.index(), self.goals.len());
        Slot(len32(if index < count { index } else { index % count }))
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
                (streams.goals.len(), begin.len()),
                (goals, goals),
                "{groups} groups"
            );
            assert!(begin.iter().all(|&group| group < groups));
        }
    }

    #[test]
    fn a_goal_remembers_group_and_offset() {
        let goals = StreamGoals::new(100, 8);
        let core = CoreNr::current();
        let slot = goals.slot(1, InodeNr(11), core);
        assert_eq!(slot, goals.slot(1, InodeNr(19), core));
        assert_ne!(slot, goals.slot(1, InodeNr(12), core));
        assert_eq!(goals.get(slot), (GroupNr(13), GroupOffset(0)));
        goals.set(slot, GroupNr(77), 500_000);
        assert_eq!(goals.get(slot), (GroupNr(77), GroupOffset(500_000)));
        assert_eq!(goals.slot(0, InodeNr(5), core), Slot(0));
    }
}
