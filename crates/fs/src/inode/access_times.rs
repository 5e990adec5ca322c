//! **Purpose.** Times of the last access: when one is due, and noting it.
//!
//! **Not here.** The reads themselves. A read writes nothing, so that readers do not contend; a
//! server that acts for programs reports afterwards what was read
//! ([`Fs::accessed`](crate::Fs::accessed)).
//!
//! **Model.** With [`AccessTimes::Relative`](crate::mount::modes::AccessTimes::Relative) an access
//! is noted if the last noted access is older than the last change, or older than a day. That is
//! enough to tell whether a file was read since it was written, and causes few writes.
//!
//! **Locking.** The inode's lock, if a time is due; none otherwise.
//!
//! **References.** mount(8), `relatime`.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;
use fourscore_sync::epoch;

use crate::Result;
use crate::guard::with_guard;
use crate::inode::cached::CachedInode;
use crate::inode::{cache, lazy_times};
use crate::mount::clock::now;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot;

/// See [`Fs::accessed`](crate::Fs::accessed).
pub(crate) fn accessed(mount: &Mount, inode: InodeNr) -> Result<()> {
    errors::noting(mount, change_access_time(mount, inode))
}

fn change_access_time(mount: &Mount, inode: InodeNr) -> Result<()> {
    let now = now();
    let is_due = |inode: &CachedInode| {
        let skipped = mount.skips_directories() && inode.file_type() == FileType::Directory;
        !skipped && mount.access_times().is_due(inode, now)
    };
    let is_read_due = with_guard(&mount.core, |guard| {
        Ok(is_due(cache::inode(&mount.core, inode, guard)?))
    })?;
    if !is_read_due {
        return Ok(());
    }
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let locked = pinned.lock();
    if !is_due(pinned.version(&epoch::pin())?) {
        return Ok(());
    }
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, inode)?;
    slot::edit(&mut plan, slot, |inode| inode.set_atime(now))?;
    // A read is not a change: `i_version` stays.
    let version = CachedInode::new(slot::inode(&mut plan, slot)?, mount.core.superblock())?;
    // Several threads change the slot of a directory at once, each starting from the bytes in the
    // slot.
    if let Some(times) = mount.lazy_times()
        && version.file_type() != FileType::Directory
    {
        drop(plan);
        return lazy_times::publish_times(mount, times, pinned.held(&locked), version);
    }
    plan.apply_publishing(&[&locked.last], Publication::of(&[&pinned]), || {
        pinned.publish(Some(version));
    })?;
    Ok(())
}
