//! **Purpose.** The operations that make names: create, mkdir, symlink, mknod, link.
//!
//! **Model.** Each is one plan in one handle: the name, the inode it refers to, and the directory's
//! own inode change together or not at all.
//!
//! **Locking.** The directory, then the inode that the name refers to. A new name that fits into
//! its leaf locks only that leaf ([`crate::dir::leaf`]).

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::dirent::write::NewEntry;
use fourscore_ondisk::inode::{DeviceNr, FileType};

use crate::dir::changed::ChangedDir;
use crate::dir::find::Keep;
use crate::dir::new_inode::{self, Kind, Made, NewAttributes, Opening};
use crate::dir::{entries, find, leaf};
use crate::file::truncate;
use crate::inode::cached::CachedInode;
use crate::inode::cell::{Changing, Pinned};
use crate::inode::{cache, orphan_plan};
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, Result};

/// See [`Fs::create`](crate::Fs::create).
pub(crate) fn create(
    mount: &Mount,
    dir: InodeNr,
    name: &[u8],
    new: &NewAttributes,
) -> Result<InodeNr> {
    made(mount, dir, name, new, Kind::File)
}

/// As [`Fs::create`](crate::Fs::create), and opens the file.
pub(crate) fn create_open(
    mount: &Mount,
    dir: InodeNr,
    name: &[u8],
    new: &NewAttributes,
) -> Result<(InodeNr, Pinned)> {
    let make = || make(mount, dir, name, new, Kind::File, Opening::Yes);
    let made = mount.space.retried(make);
    let (nr, pinned) = errors::noting(mount, made)?;
    Ok((nr, pinned.expect("what is made to be open is")))
}

/// See [`Fs::mkdir`](crate::Fs::mkdir).
pub(crate) fn mkdir(
    mount: &Mount,
    dir: InodeNr,
    name: &[u8],
    new: &NewAttributes,
) -> Result<InodeNr> {
    made(mount, dir, name, new, Kind::Directory)
}

/// See [`Fs::symlink`](crate::Fs::symlink).
pub(crate) fn symlink(
    mount: &Mount,
    dir: InodeNr,
    name: &[u8],
    target: &[u8],
    new: &NewAttributes,
) -> Result<InodeNr> {
    if target.is_empty() {
        return Err(Error::NotFound);
    }
    if target.contains(&0) {
        return Err(Error::InvalidArgument("a target with a zero byte"));
    }
    if target.len() >= mount.core.geometry().block_size().bytes().min(4096) {
        return Err(Error::NameTooLong);
    }
    made(mount, dir, name, new, Kind::Symlink(target))
}

/// See [`Fs::mknod`](crate::Fs::mknod).
pub(crate) fn mknod(
    mount: &Mount,
    dir: InodeNr,
    name: &[u8],
    file_type: FileType,
    device: DeviceNr,
    new: &NewAttributes,
) -> Result<InodeNr> {
    let kind = match file_type {
        FileType::BlockDevice | FileType::CharDevice => Kind::Device(file_type, device),
        FileType::Fifo | FileType::Socket => Kind::Endpoint(file_type),
        FileType::Regular => Kind::File,
        FileType::Directory | FileType::Symlink => {
            return Err(Error::InvalidArgument("mknod does not make this type"));
        }
    };
    made(mount, dir, name, new, kind)
}

fn made(
    mount: &Mount,
    dir: InodeNr,
    name: &[u8],
    new: &NewAttributes,
    kind: Kind<'_>,
) -> Result<InodeNr> {
    let made = mount
        .space
        .retried(|| make(mount, dir, name, new, kind, Opening::No));
    let (nr, _) = errors::noting(mount, made)?;
    Ok(nr)
}

fn make(
    mount: &Mount,
    dir: InodeNr,
    name: &[u8],
    new: &NewAttributes,
    kind: Kind<'_>,
    opening: Opening,
) -> Result<Made> {
    new_inode::check_name(name)?;
    let pinned = cache::pin_directory(&mount.core, dir)?;
    let made = leaf::make_in_leaf(mount, dir, &pinned, name, new, kind, opening)?;
    if let Some(made) = made {
        return Ok(made);
    }
    let locked = pinned.lock();
    let parent = &new_inode::directory_to_change(&pinned)?;
    match find::look_up_locked(&mount.core, parent, name) {
        Ok(_) => return Err(Error::Exists),
        Err(Error::NotFound) => {}
        Err(error) => return Err(error),
    }
    new_inode::check_key(parent)?;
    let is_directory = matches!(kind, Kind::Directory);
    if is_directory {
        new_inode::check_subdirectory(&mount.core, parent)?;
    }
    let mut plan = Plan::new(mount);
    let made = new_inode::plan_inode(mount, &mut plan, parent, new, kind)?;
    let slot = slot::slot(&mut plan, dir)?;
    let mut changed = ChangedDir::new(&mount.core, parent, slot)?;
    let entry = NewEntry::new(made.nr, name, new_inode::entry_type(kind.file_type()));
    entries::add_name(&mut plan, &mut changed, &entry.ok_or(Error::NameTooLong)?)?;
    let links = i32::from(is_directory);
    let version = new_inode::touch_dir(&mount.core, &mut plan, parent, slot, links)?;
    let changes = [&pinned];
    let publication = Publication::of(&changes);
    new_inode::apply_creating(
        &mount.core,
        plan,
        made,
        opening,
        &locked.last,
        publication,
        || {
            pinned.publish(Some(version));
        },
    )
}

/// Makes a regular file without a name, and opens it.
pub(crate) fn unnamed(
    mount: &Mount,
    dir: InodeNr,
    new: &NewAttributes,
) -> Result<(InodeNr, Pinned)> {
    errors::noting(mount, mount.space.retried(|| make_unnamed(mount, dir, new)))
}

/// Makes a regular file without a name, which is on the orphan list until it gets one; the file is
/// open for the caller. The directory determines where its inode is allocated and which group owns
/// it.
pub(crate) fn make_unnamed(
    mount: &Mount,
    dir: InodeNr,
    new: &NewAttributes,
) -> Result<(InodeNr, Pinned)> {
    let pinned_dir = cache::pin_directory(&mount.core, dir)?;
    // The lists that the file inherits do not change meanwhile.
    let _shared = pinned_dir.share();
    let parent = &new_inode::directory_to_change(&pinned_dir).map_err(|error| match error {
        // The directory was removed. No name is missing in it, so Linux denies it.
        Error::NotFound => Error::NotPermitted,
        error => error,
    })?;
    new_inode::check_key(parent)?;
    let mut plan = Plan::new(mount);
    let slot = new_inode::plan_inode(mount, &mut plan, parent, new, Kind::Unnamed)?;
    let place = orphan_plan::add_orphan(&mut plan, slot)?;
    let version = slot::version(&mut plan, slot)?;
    let note = |locked: &mut Changing| {
        (locked.orphan, locked.is_linkable) = (Some(place), true);
    };
    let nothing = Publication::nothing();
    let pinned = new_inode::apply_opening(&mount.core, plan, version, None, nothing, || (), note)?;
    Ok((slot.nr, pinned))
}

/// Plans the inode of a whiteout, for a name in `parent` that exists already.
pub(crate) fn plan_whiteout(
    mount: &Mount,
    plan: &mut Plan<'_>,
    parent: &CachedInode,
    owner: &NewAttributes,
) -> Result<InodeNr> {
    let new = owner.permissions(0);
    let kind = Kind::Device(FileType::CharDevice, DeviceNr { major: 0, minor: 0 });
    Ok(new_inode::plan_inode(mount, plan, parent, &new, kind)?.nr)
}

/// See [`Fs::link`](crate::Fs::link).
pub(crate) fn link(mount: &Mount, inode: InodeNr, dir: InodeNr, name: &[u8]) -> Result<()> {
    errors::noting(
        mount,
        mount.space.retried(|| add_link(mount, inode, dir, name)),
    )
}

fn add_link(mount: &Mount, inode: InodeNr, dir: InodeNr, name: &[u8]) -> Result<()> {
    new_inode::check_name(name)?;
    let pinned_dir = cache::pin_directory(&mount.core, dir)?;
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let may_be_named = mount.core.superblock().may_be_named(inode);
    if pinned.file_type()? == FileType::Directory || !may_be_named {
        return match find::find_name(&mount.core, dir, name, Keep::Nothing) {
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) => Err(Error::NotPermitted),
            Err(error) => Err(error),
        };
    }
    if let Some(()) = leaf::link_in_leaf(mount, dir, &pinned_dir, name, inode, &pinned)? {
        return Ok(());
    }
    let locked_dir = pinned_dir.lock();
    let mut locked = pinned.lock();
    truncate::end_truncation(mount, pinned.locked(&mut locked))?;
    let parent = &new_inode::directory_to_change(&pinned_dir)?;
    let target = &pinned.copy()?;
    match find::look_up_locked(&mount.core, parent, name) {
        Ok(_) => return Err(Error::Exists),
        Err(Error::NotFound) => {}
        Err(error) => return Err(error),
    }
    new_inode::check_link(parent, target, &locked)?;
    new_inode::check_key(parent)?;
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, dir)?;
    let mut changed = ChangedDir::new(&mount.core, parent, slot)?;
    let entry = NewEntry::new(inode, name, new_inode::entry_type(target.file_type()));
    entries::add_name(&mut plan, &mut changed, &entry.ok_or(Error::NameTooLong)?)?;
    let parent_version = new_inode::touch_dir(&mount.core, &mut plan, parent, slot, 0)?;
    let version = new_inode::gain_name(&mut plan, target, &locked)?;
    let last = [&locked_dir.last, &locked.last];
    plan.apply_publishing(&last, Publication::of(&[&pinned_dir, &pinned]), || {
        pinned_dir.publish(Some(parent_version));
        pinned.publish(Some(version));
    })?;
    locked.note_gained_name();
    Ok(())
}
