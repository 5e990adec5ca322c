//! **Purpose.** `fourscore mkfs`: makes an empty file system, with mke2fs's options.
//!
//! **Not here.** What the options mean and whether they go together: the library's `format`.
//!
//! **Model.** Everything that could be wrong is found before a byte is written: options, size,
//! what the device holds, who uses it. Only then is the device opened for writing.

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
use target::{Kind, Place};

/// Sizes taken from a device are rounded down to this, as mke2fs does.
const PAGE_BYTES: u64 = 4096;

/// `mkfs`
#[derive(Debug, Args)]
pub(crate) struct Mkfs {
    /// Image file or block device, with @OFFSET for a partition
    image: ImageSpec,
    /// Size with K, M, G or T, or in blocks (of 1 KiB without -b) [default: all there is]
    size: Option<String>,
    /// Operating system it is made for
    #[arg(short = 'o', value_name = "OS")]
    creator_os: Option<String>,
    /// Shows what would be made, and makes nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Prints nothing
    #[arg(short = 'q')]
    quiet: bool,
    /// Prints more
    #[arg(short = 'v')]
    verbose: bool,
    /// Overwrites what is there, even if it is in use
    #[arg(short = 'F')]
    force: bool,
    /// Writes around the host's page cache
    #[arg(short = 'D')]
    direct: bool,
    /// Fills it with a directory or a tar archive (plain, gzip or zstd; `-` is standard input)
    #[arg(short = 'd', value_name = "SOURCE")]
    source: Option<OsString>,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    not_done: NotDone,
}

/// What a file system is like, as mke2fs spells it.
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
    /// Bytes of space for each inode
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
    /// Directory it counts as last mounted on
    #[arg(short = 'M', value_name = "DIR")]
    last_mounted: Option<OsString>,
    /// Percent of the blocks reserved for the super-user
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved_percent: Option<f64>,
    /// Number of inodes
    #[arg(short = 'N', value_name = "INODES")]
    inodes: Option<u64>,
    /// Features to set, or with ^ in front to clear
    #[arg(short = 'O', value_name = "FEATURES", allow_hyphen_values = true)]
    features: Vec<String>,
    /// Extended options, as in mke2fs(8)
    #[arg(short = 'E', value_name = "OPTIONS")]
    extended: Vec<String>,
    /// What to do on errors: continue, remount-ro, panic
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

/// A name of mke2fs under which this command does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramName {
    Mke2fs,
    Ext2,
    Ext3,
    Ext4,
}

impl ProgramName {
    /// From the first argument of the command line.
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

/// Options of mke2fs that are known only to say that they are not done here.
#[derive(Debug, Args)]
struct NotDone {
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
    /// The type that the name of the program stands for, unless one is given.
    pub(crate) fn set_default_type(&mut self, program: ProgramName) {
        let has_journal = self.format.with_journal || !self.format.journal.is_empty();
        let name = match program {
            ProgramName::Mke2fs if has_journal => "ext3",
            ProgramName::Mke2fs | ProgramName::Ext2 => "ext2",
            ProgramName::Ext3 => "ext3",
            ProgramName::Ext4 => "ext4",
        };
        let fs_type = &mut self.format.fs_type;
        fs_type.get_or_insert_with(|| name.to_owned());
    }

    /// Names the first option that mke2fs has and this has not.
    fn refuse_what_is_not_done(&self) -> Result<()> {
        let not_done = &self.not_done;
        let options = [
            (not_done.check > 0, "-c", "does not look for bad blocks"),
            (
                not_done.bad_blocks.is_some(),
                "-l",
                "does not go around bad blocks",
            ),
            (
                not_done.superblock_only,
                "-S",
                "does not rewrite superblocks of lost file systems",
            ),
            (
                not_done.undo.is_some(),
                "-z",
                "does not keep what it overwrites",
            ),
            (not_done.raid.is_some(), "-R", "takes these as -E"),
            (not_done.keep, "-K", "takes this as -E nodiscard"),
            (
                not_done.sparse.is_some(),
                "-s",
                "takes this as -O sparse_super",
            ),
        ];
        match options.into_iter().find(|(given, ..)| *given) {
            Some((_, option, why)) => Err(Failure::usage(option, format!("mkfs {why}"))),
            None => Ok(()),
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Mkfs) -> Result<()> {
    args.refuse_what_is_not_done()?;
    let path = args.image.path.as_path();
    let name = path.display().to_string();
    let mut options = args.format.options().map_err(told)?;
    let creator_os = args.creator_os.as_deref().map(creator_os).transpose();
    options.creator_os = creator_os.map_err(told)?;
    let offset = args.image.offset_bytes.saturating_add(options.offset_bytes);
    let target = Place::look_at(path, &name)?;
    let asked = match &args.size {
        None => None,
        Some(text) => Some(parse_size("SIZE", text, unit_bytes(&options)).map_err(told)?),
    };
    let len_bytes = match asked {
        Some(bytes) => bytes,
        None => target.rest_bytes(offset, &name)? & !(PAGE_BYTES - 1),
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
    let profile = profile().map_err(told)?;
    if let Some(source) = args.source.as_ref().filter(|_| overwrites) {
        return fill(args, source, options, &profile, len_bytes);
    }
    let plan = if options.is_journal_device().map_err(told)? {
        let plan = JournalDeviceLayout::new(&options, &profile, len_bytes);
        Planned::Journal(Box::new(plan.map_err(told)?))
    } else {
        let plan = Layout::new(&options, &profile, len_bytes);
        Planned::FileSystem(Box::new(plan.map_err(told)?))
    };
    plan.tell(args)?;
    if args.dry_run {
        return Ok(());
    }
    let end = offset
        .checked_add(len_bytes)
        .ok_or_else(|| Failure::usage("SIZE", "a file system from that offset on has no end"))?;
    let target = target.open(path, &name, &(offset..end), opening(args))?;
    if let (Some(journal), Planned::FileSystem(plan)) = (&journal, &plan) {
        journal.add_user(plan.superblock().uuid())?;
    }
    plan.write(&target.window)
        .map_err(|why| Failure::new(name, why))
}

/// Makes a file system that is not empty.
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
            "an image that is filled begins at its start",
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
    let asked = options(format.clone());
    // What it holds was looked at, as mke2fs looks at it.
    let overwrite = match args.force {
        true => Overwrite::EvenInUse,
        false => Overwrite::AnyContent,
    };
    let target = Target::find(path, overwrite).map_err(build::refusal)?;
    let intake = build::Intake {
        options: &asked,
        sources: vec![build::source(source).as_tree()],
        target: &target,
        excludes: &excludes,
        saved: None,
        platform: None,
        threads,
    };
    let mut tree = intake.tree(&bar)?;
    if Path::new(source).is_dir() {
        // As mke2fs has it: the root has the attributes of the source, but is made now and for the
        // file system. The source may be anybody's folder.
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
    match args.quiet {
        true => Ok(()),
        false => build::report(path, &summary, build::Style::Text),
    }
}

/// The time that no object may be younger than, if there is one: the variable that only sets the
/// clock does not say so.
pub(crate) fn source_date_epoch(format: &Options) -> Option<u64> {
    let has_epoch = std::env::var_os("SOURCE_DATE_EPOCH").is_some();
    format.time_seconds.filter(|_| has_epoch)
}

/// The defaults of this machine.
pub(crate) fn profile() -> std::result::Result<Profile, FormatError> {
    match std::env::var_os("MKE2FS_CONFIG") {
        Some(file) => Profile::read(file.as_ref()),
        None => Profile::system(),
    }
}

/// How a device that will be written is opened.
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

/// What will be made.
enum Planned {
    FileSystem(Box<Layout>),
    /// The journal of other file systems (`-O journal_dev`).
    Journal(Box<JournalDeviceLayout>),
}

impl Planned {
    fn tell(&self, args: &Mkfs) -> Result<()> {
        if let Self::FileSystem(plan) = self
            && plan.is_too_small_for_a_journal()
        {
            crate::failure::say("the file system is too small for a journal and has none");
        }
        if args.quiet && !args.dry_run {
            return Ok(());
        }
        let text = match self {
            Self::FileSystem(plan) if args.verbose => plan.verbose_report().to_string(),
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

/// The journal of `-J device=`, a block device that other options leave alone.
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
            let failure = Failure::new(&name, "is not a block device, as the kernel needs it");
            return Err(failure.advise("attach an image file with losetup"));
        }
        let options = if args.dry_run {
            DeviceOptions::default()
        } else {
            opening(args)
        };
        let device = open_path(path, options).map_err(|why| Failure::new(&name, why))?;
        // The kernel's numbers of devices that fit the 32 bits of the superblock.
        let number = u32::try_from(metadata.rdev())
            .map_err(|_| Failure::new(&name, "has a device number of over 32 bits"))?;
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

/// Unit of a size without suffix: the block size where one was given.
fn unit_bytes(options: &Options) -> u32 {
    match options.block_size {
        Some(BlockSizeWish::Exactly(size)) => 1 << size.bits(),
        _ => 1024,
    }
}

/// An option that is wrong is what the message begins with.
pub(crate) fn told(error: FormatError) -> Failure {
    match error {
        FormatError::Option { option, why } => Failure::usage(option, why),
        other => Failure::new("mkfs", other),
    }
}

impl FormatArgs {
    /// The options as the library takes them.
    pub(crate) fn options(&self) -> std::result::Result<Options, FormatError> {
        let bytes = |option: &str, text: &Option<String>| {
            let parsed = text.as_ref().map(|text| parse_size(option, text, 1));
            let number = parsed.transpose()?.map(u32::try_from).transpose();
            number.map_err(|_| wrong(option, "is over 4 GiB"))
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

/// The time builds that must be reproducible ask for.
fn time_seconds() -> std::result::Result<Option<u64>, FormatError> {
    for variable in ["SOURCE_DATE_EPOCH", "E2FSPROGS_FAKE_TIME"] {
        if let Ok(text) = std::env::var(variable) {
            let seconds = text.parse();
            let why = |_| wrong(variable, format!("{text} is not a number of seconds"));
            return seconds.map(Some).map_err(why);
        }
    }
    Ok(None)
}

/// What the MMP block says about who made it.
fn mmp_names(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    let device = path.file_name().unwrap_or(path.as_os_str());
    (host, device.as_bytes().to_vec())
}
