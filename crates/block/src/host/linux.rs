//! **Purpose.** Image files and block devices of Linux.
//!
//! | module | responsibility |
//! |---|---|
//! | [`open`] | opens a path, and keeps other users away |
//! | [`mod@file`] | device: an image file or a block device |
//! | [`uring`] | device: the same, with the requests of a batch in flight at once by io_uring |
//! | `raw` | ioctls and properties that only block devices have |
//! | `memory_file` | concurrent writes to one file on tmpfs |
//! | `host_io` | complete transfers over a file descriptor |
//! | `in_use` | finds the other users of a file or device |
//! | `share` | reflinks of blocks of another file |

mod file;
mod host_io;
mod in_use;
mod memory_file;
mod open;
mod raw;
mod share;
mod uring;

use std::io;

pub use file::FileDevice;
pub(crate) use open::open_path;
pub use uring::UringDevice;

/// The name of this host, for the block of multi-mount protection.
///
/// # Errors
/// None on Linux.
pub fn node_name() -> io::Result<Vec<u8>> {
    Ok(rustix::system::uname().nodename().to_bytes().to_vec())
}

/// The number that Linux has for an error of the host. [`raw_os_error`](crate::raw_os_error) looks
/// into the payload of an error as well.
#[must_use]
pub fn errno_of(error: &io::Error) -> Option<i32> {
    error.raw_os_error()
}

/// The error with this number of Linux.
#[must_use]
pub fn error_of_errno(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
