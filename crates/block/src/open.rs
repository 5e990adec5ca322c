//! **Purpose.** From a path to a device, by what the path turns out to be.
//!
//! **Model.** A regular file is an image, a block device is itself, and everything else is
//! refused with a sentence that names what it is. Nothing is created or written here, except by
//! [`create_image`].
//!
//! **Locking.** A device opened for writing is locked against other writers, unless asked
//! otherwise: an image file by an advisory `flock`, a block device by `O_EXCL`, which also fails
//! while the kernel has it mounted. An image file on which a loop device lies is refused.

use std::fmt;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags};

use crate::device::Hints;
use crate::file::FileDevice;
use crate::{in_use, raw};

/// What the device will be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reading only: every write is refused, here and by the host.
    #[default]
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// Whether others may have the device open for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// A writer locks out other writers; readers lock nothing.
    #[default]
    OneWriter,
    /// Nothing is locked: the caller knows that nobody else writes.
    Unlocked,
}

/// Which way data takes through the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// Through the host's page cache.
    #[default]
    HostCached,
    /// Around it for aligned transfers, where the host can; through it otherwise.
    Direct,
}

/// How to open a device; the default is to read through the host's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// What the device will be used for.
    pub access: Access,
    /// Whether others may write it at the same time.
    pub sharing: Sharing,
    /// Which way data takes.
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
/// # Errors The host's error for opening, kind `InvalidInput` if the path is neither a regular file
/// nor a block device, and kind `ResourceBusy` if it is to be written and somebody else uses it:
/// another process that writes, a loop device, a mount of the kernel. The text says who, and does
/// not repeat the path, which the caller knows.
pub fn open_path(path: &Path, options: DeviceOptions) -> io::Result<FileDevice> {
    // Opening a fifo for reading would wait for its writer, so the kind is looked at first; it
    // is looked at again once open, as the path may have changed its meaning by then.
    let before = std::fs::metadata(path)?.file_type();
    let kind = Kind::of(before)?;
    let cached = open_file(path, options, kind, OFlags::NONBLOCK).map_err(|error| {
        let is_busy = error.kind() == ErrorKind::ResourceBusy;
        match is_busy && kind == Kind::BlockDevice {
            true => busy(in_use::device_user(path)),
            false => error,
        }
    })?;
    // Only the open itself was not to wait; io_uring would take the flag for reads as well.
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
            let facts = raw::hints(&cached)?;
            let hints = Hints {
                discard: facts.discard && !read_only,
                read_only,
                ..facts
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

/// Makes a new sparse image file of `len_bytes` and opens it for writing.
///
/// # Errors
/// Kind `AlreadyExists` if there is something at `path`, else the host's error.
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
    if kind == Kind::BlockDevice {
        return Ok(());
    }
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(busy(in_use::lock_holder(file))),
        Err(error) => return Err(error.into()),
    }
    match in_use::loop_user(file)? {
        Some(user) => Err(busy(user)),
        None => Ok(()),
    }
}

fn busy(who: String) -> io::Error {
    io::Error::new(ErrorKind::ResourceBusy, who)
}

/// Adds direct I/O where the host offers it; where it does not, the device stays as it is.
fn add_direct(device: FileDevice, path: &Path, options: DeviceOptions, kind: Kind) -> FileDevice {
    /// Enough for every sector size in use; smaller transfers go through the cache.
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
