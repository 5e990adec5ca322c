//! **Purpose.** Replays a log: writes the copies that recovery found to their home locations, and
//! marks the journal empty.
//!
//! # Crash safety
//! The copies are durable before the superblock says that the journal is empty, and the log does
//! not change until then. So a replay that was interrupted at any write can be repeated with the
//! same result.

use std::io;

use fourscore_block::{Batch, BlockDevice, IoBuf};
use fourscore_ondisk::PhysBlock;
use fourscore_ondisk::jbd2::unescape;

use crate::error::Error;
use crate::log::{Log, LogReader, ReadAhead};
use crate::recovery::{LoggedCopy, Recovered};
use crate::superblock;

/// The most blocks in memory at once.
const MAX_BLOCKS: usize = 512;

/// Writes the copies of `recovered`, which came from `log`, to `home`, the device of the file
/// system, and marks the journal empty. All of it is durable when the call returns.
///
/// # Errors
/// A device fails. The replay can be repeated.
pub fn replay(log: &mut Log, recovered: &Recovered, home: &dyn BlockDevice) -> Result<(), Error> {
    if log.superblock().start().is_none() {
        return Ok(());
    }
    write_home(log, recovered, home)?;
    log.mark_empty(recovered.end_of_log())
}

/// As [`replay`], for what [`salvage`](crate::salvage) found. `mark` is called when the copies are
/// durable and before the journal is marked empty: it marks the file system as one to be checked,
/// and makes that durable. So no crash leaves a file system that seems sound.
///
/// # Errors
/// As [`replay`], and the error of `mark`.
pub fn replay_salvaged(
    log: &mut Log,
    recovered: &Recovered,
    home: &dyn BlockDevice,
    mark: impl FnOnce() -> io::Result<()>,
) -> Result<(), Error> {
    write_home(log, recovered, home)?;
    mark().map_err(Error::Replay)?;
    log.mark_empty(recovered.end_of_log())
}

/// As [`replay`], for a log with valid fast commits: sets `s_start` to the end of the replayed
/// transactions instead of marking the journal empty. So the fast commits stay valid until the
/// transaction to which they belong is committed. [`Journal::open`](crate::Journal::open) accepts
/// such a log, and starts with that transaction.
///
/// # Errors
/// As [`replay`].
pub fn replay_before_fast_commits(
    log: &mut Log,
    recovered: &Recovered,
    home: &dyn BlockDevice,
) -> Result<(), Error> {
    write_home(log, recovered, home)?;
    let mut marked = log.superblock().clone();
    marked.set_tail(Some(recovered.head()), recovered.end_tid());
    log.replace_superblock(marked)?;
    log.set_replayed();
    Ok(())
}

fn write_home(log: &Log, recovered: &Recovered, home: &dyn BlockDevice) -> Result<(), Error> {
    for copies in recovered.copies().chunks(MAX_BLOCKS) {
        let batch = read(log, copies)?;
        let written = home.submit(batch).wait_all_ok();
        written.map_err(Error::Replay)?;
    }
    home.flush().map_err(Error::Replay)
}

/// The writes of `copies`, which are in the order of their blocks.
fn read(log: &Log, copies: &[LoggedCopy]) -> Result<Batch, Error> {
    let mut reader = LogReader::new(log, ReadAhead::None);
    let mut batch = Batch::new();
    let follows =
        |one: &LoggedCopy, two: &LoggedCopy| one.block.0.checked_add(1) == Some(two.block.0);
    for run in copies.chunk_by(follows) {
        let mut bufs = Vec::with_capacity(run.len());
        for copy in run {
            let mut buf = IoBuf::from(reader.read(copy.journal_block)?);
            if copy.escaped {
                unescape(buf.as_mut_slice().expect("made here"));
            }
            bufs.push(buf);
        }
        let first = run.first().map_or(PhysBlock(0), |copy| copy.block);
        batch.write(bufs, log.block_size().offset(first));
    }
    Ok(batch)
}

impl Log {
    /// Writes a superblock with `s_start` 0 and with `sequence` as the last tid in use.
    pub(crate) fn mark_empty(&mut self, sequence: fourscore_ondisk::Tid) -> Result<(), Error> {
        let mut marked = self.superblock().clone();
        marked.set_tail(None, sequence);
        self.replace_superblock(marked)
    }

    /// Writes `changed` over the superblock; durable when the call returns.
    pub(crate) fn replace_superblock(
        &mut self,
        changed: fourscore_ondisk::jbd2::JournalSuperblock,
    ) -> Result<(), Error> {
        let written: io::Result<()> = superblock::write(self, &changed);
        written.map_err(|source| Error::Io {
            journal_block: self.superblock_at(),
            source,
        })?;
        self.set_superblock(changed);
        Ok(())
    }
}
