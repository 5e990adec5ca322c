//! **Purpose.** Plans and finishes the removal of a name from an inode: fewer links, the orphan
//! list, or the end of the inode.
//!
//! **Not here.** The entry in the directory (`dir::entries`), and the locks of the directories
//! (`dir::remove`).
//!
//! **Locking.** The caller holds the inode's lock. While an inode is freed in several transactions,
//! no other lock is held.
//!
//! **Crash safety.** An inode that is not freed in the transaction of its last name is put on the
//! orphan list in that transaction.

use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::{InodeNr, LogicalBlock};

use crate::Result;
use crate::inode::cached::CachedInode;
use crate::inode::cell::{Changing, Locked, Pinned};
use crate::inode::last_change::LastChange;
use crate::inode::orphans::OrphanPlace;
use crate::inode::{end, forget, orphan_plan};
use crate::map::account::Freed;
use crate::map::update;
use crate::mount::clock::now;
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::xattr::set;

/// The state of an inode after it has lost a name.
#[derive(Debug)]
pub(crate) enum Lost {
    /// It has other names.
    Name(CachedInode),
    /// It has no name and is open: it stays, on the orphan list.
    LastName(CachedInode, OrphanPlace),
    /// It is freed.
    Everything,
    /// It is on the orphan list; what this version has is still to be freed.
    Part(CachedInode, OrphanPlace),
}

impl Lost {
    /// Publishes the new state of the inode to readers: its new version, or that it is freed.
    pub(crate) fn publish(&self, pinned: &Pinned) {
        let version = match self {
            Self::Name(version) | Self::LastName(version, _) => Some(version.clone()),
            Self::Everything | Self::Part(..) => None,
        };
        pinned.publish(version);
    }
}

/// Plans that `inode` loses a name.
pub(crate) fn plan_lost_name(
    mount: &Mount,
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    locked: &Changing,
) -> Result<Lost> {
    let slot = slot::slot(plan, inode.nr())?;
    let is_directory = inode.file_type() == FileType::Directory;
    let links = inode.on_disk().links_count();
    let left = if is_directory {
        0
    } else {
        links.saturating_sub(1)
    };
    slot::edit(plan, slot, |inode| {
        inode.set_links_count(left);
        inode.set_ctime(now());
    })?;
    if left > 0 {
        return Ok(Lost::Name(slot::version(plan, slot)?));
    }
    let is_open = locked.opens > 0;
    if !is_open {
        if let Some(file) = &locked.prealloc {
            plan.mount.allocator().discard(file);
        }
        if plan_end(mount, plan, inode, slot, locked.orphan)? == Freed::All {
            plan.raise_sequence();
            return Ok(Lost::Everything);
        }
    } else if is_directory {
        // It has no entries any more, not even `.` and `..`.
        let _ = slot::edit(plan, slot, |inode| inode.set_size_bytes(0))?;
    }
    let place = match locked.orphan {
        Some(place) => place,
        None => orphan_plan::add_orphan(plan, slot)?,
    };
    let version = slot::version(plan, slot)?;
    if is_open {
        return Ok(Lost::LastName(version, place));
    }
    plan.raise_sequence();
    Ok(Lost::Part(version, place))
}

/// Plans the end of an inode, as far as the plan has space: its data blocks, its attributes, its
/// place on the orphan list and the inode itself. If the plan has space for a part only, the inode
/// needs a place on the orphan list, and further plans end it.
pub(crate) fn plan_end(
    mount: &Mount,
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    orphan: Option<OrphanPlace>,
) -> Result<Freed> {
    let is_all = update::free_map(plan, inode, slot, LogicalBlock(0))? == Freed::All
        && set::free_xattrs(plan, slot)? == Freed::All;
    if !is_all {
        return Ok(Freed::Part);
    }
    end::end_inode(mount, plan, inode, slot, orphan)?;
    Ok(Freed::All)
}

/// Ends the removal of a name after it was published: frees what is left of an inode that is
/// removed. Only the inode's own lock is held.
pub(crate) fn finish_lost(
    mount: &Mount,
    nr: InodeNr,
    pinned: &Pinned,
    mut locked: Locked<'_>,
    lost: Lost,
) -> Result<()> {
    match lost {
        Lost::Name(_) => {}
        Lost::LastName(_, place) => locked.orphan = Some(place),
        Lost::Everything => forget::forget_inode(mount, nr, pinned),
        Lost::Part(version, place) => {
            locked.orphan = Some(place);
            free_orphan(mount, version, &locked.last, place)?;
            forget::forget_inode(mount, nr, pinned);
        }
    }
    Ok(())
}

/// Frees an inode that is on the orphan list and not open, in as many transactions as it takes. The
/// caller has published that the inode is gone. Its number can be reused once
/// [`forget::forget_inode`] has run.
pub(crate) fn free_orphan(
    mount: &Mount,
    mut inode: CachedInode,
    last: &LastChange,
    place: OrphanPlace,
) -> Result<()> {
    loop {
        let mut plan = Plan::new(mount);
        let slot = slot::slot(&mut plan, inode.nr())?;
        if plan_end(mount, &mut plan, &inode, slot, Some(place))? == Freed::All {
            plan.apply(&[last])?;
            return Ok(());
        }
        inode = slot::version(&mut plan, slot)?;
        plan.apply(&[last])?;
    }
}
