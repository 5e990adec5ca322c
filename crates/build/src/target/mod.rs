//! **Purpose.** Resolves an output path to a file, block device or partition, and decides whether
//! an image may be written there and how large it may be.
//!
//! | module | responsibility |
//! |---|---|
//! | `contents` | describes the data that the output holds |
//! | `location` | finds the storage below a file, to detect that an output is also a source |
//!
//! **Not here.** Writing the image (`write::output`).
//!
//! **Model.** A target is one of four: a file that does not exist yet; a file that is replaced when
//! the image is complete; a block device, or a part of a file or device, that is written in place;
//! an unlinked file that the caller reads afterwards. Symbolic links are followed, and a dangling
//! link is replaced itself. Only files and block devices are ever replaced: `-o /dev/null` must not
//! replace `/dev/null`.
//!
//! An existing target is accepted only if it is empty, or is an image that this crate built and
//! that is unchanged since; [`Overwrite`] widens this. The target is opened for writing with the
//! lock that every image gets, which fails while another process has it mounted read-write or
//! attached to a loop device. The lock is held until the target is dropped. What may be replaced at
//! the end is what was found here ([`Replaces`]): without consent no file that another program
//! created or changed meanwhile.
//!
//! **Invariants.** Nothing in this module writes to the target.

mod contents;
mod location;

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use fourscore_block::{BlockDevice, DeviceOptions, FileDevice, Sharing, open_path};
use fourscore_sync::Arc;

use crate::error::{BuildError, BuildResult};
use crate::partitions;
use crate::source::unlinked_file;
use crate::write::{FileId, Replaces};
pub use location::Location;

/// A file system that fills a partition is rounded down to a multiple of this, as mke2fs does.
const PAGE_BYTES: u64 = 4096;

/// What may be overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// Empty outputs, and images that this crate built and that are unchanged since.
    #[default]
    OwnImages,
    /// Any data, as long as no other process uses it; the caller has checked it.
    AnyContent,
    /// Any data, even if another process uses it.
    EvenInUse,
}

/// The output of a build.
#[derive(Debug)]
pub struct Target {
    /// The path as the caller gave it.
    given_path: PathBuf,
    form: Form,
    overwrite: Overwrite,
    /// Where the data to be overwritten is stored; `None` if there is none.
    location: Option<Location>,
}

/// The kind of output.
#[derive(Debug)]
pub(crate) enum Form {
    /// A file that is renamed to `path` when it is complete. `before` is the file that has this
    /// name now, locked.
    File {
        place: PathBuf,
        before: Option<Arc<FileDevice>>,
        /// What the image may replace when it gets the name.
        replaces: Replaces,
    },
    /// A block device, or a part of a file or device, which is written in place.
    Part(Part),
    /// An unlinked file.
    Unlinked(File),
}

/// A range of an open device that is written in place.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) device: Arc<FileDevice>,
    pub(crate) range: Range<u64>,
    /// Whether a file system should fill the range; otherwise the range is only an upper limit.
    is_definite: bool,
    pub(crate) is_block_device: bool,
}

impl Target {
    /// Resolves `path`.
    ///
    /// # Errors
    /// [`BuildError::Output`] if the path cannot be opened, is neither a file nor a block device,
    /// or is in use; [`BuildError::Occupied`] if it holds other data.
    pub fn find(path: &Path, overwrite: Overwrite) -> BuildResult<Self> {
        let failed = |why| output_error(path, why);
        let Some(place) = existing(path).map_err(failed)? else {
            let form = Form::File {
                place: path.to_owned(),
                before: None,
                replaces: replaces(std::fs::symlink_metadata(path).ok().as_ref(), overwrite),
            };
            return Ok(Self::new(path, form, overwrite, None));
        };
        let device = open(&place, overwrite).map_err(failed)?;
        let whole = 0..device.len_bytes();
        let file = File::open(&place).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        let location = Location::of(&file, 0..u64::MAX).map_err(failed)?;
        let is_block_device = is_block_device(&place);
        if overwrite == Overwrite::OwnImages {
            let content = contents::describe(&device, &file, &whole, is_block_device);
            require_empty(path, content.map_err(failed)?)?;
        }
        let form = match is_block_device {
            true => Form::Part(Part {
                device,
                range: whole,
                is_definite: false,
                is_block_device,
            }),
            false => Form::File {
                place,
                before: Some(device),
                replaces: replaces(Some(&found), overwrite),
            },
        };
        Ok(Self::new(path, form, overwrite, Some(location)))
    }

    /// The partition of the disk image or device at `path` that begins at byte `offset`. Its end is
    /// taken from the partition table; without a table it is the end of the disk. With
    /// `size_bytes`, the part has this size, and need not be a partition.
    ///
    /// # Errors
    /// As [`Target::find`]; also [`BuildError::Output`] if the range is not inside the disk,
    /// crosses the end of a partition, or has no known end.
    pub fn find_part(
        path: &Path,
        offset: u64,
        size_bytes: Option<u64>,
        overwrite: Overwrite,
    ) -> BuildResult<Self> {
        let given_path = PathBuf::from(format!("{}@{offset}", path.display()));
        let failed = |why| output_error(&given_path, why);
        let Some(place) = existing(path).map_err(failed)? else {
            let why = "no such disk";
            return Err(failed(io::Error::new(ErrorKind::NotFound, why)));
        };
        let device = open(&place, overwrite).map_err(failed)?;
        let range = range_at(&device, offset, size_bytes).map_err(failed)?;
        let file = File::open(&place).map_err(failed)?;
        let location = Location::of(&file, range.clone()).map_err(failed)?;
        let is_block_device = is_block_device(&place);
        if overwrite == Overwrite::OwnImages {
            let found = contents::describe(&device, &file, &range, is_block_device);
            require_empty(&given_path, found.map_err(failed)?)?;
        }
        let part = Part {
            device,
            range,
            is_definite: true,
            is_block_device,
        };
        Ok(Self::new(
            &given_path,
            Form::Part(part),
            overwrite,
            Some(location),
        ))
    }

    /// An image in an unlinked file in the directory `folder`. The caller reads the image from the
    /// returned file.
    ///
    /// # Errors
    /// [`BuildError::Output`] if the file cannot be created there.
    pub fn nameless(folder: &Path) -> BuildResult<(Self, File)> {
        let failed = |why| output_error(folder, why);
        let file = unlinked_file(folder).map_err(failed)?;
        let form = Form::Unlinked(file.try_clone().map_err(failed)?);
        let target = Self::new(folder, form, Overwrite::default(), None);
        Ok((target, file))
    }

    fn new(
        given_path: &Path,
        form: Form,
        overwrite: Overwrite,
        location: Option<Location>,
    ) -> Self {
        Self {
            given_path: given_path.to_owned(),
            form,
            overwrite,
            location,
        }
    }

    /// The path as the caller gave it, with the offset of a part; for an unlinked file, its
    /// directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.given_path
    }

    /// The size of a file system that fills the part of a disk; `None` for other targets.
    #[must_use]
    pub fn part_bytes(&self) -> Option<u64> {
        let Form::Part(part) = &self.form else {
            return None;
        };
        let len_bytes = part.range.end - part.range.start;
        part.is_definite.then_some(len_bytes & !(PAGE_BYTES - 1))
    }

    /// A directory on the file system where the image is created, for temporary files that may
    /// share blocks with it; `None` if the image is written in place.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        match &self.form {
            Form::File { place, .. } => Some(directory_of(place)),
            Form::Unlinked(_) => Some(&self.given_path),
            Form::Part(_) => None,
        }
    }

    /// Wraps an error of writing the target.
    pub(crate) fn failed(&self, why: io::Error) -> BuildError {
        output_error(&self.given_path, why)
    }

    pub(crate) fn form(&self) -> &Form {
        &self.form
    }

    /// The largest size of the image in bytes; `None` if it is not limited.
    pub(crate) fn capacity_bytes(&self) -> Option<u64> {
        match &self.form {
            Form::Part(part) => Some(part.range.end - part.range.start),
            Form::File { .. } | Form::Unlinked(_) => None,
        }
    }

    /// The path below `folder` of the file that would be replaced, if it is there and the caller
    /// does not allow overwriting a file in use.
    pub(crate) fn path_in(&self, folder: &Path) -> Option<PathBuf> {
        let Form::File { place, before, .. } = &self.form else {
            return None;
        };
        let is_there = before.is_some() && self.overwrite != Overwrite::EvenInUse;
        let path = place.strip_prefix(folder.canonicalize().ok()?).ok();
        path.filter(|_| is_there).map(Path::to_owned)
    }

    /// Whether writing the image changes the file that `location` is in.
    pub(crate) fn changes(&self, location: &Location) -> bool {
        let own = self.location.as_ref();
        matches!(self.form, Form::Part(_)) && own.is_some_and(|own| own.is_same_object(location))
    }

    /// Whether writing the image overwrites data at `location`. A file that is replaced when the
    /// image is complete may be read until then, if the caller allows overwriting a file in use.
    pub(crate) fn overwrites(&self, location: &Location) -> bool {
        let may_be_in_use = self.overwrite == Overwrite::EvenInUse;
        let is_replaced_last = matches!(self.form, Form::File { .. });
        let own = self.location.as_ref();
        own.is_some_and(|own| own.overlaps(location)) && !(may_be_in_use && is_replaced_last)
    }
}

fn output_error(path: &Path, why: io::Error) -> BuildError {
    BuildError::Output {
        path: path.to_owned(),
        why,
    }
}

/// The path of an existing target with symbolic links resolved; `None` if there is no such file. An
/// error if it is neither a file nor a block device.
fn existing(path: &Path) -> io::Result<Option<PathBuf>> {
    let kind = match std::fs::metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !kind.is_file() && !kind.is_block_device() {
        let why = "is neither a file nor a block device";
        return Err(io::Error::new(ErrorKind::InvalidInput, why));
    }
    path.canonicalize().map(Some)
}

/// What may be replaced at a path where this was found, or nothing.
pub(crate) fn replaces(found: Option<&Metadata>, overwrite: Overwrite) -> Replaces {
    match (overwrite, found) {
        (Overwrite::AnyContent | Overwrite::EvenInUse, _) => Replaces::Anything,
        (Overwrite::OwnImages, None) => Replaces::Nothing,
        (Overwrite::OwnImages, Some(found)) => Replaces::Found(FileId::of(found)),
    }
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

pub(crate) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Opens an existing target and locks it against other writers.
fn open(place: &Path, overwrite: Overwrite) -> io::Result<Arc<FileDevice>> {
    let sharing = match overwrite {
        Overwrite::EvenInUse => Sharing::Unlocked,
        Overwrite::OwnImages | Overwrite::AnyContent => Sharing::OneWriter,
    };
    let options = DeviceOptions {
        sharing,
        ..DeviceOptions::read_write()
    };
    open_path(place, options).map(Arc::new)
}

fn require_empty(path: &Path, found: Option<String>) -> BuildResult<()> {
    found.map_or(Ok(()), |what| {
        Err(BuildError::Occupied {
            path: path.to_owned(),
            what,
        })
    })
}

/// The byte range that a file system at `offset` may have.
fn range_at(device: &FileDevice, offset: u64, size_bytes: Option<u64>) -> io::Result<Range<u64>> {
    let refused = |why: String| Err(io::Error::new(ErrorKind::InvalidInput, why));
    let end = device.len_bytes();
    if offset >= end {
        return refused(format!("ends at byte {end}, before byte {offset}"));
    }
    let space = partitions::space_at(device, offset)?;
    match size_bytes {
        None if !space.is_partition => {
            let why = "the partition table has no partition that begins at byte";
            refused(format!("{why} {offset}: its size is not known"))
        }
        None => Ok(offset..space.end),
        Some(size) if size > space.end - offset => {
            let left = space.end - offset;
            let of = if space.end < end { "partition" } else { "file" };
            let why = format!("{size} bytes from byte {offset} on extend past the end of the {of}");
            refused(format!("{why}, which has {left} bytes there"))
        }
        Some(size) => Ok(offset..offset + size),
    }
}

#[cfg(test)]
mod tests;
