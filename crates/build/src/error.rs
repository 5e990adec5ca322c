//! **Purpose.** Errors of a build. Each names the file or entry it is about.

use std::io;
use std::path::PathBuf;

use fourscore_mkfs::FormatError;

use crate::layout::XattrProblem;
use crate::read_back::Difference;
use crate::tree::TreeError;

/// An error of a build.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A source has an entry that the tree cannot hold.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The options do not give a valid file system.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A source cannot be read.
    #[error("{}: {why}", path.escape_ascii())]
    Source {
        /// The path of the entry in the tree, or of the source.
        path: Vec<u8>,
        /// The cause.
        why: io::Error,
    },
    /// A file was changed or truncated between scanning and reading it.
    #[error("{}: the file changed while it was read", path.escape_ascii())]
    Changed {
        /// Its path in the tree.
        path: Vec<u8>,
    },
    /// Extended attributes that ext4 cannot store.
    #[error("{}: {why}", path.escape_ascii())]
    Xattr {
        /// The path of an object that has them.
        path: Vec<u8>,
        /// The cause.
        why: XattrProblem,
    },
    /// A file is longer than the block maps or extents of the file system can address.
    #[error("{}: {len_bytes} bytes are more than a file of this file system can have",
        path.escape_ascii())]
    FileTooLarge {
        /// Its path.
        path: Vec<u8>,
        /// Its length.
        len_bytes: u64,
    },
    /// A directory has more names than its hash tree can index.
    #[error("{}: too many names for one directory (the feature large_dir allows more)",
        path.escape_ascii())]
    DirectoryTooLarge {
        /// Its path.
        path: Vec<u8>,
    },
    /// An object has more names, or a directory more subdirectories, than the link count can hold.
    #[error("{}: {links} links, ext4 allows {most}", path.escape_ascii())]
    TooManyLinks {
        /// The path of one of them.
        path: Vec<u8>,
        /// The number of links.
        links: u64,
        /// The largest possible number.
        most: u64,
    },
    /// A device number has a major number above 12 bits or a minor number above 20 bits.
    #[error("{}: the device number is too large", path.escape_ascii())]
    DeviceNumber {
        /// The path of the device.
        path: Vec<u8>,
    },
    /// An object of the user or the group that no system has.
    #[error("{}: the {kind} id is {id}, which no {kind} has", path.escape_ascii())]
    Owner {
        /// The path of the object.
        path: Vec<u8>,
        /// `user` or `group`.
        kind: &'static str,
        /// The id.
        id: u32,
    },
    /// The target of a symbolic link is longer than a block.
    #[error("{}: a link target of {length} bytes does not fit in a block", path.escape_ascii())]
    TargetTooLong {
        /// The path of the symbolic link.
        path: Vec<u8>,
        /// Length of the target in bytes.
        length: usize,
    },
    /// The given size is too small.
    #[error("the size of {given_bytes} bytes is too small: the content needs {needed_bytes}")]
    NoSpace {
        /// The smallest size that holds everything.
        needed_bytes: u64,
        /// The given size.
        given_bytes: u64,
    },
    /// Reading back the finished image found a difference from its sources.
    #[error("{}: the finished image differs from its source: {what}", path.escape_ascii())]
    Verify {
        /// The path of the object.
        path: Vec<u8>,
        /// The difference.
        what: Difference,
    },
    /// The output cannot be written.
    #[error("{}: {why}", path.display())]
    Output {
        /// The output.
        path: PathBuf,
        /// The cause.
        why: io::Error,
    },
    /// The output holds data, and the options do not allow overwriting it.
    #[error("{}: holds {what}", path.display())]
    Occupied {
        /// The output.
        path: PathBuf,
        /// A description of the data.
        what: String,
    },
    /// The build failed after it began to overwrite a device or partition in place, so the previous
    /// data is lost.
    #[error("{why} (the previous data is overwritten; the content is undefined now)")]
    Overwritten {
        /// The cause.
        why: Box<BuildError>,
    },
    /// The progress callback stopped the build.
    #[error("stopped")]
    Stopped,
    /// An internal error: the layout contains something that a new file system cannot hold.
    #[error("the layout is not valid: {0}")]
    Invalid(&'static str),
}

/// The result of this crate's calls.
pub type BuildResult<T> = Result<T, BuildError>;
