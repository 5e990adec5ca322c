//! **Purpose.** Opens an image file or a block device by its path.
//!
//! **Model.** A regular file is an image, a block device is itself, and all other kinds of files
//! are refused with an error that names the kind. Nothing is created or written here, except by
//! [`create_image`].
//!
//! **Locking.** A device opened for writing is locked against other writers, unless the caller
//! chooses [`Sharing::Unlocked`]: an image file by an advisory `flock`, a block device by `O_EXCL`,
//! which also fails while the kernel has it mounted. An image file that is attached to a loop
//! device is refused.

use std::fmt;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags};

use crate::device::Hints;
use crate::file::FileDevice;
use crate::{in_use, raw};

/// The access mode of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reading only: every write is refused, here and by the host.
    #[default]
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// Whether other processes may have the device open for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// A writer locks out other writers; readers lock nothing.
    #[default]
    OneWriter,
    /// Nothing is locked: the caller makes sure that there is no other writer.
    Unlocked,
}

/// Whether transfers use the host's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// All transfers go through the host's page cache.
    #[default]
    HostCached,
    /// Aligned transfers bypass it (`O_DIRECT`) if the host supports that; all others use it.
    Direct,
}

/// How to open a device; the default is to read through the host's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The access mode.
    pub access: Access,
    /// Whether other processes may write it at the same time.
    pub sharing: Sharing,
    /// Whether transfers use the host's page cache.
    pub caching: Caching,
}

impl DeviceOptions {
    /// For reading and writing, with other writers locked out.
    #[must_use]
    pub fn read_write() -> Self {
        Self {
            access: Access::ReadWrite,
            ..Self::default()
        }
    }
}

/// Opens an image file or a block device.
///
/// # Errors
/// The host's error for opening; kind `InvalidInput` if the path is neither a regular file nor a
/// block device; kind `ResourceBusy` if it is opened for writing and has another user: a process
/// that writes, a loop device, or a mount of the kernel. The message names the user, but not the
/// path, which the caller knows.
pub fn open_path(path: &Path, options: DeviceOptions) -> io::Result<FileDevice> {
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

/// Creates a sparse image file of `len_bytes` and opens it for writing.
///
/// # Errors
/// Kind `AlreadyExists` if `path` exists, else the host's error.
pub fn create_image(path: &Path, len_bytes: u64, options: DeviceOptions) -> io::Result<FileDevice> {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    file.set_len(len_bytes)?;
    drop(file);
    open_path(
        path,
        DeviceOptions {
            access: Access::ReadWrite,
            ..options
        },
    )
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
