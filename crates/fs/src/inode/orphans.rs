//! **Purpose.** The record of orphans in a file system that is written: inodes without a name that
//! are open, and inodes whose blocks are freed in several transactions.
//!
//! **Not here.** Reading the record of a file system that somebody else wrote ([`crate::inode::orphan_list`]);
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

use crate::Result;
use crate::core::Core;
use crate::inode::orphan_list;
use crate::inode::orphan_list::{Found, Where};
use crate::inode::orphan_slots::{SlotNr, SlotTable};
use crate::mount::superblock;
use crate::txn::faults::Sabotage;
use crate::txn::plan::Plan;
use crate::txn::slot::Slot;
use crate::txn::{order, slot};
use std::collections::BTreeMap;
use std::ops::Range;

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::{InodeNr, PhysBlock};
use fourscore_sync::rank::Ranked;
use fourscore_sync::{CoreNr, Mutex, MutexGuard};

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
    file: Option<OrphanFile>,
    chain: Mutex<Chain>,
}

/// The orphan file.
#[derive(Debug)]
struct OrphanFile {
    tag: VerifiedAs,
    blocks: Box<[PhysBlock]>,
    slots: SlotTable,
}

/// The members of the chain, the head last.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    members: BTreeMap<u64, InodeNr>,
    next: u64,
}

impl Chain {
    fn head(&self) -> Option<InodeNr> {
        self.members.values().next_back().copied()
    }

    /// The member that leads to `place`.
    fn before(&self, place: u64) -> Option<InodeNr> {
        let later = self.members.range(place..).find(|&(&at, _)| at != place);
        later.map(|(_, &inode)| inode)
    }

    /// The member to which `place` leads.
    fn after(&self, place: u64) -> Option<InodeNr> {
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
    /// The record of `fs`, as it is on disk.
    pub(crate) fn read(core: &Core) -> Result<Self> {
        let found = orphan_list::read_orphans(core)?;
        let file = match core.superblock().orphan_file_inode() {
            Some(nr) => {
                let (blocks, seed) = orphan_list::orphan_file_blocks(core, nr)?;
                let tag = VerifiedAs::new(Structure::OrphanFile, nr).seeded(seed);
                let slots = fourscore_ondisk::orphan::slots(core.geometry().block_size());
                Some(OrphanFile {
                    tag,
                    slots: SlotTable::new(blocks.len(), slots),
                    blocks: blocks.into(),
                })
            }
            None => None,
        };
        let mut chain = Chain::default();
        // The head was found first.
        for Found { inode, place } in found.into_iter().rev() {
            match (place, &file) {
                (Where::Chain, _) => {
                    chain.members.insert(chain.next, inode);
                    chain.next += 1;
                }
                (Where::File { block, index }, Some(file)) => {
                    file.slots.occupy(SlotNr { block, index }, inode);
                }
                (Where::File { .. }, None) => {}
            }
        }
        Ok(Self {
            file,
            chain: Mutex::new(chain),
        })
    }

    fn lock_chain(&self) -> ChainGuard<'_> {
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
    fn place(&self, slot: SlotNr) -> Option<(PhysBlock, Range<usize>)> {
        let at = slot.index * size_of::<u32>();
        let block = self.blocks.get(slot.block)?;
        Some((*block, at..at + size_of::<u32>()))
    }
}

/// Puts an inode on record, and says where.
pub(crate) fn add_orphan(plan: &mut Plan<'_>, slot: Slot) -> Result<OrphanPlace> {
    let orphans = plan.mount.orphans();
    if let Some(file) = &orphans.file
        && let Some(claimed) = file.slots.claim(slot.nr, CoreNr::current())
    {
        plan.record(Recording::Claim(claimed));
        write_orphan_slot(plan, file, claimed, Some(slot.nr))?;
        return Ok(OrphanPlace::Slot(claimed));
    }
    let chain = orphans.lock_chain();
    let (head, place) = (chain.head(), OrphanPlace::Chain(chain.next));
    plan.record(Recording::Push(chain, slot.nr));
    if plan.mount.core.faults.lacks(Sabotage::NoOrphanRecord) {
        return Ok(place);
    }
    slot::set_next_orphan(plan, slot, head)?;
    superblock::set_last_orphan(plan, Some(slot.nr))?;
    Ok(place)
}

/// Takes an inode off the record.
pub(crate) fn remove_orphan<'f>(plan: &mut Plan<'f>, slot: Slot, place: OrphanPlace) -> Result<()> {
    let orphans: &'f Orphans = plan.mount.orphans();
    match (place, &orphans.file) {
        (OrphanPlace::Slot(taken), Some(file)) => {
            plan.record(Recording::Release(taken));
            write_orphan_slot(plan, file, taken, None)
        }
        (OrphanPlace::Slot(_), None) => Ok(()),
        (OrphanPlace::Chain(place), _) => {
            let chain = orphans.lock_chain();
            let (before, after) = (chain.before(place), chain.after(place));
            plan.record(Recording::Remove(chain, place));
            slot::set_next_orphan(plan, slot, None)?;
            match before {
                Some(before) => slot::relink_orphan(plan, before, after),
                None => superblock::set_last_orphan(plan, after),
            }
        }
    }
}

fn write_orphan_slot(
    plan: &mut Plan<'_>,
    file: &OrphanFile,
    slot: SlotNr,
    inode: Option<InodeNr>,
) -> Result<()> {
    let is_left_out = inode.is_some() && plan.mount.core.faults.lacks(Sabotage::NoOrphanRecord);
    if let Some((block, range)) = file.place(slot).filter(|_| !is_left_out) {
        let region = plan.part(block, range, file.tag)?;
        let nr = inode.map_or(0, |nr| nr.0);
        plan.bytes_mut(region).copy_from_slice(&nr.to_le_bytes());
    }
    Ok(())
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
