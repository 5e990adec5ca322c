//! **Purpose.** Patches of what can be computed from everything else: bitmaps, free counts, link
//! counts, reference counts, and the state of the superblock.
//!
//! **Model.** Bitmaps and counts of a group are made again from the blocks and inodes that the
//! check found in use, never changed bit by bit. So they are patched last, when all else is sound.

use fourscore_ondisk::group::{BitmapSummary, GroupDescMut};
use fourscore_ondisk::inode::{InodeFlags, InodeMut};
use fourscore_ondisk::superblock::State as SuperState;
use fourscore_ondisk::xattr::{self, EaInode};
use fourscore_ondisk::{GroupDesc, GroupNr, GroupOffset, InodeNr, PhysBlock};
use zerocopy::FromBytes;

use super::editor::{Editor, Left, Patch};
use crate::bits::Bits;
use crate::inode::InodeView;

impl Editor<'_> {
    /// Makes the bitmaps and counts of a group.
    pub(super) fn recount_group(&self, nr: GroupNr) -> Patch {
        let (volume, geometry) = (self.volume, self.volume.geometry());
        let group = volume
            .group(nr)
            .ok_or_else(|| Left::because("no such group"))?;
        let mut bytes = self.descriptor(nr)?;
        let places = group.block_bitmap.zip(group.inode_bitmap);
        let (blocks, inodes) =
            places.ok_or_else(|| Left::because("the group has no place for bitmaps"))?;
        let first = volume.cluster(geometry.group_first_block(nr));
        let clusters = geometry.group_clusters(nr);
        let block_bitmap = self.bitmap(&self.state.found, first, clusters);
        self.write_block(blocks, &block_bitmap)?;
        let count = geometry.inodes_per_group();
        let first = geometry.inode_at(nr, GroupOffset(0));
        let first = u64::from(first.unwrap_or_default().0);
        let inode_bitmap = self.bitmap(&self.state.used, first, count);
        self.write_block(inodes, &inode_bitmap)?;
        let directories = self
            .state
            .directories
            .count_in(first..first + u64::from(count));
        let known = GroupDesc::unchecked(&bytes, &volume.sb).map(|desc| desc.used_dirs());
        let change = i64::try_from(directories).unwrap_or(0) - i64::from(known.unwrap_or(0));
        let sb = &volume.sb;
        if let Ok(mut desc) = GroupDescMut::new(&mut bytes, sb) {
            let covered = geometry.clusters_per_group();
            desc.set_block_bitmap(&BitmapSummary::of(&block_bitmap, clusters, covered, sb));
            desc.set_inode_bitmap(&BitmapSummary::of(&inode_bitmap, count, count, sb));
            desc.change_used_dirs(i32::try_from(change).unwrap_or(0));
        }
        self.write_descriptor(nr, &mut bytes)
    }

    /// A bitmap of `count` bits of `used`, from `first` on; the bits behind them are set.
    fn bitmap(&self, used: &Bits, first: u64, count: u32) -> Vec<u8> {
        let mut bitmap = vec![u8::MAX; self.volume.block_bytes()];
        for (at, word) in (0_u32..).step_by(64).zip(bitmap.chunks_exact_mut(8)) {
            let left = count.saturating_sub(at);
            let behind = match left {
                0 => u64::MAX,
                1..64 => u64::MAX << left,
                _ => 0,
            };
            let bits = used.bits_at(first + u64::from(at)) | behind;
            word.copy_from_slice(&bits.to_le_bytes());
        }
        bitmap
    }

    /// Sets the free counts of the superblock.
    pub(super) fn set_free_blocks(&self, blocks: u64) -> Patch {
        let [a, b, c, d, e, f, g, h] = blocks.to_le_bytes();
        self.edit_super(|raw| {
            raw.s_free_blocks_count_lo = u32::from_le_bytes([a, b, c, d]).into();
            if self
                .volume
                .incompat(fourscore_ondisk::features::Incompat::BIT64)
            {
                raw.s_free_blocks_count_hi = u32::from_le_bytes([e, f, g, h]).into();
            }
        })
    }

    /// Marks the file system as unmounted without errors.
    pub(super) fn mark_clean(&self) -> Patch {
        self.edit_super(|raw| {
            let state = SuperState::from_bits_retain(raw.s_state.get());
            let state = (state - SuperState::ERROR_FS) | SuperState::VALID_FS;
            raw.s_state = state.bits().into();
            raw.s_error_count = 0.into();
            raw.s_first_error_time = 0.into();
            raw.s_first_error_time_hi = 0;
            raw.s_last_error_time = 0.into();
            raw.s_last_error_time_hi = 0;
        })
    }

    /// Sets `i_links_count`.
    pub(super) fn set_links(&self, nr: InodeNr, links: u32) -> Patch {
        let links = u16::try_from(links).map_err(|_| Left::because("too many links"))?;
        self.edit_base(nr, |base| base.i_links_count = links.into())
    }

    /// Sets `i_blocks`, of which `counted` is in the unit that the inode uses.
    pub(super) fn set_blocks(&self, nr: InodeNr, counted: u64) -> Patch {
        let sb = &self.volume.sb;
        let mut bytes = self.inode_bytes(nr)?;
        let large = InodeView::new(&bytes, nr).is_some_and(|view| view.counts_large_blocks(sb));
        let bits = sb.geometry().block_size().bits() - 9;
        let sectors = if large { counted << bits } else { counted };
        let mut inode = InodeMut::of(&mut bytes, sb).map_err(|error| Left(error.to_string()))?;
        inode
            .set_sectors(sectors)
            .map_err(|error| Left(error.to_string()))?;
        self.write_inode(nr, &mut bytes)
    }

    /// Sets the number of users of an attribute block.
    pub(super) fn set_users(&self, block: PhysBlock, users: u64) -> Patch {
        let users = u32::try_from(users).map_err(|_| Left::because("too many users"))?;
        let mut bytes = self.read_block(block)?;
        if let Ok((header, _)) = xattr::RawBlockHeader::mut_from_prefix(&mut bytes) {
            header.h_refcount = users.into();
        }
        self.write_attributes(block, &mut bytes)
    }

    /// Writes an attribute block, with its checksum.
    pub(super) fn write_attributes(&self, block: PhysBlock, bytes: &mut [u8]) -> Patch {
        if let Some(seed) = self.volume.seed() {
            xattr::seal_block(bytes, block, seed).map_err(|error| Left(error.to_string()))?;
        }
        self.write_block(block, bytes)
    }

    /// Sets the number of attributes that have their value in an inode.
    pub(super) fn set_value_users(&self, nr: InodeNr, users: u64) -> Patch {
        self.edit_base(nr, |base| {
            let mut fields = EaInode::of(base);
            fields.refs = users;
            fields.put(base);
        })
    }

    /// Clears flags of an inode.
    pub(super) fn clear_flags(&self, nr: InodeNr, flags: InodeFlags) -> Patch {
        self.edit_base(nr, |base| {
            base.i_flags = (base.i_flags.get() & !flags.bits()).into();
        })
    }
}
