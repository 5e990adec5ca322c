//! **Purpose.** Opens an image file or a block device by its path.
//!
//! **Model.** A regular file is an image, a block device is itself, and all other kinds of files
//! are refused with an error that names the kind. Nothing is created or written here, except by
//! [`create_image`].
//!
//! **Not here.** How a path is opened and locked: that is different on each operating system
//! (`host`).
//!
//! **Locking.** A device opened for writing is locked against other writers, unless the caller
//! chooses [`Sharing::Unlocked`].

use std::fs::File;
use std::io;
use std::path::Path;

use crate::host::{self, FileDevice};

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

/// Opens an image file or a block device. Systems other than Linux open image files only.
///
/// # Errors
/// The host's error for opening; kind `InvalidInput` if the path is neither a regular file nor a
/// block device; kind `ResourceBusy` if it is opened for writing and has another user: a process
/// that writes, a loop device, or a mount of the kernel. The message names the user, but not the
/// path, which the caller knows. On other systems, kind `Unsupported` for a device, and other users
/// are only those that lock the image.
pub fn open_path(path: &Path, options: DeviceOptions) -> io::Result<FileDevice> {
    host::open_path(path, options)
}

/// Creates an image file of `len_bytes` and opens it for writing. It is sparse, but on Windows the
/// host allocates all of it.
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
