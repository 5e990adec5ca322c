//! **Purpose.** `fourscore mkfs`: makes an empty file system, with the options of mke2fs.
//!
//! **Not here.** The meaning of the options and their valid combinations: the library's `format`.
//!
//! **Model.** The options, the size, the content of the device and its users are checked before the
//! device is opened for writing.

mod target;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use fourscore_block::{Caching, DeviceOptions, FileDevice, Sharing, Window, open_path};
use fourscore_build::source::Excludes;
use fourscore_build::{Meta, NodeId, Overwrite, Target};
use fourscore_mkfs::{
    BlockSizeWish, ExternalJournal, FormatError, JournalDeviceLayout, Layout, OldContent, Options,
    Profile, parse_size, parse_uuid,
};
use fourscore_ondisk::superblock::{CreatorOs, ErrorPolicy};
use fourscore_ondisk::{BlockSize, Timestamp};
use uuid::Uuid;

use crate::build;
use crate::failure::{Failure, Result};
use crate::image::ImageSpec;
use crate::output::Stdout;
use crate::verbosity::{self, Verbosity};
use target::{Destination, Kind};

/// The size of a device is rounded down to a multiple of this, as in mke2fs.
const PAGE_BYTES: u64 = 4096;

/// `mkfs`
#[derive(Debug, Args)]
pub(crate) struct Mkfs {
    /// Image file or block device, with @OFFSET for a partition
    image: ImageSpec,
    /// Size with K, M, G or T, or in blocks (of 1 KiB without -b) [default: the whole device]
    size: Option<String>,
    /// Creator operating system
    #[arg(short = 'o', value_name = "OS")]
    creator_os: Option<String>,
    /// Shows what would be made and writes nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Overwrites the content of the device, even if it is in use
    #[arg(short = 'F')]
    force: bool,
    /// Writes with direct I/O
    #[arg(short = 'D')]
    direct: bool,
    /// Fills the file system from a directory or a tar archive (plain, gzip or zstd; `-` is
    /// standard input)
    #[arg(short = 'd', value_name = "SOURCE")]
    source: Option<OsString>,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    unsupported: Unsupported,
}

/// The properties of a file system, in the spelling of mke2fs.
#[derive(Clone, Debug, Args)]
pub(crate) struct FormatArgs {
    /// Block size in bytes; a negative number is a lower limit
    #[arg(short = 'b', value_name = "BYTES", allow_hyphen_values = true)]
    block_size: Option<String>,
    /// Cluster size in bytes, with the feature bigalloc
    #[arg(short = 'C', value_name = "BYTES")]
    cluster_size: Option<String>,
    /// Blocks (with bigalloc clusters) in a group
    #[arg(short = 'g', value_name = "BLOCKS")]
    blocks_per_group: Option<u32>,
    /// Groups in a flex group
    #[arg(short = 'G', value_name = "GROUPS")]
    groups_per_flex: Option<u32>,
    /// Bytes per inode
    #[arg(short = 'i', value_name = "BYTES")]
    inode_ratio: Option<String>,
    /// Inode size in bytes
    #[arg(short = 'I', value_name = "BYTES")]
    inode_size: Option<u32>,
    /// Makes a journal
    #[arg(short = 'j')]
    with_journal: bool,
    /// Journal: size=MIB, fast_commit_size=KIB, location=BLOCK, or device=DEVICE
    #[arg(short = 'J', value_name = "OPTIONS")]
    journal: Vec<String>,
    /// Label, at most 16 bytes
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<OsString>,
    /// Directory on which it was last mounted
    #[arg(short = 'M', value_name = "DIR")]
    last_mounted: Option<OsString>,
    /// Percent of the blocks reserved for the super-user
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved_percent: Option<f64>,
    /// Number of inodes
    #[arg(short = 'N', value_name = "INODES")]
    inodes: Option<u64>,
    /// Features to set, or to clear with a leading ^
    #[arg(short = 'O', value_name = "FEATURES", allow_hyphen_values = true)]
    features: Vec<String>,
    /// Extended options, as in mke2fs(8)
    #[arg(short = 'E', value_name = "OPTIONS")]
    extended: Vec<String>,
    /// Behavior on errors: continue, remount-ro, panic
    #[arg(short = 'e', value_name = "POLICY")]
    errors: Option<String>,
    /// Revision: 0 or 1
    #[arg(short = 'r', value_name = "REVISION")]
    revision: Option<u32>,
    /// ext2, ext3 or ext4 [default: ext4]
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// Usage types of mke2fs.conf, separated by commas [default: by size]
    #[arg(short = 'T', value_name = "TYPES")]
    usage: Option<String>,
    /// UUID, or clear, random, time
    #[arg(short = 'U', value_name = "UUID")]
    uuid: Option<String>,
}

/// A name of mke2fs under which this command was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramName {
    Mke2fs,
    Ext2,
    Ext3,
    Ext4,
}

impl ProgramName {
    /// The name in the first argument of the command line.
    pub(crate) fn of(argument: &std::ffi::OsStr) -> Option<Self> {
        match Path::new(argument).file_name()?.to_str()? {
            "mke2fs" => Some(Self::Mke2fs),
            "mkfs.ext2" => Some(Self::Ext2),
            "mkfs.ext3" => Some(Self::Ext3),
            "mkfs.ext4" => Some(Self::Ext4),
            _ => None,
        }
    }
}

/// Options of mke2fs that are not supported; they are defined for the error message.
#[derive(Debug, Args)]
struct Unsupported {
    #[arg(short = 'c', hide = true, action = clap::ArgAction::Count)]
    check: u8,
    #[arg(short = 'l', hide = true)]
    bad_blocks: Option<OsString>,
    #[arg(short = 'S', hide = true)]
    superblock_only: bool,
    #[arg(short = 'z', hide = true)]
    undo: Option<OsString>,
    #[arg(short = 'R', hide = true)]
    raid: Option<OsString>,
    #[arg(short = 'K', hide = true)]
    keep: bool,
    #[arg(short = 's', hide = true)]
    sparse: Option<OsString>,
}

impl Mkfs {
    /// Sets the type for the name of the program, unless `-t` gives one.
    pub(crate) fn set_default_type(&mut self, program: ProgramName) {
        // As in mke2fs, the place of a journal alone does not ask for one.
        let mut journal = Options::default();
        let mut texts = self.format.journal.iter();
        let is_read = texts.all(|text| journal.add_journal(text).is_ok());
        let is_sized = journal.journal.size_mib.is_some_and(|mib| mib > 0);
        let has_journal =
            self.format.with_journal || (is_read && (is_sized || journal.journal_device.is_some()));
        let name = match program {
            ProgramName::Mke2fs if has_journal => "ext3",
            ProgramName::Mke2fs | ProgramName::Ext2 => "ext2",
            ProgramName::Ext3 => "ext3",
            ProgramName::Ext4 => "ext4",
        };
        let fs_type = &mut self.format.fs_type;
        fs_type.get_or_insert_with(|| name.to_owned());
    }

    /// Returns an error for the first option that is not supported.
    fn refuse_unsupported(&self) -> Result<()> {
        let given = &self.unsupported;
        let options = [
            (given.check > 0, "-c", "does not search for bad blocks"),
            (
                given.bad_blocks.is_some(),
                "-l",
                "does not take a list of bad blocks",
            ),
            (
                given.superblock_only,
                "-S",
                "does not rewrite only superblocks and group descriptors",
            ),
            (given.undo.is_some(), "-z", "does not write an undo file"),
            (given.raid.is_some(), "-R", "takes RAID options with -E"),
            (given.keep, "-K", "takes this option as -E nodiscard"),
            (
                given.sparse.is_some(),
                "-s",
                "takes this option as -O sparse_super",
            ),
        ];
        match options.into_iter().find(|(given, ..)| *given) {
            Some((_, option, why)) => Err(Failure::usage(option, format!("mkfs {why}"))),
            None => Ok(()),
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Mkfs, verbosity: Verbosity) -> Result<()> {
    args.refuse_unsupported()?;
    let path = args.image.path.as_path();
    let name = path.display().to_string();
    let mut options = args.format.options().map_err(format_failure)?;
    let creator_os = args.creator_os.as_deref().map(creator_os).transpose();
    options.creator_os = creator_os.map_err(format_failure)?;
    let offset = args.image.offset_bytes.saturating_add(options.offset_bytes);
    let target = Destination::inspect(path, &name)?;
    let given = match &args.size {
        None => None,
        Some(text) => Some(parse_size("SIZE", text, unit_bytes(&options)).map_err(format_failure)?),
    };
    let part = args.image.len_bytes;
    let part = part.map(|len| len.saturating_sub(options.offset_bytes));
    let len_bytes = match (given, part) {
        (Some(bytes), Some(part)) if bytes > part => {
            let why = format!("is larger than the partition, which has {part} bytes");
            return Err(Failure::usage("SIZE", why));
        }
        (Some(bytes), _) => bytes,
        (None, Some(part)) => part & !(PAGE_BYTES - 1),
        (None, None) => target.rest_bytes(offset, &name)? & !(PAGE_BYTES - 1),
    };
    options.old_content = match target.kind {
        _ if options.old_content == OldContent::AllZero => OldContent::AllZero,
        Kind::Missing => OldContent::AllZero,
        Kind::Image => OldContent::ZeroAfterDiscard,
        Kind::BlockDevice => OldContent::Unknown,
    };
    options.mmp_names = mmp_names(path);
    let overwrites = !args.dry_run;
    if overwrites && !args.force {
        target.check_unused(path, &name)?;
        target.check_empty(path, &name, offset)?;
    }
    let journal = match &options.journal_device {
        Some(device) => Some(Journal::open(device, args)?),
        None => None,
    };
    options.external_journal = journal.as_ref().map(|journal| journal.facts);
    let profile = profile().map_err(format_failure)?;
    if let Some(source) = args.source.as_ref().filter(|_| overwrites) {
        return fill(args, source, options, &profile, len_bytes);
    }
    let plan = if options.is_journal_device().map_err(format_failure)? {
        let plan = JournalDeviceLayout::new(&options, &profile, len_bytes);
        Planned::Journal(Box::new(plan.map_err(format_failure)?))
    } else {
        let plan = Layout::new(&options, &profile, len_bytes);
        Planned::FileSystem(Box::new(plan.map_err(format_failure)?))
    };
    plan.print(args, verbosity)?;
    if args.dry_run {
        return Ok(());
    }
    let end = offset
        .checked_add(len_bytes)
        .ok_or_else(|| Failure::usage("SIZE", "offset and size together are over 16 EiB"))?;
    let target = target.open(path, &name, &(offset..end), opening(args))?;
    if let (Some(journal), Planned::FileSystem(plan)) = (&journal, &plan) {
        journal.add_user(plan.superblock().uuid())?;
    }
    plan.write(&target.window)
        .map_err(|why| Failure::new(name, why))
}

/// Makes a file system with the content of a source.
fn fill(
    args: &Mkfs,
    source: &OsString,
    mut format: Options,
    profile: &Profile,
    len_bytes: u64,
) -> Result<()> {
    let path = args.image.path.as_path();
    if args.image.offset_bytes.saturating_add(format.offset_bytes) != 0 {
        return Err(Failure::usage(
            "-d",
            "cannot fill a file system at an offset; use build -o IMAGE@OFFSET",
        ));
    }
    let excludes = Excludes::default();
    let threads = crate::threads(None);
    let bar = build::Bar::new();
    let options = |format: Options| build::Options {
        source_date_epoch: source_date_epoch(&format),
        format,
        profile: profile.clone(),
        size: build::Size::Bytes(len_bytes),
        threads: Some(threads),
        ..build::Options::new()
    };
    let build_options = options(format.clone());
    // Its content has been checked, as mke2fs does.
    let overwrite = match args.force {
        true => Overwrite::EvenInUse,
        false => Overwrite::AnyContent,
    };
    let target = Target::find(path, overwrite).map_err(build::refusal)?;
    let intake = build::Intake {
        options: &build_options,
        sources: vec![build::source(source).as_tree()],
        target: &target,
        excludes: &excludes,
        saved: None,
        platform: None,
        threads,
    };
    let mut tree = intake.tree(&bar)?;
    if Path::new(source).is_dir() {
        // As in mke2fs, the root has the attributes of the source. Owner, mode and times are those
        // of a new file system, since the source is any directory.
        let now = || SystemTime::now().duration_since(UNIX_EPOCH);
        let made = format.time_seconds.or_else(|| Some(now().ok()?.as_secs()));
        format.time_seconds = made;
        let made = i64::try_from(made.unwrap_or_default()).unwrap_or(i64::MAX);
        let time = Timestamp::new(made, 0).unwrap_or_default();
        let owner = format.root_owner.unwrap_or_default();
        let root = Meta {
            permissions: 0o755,
            uid: owner.uid,
            gid: owner.gid,
            atime: time,
            mtime: time,
            ctime: time,
            ..tree.meta(NodeId::ROOT)
        };
        tree.set_meta(NodeId::ROOT, &root);
    }
    let interrupt = build::Interrupt::install()?;
    let summary = build::make(&options(format), tree, &target, &interrupt, bar)?;
    match verbosity::is_quiet() {
        true => Ok(()),
        false => build::report(path, &summary, build::Style::Text),
    }
}

/// The upper limit of all times, if `SOURCE_DATE_EPOCH` is set. `E2FSPROGS_FAKE_TIME` sets the
/// clock only.
pub(crate) fn source_date_epoch(format: &Options) -> Option<u64> {
    let has_epoch = std::env::var_os("SOURCE_DATE_EPOCH").is_some();
    format.time_seconds.filter(|_| has_epoch)
}

/// The defaults in mke2fs.conf of this machine.
pub(crate) fn profile() -> std::result::Result<Profile, FormatError> {
    match std::env::var_os("MKE2FS_CONFIG") {
        Some(file) => Profile::read(file.as_ref()),
        None => Profile::system(),
    }
}

/// The options of opening a device for writing.
fn opening(args: &Mkfs) -> DeviceOptions {
    DeviceOptions {
        sharing: match args.force {
            true => Sharing::Unlocked,
            false => Sharing::OneWriter,
        },
        caching: match args.direct {
            true => Caching::Direct,
            false => Caching::HostCached,
        },
        ..DeviceOptions::read_write()
    }
}

/// The plan of what is made.
enum Planned {
    FileSystem(Box<Layout>),
    /// An external journal (`-O journal_dev`).
    Journal(Box<JournalDeviceLayout>),
}

impl Planned {
    fn print(&self, args: &Mkfs, verbosity: Verbosity) -> Result<()> {
        if let Self::FileSystem(plan) = self
            && plan.is_too_small_for_a_journal()
        {
            crate::failure::message("the file system is too small for a journal and gets none");
        }
        if verbosity::is_quiet() && !args.dry_run {
            return Ok(());
        }
        let text = match self {
            Self::FileSystem(plan) if verbosity.is_verbose() => plan.verbose_report().to_string(),
            Self::FileSystem(plan) => plan.report().to_string(),
            Self::Journal(plan) => plan.to_string(),
        };
        let mut out = Stdout::open()?;
        out.write(text.as_bytes())?;
        out.flush()
    }

    fn write(&self, device: &Window) -> std::result::Result<(), FormatError> {
        match self {
            Self::FileSystem(plan) => plan.write(device),
            Self::Journal(plan) => plan.write(device),
        }
    }
}

/// The external journal of `-J device=`.
struct Journal {
    name: String,
    device: FileDevice,
    facts: ExternalJournal,
}

impl Journal {
    fn open(path: &Path, args: &Mkfs) -> Result<Self> {
        let name = path.display().to_string();
        let metadata = fs::metadata(path).map_err(|why| Failure::new(&name, why))?;
        if !metadata.file_type().is_block_device() {
            let failure = Failure::new(
                &name,
                "is not a block device, which the kernel needs for a journal",
            );
            return Err(failure.advise("attach an image file to a loop device with losetup"));
        }
        let options = if args.dry_run {
            DeviceOptions::default()
        } else {
            opening(args)
        };
        let device = open_path(path, options).map_err(|why| Failure::new(&name, why))?;
        // The superblock has 32 bits for the device number.
        let number = u32::try_from(metadata.rdev())
            .map_err(|_| Failure::new(&name, "has a device number of more than 32 bits"))?;
        let facts = ExternalJournal::read(&device, number);
        let facts = facts.map_err(|why| Failure::new(&name, why))?;
        Ok(Self {
            name,
            device,
            facts,
        })
    }

    fn add_user(&self, user: Uuid) -> Result<()> {
        let added = self.facts.add_user(&self.device, user);
        added.map_err(|why| Failure::new(&self.name, why))
    }
}

/// Unit of a size without suffix: the block size, if one is given.
fn unit_bytes(options: &Options) -> u32 {
    match options.block_size {
        Some(BlockSizeWish::Exactly(size)) => 1 << size.bits(),
        _ => 1024,
    }
}

/// Converts an error of the library. The message about a wrong option begins with the option.
pub(crate) fn format_failure(error: FormatError) -> Failure {
    match error {
        FormatError::Option { option, why } => Failure::usage(option, why),
        other => Failure::new("mkfs", other),
    }
}

impl FormatArgs {
    /// The options of the library.
    pub(crate) fn options(&self) -> std::result::Result<Options, FormatError> {
        let bytes = |option: &str, text: &Option<String>| {
            let parsed = text.as_ref().map(|text| parse_size(option, text, 1));
            let number = parsed.transpose()?.map(u32::try_from).transpose();
            number.map_err(|_| wrong(option, "is more than 4 GiB"))
        };
        let mut options = Options {
            fs_type: self.fs_type.clone(),
            usage: self.usage.clone(),
            features: (!self.features.is_empty()).then(|| self.features.join(",")),
            block_size: self.block_size.as_deref().map(block_size).transpose()?,
            cluster_size_bytes: bytes("-C", &self.cluster_size)?,
            blocks_per_group: self.blocks_per_group,
            groups_per_flex: self.groups_per_flex,
            inode_ratio_bytes: bytes("-i", &self.inode_ratio)?,
            inodes: self.inodes,
            inode_size_bytes: self.inode_size,
            label: self
                .label
                .as_ref()
                .map_or(Vec::new(), |text| text.as_bytes().to_vec()),
            last_mounted: self
                .last_mounted
                .as_ref()
                .map_or(Vec::new(), |text| text.as_bytes().to_vec()),
            reserved_percent: self.reserved_percent,
            errors: self.errors.as_deref().map(error_policy).transpose()?,
            revision: self.revision,
            with_journal: self.with_journal,
            time_seconds: time_seconds()?,
            ..Options::default()
        };
        if let Some(text) = &self.uuid {
            options.uuid = parse_uuid("-U", text)?;
        }
        for text in &self.journal {
            options.add_journal(text)?;
        }
        for text in &self.extended {
            options.add_extended(text)?;
        }
        Ok(options)
    }
}

fn wrong(option: &str, why: impl Into<String>) -> FormatError {
    FormatError::Option {
        option: option.to_owned(),
        why: why.into(),
    }
}

fn block_size(text: &str) -> std::result::Result<BlockSizeWish, FormatError> {
    let (digits, wish): (_, fn(BlockSize) -> BlockSizeWish) = match text.strip_prefix('-') {
        Some(digits) => (digits, BlockSizeWish::AtLeast),
        None => (text, BlockSizeWish::Exactly),
    };
    let bytes = parse_size("-b", digits, 1)?;
    let log = bytes.is_power_of_two().then(|| bytes.trailing_zeros());
    let size = log.and_then(|log| BlockSize::from_log(log.checked_sub(10)?));
    let why = || format!("{text} is not a block size (a power of 2 from 1024 to 65536)");
    size.map(wish).ok_or_else(|| wrong("-b", why()))
}

fn error_policy(text: &str) -> std::result::Result<ErrorPolicy, FormatError> {
    let why = || format!("{text} is not continue, remount-ro or panic");
    ErrorPolicy::named(text).ok_or_else(|| wrong("-e", why()))
}

fn creator_os(text: &str) -> std::result::Result<CreatorOs, FormatError> {
    match text.to_ascii_lowercase().as_str() {
        "linux" | "0" => Ok(CreatorOs::Linux),
        "hurd" | "gnu" | "1" => Ok(CreatorOs::Hurd),
        "masix" | "2" => Ok(CreatorOs::Masix),
        "freebsd" | "3" => Ok(CreatorOs::FreeBsd),
        "lites" | "4" => Ok(CreatorOs::Lites),
        _ => Err(wrong(
            "-o",
            format!("{text} is not linux, hurd, freebsd or lites"),
        )),
    }
}

/// The time for reproducible builds, from the environment.
pub(crate) fn time_seconds() -> std::result::Result<Option<u64>, FormatError> {
    for variable in ["SOURCE_DATE_EPOCH", "E2FSPROGS_FAKE_TIME"] {
        if let Ok(text) = std::env::var(variable) {
            let seconds = text.parse();
            let why = |_| wrong(variable, format!("{text} is not a number of seconds"));
            return seconds.map(Some).map_err(why);
        }
    }
    Ok(None)
}

/// Host name and device name for the MMP block.
fn mmp_names(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    let device = path.file_name().unwrap_or(path.as_os_str());
    (host, device.as_bytes().to_vec())
}
