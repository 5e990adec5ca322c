//! **Purpose.** Iterates over everything below a directory, depth first.
//!
//! **Model.** The directories between the first one and the current one are on a stack, each with
//! the names that are still to come. Symbolic links are not followed.
//!
//! **Invariants.** No directory is entered twice, so that a cyclic tree terminates; this takes
//! memory for one number per directory. Names that vanish meanwhile are left out.
//!
//! **Locking.** None. In a file system that is mounted for writing the directories on the stack are
//! pinned, so that their numbers are not reused.

use std::collections::HashSet;
use std::fmt;
use std::ops::{ControlFlow, Deref};
use std::vec::IntoIter;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;
use fourscore_sync::Arc;

use crate::dir::find::OwnedDirEntry;
use crate::dir::path::Follow;
use crate::inode::cache;
use crate::inode::cell::Pinned;
use crate::paths::place;
use crate::{Error, Fs, Result};

/// A file or directory that a walk came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WalkEntry {
    /// Its path: the path at which the walk began, and the names below it.
    pub path: Vec<u8>,
    /// Its inode.
    pub inode: InodeNr,
    /// Its type. Symbolic links are not followed.
    pub file_type: FileType,
}

impl WalkEntry {
    /// Returns the last component of the path.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        let begin = self.path.iter().rposition(|&byte| byte == b'/');
        &self.path[begin.map_or(0, |slash| slash + 1)..]
    }
}

/// The iterator that [`Paths::walk`](crate::Paths::walk) returns. A directory comes before what is
/// in it; the order inside of a directory is that of [`Fs::read_dir`]. An error that a directory
/// cannot be listed comes after that directory, and the walk goes on behind it.
pub struct Walk<F: Deref<Target = Fs> = Arc<Fs>> {
    fs: F,
    /// The path of the last entry.
    path: Vec<u8>,
    stack: Vec<Level>,
    entered: HashSet<InodeNr>,
    buf: Vec<u8>,
    /// The error of entering the directory that was returned last.
    error: Option<Error>,
}

/// A directory whose names are being visited.
struct Level {
    nr: InodeNr,
    _pinned: Option<Pinned>,
    entries: IntoIter<OwnedDirEntry>,
    /// The length of its path.
    path_bytes: usize,
}

impl<F: Deref<Target = Fs>> Walk<F> {
    pub(crate) fn new(fs: F, path: &[u8]) -> Self {
        let mut walk = Self {
            fs,
            path: path.to_vec(),
            stack: Vec::new(),
            entered: HashSet::new(),
            buf: Vec::new(),
            error: None,
        };
        if let Err(error) = walk.begin() {
            walk.error = Some(error);
        }
        walk
    }

    fn begin(&mut self) -> Result<()> {
        if self.fs.mount.is_none() {
            place::check(&self.path)?;
            let nr = self.fs.resolve(&self.path, Follow::Yes)?;
            return self.enter(nr, None);
        }
        let core = &self.fs.core;
        let pin = |nr| Ok((nr, cache::pin_inode(core, nr)?));
        let (nr, pinned) = place::pinned(&self.fs, &self.path, Follow::Yes, pin)?;
        self.enter(nr, Some(pinned))
    }

    /// Lists a directory, and puts it on the stack.
    fn enter(&mut self, nr: InodeNr, pinned: Option<Pinned>) -> Result<()> {
        if !self.entered.insert(nr) {
            return Ok(());
        }
        let mut entries = Vec::new();
        self.fs.scan_entries(nr, &mut self.buf, |entry| {
            if !matches!(entry.name, b"." | b"..") {
                entries.push(entry.to_owned());
            }
            ControlFlow::Continue(())
        })?;
        self.stack.push(Level {
            nr,
            _pinned: pinned,
            entries: entries.into_iter(),
            path_bytes: self.path.len(),
        });
        Ok(())
    }

    /// Enters the directory `entry` of the directory `parent`, if it is still there.
    fn enter_below(&mut self, parent: InodeNr, entry: &OwnedDirEntry) -> Result<()> {
        if self.fs.mount.is_none() {
            return self.enter(entry.inode, None);
        }
        let entered = place::pin_name(&self.fs.core, parent, &entry.name)
            .and_then(|(nr, pinned)| self.enter(nr, Some(pinned)));
        match entered {
            Err(Error::NotFound | Error::NotADirectory) => Ok(()),
            entered => entered,
        }
    }

    fn type_of(&self, entry: &OwnedDirEntry) -> Result<FileType> {
        match entry.file_type {
            Some(file_type) => Ok(file_type),
            None => Ok(self.fs.scan(entry.inode)?.stat.file_type),
        }
    }
}

impl<F: Deref<Target = Fs>> Iterator for Walk<F> {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        loop {
            let level = self.stack.last_mut()?;
            let (parent, path_bytes) = (level.nr, level.path_bytes);
            let Some(entry) = level.entries.next() else {
                self.stack.pop();
                continue;
            };
            self.path.truncate(path_bytes);
            if !self.path.ends_with(b"/") {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&entry.name);
            let file_type = match self.type_of(&entry) {
                Ok(file_type) => file_type,
                Err(Error::NotFound) if self.fs.mount.is_some() => continue,
                Err(error) => return Some(Err(error)),
            };
            let found = WalkEntry {
                path: self.path.clone(),
                inode: entry.inode,
                file_type,
            };
            if file_type == FileType::Directory {
                self.error = self.enter_below(parent, &entry).err();
            }
            return Some(Ok(found));
        }
    }
}

impl<F: Deref<Target = Fs>> fmt::Debug for Walk<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = String::from_utf8_lossy(&self.path);
        f.debug_tuple("Walk").field(&path).finish()
    }
}
