//! **Purpose.** Opens a file by its path, and makes it if the options say so.
//!
//! **Model.** A file that exists is opened through its path. One that is missing is made under the
//! name at which the path ends, after the symbolic links that refer to a missing file. If another
//! thread makes or removes the file in between, opening starts again.
//!
//! **References.** open(2), path_resolution(7).

use std::ops::Deref;

use fourscore_ondisk::inode::FileType;
use fourscore_sync::thread;

use crate::dir::new_inode::NewAttributes;
use crate::dir::path::{self, Step};
use crate::facade::open_inode::OpenInode;
use crate::paths::file::File;
use crate::paths::options::{Creation, FileOptions};
use crate::paths::place::{self, ATTEMPTS, Ending, Place};
use crate::{Error, Fs, Result};

/// The number of links that are followed to a missing file, as in Linux.
const MAX_SYMLINKS: u32 = 40;

/// Opens the file at `path`; `new` has the attributes of a file that is made.
///
/// # Errors
/// As open(2); see [`Paths::open_with`](crate::Paths::open_with).
pub(crate) fn open<F: Deref<Target = Fs> + Clone>(
    fs: &F,
    path: &[u8],
    options: FileOptions,
    new: &NewAttributes,
) -> Result<File<F>> {
    options.check()?;
    place::check(path)?;
    if options.changes() {
        fs.writable()?;
    }
    let inode = match options.creation {
        Creation::Never => existing(fs, path, options)?,
        Creation::Always => make(fs, path, new)?,
        Creation::IfMissing => existing_or_new(fs, path, options, new)?,
    };
    Ok(File::new(inode, options.access))
}

fn existing<F: Deref<Target = Fs> + Clone>(
    fs: &F,
    path: &[u8],
    options: FileOptions,
) -> Result<OpenInode<F>> {
    let opened = place::opened(fs, path)?;
    if !options.changes() {
        return Ok(opened);
    }
    let file_type = fs.stat(opened.inode())?.file_type;
    if file_type == FileType::Directory {
        return Err(Error::IsADirectory);
    }
    if options.truncates() && file_type == FileType::Regular {
        fs.truncate(opened.inode(), 0)?;
    }
    Ok(opened)
}

fn make<F: Deref<Target = Fs> + Clone>(
    fs: &F,
    path: &[u8],
    new: &NewAttributes,
) -> Result<OpenInode<F>> {
    place::at_parent(fs, path, |place| {
        if !place.is_name() {
            return Err(Error::Exists);
        }
        refuse_slash(place)?;
        OpenInode::created(fs.clone(), place.dir, place.name, new)
    })
}

fn existing_or_new<F: Deref<Target = Fs> + Clone>(
    fs: &F,
    path: &[u8],
    options: FileOptions,
    new: &NewAttributes,
) -> Result<OpenInode<F>> {
    place::at_parent(fs, path, refuse_slash)?;
    for _ in 0..ATTEMPTS {
        match existing(fs, path, options) {
            Err(Error::NotFound) => {}
            answer => return answer,
        }
        match make_behind_links(fs, path, new)? {
            Some(opened) => return Ok(opened),
            None => thread::yield_now(),
        }
    }
    Err(Error::NotFound)
}

/// Makes the file at `path`, or at the target of the links there. `None` if it exists meanwhile.
fn make_behind_links<F: Deref<Target = Fs> + Clone>(
    fs: &F,
    path: &[u8],
    new: &NewAttributes,
) -> Result<Option<OpenInode<F>>> {
    let mut path = path.to_vec();
    for _ in 0..=MAX_SYMLINKS {
        let target = place::at_parent(fs, &path, |place| {
            if !place.is_name() {
                return Ok(Made::Exists);
            }
            refuse_slash(place)?;
            match path::step_to(&fs.core, place.dir, place.name) {
                Ok(Step::Link(target)) => return Ok(Made::Link(target)),
                Ok(Step::Inode(_)) => return Ok(Made::Exists),
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
            match OpenInode::created(fs.clone(), place.dir, place.name, new) {
                Err(Error::Exists) => Ok(Made::Exists),
                made => made.map(Made::File),
            }
        })?;
        match target {
            Made::File(opened) => return Ok(Some(opened)),
            Made::Exists => return Ok(None),
            Made::Link(target) => path = behind_link(&path, &target),
        }
    }
    Err(Error::TooManySymlinks)
}

/// What happened at the last component of a path.
enum Made<F: Deref<Target = Fs>> {
    File(OpenInode<F>),
    Link(Vec<u8>),
    Exists,
}

/// Returns the path to which the symbolic link at `path` refers.
fn behind_link(path: &[u8], target: &[u8]) -> Vec<u8> {
    let begin = match target.first() {
        Some(b'/') => 0,
        _ => path
            .iter()
            .rposition(|&byte| byte == b'/')
            .map_or(0, |slash| slash + 1),
    };
    [&path[..begin], target].concat()
}

/// Refuses to make a file at a path that ends with a slash, as open(2) does.
fn refuse_slash(place: &Place<'_>) -> Result<()> {
    match place.is_name() && place.ending == Ending::Slash {
        true => Err(Error::IsADirectory),
        false => Ok(()),
    }
}
