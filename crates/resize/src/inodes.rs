//! **Purpose.** The inodes in use: their bytes, and what kind of map they have.

use std::ops::Range;

use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::inode::{self, FileType, Inode, InodeFlags, InodeMut};
use fourscore_ondisk::superblock::{MetadataChecksum, Superblock};
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, PhysBlock};

use crate::bitmap;
use crate::error::{ResizeError, Result};
use crate::volume::Volume;

/// The inode of blocks reserved for descriptors.
const RESIZE_INODE: InodeNr = InodeNr(7);
/// The inode of bad blocks, which hold nothing and may not be readable.
pub(crate) const BAD_BLOCKS_INODE: InodeNr = InodeNr(1);
/// How much of an inode table is read at once.
const PIECE_BYTES: u64 = 64 << 10;
/// A symbolic link shorter than this has its target in `i_block`.
const FAST_SYMLINK_BYTES: u64 = 60;

/// Reads an inode, with the changes of this step.
pub(crate) fn read(volume: &Volume<'_>, number: InodeNr) -> Result<Inode> {
    let (block, place) = volume.inode_place(number)?;
    let block = volume.read(block)?;
    let bytes = block.get(place).unwrap_or_default();
    Inode::parse(bytes, number, volume.sb()).map_err(ResizeError::corrupt)
}

/// Changes an inode in this step, and stores its checksum.
pub(crate) fn change(
    volume: &mut Volume<'_>,
    number: InodeNr,
    change: impl FnOnce(&mut InodeMut<'_>) -> Result<()>,
) -> Result<()> {
    let (block, place) = volume.inode_place(number)?;
    let sb = volume.sb().clone();
    let bytes = volume.change(block)?.get_mut(place).unwrap_or_default();
    change(&mut InodeMut::of(bytes, &sb).map_err(ResizeError::corrupt)?)?;
    inode::seal(bytes, number, &sb).map_err(ResizeError::corrupt)
}

/// Calls `visit` with each inode in use of some groups, except for those that have no blocks of
/// their own: the resize inode, and reserved ones that are not used.
pub(crate) fn visit(
    volume: &Volume<'_>,
    groups: Range<u32>,
    visit: &mut dyn FnMut(Inode) -> Result<()>,
) -> Result<()> {
    let geometry = *volume.geometry();
    for group in groups.map(GroupNr) {
        let desc = volume.desc(group)?;
        if desc.flags().contains(GroupFlags::INODE_UNINIT) {
            continue;
        }
        let bits = volume.read(desc.inode_bitmap())?;
        let unused = match volume.sb().metadata_checksum() {
            MetadataChecksum::None => 0,
            _ => desc.itable_unused(),
        };
        let used = geometry.inodes_per_group().saturating_sub(unused);
        let mut piece = Piece::default();
        for index in (0..used).filter(|&index| bitmap::is_set(&bits, index.into())) {
            let Some(number) = geometry.inode_at(group, GroupOffset(index)) else {
                continue;
            };
            if number == RESIZE_INODE {
                continue;
            }
            let place = geometry.inode_place(desc.inode_table(), GroupOffset(index));
            if place.block >= piece.end {
                let last = geometry.inode_place(desc.inode_table(), GroupOffset(used - 1));
                piece.load(volume, place.block..PhysBlock(last.block.0 + 1))?;
            }
            let start = piece.offset(volume, place.block) + place.offset_bytes;
            let end = start + geometry.inode_size_bytes();
            let bytes = piece.bytes.get(start..end).unwrap_or_default();
            // A reserved inode that is not used has no checksum.
            if bytes.iter().take(128).any(|&byte| byte != 0) {
                let inode = Inode::parse(bytes, number, volume.sb());
                let inode = inode.map_err(ResizeError::corrupt)?;
                if is_in_use(&inode, volume.sb()) {
                    visit(inode)?;
                }
            }
        }
    }
    Ok(())
}

/// Adjacent blocks of an inode table.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    first: PhysBlock,
    end: PhysBlock,
}

impl Piece {
    /// Reads the first of some blocks.
    fn load(&mut self, volume: &Volume<'_>, blocks: Range<PhysBlock>) -> Result<()> {
        let most = (PIECE_BYTES >> volume.geometry().block_size().bits()).max(1);
        self.first = blocks.start;
        self.end = blocks.end.min(PhysBlock(blocks.start.0 + most));
        volume.read_run(self.first..self.end, &mut self.bytes)
    }

    /// Where a block of the piece begins in its bytes.
    fn offset(&self, volume: &Volume<'_>, block: PhysBlock) -> usize {
        usize::try_from(block.0 - self.first.0).unwrap_or(0) * volume.block_bytes()
    }
}

fn is_in_use(inode: &Inode, sb: &Superblock) -> bool {
    inode.number() >= sb.first_inode() || inode.links_count() > 0 || inode.sectors() > 0
}

/// How an inode maps its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// It has no blocks, apart from one for attributes.
    None,
    Extents,
    Pointers,
}

/// The form of the map of an inode.
pub(crate) fn form(inode: &Inode, sb: &Superblock) -> Form {
    if inode.flags().contains(InodeFlags::INLINE_DATA_FL) {
        return Form::None;
    }
    match inode.file_type() {
        Some(FileType::Regular | FileType::Directory) => {}
        Some(FileType::Symlink) if !is_fast_symlink(inode, sb) => {}
        None if inode.number() == BAD_BLOCKS_INODE => {}
        _ => return Form::None,
    }
    match inode.flags().contains(InodeFlags::EXTENTS_FL) {
        true => Form::Extents,
        false => Form::Pointers,
    }
}

/// As the library decides it: by the space, or where that is shared with attributes, by the size.
fn is_fast_symlink(inode: &Inode, sb: &Superblock) -> bool {
    if sb.features().incompat.contains(Incompat::EA_INODE) {
        return (1..FAST_SYMLINK_BYTES).contains(&inode.size_bytes());
    }
    let cluster_sectors = (sb.geometry().cluster_size_bytes() / 512) as u64;
    let xattr_sectors = inode.file_acl().map_or(0, |_| cluster_sectors);
    inode.sectors() <= xattr_sectors
}
