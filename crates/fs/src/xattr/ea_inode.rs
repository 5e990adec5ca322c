//! **Purpose.** Values of extended attributes that are inodes of their own (feature `ea_inode`).
//!
//! **Not here.** When a value gets one ([`crate::xattr::set`]), and reading it ([`crate::xattr::get`]).
//!
//! **Model.** A value that has no room beside its entry is the content of an inode without a name.
//! It counts the entries that use it: one in an inode, or one in a block of attributes, whoever
//! shares that block. Linux lets equal values be one inode; here each gets its own, and one that
//! was shared before loses users one by one and goes with the last. Who has an attribute pays for
//! its value as if it were alone: the space counts for `i_blocks` of his inode.
//!
//! ```text
//! entry (hash of the value) -> inode (EA_INODE_FL, users, hash of the value) -> blocks
//! ```
//!
//! **Invariants.** The count in such an inode is the number of entries that name it. Its
//! `i_version` is a part of the count, so it does not go up with changes.
//!
//! **Locking.** An inode of this kind with one user belongs to the holder of that user's lock: of
//! the inode's or, for an entry in a block, of the block's. Where there are more, one lock for all
//! of them is held until the plan has been carried out. It comes after the lock of a block.
//!
//! **Crash safety.** The value is on its way to the device before the transaction that has it in an
//! attribute.

use fourscore_mballoc::{ClusterCount, Request, Sizing};
use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::{FileMode, InodeFlags, NewInode, RawInode};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::xattr::{self, EaInode, NewValue, Value, Xattrs};
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock, Timestamp};
use zerocopy::FromBytes;

use crate::inode::alloc::Want;
use crate::inode::cache::{CachedInode, Pinned};
use crate::map::clusters::Clusters;
use crate::map::update::{Freed, MapForm};
use crate::mount::writer::{Writer, now};
use crate::txn::plan::{NewContent, Plan};
use crate::txn::slot::Slot;
use crate::{Error, FileType, Fs, Result};

/// The mode of an inode that holds a value, as Linux makes them.
const MODE: FileMode = FileMode(0o100_600);
/// Bytes of a block that an attribute of the shortest name takes beside its value.
const LEAST_AROUND_BYTES: usize = 32 + 20 + 4;

/// An inode that goes with the last attribute that had its value in it.
#[derive(Debug)]
pub(crate) struct GoneValue {
    nr: InodeNr,
    pinned: Pinned,
}

impl GoneValue {
    pub(crate) fn is(&self, nr: InodeNr) -> bool {
        self.nr == nr
    }

    /// Shows readers that it is gone.
    pub(crate) fn publish_end(&self) {
        self.pinned.publish(None);
    }
}

impl Fs {
    pub(crate) fn has_value_inodes(&self) -> bool {
        let features = self.superblock().features();
        features.incompat.contains(Incompat::EA_INODE)
    }

    /// Whether a value gets an inode without a look at what room there is.
    pub(crate) fn is_large_value(&self, value: &[u8]) -> bool {
        let block_bytes = self.geometry().block_size().bytes();
        let longest = block_bytes.saturating_sub(LEAST_AROUND_BYTES);
        self.has_value_inodes() && value.len().next_multiple_of(4) > longest
    }

    /// Forgets the inodes of values that are gone. They can be given out again after that, so those
    /// who had the attributes must have been shown that.
    pub(crate) fn forget_values(&self, writer: &Writer, gone: Vec<GoneValue>) {
        for GoneValue { nr, pinned } in gone {
            self.forget_inode(writer, nr, &pinned);
        }
    }

    /// The clusters that a value of so many bytes counts for, in an inode of its own.
    fn value_clusters(&self, bytes: u64) -> i64 {
        let clusters = bytes.div_ceil(self.geometry().cluster_size_bytes() as u64);
        i64::try_from(clusters).unwrap_or(i64::MAX)
    }
}

impl Plan<'_> {
    /// Makes an inode that holds `value` for an attribute of the inode in `owner`, which pays.
    pub(crate) fn new_value(&mut self, owner: Slot, value: &[u8]) -> Result<NewValue<'static>> {
        let (fs, writer) = (self.fs(), self.writer());
        let (group, _) = fs.geometry().inode_group(owner.nr).ok_or(Error::NotFound)?;
        let claim = writer.inodes().claim(fs, writer, group, Want::File)?;
        let nr = claim.nr;
        self.use_inode(claim)?;
        let slot = self.slot(nr)?;
        let generation = self.next_generation(slot);
        let form = MapForm::of_new(fs.superblock());
        let owner_now = self.inode(owner)?;
        let made = NewInode {
            mode: MODE,
            uid: owner_now.uid(),
            gid: owner_now.gid(),
            generation,
            links: 1,
            flags: InodeFlags::EA_INODE_FL | form.flags(),
            project_id: 0,
            now: now(),
        };
        self.init_slot(slot, &made, NewContent::mapped(form))?;
        self.write_value(slot, value)?;
        let hash = EaInode::hash_of(value, fs.superblock().checksum_seed());
        let sized = self.edit(slot, |inode| {
            // What the facts leave of the times is zero.
            let none = Timestamp::new(0, 0).unwrap_or(Timestamp::MIN);
            inode.set_atime(none);
            inode.set_ctime(none);
            inode.set_mtime(none);
            inode.set_size_bytes(value.len() as u64)
        })?;
        sized.map_err(|_| Error::TooBig)?;
        let facts = EaInode {
            refs: 1,
            value_hash: hash,
            lustre_parent: InodeNr(0),
        };
        self.put_facts(slot, facts)?;
        self.count_clusters(owner, fs.value_clusters(value.len() as u64))?;
        Ok(NewValue::Inode {
            inode: nr,
            bytes: u32::try_from(value.len()).map_err(|_| Error::TooBig)?,
            hash,
        })
    }

    /// Writes a value to blocks that become the content of the inode in `slot`.
    fn write_value(&mut self, slot: Slot, value: &[u8]) -> Result<()> {
        let fs = self.fs();
        let block_size = fs.geometry().block_size();
        let inode = CachedInode::new(self.inode(slot)?, fs)?;
        let mut padded = value.to_vec();
        padded.resize(value.len().next_multiple_of(block_size.bytes()), 0);
        let mut goal = self.goal_behind(&inode, LogicalBlock(0))?;
        let clusters = Clusters::of(fs);
        let mut at = LogicalBlock(0);
        let mut rest = &padded[..];
        while !rest.is_empty() {
            let blocks = u32::try_from(rest.len() / block_size.bytes()).unwrap_or(u32::MAX);
            let len = clusters.count(&(at..LogicalBlock(at.0.saturating_add(blocks))));
            let mut request = Request::data(slot.nr, clusters.nr(at), len, goal);
            request.sizing = Sizing::Exact;
            request.reach = MapForm::of(&inode).reach();
            let (physical, found) = self.allocate(&request, None)?;
            let blocks = blocks.min(clusters.blocks(ClusterCount(found), at));
            let extent = Extent {
                logical: at,
                physical,
                blocks,
                state: ExtentState::Written,
            };
            self.map_extent(&inode, slot, extent)?;
            let (now, later) = rest.split_at(rest.len().min(blocks as usize * block_size.bytes()));
            fs.device().write_at(now, block_size.offset(physical))?;
            goal = PhysBlock(physical.0 + u64::from(blocks));
            at = LogicalBlock(at.0 + blocks);
            rest = later;
        }
        Ok(())
    }

    /// The inode in `owner` does not have the value of so many bytes any more, and does not pay.
    pub(crate) fn refund_value(&mut self, owner: Slot, bytes: u32) -> Result<()> {
        let clusters = self.fs().value_clusters(bytes.into());
        self.count_clusters(owner, -clusters)
    }

    /// One more entry has its value in inode `nr`.
    pub(crate) fn add_value_user(&mut self, nr: InodeNr) -> Result<()> {
        let (slot, mut facts) = self.value_inode(nr)?;
        facts.refs = facts.refs.saturating_add(1);
        self.put_facts(slot, facts)
    }

    /// One entry less has its value in inode `nr`; with the last one it goes.
    pub(crate) fn drop_value_user(&mut self, nr: InodeNr) -> Result<()> {
        if self.is_gone_value(nr) {
            return Ok(());
        }
        self.raise_sequence();
        let (slot, mut facts) = self.value_inode(nr)?;
        if facts.refs > 1 {
            facts.refs -= 1;
            return self.put_facts(slot, facts);
        }
        let fs = self.fs();
        // Whoever looks for it meanwhile finds the version that is in memory.
        let pinned = fs.pin_any_inode(nr)?;
        let inode = CachedInode::new(self.inode(slot)?, fs)?;
        let freed = self.with_any_room(|plan| plan.free_map(&inode, slot, LogicalBlock(0)))?;
        debug_assert_eq!(freed, Freed::All);
        self.edit(slot, |inode| inode.set_links_count(0))?;
        fs.plan_end(self, &inode, slot, None)?;
        self.add_gone_value(GoneValue { nr, pinned });
        Ok(())
    }

    /// The entries of `xattrs`, which are gone, have no values any more.
    pub(crate) fn drop_values_of(&mut self, xattrs: &Xattrs<'_>, owner: InodeNr) -> Result<()> {
        self.for_each_value(xattrs, owner, Self::drop_value_user)
    }

    /// The entries of `xattrs` are copies, and have values that others have, too; but `fresh` was
    /// made for one of them.
    pub(crate) fn add_values_of(
        &mut self,
        xattrs: &Xattrs<'_>,
        owner: InodeNr,
        fresh: &NewValue<'_>,
    ) -> Result<()> {
        self.for_each_value(xattrs, owner, |plan, nr| match fresh {
            NewValue::Inode { inode, .. } if *inode == nr => Ok(()),
            _ => plan.add_value_user(nr),
        })
    }

    fn for_each_value(
        &mut self,
        xattrs: &Xattrs<'_>,
        owner: InodeNr,
        mut change: impl FnMut(&mut Self, InodeNr) -> Result<()>,
    ) -> Result<()> {
        for entry in xattrs.entries() {
            let broken = |error: xattr::XattrError| Corrupt::from(error).in_inode(owner);
            if let Value::Inode { inode, .. } = entry.map_err(broken)?.value {
                change(self, inode)?;
            }
        }
        Ok(())
    }

    /// The slot of an inode that holds a value, and what it says of that. If it has several users
    /// it changes for nobody else until the plan has been carried out.
    fn value_inode(&mut self, nr: InodeNr) -> Result<(Slot, EaInode)> {
        if EaInode::of(self.fs().load_inode(nr)?.raw()).refs > 1 {
            self.lock_values();
        }
        let slot = self.slot(nr)?;
        let inode = self.inode(slot)?;
        let is_file = inode.file_type() == Some(FileType::Regular);
        if !is_file || !inode.flags().contains(InodeFlags::EA_INODE_FL) {
            return Err(Corrupt::from(RelationError::NotAnEaInode)
                .in_inode(nr)
                .into());
        }
        Ok((slot, EaInode::of(inode.raw())))
    }

    fn put_facts(&mut self, slot: Slot, facts: EaInode) -> Result<()> {
        if let Ok((raw, _)) = RawInode::mut_from_prefix(self.slot_bytes_mut(slot)) {
            facts.put(raw);
        }
        self.end(slot)
    }
}
