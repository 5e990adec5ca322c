//! **Purpose.** Positioned calls and modes of new files, on unix.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// pread(2).
pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    FileExt::read_at(file, buf, offset)
}

/// pwrite(2).
pub(super) fn write_at(file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
    FileExt::write_at(file, buf, offset)
}

/// A new file can be opened by its owner only.
pub(super) fn make_private(options: &mut OpenOptions) {
    options.mode(0o600);
}
