//! **Purpose.** Gives a finished file its name, and replaces only what may be replaced.
//!
//! **Model.** The caller decides at the beginning what the file may replace ([`Replaces`]). Another
//! program can create, replace or remove that name until the end, so that nothing depends on a look
//! at it before:
//!
//! | [`Replaces`] | the name is given by | if that is not supported |
//! |---|---|---|
//! | `Nothing` | link(2), or `RENAME_NOREPLACE` | an empty file of its own, replaced |
//! | `Found` | `RENAME_EXCHANGE`, then a look at what was replaced | a look before, a rename |
//! | `Anything` | link(2), or a rename | |
//!
//! What was exchanged and is not the file that was found gets its name back. So the only case in
//! which a file of another program can be lost is the second one of a file system without
//! `RENAME_EXCHANGE`, if that program creates the file between the look and the rename.
//!
//! A file that replaces another one gets its owner, group and permissions, in this order: no user
//! ever has more access to the new file than to the old one.
//!
//! **Invariants.** No file of another program is removed. A temporary name has a fixed length, so
//! that a target of any valid length works.
//!
//! **Crash safety.** The name is durable on return. A crash can leave a temporary name,
//! `.fourscore.PID.N`, for an instant also of the old file; the target is always one of the two.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;

use crate::target::directory_of;

/// Temporary names that are tried: others are of killed processes with the same number.
const NAMES_MAX: u32 = 1000;
/// Mode of a file that replaces one whose permissions it does not have yet.
const PRIVATE: u32 = 0o600;

/// What a file may replace when it gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// Nothing: a file that has the name by then is an error.
    Nothing,
    /// The file that was found under the name, unchanged, and no other.
    Found(FileId),
    /// Whatever has the name by then.
    Anything,
}

/// What distinguishes a file, in one state, from all others. The time of its change (ctime) is a
/// part of it, since inode numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    changed_seconds: i64,
    changed_nanoseconds: i64,
}

impl FileId {
    /// The file with these attributes.
    #[must_use]
    pub fn of(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            changed_seconds: found.ctime(),
            changed_nanoseconds: found.ctime_nsec(),
        }
    }

    /// Whether it is the same file, changed or not: a rename changes its ctime.
    fn is_file(&self, other: &Metadata) -> bool {
        (self.device, self.inode) == (other.dev(), other.ino())
    }
}

/// Gives an open file that has no name (`O_TMPFILE`) the name `target`, durably. If it replaces a
/// file it first gets its owner, group and permissions, as far as the user may set them.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the name has a file that may not be replaced, which is left
/// alone; otherwise the host's error. The file has no name then.
pub fn put_in_place(file: &File, target: &Path, replaces: Replaces) -> io::Result<()> {
    keep_attributes(file, target, replaces)?;
    let linked = match replaces {
        Replaces::Found(_) => Err(Errno::EXIST),
        Replaces::Nothing | Replaces::Anything => link(file, target),
    };
    match (linked, replaces) {
        (Ok(()), _) => {}
        (Err(Errno::EXIST), Replaces::Nothing) => return Err(appeared()),
        (Err(Errno::EXIST), _) => {
            HiddenFile::of_unlinked(file, target)?.rename(target, replaces)?;
        }
        (Err(error), _) => return Err(error.into()),
    }
    sync_directory_of(target)
}

fn link(file: &File, to: &Path) -> rustix::io::Result<()> {
    rustix::fs::linkat(CWD, proc_path(file), CWD, to, AtFlags::SYMLINK_FOLLOW)
}

/// A path by which an open file can be opened again.
pub(super) fn proc_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn appeared() -> io::Error {
    let why = "was created by another program meanwhile, and is left alone";
    io::Error::new(io::ErrorKind::AlreadyExists, why)
}

fn changed() -> io::Error {
    let why = "was changed by another program meanwhile, and is left alone";
    io::Error::new(io::ErrorKind::AlreadyExists, why)
}

/// Copies owner, group and permissions of the file that is replaced. The permissions are last,
/// when it is known whose they are.
pub(super) fn keep_attributes(file: &File, target: &Path, replaces: Replaces) -> io::Result<()> {
    let before = match fs::symlink_metadata(target) {
        Ok(before) if before.is_file() && replaces != Replaces::Nothing => before,
        _ => return Ok(()),
    };
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
        // A user without root cannot give a file away, but may set a group that the user is in.
        // What was kept is looked at below.
        let both = fchown(file, Some(before.uid()), Some(before.gid()));
        let _ = both.or_else(|_| fchown(file, None, Some(before.gid())));
    }
    let mode = kept_mode(&before, &file.metadata()?);
    file.set_permissions(Permissions::from_mode(mode))
}

/// The permissions of `before` for a file that has the owner and group of `own`. Without the group,
/// its members and all others have what both had: a member is now one of the others. Set-ID bits
/// are kept with the owner and group that they stand for.
fn kept_mode(before: &Metadata, own: &Metadata) -> u32 {
    let mode = before.mode() & 0o7777;
    let has_group = own.gid() == before.gid();
    let both = mode >> 3 & mode & 0o007;
    let mode = match has_group {
        true => mode,
        false => mode & 0o7700 | both << 3 | both,
    };
    match has_group && own.uid() == before.uid() {
        true => mode,
        false => mode & 0o1777,
    }
}

/// Makes a new name in the directory of `path` durable, as far as the host supports it.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let synced = File::open(directory_of(path)).and_then(|folder| folder.sync_all());
    match synced.as_ref().map_err(io::Error::kind) {
        // The directory may be writable but not readable, or the host may not support fsync of
        // directories.
        Err(io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) => Ok(()),
        _ => synced,
    }
}

/// A file with a temporary name, which is removed on drop unless it was renamed.
#[derive(Debug)]
pub(crate) struct HiddenFile {
    path: PathBuf,
    file: File,
    /// The name is removed on drop.
    is_own: bool,
}

impl HiddenFile {
    /// Creates an empty file next to the target, which only the user can open if the target exists.
    pub(crate) fn create(target: &Path) -> io::Result<Self> {
        let mode = match fs::symlink_metadata(target).is_ok_and(|found| found.is_file()) {
            true => PRIVATE,
            false => 0o666,
        };
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(mode);
        let (path, file) = free_name(target, |path| options.open(path))?;
        Ok(Self {
            path,
            file,
            is_own: true,
        })
    }

    /// Gives an unlinked file a temporary name next to the target.
    fn of_unlinked(file: &File, target: &Path) -> io::Result<Self> {
        let file = file.try_clone()?;
        let (path, ()) = free_name(target, |path| link(&file, path).map_err(io::Error::from))?;
        Ok(Self {
            path,
            file,
            is_own: true,
        })
    }

    /// The temporary name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file the attributes of the one that it replaces, and the name `target`, durably.
    ///
    /// # Errors
    /// As [`put_in_place`].
    pub(crate) fn put_in_place(self, target: &Path, replaces: Replaces) -> io::Result<()> {
        keep_attributes(&self.file, target, replaces)?;
        self.rename(target, replaces)?;
        sync_directory_of(target)
    }

    fn rename(self, target: &Path, replaces: Replaces) -> io::Result<()> {
        match replaces {
            Replaces::Anything => fs::rename(&self.path, target),
            Replaces::Nothing => self.take_free_name(target),
            Replaces::Found(found) => self.exchange(target, found),
        }
    }

    fn take_free_name(&self, target: &Path) -> io::Result<()> {
        match self.rename_with(target, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => return Err(appeared()),
            Err(error) if !is_unsupported(error) => return Err(error.into()),
            Err(_) => {}
        }
        let created = File::create_new(target).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => appeared(),
            _ => error,
        });
        created?;
        fs::rename(&self.path, target).inspect_err(|_| {
            // The first error is the one to report.
            let _ = fs::remove_file(target);
        })
    }

    fn exchange(self, target: &Path, found: FileId) -> io::Result<()> {
        match fs::symlink_metadata(target) {
            Ok(now) if FileId::of(&now) == found => self.exchange_now(target, found),
            Ok(_) => Err(changed()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.take_free_name(target),
            Err(error) => Err(error),
        }
    }

    fn exchange_now(mut self, target: &Path, found: FileId) -> io::Result<()> {
        match self.rename_with(target, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return self.take_free_name(target),
            Err(error) if is_unsupported(error) => return fs::rename(&self.path, target),
            Err(error) => return Err(error.into()),
        }
        if fs::symlink_metadata(&self.path).is_ok_and(|replaced| found.is_file(&replaced)) {
            return Ok(());
        }
        // Another file came in between: it gets its name back, and is not removed if that fails.
        self.is_own = false;
        self.rename_with(target, RenameFlags::EXCHANGE)?;
        let own = FileId::of(&self.file.metadata()?);
        self.is_own = own.is_file(&fs::symlink_metadata(&self.path)?);
        Err(changed())
    }

    fn rename_with(&self, target: &Path, flags: RenameFlags) -> rustix::io::Result<()> {
        rustix::fs::renameat_with(CWD, &self.path, CWD, target, flags)
    }
}

impl Drop for HiddenFile {
    fn drop(&mut self) {
        if self.is_own {
            // It does not exist any more if it was renamed; and if the build failed, that error is
            // reported.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a file system, or a library below this program, does not know the flags of a rename.
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Creates something under a temporary name next to the target, which has no name so far.
fn free_name<T>(
    target: &Path,
    mut create: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    if target.file_name().is_none() {
        let why = "has no file name";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut nth = 0;
    loop {
        let name = format!(".fourscore.{}.{nth}", std::process::id());
        let path = target.with_file_name(name);
        match create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && nth < NAMES_MAX => {
                nth += 1;
            }
            created => return created.map(|created| (path, created)),
        }
    }
}

#[cfg(test)]
mod tests;
