//! **Purpose.** Directories and names: the public calls of [`Fs`].
//!
//! **Not here.** The work itself: each call passes the core or the mount to a module of `dir`.
//!
//! **Invariants.** Calls that change something fail with `ReadOnly` if the file system was opened
//! for reading.

use std::ops::ControlFlow;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::{DeviceNr, FileType};

use crate::dir::find::{self, DirEntry, OwnedDirEntry};
use crate::dir::new_inode::NewAttributes;
use crate::dir::path::{self, Follow};
use crate::dir::rename::{self, Replace};
use crate::dir::{create, exchange, listing, remove};
use crate::{Fs, Result};

impl Fs {
    /// Makes an empty regular file.
    ///
    /// # Errors
    /// `Exists`, `NotADirectory`, `NameTooLong`, `NoSpace`, `ReadOnly`; `NoKey` if names are
    /// encrypted; `InvalidArgument` for a name that is not valid in the directory's encoding, if
    /// that is strict.
    pub fn create(&self, dir: InodeNr, name: &[u8], new: &NewAttributes) -> Result<InodeNr> {
        create::create(self.writable()?, dir, name, new)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Fs::create`]; `TooManyLinks` if the parent cannot have another subdirectory.
    pub fn mkdir(&self, dir: InodeNr, name: &[u8], new: &NewAttributes) -> Result<InodeNr> {
        create::mkdir(self.writable()?, dir, name, new)
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// As [`Fs::create`]; `NameTooLong` for a target that does not fit into a block with a zero
    /// byte after it.
    pub fn symlink(
        &self,
        dir: InodeNr,
        name: &[u8],
        target: &[u8],
        new: &NewAttributes,
    ) -> Result<InodeNr> {
        create::symlink(self.writable()?, dir, name, target, new)
    }

    /// Makes a device node, a fifo or a socket; `device` is used for device nodes only.
    ///
    /// # Errors
    /// As [`Fs::create`]; `InvalidArgument` for other types, and for a device number that does not
    /// fit.
    pub fn mknod(
        &self,
        dir: InodeNr,
        name: &[u8],
        file_type: FileType,
        device: DeviceNr,
        new: &NewAttributes,
    ) -> Result<InodeNr> {
        create::mknod(self.writable()?, dir, name, file_type, device, new)
    }

    /// Gives `inode` another name, or gives the first one to a file that was made without a name
    /// ([`OpenInode::unnamed`](crate::OpenInode::unnamed)). Directories cannot have two names.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for a directory, `TooManyLinks`, and as [`Fs::create`]; `NotFound`
    /// for a file that has lost its last name.
    pub fn link(&self, inode: InodeNr, dir: InodeNr, name: &[u8]) -> Result<()> {
        create::link(self.writable()?, inode, dir, name)
    }

    /// Exchanges the names `one` and `other`, which both exist.
    ///
    /// # Errors
    /// As [`Fs::rename`]; `NotFound` if either is missing.
    pub fn exchange(&self, one: (InodeNr, &[u8]), other: (InodeNr, &[u8])) -> Result<()> {
        exchange::exchange(self.writable()?, one, other)
    }

    /// Returns the inode that `name` refers to in directory `dir`.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`.
    pub fn lookup(&self, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
        find::lookup(&self.core, dir, name)
    }

    /// As [`Fs::lookup`], for callers that look many names up once, such as a walk of the whole
    /// tree: the lookup uses the name cache but does not insert the name.
    ///
    /// # Errors
    /// As [`Fs::lookup`].
    pub fn lookup_once(&self, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
        find::lookup_once(&self.core, dir, name)
    }

    /// Calls `visit` for each entry of a directory, `.` and `..` included. The order is that of its
    /// blocks or, if the directory has an index and the file system is mounted for writing, that of
    /// its leaves in the index. Names that other threads change meanwhile may be listed or not;
    /// every other name is listed once.
    ///
    /// # Errors
    /// `NotADirectory`; `NotFound`, also if the directory is removed meanwhile; `Corrupt` for the
    /// first block that breaks the format.
    pub fn for_each_entry(
        &self,
        dir: InodeNr,
        visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        listing::for_each_entry(&self.core, dir, visit)
    }

    /// As [`Fs::for_each_entry`], for callers that list many directories once, such as a walk of
    /// the whole tree: neither the directory nor its blocks enter a cache, which costs more than
    /// reading them. Blocks that are not in memory are read into `buf`, which is reused from call
    /// to call.
    ///
    /// # Errors
    /// As [`Fs::for_each_entry`].
    pub fn scan_entries(
        &self,
        dir: InodeNr,
        buf: &mut Vec<u8>,
        visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        listing::scan_entries(&self.core, dir, buf, visit)
    }

    /// Returns all entries of a directory, as [`Fs::for_each_entry`] visits them.
    ///
    /// # Errors
    /// As [`Fs::for_each_entry`].
    pub fn read_dir(&self, dir: InodeNr) -> Result<Vec<OwnedDirEntry>> {
        listing::read_dir(&self.core, dir)
    }

    /// Returns the inode at `path`, which starts at the root whether it begins with a slash or not.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `TooManySymlinks`, `NameTooLong`.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<InodeNr> {
        path::resolve(&self.core, path, follow)
    }

    /// Removes a name. The inode is removed with its last name or, if it is open
    /// ([`OpenInode`](crate::OpenInode)), when it is closed.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `ReadOnly`; `NotPermitted` if flags of an inode forbid it.
    pub fn unlink(&self, dir: InodeNr, name: &[u8]) -> Result<()> {
        remove::unlink(self.writable()?, dir, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NotEmpty`, `InvalidArgument` for `.`, `ReadOnly`;
    /// `NotPermitted` if flags of an inode forbid it.
    pub fn rmdir(&self, dir: InodeNr, name: &[u8]) -> Result<()> {
        remove::rmdir(self.writable()?, dir, name)
    }

    /// Moves the name `from` to `to`.
    ///
    /// # Errors
    /// As rename(2): `NotFound`; `Exists` with [`Replace::No`]; `NotEmpty`, `IsADirectory` and
    /// `NotADirectory` for a name that cannot be replaced; `InvalidArgument` for a directory that
    /// would be moved below itself; `Busy` for `.` and `..`; `NotPermitted` if flags of an inode
    /// forbid it; `CrossDevice` if the directory accepts only inodes of its own project.
    pub fn rename(
        &self,
        from: (InodeNr, &[u8]),
        to: (InodeNr, &[u8]),
        replace: Replace,
    ) -> Result<()> {
        rename::rename(self.writable()?, from, to, replace)
    }

    /// Moves the name `from` to `to`, and leaves a whiteout under the old name: the character
    /// device 0:0, with which overlayfs hides the name in a layer below. `owner` determines its
    /// user and group.
    ///
    /// # Errors
    /// As [`Fs::rename`], and `NoSpace`.
    pub fn rename_leaving_whiteout(
        &self,
        from: (InodeNr, &[u8]),
        to: (InodeNr, &[u8]),
        replace: Replace,
        owner: &NewAttributes,
    ) -> Result<()> {
        rename::rename_leaving_whiteout(self.writable()?, from, to, replace, owner)
    }
}
