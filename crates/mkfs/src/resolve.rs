//! **Purpose.** Determines the parameters of a file system from options, profile and size, and
//! checks that they go together.
//!
//! **Not here.** What follows from the parameters: counts (`sizes`) and places (`tables`,
//! `mapping`).
//!
//! **Model.** The rules and their order are mke2fs's, since later ones depend on earlier ones: type
//! list, features, block size, cluster size, inode ratio, extended options, inode size, counts.
//!
//! | module | responsibility |
//! |---|---|
//! | `wishes` | the options, and the profile for those that are not given |
//! | `features` | which features, and whether they go together |
//! | `geometry` | sizes of blocks, clusters, inodes, descriptors, and how many of them |
//! | `behaviour` | mount options, behaviour on errors, hash of directories |

mod behaviour;
mod features;
mod geometry;
mod wishes;

use fourscore_ondisk::BlockSize;
use fourscore_ondisk::features::{FeatureSet, Incompat, RoCompat};
use fourscore_ondisk::superblock::{DefaultMountOpts, ErrorPolicy};

use crate::error::{FormatError, FormatResult};
use crate::options::{JournalOptions, Options, QuotaTypes};
use crate::profile::Profile;
use wishes::Wishes;

pub(crate) use behaviour::mount_option;
pub(crate) use geometry::share;

/// The parameters of a file system.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub(crate) options: Options,
    pub(crate) features: FeatureSet,
    pub(crate) mount_opts: DefaultMountOpts,
    pub(crate) block_size: BlockSize,
    pub(crate) cluster_log: u32,
    pub(crate) blocks: u64,
    pub(crate) reserved_blocks: u64,
    pub(crate) inodes: u32,
    pub(crate) inode_size_bytes: u16,
    pub(crate) desc_size_bytes: u16,
    pub(crate) log_groups_per_flex: u8,
    pub(crate) reserved_gdt_blocks: u16,
    pub(crate) backup_superblocks: u8,
    pub(crate) packed: bool,
    pub(crate) lazy_itables: bool,
    pub(crate) lazy_journal: bool,
    pub(crate) discard: bool,
    pub(crate) quota_types: QuotaTypes,
    pub(crate) journal: JournalOptions,
    pub(crate) errors: ErrorPolicy,
    pub(crate) revision: u32,
    pub(crate) hash_version: u8,
    pub(crate) periodic_check: bool,
}

/// Determines the parameters of a file system on a device of `len_bytes` bytes.
pub(crate) fn resolve(
    options: &Options,
    profile: &Profile,
    len_bytes: u64,
) -> FormatResult<Parameters> {
    let wishes = Wishes::new(options, profile, len_bytes)?;
    let (mut features, asked) = wishes.features()?;
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        let why = "journal_dev makes the journal of other file systems, not a file system";
        return Err(FormatError::option("-O", why));
    }
    let block_size = wishes.block_size()?;
    let blocks = wishes.whole_blocks(block_size, len_bytes)?;
    wishes.settle_width(&mut features, blocks, block_size)?;
    let cluster_log = wishes.cluster_log(features, block_size)?;
    let quota_types = wishes.extended_features(&mut features, asked)?;
    let inode_size = wishes.inode_size(features, block_size)?;
    wishes.check_together(features, asked)?;
    let log_groups_per_flex = wishes.flex(features)?;
    let inodes = wishes.inodes(features, block_size, cluster_log, blocks)?;
    geometry::check_inodes_fit(inodes, inode_size, blocks, block_size)?;
    let desc_size_bytes = wishes.desc_size(features, block_size)?;
    let reserved_gdt_blocks =
        wishes.resize_limit(&mut features, block_size, blocks, desc_size_bytes)?;
    let packed = wishes.chosen(
        wishes.options.packed_meta_blocks,
        "packed_meta_blocks",
        false,
    );
    let lazy_itables = wishes.chosen(wishes.options.lazy_itable_init, "lazy_itable_init", true);
    Ok(Parameters {
        mount_opts: wishes.mount_opts()?,
        reserved_blocks: wishes.reserved_blocks(blocks)?,
        backup_superblocks: wishes.backup_superblocks(),
        packed,
        lazy_itables,
        lazy_journal: wishes.is_lazy_journal(),
        discard: wishes.discards(),
        journal: wishes.journal(packed)?,
        errors: wishes.error_policy()?,
        hash_version: wishes.hash_version(),
        periodic_check: wishes.chosen(None, "enable_periodic_fsck", false),
        quota_types,
        inode_size_bytes: u16::try_from(inode_size)
            .map_err(|_| FormatError::option("-I", "an inode of 64 KiB cannot be described"))?,
        features,
        block_size,
        cluster_log,
        blocks,
        inodes,
        desc_size_bytes,
        log_groups_per_flex,
        reserved_gdt_blocks,
        revision: wishes.revision,
        options: wishes.options,
    })
}

/// The parameters of a journal on a device of its own.
pub(crate) struct JournalParameters {
    pub(crate) block_size: BlockSize,
    pub(crate) blocks: u64,
    pub(crate) inode_size_bytes: u32,
    pub(crate) mount_opts: DefaultMountOpts,
    pub(crate) errors: ErrorPolicy,
    pub(crate) hash_version: u8,
    pub(crate) checksum: bool,
    pub(crate) lazy_journal: bool,
    pub(crate) discard: bool,
    pub(crate) options: Options,
}

/// Determines the parameters of a journal that fills a device of `len_bytes` bytes.
pub(crate) fn resolve_journal_device(
    options: &Options,
    profile: &Profile,
    len_bytes: u64,
) -> FormatResult<JournalParameters> {
    let mut wishes = Wishes::new(options, profile, len_bytes)?;
    let (features, _) = wishes.features()?;
    if !features.incompat.contains(Incompat::JOURNAL_DEV) {
        return Err(FormatError::option("-O", "lacks the feature journal_dev"));
    }
    if options.with_journal || options.journal != JournalOptions::default() {
        return Err(FormatError::option(
            "-J",
            "a journal device cannot have a journal",
        ));
    }
    let block_size = wishes.block_size()?;
    let blocks = wishes.whole_blocks(block_size, len_bytes)?;
    let mount_opts = wishes.mount_opts()?;
    // From here on the section `journal` of the profile applies, whatever the options are.
    wishes.types = vec!["journal".to_owned()];
    Ok(JournalParameters {
        inode_size_bytes: wishes.inode_size(FeatureSet::default(), block_size)?,
        errors: wishes.error_policy()?,
        hash_version: wishes.hash_version(),
        checksum: features.ro_compat.contains(RoCompat::METADATA_CSUM),
        lazy_journal: wishes.is_lazy_journal(),
        discard: wishes.discards(),
        block_size,
        blocks,
        mount_opts,
        options: wishes.options,
    })
}
