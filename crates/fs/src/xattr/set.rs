//! **Purpose.** Changing extended attributes: inside the inode while there is room, else in a
//! block.
//!
//! **Not here.** The bytes of an area (`fourscore_ondisk::xattr`), what a list of access rights
//! means ([`crate::xattr::acl`]), who may change what (`crate::inode::permission`).
//!
//! **Model.** As in Linux: an attribute goes into the inode if it fits there, else into the inode's
//! block, else its value becomes an inode of its own where the file system has those
//! ([`crate::xattr::ea_inode`]). The block is made when it is first needed and goes with its last attribute.
//! A block that several inodes share is not changed: who wants another gets a copy, and the old one
//! loses a user. A value that is set to what it is already changes nothing.
//!
//! **Invariants.** `h_refcount` of a block is the number of inodes that use it.
//!
//! **Locking.** The inode's lock. Then, from the first look at a block until the plan has been
//! carried out, the lock that the block shares with some others: inodes that share a block have
//! different locks. A plan holds at most one of these. Readers take none; what moves between inode
//! and block they look for again.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_mballoc::{Content as Wanted, Reach};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::xattr::{
    self, BlockRoom, NameIndex, NewValue, Placement, Value, Was, XattrEditError, Xattrs, XattrsMut,
};
use fourscore_ondisk::{Corrupt, Inode, InodeNr, PhysBlock};

use crate::inode::cache::{CachedInode, Changing, Pinned};
use crate::inode::flags::check_changeable;
use crate::mount::writer::now;
use crate::txn::apply::Show;
use crate::txn::plan::{Plan, RegionId};
use crate::txn::slot::Slot;
use crate::xattr::acl::SetGid;
use crate::xattr::get::{MAX_NAME_BYTES, MAX_VALUE_BYTES, settable};
use crate::{Caller, Capabilities, Error, FileType, Fs, Result};

/// What setting an attribute does about one that is there, or is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    /// It is made or replaced.
    #[default]
    Any,
    /// It must not be there (`XATTR_CREATE`).
    Create,
    /// It must be there (`XATTR_REPLACE`).
    Replace,
}

/// What becomes of an attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewXattr<'v> {
    Set(&'v [u8], SetXattr),
    Remove,
}

/// Whether a plan has something to do.
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

impl Fs {
    /// Sets the attribute with the full name `name`. The two access control lists take the form of
    /// the system calls (version 2) and set the permission bits that they stand for; an empty value
    /// removes the list.
    ///
    /// # Errors
    /// As setxattr(2): `Exists` and `NoAttribute` for what `how` says; `NoSpace` if neither inode
    /// nor block has room; `OutOfRange` for a name that is empty or longer than 255 bytes; `TooBig`
    /// for a value of more than [`MAX_VALUE_BYTES`]; `Unsupported` for a namespace that is not
    /// `user.`, `trusted.`, `security.` or that of the lists; `NotPermitted` for `user.` on
    /// anything but files and directories, and for inodes that may not change;
    /// `InvalidArgument` for a list that is none; `AccessDenied` for a default list on anything but
    /// a directory; `ReadOnly`.
    pub fn set_xattr(
        &self,
        inode: InodeNr,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        self.set_xattr_for(&Caller::ROOT, inode, (name, value), how)
    }

    /// Sets an attribute as [`Fs::set_xattr`] does if `caller` may ([`Fs::check_xattr_change`]). An
    /// access control list takes the set-group bit away if the caller is not in the group and does
    /// not have [`Capabilities::FSETID`].
    ///
    /// # Errors
    /// As both.
    pub fn set_xattr_as(
        &self,
        caller: &Caller<'_>,
        inode: InodeNr,
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
    ) -> Result<()> {
        self.check_xattr_change(inode, name, caller)?;
        self.set_xattr_for(caller, inode, (name, value), how)
    }

    fn set_xattr_for(
        &self,
        caller: &Caller<'_>,
        inode: InodeNr,
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
    ) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(Error::OutOfRange);
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(Error::TooBig);
        }
        let set = || self.change_xattr(caller, inode, name, NewXattr::Set(value, how));
        self.noting(self.retried(set))
    }

    /// Removes the attribute with the full name `name`.
    ///
    /// # Errors
    /// `NoAttribute` if there is none, but not for the access control lists; else as
    /// [`Fs::set_xattr`].
    pub fn remove_xattr(&self, inode: InodeNr, name: &[u8]) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(Error::OutOfRange);
        }
        let remove = || self.change_xattr(&Caller::ROOT, inode, name, NewXattr::Remove);
        self.noting(self.retried(remove))
    }

    fn change_xattr(
        &self,
        caller: &Caller<'_>,
        inode: InodeNr,
        name: &[u8],
        new: NewXattr<'_>,
    ) -> Result<()> {
        let writer = self.writer()?;
        let pinned = self.pin_inode(inode)?;
        let locked = pinned.lock();
        let current = &pinned.copy()?;
        check_changeable(current)?;
        let file_type = current.file_type();
        let has_user = matches!(file_type, FileType::Regular | FileType::Directory);
        if name.starts_with(b"user.") && !has_user {
            return Err(Error::NotPermitted);
        }
        let (index, rest) = settable(name)?;
        let mut plan = Plan::new(self, writer);
        let slot = plan.slot(inode)?;
        let changed = match (index, new) {
            (NameIndex::POSIX_ACL_ACCESS | NameIndex::POSIX_ACL_DEFAULT, new) => {
                let list = match new {
                    NewXattr::Set(value, _) => value,
                    NewXattr::Remove => &[],
                };
                let is_member = caller.is_in(current.on_disk().gid());
                let set_gid = match is_member || caller.has(Capabilities::FSETID) {
                    true => SetGid::Stays,
                    false => SetGid::Goes,
                };
                plan.set_acl(current, slot, index, (list, set_gid))?
            }
            (index, new) => plan.change_xattr(slot, index, rest, new)?,
        };
        match changed {
            Changed::Yes => finish(plan, slot, (&pinned, &locked)),
            Changed::No => Ok(()),
        }
    }
}

/// Ends a change of an inode's attributes, carries it out and shows it.
pub(crate) fn finish(
    mut plan: Plan<'_>,
    slot: Slot,
    (pinned, locked): (&Pinned, &Changing),
) -> Result<()> {
    plan.edit(slot, |inode| inode.set_ctime(now()))?;
    finish_timed(plan, slot, (pinned, locked))
}

/// The same for who has set the time of change.
pub(crate) fn finish_timed(
    mut plan: Plan<'_>,
    slot: Slot,
    (pinned, locked): (&Pinned, &Changing),
) -> Result<()> {
    let version = plan.version(slot)?;
    plan.carry_out_showing(&[&locked.last], Show::of(&[pinned]), || {
        pinned.publish(Some(version));
    })?;
    Ok(())
}

/// The block of an inode's attributes, as a plan has it.
#[derive(Clone, Copy, Debug)]
struct Block {
    at: PhysBlock,
    region: RegionId,
}

/// What an attribute is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nowhere,
    InInode,
    InBlock,
}

impl Plan<'_> {
    /// Changes an attribute of the inode in `slot`.
    ///
    /// # Errors
    /// As [`Fs::set_xattr`] and [`Fs::remove_xattr`]. The plan may not be carried out then.
    pub(crate) fn change_xattr(
        &mut self,
        slot: Slot,
        index: NameIndex,
        name: &[u8],
        new: NewXattr<'_>,
    ) -> Result<Changed> {
        let inode = self.inode(slot)?;
        let block = self.xattr_block(slot, &inode)?;
        let broken = |error: xattr::XattrError| Corrupt::from(error).in_inode(slot.nr);
        let in_block = block.map(|block| self.bytes(block.region));
        let (found, value) = find(self.fs(), &inode, in_block, index, name).map_err(broken)?;
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
            (NewXattr::Remove, Found::InInode) => self.remove_from_inode(slot, index, name)?,
            (NewXattr::Remove, Found::InBlock) => {
                self.remove_from_block(slot, block, index, name)?;
            }
            (NewXattr::Set(new, _), found) => {
                self.set_value(slot, &inode, block, (index, name, new), found)?;
            }
        }
        if let Some(bytes) = held {
            self.refund_value(slot, bytes)?;
        }
        Ok(Changed::Yes)
    }

    /// Stores a value beside its entry if there is room for it, else in an inode of its own if the
    /// file system has such.
    fn set_value(
        &mut self,
        slot: Slot,
        inode: &Inode,
        block: Option<Block>,
        (index, name, value): (NameIndex, &[u8], &[u8]),
        found: Found,
    ) -> Result<()> {
        let new = NewValue::Inline(value);
        if !self.fs().is_large_value(value) {
            let place = self.place_xattr(inode, block, (index, name, &new))?;
            if place != Placement::Nowhere {
                return self.put_xattr(slot, (place, block), (index, name, &new), found);
            }
        }
        if !self.fs().has_value_inodes() || value.is_empty() {
            return Err(Error::NoSpace);
        }
        // All such entries take the same room.
        let any = NewValue::Inode {
            inode: slot.nr,
            bytes: 0,
            hash: 0,
        };
        let place = self.place_xattr(inode, block, (index, name, &any))?;
        if place == Placement::Nowhere {
            return Err(Error::NoSpace);
        }
        let new = self.new_value(slot, value)?;
        self.put_xattr(slot, (place, block), (index, name, &new), found)
    }

    /// Where an attribute goes.
    fn place_xattr(
        &self,
        inode: &Inode,
        block: Option<Block>,
        (index, name, new): (NameIndex, &[u8], &NewValue<'_>),
    ) -> Result<Placement> {
        let fs = self.fs();
        let room = BlockRoom::new(fs.geometry().block_size().bytes(), fs.ea_inodes());
        let in_block = block.map(|block| self.bytes(block.region));
        let area = inode
            .xattr_area()
            .filter(|area| area.len() > MIN_AREA_BYTES);
        let place = xattr::place(area, in_block, room, index, name, new);
        Ok(place.map_err(|error| Corrupt::from(error).in_inode(inode.number()))?)
    }

    /// Stores a value where it belongs, and takes it away from where it was.
    fn put_xattr(
        &mut self,
        slot: Slot,
        (place, block): (Placement, Option<Block>),
        (index, name, new): (NameIndex, &[u8], &NewValue<'_>),
        found: Found,
    ) -> Result<()> {
        let broken = |error: XattrEditError| edit_error(error, slot.nr);
        match place {
            Placement::Inode => {
                let was = self
                    .edit(slot, |inode| {
                        let area = inode.xattr_area_mut().unwrap_or_default();
                        XattrsMut::in_inode(area)?.set(index, name, new)
                    })?
                    .map_err(broken)?;
                self.drop_value_of(was)?;
                if found == Found::InBlock {
                    self.remove_from_block(slot, block, index, name)?;
                }
                return Ok(());
            }
            Placement::Block => {
                let Some(block) = block else {
                    return Err(Error::NoSpace);
                };
                let mut bytes = self.bytes(block.region).to_vec();
                let was = XattrsMut::in_block(&mut bytes)
                    .map_err(XattrEditError::from)
                    .and_then(|mut xattrs| xattrs.set(index, name, new))
                    .map_err(broken)?;
                self.store_block(slot, block, &bytes, (was, new))?;
            }
            Placement::NewBlock => {
                let block = self.new_xattr_block(slot)?;
                self.count_clusters(slot, 1)?;
                XattrsMut::init_block(self.bytes_mut(block.region))
                    .map_err(XattrEditError::from)
                    .and_then(|mut xattrs| xattrs.set(index, name, new))
                    .map_err(broken)?;
            }
            Placement::Nowhere => return Err(Error::NoSpace),
        }
        if found == Found::InInode {
            self.remove_from_inode(slot, index, name)?;
        }
        Ok(())
    }

    fn remove_from_inode(&mut self, slot: Slot, index: NameIndex, name: &[u8]) -> Result<()> {
        let was = self
            .edit(slot, |inode| {
                let area = inode.xattr_area_mut().unwrap_or_default();
                XattrsMut::in_inode(area)?.remove(index, name)
            })?
            .map_err(|error| edit_error(error, slot.nr))?;
        self.drop_value_of(was)
    }

    /// The value that an entry had is not its own any more.
    fn drop_value_of(&mut self, was: Was) -> Result<()> {
        match was {
            Was::Inode(nr) => self.drop_value_user(nr),
            Was::Absent | Was::Inline => Ok(()),
        }
    }

    fn remove_from_block(
        &mut self,
        slot: Slot,
        block: Option<Block>,
        index: NameIndex,
        name: &[u8],
    ) -> Result<()> {
        let Some(block) = block else { return Ok(()) };
        let mut bytes = self.bytes(block.region).to_vec();
        let (was, is_empty) = {
            let mut xattrs = XattrsMut::in_block(&mut bytes)
                .map_err(|error| edit_error(error.into(), slot.nr))?;
            let was = xattrs
                .remove(index, name)
                .map_err(|error| edit_error(error, slot.nr))?;
            (was, xattrs.is_empty())
        };
        if !is_empty {
            return self.store_block(slot, block, &bytes, (was, &NewValue::Inline(&[])));
        }
        self.raise_sequence();
        self.drop_user(slot.nr, block)?;
        self.count_clusters(slot, -1)?;
        self.set_file_acl(slot, None)
    }

    /// Gives the inode's block another content; where others share it, the inode gets a block of
    /// its own. One entry of it was `was` and is `new`.
    fn store_block(
        &mut self,
        slot: Slot,
        block: Block,
        bytes: &[u8],
        (was, new): (Was, &NewValue<'_>),
    ) -> Result<()> {
        self.raise_sequence();
        let users = xattr::block_header(bytes).map_or(1, |header| header.h_refcount.get());
        if users <= 1 {
            self.bytes_mut(block.region).copy_from_slice(bytes);
            return self.drop_value_of(was);
        }
        if self.fs().has_value_inodes() {
            let copied = Xattrs::in_block(bytes);
            let copied = copied.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?;
            self.add_values_of(&copied, slot.nr, new)?;
        }
        self.drop_user(slot.nr, block)?;
        let own = self.new_xattr_block(slot)?;
        let own = self.bytes_mut(own.region);
        own.copy_from_slice(bytes);
        xattr::set_single_user(own);
        Ok(())
    }

    /// Allocates a block of attributes for the inode, all zeroes.
    fn new_xattr_block(&mut self, slot: Slot) -> Result<Block> {
        let fs = self.fs();
        self.set_ext_attr()?;
        self.raise_sequence();
        let (group, _) = fs.geometry().inode_group(slot.nr).ok_or(Error::NotFound)?;
        let inodes = fs.writer()?.inodes();
        let group = inodes.placement().goal(group, Wanted::Metadata);
        let goal = fs.geometry().group_first_block(group);
        let (at, region) = self.allocate_metadata((slot.nr, Reach::Full), goal, tag())?;
        self.set_file_acl(slot, Some(at))?;
        Ok(Block { at, region })
    }

    fn set_file_acl(&mut self, slot: Slot, block: Option<PhysBlock>) -> Result<()> {
        let set = self.edit(slot, |inode| inode.set_file_acl(block))?;
        set.map_err(|error| Error::Io(std::io::Error::other(error)))
    }

    /// The inode's block, checked; its lock is the plan's from here on.
    fn xattr_block(&mut self, slot: Slot, inode: &Inode) -> Result<Option<Block>> {
        let Some(at) = inode.file_acl() else {
            return Ok(None);
        };
        let fs = self.fs();
        if !fs.data_blocks().contains(&at) {
            let error = RelationError::XattrBlock {
                found: at,
                blocks: fs.data_blocks(),
            };
            return Err(Corrupt::from(error).in_inode(slot.nr).into());
        }
        self.lock_xattr_block(at)?;
        let region = self.block(at, tag(), |bytes| {
            fs.check_xattr_block(at, bytes)
                .map_err(|corrupt| corrupt.in_inode(slot.nr))
        })?;
        Ok(Some(Block { at, region }))
    }

    /// The block of inode `owner` has one user less; with the last one it is freed, and the values
    /// of its entries with it.
    fn drop_user(&mut self, owner: InodeNr, block: Block) -> Result<()> {
        if xattr::drop_user(self.bytes_mut(block.region)) > 0 {
            return Ok(());
        }
        if self.fs().has_value_inodes() {
            let bytes = self.bytes(block.region).to_vec();
            let xattrs = Xattrs::in_block(&bytes);
            let xattrs = xattrs.map_err(|error| Corrupt::from(error).in_inode(owner))?;
            self.drop_values_of(&xattrs, owner)?;
        }
        self.free_metadata(block.at)
    }

    /// Gives up the attributes of an inode that goes.
    pub(crate) fn free_xattrs(&mut self, inode: &CachedInode) -> Result<()> {
        if inode.has(InodeFlags::EA_INODE_FL) {
            // It has none; if it says so, that has no end perhaps.
            return Ok(());
        }
        let slot = self.slot(inode.nr())?;
        let block = self.xattr_block(slot, inode.on_disk())?;
        if self.fs().has_value_inodes()
            && let Some(area) = inode.on_disk().xattr_area()
        {
            self.drop_values_of(&Xattrs::in_inode(area), inode.nr())?;
        }
        match block {
            Some(block) => self.drop_user(inode.nr(), block),
            None => Ok(()),
        }
    }
}

/// An area in an inode that is too short for a magic and a terminator.
pub(crate) const MIN_AREA_BYTES: usize = 8;

/// Blocks are shared, so the tag names no inode.
fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::Xattrs, InodeNr(0))
}

/// Looks for an attribute.
fn find<'a>(
    fs: &Fs,
    inode: &'a Inode,
    block: Option<&'a [u8]>,
    index: NameIndex,
    name: &[u8],
) -> std::result::Result<(Found, Option<Value<'a>>), xattr::XattrError> {
    if let Some(area) = inode.xattr_area() {
        xattr::check_in_inode(area, fs.ea_inodes())?;
        if let Some(entry) = Xattrs::in_inode(area).find(index, name)? {
            return Ok((Found::InInode, Some(entry.value)));
        }
    }
    if let Some(block) = block
        && let Some(entry) = Xattrs::in_block(block)?.find(index, name)?
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
