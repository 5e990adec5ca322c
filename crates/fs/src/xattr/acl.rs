//! **Purpose.** Sets and inherits access control lists, and keeps them consistent with the
//! permission bits.
//!
//! **Not here.** How lists and permission bits correspond (`fourscore_ondisk::acl`), where
//! attributes are stored ([`crate::xattr::set`]).
//!
//! **Model.** The access list and the permission bits always agree on owner, mask and others. A
//! list that the bits express completely is not stored. The default list of a directory is the
//! access list of new inodes inside it: it restricts the new inode's bits instead of the umask.
//!
//! **References.** acl(5).

use fourscore_ondisk::acl::{self, AclEntry, AclError, Says};
use fourscore_ondisk::inode::{FileMode, FileType};
use fourscore_ondisk::xattr::NameIndex;
use fourscore_ondisk::{Corrupt, InodeNr};

use crate::core::Core;
use crate::guard::{Guard, with_guard};
use crate::inode::cached::CachedInode;
use crate::inode::caller::SetGid;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::xattr::get;
use crate::xattr::set::{self, Changed, NewXattr, SetXattr, XattrChange};
use crate::{Error, Result};

const ALL_PERMISSIONS: u16 = 0o777;
const SET_GID: u16 = 0o2000;

/// Attributes that a new inode inherits from the default list of its directory.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// Its permission bits, set-id bits and sticky bit.
    pub(crate) permissions: u16,
    /// Its access list, if the bits do not express it completely.
    access: Option<Vec<AclEntry>>,
    /// Its default list, if it is a directory.
    default: Option<Vec<AclEntry>>,
}

/// Returns the attributes that a new inode in `parent`, requested with `permissions`, inherits.
/// `umask` is used only if there is no default list.
pub(crate) fn inherit(
    core: &Core,
    parent: &CachedInode,
    file_type: FileType,
    permissions: u16,
    umask: u16,
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

/// Returns a list of an inode; `None` also for a list without entries, which means the same. For
/// the holder of the inode's lock, or inside
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
    let values = lists.map(|(_, list)| list.as_deref().map(acl::to_disk));
    let changes = [0, 1].map(|nth: usize| XattrChange {
        index: lists[nth].0,
        name: b"",
        new: match &values[nth] {
            Some(value) => NewXattr::Set(value, SetXattr::Any),
            None => NewXattr::Absent,
        },
    });
    if values.iter().any(Option::is_some) {
        set::plan_changes(plan, slot, &changes)?;
    }
    Ok(())
}

/// Sets a list in the form of the system calls; removes it if the new list is empty.
pub(crate) fn set_acl(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    index: NameIndex,
    value: &[u8],
    set_gid: SetGid,
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

/// Returns the access list of an inode, in the form on disk, after its permission bits were changed
/// to `permissions`; `None` if it has none.
pub(crate) fn chmod_acl(
    core: &Core,
    inode: &CachedInode,
    permissions: u16,
) -> Result<Option<Vec<u8>>> {
    let index = NameIndex::POSIX_ACL_ACCESS;
    let list = with_guard(core, |guard| acl(core, inode, index, guard))?;
    Ok(list.map(|mut list| {
        acl::chmod(&mut list, permissions);
        acl::to_disk(&list)
    }))
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

/// Decodes the entries of a list on disk.
fn decode(value: &[u8], nr: InodeNr) -> Result<Vec<AclEntry>> {
    let list = acl::from_disk(value).and_then(Iterator::collect);
    Ok(list.map_err(|error: AclError| Corrupt::from(error).in_inode(nr))?)
}

/// Decodes the entries of a list from a program, and checks that it may be set; returns no entries
/// for an empty list.
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

/// Whether the error is that valid entries do not form a valid list. Linux checks the inode before
/// it reports that error.
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
