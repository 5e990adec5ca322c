//! **Purpose.** Times that stay in memory for a while (mount option `lazytime`): a change of
//! nothing but times is published to readers at once, and written to disk with a later change.
//!
//! **Model.** An operation that changes only times (an access that is noted, a write to blocks that
//! are mapped) publishes a new version of the inode and keeps its cell in memory, on a list of the
//! current core. When a plan takes the slot of such an inode, the times are copied into it. The
//! times are written with the next other change, by fsync, syncfs, freezing and unmounting, when
//! the list is full, and by the first change on the same core that finds them a day old.
//! Directories are left out: several threads change the slot of a directory at once, each starting
//! from the bytes in the slot.
//!
//! **Locking.** An inode's lock; the list of a core is a leaf that is not held while inodes are
//! written.
//!
//! **Crash safety.** Times that were not written are lost. fdatasync does not write them.
//!
//! **References.** mount(8), `lazytime`.

use fourscore_ondisk::InodeNr;
use fourscore_sync::atomic::Ordering;
use fourscore_sync::{CoreNr, epoch};

use crate::Result;
use crate::inode::cached::CachedInode;
use crate::inode::cell::HeldInode;
use crate::inode::lazy_list::{LazyTimes, Waiting};
use crate::mount::clock::now;
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::txn::slot;

/// Publishes a version of an inode that differs from the one before in times only, and queues the
/// times to be written. For the holder of the inode's lock.
pub(crate) fn publish_times(
    mount: &Mount,
    times: &LazyTimes,
    inode: HeldInode<'_>,
    version: CachedInode,
) -> Result<()> {
    let nr = version.nr();
    inode.pinned.publish(Some(version));
    if inode.locked.has_lazy_times.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let due = times.add(Waiting {
        nr,
        since_seconds: now().seconds(),
        pinned: inode.pinned.again(),
    });
    match due {
        Some(due) => write_times_if_free(mount, times, due),
        None => Ok(()),
    }
}

/// Writes the times of an inode if its lock is free; else the inode stays on the list. The caller
/// holds the lock of another inode, so waiting for this lock would violate the lock order.
fn write_times_if_free(mount: &Mount, times: &LazyTimes, due: Waiting) -> Result<()> {
    if let Some(locked) = due.pinned.try_lock() {
        return write_times_of(mount, due.nr, due.pinned.held(&locked));
    }
    times.0.of(CoreNr::current()).lock().push_back(due);
    Ok(())
}

/// Writes the times of an inode that are in memory only. For the holder of its lock.
pub(crate) fn write_times_of(mount: &Mount, nr: InodeNr, inode: HeldInode<'_>) -> Result<()> {
    if !inode.locked.has_lazy_times.swap(false, Ordering::AcqRel) {
        return Ok(());
    }
    if inode.pinned.version(&epoch::pin()).is_err() {
        // The inode was deleted.
        return Ok(());
    }
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, nr)?;
    slot::end(&mut plan, slot)?;
    plan.apply(&[&inode.locked.last]).map(drop)
}

/// Writes all times that are in memory only.
///
/// # Errors
/// The first error; the other inodes are tried all the same.
pub(crate) fn write_times(mount: &Mount) -> Result<()> {
    let Some(times) = mount.lazy_times() else {
        return Ok(());
    };
    let mut result = Ok(());
    for waiting in times.take_all() {
        let locked = waiting.pinned.lock();
        let held = waiting.pinned.held(&locked);
        result = result.and(write_times_of(mount, waiting.nr, held));
    }
    result
}
