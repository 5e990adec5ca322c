//! **Purpose.** Why a file system is not made.

use std::io;

use crate::signature::Signature;

/// Why a file system is not made. All errors but [`Io`](Self::Io) are found before a byte is
/// written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// An option that is not possible, alone or together with another.
    #[error("{option}: {why}")]
    Option {
        /// The option as mke2fs spells it, such as `-b` or `-E stride`.
        option: String,
        /// What is wrong, and where it helps what would be right.
        why: String,
    },
    /// The configuration file cannot be understood.
    #[error("{path}, line {line}: {why}")]
    Config {
        /// The file.
        path: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A size too small for the metadata that must be there.
    #[error("size: {blocks} blocks of {block_size_bytes} bytes are too few: {why}")]
    TooSmall {
        /// The number of blocks.
        blocks: u64,
        /// Their size.
        block_size_bytes: usize,
        /// What does not fit.
        why: &'static str,
    },
    /// The metadata does not fit into the file system.
    #[error("no space for {what}")]
    NoRoom {
        /// What was to be placed.
        what: &'static str,
    },
    /// Data that was written before the layout lies where superblocks and descriptors must be, or
    /// the features of the file system tie its tables to fixed places.
    #[error("{what} cannot be placed around the data that is already there")]
    InTheWay {
        /// What was to be placed.
        what: &'static str,
    },
    /// The device holds something that would be destroyed.
    #[error("contains {0} (use -F to overwrite it)")]
    Occupied(Signature),
    /// The device has no file system of ext2, ext3 or ext4, or a damaged superblock.
    #[error("{0}")]
    NoFileSystem(String),
    /// The file system must not be changed as it is.
    #[error("{0}")]
    NotAtRest(String),
    /// The device failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The layout breaks a rule of the format. Always a mistake of this crate.
    #[error("the layout is not valid: {0}")]
    Invalid(String),
}

impl FormatError {
    /// A rule of the format that the layout breaks.
    pub(crate) fn invalid(error: impl std::fmt::Display) -> Self {
        Self::Invalid(error.to_string())
    }

    /// A superblock that cannot be used.
    pub(crate) fn no_file_system(why: impl std::fmt::Display) -> Self {
        Self::NoFileSystem(why.to_string())
    }

    /// A file system that must not be changed as it is.
    pub(crate) fn not_at_rest(why: impl std::fmt::Display) -> Self {
        Self::NotAtRest(why.to_string())
    }

    /// An option with a value that is not possible.
    pub(crate) fn option(option: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Option {
            option: option.into(),
            why: why.into(),
        }
    }
}

/// The result of this crate's calls.
pub type FormatResult<T> = Result<T, FormatError>;
