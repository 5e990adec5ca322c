//! **Purpose.** `IMAGE[@OFFSET]`: what the user typed, and the file system behind it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::builder::TypedValueParser;
use fourscore::{Error, Follow, Fs, MountOptions, OpenOptions, Stat};
use fourscore_block::{Access, BlockDevice, DeviceOptions, Window, open_path};
use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::superblock::SuperblockRejected;
use fourscore_ondisk::time::Timestamp;
use fourscore_sync::Arc;

/// A command touches a tree once and goes: room for the metadata of some hundred thousand objects
/// keeps it from making room instead.
const CACHE_BYTES: usize = 512 << 20;

use crate::facts::{Facts, Kind, Time};
use crate::failure::{Failure, Result};

/// An image file or block device, and where in it the file system begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageSpec {
    pub(crate) path: PathBuf,
    pub(crate) offset_bytes: u64,
}

impl ImageSpec {
    /// Splits at the last `@`. A file whose name has an `@` in it and exists under the whole
    /// name is taken as it is, unless what follows is an offset.
    pub(crate) fn parse(text: &OsStr) -> std::result::Result<Self, String> {
        let bytes = text.as_bytes();
        let whole = || Self {
            path: PathBuf::from(text),
            offset_bytes: 0,
        };
        let Some(at) = bytes.iter().rposition(|&byte| byte == b'@') else {
            return Ok(whole());
        };
        let (path, offset) = (&bytes[..at], &bytes[at + 1..]);
        match std::str::from_utf8(offset).ok().and_then(parse_size) {
            Some(offset_bytes) if !path.is_empty() => Ok(Self {
                path: PathBuf::from(OsStr::from_bytes(path)),
                offset_bytes,
            }),
            _ if whole().path.exists() => Ok(whole()),
            _ => Err(format!(
                "'{}' is not an offset: use a number of bytes with K, M, G or T, as in \
                 disk.img@1M",
                String::from_utf8_lossy(offset)
            )),
        }
    }
}

/// An open image.
pub(crate) struct Image {
    /// As the user named it, for messages.
    name: String,
    pub(crate) fs: Arc<Fs>,
}

impl Image {
    /// Opens the file system for reading; a dirty journal is replayed in memory.
    pub(crate) fn open(spec: &ImageSpec) -> Result<Self> {
        let device = device(spec, DeviceOptions::default(), Access::ReadOnly)?;
        let options = OpenOptions::new().cache_bytes(CACHE_BYTES);
        Self::of(spec, Fs::open(device, &options))
    }

    /// Opens the file system for writing; a dirty journal is replayed. All of its space may be
    /// used.
    pub(crate) fn open_to_write(spec: &ImageSpec) -> Result<Self> {
        let device = device(spec, DeviceOptions::read_write(), Access::ReadWrite)?;
        Self::of(spec, Fs::mount(device, &MountOptions::new().use_reserve()))
    }

    fn of(spec: &ImageSpec, opened: fourscore::Result<Arc<Fs>>) -> Result<Self> {
        let name = spec.path.display().to_string();
        let fs = opened.map_err(|why| {
            let failure = Failure::new(name.as_str(), &why);
            match why {
                Error::Refused(SuperblockRejected::NotExt4 { .. }) => failure.advise(OFFSET_ADVICE),
                Error::JournalNotGiven { .. } => failure.advise(JOURNAL_ADVICE),
                _ => failure,
            }
        })?;
        Ok(Self { name, fs })
    }

    /// The inode at `path`.
    pub(crate) fn resolve(&self, path: &Path, follow: Follow) -> Result<InodeNr> {
        let bytes = path.as_os_str().as_bytes();
        self.fs
            .resolve(bytes, follow)
            .map_err(|why| self.failure(bytes, why))
    }

    /// How many inodes are in use, as the superblock counts them: about as many objects there are.
    pub(crate) fn objects(&self) -> u64 {
        let free = self.fs.superblock().free_inodes();
        u64::from(self.fs.geometry().inodes().saturating_sub(free))
    }

    /// A failure about the image as a whole.
    pub(crate) fn problem(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(self.name.as_str(), why)
    }

    /// A failure about a path inside of the image.
    pub(crate) fn failure(&self, path: &[u8], why: impl std::fmt::Display) -> Failure {
        Failure::new(
            format!("{}: {}", self.name, crate::text::for_people(path)),
            why,
        )
    }

    /// What stat tells about an inode.
    pub(crate) fn facts(&self, inode: InodeNr) -> fourscore::Result<Facts> {
        self.fs.stat(inode).map(|stat| Facts::from(&stat))
    }
}

/// What the image lies on, from its offset on.
pub(crate) fn device(
    spec: &ImageSpec,
    options: DeviceOptions,
    access: Access,
) -> Result<Arc<dyn BlockDevice>> {
    let name = spec.path.display().to_string();
    let in_file = |why: std::io::Error| Failure::new(name.as_str(), why);
    let file: Arc<dyn BlockDevice> = Arc::new(open_path(&spec.path, options).map_err(in_file)?);
    if spec.offset_bytes == 0 {
        return Ok(file);
    }
    let len_bytes = file.len_bytes();
    if spec.offset_bytes >= len_bytes {
        let offset = spec.offset_bytes;
        let why = format!("ends at byte {len_bytes}, before byte {offset}");
        return Err(Failure::new(name, why).advise("check the offset behind the @"));
    }
    let window = Window::from_offset(file, spec.offset_bytes, access);
    Ok(Arc::new(window.map_err(in_file)?))
}

const OFFSET_ADVICE: &str =
    "for a partition of a disk image, add its byte offset, as in disk.img@1M";

/// What to do about a journal on a device that was not given.
pub(crate) const JOURNAL_ADVICE: &str =
    "mount it with -o journal_path=DEVICE; with ro as well, nothing is written";

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self {
            seconds: time.seconds(),
            nanoseconds: time.nanoseconds(),
        }
    }
}

impl From<&Stat> for Facts {
    /// As the kernel tells it: content inside of the inode counts as blocks, so that nobody takes
    /// the file for a hole.
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

/// Parses the argument as it was typed, whatever its bytes are.
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
    }

    #[test]
    fn what_is_not_an_offset_is_refused() {
        for text in [
            "disk@",
            "disk@M",
            "disk@-1",
            "disk@1X",
            "disk@99999999999T",
            "@1M",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_with_an_at_sign_in_its_name() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let path = place.path().join("me@home");
        std::fs::write(&path, b"").expect("room");
        let spec = ImageSpec::parse(path.as_os_str()).expect("it exists");
        assert_eq!((spec.path, spec.offset_bytes), (path, 0));
    }
}
