//! **Purpose.** The fs-verity metadata of a file: its location, and its descriptor.
//!
//! **Not here.** Verifying data against the tree, or the signature.
//!
//! **Model.** The metadata is in blocks of the file past its end, which `read` does not reach:
//!
//! ```text
//! content | zeros to 64 KiB | Merkle tree | descriptor, from a block's start | .. | size u32
//!         ^ i_size                                              end of the last extent ^
//! ```
//!
//! **References.** Kernel documentation, `filesystems/fsverity` and `filesystems/ext4/verity`.

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::types::{BlockSize, LogicalBlock};

/// The tree begins at the next multiple of this after the content.
const TREE_ALIGN_BYTES: u64 = 65536;
/// Bytes of the last field, which holds the size of the descriptor.
pub const SIZE_FIELD_BYTES: u64 = 4;
/// The largest descriptor the kernel reads, with its signature.
pub const MAX_DESCRIPTOR_BYTES: u32 = 16384;

/// The descriptor, without the signature after it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawDescriptor {
    /// 0x0: 1.
    pub version: u8,
    /// 0x1: 1 for SHA-256, 2 for SHA-512.
    pub hash_algorithm: u8,
    /// 0x2: log2 of the bytes each hash of the tree's lowest level covers.
    pub log_blocksize: u8,
    /// 0x3: bytes of the salt.
    pub salt_size: u8,
    /// 0x4: bytes of the signature.
    pub sig_size: U32,
    /// 0x8: bytes of content the tree covers.
    pub data_size: U64,
    /// 0x10: hash of the tree's root.
    pub root_hash: [u8; 64],
    /// 0x50: salt prepended to each hashed block.
    pub salt: [u8; 32],
    /// 0x70: 0.
    pub reserved: [u8; 144],
}

const _: () = {
    assert!(size_of::<RawDescriptor>() == 256);
    assert!(std::mem::offset_of!(RawDescriptor, salt) == 0x50);
};

/// An error in the metadata of a verity file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerityError {
    /// No space for the metadata after the content.
    #[error("verity: the last extent ends at byte {found}, expected after byte {expected}")]
    NoRoom {
        /// The end of the last extent.
        found: u64,
        /// The start of the tree.
        expected: u64,
    },
    /// An invalid size of the descriptor.
    #[error("verity: descriptor of {found} bytes, expected {min} to {MAX_DESCRIPTOR_BYTES}")]
    Size {
        /// Value of the field.
        found: u32,
        /// Bytes without a signature.
        min: usize,
    },
    /// An invalid field of the descriptor.
    #[error("verity descriptor: {field} is {found}, expected {expected}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The valid values.
        expected: &'static str,
    },
}

/// The hash function of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerityHash {
    /// 1.
    Sha256,
    /// 2.
    Sha512,
}

/// The location of the metadata of a file, in bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerityLayout {
    /// The start of the tree.
    pub tree_at: u64,
    /// The offset of the field with the descriptor's size.
    pub size_field_at: u64,
    block_size: BlockSize,
}

impl VerityLayout {
    /// The layout of a file whose content has `i_size` bytes and whose last extent ends at
    /// `extents_end`.
    ///
    /// # Errors
    /// If there is no space after the content.
    pub fn new(
        i_size: u64,
        extents_end: LogicalBlock,
        block_size: BlockSize,
    ) -> Result<Self, VerityError> {
        let end = u64::from(extents_end.0) << block_size.bits();
        let tree_at = i_size
            .checked_next_multiple_of(TREE_ALIGN_BYTES)
            .unwrap_or(u64::MAX);
        let size_field_at = end.checked_sub(SIZE_FIELD_BYTES).filter(|&at| at > tree_at);
        let size_field_at = size_field_at.ok_or(VerityError::NoRoom {
            found: end,
            expected: tree_at,
        })?;
        Ok(Self {
            tree_at,
            size_field_at,
            block_size,
        })
    }

    /// The range of the descriptor, given the bytes of the size field.
    ///
    /// # Errors
    /// If the size is invalid, or the descriptor overlaps the content.
    pub fn descriptor(&self, size_field: [u8; 4]) -> Result<Range<u64>, VerityError> {
        let (size, min) = (u32::from_le_bytes(size_field), size_of::<RawDescriptor>());
        if size > MAX_DESCRIPTOR_BYTES || u64::from(size) < min as u64 {
            return Err(VerityError::Size { found: size, min });
        }
        let no_room = VerityError::NoRoom {
            found: self.size_field_at,
            expected: self.tree_at,
        };
        let latest = self
            .size_field_at
            .checked_sub(size.into())
            .ok_or(no_room.clone())?;
        let start = latest >> self.block_size.bits() << self.block_size.bits();
        if start < self.tree_at {
            Err(no_room)
        } else {
            Ok(start..start + u64::from(size))
        }
    }
}

/// Checks a descriptor of a file whose content has `i_size` bytes, and returns its fields, its hash
/// function, and the signature after it.
///
/// # Errors
/// The first invalid field.
pub fn descriptor(
    bytes: &[u8],
    i_size: u64,
) -> Result<(&RawDescriptor, VerityHash, &[u8]), VerityError> {
    let (raw, rest) = RawDescriptor::ref_from_prefix(bytes).map_err(|_| VerityError::Size {
        found: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        min: size_of::<RawDescriptor>(),
    })?;
    let field = |field, found: u64, expected| {
        Err(VerityError::Field {
            field,
            found,
            expected,
        })
    };
    if raw.version != 1 {
        return field("version", raw.version.into(), "1");
    }
    let hash = match raw.hash_algorithm {
        1 => VerityHash::Sha256,
        2 => VerityHash::Sha512,
        other => return field("hash_algorithm", other.into(), "1 or 2"),
    };
    if usize::from(raw.salt_size) > raw.salt.len() {
        return field("salt_size", raw.salt_size.into(), "at most 32");
    }
    if raw.data_size.get() != i_size {
        return field("data_size", raw.data_size.get(), "i_size");
    }
    let signature = usize::try_from(raw.sig_size.get())
        .ok()
        .and_then(|size| rest.get(..size));
    match signature {
        Some(signature) => Ok((raw, hash, signature)),
        None => field(
            "sig_size",
            raw.sig_size.get().into(),
            "at most what fits the descriptor",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const I_SIZE: u64 = 70_000;

    fn block_size() -> BlockSize {
        BlockSize::from_log(2).unwrap()
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = vec![0; 260];
        bytes[..4].copy_from_slice(&[1, 2, 12, 8]);
        bytes[4] = 4;
        bytes[8..16].copy_from_slice(&I_SIZE.to_le_bytes());
        bytes[256..].copy_from_slice(b"sign");
        bytes
    }

    #[test]
    fn the_descriptor_begins_a_block_behind_the_tree() {
        let layout = VerityLayout::new(I_SIZE, LogicalBlock(34), block_size()).unwrap();
        assert_eq!(
            (layout.tree_at, layout.size_field_at),
            (131_072, 34 * 4096 - 4)
        );
        let at = |size: u32| layout.descriptor(size.to_le_bytes());
        assert_eq!(at(260), Ok(33 * 4096..33 * 4096 + 260));
        assert_eq!(at(4093), Ok(32 * 4096..32 * 4096 + 4093));
        assert_eq!(
            at(255),
            Err(VerityError::Size {
                found: 255,
                min: 256
            })
        );
        assert_eq!(
            at(16385),
            Err(VerityError::Size {
                found: 16385,
                min: 256
            })
        );
        assert!(matches!(at(9000), Err(VerityError::NoRoom { .. })));
        for end in [0, 32] {
            let layout = VerityLayout::new(I_SIZE, LogicalBlock(end), block_size());
            assert!(
                matches!(layout, Err(VerityError::NoRoom { .. })),
                "{layout:?}"
            );
        }
        assert!(VerityLayout::new(u64::MAX, LogicalBlock(u32::MAX), block_size()).is_err());
    }

    #[test]
    fn descriptors_are_checked() {
        let good = bytes();
        let (raw, hash, signature) = descriptor(&good, I_SIZE).unwrap();
        assert_eq!(
            (raw.salt_size, hash, signature),
            (8, VerityHash::Sha512, &b"sign"[..])
        );
        for (at, name) in [(0, "version"), (1, "hash_algorithm"), (3, "salt_size")] {
            let mut bytes = bytes();
            bytes[at] = 99;
            let error = descriptor(&bytes, I_SIZE).unwrap_err();
            assert!(matches!(error, VerityError::Field { field, .. } if field == name));
        }
        assert!(descriptor(&good[..255], I_SIZE).is_err());
        assert!(descriptor(&good[..259], I_SIZE).is_err());
        assert!(descriptor(&good, I_SIZE + 1).is_err());
    }
}
