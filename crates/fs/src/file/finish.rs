//! **Purpose.** Ends a change of a file's data: sets its size and times, applies the plan, and
//! publishes the inode's new version with it.
//!
//! **Model.** Where only times change and the mount has lazy times, there is no plan to apply: the
//! times are published in memory alone.
//!
//! **Locking.** The inode's lock is held.

use fourscore_ondisk::inode::needs_large_file;
use fourscore_sync::epoch;

use crate::inode::cached::Layout;
use crate::inode::cell::{HeldInode, Pinned};
use crate::inode::lazy_times;
use crate::mount::clock::now;
use crate::mount::superblock;
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::{Error, Result};

/// Whether a write sets the times of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenAt {
    /// It does: the file's times become the time of the call.
    Now,
    /// It does not: the file's times stay as they are. The caller that cached the data sets them
    /// with [`Fs::note_times`](crate::Fs::note_times).
    ByCaller,
}

/// The end of a change of a file's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// The size that the file has then, in bytes.
    pub(crate) size: u64,
    pub(crate) written_at: WrittenAt,
}

/// Ends a change of a file's data: makes its new size and times part of the plan, applies the plan
/// and publishes the new version.
pub(crate) fn finish(
    plan: Plan<'_>,
    slot: Slot,
    ending: Ending,
    file: HeldInode<'_>,
) -> Result<()> {
    finish_with(plan, slot, ending, file, &[file.pinned])
}

/// The same, where the caller raises the sequence count of the inode for several plans together.
pub(crate) fn finish_in_change(
    plan: Plan<'_>,
    slot: Slot,
    ending: Ending,
    file: HeldInode<'_>,
) -> Result<()> {
    finish_with(plan, slot, ending, file, &[])
}

fn finish_with(
    mut plan: Plan<'_>,
    slot: Slot,
    ending: Ending,
    file: HeldInode<'_>,
    changes: &[&Pinned],
) -> Result<()> {
    let Ending { size, written_at } = ending;
    let HeldInode { pinned, locked } = file;
    let now = now();
    let before = pinned.version(&epoch::pin())?.size_bytes();
    if size < before && plan.size() > 1 {
        // Blocks of the map change before the size: until the size follows, they would read as a
        // hole.
        plan.raise_sequence();
    }
    if needs_large_file(size) && !needs_large_file(before) {
        superblock::set_large_file(&mut plan)?;
    }
    let sized = slot::edit(&mut plan, slot, |inode| {
        if written_at == WrittenAt::Now {
            inode.set_mtime(now);
            inode.set_ctime(now);
        }
        inode.set_size_bytes(size)
    })?;
    sized.map_err(|_| Error::FileTooLarge)?;
    let version = slot::version(&mut plan, slot)?;
    let changes_more = plan.size() > 1 || {
        let guard = epoch::pin();
        let before = pinned.version(&guard)?;
        let is_inside = version.layout() == Layout::Inline;
        let (mode, mode_before) = (version.on_disk().mode(), before.on_disk().mode());
        is_inside
            || before.size_bytes() != size
            || before.i_block() != version.i_block()
            || mode_before != mode
    };
    let mount = plan.mount;
    if let (false, Some(times)) = (changes_more, mount.lazy_times()) {
        drop(plan);
        return lazy_times::publish_times(mount, times, file, version);
    }
    let last = [&locked.last, &locked.last_data];
    let last = if changes_more { &last[..] } else { &last[..1] };
    plan.apply_publishing(last, Publication::of(changes), || {
        pinned.publish(Some(version));
    })?;
    // All data written so far was on its way to the device before that transaction.
    locked.unjoined.settle();
    Ok(())
}
