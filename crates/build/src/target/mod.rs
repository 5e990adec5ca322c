//! **Purpose.** Where an image goes: what an output path leads to, whether an image may be put
//! there, and how much room there is. All outputs are decided on here.
//!
//! | module | responsibility |
//! |---|---|
//! | `holds` | what is there already |
//! | `site` | where bytes really lie, so that an output that is also a source is noticed |
//! | `table` | partition tables |
//!
//! **Not here.** Writing the image (`write::output`).
//!
//! **Model.** A target is a file that does not exist yet, a file that is replaced when the image is
//! complete, a block device or a part of a file or device that is filled in place, or a file
//! without a name that the caller reads afterwards. Symbolic links are followed; a link that leads
//! nowhere is itself replaced. Nothing but a file or a block device is ever replaced: `-o
//! /dev/null` must not end with a new `/dev/null`.
//!
//! A target that exists is taken only if it holds nothing, or an image that this crate made and in
//! which nothing was changed since; [`Overwrite`] says who wants more. It is opened for writing and
//! locked against other writers as every image that is written, which fails while anybody has it
//! mounted for writing or has a loop device on it. The lock is held until the target is dropped.
//!
//! **Invariants.** Nothing of the target changes here.

mod holds;
mod site;
mod table;

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use fourscore_block::{BlockDevice, DeviceOptions, FileDevice, Sharing, open_path};
use fourscore_sync::Arc;

use crate::error::{BuildError, BuildResult};
use crate::source::nameless;
pub(crate) use site::Site;

/// A file system that fills a partition is rounded down to this, as mke2fs does.
const PAGE_BYTES: u64 = 4096;

/// What may be overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// What holds nothing, and images that this crate made and in which nothing was changed since.
    #[default]
    OwnImages,
    /// Whatever it holds, as long as nobody uses it: the caller has looked at it.
    AnyContent,
    /// Whatever it holds, and whoever uses it.
    EvenInUse,
}

/// Where an image goes.
#[derive(Debug)]
pub struct Target {
    /// As the caller named it.
    asked: PathBuf,
    form: Form,
    overwrite: Overwrite,
    /// Where what is overwritten lies; `None` if there is nothing.
    site: Option<Site>,
}

/// What kind of place it is.
#[derive(Debug)]
pub(crate) enum Form {
    /// A file that gets its name when it is complete. `before` is the file that has the name
    /// now, locked.
    File {
        place: PathBuf,
        before: Option<Arc<FileDevice>>,
    },
    /// A block device, or a part of a file or device, which is filled in place.
    Part(Part),
    /// A file that gets no name.
    Nameless(File),
}

/// A range of an open device that is filled in place.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) device: Arc<FileDevice>,
    pub(crate) range: Range<u64>,
    /// Whether the range is what a file system is to fill, or just all that there is room for.
    is_definite: bool,
    pub(crate) is_block_device: bool,
}

impl Target {
    /// What `path` leads to.
    ///
    /// # Errors
    /// [`BuildError::Output`] if it cannot be opened, is neither a file nor a block device, or is
    /// in use; [`BuildError::Occupied`] if it holds something else.
    pub fn find(path: &Path, overwrite: Overwrite) -> BuildResult<Self> {
        let failed = |why| output_error(path, why);
        let Some(place) = existing(path).map_err(failed)? else {
            let form = Form::File {
                place: path.to_owned(),
                before: None,
            };
            return Ok(Self::new(path, form, overwrite, None));
        };
        let device = open(&place, overwrite).map_err(failed)?;
        let whole = 0..device.len_bytes();
        let file = File::open(&place).map_err(failed)?;
        let site = Site::of(&file, 0..u64::MAX).map_err(failed)?;
        let is_block_device = is_block_device(&place);
        if overwrite == Overwrite::OwnImages {
            let found = holds::found(&device, &file, &whole, is_block_device);
            free_of(path, found.map_err(failed)?)?;
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
            },
        };
        Ok(Self::new(path, form, overwrite, Some(site)))
    }

    /// The partition of the disk image or device at `path` that begins at byte `offset`: if there
    /// is a partition table, what it says of it, else everything up to the end. With `size_bytes`
    /// only so much of it, which may also lie where no partition is.
    ///
    /// # Errors
    /// As [`Target::find`]; [`BuildError::Output`] as well if the range is not in the file, leads
    /// past the end of a partition, or is not known.
    pub fn find_part(
        path: &Path,
        offset: u64,
        size_bytes: Option<u64>,
        overwrite: Overwrite,
    ) -> BuildResult<Self> {
        let asked = PathBuf::from(format!("{}@{offset}", path.display()));
        let failed = |why| output_error(&asked, why);
        let Some(place) = existing(path).map_err(failed)? else {
            let why = "there is no such disk";
            return Err(failed(io::Error::new(ErrorKind::NotFound, why)));
        };
        let device = open(&place, overwrite).map_err(failed)?;
        let range = range_at(&device, offset, size_bytes).map_err(failed)?;
        let file = File::open(&place).map_err(failed)?;
        let site = Site::of(&file, range.clone()).map_err(failed)?;
        let is_block_device = is_block_device(&place);
        if overwrite == Overwrite::OwnImages {
            let found = holds::found(&device, &file, &range, is_block_device);
            free_of(&asked, found.map_err(failed)?)?;
        }
        let part = Part {
            device,
            range,
            is_definite: true,
            is_block_device,
        };
        Ok(Self::new(&asked, Form::Part(part), overwrite, Some(site)))
    }

    /// An image that gets no name, in a file of the directory `folder`. The caller reads it from
    /// the file that is given as well.
    ///
    /// # Errors
    /// [`BuildError::Output`] if no file can be made there.
    pub fn nameless(folder: &Path) -> BuildResult<(Self, File)> {
        let failed = |why| output_error(folder, why);
        let file = nameless(folder).map_err(failed)?;
        let form = Form::Nameless(file.try_clone().map_err(failed)?);
        let target = Self::new(folder, form, Overwrite::default(), None);
        Ok((target, file))
    }

    fn new(asked: &Path, form: Form, overwrite: Overwrite, site: Option<Site>) -> Self {
        Self {
            asked: asked.to_owned(),
            form,
            overwrite,
            site,
        }
    }

    /// As the caller named it, with the offset of a part; of a nameless file its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.asked
    }

    /// The size of a file system that fills the part of a disk; `None` of anything else.
    #[must_use]
    pub fn part_bytes(&self) -> Option<u64> {
        let Form::Part(part) = &self.form else {
            return None;
        };
        let len_bytes = part.range.end - part.range.start;
        part.is_definite.then_some(len_bytes & !(PAGE_BYTES - 1))
    }

    /// A directory of the file system that the image will be in, for what waits to become part of
    /// it; `None` if the image is written in place or has none.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        match &self.form {
            Form::File { place, .. } => Some(folder_of(place)),
            Form::Nameless(_) => Some(&self.asked),
            Form::Part(_) => None,
        }
    }

    /// An error of writing it.
    pub(crate) fn failed(&self, why: io::Error) -> BuildError {
        output_error(&self.asked, why)
    }

    pub(crate) fn form(&self) -> &Form {
        &self.form
    }

    /// How many bytes the image may have; `None` if as many as it likes.
    pub(crate) fn room_bytes(&self) -> Option<u64> {
        match &self.form {
            Form::Part(part) => Some(part.range.end - part.range.start),
            Form::File { .. } | Form::Nameless(_) => None,
        }
    }

    /// The path below `folder` of the file that would be replaced, if it is in there and the caller
    /// does not insist.
    pub(crate) fn path_in(&self, folder: &Path) -> Option<PathBuf> {
        let Form::File { place, before } = &self.form else {
            return None;
        };
        let is_there = before.is_some() && self.overwrite != Overwrite::EvenInUse;
        let path = place.strip_prefix(folder.canonicalize().ok()?).ok();
        path.filter(|_| is_there).map(Path::to_owned)
    }

    /// Whether the file that `site` is in changes when the image is written.
    pub(crate) fn changes(&self, site: &Site) -> bool {
        let own = self.site.as_ref();
        matches!(self.form, Form::Part(_)) && own.is_some_and(|own| own.is_beside(site))
    }

    /// Whether what is read from `site` would be overwritten. A file that is replaced when the
    /// image is complete may be read until then, if the caller insists.
    pub(crate) fn overwrites(&self, site: &Site) -> bool {
        let is_insisted = self.overwrite == Overwrite::EvenInUse;
        let is_replaced_last = matches!(self.form, Form::File { .. });
        let own = self.site.as_ref();
        own.is_some_and(|own| own.overlaps(site)) && !(is_insisted && is_replaced_last)
    }
}

fn output_error(path: &Path, why: io::Error) -> BuildError {
    BuildError::Output {
        path: path.to_owned(),
        why,
    }
}

/// What symbolic links at `path` lead to, if that is something an image may replace; `None` if
/// there is nothing.
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

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Opens what is overwritten, for nobody else to write.
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

fn free_of(path: &Path, found: Option<String>) -> BuildResult<()> {
    found.map_or(Ok(()), |what| {
        Err(BuildError::Occupied {
            path: path.to_owned(),
            what,
        })
    })
}

/// The bytes that a file system from `offset` on may have.
fn range_at(device: &FileDevice, offset: u64, size_bytes: Option<u64>) -> io::Result<Range<u64>> {
    let refused = |why: String| Err(io::Error::new(ErrorKind::InvalidInput, why));
    let end = device.len_bytes();
    if offset >= end {
        return refused(format!("ends at byte {end}, before byte {offset}"));
    }
    let room = table::room_at(device, offset)?;
    match size_bytes {
        None if !room.is_partition => {
            let why = "the partition table has no partition that begins at byte";
            refused(format!("{why} {offset}: its size is not known"))
        }
        None => Ok(offset..room.end),
        Some(size) if size > room.end - offset => {
            let left = room.end - offset;
            let of = if room.end < end { "partition" } else { "file" };
            let why = format!("{size} bytes from byte {offset} on lead past the end of the {of}");
            refused(format!("{why}, which has {left} bytes there"))
        }
        Some(size) => Ok(offset..offset + size),
    }
}

#[cfg(test)]
mod tests;
