//! **Purpose.** From wishes, profile and size to parameters that go together.
//!
//! **Not here.** What follows from the parameters: counts (`sizes`) and places (`tables`,
//! `files`).
//!
//! **Model.** The rules and their order are mke2fs's, since later ones lean on earlier ones: type
//! list, features, block size, cluster size, inode ratio, extended options, inode size, counts.
//!
//! | module | responsibility |
//! |---|---|
//! | `features` | which features, and whether they go together |
//! | `layout` | sizes of blocks, clusters, inodes, descriptors, and how many of them |
//! | `behaviour` | what the kernel and e2fsck are told: mount options, errors, hashes |

mod behaviour;
mod features;
mod layout;

use fourscore_ondisk::BlockSize;
use fourscore_ondisk::features::{FeatureSet, Incompat, RoCompat};
use fourscore_ondisk::superblock::{CreatorOs, DefaultMountOpts, ErrorPolicy};

use crate::error::{FormatError, FormatResult};
use crate::options::{Choice, INODE_RATIO, JournalOptions, Options, QuotaTypes};
use crate::profile::Profile;
pub(crate) use layout::share;

/// What all later steps start from.
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

/// What was asked, and the profile for everything else.
pub(crate) struct Wishes<'a> {
    pub(crate) options: Options,
    profile: &'a Profile,
    /// The sections of the profile that apply.
    types: Vec<String>,
    pub(crate) revision: u32,
}

impl<'a> Wishes<'a> {
    /// Checks each option alone, and finds the sections for a file system of `len_bytes`.
    fn new(options: &Options, profile: &'a Profile, len_bytes: u64) -> FormatResult<Self> {
        check_alone(options)?;
        let mut wishes = Self {
            options: options.clone(),
            profile,
            types: type_list(options, profile, len_bytes)?,
            revision: options.revision.unwrap_or(1),
        };
        wishes.take_type_options()?;
        Ok(wishes)
    }

    /// Adds what the usage types say of extended options, where the user said nothing.
    fn take_type_options(&mut self) -> FormatResult<()> {
        for name in &self.types {
            if self.profile.of_type(name, "make_hugefiles").is_some() {
                let why = "files are not made along with the file system here";
                return Err(FormatError::option("make_hugefiles in the profile", why));
            }
            if let Some(text) = self.profile.of_type(name, "options") {
                let mut below = Options::default();
                below.add_extended(text)?;
                take_extended(&mut self.options, &below);
            }
        }
        Ok(())
    }

    /// What the profile says of `name`.
    fn string(&self, name: &str) -> Option<&str> {
        self.profile.string(&self.types, name)
    }

    /// The same as a number.
    fn number(&self, name: &str) -> Option<i64> {
        self.profile.number(&self.types, name)
    }

    /// The same as a size that is not zero.
    fn size(&self, name: &str) -> Option<u32> {
        let found = u32::try_from(self.number(name)?).ok();
        found.filter(|&size| size > 0)
    }

    /// What was asked, else what the profile says of `name`, else `usual`.
    fn chosen(&self, asked: Option<Choice>, name: &str, usual: bool) -> bool {
        match asked {
            Some(choice) => choice.is_yes(),
            None => self.profile.choice(&self.types, name).unwrap_or(usual),
        }
    }

    fn is_lazy_journal(&self) -> bool {
        self.chosen(self.options.lazy_journal_init, "lazy_journal_init", false)
    }

    fn discards(&self) -> bool {
        self.chosen(self.options.discard, "discard", true)
    }
}

/// Brings wishes and profile together for a file system of `len_bytes`.
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
    layout::check_inodes_fit(inodes, inode_size, blocks, block_size)?;
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

/// What a journal on a device of its own is made from.
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

/// Brings wishes and profile together for a journal that fills a device of `len_bytes`.
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
        return Err(FormatError::option("-J", "a journal has no journal"));
    }
    let block_size = wishes.block_size()?;
    let blocks = wishes.whole_blocks(block_size, len_bytes)?;
    let mount_opts = wishes.mount_opts()?;
    // From here on a type of its own applies, whatever was asked.
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
    if options.journal_device.is_some() && options.external_journal.is_none() {
        return wrong("-J device", "the journal has not been looked at".to_owned());
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
