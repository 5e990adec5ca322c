//! **Purpose.** The options of the user, and the profile for those that are not given.

use fourscore_ondisk::superblock::CreatorOs;

use crate::error::{FormatError, FormatResult};
use crate::options::{Choice, INODE_RATIO, Options};
use crate::profile::Profile;

/// The options of the user, and the profile for those that are not given.
pub(super) struct Wishes<'a> {
    pub(super) options: Options,
    pub(super) profile: &'a Profile,
    /// The sections of the profile that apply.
    pub(super) types: Vec<String>,
    pub(super) revision: u32,
}

impl<'a> Wishes<'a> {
    /// Checks each option alone, and finds the sections for a file system of `len_bytes`.
    pub(super) fn new(
        options: &Options,
        profile: &'a Profile,
        len_bytes: u64,
    ) -> FormatResult<Self> {
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

    /// Takes extended options from the sections of the profile where the user gave none.
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

    /// The value of `name` in the profile.
    pub(super) fn string(&self, name: &str) -> Option<&str> {
        self.profile.string(&self.types, name)
    }

    /// The same as a number.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.profile.number(&self.types, name)
    }

    /// The same as a size that is not zero.
    pub(super) fn size(&self, name: &str) -> Option<u32> {
        let found = u32::try_from(self.number(name)?).ok();
        found.filter(|&size| size > 0)
    }

    /// The option, else the value of `name` in the profile, else `usual`.
    pub(super) fn chosen(&self, asked: Option<Choice>, name: &str, usual: bool) -> bool {
        match asked {
            Some(choice) => choice.is_yes(),
            None => self.profile.choice(&self.types, name).unwrap_or(usual),
        }
    }

    /// Whether the journal keeps its old content.
    pub(super) fn is_lazy_journal(&self) -> bool {
        self.chosen(self.options.lazy_journal_init, "lazy_journal_init", false)
    }

    /// Whether the device is discarded.
    pub(super) fn discards(&self) -> bool {
        self.chosen(self.options.discard, "discard", true)
    }
}

/// Checks each option without regard to the others.
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
        return wrong("-J device", "the journal was not opened".to_owned());
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

/// Takes extended options from `below` where `options` have none.
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
