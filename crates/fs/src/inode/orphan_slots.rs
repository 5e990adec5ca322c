//! **Purpose.** Allocates the slots of the orphan file.
//!
//! **Model.** The file is a number of blocks, each with space for some thousand inode numbers. A
//! core first searches a block of its own, near the slot that was claimed or released last. It goes
//! on to other blocks only if that block is locked by another thread or full. So cores that unlink
//! open files contend only if there are more cores than blocks.
//!
//! **Invariants.** A slot belongs to one inode at a time. The disk follows: a slot is written in
//! the handle of the operation that claimed it, and released here after the handle that cleared it
//! has stopped.
//!
//! **Locking.** One lock for each block, a leaf; no two are held at once.

use fourscore_ondisk::InodeNr;
use fourscore_sync::{CachePadded, CoreNr, Mutex, MutexGuard};

/// A slot: the block of the file, and the index in that block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotNr {
    pub(crate) block: usize,
    pub(crate) index: usize,
}

/// The slots of one block.
#[derive(Debug, Default)]
struct Block {
    /// The inode in each slot, 0 where the slot is free; empty until the first slot is taken.
    inodes: Box<[u32]>,
    used: usize,
    /// The index where a search begins.
    next: usize,
}

/// All slots.
#[derive(Debug)]
pub(crate) struct SlotTable {
    blocks: Box<[CachePadded<Mutex<Block>>]>,
    slots_per_block: usize,
}

impl SlotTable {
    /// A table in which every slot is free.
    pub(crate) fn new(blocks: usize, slots_per_block: usize) -> Self {
        Self {
            blocks: (0..blocks).map(|_| CachePadded::default()).collect(),
            slots_per_block,
        }
    }

    /// Puts `inode` into the slot that it has on disk.
    pub(crate) fn occupy(&self, slot: SlotNr, inode: InodeNr) {
        if let Some(block) = self.blocks.get(slot.block) {
            block.lock().put(slot.index, inode, self.slots_per_block);
        }
    }

    /// Claims a free slot for `inode`, near the last slot that core `core` claimed; `None` if all
    /// are taken.
    pub(crate) fn claim(&self, inode: InodeNr, core: CoreNr) -> Option<SlotNr> {
        let count = self.blocks.len();
        let first = core.index().checked_rem(count)?;
        let order = || (0..count).map(move |step| (first + step) % count);
        let free = order().find_map(|block| self.claim_in(block, inode, Patience::None));
        free.or_else(|| order().find_map(|block| self.claim_in(block, inode, Patience::Wait)))
    }

    fn claim_in(&self, block: usize, inode: InodeNr, patience: Patience) -> Option<SlotNr> {
        let lock = self.blocks.get(block)?;
        let mut locked: MutexGuard<'_, Block> = match patience {
            Patience::None => lock.try_lock()?,
            Patience::Wait => lock.lock(),
        };
        let index = locked.free(self.slots_per_block)?;
        locked.put(index, inode, self.slots_per_block);
        Some(SlotNr { block, index })
    }

    /// Releases a slot.
    pub(crate) fn release(&self, slot: SlotNr) {
        if let Some(block) = self.blocks.get(slot.block) {
            block.lock().clear(slot.index);
        }
    }

    /// Returns every inode that has a slot.
    pub(crate) fn taken(&self) -> Vec<(SlotNr, InodeNr)> {
        let mut taken = Vec::new();
        for (block, lock) in self.blocks.iter().enumerate() {
            let locked = lock.lock();
            let used = locked.inodes.iter().enumerate();
            let used = used.filter(|&(_, &inode)| inode != 0);
            taken.extend(used.map(|(index, &inode)| (SlotNr { block, index }, InodeNr(inode))));
        }
        taken
    }
}

#[derive(Clone, Copy)]
enum Patience {
    /// If another thread has the block's lock, skip the block.
    None,
    Wait,
}

impl Block {
    fn free(&self, slots: usize) -> Option<usize> {
        if self.used == slots {
            return None;
        }
        let is_free = |&index: &usize| self.inodes.get(index).is_none_or(|&inode| inode == 0);
        (self.next..slots).chain(0..self.next).find(is_free)
    }

    fn put(&mut self, index: usize, inode: InodeNr, slots: usize) {
        if self.inodes.is_empty() {
            self.inodes = vec![0; slots].into();
        }
        if let Some(slot) = self.inodes.get_mut(index) {
            self.used += usize::from(*slot == 0);
            *slot = inode.0;
            self.next = if index + 1 < slots { index + 1 } else { 0 };
        }
    }

    fn clear(&mut self, index: usize) {
        if let Some(slot) = self.inodes.get_mut(index) {
            self.used -= usize::from(*slot != 0);
            *slot = 0;
            self.next = index;
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
