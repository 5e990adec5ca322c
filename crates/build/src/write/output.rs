//! **Purpose.** The image while it is written: in a file that has no name until it is complete, or
//! in place.
//!
//! **Not here.** Whether the image may be put there (`target`).
//!
//! **Model.** The file is made without a name (`O_TMPFILE`) in the folder of the target, written,
//! and then linked and renamed over the target, so that the target is at every moment what it was
//! or the whole image. Where the host has no nameless files it has a hidden name, which is removed
//! when the image is given up. A block device and a part of a disk are written in place, through
//! the descriptor that holds their lock.
//!
//! Symbolic links to the target stay; what they lead to is replaced. Permissions and, as far as
//! this user may give files away, the owner of a file that is replaced go over to the image.
//!
//! **Crash safety.** Nothing is left behind by an error, by Ctrl-C, nor, where there are nameless
//! files, by the death of the process. The name is durable once it is given.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fourscore_block::{Access, BlockDevice, DeviceOptions, FileDevice, Sharing, Window, open_path};
use fourscore_mkfs::OldContent;
use fourscore_sync::Arc;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::target::{Form, Part, Target, folder_of};

/// An image that has no content and no size yet, or, where contents arrived before these were
/// known, just these.
#[derive(Debug)]
pub(crate) struct Begun {
    temporary: Temporary,
}

/// An image that is being written.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) disk: Disk,
    temporary: Temporary,
}

/// Where the bytes of an image go.
#[derive(Debug)]
pub(crate) struct Disk {
    file: Arc<FileDevice>,
    start: u64,
    /// Of the file, all that the image may have.
    pub(crate) window: Window,
}

#[derive(Debug)]
enum Temporary {
    /// A file without a name, and what name it gets, if any.
    Nameless(File, Option<PathBuf>),
    /// A file with a name that must not stay, and the one it gets.
    Named(HiddenFile, PathBuf),
    /// The target itself.
    InPlace(Part),
}

/// What the target holds before: a new file nothing, a file whose blocks are discarded zeroes, a
/// block device what the caller knows.
pub(crate) fn old_content(target: &Target, known: OldContent) -> OldContent {
    match target.form() {
        Form::Part(_) if known == OldContent::AllZero => known,
        Form::Part(part) if !part.is_block_device => OldContent::ZeroAfterDiscard,
        Form::Part(_) => known,
        Form::File { .. } | Form::Nameless(_) => OldContent::AllZero,
    }
}

impl Disk {
    fn new(file: Arc<FileDevice>, range: Range<u64>) -> io::Result<Self> {
        Ok(Self {
            start: range.start,
            window: Window::new(Arc::clone(&file) as _, range, Access::ReadWrite)?,
            file,
        })
    }

    /// Has bytes of the image share the blocks of `source`, as
    /// [`FileDevice::share`](fourscore_block::FileDevice::share).
    pub(crate) fn share(&self, range: Range<u64>, source: BorrowedFd<'_>, from: u64) -> bool {
        let moved = self.start + range.start..self.start + range.end;
        range.end <= self.window.len_bytes() && self.file.share(moved, source, from)
    }
}

impl Begun {
    /// Begins an image, all zeroes unless it is written in place.
    pub(crate) fn new(target: &Target) -> io::Result<Self> {
        if let Some((begun, _)) = Self::nameless(target)? {
            return Ok(begun);
        }
        let temporary = match target.form() {
            Form::Part(part) => Temporary::InPlace(part.clone()),
            Form::Nameless(file) => Temporary::Nameless(file.try_clone()?, None),
            Form::File { place, .. } => Temporary::Named(HiddenFile::create(place)?, place.clone()),
        };
        Ok(Self { temporary })
    }

    /// Begins an image in a file without a name, which is given as well; `None` where the host has
    /// no such files, and for what is written in place.
    pub(crate) fn nameless(target: &Target) -> io::Result<Option<(Self, File)>> {
        let (file, place) = match target.form() {
            Form::Part(_) => return Ok(None),
            Form::Nameless(file) => (file.try_clone()?, None),
            Form::File { place, .. } => match nameless(folder_of(place))? {
                Some(file) => (file, Some(place.clone())),
                None => return Ok(None),
            },
        };
        let temporary = Temporary::Nameless(file.try_clone()?, place);
        Ok(Some((Self { temporary }, file)))
    }

    /// Opens the image for writing, with at least so many bytes.
    pub(crate) fn open(self, len_bytes: u64) -> io::Result<Output> {
        let disk = match self.temporary.path() {
            Some(path) => {
                let file = File::options().write(true).open(&path)?;
                if file.metadata()?.len() < len_bytes {
                    file.set_len(len_bytes)?;
                }
                let options = DeviceOptions {
                    sharing: Sharing::Unlocked,
                    ..DeviceOptions::read_write()
                };
                Disk::new(Arc::new(open_path(&path, options)?), 0..len_bytes)?
            }
            None => match &self.temporary {
                Temporary::InPlace(part) => {
                    Disk::new(Arc::clone(&part.device), part.range.clone())?
                }
                _ => return Err(io::ErrorKind::NotFound.into()),
            },
        };
        Ok(Output {
            disk,
            temporary: self.temporary,
        })
    }
}

impl Output {
    /// Takes away what is behind the end of the image.
    pub(crate) fn cut(&self, len_bytes: u64) -> io::Result<()> {
        let Some(path) = self.temporary.path() else {
            return Ok(());
        };
        if self.disk.file.len_bytes() <= len_bytes {
            return Ok(());
        }
        File::options().write(true).open(path)?.set_len(len_bytes)
    }

    /// The image once more, for reading.
    pub(crate) fn reopen(&self) -> io::Result<Arc<dyn BlockDevice>> {
        match self.temporary.path() {
            Some(path) => Ok(Arc::new(open_path(&path, DeviceOptions::default())?)),
            None => {
                let start = self.disk.start;
                let range = start..start + self.disk.window.len_bytes();
                let window = Window::new(Arc::clone(&self.disk.file) as _, range, Access::ReadOnly);
                Ok(Arc::new(window?))
            }
        }
    }

    /// Gives the image its name. Replaces what had it. Durable when it returns.
    pub(crate) fn commit(self) -> io::Result<()> {
        let target = match self.temporary {
            Temporary::InPlace(_) | Temporary::Nameless(_, None) => return Ok(()),
            Temporary::Named(hidden, target) => {
                take_over(&hidden.0, &target)?;
                std::fs::rename(&hidden.0, &target)?;
                target
            }
            Temporary::Nameless(file, Some(target)) => {
                let from = proc_path(&file);
                take_over(&from, &target)?;
                let link =
                    |to: &Path| rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW);
                match link(&target) {
                    Ok(()) => {}
                    Err(Errno::EXIST) => {
                        let path = hidden(&target)?;
                        link(&path)?;
                        std::fs::rename(&HiddenFile(path).0, &target)?;
                    }
                    Err(error) => return Err(error.into()),
                }
                target
            }
        };
        sync_folder(&target)
    }
}

/// Gives the file at `image` the permissions and the owner of the file that it will replace.
fn take_over(image: &Path, target: &Path) -> io::Result<()> {
    let Ok(before) = std::fs::metadata(target) else {
        return Ok(());
    };
    let own = std::fs::metadata(image)?;
    if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
        // A normal user has made a file of his own, as every program does that replaces files.
        let _ = std::os::unix::fs::chown(image, Some(before.uid()), Some(before.gid()));
    }
    std::fs::set_permissions(image, before.permissions())
}

/// Has a name that was given in the folder of `path` be there after a crash, where the host can
/// promise that.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    let synced = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
    match synced.as_ref().map_err(io::Error::kind) {
        // A folder that may be written to and not be read, or a host that syncs no folders.
        Err(io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) => Ok(()),
        _ => synced,
    }
}

impl Temporary {
    /// How the file is opened; `None` if it is open already.
    fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Nameless(file, _) => Some(proc_path(file)),
            Self::Named(hidden, _) => Some(hidden.0.clone()),
            Self::InPlace(_) => None,
        }
    }
}

/// A file with a name that goes when this does, unless it got another one.
#[derive(Debug)]
pub(crate) struct HiddenFile(PathBuf);

impl HiddenFile {
    /// An empty file beside the target.
    pub(crate) fn create(target: &Path) -> io::Result<Self> {
        let path = hidden(target)?;
        File::create_new(&path)?;
        Ok(Self(path))
    }

    /// Where it is until it is renamed.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for HiddenFile {
    fn drop(&mut self) {
        // It is gone already where it became the target; and where the image is given up, the
        // reason for that is what is reported.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file without a name, where the host has such files and lets them be opened anew: not without
/// `/proc`, nor under pseudo, which looks for the name they had.
fn nameless(folder: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::from(0o666)) {
        Ok(fd) => {
            let file = File::from(fd);
            let can_be_opened = std::fs::metadata(proc_path(&file)).is_ok();
            Ok(can_be_opened.then_some(file))
        }
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn proc_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A hidden name beside the target that nothing else has.
fn hidden(target: &Path) -> io::Result<PathBuf> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "has no file name");
    let mut name = OsString::from(".");
    name.push(target.file_name().ok_or_else(no_name)?);
    name.push(format!(".{}", std::process::id()));
    Ok(target.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::target::Overwrite;

    fn create(target: &Path, len_bytes: u64) -> Output {
        let target = Target::find(target, Overwrite::AnyContent).unwrap();
        Begun::new(&target).unwrap().open(len_bytes).unwrap()
    }

    #[test]
    fn nothing_is_there_until_the_end_and_nothing_but_the_image_after() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("image");
        std::fs::write(&target, "before").unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let output = create(&target, 8192);
        output.disk.window.write_at(b"new", 0).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"before");
        drop(output);
        assert_eq!(
            (names(), std::fs::read(&target).unwrap()),
            (1, b"before".to_vec())
        );
        for _ in 0..2 {
            let output = create(&target, 4);
            output.disk.window.write_at(b"new", 0).unwrap();
            output.commit().unwrap();
            assert_eq!(
                (names(), std::fs::read(&target).unwrap()),
                (1, b"new\0".to_vec())
            );
            std::fs::remove_file(&target).unwrap();
        }
    }

    #[test]
    fn a_named_file_goes_when_the_image_is_given_up_and_becomes_the_image_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("image");
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let begin = || {
            let mut output = create(&target, 4);
            let hidden = HiddenFile::create(&target).unwrap();
            output.temporary = Temporary::Named(hidden, target.clone());
            output
        };
        let output = begin();
        assert_eq!(names(), 1);
        drop(output);
        assert_eq!(names(), 0);
        begin().commit().unwrap();
        assert_eq!((names(), target.exists()), (1, true));
    }

    #[test]
    fn permissions_and_links_stay() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("secret"), "before").unwrap();
        std::fs::set_permissions(at("secret"), Permissions::from_mode(0o600)).unwrap();
        symlink("secret", at("link")).unwrap();
        create(&at("link"), 4).commit().unwrap();
        assert!(at("link").symlink_metadata().unwrap().is_symlink());
        let found = at("secret").metadata().unwrap();
        assert_eq!((found.len(), found.mode() & 0o7777), (4, 0o600));
        symlink("nowhere", at("dangling")).unwrap();
        create(&at("dangling"), 4).commit().unwrap();
        assert!(at("dangling").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("no/image");
        let target = Target::find(&target, Overwrite::OwnImages).unwrap();
        let error = Begun::new(&target).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
