//! **Purpose.** Opens the image that is edited, and makes the changes durable.
//!
//! **Model.** There are three ways.
//!
//! | `--atomic` | changes are made | a crash leaves |
//! |---|---|---|
//! | not given | in the image | each change that was made, or not, in order |
//! | `journal` | in memory, then by one transaction (`fourscore::Staged`) | all or none |
//! | `copy` | in a copy beside the image, which replaces it | all or none |
//!
//! **Crash safety.** The copy has no name until it is complete and durable. Then it replaces the
//! image that was copied, and no other file ([`put_in_place`]). A crash then can leave a temporary
//! name beside the image.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use fourscore::{Error, Fs, MountOptions, Staged};
use fourscore_block::{Access, DeviceOptions, FileDevice, open_path};
use fourscore_build::{FileId, Replaces, put_in_place};
use fourscore_sync::Arc;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::Atomic;
use crate::failure::{Failure, Result};
use crate::image::{Image, ImageSpec, device};

/// The most that one call of the host copies, in bytes.
const COPY_BYTES: usize = 1 << 30;

/// An image that is being edited.
pub(super) struct Session {
    name: String,
    fs: Arc<Fs>,
    ending: Ending,
}

enum Ending {
    Unmount,
    Commit(Box<Staged>),
    Replace(Box<Copy>),
}

impl Session {
    pub(super) fn begin(spec: &ImageSpec, atomic: Option<Atomic>) -> Result<Self> {
        let name = spec.path.display().to_string();
        match atomic {
            None => Ok(Self {
                fs: Image::open_to_write(spec)?.fs,
                ending: Ending::Unmount,
                name,
            }),
            Some(Atomic::Journal) => {
                let device = device(spec, DeviceOptions::read_write(), Access::ReadWrite)?;
                let options = MountOptions::new().use_reserve();
                let staged = Staged::begin(device, &options);
                let staged = staged.map_err(|why| refused(spec, why))?;
                Ok(Self {
                    fs: Arc::clone(staged.fs()),
                    ending: Ending::Commit(Box::new(staged)),
                    name,
                })
            }
            Some(Atomic::Copy) => {
                let copy = Copy::of(&spec.path).map_err(|why| Failure::new(name.as_str(), why))?;
                let inside = ImageSpec {
                    path: copy.path(),
                    ..spec.clone()
                };
                let image = Image::open_named(&inside, &name)?;
                Ok(Self {
                    fs: image.fs,
                    ending: Ending::Replace(Box::new(copy)),
                    name,
                })
            }
        }
    }

    pub(super) fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Makes the changes durable.
    pub(super) fn finish(self) -> Result<()> {
        let Self { name, fs, ending } = self;
        let in_image = |why: Error| Failure::new(name.as_str(), why);
        match ending {
            Ending::Unmount => fs.unmount().map_err(in_image),
            Ending::Commit(staged) => {
                drop(fs);
                staged.commit().map_err(|why| match why {
                    Error::NotOneTransaction { .. } => in_image(why).advise(COPY_ADVICE),
                    why => in_image(why),
                })
            }
            Ending::Replace(copy) => {
                fs.unmount().map_err(in_image)?;
                copy.replace().map_err(|why| Failure::new(name, why))
            }
        }
    }

    /// Ends after an error. Without `--atomic` the changes so far are made durable; otherwise there
    /// are none.
    pub(super) fn give_up(self) -> Result<()> {
        match self.ending {
            Ending::Unmount => self.finish(),
            Ending::Commit(_) | Ending::Replace(_) => Ok(()),
        }
    }
}

const COPY_ADVICE: &str = "nothing was changed; use --atomic=copy, which edits a copy of the image \
                           and replaces it";

fn refused(spec: &ImageSpec, why: Error) -> Failure {
    match why {
        Error::Unsupported(_) => {
            Failure::new(spec.path.display().to_string(), why).advise(COPY_ADVICE)
        }
        why => Image::refusal(spec, why),
    }
}

/// A copy of an image file, which has no name yet.
struct Copy {
    /// The image, through all symbolic links.
    original: PathBuf,
    /// The file that the copy may replace.
    found: FileId,
    /// Keeps other writers away from the image.
    _lock: FileDevice,
    file: File,
}

impl Copy {
    fn of(path: &Path) -> std::io::Result<Self> {
        let original = path.canonicalize()?;
        let lock = open_path(&original, DeviceOptions::read_write())?;
        let from = File::open(&original)?;
        let attributes = from.metadata()?;
        if !attributes.is_file() {
            return Err(std::io::Error::other(
                "is a device, of which no copy can be edited; use --atomic without =copy",
            ));
        }
        let folder = original.parent().unwrap_or(Path::new("/"));
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        // The owner and permissions of the image follow when the copy replaces it.
        let file = File::from(rustix::fs::open(folder, flags, Mode::from(0o600))?);
        if rustix::fs::ioctl_ficlone(&file, &from).is_err() {
            copy_data(&from, &file, attributes.len())?;
        }
        Ok(Self {
            original,
            found: FileId::of(&attributes),
            _lock: lock,
            file,
        })
    }

    /// A path by which the copy can be opened.
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Puts the copy in the place of the image, durably.
    fn replace(self) -> std::io::Result<()> {
        self.file.sync_all()?;
        put_in_place(&self.file, &self.original, Replaces::Found(self.found))
    }
}

/// Copies data and keeps holes.
fn copy_data(from: &File, to: &File, len: u64) -> std::io::Result<()> {
    to.set_len(len)?;
    let mut at = 0;
    while at < len {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            found => found?,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?.min(len);
        let (mut read_at, mut write_at) = (start, start);
        while read_at < end {
            let wanted = usize::try_from(end - read_at).map_or(COPY_BYTES, |n| n.min(COPY_BYTES));
            let copied = rustix::fs::copy_file_range(
                from,
                Some(&mut read_at),
                to,
                Some(&mut write_at),
                wanted,
            )?;
            if copied == 0 {
                let why = "the image was truncated while it was copied";
                return Err(std::io::Error::other(why));
            }
        }
        at = end;
    }
    Ok(())
}
