//! **Purpose.** jbd2 without a file system: knows blocks, not inodes.
//!
//! **Not here.** The bytes of the journal's blocks (`fourscore_ondisk::jbd2`), and what
//! fast-commit records mean for inodes and directories (crate `fs`).
//!
//! | module | responsibility |
//! |---|---|
//! | [`log`] | where the journal's blocks are, reading them, internal and external journals |
//! | [`recovery`] | a plan of what replaying the log would write |
//! | [`fast_commit`] | which records of the fast-commit area count |
#![forbid(unsafe_code)]

pub mod fast_commit;
pub mod log;
pub mod recovery;

pub use fast_commit::FastCommits;
pub use log::{JournalMap, JournalRun, Log};
pub use recovery::{LoggedCopy, Recovered, recover};

use fourscore_ondisk::jbd2::{JournalBlock, JournalError};

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error("journal block {journal_block}: {source}")]
    Io {
        /// The block that was to be read.
        journal_block: JournalBlock,
        /// What the device said.
        source: std::io::Error,
    },
    /// The replayed state cannot be laid over the device.
    #[error("replay in memory: {0}")]
    Overlay(std::io::Error),
    /// The journal breaks the format, or contradicts itself.
    #[error(transparent)]
    Corrupt(#[from] JournalError),
}
