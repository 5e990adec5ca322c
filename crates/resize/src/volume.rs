//! **Purpose.** A file system with changes of its metadata in memory, and how they become durable:
//! the steps of which every resize is made.
//!
//! **Model.** A step is a set of changed blocks, the superblock among them. What lies in blocks
//! that are free, or behind the end of the file system, is written before the step ends, and is not
//! part of it.
//!
//! A file system that grows while it is mounted is changed the same way: operations that change
//! something are kept out, so that the device holds all of it ([`fourscore::Growth`]).
//!
//! **Crash safety.** Of a mounted file system, and with a journal, a step is one transaction: a
//! crash leaves all of it or nothing. Without a journal, with a journal on another device, or if
//! the step is larger than the journal allows, its blocks are written in place, between two writes
//! of the superblock: the first takes the mark "clean" away, so that the file system is checked
//! after a crash, and the last sets the new counts and the mark. Then blocks that the step takes
//! into use are marked as used before anything refers to them. Inodes that move are cleared at
//! their old place when all else is durable: a crash leaves them at one of their places or at both,
//! and if their names do not agree, a check puts them into `lost+found`.

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::ops::Range;

use fourscore::{
    Error, GroupBitmap, Growth, GrowthStep, MountOptions, OpenOptions, replace_blocks,
};
use fourscore_block::BlockDevice;
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::group::{self, BitmapSummary, GroupDesc, GroupDescMut, GroupFlags};
use fourscore_ondisk::superblock::{
    SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, State, Superblock,
};
use fourscore_ondisk::{BlockCount, Geometry, GroupNr, InodeNr, PhysBlock, RawSuperblock};
use fourscore_sync::Arc;
use zerocopy::IntoBytes as _;

use crate::bitmap;
use crate::error::{ResizeError, Result};
use crate::faults::Faults;

/// The file system and the changes of the current step.
#[derive(Debug)]
pub(crate) struct Volume<'f> {
    device: Arc<dyn BlockDevice>,
    sb: Superblock,
    changed: BTreeMap<PhysBlock, Vec<u8>>,
    /// Those of them that are written last, in place.
    last: BTreeSet<PhysBlock>,
    /// Blocks of descriptors as they are on the device, which are read often.
    descs: RefCell<BTreeMap<PhysBlock, Vec<u8>>>,
    way: Way<'f>,
    /// The groups whose block bitmaps this step changes.
    bitmaps: BTreeSet<GroupNr>,
    discards: Discards,
    faults: Faults,
}

/// Whether blocks behind the end of a file system that shrinks are discarded when they are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discards {
    None,
    BehindTheEnd,
}

/// How a step becomes durable.
#[derive(Debug)]
enum Way<'f> {
    /// As the only transaction of the journal.
    Transaction,
    /// In place: there is no journal that could be used.
    InPlace,
    /// Through the mount of a file system that is in use.
    Mounted(Box<Growth<'f>>),
}

/// Memory for the caches of a step: it reads hardly more than the journal's inode.
const CACHE_BYTES: usize = 1 << 20;

impl<'f> Volume<'f> {
    pub(crate) fn open(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
        device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
        let no_file_system =
            |why: &dyn std::fmt::Display| ResizeError::NoFileSystem(why.to_string());
        let raw = RawSuperblock::from_bytes(&bytes).map_err(|why| no_file_system(&why))?;
        let sb = Superblock::try_from(raw).map_err(|why| no_file_system(&why))?;
        Ok(Self {
            device,
            sb,
            changed: BTreeMap::new(),
            last: BTreeSet::new(),
            descs: RefCell::new(BTreeMap::new()),
            way: Way::Transaction,
            bitmaps: BTreeSet::new(),
            discards: Discards::None,
            faults: Faults::default(),
        })
    }

    /// The file system of a mount.
    pub(crate) fn mounted(growth: Growth<'f>) -> Result<Self> {
        let mut volume = Self::open(Arc::clone(growth.device()))?;
        volume.way = Way::Mounted(Box::new(growth));
        Ok(volume)
    }

    /// Ends the changes of a mounted file system: lets all threads use what they have added.
    pub(crate) fn finish(self) -> Result<()> {
        match self.way {
            Way::Mounted(growth) => Ok(growth.finish()?),
            Way::Transaction | Way::InPlace => Ok(()),
        }
    }

    /// The file system as it is on the device, without the changes of this step.
    pub(crate) fn on_device(&self) -> Result<Volume<'static>> {
        Volume::open(Arc::clone(&self.device))
    }

    /// Ends a step whose blocks the caller writes.
    pub(crate) fn take_changes(&mut self) -> BTreeMap<PhysBlock, Vec<u8>> {
        self.descs.borrow_mut().clear();
        self.bitmaps.clear();
        std::mem::take(&mut self.changed)
    }

    /// Forgets the changes of a step that failed.
    pub(crate) fn reload(&mut self) -> Result<()> {
        self.reopen(Arc::clone(&self.device))
    }

    /// Reads the file system again, by another way to the same device. What the caller has chosen
    /// stays.
    pub(crate) fn reopen(&mut self, device: Arc<dyn BlockDevice>) -> Result<()> {
        *self = Self {
            discards: self.discards,
            faults: self.faults,
            ..Self::open(device)?
        };
        Ok(())
    }

    /// Chooses whether a shrink discards blocks.
    pub(crate) fn set_discards(&mut self, discards: Discards) {
        self.discards = discards;
    }

    pub(crate) fn discards(&self) -> Discards {
        self.discards
    }

    /// Injects a fault.
    #[cfg(feature = "sabotage")]
    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    pub(crate) fn faults(&self) -> Faults {
        self.faults
    }

    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// The superblock, with the changes of this step.
    pub(crate) fn sb(&self) -> &Superblock {
        &self.sb
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.sb.geometry()
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.geometry().block_size().bytes()
    }

    /// Whether the space of inodes is counted in quota files.
    pub(crate) fn has_quota(&self) -> bool {
        self.sb.features().ro_compat.contains(RoCompat::QUOTA)
    }

    /// Changes the superblock in this step. Its checksum is stored at the end of the step.
    pub(crate) fn set_superblock(&mut self, raw: &RawSuperblock) -> Result<()> {
        let mut raw = *raw;
        if self.sb.has_metadata_csum() {
            raw.seal();
        }
        self.sb = Superblock::try_from(&raw).map_err(ResizeError::corrupt)?;
        Ok(())
    }

    /// The number of blocks that this step changes.
    pub(crate) fn changes(&self) -> usize {
        self.changed.len()
    }

    /// A block, with the changes of this step.
    pub(crate) fn read(&self, block: PhysBlock) -> Result<Vec<u8>> {
        if let Some(bytes) = self.changed.get(&block) {
            return Ok(bytes.clone());
        }
        self.load(block)
    }

    /// Reads adjacent blocks into `bytes`, with the changes of this step.
    pub(crate) fn read_run(&self, blocks: Range<PhysBlock>, bytes: &mut Vec<u8>) -> Result<()> {
        let count = usize::try_from(blocks.end.0.saturating_sub(blocks.start.0)).unwrap_or(0);
        bytes.resize(count * self.block_bytes(), 0);
        let offset = self.geometry().block_size().offset(blocks.start);
        self.device.read_at(bytes, offset)?;
        for (block, changed) in self.changed.range(blocks.clone()) {
            let start = usize::try_from(block.0 - blocks.start.0).unwrap_or(0) * self.block_bytes();
            if let Some(place) = bytes.get_mut(start..start + changed.len()) {
                place.copy_from_slice(changed);
            }
        }
        Ok(())
    }

    fn load(&self, block: PhysBlock) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes()];
        let offset = self.geometry().block_size().offset(block);
        self.device.read_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// A block that this step changes.
    pub(crate) fn change(&mut self, block: PhysBlock) -> Result<&mut Vec<u8>> {
        if !self.changed.contains_key(&block) {
            let bytes = self.load(block)?;
            self.changed.insert(block, bytes);
        }
        Ok(self.changed.entry(block).or_default())
    }

    /// As [`Self::change`], of a block in which something is removed that this step has elsewhere.
    pub(crate) fn change_last(&mut self, block: PhysBlock) -> Result<&mut Vec<u8>> {
        self.last.insert(block);
        self.change(block)
    }

    /// Sets the whole content of a block in this step.
    pub(crate) fn set(&mut self, block: PhysBlock, bytes: Vec<u8>) {
        self.changed.insert(block, bytes);
    }

    /// Writes a block that is free, or behind the end, at once.
    pub(crate) fn write_now(&self, block: PhysBlock, bytes: &[u8]) -> Result<()> {
        self.descs.borrow_mut().remove(&block);
        let offset = self.geometry().block_size().offset(block);
        Ok(self.device.write_at(bytes, offset)?)
    }

    /// The descriptor of a group.
    pub(crate) fn desc(&self, group: GroupNr) -> Result<GroupDesc> {
        let place = self.geometry().desc_place(group);
        let place = place.ok_or_else(|| ResizeError::corrupt("no such group"))?;
        let desc_in = |block: &[u8]| {
            let bytes = block.get(place.offset_bytes..).unwrap_or_default();
            GroupDesc::unchecked(bytes, &self.sb).map_err(ResizeError::corrupt)
        };
        if let Some(block) = self.changed.get(&place.block) {
            return desc_in(block);
        }
        match self.descs.borrow_mut().entry(place.block) {
            Entry::Occupied(entry) => desc_in(entry.get()),
            Entry::Vacant(entry) => desc_in(entry.insert(self.load(place.block)?)),
        }
    }

    /// Changes the descriptor of a group, and stores its checksum.
    pub(crate) fn change_desc(
        &mut self,
        group: GroupNr,
        change: impl FnOnce(&mut [u8], &Superblock) -> Result<()>,
    ) -> Result<()> {
        let place = self.geometry().desc_place(group);
        let place = place.ok_or_else(|| ResizeError::corrupt("no such group"))?;
        let sb = self.sb.clone();
        let end = place.offset_bytes + sb.geometry().desc_size_bytes();
        let block = self.change(place.block)?;
        let bytes = block.get_mut(place.offset_bytes..end);
        let bytes = bytes.ok_or_else(|| ResizeError::corrupt("a descriptor crosses a block"))?;
        change(bytes, &sb)?;
        group::seal(bytes, group, &sb).map_err(ResizeError::corrupt)
    }

    /// Writes zeroes behind the last descriptor of its block, at once: nothing uses what is there.
    /// It may be descriptors of groups that a shrink took away, by this crate or by resize2fs.
    pub(crate) fn clear_behind_descs(&self) -> Result<()> {
        let geometry = self.geometry();
        let place = geometry.desc_place(GroupNr(geometry.groups() - 1));
        let place = place.ok_or_else(|| ResizeError::corrupt("no such group"))?;
        let end = place.offset_bytes + geometry.desc_size_bytes();
        let mut bytes = self.read(place.block)?;
        let behind = bytes.get_mut(end..).unwrap_or_default();
        if behind.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        behind.fill(0);
        self.write_now(place.block, &bytes)
    }

    /// The block bitmap of a group; computed if it was never written.
    pub(crate) fn block_bitmap(&self, group: GroupNr) -> Result<Vec<u8>> {
        let desc = self.desc(group)?;
        if !desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
            return self.read(desc.block_bitmap());
        }
        let table = desc.inode_table();
        let table_end = table.0 + u64::from(self.geometry().inode_table_blocks());
        let own = [
            desc.block_bitmap().0..desc.block_bitmap().0 + 1,
            desc.inode_bitmap().0..desc.inode_bitmap().0 + 1,
            table.0..table_end,
        ];
        Ok(bitmap::of_group(self.geometry(), group, &own))
    }

    /// Stores a block bitmap, and the fields of its descriptor. Returns the change of the number of
    /// free clusters.
    pub(crate) fn set_block_bitmap(&mut self, group: GroupNr, bitmap: Vec<u8>) -> Result<i64> {
        let desc = self.desc(group)?;
        let geometry = self.geometry();
        let (bits, covered) = (
            geometry.group_clusters(group),
            geometry.clusters_per_group(),
        );
        let summary = BitmapSummary::of(&bitmap, bits, covered, &self.sb);
        self.set(desc.block_bitmap(), bitmap);
        self.bitmaps.insert(group);
        self.change_desc(group, |bytes, sb| {
            let mut desc = GroupDescMut::new(bytes, sb).map_err(ResizeError::corrupt)?;
            desc.set_block_bitmap(&summary);
            Ok(())
        })?;
        Ok(i64::from(summary.free) - i64::from(desc.free_clusters()))
    }

    /// The block of an inode, and the bytes of the inode in it.
    pub(crate) fn inode_place(&self, inode: InodeNr) -> Result<(PhysBlock, Range<usize>)> {
        let place = self.geometry().inode_group(inode);
        let (group, index) = place.ok_or_else(|| ResizeError::corrupt("no such inode"))?;
        let table = self.desc(group)?.inode_table();
        let place = self.geometry().inode_place(table, index);
        let end = place.offset_bytes + self.geometry().inode_size_bytes();
        Ok((place.block, place.offset_bytes..end))
    }

    /// Writes the changed blocks from `end` on at once: they lie behind the end on the device.
    pub(crate) fn write_behind(&mut self, end: PhysBlock) -> Result<()> {
        for (block, bytes) in self.changed.split_off(&end) {
            self.write_now(block, &bytes)?;
        }
        Ok(())
    }

    /// Makes the changes of this step durable, all of them or none: see the module.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let place = self.geometry().super_block();
        let start = usize::try_from(SUPERBLOCK_OFFSET_BYTES).unwrap_or(0) % self.block_bytes();
        let raw = *self.sb.raw();
        self.change(place)?[start..start + SUPERBLOCK_SIZE_BYTES].copy_from_slice(raw.as_bytes());
        let bitmaps = std::mem::take(&mut self.bitmaps);
        let places = bitmaps
            .into_iter()
            .map(|group| Ok((group, self.desc(group)?.block_bitmap())));
        let places = places.collect::<Result<Vec<_>>>()?;
        let changed = std::mem::take(&mut self.changed);
        let last = std::mem::take(&mut self.last);
        self.descs.borrow_mut().clear();
        if let Way::Mounted(growth) = &mut self.way {
            return Ok(growth.commit(&step(&self.sb, changed, &places))?);
        }
        if matches!(self.way, Way::Transaction) {
            let open = OpenOptions::new().cache_bytes(CACHE_BYTES);
            match replace_blocks(&self.device, &changed, &MountOptions::new().open(open)) {
                Err(Error::Unsupported(_)) => self.way = Way::InPlace,
                Err(Error::NotOneTransaction { .. }) => {}
                other => return Ok(other?),
            }
        }
        self.write_in_place(changed, &last, place)
    }

    /// Makes the changes of this step durable in place: see the module.
    pub(crate) fn commit_in_place(&mut self) -> Result<()> {
        let way = std::mem::replace(&mut self.way, Way::InPlace);
        let done = self.commit();
        self.way = way;
        done
    }

    /// Replaces the superblock by one durable write of it alone, after a flush of everything that
    /// was written before. No step may have begun.
    pub(crate) fn replace_superblock(&mut self, raw: &RawSuperblock) -> Result<()> {
        self.set_superblock(raw)?;
        self.device.flush()?;
        let slice = [IoSlice::new(self.sb.raw().as_bytes())];
        Ok(self.device.write_fua(&slice, SUPERBLOCK_OFFSET_BYTES)?)
    }

    /// Writes an inode, durably, and with nothing beside it.
    pub(crate) fn write_inode_now(&mut self, inode: InodeNr) -> Result<()> {
        let (block, place) = self.inode_place(inode)?;
        let bytes = self.read(block)?;
        let offset = self.geometry().block_size().offset(block) + place.start as u64;
        let bytes = bytes.get(place).unwrap_or_default();
        self.changed.remove(&block);
        Ok(self.device.write_fua(&[IoSlice::new(bytes)], offset)?)
    }

    fn write_in_place(
        &self,
        mut changed: BTreeMap<PhysBlock, Vec<u8>>,
        last: &BTreeSet<PhysBlock>,
        superblock: PhysBlock,
    ) -> Result<()> {
        self.device.flush()?;
        let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
        self.device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
        let mut raw = *RawSuperblock::from_bytes(&bytes).map_err(ResizeError::corrupt)?;
        raw.s_state = (raw.s_state.get() & !State::VALID_FS.bits()).into();
        if self.sb.has_metadata_csum() {
            raw.seal();
        }
        let slice = [IoSlice::new(raw.as_bytes())];
        self.device.write_fua(&slice, SUPERBLOCK_OFFSET_BYTES)?;
        let new = changed.remove(&superblock);
        let (last, first): (Vec<_>, Vec<_>) =
            changed.iter().partition(|&(block, _)| last.contains(block));
        for part in [first, last].iter().filter(|part| !part.is_empty()) {
            for (block, bytes) in part {
                self.write_now(**block, bytes)?;
            }
            self.device.flush()?;
        }
        let new = new.ok_or_else(|| ResizeError::corrupt("a step without a superblock"))?;
        self.write_now(superblock, &new)?;
        Ok(self.device.flush()?)
    }

    /// Writes the copies of superblock and descriptors, which no step changes. Descriptors are
    /// durable before a superblock of their layout is.
    pub(crate) fn write_backups(&self) -> Result<()> {
        let geometry = *self.geometry();
        let table = geometry.primary_table();
        let tables: Vec<Vec<u8>> = (table.start.0 + 1..table.end.0)
            .map(|block| self.read(PhysBlock(block)))
            .collect::<Result<_>>()?;
        let backups = || geometry.groups_with_super().filter(|group| group.0 != 0);
        let is_classic = |group: &GroupNr| {
            let first = geometry.first_meta_bg();
            first.is_none_or(|first| group.0 / geometry.descs_per_block() < first)
        };
        for group in backups().filter(is_classic) {
            let first = geometry.group_first_block(group);
            for (block, bytes) in (first.0 + 1..).zip(&tables) {
                self.write_now(PhysBlock(block), bytes)?;
            }
        }
        self.write_meta_group_backups(&geometry)?;
        self.device.flush()?;
        for group in backups() {
            self.write_backup_superblock(group)?;
        }
        Ok(self.device.flush()?)
    }

    fn write_backup_superblock(&self, group: GroupNr) -> Result<()> {
        let first = self.geometry().group_first_block(group);
        let mut raw = *self.sb.raw();
        raw.s_block_group_nr = u16::try_from(group.0).unwrap_or(u16::MAX).into();
        raw.s_state = (raw.s_state.get() & !State::VALID_FS.bits()).into();
        // Set while it is mounted.
        let incompat = raw.s_feature_incompat.get() & !Incompat::RECOVER.bits();
        let ro_compat = raw.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits();
        raw.s_feature_incompat = incompat.into();
        raw.s_feature_ro_compat = ro_compat.into();
        if self.sb.has_metadata_csum() {
            raw.seal();
        }
        let offset = self.geometry().block_size().offset(first);
        Ok(self.device.write_at(raw.as_bytes(), offset)?)
    }

    /// With `meta_bg`, the second and the last group of a meta group have copies of its block.
    fn write_meta_group_backups(&self, geometry: &Geometry) -> Result<()> {
        let Some(first) = geometry.first_meta_bg() else {
            return Ok(());
        };
        let per_block = geometry.descs_per_block();
        for meta_group in first..geometry.desc_blocks() {
            let first_group = GroupNr(meta_group * per_block);
            let Some(primary) = geometry.desc_place(first_group) else {
                continue;
            };
            let bytes = self.read(primary.block)?;
            for copy in [1, per_block - 1].map(|nr| GroupNr(first_group.0 + nr)) {
                if geometry.has_group(copy) && copy != first_group {
                    let start = geometry.group_first_block(copy).0;
                    let block = start + u64::from(geometry.has_super(copy));
                    self.write_now(PhysBlock(block), &bytes)?;
                }
            }
        }
        Ok(())
    }
}

/// A step of a mounted file system: the changed blocks, of which some are bitmaps.
fn step(
    sb: &Superblock,
    mut changed: BTreeMap<PhysBlock, Vec<u8>>,
    bitmaps: &[(GroupNr, PhysBlock)],
) -> GrowthStep {
    changed.remove(&sb.geometry().super_block());
    let bitmap = |&(group, block): &(GroupNr, PhysBlock)| {
        let bytes = changed.remove(&block)?;
        Some((group, GroupBitmap { block, bytes }))
    };
    GrowthStep {
        superblock: sb.clone(),
        bitmaps: bitmaps.iter().filter_map(bitmap).collect(),
        blocks: changed,
    }
}

/// Adds free clusters to the count of free blocks of a superblock.
pub(crate) fn add_free_clusters(raw: &mut RawSuperblock, sb: &Superblock, clusters: i64) {
    let blocks = clusters << sb.geometry().blocks_per_cluster_log();
    let free = sb.free_blocks().0.saturating_add_signed(blocks);
    set_free_blocks(raw, BlockCount(free));
}

pub(crate) fn set_free_blocks(raw: &mut RawSuperblock, free: BlockCount) {
    raw.s_free_blocks_count_lo = fourscore_ondisk::words::low32(free.0);
    raw.s_free_blocks_count_hi = fourscore_ondisk::words::high32(free.0);
}
