//! **Purpose.** Positioned calls on Windows.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::FileExt;

/// `ReadFile` at an offset; it also moves the file's position. Returns 0 at the end of the file.
pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(buf, offset)
}

/// `WriteFile` at an offset; it also moves the file's position.
pub(super) fn write_at(file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
    file.seek_write(buf, offset)
}

/// Nothing: a new file has the access control list of its folder.
pub(super) fn make_private(_options: &mut OpenOptions) {}
