//! **Purpose.** The two checksums of ext4: crc32c (`metadata_csum`) and crc16 (`gdt_csum`), and
//! the seeds that tie a crc32c to its file system and its inode.
//!
//! **Not here.** The bytes of a structure that its checksum covers: see the `seal` and `verify`
//! functions of each structure.
//!
//! **Model.** ext4 uses crc32c without inversion: the state starts at the seed, and is stored
//! without a final inversion. So one checksum can be the seed of the next:
//!
//! ```text
//! file system seed = s_checksum_seed, or crc32c(!0, s_uuid)
//! inode seed       = crc32c(file system seed, le32 inode number, le32 i_generation)
//! ```
//!
//! **References.** Documentation/filesystems/ext4/checksums.rst of the kernel.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

use crate::types::InodeNr;

/// The state of a crc32c computation, which is also the value that ext4 stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Crc32c(u32);

impl Crc32c {
    /// The state with all bits set: the start for structures without a seed of their own (the
    /// superblock, the UUID, the journal's superblock).
    pub const START: Self = Self(!0);

    /// Continues from a stored state.
    pub const fn from_state(state: u32) -> Self {
        Self(state)
    }

    /// The state after `bytes`.
    pub fn update(self, bytes: &[u8]) -> Self {
        if let Some(state) = self.update_short(bytes) {
            return state;
        }
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.0));
        digest.update(bytes);
        // The state of a 32-bit CRC never leaves the low half.
        #[expect(clippy::cast_possible_truncation, reason = "the state has 32 bits")]
        let state = digest.get_state() as u32;
        Self(state)
    }

    /// The state after a few `bytes`, without a digest object, whose construction costs more than
    /// the computation. The function used instead starts with all bits set; the difference to the
    /// state at hand is xored into the first four bytes, which is equivalent for a CRC.
    fn update_short(self, bytes: &[u8]) -> Option<Self> {
        const MOST_BYTES: usize = 256;
        let (first, rest) = bytes.split_first_chunk()?;
        let mut copy = [0; MOST_BYTES];
        let (head, tail) = copy.get_mut(..bytes.len())?.split_first_chunk_mut()?;
        let first = u32::from_le_bytes(*first) ^ self.0 ^ Self::START.0;
        *head = first.to_le_bytes();
        tail.copy_from_slice(rest);
        Some(Self(!crc_fast::crc32_iscsi(&copy[..bytes.len()])))
    }

    /// The state after `value` in little-endian order.
    pub fn update_le32(self, value: u32) -> Self {
        self.update(&value.to_le_bytes())
    }

    /// The state after `value` in little-endian order.
    pub fn update_le64(self, value: u64) -> Self {
        self.update(&value.to_le_bytes())
    }

    /// The value as ext4 stores it: no final inversion.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The low half, as structures with a 16-bit checksum field store it.
    #[must_use]
    pub const fn low16(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

/// A crc16 as `gdt_csum` uses it: polynomial 0x8005, reflected, no inversion at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Crc16(u16);

impl Crc16 {
    /// The state group descriptor checksums start from.
    pub const START: Self = Self(!0);

    /// The state after `bytes`. Computed bit by bit: a descriptor has at most 64 bytes, and only
    /// old file systems have this checksum.
    pub fn update(self, bytes: &[u8]) -> Self {
        const POLYNOMIAL_REFLECTED: u16 = 0xa001;
        let state = bytes.iter().fold(self.0, |state, &byte| {
            (0..8).fold(state ^ u16::from(byte), |state, _| {
                let carry = if state & 1 == 1 {
                    POLYNOMIAL_REFLECTED
                } else {
                    0
                };
                (state >> 1) ^ carry
            })
        });
        Self(state)
    }

    /// The value as ext4 stores it.
    #[must_use]
    pub const fn value(self) -> u16 {
        self.0
    }
}

/// The seed of the checksums of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumSeed(u32);

impl ChecksumSeed {
    /// The seed stored in `s_checksum_seed` (feature `metadata_csum_seed`).
    #[must_use]
    pub const fn from_stored(s_checksum_seed: u32) -> Self {
        Self(s_checksum_seed)
    }

    /// The seed of a file system without `metadata_csum_seed`.
    #[must_use]
    pub fn from_uuid(s_uuid: &[u8; 16]) -> Self {
        Self(Crc32c::START.update(s_uuid).value())
    }

    /// The seed as `s_checksum_seed` stores it.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Starts a checksum that belongs to the file system as a whole: bitmaps, group descriptors,
    /// xattr blocks, the MMP block.
    pub const fn start(self) -> Crc32c {
        Crc32c::from_state(self.0)
    }

    /// The seed for everything that belongs to one inode.
    #[must_use]
    pub fn for_inode(self, inode: InodeNr, generation: InodeGeneration) -> InodeSeed {
        let [a, b, c, d] = inode.0.to_le_bytes();
        let [e, f, g, h] = generation.0.to_le_bytes();
        // One call for both: a call costs about as much as a hundred bytes.
        InodeSeed(self.start().update(&[a, b, c, d, e, f, g, h]).value())
    }
}

/// `i_generation`: distinguishes successive uses of one inode number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InodeGeneration(pub u32);

/// The seed of the checksums of one inode: of the inode itself, its extent blocks, its directory
/// blocks, the blocks of the orphan file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeSeed(u32);

impl InodeSeed {
    /// The seed with this value.
    #[must_use]
    pub const fn from_value(value: u32) -> Self {
        Self(value)
    }

    /// The seed as a number.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Starts a checksum that belongs to the inode.
    pub const fn start(self) -> Crc32c {
        Crc32c::from_state(self.0)
    }
}

/// A checksum on disk differs from that of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumMismatch {
    /// The checksum stored on disk.
    pub found: u32,
    /// The checksum of the bytes as they are on disk.
    pub expected: u32,
}

impl ChecksumMismatch {
    /// `Ok` when both are equal.
    ///
    /// # Errors
    /// The pair, when they differ.
    pub fn check(found: u32, expected: u32) -> Result<(), Self> {
        if found == expected {
            Ok(())
        } else {
            Err(Self { found, expected })
        }
    }
}

impl fmt::Display for ChecksumMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "checksum {:#010x} found, {:#010x} expected",
            self.found, self.expected
        )
    }
}

impl std::error::Error for ChecksumMismatch {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHECK: &[u8] = b"123456789";

    #[test]
    fn catalogued_check_values() {
        // The values of the catalogue have a final inversion, those of ext4 do not.
        assert_eq!(!Crc32c::START.update(CHECK).value(), 0xe306_9283);
        // Modbus is this CRC with the start value of ext4, ARC with 0.
        assert_eq!(Crc16::START.update(CHECK).value(), 0x4b37);
        assert_eq!(Crc16(0).update(CHECK).value(), 0xbb3d);
    }

    #[test]
    fn inode_seed_covers_number_and_generation() {
        let fs = ChecksumSeed::from_uuid(&[7; 16]);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&12u32.to_le_bytes());
        bytes[4..].copy_from_slice(&34u32.to_le_bytes());
        let seed = fs.for_inode(InodeNr(12), InodeGeneration(34));
        assert_eq!(seed.start(), fs.start().update(&bytes));
        assert_ne!(seed, fs.for_inode(InodeNr(12), InodeGeneration(35)));
    }

    #[test]
    fn mismatch_names_both_in_hex() {
        let error = ChecksumMismatch::check(1, 0xdead_beef).unwrap_err();
        assert_eq!(
            error.to_string(),
            "checksum 0x00000001 found, 0xdeadbeef expected"
        );
    }

    proptest! {
        #[test]
        fn equals_the_crc_crate(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let crc32c = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(&bytes);
            prop_assert_eq!(!Crc32c::START.update(&bytes).value(), crc32c);
            let crc16 = crc::Crc::<u16>::new(&crc::CRC_16_MODBUS).checksum(&bytes);
            prop_assert_eq!(Crc16::START.update(&bytes).value(), crc16);
        }

        #[test]
        fn may_be_cut_anywhere(
            bytes in proptest::collection::vec(any::<u8>(), 0..700),
            at in 0usize..700,
            seed: u32,
        ) {
            let (head, tail) = bytes.split_at(at.min(bytes.len()));
            let whole = Crc32c::from_state(seed).update(&bytes);
            prop_assert_eq!(Crc32c::from_state(seed).update(head).update(tail), whole);
        }
    }
}
