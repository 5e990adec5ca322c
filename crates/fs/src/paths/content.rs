//! **Purpose.** Reads, writes and copies whole files by path.

use fourscore_block::error_of_errno;
use fourscore_ondisk::inode::FileType;

use crate::dir::new_inode::NewAttributes;
use crate::inode::caller::AttributeChange;
use crate::paths::open;
use crate::paths::options::FileOptions;
use crate::paths::place;
use crate::{Error, Fs, Result};

/// The most bytes that are read at once. Memory is used as data arrives: the size in an inode may
/// be larger than the memory of the host.
const PIECE_BYTES: usize = 4 << 20;

/// `ENOMEM`.
const NO_MEMORY: i32 = 12;

/// Returns the data of the file at `path`.
pub(crate) fn read(fs: &Fs, path: &[u8]) -> Result<Vec<u8>> {
    let file = place::opened(&fs, path)?;
    let mut content = Vec::new();
    let mut wanted = usize::try_from(fs.stat(file.inode())?.size_bytes).unwrap_or(usize::MAX);
    loop {
        let len = content.len();
        let more = wanted.saturating_sub(len).clamp(1, PIECE_BYTES);
        let reserved = content.try_reserve_exact(more.max(wanted.saturating_sub(len)));
        reserved.map_err(|_| error_of_errno(NO_MEMORY))?;
        content.resize(len + more, 0);
        let got = fs.read_at(file.inode(), &mut content[len..], len as u64)?;
        content.truncate(len + got);
        if got < more {
            return Ok(content);
        }
        // The file is longer than it was.
        if content.len() >= wanted {
            wanted = content.len() + 32;
        }
    }
}

/// Returns the data of the file at `path` as text.
pub(crate) fn read_to_string(fs: &Fs, path: &[u8]) -> Result<String> {
    String::from_utf8(read(fs, path)?).map_err(|_| Error::NotUtf8)
}

/// Replaces the data of the file at `path`, which is made if it is missing.
pub(crate) fn write(fs: &Fs, path: &[u8], data: &[u8], new: &NewAttributes) -> Result<()> {
    let options = FileOptions::new().write().create().truncate();
    open::open(&fs, path, options, new)?.write_all_at(data, 0)
}

/// Copies the data and the permissions of the file at `from`; returns the number of bytes.
pub(crate) fn copy(fs: &Fs, from: &[u8], to: &[u8], new: &NewAttributes) -> Result<u64> {
    fs.writable()?;
    let source = place::opened(&fs, from)?;
    let stat = fs.stat(source.inode())?;
    if stat.file_type != FileType::Regular {
        return Err(Error::InvalidArgument("the source is not a regular file"));
    }
    let permissions = stat.mode.0 & 0o7777;
    let new = NewAttributes {
        permissions,
        ..*new
    };
    // Not truncated before it is known to be another file.
    let target = open::open(&fs, to, FileOptions::new().write().create(), &new)?;
    if target.inode() == source.inode() {
        return Err(Error::InvalidArgument(
            "source and target are the same file",
        ));
    }
    if target.metadata()?.file_type != FileType::Regular {
        return Err(Error::InvalidArgument("the target is not a regular file"));
    }
    target.set_len(0)?;
    let mut done = 0;
    loop {
        let (from, to) = (source.inode(), target.inode());
        match fs.copy_file_range(from, done, to, done, u64::MAX - done)? {
            0 => break,
            copied => done += copied,
        }
    }
    let change = AttributeChange {
        permissions: Some(permissions),
        ..AttributeChange::default()
    };
    fs.set_attributes(target.inode(), &change)?;
    Ok(done)
}
