//! **Purpose.** The bytes of a jbd2 journal: its superblock, and the blocks that frame
//! transactions in the log.
//!
//! **Not here.** The interpretation of the log (crate `journal`), and the fast-commit area, whose
//! records are part of ext4 and little-endian ([`crate::fast_commit`]).
//!
//! # Model
//! ```text
//! journal  = superblock, unused.., log, unused block, fast-commit area
//! log      = a ring of blocks from s_first up to, not including, `log_end`
//! transaction T in the log (every framing block carries T):
//!   (descriptor: tag, tag, ..  then one data block per tag | revoke block)*  commit
//! ```
//! Everything is big-endian. A data block that begins with the magic number would look like a
//! framing block, so its first four bytes are logged as zeros and its tag has the flag `ESCAPE`.
//!
//! | module | responsibility |
//! |---|---|
//! | [`superblock`] | the range of the log, and the features of its format |
//! | [`descriptor`] | descriptor blocks and their tags, in the three formats |
//! | [`revoke`] | lists of blocks whose older copies must not be replayed |
//! | [`commit`] | commit blocks, and the checksum of a whole transaction (version 1) |
//!
//! # References
//! Kernel documentation, `filesystems/ext4/journal.rst`.

pub mod commit;
pub mod descriptor;
pub mod revoke;
pub mod superblock;
#[cfg(test)]
mod tests;

use std::fmt;

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{ChecksumMismatch, Crc32c};
use crate::types::{BlockCount, PhysBlock, Tid};

pub use commit::{Commit, RawCommit, TransactionChecksum};
pub use descriptor::{Tag, TagFlags, Tags};
pub use revoke::Revokes;
pub use superblock::{
    JournalCompat, JournalIncompat, JournalSuperblock, JournalVersion, RawJournalSuperblock,
};

/// The number at the start of every framing block.
pub const MAGIC: u32 = 0xc03b_3998;

/// Bytes of the checksum at the end of descriptor and revoke blocks (versions 2 and 3).
const TAIL_BYTES: usize = 4;

/// A block of the journal, counted from its superblock's block 0 in units of the block size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct JournalBlock(pub u32);

impl fmt::Display for JournalBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The header of every framing block, and of the superblock.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawHeader {
    /// The magic number, [`MAGIC`].
    pub h_magic: U32, // 0x00
    /// The kind of block; see [`BlockKind`].
    pub h_blocktype: U32, // 0x04
    /// The transaction the block belongs to; 0 in the superblock.
    pub h_sequence: U32, // 0x08
}

const _: () = assert!(size_of::<RawHeader>() == 12);

/// The kind of a block with the magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Tags of the data blocks that follow it.
    Descriptor,
    /// The end of a transaction.
    Commit,
    /// The journal's superblock as ext3 first wrote it, without features.
    SuperblockV1,
    /// The journal's superblock with features.
    SuperblockV2,
    /// A list of blocks whose copies up to this transaction must not be replayed.
    Revoke,
    /// An undefined number.
    Unknown(u32),
}

impl BlockKind {
    /// Its `h_blocktype`.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
            Self::Unknown(number) => number,
        }
    }
}

/// A header with the magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of block.
    pub kind: BlockKind,
    /// The transaction it belongs to.
    pub tid: Tid,
}

impl Header {
    /// The header of `block`, or `None` if the block does not begin with the magic number, which
    /// marks the end of the log.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<Self> {
        let (raw, _) = RawHeader::ref_from_prefix(block).ok()?;
        if raw.h_magic.get() != MAGIC {
            return None;
        }
        let kind = match raw.h_blocktype.get() {
            1 => BlockKind::Descriptor,
            2 => BlockKind::Commit,
            3 => BlockKind::SuperblockV1,
            4 => BlockKind::SuperblockV2,
            5 => BlockKind::Revoke,
            other => BlockKind::Unknown(other),
        };
        Some(Self {
            kind,
            tid: Tid(raw.h_sequence.get()),
        })
    }
}

impl Header {
    /// Writes the header to the start of `block`, which must be long enough.
    pub fn put(&self, block: &mut [u8]) {
        if let Ok((raw, _)) = RawHeader::mut_from_prefix(block) {
            raw.h_magic = U32::new(MAGIC);
            raw.h_blocktype = U32::new(self.kind.number());
            raw.h_sequence = U32::new(self.tid.0);
        }
    }
}

/// The format of the blocks of one journal. Comes from [`JournalSuperblock::log_format`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFormat {
    /// The checksum scheme.
    pub checksums: LogChecksums,
    /// The width of block numbers.
    pub block_numbers: BlockNumbers,
    /// Whether a commit block may reach the disk before the blocks of its transaction.
    pub commit_order: CommitOrder,
}

/// The checksum scheme of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogChecksums {
    /// None.
    None,
    /// Version 1: the commit block holds a CRC-32 over the descriptors and data blocks of its
    /// transaction.
    V1,
    /// Version 2: crc32c of each framing block; the low 16 bits of each data block's in its tag.
    V2 {
        /// crc32c of the journal's UUID.
        seed: u32,
    },
    /// Version 3: as version 2, with all 32 bits in the tag.
    V3 {
        /// crc32c of the journal's UUID.
        seed: u32,
    },
}

/// The width of block numbers in tags and revoke records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockNumbers {
    /// 32 bits.
    Narrow,
    /// 64 bits.
    Wide,
}

impl BlockNumbers {
    /// The number of blocks that have a number of this width.
    #[must_use]
    pub fn blocks(self) -> BlockCount {
        match self {
            Self::Narrow => BlockCount(1 << 32),
            Self::Wide => BlockCount(u64::MAX),
        }
    }

    /// Checks that the number of `block` has this width.
    ///
    /// # Errors
    /// [`RecordError::WideBlock`].
    pub fn check(self, block: PhysBlock) -> Result<(), RecordError> {
        match self {
            Self::Narrow if block.0 > u64::from(u32::MAX) => Err(RecordError::WideBlock { block }),
            Self::Narrow | Self::Wide => Ok(()),
        }
    }
}

/// The reason why a tag or a revoke record cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The block of the log has no space for another tag.
    #[error("no space for another tag")]
    NoSpace,
    /// The block number needs more than the 32 bits that a log without the feature `64bit` has.
    #[error("block {block} has no number of 32 bits, and the log lacks the feature 64bit")]
    WideBlock {
        /// The block.
        block: PhysBlock,
    },
}

/// Whether the writer waits until a transaction's blocks are durable before it writes the commit
/// block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOrder {
    /// It waits: the blocks were durable before the commit block was written.
    Ordered,
    /// It does not wait: only checksums show whether all blocks were written.
    Async,
}

impl LogFormat {
    /// The crc32c seed, if framing blocks have checksums.
    fn seed(&self) -> Option<u32> {
        match self.checksums {
            LogChecksums::None | LogChecksums::V1 => None,
            LogChecksums::V2 { seed } | LogChecksums::V3 { seed } => Some(seed),
        }
    }

    /// Bytes at the end of descriptor and revoke blocks that hold their checksum.
    fn tail_bytes(&self) -> usize {
        if self.seed().is_some() { TAIL_BYTES } else { 0 }
    }

    /// Checks the checksum in the tail of a descriptor or revoke block. If the format has none,
    /// every block passes.
    pub fn verify_tail(&self, block: &[u8]) -> Result<(), ChecksumMismatch> {
        match self.seed() {
            Some(seed) => verify_field(seed, block, block.len().saturating_sub(TAIL_BYTES)),
            None => Ok(()),
        }
    }

    /// Writes the checksum into the tail of a descriptor or revoke block, if the format has one.
    pub fn seal_tail(&self, block: &mut [u8]) {
        if let Some(seed) = self.seed() {
            seal_field(seed, block, block.len().saturating_sub(TAIL_BYTES));
        }
    }
}

/// An error in a journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are named in the messages")]
pub enum JournalError {
    /// The journal's block 0 does not begin with the magic number.
    #[error("journal superblock: h_magic {found:#010x}, expected 0xc03b3998")]
    Magic { found: u32 },
    /// The journal's block 0 is some other block of a journal.
    #[error("journal superblock: h_blocktype {found}, expected 3 or 4")]
    SuperblockKind { found: u32 },
    /// The block size of the journal differs from that of the file system.
    #[error("journal superblock: s_blocksize {found}, expected {expected}")]
    BlockSize { found: u32, expected: u32 },
    /// The journal claims more blocks than its inode or device has.
    #[error("journal superblock: s_maxlen {found}, but only {mapped} blocks exist")]
    Maxlen { found: u32, mapped: u32 },
    /// The start of the log is in the superblock or past the journal's end.
    #[error("journal superblock: s_first {found}, expected 1 to {maxlen} (exclusive)")]
    First { found: u32, maxlen: u32 },
    /// The start of the oldest transaction is outside the log.
    #[error("journal superblock: s_start {found}, expected {first} to {end} (exclusive)")]
    Start { found: u32, first: u32, end: u32 },
    /// The fast-commit area is larger than the journal.
    #[error("journal superblock: s_num_fc_blks {found}, but the log has only {log} blocks")]
    FastCommitBlocks { found: u32, log: u32 },
    /// More than one checksum version is enabled.
    #[error("journal superblock: checksum versions exclude each other, found {found}")]
    ChecksumVersions { found: String },
    /// The checksums are of an unknown type.
    #[error("journal superblock: s_checksum_type {found}, expected 4 (crc32c)")]
    ChecksumType { found: u8 },
    /// The superblock's own checksum is wrong.
    #[error("journal superblock: {mismatch}")]
    SuperblockChecksum { mismatch: ChecksumMismatch },
    /// The journal has unknown incompatible features.
    #[error(
        "journal superblock: unknown features, incompat {incompat:#x}, ro_compat {ro_compat:#x}"
    )]
    UnknownFeatures { incompat: u32, ro_compat: u32 },
    /// Several file systems share the journal, which no system supports.
    #[error("journal superblock: s_nr_users {found}, expected 1")]
    Users { found: u32 },
    /// The external journal belongs to another file system.
    #[error("external journal: s_uuid {found}, expected {expected}")]
    WrongDevice {
        found: uuid::Uuid,
        expected: uuid::Uuid,
    },
    /// The device given as external journal does not hold one.
    #[error("external journal: {field} {found:#x}, expected {expected:#x}")]
    NotAJournalDevice {
        field: &'static str,
        found: u32,
        expected: u32,
    },
    /// The journal's inode does not map one of its blocks.
    #[error("journal block {journal_block}: not mapped")]
    Hole { journal_block: JournalBlock },
    /// The journal's inode maps a block outside the device.
    #[error(
        "journal block {journal_block}: mapped to block {block}, outside the device's {blocks}"
    )]
    MappedOutside {
        journal_block: JournalBlock,
        block: PhysBlock,
        blocks: u64,
    },
    /// The journal's inode maps two of its blocks to the same physical block.
    #[error("journal: block {block} is mapped twice")]
    MappedTwice { block: PhysBlock },
    /// A block that is too short for its kind.
    #[error("journal: a block of {found} bytes, expected at least {expected}")]
    Short { found: usize, expected: usize },
    /// A committed transaction has a copy of a block outside the file system.
    #[error(
        "transaction {tid}, journal block {journal_block}: a copy of block {block}, outside the \
         file system's {blocks}"
    )]
    CopyOutside {
        tid: Tid,
        journal_block: JournalBlock,
        block: PhysBlock,
        blocks: u64,
    },
    /// A committed transaction has a copy of a block of the journal itself.
    #[error(
        "transaction {tid}, journal block {journal_block}: a copy of block {block}, which is \
         inside the journal"
    )]
    CopyInJournal {
        tid: Tid,
        journal_block: JournalBlock,
        block: PhysBlock,
    },
    /// The byte count of a revoke block is larger than the block.
    #[error(
        "transaction {tid}, journal block {journal_block}: r_count {found}, expected at most {limit}"
    )]
    RevokeCount {
        tid: Tid,
        journal_block: JournalBlock,
        found: u32,
        limit: u32,
    },
    /// The fast-commit area needs unknown features.
    #[error("fast commit: fc_features {found:#x}, expected 0")]
    FastCommitFeatures { found: u32 },
    /// A fast commit maps a block that is in use.
    #[error("fast commit: block {block} is in use already")]
    FastCommitInUse {
        /// The block.
        block: PhysBlock,
    },
    /// A fast commit maps blocks outside the file system.
    #[error("fast commit: {blocks} blocks from {block} on lie outside the file system")]
    FastCommitRange { block: PhysBlock, blocks: u32 },
    /// A fast commit adds an invalid name.
    #[error("fast commit: the name {name:?} cannot be added to a directory")]
    FastCommitName { name: String },
    /// A transaction does not match its checksums, although a later one is committed.
    #[error("transaction {tid}: {damage}, although transaction {later} was committed after it")]
    Damaged {
        tid: Tid,
        damage: Damage,
        later: Tid,
    },
    /// The last transaction does not match its checksums, although its commit block was written:
    /// no crash leaves it like this.
    #[error("transaction {tid}, the last one, is damaged: {damage}")]
    DamagedLast { tid: Tid, damage: Damage },
}

/// The part of a transaction that does not match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "where it lies and what was found there")]
pub enum Damage {
    /// A descriptor block.
    Descriptor {
        journal_block: JournalBlock,
        mismatch: ChecksumMismatch,
    },
    /// A revoke block.
    Revoke {
        journal_block: JournalBlock,
        mismatch: ChecksumMismatch,
    },
    /// The commit block, or with version 1 any block that it covers.
    Commit {
        journal_block: JournalBlock,
        mismatch: ChecksumMismatch,
    },
    /// The copy of a block.
    Copy {
        journal_block: JournalBlock,
        block: PhysBlock,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor {
                journal_block,
                mismatch,
            } => {
                write!(f, "descriptor in journal block {journal_block}: {mismatch}")
            }
            Self::Revoke {
                journal_block,
                mismatch,
            } => {
                write!(
                    f,
                    "revoke records in journal block {journal_block}: {mismatch}"
                )
            }
            Self::Commit {
                journal_block,
                mismatch,
            } => {
                write!(f, "commit in journal block {journal_block}: {mismatch}")
            }
            Self::Copy {
                journal_block,
                block,
            } => write!(
                f,
                "the copy of block {block} in journal block {journal_block} does not match the \
                 checksum of its tag"
            ),
        }
    }
}

/// crc32c of `block` with the big-endian 32-bit field at `at` as zero.
fn crc32c_without(seed: u32, block: &[u8], at: usize) -> u32 {
    let (before, rest) = block.split_at(at.min(block.len()));
    let after = rest.get(4..).unwrap_or(&[]);
    Crc32c::from_state(seed)
        .update(before)
        .update(&[0; 4])
        .update(after)
        .value()
}

/// Compares the big-endian 32-bit field at `at` with the checksum of its block.
fn verify_field(seed: u32, block: &[u8], at: usize) -> Result<(), ChecksumMismatch> {
    ChecksumMismatch::check(
        be32(block, at).unwrap_or(0),
        crc32c_without(seed, block, at),
    )
}

/// Stores the checksum of `block` in its big-endian 32-bit field at `at`.
fn seal_field(seed: u32, block: &mut [u8], at: usize) {
    let checksum = crc32c_without(seed, block, at);
    if let Some(field) = block.get_mut(at..at.saturating_add(4)) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The big-endian 32-bit field at `at`, if it is inside `bytes`.
fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u32::from_be_bytes(*word))
}

/// Restores a block from its copy with `ESCAPE`: writes the magic number to its first four bytes.
pub fn unescape(copy: &mut [u8]) {
    if let Some(word) = copy.first_chunk_mut() {
        *word = MAGIC.to_be_bytes();
    }
}

/// Escapes the copy of a block for the log: zeroes its first four bytes.
pub fn escape(copy: &mut [u8]) {
    if let Some(word) = copy.first_chunk_mut() {
        *word = [0; 4];
    }
}

/// Whether the copy of `block` must be escaped in the log.
#[must_use]
pub fn needs_escape(block: &[u8]) -> bool {
    be32(block, 0) == Some(MAGIC)
}
