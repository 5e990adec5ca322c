//! **Purpose.** The index blocks of hashed directories: their checks, and the search for the block
//! of a hash.
//!
//! **Not here.** The hash functions (`dirhash`), the leaves (`dirent`), reading blocks.
//!
//! | module | responsibility |
//! |---|---|
//! | [`edit`] | writing index blocks, and adding a leaf to an index |
//! | [`split`] | dividing the entries of a full leaf |
//!
//! **Model.** The first block of the directory is the root. To readers without support for indexes
//! it looks like `.` and a `..` that fills the rest of the block; other index blocks look like one
//! free record.
//!
//! ```text
//! root  . (12) | .. (12) | dx_root_info (8) | limit count block0 | hash1 block1 | ... | tail (8)
//! node  free record (8)                     | limit count block0 | hash1 block1 | ... | tail (8)
//! ```
//!
//! Entry i is for the hashes from hash i up to hash i+1; entry 0 has limit and count instead of a
//! hash, and begins at 0. If hash i is odd, names with the hash just below it continue from block
//! i-1: a search for one of them must continue in block i.
//!
//! **Invariants.** In a checked block `limit` is what fits, 1 <= `count` <= `limit`, the hashes do
//! not decrease, and every block is inside the directory and is not its root. The root has the
//! number of levels of index blocks, at most 3, so a walk terminates.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Hash Tree Directories".

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{ChecksumMismatch, InodeSeed};
use crate::dirent::{DirFormat, DirentError, NameForm, RawDirentHeader, decode_rec_len};
use crate::dirhash::HashAlgorithm;
use crate::types::LogicalBlock;

pub mod edit;
pub mod split;

const ROOT_ENTRIES_AT: usize = 32;
const ROOT_INFO_AT: usize = 24;
const NODE_ENTRIES_AT: usize = 8;
const DOT_BYTES: usize = 12;
/// Bytes of [`RawRootInfo`], the value of `info_length`.
const INFO_LENGTH: u8 = 8;
const TAIL_BYTES: usize = size_of::<RawTail>();
const ENTRY_BYTES: usize = size_of::<RawEntry>();
/// The bits of a block number; the upper four are reserved.
const BLOCK_MASK: u32 = 0x0fff_ffff;

/// The parameters of the tree in the root.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawRootInfo {
    /// 0x0: 0.
    pub reserved_zero: U32,
    /// 0x4: the hash function, see [`HashAlgorithm`].
    pub hash_version: u8,
    /// 0x5: bytes of this structure: 8.
    pub info_length: u8,
    /// 0x6: levels of index blocks below the root.
    pub indirect_levels: u8,
    /// 0x7: 0.
    pub unused_flags: u8,
}

/// An entry of an index block. The first one holds `limit` and `count` instead of a hash.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawEntry {
    /// 0x0: the lowest hash of the block; its low bit means that the hash below continues here.
    pub hash: U32,
    /// 0x4: the block, counted in the directory.
    pub block: U32,
}

/// The first entry of an index block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawCountLimit {
    /// 0x0: capacity in entries, including this one.
    pub limit: U16,
    /// 0x2: entries in use, including this one.
    pub count: U16,
    /// 0x4: the block for the lowest hashes.
    pub block: U32,
}

/// The tail after the last possible entry, with `metadata_csum`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawTail {
    /// 0x0: not used, but covered by the checksum.
    pub dt_reserved: U32,
    /// 0x4: checksum of the block up to the last used entry, and of this tail with 0 here.
    pub dt_checksum: U32,
}

const _: () = {
    assert!(size_of::<RawRootInfo>() == ROOT_ENTRIES_AT - ROOT_INFO_AT);
    assert!(size_of::<RawRootInfo>() == INFO_LENGTH as usize);
    assert!(size_of::<RawEntry>() == 8);
    assert!(size_of::<RawCountLimit>() == ENTRY_BYTES);
    assert!(size_of::<RawTail>() == 8);
};

/// An error in an index block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HtreeError {
    /// `.` and `..` at the start of the root are invalid.
    #[error("directory index root: {0}")]
    Dots(#[from] DirentError),
    /// `.` or `..` does not have the length that covers the index.
    #[error("directory index root: rec_len of {name:?} is {found}, expected {expected}")]
    DotLength {
        /// `.` or `..`.
        name: &'static str,
        /// Value of `rec_len`.
        found: usize,
        /// The length it must have.
        expected: usize,
    },
    /// A node that does not begin with a free record of the whole block.
    #[error(
        "directory index node: begins with inode {inode}, rec_len {rec_len}, \
         expected inode 0, rec_len {expected}"
    )]
    NodeRecord {
        /// Value of `inode`.
        inode: u32,
        /// Value of `rec_len`.
        rec_len: usize,
        /// The length of a block.
        expected: usize,
    },
    /// A field of the root with a fixed value has another value.
    #[error("directory index root: {field} is {found}, expected {expected}")]
    RootField {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        found: u32,
        /// The value it must have.
        expected: u32,
    },
    /// A hash function that is invalid for this directory.
    #[error("directory index root: hash_version is {found}, expected {expected}")]
    HashVersion {
        /// Value of `hash_version`.
        found: u8,
        /// The numbers it may have.
        expected: &'static str,
    },
    /// More levels than the file system allows.
    #[error("directory index root: indirect_levels is {found}, expected at most {max}")]
    Levels {
        /// Value of `indirect_levels`.
        found: u8,
        /// Levels allowed below the root.
        max: u8,
    },
    /// The block is too small for an index block.
    #[error("directory index: block of {found} bytes")]
    TooShort {
        /// Bytes of the block.
        found: usize,
    },
    /// A limit other than the capacity of the block.
    #[error("directory index: limit is {found}, expected {expected}")]
    Limit {
        /// Value of `limit`.
        found: usize,
        /// Entries that fit.
        expected: usize,
    },
    /// No entries, or more than the limit.
    #[error("directory index: count is {found}, expected 1 to {limit}")]
    Count {
        /// Value of `count`.
        found: usize,
        /// Value of `limit`.
        limit: usize,
    },
    /// The checksum does not match the block.
    #[error("directory index: {0}")]
    Checksum(#[from] ChecksumMismatch),
    /// A hash lower than the one before it.
    #[error(
        "directory index entry {entry}: hash is {found:#010x}, expected {previous:#010x} or more"
    )]
    Order {
        /// Position of the entry.
        entry: usize,
        /// Its hash.
        found: u32,
        /// The hash before it.
        previous: u32,
    },
    /// A block outside the directory, or its root.
    #[error("directory index entry {entry}: block is {found}, expected 1 to {last}")]
    Block {
        /// Position of the entry.
        entry: usize,
        /// The block.
        found: u32,
        /// The last block of the directory.
        last: u32,
    },
}

/// The maximum depth of the index of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexLevels {
    /// The root and one level below it.
    Two,
    /// The root and two levels below it: feature `large_dir`.
    Three,
}

impl IndexLevels {
    /// Levels of index blocks that may be below the root.
    fn max_indirect(self) -> u8 {
        match self {
            Self::Two => 1,
            Self::Three => 2,
        }
    }
}

/// The parameters of the tree in the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// The hash function. The superblock has the sign of its bytes.
    pub algorithm: HashAlgorithm,
    /// Levels of index blocks below the root: 0 to 2. With 0, the entries of the root refer to
    /// leaves.
    pub indirect_levels: u8,
}

/// The entries of an index block.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    /// Entries in use, the first one with limit and count instead of a hash.
    entries: &'a [RawEntry],
}

impl<'a> Index<'a> {
    /// The entries of a root.
    ///
    /// # Errors
    /// Only if the block is too short for one, which is impossible for a checked block.
    pub fn root(block: &'a [u8]) -> Result<Self, HtreeError> {
        Self::at(block, ROOT_ENTRIES_AT)
    }

    /// The entries of an index block that is not the root.
    ///
    /// # Errors
    /// Only if the block is too short for one, which is impossible for a checked block.
    pub fn node(block: &'a [u8]) -> Result<Self, HtreeError> {
        Self::at(block, NODE_ENTRIES_AT)
    }

    fn at(block: &'a [u8], at: usize) -> Result<Self, HtreeError> {
        let too_short = || HtreeError::TooShort { found: block.len() };
        let bytes = block.get(at..).ok_or_else(too_short)?;
        let (first, _) = RawCountLimit::ref_from_prefix(bytes).map_err(|_| too_short())?;
        let (count, limit) = (usize::from(first.count.get()), bytes.len() / ENTRY_BYTES);
        <[RawEntry]>::ref_from_prefix_with_elems(bytes, count)
            .ok()
            .filter(|_| count > 0)
            .map(|(entries, _)| Self { entries })
            .ok_or(HtreeError::Count {
                found: count,
                limit,
            })
    }

    /// The position of the entry for a hash: the last one whose hash is at most this.
    #[must_use]
    pub fn search(&self, hash: u32) -> usize {
        let behind_first = self.entries.get(1..).unwrap_or(&[]);
        behind_first.partition_point(|entry| entry.hash.get() <= hash)
    }

    /// The lowest hash of an entry: 0 for the first one.
    #[must_use]
    pub fn hash(&self, position: usize) -> Option<u32> {
        let entry = self.entries.get(position)?;
        Some(if position == 0 { 0 } else { entry.hash.get() })
    }

    /// The logical block of the directory that an entry refers to.
    #[must_use]
    pub fn block(&self, position: usize) -> Option<LogicalBlock> {
        self.entries
            .get(position)
            .map(|entry| LogicalBlock(entry.block.get() & BLOCK_MASK))
    }

    /// Whether names with `hash` may continue in the block of this entry, which follows the entry
    /// that was searched.
    #[must_use]
    pub fn continues(&self, position: usize, hash: u32) -> bool {
        self.hash(position)
            .is_some_and(|found| found & 1 == 1 && found & !1 == hash & !1)
    }

    /// The limit of the block: its capacity in entries.
    #[must_use]
    pub fn limit(&self) -> usize {
        let first = self.entries.first().map(|first| first.hash.get());
        first.map_or(0, |word| limit_and_count(word).0)
    }

    /// Whether no further entry fits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() >= self.limit()
    }

    /// Checks that an entry with `hash` may follow that at `position`: the hash must be between
    /// those of its neighbours, or names could no longer be found.
    ///
    /// # Errors
    /// If it is not; then the block or a leaf below it is corrupt.
    pub fn check_next(&self, position: usize, hash: u32) -> Result<(), HtreeError> {
        let order = |entry, found, previous| {
            if found >= previous {
                return Ok(());
            }
            Err(HtreeError::Order {
                entry,
                found,
                previous,
            })
        };
        order(position + 1, hash, self.hash(position).unwrap_or(u32::MAX))?;
        order(
            position + 2,
            self.hash(position + 1).unwrap_or(u32::MAX),
            hash,
        )
    }

    /// Number of entries in use; at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an index block is never empty")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

/// The parameters of the tree in the root.
///
/// # Errors
/// If the hash function is unknown or the block too short, which is impossible for a checked root.
pub fn root_info(block: &[u8]) -> Result<RootInfo, HtreeError> {
    let raw = raw_info(block)?;
    let algorithm = HashAlgorithm::from_disk(raw.hash_version).ok_or(HtreeError::HashVersion {
        found: raw.hash_version,
        expected: "0, 1, 2 or 6",
    })?;
    Ok(RootInfo {
        algorithm,
        indirect_levels: raw.indirect_levels,
    })
}

/// Whether a block of a hashed directory other than its first is an index block, by the free record
/// that fills it. Without checksums an empty leaf looks the same, which does not matter: neither
/// holds a name.
#[must_use]
pub fn looks_like_node(block: &[u8]) -> bool {
    node_record(block).is_some_and(|(inode, rec_len)| inode == 0 && rec_len == block.len())
}

/// Checks the root of a hashed directory of `end` blocks.
///
/// # Errors
/// The first violated rule.
pub fn check_root(
    block: &[u8],
    format: &DirFormat,
    levels: IndexLevels,
    end: LogicalBlock,
) -> Result<(), HtreeError> {
    format.dots(block)?;
    check_dot_length(block, 0, ".", DOT_BYTES)?;
    check_dot_length(block, DOT_BYTES, "..", block.len() - DOT_BYTES)?;
    let raw = raw_info(block)?;
    let field = |field, found: u32, expected: u32| {
        if found == expected {
            return Ok(());
        }
        Err(HtreeError::RootField {
            field,
            found,
            expected,
        })
    };
    field("reserved_zero", raw.reserved_zero.get(), 0)?;
    field("info_length", raw.info_length.into(), INFO_LENGTH.into())?;
    // A reader may ignore all flags but the lowest.
    field("unused_flags & 1", (raw.unused_flags & 1).into(), 0)?;
    let hashed = format.names == NameForm::EncryptedHashed;
    if (root_info(block)?.algorithm == HashAlgorithm::SipHash) != hashed {
        let expected = if hashed { "6" } else { "0, 1 or 2" };
        return Err(HtreeError::HashVersion {
            found: raw.hash_version,
            expected,
        });
    }
    let (found, max) = (raw.indirect_levels, levels.max_indirect());
    if found > max {
        return Err(HtreeError::Levels { found, max });
    }
    check_entries(block, ROOT_ENTRIES_AT, format, end)
}

/// Checks an index block other than the root, of a directory of `end` blocks.
///
/// # Errors
/// The first violated rule.
pub fn check_node(block: &[u8], format: &DirFormat, end: LogicalBlock) -> Result<(), HtreeError> {
    let (inode, rec_len) = node_record(block).ok_or(HtreeError::TooShort { found: block.len() })?;
    if inode != 0 || rec_len != block.len() {
        return Err(HtreeError::NodeRecord {
            inode,
            rec_len,
            expected: block.len(),
        });
    }
    check_entries(block, NODE_ENTRIES_AT, format, end)
}

/// Writes the checksum of a root.
///
/// # Errors
/// If the block has no space for a checksum.
pub fn seal_root(block: &mut [u8], seed: InodeSeed) -> Result<(), HtreeError> {
    seal(block, ROOT_ENTRIES_AT, seed)
}

/// Writes the checksum of an index block other than the root.
///
/// # Errors
/// If the block has no space for a checksum.
pub fn seal_node(block: &mut [u8], seed: InodeSeed) -> Result<(), HtreeError> {
    seal(block, NODE_ENTRIES_AT, seed)
}

/// Capacity in entries of a root of `block_bytes`.
#[must_use]
pub fn root_limit(format: &DirFormat, block_bytes: usize) -> usize {
    limit_of(block_bytes, ROOT_ENTRIES_AT, tail_bytes(format))
}

/// Capacity in entries of any other index block of `block_bytes`.
#[must_use]
pub fn node_limit(format: &DirFormat, block_bytes: usize) -> usize {
    limit_of(block_bytes, NODE_ENTRIES_AT, tail_bytes(format))
}

/// Capacity in entries of an index block with a tail of `tail_bytes` whose entries begin at offset
/// `at`.
fn limit_of(block_bytes: usize, at: usize, tail_bytes: usize) -> usize {
    block_bytes.saturating_sub(at + tail_bytes) / ENTRY_BYTES
}

/// Decodes the word in place of the hash of the first entry.
fn limit_and_count(word: u32) -> (usize, usize) {
    let [a, b, c, d] = word.to_le_bytes();
    (
        u16::from_le_bytes([a, b]).into(),
        u16::from_le_bytes([c, d]).into(),
    )
}

fn tail_bytes(format: &DirFormat) -> usize {
    if format.seed.is_some() { TAIL_BYTES } else { 0 }
}

fn check_entries(
    block: &[u8],
    at: usize,
    format: &DirFormat,
    end: LogicalBlock,
) -> Result<(), HtreeError> {
    check_count(block, at, tail_bytes(format))?;
    if let Some(seed) = format.seed {
        let (found, expected) = checksums(block, at, seed)?;
        ChecksumMismatch::check(found, expected)?;
    }
    let index = Index::at(block, at)?;
    let mut previous = 0;
    for entry in 0..index.len() {
        let found = index.hash(entry).unwrap_or(0);
        if found < previous {
            return Err(HtreeError::Order {
                entry,
                found,
                previous,
            });
        }
        previous = found;
        let child = index.block(entry).unwrap_or_default();
        if child.0 == 0 || child >= end {
            let last = end.0.saturating_sub(1);
            return Err(HtreeError::Block {
                entry,
                found: child.0,
                last,
            });
        }
    }
    Ok(())
}

fn check_count(block: &[u8], at: usize, tail_bytes: usize) -> Result<(), HtreeError> {
    let too_short = HtreeError::TooShort { found: block.len() };
    let Some((first, _)) = block
        .get(at..)
        .and_then(|b| RawCountLimit::ref_from_prefix(b).ok())
    else {
        return Err(too_short);
    };
    let (limit, count) = (
        usize::from(first.limit.get()),
        usize::from(first.count.get()),
    );
    let expected = limit_of(block.len(), at, tail_bytes);
    if limit != expected {
        return Err(HtreeError::Limit {
            found: limit,
            expected,
        });
    }
    if count == 0 || count > limit {
        return Err(HtreeError::Count {
            found: count,
            limit,
        });
    }
    Ok(())
}

fn check_dot_length(
    block: &[u8],
    at: usize,
    name: &'static str,
    expected: usize,
) -> Result<(), HtreeError> {
    let found = block
        .get(at..)
        .and_then(|bytes| RawDirentHeader::ref_from_prefix(bytes).ok());
    let found = found.map_or(0, |(dot, _)| decode_rec_len(dot.rec_len.get(), block.len()));
    if found == expected {
        Ok(())
    } else {
        Err(HtreeError::DotLength {
            name,
            found,
            expected,
        })
    }
}

fn seal(block: &mut [u8], at: usize, seed: InodeSeed) -> Result<(), HtreeError> {
    check_count(block, at, TAIL_BYTES)?;
    let (_, value) = checksums(block, at, seed)?;
    if let Ok((_, tail)) = RawTail::mut_from_suffix(block) {
        tail.dt_checksum = value.into();
    }
    Ok(())
}

/// The checksum on disk and the computed one. Unused entries are not covered. The tail follows the
/// last possible entry, which in a block whose limit was checked is at its end.
fn checksums(block: &[u8], at: usize, seed: InodeSeed) -> Result<(u32, u32), HtreeError> {
    let too_short = || HtreeError::TooShort { found: block.len() };
    let used = at + Index::at(block, at)?.len() * ENTRY_BYTES;
    let (_, tail) = RawTail::ref_from_suffix(block).map_err(|_| too_short())?;
    let covered = block.get(..used).ok_or_else(too_short)?;
    let expected = seed
        .start()
        .update(covered)
        .update(tail.dt_reserved.as_bytes())
        .update_le32(0)
        .value();
    Ok((tail.dt_checksum.get(), expected))
}

fn raw_info(block: &[u8]) -> Result<&RawRootInfo, HtreeError> {
    block
        .get(ROOT_INFO_AT..)
        .and_then(|bytes| RawRootInfo::ref_from_prefix(bytes).ok())
        .map(|(info, _)| info)
        .ok_or(HtreeError::TooShort { found: block.len() })
}

fn node_record(block: &[u8]) -> Option<(u32, usize)> {
    let (record, _) = RawDirentHeader::ref_from_prefix(block).ok()?;
    Some((
        record.inode.get(),
        decode_rec_len(record.rec_len.get(), block.len()),
    ))
}

#[cfg(test)]
mod tests;
