//! **Purpose.** From wishes, profile and size to parameters that go together.
//!
//! **Not here.** What follows from the parameters: counts (`sizes`) and places (`tables`,
//! `files`).
//!
//! **Model.** The rules and their order are mke2fs's, since later ones lean on earlier ones: type
//! list, features, block size, cluster size, inode ratio, extended options, inode size, counts.

use fourscore_ondisk::BlockSize;
use fourscore_ondisk::features::{Compat, FeatureSet, Incompat, RoCompat};
use fourscore_ondisk::superblock::{CreatorOs, DefaultMountOpts, ErrorPolicy};

use super::error::{FormatError, FormatResult};
use super::options::{BlockSizeWish, INODE_RATIO, JournalOptions, Options, QuotaTypes};
use super::profile::Profile;
use super::text::edit_features;

/// The page size mke2fs rounds to and `blocksize = -1` stands for.
const PAGE_BYTES: u64 = 4096;
const GOOD_OLD_INODE_SIZE: u32 = 128;

/// What all later steps start from.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub(super) options: Options,
    pub(super) features: FeatureSet,
    pub(super) mount_opts: DefaultMountOpts,
    pub(super) block_size: BlockSize,
    pub(super) cluster_log: u32,
    pub(super) blocks: u64,
    pub(super) reserved_blocks: u64,
    pub(super) inodes: u32,
    pub(super) inode_size_bytes: u16,
    pub(super) desc_size_bytes: u16,
    pub(super) log_groups_per_flex: u8,
    pub(super) reserved_gdt_blocks: u16,
    pub(super) backup_superblocks: u8,
    pub(super) packed: bool,
    pub(super) lazy_itables: bool,
    pub(super) lazy_journal: bool,
    pub(super) discard: bool,
    pub(super) quota_types: QuotaTypes,
    pub(super) journal: JournalOptions,
    pub(super) errors: ErrorPolicy,
    pub(super) revision: u32,
    pub(super) hash_version: u8,
    pub(super) periodic_check: bool,
}

/// Brings wishes and profile together for a file system of `len_bytes`.
pub(super) fn resolve(
    options: &Options,
    profile: &Profile,
    len_bytes: u64,
) -> FormatResult<Parameters> {
    let mut options = options.clone();
    check_alone(&options)?;
    let types = type_list(&options, profile, len_bytes)?;
    take_type_options(&mut options, profile, &types)?;
    let revision = options.revision.unwrap_or(1);
    let (mut features, asked) = features(&options, profile, &types, revision)?;
    let block_size = block_size(&options, profile, &types)?;
    let blocks = len_bytes >> block_size.bits();
    if blocks == 0 {
        return Err(FormatError::TooSmall {
            blocks,
            block_size_bytes: block_size.bytes(),
            why: "there is no block",
        });
    }
    settle_width(&mut features, blocks, block_size)?;
    let cluster_log = cluster_log(&options, profile, &types, features, block_size)?;
    let extras = extended_features(&options, profile, &types, &mut features, asked)?;
    let inode_size = inode_size(&options, profile, &types, features, block_size, revision)?;
    check_together(&options, features, asked)?;
    let log_groups_per_flex = flex(&options, profile, &types, features)?;
    let inodes = inodes(
        &options,
        profile,
        &types,
        features,
        block_size,
        cluster_log,
        blocks,
    )?;
    check_inodes_fit(inodes, inode_size, blocks, block_size)?;
    let desc_size_bytes = desc_size(&options, features, block_size)?;
    let reserved_gdt_blocks = resize_limit(
        &options,
        &mut features,
        block_size,
        blocks,
        desc_size_bytes,
        revision,
    )?;
    let chosen = |asked: Option<crate::format::Choice>, name: &str, usual: bool| match asked {
        Some(choice) => choice.is_yes(),
        None => profile.choice(&types, name).unwrap_or(usual),
    };
    Ok(Parameters {
        mount_opts: mount_opts(profile, &types, revision)?,
        reserved_blocks: reserved_blocks(&options, profile, &types, blocks)?,
        backup_superblocks: backup_superblocks(&options, profile, &types),
        packed: chosen(options.packed_meta_blocks, "packed_meta_blocks", false),
        lazy_itables: chosen(options.lazy_itable_init, "lazy_itable_init", true),
        lazy_journal: chosen(options.lazy_journal_init, "lazy_journal_init", false),
        discard: chosen(options.discard, "discard", true),
        journal: options.journal.unwrap_or_default(),
        errors: error_policy(&options, profile, &types)?,
        hash_version: hash_version(profile.string(&types, "hash_alg")),
        periodic_check: profile
            .choice(&types, "enable_periodic_fsck")
            .unwrap_or(false),
        quota_types: extras,
        inode_size_bytes: u16::try_from(inode_size)
            .map_err(|_| FormatError::option("-I", "an inode of 64 KiB cannot be described"))?,
        options,
        features,
        block_size,
        cluster_log,
        blocks,
        inodes,
        desc_size_bytes,
        log_groups_per_flex,
        reserved_gdt_blocks,
        revision,
    })
}

/// Adds what the usage types say of extended options, where the user said nothing.
fn take_type_options(
    options: &mut Options,
    profile: &Profile,
    types: &[String],
) -> FormatResult<()> {
    for name in types {
        if let Some(text) = profile.of_type(name, "options") {
            // What the user said stays.
            let mut below = Options::default();
            below.add_extended(text)?;
            take_extended(options, &below);
        }
    }
    Ok(())
}

/// The number of a hash function, by the name the profile gives it.
fn hash_version(name: Option<&str>) -> u8 {
    match name {
        Some("legacy") => 0,
        Some("tea") => 2,
        _ => 1,
    }
}

/// Refuses tables of inodes that leave no block for anything else.
fn check_inodes_fit(
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

/// What can be wrong with an option whatever the others are.
fn check_alone(options: &Options) -> FormatResult<()> {
    let wrong = |option: &str, why: String| Err(FormatError::option(option, why));
    if let Some(blocks) = options.blocks_per_group
        && !blocks.is_multiple_of(8)
    {
        return wrong(
            "-g",
            format!("{blocks} blocks per group are no multiple of 8"),
        );
    }
    if let Some(groups) = options.groups_per_flex
        && !groups.is_power_of_two()
    {
        return wrong(
            "-G",
            format!("{groups} groups per flex group are no power of 2"),
        );
    }
    if let Some(ratio) = options.inode_ratio_bytes
        && !INODE_RATIO.contains(&ratio)
    {
        let (least, most) = (INODE_RATIO.start(), INODE_RATIO.end());
        return wrong("-i", format!("{ratio} is not from {least} to {most}"));
    }
    if let Some(percent) = options.reserved_percent
        && !(0.0..=50.0).contains(&percent)
    {
        return wrong("-m", format!("{percent} is not from 0 to 50 percent"));
    }
    if options.label.len() > 16 {
        return wrong("-L", format!("{} bytes are over 16", options.label.len()));
    }
    if options.last_mounted.len() > 64 {
        let found = options.last_mounted.len();
        return wrong("-M", format!("{found} bytes are over 64"));
    }
    if let Some(found) = options.revision.filter(|&found| found > 1) {
        return wrong("-r", format!("there is no revision {found}"));
    }
    if let Some(found) = options.backup_superblocks.filter(|&found| found > 2) {
        return wrong("-E num_backup_sb", format!("{found} is not 0, 1 or 2"));
    }
    if let (Some(stride), Some(width)) = (options.stride_blocks, options.stripe_width_blocks)
        && stride != 0
        && !width.is_multiple_of(stride)
    {
        let why = format!("{width} is no multiple of the stride {stride}");
        return wrong("-E stripe_width", why);
    }
    if options
        .stride_blocks
        .is_some_and(|found| found > u16::MAX.into())
    {
        return wrong("-E stride", "is over 65535".to_owned());
    }
    Ok(())
}

/// The sections of the profile that apply: the type, then the uses.
fn type_list(options: &Options, profile: &Profile, len_bytes: u64) -> FormatResult<Vec<String>> {
    const MIB: u64 = 1 << 20;
    let fs_type = options.fs_type.as_deref().unwrap_or("ext4");
    if fs_type != "ext2" && !profile.has_type(fs_type) {
        let why = format!("{fs_type} is not in the profile (ext2, ext3, ext4)");
        return Err(FormatError::option("-t", why));
    }
    let by_size = [
        (3 * MIB, "floppy"),
        (512 * MIB, "small"),
        (4 * MIB * MIB, "default"),
        (16 * MIB * MIB, "big"),
    ];
    let by_size = by_size.into_iter().find(|(below, _)| len_bytes < *below);
    let by_size = by_size.map_or("huge", |(_, name)| name);
    let mut types = vec![fs_type.to_owned()];
    for usage in options.usage.as_deref().unwrap_or(by_size).split(',') {
        if profile.has_type(usage) {
            types.push(usage.to_owned());
        } else if !matches!(usage, "" | "default" | "floppy" | "small" | "big" | "huge") {
            let why = format!("{usage} is not in the profile");
            return Err(FormatError::option("-T", why));
        }
    }
    if options.creator_os == Some(CreatorOs::Hurd) && profile.has_type("hurd") {
        types.push("hurd".to_owned());
    }
    Ok(types)
}

/// Takes what `below` says where `options` say nothing.
fn take_extended(options: &mut Options, below: &Options) {
    options.stride_blocks = options.stride_blocks.or(below.stride_blocks);
    options.stripe_width_blocks = options.stripe_width_blocks.or(below.stripe_width_blocks);
    options.resize = options.resize.or(below.resize);
    options.backup_superblocks = options.backup_superblocks.or(below.backup_superblocks);
    options.packed_meta_blocks = options.packed_meta_blocks.or(below.packed_meta_blocks);
    options.lazy_itable_init = options.lazy_itable_init.or(below.lazy_itable_init);
    options.lazy_journal_init = options.lazy_journal_init.or(below.lazy_journal_init);
    options.discard = options.discard.or(below.discard);
    options.quota_types = options.quota_types.or(below.quota_types);
    options.orphan_file_size = options.orphan_file_size.or(below.orphan_file_size);
    options.encoding = options.encoding.or(below.encoding);
    options.encoding_strict |= below.encoding_strict;
    options.test_fs |= below.test_fs;
}

/// All features, and those that `-O` set.
fn features(
    options: &Options,
    profile: &Profile,
    types: &[String],
    revision: u32,
) -> FormatResult<(FeatureSet, FeatureSet)> {
    let mut features = FeatureSet::default();
    if revision > 0 {
        let base = profile
            .string(types, "base_features")
            .unwrap_or("sparse_super,large_file,filetype,resize_inode,dir_index");
        edit_features(&mut features, base)?;
        for name in types {
            if let Some(text) = profile.of_type(name, "features") {
                edit_features(&mut features, text)?;
            }
        }
    }
    let hurd = options.creator_os == Some(CreatorOs::Hurd);
    let no_hurd = Incompat::FILETYPE | Incompat::EA_INODE | Incompat::CASEFOLD;
    let no_hurd_ro = RoCompat::HUGE_FILE | RoCompat::METADATA_CSUM;
    if hurd {
        features.incompat.remove(no_hurd | Incompat::CSUM_SEED);
        features.ro_compat.remove(no_hurd_ro);
    }
    let text = options.features.as_deref();
    let text = text.or_else(|| profile.string(types, "default_features"));
    let asked = edit_features(&mut features, text.unwrap_or_default())?;
    if hurd && (asked.incompat.intersects(no_hurd) || asked.ro_compat.intersects(no_hurd_ro)) {
        let why = "filetype, huge_file, metadata_csum, ea_inode and casefold are not for the Hurd";
        return Err(FormatError::option("-O", why));
    }
    if options.journal.is_some() {
        features.compat.insert(Compat::HAS_JOURNAL);
    }
    if revision == 0 && features != FeatureSet::default() {
        return Err(FormatError::option("-r", "revision 0 has no features"));
    }
    Ok((features, asked))
}

fn block_size(options: &Options, profile: &Profile, types: &[String]) -> FormatResult<BlockSize> {
    if let Some(BlockSizeWish::Exactly(size)) = options.block_size {
        return Ok(size);
    }
    let found = match profile.number(types, "blocksize").unwrap_or(4096) {
        -1 => PAGE_BYTES.cast_signed(),
        found => found,
    };
    let size = block_size_of(u64::try_from(found).unwrap_or(0)).ok_or_else(|| {
        FormatError::option(
            "blocksize in the profile",
            format!("{found} is not a block size"),
        )
    })?;
    Ok(match options.block_size {
        Some(BlockSizeWish::AtLeast(least)) => size.max(least),
        _ => size,
    })
}

/// The block size of so many bytes, if there is one.
pub(super) fn block_size_of(bytes: u64) -> Option<BlockSize> {
    let log = bytes.is_power_of_two().then(|| bytes.trailing_zeros())?;
    BlockSize::from_log(log.checked_sub(10)?)
}

/// More than 2^32 blocks need `64bit`, and cannot have a resize inode.
fn settle_width(features: &mut FeatureSet, blocks: u64, block_size: BlockSize) -> FormatResult<()> {
    if blocks > u64::from(u32::MAX) {
        if !features.incompat.contains(Incompat::BIT64) {
            let why = format!(
                "{blocks} blocks of {} bytes need the feature 64bit",
                block_size.bytes()
            );
            return Err(FormatError::option("-O", why));
        }
        features.compat.remove(Compat::RESIZE_INODE);
    }
    if blocks >= 1 << 48 {
        let why = format!("{blocks} blocks are more than extents can reach (2^48)");
        return Err(FormatError::option("size", why));
    }
    Ok(())
}

fn cluster_log(
    options: &Options,
    profile: &Profile,
    types: &[String],
    features: FeatureSet,
    block_size: BlockSize,
) -> FormatResult<u32> {
    if !features.ro_compat.contains(RoCompat::BIGALLOC) {
        return match options.cluster_size_bytes {
            Some(_) => Err(FormatError::option("-C", "needs the feature bigalloc (-O)")),
            None => Ok(0),
        };
    }
    let bytes = match options.cluster_size_bytes {
        Some(bytes) => u64::from(bytes),
        None => profile
            .number(types, "cluster_size")
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

/// Features that extended options bring, and the quota files to make.
fn extended_features(
    options: &Options,
    profile: &Profile,
    types: &[String],
    features: &mut FeatureSet,
    asked: FeatureSet,
) -> FormatResult<QuotaTypes> {
    let mut quota = options.quota_types.unwrap_or_default();
    if quota.project {
        features.ro_compat.insert(RoCompat::PROJECT);
    }
    quota.project |= features.ro_compat.contains(RoCompat::PROJECT);
    if options.encoding.is_some() || profile.string(types, "encoding").is_some() {
        features.incompat.insert(Incompat::CASEFOLD);
    } else if options.encoding_strict && !features.incompat.contains(Incompat::CASEFOLD) {
        let why = "needs an encoding (-E encoding=utf8)";
        return Err(FormatError::option("-E encoding_flags", why));
    }
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        features.ro_compat.remove(RoCompat::GDT_CSUM);
    } else if !asked.incompat.contains(Incompat::CSUM_SEED) {
        // It came with the profile, not from the user who left metadata_csum out.
        features.incompat.remove(Incompat::CSUM_SEED);
    }
    if !features.compat.contains(Compat::HAS_JOURNAL) && !asked.compat.contains(Compat::ORPHAN_FILE)
    {
        features.compat.remove(Compat::ORPHAN_FILE);
    }
    Ok(quota)
}

fn inode_size(
    options: &Options,
    profile: &Profile,
    types: &[String],
    features: FeatureSet,
    block_size: BlockSize,
    revision: u32,
) -> FormatResult<u32> {
    if revision == 0 {
        return match options.inode_size_bytes {
            Some(size) if size != GOOD_OLD_INODE_SIZE => Err(FormatError::option(
                "-I",
                "inodes of revision 0 have 128 bytes",
            )),
            _ => Ok(GOOD_OLD_INODE_SIZE),
        };
    }
    let usual = || {
        let found = profile.number(types, "inode_size");
        found
            .and_then(|size| u32::try_from(size).ok())
            .filter(|&size| size > 0)
    };
    let project = features.ro_compat.contains(RoCompat::PROJECT);
    let size = match (options.inode_size_bytes, usual()) {
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

/// Features that need or exclude each other.
fn check_together(options: &Options, features: FeatureSet, asked: FeatureSet) -> FormatResult<()> {
    let FeatureSet {
        compat,
        incompat,
        ro_compat,
    } = features;
    let extents = incompat.contains(Incompat::EXTENTS);
    let contradictions = [
        (
            incompat.contains(Incompat::BIT64) && !extents,
            "64bit needs extent",
        ),
        (
            ro_compat.contains(RoCompat::BIGALLOC) && !extents,
            "bigalloc needs extent",
        ),
        (
            incompat.contains(Incompat::META_BG) && compat.contains(Compat::RESIZE_INODE),
            "meta_bg and resize_inode exclude each other",
        ),
        (
            compat.contains(Compat::RESIZE_INODE) && !ro_compat.contains(RoCompat::SPARSE_SUPER),
            "resize_inode needs sparse_super",
        ),
        (
            incompat.contains(Incompat::CSUM_SEED) && !ro_compat.contains(RoCompat::METADATA_CSUM),
            "metadata_csum_seed needs metadata_csum",
        ),
        (
            asked.compat.contains(Compat::ORPHAN_FILE) && !compat.contains(Compat::HAS_JOURNAL),
            "orphan_file needs has_journal",
        ),
    ];
    if let Some((_, why)) = contradictions.into_iter().find(|&(broken, _)| broken) {
        return Err(FormatError::option("-O", why));
    }
    if options.quota_types.is_some() && !ro_compat.contains(RoCompat::QUOTA) {
        return Err(FormatError::option(
            "-E quotatype",
            "needs the feature quota (-O)",
        ));
    }
    if options.orphan_file_size.is_some() && !compat.contains(Compat::ORPHAN_FILE) {
        let why = "needs the feature orphan_file (-O)";
        return Err(FormatError::option("-E orphan_file_size", why));
    }
    Ok(())
}

fn flex(
    options: &Options,
    profile: &Profile,
    types: &[String],
    features: FeatureSet,
) -> FormatResult<u8> {
    if !features.incompat.contains(Incompat::FLEX_BG) {
        return match options.groups_per_flex {
            Some(_) => Err(FormatError::option("-G", "needs the feature flex_bg (-O)")),
            None => Ok(0),
        };
    }
    let usual = || {
        let found = profile.number(types, "flex_bg_size");
        found
            .and_then(|size| u32::try_from(size).ok())
            .filter(|&size| size > 0)
    };
    let size = options.groups_per_flex.or_else(usual).unwrap_or(16);
    // log2 of a 32-bit number is below 32.
    Ok(u8::try_from(size.ilog2()).unwrap_or(0))
}

fn inodes(
    options: &Options,
    profile: &Profile,
    types: &[String],
    features: FeatureSet,
    block_size: BlockSize,
    cluster_log: u32,
    blocks: u64,
) -> FormatResult<u32> {
    if let Some(wanted) = options.inodes.filter(|&wanted| wanted > 0) {
        return u32::try_from(wanted)
            .map_err(|_| FormatError::option("-N", format!("{wanted} inodes are over 2^32 - 1")));
    }
    let ratio = match options.inode_ratio_bytes {
        Some(ratio) => u64::from(ratio),
        None => {
            let usual = profile.number(types, "inode_ratio").unwrap_or(8192);
            let cluster_bytes = 1u64 << (block_size.bits() + cluster_log);
            u64::try_from(usual).unwrap_or(0).max(cluster_bytes)
        }
    };
    // Below 2^64: the whole size in bytes comes from a number of 64 bits.
    let found = (blocks << block_size.bits()) / ratio;
    match u32::try_from(found) {
        Ok(found) => Ok(found),
        Err(_) if features.incompat.contains(Incompat::BIT64) => Ok(u32::MAX),
        Err(_) => {
            let why = format!("{found} inodes are over 2^32 - 1; take a higher ratio");
            Err(FormatError::option("-i", why))
        }
    }
}

fn desc_size(options: &Options, features: FeatureSet, block_size: BlockSize) -> FormatResult<u16> {
    let wide = features.incompat.contains(Incompat::BIT64);
    match options.desc_size_bytes {
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

/// Descriptor blocks to reserve for growth up to the size asked for; 0 leaves it to the usual.
fn resize_limit(
    options: &Options,
    features: &mut FeatureSet,
    block_size: BlockSize,
    blocks: u64,
    desc_size_bytes: u16,
    revision: u32,
) -> FormatResult<u16> {
    let Some(limit) = options.resize else {
        return Ok(0);
    };
    let wrong = |why: &str| Err(FormatError::option("-E resize", why));
    let limit = limit.blocks(block_size);
    if limit <= blocks {
        return wrong("the limit is not above the size");
    }
    if revision == 0 {
        return wrong("revision 0 cannot grow while mounted");
    }
    if features.incompat.contains(Incompat::META_BG) {
        return wrong("meta_bg has no blocks reserved for growth");
    }
    let per_group = match options.blocks_per_group {
        Some(blocks) => u64::from(blocks),
        None => 8 << block_size.bits(),
    };
    let per_block = (1u64 << block_size.bits()) / u64::from(desc_size_bytes);
    let table = |blocks: u64| blocks.div_ceil(per_group).div_ceil(per_block);
    let most = (1u64 << block_size.bits()) / 4;
    let more = (table(limit) - table(blocks)).min(most);
    if more > 0 {
        features.compat.insert(Compat::RESIZE_INODE);
        if !features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return wrong("needs the feature sparse_super (-O)");
        }
    }
    Ok(u16::try_from(more).unwrap_or(u16::MAX))
}

fn mount_opts(
    profile: &Profile,
    types: &[String],
    revision: u32,
) -> FormatResult<DefaultMountOpts> {
    let mut opts = DefaultMountOpts::empty();
    if revision == 0 {
        return Ok(opts);
    }
    let text = profile.string(types, "default_mntopts");
    for word in text.unwrap_or("acl,user_xattr").split([',', ' ']) {
        let (name, set) = match word.strip_prefix(['^', '-']) {
            Some(name) => (name, false),
            None => (word, true),
        };
        let opt = match name {
            "" => continue,
            "debug" => DefaultMountOpts::DEBUG,
            "bsdgroups" => DefaultMountOpts::BSDGROUPS,
            "user_xattr" => DefaultMountOpts::XATTR_USER,
            "acl" => DefaultMountOpts::ACL,
            "uid16" => DefaultMountOpts::UID16,
            "journal_data" => DefaultMountOpts::JMODE_DATA,
            "journal_data_ordered" => DefaultMountOpts::JMODE_ORDERED,
            "journal_data_writeback" => DefaultMountOpts::JMODE,
            "nobarrier" => DefaultMountOpts::NOBARRIER,
            "block_validity" => DefaultMountOpts::BLOCK_VALIDITY,
            "discard" => DefaultMountOpts::DISCARD,
            "nodelalloc" => DefaultMountOpts::NODELALLOC,
            _ => {
                let why = format!("{name} is not a mount option");
                return Err(FormatError::option("default_mntopts in the profile", why));
            }
        };
        opts.set(opt, set);
    }
    Ok(opts)
}

fn reserved_blocks(
    options: &Options,
    profile: &Profile,
    types: &[String],
    blocks: u64,
) -> FormatResult<u64> {
    let percent = match options.reserved_percent {
        Some(percent) => percent,
        None => match profile.string(types, "reserved_ratio") {
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

/// So many percent of `blocks`, in the double precision mke2fs counts with.
pub(super) fn share(percent: f64, blocks: u64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "at most half of the blocks, rounded down as mke2fs does"
    )]
    let found = (percent * blocks as f64 / 100.0) as u64;
    found
}

fn backup_superblocks(options: &Options, profile: &Profile, types: &[String]) -> u8 {
    let usual = || {
        let found = profile.number(types, "num_backup_sb");
        found.and_then(|found| u8::try_from(found).ok())
    };
    options.backup_superblocks.or_else(usual).unwrap_or(2)
}

fn error_policy(
    options: &Options,
    profile: &Profile,
    types: &[String],
) -> FormatResult<ErrorPolicy> {
    if let Some(policy) = options.errors {
        return Ok(policy);
    }
    match profile.string(types, "errors") {
        None | Some("continue") => Ok(ErrorPolicy::Continue),
        Some("remount-ro") => Ok(ErrorPolicy::RemountReadOnly),
        Some("panic") => Ok(ErrorPolicy::Panic),
        Some(other) => Err(FormatError::option(
            "errors in the profile",
            format!("{other} is not continue, remount-ro or panic"),
        )),
    }
}
