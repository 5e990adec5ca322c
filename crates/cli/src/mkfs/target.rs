//! **Purpose.** The file or device that a file system is made on: its kind, its content and its
//! users are checked before it is opened for writing.

use std::fs::{self, File, FileType};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use fourscore_block::{Access, BlockDevice, DeviceOptions, FileDevice, Sharing, Window, open_path};
use fourscore_mkfs::find_signature;
use fourscore_sync::Arc;

use crate::failure::{Failure, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Missing,
    Image,
    BlockDevice,
}

/// The file or device as it was found.
pub(super) struct Destination {
    pub(super) kind: Kind,
    len_bytes: u64,
}

impl Destination {
    /// Finds out the kind and the size of `path`.
    pub(super) fn inspect(path: &Path, name: &str) -> Result<Self> {
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

    /// Bytes from `offset` to the end.
    pub(super) fn rest_bytes(&self, offset: u64, name: &str) -> Result<u64> {
        if self.kind == Kind::Missing {
            let failure = Failure::new(name, "does not exist");
            return Err(failure.advise("give SIZE to create an image file"));
        }
        match self.len_bytes.checked_sub(offset) {
            Some(rest) if rest > 0 => Ok(rest),
            _ => {
                let why = format!(
                    "ends at byte {}, before the offset {offset}",
                    self.len_bytes
                );
                Err(Failure::new(name, why))
            }
        }
    }

    /// Returns an error if it is mounted, directly or through a loop device.
    pub(super) fn check_unused(&self, path: &Path, name: &str) -> Result<()> {
        let Ok(real) = path.canonicalize() else {
            return Ok(());
        };
        let advice = "unmount it first, or use -F to overwrite it anyway";
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

    /// Returns an error if it contains a file system or another known format.
    pub(super) fn check_empty(&self, path: &Path, name: &str, offset: u64) -> Result<()> {
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

    /// Opens the part of the device for the file system; an image file is extended to its end.
    pub(super) fn open(
        &self,
        path: &Path,
        name: &str,
        part: &Range<u64>,
        opening: DeviceOptions,
    ) -> Result<OpenTarget> {
        let in_file = |why: std::io::Error| Failure::new(name, why);
        if self.kind == Kind::Missing {
            File::create_new(path).map_err(in_file)?;
        }
        // The lock comes before any change, even of the length.
        let first = open_path(path, opening).map_err(in_file)?;
        if self.kind == Kind::BlockDevice || self.len_bytes >= part.end {
            return OpenTarget::new(Arc::new(first), None, part).map_err(in_file);
        }
        let file = File::options().write(true).open(path);
        let grown = file.and_then(|file| file.set_len(part.end));
        grown.map_err(in_file)?;
        let again = DeviceOptions {
            sharing: Sharing::Unlocked,
            ..opening
        };
        let device = Arc::new(open_path(path, again).map_err(in_file)?);
        OpenTarget::new(device, Some(first), part).map_err(in_file)
    }
}

/// The open part of the device, with the lock that excludes other writers.
pub(super) struct OpenTarget {
    pub(super) window: Window,
    /// Holds the lock of an image file that was extended after it had been opened.
    _lock: Option<FileDevice>,
}

impl OpenTarget {
    fn new(
        device: Arc<dyn BlockDevice>,
        lock: Option<FileDevice>,
        part: &Range<u64>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            window: Window::new(device, part.clone(), Access::ReadWrite)?,
            _lock: lock,
        })
    }
}

fn unlocked() -> DeviceOptions {
    DeviceOptions {
        sharing: Sharing::Unlocked,
        ..DeviceOptions::default()
    }
}

/// The loop device that this file is attached to, if any.
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
