//! **Purpose.** Options, progress and summary of a build.

use std::time::Duration;

use fourscore_mkfs::Profile;
use fourscore_ondisk::Timestamp;

use crate::read_back::{Comparison, ReadBack};
use crate::tree::Meta;

/// The size of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// The smallest size that holds the data and everything that the options request.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
    /// As [`Size::Auto`], plus this many free bytes.
    AutoPlusBytes(u64),
    /// As [`Size::Auto`], plus this percentage of it as free space.
    AutoPlusPercent(u32),
    /// Smaller than [`Size::Auto`]: the smallest journal, or none if the file system is too small
    /// for one, and no reserved descriptor blocks for growing the mounted file system.
    Minimum,
}

/// Options of a build.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of the file system. Without a UUID or hash seed, both are derived from the tree.
    /// Without a size and a reserve, no blocks are reserved for the super-user.
    pub format: fourscore_mkfs::Options,
    /// Defaults for options that are not given.
    pub profile: Profile,
    /// The size of the image.
    pub size: Size,
    /// Threads that read and write; one per core if `None`.
    pub threads: Option<usize>,
    /// `SOURCE_DATE_EPOCH`, in seconds since 1970. Later modification times are set to it, and
    /// access and change times are set to the modification time, because reading a source may
    /// change them. With it, the same tree and options give the same bytes.
    pub source_date_epoch: Option<u64>,
    /// Makes the image independent of the kind of source: all data is read once more so that blocks
    /// of zeroes become holes, times are truncated to whole seconds, and data from a stream is
    /// spooled until all of it is known.
    pub canonical: bool,
    /// What to do with the finished image before it is renamed into place.
    pub read_back: ReadBack,
}

impl Options {
    /// An ext4 file system of the smallest size, with the defaults of e2fsprogs.
    #[must_use]
    pub fn new() -> Self {
        Self {
            format: fourscore_mkfs::Options::default(),
            profile: Profile::upstream(),
            size: Size::Auto,
            threads: None,
            source_date_epoch: None,
            canonical: false,
            read_back: ReadBack::default(),
        }
    }

    /// The number of threads to use, at least one.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        let cores = || fourscore_sync::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores).max(1)
    }

    /// Returns the times that an object gets in the image.
    pub(crate) fn clamped(&self, mut meta: Meta) -> Meta {
        let epoch = self.source_date_epoch.map(i64::try_from);
        if let Some(seconds) = epoch {
            let latest = Timestamp::new(seconds.unwrap_or(i64::MAX), 0).unwrap_or_default();
            let time = meta.mtime.min(latest);
            (meta.atime, meta.mtime, meta.ctime) = (time, time, time);
        }
        if self.canonical {
            let truncated = |time: Timestamp| Timestamp::new(time.seconds(), 0).unwrap_or_default();
            (meta.atime, meta.mtime, meta.ctime) = (
                truncated(meta.atime),
                truncated(meta.mtime),
                truncated(meta.ctime),
            );
        }
        meta
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// The current step of a build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The image is being written.
    #[default]
    Writing,
    /// The finished image is being read back.
    ReadingBack,
}

/// The progress of a build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The current step.
    pub phase: Phase,
    /// Objects whose data is written, or read back.
    pub objects_done: u64,
    /// Number of all objects.
    pub objects: u64,
    /// Bytes of file data that are written or read back, without holes.
    pub bytes_done: u64,
    /// All bytes of file data, without holes.
    pub bytes: u64,
}

/// Whether a build continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The build continues.
    Continue,
    /// The build fails with [`BuildError::Stopped`](crate::BuildError::Stopped) and leaves no
    /// output.
    Stop,
}

/// Callback for the progress of a build. Several threads call it, about once per megabyte each.
pub type Watch<'a> = &'a (dyn Fn(Progress) -> Flow + Sync);

/// Summary of a finished build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The size of the file system in bytes.
    pub size_bytes: u64,
    /// Bytes of file data, without holes.
    pub content_bytes: u64,
    /// Number of objects: files, directories and all other types.
    pub objects: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// The UUID of the file system.
    pub uuid: uuid::Uuid,
    /// Whether the image was read back and compared with its sources.
    pub comparison: Comparison,
    /// Time from the finished tree to the finished image.
    pub elapsed: Duration,
}
