//! **Purpose.** Reads and writes a file of the host at offsets, in the way that each operating
//! system has for it.
//!
//! **Model.** Std has the same calls for unix and for Windows under different names. Windows moves
//! the position of the file with every call; nothing that uses these functions looks at the
//! position, so threads do not disturb each other.

#[cfg_attr(windows, path = "positioned/windows.rs")]
#[cfg_attr(not(windows), path = "positioned/unix.rs")]
mod system;

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Reads once: fills a part of `buf` from byte `offset`, and returns its length; 0 at the end of
/// the file. Repeated if a signal interrupts it.
///
/// # Errors
/// The host's error.
pub fn read_once(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match system::read_at(file, buf, offset) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Writes once: a part of `buf` at byte `offset`, and returns its length. Repeated if a signal
/// interrupts it. The bytes are durable after [`File::sync_data`].
///
/// # Errors
/// The host's error.
pub fn write_once(file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
    loop {
        match system::write_at(file, buf, offset) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Fills all of `buf` from byte `offset`.
///
/// # Errors
/// Kind `UnexpectedEof` if the file ends before; the host's error. What `buf` holds then is not
/// defined.
pub fn read_exact(file: &File, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        let got = read_once(file, buf, offset)?;
        if got == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        buf = &mut buf[got..];
        offset += got as u64;
    }
    Ok(())
}

/// Writes all of `buf` at byte `offset`. The bytes are durable after [`File::sync_data`].
///
/// # Errors
/// Kind `WriteZero` if the host takes no more bytes; the host's error. A part may be written then.
pub fn write_all(file: &File, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        let wrote = write_once(file, buf, offset)?;
        if wrote == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        buf = &buf[wrote..];
        offset += wrote as u64;
    }
    Ok(())
}

/// Creates a file for reading and writing that only its owner can open. On Windows the folder
/// decides who can: std sets no access control lists.
///
/// # Errors
/// Kind `AlreadyExists` if `path` exists, else the host's error.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    system::make_private(&mut options);
    options.open(path)
}
