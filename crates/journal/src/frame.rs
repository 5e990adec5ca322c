//! **Purpose.** A transaction as the blocks of the log: revoke blocks, descriptors with their data
//! blocks, and the commit block.
//!
//! **Not here.** The bytes of each kind of block (`fourscore_ondisk::jbd2`), and when they are
//! written and flushed (`commit`).
//!
//! # Model
//! ```text
//! revoke*  (descriptor  data{1..tags per block})*  | commit
//! \______________ one batch _____________________/   by itself, after a flush
//! ```
//! Data blocks are written from where they are: the sealed version in the buffer. Only one that
//! begins with the journal's magic number is copied, to be escaped. Blocks that lie side by side
//! on the device become one request.

use std::time::Duration;

use fourscore_block::{Batch, IoBuf, Sealed};
use fourscore_ondisk::jbd2::{
    BlockKind, Commit, Header, JournalBlock, LogChecksums, LogFormat, Tag, TagFlags,
    TransactionChecksum, escape, needs_escape,
};
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::Arc;

use crate::journal::Inner;
use crate::sabotage::Sabotage;

/// The most blocks in one request: what a host takes as one vector.
const MOST_BLOCKS: usize = 512;

/// A transaction ready to be written.
#[derive(Debug)]
pub(crate) struct Frame {
    /// All blocks but the last.
    pub(crate) batch: Batch,
    /// The last block, and where it goes.
    pub(crate) commit: IoBuf,
    pub(crate) commit_block: JournalBlock,
    /// The length, with the commit block.
    pub(crate) blocks: u32,
}

/// What a frame is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing<'j> {
    pub(crate) journal: &'j Inner,
    pub(crate) tid: Tid,
}

impl Framing<'_> {
    /// Lays out the transaction from `start` on. `since_1970` is the time of the commit.
    pub(crate) fn frame(
        &self,
        start: JournalBlock,
        sealed: &[Sealed],
        revoked: &[PhysBlock],
        since_1970: Duration,
    ) -> Frame {
        let mut writer = Writer {
            framing: self,
            batch: Batch::new(),
            run: Vec::new(),
            run_start: start,
            at: start,
            blocks: 0,
        };
        let mut checksum = TransactionChecksum::default();
        self.put_revokes(&mut writer, revoked);
        let tags = self.format().tags_per_block(self.block_bytes()).max(1);
        for part in sealed.chunks(tags) {
            self.put_part(&mut writer, &mut checksum, part);
        }
        writer.end_run();
        let mut commit = self.block(BlockKind::Commit);
        let bytes = commit.as_mut_slice().expect("made here");
        Commit::put_time(since_1970, bytes);
        self.format().seal_commit(bytes, &checksum);
        Frame {
            batch: writer.batch,
            commit,
            commit_block: writer.at,
            blocks: writer.blocks + 1,
        }
    }

    fn format(&self) -> LogFormat {
        self.journal.log_format()
    }

    fn block_bytes(&self) -> usize {
        self.journal.log().block_size().bytes()
    }

    /// A block with nothing but a header.
    fn block(&self, kind: BlockKind) -> IoBuf {
        let mut block = IoBuf::zeroed(self.block_bytes());
        let header = Header {
            kind,
            tid: self.tid,
        };
        header.put(block.as_mut_slice().expect("made here"));
        block
    }

    fn put_revokes(&self, writer: &mut Writer<'_>, mut revoked: &[PhysBlock]) {
        while !revoked.is_empty() {
            let mut block = self.block(BlockKind::Revoke);
            let bytes = block.as_mut_slice().expect("made here");
            let count = self.format().put_revokes(revoked, bytes);
            self.format().seal_tail(bytes);
            writer.push(block);
            revoked = revoked.get(count.max(1)..).unwrap_or(&[]);
        }
    }

    /// A descriptor and the data blocks it describes.
    fn put_part(
        &self,
        writer: &mut Writer<'_>,
        checksum: &mut TransactionChecksum,
        part: &[Sealed],
    ) {
        let mut descriptor = self.block(BlockKind::Descriptor);
        let bytes = descriptor.as_mut_slice().expect("made here");
        let mut at = self.format().tag_range(bytes.len());
        let (format, uuid) = (self.format(), self.journal.log().superblock().uuid());
        let mut copies = Vec::with_capacity(part.len());
        for (index, sealed) in part.iter().enumerate() {
            let (copy, mut flags) = logged(sealed);
            if index > 0 {
                flags |= TagFlags::SAME_UUID;
            }
            if index + 1 == part.len() {
                flags |= TagFlags::LAST_TAG;
            }
            let tag = Tag {
                block: sealed.block,
                flags,
                checksum: self.tag_checksum(&copy),
            };
            let to = bytes.get_mut(at.clone()).unwrap_or(&mut []);
            at.start += format
                .put_tag(&tag, &uuid, to)
                .expect("a part has no more tags than fit");
            copies.push(copy);
        }
        self.format().seal_tail(bytes);
        if self.format().checksums == LogChecksums::V1 {
            checksum.update(bytes);
            copies.iter().for_each(|copy| checksum.update(copy));
        }
        writer.push(descriptor);
        for copy in copies {
            writer.push(IoBuf::from(copy));
        }
    }

    fn tag_checksum(&self, copy: &[u8]) -> u32 {
        if self.journal.lacks(Sabotage::NoTagChecksum) {
            return 0;
        }
        self.format().copy_checksum(self.tid, copy)
    }
}

/// The bytes of a block as they go to the log.
fn logged(sealed: &Sealed) -> (Arc<[u8]>, TagFlags) {
    let mut copy = Arc::clone(&sealed.bytes);
    if !needs_escape(&copy) {
        return (copy, TagFlags::empty());
    }
    escape(Arc::make_mut(&mut copy));
    (copy, TagFlags::ESCAPE)
}

/// Puts blocks into the log one after the other.
struct Writer<'f> {
    framing: &'f Framing<'f>,
    batch: Batch,
    /// Blocks that lie side by side on the device, from `run_start` on.
    run: Vec<IoBuf>,
    run_start: JournalBlock,
    /// Where the next block goes.
    at: JournalBlock,
    blocks: u32,
}

impl Writer<'_> {
    fn push(&mut self, block: IoBuf) {
        let log = self.framing.journal.log();
        self.run.push(block);
        self.blocks += 1;
        let next = self.framing.journal.ring().after(self.at, 1);
        let follows = match (log.offset(self.at), log.offset(next)) {
            (Some(here), Some(there)) => here + log.block_size().offset(PhysBlock(1)) == there,
            _ => false,
        };
        self.at = next;
        if !follows || self.run.len() == MOST_BLOCKS {
            self.end_run();
        }
    }

    fn end_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        if !run.is_empty() {
            // Every block of the ring is mapped: the log's length was checked against the map.
            let offset = self
                .framing
                .journal
                .log()
                .offset(self.run_start)
                .unwrap_or(u64::MAX);
            self.batch.write(run, offset);
        }
        self.run_start = self.at;
    }
}
