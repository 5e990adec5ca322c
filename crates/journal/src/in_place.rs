//! **Purpose.** Commits of a file system that has no log: its transactions are written to their
//! places, in an order that keeps a crash from doing more than a check can repair.
//!
//! # Model
//! ```text
//! sealed -> new blocks -> flush -> blocks that were there before -> flush -> callbacks
//! ```
//! A *new* block was allocated in this transaction or made up in it
//! ([`BufferCache::create`](fourscore_block::BufferCache::create)): nothing on the device leads to
//! it before the second part is written.
//!
//! # Crash safety
//! A crash finds transactions up to some T whole, T + 1 in part, and nothing of a later one: T + 2
//! is not written before T + 1 is durable. Of T + 1 any subset of sectors may have arrived, so
//! links and counts contradict each other and bitmaps are wrong: the file system must be checked.
//! It says so itself, since it is marked as not unmounted.
//!
//! What a check does not have to fear:
//! - *A block that two files hold.* A block is given out again when the transaction that freed
//!   it is durable: then nothing in place leads to it any more, whatever arrives of the next ones.
//! - *Old content of other files.* Data was written before the plan that maps it was carried out;
//!   the first flush makes it durable, and the new blocks of metadata, before anything in place
//!   leads there. So neither a file nor a tree shows what its blocks held in an earlier life. Inode
//!   numbers are kept back by the file system until the commit that freed them is durable, for the
//!   same reason.
//! - *A loss of what was synced and not touched since.* What a transaction does not change is not
//!   written.
//!
//! What was synced and is being changed when the crash comes may suffer as in Linux without a
//! journal: a block that was being divided has given entries away, and nothing leads to the one
//! that took them yet; the files are found in `lost+found`, the end of a file may be cut.

use fourscore_block::{BlockDevice as _, Buffer};
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::Arc;

use crate::checkpoint::CommittedBlock;
use crate::error::{During, Error};
use crate::journal::Inner;

impl Inner {
    /// Writes the transaction `tid` to its places, durably.
    pub(crate) fn write_in_place(
        &self,
        tid: Tid,
        buffers: Vec<(PhysBlock, Arc<Buffer>)>,
    ) -> Result<(), Error> {
        let sealed = self.sealed_blocks(tid, buffers);
        let (new, old): (Vec<_>, Vec<_>) = sealed.partition(|block| block.sealed.is_new);
        for mut part in [new, old] {
            part.sort_by_key(|block| block.sealed.block);
            // Also without new blocks: what comes next may lead to data.
            self.write_part(&part)
                .map_err(|source| self.abort_with(During::InPlace(tid), source))?;
            for CommittedBlock { sealed, buffer } in &part {
                buffer.checkpointed(sealed.tid);
            }
        }
        self.note_commit(0);
        Ok(())
    }

    fn write_part(&self, part: &[CommittedBlock]) -> std::io::Result<()> {
        if !part.is_empty() {
            self.home().submit(self.in_place(part)).wait_all_ok()?;
        }
        self.home().flush()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use fourscore_block::{
        BlockDevice, BufferCache, CacheOptions, DeviceOp, Event, FaultyDevice, RamDevice,
        RecordingDevice, Rule,
    };
    use fourscore_sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::testing::{BLOCK_BYTES, block_size, fill, quiet};
    use crate::{Credits, Journal, NoHook};

    fn begin(device: &Arc<dyn BlockDevice>) -> (BufferCache, Journal) {
        let cache = BufferCache::new(Arc::clone(device), block_size(), CacheOptions::default());
        let hook = Arc::new(NoHook);
        let journal = Journal::without_log(Arc::clone(device), block_size(), hook, quiet());
        (cache, journal.expect("credits"))
    }

    /// The blocks that were written; `None` for a flush.
    fn written(device: &RecordingDevice) -> Vec<Option<u64>> {
        let block = |event: &Event| match event {
            Event::Write { offset, .. } => Some(offset / BLOCK_BYTES as u64),
            _ => None,
        };
        device.events().iter().map(block).collect()
    }

    #[test]
    fn what_nothing_leads_to_yet_is_durable_first() {
        let recording = Arc::new(RecordingDevice::new(Arc::new(RamDevice::new(64 << 10))));
        let device: Arc<dyn BlockDevice> = recording.clone();
        let (cache, journal) = begin(&device);
        assert!(!journal.has_log());
        let old = cache.load(PhysBlock(3)).expect("in memory");
        let (new, freed) = (cache.create(PhysBlock(7)), cache.create(PhysBlock(9)));
        let is_durable = Arc::new(AtomicBool::new(false));
        for round in 1..=2 {
            let before = recording.cuts();
            let mut handle = journal.start(Credits(4)).expect("credits");
            fill(&mut handle, &old, round);
            fill(&mut handle, &new, round);
            if round == 1 {
                fill(&mut handle, &freed, round);
                handle.forget(&cache, PhysBlock(9)).expect("credits");
            }
            let (flag, device) = (Arc::clone(&is_durable), Arc::clone(&recording));
            handle.on_commit(Box::new(move |_| {
                let last = device.events().pop();
                flag.store(last.is_some_and(|last| last.is_flush()), Ordering::Relaxed);
            }));
            let tid = handle.stop();
            assert_eq!(
                recording.cuts(),
                before,
                "nothing is written before the commit"
            );
            journal.commit_and_wait(tid).expect("in memory");
            assert!(is_durable.swap(false, Ordering::Relaxed), "told too early");
            let expected = match round {
                1 => [Some(7), None, Some(3), None].to_vec(),
                // What is in its place is new no more; side by side they would be one request.
                _ => [None, Some(3), Some(7), None].to_vec(),
            };
            assert_eq!(written(&recording)[before..], expected, "round {round}");
        }
        journal.close().expect("in memory");
    }

    #[test]
    fn a_place_that_cannot_be_written_ends_it() {
        let faulty = Arc::new(FaultyDevice::new(Arc::new(RamDevice::new(64 << 10))));
        let device: Arc<dyn BlockDevice> = faulty.clone();
        let (cache, journal) = begin(&device);
        let buffer = cache.load(PhysBlock(3)).expect("in memory");
        faulty.add(Rule::nth(DeviceOp::Write, 1));
        let mut handle = journal.start(Credits(1)).expect("credits");
        fill(&mut handle, &buffer, 1);
        let tid = handle.stop();
        assert!(matches!(
            journal.commit_and_wait(tid),
            Err(Error::Aborted(_))
        ));
        let during = journal.abort_cause().map(|cause| cause.during);
        assert_eq!(during, Some(During::InPlace(tid)));
        assert!(matches!(journal.start(Credits(1)), Err(Error::Aborted(_))));
    }
}
