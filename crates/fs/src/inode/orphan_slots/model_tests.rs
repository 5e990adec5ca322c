//! Tests of the slots under shuttle: every test holds in each explored interleaving of the tasks.

use fourscore_sync::atomic::{AtomicU32, Ordering};
use fourscore_sync::{Arc, model, thread};

use super::*;

const SCHEDULES: usize = 1500;
const BLOCKS: usize = 2;
const PER_BLOCK: usize = 2;

/// A table, and beside it the state of each slot on disk.
struct Shared {
    table: SlotTable,
    disk: [AtomicU32; BLOCKS * PER_BLOCK],
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            table: SlotTable::new(BLOCKS, PER_BLOCK),
            disk: Default::default(),
        })
    }

    fn word(&self, slot: SlotNr) -> &AtomicU32 {
        &self.disk[slot.block * PER_BLOCK + slot.index]
    }

    /// Adds an inode as an operation does: claims a slot, then writes it in a handle.
    fn add(&self, inode: u32) -> Option<SlotNr> {
        let slot = self.table.claim(InodeNr(inode), CoreNr::current())?;
        let before = self.word(slot).swap(inode, Ordering::AcqRel);
        assert_eq!(before, 0, "{slot:?} was in use");
        Some(slot)
    }

    /// Removes an inode: clears its slot in a handle, then releases it.
    fn remove(&self, slot: SlotNr, inode: u32) {
        let before = self.word(slot).swap(0, Ordering::AcqRel);
        assert_eq!(before, inode, "{slot:?} was taken by another");
        self.table.release(slot);
    }
}

fn run(tasks: u32, task: fn(&Shared, u32)) -> Arc<Shared> {
    let shared = Shared::new();
    let tasks: Vec<_> = (0..tasks)
        .map(|number| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || task(&shared, 100 + number * 10))
        })
        .collect();
    for task in tasks {
        task.join().expect("a task");
    }
    shared
}

#[test]
fn no_slot_is_used_twice_and_none_is_lost() {
    model::check(SCHEDULES, || {
        let shared = run(3, |shared, inode| {
            // All slots may be taken for a moment: then the inode goes into the chain.
            let first = shared.add(inode);
            let second = shared.add(inode + 1);
            for (slot, inode) in [(first, inode), (second, inode + 1)] {
                if let Some(slot) = slot {
                    shared.remove(slot, inode);
                }
            }
            if let Some(again) = shared.add(inode + 2) {
                shared.remove(again, inode + 2);
            }
        });
        assert_eq!(shared.table.taken(), []);
        for inode in 1..=4 {
            assert!(shared.add(inode).is_some(), "a slot was lost");
        }
        assert!(shared.add(5).is_none());
    });
}

#[test]
fn what_is_taken_is_on_disk() {
    model::check(SCHEDULES, || {
        let shared = run(2, |shared, inode| {
            // A claim misses a slot that is released in a block that it has already skipped.
            let slots = [shared.add(inode), shared.add(inode + 1)];
            if let [_, Some(slot)] = slots {
                shared.remove(slot, inode + 1);
            }
            assert!(
                slots[0].is_some(),
                "two tasks never have more than all but one"
            );
        });
        let taken = shared.table.taken();
        assert_eq!(taken.len(), 2);
        for (slot, inode) in taken {
            assert_eq!(shared.word(slot).load(Ordering::Acquire), inode.0);
        }
    });
}
