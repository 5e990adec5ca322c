//! **Purpose.** Why no image is made. Each error names the entry or file it is about.

use std::io;
use std::path::PathBuf;

use fourscore_mkfs::FormatError;

use crate::layout::XattrProblem;
use crate::read_back::Difference;
use crate::tree::TreeError;

/// Why no image is made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An entry that the tree cannot hold.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Options that make no file system.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A source that cannot be read.
    #[error("{}: {why}", path.escape_ascii())]
    Source {
        /// The entry: its path in the tree, or that of the source.
        path: Vec<u8>,
        /// Why.
        why: io::Error,
    },
    /// A file that is not as long any more, or was changed, since it was looked at.
    #[error("{}: the file changed while it was read", path.escape_ascii())]
    Changed {
        /// Its path in the tree.
        path: Vec<u8>,
    },
    /// Attributes that cannot be kept.
    #[error("{}: {why}", path.escape_ascii())]
    Xattr {
        /// The path of an object that has them.
        path: Vec<u8>,
        /// Why.
        why: XattrProblem,
    },
    /// A file longer than the file system's maps can lead to.
    #[error("{}: {len_bytes} bytes are more than a file of this file system can have",
        path.escape_ascii())]
    FileTooLarge {
        /// Its path.
        path: Vec<u8>,
        /// Its length.
        len_bytes: u64,
    },
    /// More names than an index can lead to.
    #[error("{}: too many names for one directory (the feature large_dir allows more)",
        path.escape_ascii())]
    DirectoryTooLarge {
        /// Its path.
        path: Vec<u8>,
    },
    /// More names for one object, or more subdirectories, than can be counted.
    #[error("{}: {links} links, {most} are possible", path.escape_ascii())]
    TooManyLinks {
        /// The path of one of them.
        path: Vec<u8>,
        /// How many there are.
        links: u64,
        /// How many there may be.
        most: u64,
    },
    /// A device number beyond 12 bits of major and 20 of minor.
    #[error("{}: the device number is too large", path.escape_ascii())]
    DeviceNumber {
        /// The path of the device.
        path: Vec<u8>,
    },
    /// A link target longer than a block.
    #[error("{}: a link target of {length} bytes does not fit a block", path.escape_ascii())]
    TargetTooLong {
        /// The path of the symbolic link.
        path: Vec<u8>,
        /// Bytes of the target.
        length: usize,
    },
    /// A size that was asked for and is too small.
    #[error("the size of {given_bytes} bytes is too small: the content needs {needed_bytes}")]
    NoSpace {
        /// The least size that holds everything.
        needed_bytes: u64,
        /// The size asked for.
        given_bytes: u64,
    },
    /// The finished image does not hold what it was made from.
    #[error("{}: the finished image is not as its source: {what}", path.escape_ascii())]
    Verify {
        /// The path of the object.
        path: Vec<u8>,
        /// In what it differs.
        what: Difference,
    },
    /// The image cannot be written.
    #[error("{}: {why}", path.display())]
    Output {
        /// Where it was to be.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// The output holds something that may not be lost unasked.
    #[error("{}: holds {what}", path.display())]
    Occupied {
        /// The output.
        path: PathBuf,
        /// What it holds.
        what: String,
    },
    /// The image is not complete, and what was there before is lost: it was written in place.
    #[error("{why} (what was there is overwritten; its content is undefined now)")]
    Overwritten {
        /// Why it is not complete.
        why: Box<BuildError>,
    },
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
    /// Something that cannot be in a file system just made: a mistake of this crate.
    #[error("the layout is not valid: {0}")]
    Invalid(&'static str),
}

/// The result of this crate's calls.
pub type BuildResult<T> = Result<T, BuildError>;
