//! **Purpose.** Changes flags, project and generation of an inode, as chattr(1) and similar tools
//! do, and checks what flags forbid.
//!
//! **Model.** An immutable inode does not change, except that the flag itself can be cleared. An
//! append-only inode is not truncated, and its names stay. A directory with `PROJINHERIT_FL` passes
//! its project on to new inodes inside, and accepts no names of inodes of other projects.
//!
//! **Locking.** The inode's lock.
//!
//! **References.** ioctl_iflags(2), chattr(1).

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::checksum::InodeGeneration;
use fourscore_ondisk::features::RoCompat;
use fourscore_ondisk::inode::{FileType, InodeFlags};

use crate::core::Core;
use crate::dir::entries;
use crate::file::journal_data;
use crate::inode::cached::CachedInode;
use crate::inode::{cache, immutable};
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::xattr::change::finish;
use crate::{Error, Result};

/// See [`Fs::set_flags`](crate::Fs::set_flags).
pub(crate) fn set_flags(mount: &Mount, inode: InodeNr, flags: InodeFlags) -> Result<()> {
    errors::noting(mount, change_flags(mount, inode, flags))
}

fn change_flags(mount: &Mount, inode: InodeNr, flags: InodeFlags) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let locked = pinned.lock();
    let current = &pinned.copy()?;
    immutable::check_is_no_value(current)?;
    let unsupported = |what: &str| Error::Unsupported(what.into());
    if !InodeFlags::USER_VISIBLE.contains(flags) {
        return Err(unsupported("flags that are not shown are not set"));
    }
    let flags = flags & InodeFlags::USER_MODIFIABLE;
    if flags.of_type(current.file_type()) != flags {
        return Err(unsupported("this type of inode does not have the flag"));
    }
    let old = current.on_disk().flags();
    let changed = (flags ^ old) & InodeFlags::USER_MODIFIABLE;
    let stays_immutable = (flags & old).contains(InodeFlags::IMMUTABLE_FL);
    if stays_immutable && !changed.is_empty() {
        return Err(Error::NotPermitted);
    }
    if changed.contains(InodeFlags::CASEFOLD_FL) {
        check_casefold(&mount.core, current)?;
    }
    let is_stored_anew = changed.contains(InodeFlags::EXTENTS_FL);
    let mut changed = changed - InodeFlags::EXTENTS_FL;
    if changed.contains(InodeFlags::JOURNAL_DATA_FL) {
        if mount.journal().has_log() {
            journal_data::forget_content(mount, current)?;
        } else {
            // As in Linux: the flag would have no meaning here.
            changed -= InodeFlags::JOURNAL_DATA_FL;
        }
    }
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, inode)?;
    slot::edit(&mut plan, slot, |inode| inode.set_flags(old ^ changed))?;
    finish(plan, slot, pinned.held(&locked))?;
    if is_stored_anew {
        return Err(unsupported("how the content is stored is not changed"));
    }
    Ok(())
}

/// Refuses to set or clear the case-insensitive flag of a directory, unless it has no names.
fn check_casefold(core: &Core, dir: &CachedInode) -> Result<()> {
    if core.superblock().encoding().is_none() {
        return Err(Error::Unsupported(
            "the file system has no feature casefold".into(),
        ));
    }
    match entries::is_empty_dir(core, dir)? {
        true => Ok(()),
        false => Err(Error::NotEmpty),
    }
}

/// See [`Fs::set_project`](crate::Fs::set_project).
pub(crate) fn set_project(mount: &Mount, inode: InodeNr, project_id: u32) -> Result<()> {
    errors::noting(mount, change_project(mount, inode, project_id))
}

fn change_project(mount: &Mount, inode: InodeNr, project_id: u32) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let locked = pinned.lock();
    let current = &pinned.copy()?;
    immutable::check_is_no_value(current)?;
    if current.on_disk().project_id() == project_id {
        return Ok(());
    }
    if !has_projects(&mount.core) {
        return Err(Error::Unsupported(
            "the file system has no feature project".into(),
        ));
    }
    if current.has(InodeFlags::IMMUTABLE_FL) {
        return Err(Error::NotPermitted);
    }
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, inode)?;
    slot::edit(&mut plan, slot, |inode| {
        // Without space in the inode the project is not stored; that is checked below.
        let _ = inode.expand_extra_isize();
        inode.set_project_id(project_id);
    })?;
    if slot::inode(&mut plan, slot)?.project_id() != project_id {
        return Err(Error::Unsupported(
            "the inode has no space for a project".into(),
        ));
    }
    finish(plan, slot, pinned.held(&locked))
}

/// See [`Fs::set_generation`](crate::Fs::set_generation).
pub(crate) fn set_generation(
    mount: &Mount,
    inode: InodeNr,
    generation: InodeGeneration,
) -> Result<()> {
    errors::noting(mount, change_generation(mount, inode, generation))
}

fn change_generation(mount: &Mount, inode: InodeNr, generation: InodeGeneration) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let locked = pinned.lock();
    if mount.core.superblock().has_metadata_csum() {
        return Err(Error::Unsupported(
            "with checksums the generation stays as it is".into(),
        ));
    }
    let current = &pinned.copy()?;
    immutable::check_is_no_value(current)?;
    if current.has(InodeFlags::IMMUTABLE_FL) {
        return Err(Error::NotPermitted);
    }
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, inode)?;
    slot::edit(&mut plan, slot, |inode| inode.set_generation(generation))?;
    finish(plan, slot, pinned.held(&locked))
}

fn has_projects(core: &Core) -> bool {
    let features = core.superblock().features();
    features.ro_compat.contains(RoCompat::PROJECT)
}

/// Returns the flags and the project that a new inode inherits from its directory.
pub(crate) fn inherited(parent: &CachedInode, file_type: FileType) -> (InodeFlags, u32) {
    let parent = parent.on_disk();
    let flags = (parent.flags() & InodeFlags::INHERITED).of_type(file_type);
    if parent.flags().contains(InodeFlags::PROJINHERIT_FL) {
        (flags, parent.project_id())
    } else {
        (flags, 0)
    }
}
