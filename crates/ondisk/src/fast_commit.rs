//! **Purpose.** The records of the fast-commit area: the changes since the last full commit, in
//! terms of inodes, ranges and names.
//!
//! **Not here.** The choice of the valid records (crate `journal`), and their replay (crate `fs`).
//!
//! # Model
//! ```text
//! area   = blocks, each a list of records; a record never crosses a block's end
//! record = le16 tag, le16 length, value; fewer than 4 bytes at a block's end are unused
//! HEAD ..records.. TAIL ..records.. TAIL
//! ```
//! Each fast commit ends with a TAIL, whose checksum covers every byte since the TAIL before it
//! (or the area's start), with its own tag, length and tid. Everything is little-endian, unlike
//! the rest of the journal.
//!
//! # References
//! Kernel documentation, `filesystems/ext4/journal.rst`, section "Fast commits".

mod write;

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::Crc32c;
use crate::types::{InodeNr, LogicalBlock, PhysBlock, Tid};

pub use write::FastCommitBlocks;

/// Bytes of a record before its value.
pub const RECORD_HEADER_BYTES: usize = size_of::<RawRecordHeader>();
/// Length of the covered part of a TAIL: header and tid.
const TAIL_COVERED_BYTES: usize = RECORD_HEADER_BYTES + 4;
/// The longest name of a directory entry, in bytes.
const NAME_MAX: usize = 255;
/// The smallest inode, in bytes.
const INODE_MIN: usize = 128;
/// A length above this marks an unwritten extent.
const WRITTEN_MAX: u16 = 0x8000;

/// The start of each record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRecordHeader {
    fc_tag: U16, // 0x0
    fc_len: U16, // 0x2
}

/// ADD_RANGE: the inode and one leaf entry of its extent tree.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAddRange {
    fc_ino: U32,      // 0x0
    ee_block: U32,    // 0x4
    ee_len: U16,      // 0x8
    ee_start_hi: U16, // 0xa
    ee_start_lo: U32, // 0xc
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDelRange {
    fc_ino: U32,  // 0x0
    fc_lblk: U32, // 0x4
    fc_len: U32,  // 0x8
}

/// CREAT, LINK, UNLINK: followed by the name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDentry {
    fc_parent_ino: U32, // 0x0
    fc_ino: U32,        // 0x4
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    fc_features: U32, // 0x0
    fc_tid: U32,      // 0x4
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTail {
    fc_tid: U32, // 0x0
    fc_crc: U32, // 0x4
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<RawRecordHeader>() == 4);
    assert!(size_of::<RawAddRange>() == 16);
    assert!(offset_of!(RawAddRange, ee_start_lo) == 12);
    assert!(size_of::<RawDelRange>() == 12);
    assert!(size_of::<RawDentry>() == 8);
    assert!(size_of::<RawHead>() == 8);
    assert!(size_of::<RawTail>() == 8);
};

/// Whether the blocks of a range hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeState {
    /// They hold data.
    Written,
    /// They are allocated and read as zeros.
    Unwritten,
}

/// Blocks of a file that are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddRange {
    /// The file.
    pub inode: InodeNr,
    /// The first block of the range in the file.
    pub logical: LogicalBlock,
    /// Its physical block, 48 bits. Not checked.
    pub physical: PhysBlock,
    /// The length in blocks, at most 32 768; may be 0.
    pub blocks: u32,
    /// Whether the blocks hold data.
    pub state: RangeState,
}

/// Blocks of a file that are no longer mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelRange {
    /// The file.
    pub inode: InodeNr,
    /// The first block of the range in the file.
    pub logical: LogicalBlock,
    /// The length in blocks. May extend past the largest file; may be 0.
    pub blocks: u32,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dentry<'a> {
    /// The directory.
    pub parent: InodeNr,
    /// The inode of the name.
    pub inode: InodeNr,
    /// The name: 1 to 255 bytes, not checked further.
    pub name: &'a [u8],
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A range of a file is mapped.
    AddRange(AddRange),
    /// A range of a file is no longer mapped.
    DelRange(DelRange),
    /// The inode was created under this name.
    Creat(Dentry<'a>),
    /// The name was added.
    Link(Dentry<'a>),
    /// The name was removed.
    Unlink(Dentry<'a>),
    /// The inode is as in these bytes (at least 128), except for its block map and block count.
    Inode {
        /// The inode.
        inode: InodeNr,
        /// Its first bytes: up to the end of the fields that `i_extra_isize` covers, or all of
        /// them.
        raw: &'a [u8],
    },
    /// Padding to the end of a block.
    Pad,
    /// The end of a fast commit: the records since the previous TAIL are complete.
    Tail {
        /// The running transaction they belong to.
        tid: Tid,
        /// The checksum of the covered bytes.
        checksum: u32,
    },
    /// The area belongs to this transaction.
    Head {
        /// Features the reader must know; none are defined.
        features: u32,
        /// The transaction that was running.
        tid: Tid,
    },
}

/// An error in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are named in the messages")]
pub enum FastCommitError {
    /// A tag that is not defined.
    #[error("fast commit: tag {found} at byte {offset}, expected 1 to 9")]
    Tag { found: u16, offset: usize },
    /// A length that does not fit the tag or the block.
    #[error("fast commit: length {found} of tag {tag} at byte {offset}, expected {expected}")]
    Length {
        tag: u16,
        found: usize,
        offset: usize,
        expected: &'static str,
    },
}

/// The records of one block of the area. Ends after the first bad record, for any bytes.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    block: &'a [u8],
    offset: usize,
    inode_bytes: usize,
}

/// A record and the bytes it consists of.
#[derive(Clone, Copy, Debug)]
pub struct RecordBytes<'a> {
    /// The record.
    pub record: Record<'a>,
    /// Its header and value.
    pub bytes: &'a [u8],
}

/// The records of `block`. `inode_bytes` is the file system's inode size, which no inode in a
/// record may exceed.
#[must_use]
pub fn records(block: &[u8], inode_bytes: usize) -> Records<'_> {
    Records {
        block,
        offset: 0,
        inode_bytes,
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RecordBytes<'a>, FastCommitError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.block.get(self.offset..)?;
        let (header, values) = RawRecordHeader::ref_from_prefix(rest).ok()?;
        let (tag, len) = (header.fc_tag.get(), usize::from(header.fc_len.get()));
        let found = match values.get(..len) {
            Some(value) => parse(tag, value, self.inode_bytes),
            None => Err("no more than the block has left"),
        };
        let bytes = rest.get(..RECORD_HEADER_BYTES + len).unwrap_or(rest);
        let offset = self.offset;
        self.offset += bytes.len();
        let result = match found {
            Ok(Some(record)) => Ok(RecordBytes { record, bytes }),
            Ok(None) => Err(FastCommitError::Tag { found: tag, offset }),
            Err(expected) => Err(FastCommitError::Length {
                tag,
                found: len,
                offset,
                expected,
            }),
        };
        if result.is_err() {
            self.offset = self.block.len();
        }
        Some(result)
    }
}

/// The record with this tag and value; `None` for an unknown tag. For a wrong length, the error is
/// a description of the expected one.
fn parse(tag: u16, value: &[u8], inode_bytes: usize) -> Result<Option<Record<'_>>, &'static str> {
    Ok(Some(match tag {
        1 => {
            let raw = RawAddRange::ref_from_bytes(value).map_err(|_| "16")?;
            let ee_len = raw.ee_len.get();
            let (state, blocks) = match ee_len.checked_sub(WRITTEN_MAX) {
                None | Some(0) => (RangeState::Written, ee_len),
                Some(unwritten) => (RangeState::Unwritten, unwritten),
            };
            let high = u64::from(raw.ee_start_hi.get()) << 32;
            Record::AddRange(AddRange {
                inode: InodeNr(raw.fc_ino.get()),
                logical: LogicalBlock(raw.ee_block.get()),
                physical: PhysBlock(high | u64::from(raw.ee_start_lo.get())),
                blocks: u32::from(blocks),
                state,
            })
        }
        2 => {
            let raw = RawDelRange::ref_from_bytes(value).map_err(|_| "12")?;
            Record::DelRange(DelRange {
                inode: InodeNr(raw.fc_ino.get()),
                logical: LogicalBlock(raw.fc_lblk.get()),
                blocks: raw.fc_len.get(),
            })
        }
        3 => Record::Creat(dentry(value)?),
        4 => Record::Link(dentry(value)?),
        5 => Record::Unlink(dentry(value)?),
        6 => {
            const EXPECTED: &str = "4 and an inode of 128 bytes up to the inode size";
            let (inode, raw) = U32::ref_from_prefix(value).map_err(|_| EXPECTED)?;
            if !(INODE_MIN..=inode_bytes).contains(&raw.len()) {
                return Err(EXPECTED);
            }
            Record::Inode {
                inode: InodeNr(inode.get()),
                raw,
            }
        }
        7 => Record::Pad,
        8 => {
            let (raw, _) = RawTail::ref_from_prefix(value).map_err(|_| "8 or more")?;
            Record::Tail {
                tid: Tid(raw.fc_tid.get()),
                checksum: raw.fc_crc.get(),
            }
        }
        9 => {
            let raw = RawHead::ref_from_bytes(value).map_err(|_| "8")?;
            Record::Head {
                features: raw.fc_features.get(),
                tid: Tid(raw.fc_tid.get()),
            }
        }
        _ => return Ok(None),
    }))
}

fn dentry(value: &[u8]) -> Result<Dentry<'_>, &'static str> {
    const EXPECTED: &str = "8 and a name of 1 to 255 bytes";
    let (raw, name) = RawDentry::ref_from_prefix(value).map_err(|_| EXPECTED)?;
    if !(1..=NAME_MAX).contains(&name.len()) {
        return Err(EXPECTED);
    }
    let parent = InodeNr(raw.fc_parent_ino.get());
    Ok(Dentry {
        parent,
        inode: InodeNr(raw.fc_ino.get()),
        name,
    })
}

/// The state of the checksum that a TAIL holds.
#[derive(Clone, Copy, Debug)]
pub struct FastCommitChecksum(Crc32c);

impl Default for FastCommitChecksum {
    /// The state at the area's start or after a TAIL: unlike other checksums of ext4 it starts from
    /// 0.
    fn default() -> Self {
        Self(Crc32c::from_state(0))
    }
}

impl FastCommitChecksum {
    /// Adds a record other than a TAIL.
    pub fn update(&mut self, record: &RecordBytes<'_>) {
        self.0 = self.0.update(record.bytes);
    }

    /// The value the TAIL that follows must hold.
    #[must_use]
    pub fn at_tail(&self, tail: &RecordBytes<'_>) -> u32 {
        self.0
            .update(tail.bytes.get(..TAIL_COVERED_BYTES).unwrap_or(tail.bytes))
            .value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(tag: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len()).unwrap();
        [&tag.to_le_bytes()[..], &len.to_le_bytes(), value].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn every_kind_of_record_is_read() {
        let raw_inode = [7; 160];
        let dentry = [&words(&[2, 12])[..], b"name"].concat();
        let block = [
            record(9, &words(&[0, 77])),
            record(
                1,
                &[&words(&[12, 5])[..], &[0x03, 0x80, 1, 0], &words(&[9])].concat(),
            ),
            record(2, &words(&[12, 8, 4])),
            record(3, &dentry),
            record(4, &dentry),
            record(5, &dentry),
            record(6, &[&words(&[12])[..], &raw_inode].concat()),
            record(7, &[1, 2, 3]),
            record(8, &words(&[77, 0xabcd, 0, 0])),
        ]
        .concat();
        let found: Vec<_> = records(&block, 256)
            .map(|found| found.unwrap().record)
            .collect();
        let dentry = Dentry {
            parent: InodeNr(2),
            inode: InodeNr(12),
            name: b"name",
        };
        let expected = [
            Record::Head {
                features: 0,
                tid: Tid(77),
            },
            Record::AddRange(AddRange {
                inode: InodeNr(12),
                logical: LogicalBlock(5),
                physical: PhysBlock(1 << 32 | 9),
                blocks: 3,
                state: RangeState::Unwritten,
            }),
            Record::DelRange(DelRange {
                inode: InodeNr(12),
                logical: LogicalBlock(8),
                blocks: 4,
            }),
            Record::Creat(dentry),
            Record::Link(dentry),
            Record::Unlink(dentry),
            Record::Inode {
                inode: InodeNr(12),
                raw: &raw_inode,
            },
            Record::Pad,
            Record::Tail {
                tid: Tid(77),
                checksum: 0xabcd,
            },
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_longest_written_extent_is_not_unwritten() {
        let value = [&words(&[12, 0])[..], &[0x00, 0x80, 0, 0], &words(&[9])].concat();
        let block = record(1, &value);
        let Some(Ok(RecordBytes {
            record: Record::AddRange(range),
            ..
        })) = records(&block, 256).next()
        else {
            panic!("no range");
        };
        assert_eq!((range.blocks, range.state), (32768, RangeState::Written));
    }

    #[test]
    fn bad_tags_and_lengths_end_the_block() {
        let cases = [
            (
                record(0, &[]),
                FastCommitError::Tag {
                    found: 0,
                    offset: 0,
                },
            ),
            (
                record(10, &[]),
                FastCommitError::Tag {
                    found: 10,
                    offset: 0,
                },
            ),
            (
                record(1, &[0; 15]),
                FastCommitError::Length {
                    tag: 1,
                    found: 15,
                    offset: 0,
                    expected: "16",
                },
            ),
            (
                record(3, &[0; 8]),
                FastCommitError::Length {
                    tag: 3,
                    found: 8,
                    offset: 0,
                    expected: "8 and a name of 1 to 255 bytes",
                },
            ),
            (
                record(6, &[0; 4 + 257]),
                FastCommitError::Length {
                    tag: 6,
                    found: 261,
                    offset: 0,
                    expected: "4 and an inode of 128 bytes up to the inode size",
                },
            ),
            (
                vec![7, 0, 1, 0],
                FastCommitError::Length {
                    tag: 7,
                    found: 1,
                    offset: 0,
                    expected: "no more than the block has left",
                },
            ),
        ];
        for (mut block, expected) in cases {
            block.extend(record(7, &[]));
            if expected
                == (FastCommitError::Tag {
                    found: 10,
                    offset: 0,
                })
            {
                assert_eq!(
                    expected.to_string(),
                    "fast commit: tag 10 at byte 0, expected 1 to 9"
                );
            }
            if let FastCommitError::Length { tag: 7, .. } = expected {
                block.truncate(4);
            }
            let found: Vec<_> = records(&block, 256)
                .map(|found| found.map(|_| ()))
                .collect();
            assert_eq!(found, [Err(expected)]);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end_and_never_overlap(block in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut total = 0;
            for found in records(&block, 256).flatten() {
                total += found.bytes.len();
            }
            prop_assert!(total <= block.len());
        }

        #[test]
        fn small_tags_and_lengths_end(
            parts in prop::collection::vec((0_u16..11, 0_usize..300), 0..20),
        ) {
            let block: Vec<u8> =
                parts.iter().flat_map(|&(tag, len)| record(tag, &vec![3; len])).collect();
            prop_assert!(records(&block, 256).count() <= parts.len() + 1);
        }
    }
}
