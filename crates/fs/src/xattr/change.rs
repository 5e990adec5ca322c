//! **Purpose.** The operations that set and remove extended attributes.
//!
//! **Not here.** The changes in inodes and blocks (`crate::xattr::set`), access control lists
//! (`crate::xattr::acl`), permissions (`crate::inode::permission`).
//!
//! **Locking.** The inode's lock.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::xattr::NameIndex;

use crate::inode::caller::SetGid;
use crate::inode::cell::HeldInode;
use crate::inode::immutable::check_changeable;
use crate::inode::{cache, permission};
use crate::mount::clock::now;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::xattr::acl;
use crate::xattr::get::{MAX_NAME_BYTES, MAX_VALUE_BYTES, settable};
use crate::xattr::set::{Changed, NewXattr, SetXattr, plan_change};
use crate::{Caller, Capabilities, Error, Result};

/// See [`Fs::set_xattr`](crate::Fs::set_xattr).
pub(crate) fn set_xattr(
    mount: &Mount,
    inode: InodeNr,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    set_xattr_for(mount, &Caller::ROOT, inode, name, value, how)
}

/// See [`Fs::set_xattr_as`](crate::Fs::set_xattr_as).
pub(crate) fn set_xattr_as(
    mount: &Mount,
    caller: &Caller<'_>,
    inode: InodeNr,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    permission::check_xattr_change(&mount.core, inode, name, caller)?;
    set_xattr_for(mount, caller, inode, name, value, how)
}

pub(crate) fn set_xattr_for(
    mount: &Mount,
    caller: &Caller<'_>,
    inode: InodeNr,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(Error::OutOfRange);
    }
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::TooBig);
    }
    let set = || change_xattr(mount, caller, inode, name, NewXattr::Set(value, how));
    errors::noting(mount, mount.space.retried(set))
}

/// See [`Fs::remove_xattr`](crate::Fs::remove_xattr).
pub(crate) fn remove_xattr(mount: &Mount, inode: InodeNr, name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(Error::OutOfRange);
    }
    let remove = || change_xattr(mount, &Caller::ROOT, inode, name, NewXattr::Remove);
    errors::noting(mount, mount.space.retried(remove))
}

pub(crate) fn change_xattr(
    mount: &Mount,
    caller: &Caller<'_>,
    inode: InodeNr,
    name: &[u8],
    new: NewXattr<'_>,
) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let locked = pinned.lock();
    let current = &pinned.copy()?;
    check_changeable(current)?;
    let file_type = current.file_type();
    let has_user = matches!(file_type, FileType::Regular | FileType::Directory);
    if name.starts_with(b"user.") && !has_user {
        return Err(Error::NotPermitted);
    }
    let (index, rest) = settable(name)?;
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, inode)?;
    let changed = match (index, new) {
        (NameIndex::POSIX_ACL_ACCESS | NameIndex::POSIX_ACL_DEFAULT, new) => {
            let list = match new {
                NewXattr::Set(value, _) => value,
                NewXattr::Remove | NewXattr::Absent => &[],
            };
            let is_member = caller.is_in(current.on_disk().gid());
            let set_gid = match is_member || caller.has(Capabilities::FSETID) {
                true => SetGid::Stays,
                false => SetGid::Goes,
            };
            acl::set_acl(&mut plan, current, slot, index, list, set_gid)?
        }
        (index, new) => plan_change(&mut plan, slot, index, rest, new)?,
    };
    match changed {
        Changed::Yes => finish(plan, slot, pinned.held(&locked)),
        Changed::No => Ok(()),
    }
}

/// Sets the time of change in a plan that changes an inode's attributes, applies the plan, and
/// publishes the new version.
pub(crate) fn finish(mut plan: Plan<'_>, slot: Slot, inode: HeldInode<'_>) -> Result<()> {
    slot::edit(&mut plan, slot, |inode| inode.set_ctime(now()))?;
    finish_timed(plan, slot, inode)
}

/// Like `finish`, for callers that have set the time of change.
pub(crate) fn finish_timed(mut plan: Plan<'_>, slot: Slot, inode: HeldInode<'_>) -> Result<()> {
    let version = slot::version(&mut plan, slot)?;
    let last = [&inode.locked.last];
    plan.apply_publishing(&last, Publication::of(&[inode.pinned]), || {
        inode.pinned.publish(Some(version));
    })?;
    Ok(())
}
