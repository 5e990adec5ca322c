//! **Purpose.** Writes the changes of fast commits when a file system is mounted for writing.
//!
//! **Not here.** The meaning of the records ([`crate::mount::fast_commit`]), and which of them
//! count (crate `journal`).
//!
//! **Model.** The changes are known already: inodes, runs of maps, names. They are made by plans,
//! as operations make them, but all in one transaction: the one to which the fast commits belong.
//! When it is committed it replaces them, as any full commit does.
//!
//! ```text
//! blocks that the runs name are claimed -> inodes and maps -> names -> what is gone -> commit
//! ```
//!
//! Blocks are claimed before anything else is allocated, so that no tree or directory grows into
//! them. An inode without a name left goes on the orphan list, and is freed with the other orphans.
//!
//! A block that is to be claimed may be one that another inode loses. Then it is freed there first
//! ([`lost`]).
//!
//! **Crash safety.** Until the commit is durable the fast commits count, and nothing but the
//! journal was written, so a recovery that is interrupted is repeated. Changes that need more space
//! than one transaction has are refused.

mod lost;

use fourscore_ondisk::dirent::write::NewEntry;
use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::{Corrupt, InodeNr};

use crate::core::Core;
use crate::dir::changed::ChangedDir;
use crate::dir::new_inode::{self, check_key, entry_type};
use crate::dir::{entries, find};
use crate::file::{inline_change, journal_data};
use crate::group::descriptor;
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::{alloc, cache, orphan_plan};
use crate::map::mapping::{Mapping, Target};
use crate::map::update;
use crate::mount::fast_commit::{
    Base, DirChanges, FastCommitOverlay, InodeChange, InodePatch, RangeEdits,
};
use crate::mount::fast_commit_parts::{self, Lay, Part, Piece};
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::{Error, Result};

/// An inode that will be changed.
struct Pending<'f> {
    plan: Plan<'f>,
    slot: Slot,
    pieces: Vec<Piece>,
}

/// Makes the changes of `overlay` in the only transaction of `mount`, whose log was replayed
/// without the fast commits.
///
/// # Errors
/// `ReadOnly` if the changes need more space than one transaction of the journal has; `Corrupt` for
/// records that contradict the file system. In these cases nothing was changed.
pub(crate) fn make_changes(mount: &Mount, overlay: &FastCommitOverlay) -> Result<()> {
    for (nr, change) in overlay.changed_inodes() {
        if let InodeChange::Patched(patch) = change
            && patch.base == Base::Zeroes
        {
            fast_commit_parts::free_life(mount, nr)?;
        }
    }
    lost::free_what_is_wanted(mount, overlay)?;
    let mut pending = Vec::new();
    for (nr, change) in overlay.changed_inodes() {
        if let InodeChange::Patched(patch) = change {
            let runs = overlay.ranges_of(nr);
            pending.push((nr, plan_inode_change(mount, nr, Some(patch), runs)?));
        }
    }
    for (nr, runs) in overlay.changed_maps() {
        if overlay.change_of(nr).is_none() {
            pending.push((nr, plan_inode_change(mount, nr, None, Some(runs))?));
        }
    }
    for (nr, change) in pending {
        change_inode(&mount.core, change, overlay.made_in(nr))?;
    }
    for (dir, names) in overlay.changed_dirs() {
        change_names(mount, dir, names)?;
    }
    for (nr, change) in overlay.changed_inodes() {
        if *change == InodeChange::Deleted {
            add_to_orphan_list(mount, nr)?;
        }
    }
    Ok(())
}

/// Plans the new bytes of an inode, and claims the blocks that its new map will refer to.
fn plan_inode_change<'f>(
    mount: &'f Mount,
    nr: InodeNr,
    patch: Option<&InodePatch>,
    runs: Option<&RangeEdits>,
) -> Result<Pending<'f>> {
    let mut plan = Plan::new(mount).in_one_step();
    let is_new = patch.is_some_and(|patch| patch.base == Base::Zeroes);
    if is_new {
        let file_type = patch.and_then(InodePatch::file_type);
        let is_directory = file_type == Some(FileType::Directory);
        let claim = alloc::take(mount, nr, is_directory)?;
        plan.use_inode(claim)?;
    }
    let slot = slot::slot(&mut plan, nr)?;
    let before = match is_new {
        true => None,
        false => {
            let inode = slot::inode(&mut plan, slot)?;
            Some(CachedInode::new(inode, mount.core.superblock())?)
        }
    };
    if let Some(patch) = patch {
        plan_patch(&mount.core, &mut plan, slot, patch, before.as_ref())?;
    }
    let mut pieces = Vec::new();
    for run in runs.map_or(&[][..], RangeEdits::runs) {
        plan_run(
            &mount.core,
            &mut plan,
            nr,
            before.as_ref(),
            run,
            &mut pieces,
        )?;
    }
    Ok(Pending { plan, slot, pieces })
}

/// Applies the patch to an inode's slot. The number of blocks in use follows from its map.
fn plan_patch(
    core: &Core,
    plan: &mut Plan<'_>,
    slot: Slot,
    patch: &InodePatch,
    before: Option<&CachedInode>,
) -> Result<()> {
    let in_inode = |error| Corrupt::from(error).in_inode(slot.nr);
    let bytes = slot::slot_bytes_mut(plan, slot);
    let new = patch.apply(bytes, slot.nr, core.superblock());
    bytes.copy_from_slice(&new.map_err(in_inode)?);
    if before.is_none() {
        slot::set_next_orphan(plan, slot, None)?;
    }
    let is_directory = slot::inode(plan, slot)?.file_type() == Some(FileType::Directory);
    let now_inline = inline_change::has_inline_data(core)
        && slot::inode(plan, slot)?
            .flags()
            .contains(InodeFlags::INLINE_DATA_FL);
    let was_inline = before.map(|before| before.layout() == Layout::Inline);
    if is_directory && was_inline.is_some_and(|was_inline| was_inline != now_inline) {
        // Names that are moved have no records of their own.
        return Err(Error::ReadOnly(
            "the fast commits in the journal move a directory out of its inode".into(),
        ));
    }
    let sectors = before.map_or(0, |inode| inode.on_disk().sectors());
    let file_acl = before.and_then(|inode| inode.on_disk().file_acl());
    slot::edit(plan, slot, |inode| {
        // The slot had these values before, or they are smaller.
        let _ = inode.set_sectors(sectors);
        let _ = inode.set_file_acl(file_acl);
        match before {
            // All its names are in the record.
            _ if now_inline => {}
            None if is_directory => {
                // Its names have records of their own, which follow.
                let _ = inode.set_size_bytes(0);
                inode.set_flags(inode.flags() - InodeFlags::INDEX_FL);
            }
            Some(before) if is_directory => {
                let _ = inode.set_size_bytes(before.size_bytes());
                let index = before.on_disk().flags() & InodeFlags::INDEX_FL;
                inode.set_flags((inode.flags() - InodeFlags::INDEX_FL) | index);
            }
            _ => {}
        }
    })
}

/// Plans the change of one run of a map.
fn plan_run(
    core: &Core,
    plan: &mut Plan<'_>,
    nr: InodeNr,
    before: Option<&CachedInode>,
    run: &Mapping,
    pieces: &mut Vec<Piece>,
) -> Result<()> {
    let state = match run.target {
        Target::Unwritten(_) => ExtentState::Unwritten,
        Target::Hole | Target::Written(_) => ExtentState::Written,
    };
    for part in fast_commit_parts::parts(core, before, run)? {
        let Part { at, end, .. } = part;
        match part.before {
            Lay::There => {
                pieces.push(Piece::SetState(at, end, state));
                continue;
            }
            Lay::Elsewhere => pieces.push(Piece::Unmap(at, end)),
            Lay::Nowhere => {}
        }
        if let Some(physical) = part.physical {
            let extent = Extent {
                logical: at,
                physical,
                blocks: part.blocks(),
                state,
            };
            fast_commit_parts::claim_extent(plan, nr, extent, pieces)?;
        }
    }
    Ok(())
}

/// Changes an inode and its map. A new directory begins empty.
fn change_inode(core: &Core, change: Pending<'_>, made_in: Option<InodeNr>) -> Result<()> {
    let Pending {
        mut plan,
        slot,
        pieces,
    } = change;
    let inode = slot::version(&mut plan, slot)?;
    let was = journal_data::content_of(core, &inode);
    for piece in pieces {
        match piece {
            Piece::Unmap(start, end) => {
                update::unmap(&mut plan, &inode, slot, start..end, was)?;
            }
            Piece::Map(extent) => update::map_extent(&mut plan, &inode, slot, extent)?,
            Piece::SetState(start, end, state) => {
                update::set_state(&mut plan, &inode, slot, start..end, state)?;
            }
        }
    }
    if let Some(parent) = made_in
        && inode.layout() != Layout::Inline
    {
        let mut dir = ChangedDir::new(core, &inode, slot)?;
        entries::init_directory(&mut plan, &mut dir, parent)?;
    }
    slot::end(&mut plan, slot)?;
    fast_commit_parts::apply_here(plan)
}

/// Adds and removes names of a directory, whose times stay.
fn change_names(mount: &Mount, dir: InodeNr, names: &DirChanges) -> Result<()> {
    let pinned = cache::pin_directory(&mount.core, dir)?;
    let locked = pinned.lock();
    for (name, now) in names.changed_names() {
        let parent = &new_inode::directory_to_change(&pinned)?;
        check_key(parent)?;
        let before = match find::look_up_locked(&mount.core, parent, name) {
            Ok(found) => Some(found),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        let mut plan = Plan::new(mount);
        let slot = slot::slot(&mut plan, dir)?;
        let mut changed = ChangedDir::new(&mount.core, parent, slot)?;
        match (before, now) {
            (None, None) => continue,
            (Some(_), None) => entries::remove_name(&mut plan, &changed, name)?,
            (Some(_), Some((inode, kind))) => {
                entries::redirect_name(&mut plan, &changed, name, inode, entry_type(kind))?;
            }
            (None, Some((inode, kind))) => {
                let entry = NewEntry::new(inode, name, entry_type(kind));
                entries::add_name(&mut plan, &mut changed, &entry.ok_or(Error::NameTooLong)?)?;
            }
        }
        let version = slot::version(&mut plan, slot)?;
        fast_commit_parts::apply_here(plan)?;
        pinned.publish(Some(version));
    }
    drop(locked);
    Ok(())
}

/// Puts an inode that has lost its last name on the orphan list.
fn add_to_orphan_list(mount: &Mount, nr: InodeNr) -> Result<()> {
    let Some((group, index)) = mount.core.geometry().inode_group(nr) else {
        return Ok(());
    };
    if !descriptor::inode_bitmap(&mount.core, group)?.is_used(index.0)
        || cache::load_inode(&mount.core, nr)?.links_count() == 0
    {
        // The inode was made and deleted between two commits, or was on the orphan list before.
        return Ok(());
    }
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, nr)?;
    slot::edit(&mut plan, slot, |inode| inode.set_links_count(0))?;
    if fast_commit_parts::place_on_record(mount, nr).is_none() {
        orphan_plan::add_orphan(&mut plan, slot)?;
    }
    slot::end(&mut plan, slot)?;
    fast_commit_parts::apply_here(plan)
}
