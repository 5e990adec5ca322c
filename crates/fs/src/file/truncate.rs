//! **Purpose.** Changes the size of a file, and frees the blocks behind its new end.
//!
//! **Model.** Freeing may take several transactions. The first one changes the size and puts the
//! file on the orphan list; the last one takes it off the list. A file without a name is on it
//! anyway, and stays there.
//!
//! **Locking.** The inode's lock is held for the whole call.
//!
//! **Crash safety.** A crash in between leaves the file on the orphan list, and the next read-write
//! mount finishes the truncation. A truncation that failed midway is finished by the next change of
//! the file's data, and before the file gets a name (`end_truncation`).

use fourscore_ondisk::{InodeNr, LogicalBlock};
use fourscore_sync::epoch;

use crate::file::finish::{self, Ending, WrittenAt};
use crate::file::inline_change;
use crate::file::prepare::{file_to_change, low32, zero_tail};
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::cell::{Changing, LockedInode};
use crate::inode::immutable::check_changeable;
use crate::inode::{cache, orphan_plan};
use crate::map::account::Freed;
use crate::map::update;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, Result};

/// See [`Fs::truncate`](crate::Fs::truncate).
pub(crate) fn truncate(mount: &Mount, inode: InodeNr, size: u64) -> Result<()> {
    errors::noting(mount, change_size(mount, inode, size))
}

pub(crate) fn change_size(mount: &Mount, inode: InodeNr, size: u64) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let mut locked = pinned.lock();
    let (before, is_longer) = {
        let inode = file_to_change(&pinned)?;
        check_changeable(&inode)?;
        if size > update::max_file_bytes(&mount.core, &inode) {
            return Err(Error::FileTooLarge);
        }
        let is_longer = inline_change::is_longer_than_inside(&mount.core, &inode, size)?;
        (inode.size_bytes(), is_longer)
    };
    end_truncation(mount, pinned.locked(&mut locked))?;
    if is_longer {
        mount
            .space
            .retried(|| inline_change::move_out(mount, pinned.locked(&mut locked)))?;
    }
    truncate_locked(mount, pinned.locked(&mut locked), size)?;
    mount.note_cut_off(before.saturating_sub(size));
    Ok(())
}

/// Sets the size, in as many transactions as it takes to free the blocks behind it. The first one
/// publishes the new size; until the last one the file is on the orphan list.
pub(crate) fn truncate_locked(mount: &Mount, file: LockedInode<'_>, size: u64) -> Result<()> {
    let LockedInode { pinned, locked } = file;
    if let Some(file) = &locked.prealloc {
        mount.allocator().discard(file);
    }
    loop {
        let inode = &pinned.copy()?;
        let mut plan = Plan::new(mount);
        zero_tail(&mount.core, &mut plan, inode, size.min(inode.size_bytes()))?;
        let slot = slot::slot(&mut plan, inode.nr())?;
        if inode.layout() == Layout::Inline {
            inline_change::cut_content(&mut plan, slot, size.min(inode.size_bytes()))?;
        }
        let bits = mount.core.geometry().block_size().bits();
        let first_behind = |size: u64| LogicalBlock(low32((size + (1 << bits) - 1) >> bits));
        if !awaits_truncation(inode, locked) {
            // Each earlier truncation has freed all blocks beyond its end. So what is mapped
            // beyond the end now was added later, and was never inside the size.
            plan.set_unread_from(first_behind(inode.size_bytes()));
        }
        let first = first_behind(size);
        let freed = update::free_map(&mut plan, inode, slot, first)?;
        let has_name = inode.on_disk().links_count() > 0;
        let orphan = match (freed, locked.orphan) {
            (Freed::Part, None) => Some(orphan_plan::add_orphan(&mut plan, slot)?),
            (Freed::All, Some(place)) if has_name => {
                orphan_plan::remove_orphan(&mut plan, slot, place)?;
                None
            }
            (_, unchanged) => unchanged,
        };
        let written_at = WrittenAt::Now;
        let ending = Ending { size, written_at };
        finish::finish(plan, slot, ending, pinned.held(locked))?;
        (locked.orphan, locked.is_cut) = (orphan, freed == Freed::Part);
        if freed == Freed::All {
            return Ok(());
        }
    }
}

/// Finishes a truncation that failed midway, so that data it cut off does not become visible again.
pub(crate) fn end_truncation(mount: &Mount, file: LockedInode<'_>) -> Result<()> {
    let (size, is_awaited) = {
        let guard = epoch::pin();
        let inode = file.pinned.version(&guard)?;
        (inode.size_bytes(), awaits_truncation(inode, file.locked))
    };
    if is_awaited {
        truncate_locked(mount, file, size)?;
    }
    Ok(())
}

/// Whether the blocks behind a file's end are not all freed yet. A file that has a name is on the
/// orphan list for no other reason.
pub(crate) fn awaits_truncation(inode: &CachedInode, changing: &Changing) -> bool {
    changing.is_cut || inode.on_disk().links_count() > 0 && changing.orphan.is_some()
}
