//! **Purpose.** Creates the image in an unlinked file that gets its name when it is complete, or
//! writes it in place.
//!
//! **Not here.** Whether the target may be overwritten (`target`); giving the image its name
//! (`place`).
//!
//! **Model.** The file is created without a name (`O_TMPFILE`) in the directory of the target,
//! written, and then put in the target's place. So at any time the target is either the old file or
//! the complete image. If the host does not support `O_TMPFILE`, the file has a temporary name,
//! which is removed if the build fails. A block device and a part of a
//! disk are written in place, through the descriptor that holds their lock.
//!
//! Symbolic links to the target stay; the file that they refer to is replaced. The image gets the
//! permissions of a replaced file and, as far as the user is permitted to change it, its owner.
//!
//! **Crash safety.** A failed or interrupted build leaves no file behind; with `O_TMPFILE`, neither
//! does a killed process. The new name is durable when the build returns.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use fourscore_block::{Access, BlockDevice, DeviceOptions, FileDevice, Sharing, Window, open_path};
use fourscore_mkfs::OldContent;
use fourscore_sync::Arc;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::place::{HiddenFile, Replaces, proc_path, put_in_place};
use crate::target::{Form, Part, Target, directory_of};

/// An image file whose size is not known yet. It is empty, or has data that was streamed into it.
#[derive(Debug)]
pub(crate) struct NewImage {
    temporary: Temporary,
}

/// An image that is being written.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) disk: Disk,
    temporary: Temporary,
}

/// The file or device of an image.
#[derive(Debug)]
pub(crate) struct Disk {
    file: Arc<FileDevice>,
    start: u64,
    /// The range of the file that the image may use.
    pub(crate) window: Window,
}

#[derive(Debug)]
enum Temporary {
    /// An unlinked file, and the path that it gets, if any.
    Unlinked(File, Option<Name>),
    /// A file with a temporary name, and the path that it gets.
    Named(HiddenFile, Name),
    /// The target itself.
    InPlace(Part),
}

/// The path that an image gets, and what it may replace there.
#[derive(Clone, Debug)]
struct Name {
    place: PathBuf,
    replaces: Replaces,
}

/// The known content of the target before the build: zeroes in a new file, zeroes after a discard
/// in a regular file, and what the caller knows of a block device.
pub(crate) fn old_content(target: &Target, known: OldContent) -> OldContent {
    match target.form() {
        Form::Part(_) if known == OldContent::AllZero => known,
        Form::Part(part) if !part.is_block_device => OldContent::ZeroAfterDiscard,
        Form::Part(_) => known,
        Form::File { .. } | Form::Unlinked(_) => OldContent::AllZero,
    }
}

impl Name {
    fn new(place: &Path, replaces: Replaces) -> Self {
        Self {
            place: place.to_owned(),
            replaces,
        }
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

    /// Shares blocks of `source` with a range of the image, as
    /// [`FileDevice::share`](fourscore_block::FileDevice::share).
    pub(crate) fn share(&self, range: Range<u64>, source: BorrowedFd<'_>, from: u64) -> bool {
        let range_in_file = self.start + range.start..self.start + range.end;
        range.end <= self.window.len_bytes() && self.file.share(range_in_file, source, from)
    }
}

impl NewImage {
    /// Creates an image file; its content is zeroes unless it is written in place.
    pub(crate) fn new(target: &Target) -> io::Result<Self> {
        if let Some((new_image, _)) = Self::unlinked_file(target)? {
            return Ok(new_image);
        }
        let temporary = match target.form() {
            Form::Part(part) => Temporary::InPlace(part.clone()),
            Form::Unlinked(file) => Temporary::Unlinked(file.try_clone()?, None),
            Form::File {
                place, replaces, ..
            } => Temporary::Named(HiddenFile::create(place)?, Name::new(place, *replaces)),
        };
        Ok(Self { temporary })
    }

    /// Creates an image in an unlinked file, which is returned too; `None` if the host does not
    /// support this, or the image is written in place.
    pub(crate) fn unlinked_file(target: &Target) -> io::Result<Option<(Self, File)>> {
        let (file, place) = match target.form() {
            Form::Part(_) => return Ok(None),
            Form::Unlinked(file) => (file.try_clone()?, None),
            Form::File {
                place, replaces, ..
            } => match unlinked_file(directory_of(place))? {
                Some(file) => (file, Some(Name::new(place, *replaces))),
                None => return Ok(None),
            },
        };
        let temporary = Temporary::Unlinked(file.try_clone()?, place);
        Ok(Some((Self { temporary }, file)))
    }

    /// Opens the image for writing, with at least `len_bytes` bytes.
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
    /// Truncates the image to its length.
    pub(crate) fn cut(&self, len_bytes: u64) -> io::Result<()> {
        let Some(path) = self.temporary.path() else {
            return Ok(());
        };
        if self.disk.file.len_bytes() <= len_bytes {
            return Ok(());
        }
        File::options().write(true).open(path)?.set_len(len_bytes)
    }

    /// Opens the image again, for reading.
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

    /// Gives the image its name, as [`put_in_place`]. It is durable when this
    /// returns.
    pub(crate) fn commit(self) -> io::Result<()> {
        match self.temporary {
            Temporary::InPlace(_) | Temporary::Unlinked(_, None) => Ok(()),
            Temporary::Named(hidden, name) => hidden.put_in_place(&name.place, name.replaces),
            Temporary::Unlinked(file, Some(name)) => {
                put_in_place(&file, &name.place, name.replaces)
            }
        }
    }
}

impl Temporary {
    /// The path to open the file; `None` if it is written in place.
    fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Unlinked(file, _) => Some(proc_path(file)),
            Self::Named(hidden, _) => Some(hidden.path().to_owned()),
            Self::InPlace(_) => None,
        }
    }
}

/// Creates an unlinked file. `None` if the host does not support it, or the file cannot be
/// reopened: without `/proc`, and under pseudo, which looks up files by name.
fn unlinked_file(folder: &Path) -> io::Result<Option<File>> {
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

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::target::Overwrite;

    fn create(target: &Path, len_bytes: u64) -> Output {
        let target = Target::find(target, Overwrite::AnyContent).unwrap();
        NewImage::new(&target).unwrap().open(len_bytes).unwrap()
    }

    #[test]
    fn the_target_is_unchanged_until_the_image_replaces_it() {
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
    fn a_hidden_file_is_removed_or_becomes_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("image");
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let begin = || {
            let mut output = create(&target, 4);
            let hidden = HiddenFile::create(&target).unwrap();
            let name = Name::new(&target, Replaces::Nothing);
            output.temporary = Temporary::Named(hidden, name);
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
    fn permissions_and_symbolic_links_are_preserved() {
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
    fn a_missing_directory_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("no/image");
        let target = Target::find(&target, Overwrite::OwnImages).unwrap();
        let error = NewImage::new(&target).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
