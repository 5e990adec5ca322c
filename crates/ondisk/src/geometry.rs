//! **Purpose.** The layout of the file system: groups, their first blocks and lengths, the blocks
//! of the descriptor table, backup superblocks, the inode table.
//!
//! **Not here.** The locations of bitmaps and inode tables, which are in descriptors
//! ([`GroupDesc`](crate::group::GroupDesc)).
//!
//! **Model.** A group is `blocks_per_group` blocks from `first_data_block` on; the last is short.
//! Groups with a copy of the superblock start with
//!
//! ```text
//! superblock | descriptor blocks | blocks reserved for more descriptors | ...
//! ```
//!
//! With `meta_bg`, from group `first_meta_bg * descriptors per block` on, each descriptor block is
//! in the groups that it describes instead: at the start (after the superblock, if any) of the
//! first, second and last of them.
//!
//! **Invariants.** All sums below fit: block numbers stay under 2^53 (a file system is smaller
//! than 2^63 bytes), a group has at most 2^32 - 1 blocks, `groups * inodes_per_group` is the inode
//! count and fits 32 bits.
//!
//! **References.** Documentation/filesystems/ext4/blockgroup.rst and bigalloc.rst of the kernel.

use std::ops::Range;

use crate::superblock::SuperblockError;
use crate::types::{BlockCount, BlockSize, GroupNr, GroupOffset, InodeNr, PhysBlock};

mod parse;

/// The sizes and counts from which the layout is computed. They are checked: see the module's
/// invariants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    block_size: BlockSize,
    blocks_per_cluster_log: u32,
    first_data_block: u32,
    blocks: u64,
    groups: u32,
    blocks_per_group: u32,
    clusters_per_group: u32,
    inodes_per_group: u32,
    inodes: u32,
    inode_size_bytes: u16,
    desc_size_bytes: u16,
    reserved_gdt_blocks: u16,
    backups: Backups,
    /// `s_first_meta_bg` with `meta_bg`; without it there are no meta block groups.
    first_meta_bg: Option<u32>,
}

/// The groups with a copy of the superblock, besides the first, which always has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backups {
    /// All groups.
    Everywhere,
    /// Groups 1 and powers of 3, 5 and 7 (`sparse_super`).
    Sparse,
    /// These two; 0 means none (`sparse_super2`).
    Two([u32; 2]),
}

/// The location of a structure in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BytePlace {
    /// The block.
    pub block: PhysBlock,
    /// The offset inside it; the structure does not cross the block's end.
    pub offset_bytes: usize,
}

impl Geometry {
    /// The block size.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// log2 of the blocks in a cluster; 0 without `bigalloc`.
    #[must_use]
    pub fn blocks_per_cluster_log(&self) -> u32 {
        self.blocks_per_cluster_log
    }

    /// The cluster size in bytes, at most 1 GiB; the block size without `bigalloc`.
    #[must_use]
    pub fn cluster_size_bytes(&self) -> usize {
        self.block_size.bytes() << self.blocks_per_cluster_log
    }

    /// The first block of group 0: 1 with blocks of 1 KiB and no `bigalloc`, else 0.
    #[must_use]
    pub fn first_data_block(&self) -> PhysBlock {
        PhysBlock(self.first_data_block.into())
    }

    /// The blocks that data or metadata of a file may lie in: all from the first data block on.
    #[must_use]
    pub fn data_blocks(&self) -> Range<PhysBlock> {
        self.first_data_block()..PhysBlock(self.blocks().0)
    }

    /// All blocks of the file system, those before `first_data_block` included.
    #[must_use]
    pub fn blocks(&self) -> BlockCount {
        BlockCount(self.blocks)
    }

    /// The size of the file system in bytes, below 2^63.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.blocks << self.block_size.bits()
    }

    /// The number of groups; at least 1.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Blocks of each group but the last.
    #[must_use]
    pub fn blocks_per_group(&self) -> u32 {
        self.blocks_per_group
    }

    /// Clusters of each group but the last: the bits its block bitmap uses.
    #[must_use]
    pub fn clusters_per_group(&self) -> u32 {
        self.clusters_per_group
    }

    /// Inodes of each group, the last included.
    #[must_use]
    pub fn inodes_per_group(&self) -> u32 {
        self.inodes_per_group
    }

    /// All inodes; the highest inode number.
    #[must_use]
    pub fn inodes(&self) -> u32 {
        self.inodes
    }

    /// The size of an inode: a power of two from 128 to the block size.
    #[must_use]
    pub fn inode_size_bytes(&self) -> usize {
        self.inode_size_bytes.into()
    }

    /// The size of a group descriptor: 32, or a power of two from 64 to 1024.
    #[must_use]
    pub fn desc_size_bytes(&self) -> usize {
        self.desc_size_bytes.into()
    }

    /// Descriptors in one block.
    #[must_use]
    pub fn descs_per_block(&self) -> u32 {
        self.block_size_bytes_u32() / u32::from(self.desc_size_bytes)
    }

    /// Blocks of the descriptor table.
    #[must_use]
    pub fn desc_blocks(&self) -> u32 {
        self.groups.div_ceil(self.descs_per_block())
    }

    /// Blocks of one group's inode table.
    #[must_use]
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Inodes in one block of the inode table.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size_bytes_u32() / u32::from(self.inode_size_bytes)
    }

    /// Whether `group` exists.
    #[must_use]
    pub fn has_group(&self, group: GroupNr) -> bool {
        group.0 < self.groups
    }

    /// The first block of `group`.
    #[must_use]
    pub fn group_first_block(&self, group: GroupNr) -> PhysBlock {
        let before = u64::from(group.0) * u64::from(self.blocks_per_group);
        PhysBlock(before + u64::from(self.first_data_block))
    }

    /// The blocks of `group`: shorter for the last, empty past it.
    #[must_use]
    pub fn group_blocks(&self, group: GroupNr) -> Range<PhysBlock> {
        let first = self.group_first_block(group).0.min(self.blocks);
        let end = first
            .saturating_add(self.blocks_per_group.into())
            .min(self.blocks);
        PhysBlock(first)..PhysBlock(end)
    }

    /// The number of blocks of `group`; 0 past the last group.
    #[must_use]
    pub fn group_length(&self, group: GroupNr) -> u32 {
        let Range { start, end } = self.group_blocks(group);
        u32::try_from(end.0 - start.0).unwrap_or(self.blocks_per_group)
    }

    /// The number of clusters of `group`, including a last partial one; 0 past the last group.
    #[must_use]
    pub fn group_clusters(&self, group: GroupNr) -> u32 {
        self.group_length(group)
            .div_ceil(1 << self.blocks_per_cluster_log)
    }

    /// The group of `block` and the block's offset in it; `None` outside the file system.
    #[must_use]
    pub fn block_group(&self, block: PhysBlock) -> Option<(GroupNr, GroupOffset)> {
        if block.0 >= self.blocks {
            return None;
        }
        let from_first = block.0.checked_sub(self.first_data_block.into())?;
        let per_group = u64::from(self.blocks_per_group);
        let group = u32::try_from(from_first / per_group).ok()?;
        let offset = u32::try_from(from_first % per_group).ok()?;
        Some((GroupNr(group), GroupOffset(offset)))
    }

    /// Whether these blocks are inside the file system; an empty run never is.
    #[must_use]
    pub fn contains(&self, start: PhysBlock, count: BlockCount) -> bool {
        let end = start.0.checked_add(count.0);
        count.0 > 0
            && start.0 >= u64::from(self.first_data_block)
            && end.is_some_and(|end| end <= self.blocks)
    }

    /// The location of the descriptor of `group` in the primary table; `None` past the last group.
    #[must_use]
    pub fn desc_place(&self, group: GroupNr) -> Option<BytePlace> {
        if !self.has_group(group) {
            return None;
        }
        let index = group.0 / self.descs_per_block();
        let in_block = group.0 % self.descs_per_block();
        Some(BytePlace {
            block: self.desc_block(index),
            offset_bytes: in_block as usize * self.desc_size_bytes(),
        })
    }

    /// The block of the primary table that holds descriptors `index * descs_per_block` and up.
    /// `index` counts from 0 to [`desc_blocks`](Self::desc_blocks).
    fn desc_block(&self, index: u32) -> PhysBlock {
        let in_meta_group = self.first_meta_bg.is_some_and(|first| index >= first);
        if !in_meta_group {
            return PhysBlock(self.super_block().0 + 1 + u64::from(index));
        }
        let group = GroupNr(index * self.descs_per_block());
        if group.0 == 0 {
            return PhysBlock(self.super_block().0 + 1);
        }
        PhysBlock(self.group_first_block(group).0 + u64::from(self.has_super(group)))
    }

    /// The block that byte 1024, the primary superblock, is in.
    #[must_use]
    pub fn super_block(&self) -> PhysBlock {
        PhysBlock(1024 >> self.block_size.bits())
    }

    /// The first descriptor block that is in its own meta group (`s_first_meta_bg`, within its
    /// limits); `None` without `meta_bg`.
    #[must_use]
    pub fn first_meta_bg(&self) -> Option<u32> {
        self.first_meta_bg
    }

    /// The primary superblock and the descriptor blocks right after it, without the blocks reserved
    /// for more descriptors.
    #[must_use]
    pub fn primary_table(&self) -> Range<PhysBlock> {
        let descriptor_blocks = match self.first_meta_bg {
            Some(first) => first.max(1).min(self.desc_blocks()),
            None => self.desc_blocks(),
        };
        let start = self.super_block();
        start..PhysBlock(start.0 + 1 + u64::from(descriptor_blocks))
    }

    /// Whether `group` has a copy of the superblock (group 0: the primary one).
    #[must_use]
    pub fn has_super(&self, group: GroupNr) -> bool {
        let group = group.0;
        match self.backups {
            _ if group == 0 => true,
            Backups::Everywhere => true,
            Backups::Two(groups) => groups.contains(&group),
            Backups::Sparse => group == 1 || [3, 5, 7].iter().any(|&root| is_power(group, root)),
        }
    }

    /// The groups that [have a copy](Self::has_super) of the superblock, in order. Does not iterate
    /// over other groups.
    pub fn groups_with_super(&self) -> impl Iterator<Item = GroupNr> {
        let after = |group: u32| match self.backups {
            Backups::Everywhere => group.checked_add(1),
            Backups::Two(groups) => groups.into_iter().filter(|&other| other > group).min(),
            Backups::Sparse => {
                let powers = [3, 5, 7].map(|root| next_power(root, group));
                powers.into_iter().flatten().min()
            }
        };
        std::iter::successors(Some(0), move |&group| after(group))
            .take_while(|&group| group < self.groups)
            .map(GroupNr)
    }

    /// The number of blocks at the start of `group` for the superblock, descriptors and the blocks
    /// reserved for more of them, without bitmaps and inode tables.
    #[must_use]
    pub fn base_meta_blocks(&self, group: GroupNr) -> u32 {
        let per_block = self.descs_per_block();
        let meta_group = group.0 / per_block;
        let has_super = self.has_super(group);
        // With blocks of 1 KiB in clusters, group 0 starts at block 0, where the boot sector is.
        let boot = u32::from(group.0 == 0 && self.super_block().0 > self.first_data_block.into());
        let table = match self.first_meta_bg {
            Some(first) if meta_group >= first => {
                let place = group.0 % per_block;
                u32::from(place == 0 || place == 1 || place == per_block - 1)
            }
            classic if has_super => {
                classic.unwrap_or(self.desc_blocks()) + u32::from(self.reserved_gdt_blocks)
            }
            _ => 0,
        };
        boot + u32::from(has_super) + table
    }

    /// Whether a run of blocks overlaps a superblock, descriptors, or blocks reserved for them.
    /// Iterates over the groups of the run.
    #[must_use]
    pub fn overlaps_base_meta(&self, start: PhysBlock, count: BlockCount) -> bool {
        let Some(last) = start
            .0
            .checked_add(count.0)
            .and_then(|end| end.checked_sub(1))
        else {
            return false;
        };
        let (Some((first_group, offset)), last_group) =
            (self.block_group(start), self.block_group(PhysBlock(last)))
        else {
            return start.0 < u64::from(self.first_data_block) && count.0 > 0;
        };
        if offset.0 < self.base_meta_blocks(first_group) {
            return true;
        }
        let last_group = last_group.map_or(self.groups - 1, |(group, _)| group.0);
        (first_group.0 + 1..=last_group).any(|group| self.base_meta_blocks(GroupNr(group)) > 0)
    }

    /// The number of blocks of fixed metadata: all blocks before `first_data_block`, and in each
    /// group superblock, descriptors, blocks reserved for them, both bitmaps and the inode table,
    /// without the journal. Iterates over all groups.
    #[must_use]
    pub fn overhead_blocks(&self) -> BlockCount {
        let per_group = u64::from(self.inode_table_blocks()) + 2;
        let base: u64 = (0..self.groups)
            .map(|group| u64::from(self.base_meta_blocks(GroupNr(group))))
            .sum();
        BlockCount(u64::from(self.first_data_block) + base + per_group * u64::from(self.groups))
    }

    /// The group of `inode` and the inode's index in its table; `None` for 0 and past the last.
    #[must_use]
    pub fn inode_group(&self, inode: InodeNr) -> Option<(GroupNr, GroupOffset)> {
        if inode.0 > self.inodes {
            return None;
        }
        let index = inode.0.checked_sub(1)?;
        let (group, offset) = (index / self.inodes_per_group, index % self.inodes_per_group);
        Some((GroupNr(group), GroupOffset(offset)))
    }

    /// The inode at `index` of the table of `group`; `None` past the end of either.
    #[must_use]
    pub fn inode_at(&self, group: GroupNr, index: GroupOffset) -> Option<InodeNr> {
        let exists = self.has_group(group) && index.0 < self.inodes_per_group;
        exists.then(|| InodeNr(group.0 * self.inodes_per_group + index.0 + 1))
    }

    /// The location of inode `index` of a group, in the table that starts at `table`.
    #[must_use]
    pub fn inode_place(&self, table: PhysBlock, index: GroupOffset) -> BytePlace {
        let per_block = self.inodes_per_block();
        let in_block = index.0 % per_block;
        BytePlace {
            block: PhysBlock(table.0.saturating_add((index.0 / per_block).into())),
            offset_bytes: in_block as usize * self.inode_size_bytes(),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most 64 KiB")]
    fn block_size_bytes_u32(&self) -> u32 {
        self.block_size.bytes() as u32
    }
}

/// Whether `number` is a power of `root`, 1 excluded.
fn is_power(number: u32, root: u32) -> bool {
    let mut rest = number;
    while rest > 1 && rest.is_multiple_of(root) {
        rest /= root;
    }
    rest == 1 && number > 1
}

/// The first power of `root` above `number`, 1 included.
fn next_power(root: u32, number: u32) -> Option<u32> {
    let powers = std::iter::successors(Some(1u32), |power| power.checked_mul(root));
    powers.into_iter().find(|&power| power > number)
}

#[cfg(test)]
mod tests;
