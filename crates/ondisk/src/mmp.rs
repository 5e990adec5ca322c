//! **Purpose.** The MMP block (multiple-mount protection, feature `mmp`): shows whether another
//! host has the file system mounted.
//!
//! **Model.** A host that mounts for writing stores a random sequence number here and changes it
//! every `mmp_check_interval` seconds. A host that sees it change does not mount. Two values are
//! special: clean, and a check in progress.
//!
//! **References.** Documentation/filesystems/ext4/mmp.rst of the kernel.

use std::mem::{offset_of, size_of};

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::ChecksumMismatch;
use crate::superblock::Superblock;
use crate::text::until_zero;
use crate::time::Timestamp;

const MMP_MAGIC: u32 = 0x004d_4d50;
const MMP_SEQ_CLEAN: u32 = 0xff4d_4d50;
const MMP_SEQ_FSCK: u32 = 0xe24d_4d50;
const MMP_SEQ_MAX: u32 = 0xe24d_4d4f;

/// The first 1024 bytes of the MMP block.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[expect(missing_docs, reason = "the accessors of MmpBlock describe the fields")]
pub struct RawMmp {
    pub mmp_magic: U32,          // 0x000
    pub mmp_seq: U32,            // 0x004
    pub mmp_time: U64,           // 0x008
    pub mmp_nodename: [u8; 64],  // 0x010
    pub mmp_bdevname: [u8; 32],  // 0x050
    pub mmp_check_interval: U16, // 0x070
    pub mmp_pad1: U16,           // 0x072
    pub mmp_pad2: [U32; 226],    // 0x074
    pub mmp_checksum: U32,       // 0x3fc
}

const _: () = {
    assert!(size_of::<RawMmp>() == 1024);
    assert!(offset_of!(RawMmp, mmp_check_interval) == 0x70);
    assert!(offset_of!(RawMmp, mmp_checksum) == 0x3fc);
};

/// The reason why bytes are not a valid MMP block.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MmpError {
    /// Fewer bytes than the structure.
    #[error("MMP block: {found_bytes} bytes where 1024 are needed")]
    TooShort {
        /// The bytes found.
        found_bytes: usize,
    },
    /// A wrong magic number.
    #[error("MMP block: mmp_magic is {found:#010x}, not 0x004d4d50")]
    Magic {
        /// `mmp_magic`.
        found: u32,
    },
    /// `mmp_checksum` is not the checksum of the bytes.
    #[error("MMP block: mmp_checksum: {0}")]
    Checksum(ChecksumMismatch),
    /// A sequence number above the maximum that is not one of the special values.
    #[error("MMP block: mmp_seq {found:#010x} is over 0xe24d4d4f")]
    Sequence {
        /// `mmp_seq`.
        found: u32,
    },
}

/// `mmp_seq`: the user of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmpSequence {
    /// The file system is not in use.
    Clean,
    /// A check is in progress, or was interrupted.
    Fsck,
    /// A host uses the file system, or did when it crashed: the number changes while the host runs.
    InUse(u32),
}

impl MmpSequence {
    /// The largest sequence number of a host.
    pub const MAX: u32 = MMP_SEQ_MAX;

    /// The value of `mmp_seq`.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Clean => MMP_SEQ_CLEAN,
            Self::Fsck => MMP_SEQ_FSCK,
            Self::InUse(number) => number.min(MMP_SEQ_MAX),
        }
    }
}

/// The host that writes the block, for information only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmpHost<'a> {
    /// The name of the host, truncated to 64 bytes.
    pub node_name: &'a [u8],
    /// Its name of the device, truncated to 32 bytes.
    pub device_name: &'a [u8],
}

/// A checked MMP block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmpBlock {
    raw: RawMmp,
    sequence: MmpSequence,
}

impl RawMmp {
    /// Computes and stores the checksum. Without `metadata_csum` the field is not changed.
    pub fn seal(&mut self, sb: &Superblock) {
        if sb.has_metadata_csum() {
            self.mmp_checksum = self.checksum(sb).into();
        }
    }

    fn checksum(&self, sb: &Superblock) -> u32 {
        let (covered, _) = self.as_bytes().split_at(offset_of!(Self, mmp_checksum));
        sb.checksum_seed().start().update(covered).value()
    }
}

impl MmpBlock {
    /// The MMP block at the start of `bytes`.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn parse(bytes: &[u8], sb: &Superblock) -> Result<Self, MmpError> {
        let Ok((raw, _)) = RawMmp::read_from_prefix(bytes) else {
            return Err(MmpError::TooShort {
                found_bytes: bytes.len(),
            });
        };
        let magic = raw.mmp_magic.get();
        if magic != MMP_MAGIC {
            return Err(MmpError::Magic { found: magic });
        }
        if sb.has_metadata_csum() {
            ChecksumMismatch::check(raw.mmp_checksum.get(), raw.checksum(sb))
                .map_err(MmpError::Checksum)?;
        }
        let sequence = match raw.mmp_seq.get() {
            MMP_SEQ_CLEAN => MmpSequence::Clean,
            MMP_SEQ_FSCK => MmpSequence::Fsck,
            number if number <= MMP_SEQ_MAX => MmpSequence::InUse(number),
            found => return Err(MmpError::Sequence { found }),
        };
        Ok(Self { raw, sequence })
    }

    /// Makes the block of a file system that no host uses and that nothing is known of, with its
    /// checksum.
    #[must_use]
    pub fn clean(sb: &Superblock) -> Self {
        const LEAST_CHECK_SECONDS: u16 = 5;
        let mut raw = RawMmp::new_zeroed();
        raw.mmp_magic = MMP_MAGIC.into();
        raw.mmp_seq = MMP_SEQ_CLEAN.into();
        let interval = sb.mmp_update_interval_seconds().max(LEAST_CHECK_SECONDS);
        raw.mmp_check_interval = interval.into();
        raw.seal(sb);
        let sequence = MmpSequence::Clean;
        Self { raw, sequence }
    }

    /// Whether both are the same but for their checksums, which also change with the superblock.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let without_checksum = |block: &Self| {
            let mut raw = block.raw;
            raw.mmp_checksum = 0.into();
            raw
        };
        without_checksum(self) == without_checksum(other)
    }

    /// Makes the block that `host` writes `seconds` after 1970, with its checksum.
    #[must_use]
    pub fn written_by(
        &self,
        host: &MmpHost<'_>,
        sequence: MmpSequence,
        seconds: u64,
        check_interval_seconds: u16,
        sb: &Superblock,
    ) -> Self {
        let mut raw = self.raw;
        raw.mmp_seq = sequence.number().into();
        raw.mmp_time = seconds.into();
        raw.mmp_check_interval = check_interval_seconds.into();
        put(&mut raw.mmp_nodename, host.node_name);
        put(&mut raw.mmp_bdevname, host.device_name);
        raw.seal(sb);
        Self { raw, sequence }
    }

    /// The bytes, as read.
    #[must_use]
    pub fn raw(&self) -> &RawMmp {
        &self.raw
    }

    /// The user of the file system.
    #[must_use]
    pub fn sequence(&self) -> MmpSequence {
        self.sequence
    }

    /// The time of the last write; `None` for never, and for times past 2^63 seconds. For
    /// information only.
    #[must_use]
    pub fn time(&self) -> Option<Timestamp> {
        let seconds = i64::try_from(self.raw.mmp_time.get())
            .ok()
            .filter(|&s| s != 0)?;
        Timestamp::new(seconds, 0)
    }

    /// The host that wrote it, at most 64 bytes. For information only.
    #[must_use]
    pub fn node_name(&self) -> &[u8] {
        until_zero(&self.raw.mmp_nodename)
    }

    /// The host's name of the device, at most 32 bytes. For information only.
    #[must_use]
    pub fn device_name(&self) -> &[u8] {
        until_zero(&self.raw.mmp_bdevname)
    }

    /// The interval in seconds between changes of the sequence number. Not checked.
    #[must_use]
    pub fn check_interval_seconds(&self) -> u16 {
        self.raw.mmp_check_interval.get()
    }
}

/// Stores a name in a field, padded with zeroes.
fn put(field: &mut [u8], name: &[u8]) {
    field.fill(0);
    field
        .iter_mut()
        .zip(name)
        .for_each(|(field, &byte)| *field = byte);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::image;

    fn raw(sb: &Superblock, sequence: u32) -> RawMmp {
        let mut raw = RawMmp::new_zeroed();
        raw.mmp_magic = MMP_MAGIC.into();
        raw.mmp_seq = sequence.into();
        raw.mmp_nodename[..4].copy_from_slice(b"host");
        raw.mmp_check_interval = 5.into();
        raw.seal(sb);
        raw
    }

    #[test]
    fn sequence_numbers_have_three_meanings() {
        let sb = image::metadata_csum();
        let sequence = |number| {
            MmpBlock::parse(raw(&sb, number).as_bytes(), &sb).map(|block| block.sequence())
        };
        assert_eq!(sequence(MMP_SEQ_CLEAN), Ok(MmpSequence::Clean));
        assert_eq!(sequence(MMP_SEQ_FSCK), Ok(MmpSequence::Fsck));
        assert_eq!(sequence(77), Ok(MmpSequence::InUse(77)));
        assert_eq!(
            sequence(0xf000_0000),
            Err(MmpError::Sequence { found: 0xf000_0000 })
        );
    }

    #[test]
    fn a_written_block_is_read_back() {
        let sb = image::metadata_csum();
        let old = MmpBlock::parse(raw(&sb, MMP_SEQ_CLEAN).as_bytes(), &sb).unwrap();
        let host = MmpHost {
            node_name: b"h",
            device_name: &[b'd'; 40],
        };
        for sequence in [MmpSequence::InUse(9), MmpSequence::Fsck, MmpSequence::Clean] {
            let new = old.written_by(&host, sequence, 1_000, 12, &sb);
            let read = MmpBlock::parse(new.raw().as_bytes(), &sb).unwrap();
            assert_eq!((read, read.sequence()), (new, sequence));
            assert_eq!(
                (read.node_name(), read.device_name().len()),
                (&b"h"[..], 32)
            );
            assert_eq!(read.check_interval_seconds(), 12);
            assert_eq!(read.time(), Timestamp::new(1_000, 0));
        }
    }

    #[test]
    fn a_clean_block_is_valid() {
        let sb = image::metadata_csum();
        let block = MmpBlock::clean(&sb);
        let read = MmpBlock::parse(block.raw().as_bytes(), &sb);
        assert_eq!(read, Ok(block));
        assert_eq!(block.sequence(), MmpSequence::Clean);
        assert_eq!(block.check_interval_seconds(), 5);
    }

    #[test]
    fn blocks_are_compared_without_their_checksums() {
        let sb = image::metadata_csum();
        let good = raw(&sb, 77);
        let sequence = MmpSequence::InUse(77);
        let block = |&raw: &RawMmp| MmpBlock { raw, sequence };
        let mut other = good;
        other.mmp_checksum = 1.into();
        assert!(block(&good).is_same(&block(&other)));
        other.mmp_time = 1.into();
        assert!(!block(&good).is_same(&block(&other)));
    }

    #[test]
    fn damage_is_found() {
        let sb = image::metadata_csum();
        let good = raw(&sb, 77);
        let block = MmpBlock::parse(good.as_bytes(), &sb).unwrap();
        assert_eq!(
            (block.node_name(), block.check_interval_seconds()),
            (&b"host"[..], 5)
        );
        let mut bad = good;
        bad.mmp_nodename[0] ^= 1;
        let error = MmpBlock::parse(bad.as_bytes(), &sb).unwrap_err();
        assert!(matches!(error, MmpError::Checksum(_)));
        let mut bad = good;
        bad.mmp_magic = 1.into();
        assert_eq!(
            MmpBlock::parse(bad.as_bytes(), &sb),
            Err(MmpError::Magic { found: 1 })
        );
        let error = MmpBlock::parse(&good.as_bytes()[..1023], &sb);
        assert_eq!(error, Err(MmpError::TooShort { found_bytes: 1023 }));
    }
}
