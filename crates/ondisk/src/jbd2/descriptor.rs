//! **Purpose.** Descriptor blocks: after the header one tag for each data block that follows in
//! the log.
//!
//! # Model
//! ```text
//! version   bytes of a tag                             fields
//! 0, 1      8, with 64-bit block numbers 12            blocknr, checksum16, flags16, (high)
//! 2         10, with 64-bit block numbers 14           the same, and 2 unused bytes
//! 3         16                                         blocknr, flags32, high, checksum32
//! ```
//! A tag without `SAME_UUID` is followed by 16 bytes of UUID. The tags end with `LAST_TAG` or
//! where no further tag fits; the last four bytes of the block are its checksum in versions 2
//! and 3.

use std::ops::Range;

use uuid::Uuid;

use super::{BlockNumbers, LogChecksums, LogFormat, RawHeader, RecordError, be32};
use crate::checksum::Crc32c;
use crate::types::{PhysBlock, Tid};

/// Bytes of the UUID after a tag without `SAME_UUID`.
const UUID_BYTES: usize = 16;

bitflags::bitflags! {
    /// The flags of a tag.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TagFlags: u16 {
        /// The data block began with the magic number, which was replaced by zeros.
        const ESCAPE = 0x1;
        /// No UUID follows: it is that of the tag before.
        const SAME_UUID = 0x2;
        /// The block was deleted in this transaction; no known version writes it.
        const DELETED = 0x4;
        /// No tag follows in this block.
        const LAST_TAG = 0x8;
    }
}

/// The tag of one data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The block of the file system the data block is a copy of. Not checked.
    pub block: PhysBlock,
    /// The flags, unknown ones included.
    pub flags: TagFlags,
    /// The checksum of the data block as it is in the log: 0, 16 or 32 bits, by version.
    pub checksum: u32,
}

impl LogFormat {
    /// Bytes of one tag without its UUID.
    #[must_use]
    pub fn tag_bytes(&self) -> usize {
        let wide = match self.block_numbers {
            BlockNumbers::Narrow => 0,
            BlockNumbers::Wide => 4,
        };
        match self.checksums {
            LogChecksums::None | LogChecksums::V1 => 8 + wide,
            LogChecksums::V2 { .. } => 10 + wide,
            LogChecksums::V3 { .. } => 16,
        }
    }

    /// The range of the tags in a descriptor block of `block_bytes`.
    #[must_use]
    pub fn tag_range(&self, block_bytes: usize) -> Range<usize> {
        let start = size_of::<RawHeader>();
        start..block_bytes.saturating_sub(self.tail_bytes()).max(start)
    }

    /// The number of tags in one descriptor block of `block_bytes`, of which the first has a UUID.
    #[must_use]
    pub fn tags_per_block(&self, block_bytes: usize) -> usize {
        self.tag_range(block_bytes).len().saturating_sub(UUID_BYTES) / self.tag_bytes()
    }

    /// The tags of a descriptor block, in the order of their data blocks.
    #[must_use]
    pub fn tags<'a>(&self, block: &'a [u8]) -> Tags<'a> {
        let tags = block.get(self.tag_range(block.len())).unwrap_or(&[]);
        Tags {
            format: *self,
            rest: tags,
        }
    }

    /// The checksum in a tag of transaction `tid` for `copy`, a data block as it is in the log; 0
    /// without checksums in tags.
    #[must_use]
    pub fn copy_checksum(&self, tid: Tid, copy: &[u8]) -> u32 {
        let of = |seed| {
            Crc32c::from_state(seed)
                .update(&tid.0.to_be_bytes())
                .update(copy)
        };
        match self.checksums {
            LogChecksums::None | LogChecksums::V1 => 0,
            LogChecksums::V2 { seed } => u32::from(of(seed).low16()),
            LogChecksums::V3 { seed } => of(seed).value(),
        }
    }

    /// Whether `copy`, as it is in the log, matches the checksum of the tag. Always true without
    /// checksums in tags.
    #[must_use]
    pub fn copy_matches(&self, tag: &Tag, tid: Tid, copy: &[u8]) -> bool {
        match self.checksums {
            LogChecksums::None | LogChecksums::V1 => true,
            _ => tag.checksum == self.copy_checksum(tid, copy),
        }
    }

    /// Writes `tag` to the start of `to`, followed by `uuid` unless its flags have `SAME_UUID`, and
    /// returns the number of bytes.
    ///
    /// # Errors
    /// [`RecordError::NoSpace`], [`RecordError::WideBlock`].
    pub fn put_tag(&self, tag: &Tag, uuid: &Uuid, to: &mut [u8]) -> Result<usize, RecordError> {
        self.block_numbers.check(tag.block)?;
        self.put_checked_tag(tag, uuid, to)
            .ok_or(RecordError::NoSpace)
    }

    /// As [`LogFormat::put_tag`], for a block whose number has the width of the log's; `None` if
    /// there is no space.
    fn put_checked_tag(&self, tag: &Tag, uuid: &Uuid, to: &mut [u8]) -> Option<usize> {
        let [h0, h1, h2, h3, l0, l1, l2, l3] = tag.block.0.to_be_bytes();
        let [f0, f1] = tag.flags.bits().to_be_bytes();
        let (tag_bytes, high) = (self.tag_bytes(), [h0, h1, h2, h3]);
        let (raw, rest) = to.split_at_mut_checked(tag_bytes)?;
        raw.fill(0);
        if let LogChecksums::V3 { .. } = self.checksums {
            raw.get_mut(12..16)?
                .copy_from_slice(&tag.checksum.to_be_bytes());
        } else {
            let [_, _, c0, c1] = tag.checksum.to_be_bytes();
            raw.get_mut(4..6)?.copy_from_slice(&[c0, c1]);
        }
        if self.block_numbers == BlockNumbers::Wide {
            raw.get_mut(8..12)?.copy_from_slice(&high);
        }
        raw.get_mut(..4)?.copy_from_slice(&[l0, l1, l2, l3]);
        raw.get_mut(6..8)?.copy_from_slice(&[f0, f1]);
        if tag.flags.contains(TagFlags::SAME_UUID) {
            return Some(tag_bytes);
        }
        rest.get_mut(..UUID_BYTES)?.copy_from_slice(uuid.as_bytes());
        Some(tag_bytes + UUID_BYTES)
    }
}

/// An iterator over the tags of one descriptor block. It terminates for any bytes, after at most as
/// many tags as fit in the block.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    format: LogFormat,
    rest: &'a [u8],
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let tag_bytes = self.format.tag_bytes();
        let raw = self.rest.get(..tag_bytes)?;
        let low = be32(raw, 0)?;
        // Version 3 has a 32-bit flags field at 4; its low half, which holds all defined flags, is
        // at the offset of the flags in the other versions.
        let flags_and_checksum = be32(raw, 4)?;
        let [c0, c1, f0, f1] = flags_and_checksum.to_be_bytes();
        let flags = TagFlags::from_bits_retain(u16::from_be_bytes([f0, f1]));
        let high = match self.format.block_numbers {
            BlockNumbers::Narrow => 0,
            BlockNumbers::Wide => be32(raw, 8)?,
        };
        let checksum = match self.format.checksums {
            LogChecksums::V3 { .. } => be32(raw, 12)?,
            _ => u32::from(u16::from_be_bytes([c0, c1])),
        };
        let uuid_bytes = if flags.contains(TagFlags::SAME_UUID) {
            0
        } else {
            UUID_BYTES
        };
        self.rest = if flags.contains(TagFlags::LAST_TAG) {
            &[]
        } else {
            self.rest.get(tag_bytes + uuid_bytes..).unwrap_or(&[])
        };
        let block = PhysBlock(u64::from(high) << 32 | u64::from(low));
        Some(Tag {
            block,
            flags,
            checksum,
        })
    }
}
