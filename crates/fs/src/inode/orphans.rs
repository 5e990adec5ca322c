//! **Purpose.** The orphan list of a read-write mount: open inodes without a name, and inodes whose
//! blocks are freed in several transactions.
//!
//! **Not here.** Reading the orphan list that is on disk at mount ([`crate::inode::orphan_list`]);
//! finishing the deletions and truncations of the inodes on it ([`crate::dir::remove`],
//! [`crate::mount::recovery`]).
//!
//! **Model.** An inode is added to the list in the same handle that makes it an orphan, and removed
//! in the handle that ends that state. With the feature `orphan_file` it gets a slot of that file.
//! Without the feature, or if all slots are taken, it becomes the head of a chain: `s_last_orphan`
//! names the head, and `i_dtime` of each member names the inode that was the head before it.
//!
//! An inode that is deleted in one transaction is never on the list.
//!
//! **Locking.** The chain has one lock, held from planning a change of the chain until the handle
//! has stopped, so that the chain in memory and the chain on disk change in the same order. It
//! comes after the locks of inodes and before handles. A change of the chain writes `i_dtime` of
//! another inode, whose lock is not held: therefore plans leave that field of an inode's slot as it
//! is, unless they set it (see `Region` in `txn::memory`). Slots have locks of their own
//! ([`crate::inode::orphan_slots`]).
//!
//! **Crash safety.** After any crash, an inode whose deletion or truncation is unfinished is on the
//! list.

use std::collections::BTreeMap;
use std::ops::Range;

use fourscore_block::VerifiedAs;
use fourscore_ondisk::{InodeNr, PhysBlock};
use fourscore_sync::rank::Ranked;
use fourscore_sync::{Mutex, MutexGuard};

use crate::inode::orphan_slots::{SlotNr, SlotTable};
use crate::txn::order;

/// The place of an inode on the orphan list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanPlace {
    /// In the orphan file.
    Slot(SlotNr),
    /// In the chain; later members have higher numbers.
    Chain(u64),
}

/// All orphans.
#[derive(Debug)]
pub(crate) struct Orphans {
    pub(crate) file: Option<OrphanFile>,
    pub(crate) chain: Mutex<Chain>,
}

/// The orphan file.
#[derive(Debug)]
pub(crate) struct OrphanFile {
    pub(crate) tag: VerifiedAs,
    pub(crate) blocks: Box<[PhysBlock]>,
    pub(crate) slots: SlotTable,
}

/// The members of the chain, the head last.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) members: BTreeMap<u64, InodeNr>,
    pub(crate) next: u64,
}

impl Chain {
    pub(crate) fn head(&self) -> Option<InodeNr> {
        self.members.values().next_back().copied()
    }

    /// Returns the member that points to `place`.
    pub(crate) fn before(&self, place: u64) -> Option<InodeNr> {
        let later = self.members.range(place..).find(|&(&at, _)| at != place);
        later.map(|(_, &inode)| inode)
    }

    /// Returns the member to which `place` points.
    pub(crate) fn after(&self, place: u64) -> Option<InodeNr> {
        self.members.range(..place).next_back().map(|(_, &nr)| nr)
    }
}

/// The exclusive lock of the chain.
type ChainGuard<'f> = Ranked<MutexGuard<'f, Chain>>;

/// A plan's change of the orphan list.
#[derive(Debug)]
pub(crate) enum OrphanUpdate<'f> {
    /// A slot was claimed.
    Claim(SlotNr),
    /// A slot will be free.
    Release(SlotNr),
    /// The chain gets a new head.
    Push(ChainGuard<'f>, InodeNr),
    /// The chain loses a member.
    Remove(ChainGuard<'f>, u64),
}

impl Orphans {
    pub(crate) fn lock_chain(&self) -> ChainGuard<'_> {
        order::ORPHAN_CHAIN
            .only()
            .lock(|| self.chain.try_lock(), || self.chain.lock())
    }

    /// Returns all orphans.
    pub(crate) fn all(&self) -> Vec<(InodeNr, OrphanPlace)> {
        let slots = self.file.iter().flat_map(|file| file.slots.taken());
        let mut all: Vec<_> = {
            let chain = self.lock_chain();
            let members = chain.members.iter().rev();
            members
                .map(|(&at, &nr)| (nr, OrphanPlace::Chain(at)))
                .collect()
        };
        all.extend(slots.map(|(slot, nr)| (nr, OrphanPlace::Slot(slot))));
        all
    }

    /// Whether the orphan file has entries.
    pub(crate) fn has_file_entries(&self) -> bool {
        let mut file = self.file.iter();
        file.any(|file| !file.slots.taken().is_empty())
    }

    /// Updates the list in memory after a plan was applied.
    pub(crate) fn done(&self, orphan_update: OrphanUpdate<'_>) {
        match orphan_update {
            OrphanUpdate::Claim(_) => {}
            OrphanUpdate::Release(slot) => self.release(slot),
            OrphanUpdate::Push(mut chain, inode) => {
                let place = chain.next;
                chain.members.insert(place, inode);
                chain.next += 1;
            }
            OrphanUpdate::Remove(mut chain, place) => {
                chain.members.remove(&place);
            }
        }
    }

    /// Undoes the claim of a plan that was not applied.
    pub(crate) fn undo(&self, orphan_update: &OrphanUpdate<'_>) {
        if let OrphanUpdate::Claim(slot) = orphan_update {
            self.release(*slot);
        }
    }

    fn release(&self, slot: SlotNr) {
        if let Some(file) = &self.file {
            file.slots.release(slot);
        }
    }
}

impl OrphanFile {
    /// Returns the block of a slot, and the range of the slot's bytes in that block.
    pub(crate) fn place(&self, slot: SlotNr) -> Option<(PhysBlock, Range<usize>)> {
        let at = slot.index * size_of::<u32>();
        let block = self.blocks.get(slot.block)?;
        Some((*block, at..at + size_of::<u32>()))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The chain as it is on disk: the head, and the member to which each member points.
    #[derive(Default)]
    struct Disk {
        head: Option<InodeNr>,
        links: HashMap<InodeNr, Option<InodeNr>>,
    }

    impl Disk {
        fn walk(&self) -> Vec<InodeNr> {
            std::iter::successors(self.head, |at| self.links[at]).collect()
        }
    }

    #[test]
    fn a_chain_on_disk_has_the_members_that_memory_has() {
        let (mut chain, mut disk) = (Chain::default(), Disk::default());
        for step in 0..400_u32 {
            if step % 3 < 2 {
                let inode = InodeNr(step + 11);
                disk.links.insert(inode, chain.head());
                disk.head = Some(inode);
                chain.members.insert(chain.next, inode);
                chain.next += 1;
            } else {
                let nth = (step as usize * 7919) % chain.members.len();
                let (&place, &inode) = chain.members.iter().nth(nth).unwrap();
                let after = chain.after(place);
                assert_eq!(disk.links.remove(&inode), Some(after));
                match chain.before(place) {
                    Some(before) => *disk.links.get_mut(&before).unwrap() = after,
                    None => disk.head = after,
                }
                chain.members.remove(&place);
            }
            let members: Vec<_> = chain.members.values().rev().copied().collect();
            assert_eq!(disk.walk(), members);
        }
    }
}
