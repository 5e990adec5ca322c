//! **Purpose.** Access control lists that are set, inherited, and kept in step with the permission
//! bits.
//!
//! **Not here.** What lists and bits say of each other (`fourscore_ondisk::acl`), where attributes
//! are stored ([`crate::xattr::set`]).
//!
//! **Model.** The access list and the bits say the same of owner, mask and others, always. A list
//! that says no more than the bits is not stored. A directory's default list is its access list's
//! twin for what is made inside: the new inode's bits are cut by it instead of by the umask.
//!
//! **References.** acl(5).

use fourscore_ondisk::acl::{self, AclEntry, AclError, Says};
use fourscore_ondisk::inode::{FileMode, FileType};
use fourscore_ondisk::xattr::NameIndex;
use fourscore_ondisk::{Corrupt, InodeNr};
use fourscore_sync::epoch::Guard;

use crate::core::Core;
use crate::inode::cached::CachedInode;
use crate::inode::caller::SetGid;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::xattr::get;
use crate::xattr::set::{self, Changed, NewXattr, SetXattr};
use crate::{Error, Result};

const ALL_PERMISSIONS: u16 = 0o777;
const SET_GID: u16 = 0o2000;

/// What a new inode gets from the default list of its directory.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// Its permission bits, set-id bits and sticky bit.
    pub(crate) permissions: u16,
    /// Its access list, if the bits do not say all.
    access: Option<Vec<AclEntry>>,
    /// Its default list, if it is a directory.
    default: Option<Vec<AclEntry>>,
}

/// What is made in `parent` with the wish for `permissions` inherits. Only where there is no
/// default list `umask` counts.
pub(crate) fn inherit(
    core: &Core,
    parent: &CachedInode,
    file_type: FileType,
    (permissions, umask): (u16, u16),
    guard: &Guard,
) -> Result<Inherited> {
    if file_type == FileType::Symlink {
        return Ok(Inherited {
            permissions,
            ..Inherited::default()
        });
    }
    let Some(default) = acl(core, parent, NameIndex::POSIX_ACL_DEFAULT, guard)? else {
        return Ok(Inherited {
            permissions: permissions & !(umask & ALL_PERMISSIONS),
            ..Inherited::default()
        });
    };
    let mut access = default.clone();
    let bits = acl::inherit(&mut access, permissions & ALL_PERMISSIONS);
    let (_, says) = acl::mode_of(&access);
    Ok(Inherited {
        permissions: (permissions & !ALL_PERMISSIONS) | bits,
        access: (says == Says::More).then_some(access),
        default: (file_type == FileType::Directory).then_some(default),
    })
}

/// A list of an inode; `None` for one without entries, which means the same as none. For the
/// holder of the inode's lock, or inside of
/// [`consistent::read_consistent`](crate::inode::consistent::read_consistent).
pub(crate) fn acl(
    core: &Core,
    inode: &CachedInode,
    index: NameIndex,
    guard: &Guard,
) -> Result<Option<Vec<AclEntry>>> {
    let Some(value) = get::stored_xattr(core, inode, index, b"", guard)? else {
        return Ok(None);
    };
    let list = decode(&value, inode.nr())?;
    Ok((!list.is_empty()).then_some(list))
}

/// Stores the lists of a new inode.
pub(crate) fn store_inherited(
    plan: &mut Plan<'_>,
    slot: Slot,
    inherited: &Inherited,
) -> Result<()> {
    let lists = [
        (NameIndex::POSIX_ACL_DEFAULT, &inherited.default),
        (NameIndex::POSIX_ACL_ACCESS, &inherited.access),
    ];
    for (index, list) in lists {
        if let Some(list) = list {
            store_acl(plan, slot, index, list)?;
        }
    }
    Ok(())
}

/// Sets a list that came in the form of the system calls; an empty one is removed.
pub(crate) fn set_acl(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    index: NameIndex,
    (value, set_gid): (&[u8], SetGid),
) -> Result<Changed> {
    let list = parse(value);
    if let Err(error) = &list
        && !is_rule(error)
    {
        return Err(refused(error));
    }
    let is_access = index == NameIndex::POSIX_ACL_ACCESS;
    let is_removed = list.as_ref().is_ok_and(Vec::is_empty);
    match inode.file_type() {
        FileType::Symlink => {
            return Err(Error::Unsupported("symbolic links have no lists".into()));
        }
        FileType::Directory => {}
        _ if is_access => {}
        _ if is_removed => return Ok(Changed::No),
        _ => return Err(Error::AccessDenied),
    }
    let list = list.map_err(|error| refused(&error))?;
    if is_removed {
        return remove_acl(plan, slot, index);
    }
    if !is_access {
        return store_acl(plan, slot, index, &list);
    }
    let (bits, says) = acl::mode_of(&list);
    let stored = match says {
        Says::NoMore => remove_acl(plan, slot, index)?,
        Says::More => store_acl(plan, slot, index, &list)?,
    };
    let mode = inode.on_disk().mode();
    let lost = match set_gid {
        SetGid::Stays => 0,
        SetGid::Goes => SET_GID,
    };
    let new = FileMode((mode.0 & !ALL_PERMISSIONS & !lost) | bits);
    slot::edit(plan, slot, |inode| inode.set_mode(new))?;
    let changed = if new == mode {
        Changed::No
    } else {
        Changed::Yes
    };
    Ok(stored.or(changed))
}

/// Lets the access list follow permission bits that were changed to `permissions`.
pub(crate) fn chmod_acl(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    permissions: u16,
    guard: &Guard,
) -> Result<()> {
    let index = NameIndex::POSIX_ACL_ACCESS;
    if let Some(mut list) = acl(&plan.mount.core, inode, index, guard)? {
        acl::chmod(&mut list, permissions);
        store_acl(plan, slot, index, &list)?;
    }
    Ok(())
}

fn store_acl(
    plan: &mut Plan<'_>,
    slot: Slot,
    index: NameIndex,
    list: &[AclEntry],
) -> Result<Changed> {
    let value = acl::to_disk(list);
    set::plan_change(plan, slot, index, b"", NewXattr::Set(&value, SetXattr::Any))
}

fn remove_acl(plan: &mut Plan<'_>, slot: Slot, index: NameIndex) -> Result<Changed> {
    match set::plan_change(plan, slot, index, b"", NewXattr::Remove) {
        Err(Error::NoAttribute) => Ok(Changed::No),
        other => other,
    }
}

/// The entries of a list on disk.
fn decode(value: &[u8], nr: InodeNr) -> Result<Vec<AclEntry>> {
    let list = acl::from_disk(value).and_then(Iterator::collect);
    Ok(list.map_err(|error: AclError| Corrupt::from(error).in_inode(nr))?)
}

/// The entries of a list as a program gave it, if it may be set; none for one without entries.
fn parse(value: &[u8]) -> std::result::Result<Vec<AclEntry>, AclError> {
    if value.is_empty() {
        return Ok(Vec::new());
    }
    let entries = acl::from_xattr(value)?;
    if entries.clone().next().is_some() {
        acl::check(entries.clone())?;
    }
    entries.collect()
}

/// Whether these are entries, but not those of a list. Linux looks at the inode before it finds
/// that.
fn is_rule(error: &AclError) -> bool {
    match error {
        AclError::Permissions { .. } | AclError::Order { .. } | AclError::Missing { .. } => true,
        AclError::TooShort { .. }
        | AclError::Version { .. }
        | AclError::Tag { .. }
        | AclError::Id { .. } => false,
    }
}

fn refused(error: &AclError) -> Error {
    match error {
        AclError::Version { .. } => Error::Unsupported(error.to_string()),
        AclError::TooShort { .. }
        | AclError::Tag { .. }
        | AclError::Permissions { .. }
        | AclError::Order { .. }
        | AclError::Id { .. }
        | AclError::Missing { .. } => Error::InvalidArgument("not an access control list"),
    }
}
