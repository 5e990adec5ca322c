//! **Purpose.** Permission checks: the rules of Linux, for a server that acts for several users.
//!
//! **Not here.** Operations that are forbidden to all callers (on immutable inodes, or `user.`
//! attributes on devices): the calls of [`Fs`](crate::Fs) refuse these themselves. Those calls
//! check no permissions: an image builder has no users, and in front of a FUSE mount the kernel has
//! checked already.
//!
//! **Model.** A [`Caller`] has a user, groups and capabilities. The owner's bits count for the
//! owner. For any other caller the access control list decides, or without a list the bits of group
//! and others. Capabilities override.
//!
//! **Locking.** None: a result is valid only for the moment of the check.
//!
//! **References.** path_resolution(7), capabilities(7), acl(5), xattr(7), chmod(2), chown(2).

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::xattr::NameIndex;

use crate::core::Core;
use crate::inode::cached::CachedInode;
use crate::inode::caller::{Caller, Capabilities, Wish};
use crate::inode::{cache, consistent};
use crate::xattr::acl as xattr_acl;
use crate::{AttributeChange, Error, Result};

const STICKY: u16 = 0o1000;
const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
const ANY_EXECUTE: u16 = 0o111;

/// See [`Fs::check_access`](crate::Fs::check_access).
pub(crate) fn check_access(
    core: &Core,
    inode: InodeNr,
    wish: Wish,
    caller: &Caller<'_>,
) -> Result<()> {
    access(core, &cache::inode_copy(core, inode)?, wish, caller)
}

fn access(core: &Core, inode: &CachedInode, wish: Wish, caller: &Caller<'_>) -> Result<()> {
    if wish.contains(Wish::WRITE) && inode.has(InodeFlags::IMMUTABLE_FL) {
        return Err(Error::NotPermitted);
    }
    let list = consistent::read_consistent(core, inode.nr(), |inode, guard| {
        xattr_acl::acl(core, inode, NameIndex::POSIX_ACL_ACCESS, guard)
    })?;
    if caller.is_given(inode, list.as_deref(), wish) {
        return Ok(());
    }
    let is_directory = inode.file_type() == FileType::Directory;
    let reads = if is_directory {
        !wish.contains(Wish::WRITE)
    } else {
        wish == Wish::READ
    };
    let executable = is_directory || inode.on_disk().mode().0 & ANY_EXECUTE != 0;
    let overrides =
        caller.has(Capabilities::DAC_OVERRIDE) && (executable || !wish.contains(Wish::EXECUTE));
    if (reads && caller.has(Capabilities::DAC_READ_SEARCH)) || overrides {
        return Ok(());
    }
    Err(Error::AccessDenied)
}

/// See [`Fs::check_removal`](crate::Fs::check_removal).
pub(crate) fn check_removal(
    core: &Core,
    dir: InodeNr,
    inode: InodeNr,
    caller: &Caller<'_>,
) -> Result<()> {
    let (dir, inode) = (
        &cache::inode_copy(core, dir)?,
        &cache::inode_copy(core, inode)?,
    );
    access(core, dir, Wish::WRITE | Wish::EXECUTE, caller)?;
    let is_sticky = dir.on_disk().mode().0 & STICKY != 0;
    if is_sticky && caller.uid != dir.on_disk().uid() && !caller.owns(inode) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// See [`Fs::check_xattr_read`](crate::Fs::check_xattr_read).
pub(crate) fn check_xattr_read(
    core: &Core,
    inode: InodeNr,
    name: &[u8],
    caller: &Caller<'_>,
) -> Result<()> {
    let inode = &cache::inode_copy(core, inode)?;
    if name.starts_with(b"trusted.") && !caller.has(Capabilities::SYS_ADMIN) {
        return Err(Error::NoAttribute);
    }
    if name.starts_with(b"user.") {
        return match inode.file_type() {
            FileType::Regular | FileType::Directory => access(core, inode, Wish::READ, caller),
            _ => Err(Error::NoAttribute),
        };
    }
    // All other names, such as `gnu.`, are as readable as the object.
    let is_free = [&b"trusted."[..], b"security.", b"system."]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    if is_free {
        return Ok(());
    }
    access(core, inode, Wish::READ, caller)
}

/// See [`Fs::check_xattr_change`](crate::Fs::check_xattr_change).
pub(crate) fn check_xattr_change(
    core: &Core,
    inode: InodeNr,
    name: &[u8],
    caller: &Caller<'_>,
) -> Result<()> {
    let inode = &cache::inode_copy(core, inode)?;
    let allowed = if name.starts_with(b"trusted.") {
        caller.has(Capabilities::SYS_ADMIN)
    } else if name == b"security.capability" {
        caller.has(Capabilities::SETFCAP)
    } else if name.starts_with(b"security.") {
        caller.has(Capabilities::SYS_ADMIN)
    } else if name.starts_with(b"system.") {
        caller.owns(inode)
    } else {
        let is_sticky = inode.on_disk().mode().0 & STICKY != 0;
        let is_directory = inode.file_type() == FileType::Directory;
        if name.starts_with(b"user.") && is_sticky && is_directory && !caller.owns(inode) {
            return Err(Error::NotPermitted);
        }
        return access(core, inode, Wish::WRITE, caller);
    };
    if allowed {
        Ok(())
    } else {
        Err(Error::NotPermitted)
    }
}

/// See [`Fs::permitted_change`](crate::Fs::permitted_change).
pub(crate) fn permitted_change(
    core: &Core,
    inode: InodeNr,
    change: &AttributeChange,
    caller: &Caller<'_>,
) -> Result<AttributeChange> {
    let inode = &cache::inode_copy(core, inode)?;
    let on_disk = inode.on_disk();
    let is_owner = caller.uid == on_disk.uid();
    let may_chown = caller.has(Capabilities::CHOWN);
    let keeps_user = change
        .uid
        .is_none_or(|uid| uid == on_disk.uid() && is_owner);
    let keeps_group = change
        .gid
        .is_none_or(|gid| is_owner && (gid == on_disk.gid() || caller.is_in(gid)));
    let others = change.permissions.is_some() || change.atime.is_some() || change.mtime.is_some();
    if !(may_chown || (keeps_user && keeps_group)) || (others && !caller.owns(inode)) {
        return Err(Error::NotPermitted);
    }
    let mut permitted = *change;
    let group = change.gid.unwrap_or(on_disk.gid());
    let keeps_set_gid = caller.is_in(group) || caller.has(Capabilities::FSETID);
    if let Some(permissions) = &mut permitted.permissions
        && !keeps_set_gid
    {
        *permissions &= !SET_GID;
    }
    let mode = on_disk.mode().0;
    let changes_owner = change.uid.is_some() || change.gid.is_some();
    let is_member = caller.is_in(on_disk.gid()) || caller.has(Capabilities::FSETID);
    if changes_owner
        && change.permissions.is_none()
        && inode.file_type() != FileType::Directory
        && mode & (SET_GID | GROUP_EXECUTE) == SET_GID
        && !is_member
    {
        permitted.permissions = Some(mode & 0o7777 & !(SET_UID | SET_GID));
    }
    Ok(permitted)
}

/// See [`Fs::check_flags_change`](crate::Fs::check_flags_change).
pub(crate) fn check_flags_change(
    core: &Core,
    inode: InodeNr,
    flags: InodeFlags,
    caller: &Caller<'_>,
) -> Result<()> {
    let inode = &cache::inode_copy(core, inode)?;
    let changed = flags ^ inode.on_disk().flags();
    let guarded = [
        (
            InodeFlags::IMMUTABLE_FL | InodeFlags::APPEND_FL,
            Capabilities::LINUX_IMMUTABLE,
        ),
        (InodeFlags::JOURNAL_DATA_FL, Capabilities::SYS_RESOURCE),
    ];
    let is_guarded = |&(flags, capability): &(InodeFlags, Capabilities)| {
        changed.intersects(flags) && !caller.has(capability)
    };
    if !caller.owns(inode) || guarded.iter().any(is_guarded) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}
