//! **Purpose.** Image files by the calls that std has on every system: positioned reads and writes,
//! a lock, a flush.
//!
//! | module | responsibility |
//! |---|---|
//! | `file` | device: an image file |
//! | `errno` | errors of the host by the numbers of Linux |
//!
//! **Not here.** What has no call in std: block devices, direct I/O (transfers use the host's cache
//! instead), discards, reflinks, other users of an image but those that lock it.
//!
//! **Locking.** An image opened for writing is locked by [`File::try_lock`]. On unix this is an
//! advisory lock. On Windows it is a mandatory one: while a program writes an image, others can
//! open it and cannot read it.

mod errno;
mod file;

use std::fs::{File, FileType, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;

pub use errno::{errno_of, error_of_errno};
pub use file::FileDevice;

use crate::device::Hints;
use crate::open::{Access, DeviceOptions, Sharing};

/// Opens an image file, as [`crate::open_path`] does on systems other than Linux.
///
/// # Errors
/// The host's error for opening or locking; kind `InvalidInput` for a directory and kind
/// `Unsupported` for anything else that is no regular file; kind `ResourceBusy` if it is opened for
/// writing and another process writes it.
pub fn open_path(path: &Path, options: DeviceOptions) -> io::Result<FileDevice> {
    // Some files wait for another program when they are opened, so the kind is checked first. It
    // is checked again after the open, as the path may refer to another file by then.
    check_kind(std::fs::metadata(path)?.file_type())?;
    let write = options.access == Access::ReadWrite;
    let file = File::options().read(true).write(write).open(path)?;
    check_kind(file.metadata()?.file_type())?;
    let is_locked = write && options.sharing == Sharing::OneWriter;
    if is_locked {
        lock(&file)?;
    }
    let hints = Hints {
        read_only: !write,
        ..Hints::default()
    };
    FileDevice::new(file, hints, is_locked)
}

/// The name of this host, for the block of multi-mount protection. A host that takes part in that
/// has to read the block past its own cache, which std has no call for.
///
/// # Errors
/// Always, of kind `Unsupported`: so this host never claims a file system.
pub fn node_name() -> io::Result<Vec<u8>> {
    let what = "multi-mount protection (mmp) keeps other hosts away only if this one runs Linux";
    Err(io::Error::new(ErrorKind::Unsupported, what))
}

fn check_kind(file_type: FileType) -> io::Result<()> {
    if file_type.is_file() {
        Ok(())
    } else if file_type.is_dir() {
        let what = "is a directory, not an image file";
        Err(io::Error::new(ErrorKind::InvalidInput, what))
    } else {
        let what = "is not an image file; block devices are opened on Linux only";
        Err(io::Error::new(ErrorKind::Unsupported, what))
    }
}

fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            ErrorKind::ResourceBusy,
            "is being written by another process",
        )),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
