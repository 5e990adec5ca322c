//! **Purpose.** Determines the sizes of blocks, clusters, inodes and descriptors, and the numbers
//! of blocks and inodes.

use fourscore_ondisk::BlockSize;
use fourscore_ondisk::features::{Compat, FeatureSet, Incompat, RoCompat};

use super::wishes::Wishes;
use crate::error::{FormatError, FormatResult};
use crate::options::{Amount, BlockSizeWish, JournalOptions};

/// The page size mke2fs rounds to and `blocksize = -1` stands for.
const PAGE_BYTES: u64 = 4096;
const GOOD_OLD_INODE_SIZE: u32 = 128;
/// log2 of the bytes for each inode in a file system that is smaller than the ratio asked for.
const DEFAULT_RATIO_LOG: u32 = 12;

impl Wishes<'_> {
    /// The block size: that of the options, else of the journal device, else of the profile.
    pub(super) fn block_size(&self) -> FormatResult<BlockSize> {
        let asked = self.options.block_size;
        if let Some(journal) = &self.options.external_journal {
            let size = journal.block_size();
            return match asked {
                Some(BlockSizeWish::Exactly(other)) if other != size => Err(FormatError::option(
                    "-b",
                    "the journal's device has other blocks",
                )),
                Some(BlockSizeWish::AtLeast(least)) if least > size => Err(FormatError::option(
                    "-b",
                    "the journal's device has smaller blocks",
                )),
                _ => Ok(size),
            };
        }
        if let Some(BlockSizeWish::Exactly(size)) = asked {
            return Ok(size);
        }
        let found = match self.number("blocksize").unwrap_or(4096) {
            -1 => PAGE_BYTES.cast_signed(),
            found => found,
        };
        let size = block_size_of(u64::try_from(found).unwrap_or(0)).ok_or_else(|| {
            FormatError::option(
                "blocksize in the profile",
                format!("{found} is not a block size"),
            )
        })?;
        Ok(match asked {
            Some(BlockSizeWish::AtLeast(least)) => size.max(least),
            _ => size,
        })
    }

    /// The blocks that fit into `len_bytes`: at least one.
    pub(super) fn whole_blocks(&self, block_size: BlockSize, len_bytes: u64) -> FormatResult<u64> {
        match len_bytes >> block_size.bits() {
            0 => Err(FormatError::TooSmall {
                blocks: 0,
                block_size_bytes: block_size.bytes(),
                why: "there is no block",
            }),
            blocks => Ok(blocks),
        }
    }

    /// log2 of the blocks in a cluster.
    pub(super) fn cluster_log(
        &self,
        features: FeatureSet,
        block_size: BlockSize,
    ) -> FormatResult<u32> {
        let options = &self.options;
        if !features.ro_compat.contains(RoCompat::BIGALLOC) {
            return match options.cluster_size_bytes {
                Some(_) => Err(FormatError::option("-C", "needs the feature bigalloc (-O)")),
                None => Ok(0),
            };
        }
        let bytes = match options.cluster_size_bytes {
            Some(bytes) => u64::from(bytes),
            None => self
                .number("cluster_size")
                .and_then(|bytes| u64::try_from(bytes).ok())
                .unwrap_or(16 << block_size.bits()),
        };
        let log = bytes.is_power_of_two().then(|| bytes.trailing_zeros());
        match log.and_then(|log| log.checked_sub(block_size.bits())) {
            Some(log) if (2048..=512 << 20).contains(&bytes) => Ok(log),
            _ => Err(FormatError::option(
                "-C",
                format!(
                    "{bytes} is no power of 2 from the block size, {}, to 512 MiB",
                    block_size.bytes()
                ),
            )),
        }
    }

    /// The size of an inode in bytes.
    pub(super) fn inode_size(
        &self,
        features: FeatureSet,
        block_size: BlockSize,
    ) -> FormatResult<u32> {
        let options = &self.options;
        if self.revision == 0 {
            return match options.inode_size_bytes {
                Some(size) if size != 0 && size != GOOD_OLD_INODE_SIZE => Err(FormatError::option(
                    "-I",
                    "inodes of revision 0 have 128 bytes",
                )),
                _ => Ok(GOOD_OLD_INODE_SIZE),
            };
        }
        let project = features.ro_compat.contains(RoCompat::PROJECT);
        let asked = options.inode_size_bytes.filter(|&size| size > 0);
        let size = match (asked, self.size("inode_size")) {
            (Some(size), _) => size,
            (None, Some(size)) if !project || size > 2 * GOOD_OLD_INODE_SIZE => size,
            (None, _) if project => 2 * GOOD_OLD_INODE_SIZE,
            _ => GOOD_OLD_INODE_SIZE,
        };
        let wrong = |why: String| Err(FormatError::option("-I", why));
        let most = block_size.bytes();
        if size < GOOD_OLD_INODE_SIZE || size as usize > most || !size.is_power_of_two() {
            return wrong(format!(
                "{size} is no power of 2 from 128 to the block size, {most}"
            ));
        }
        let needs_more = [
            (project, "project"),
            (
                features.incompat.contains(Incompat::INLINE_DATA),
                "inline_data",
            ),
        ];
        for (set, name) in needs_more {
            if set && size == GOOD_OLD_INODE_SIZE {
                return wrong(format!("128 bytes are too few for the feature {name}"));
            }
        }
        Ok(size)
    }

    /// log2 of the groups in a flex group.
    pub(super) fn flex(&self, features: FeatureSet) -> FormatResult<u8> {
        let options = &self.options;
        if !features.incompat.contains(Incompat::FLEX_BG) {
            return match options.groups_per_flex {
                Some(_) => Err(FormatError::option("-G", "needs the feature flex_bg (-O)")),
                None => Ok(0),
            };
        }
        let size = options
            .groups_per_flex
            .or_else(|| self.size("flex_bg_size"))
            .unwrap_or(16);
        // log2 of a 32-bit number is below 32.
        Ok(u8::try_from(size.ilog2()).unwrap_or(0))
    }

    /// The number of inodes.
    pub(super) fn inodes(
        &self,
        features: FeatureSet,
        block_size: BlockSize,
        cluster_log: u32,
        blocks: u64,
    ) -> FormatResult<u32> {
        let options = &self.options;
        if let Some(wanted) = options.inodes.filter(|&wanted| wanted > 0) {
            return u32::try_from(wanted).map_err(|_| {
                FormatError::option("-N", format!("{wanted} inodes are over 2^32 - 1"))
            });
        }
        let ratio = match options.inode_ratio_bytes {
            Some(ratio) => u64::from(ratio),
            None => {
                let usual = self.number("inode_ratio").unwrap_or(8192);
                let cluster_bytes = 1u64 << (block_size.bits() + cluster_log);
                u64::try_from(usual).unwrap_or(0).max(cluster_bytes)
            }
        };
        // Below 2^64: the whole size in bytes comes from a number of 64 bits.
        let found = (blocks << block_size.bits()) / ratio;
        match u32::try_from(found) {
            // The file system is smaller than the ratio: one inode for each 4096 bytes, or for each
            // larger block.
            Ok(0) => {
                let few = blocks >> DEFAULT_RATIO_LOG.saturating_sub(block_size.bits());
                Ok(u32::try_from(few).unwrap_or(u32::MAX))
            }
            Ok(found) => Ok(found),
            Err(_) if features.incompat.contains(Incompat::BIT64) => Ok(u32::MAX),
            Err(_) => {
                let why = format!("{found} inodes are over 2^32 - 1; take a higher ratio");
                Err(FormatError::option("-i", why))
            }
        }
    }

    /// The size of a group descriptor in bytes.
    pub(super) fn desc_size(
        &self,
        features: FeatureSet,
        block_size: BlockSize,
    ) -> FormatResult<u16> {
        let wide = features.incompat.contains(Incompat::BIT64);
        match self.options.desc_size_bytes.filter(|&size| size > 0) {
            None if wide => Ok(64),
            None => Ok(32),
            Some(_) if !wide => Err(FormatError::option(
                "-E desc_size",
                "needs the feature 64bit (-O)",
            )),
            Some(size)
                if size.is_power_of_two()
                    && (64..=1024).contains(&size)
                    && usize::from(size) <= block_size.bytes() =>
            {
                Ok(size)
            }
            Some(size) => Err(FormatError::option(
                "-E desc_size",
                format!("{size} is no power of 2 from 64 to 1024"),
            )),
        }
    }

    /// Descriptor blocks to reserve for growth up to the size in the options; 0 for the default.
    pub(super) fn resize_limit(
        &self,
        features: &mut FeatureSet,
        block_size: BlockSize,
        blocks: u64,
        desc_size_bytes: u16,
    ) -> FormatResult<u16> {
        let options = &self.options;
        let Some(limit) = options.resize else {
            return Ok(0);
        };
        let wrong = |why: &str| Err(FormatError::option("-E resize", why));
        let limit = limit.blocks(block_size);
        if limit <= blocks {
            return wrong("the limit is not above the size");
        }
        let per_group = match options.blocks_per_group.filter(|&blocks| blocks > 0) {
            Some(blocks) => u64::from(blocks),
            None => 8 << block_size.bits(),
        };
        let per_block = (1u64 << block_size.bits()) / u64::from(desc_size_bytes);
        let table = |blocks: u64| blocks.div_ceil(per_group).div_ceil(per_block);
        let most = (1u64 << block_size.bits()) / 4;
        let more = (table(limit) - table(blocks)).min(most);
        if more > 0 {
            if self.revision == 0 {
                return wrong("revision 0 cannot grow while mounted");
            }
            if features.incompat.contains(Incompat::META_BG) {
                return wrong("meta_bg has no blocks reserved for growth");
            }
            features.compat.insert(Compat::RESIZE_INODE);
            if !features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
                return wrong("needs the feature sparse_super (-O)");
            }
        }
        Ok(u16::try_from(more).unwrap_or(u16::MAX))
    }

    /// Blocks reserved for the super-user.
    pub(super) fn reserved_blocks(&self, blocks: u64) -> FormatResult<u64> {
        let percent = match self.options.reserved_percent {
            Some(percent) => percent,
            None => match self.string("reserved_ratio") {
                None => 5.0,
                Some(text) => text
                    .parse()
                    .ok()
                    .filter(|percent| (0.0..=50.0).contains(percent))
                    .ok_or_else(|| {
                        let why = format!("{text} is not from 0 to 50 percent");
                        FormatError::option("reserved_ratio in the profile", why)
                    })?,
            },
        };
        Ok(share(percent, blocks))
    }

    /// The number of backup superblocks with `sparse_super2`.
    pub(super) fn backup_superblocks(&self) -> u8 {
        let usual = || {
            let found = self.number("num_backup_sb");
            found.and_then(|found| u8::try_from(found).ok())
        };
        self.options.backup_superblocks.or_else(usual).unwrap_or(2)
    }

    /// `-J`, with the location of the profile where the options have none.
    pub(super) fn journal(&self, packed: bool) -> FormatResult<JournalOptions> {
        let mut journal = self.options.journal;
        if let (None, Some(text)) = (journal.location, self.string("journal_location")) {
            journal.location = Some(Amount::parse("journal_location in the profile", text)?);
        }
        if packed {
            // At the start with the other metadata, whatever location is given.
            journal.location = Some(Amount::Blocks(0));
        }
        Ok(journal)
    }
}

/// The block size of this number of bytes, if there is one.
fn block_size_of(bytes: u64) -> Option<BlockSize> {
    let log = bytes.is_power_of_two().then(|| bytes.trailing_zeros())?;
    BlockSize::from_log(log.checked_sub(10)?)
}

/// Refuses inode tables that leave no block for anything else.
pub(super) fn check_inodes_fit(
    inodes: u32,
    inode_size: u32,
    blocks: u64,
    block_size: BlockSize,
) -> FormatResult<()> {
    if u128::from(inodes) * u128::from(inode_size) >= u128::from(blocks) << block_size.bits() {
        return Err(FormatError::option(
            "-I, -i, -N",
            format!(
                "{inodes} inodes of {inode_size} bytes do not fit {blocks} blocks of {} bytes; \
                 take a higher ratio (-i) or fewer inodes (-N)",
                block_size.bytes()
            ),
        ));
    }
    Ok(())
}

/// `percent` of `blocks`, in double precision as mke2fs computes it.
pub(crate) fn share(percent: f64, blocks: u64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "at most half of the blocks, rounded down as mke2fs does"
    )]
    let found = (percent * blocks as f64 / 100.0) as u64;
    found
}
