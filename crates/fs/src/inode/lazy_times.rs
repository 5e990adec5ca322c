//! **Purpose.** Times that stay in memory for a while (mount option `lazytime`): a change of
//! nothing but times is shown to readers at once, and written when there is another reason.
//!
//! **Model.** What changes nothing but times (a read that is noted, a write to blocks that are
//! there) publishes a new version of the inode and keeps its cell in memory, on a list of this
//! core. Whatever takes the slot of such an inode into a plan finds the times put into it. They are
//! written with the next other change, by fsync, syncfs, freezing and unmounting, when the list is
//! full, and by the first change on the same core that finds them a day old. Directories are left
//! out: several change the slot of one at once, starting from what it holds.
//!
//! **Locking.** An inode's lock; the list of a core is a leaf that is not held while inodes are
//! written.
//!
//! **Crash safety.** Times that were not written are lost. fdatasync does not write them.
//!
//! **References.** mount(8), `lazytime`.

use crate::Result;
use crate::inode::cached::CachedInode;
use crate::inode::cell::{Changing, Pinned};
use crate::mount::state::{Mount, now};
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::txn::slot::Slot;
use std::collections::VecDeque;

use fourscore_ondisk::InodeNr;
use fourscore_sync::atomic::Ordering;
use fourscore_sync::epoch;
use fourscore_sync::{CoreNr, Mutex, PerCore};

/// How many inodes of each core have times in memory only; then the oldest is written.
const MOST_PER_CORE: usize = 1024;
/// How long they have, in seconds.
const MOST_SECONDS: i64 = 24 * 60 * 60;

/// When times are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// With the operation that changes them.
    #[default]
    AtOnce,
    /// Later, if nothing else is changed.
    Lazily,
}

/// Inodes whose times are in memory only, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct LazyTimes(PerCore<Mutex<VecDeque<Waiting>>>);

#[derive(Debug)]
struct Waiting {
    nr: InodeNr,
    since_seconds: i64,
    /// Keeps it in memory.
    pinned: Pinned,
}

impl LazyTimes {
    /// Puts an inode on the list of this core, and gives one that has waited long enough.
    fn add(&self, waiting: Waiting) -> Option<Waiting> {
        let now = waiting.since_seconds;
        let mut list = self.0.of(CoreNr::current()).lock();
        list.push_back(waiting);
        let is_full = list.len() > MOST_PER_CORE;
        list.pop_front_if(|oldest| is_full || now - oldest.since_seconds > MOST_SECONDS)
    }

    fn take_all(&self) -> Vec<Waiting> {
        let lists = self.0.iter();
        lists
            .flat_map(|list| std::mem::take(&mut *list.lock()))
            .collect()
    }
}

/// Shows a version of an inode that differs in times from the one before, and says that they
/// are to be written. For the holder of its lock.
pub(crate) fn publish_times(
    mount: &Mount,
    times: &LazyTimes,
    (pinned, locked): (&Pinned, &Changing),
    version: CachedInode,
) -> Result<()> {
    let nr = version.nr();
    pinned.publish(Some(version));
    if locked.has_lazy_times.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let due = times.add(Waiting {
        nr,
        since_seconds: now().seconds(),
        pinned: pinned.again(),
    });
    match due {
        Some(due) => write_times_if_free(mount, times, due),
        None => Ok(()),
    }
}

/// Writes the times of an inode that nobody has locked; else it goes on waiting. The caller
/// holds the lock of another inode, and would wait for this one out of order.
fn write_times_if_free(mount: &Mount, times: &LazyTimes, due: Waiting) -> Result<()> {
    if let Some(locked) = due.pinned.try_lock() {
        return write_times_of(mount, (due.nr, &due.pinned), &locked);
    }
    times.0.of(CoreNr::current()).lock().push_back(due);
    Ok(())
}

/// Writes the times of an inode that are in memory only. For the holder of its lock.
pub(crate) fn write_times_of(
    mount: &Mount,
    (nr, pinned): (InodeNr, &Pinned),
    locked: &Changing,
) -> Result<()> {
    if !locked.has_lazy_times.swap(false, Ordering::AcqRel) {
        return Ok(());
    }
    if pinned.version(&epoch::pin()).is_err() {
        // It was deleted.
        return Ok(());
    }
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, nr)?;
    slot::end(&mut plan, slot)?;
    plan.carry_out(&[&locked.last]).map(drop)
}

/// Writes all times that are in memory only.
///
/// # Errors
/// The first that is met; the others are tried all the same.
pub(crate) fn write_times(mount: &Mount) -> Result<()> {
    let Some(times) = mount.lazy_times() else {
        return Ok(());
    };
    let mut result = Ok(());
    for waiting in times.take_all() {
        let locked = waiting.pinned.lock();
        result = result.and(write_times_of(
            mount,
            (waiting.nr, &waiting.pinned),
            &locked,
        ));
    }
    result
}

/// Puts times that are in memory only into a slot that has just been taken from the table. For
/// the holder of the inode's lock.
pub(crate) fn put_lazy_times(plan: &mut Plan<'_>, slot: Slot) -> Result<()> {
    let core = &*plan.mount.core;
    let guard = epoch::pin();
    let Some(Ok(version)) = core
        .inodes
        .get(&slot.nr, &guard)
        .map(|cell| cell.version(&guard))
    else {
        return Ok(());
    };
    let shown = version.on_disk();
    slot::edit(plan, slot, |inode| {
        inode.set_atime(shown.atime());
        inode.set_mtime(shown.mtime());
        inode.set_ctime(shown.ctime());
        inode.set_version(shown.version());
    })
}
