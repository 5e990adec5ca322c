//! **Purpose.** An inode's bytes in its table, as part of a plan.
//!
//! **Model.** A plan takes a copy of the slot, changes it through `InodeMut`, and ends it: the
//! checksum is stored, and the bytes are decoded into the version that readers will be shown. The
//! checksum of a slot costs little and is stored at once, so that whoever reads the slot can verify
//! it.
//!
//! **Locking.** The inode's lock is held by who stages it. Slots of other inodes in the same block
//! are not touched.

use fourscore_ondisk::inode::{self, InodeMut, RawInode};
use fourscore_ondisk::{Corrupt, Inode, InodeGeneration, InodeNr, PhysBlock, Timestamp};
use zerocopy::FromBytes;

use crate::inode::cache::CachedInode;
use crate::txn::plan::{Plan, RegionId};
use crate::{Error, Result};

/// An inode that a plan changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) nr: InodeNr,
    region: RegionId,
}

impl Slot {
    /// Its bytes in the plan.
    pub(crate) fn region(&self) -> RegionId {
        self.region
    }
}

impl Plan<'_> {
    /// Takes the slot of inode `nr` into the plan.
    pub(crate) fn slot(&mut self, nr: InodeNr) -> Result<Slot> {
        let geometry = self.fs().geometry();
        let (block, offset) = self.slot_place(nr)?;
        let range = offset..offset + geometry.inode_size_bytes();
        let is_there = self.has_part(block, offset);
        let region = self.slot_at(nr, block, range)?;
        let slot = Slot { nr, region };
        if !is_there && self.writer().lazy_times().is_some() {
            self.put_lazy_times(slot)?;
        }
        Ok(slot)
    }

    /// The block that holds inode `nr`, and where in it, in bytes.
    pub(crate) fn slot_place(&self, nr: InodeNr) -> Result<(PhysBlock, usize)> {
        let geometry = self.fs().geometry();
        let Some((group, index)) = geometry.inode_group(nr) else {
            return Err(Error::NotFound);
        };
        let Some(group) = self.writer().groups().get(group) else {
            return Err(Error::NotFound);
        };
        let place = geometry.inode_place(group.inodes().table, index);
        Ok((place.block, place.offset_bytes))
    }

    /// Says when the inode was deleted.
    pub(crate) fn set_deleted(&mut self, slot: Slot, at: Timestamp) -> Result<()> {
        self.set_whole(slot.region);
        self.edit(slot, |inode| inode.set_deleted(at))
    }

    /// Lets the inode, an orphan, lead to `next`.
    pub(crate) fn set_next_orphan(&mut self, slot: Slot, next: Option<InodeNr>) -> Result<()> {
        self.set_whole(slot.region);
        self.edit(slot, |inode| inode.set_next_orphan(next))
    }

    /// Lets the orphan `nr`, which the plan does not change otherwise, lead to `next`.
    pub(crate) fn relink_orphan(&mut self, nr: InodeNr, next: Option<InodeNr>) -> Result<()> {
        let place = self.slot_place(nr)?;
        self.link_orphan(nr, place, next)
    }

    /// What tells the next life of the slot's number from the one before.
    pub(crate) fn next_generation(&self, slot: Slot) -> InodeGeneration {
        let old = RawInode::ref_from_prefix(self.bytes(slot.region));
        let old = old.map_or(0, |(raw, _)| raw.i_generation.get());
        InodeGeneration(old.wrapping_add(1).max(1))
    }

    /// The slot's bytes.
    pub(crate) fn slot_bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        self.bytes_mut(slot.region)
    }

    /// The root of the map, as it will be.
    pub(crate) fn i_block(&self, slot: Slot) -> Result<&[u8]> {
        match RawInode::ref_from_prefix(self.bytes(slot.region)) {
            Ok((raw, _)) => Ok(&raw.i_block),
            Err(_) => Err(Error::NotFound),
        }
    }

    /// Changes the inode.
    pub(crate) fn edit<R>(
        &mut self,
        slot: Slot,
        change: impl FnOnce(&mut InodeMut<'_>) -> R,
    ) -> Result<R> {
        let fs = self.fs();
        let inode = InodeMut::of(self.bytes_mut(slot.region), fs.superblock());
        let mut inode = inode.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?;
        Ok(change(&mut inode))
    }

    /// Stores the slot's checksum.
    pub(crate) fn end(&mut self, slot: Slot) -> Result<()> {
        let fs = self.fs();
        inode::seal(self.bytes_mut(slot.region), slot.nr, fs.superblock())
            .map_err(|error| Corrupt::from(error).in_inode(slot.nr))?;
        Ok(())
    }

    /// The inode as it will be, decoded.
    pub(crate) fn inode(&mut self, slot: Slot) -> Result<Inode> {
        let fs = self.fs();
        let inode = Inode::sealed(self.bytes_mut(slot.region), slot.nr, fs.superblock());
        Ok(inode.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?)
    }

    /// The same of a slot that was ended. The checksum is not looked at, which was stored here.
    pub(crate) fn decoded(&self, slot: Slot) -> Result<Inode> {
        let (bytes, superblock) = (self.bytes(slot.region), self.fs().superblock());
        let inode = Inode::parse_unsealed(bytes, slot.nr, superblock);
        Ok(inode.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?)
    }

    /// Ends the slot of an inode that was changed, and decodes it into what readers will be shown.
    /// Its `i_version` goes up, and it gets the extra fields that new inodes have, if its
    /// attributes leave room for them.
    pub(crate) fn version(&mut self, slot: Slot) -> Result<CachedInode> {
        self.edit(slot, |inode| {
            // Where there is no room, Linux leaves it as it is, too.
            let _ = inode.expand_extra_isize();
            inode.raise_version();
        })?;
        let inode = self.inode(slot)?;
        CachedInode::new(inode, self.fs())
    }
}
