//! **Purpose.** `fourscore mkfs`: makes an empty file system, with mke2fs's options.
//!
//! **Not here.** What the options mean and whether they go together: the library's `format`.
//!
//! **Model.** Everything that could be wrong is found before a byte is written: options, size,
//! what the device holds, who uses it. Only then is the device opened for writing.

use std::fs::{self, File, FileType};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use clap::Args;
use fourscore::format::{
    BlockSizeWish, FormatError, OldContent, Options, Plan, Profile, find_signature, parse_size,
    parse_uuid,
};
use fourscore_block::{Access, BlockDevice, DeviceOptions, Sharing, Window, open_path};
use fourscore_ondisk::BlockSize;
use fourscore_ondisk::superblock::{CreatorOs, ErrorPolicy};
use fourscore_sync::Arc;

use crate::failure::{Failure, Result};
use crate::image::ImageSpec;
use crate::output::Stdout;

/// Sizes taken from a device are rounded down to this, as mke2fs does.
const PAGE_BYTES: u64 = 4096;

/// `mkfs`
#[derive(Debug, Args)]
pub(crate) struct Mkfs {
    /// Image file or block device, with @OFFSET for a partition
    image: ImageSpec,
    /// Size with K, M, G or T, or in blocks (of 1 KiB without -b) [default: all there is]
    size: Option<String>,
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
    /// Journal: size=MIB, fast_commit_size=KIB, location=BLOCK
    #[arg(short = 'J', value_name = "OPTIONS")]
    journal: Vec<String>,
    /// Label, at most 16 bytes
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<std::ffi::OsString>,
    /// Directory it counts as last mounted on
    #[arg(short = 'M', value_name = "DIR")]
    last_mounted: Option<std::ffi::OsString>,
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
    /// Operating system it is made for
    #[arg(short = 'o', value_name = "OS")]
    creator_os: Option<String>,
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
}

/// Runs the verb.
pub(crate) fn run(args: &Mkfs) -> Result<()> {
    let path = args.image.path.as_path();
    let name = path.display().to_string();
    let mut options = options(args).map_err(told)?;
    let offset = args.image.offset_bytes.saturating_add(options.offset_bytes);
    let target = Target::look_at(path, &name)?;
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
    if !args.force {
        target.check_unused(path, &name)?;
        target.check_empty(path, &name, offset)?;
    }
    let profile = match std::env::var_os("MKE2FS_CONFIG") {
        Some(file) => Profile::read(file.as_ref()),
        None => Profile::system(),
    };
    let plan = Plan::new(&options, &profile.map_err(told)?, len_bytes).map_err(told)?;
    tell(args, &plan)?;
    if args.dry_run {
        return Ok(());
    }
    let window = target.open(path, &name, offset, len_bytes, args.force)?;
    plan.write(&window).map_err(|why| Failure::new(name, why))?;
    Ok(())
}

fn tell(args: &Mkfs, plan: &Plan) -> Result<()> {
    if plan.is_too_small_for_a_journal() {
        crate::failure::say("the file system is too small for a journal and has none");
    }
    if args.quiet && !args.dry_run {
        return Ok(());
    }
    let mut out = Stdout::open()?;
    let text = if args.verbose {
        plan.verbose_report().to_string()
    } else {
        plan.report().to_string()
    };
    out.write(text.as_bytes())?;
    out.flush()
}

/// Unit of a size without suffix: the block size where one was given.
fn unit_bytes(options: &Options) -> u32 {
    match options.block_size {
        Some(BlockSizeWish::Exactly(size)) => 1 << size.bits(),
        _ => 1024,
    }
}

fn told(error: FormatError) -> Failure {
    match error {
        FormatError::Option { option, why } => Failure::new(option, why),
        other => Failure::new("mkfs", other),
    }
}

/// The options of the command line.
fn options(args: &Mkfs) -> std::result::Result<Options, FormatError> {
    let bytes = |option: &str, text: &Option<String>| {
        let parsed = text.as_ref().map(|text| parse_size(option, text, 1));
        let number = parsed.transpose()?.map(u32::try_from).transpose();
        number.map_err(|_| wrong(option, "is over 4 GiB"))
    };
    let mut options = Options {
        fs_type: args.fs_type.clone(),
        usage: args.usage.clone(),
        features: (!args.features.is_empty()).then(|| args.features.join(",")),
        block_size: args.block_size.as_deref().map(block_size).transpose()?,
        cluster_size_bytes: bytes("-C", &args.cluster_size)?,
        blocks_per_group: args.blocks_per_group,
        groups_per_flex: args.groups_per_flex,
        inode_ratio_bytes: bytes("-i", &args.inode_ratio)?,
        inodes: args.inodes,
        inode_size_bytes: args.inode_size,
        label: args
            .label
            .as_ref()
            .map_or(Vec::new(), |text| text.as_bytes().to_vec()),
        last_mounted: args
            .last_mounted
            .as_ref()
            .map_or(Vec::new(), |text| text.as_bytes().to_vec()),
        reserved_percent: args.reserved_percent,
        errors: args.errors.as_deref().map(error_policy).transpose()?,
        creator_os: args.creator_os.as_deref().map(creator_os).transpose()?,
        revision: args.revision,
        time_seconds: time_seconds()?,
        ..Options::default()
    };
    if let Some(text) = &args.uuid {
        options.uuid = parse_uuid("-U", text)?;
    }
    if args.with_journal {
        options.journal = Some(options.journal.unwrap_or_default());
    }
    for text in &args.journal {
        options.add_journal(text)?;
    }
    for text in &args.extended {
        options.add_extended(text)?;
    }
    Ok(options)
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
    match text {
        "continue" => Ok(ErrorPolicy::Continue),
        "remount-ro" => Ok(ErrorPolicy::RemountReadOnly),
        "panic" => Ok(ErrorPolicy::Panic),
        _ => Err(wrong(
            "-e",
            format!("{text} is not continue, remount-ro or panic"),
        )),
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Missing,
    Image,
    BlockDevice,
}

/// Where the file system is to be.
struct Target {
    kind: Kind,
    len_bytes: u64,
}

impl Target {
    fn look_at(path: &Path, name: &str) -> Result<Self> {
        let kind_of = |kind: FileType| match kind.is_block_device() {
            true => Kind::BlockDevice,
            false => Kind::Image,
        };
        match fs::metadata(path) {
            Ok(metadata) => {
                let device = open_path(path, unlocked()).map_err(|why| Failure::new(name, why))?;
                Ok(Self {
                    kind: kind_of(metadata.file_type()),
                    len_bytes: device.len_bytes(),
                })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self {
                kind: Kind::Missing,
                len_bytes: 0,
            }),
            Err(error) => Err(Failure::new(name, error)),
        }
    }

    fn rest_bytes(&self, offset: u64, name: &str) -> Result<u64> {
        if self.kind == Kind::Missing {
            let failure = Failure::new(name, "there is no such file");
            return Err(failure.advise("give a size to have an image file made"));
        }
        match self.len_bytes.checked_sub(offset) {
            Some(rest) if rest > 0 => Ok(rest),
            _ => {
                let why = format!("ends after {} bytes, before the offset", self.len_bytes);
                Err(Failure::new(name, why))
            }
        }
    }

    /// Nobody must have it mounted, directly or through a loop device.
    fn check_unused(&self, path: &Path, name: &str) -> Result<()> {
        let Ok(real) = path.canonicalize() else {
            return Ok(());
        };
        let advice = "unmount it first, or use -F to overwrite it all the same";
        let mounts = fs::read("/proc/mounts").unwrap_or_default();
        let mounted = mounts.split(|&byte| byte == b'\n').any(|line| {
            line.split(|&byte| byte == b' ').next() == Some(real.as_os_str().as_bytes())
        });
        if self.kind == Kind::BlockDevice && mounted {
            return Err(Failure::new(name, "is mounted").advise(advice));
        }
        if self.kind == Kind::Image
            && let Some(user) = loop_device_of(&real)
        {
            let why = format!("is in use by the loop device {user}");
            return Err(Failure::new(name, why).advise(advice));
        }
        Ok(())
    }

    fn check_empty(&self, path: &Path, name: &str, offset: u64) -> Result<()> {
        if self.kind == Kind::Missing || self.len_bytes <= offset {
            return Ok(());
        }
        let in_file = |why: std::io::Error| Failure::new(name, why);
        let device: Arc<dyn BlockDevice> = Arc::new(open_path(path, unlocked()).map_err(in_file)?);
        let window = Window::from_offset(device, offset, Access::ReadOnly).map_err(in_file)?;
        match find_signature(&window).map_err(in_file)? {
            Some(found) => {
                let failure = Failure::new(name, format!("contains {found}"));
                Err(failure.advise("use -F to overwrite it"))
            }
            None => Ok(()),
        }
    }

    /// Opens the part of the device that the file system will fill; an image file grows to it.
    fn open(
        &self,
        path: &Path,
        name: &str,
        offset: u64,
        len_bytes: u64,
        force: bool,
    ) -> Result<Window> {
        let in_file = |why: std::io::Error| Failure::new(name, why);
        let end = offset.saturating_add(len_bytes);
        if self.kind != Kind::BlockDevice && self.len_bytes < end {
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path);
            file.and_then(|file| file.set_len(end)).map_err(in_file)?;
        }
        let sharing = match force {
            true => Sharing::Unlocked,
            false => Sharing::OneWriter,
        };
        let device = open_path(
            path,
            DeviceOptions {
                sharing,
                ..DeviceOptions::read_write()
            },
        );
        let device: Arc<dyn BlockDevice> = Arc::new(device.map_err(in_file)?);
        Window::new(device, offset..end, Access::ReadWrite).map_err(in_file)
    }
}

fn unlocked() -> DeviceOptions {
    DeviceOptions {
        sharing: Sharing::Unlocked,
        ..DeviceOptions::default()
    }
}

/// The loop device that has this file as its backing, if any.
fn loop_device_of(real: &Path) -> Option<String> {
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let backing = entry.path().join("loop/backing_file");
        let Ok(text) = fs::read(backing) else {
            continue;
        };
        if text.strip_suffix(b"\n").unwrap_or(&text) == real.as_os_str().as_bytes() {
            return Some(entry.file_name().to_string_lossy().into_owned());
        }
    }
    None
}
