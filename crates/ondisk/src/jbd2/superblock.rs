//! **Purpose.** The journal's superblock: the range of the log, and the features.
//!
//! # Model
//! ```text
//! 0      s_first                      log_end   +1            s_maxlen
//! | sb | | log: a ring of blocks      | unused | fast commits |
//! ```
//! Without `FAST_COMMIT`, or if the log would be shorter than 1 024 blocks, `log_end` is `s_maxlen`
//! and there is no fast-commit area.
//!
//! # Invariants
//! A [`JournalSuperblock`] has `1 <= s_first < log_end <= s_maxlen`, and `s_start` is 0 or inside
//! the log. Its checksum was correct when it was read.

use std::ops::Range;

use uuid::Uuid;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    BlockKind, BlockNumbers, CommitOrder, Header, JournalBlock, JournalError, LogChecksums,
    LogFormat, MAGIC, RawHeader, seal_field, verify_field,
};
use crate::checksum::Crc32c;
use crate::types::{BlockSize, Tid};

/// The offset of `s_checksum`.
const CHECKSUM_OFFSET: usize = 0xfc;
/// The length of the fast-commit area when `s_num_fc_blks` is 0, in blocks.
const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// The minimum length of the log beside a fast-commit area, in blocks.
const MIN_LOG_BLOCKS: u32 = 1024;
/// The only `s_checksum_type` in use.
const CRC32C: u8 = 4;

/// The first 1 024 bytes of the journal.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the kernel's names; the accessors of JournalSuperblock explain"
)]
pub struct RawJournalSuperblock {
    pub s_header: RawHeader,      // 0x000
    pub s_blocksize: U32,         // 0x00c
    pub s_maxlen: U32,            // 0x010
    pub s_first: U32,             // 0x014
    pub s_sequence: U32,          // 0x018
    pub s_start: U32,             // 0x01c
    pub s_errno: U32,             // 0x020
    pub s_feature_compat: U32,    // 0x024, this and all that follows only in version 2
    pub s_feature_incompat: U32,  // 0x028
    pub s_feature_ro_compat: U32, // 0x02c
    pub s_uuid: [u8; 16],         // 0x030
    pub s_nr_users: U32,          // 0x040
    pub s_dynsuper: U32,          // 0x044
    pub s_max_transaction: U32,   // 0x048
    pub s_max_trans_data: U32,    // 0x04c
    pub s_checksum_type: u8,      // 0x050
    pub s_padding2: [u8; 3],      // 0x051
    pub s_num_fc_blks: U32,       // 0x054
    pub s_head: U32,              // 0x058
    pub s_padding: [U32; 40],     // 0x05c
    pub s_checksum: U32,          // 0x0fc
    pub s_users: [[u8; 16]; 48],  // 0x100
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<RawJournalSuperblock>() == 1024);
    assert!(offset_of!(RawJournalSuperblock, s_start) == 0x1c);
    assert!(offset_of!(RawJournalSuperblock, s_feature_compat) == 0x24);
    assert!(offset_of!(RawJournalSuperblock, s_uuid) == 0x30);
    assert!(offset_of!(RawJournalSuperblock, s_checksum_type) == 0x50);
    assert!(offset_of!(RawJournalSuperblock, s_num_fc_blks) == 0x54);
    assert!(offset_of!(RawJournalSuperblock, s_head) == 0x58);
    assert!(offset_of!(RawJournalSuperblock, s_checksum) == CHECKSUM_OFFSET);
    assert!(offset_of!(RawJournalSuperblock, s_users) == 0x100);
};

bitflags::bitflags! {
    /// Features that a reader and a writer may ignore.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct JournalCompat: u32 {
        /// Commit blocks hold a checksum of their transaction (version 1).
        const CHECKSUM = 0x1;
    }
}

bitflags::bitflags! {
    /// Features that must not be ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct JournalIncompat: u32 {
        /// There are revoke blocks.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const _64BIT = 0x2;
        /// Commit blocks may reach the disk before the blocks of their transaction.
        const ASYNC_COMMIT = 0x4;
        /// Checksums of version 2.
        const CSUM_V2 = 0x8;
        /// Checksums of version 3.
        const CSUM_V3 = 0x10;
        /// There is a fast-commit area.
        const FAST_COMMIT = 0x20;
    }
}

/// The version of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalVersion {
    /// Without features, as ext3 first wrote it; fields past `s_errno` have no meaning.
    V1,
    /// With features.
    V2,
}

/// A checked journal superblock. The raw bytes are kept, so that reserved fields survive.
#[derive(Clone, Debug)]
pub struct JournalSuperblock {
    raw: RawJournalSuperblock,
    version: JournalVersion,
    log_end: u32,
}

impl TryFrom<&RawJournalSuperblock> for JournalSuperblock {
    type Error = JournalError;

    fn try_from(raw: &RawJournalSuperblock) -> Result<Self, JournalError> {
        let header = Header::read(raw.as_bytes()).ok_or(JournalError::Magic {
            found: raw.s_header.h_magic.get(),
        })?;
        let version = match header.kind {
            BlockKind::SuperblockV1 => JournalVersion::V1,
            BlockKind::SuperblockV2 => JournalVersion::V2,
            _ => {
                let found = raw.s_header.h_blocktype.get();
                return Err(JournalError::SuperblockKind { found });
            }
        };
        let mut sb = Self {
            raw: *raw,
            version,
            log_end: raw.s_maxlen.get(),
        };
        sb.check_features()?;
        sb.verify()?;
        sb.check_layout()?;
        Ok(sb)
    }
}

impl JournalSuperblock {
    fn check_features(&self) -> Result<(), JournalError> {
        let incompat = self.incompat().difference(JournalIncompat::all()).bits();
        let ro_compat = self.ro_compat();
        if incompat != 0 || ro_compat != 0 {
            return Err(JournalError::UnknownFeatures {
                incompat,
                ro_compat,
            });
        }
        let versions = [
            (self.compat().contains(JournalCompat::CHECKSUM), "checksum"),
            (
                self.incompat().contains(JournalIncompat::CSUM_V2),
                "csum_v2",
            ),
            (
                self.incompat().contains(JournalIncompat::CSUM_V3),
                "csum_v3",
            ),
        ];
        let on = versions.iter().filter(|(on, _)| *on).map(|(_, name)| *name);
        if on.clone().count() > 1 {
            let found = on.collect::<Vec<_>>().join(" and ");
            return Err(JournalError::ChecksumVersions { found });
        }
        if self.has_metadata_checksums() && self.raw.s_checksum_type != CRC32C {
            return Err(JournalError::ChecksumType {
                found: self.raw.s_checksum_type,
            });
        }
        Ok(())
    }

    /// Computes the end of the log and checks the other fields against it.
    fn check_layout(&mut self) -> Result<(), JournalError> {
        let (maxlen, first) = (self.maxlen(), self.raw.s_first.get());
        if first == 0 || first >= maxlen {
            return Err(JournalError::First {
                found: first,
                maxlen,
            });
        }
        if self.incompat().contains(JournalIncompat::FAST_COMMIT) {
            let found = match self.raw.s_num_fc_blks.get() {
                0 => DEFAULT_FAST_COMMIT_BLOCKS,
                blocks => blocks,
            };
            let log_end = maxlen
                .checked_sub(found)
                .ok_or(JournalError::FastCommitBlocks { found, log: maxlen })?;
            if log_end >= MIN_LOG_BLOCKS {
                self.log_end = log_end;
            }
            if first >= self.log_end {
                return Err(JournalError::FastCommitBlocks {
                    found,
                    log: maxlen - first,
                });
            }
        }
        let start = self.raw.s_start.get();
        if start != 0 && !(first..self.log_end).contains(&start) {
            return Err(JournalError::Start {
                found: start,
                first,
                end: self.log_end,
            });
        }
        Ok(())
    }

    /// Checks `s_checksum`, which exists with checksums of version 2 and 3.
    pub fn verify(&self) -> Result<(), JournalError> {
        if !self.has_metadata_checksums() {
            return Ok(());
        }
        verify_field(!0, self.raw.as_bytes(), CHECKSUM_OFFSET)
            .map_err(|mismatch| JournalError::SuperblockChecksum { mismatch })
    }

    /// Sets `s_checksum` if it exists.
    pub fn seal(&mut self) {
        if self.has_metadata_checksums() {
            seal_field(!0, self.raw.as_mut_bytes(), CHECKSUM_OFFSET);
        }
    }

    /// Sets the tail of the log and seals: `s_start` to `start` (0 for an empty journal) and
    /// `s_sequence` to the transaction expected there. In an empty journal `sequence` is the last
    /// transaction number in use: the next one to be written is its successor.
    pub fn set_tail(&mut self, start: Option<JournalBlock>, sequence: Tid) {
        self.raw.s_start = U32::new(start.map_or(0, |block| block.0));
        self.raw.s_sequence = U32::new(sequence.0);
        self.seal();
    }

    /// Sets `s_errno` to the error that aborted the journal, as the kernel's negative number (0 for
    /// none), and seals.
    pub fn set_errno(&mut self, errno: i32) {
        self.raw.s_errno = U32::new(errno.cast_unsigned());
        self.seal();
    }

    /// Upgrades a journal of version 1 to version 2 without features, whose only user is the file
    /// system with `uuid`. Adds `incompat` to the features, except for checksums if it has those of
    /// another version; seals. Only for an empty journal, as features determine the format of the
    /// blocks of the log.
    pub fn upgrade(&mut self, uuid: Uuid, incompat: JournalIncompat) {
        if self.version == JournalVersion::V1 {
            let after_errno = std::mem::offset_of!(RawJournalSuperblock, s_feature_compat);
            if let Some(unused) = self.raw.as_mut_bytes().get_mut(after_errno..) {
                unused.fill(0);
            }
            self.raw.s_header.h_blocktype = U32::new(4);
            self.raw.s_uuid = uuid.into_bytes();
            self.raw.s_nr_users = U32::new(1);
            self.version = JournalVersion::V2;
        }
        let has_checksums =
            self.has_metadata_checksums() || self.compat().contains(JournalCompat::CHECKSUM);
        let versions = JournalIncompat::CSUM_V2.union(JournalIncompat::CSUM_V3);
        let mut incompat = incompat;
        if has_checksums {
            incompat.remove(versions);
        }
        let features = self.incompat().union(incompat);
        self.raw.s_feature_incompat = U32::new(features.bits());
        if self.has_metadata_checksums() {
            self.raw.s_checksum_type = CRC32C;
        }
        self.seal();
    }

    /// The bytes this was read from, with later changes.
    #[must_use]
    pub fn raw(&self) -> &RawJournalSuperblock {
        &self.raw
    }

    /// The version of the superblock.
    #[must_use]
    pub fn version(&self) -> JournalVersion {
        self.version
    }

    /// Features that may be ignored, including unknown bits.
    #[must_use]
    pub fn compat(&self) -> JournalCompat {
        JournalCompat::from_bits_retain(self.v2(self.raw.s_feature_compat))
    }

    /// Features that must be known. No unknown bit is set.
    #[must_use]
    pub fn incompat(&self) -> JournalIncompat {
        JournalIncompat::from_bits_retain(self.v2(self.raw.s_feature_incompat))
    }

    fn ro_compat(&self) -> u32 {
        self.v2(self.raw.s_feature_ro_compat)
    }

    /// A field that only version 2 has; 0 in version 1.
    fn v2(&self, field: U32) -> u32 {
        match self.version {
            JournalVersion::V1 => 0,
            JournalVersion::V2 => field.get(),
        }
    }

    fn has_metadata_checksums(&self) -> bool {
        self.incompat()
            .intersects(JournalIncompat::CSUM_V2.union(JournalIncompat::CSUM_V3))
    }

    /// `s_blocksize`: the block size of the journal and of every file system that uses it.
    #[must_use]
    pub fn block_size_bytes(&self) -> u32 {
        self.raw.s_blocksize.get()
    }

    /// `s_maxlen`: the length of the journal in blocks, its superblock included.
    #[must_use]
    pub fn maxlen(&self) -> u32 {
        self.raw.s_maxlen.get()
    }

    /// The blocks of the log: a ring.
    #[must_use]
    pub fn log(&self) -> Range<JournalBlock> {
        JournalBlock(self.raw.s_first.get())..JournalBlock(self.log_end)
    }

    /// The blocks that hold fast commits; empty without `FAST_COMMIT`. One block between the
    /// log and this area stays unused.
    #[must_use]
    pub fn fast_commit_area(&self) -> Range<JournalBlock> {
        let end = self.maxlen();
        JournalBlock(self.log_end.saturating_add(1).min(end))..JournalBlock(end)
    }

    /// `s_start`: the start of the oldest transaction that may not be checkpointed; `None` if the
    /// journal is empty.
    #[must_use]
    pub fn start(&self) -> Option<JournalBlock> {
        Some(self.raw.s_start.get())
            .filter(|&start| start != 0)
            .map(JournalBlock)
    }

    /// `s_sequence`: the transaction expected at [`start`](Self::start); in an empty journal the
    /// last one that was committed.
    #[must_use]
    pub fn sequence(&self) -> Tid {
        Tid(self.raw.s_sequence.get())
    }

    /// `s_head`: in an empty journal, the block for the next transaction (0 if not recorded).
    #[must_use]
    pub fn head(&self) -> JournalBlock {
        JournalBlock(self.v2(self.raw.s_head))
    }

    /// `s_errno`: the error that aborted the journal, as the kernel's negative number; 0 if none.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.raw.s_errno.get().cast_signed()
    }

    /// `s_uuid`: seeds the checksums; usually equal to the file system's UUID.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        Uuid::from_bytes(self.raw.s_uuid)
    }

    /// `s_nr_users`: the number of file systems that share the journal.
    #[must_use]
    pub fn nr_users(&self) -> u32 {
        self.v2(self.raw.s_nr_users)
    }

    /// `s_users`: the UUIDs of the file systems that use the journal, at most 48.
    pub fn users(&self) -> impl Iterator<Item = Uuid> {
        let count = usize::try_from(self.nr_users()).unwrap_or(usize::MAX);
        self.raw
            .s_users
            .iter()
            .take(count)
            .map(|user| Uuid::from_bytes(*user))
    }

    /// Makes `user` the only file system that uses the journal (version 2 only). The caller must
    /// [`seal`](Self::seal) it afterwards.
    pub fn set_only_user(&mut self, user: Uuid) {
        self.raw.s_users = [[0; 16]; 48];
        self.raw.s_users[0] = user.into_bytes();
        self.raw.s_nr_users = U32::new(1);
    }

    /// The format of the blocks of the log.
    #[must_use]
    pub fn log_format(&self) -> LogFormat {
        let incompat = self.incompat();
        let seed = Crc32c::START.update(&self.raw.s_uuid).value();
        let checksums = if incompat.contains(JournalIncompat::CSUM_V3) {
            LogChecksums::V3 { seed }
        } else if incompat.contains(JournalIncompat::CSUM_V2) {
            LogChecksums::V2 { seed }
        } else if self.compat().contains(JournalCompat::CHECKSUM) {
            LogChecksums::V1
        } else {
            LogChecksums::None
        };
        let wide = incompat.contains(JournalIncompat::_64BIT);
        let unordered = incompat.contains(JournalIncompat::ASYNC_COMMIT);
        LogFormat {
            checksums,
            block_numbers: if wide {
                BlockNumbers::Wide
            } else {
                BlockNumbers::Narrow
            },
            commit_order: if unordered {
                CommitOrder::Async
            } else {
                CommitOrder::Ordered
            },
        }
    }
}

impl RawJournalSuperblock {
    /// An empty journal of version 2 with one user and no features, as `mke2fs` makes it.
    #[must_use]
    pub fn new(block_size: BlockSize, maxlen: u32, uuid: Uuid) -> Self {
        let mut raw = Self::read_from_bytes(&[0; 1024]).expect("1024 zeros are a superblock");
        raw.s_header.h_magic = U32::new(MAGIC);
        raw.s_header.h_blocktype = U32::new(4);
        raw.s_blocksize = U32::new(1 << block_size.bits());
        raw.s_maxlen = U32::new(maxlen);
        raw.s_first = U32::new(1);
        raw.s_sequence = U32::new(1);
        raw.s_uuid = uuid.into_bytes();
        raw.s_nr_users = U32::new(1);
        raw
    }
}
