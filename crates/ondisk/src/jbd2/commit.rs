//! **Purpose.** Commit blocks, and the checksum of a whole transaction in them (version 1).

use std::time::Duration;

use crc_fast::{CrcAlgorithm, Digest};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LogChecksums, LogFormat, RawHeader, seal_field, verify_field};
use crate::checksum::ChecksumMismatch;

/// The offset of `h_chksum[0]`.
const CHECKSUM_OFFSET: usize = 0x10;

/// The algorithm of the transaction's checksum in version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChecksumKind {
    /// `h_chksum_type`.
    algorithm: u8,
    /// `h_chksum_size`.
    bytes: u8,
}

impl ChecksumKind {
    const NONE: Self = Self {
        algorithm: 0,
        bytes: 0,
    };
    const CRC32: Self = Self {
        algorithm: 1,
        bytes: 4,
    };
}

/// A commit block; the rest of the block is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawCommit {
    /// The header.
    pub h_header: RawHeader, // 0x00
    /// 1 for CRC-32 in version 1, else 0.
    pub h_chksum_type: u8, // 0x0c
    /// 4 bytes in version 1, else 0.
    pub h_chksum_size: u8, // 0x0d
    /// Unused.
    pub h_padding: [u8; 2], // 0x0e
    /// The first word: version 1, the transaction's CRC-32; versions 2 and 3, this block's crc32c.
    pub h_chksum: [U32; 8], // 0x10
    /// When the transaction was committed, in seconds since 1970.
    pub h_commit_sec: U64, // 0x30
    /// The nanoseconds of the time.
    pub h_commit_nsec: U32, // 0x38
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<RawCommit>() == 0x3c);
    assert!(offset_of!(RawCommit, h_chksum) == CHECKSUM_OFFSET);
    assert!(offset_of!(RawCommit, h_commit_sec) == 0x30);
};

/// A parsed commit block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// When the transaction was committed, in seconds since 1970. It increases along a log, so a
    /// smaller value marks a block of an earlier use of the journal.
    pub commit_sec: u64,
    checksum_kind: ChecksumKind,
    checksum: u32,
}

impl Commit {
    /// Parses a block whose header is that of a commit block; `None` if it is too short.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<Self> {
        let (raw, _) = RawCommit::ref_from_prefix(block).ok()?;
        let [first, ..] = raw.h_chksum;
        Some(Self {
            commit_sec: raw.h_commit_sec.get(),
            checksum_kind: ChecksumKind {
                algorithm: raw.h_chksum_type,
                bytes: raw.h_chksum_size,
            },
            checksum: first.get(),
        })
    }

    /// Version 1: compares the checksum with that of the transaction's blocks. A commit block whose
    /// checksum fields are all zero was written without a checksum and passes.
    pub fn verify_transaction(&self, blocks: &TransactionChecksum) -> Result<(), ChecksumMismatch> {
        let expected = blocks.value();
        let unused = self.checksum_kind == ChecksumKind::NONE && self.checksum == 0;
        if unused || (self.checksum_kind == ChecksumKind::CRC32 && self.checksum == expected) {
            return Ok(());
        }
        Err(ChecksumMismatch {
            found: self.checksum,
            expected,
        })
    }
}

impl Commit {
    /// Writes the time, as the duration since 1970, into a commit block whose header is written.
    pub fn put_time(since_1970: Duration, block: &mut [u8]) {
        if let Ok((raw, _)) = RawCommit::mut_from_prefix(block) {
            raw.h_commit_sec = U64::new(since_1970.as_secs());
            raw.h_commit_nsec = U32::new(since_1970.subsec_nanos());
        }
    }
}

impl LogFormat {
    /// Checks the crc32c of a commit block, which versions 2 and 3 have; others pass.
    pub fn verify_commit(&self, block: &[u8]) -> Result<(), ChecksumMismatch> {
        match self.checksums {
            LogChecksums::None | LogChecksums::V1 => Ok(()),
            LogChecksums::V2 { seed } | LogChecksums::V3 { seed } => {
                verify_field(seed, block, CHECKSUM_OFFSET)
            }
        }
    }

    /// Writes the checksum of a commit block: in version 1 that of the transaction's blocks, in
    /// versions 2 and 3 its own.
    pub fn seal_commit(&self, block: &mut [u8], blocks: &TransactionChecksum) {
        match self.checksums {
            LogChecksums::None => {}
            LogChecksums::V1 => {
                if let Ok((raw, _)) = RawCommit::mut_from_prefix(block) {
                    raw.h_chksum_type = ChecksumKind::CRC32.algorithm;
                    raw.h_chksum_size = ChecksumKind::CRC32.bytes;
                    raw.h_chksum[0] = U32::new(blocks.value());
                }
            }
            LogChecksums::V2 { seed } | LogChecksums::V3 { seed } => {
                seal_field(seed, block, CHECKSUM_OFFSET);
            }
        }
    }
}

/// The CRC-32 (most significant bit first, no final inversion) over the descriptors and data
/// blocks of one transaction, in log order and as they lie in the log.
#[derive(Debug)]
pub struct TransactionChecksum(Digest);

impl Default for TransactionChecksum {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Mpeg2))
    }
}

impl TransactionChecksum {
    /// Adds the next block.
    pub fn update(&mut self, block: &[u8]) {
        self.0.update(block);
    }

    /// The checksum of the blocks so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a CRC-32 has 32 bits")]
        let value = self.0.finalize() as u32;
        value
    }
}
