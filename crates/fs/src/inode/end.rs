//! **Purpose.** Plans the deletion of an inode: its slot is marked as deleted and its number freed.
//!
//! **Not here.** Freeing its blocks and attributes, which happens before; removing it from memory
//! after the plan has been applied (`crate::inode::forget`).
//!
//! **Crash safety.** The inode leaves the orphan list in the same plan.

use fourscore_ondisk::inode::FileType;

use crate::Result;
use crate::inode::cached::CachedInode;
use crate::inode::orphan_plan;
use crate::inode::orphans::OrphanPlace;
use crate::mount::clock::now;
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};

/// Plans the deletion of an inode that has neither blocks nor attributes, and removes it from the
/// orphan list.
pub(crate) fn end_inode(
    mount: &Mount,
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    orphan: Option<OrphanPlace>,
) -> Result<()> {
    if let Some(place) = orphan {
        orphan_plan::remove_orphan(plan, slot, place)?;
    }
    slot::edit(plan, slot, |inode| {
        // No value grows, so the calls cannot fail.
        let _ = inode.set_size_bytes(0);
        let _ = inode.set_sectors(0);
        let _ = inode.set_file_acl(None);
    })?;
    slot::set_deleted(plan, slot, now())?;
    slot::end(plan, slot)?;
    let is_directory = inode.file_type() == FileType::Directory;
    let claim = mount.inodes().of(&mount.core, inode.nr(), is_directory)?;
    plan.free_inode(claim)
}
