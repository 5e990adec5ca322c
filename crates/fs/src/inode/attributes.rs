//! **Purpose.** Changes attributes of an inode: permissions, owner, times.
//!
//! **Model.** The access control list follows the permission bits. A change of owner clears the
//! set-id bits, unless the same call sets the permission bits, and removes capabilities.
//! Directories keep both.
//!
//! **Locking.** The inode's lock.

use fourscore_ondisk::inode::{FileMode, FileType, InodeFlags};
use fourscore_ondisk::xattr::NameIndex;
use fourscore_ondisk::{InodeNr, Timestamp};

use crate::core::Core;
use crate::guard::{Guard, with_guard};
use crate::inode::cached::CachedInode;
use crate::inode::caller::AttributeChange;
use crate::inode::cell::{HeldInode, Pinned};
use crate::inode::immutable::{check_changeable, check_is_no_value};
use crate::inode::{cache, consistent};
use crate::mount::clock::now;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::xattr::change::{finish, finish_timed};
use crate::xattr::set::{self, NewXattr, SetXattr, XattrChange};
use crate::xattr::{acl, get};
use crate::{Caller, Capabilities, Error, Result};

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// Times that no program has chosen; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotedTimes {
    /// Of the last access.
    pub atime: Option<Timestamp>,
    /// Of the last change of the data.
    pub mtime: Option<Timestamp>,
    /// Of the last change of anything; `None` means now.
    pub ctime: Option<Timestamp>,
}

/// Why times are noted that no program has chosen. This decides whether flags forbid it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// A program sets the time to now (utimensat(2) without times): refused for immutable inodes.
    Touched,
    /// The data was changed earlier, when that was permitted: never refused.
    Written,
}

/// Whether a file has lost privileges that it must not keep when its data changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// It had none.
    Kept,
    /// Its mode or its attributes have changed.
    Taken,
}

/// What a regular file loses when its data changes: it has set-id bits or a capability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostPrivileges {
    /// The mode that it keeps.
    mode: FileMode,
}

/// See [`Fs::set_attributes`](crate::Fs::set_attributes).
pub(crate) fn set_attributes(
    mount: &Mount,
    inode: InodeNr,
    change: &AttributeChange,
) -> Result<()> {
    let change = || change_attributes(mount, inode, change, None, check_changeable);
    errors::noting(mount, mount.space.retried(change))
}

/// See [`Fs::note_times`](crate::Fs::note_times).
pub(crate) fn note_times(
    mount: &Mount,
    inode: InodeNr,
    times: &NotedTimes,
    why: Noted,
) -> Result<()> {
    let change = AttributeChange {
        atime: times.atime,
        mtime: times.mtime,
        ..AttributeChange::default()
    };
    let check = |inode: &CachedInode| {
        check_is_no_value(inode)?;
        match why {
            Noted::Touched if inode.has(InodeFlags::IMMUTABLE_FL) => Err(Error::NotPermitted),
            Noted::Touched | Noted::Written => Ok(()),
        }
    };
    let note = || change_attributes(mount, inode, &change, times.ctime, check);
    errors::noting(mount, mount.space.retried(note))
}

fn change_attributes(
    mount: &Mount,
    inode: InodeNr,
    change: &AttributeChange,
    ctime: Option<Timestamp>,
    check: impl FnOnce(&CachedInode) -> Result<()>,
) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let locked = pinned.lock();
    let current = &pinned.copy()?;
    check(current)?;
    let on_disk = current.on_disk();
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, inode)?;
    let mut mode = on_disk.mode();
    let mut changes = Vec::new();
    let changes_owner = change.uid.is_some() || change.gid.is_some();
    if changes_owner && current.file_type() != FileType::Directory {
        mode = without_set_id(mode);
        changes.push(NO_CAPABILITY);
    }
    let list = match change.permissions {
        Some(permissions) => {
            mode = FileMode(mode.0 & !0o7777 | permissions & 0o7777);
            acl::chmod_acl(&mount.core, current, permissions)?
        }
        None => None,
    };
    changes.extend(list.as_deref().map(|list| XattrChange {
        index: NameIndex::POSIX_ACL_ACCESS,
        name: b"",
        new: NewXattr::Set(list, SetXattr::Any),
    }));
    if !changes.is_empty() {
        set::plan_changes(&mut plan, slot, &changes)?;
    }
    slot::edit(&mut plan, slot, |inode| {
        inode.set_mode(mode);
        let uid = change.uid.unwrap_or(on_disk.uid());
        inode.set_owner(uid, change.gid.unwrap_or(on_disk.gid()));
        if let Some(atime) = change.atime {
            inode.set_atime(atime);
        }
        if let Some(mtime) = change.mtime {
            inode.set_mtime(mtime);
        }
        inode.set_ctime(ctime.unwrap_or_else(now));
    })?;
    finish_timed(plan, slot, pinned.held(&locked))
}

/// See [`Fs::remove_privileges`](crate::Fs::remove_privileges).
pub(crate) fn remove_privileges(
    mount: &Mount,
    inode: InodeNr,
    caller: &Caller<'_>,
) -> Result<Privileges> {
    errors::noting(
        mount,
        mount
            .space
            .retried(|| take_privileges(mount, inode, caller)),
    )
}

fn take_privileges(mount: &Mount, inode: InodeNr, caller: &Caller<'_>) -> Result<Privileges> {
    let has_some = consistent::read_consistent(&mount.core, inode, |inode, guard| {
        has_privileges(&mount.core, inode, caller, guard)
    })?;
    if !has_some {
        return Ok(Privileges::Kept);
    }
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let locked = pinned.lock();
    take_privileges_locked(mount, pinned.held(&locked), caller)
}

fn take_privileges_locked(
    mount: &Mount,
    file: HeldInode<'_>,
    caller: &Caller<'_>,
) -> Result<Privileges> {
    let Some(lost) = lost_privileges(mount, file.pinned, caller)? else {
        return Ok(Privileges::Kept);
    };
    if file.pinned.copy()?.has(InodeFlags::IMMUTABLE_FL) {
        return Err(Error::NotPermitted);
    }
    take_now(mount, file, lost)?;
    Ok(Privileges::Taken)
}

/// Returns the privileges that the file loses when `caller` writes to it; `None` if it has none of
/// these. The inode's lock is held.
pub(crate) fn lost_privileges(
    mount: &Mount,
    pinned: &Pinned,
    caller: &Caller<'_>,
) -> Result<Option<LostPrivileges>> {
    with_guard(&mount.core, |guard| {
        let inode = pinned.version(guard)?;
        let has_some = has_privileges(&mount.core, inode, caller, guard)?;
        Ok(has_some.then(|| LostPrivileges {
            mode: kept_when_written(inode, caller),
        }))
    })
}

/// Removes privileges in a plan of its own.
pub(crate) fn take_now(mount: &Mount, file: HeldInode<'_>, lost: LostPrivileges) -> Result<()> {
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, file.pinned.copy()?.nr())?;
    plan_loss(&mut plan, slot, lost)?;
    finish(plan, slot, file)
}

/// Plans the removal of privileges of the inode in `slot`. To be called once for a plan, which sets
/// the time of change.
pub(crate) fn plan_loss(plan: &mut Plan<'_>, slot: Slot, lost: LostPrivileges) -> Result<()> {
    set::plan_changes(plan, slot, &[NO_CAPABILITY])?;
    slot::edit(plan, slot, |inode| inode.set_mode(lost.mode))
}

/// Whether `inode` is a file with set-id bits or a capability that a write by `caller` removes.
fn has_privileges(
    core: &Core,
    inode: &CachedInode,
    caller: &Caller<'_>,
    guard: &Guard,
) -> Result<bool> {
    if inode.file_type() != FileType::Regular {
        return Ok(false);
    }
    if kept_when_written(inode, caller) != inode.on_disk().mode() {
        return Ok(true);
    }
    let (index, name) = (NameIndex::SECURITY, b"capability");
    Ok(get::stored_xattr(core, inode, index, name, guard)?.is_some())
}

/// Removes `security.capability`, if it exists.
const NO_CAPABILITY: XattrChange<'_> = XattrChange {
    index: NameIndex::SECURITY,
    name: b"capability",
    new: NewXattr::Absent,
};

/// Returns the mode that a regular file has after `caller` has written to it.
fn kept_when_written(inode: &CachedInode, caller: &Caller<'_>) -> FileMode {
    let mode = inode.on_disk().mode();
    if caller.has(Capabilities::FSETID) {
        return mode;
    }
    let kept = without_set_id(mode);
    match caller.is_in(inode.on_disk().gid()) {
        true => kept,
        false => FileMode(kept.0 & !SET_GID),
    }
}

fn without_set_id(mode: FileMode) -> FileMode {
    let mut gone = SET_UID;
    if mode.0 & GROUP_EXECUTE != 0 {
        gone |= SET_GID;
    }
    FileMode(mode.0 & !gone)
}
