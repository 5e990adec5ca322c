//! **Purpose.** What a caller asks of an image, and what it is told.

use std::time::Duration;

use fourscore_mkfs::Profile;
use fourscore_ondisk::Timestamp;

use crate::read_back::{Comparison, ReadBack};
use crate::tree::Meta;

/// How large the image is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// As small as it can be with everything the options ask for.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
    /// As [`Size::Auto`], with so many bytes free.
    AutoPlusBytes(u64),
    /// As [`Size::Auto`], with so many percent of that size free.
    AutoPlusPercent(u32),
    /// Smaller still: the smallest journal, or none where the file system is too small for one,
    /// and no room to grow while mounted.
    Minimum,
}

/// What is asked of an image.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file system. UUID and hash seed come from the content where none are given; of the
    /// reserve for the super-user nothing is kept where no size and no reserve is given.
    pub format: fourscore_mkfs::Options,
    /// The defaults of file systems.
    pub profile: Profile,
    /// How large it is.
    pub size: Size,
    /// Threads that read and write; as many as there are cores when not given.
    pub threads: Option<usize>,
    /// `SOURCE_DATE_EPOCH`, in seconds since 1970: later changes count as made then, and times
    /// that reading a source changes by itself (access, change of the inode) count as those of
    /// the content. With it, the same tree and options make the same bytes.
    pub source_date_epoch: Option<u64>,
    /// Whether the image is the same for the same files wherever they come from: contents are read
    /// once more, blocks of zeroes become holes, times are cut to whole seconds, and contents that
    /// arrive in a stream wait until the order of all is known.
    pub canonical: bool,
    /// What is done with the finished image before it gets its name.
    pub read_back: ReadBack,
}

impl Options {
    /// An ext4 file system by the profile of e2fsprogs, of the least size.
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

    /// The threads to use, at least one.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        let cores = || fourscore_sync::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores).max(1)
    }

    /// The times that an object gets.
    pub(crate) fn clamped(&self, mut meta: Meta) -> Meta {
        let epoch = self.source_date_epoch.map(i64::try_from);
        if let Some(seconds) = epoch {
            let latest = Timestamp::new(seconds.unwrap_or(i64::MAX), 0).unwrap_or_default();
            let time = meta.mtime.min(latest);
            (meta.atime, meta.mtime, meta.ctime) = (time, time, time);
        }
        if self.canonical {
            let cut = |time: Timestamp| Timestamp::new(time.seconds(), 0).unwrap_or_default();
            (meta.atime, meta.mtime, meta.ctime) =
                (cut(meta.atime), cut(meta.mtime), cut(meta.ctime));
        }
        meta
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// What is being done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The image is written.
    #[default]
    Writing,
    /// The finished image is read.
    ReadingBack,
}

/// How far a build is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Objects whose content is written, or read back.
    pub objects_done: u64,
    /// All objects.
    pub objects: u64,
    /// Bytes of content that are written or read back, holes not counted.
    pub bytes_done: u64,
    /// All bytes of content.
    pub bytes: u64,
}

/// Whether a build goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    Continue,
    /// It ends with [`BuildError::Stopped`](crate::BuildError::Stopped), and leaves nothing.
    Stop,
}

/// Is told how far a build is, by several threads, every megabyte or so.
pub type Watch<'a> = &'a (dyn Fn(Progress) -> Flow + Sync);

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The size of the file system in bytes.
    pub size_bytes: u64,
    /// Bytes of content, holes not counted.
    pub content_bytes: u64,
    /// Objects: files, directories and everything else.
    pub objects: u64,
    /// Bytes left free.
    pub free_bytes: u64,
    /// The UUID of the file system.
    pub uuid: uuid::Uuid,
    /// Whether all of it was read back and compared with its sources.
    pub comparison: Comparison,
    /// From the finished tree to the finished image.
    pub elapsed: Duration,
}
