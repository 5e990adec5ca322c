//! **Purpose.** Carries out the plan of a recovery: writes the committed copies to their places
//! and marks the journal empty.
//!
//! # Crash safety
//! The copies are durable before the superblock says that the journal is empty, so a replay that
//! was cut at any write can be made again, with the same result: until then nothing of the log has
//! changed.

use std::io;

use fourscore_block::{Batch, BlockDevice, IoBuf};
use fourscore_ondisk::PhysBlock;
use fourscore_ondisk::jbd2::unescape;

use crate::error::Error;
use crate::log::{Log, LogReader, ReadAhead};
use crate::recovery::{LoggedCopy, Recovered};
use crate::superblock;

/// The most blocks that are in memory at once.
const MOST_BLOCKS: usize = 512;

/// Writes the copies of `recovered`, which came from `log`, to `home`, the device of the file
/// system, and marks the journal empty. All of it is durable when the call returns.
///
/// # Errors
/// A device fails. The replay can be tried again.
pub fn replay(log: &mut Log, recovered: &Recovered, home: &dyn BlockDevice) -> Result<(), Error> {
    if log.superblock().start().is_none() {
        return Ok(());
    }
    write_home(log, recovered, home)?;
    log.mark_empty(recovered.end_tid())
}

/// As [`replay`], for a log behind which fast commits count: the journal is left beginning where
/// the replayed transactions end, so that they go on to count until the transaction that they
/// belong to is committed as a whole. [`Journal::open`](crate::Journal::open) takes it, and begins
/// that one.
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
    for copies in recovered.copies().chunks(MOST_BLOCKS) {
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
    /// Writes a superblock that says that nothing is to be replayed and that `sequence` was the
    /// last transaction number in use.
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
