//! **Purpose.** Plans changes of an inode's attributes: sets and removes them, in the inode and in
//! a draft of its block.
//!
//! **Not here.** Where the draft is stored ([`crate::xattr::settle`]); permissions
//! ([`crate::inode::permission`]).
//!
//! **Model.** As in Linux: an attribute goes into the inode if it fits there, else into the inode's
//! block, else its value becomes an inode of its own if the file system has the feature for that
//! ([`crate::xattr::ea_inode`]). Setting the value that an attribute already has changes nothing.
//!
//! **Locking.** The inode's lock, and those of [`crate::xattr::held`]. Readers take none; if an
//! attribute moves between inode and block, they retry.

use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::xattr::{
    self, BlockRoom, NameIndex, NewValue, Placement, Value, Was, XattrEditError, Xattrs, XattrsMut,
};
use fourscore_ondisk::{Corrupt, Inode, InodeNr};

use crate::core::Core;
use crate::map::account::Freed;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::xattr::settle::Draft;
use crate::xattr::{ea_inode, format};
use crate::{Error, Result};

/// Whether setting an attribute creates it, replaces it, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    /// It is created or replaced.
    #[default]
    Any,
    /// It must not exist (`XATTR_CREATE`).
    Create,
    /// It must exist (`XATTR_REPLACE`).
    Replace,
}

/// The new state of an attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewXattr<'v> {
    Set(&'v [u8], SetXattr),
    Remove,
    /// It is removed if it exists.
    Absent,
}

/// Whether a plan contains a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Yes,
    No,
}

impl Changed {
    pub(crate) fn or(self, other: Self) -> Self {
        if self == Self::Yes { self } else { other }
    }
}

/// The name of an attribute, as an entry has it.
#[derive(Clone, Copy, Debug)]
struct Key<'n> {
    index: NameIndex,
    name: &'n [u8],
}

/// The change of one attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XattrChange<'c> {
    pub(crate) index: NameIndex,
    /// The name without its prefix.
    pub(crate) name: &'c [u8],
    pub(crate) new: NewXattr<'c>,
}

/// The current place of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nowhere,
    InInode,
    InBlock,
}

/// Plans a change of an attribute of the inode in `slot`. To be called once for a plan.
///
/// # Errors
/// As [`Fs::set_xattr`](crate::Fs::set_xattr) and [`Fs::remove_xattr`](crate::Fs::remove_xattr).
/// The plan must not be applied then.
pub(crate) fn plan_change(
    plan: &mut Plan<'_>,
    slot: Slot,
    index: NameIndex,
    name: &[u8],
    new: NewXattr<'_>,
) -> Result<Changed> {
    plan_changes(plan, slot, &[XattrChange { index, name, new }])
}

/// Plans the changes of several attributes of the inode in `slot`, which moves to another block
/// once at most. To be called once for a plan.
///
/// # Errors
/// As [`plan_change`].
pub(crate) fn plan_changes(
    plan: &mut Plan<'_>,
    slot: Slot,
    changes: &[XattrChange<'_>],
) -> Result<Changed> {
    let inode = slot::inode(plan, slot)?;
    let mut draft = Draft::of(plan, slot, &inode)?;
    let mut changed = Changed::No;
    for (nth, change) in changes.iter().enumerate() {
        let again = match nth {
            0 => None,
            _ => Some(slot::inode(plan, slot)?),
        };
        let inode = again.as_ref().unwrap_or(&inode);
        changed = changed.or(change_one(plan, &mut draft, inode, change)?);
    }
    draft.settle(plan)?;
    Ok(changed)
}

fn change_one(
    plan: &mut Plan<'_>,
    draft: &mut Draft,
    inode: &Inode,
    change: &XattrChange<'_>,
) -> Result<Changed> {
    let (slot, new) = (draft.slot, change.new);
    let key = Key {
        index: change.index,
        name: change.name,
    };
    let broken = |error: xattr::XattrError| Corrupt::from(error).in_inode(slot.nr);
    let (found, value) = find(&plan.mount.core, inode, draft.block(), key).map_err(broken)?;
    let (is_same, held) = match (value, new) {
        (Some(Value::Inline(old)), NewXattr::Set(new, _)) => (old == new, None),
        (Some(Value::Inode { bytes, .. }), _) => (false, Some(bytes)),
        _ => (false, None),
    };
    match (new, found) {
        (NewXattr::Set(_, SetXattr::Create), Found::InInode | Found::InBlock) => {
            return Err(Error::Exists);
        }
        (NewXattr::Remove | NewXattr::Set(_, SetXattr::Replace), Found::Nowhere) => {
            return Err(Error::NoAttribute);
        }
        (NewXattr::Absent, Found::Nowhere) => return Ok(Changed::No),
        (NewXattr::Set(..), _) if is_same => return Ok(Changed::No),
        (NewXattr::Remove | NewXattr::Absent, Found::InInode) => {
            remove_from_inode(plan, draft, key)?;
        }
        (NewXattr::Remove | NewXattr::Absent, Found::InBlock) => remove_from_block(draft, key)?,
        (NewXattr::Set(new, _), found) => set_value(plan, draft, inode, key, new, found)?,
    }
    if let Some(bytes) = held {
        ea_inode::refund_value(plan, slot, bytes)?;
    }
    Ok(Changed::Yes)
}

/// Stores a value beside its entry if there is space for it, else in an inode of its own if the
/// file system has the feature for that.
fn set_value(
    plan: &mut Plan<'_>,
    draft: &mut Draft,
    inode: &Inode,
    key: Key<'_>,
    value: &[u8],
    found: Found,
) -> Result<()> {
    let new = NewValue::Inline(value);
    if !ea_inode::is_large_value(&plan.mount.core, value) {
        let place = place_xattr(plan, draft, inode, key, &new)?;
        if place != Placement::Nowhere {
            return put_xattr(plan, draft, place, key, &new, found);
        }
    }
    if !ea_inode::has_value_inodes(&plan.mount.core) || value.is_empty() {
        return Err(Error::NoSpace);
    }
    // All such entries take the same space.
    let any = NewValue::Inode {
        inode: draft.slot.nr,
        bytes: 0,
        hash: 0,
    };
    let place = place_xattr(plan, draft, inode, key, &any)?;
    if place == Placement::Nowhere {
        return Err(Error::NoSpace);
    }
    let (nr, new) = ea_inode::value_for(plan, draft.slot, value)?;
    if place != Placement::Inode {
        draft.gained.push(nr);
    }
    put_xattr(plan, draft, place, key, &new, found)
}

/// Returns the place where an attribute is to be stored.
fn place_xattr(
    plan: &Plan<'_>,
    draft: &Draft,
    inode: &Inode,
    key: Key<'_>,
    new: &NewValue<'_>,
) -> Result<Placement> {
    let core = &*plan.mount.core;
    let space = BlockRoom::new(
        core.geometry().block_size().bytes(),
        format::ea_inodes(core),
    );
    let area = inode
        .xattr_area()
        .filter(|area| area.len() > MIN_AREA_BYTES);
    let place = xattr::place(area, draft.block(), space, key.index, key.name, new);
    Ok(place.map_err(|error| Corrupt::from(error).in_inode(inode.number()))?)
}

/// Stores a value in its new place, and removes it from its old place.
fn put_xattr(
    plan: &mut Plan<'_>,
    draft: &mut Draft,
    place: Placement,
    key: Key<'_>,
    new: &NewValue<'_>,
    found: Found,
) -> Result<()> {
    let slot = draft.slot;
    let broken = |error: XattrEditError| format::edit_error(error, slot.nr);
    match place {
        Placement::Inode => {
            let was = slot::edit(plan, slot, |inode| {
                let area = inode.xattr_area_mut().unwrap_or_default();
                XattrsMut::in_inode(area)?.set(key.index, key.name, new)
            })?
            .map_err(broken)?;
            draft.lost_in_inode.extend(value_inode(was));
            if found == Found::InBlock {
                remove_from_block(draft, key)?;
            }
            return Ok(());
        }
        Placement::Block => {
            let was = XattrsMut::in_block(&mut draft.after)
                .map_err(XattrEditError::from)
                .and_then(|mut xattrs| xattrs.set(key.index, key.name, new))
                .map_err(broken)?;
            draft.lost_in_block.extend(value_inode(was));
        }
        Placement::NewBlock => {
            let block_bytes = plan.mount.core.geometry().block_size().bytes();
            draft.after.resize(block_bytes, 0);
            XattrsMut::init_block(&mut draft.after)
                .map_err(XattrEditError::from)
                .and_then(|mut xattrs| xattrs.set(key.index, key.name, new))
                .map_err(broken)?;
        }
        Placement::Nowhere => return Err(Error::NoSpace),
    }
    if found == Found::InInode {
        remove_from_inode(plan, draft, key)?;
    }
    Ok(())
}

fn remove_from_inode(plan: &mut Plan<'_>, draft: &mut Draft, key: Key<'_>) -> Result<()> {
    let was = slot::edit(plan, draft.slot, |inode| {
        let area = inode.xattr_area_mut().unwrap_or_default();
        XattrsMut::in_inode(area)?.remove(key.index, key.name)
    })?
    .map_err(|error| format::edit_error(error, draft.slot.nr))?;
    draft.lost_in_inode.extend(value_inode(was));
    Ok(())
}

/// Returns the inode of the value that an entry had before, if it had one.
fn value_inode(was: Was) -> Option<InodeNr> {
    match was {
        Was::Inode(nr) => Some(nr),
        Was::Absent | Was::Inline => None,
    }
}

fn remove_from_block(draft: &mut Draft, key: Key<'_>) -> Result<()> {
    let broken = |error: XattrEditError| format::edit_error(error, draft.slot.nr);
    let mut xattrs = XattrsMut::in_block(&mut draft.after).map_err(|error| broken(error.into()))?;
    let was = xattrs.remove(key.index, key.name).map_err(broken)?;
    if xattrs.is_empty() {
        draft.after.clear();
    }
    draft.lost_in_block.extend(value_inode(was));
    Ok(())
}

/// Frees the attributes of an inode that is being deleted, as far as the plan has space. `slot` is
/// its slot in the plan. What is left is freed by later plans.
pub(crate) fn free_xattrs(plan: &mut Plan<'_>, slot: Slot) -> Result<Freed> {
    let inode = slot::inode(plan, slot)?;
    if inode.flags().contains(InodeFlags::EA_INODE_FL) {
        // Such an inode has no attributes. If a damaged one refers to others, the recursion might
        // not end.
        return Ok(Freed::All);
    }
    let draft = Draft::of(plan, slot, &inode)?;
    draft.free(plan, &inode)
}

/// The size of an area in an inode that is too short for a magic and a terminator.
pub(crate) const MIN_AREA_BYTES: usize = 8;

/// Looks for an attribute.
fn find<'a>(
    core: &Core,
    inode: &'a Inode,
    block: Option<&'a [u8]>,
    key: Key<'_>,
) -> std::result::Result<(Found, Option<Value<'a>>), xattr::XattrError> {
    if let Some(area) = inode.xattr_area() {
        xattr::check_in_inode(area, format::ea_inodes(core))?;
        if let Some(entry) = Xattrs::in_inode(area).find(key.index, key.name)? {
            return Ok((Found::InInode, Some(entry.value)));
        }
    }
    if let Some(block) = block
        && let Some(entry) = Xattrs::in_block(block)?.find(key.index, key.name)?
    {
        return Ok((Found::InBlock, Some(entry.value)));
    }
    Ok((Found::Nowhere, None))
}
