//! **Purpose.** The journal's superblock while the journal is in use: where recovery would begin.
//!
//! # Invariants
//! - `s_start` is not 0 from before the first commit block is written until nothing is left to be
//!   replayed.
//! - What lies in the log before `s_start` is in its place on the device of the file system, and
//!   durable there.
//!
//! # Locking
//! The one lock of this crate that is held across I/O: it puts the writes of this one block in
//! order. It is taken for the first commit, at the end of a checkpoint, at an abort and at the
//! end, and no other lock is taken under it.
//!
//! # Crash safety
//! The block is written with FUA, so that it is durable before the blocks of the log that it gives
//! free are written again. All fields that change, the checksum included, lie in the first 512
//! bytes, so a torn write is no danger.

use std::io::{self, IoSlice};

use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::{JournalBlock, JournalSuperblock};
use fourscore_sync::Mutex;
use zerocopy::IntoBytes;

use crate::log::Log;

/// The superblock of a journal that is being written.
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

    /// Makes `sequence` at `start` the first transaction that recovery looks for, or none.
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

    /// As [`LiveSuperblock::set_tail`], if the superblock says that the journal is empty.
    pub(crate) fn begin(&self, log: &Log, start: JournalBlock, sequence: Tid) -> io::Result<()> {
        let mut current = self.current.lock();
        if current.start().is_some() {
            return Ok(());
        }
        current.set_tail(Some(start), sequence);
        write(log, &current)
    }

    /// Notes why the journal was aborted.
    pub(crate) fn set_errno(&self, log: &Log, errno: i32) -> io::Result<()> {
        let mut current = self.current.lock();
        current.set_errno(errno);
        write(log, &current)
    }
}

/// Writes `superblock` where that of `log` is; it is durable afterwards.
pub(crate) fn write(log: &Log, superblock: &JournalSuperblock) -> io::Result<()> {
    let bytes = superblock.raw().as_bytes();
    log.device()
        .write_fua(&[IoSlice::new(bytes)], log.superblock_offset())
}
