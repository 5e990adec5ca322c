//! **Purpose.** Computes the counts of a file system from its parameters: groups, inodes per group,
//! reserved descriptor blocks, and how many blocks of the device are used.
//!
//! **Model.** The counts depend on each other, so they are computed in rounds: too many inodes per
//! group make groups smaller; a last group too short for its own metadata is cut off, which
//! changes the number of groups.
//!
//! **Invariants.** A round starts only with fewer blocks or smaller groups than the one before,
//! so the rounds end.
//!
//! **References.** The rules are those of libext2fs, since the results must be equal.

use fourscore_ondisk::features::{Compat, FeatureSet, Incompat, RoCompat};

use crate::error::{FormatError, FormatResult};
use crate::resolve::{Parameters, share};

/// The first inode that is not reserved.
pub(crate) const FIRST_INO: u32 = 11;
/// Group descriptors count free blocks in 16 bits.
const MOST_CLUSTERS_PER_GROUP: u64 = (1 << 16) - 8;
/// Blocks that a short last group must have beyond its own metadata; a shorter one is cut off.
const LEAST_USEFUL_BLOCKS: u64 = 50;

/// The counts of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) features: FeatureSet,
    pub(crate) blocks: u64,
    pub(crate) reserved_blocks: u64,
    pub(crate) first_data_block: u64,
    pub(crate) blocks_per_group: u64,
    pub(crate) groups: u32,
    pub(crate) desc_blocks: u64,
    pub(crate) inodes_per_group: u32,
    pub(crate) inode_table_blocks: u64,
    pub(crate) reserved_gdt_blocks: u64,
    pub(crate) backup_groups: [u32; 2],
}

/// Computes the counts.
pub(crate) fn settle(p: &Parameters) -> FormatResult<Sizes> {
    let mask = (1u64 << p.cluster_log) - 1;
    let mut sizes = Sizes {
        features: p.features,
        blocks: p.blocks & !mask,
        reserved_blocks: p.reserved_blocks,
        first_data_block: u64::from(p.block_size.bytes() == 1024 && p.cluster_log == 0),
        blocks_per_group: blocks_per_group(p)?,
        groups: 0,
        desc_blocks: 0,
        inodes_per_group: 0,
        inode_table_blocks: 0,
        reserved_gdt_blocks: 0,
        backup_groups: [0; 2],
    };
    loop {
        match sizes.round(p)? {
            Round::Settled => break,
            Round::SmallerGroups => {
                sizes.blocks_per_group -= 8;
                sizes.blocks = p.blocks;
            }
            Round::CutOff(blocks) => {
                sizes.blocks -= blocks;
                #[expect(clippy::cast_precision_loss, reason = "a percentage")]
                let percent = 100.0 * p.reserved_blocks as f64 / p.blocks as f64;
                sizes.reserved_blocks = share(percent, sizes.blocks);
            }
        }
    }
    sizes.backup_groups = sizes.backups(p);
    Ok(sizes)
}

/// How a round ended.
enum Round {
    Settled,
    SmallerGroups,
    CutOff(u64),
}

fn blocks_per_group(p: &Parameters) -> FormatResult<u64> {
    let bytes = p.block_size.bytes() as u64;
    let wish = p.options.blocks_per_group.filter(|&blocks| blocks > 0);
    let wish = wish.map(u64::from);
    if let Some(found) = wish.filter(|wish| !(256..=8 * bytes).contains(wish)) {
        let most = 8 * bytes;
        let why = format!("{found} is not from 256 to {most}, the bits of a bitmap");
        return Err(FormatError::option("-g", why));
    }
    // A group must stay below 2^32 blocks.
    let usual = if p.block_size.bits() + p.cluster_log < 27 {
        8 * bytes
    } else {
        8 * (bytes - 1)
    };
    let units = wish.unwrap_or(usual).min(MOST_CLUSTERS_PER_GROUP);
    let blocks = units << p.cluster_log;
    if u32::try_from(blocks).is_err() {
        let why = "clusters so large make groups of over 2^32 blocks; take fewer (-g)";
        return Err(FormatError::option("-C", why));
    }
    Ok(blocks)
}

impl Sizes {
    fn round(&mut self, p: &Parameters) -> FormatResult<Round> {
        let block_bytes = p.block_size.bytes() as u64;
        let too_small = |blocks: u64, why| FormatError::TooSmall {
            blocks,
            block_size_bytes: p.block_size.bytes(),
            why,
        };
        let room = self.blocks.saturating_sub(self.first_data_block);
        let groups = room.div_ceil(self.blocks_per_group);
        if groups == 0 {
            return Err(too_small(self.blocks, "there is no block group"));
        }
        self.groups = u32::try_from(groups)
            .map_err(|_| FormatError::option("-g", "over 2^32 groups; take larger groups"))?;
        let descs_per_block = block_bytes / u64::from(p.desc_size_bytes);
        self.desc_blocks = groups.div_ceil(descs_per_block);
        if !self.settle_inodes(p)? {
            return Ok(Round::SmallerGroups);
        }
        let inodes = u64::from(self.inodes_per_group) * groups;
        if inodes <= FIRST_INO.into() {
            return Err(too_small(
                self.blocks,
                "there are too few inodes for lost+found",
            ));
        }
        self.settle_descriptors(p, block_bytes / 4);

        let table = if self.features.incompat.contains(Incompat::META_BG) {
            1
        } else {
            self.desc_blocks
        };
        let most = 3 + self.inode_table_blocks + self.reserved_gdt_blocks + table;
        if most > self.blocks_per_group {
            let why = "the inodes and descriptors of a group do not fit into it";
            return Err(FormatError::option("-N, -i, -g", why));
        }
        let mut needed = 2 + self.inode_table_blocks;
        if self.last_has_super(p) {
            needed += 1 + self.desc_blocks + self.reserved_gdt_blocks;
        }
        let rest = room % self.blocks_per_group;
        if groups == 1 && rest != 0 && rest < needed {
            return Err(too_small(
                self.blocks,
                "the metadata of one group does not fit",
            ));
        }
        if rest != 0 && rest < needed + LEAST_USEFUL_BLOCKS {
            if groups == 1 {
                return Err(too_small(
                    self.blocks,
                    "the metadata leaves next to nothing",
                ));
            }
            return Ok(Round::CutOff(rest));
        }
        Ok(Round::Settled)
    }

    /// Computes the inodes per group. Returns whether a bitmap can hold them.
    fn settle_inodes(&mut self, p: &Parameters) -> FormatResult<bool> {
        let block_bytes = p.block_size.bytes() as u64;
        let inode_bytes = u64::from(p.inode_size_bytes);
        let groups = u64::from(self.groups);
        let wanted = u64::from(p.inodes.max(FIRST_INO + 1));
        let mut per_group = wanted.div_ceil(groups);
        if per_group > 8 * block_bytes {
            if self.features.ro_compat.contains(RoCompat::BIGALLOC) || self.blocks_per_group < 256 {
                let why = format!("{per_group} inodes in a group are more than a bitmap has bits");
                return Err(FormatError::option("-N, -i", why));
            }
            return Ok(false);
        }
        per_group = per_group.min((1 << 16) - block_bytes / inode_bytes);
        loop {
            // Whole blocks, and whole bytes of the bitmap.
            let filled = (per_group * inode_bytes).div_ceil(block_bytes) * block_bytes;
            let rounded = (filled / inode_bytes).max(8) & !7;
            if rounded * groups <= u64::from(u32::MAX) {
                self.inodes_per_group = u32::try_from(rounded).unwrap_or(u32::MAX);
                self.inode_table_blocks = (rounded * inode_bytes).div_ceil(block_bytes);
                return Ok(true);
            }
            per_group = match per_group.checked_sub(1) {
                Some(fewer) if fewer > 0 => fewer,
                _ => {
                    let why = "8 inodes in each group are over 2^32; take larger groups";
                    return Err(FormatError::option("-g", why));
                }
            };
        }
    }

    /// Computes the descriptor blocks that are reserved for growth. If they would take most of a
    /// group, the file system gets `meta_bg` and none are reserved.
    fn settle_descriptors(&mut self, p: &Parameters, pointers_per_block: u64) {
        self.reserved_gdt_blocks = 0;
        if self.features.compat.contains(Compat::RESIZE_INODE) {
            self.reserved_gdt_blocks = match p.reserved_gdt_blocks {
                0 => self.usual_reserve(p, pointers_per_block),
                asked => asked.into(),
            };
        }
        if self.reserved_gdt_blocks + self.desc_blocks > self.blocks_per_group * 3 / 4 {
            self.features.incompat.insert(Incompat::META_BG);
            self.features.compat.remove(Compat::RESIZE_INODE);
            self.reserved_gdt_blocks = 0;
        }
    }

    /// Descriptor blocks to reserve by default: enough to grow to 1024 times the size, but not past
    /// 2^32 blocks, and not more than one block can point to.
    fn usual_reserve(&self, p: &Parameters, pointers_per_block: u64) -> u64 {
        let limit = u64::from(u32::MAX);
        let most = if self.blocks < limit / 1024 {
            self.blocks * 1024
        } else {
            limit
        };
        let groups = (most - self.first_data_block).div_ceil(self.blocks_per_group);
        let descs_per_block = p.block_size.bytes() as u64 / u64::from(p.desc_size_bytes);
        let table = groups.div_ceil(descs_per_block);
        table
            .saturating_sub(self.desc_blocks)
            .min(pointers_per_block)
    }

    fn last_has_super(&self, p: &Parameters) -> bool {
        let last = self.groups - 1;
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            let at_least = if self.groups == 2 { 1 } else { 2 };
            return p.backup_superblocks >= at_least;
        }
        if last <= 1 || !self.features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].into_iter().any(|root: u32| {
            let mut power = root;
            while power < last {
                power = power.saturating_mul(root);
            }
            power == last
        })
    }

    /// The two groups of `sparse_super2`: the second and the last, in order and without duplicates.
    fn backups(&self, p: &Parameters) -> [u32; 2] {
        if !self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return [0; 2];
        }
        let last = self.groups - 1;
        let first = if p.backup_superblocks >= 1 {
            last.min(1)
        } else {
            0
        };
        let second = if p.backup_superblocks >= 2 { last } else { 0 };
        let second = if second == first { 0 } else { second };
        [first.min(second), first.max(second)]
    }
}
