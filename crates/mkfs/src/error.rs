//! **Purpose.** Why a file system is not made.

use std::io;

use crate::signature::Signature;

/// Why a file system is not made. Everything but [`Io`](Self::Io) is found before a byte is
/// written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// An option that cannot be, alone or together with another.
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
        /// The blocks there are.
        blocks: u64,
        /// Their size.
        block_size_bytes: usize,
        /// What does not fit.
        why: &'static str,
    },
    /// The metadata asked for does not fit the blocks there are.
    #[error("no room for {what}")]
    NoRoom {
        /// What was to be placed.
        what: &'static str,
    },
    /// The builder put something where superblocks and descriptors must be, or into a file system
    /// whose tables cannot go around it.
    #[error("{what} cannot go around what is there already")]
    InTheWay {
        /// What was to be placed.
        what: &'static str,
    },
    /// The device holds something that would be destroyed.
    #[error("contains {0} (use -F to overwrite it)")]
    Occupied(Signature),
    /// The device failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The layout breaks a rule of the format. Always a mistake of this module.
    #[error("the layout is not valid: {0}")]
    Invalid(String),
}

impl FormatError {
    /// An option that cannot be.
    pub(crate) fn option(option: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Option {
            option: option.into(),
            why: why.into(),
        }
    }
}

/// The result of this module's calls.
pub type FormatResult<T> = Result<T, FormatError>;
