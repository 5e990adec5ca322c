//! **Purpose.** Commits without a log: writes a transaction to its home locations, in an order that
//! limits the damage of a crash to what e2fsck can repair.
//!
//! # Model
//! ```text
//! sealed -> new blocks -> flush -> existing blocks -> flush -> callbacks
//! ```
//! A *new* block was allocated in this transaction
//! ([`BufferCache::create`](fourscore_block::BufferCache::create)): nothing on the device refers to
//! it before the second part is written.
//!
//! # Crash safety
//! After a crash, transactions up to some T are complete, T + 1 is incomplete, and nothing of a
//! later one is on the device: T + 2 is not written before T + 1 is durable. Any subset of the
//! sectors of T + 1 may have arrived, so links, counts and bitmaps may contradict each other: the
//! file system must be checked. It is marked as not cleanly unmounted, so the check happens.
//!
//! Three kinds of damage cannot happen:
//! - *A block that belongs to two files.* A block is allocated again only when the transaction that
//!   freed it is durable: then nothing on the device refers to it any more, whatever arrives of
//!   later transactions.
//! - *Old data of other files.* Data is written before the metadata that maps it is changed. The
//!   first flush makes it durable, together with the new blocks of metadata, before anything on the
//!   device refers to them. So neither a file nor a tree exposes the previous contents of its
//!   blocks. For the same reason the file system reuses inode numbers only after the commit that
//!   freed them is durable.
//! - *A loss of data that was synced and not changed since.* A transaction writes only the blocks
//!   that it changes.
//!
//! Files that were synced and are being changed at the crash may be damaged as in Linux without a
//! journal. For example, after a split of a directory block the entries moved out may be missing,
//! because nothing refers to the new block yet: their files are found in `lost+found`. The end of a
//! file may be cut off.

use fourscore_block::{BlockDevice as _, Novelty};
use fourscore_ondisk::Tid;

use crate::checkpoint::CommittedBlock;
use crate::error::{During, Error};
use crate::journal::Inner;
use crate::transaction::ChangedBuffer;

impl Inner {
    /// Writes the transaction `tid` to its home locations; it is durable on return.
    pub(crate) fn write_in_place(
        &self,
        tid: Tid,
        buffers: Vec<ChangedBuffer>,
    ) -> Result<(), Error> {
        let sealed = self.sealed_blocks(tid, buffers);
        let (new, old): (Vec<_>, Vec<_>) =
            sealed.partition(|block| block.sealed.novelty != Novelty::Known);
        for mut part in [new, old] {
            part.sort_by_key(|block| block.sealed.block);
            // The flush is needed also without new blocks: existing blocks may refer to new data.
            self.write_part(&part)
                .map_err(|source| self.abort_with(During::InPlace(tid), source))?;
            for CommittedBlock { sealed, buffer } in &part {
                buffer.checkpointed(sealed.tid);
            }
        }
        self.note_commit(0, 0);
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
    use fourscore_ondisk::PhysBlock;
    use fourscore_sync::Arc;
    use fourscore_sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::testing::{BLOCK_BYTES, block_size, fill, without_threads};
    use crate::{Credits, Journal, NoHook};

    fn begin(device: &Arc<dyn BlockDevice>) -> (BufferCache, Journal) {
        let cache = BufferCache::new(Arc::clone(device), block_size(), CacheOptions::default());
        let hook = Arc::new(NoHook);
        let journal =
            Journal::without_log(Arc::clone(device), block_size(), hook, without_threads());
        (cache, journal.expect("credits"))
    }

    /// The blocks that were written, in order; `None` for a flush.
    fn written(device: &RecordingDevice) -> Vec<Option<u64>> {
        let block = |event: &Event| match event {
            Event::Write { offset, .. } => Some(offset / BLOCK_BYTES as u64),
            _ => None,
        };
        device.events().iter().map(block).collect()
    }

    #[test]
    fn new_blocks_are_durable_before_existing_ones_are_written() {
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
            assert!(
                is_durable.swap(false, Ordering::Relaxed),
                "the callback ran before the flush"
            );
            let expected = match round {
                1 => [Some(7), None, Some(3), None].to_vec(),
                // All blocks exist now; adjacent blocks would be one request.
                _ => [None, Some(3), Some(7), None].to_vec(),
            };
            assert_eq!(written(&recording)[before..], expected, "round {round}");
        }
        journal.close().expect("in memory");
    }

    #[test]
    fn a_failed_write_aborts_the_journal() {
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
