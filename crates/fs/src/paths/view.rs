//! **Purpose.** The public calls by path: one line each, which names the module that does the work.
//!
//! **Invariants.** Calls that change something fail with `ReadOnly` if the file system was opened
//! for reading.

use std::ops::Deref;

use fourscore_sync::Arc;

use crate::dir::find::OwnedDirEntry;
use crate::dir::new_inode::NewAttributes;
use crate::dir::path::Follow;
use crate::inode::caller::AttributeChange;
use crate::inode::stat::Stat;
use crate::paths::as_path::AsPath;
use crate::paths::file::File;
use crate::paths::options::FileOptions;
use crate::paths::walk::Walk;
use crate::paths::{content, names, open, place, remove};
use crate::{Error, Fs, Result};

/// The permissions of a new file, a new directory and a new symbolic link, before the umask.
const FILE: u16 = 0o666;
const DIRECTORY: u16 = 0o777;
const LINK: u16 = 0o777;

/// The calls of `std::fs` for a file system: by path, with the owner and the umask of what they
/// make.
///
/// ```no_run
/// # use fourscore::{Fs, Result};
/// # fn f(fs: &Fs) -> Result<()> {
/// let files = fs.paths();
/// files.create_dir_all("/srv/www")?;
/// files.write("/srv/www/index.html", "<p>hello")?;
/// for entry in files.walk("/srv") {
///     println!("{}", String::from_utf8_lossy(&entry?.path));
/// }
/// # Ok(())
/// # }
/// ```
///
/// [`Fs::paths`] borrows the file system. For files that outlive the borrow, such as those that are
/// handed to threads, [`Paths::new`] takes an `Arc<Fs>`; then each open file holds a reference to
/// it.
///
/// Paths are anything that is [`AsPath`]; they start at the root. The calls resolve symbolic links,
/// `.`, `..` and trailing slashes as Linux does, and fail with the errors that `std::fs` has on
/// Linux: [`std::io::Error`] is made of [`Error`] by `?`. They check no permission. They can be
/// used while other threads change names: what a call changes is what its path referred to at some
/// moment during the call.
#[derive(Clone, Copy, Debug)]
pub struct Paths<F: Deref<Target = Fs> = Arc<Fs>> {
    fs: F,
    uid: u32,
    gid: u32,
    umask: u16,
}

impl Fs {
    /// Returns the calls by path. What they make belongs to user and group 0, with umask 0o022,
    /// unless [`Paths::uid`] and its kin say otherwise.
    #[must_use]
    pub fn paths(&self) -> Paths<&Self> {
        Paths::new(self)
    }
}

impl<F: Deref<Target = Fs>> Paths<F> {
    /// As [`Fs::paths`], with a reference of any kind to the file system.
    #[must_use]
    pub fn new(fs: F) -> Self {
        Self {
            fs,
            uid: 0,
            gid: 0,
            umask: 0o022,
        }
    }

    /// Sets the user that owns what is made.
    #[must_use]
    pub fn uid(mut self, uid: u32) -> Self {
        self.uid = uid;
        self
    }

    /// Sets the group that owns what is made, unless the directory gives its own.
    #[must_use]
    pub fn gid(mut self, gid: u32) -> Self {
        self.gid = gid;
        self
    }

    /// Sets the permissions that are left out of those of new files and directories.
    #[must_use]
    pub fn umask(mut self, umask: u16) -> Self {
        self.umask = umask;
        self
    }

    fn new_with(&self, permissions: u16) -> NewAttributes {
        NewAttributes {
            permissions,
            umask: self.umask,
            uid: self.uid,
            gid: self.gid,
        }
    }

    /// Returns the data of a file. Memory for all of it is needed; [`Paths::metadata`] says how
    /// much that is.
    ///
    /// # Errors
    /// `IsADirectory`; `InvalidArgument` for what is neither a file nor a directory; as
    /// [`Fs::resolve`].
    pub fn read(&self, path: impl AsPath) -> Result<Vec<u8>> {
        content::read(&self.fs, path.path_bytes())
    }

    /// Returns the data of a file as text.
    ///
    /// # Errors
    /// As [`Paths::read`]; `NotUtf8`.
    pub fn read_to_string(&self, path: impl AsPath) -> Result<String> {
        content::read_to_string(&self.fs, path.path_bytes())
    }

    /// Replaces the data of a file, which is made if it is missing. Other threads may see the file
    /// before all of the data is there. Durable after [`Fs::sync`], or as [`File::sync_all`] says.
    ///
    /// # Errors
    /// As [`Paths::open_with`] and [`Fs::write_at`].
    pub fn write(&self, path: impl AsPath, contents: impl AsRef<[u8]>) -> Result<()> {
        let new = self.new_with(FILE);
        content::write(&self.fs, path.path_bytes(), contents.as_ref(), &new)
    }

    /// Copies the data and the permissions of a file, and returns the number of its bytes. Holes
    /// stay holes. The target is replaced if it exists; owner, times and extended attributes are
    /// not copied.
    ///
    /// # Errors
    /// `InvalidArgument` for a source or a target that is not a regular file, and if both are the
    /// same file; then nothing is changed. As [`Paths::open_with`] and [`Fs::copy_file_range`]; a
    /// part may be copied then.
    pub fn copy(&self, from: impl AsPath, to: impl AsPath) -> Result<u64> {
        let new = self.new_with(FILE);
        content::copy(&self.fs, from.path_bytes(), to.path_bytes(), &new)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`; `NotFound` and `NotADirectory` for a parent that is missing or is none; as
    /// [`Fs::mkdir`].
    pub fn create_dir(&self, path: impl AsPath) -> Result<()> {
        names::create_dir(&self.fs, path.path_bytes(), &self.new_with(DIRECTORY))
    }

    /// Makes a directory and all that are missing on the way to it. Directories that exist, or that
    /// other threads make meanwhile, are no error.
    ///
    /// # Errors
    /// `NotADirectory` and `Exists` if something else is in the way; as [`Fs::mkdir`].
    pub fn create_dir_all(&self, path: impl AsPath) -> Result<()> {
        names::create_dir_all(&self.fs, path.path_bytes(), &self.new_with(DIRECTORY))
    }

    /// Removes the name of a file, of a symbolic link, or of anything else but a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`; as [`Fs::unlink`].
    pub fn remove_file(&self, path: impl AsPath) -> Result<()> {
        names::remove_file(&self.fs, path.path_bytes())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NotEmpty`; `Busy` for the root; as [`Fs::rmdir`].
    pub fn remove_dir(&self, path: impl AsPath) -> Result<()> {
        names::remove_dir(&self.fs, path.path_bytes())
    }

    /// Removes a directory and everything in it, or a symbolic link. Links are removed and never
    /// followed, also if other threads put them in the place of directories meanwhile. Names that
    /// other threads remove meanwhile are no error. Each name is removed by itself: after an error
    /// or a crash a part may be there.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`; `NotEmpty` if other threads go on making names there; for the
    /// root, `.` and `..` the errors of [`Paths::remove_dir`], and nothing is removed.
    pub fn remove_dir_all(&self, path: impl AsPath) -> Result<()> {
        remove::remove_dir_all(&self.fs, path.path_bytes())
    }

    /// Moves the name `from` to `to`, in one step. If `to` exists it is replaced. Symbolic links at
    /// the end of either path are not followed.
    ///
    /// # Errors
    /// As [`Fs::rename`].
    pub fn rename(&self, from: impl AsPath, to: impl AsPath) -> Result<()> {
        names::rename(&self.fs, from.path_bytes(), to.path_bytes())
    }

    /// Makes a symbolic link at `link` that refers to `original`, which need not exist.
    ///
    /// # Errors
    /// As [`Fs::symlink`].
    pub fn symlink(&self, original: impl AsPath, link: impl AsPath) -> Result<()> {
        let new = self.new_with(LINK);
        let new = NewAttributes { umask: 0, ..new };
        names::symlink(&self.fs, original.path_bytes(), link.path_bytes(), &new)
    }

    /// Gives the file at `original` another name. A symbolic link there is not followed.
    ///
    /// # Errors
    /// As [`Fs::link`].
    pub fn hard_link(&self, original: impl AsPath, link: impl AsPath) -> Result<()> {
        names::hard_link(&self.fs, original.path_bytes(), link.path_bytes())
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidArgument` for anything but a symbolic link.
    pub fn read_link(&self, path: impl AsPath) -> Result<Vec<u8>> {
        let read = |nr| self.fs.read_link(nr);
        place::reading(&self.fs, path.path_bytes(), Follow::No, read)
    }

    /// Returns the attributes of what `path` refers to; symbolic links are followed.
    ///
    /// # Errors
    /// As [`Fs::resolve`] and [`Fs::stat`].
    pub fn metadata(&self, path: impl AsPath) -> Result<Stat> {
        let stat = |nr| self.fs.stat(nr);
        place::reading(&self.fs, path.path_bytes(), Follow::Yes, stat)
    }

    /// As [`Paths::metadata`], but of a symbolic link itself.
    ///
    /// # Errors
    /// As [`Paths::metadata`].
    pub fn symlink_metadata(&self, path: impl AsPath) -> Result<Stat> {
        let stat = |nr| self.fs.stat(nr);
        place::reading(&self.fs, path.path_bytes(), Follow::No, stat)
    }

    /// Whether there is something at `path`; symbolic links are followed.
    ///
    /// # Errors
    /// As [`Paths::metadata`], but for `NotFound`.
    pub fn exists(&self, path: impl AsPath) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the entries of a directory, without `.` and `..`.
    ///
    /// # Errors
    /// As [`Fs::resolve`] and [`Fs::read_dir`].
    pub fn read_dir(&self, path: impl AsPath) -> Result<Vec<OwnedDirEntry>> {
        let list = |nr| self.fs.read_dir(nr);
        let mut entries = place::reading(&self.fs, path.path_bytes(), Follow::Yes, list)?;
        entries.retain(|entry| !matches!(&entry.name[..], b"." | b".."));
        Ok(entries)
    }

    /// Changes attributes: permissions, owner, group, times. Symbolic links are followed.
    ///
    /// # Errors
    /// As [`Fs::resolve`] and [`Fs::set_attributes`].
    pub fn set_attributes(&self, path: impl AsPath, change: &AttributeChange) -> Result<()> {
        let set = |nr| self.fs.set_attributes(nr, change);
        place::pinned(&self.fs, path.path_bytes(), Follow::Yes, set)
    }

    /// Sets the permissions, set-id bits and the sticky bit: 0o7777 at most. Symbolic links are
    /// followed.
    ///
    /// # Errors
    /// As [`Paths::set_attributes`].
    pub fn set_permissions(&self, path: impl AsPath, permissions: u16) -> Result<()> {
        let change = AttributeChange {
            permissions: Some(permissions),
            ..AttributeChange::default()
        };
        self.set_attributes(path, &change)
    }

    /// Sets the user and the group that own a file; `None` leaves one as it is. Symbolic links are
    /// followed.
    ///
    /// # Errors
    /// As [`Paths::set_attributes`].
    pub fn chown(&self, path: impl AsPath, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let change = AttributeChange {
            uid,
            gid,
            ..AttributeChange::default()
        };
        self.set_attributes(path, &change)
    }
}

impl<F: Deref<Target = Fs> + Clone> Paths<F> {
    /// Opens a file for reading, or a directory, whose [`File`] can be made durable.
    ///
    /// # Errors
    /// As [`Fs::resolve`].
    pub fn open(&self, path: impl AsPath) -> Result<File<F>> {
        self.open_with(path, FileOptions::new().read())
    }

    /// Opens a file for writing, makes it if it is missing, and removes its data otherwise.
    ///
    /// # Errors
    /// As [`Paths::open_with`].
    pub fn create(&self, path: impl AsPath) -> Result<File<F>> {
        self.open_with(path, FileOptions::new().write().create().truncate())
    }

    /// Makes a file and opens it for reading and writing; `Exists` if its name is taken.
    ///
    /// # Errors
    /// As [`Paths::open_with`].
    pub fn create_new(&self, path: impl AsPath) -> Result<File<F>> {
        self.open_with(path, FileOptions::new().read().write().create_new())
    }

    /// Opens a file as `options` say.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`; `IsADirectory` for a directory that is opened for writing, and
    /// for a path with a slash at its end at which a file is to be made; `Exists` with
    /// [`FileOptions::create_new`]; `InvalidArgument` for options that do not go together;
    /// `ReadOnly` for writing in a file system that was opened for reading; as [`Fs::create`].
    pub fn open_with(&self, path: impl AsPath, options: FileOptions) -> Result<File<F>> {
        let new = self.new_with(options.mode);
        open::open(&self.fs, path.path_bytes(), options, &new)
    }

    /// Returns an iterator over everything below the directory `path`, depth first. A symbolic link
    /// at the end of `path` is followed, and none below it.
    ///
    /// The iterator returns errors as items, and goes on behind what has an error. If `path` is not
    /// a directory, its only item is the error.
    pub fn walk(&self, path: impl AsPath) -> Walk<F> {
        Walk::new(self.fs.clone(), path.path_bytes())
    }
}
