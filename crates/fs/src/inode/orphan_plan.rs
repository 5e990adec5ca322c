//! **Purpose.** Plans changes of the orphan list.
//!
//! **Model.** An orphan gets a slot of the orphan file if one is free, else it becomes the head of
//! the chain. Each function adds the change on disk to a plan, and records in the plan the matching
//! change in memory.
//!
//! **Locking.** A plan that changes the chain holds the chain's lock from here on.

use fourscore_ondisk::InodeNr;
use fourscore_sync::CoreNr;

use crate::Result;
use crate::inode::orphan_slots::SlotNr;
use crate::inode::orphans::{OrphanFile, OrphanPlace, OrphanUpdate, Orphans};
use crate::mount::superblock;
use crate::txn::faults::Sabotage;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};

/// Adds an inode to the orphan list, and returns its place there.
pub(crate) fn add_orphan(plan: &mut Plan<'_>, slot: Slot) -> Result<OrphanPlace> {
    let orphans = plan.mount.orphans();
    if let Some(file) = &orphans.file
        && let Some(claimed) = file.slots.claim(slot.nr, CoreNr::current())
    {
        plan.set_orphan_update(OrphanUpdate::Claim(claimed));
        write_orphan_slot(plan, file, claimed, Some(slot.nr))?;
        return Ok(OrphanPlace::Slot(claimed));
    }
    let chain = orphans.lock_chain();
    let (head, place) = (chain.head(), OrphanPlace::Chain(chain.next));
    plan.set_orphan_update(OrphanUpdate::Push(chain, slot.nr));
    if plan.mount.core.faults.lacks(Sabotage::NoOrphanRecord) {
        return Ok(place);
    }
    slot::set_next_orphan(plan, slot, head)?;
    superblock::set_last_orphan(plan, Some(slot.nr))?;
    Ok(place)
}

/// Removes an inode from the orphan list.
pub(crate) fn remove_orphan<'f>(plan: &mut Plan<'f>, slot: Slot, place: OrphanPlace) -> Result<()> {
    let orphans: &'f Orphans = plan.mount.orphans();
    match (place, &orphans.file) {
        (OrphanPlace::Slot(taken), Some(file)) => {
            plan.set_orphan_update(OrphanUpdate::Release(taken));
            write_orphan_slot(plan, file, taken, None)
        }
        (OrphanPlace::Slot(_), None) => Ok(()),
        (OrphanPlace::Chain(place), _) => {
            let chain = orphans.lock_chain();
            let (before, after) = (chain.before(place), chain.after(place));
            plan.set_orphan_update(OrphanUpdate::Remove(chain, place));
            slot::set_next_orphan(plan, slot, None)?;
            match before {
                Some(before) => slot::relink_orphan(plan, before, after),
                None => superblock::set_last_orphan(plan, after),
            }
        }
    }
}

pub(crate) fn write_orphan_slot(
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
