//! **Purpose.** Where the image goes: into a file that has no name until it is complete.
//!
//! **Model.** The file is made without a name (`O_TMPFILE`) in the folder of the target, written,
//! and then linked and renamed over the target, so that the target is at every moment what it was
//! or the whole image. Where the host has no nameless files it has a hidden name, which is removed
//! when the image is given up. A block device is written in place.
//!
//! Symbolic links to the target stay; what they lead to is replaced. Permissions and, as far as
//! this user may give files away, the owner of a file that is replaced go over to the image.
//! Nothing but a file or a block device is ever replaced: `-o /dev/null` must not end with a new
//! `/dev/null`.
//!
//! **Crash safety.** Nothing is left behind by an error, by Ctrl-C, nor, where there are nameless
//! files, by the death of the process. The name is durable once it is given.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use fourscore::format::OldContent;
use fourscore_block::{BlockDevice, DeviceOptions, FileDevice, Sharing, open_path};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{BuildError, BuildResult};

/// An image that has no content and no size yet, or, where contents arrived before these were
/// known, just these.
#[derive(Debug)]
pub(crate) struct Begun {
    /// As the caller named it.
    asked: PathBuf,
    /// What that leads to.
    target: PathBuf,
    temporary: Temporary,
}

/// An image that is being written.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) device: FileDevice,
    target: PathBuf,
    temporary: Temporary,
}

#[derive(Debug)]
enum Temporary {
    /// A file without a name.
    Nameless(File),
    /// A file with a name that must not stay.
    Named(HiddenFile),
    /// The target itself.
    InPlace,
}

/// Whether the target is a block device, which has content and a size of its own.
fn is_block_device(target: &Path) -> bool {
    std::fs::metadata(target).is_ok_and(|found| found.file_type().is_block_device())
}

/// What the target holds before: a new file nothing, a block device what the caller knows.
pub(crate) fn old_content(target: &Path, known: OldContent) -> OldContent {
    match is_block_device(target) {
        true => known,
        false => OldContent::AllZero,
    }
}

impl Begun {
    /// Begins an image, all zeroes but on a block device.
    pub(crate) fn new(target: &Path) -> BuildResult<Self> {
        let failed = |why| BuildError::Output {
            path: target.to_owned(),
            why,
        };
        if let Some((begun, _)) = Self::nameless(target).map_err(failed)? {
            return Ok(begun);
        }
        let place = place_of(target).map_err(failed)?;
        let temporary = match is_block_device(&place) {
            true => Temporary::InPlace,
            false => Temporary::Named(HiddenFile::create(&place).map_err(failed)?),
        };
        Ok(Self {
            asked: target.to_owned(),
            target: place,
            temporary,
        })
    }

    /// Begins an image in a file without a name, which is given as well; `None` where the host has
    /// no such files, and for a block device.
    pub(crate) fn nameless(target: &Path) -> io::Result<Option<(Self, File)>> {
        let place = place_of(target)?;
        if is_block_device(&place) {
            return Ok(None);
        }
        let Some(file) = nameless(folder_of(&place))? else {
            return Ok(None);
        };
        let begun = Self {
            asked: target.to_owned(),
            target: place,
            temporary: Temporary::Nameless(file.try_clone()?),
        };
        Ok(Some((begun, file)))
    }

    /// Where the image is to be, as the caller named it.
    pub(crate) fn asked(&self) -> &Path {
        &self.asked
    }

    /// Opens the image for writing, with at least so many bytes.
    pub(crate) fn open(self, len_bytes: u64) -> io::Result<Output> {
        let Self {
            target, temporary, ..
        } = self;
        let path = temporary.path(&target);
        let options = match temporary {
            Temporary::InPlace => DeviceOptions::read_write(),
            Temporary::Nameless(_) | Temporary::Named(_) => {
                let file = File::options().write(true).open(&path)?;
                if file.metadata()?.len() < len_bytes {
                    file.set_len(len_bytes)?;
                }
                DeviceOptions {
                    sharing: Sharing::Unlocked,
                    ..DeviceOptions::read_write()
                }
            }
        };
        Ok(Output {
            device: open_path(&path, options)?,
            target,
            temporary,
        })
    }
}

impl Output {
    /// Takes away what is behind the end of the image.
    pub(crate) fn cut(&self, len_bytes: u64) -> io::Result<()> {
        if matches!(self.temporary, Temporary::InPlace) || self.device.len_bytes() <= len_bytes {
            return Ok(());
        }
        let path = self.temporary.path(&self.target);
        File::options().write(true).open(path)?.set_len(len_bytes)
    }

    /// The image once more, for reading.
    pub(crate) fn reopen(&self) -> io::Result<FileDevice> {
        open_path(&self.temporary.path(&self.target), DeviceOptions::default())
    }

    /// Gives the image its name. Replaces what had it. Durable when it returns.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.temporary, Temporary::InPlace) {
            Temporary::InPlace => return Ok(()),
            Temporary::Named(hidden) => {
                take_over(&hidden.0, &self.target)?;
                std::fs::rename(&hidden.0, &self.target)?;
            }
            Temporary::Nameless(file) => {
                let from = proc_path(&file);
                take_over(&from, &self.target)?;
                let link =
                    |to: &Path| rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW);
                match link(&self.target) {
                    Ok(()) => {}
                    Err(Errno::EXIST) => {
                        let path = hidden(&self.target)?;
                        link(&path)?;
                        std::fs::rename(&HiddenFile(path).0, &self.target)?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        sync_folder(&self.target)
    }
}

/// What symbolic links at `target` lead to, if that is something an image may replace. A link that
/// leads nowhere is itself replaced.
fn place_of(target: &Path) -> io::Result<PathBuf> {
    let kind = match std::fs::metadata(target) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(target.to_owned()),
        Err(error) => return Err(error),
    };
    if !kind.is_file() && !kind.is_block_device() {
        let why = "is neither a file nor a block device";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    target.canonicalize()
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

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

impl Temporary {
    /// How the file is opened.
    fn path(&self, target: &Path) -> PathBuf {
        match self {
            Self::Nameless(file) => proc_path(file),
            Self::Named(hidden) => hidden.0.clone(),
            Self::InPlace => target.to_owned(),
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

    fn create(target: &Path, len_bytes: u64) -> Output {
        Begun::new(target).unwrap().open(len_bytes).unwrap()
    }

    #[test]
    fn nothing_is_there_until_the_end_and_nothing_but_the_image_after() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("image");
        std::fs::write(&target, "before").unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let output = create(&target, 8192);
        output.device.write_at(b"new", 0).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"before");
        drop(output);
        assert_eq!(
            (names(), std::fs::read(&target).unwrap()),
            (1, b"before".to_vec())
        );
        for _ in 0..2 {
            let output = create(&target, 4);
            output.device.write_at(b"new", 0).unwrap();
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
            output.temporary = Temporary::Named(hidden);
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
    fn permissions_and_links_stay_and_nothing_else_is_replaced() {
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
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for kept in [&at("socket"), folder.path()] {
            let error = Begun::new(kept).unwrap_err().to_string();
            assert!(
                error.ends_with("neither a file nor a block device"),
                "{error}"
            );
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Begun::new(&folder.path().join("no/image")).unwrap_err();
        let BuildError::Output { why, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(why.kind(), io::ErrorKind::NotFound);
    }
}
