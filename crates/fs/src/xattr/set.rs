//! **Purpose.** Plans changes of extended attributes: inside the inode while there is space, else
//! in a block.
//!
//! **Not here.** The bytes of an area (`fourscore_ondisk::xattr`), the meaning of an access control
//! list ([`crate::xattr::acl`]), permissions (`crate::inode::permission`).
//!
//! **Model.** As in Linux: an attribute goes into the inode if it fits there, else into the inode's
//! block, else its value becomes an inode of its own if the file system has the feature for that
//! ([`crate::xattr::ea_inode`]). The block is allocated when it is first needed and freed with its
//! last attribute. A block that several inodes share is not changed: an inode that needs different
//! attributes gets a copy, and the old block loses a user. Setting the value that an attribute
//! already has changes nothing.
//!
//! **Invariants.** `h_refcount` of a block is the number of inodes that use it.
//!
//! **Locking.** The inode's lock. Then, from the first read of a block until the plan has been
//! applied, a lock that is chosen by the block and also serves some other blocks: inodes that share
//! a block have different inode locks. A plan holds at most one of these locks. Readers take none;
//! if an attribute moves between inode and block, they retry.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_mballoc::{Content as Wanted, Reach};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::xattr::{
    self, BlockRoom, NameIndex, NewValue, Placement, Value, Was, XattrEditError, Xattrs, XattrsMut,
};
use fourscore_ondisk::{Corrupt, Inode, InodeNr, PhysBlock};

use crate::core::Core;
use crate::inode::cached::CachedInode;
use crate::map::account;
use crate::mount::superblock;
use crate::txn::plan::{Plan, RegionId};
use crate::txn::slot::{self, Slot};
use crate::xattr::{ea_inode, format, get};
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

/// The block of an inode's attributes, in a plan.
#[derive(Clone, Copy, Debug)]
struct Block {
    at: PhysBlock,
    region: RegionId,
}

/// The current place of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nowhere,
    InInode,
    InBlock,
}

/// Plans a change of an attribute of the inode in `slot`.
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
    let key = Key { index, name };
    let inode = slot::inode(plan, slot)?;
    let block = xattr_block(plan, slot, &inode)?;
    let broken = |error: xattr::XattrError| Corrupt::from(error).in_inode(slot.nr);
    let in_block = block.map(|block| plan.bytes(block.region));
    let (found, value) = find(&plan.mount.core, &inode, in_block, key).map_err(broken)?;
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
        (NewXattr::Set(..), _) if is_same => return Ok(Changed::No),
        (NewXattr::Remove, Found::InInode) => remove_from_inode(plan, slot, key)?,
        (NewXattr::Remove, Found::InBlock) => {
            remove_from_block(plan, slot, block, key)?;
        }
        (NewXattr::Set(new, _), found) => {
            set_value(plan, slot, &inode, block, key, new, found)?;
        }
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
    slot: Slot,
    inode: &Inode,
    block: Option<Block>,
    key: Key<'_>,
    value: &[u8],
    found: Found,
) -> Result<()> {
    let new = NewValue::Inline(value);
    if !ea_inode::is_large_value(&plan.mount.core, value) {
        let place = place_xattr(plan, inode, block, key, &new)?;
        if place != Placement::Nowhere {
            return put_xattr(plan, slot, block, place, key, &new, found);
        }
    }
    if !ea_inode::has_value_inodes(&plan.mount.core) || value.is_empty() {
        return Err(Error::NoSpace);
    }
    // All such entries take the same space.
    let any = NewValue::Inode {
        inode: slot.nr,
        bytes: 0,
        hash: 0,
    };
    let place = place_xattr(plan, inode, block, key, &any)?;
    if place == Placement::Nowhere {
        return Err(Error::NoSpace);
    }
    let new = ea_inode::new_value(plan, slot, value)?;
    put_xattr(plan, slot, block, place, key, &new, found)
}

/// Returns the place where an attribute is to be stored.
fn place_xattr(
    plan: &Plan<'_>,
    inode: &Inode,
    block: Option<Block>,
    key: Key<'_>,
    new: &NewValue<'_>,
) -> Result<Placement> {
    let core = &*plan.mount.core;
    let space = BlockRoom::new(
        core.geometry().block_size().bytes(),
        format::ea_inodes(core),
    );
    let in_block = block.map(|block| plan.bytes(block.region));
    let area = inode
        .xattr_area()
        .filter(|area| area.len() > MIN_AREA_BYTES);
    let place = xattr::place(area, in_block, space, key.index, key.name, new);
    Ok(place.map_err(|error| Corrupt::from(error).in_inode(inode.number()))?)
}

/// Stores a value in its new place, and removes it from its old place.
fn put_xattr(
    plan: &mut Plan<'_>,
    slot: Slot,
    block: Option<Block>,
    place: Placement,
    key: Key<'_>,
    new: &NewValue<'_>,
    found: Found,
) -> Result<()> {
    let broken = |error: XattrEditError| edit_error(error, slot.nr);
    match place {
        Placement::Inode => {
            let was = slot::edit(plan, slot, |inode| {
                let area = inode.xattr_area_mut().unwrap_or_default();
                XattrsMut::in_inode(area)?.set(key.index, key.name, new)
            })?
            .map_err(broken)?;
            drop_value_of(plan, was)?;
            if found == Found::InBlock {
                remove_from_block(plan, slot, block, key)?;
            }
            return Ok(());
        }
        Placement::Block => {
            let Some(block) = block else {
                return Err(Error::NoSpace);
            };
            let mut bytes = plan.bytes(block.region).to_vec();
            let was = XattrsMut::in_block(&mut bytes)
                .map_err(XattrEditError::from)
                .and_then(|mut xattrs| xattrs.set(key.index, key.name, new))
                .map_err(broken)?;
            store_block(plan, slot, block, &bytes, was, new)?;
        }
        Placement::NewBlock => {
            let block = new_xattr_block(plan, slot)?;
            account::count_clusters(plan, slot, 1)?;
            XattrsMut::init_block(plan.bytes_mut(block.region))
                .map_err(XattrEditError::from)
                .and_then(|mut xattrs| xattrs.set(key.index, key.name, new))
                .map_err(broken)?;
        }
        Placement::Nowhere => return Err(Error::NoSpace),
    }
    if found == Found::InInode {
        remove_from_inode(plan, slot, key)?;
    }
    Ok(())
}

fn remove_from_inode(plan: &mut Plan<'_>, slot: Slot, key: Key<'_>) -> Result<()> {
    let was = slot::edit(plan, slot, |inode| {
        let area = inode.xattr_area_mut().unwrap_or_default();
        XattrsMut::in_inode(area)?.remove(key.index, key.name)
    })?
    .map_err(|error| edit_error(error, slot.nr))?;
    drop_value_of(plan, was)
}

/// Drops the inode of the value that an entry had before, if it had one.
fn drop_value_of(plan: &mut Plan<'_>, was: Was) -> Result<()> {
    match was {
        Was::Inode(nr) => ea_inode::drop_value_user(plan, nr),
        Was::Absent | Was::Inline => Ok(()),
    }
}

fn remove_from_block(
    plan: &mut Plan<'_>,
    slot: Slot,
    block: Option<Block>,
    key: Key<'_>,
) -> Result<()> {
    let Some(block) = block else { return Ok(()) };
    let mut bytes = plan.bytes(block.region).to_vec();
    let (was, is_empty) = {
        let mut xattrs =
            XattrsMut::in_block(&mut bytes).map_err(|error| edit_error(error.into(), slot.nr))?;
        let was = xattrs
            .remove(key.index, key.name)
            .map_err(|error| edit_error(error, slot.nr))?;
        (was, xattrs.is_empty())
    };
    if !is_empty {
        return store_block(plan, slot, block, &bytes, was, &NewValue::Inline(&[]));
    }
    plan.raise_sequence();
    drop_user(plan, slot.nr, block)?;
    account::count_clusters(plan, slot, -1)?;
    set_file_acl(plan, slot, None)
}

/// Replaces the contents of the inode's block; if other inodes share the block, the inode gets a
/// block of its own. One entry of it was `was` and is `new`.
fn store_block(
    plan: &mut Plan<'_>,
    slot: Slot,
    block: Block,
    bytes: &[u8],
    was: Was,
    new: &NewValue<'_>,
) -> Result<()> {
    plan.raise_sequence();
    let users = xattr::block_header(bytes).map_or(1, |header| header.h_refcount.get());
    if users <= 1 {
        plan.bytes_mut(block.region).copy_from_slice(bytes);
        return drop_value_of(plan, was);
    }
    if ea_inode::has_value_inodes(&plan.mount.core) {
        let copied = Xattrs::in_block(bytes);
        let copied = copied.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?;
        ea_inode::add_values_of(plan, &copied, slot.nr, new)?;
    }
    drop_user(plan, slot.nr, block)?;
    let own = new_xattr_block(plan, slot)?;
    let own = plan.bytes_mut(own.region);
    own.copy_from_slice(bytes);
    xattr::set_single_user(own);
    Ok(())
}

/// Allocates a block of attributes for the inode, all zeroes.
fn new_xattr_block(plan: &mut Plan<'_>, slot: Slot) -> Result<Block> {
    let core = &*plan.mount.core;
    superblock::set_ext_attr(plan)?;
    plan.raise_sequence();
    let (group, _) = core
        .geometry()
        .inode_group(slot.nr)
        .ok_or(Error::NotFound)?;
    let inodes = plan.mount.inodes();
    let group = inodes.placement().goal(group, Wanted::Metadata);
    let goal = core.geometry().group_first_block(group);
    let (at, region) = plan.allocate_metadata(slot.nr, Reach::Full, goal, tag())?;
    set_file_acl(plan, slot, Some(at))?;
    Ok(Block { at, region })
}

fn set_file_acl(plan: &mut Plan<'_>, slot: Slot, block: Option<PhysBlock>) -> Result<()> {
    let set = slot::edit(plan, slot, |inode| inode.set_file_acl(block))?;
    set.map_err(|_| Error::Internal("a block of attributes that the inode cannot name"))
}

/// Returns the inode's block, verified; the plan holds its lock from here on.
fn xattr_block(plan: &mut Plan<'_>, slot: Slot, inode: &Inode) -> Result<Option<Block>> {
    let Some(at) = inode.file_acl() else {
        return Ok(None);
    };
    let core = &*plan.mount.core;
    if !core.geometry().data_blocks().contains(&at) {
        let error = RelationError::XattrBlock {
            found: at,
            blocks: core.geometry().data_blocks(),
        };
        return Err(Corrupt::from(error).in_inode(slot.nr).into());
    }
    plan.lock_xattr_block(at)?;
    let region = plan.block(at, tag(), |bytes| {
        get::check_xattr_block(core, at, bytes).map_err(|corrupt| corrupt.in_inode(slot.nr))
    })?;
    Ok(Some(Block { at, region }))
}

/// Counts one user less for the block of inode `owner`. With the last user the block is freed, and
/// so are the values of its entries.
fn drop_user(plan: &mut Plan<'_>, owner: InodeNr, block: Block) -> Result<()> {
    if xattr::drop_user(plan.bytes_mut(block.region)) > 0 {
        return Ok(());
    }
    if ea_inode::has_value_inodes(&plan.mount.core) {
        let bytes = plan.bytes(block.region).to_vec();
        let xattrs = Xattrs::in_block(&bytes);
        let xattrs = xattrs.map_err(|error| Corrupt::from(error).in_inode(owner))?;
        ea_inode::drop_values_of(plan, &xattrs, owner)?;
    }
    plan.free_metadata(block.at)
}

/// Frees the attributes of an inode that is being deleted.
pub(crate) fn free_xattrs(plan: &mut Plan<'_>, inode: &CachedInode) -> Result<()> {
    if inode.has(InodeFlags::EA_INODE_FL) {
        // Such an inode has no attributes. If a damaged one refers to others, the recursion might
        // not end.
        return Ok(());
    }
    let slot = slot::slot(plan, inode.nr())?;
    let block = xattr_block(plan, slot, inode.on_disk())?;
    if ea_inode::has_value_inodes(&plan.mount.core)
        && let Some(area) = inode.on_disk().xattr_area()
    {
        ea_inode::drop_values_of(plan, &Xattrs::in_inode(area), inode.nr())?;
    }
    match block {
        Some(block) => drop_user(plan, inode.nr(), block),
        None => Ok(()),
    }
}

/// The size of an area in an inode that is too short for a magic and a terminator.
pub(crate) const MIN_AREA_BYTES: usize = 8;

/// Blocks are shared, so the tag names no inode.
fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::Xattrs, InodeNr(0))
}

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

pub(crate) fn edit_error(error: XattrEditError, nr: InodeNr) -> Error {
    match error {
        XattrEditError::Area(error) => Corrupt::from(error).in_inode(nr).into(),
        XattrEditError::NoSpace { .. } => Error::NoSpace,
        XattrEditError::Name => Error::OutOfRange,
        XattrEditError::Absent => Error::NoAttribute,
    }
}
