//! **Purpose.** The record of orphans in a file system that is written: inodes without a name that
//! are open, and inodes whose blocks are freed in several transactions.
//!
//! **Not here.** Reading the record of a file system that somebody else wrote
//! ([`crate::inode::orphan_list`]);
//! finishing what it tells of ([`crate::dir::remove`], [`crate::mount::recovery`]).
//!
//! **Model.** An inode is put on record in the very handle that makes it an orphan, and taken off
//! in the one that ends that. With the feature `orphan_file` it gets a slot of that file. Without,
//! or if all slots are taken, it becomes the head of a chain: `s_last_orphan` names it, and its
//! `i_dtime` the one that was the head before.
//!
//! An inode that goes in one transaction is never on record.
//!
//! **Locking.** The chain has one lock, held from planning a change of it until the handle has
//! stopped, so that chain and disk change in the same order. It comes after the locks of inodes and
//! before handles. A change of the chain writes `i_dtime` of another inode, whose lock is not held:
//! therefore plans leave that word of a slot as it is, unless they set it (see `Region` in `plan`).
//! Slots have locks of their own ([`crate::inode::orphan_slots`]).
//!
//! **Crash safety.** Whatever the crash leaves, an inode that is not whole is on record.

use std::collections::BTreeMap;
use std::ops::Range;

use fourscore_block::VerifiedAs;
use fourscore_ondisk::{InodeNr, PhysBlock};
use fourscore_sync::rank::Ranked;
use fourscore_sync::{Mutex, MutexGuard};

use crate::inode::orphan_slots::{SlotNr, SlotTable};
use crate::txn::order;

/// Where an inode is on record.
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

    /// The member that leads to `place`.
    pub(crate) fn before(&self, place: u64) -> Option<InodeNr> {
        let later = self.members.range(place..).find(|&(&at, _)| at != place);
        later.map(|(_, &inode)| inode)
    }

    /// The member to which `place` leads.
    pub(crate) fn after(&self, place: u64) -> Option<InodeNr> {
        self.members.range(..place).next_back().map(|(_, &nr)| nr)
    }
}

/// Nobody else changes the chain.
type ChainGuard<'f> = Ranked<MutexGuard<'f, Chain>>;

/// What a plan does to the record.
#[derive(Debug)]
pub(crate) enum Recording<'f> {
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

    /// Everything on record.
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

    /// Whether something is on record in the orphan file.
    pub(crate) fn has_file_entries(&self) -> bool {
        let mut file = self.file.iter();
        file.any(|file| !file.slots.taken().is_empty())
    }

    /// Brings memory up to date with a plan that was carried out.
    pub(crate) fn done(&self, recording: Recording<'_>) {
        match recording {
            Recording::Claim(_) => {}
            Recording::Release(slot) => self.release(slot),
            Recording::Push(mut chain, inode) => {
                let place = chain.next;
                chain.members.insert(place, inode);
                chain.next += 1;
            }
            Recording::Remove(mut chain, place) => {
                chain.members.remove(&place);
            }
        }
    }

    /// Ends a plan that was not carried out.
    pub(crate) fn undo(&self, recording: &Recording<'_>) {
        if let Recording::Claim(slot) = recording {
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
    /// The block of a slot, and its bytes in there.
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

    /// The chain as it is on disk: the head, and what each member leads to.
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
