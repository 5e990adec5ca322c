//! **Purpose.** An inode's bytes in its table (its slot), as part of a plan.
//!
//! **Model.** A plan takes a copy of the slot, changes it through `InodeMut`, and ends it: the
//! checksum is stored, and the bytes are decoded into the version that will be published. The
//! checksum of a slot is cheap and is stored at once, so that every reader of the slot can verify
//! it.
//!
//! **Locking.** The caller that stages an inode holds its lock. Slots of other inodes in the same
//! block are not touched.

use fourscore_ondisk::geometry::BytePlace;
use fourscore_ondisk::inode::{self, InodeFlags, InodeMut, NewInode, RawInode};
use fourscore_ondisk::{Corrupt, Inode, InodeGeneration, InodeNr, Timestamp, extent};
use fourscore_sync::epoch;
use zerocopy::FromBytes;

use crate::inode::cached::CachedInode;
use crate::txn::plan::{NewContent, Plan, RegionId};
use crate::txn::slot;
use crate::{Error, Result};

/// An inode that a plan changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) nr: InodeNr,
    region: RegionId,
}

impl Slot {
    /// The region of its bytes in the plan.
    pub(crate) fn region(&self) -> RegionId {
        self.region
    }
}

/// Adds the slot of inode `nr` to the plan.
pub(crate) fn slot(plan: &mut Plan<'_>, nr: InodeNr) -> Result<Slot> {
    let geometry = plan.mount.core.geometry();
    let place = slot_place(plan, nr)?;
    let (block, offset) = (place.block, place.offset_bytes);
    let range = offset..offset + geometry.inode_size_bytes();
    let is_there = plan.has_part(block, offset);
    let region = plan.slot_at(nr, block, range)?;
    let slot = Slot { nr, region };
    if !is_there && plan.mount.lazy_times().is_some() {
        put_lazy_times(plan, slot)?;
    }
    Ok(slot)
}

/// Returns the block that holds inode `nr`, and the byte offset in it.
pub(crate) fn slot_place(plan: &Plan<'_>, nr: InodeNr) -> Result<BytePlace> {
    let geometry = plan.mount.core.geometry();
    let Some((group, index)) = geometry.inode_group(nr) else {
        return Err(Error::NotFound);
    };
    let Some(group) = plan.mount.groups().get(group) else {
        return Err(Error::NotFound);
    };
    Ok(geometry.inode_place(group.inodes().table, index))
}

/// Sets the time when the inode was deleted.
pub(crate) fn set_deleted(plan: &mut Plan<'_>, slot: Slot, at: Timestamp) -> Result<()> {
    plan.set_whole(slot.region);
    edit(plan, slot, |inode| inode.set_deleted(at))
}

/// Links the inode, which is an orphan, to `next`.
pub(crate) fn set_next_orphan(
    plan: &mut Plan<'_>,
    slot: Slot,
    next: Option<InodeNr>,
) -> Result<()> {
    plan.set_whole(slot.region);
    edit(plan, slot, |inode| inode.set_next_orphan(next))
}

/// Links the orphan `nr`, which the plan does not change otherwise, to `next`.
pub(crate) fn relink_orphan(plan: &mut Plan<'_>, nr: InodeNr, next: Option<InodeNr>) -> Result<()> {
    let place = slot_place(plan, nr)?;
    plan.link_orphan(nr, place, next)
}

/// Returns the generation of the slot's next inode, which differs from that of the previous one.
pub(crate) fn next_generation(plan: &Plan<'_>, slot: Slot) -> InodeGeneration {
    let old = RawInode::ref_from_prefix(plan.bytes(slot.region));
    let old = old.map_or(0, |(raw, _)| raw.i_generation.get());
    InodeGeneration(old.wrapping_add(1).max(1))
}

/// Returns the slot's bytes.
pub(crate) fn slot_bytes_mut<'p>(plan: &'p mut Plan<'_>, slot: Slot) -> &'p mut [u8] {
    plan.bytes_mut(slot.region)
}

/// Returns the root of the map after the change.
pub(crate) fn i_block<'p>(plan: &'p Plan<'_>, slot: Slot) -> Result<&'p [u8]> {
    match RawInode::ref_from_prefix(plan.bytes(slot.region)) {
        Ok((raw, _)) => Ok(&raw.i_block),
        Err(_) => Err(Error::NotFound),
    }
}

/// Changes the inode.
pub(crate) fn edit<R>(
    plan: &mut Plan<'_>,
    slot: Slot,
    change: impl FnOnce(&mut InodeMut<'_>) -> R,
) -> Result<R> {
    let core = &*plan.mount.core;
    let inode = InodeMut::of(plan.bytes_mut(slot.region), core.superblock());
    let mut inode = inode.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?;
    Ok(change(&mut inode))
}

/// Stores the slot's checksum.
pub(crate) fn end(plan: &mut Plan<'_>, slot: Slot) -> Result<()> {
    let core = &*plan.mount.core;
    inode::seal(plan.bytes_mut(slot.region), slot.nr, core.superblock())
        .map_err(|error| Corrupt::from(error).in_inode(slot.nr))?;
    Ok(())
}

/// Returns the inode after the change, decoded.
pub(crate) fn inode(plan: &mut Plan<'_>, slot: Slot) -> Result<Inode> {
    let core = &*plan.mount.core;
    let inode = Inode::sealed(plan.bytes_mut(slot.region), slot.nr, core.superblock());
    Ok(inode.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?)
}

/// Returns the inode of a slot that was ended, decoded. The checksum is not verified, since it was
/// stored here.
pub(crate) fn decoded(plan: &Plan<'_>, slot: Slot) -> Result<Inode> {
    let (bytes, superblock) = (plan.bytes(slot.region), plan.mount.core.superblock());
    let inode = Inode::parse_unsealed(bytes, slot.nr, superblock);
    Ok(inode.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?)
}

/// Ends the slot of an inode that was changed, and decodes it into the version that will be
/// published. Its `i_version` goes up, and it gets the extra fields that new inodes have, if its
/// attributes leave space for them.
pub(crate) fn version(plan: &mut Plan<'_>, slot: Slot) -> Result<CachedInode> {
    edit(plan, slot, |inode| {
        // Where there is no space, Linux leaves the inode as it is, too.
        let _ = inode.expand_extra_isize();
        inode.raise_version();
    })?;
    let inode = inode(plan, slot)?;
    CachedInode::new(inode, plan.mount.core.superblock())
}

/// Makes a new inode of a slot.
pub(crate) fn init(
    plan: &mut Plan<'_>,
    slot: Slot,
    new: &NewInode,
    content: NewContent,
) -> Result<()> {
    let superblock = plan.mount.core.superblock();
    plan.set_whole(slot.region());
    let made = InodeMut::init(slot_bytes_mut(plan, slot), superblock, new);
    let mut made = made.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?;
    if content == NewContent::Tree {
        extent::init_root(made.i_block_mut());
    }
    Ok(())
}

/// Copies times that are in memory only into a slot that has just been taken from the table. The
/// caller holds the inode's lock.
///
/// The inode of an attribute value has none: it stores the count of its users and the checksum of
/// the value in these fields, and the version in memory may have an old count.
pub(crate) fn put_lazy_times(plan: &mut Plan<'_>, slot: Slot) -> Result<()> {
    let core = &*plan.mount.core;
    let guard = epoch::pin();
    let Some(Ok(version)) = core
        .inodes
        .get(&slot.nr, &guard)
        .map(|cell| cell.version(&guard))
    else {
        return Ok(());
    };
    if version.has(InodeFlags::EA_INODE_FL) {
        return Ok(());
    }
    let shown = version.on_disk();
    slot::edit(plan, slot, |inode| {
        inode.set_atime(shown.atime());
        inode.set_mtime(shown.mtime());
        inode.set_ctime(shown.ctime());
        inode.set_version(shown.version());
    })
}
