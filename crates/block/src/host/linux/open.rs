//! **Purpose.** Opens an image file or a block device of Linux by its path.
//!
//! **Locking.** An image file is locked by an advisory `flock`, a block device by `O_EXCL`, which
//! also fails while the kernel has it mounted. An image file that is attached to a loop device is
//! refused.

use std::fmt;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags};

use super::file::FileDevice;
use super::{in_use, raw};
use crate::device::Hints;
use crate::open::{Access, Caching, DeviceOptions, Sharing};

/// As [`crate::open_path`].
pub(crate) fn open_path(path: &Path, options: DeviceOptions) -> io::Result<FileDevice> {
    // Opening a fifo for reading would wait for its writer, so the kind is checked first. It is
    // checked again after the open, as the path may refer to another file by then.
    let before = std::fs::metadata(path)?.file_type();
    let kind = Kind::of(before)?;
    let cached = open_file(path, options, kind, OFlags::NONBLOCK).map_err(|error| {
        let is_busy = error.kind() == ErrorKind::ResourceBusy;
        match is_busy && kind == Kind::BlockDevice {
            true => busy(in_use::device_user(path)),
            false => error,
        }
    })?;
    // The flag is for the open only; io_uring would apply it to reads as well.
    let flags = rustix::fs::fcntl_getfl(&cached)?;
    rustix::fs::fcntl_setfl(&cached, flags - OFlags::NONBLOCK)?;
    if Kind::of(cached.metadata()?.file_type())? != kind {
        return Err(refused("changed while it was being opened"));
    }
    if options.access == Access::ReadWrite && options.sharing == Sharing::OneWriter {
        lock_image(&cached, kind)?;
    }
    let read_only = options.access == Access::ReadOnly;
    let device = match kind {
        Kind::Image => {
            let hints = Hints {
                discard: !read_only,
                read_only,
                ..Hints::default()
            };
            FileDevice::from_image(cached, hints)?
        }
        Kind::BlockDevice => {
            let found = raw::hints(&cached)?;
            let hints = Hints {
                discard: found.discard && !read_only,
                read_only,
                ..found
            };
            let len_bytes = raw::len_bytes(&cached)?;
            FileDevice::from_block_device(cached, len_bytes, hints)
        }
    };
    match options.caching {
        Caching::HostCached => Ok(device),
        Caching::Direct => Ok(add_direct(device, path, options, kind)),
    }
}

/// The two kinds of file that can hold a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Image,
    BlockDevice,
}

impl Kind {
    fn of(file_type: FileType) -> io::Result<Self> {
        if file_type.is_file() {
            return Ok(Self::Image);
        }
        if file_type.is_block_device() {
            return Ok(Self::BlockDevice);
        }
        Err(refused(if file_type.is_dir() {
            "is a directory, not an image file or block device"
        } else if file_type.is_char_device() {
            "is a character device, not an image file or block device"
        } else if file_type.is_fifo() {
            "is a fifo, not an image file or block device"
        } else if file_type.is_socket() {
            "is a socket, not an image file or block device"
        } else {
            "is not an image file or block device"
        }))
    }
}

fn refused(why: impl fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why.to_string())
}

fn open_file(
    path: &Path,
    options: DeviceOptions,
    kind: Kind,
    more_flags: OFlags,
) -> io::Result<File> {
    let write = options.access == Access::ReadWrite;
    let mut flags = more_flags;
    if kind == Kind::BlockDevice && write && options.sharing == Sharing::OneWriter {
        flags |= OFlags::EXCL;
    }
    let flags = i32::try_from(flags.bits()).map_err(refused)?;
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(flags)
        .open(path)
}

fn lock_image(file: &File, kind: Kind) -> io::Result<()> {
    // A block device was opened with `O_EXCL`.
    if kind != Kind::BlockDevice {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(busy(in_use::lock_holder(file))),
            Err(error) => return Err(error.into()),
        }
    }
    match in_use::loop_user(file)? {
        Some(user) => Err(busy(user)),
        None => Ok(()),
    }
}

fn busy(user: String) -> io::Error {
    io::Error::new(ErrorKind::ResourceBusy, user)
}

/// Adds direct I/O if the host supports it; otherwise returns the device unchanged.
fn add_direct(device: FileDevice, path: &Path, options: DeviceOptions, kind: Kind) -> FileDevice {
    /// The largest sector size in use; smaller transfers go through the page cache.
    const ALIGN_BYTES: u64 = 4096;
    let unlocked = DeviceOptions {
        sharing: Sharing::Unlocked,
        ..options
    };
    match open_file(path, unlocked, kind, OFlags::DIRECT) {
        Ok(file) => device.with_direct(file, ALIGN_BYTES),
        Err(_) => device,
    }
}
