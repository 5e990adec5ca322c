//! **Purpose.** A plan: the changes of one operation, collected before any of them is applied, and
//! then applied in one handle.
//!
//! **Model.** Planning reads blocks and may wait for the device. It collects changes: *regions* of
//! metadata blocks, which are copied into the plan and changed there; bits of bitmaps; claims and
//! frees of clusters. None of them is visible yet. [`Plan::apply`] opens a handle with the credits
//! that the plan needs and makes all changes.
//!
//! ```text
//! plan (reads, may fail, may wait for the device)      nothing has happened
//!   -> join: every block enters the transaction         nothing has happened
//!   -> apply: memory operations only                    cannot fail
//! ```
//!
//! A block may leave the cache between planning and joining. Then the handle is closed, the block
//! is loaded again and kept there, and the plan restarts with joining. A block that has joined
//! stays in the cache. Blocks that the plan has allocated join last and are made again if they have
//! left the cache, so a restart leaves none of them in the transaction.
//!
//! **Invariants.**
//! - There is no device I/O under the open handle, and no lock except those of buffers and groups,
//!   and of this core's list of changes for fast commits.
//! - A plan that is dropped returns its claims and cancels its frees.
//! - The bytes of a region are protected by a lock of the caller (the inode's, for its blocks), or
//!   no other thread changes them (an inode's slot), so they are still valid when they are applied.
//!
//! **Locking.** Locks of buffers and groups are taken, one at a time.

use std::mem;
use std::ops::Range;

use fourscore_block::{Buffer, Kept, Structure, VerifiedAs};
use fourscore_mballoc::{ChangeKind, ClusterCount, FilePrealloc, Privilege, Reach, Request, Run};
use fourscore_ondisk::extent::{Extent, ExtentState, LOGICAL_END};
use fourscore_ondisk::geometry::BytePlace;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock};
use fourscore_sync::Arc;

use crate::dir::departure::Departure;
use crate::group::change::{self, BitRange};
use crate::group::table::{BitsChange, Counted, Map};
use crate::inode::free_inodes::InodeClaim;
use crate::inode::orphans::OrphanUpdate;
use crate::map::form::MapForm;
use crate::mount::freezer::Inside;
use crate::mount::state::Mount;
use crate::txn::faults::Sabotage;
use crate::txn::memory::{Free, Memory, Origin, Readers, Region, RegionKind};
use crate::xattr::gone_value::GoneValue;
use crate::xattr::held::{Note, XattrLocks};
use crate::{Error, Result};

/// Names a region of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionId(usize);

/// An operation that is being planned.
#[derive(Debug)]
pub(crate) struct Plan<'f> {
    pub(crate) mount: &'f Mount,
    pub(crate) memory: Memory,
    /// The change of the orphan list: one at most.
    pub(crate) orphan_update: Option<OrphanUpdate<'f>>,
    /// Whether the sequence counts of the changed inodes are raised, so that readers retry.
    pub(crate) raises_sequence: bool,
    /// Whether the changed inodes count a free.
    pub(crate) counts_free: bool,
    /// The limit of the plan's size, in blocks, for freeing what is mapped.
    capacity: usize,
    /// From this block of the changed file on, nothing that is mapped was ever inside its size;
    /// `LOGICAL_END` if that is not known of any block.
    unread_from: LogicalBlock,
    /// The locks of the blocks and values of attributes that the plan changes.
    pub(crate) xattrs: XattrLocks<'f>,
    /// Blocks that had left the cache once, and stay there until the plan ends.
    pub(crate) kept_buffers: Vec<Kept>,
    /// The file system cannot be frozen while this lives.
    _inside: Option<Inside<'f>>,
    pub(crate) gone_values: Vec<GoneValue>,
}

impl<'f> Plan<'f> {
    /// Returns a plan without changes. Waits while the file system is frozen. A thread has one plan
    /// at a time.
    pub(crate) fn new(mount: &'f Mount) -> Self {
        let inside = Some(mount.freezer().enter());
        Self::with(mount, inside)
    }

    /// Returns a plan without changes, for a thread that has another one or that keeps the file
    /// system frozen. It is applied before the other one.
    pub(crate) fn inside_another(mount: &'f Mount) -> Self {
        Self::with(mount, None)
    }

    #[inline]
    fn with(mount: &'f Mount, inside: Option<Inside<'f>>) -> Self {
        Self {
            _inside: inside,
            mount,
            memory: Memory::take(),
            orphan_update: None,
            raises_sequence: false,
            counts_free: false,
            capacity: mount.step_capacity(),
            unread_from: LOGICAL_END,
            xattrs: XattrLocks::new(mount),
            kept_buffers: Vec::new(),
            gone_values: Vec::new(),
        }
    }

    /// Notes that nothing that the changed file maps from `first` on was ever inside its size. The
    /// caller holds the inode's lock.
    pub(crate) fn set_unread_from(&mut self, first: LogicalBlock) {
        self.unread_from = first;
    }

    /// Whether readers may still be reading an extent of data that the plan frees. Only for extents
    /// whose clusters hold no other blocks. The device is read for written blocks inside a file's
    /// size only.
    pub(crate) fn readers_of(&self, extent: &Extent) -> Readers {
        let is_unwritten = extent.state == ExtentState::Unwritten;
        match is_unwritten && extent.logical >= self.unread_from {
            true => Readers::None,
            false => Readers::Possible,
        }
    }

    /// Notes what the plan means for the cache of shared attributes.
    pub(crate) fn note_xattrs(&mut self, note: Note) {
        self.memory.xattrs.notes.push(note);
    }

    /// Notes the inode of a value that is deleted: it leaves memory when the plan has been applied.
    pub(crate) fn add_gone_value(&mut self, gone: GoneValue) {
        self.gone_values.push(gone);
    }

    /// Whether this plan deletes the inode of a value.
    pub(crate) fn is_gone_value(&self, nr: InodeNr) -> bool {
        self.gone_values.iter().any(|gone| gone.is(nr))
    }

    /// Makes the plan raise the sequence counts of the changed inodes when it is applied
    /// ([`crate::inode::consistent`]). This is needed where a reader must not see one object before
    /// the change and another one after it.
    pub(crate) fn raise_sequence(&mut self) {
        self.raises_sequence = true;
    }

    /// Makes the changed inodes count that blocks of theirs were unmapped or freed. A reader of
    /// their data holds no guard, so the blocks may hold other data by the time it reads them.
    pub(crate) fn count_free(&mut self) {
        let faults = self.mount.core.faults;
        let is_left_out =
            faults.lacks(Sabotage::UncountedFree) || faults.lacks(Sabotage::ForgetBeforePublish);
        self.counts_free |= !is_left_out;
    }

    /// Returns the limit of the plan's size, in blocks, for freeing what is mapped.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether a transaction has space for the blocks of the plan's regions, and for as much as a
    /// change of attributes adds to them.
    pub(crate) fn may_fit(&self) -> bool {
        /// The map of a new value; a block of attributes, its bitmap and descriptor; the
        /// superblock.
        const OF_THE_REST: usize = 48;
        let regions = self.memory.regions.iter();
        let mut blocks: Vec<_> = regions.map(|region| region.buffer.block()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.len() + OF_THE_REST <= self.mount.most_credits()
    }

    /// Removes the limit of the plan's size, so that nothing is left to be freed later.
    pub(crate) fn in_one_step(mut self) -> Self {
        self.capacity = usize::MAX;
        self
    }

    /// Calls `change` without a limit of the plan's size.
    pub(crate) fn with_any_size<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        let capacity = std::mem::replace(&mut self.capacity, usize::MAX);
        let changed = change(self);
        self.capacity = capacity;
        changed
    }

    /// Notes the change of the orphan list.
    pub(crate) fn set_orphan_update(&mut self, orphan_update: OrphanUpdate<'f>) {
        debug_assert!(self.orphan_update.is_none(), "two changes of the record");
        self.orphan_update = Some(orphan_update);
    }

    /// Adds a whole block, after `check` has accepted it as the structure that `tag` names.
    ///
    /// # Errors
    /// That of `check`; `Corrupt` if the plan has a part of the block as another structure.
    pub(crate) fn block(
        &mut self,
        block: PhysBlock,
        tag: VerifiedAs,
        check: impl FnOnce(&[u8]) -> std::result::Result<(), Corrupt>,
    ) -> Result<RegionId> {
        let whole = 0..self.mount.core.geometry().block_size().bytes();
        if let Some(found) = self.has_already(block, &whole)? {
            return Ok(found);
        }
        let buffer = self.mount.core.buffers.load(block)?;
        let start = self.memory.bytes.len();
        let memory = &mut self.memory.bytes;
        let check = |bytes: &[u8]| check(bytes).map_err(|error| error.in_block(block));
        buffer.look_verified(tag, check, |bytes| memory.extend_from_slice(bytes))?;
        Ok(self.add(buffer, tag, 0, start, Origin::Disk))
    }

    /// Adds a part of a block whose other parts other threads change. The block is not checked
    /// here.
    ///
    /// # Errors
    /// `Corrupt` if the plan has another part that begins there, as another structure.
    pub(crate) fn part(
        &mut self,
        block: PhysBlock,
        range: Range<usize>,
        tag: VerifiedAs,
    ) -> Result<RegionId> {
        if let Some(found) = self.has_already(block, &range)? {
            return Ok(found);
        }
        let buffer = self.mount.core.buffers.load(block)?;
        let (start, offset) = (self.memory.bytes.len(), range.start);
        let memory = &mut self.memory.bytes;
        buffer.look(|bytes| memory.extend_from_slice(bytes.get(range).unwrap_or_default()));
        Ok(self.add(buffer, tag, offset, start, Origin::Disk))
    }

    /// Adds the part of a block that `choose` picks, after `check` has accepted the block as the
    /// structure that `tag` names; `None` if it picks none. For callers that change one place of a
    /// block and add the block only once.
    ///
    /// # Errors
    /// Those of `check` and `choose`; `Corrupt` if the plan has the start of the block already, as
    /// another structure.
    pub(crate) fn chosen_part<T>(
        &mut self,
        block: PhysBlock,
        tag: VerifiedAs,
        check: impl FnOnce(&[u8]) -> std::result::Result<(), Corrupt>,
        choose: impl FnOnce(&[u8]) -> Result<Option<(T, Range<usize>)>>,
    ) -> Result<Option<(T, RegionId)>> {
        if let Some(found) = self.find(block, 0) {
            let whole = 0..self.mount.core.geometry().block_size().bytes();
            return Err(self.two_uses(block, &whole, found));
        }
        let buffer = self.mount.core.buffers.load(block)?;
        let start = self.memory.bytes.len();
        let memory = &mut self.memory.bytes;
        let check = |bytes: &[u8]| check(bytes).map_err(|error| error.in_block(block));
        let chosen = buffer.look_verified(tag, check, |bytes| {
            let Some((chosen, range)) = choose(bytes)? else {
                return Ok(None);
            };
            let offset = range.start;
            memory.extend_from_slice(bytes.get(range).unwrap_or_default());
            Ok::<_, Error>(Some((chosen, offset)))
        })??;
        Ok(chosen.map(|(chosen, offset)| {
            let region = self.add(buffer, tag, offset, start, Origin::Disk);
            (chosen, region)
        }))
    }

    /// Adds the slot of inode `nr`, which lies in `range` of a block of the inode table.
    pub(crate) fn slot_at(
        &mut self,
        nr: InodeNr,
        block: PhysBlock,
        range: Range<usize>,
    ) -> Result<RegionId> {
        let region = self.part(block, range, inode_table_tag())?;
        let kind = &mut self.memory.regions[region.0].kind;
        if *kind == RegionKind::Bytes {
            *kind = RegionKind::Slot(nr);
        }
        Ok(region)
    }

    /// Makes the plan write all of a slot, because it sets the field that links orphans.
    pub(crate) fn set_whole(&mut self, region: RegionId) {
        let kind = &mut self.memory.regions[region.0].kind;
        if let RegionKind::Slot(nr) = *kind {
            *kind = RegionKind::WholeSlot(nr);
        }
    }

    /// Links the orphan `nr` to `next`. Its slot, at `place`, is not otherwise in the plan.
    pub(crate) fn link_orphan(
        &mut self,
        nr: InodeNr,
        place: BytePlace,
        next: Option<InodeNr>,
    ) -> Result<()> {
        self.without_content(place, RegionKind::Link(nr, next))
    }

    /// Notes that the directory whose slot is at `place` is touched.
    pub(crate) fn note_touched(&mut self, place: BytePlace) -> Result<()> {
        self.without_content(place, RegionKind::Touched)
    }

    fn without_content(&mut self, place: BytePlace, kind: RegionKind) -> Result<()> {
        let (buffer, start) = (
            self.mount.core.buffers.load(place.block)?,
            self.memory.bytes.len(),
        );
        let offset = place.offset_bytes;
        let RegionId(at) = self.add(buffer, inode_table_tag(), offset, start, Origin::Disk);
        self.memory.regions[at].kind = kind;
        Ok(())
    }

    /// Adds a block of metadata that this plan has allocated, filled with zeroes.
    pub(crate) fn fresh(&mut self, block: PhysBlock, tag: VerifiedAs) -> RegionId {
        self.zeroes(block, tag, Origin::Allocated)
    }

    /// Adds a block of content of a file, which this plan has allocated or the file has as an
    /// unwritten block, filled with zeroes.
    pub(crate) fn fresh_content(&mut self, block: PhysBlock, tag: VerifiedAs) -> RegionId {
        self.zeroes(block, tag, Origin::Unwritten)
    }

    fn zeroes(&mut self, block: PhysBlock, tag: VerifiedAs, origin: Origin) -> RegionId {
        let buffer = origin.make(&self.mount.core.buffers, block);
        let start = self.memory.bytes.len();
        let end = start + self.mount.core.geometry().block_size().bytes();
        self.memory.bytes.resize(end, 0);
        self.add(buffer, tag, 0, start, origin)
    }

    /// Returns the region of a whole block, if the plan has it already.
    pub(crate) fn planned(&self, block: PhysBlock) -> Option<RegionId> {
        self.find(block, 0)
    }

    /// Whether the plan has a part of a block, or all of it, that begins at `offset`.
    pub(crate) fn has_part(&self, block: PhysBlock, offset: usize) -> bool {
        self.find(block, offset).is_some()
    }

    fn find(&self, block: PhysBlock, offset: usize) -> Option<RegionId> {
        let same = |region: &Region| {
            let has_content = region.kind.has_content();
            region.buffer.block() == block && region.offset == offset && has_content
        };
        self.memory.regions.iter().position(same).map(RegionId)
    }

    /// Returns the region that is `range` of a block, if the plan has it already. A region that
    /// begins there and has another length belongs to another structure: both refer to the block.
    fn has_already(&self, block: PhysBlock, range: &Range<usize>) -> Result<Option<RegionId>> {
        match self.find(block, range.start) {
            Some(found) if self.bytes(found).len() != range.len() => {
                Err(self.two_uses(block, range, found))
            }
            found => Ok(found),
        }
    }

    #[cold]
    fn two_uses(&self, block: PhysBlock, range: &Range<usize>, found: RegionId) -> Error {
        let error = RelationError::TwoUses {
            offset_bytes: range.start,
            found_bytes: self.bytes(found).len(),
            expected_bytes: range.len(),
        };
        Corrupt::from(error).in_block(block).into()
    }

    /// Adds a region whose content is in the plan's memory from `start` on.
    fn add(
        &mut self,
        buffer: Arc<Buffer>,
        tag: VerifiedAs,
        offset: usize,
        start: usize,
        origin: Origin,
    ) -> RegionId {
        self.memory.regions.push(Region {
            buffer,
            tag,
            offset,
            bytes: start..self.memory.bytes.len(),
            kind: RegionKind::Bytes,
            origin,
            is_void: false,
        });
        RegionId(self.memory.regions.len() - 1)
    }

    /// Returns the content of a region after the change.
    pub(crate) fn bytes(&self, region: RegionId) -> &[u8] {
        self.memory.of(&self.memory.regions[region.0])
    }

    /// Returns the content of a region, to be changed.
    pub(crate) fn bytes_mut(&mut self, region: RegionId) -> &mut [u8] {
        let range = self.memory.regions[region.0].bytes.clone();
        &mut self.memory.bytes[range]
    }

    /// Returns the contents of different regions, to be changed together.
    pub(crate) fn disjoint_mut<const N: usize>(
        &mut self,
        regions: [RegionId; N],
    ) -> [&mut [u8]; N] {
        self.memory.disjoint_mut(regions.map(|region| region.0))
    }

    /// Returns the contents of any number of regions, to be changed together; `None` if one is
    /// named twice, which happens with a broken tree.
    pub(crate) fn all_mut(&mut self, wanted: &[RegionId]) -> Option<Vec<&mut [u8]>> {
        self.memory.all_mut(wanted.iter().map(|region| region.0))
    }

    /// Changes the kind of structure that a region holds.
    pub(crate) fn set_tag(&mut self, region: RegionId, tag: VerifiedAs) {
        self.memory.regions[region.0].tag = tag;
    }

    /// Claims clusters: at least one, at most as many as `request` says. Returns the first block
    /// and the number of clusters.
    pub(crate) fn allocate(
        &mut self,
        request: &Request,
        file: Option<&Arc<FilePrealloc>>,
    ) -> Result<(PhysBlock, u32)> {
        self.allocate_as(request, file, self.mount.privilege())
    }

    fn allocate_as(
        &mut self,
        request: &Request,
        file: Option<&Arc<FilePrealloc>>,
        privilege: Privilege,
    ) -> Result<(PhysBlock, u32)> {
        let allocator = self.mount.allocator();
        let mut reservation = self
            .mount
            .space
            .with_space(|| allocator.reserve(u64::from(request.len.0), privilege))?;
        let claimed = allocator.allocate(request, file, &mut reservation);
        allocator.unreserve(reservation);
        let claim = claimed.map_err(|error| self.mount.space.refused(error))?;
        let run = claim.run();
        let bits = change::prepare(
            self.mount,
            cluster_bits(&run),
            ChangeKind::Set,
            Counted::Bits,
        );
        match bits {
            Ok(bits) => self.memory.claims.push((claim, bits)),
            Err(error) => {
                allocator.give_back(claim);
                return Err(error);
            }
        }
        if let Some((_, bits)) = self.memory.claims.last() {
            change::mark_early(self.mount, bits)?;
        }
        Ok((allocator.geometry().first_block(&run), run.len.0))
    }

    /// Allocates one block for metadata of `inode` near `goal` and within `reach`, to be written as
    /// the structure that `tag` names.
    pub(crate) fn allocate_metadata(
        &mut self,
        inode: InodeNr,
        reach: Reach,
        goal: PhysBlock,
        tag: VerifiedAs,
    ) -> Result<(PhysBlock, RegionId)> {
        let block = self.claim_metadata(inode, reach, goal)?;
        Ok((block, self.fresh(block, tag)))
    }

    /// Allocates one block for a node of the extent tree of `inode` near `goal`, to be written as
    /// the structure that `tag` names. For [`NodeFor::Change`] this uses clusters as well that are
    /// kept for it ([`crate::mount::metadata_reserve`]).
    pub(crate) fn allocate_node(
        &mut self,
        inode: InodeNr,
        goal: PhysBlock,
        tag: VerifiedAs,
        wanted: NodeFor,
    ) -> Result<(PhysBlock, RegionId)> {
        let privilege = match wanted {
            NodeFor::NewExtent => self.mount.privilege(),
            NodeFor::Change => Privilege::Reserved,
        };
        let request = Request::metadata(inode, ClusterCount(1), goal);
        let (block, _) = self.allocate_as(&request, None, privilege)?;
        Ok((block, self.fresh(block, tag)))
    }

    /// Claims a cluster for metadata of `inode` near `goal` and within `reach`. Returns its first
    /// block.
    pub(crate) fn claim_metadata(
        &mut self,
        inode: InodeNr,
        reach: Reach,
        goal: PhysBlock,
    ) -> Result<PhysBlock> {
        let request = Request::metadata(inode, ClusterCount(1), goal);
        let (block, _) = self.allocate(&Request { reach, ..request }, None)?;
        Ok(block)
    }

    /// Frees a block of metadata and its cluster, which holds nothing else. The buffer's content is
    /// forgotten.
    pub(crate) fn free_metadata(&mut self, block: PhysBlock) -> Result<()> {
        self.free_clusters(block, ClusterCount(1), Readers::Possible)?;
        self.forget(block, 1);
        Ok(())
    }

    /// Frees `count` clusters, beginning with the one that holds `first`.
    pub(crate) fn free_clusters(
        &mut self,
        first: PhysBlock,
        count: ClusterCount,
        readers: Readers,
    ) -> Result<()> {
        self.count_free();
        let allocator = self.mount.allocator();
        let runs = allocator.geometry().runs(first, count.0.into());
        for run in runs.into_iter().flatten() {
            let freeing = allocator.begin_free(run).map_err(Error::from)?;
            let change = change::prepare(
                self.mount,
                cluster_bits(&run),
                ChangeKind::Clear,
                Counted::Bits,
            );
            match change {
                Ok(bits) => self.memory.frees.push(Free {
                    freeing,
                    bits,
                    readers,
                }),
                Err(error) => {
                    allocator.cancel_free(freeing);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Forgets the metadata in `count` blocks from `first` on, which were unmapped or freed.
    pub(crate) fn forget(&mut self, first: PhysBlock, count: u32) {
        if !self.mount.core.faults.lacks(Sabotage::ForgetBeforePublish) {
            // The device never had what a reader with the old map would read there.
            self.raise_sequence();
        }
        let blocks = first.0..first.0.saturating_add(u64::from(count));
        self.memory.revoked.extend(blocks.clone().map(PhysBlock));
        for region in &mut self.memory.regions {
            region.is_void |= blocks.contains(&region.buffer.block().0);
        }
    }

    /// Adds an inode that was claimed to the plan.
    pub(crate) fn use_inode(&mut self, claim: InodeClaim) -> Result<()> {
        match self.inode_bits(&claim, ChangeKind::Set) {
            Ok(bits) => {
                self.memory.inodes.push((claim, bits));
                Ok(())
            }
            Err(error) => {
                self.mount.inodes().give_back(claim.nr, &self.mount.core);
                Err(error)
            }
        }
    }

    /// Notes that a name will be removed or refer to another inode.
    pub(crate) fn add_departure(&mut self, departure: Departure) {
        self.memory.departures.push(departure);
    }

    /// Frees an inode on disk. In memory the caller frees it, after its end was published.
    pub(crate) fn free_inode(&mut self, claim: InodeClaim) -> Result<()> {
        let bits = self.inode_bits(&claim, ChangeKind::Clear)?;
        self.memory.freed_inodes.push((claim, bits));
        Ok(())
    }

    fn inode_bits(&self, claim: &InodeClaim, kind: ChangeKind) -> Result<BitsChange> {
        let bits = BitRange {
            group: claim.group,
            map: Map::Inodes,
            start: claim.index,
            len: 1,
        };
        let counted = if claim.is_directory {
            Counted::Directory
        } else {
            Counted::Bits
        };
        change::prepare(self.mount, bits, kind, counted)
    }
}

/// Returns the bits of a run of clusters.
fn cluster_bits(run: &Run) -> BitRange {
    BitRange {
        group: run.group,
        map: Map::Blocks,
        start: run.start.0,
        len: run.len.0,
    }
}

fn inode_table_tag() -> VerifiedAs {
    VerifiedAs::new(Structure::InodeTable, InodeNr(0))
}

/// How the data of a new inode will be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewContent {
    /// In blocks, mapped by an extent tree.
    Tree,
    /// In blocks, mapped by pointers.
    Pointers,
    /// In the inode, or nowhere.
    InInode,
}

impl NewContent {
    /// Returns the variant for data in blocks, with a map of this form.
    pub(crate) fn mapped(form: MapForm) -> Self {
        match form {
            MapForm::Tree => Self::Tree,
            MapForm::Pointers => Self::Pointers,
        }
    }
}

/// What a new node of an extent tree is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeFor {
    /// An extent of new blocks.
    NewExtent,
    /// A change of what is mapped already.
    Change,
}

/// What freed blocks held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The data of a file.
    Data,
    /// Blocks that are journaled.
    Metadata,
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        if let Some(orphan_update) = self.orphan_update.take() {
            self.mount.orphans().undo(&orphan_update);
        }
        let allocator = self.mount.allocator();
        while let Some((claim, _)) = self.memory.claims.pop() {
            allocator.give_back(claim);
        }
        while let Some(free) = self.memory.frees.pop() {
            allocator.cancel_free(free.freeing);
        }
        while let Some((claim, _)) = self.memory.inodes.pop() {
            self.mount.inodes().give_back(claim.nr, &self.mount.core);
        }
        mem::take(&mut self.memory).keep();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
