//! **Purpose.** Who may do what: the rules of Linux, for a server that speaks for several users.
//!
//! **Not here.** What nobody may do, whoever asks: the calls of [`Fs`] refuse that themselves
//! (immutable inodes, `user.` attributes on devices). They ask nobody for permission: an image
//! builder has no users, and in front of a FUSE mount the kernel has asked already.
//!
//! **Model.** A [`Caller`] has a user, groups and capabilities. The owner's bits count for the
//! owner; else the access control list decides, or without one the bits of group and others.
//! Capabilities override.
//!
//! **Locking.** None: an answer holds for the moment it was given.
//!
//! **References.** path_resolution(7), capabilities(7), acl(5), xattr(7), chmod(2), chown(2).

use crate::core::Core;
use crate::inode::cached::CachedInode;
use crate::inode::{cache, consistent};
use crate::xattr::acl as xattr_acl;
use crate::{AttributeChange, Error, FileType, Result};
use bitflags::bitflags;
use fourscore_ondisk::InodeNr;
use fourscore_ondisk::acl::{self, AclEntry, AclWho, Asker};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::xattr::NameIndex;

const STICKY: u16 = 0o1000;
const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
const ANY_EXECUTE: u16 = 0o111;
const GROUP_BITS: u16 = 0o070;

bitflags! {
    /// What somebody may do beyond what permissions say, capabilities(7).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// Give files away.
        const CHOWN = 1;
        /// Read, write and search whatever the bits say.
        const DAC_OVERRIDE = 1 << 1;
        /// Read files and search directories whatever the bits say.
        const DAC_READ_SEARCH = 1 << 2;
        /// What else only the owner may do.
        const FOWNER = 1 << 3;
        /// Keep the set-group bit of groups that one is not in.
        const FSETID = 1 << 4;
        /// Set and clear `IMMUTABLE_FL` and `APPEND_FL`.
        const LINUX_IMMUTABLE = 1 << 5;
        /// See and change `trusted.` attributes.
        const SYS_ADMIN = 1 << 6;
        /// Set and clear `JOURNAL_DATA_FL`.
        const SYS_RESOURCE = 1 << 7;
        /// Set `security.capability`.
        const SETFCAP = 1 << 8;
    }
}

bitflags! {
    /// What is wished of an inode, with the values of a permission's three bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Wish: u16 {
        /// Execute a file, search a directory.
        const EXECUTE = 1;
        /// Write a file, change the names in a directory.
        const WRITE = 2;
        /// Read a file, list a directory.
        const READ = 4;
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The user, for the file system.
    pub uid: u32,
    /// The group, for the file system.
    pub gid: u32,
    /// Further groups.
    pub groups: &'a [u32],
    /// What it may do beyond.
    pub capabilities: Capabilities,
}

impl Caller<'_> {
    /// Whom nothing is denied.
    pub const ROOT: Caller<'static> = Caller {
        uid: 0,
        gid: 0,
        groups: &[],
        capabilities: Capabilities::all(),
    };

    pub(crate) fn has(&self, capability: Capabilities) -> bool {
        self.capabilities.contains(capability)
    }

    pub(crate) fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Owner, or somebody who counts as such.
    fn owns(&self, inode: &CachedInode) -> bool {
        self.uid == inode.on_disk().uid() || self.has(Capabilities::FOWNER)
    }

    /// Whether the bits, or the list, give all of `wish`.
    fn is_given(&self, inode: &CachedInode, list: Option<&[AclEntry]>, wish: Wish) -> bool {
        let (on_disk, mode) = (inode.on_disk(), inode.on_disk().mode().0);
        let asker = Asker {
            owns: self.uid == on_disk.uid(),
            uid: self.uid,
            gid: self.gid,
            groups: self.groups,
            file_gid: on_disk.gid(),
        };
        let bits = [
            (AclWho::Owner, 6),
            (AclWho::OwningGroup, 3),
            (AclWho::Other, 0),
        ];
        let bits = bits.map(|(who, shift)| AclEntry {
            who,
            permissions: (mode >> shift) & 7,
        });
        // With no bit for the group, no entry of the list has anything to give.
        let list = list.filter(|_| mode & GROUP_BITS != 0).unwrap_or(&bits);
        acl::grants(list, &asker, wish.bits())
    }
}

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
    Ok(())
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
        if is_sticky && is_directory && !caller.owns(inode) {
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
