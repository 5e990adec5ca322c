//! **Purpose.** Errors of the journal, and causes of an abort.

use std::fmt;
use std::io;

use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::{JournalBlock, JournalError};
use fourscore_sync::Arc;

use crate::credits::Credits;

/// An error of the journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error("journal block {journal_block}: {source}")]
    Io {
        /// The block that was to be read or written.
        journal_block: JournalBlock,
        /// The error of the device.
        source: io::Error,
    },
    /// The device of the file system failed while the log was replayed.
    #[error("replay: {0}")]
    Replay(io::Error),
    /// The replayed blocks cannot be overlaid on the device in memory.
    #[error("replay in memory: {0}")]
    Overlay(io::Error),
    /// The journal breaks the format, or contradicts itself.
    #[error(transparent)]
    Corrupt(#[from] JournalError),
    /// The journal holds transactions that must be replayed before it can be written.
    #[error("journal superblock: s_start is {start}, the log must be replayed first")]
    NeedsRecovery {
        /// Where the log begins.
        start: JournalBlock,
    },
    /// The log is too short for a transaction.
    #[error("the log has {blocks} blocks, too few for a transaction")]
    LogTooShort {
        /// Its length.
        blocks: u32,
    },
    /// A handle wants more credits than a transaction has.
    #[error("{} credits wanted, a transaction has at most {}", wanted.0, most.0)]
    TooManyCredits {
        /// The credits wanted.
        wanted: Credits,
        /// The credits of a transaction.
        most: Credits,
    },
    /// The journal was aborted: nothing can be committed any more.
    #[error("the journal was aborted: {0}")]
    Aborted(AbortCause),
}

/// The operation during which a journal was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// Data was written that a transaction exposes.
    OrderedData(Tid),
    /// The blocks of a transaction were written to the log, its new blocks to their home locations,
    /// or made durable there.
    Log(Tid),
    /// The commit block of a transaction was written.
    Commit(Tid),
    /// A fast commit of a transaction was written.
    FastCommit(Tid),
    /// The blocks of a transaction were written to their home locations, without a log.
    InPlace(Tid),
    /// The superblock of the journal was written.
    Superblock,
    /// Committed blocks were written to their home locations, or made durable there.
    Checkpoint,
    /// An operation panicked with an open handle, or a commit panicked.
    Operation,
    /// The file system was found to be corrupt.
    FileSystem,
    /// The file system requested it.
    Request,
}

impl fmt::Display for During {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OrderedData(tid) => write!(f, "writing data of transaction {tid}"),
            Self::Log(tid) => write!(f, "writing transaction {tid} to the log"),
            Self::Commit(tid) => write!(f, "writing the commit block of transaction {tid}"),
            Self::FastCommit(tid) => write!(f, "writing a fast commit of transaction {tid}"),
            Self::InPlace(tid) => write!(f, "writing transaction {tid} to its home locations"),
            Self::Superblock => f.write_str("writing the journal's superblock"),
            Self::Checkpoint => f.write_str("checkpointing"),
            Self::Operation => f.write_str("a panic within an operation"),
            Self::FileSystem => f.write_str("the file system is corrupt"),
            Self::Request => f.write_str("at the file system's request"),
        }
    }
}

/// The first cause of a journal's abort.
#[derive(Clone, Debug)]
pub struct AbortCause {
    /// The operation that failed.
    pub during: During,
    /// The error of the device, if a device failed.
    pub source: Option<Arc<io::Error>>,
}

impl fmt::Display for AbortCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.during)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}
