//! **Purpose.** Writes the records of a fast commit as blocks of the fast-commit area.
//!
//! **Model.** A record never crosses the end of a block. Where one does not fit, a PAD record fills
//! the block. The TAIL takes the rest of the last block, so that the next fast commit begins in a
//! block of its own:
//!
//! ```text
//! | record | record | PAD   |   | record | TAIL ........... |
//! ```
//!
//! **Invariants.** What is left of a block after a record is nothing, or enough for the header of
//! another record: Linux and e2fsck read a header there.

use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32};

use super::{
    AddRange, DelRange, Dentry, RECORD_HEADER_BYTES, RangeState, RawAddRange, RawDelRange,
    RawDentry, RawHead, RawRecordHeader, RawTail, Record, TAIL_COVERED_BYTES, WRITTEN_MAX,
};
use crate::checksum::Crc32c;
use crate::types::Tid;
use crate::words;

const TAG_ADD_RANGE: u16 = 1;
const TAG_DEL_RANGE: u16 = 2;
const TAG_CREAT: u16 = 3;
const TAG_LINK: u16 = 4;
const TAG_UNLINK: u16 = 5;
const TAG_INODE: u16 = 6;
const TAG_PAD: u16 = 7;
const TAG_TAIL: u16 = 8;
const TAG_HEAD: u16 = 9;

/// The least length of a TAIL, with its header, in bytes.
const TAIL_MIN: usize = RECORD_HEADER_BYTES + size_of::<RawTail>();

/// The records of one fast commit, in blocks.
#[derive(Debug)]
pub struct FastCommitBlocks {
    block_bytes: usize,
    /// Whole blocks, except the last.
    bytes: Vec<u8>,
    /// Where the records begin, behind the first block of the area, if that is among the blocks.
    start: usize,
    /// The value of the record that is being added.
    value: Vec<u8>,
    checksum: Crc32c,
}

impl FastCommitBlocks {
    /// A fast commit without records.
    ///
    /// # Panics
    /// If a block is too small for the longest record: less than 1024 bytes.
    #[must_use]
    pub fn new(block_bytes: usize) -> Self {
        Self::in_memory_of(Vec::new(), block_bytes)
    }

    /// As [`Self::new`], in the memory of blocks that are no longer needed.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn in_memory_of(mut bytes: Vec<u8>, block_bytes: usize) -> Self {
        assert!(block_bytes >= 1024, "a block of {block_bytes} bytes");
        bytes.clear();
        Self {
            block_bytes,
            bytes,
            start: 0,
            value: Vec::new(),
            checksum: Crc32c::from_state(0),
        }
    }

    /// Puts the first block of an area in front of the records, of which there are none yet: HEAD
    /// and TAIL alone, which lie in one sector. Whatever is torn behind it, replay finds a valid
    /// TAIL.
    pub fn begin_area(&mut self, tid: Tid) {
        self.push(&Record::Head { features: 0, tid });
        self.tail(tid);
        self.start = self.bytes.len();
        self.checksum = Crc32c::from_state(0);
    }

    /// The first block of an area for fast commits of `tid`, alone.
    #[must_use]
    pub fn head(block_bytes: usize, tid: Tid) -> Vec<u8> {
        let mut blocks = Self::new(block_bytes);
        blocks.begin_area(tid);
        blocks.bytes
    }

    /// Whether no record was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == self.start
    }

    /// The number of blocks with records and the TAIL, without the first block of the area.
    #[must_use]
    pub fn blocks(&self) -> usize {
        let records = self.bytes.len() - self.start;
        (records + TAIL_MIN).div_ceil(self.block_bytes)
    }

    /// Adds a record other than a TAIL and a PAD, which are added where they belong.
    ///
    /// # Panics
    /// If a name or an inode is longer than it can be on disk.
    pub fn push(&mut self, record: &Record<'_>) {
        self.value.clear();
        let tag = match record {
            Record::AddRange(range) => {
                self.value
                    .extend_from_slice(raw_add_range(range).as_bytes());
                TAG_ADD_RANGE
            }
            Record::DelRange(range) => {
                self.value
                    .extend_from_slice(raw_del_range(range).as_bytes());
                TAG_DEL_RANGE
            }
            Record::Creat(dentry) => self.dentry(TAG_CREAT, dentry),
            Record::Link(dentry) => self.dentry(TAG_LINK, dentry),
            Record::Unlink(dentry) => self.dentry(TAG_UNLINK, dentry),
            Record::Inode { inode, raw } => {
                self.value.extend_from_slice(U32::new(inode.0).as_bytes());
                self.value.extend_from_slice(raw);
                TAG_INODE
            }
            Record::Head { features, tid } => {
                let head = RawHead {
                    fc_features: U32::new(*features),
                    fc_tid: U32::new(tid.0),
                };
                self.value.extend_from_slice(head.as_bytes());
                TAG_HEAD
            }
            Record::Pad | Record::Tail { .. } => return,
        };
        self.fit(RECORD_HEADER_BYTES + self.value.len());
        let start = self.bytes.len();
        self.header(tag, self.value.len());
        self.bytes.extend_from_slice(&self.value);
        self.checksum = self.checksum.update(&self.bytes[start..]);
    }

    /// Ends the fast commit with a TAIL. Returns whole blocks.
    #[must_use]
    pub fn end(mut self, tid: Tid) -> Vec<u8> {
        self.tail(tid);
        self.bytes
    }

    /// Adds a TAIL, which takes the rest of the block.
    fn tail(&mut self, tid: Tid) {
        if self.rest() < TAIL_MIN {
            self.pad();
        }
        let (start, rest) = (self.bytes.len(), self.rest());
        self.header(TAG_TAIL, rest - RECORD_HEADER_BYTES);
        self.bytes.extend_from_slice(U32::new(tid.0).as_bytes());
        let covered = &self.bytes[start..start + TAIL_COVERED_BYTES];
        let checksum = self.checksum.update(covered).value();
        self.bytes.extend_from_slice(U32::new(checksum).as_bytes());
        self.bytes.resize(start + rest, 0);
    }

    fn dentry(&mut self, tag: u16, dentry: &Dentry<'_>) -> u16 {
        let raw = RawDentry {
            fc_parent_ino: U32::new(dentry.parent.0),
            fc_ino: U32::new(dentry.inode.0),
        };
        self.value.extend_from_slice(raw.as_bytes());
        self.value.extend_from_slice(dentry.name);
        tag
    }

    /// The bytes left of the last block; a whole block if it is full.
    fn rest(&self) -> usize {
        self.block_bytes - self.bytes.len() % self.block_bytes
    }

    /// Makes sure that a record of `len` bytes fits into the last block.
    fn fit(&mut self, len: usize) {
        assert!(len <= self.block_bytes, "a record of {len} bytes");
        let rest = self.rest();
        let leaves_too_little = (1..RECORD_HEADER_BYTES).contains(&rest.wrapping_sub(len));
        if len > rest || leaves_too_little {
            self.pad();
        }
    }

    /// Fills the last block.
    fn pad(&mut self) {
        let (start, rest) = (self.bytes.len(), self.rest());
        self.header(TAG_PAD, rest - RECORD_HEADER_BYTES);
        self.bytes.resize(start + rest, 0);
        self.checksum = self.checksum.update(&self.bytes[start..]);
    }

    fn header(&mut self, tag: u16, len: usize) {
        let header = RawRecordHeader {
            fc_tag: U16::new(tag),
            // A block has at most 64 KiB, header included.
            fc_len: U16::new(u16::try_from(len).unwrap_or(u16::MAX)),
        };
        self.bytes.extend_from_slice(header.as_bytes());
    }
}

fn raw_add_range(range: &AddRange) -> RawAddRange {
    // An extent has at most 32 768 written blocks, or 32 767 unwritten ones.
    let blocks = u16::try_from(range.blocks).unwrap_or(WRITTEN_MAX);
    let ee_len = match range.state {
        RangeState::Written => blocks,
        RangeState::Unwritten => blocks | WRITTEN_MAX,
    };
    RawAddRange {
        fc_ino: U32::new(range.inode.0),
        ee_block: U32::new(range.logical.0),
        ee_len: U16::new(ee_len),
        ee_start_hi: words::low16(range.physical.0 >> 32),
        ee_start_lo: words::low32(range.physical.0),
    }
}

fn raw_del_range(range: &DelRange) -> RawDelRange {
    RawDelRange {
        fc_ino: U32::new(range.inode.0),
        fc_lblk: U32::new(range.logical.0),
        fc_len: U32::new(range.blocks),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{FastCommitChecksum, RecordBytes, records};
    use super::*;
    use crate::types::{InodeNr, LogicalBlock, PhysBlock};

    const TID: Tid = Tid(77);

    /// The records in `blocks`, whose TAIL must be valid and at the end.
    fn read(blocks: &[u8], block_bytes: usize) -> Vec<Record<'_>> {
        let mut checksum = FastCommitChecksum::default();
        let mut read = Vec::new();
        for block in blocks.chunks(block_bytes) {
            let mut used = 0;
            for found in records(block, 256) {
                let found: RecordBytes<'_> = found.unwrap();
                used += found.bytes.len();
                let rest = block.len() - used;
                assert!(
                    rest == 0 || rest >= RECORD_HEADER_BYTES,
                    "{rest} bytes are left"
                );
                match found.record {
                    Record::Tail { tid, checksum: is } => {
                        assert_eq!((tid, is), (TID, checksum.at_tail(&found)));
                        assert_eq!(rest, 0, "the TAIL ends its block");
                    }
                    _ => checksum.update(&found),
                }
                read.push(found.record);
            }
            assert_eq!(used, block.len());
        }
        assert!(matches!(read.pop(), Some(Record::Tail { .. })));
        read.retain(|record| *record != Record::Pad);
        read
    }

    #[test]
    fn the_first_block_is_valid_within_its_first_sector() {
        let mut head = FastCommitBlocks::head(4096, TID);
        assert_eq!(head.len(), 4096);
        assert!(head[512..].iter().all(|&byte| byte == 0));
        let expected = [Record::Head {
            features: 0,
            tid: TID,
        }];
        assert_eq!(read(&head, 4096), expected);
        // What lies behind the sector is not covered.
        head[600] = 1;
        assert_eq!(read(&head, 4096), expected);
    }

    #[test]
    fn the_longest_extents_are_written_and_read() {
        for (blocks, state) in [(32768, RangeState::Written), (32767, RangeState::Unwritten)] {
            let range = Record::AddRange(AddRange {
                inode: InodeNr(12),
                logical: LogicalBlock(u32::MAX - 32768),
                physical: PhysBlock(0xffff_1234_5678),
                blocks,
                state,
            });
            let mut fast_commit = FastCommitBlocks::new(1024);
            fast_commit.push(&range);
            assert_eq!(read(&fast_commit.end(TID), 1024), [range]);
        }
    }

    #[test]
    fn the_block_of_the_tail_is_counted() {
        for (rest, blocks) in [(12, 1), (13, 1), (15, 1), (16, 1), (8, 2), (0, 2)] {
            let mut fast_commit = FastCommitBlocks::new(1024);
            let raw = [1; 256];
            let mut left = 1024 - rest;
            while left > 0 {
                // An inode's record has 8 bytes in front of the inode.
                let len = left.min(264);
                fast_commit.push(&Record::Inode {
                    inode: InodeNr(12),
                    raw: &raw[..len - 8],
                });
                left -= len;
            }
            assert_eq!(fast_commit.blocks(), blocks, "{rest} bytes are left");
            assert_eq!(
                fast_commit.end(TID).len(),
                blocks * 1024,
                "{rest} bytes are left"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            lens in prop::collection::vec((0..5_u8, 1..=255_usize), 0..120),
            block_bytes in prop::sample::select(vec![1024_usize, 4096]),
        ) {
            let name = [b'n'; 255];
            let raw = [3_u8; 256];
            let record = |kind: u8, len: usize| {
                let inode = InodeNr(u32::try_from(len).unwrap());
                let dentry = Dentry { parent: InodeNr(2), inode, name: &name[..len] };
                match kind {
                    0 => Record::Creat(dentry),
                    1 => Record::Link(dentry),
                    2 => Record::Unlink(dentry),
                    3 => Record::Inode { inode, raw: &raw[..len.max(128)] },
                    _ => Record::DelRange(DelRange {
                        inode,
                        logical: LogicalBlock(7),
                        blocks: 9,
                    }),
                }
            };
            let all: Vec<_> = lens.into_iter().map(|(kind, len)| record(kind, len)).collect();
            let mut fast_commit = FastCommitBlocks::new(block_bytes);
            all.iter().for_each(|record| fast_commit.push(record));
            let blocks = fast_commit.blocks();
            let bytes = fast_commit.end(TID);
            prop_assert_eq!(bytes.len(), blocks * block_bytes);
            prop_assert_eq!(read(&bytes, block_bytes), all);
        }
    }
}
