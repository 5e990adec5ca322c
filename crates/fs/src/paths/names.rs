//! **Purpose.** Makes, renames and removes names by path.
//!
//! **Not here.** Removing a directory with everything in it (`remove`).
//!
//! **References.** mkdir(2), unlink(2), rmdir(2), rename(2), symlink(2), link(2): each error is the
//! one of Linux for the same path. `std::fs::create_dir_all` for a path of several directories.

use fourscore_ondisk::inode::FileType;

use crate::dir::new_inode::{NewAttributes, check_name};
use crate::dir::path::Follow;
use crate::paths::place::{self, Ending, Place};
use crate::{Error, Fs, Replace, Result};

/// Makes a directory.
pub(crate) fn create_dir(fs: &Fs, path: &[u8], new: &NewAttributes) -> Result<()> {
    place::at_parent(fs, path, |place| match place.is_name() {
        true => fs.mkdir(place.dir, place.name, new).map(drop),
        false => Err(Error::Exists),
    })
}

/// Makes a directory and all that are missing on the way to it.
pub(crate) fn create_dir_all(fs: &Fs, path: &[u8], new: &NewAttributes) -> Result<()> {
    if path.is_empty() {
        return Ok(());
    }
    let ends = component_ends(path);
    // Back to the longest part whose parent exists, and then forward.
    let mut first = ends.len() - 1;
    loop {
        match create_or_find(fs, &path[..ends[first]], new) {
            Err(Error::NotFound) if first > 0 => first -= 1,
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    for &end in &ends[first + 1..] {
        create_or_find(fs, &path[..end], new)?;
    }
    Ok(())
}

/// Makes a directory, or finds that there is one.
fn create_or_find(fs: &Fs, path: &[u8], new: &NewAttributes) -> Result<()> {
    let Err(error) = create_dir(fs, path, new) else {
        return Ok(());
    };
    let found = place::reading(fs, path, Follow::Yes, |nr| fs.stat(nr));
    match found {
        Ok(stat) if stat.file_type == FileType::Directory => Ok(()),
        _ => Err(error),
    }
}

/// The offsets at which the components of `path` end; the last one is the length of the path. As in
/// `std::path`, `.` is a component only at the start. So a directory is not made for the sake of a
/// `.` behind it, which mkdir(2) does not find then.
fn component_ends(path: &[u8]) -> Vec<usize> {
    let (mut ends, mut begin) = (Vec::new(), 0);
    for part in path.split(|&byte| byte == b'/') {
        let end = begin + part.len();
        let is_component = match part {
            b"" => false,
            b"." => begin == 0,
            _ => true,
        };
        if is_component {
            ends.push(end);
        }
        begin = end + 1;
    }
    ends.pop();
    ends.push(path.len());
    ends
}

/// Removes the name of anything but a directory.
pub(crate) fn remove_file(fs: &Fs, path: &[u8]) -> Result<()> {
    place::at_parent(fs, path, |place| {
        if !place.is_name() {
            return Err(Error::IsADirectory);
        }
        if place.ending == Ending::Slash {
            check_directory(fs, place)?;
            return Err(Error::IsADirectory);
        }
        fs.unlink(place.dir, place.name)
    })
}

/// Removes an empty directory.
pub(crate) fn remove_dir(fs: &Fs, path: &[u8]) -> Result<()> {
    place::at_parent(fs, path, |place| match place.name {
        b"" => Err(Error::Busy),
        name => fs.rmdir(place.dir, name),
    })
}

/// Moves a name.
pub(crate) fn rename(fs: &Fs, from: &[u8], to: &[u8]) -> Result<()> {
    place::check(to)?;
    place::at_parent(fs, from, |from| {
        place::at_parent(fs, to, |to| {
            if !from.is_name() || !to.is_name() {
                return Err(Error::Busy);
            }
            if from.ending == Ending::Slash || to.ending == Ending::Slash {
                check_directory(fs, from).or_else(|error| match error {
                    // The new name is looked up before.
                    Error::NotADirectory => check_name(to.name).and(Err(error)),
                    error => Err(error),
                })?;
            }
            fs.rename((from.dir, from.name), (to.dir, to.name), Replace::Yes)
        })
    })
}

/// Makes a symbolic link.
pub(crate) fn symlink(fs: &Fs, target: &[u8], path: &[u8], new: &NewAttributes) -> Result<()> {
    place::check(target)?;
    place::at_parent(fs, path, |place| {
        check_new(fs, place)?;
        fs.symlink(place.dir, place.name, target, new).map(drop)
    })
}

/// Gives a file another name.
pub(crate) fn hard_link(fs: &Fs, original: &[u8], path: &[u8]) -> Result<()> {
    place::check(path)?;
    place::pinned(fs, original, Follow::No, |inode| {
        place::at_parent(fs, path, |place| {
            check_new(fs, place)?;
            fs.link(inode, place.dir, place.name)
        })
    })
}

/// Refuses a place where only the name of a directory could be made.
fn check_new(fs: &Fs, place: &Place<'_>) -> Result<()> {
    if !place.is_name() {
        return Err(Error::Exists);
    }
    if place.ending == Ending::Slash {
        fs.lookup_once(place.dir, place.name)?;
        return Err(Error::Exists);
    }
    Ok(())
}

/// Refuses a place where there is something else than a directory. Symbolic links are not followed.
fn check_directory(fs: &Fs, place: &Place<'_>) -> Result<()> {
    let nr = fs.lookup_once(place.dir, place.name)?;
    match fs.stat(nr)?.file_type {
        FileType::Directory => Ok(()),
        _ => Err(Error::NotADirectory),
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn components_end_before_slashes_and_with_the_path() {
        assert_eq!(component_ends(b"/a//bc/d/"), [2, 6, 9]);
        assert_eq!(component_ends(b"a"), [1]);
        assert_eq!(component_ends(b"/"), [1]);
        assert_eq!(component_ends(b"//a"), [3]);
        assert_eq!(component_ends(b"a/./b/."), [1, 7]);
        assert_eq!(component_ends(b"./a/.b/.."), [1, 3, 6, 9]);
        assert_eq!(component_ends(b"/."), [2]);
    }
}
