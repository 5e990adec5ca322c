//! **Purpose.** The argument `IMAGE[@PART]`, and opening the file system it names. PART is an
//! offset or names a partition of a disk ([`crate::partition`]).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::builder::TypedValueParser;
use fourscore::{CorruptKind, Error, Follow, Fs, MountOptions, OpenOptions, Stat};
use fourscore_block::{Access, BlockDevice, DeviceOptions, Window, open_path};
use fourscore_build::Location;
use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::jbd2::JournalError;
use fourscore_ondisk::superblock::SuperblockRejected;
use fourscore_ondisk::time::Timestamp;
use fourscore_sync::Arc;

use crate::facts::{Facts, Kind, Time};
use crate::failure::{Failure, Result};
use crate::{foreign, glob, partition, qcow2};

/// Cache of a command that reads a tree once: the metadata of some hundred thousand objects fits,
/// so that nothing is evicted.
const CACHE_BYTES: usize = 512 << 20;

/// An image file or block device, and the part of it that the file system may take.
#[derive(Clone, Debug)]
pub(crate) struct ImageSpec {
    pub(crate) path: PathBuf,
    pub(crate) offset_bytes: u64,
    /// The length of the partition; `None` if none was named.
    pub(crate) len_bytes: Option<u64>,
    /// What the user gave after the `@`: the offset, or the name of the partition.
    pub(crate) part: Option<String>,
}

/// Two are equal if they name the same part of the same path, however it is written.
impl PartialEq for ImageSpec {
    fn eq(&self, other: &Self) -> bool {
        let place = |spec: &Self| (spec.offset_bytes, spec.len_bytes);
        self.path == other.path && place(self) == place(other)
    }
}

impl Eq for ImageSpec {}

impl ImageSpec {
    /// The argument as the user gave it, for a message about the file system and not the disk.
    pub(crate) fn shown(&self) -> String {
        let path = self.path.display();
        match &self.part {
            Some(part) => format!("{path}@{part}"),
            None => path.to_string(),
        }
    }

    /// Splits at the last `@`. An existing file with an `@` in its name is accepted, unless the
    /// text after the `@` is an offset.
    pub(crate) fn parse(text: &OsStr) -> std::result::Result<Self, String> {
        let bytes = text.as_bytes();
        let whole = || Self {
            path: PathBuf::from(text),
            offset_bytes: 0,
            len_bytes: None,
            part: None,
        };
        let Some(at) = bytes.iter().rposition(|&byte| byte == b'@') else {
            return Ok(whole());
        };
        let (path, part) = (&bytes[..at], &bytes[at + 1..]);
        let path = PathBuf::from(OsStr::from_bytes(path));
        let part = std::str::from_utf8(part).unwrap_or_default();
        let has_path = !path.as_os_str().is_empty();
        if let Some(offset_bytes) = parse_offset(part).filter(|_| has_path) {
            return Ok(Self {
                path,
                offset_bytes,
                len_bytes: None,
                part: Some(part.to_owned()),
            });
        }
        if whole().path.exists() {
            return Ok(whole());
        }
        if has_path && !part.is_empty() && path.exists() {
            let range = partition::find(&path, part);
            let range = range.map_err(|why| format!("{} {why}", path.display()))?;
            return Ok(Self {
                path,
                offset_bytes: range.start,
                len_bytes: Some(range.end - range.start),
                part: Some(part.to_owned()),
            });
        }
        Err(format!(
            "'{part}' is not an offset, and there is no disk '{}' with such a partition; give a \
             number of bytes with K, M, G or T (disk.img@1M), of sectors (@2048s), or a partition \
             (@p2)",
            path.display()
        ))
    }
}

impl ImageSpec {
    /// Where the file system is stored, so that other paths to it are recognised.
    pub(crate) fn location(&self) -> io::Result<Location> {
        let end = self
            .len_bytes
            .map(|len| self.offset_bytes.saturating_add(len));
        let file = File::open(&self.path)?;
        Location::of(&file, self.offset_bytes..end.unwrap_or(u64::MAX))
    }
}

/// An open image.
pub(crate) struct Image {
    /// The name that the user gave, for messages.
    name: String,
    /// The image's file, by its path if its device is not simply a file.
    path: PathBuf,
    pub(crate) fs: Arc<Fs>,
}

impl Image {
    /// Opens the file system for reading; a dirty journal is replayed in memory.
    pub(crate) fn open(spec: &ImageSpec) -> Result<Self> {
        let device = device_to_read(spec)?;
        let options = OpenOptions::new().cache_bytes(CACHE_BYTES);
        Self::of(spec, Fs::open(device, &options))
    }

    /// As [`Image::open`], on a device in the place of the image's own.
    pub(crate) fn open_device(spec: &ImageSpec, device: Arc<dyn BlockDevice>) -> Result<Self> {
        let options = OpenOptions::new().cache_bytes(CACHE_BYTES);
        Self::of(spec, Fs::open(device, &options))
    }

    /// Opens the file system for writing; a dirty journal is replayed. The reserved blocks may be
    /// used.
    pub(crate) fn open_to_write(spec: &ImageSpec) -> Result<Self> {
        let device = device(spec, DeviceOptions::read_write(), Access::ReadWrite)?;
        Self::of(spec, Fs::mount(device, &MountOptions::new().use_reserve()))
    }

    /// As [`Image::open_to_write`], for a file that messages call `name`.
    pub(crate) fn open_named(spec: &ImageSpec, name: &str) -> Result<Self> {
        let device = device(spec, DeviceOptions::read_write(), Access::ReadWrite)?;
        let opened = Fs::mount(device, &MountOptions::new().use_reserve());
        let fs = opened.map_err(|why| match advice(&why) {
            Some(advice) => Failure::new(name, why).advise(advice),
            None => Failure::new(name, why),
        })?;
        let name = name.to_owned();
        let path = spec.path.clone();
        Ok(Self { name, path, fs })
    }

    fn of(spec: &ImageSpec, opened: fourscore::Result<Arc<Fs>>) -> Result<Self> {
        let name = spec.path.display().to_string();
        let fs = opened.map_err(|why| Self::refusal(spec, why))?;
        tracing::info!(
            image = name,
            offset_bytes = spec.offset_bytes,
            blocks = fs.geometry().blocks().0,
            block_bytes = fs.geometry().block_size().bytes(),
            "the file system is open"
        );
        let path = spec.path.clone();
        Ok(Self { name, path, fs })
    }

    /// Opens a file of the host for a copy of something in this image, and makes it empty if it is
    /// a regular file. It is created with these permissions, less the umask.
    ///
    /// # Errors
    /// The host's; and that of GNU cp if the path leads to the image itself, or to the disk that it
    /// is a part of: nothing is changed then.
    pub(crate) fn open_copy(&self, path: &Path, permissions: u32) -> Result<File> {
        let opened = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(permissions)
            .open(path);
        let failed = |why: io::Error| Failure::new(path.display().to_string(), why);
        let file = opened.map_err(failed)?;
        let copy = Location::of(&file, 0..u64::MAX).map_err(failed)?;
        let own = self.location().map_err(|why| self.problem(why))?;
        if copy.is_same_object(&own) {
            let why = format!("and {} are the same file", path.display());
            return Err(self
                .problem(why)
                .advise("for a path in the image, add a colon"));
        }
        if file.metadata().map_err(failed)?.is_file() {
            file.set_len(0).map_err(failed)?;
        }
        Ok(file)
    }

    /// Where the device that is open is stored.
    fn location(&self) -> io::Result<Location> {
        let file = match self.fs.device().host_range(0..0) {
            Some(range) => range.file.try_clone()?,
            None => File::open(&self.path)?,
        };
        Location::of(&file, 0..u64::MAX)
    }

    /// The error of a file system that cannot be opened.
    #[expect(clippy::needless_pass_by_value, reason = "map_err passes it by value")]
    pub(crate) fn refusal(spec: &ImageSpec, why: Error) -> Failure {
        let failure = Failure::new(spec.path.display().to_string(), &why);
        match why {
            Error::Refused(SuperblockRejected::NotExt4 { .. }) => {
                foreign::failure(spec).unwrap_or_else(|| failure.advise(OFFSET_ADVICE))
            }
            _ => match advice(&why) {
                Some(advice) => failure.advise(advice),
                None => failure,
            },
        }
    }

    /// The inode at `path`.
    pub(crate) fn resolve(&self, path: &Path, follow: Follow) -> Result<InodeNr> {
        let bytes = path.as_os_str().as_bytes();
        self.fs
            .resolve(bytes, follow)
            .map_err(|why| self.failure(bytes, why))
    }

    /// The paths that a path or a pattern stands for.
    pub(crate) fn expand(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let bytes = path.as_os_str().as_bytes();
        let found = glob::expand(&self.fs, bytes).map_err(|why| self.failure(bytes, why))?;
        let paths = found
            .iter()
            .map(|path| PathBuf::from(OsStr::from_bytes(path)));
        Ok(paths.collect())
    }

    /// Inodes in use according to the superblock: approximately the number of objects.
    pub(crate) fn objects(&self) -> u64 {
        let free = self.fs.superblock().free_inodes();
        u64::from(self.fs.geometry().inodes().saturating_sub(free))
    }

    /// The path of an object of the image, for messages.
    pub(crate) fn shown(&self, path: &[u8]) -> String {
        format!("{}: {}", self.name, crate::text::printable(path))
    }

    /// An error about the image as a whole.
    pub(crate) fn problem(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(self.name.as_str(), why)
    }

    /// An error about a path inside the image.
    pub(crate) fn failure(&self, path: &[u8], why: impl std::fmt::Display) -> Failure {
        Failure::new(self.shown(path), why)
    }

    /// The attributes of an inode.
    pub(crate) fn facts(&self, inode: InodeNr) -> fourscore::Result<Facts> {
        self.fs.stat(inode).map(|stat| Facts::from(&stat))
    }
}

/// Opens the device of an image. It begins at the offset of the file system.
pub(crate) fn device(
    spec: &ImageSpec,
    options: DeviceOptions,
    access: Access,
) -> Result<Arc<dyn BlockDevice>> {
    let name = || spec.path.display().to_string();
    if qcow2::is_one(&spec.path) {
        let why = format_args!(
            "is {}, which can be read, but neither changed nor mounted",
            qcow2::NAME
        );
        return Err(Failure::new(name(), why).advise(foreign::QEMU));
    }
    let file = open_path(&spec.path, options).map_err(|why| Failure::new(name(), why))?;
    part_of(Arc::new(file), spec, access)
}

/// As [`device`] for a command that only reads: the image may be in the qcow2 format.
pub(crate) fn device_to_read(spec: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
    let found = qcow2::open(&spec.path);
    match found.map_err(|why| Failure::new(spec.path.display().to_string(), why))? {
        Some(content) => part_of(Arc::new(content), spec, Access::ReadOnly),
        None => device(spec, DeviceOptions::default(), Access::ReadOnly),
    }
}

/// The part of a disk that holds the file system.
fn part_of(
    disk: Arc<dyn BlockDevice>,
    spec: &ImageSpec,
    access: Access,
) -> Result<Arc<dyn BlockDevice>> {
    if spec.offset_bytes == 0 {
        return Ok(disk);
    }
    let name = spec.path.display().to_string();
    let len_bytes = disk.len_bytes();
    if spec.offset_bytes >= len_bytes {
        let offset = spec.offset_bytes;
        let why = format!("ends at byte {len_bytes}, before the offset {offset}");
        return Err(Failure::new(name, why).advise("check the offset after the @"));
    }
    let end = spec
        .len_bytes
        .map(|len| spec.offset_bytes.saturating_add(len));
    let range = spec.offset_bytes..end.unwrap_or(len_bytes).min(len_bytes);
    let window = Window::new(disk, range, access);
    Ok(Arc::new(window.map_err(|why| Failure::new(name, why))?))
}

const OFFSET_ADVICE: &str = "for a file system inside an image, add its byte offset, as in disk.img@1M, or its partition, as \
     in disk.img@p2";

/// Advice for an error of a mount, if there is any.
pub(crate) fn advice(why: &Error) -> Option<&'static str> {
    match why {
        Error::JournalNotGiven { .. } => Some(JOURNAL_ADVICE),
        Error::Corrupt(corrupt) => match corrupt.kind() {
            CorruptKind::Journal(
                JournalError::DamagedLast { .. } | JournalError::Damaged { .. },
            ) => Some(DAMAGED_LOG_ADVICE),
            _ => None,
        },
        _ => None,
    }
}

/// Advice for a log with a damaged transaction.
const DAMAGED_LOG_ADVICE: &str = "synced changes are in it: copy the image; then \
     fourscore check -y, or e2fsck -f, keeps what is intact of it and repairs the rest";

/// Advice for a file system whose journal is on a device that was not given.
const JOURNAL_ADVICE: &str =
    "mount it with -o journal_path=DEVICE, or with -o ro,journal_path=DEVICE to write nothing";

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self {
            seconds: time.seconds(),
            nanoseconds: time.nanoseconds(),
        }
    }
}

impl From<&Stat> for Facts {
    /// Inline data counts as blocks, as in the kernel, so that programs do not take the file for a
    /// hole.
    fn from(stat: &Stat) -> Self {
        let device = stat.device;
        let is_file = stat.file_type == FileType::Regular;
        let inline = is_file && stat.flags.contains(InodeFlags::INLINE_DATA_FL);
        let inline_512 = if inline {
            stat.size_bytes.div_ceil(512)
        } else {
            0
        };
        Self {
            inode: stat.inode.0.into(),
            kind: Kind::from_mode(u32::from(stat.mode.0)),
            permissions: u32::from(stat.mode.permissions()),
            uid: stat.uid,
            gid: stat.gid,
            links: stat.links.into(),
            size_bytes: stat.size_bytes,
            blocks_512: stat.sectors.saturating_add(inline_512),
            rdev_major: device.map_or(0, |device| device.major),
            rdev_minor: device.map_or(0, |device| device.minor),
            atime: stat.atime.into(),
            mtime: stat.mtime.into(),
            ctime: stat.ctime.into(),
            btime: stat.crtime.map(Time::from),
            may_have_attributes: true,
        }
    }
}

/// A number with an optional suffix K, M, G or T (powers of 1024).
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// An offset: a size, a number of sectors of 512 bytes (`2048s`), or a hexadecimal number of bytes
/// (`0x100000`).
fn parse_offset(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        let digits = Some(digits).filter(|digits| !digits.starts_with('+'));
        return u64::from_str_radix(digits?, 16).ok();
    }
    match text.strip_suffix(['s', 'S']) {
        Some(sectors) if sectors.bytes().all(|byte| byte.is_ascii_digit()) => {
            sectors.parse::<u64>().ok()?.checked_mul(512)
        }
        Some(_) => None,
        None => parse_size(text),
    }
}

/// Parses the argument as bytes, which need not be UTF-8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageSpecParser;

impl TypedValueParser for ImageSpecParser {
    type Value = ImageSpec;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> std::result::Result<ImageSpec, clap::Error> {
        ImageSpec::parse(value).map_err(|why| {
            let name = argument.map_or_else(|| "IMAGE".to_owned(), ToString::to_string);
            let message = format!("invalid value for {name}: {why}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

impl clap::builder::ValueParserFactory for ImageSpec {
    type Parser = ImageSpecParser;

    fn value_parser() -> ImageSpecParser {
        ImageSpecParser
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> std::result::Result<(String, u64), String> {
        let spec = ImageSpec::parse(OsStr::new(text))?;
        Ok((spec.path.display().to_string(), spec.offset_bytes))
    }

    #[test]
    fn offsets_have_suffixes() {
        assert_eq!(parsed("disk.img"), Ok(("disk.img".into(), 0)));
        assert_eq!(parsed("disk.img@512"), Ok(("disk.img".into(), 512)));
        assert_eq!(parsed("a@b@1M"), Ok(("a@b".into(), 1 << 20)));
        assert_eq!(parsed("disk@3k"), Ok(("disk".into(), 3 << 10)));
        assert_eq!(parsed("d@2T"), Ok(("d".into(), 2 << 40)));
        assert_eq!(parsed("d@2048s"), Ok(("d".into(), 1 << 20)));
        assert_eq!(parsed("d@0x100000"), Ok(("d".into(), 1 << 20)));
    }

    #[test]
    fn invalid_offsets_are_refused() {
        for text in [
            "disk@",
            "disk@M",
            "disk@-1",
            "disk@1X",
            "disk@99999999999T",
            "disk@0x",
            "disk@0x+1",
            "disk@s",
            "disk@p1",
            "@1M",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_with_an_at_sign_in_its_name() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("me@home");
        std::fs::write(&path, b"").expect("space");
        let spec = ImageSpec::parse(path.as_os_str()).expect("it exists");
        assert_eq!((&spec.path, spec.offset_bytes), (&path, 0));
        assert_eq!(spec.shown(), path.display().to_string());
        let part = |text| ImageSpec::parse(OsStr::new(text)).expect(text);
        assert_eq!(part("a@b@1M").shown(), "a@b@1M");
        assert_eq!(part("disk@1M"), part("disk@2048s"));
    }
}
