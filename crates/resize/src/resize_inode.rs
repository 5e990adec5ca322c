//! **Purpose.** The inode of the blocks reserved for descriptors (`resize_inode`).
//!
//! **Model.** Its double indirect block points to the reserved blocks of group 0, each of which
//! points to its counterparts in the groups with backups, in order. A reserved block that becomes a
//! descriptor block leaves this tree; a new group with a backup adds a pointer to each that stays.
//!
//! That may be many blocks of metadata, more than a small journal holds at once. So if the groups
//! with backups change, the feature is taken away in a step before, and the inode is made again in
//! a step after it, when the reserved blocks are free and so are written at once. A crash in
//! between leaves a file system without the feature.
//!
//! **References.** `reserve_backup_gdb` and `ext4_convert_meta_bg` of the kernel.

use fourscore_ondisk::features::Compat;
use fourscore_ondisk::inode::{self, InodeMut};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{Geometry, InodeNr, PhysBlock, blockmap};

use crate::bitmap;
use crate::desc_table;
use crate::error::{ResizeError, Result};
use crate::volume::{Volume, add_free_clusters};

const RESIZE_INODE: InodeNr = InodeNr(7);
/// The slot of the double indirect block in `i_block`.
const DOUBLE_INDIRECT: u16 = 13;
const SECTOR_BITS: u32 = 9;

/// Makes the inode fit the new size, whose superblock is that of `volume`. Returns the change of
/// the number of free clusters.
pub(crate) fn update(volume: &mut Volume<'_>, old: &Superblock) -> Result<i64> {
    if !old.features().compat.contains(Compat::RESIZE_INODE) {
        return Ok(0);
    }
    let top = double_indirect(volume)?;
    if !volume.sb().features().compat.contains(Compat::RESIZE_INODE) {
        clear(volume)?;
        return mark(volume, top, 1, false);
    }
    let (before, after) = (Tree::of(old), Tree::of(volume.sb()));
    if before == after {
        return Ok(0);
    }
    let pointers = set_tree(volume, &after, &mut |volume, block, content| {
        if before.backups != after.backups || block < PhysBlock(before.first) {
            volume.set(block, content);
        }
        Ok(())
    })?;
    volume.set(top, pointers);
    change_inode(volume, |inode, sb| {
        let sectors = before.unit(inode.sectors(), sb) * after.blocks();
        inode.set_sectors(sectors).map_err(ResizeError::corrupt)
    })?;
    Ok(0)
}

/// Puts a content into a block.
type Put<'a> = dyn FnMut(&mut Volume<'_>, PhysBlock, Vec<u8>) -> Result<()> + 'a;

/// Makes the blocks that `volume` has reserved point to their counterparts, each through `put`.
/// Returns the content of the double indirect block.
fn set_tree(volume: &mut Volume<'_>, tree: &Tree, put: &mut Put<'_>) -> Result<Vec<u8>> {
    let geometry = *volume.geometry();
    let backups: Vec<u64> = (geometry.groups_with_super().skip(1))
        .map(|group| u64::from(group.0) * u64::from(geometry.blocks_per_group()))
        .collect();
    let mut pointers = vec![0; volume.block_bytes()];
    for block in tree.first..tree.first + tree.reserved {
        let slot = (block - tree.first + u64::from(geometry.desc_blocks())) % tree.slots;
        set_pointer(&mut pointers, slot, block)?;
        let mut content = vec![0; volume.block_bytes()];
        for (slot, backup) in (0..).zip(&backups) {
            set_pointer(&mut content, slot, block + backup)?;
        }
        put(volume, PhysBlock(block), content)?;
    }
    Ok(pointers)
}

/// The inode while the file system does without it.
#[derive(Debug)]
pub(crate) struct Removed {
    inode: Vec<u8>,
    top: PhysBlock,
    before: Tree,
}

/// Takes the feature away before a step to `new`, if that step would change too much of it.
pub(crate) fn remove(volume: &mut Volume<'_>, new: &Superblock) -> Result<Option<Removed>> {
    let has = |sb: &Superblock| sb.features().compat.contains(Compat::RESIZE_INODE);
    let (before, after) = (Tree::of(volume.sb()), Tree::of(new));
    let is_small = before.backups == after.backups && after.first >= before.first;
    if !has(volume.sb()) || !has(new) || is_small {
        return Ok(None);
    }
    let old = volume.sb().clone();
    let top = double_indirect(volume)?;
    let (block, place) = volume.inode_place(RESIZE_INODE)?;
    let block = volume.read(block)?;
    let inode = block.get(place).unwrap_or_default().to_vec();
    clear(volume)?;
    let first = old.geometry().desc_blocks();
    let end = first + u32::from(old.reserved_gdt_blocks());
    let mut free = desc_table::give_back(volume, first..end)?;
    free += mark(volume, top, 1, false)?;
    let mut raw = *without(&old)?.raw();
    add_free_clusters(&mut raw, &old, free);
    volume.set_superblock(&raw)?;
    volume.commit()?;
    Ok(Some(Removed { inode, top, before }))
}

/// A superblock without the feature.
pub(crate) fn without(sb: &Superblock) -> Result<Superblock> {
    let mut raw = *sb.raw();
    raw.s_reserved_gdt_blocks = 0.into();
    raw.s_feature_compat = (raw.s_feature_compat.get() & !Compat::RESIZE_INODE.bits()).into();
    if sb.has_metadata_csum() {
        raw.seal();
    }
    Superblock::try_from(&raw).map_err(ResizeError::corrupt)
}

/// Makes the inode again that [`remove`] took away, with as many reserved blocks as `wish` has.
pub(crate) fn restore(volume: &mut Volume<'_>, removed: &Removed, wish: &Superblock) -> Result<()> {
    let old = volume.sb().clone();
    let mut raw = *old.raw();
    raw.s_reserved_gdt_blocks = wish.raw().s_reserved_gdt_blocks;
    raw.s_feature_compat = (raw.s_feature_compat.get() | Compat::RESIZE_INODE.bits()).into();
    volume.set_superblock(&raw)?;
    let first = old.geometry().desc_blocks();
    let end = first + u32::from(wish.reserved_gdt_blocks());
    let mut free = desc_table::take(volume, first..end)?;
    free += mark(volume, removed.top, 1, true)?;
    let tree = Tree::of(volume.sb());
    let top = set_tree(volume, &tree, &mut |volume, block, content| {
        volume.write_now(block, &content)
    })?;
    volume.write_now(removed.top, &top)?;
    let (block, place) = volume.inode_place(RESIZE_INODE)?;
    let bytes = volume.change(block)?.get_mut(place).unwrap_or_default();
    bytes.copy_from_slice(&removed.inode);
    change_inode(volume, |inode, sb| {
        let sectors = removed.before.unit(inode.sectors(), sb) * tree.blocks();
        inode.set_sectors(sectors).map_err(ResizeError::corrupt)
    })?;
    let mut raw = *volume.sb().raw();
    add_free_clusters(&mut raw, &old, free);
    volume.set_superblock(&raw)?;
    volume.commit()
}

/// Marks blocks of one group as used or free. Returns the change of the number of free clusters.
fn mark(volume: &mut Volume<'_>, first: PhysBlock, blocks: u64, is_used: bool) -> Result<i64> {
    let Some((group, offset)) = volume.geometry().block_group(first) else {
        return Ok(0);
    };
    if blocks == 0 {
        return Ok(0);
    }
    let log = volume.geometry().blocks_per_cluster_log();
    let mut bits = volume.block_bitmap(group)?;
    let (start, last) = (u64::from(offset.0), u64::from(offset.0) + blocks - 1);
    bitmap::fill(&mut bits, start >> log..(last >> log) + 1, is_used);
    volume.set_block_bitmap(group, bits)
}

/// The shape of the tree of reserved blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tree {
    first: u64,
    reserved: u64,
    backups: u64,
    slots: u64,
}

impl Tree {
    fn of(sb: &Superblock) -> Self {
        let geometry: &Geometry = sb.geometry();
        Self {
            first: geometry.super_block().0 + 1 + u64::from(geometry.desc_blocks()),
            reserved: sb.reserved_gdt_blocks().into(),
            backups: geometry.groups_with_super().skip(1).count() as u64,
            slots: geometry.block_size().bytes() as u64 / 4,
        }
    }

    fn blocks(&self) -> u64 {
        1 + self.reserved * (1 + self.backups)
    }

    /// The sectors that the inode counts for each of its blocks: as many as a cluster has, or a
    /// block. `sectors` is the inode's count.
    fn unit(&self, sectors: u64, sb: &Superblock) -> u64 {
        match sectors.checked_div(self.blocks()) {
            Some(unit) if unit * self.blocks() == sectors && unit > 0 => unit,
            _ => 1 << (sb.geometry().block_size().bits() - SECTOR_BITS),
        }
    }
}

fn double_indirect(volume: &Volume<'_>) -> Result<PhysBlock> {
    let (block, place) = volume.inode_place(RESIZE_INODE)?;
    let mut bytes = volume.read(block)?;
    let bytes = bytes.get_mut(place).unwrap_or_default();
    let mut inode = InodeMut::of(bytes, volume.sb()).map_err(ResizeError::corrupt)?;
    let top = blockmap::pointer(inode.i_block_mut(), DOUBLE_INDIRECT);
    top.filter(|top| volume.geometry().data_blocks().contains(top))
        .ok_or_else(|| ResizeError::corrupt("the resize inode has no blocks"))
}

/// The double indirect block, if there is one.
pub(crate) fn top(volume: &Volume<'_>) -> Result<Option<PhysBlock>> {
    match volume.sb().features().compat.contains(Compat::RESIZE_INODE) {
        true => double_indirect(volume).map(Some),
        false => Ok(None),
    }
}

/// Makes another block the double indirect one.
pub(crate) fn set_top(volume: &mut Volume<'_>, top: PhysBlock) -> Result<()> {
    change_inode(volume, |inode, _| {
        set_pointer(inode.i_block_mut(), DOUBLE_INDIRECT.into(), top.0)
    })
}

/// Makes the inode one that is not used.
fn clear(volume: &mut Volume<'_>) -> Result<()> {
    let (block, place) = volume.inode_place(RESIZE_INODE)?;
    let sb = volume.sb().clone();
    let bytes = volume.change(block)?.get_mut(place).unwrap_or_default();
    bytes.fill(0);
    inode::seal(bytes, RESIZE_INODE, &sb).map_err(ResizeError::corrupt)
}

fn change_inode(
    volume: &mut Volume<'_>,
    change: impl FnOnce(&mut InodeMut<'_>, &Superblock) -> Result<()>,
) -> Result<()> {
    let (block, place) = volume.inode_place(RESIZE_INODE)?;
    let sb = volume.sb().clone();
    let bytes = volume.change(block)?.get_mut(place).unwrap_or_default();
    let mut inode = InodeMut::of(bytes, &sb).map_err(ResizeError::corrupt)?;
    change(&mut inode, &sb)?;
    inode::seal(bytes, RESIZE_INODE, &sb).map_err(ResizeError::corrupt)
}

fn set_pointer(pointers: &mut [u8], slot: u64, block: u64) -> Result<()> {
    let slot = u16::try_from(slot).map_err(ResizeError::corrupt)?;
    blockmap::set_pointer(pointers, slot, PhysBlock(block)).map_err(ResizeError::corrupt)?;
    Ok(())
}
