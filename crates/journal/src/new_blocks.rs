//! **Purpose.** Writes new blocks of metadata once: to their home locations before the commit
//! block, as data is, in place of the log.
//!
//! **Model.** A transaction that allocates a block makes everything that refers to it. Until its
//! commit block is durable, nothing on the device refers to the block, so what its home location
//! holds does not matter. When the commit block is durable, the block must be, and the flush before
//! the commit block makes it so wherever it was written. jbd2 logs such a block and copies it to
//! its home location later; here it is written there at once.
//!
//! ```text
//! sealed, in the order of blocks:    known   new new .. new   known   new   known
//!                                      |     \___________/      |      |      |
//!                                     log    home location     log    log    log
//!                                            (`new_run_bytes` and more)
//! ```
//! Only runs of adjacent new blocks are worth a request of their own: shorter ones join the log,
//! which is written in one piece, so that a small `fsync` stays a small number of requests.
//!
//! # Invariants
//! - A block goes home before the commit block only if this transaction has allocated it
//!   ([`Novelty::Allocated`]) and its buffer was not sealed before. Blocks with a fixed place, such
//!   as bitmaps that were never used, and preallocated ones go to the log: an older copy may be
//!   there.
//! - A newly allocated block is part of no transaction but the one that allocates it: an operation
//!   that may still give up its claim, or try again in a later transaction, does not add the block.
//!   Otherwise a copy would be in the log that nothing revokes when a later transaction allocates
//!   the block.
//! - No older copy of the block is replayed over it. A block that was in the log was freed by a
//!   transaction that is durable, and whose revoke record recovery finds before this transaction. A
//!   block that the same transaction has revoked is logged, since its revoke record is void then.
//! - No older copy is on its way to the home location: the callbacks of the transaction that freed
//!   the block, after which it may be allocated, come after the end of such a checkpoint.
//! - The blocks need no checkpoint. A later change of them is logged as any other.

use std::io;
use std::mem;

use fourscore_block::Novelty;
use fourscore_ondisk::{PhysBlock, Tid};

use crate::checkpoint::CommittedBlock;
use crate::flights::{BATCH_BYTES, Flights};
use crate::journal::Inner;
use crate::sabotage::Sabotage;

/// Takes the new blocks out of the blocks of a transaction.
#[derive(Debug)]
pub(crate) struct NewBlocks<'j> {
    journal: &'j Inner,
    flights: Flights,
    /// Blocks that were revoked and changed again, in ascending order: they are logged.
    revoked_again: &'j [PhysBlock],
    /// New blocks that are adjacent, not written yet.
    run: Vec<CommittedBlock>,
    /// Whether the beginning of the run has been written to its home location.
    is_begun: bool,
    /// The last block of the run.
    last: PhysBlock,
    /// The blocks that were written.
    written: Vec<CommittedBlock>,
}

impl<'j> NewBlocks<'j> {
    pub(crate) fn new(journal: &'j Inner, revoked_again: &'j [PhysBlock]) -> Self {
        Self {
            journal,
            flights: Flights::of(journal.home()),
            revoked_again,
            run: Vec::new(),
            is_begun: false,
            last: PhysBlock(0),
            written: Vec::new(),
        }
    }

    /// Takes the next block, and adds blocks that belong into the log to `logged`.
    ///
    /// # Errors
    /// A write to a home location failed.
    pub(crate) fn take(
        &mut self,
        next: CommittedBlock,
        logged: &mut Vec<CommittedBlock>,
    ) -> io::Result<()> {
        if !self.is_new(&next) {
            self.end_run(logged)?;
            logged.push(next);
            return Ok(());
        }
        let block = next.sealed.block;
        debug_assert!(
            !self.is_logged(block) || self.journal.skips(Sabotage::KnownBlocksInPlace),
            "block {block}: an older copy would be written over it"
        );
        let has_run = self.is_begun || !self.run.is_empty();
        if has_run && self.last.0.checked_add(1) != Some(block.0) {
            self.end_run(logged)?;
        }
        self.last = block;
        self.run.push(next);
        if self.run_bytes() >= BATCH_BYTES {
            self.write_run()?;
        }
        Ok(())
    }

    fn is_new(&self, block: &CommittedBlock) -> bool {
        let is_allocated = block.sealed.novelty == Novelty::Allocated
            || self.journal.skips(Sabotage::KnownBlocksInPlace);
        is_allocated
            && self
                .revoked_again
                .binary_search(&block.sealed.block)
                .is_err()
    }

    /// Whether a checkpoint is going to write an older copy of the block.
    fn is_logged(&self, block: PhysBlock) -> bool {
        let logged = self.journal.logged();
        logged.is_some_and(|logged| logged.space().awaits_checkpoint(block))
    }

    fn run_bytes(&self) -> usize {
        self.run.len() * self.journal.block_size().bytes()
    }

    /// Ends the run: a short one is added to `logged`.
    ///
    /// # Errors
    /// A write to a home location failed.
    pub(crate) fn end_run(&mut self, logged: &mut Vec<CommittedBlock>) -> io::Result<()> {
        if self.is_begun || self.run_bytes() >= self.journal.options().new_run_bytes {
            self.write_run()?;
        } else {
            logged.append(&mut self.run);
        }
        self.is_begun = false;
        Ok(())
    }

    fn write_run(&mut self) -> io::Result<()> {
        self.is_begun = true;
        let batch = self.journal.in_place(&self.run);
        self.written.append(&mut self.run);
        self.flights.submit(batch)
    }

    /// Waits until all blocks have been written; a flush makes them durable.
    ///
    /// # Errors
    /// A write failed.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        self.flights.wait()
    }

    /// Notes that the transaction `tid` is durable. Returns the number of blocks written.
    pub(crate) fn committed(&mut self, tid: Tid) -> u64 {
        let written = mem::take(&mut self.written);
        for block in &written {
            block.buffer.checkpointed(tid);
        }
        written.len() as u64
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use fourscore_block::{BlockDevice, Buffer, BufferCache, CacheOptions, Event, RecordingDevice};
    use fourscore_sync::{Arc, epoch};

    use super::*;
    use crate::testing::{BLOCK_BYTES, Disk, block_size, fill, without_threads};
    use crate::{Credits, Journal};

    /// The shortest run that is written to its home location, in blocks.
    const RUN: u64 = 64;

    /// A journal on a device whose requests are recorded.
    struct Recorded {
        disk: Disk,
        requests: Arc<RecordingDevice>,
        cache: BufferCache,
        journal: Journal,
    }

    impl Recorded {
        fn new() -> Self {
            let plain = Disk::new(1024);
            let requests = Arc::new(RecordingDevice::new(Arc::clone(&plain.device)));
            let disk = plain.behind(Arc::clone(&requests) as Arc<dyn BlockDevice>);
            let device = Arc::clone(&disk.device);
            let cache = BufferCache::new(device, block_size(), CacheOptions::default());
            let journal = disk.open(without_threads());
            Self {
                disk,
                requests,
                cache,
                journal,
            }
        }

        fn created(&self, blocks: std::ops::Range<u64>) -> Vec<Arc<Buffer>> {
            let create = |block| self.cache.create(PhysBlock(block));
            blocks.map(create).collect()
        }

        /// Fills the blocks in one transaction and makes it durable.
        fn commit(&self, buffers: &[Arc<Buffer>], byte: u8) {
            let credits = u32::try_from(buffers.len()).expect("few");
            let mut handle = self.journal.start(Credits(credits)).expect("credits");
            for buffer in buffers {
                fill(&mut handle, buffer, byte);
            }
            let tid = handle.stop();
            self.journal.commit_and_wait(tid).expect("in memory");
        }

        /// The blocks below the journal that were written since the last call, and flushes.
        fn written_home(&self, from: usize) -> Vec<Option<u64>> {
            let block = |event: &Event| match event {
                Event::Write { offset, .. } => Some(Some(offset / BLOCK_BYTES as u64)),
                _ => Some(None),
            };
            let events = self.requests.events();
            let events = events.iter().skip(from).filter_map(block);
            events.filter(|at| at.is_none_or(|at| at < 2048)).collect()
        }
    }

    #[test]
    fn a_long_run_of_new_blocks_is_written_once_and_before_the_flush() {
        let recorded = Recorded::new();
        let known = recorded.cache.load(PhysBlock(9)).expect("in memory");
        let mut buffers = recorded.created(100..100 + RUN);
        buffers.push(Arc::clone(&known));
        let before = recorded.requests.cuts();
        recorded.commit(&buffers, 7);
        let written = recorded.written_home(before);
        let flush = written.iter().position(Option::is_none).expect("a flush");
        assert_eq!(written[..flush], [Some(100)], "one request, then the flush");
        assert!(written[flush..].iter().all(Option::is_none));
        assert_eq!(recorded.journal.stats().new_blocks, RUN);
        // The known block, its descriptor and the commit block.
        assert_eq!(recorded.journal.stats().log_blocks, 3);
        assert!(known.retire() == fourscore_block::Retire::InUse);
        assert!(buffers[0].retire() == fourscore_block::Retire::Done);
        let recovered = recorded.disk.copy().replay();
        assert_eq!(recovered.copies().len(), 1);
        assert_eq!(recorded.disk.read(100), [7; BLOCK_BYTES]);
    }

    #[test]
    fn a_block_that_exists_is_logged() {
        let recorded = Recorded::new();
        let buffers = recorded.created(100..100 + RUN);
        recorded.commit(&buffers, 7);
        let before = recorded.requests.cuts();
        recorded.commit(&buffers, 8);
        let written = recorded.written_home(before);
        assert!(written.iter().all(Option::is_none), "{written:?}");
        assert_eq!(recorded.disk.read(100), [7; BLOCK_BYTES]);
        assert_eq!(recorded.journal.stats().new_blocks, RUN);
        assert_eq!(recorded.disk.copy().replay().copies().len(), buffers.len());
    }

    #[test]
    fn a_change_by_the_next_transaction_is_not_written_with_the_new_block() {
        let recorded = Recorded::new();
        let buffers = recorded.created(100..100 + RUN);
        let mut handle = recorded.journal.start(Credits(200)).expect("credits");
        buffers.iter().for_each(|one| fill(&mut handle, one, 7));
        let tid = handle.stop();
        let late = Arc::clone(&buffers[3]);
        let mut handle = recorded.journal.start(Credits(1)).expect("credits");
        handle.before_commit(Box::new(move || {
            // The transaction is sealed now, and its buffers are not.
            let next = tid.next();
            let tag = crate::testing::tag();
            late.modify(next, tag, |bytes| bytes.fill(8))
                .map(drop)
                .map_err(io::Error::other)
        }));
        assert_eq!(handle.stop(), tid);
        recorded.journal.commit_and_wait(tid).expect("in memory");
        assert_eq!(recorded.disk.read(103), [7; BLOCK_BYTES]);
        assert_eq!(buffers[3].bytes(&epoch::pin())[0], 8);
    }

    #[test]
    fn short_runs_and_blocks_with_a_fixed_place_are_logged() {
        let recorded = Recorded::new();
        let mut buffers = recorded.created(100..99 + RUN);
        buffers.extend(recorded.created(200..201));
        let unused = |block| recorded.cache.create_unused(PhysBlock(block));
        buffers.extend((300..300 + RUN).map(unused));
        let before = recorded.requests.cuts();
        recorded.commit(&buffers, 7);
        let written = recorded.written_home(before);
        assert!(written.iter().all(Option::is_none), "{written:?}");
        assert_eq!(recorded.disk.copy().replay().copies().len(), buffers.len());
    }

    #[test]
    fn a_block_that_its_transaction_has_revoked_is_logged() {
        let recorded = Recorded::new();
        let old = recorded.cache.load(PhysBlock(110)).expect("in memory");
        recorded.commit(&[old], 1);
        let mut handle = recorded.journal.start(Credits(200)).expect("credits");
        handle
            .forget(&recorded.cache, PhysBlock(110))
            .expect("credits");
        for buffer in &recorded.created(100..100 + 3 * RUN) {
            fill(&mut handle, buffer, 7);
        }
        let tid = handle.stop();
        recorded.journal.commit_and_wait(tid).expect("in memory");
        let crashed = recorded.disk.copy();
        let recovered = crashed.replay();
        assert_eq!(crashed.read(110), [7; BLOCK_BYTES]);
        // The first run is too short without it.
        assert_eq!(recovered.copies().len(), 11);
        assert_eq!(recorded.journal.stats().new_blocks, 3 * RUN - 11);
    }
}
