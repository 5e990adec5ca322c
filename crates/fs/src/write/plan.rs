//! **Purpose.** One operation: what it will change, decided before anything is changed, and then
//! done in one handle.
//!
//! **Model.** Planning reads blocks, as long as it takes, and notes changes: *regions* of metadata
//! blocks, copied into the plan and changed there; bits of bitmaps; claims and frees of clusters.
//! Nothing of it is visible. [`Plan::carry_out`] opens a handle with exactly the credits that this
//! needs and makes all changes.
//!
//! ```text
//! plan (reads, may fail, may wait for the device)      nothing has happened
//!   -> join: every block enters the transaction         nothing has happened
//!   -> apply: memory operations only                    cannot fail
//! ```
//!
//! A block may leave the cache between planning and joining. Then the handle is closed, the block
//! is loaded anew, and it begins again: a block that has joined does not leave.
//!
//! **Invariants.**
//! - No device I/O under the open handle, and no lock but those of buffers and groups.
//! - A plan that is dropped gives its claims back and cancels its frees.
//! - What a region holds is protected by a lock of the caller (the inode's, for its blocks), or
//!   changed by nobody else (an inode's slot), so that it is still true when it is applied.
//!
//! **Locking.** Buffers' and groups' locks, one at a time.

use std::ops::Range;

use fourscore_block::{Buffer, Structure, VerifiedAs};
use fourscore_journal::{Credits, Handle, LastTid, ModifyError};
use fourscore_mballoc::{
    ChangeKind, Claim, ClusterCount, FilePrealloc, Freeing, Reach, Request, Stamp,
};
use fourscore_ondisk::inode::{self, InodeMut, NewInode, RawInode};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{Corrupt, InodeNr, PhysBlock, Tid, extent};
use fourscore_sync::{Arc, MutexGuard, epoch};
use zerocopy::FromBytes;

use super::Writer;
use super::groups::{BitsChange, Map};
use super::inodes::InodeClaim;
use super::map::MapForm;
use super::orphans::Recording;
use super::slot::Slot;
use crate::{Error, Fs, Result};

/// How often a plan is begun anew because a block left the cache. Each time all blocks are loaded
/// again, so a second time takes a cache that holds nothing.
const MOST_ATTEMPTS: u32 = 64;

/// A block could not be changed in a handle.
#[derive(Debug)]
pub(crate) struct Refused {
    error: ModifyError,
    block: PhysBlock,
}

impl Refused {
    pub(crate) fn new(error: ModifyError, block: PhysBlock) -> Self {
        Self { error, block }
    }
}

/// A part of a metadata block, as it will be.
#[derive(Debug)]
struct Region {
    buffer: Arc<Buffer>,
    tag: VerifiedAs,
    /// Where it lies in the block, in bytes.
    offset: usize,
    bytes: Vec<u8>,
    kind: RegionKind,
    /// Whether the block is new, so that the device is not asked for it.
    is_fresh: bool,
    /// Whether the block was freed since, so that nothing is to be changed.
    is_void: bool,
}

/// What is written of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegionKind {
    /// Its bytes.
    Bytes,
    /// Its bytes, which are an inode, but for the word that links orphans: that one may have
    /// changed meanwhile, since whoever unlinks a neighbour in the chain does not have this
    /// inode's lock.
    Slot(InodeNr),
    /// Its bytes, which are an inode, that word included.
    WholeSlot,
    /// That word only, of an inode that is not changed otherwise.
    Link(InodeNr, Option<InodeNr>),
}

impl Region {
    /// Writes it into the block that `bytes` are.
    fn put(&self, bytes: &mut [u8], superblock: &Superblock) {
        let bytes = &mut bytes[self.offset..];
        let relink = |bytes: &mut [u8], nr, next| {
            if let Ok(mut inode) = InodeMut::of(bytes, superblock) {
                inode.set_next_orphan(next);
            }
            // Readers verify what they find.
            let _ = inode::seal(bytes, nr, superblock);
        };
        match self.kind {
            RegionKind::Bytes | RegionKind::WholeSlot => {
                bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
            }
            RegionKind::Slot(nr) => {
                let link = dtime(bytes);
                bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
                if dtime(bytes) != link {
                    relink(bytes, nr, Some(InodeNr(link)));
                }
            }
            RegionKind::Link(nr, next) => relink(bytes, nr, next),
        }
    }
}

/// `i_dtime` of the inode at the start of `bytes`.
fn dtime(bytes: &[u8]) -> u32 {
    RawInode::ref_from_prefix(bytes).map_or(0, |(raw, _)| raw.i_dtime.get())
}

/// Names a region of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionId(usize);

/// What frees clusters in a plan.
#[derive(Debug)]
struct Free {
    freeing: Freeing,
    bits: BitsChange,
}

/// An operation that is being planned.
#[derive(Debug)]
pub(crate) struct Plan<'f> {
    fs: &'f Fs,
    writer: &'f Writer,
    regions: Vec<Region>,
    claims: Vec<(Claim, BitsChange)>,
    frees: Vec<Free>,
    /// Metadata blocks that are freed.
    revoked: Vec<PhysBlock>,
    inodes: Vec<(InodeClaim, BitsChange)>,
    freed_inodes: Vec<(InodeClaim, BitsChange)>,
    /// What becomes of the record of orphans: one change at most.
    recording: Option<Recording<'f>>,
    moves: bool,
    /// How large it may become by freeing what is mapped.
    room: usize,
    /// The lock of the block of attributes that it changes.
    xattr_block: Option<(PhysBlock, MutexGuard<'f, ()>)>,
}

impl<'f> Plan<'f> {
    pub(crate) fn new(fs: &'f Fs, writer: &'f Writer) -> Self {
        Self {
            fs,
            writer,
            regions: Vec::new(),
            claims: Vec::new(),
            frees: Vec::new(),
            revoked: Vec::new(),
            inodes: Vec::new(),
            freed_inodes: Vec::new(),
            recording: None,
            moves: false,
            room: writer.room_of_a_step(),
            xattr_block: None,
        }
    }

    /// Lets nobody else change the block of attributes `block` until the plan has been carried out.
    ///
    /// # Errors
    /// If the plan has another such block already: two locks could wait for each other.
    pub(super) fn lock_xattr_block(&mut self, block: PhysBlock) -> Result<()> {
        match &self.xattr_block {
            Some((locked, _)) if *locked == block => Ok(()),
            Some(_) => Err(Error::InvalidArgument(
                "an operation changes one block of attributes",
            )),
            None => {
                let guard = self.writer.xattr_blocks().lock(block);
                self.xattr_block = Some((block, guard));
                Ok(())
            }
        }
    }

    /// Notes that entries move from one block to another, so that a reader who sees one block as
    /// it was and another as it will be may miss some.
    pub(crate) fn set_moves(&mut self) {
        self.moves = true;
    }

    /// Whether entries move.
    pub(crate) fn moves(&self) -> bool {
        self.moves
    }

    /// The file system.
    pub(crate) fn fs(&self) -> &'f Fs {
        self.fs
    }

    pub(super) fn writer(&self) -> &'f Writer {
        self.writer
    }

    /// How large it may become, in blocks, by freeing what is mapped.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Lets it become as large as it must, so that nothing is left to be freed later.
    pub(super) fn in_one_step(mut self) -> Self {
        self.room = usize::MAX;
        self
    }

    /// Notes what becomes of the record of orphans.
    pub(super) fn record(&mut self, recording: Recording<'f>) {
        debug_assert!(self.recording.is_none(), "two changes of the record");
        self.recording = Some(recording);
    }

    /// A whole block, after `check` has accepted it as what `tag` says.
    pub(crate) fn block(
        &mut self,
        block: PhysBlock,
        tag: VerifiedAs,
        check: impl FnOnce(&[u8]) -> std::result::Result<(), Corrupt>,
    ) -> Result<RegionId> {
        if let Some(found) = self.find(block, 0) {
            return Ok(found);
        }
        let buffer = self.fs.buffers.load(block)?;
        let guard = epoch::pin();
        let bytes = buffer.verified(tag, &guard, |bytes| {
            check(bytes).map_err(|error| error.in_block(block))
        })?;
        let bytes = bytes.to_vec();
        Ok(self.add(buffer, tag, 0, bytes, false))
    }

    /// A part of a block of which others change other parts. Nobody checks it here.
    pub(crate) fn part(
        &mut self,
        block: PhysBlock,
        range: Range<usize>,
        tag: VerifiedAs,
    ) -> Result<RegionId> {
        if let Some(found) = self.find(block, range.start) {
            return Ok(found);
        }
        let buffer = self.fs.buffers.load(block)?;
        let guard = epoch::pin();
        let part = buffer.bytes(&guard).get(range.clone()).unwrap_or_default();
        let bytes = part.to_vec();
        Ok(self.add(buffer, tag, range.start, bytes, false))
    }

    /// The slot of inode `nr`, which lies in `range` of a block of the inode table.
    pub(super) fn slot_at(
        &mut self,
        nr: InodeNr,
        block: PhysBlock,
        range: Range<usize>,
    ) -> Result<RegionId> {
        let region = self.part(block, range, inode_table_tag())?;
        let kind = &mut self.regions[region.0].kind;
        if *kind == RegionKind::Bytes {
            *kind = RegionKind::Slot(nr);
        }
        Ok(region)
    }

    /// Has all of a slot written: the plan sets the word that links orphans.
    pub(super) fn set_whole(&mut self, region: RegionId) {
        self.regions[region.0].kind = RegionKind::WholeSlot;
    }

    /// Lets the orphan `nr` lead to `next`; its slot begins at `offset` in `block`, and is not
    /// otherwise in the plan.
    pub(super) fn link_orphan(
        &mut self,
        nr: InodeNr,
        (block, offset): (PhysBlock, usize),
        next: Option<InodeNr>,
    ) -> Result<()> {
        let buffer = self.fs.buffers.load(block)?;
        let RegionId(at) = self.add(buffer, inode_table_tag(), offset, Vec::new(), false);
        self.regions[at].kind = RegionKind::Link(nr, next);
        Ok(())
    }

    /// A block that this plan has allocated, all zeroes.
    pub(crate) fn fresh(&mut self, block: PhysBlock, tag: VerifiedAs) -> RegionId {
        let buffer = self.fs.buffers.create(block);
        let bytes = vec![0; self.fs.geometry().block_size().bytes()];
        self.add(buffer, tag, 0, bytes, true)
    }

    /// The region of a whole block, if the plan has it already.
    pub(crate) fn planned(&self, block: PhysBlock) -> Option<RegionId> {
        self.find(block, 0)
    }

    fn find(&self, block: PhysBlock, offset: usize) -> Option<RegionId> {
        let same = |region: &Region| {
            let is_content = !matches!(region.kind, RegionKind::Link(..));
            region.buffer.block() == block && region.offset == offset && is_content
        };
        self.regions.iter().position(same).map(RegionId)
    }

    fn add(
        &mut self,
        buffer: Arc<Buffer>,
        tag: VerifiedAs,
        offset: usize,
        bytes: Vec<u8>,
        is_fresh: bool,
    ) -> RegionId {
        self.regions.push(Region {
            buffer,
            tag,
            offset,
            bytes,
            kind: RegionKind::Bytes,
            is_fresh,
            is_void: false,
        });
        RegionId(self.regions.len() - 1)
    }

    /// The content of a region as it will be.
    pub(crate) fn bytes(&self, region: RegionId) -> &[u8] {
        &self.regions[region.0].bytes
    }

    /// The same, to be changed.
    pub(crate) fn bytes_mut(&mut self, region: RegionId) -> &mut [u8] {
        &mut self.regions[region.0].bytes
    }

    /// Different regions, to be changed together.
    pub(crate) fn disjoint_mut<const N: usize>(
        &mut self,
        regions: [RegionId; N],
    ) -> [&mut [u8]; N] {
        let regions = self
            .regions
            .get_disjoint_mut(regions.map(|region| region.0));
        regions
            .expect("different regions")
            .map(|region| &mut *region.bytes)
    }

    /// Any number of regions, to be changed together; `None` if one is named twice, as a broken
    /// tree may do.
    pub(crate) fn all_mut(&mut self, wanted: &[RegionId]) -> Option<Vec<&mut [u8]>> {
        let mut found: Vec<(usize, &mut [u8])> = self
            .regions
            .iter_mut()
            .enumerate()
            .filter_map(|(at, region)| {
                let nth = wanted.iter().position(|wanted| wanted.0 == at)?;
                Some((nth, &mut *region.bytes))
            })
            .collect();
        found.sort_unstable_by_key(|(nth, _)| *nth);
        let all: Vec<_> = found.into_iter().map(|(_, bytes)| bytes).collect();
        Some(all).filter(|all| all.len() == wanted.len())
    }

    /// Lets a region become another kind of structure.
    pub(crate) fn set_tag(&mut self, region: RegionId, tag: VerifiedAs) {
        self.regions[region.0].tag = tag;
    }

    /// Claims clusters: at least one, at most as many as the request is for. Gives the first block
    /// and the number of clusters.
    pub(crate) fn allocate(
        &mut self,
        request: &Request,
        file: Option<&Arc<FilePrealloc>>,
    ) -> Result<(PhysBlock, u32)> {
        let allocator = self.writer.allocator();
        let privilege = self.writer.privilege();
        let mut reservation = self
            .writer
            .with_room(|| allocator.reserve(u64::from(request.len.0), privilege))?;
        let claimed = allocator.allocate(request, file, &mut reservation);
        allocator.unreserve(reservation);
        let claim = claimed.map_err(Error::from)?;
        let run = claim.run();
        let place = (run.group, Map::Blocks);
        let bits = (run.start.0, run.len.0);
        let bits = self
            .writer
            .groups()
            .change(self.fs, place, bits, ChangeKind::Set);
        match bits {
            Ok(bits) => self.claims.push((claim, bits)),
            Err(error) => {
                allocator.give_back(claim);
                return Err(error);
            }
        }
        Ok((allocator.geometry().first_block(&run), run.len.0))
    }

    /// Allocates one block for metadata of `inode` near `goal` and within `reach`, to be written as
    /// `tag` says.
    pub(crate) fn allocate_metadata(
        &mut self,
        (inode, reach): (InodeNr, Reach),
        goal: PhysBlock,
        tag: VerifiedAs,
    ) -> Result<(PhysBlock, RegionId)> {
        let request = Request::metadata(inode, ClusterCount(1), goal);
        let request = Request { reach, ..request };
        let (block, _) = self.allocate(&request, None)?;
        Ok((block, self.fresh(block, tag)))
    }

    /// Makes a new inode of a slot.
    pub(crate) fn init_slot(
        &mut self,
        slot: Slot,
        new: &NewInode,
        content: NewContent,
    ) -> Result<()> {
        let fs = self.fs;
        self.set_whole(slot.region());
        let made = InodeMut::init(self.slot_bytes_mut(slot), fs.superblock(), new);
        let mut made = made.map_err(|error| Corrupt::from(error).in_inode(slot.nr))?;
        if content == NewContent::Tree {
            extent::init_root(made.i_block_mut());
        }
        Ok(())
    }

    /// Frees `count` blocks from `first` on. What they held as metadata is forgotten.
    pub(crate) fn free(&mut self, first: PhysBlock, count: u32, was: Content) -> Result<()> {
        let allocator = self.writer.allocator();
        let geometry = allocator.geometry();
        let bits = geometry.layout().cluster_bits;
        let clusters = u64::from(count) + (first.0 & ((1 << bits) - 1));
        let runs = geometry.runs(first, clusters.div_ceil(1 << bits));
        for run in runs.into_iter().flatten() {
            let freeing = allocator.begin_free(run).map_err(Error::from)?;
            let change = self.writer.groups().change(
                self.fs,
                (run.group, Map::Blocks),
                (run.start.0, run.len.0),
                ChangeKind::Clear,
            );
            match change {
                Ok(bits) => self.frees.push(Free { freeing, bits }),
                Err(error) => {
                    allocator.cancel_free(freeing);
                    return Err(error);
                }
            }
        }
        if was == Content::Metadata {
            let blocks = first.0..first.0.saturating_add(u64::from(count));
            self.revoked.extend(blocks.clone().map(PhysBlock));
            for region in &mut self.regions {
                region.is_void |= blocks.contains(&region.buffer.block().0);
            }
        }
        Ok(())
    }

    /// Takes an inode that was claimed into the plan.
    pub(crate) fn use_inode(&mut self, claim: InodeClaim) -> Result<()> {
        match self.inode_bits(&claim, ChangeKind::Set) {
            Ok(bits) => {
                self.inodes.push((claim, bits));
                Ok(())
            }
            Err(error) => {
                self.writer.inodes().give_back(claim.nr, self.fs);
                Err(error)
            }
        }
    }

    /// Frees an inode on disk. In memory it is free when the caller says so, after everybody was
    /// shown that it is gone.
    pub(crate) fn free_inode(&mut self, claim: InodeClaim) -> Result<()> {
        let bits = self.inode_bits(&claim, ChangeKind::Clear)?;
        self.freed_inodes.push((claim, bits));
        Ok(())
    }

    fn inode_bits(&self, claim: &InodeClaim, kind: ChangeKind) -> Result<BitsChange> {
        let place = (claim.group, Map::Inodes);
        self.writer
            .groups()
            .change(self.fs, place, (claim.index, 1), kind)
    }

    /// How many blocks the plan adds to a transaction, or more: found without looking for those
    /// that it adds twice.
    pub(super) fn size(&self) -> usize {
        /// A bitmap and its descriptor.
        const BLOCKS_OF_BITS: usize = 2;
        let bits = [self.claims.len(), self.frees.len(), self.inodes.len()];
        let bits = bits.iter().sum::<usize>() + self.freed_inodes.len();
        let revokes = self.revoked.len();
        self.regions.len()
            + BLOCKS_OF_BITS * bits
            + revokes.div_ceil(self.writer.revokes_per_credit())
    }

    /// How many blocks the plan adds to a transaction at most.
    fn credits(&self) -> Credits {
        let mut blocks: Vec<PhysBlock> = self
            .valid_regions()
            .map(|region| region.buffer.block())
            .chain(self.all_bits().flat_map(BitsChange::blocks))
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        let revokes = self
            .revoked
            .len()
            .div_ceil(self.writer.revokes_per_credit());
        Credits(u32::try_from(blocks.len() + revokes).unwrap_or(u32::MAX))
    }

    fn valid_regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().filter(|region| !region.is_void)
    }

    fn all_bits(&self) -> impl Iterator<Item = &BitsChange> {
        let claimed = self.claims.iter().map(|(_, bits)| bits);
        let freed = self.frees.iter().map(|free| &free.bits);
        let inodes = self.inodes.iter().chain(&self.freed_inodes);
        claimed.chain(freed).chain(inodes.map(|(_, bits)| bits))
    }

    /// Makes all changes in one handle, and notes its transaction in `last`.
    ///
    /// # Errors
    /// The journal was aborted, the plan is too large for it, or a block cannot be read again.
    /// Nothing was changed then.
    pub(crate) fn carry_out(mut self, last: &[&LastTid]) -> Result<Tid> {
        let credits = self.credits();
        for _ in 0..MOST_ATTEMPTS {
            let mut handle = self.writer.start(credits)?;
            match self.join(&mut handle) {
                Ok(()) => {
                    last.iter().for_each(|last| handle.note(last));
                    self.apply(&mut handle);
                    let tid = handle.stop();
                    if let Some(recording) = self.recording.take() {
                        self.writer.orphans().done(recording);
                    }
                    return Ok(tid);
                }
                Err(refused) => {
                    drop(handle);
                    self.begin_anew(&refused)?;
                }
            }
        }
        Err(Error::InvalidArgument("the metadata cache is too small"))
    }

    fn join(&self, handle: &mut Handle<'_>) -> std::result::Result<(), Refused> {
        for region in self.valid_regions() {
            handle
                .modify(&region.buffer, region.tag, |_| ())
                .map_err(|error| Refused::new(error, region.buffer.block()))?;
        }
        self.all_bits().try_for_each(|bits| bits.join(handle))
    }

    fn begin_anew(&mut self, refused: &Refused) -> Result<()> {
        if refused.error == ModifyError::OutOfCredits {
            return Err(Error::InvalidArgument(
                "an operation planned too few credits",
            ));
        }
        self.writer.count_retry();
        for region in &mut self.regions {
            let block = region.buffer.block();
            if block == refused.block {
                region.buffer = if region.is_fresh {
                    self.fs.buffers.create(block)
                } else {
                    self.fs.buffers.load(block)?
                };
            }
        }
        let groups = self.writer.groups();
        let claimed = self.claims.iter_mut().map(|(_, bits)| bits);
        let freed = self.frees.iter_mut().map(|free| &mut free.bits);
        let inodes = self.inodes.iter_mut().chain(&mut self.freed_inodes);
        claimed
            .chain(freed)
            .chain(inodes.map(|(_, bits)| bits))
            .filter(|bits| bits.blocks().contains(&refused.block))
            .try_for_each(|bits| groups.reload(bits))
    }

    /// All blocks have joined: from here on nothing can be refused.
    fn apply(&mut self, handle: &mut Handle<'_>) {
        let must = |made: std::result::Result<(), Refused>| {
            made.expect("a block that has joined can be changed");
        };
        let groups = self.writer.groups();
        self.all_bits()
            .for_each(|bits| must(groups.make(handle, bits)));
        let dirs = self.inodes.iter().map(|entry| (entry, 1));
        let dirs = dirs.chain(self.freed_inodes.iter().map(|entry| (entry, -1)));
        for ((claim, bits), change) in dirs {
            if claim.is_directory {
                must(groups.change_used_dirs(handle, bits, change));
            }
        }
        for region in self.valid_regions() {
            let superblock = self.fs.superblock();
            let made = handle.modify(&region.buffer, region.tag, |bytes| {
                region.put(bytes, superblock);
            });
            must(made.map_err(|error| Refused::new(error, region.buffer.block())));
        }
        for &block in &self.revoked {
            let forgotten = handle.forget(&self.fs.buffers, block);
            must(forgotten.map_err(|error| Refused::new(error, block)));
        }
        let (allocator, tid) = (self.writer.allocator(), handle.tid());
        for (claim, _) in self.claims.drain(..) {
            allocator.mark(claim, tid);
        }
        let stamp = if self.frees.is_empty() {
            Stamp(0)
        } else {
            self.writer.stamp()
        };
        for free in self.frees.drain(..) {
            allocator.finish_free(free.freeing, tid, stamp);
        }
        self.inodes.clear();
    }
}

fn inode_table_tag() -> VerifiedAs {
    VerifiedAs::new(Structure::InodeTable, InodeNr(0))
}

/// How the content of a new inode will be stored.
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
    /// In blocks, with a map of this form.
    pub(crate) fn mapped(form: MapForm) -> Self {
        match form {
            MapForm::Tree => Self::Tree,
            MapForm::Pointers => Self::Pointers,
        }
    }
}

/// What freed blocks held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The content of a file.
    Data,
    /// Blocks that are journaled.
    Metadata,
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        if let Some(recording) = self.recording.take() {
            self.writer.orphans().undo(&recording);
        }
        let allocator = self.writer.allocator();
        for (claim, _) in self.claims.drain(..) {
            allocator.give_back(claim);
        }
        for free in self.frees.drain(..) {
            allocator.cancel_free(free.freeing);
        }
        for (claim, _) in self.inodes.drain(..) {
            self.writer.inodes().give_back(claim.nr, self.fs);
        }
    }
}
