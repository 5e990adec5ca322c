//! **Purpose.** The journal's superblock while the journal is in use: it holds the log tail, where
//! recovery begins.
//!
//! # Invariants
//! - `s_start` is not 0 from before the first commit block is written until nothing is left to be
//!   replayed.
//! - All blocks in the log before `s_start` are durable at their home locations.
//!
//! # Locking
//! The one lock of this crate that is held across I/O: it orders the writes of this block. It is
//! taken for the first commit, at the end of a checkpoint, where the log wraps around in front of a
//! fast-commit area, at an abort and on close, and no other lock is taken under it.
//!
//! # Crash safety
//! The block is written with FUA, so that it is durable before the blocks of the log that it frees
//! are overwritten. All fields that change, including the checksum, are in the first 512 bytes, so
//! a torn write is harmless.

use std::io::{self, IoSlice};

use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::{JournalBlock, JournalSuperblock};
use fourscore_sync::Mutex;
use zerocopy::IntoBytes;

use crate::log::Log;

/// The superblock of a journal open for writing.
#[derive(Debug)]
pub(crate) struct LiveSuperblock {
    current: Mutex<JournalSuperblock>,
}

impl LiveSuperblock {
    pub(crate) fn new(superblock: JournalSuperblock) -> Self {
        Self {
            current: Mutex::new(superblock),
        }
    }

    /// Sets the tail: recovery begins with transaction `sequence` at `start`. `None` marks the
    /// journal empty.
    pub(crate) fn set_tail(
        &self,
        log: &Log,
        start: Option<JournalBlock>,
        sequence: Tid,
    ) -> io::Result<()> {
        let mut current = self.current.lock();
        current.set_tail(start, sequence);
        write(log, &current)
    }

    /// As [`LiveSuperblock::set_tail`], unless the superblock says that the journal is empty: then
    /// [`LiveSuperblock::begin`] sets the tail.
    pub(crate) fn move_tail(
        &self,
        log: &Log,
        start: JournalBlock,
        sequence: Tid,
    ) -> io::Result<()> {
        let mut current = self.current.lock();
        if current.start().is_none() {
            return Ok(());
        }
        current.set_tail(Some(start), sequence);
        write(log, &current)
    }

    /// As [`LiveSuperblock::set_tail`], if the superblock says that the journal is empty.
    pub(crate) fn begin(&self, log: &Log, start: JournalBlock, sequence: Tid) -> io::Result<()> {
        let mut current = self.current.lock();
        if current.start().is_some() {
            return Ok(());
        }
        current.set_tail(Some(start), sequence);
        write(log, &current)
    }

    /// Sets `s_errno`, the error that aborted the journal.
    pub(crate) fn set_errno(&self, log: &Log, errno: i32) -> io::Result<()> {
        let mut current = self.current.lock();
        current.set_errno(errno);
        write(log, &current)
    }
}

/// Writes `superblock` over that of `log`; durable on return.
pub(crate) fn write(log: &Log, superblock: &JournalSuperblock) -> io::Result<()> {
    let bytes = superblock.raw().as_bytes();
    log.device()
        .write_fua(&[IoSlice::new(bytes)], log.superblock_offset())
}
