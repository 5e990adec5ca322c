//! **Purpose.** Removes a directory with everything in it.
//!
//! **Model.** Each directory is listed, its files are unlinked at once, and its subdirectories are
//! entered one after the other; a directory is removed when all of them are gone. Directories are
//! entered by name from their parent, which is pinned, so no symbolic link is followed, whatever
//! other threads put in the place of a directory. The directories between the first one and the
//! current one are on a stack in memory and not on the thread's.
//!
//! **Invariants.** Names that vanish meanwhile are no error. A directory into which other threads
//! put names is listed again at most [`LISTINGS`] times. A directory on the stack is not entered
//! again, so a cyclic tree terminates.
//!
//! **Locking.** None is held between the steps.

use std::collections::HashSet;
use std::ops::ControlFlow;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;

use crate::inode::cell::Pinned;
use crate::paths::place::{self, Ending, Place};
use crate::{Error, Fs, Result};

/// How often a directory is listed before names that appear in it meanwhile are an error.
const LISTINGS: u32 = 16;

/// A directory that is being emptied.
struct Level {
    nr: InodeNr,
    _pinned: Pinned,
    /// Its name in the directory above.
    name: Vec<u8>,
    /// The names of subdirectories that are still there.
    directories: Vec<Vec<u8>>,
    listings: u32,
}

/// Removes what is at `path`, which must be a directory or a symbolic link.
pub(crate) fn remove_dir_all(fs: &Fs, path: &[u8]) -> Result<()> {
    fs.writable()?;
    place::at_parent(fs, path, |place| {
        match place.name {
            b"" => return Err(Error::Busy),
            // Refused before anything is removed.
            b"." | b".." => return fs.rmdir(place.dir, place.name),
            _ => {}
        }
        let (nr, pinned) = place::pin_name(&fs.core, place.dir, place.name)?;
        let file_type = fs.stat(nr)?.file_type;
        drop(pinned);
        match file_type {
            FileType::Directory => remove_tree(fs, place),
            FileType::Symlink if place.ending == Ending::Nothing => {
                fs.unlink(place.dir, place.name)
            }
            _ => Err(Error::NotADirectory),
        }
    })
}

fn remove_tree(fs: &Fs, top: &Place<'_>) -> Result<()> {
    let first = enter(fs, top.dir, top.name.to_vec(), 1)?;
    let mut entered = HashSet::from([first.nr]);
    let mut stack = vec![first];
    while let Some(level) = stack.last_mut() {
        if let Some(name) = level.directories.pop() {
            let parent = level.nr;
            match enter(fs, parent, name, 1) {
                // What holds itself is left, so the directory above is not empty.
                Ok(below) if !entered.insert(below.nr) => {}
                Ok(below) => stack.push(below),
                Err(Error::NotFound | Error::NotADirectory) => {}
                Err(error) => return Err(error),
            }
            continue;
        }
        let Some(done) = stack.pop() else { break };
        entered.remove(&done.nr);
        let parent = stack.last().map_or(top.dir, |above| above.nr);
        match fs.rmdir(parent, &done.name) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(Error::NotEmpty) if done.listings < LISTINGS => {
                match enter(fs, parent, done.name, done.listings + 1) {
                    Ok(again) if entered.insert(again.nr) => stack.push(again),
                    Ok(_) => return Err(Error::NotEmpty),
                    Err(Error::NotFound) => {}
                    Err(Error::NotADirectory) if !stack.is_empty() => {}
                    Err(error) => return Err(error),
                }
            }
            // The name is that of a file by now, which the next listing removes.
            Err(Error::NotADirectory) if !stack.is_empty() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Unlinks the files of the directory `name` in `parent`, and returns its subdirectories.
fn enter(fs: &Fs, parent: InodeNr, name: Vec<u8>, listings: u32) -> Result<Level> {
    let (nr, pinned) = place::pin_name(&fs.core, parent, &name)?;
    let mut names: Vec<(Vec<u8>, Option<FileType>)> = Vec::new();
    fs.for_each_entry(nr, |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push((entry.name.to_vec(), entry.file_type));
        }
        ControlFlow::Continue(())
    })?;
    let mut directories = Vec::new();
    for (name, file_type) in names {
        if file_type == Some(FileType::Directory) {
            directories.push(name);
            continue;
        }
        match fs.unlink(nr, &name) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(Error::IsADirectory) => directories.push(name),
            Err(error) => return Err(error),
        }
    }
    Ok(Level {
        nr,
        _pinned: pinned,
        name,
        directories,
        listings,
    })
}
