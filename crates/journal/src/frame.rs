//! **Purpose.** Writes a transaction as blocks of the log: revoke blocks, descriptor blocks with
//! their data blocks, and the commit block.
//!
//! **Not here.** The layout of each kind of block (`fourscore_ondisk::jbd2`), and flushes
//! (`commit`).
//!
//! # Model
//! ```text
//! revoke*  (descriptor  data{1..tags per block})*  | commit
//! \____________ vectored batches ________________/   by itself, after a flush
//! ```
//! Data blocks are written without a copy, from the sealed version of the buffer. Only a block that
//! begins with the journal's magic number is copied, to be escaped. Blocks that are contiguous on
//! the device become one request.
//!
//! A transaction of up to 256 KiB is one batch. A longer one is submitted piece by piece, so that
//! the work on a piece (sealing, checksums, and the device's own copy) is done while its bytes are
//! in the cache, and while the device writes the pieces before it.

use std::io;
use std::mem;
use std::time::Duration;

use fourscore_block::{Batch, IoBuf, prefetch};
use fourscore_ondisk::jbd2::{
    BlockKind, Commit, Header, JournalBlock, LogChecksums, LogFormat, RecordError, Tag, TagFlags,
    TransactionChecksum, escape, needs_escape,
};
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::Arc;

use crate::checkpoint::CommittedBlock;
use crate::flights::{BATCH_BYTES, Flights};
use crate::journal::{Inner, Logged};
use crate::sabotage::Sabotage;

/// The most blocks in one request: one I/O vector of the host.
const MAX_BLOCKS: usize = 512;

/// The commit block of a transaction whose other blocks have been written.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) block: IoBuf,
    /// Its position in the log.
    pub(crate) at: JournalBlock,
    /// The length of the transaction in the log, including this block.
    pub(crate) blocks: u32,
}

/// Writes a transaction to the log, block after block.
#[derive(Debug)]
pub(crate) struct Frame<'j> {
    journal: &'j Inner,
    logged: &'j Logged,
    tid: Tid,
    format: LogFormat,
    /// The checksum of all blocks (version 1).
    checksum: TransactionChecksum,
    batch: Batch,
    batch_bytes: usize,
    flights: Flights,
    /// Blocks that are contiguous on the device, from `run_start` on.
    run: Vec<IoBuf>,
    run_start: JournalBlock,
    /// The position of the next block.
    at: JournalBlock,
    blocks: u32,
}

impl<'j> Frame<'j> {
    /// The frame of the transaction `tid`, which begins at `start`.
    pub(crate) fn new(
        journal: &'j Inner,
        logged: &'j Logged,
        tid: Tid,
        start: JournalBlock,
    ) -> Self {
        Self {
            journal,
            logged,
            tid,
            format: logged.format(),
            checksum: TransactionChecksum::default(),
            batch: Batch::new(),
            batch_bytes: 0,
            flights: Flights::of(logged.log().device()),
            run: Vec::new(),
            run_start: start,
            at: start,
            blocks: 0,
        }
    }

    /// The transaction.
    pub(crate) fn tid(&self) -> Tid {
        self.tid
    }

    /// The number of tags in one descriptor block.
    pub(crate) fn tags_per_descriptor(&self) -> usize {
        self.format.tags_per_block(self.block_bytes()).max(1)
    }

    fn block_bytes(&self) -> usize {
        self.logged.log().block_size().bytes()
    }

    /// A zeroed block with a header.
    fn block(&self, kind: BlockKind) -> IoBuf {
        let mut block = IoBuf::zeroed(self.block_bytes());
        let header = Header {
            kind,
            tid: self.tid,
        };
        header.put(block.as_mut_slice().expect("made here"));
        block
    }

    /// Adds revoke blocks.
    ///
    /// # Errors
    /// A write that was in flight failed; `InvalidInput` for a block whose number is too wide for
    /// the log.
    pub(crate) fn put_revokes(&mut self, mut revoked: &[PhysBlock]) -> io::Result<()> {
        while !revoked.is_empty() {
            let mut block = self.block(BlockKind::Revoke);
            let bytes = block.as_mut_slice().expect("made here");
            let count = self.format.put_revokes(revoked, bytes).map_err(no_record)?;
            self.format.seal_tail(bytes);
            self.push(block)?;
            revoked = revoked.get(count.max(1)..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Adds a descriptor block and the data blocks that it describes, at most
    /// [`Frame::tags_per_descriptor`].
    ///
    /// # Errors
    /// As [`Frame::put_revokes`].
    pub(crate) fn put_data(&mut self, part: &[CommittedBlock]) -> io::Result<()> {
        let mut descriptor = self.block(BlockKind::Descriptor);
        let bytes = descriptor.as_mut_slice().expect("made here");
        let mut at = self.format.tag_range(bytes.len());
        let uuid = self.logged.log().superblock().uuid();
        let mut copies = Vec::with_capacity(part.len());
        for (index, committed) in part.iter().enumerate() {
            if let Some(next) = part.get(index + 1) {
                prefetch(&next.sealed.bytes);
            }
            let (copy, mut flags) = escaped(self.journal.as_logged(committed));
            if index > 0 {
                flags |= TagFlags::SAME_UUID;
            }
            if index + 1 == part.len() {
                flags |= TagFlags::LAST_TAG;
            }
            let tag = Tag {
                block: committed.sealed.block,
                flags,
                checksum: self.tag_checksum(&copy),
            };
            let to = bytes.get_mut(at.clone()).unwrap_or(&mut []);
            at.start += self.format.put_tag(&tag, &uuid, to).map_err(no_record)?;
            copies.push(copy);
        }
        self.format.seal_tail(bytes);
        if self.format.checksums == LogChecksums::V1 {
            self.checksum.update(bytes);
            copies.iter().for_each(|copy| self.checksum.update(copy));
        }
        self.push(descriptor)?;
        copies
            .into_iter()
            .try_for_each(|copy| self.push(IoBuf::from(copy)))
    }

    fn tag_checksum(&self, copy: &[u8]) -> u32 {
        if self.journal.skips(Sabotage::NoTagChecksum) {
            return 0;
        }
        self.format.copy_checksum(self.tid, copy)
    }

    /// Waits until all blocks are written, and returns the commit block. `since_1970` is the time
    /// of the commit.
    ///
    /// # Errors
    /// A write failed.
    pub(crate) fn end(mut self, since_1970: Duration) -> io::Result<Ending> {
        self.launch()?;
        self.flights.wait()?;
        let mut block = self.block(BlockKind::Commit);
        let bytes = block.as_mut_slice().expect("made here");
        Commit::put_time(since_1970, bytes);
        self.format.seal_commit(bytes, &self.checksum);
        Ok(Ending {
            block,
            at: self.at,
            blocks: self.blocks + 1,
        })
    }

    fn push(&mut self, block: IoBuf) -> io::Result<()> {
        let log = self.logged.log();
        self.batch_bytes += block.len();
        self.run.push(block);
        self.blocks += 1;
        let next = self.logged.ring().after(self.at, 1);
        let follows = match (log.offset(self.at), log.offset(next)) {
            (Some(here), Some(there)) => here + log.block_size().offset(PhysBlock(1)) == there,
            _ => false,
        };
        self.at = next;
        if self.batch_bytes >= BATCH_BYTES {
            return self.launch();
        }
        if !follows || self.run.len() == MAX_BLOCKS {
            self.end_run();
        }
        Ok(())
    }

    fn end_run(&mut self) {
        let run = mem::take(&mut self.run);
        if !run.is_empty() {
            // Every block of the ring is mapped: the log's length was checked against the map.
            let offset = self.logged.log().offset(self.run_start);
            self.batch.write(run, offset.unwrap_or(u64::MAX));
        }
        self.run_start = self.at;
    }

    /// Submits the batch to the device.
    fn launch(&mut self) -> io::Result<()> {
        self.end_run();
        self.batch_bytes = 0;
        self.flights.submit(mem::take(&mut self.batch))
    }
}

/// The error of a transaction that has a block without a record.
pub(crate) fn no_record(error: RecordError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// The bytes of a block as they go to the log.
fn escaped(mut copy: Arc<[u8]>) -> (Arc<[u8]>, TagFlags) {
    if !needs_escape(&copy) {
        return (copy, TagFlags::empty());
    }
    escape(Arc::make_mut(&mut copy));
    (copy, TagFlags::ESCAPE)
}
