//! **Purpose.** Blocks of the orphan file (feature `orphan_file`): a list of inodes whose deletion
//! or truncation is unfinished, and must be finished after a crash.
//!
//! **Not here.** The linked orphan list of file systems without the feature, which is chained by
//! `s_last_orphan` and [`Inode::dtime`](crate::inode::Inode::dtime).
//!
//! **Model.** A block is an array of inode numbers in any order, with zero in free slots, and a
//! tail:
//!
//! ```text
//! | le32 inode | le32 inode | ... | ob_magic | ob_checksum |
//! ```
//!
//! The checksum covers the block's own number and the array, with the orphan file's inode seed, so
//! that a copy of another block is not mistaken for this one.
//!
//! **References.** Documentation/filesystems/ext4/orphan.rst of the kernel.

use std::mem::size_of;

use thiserror::Error;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{ChecksumMismatch, InodeSeed};
use crate::superblock::Superblock;
use crate::types::{BlockSize, InodeNr, PhysBlock};

const ORPHAN_BLOCK_MAGIC: u32 = 0x0b10_ca04;

/// The last 8 bytes of a block of the orphan file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawOrphanTail {
    ob_magic: U32,    // 0x0
    ob_checksum: U32, // 0x4
}

const _: () = assert!(size_of::<RawOrphanTail>() == 8);

/// The reason why bytes are not a valid block of the orphan file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OrphanError {
    /// A wrong length.
    #[error("orphan file block: {found_bytes} bytes where {needed_bytes} are needed")]
    Length {
        /// The bytes found.
        found_bytes: usize,
        /// The block size.
        needed_bytes: usize,
    },
    /// The tail has a wrong magic number.
    #[error("orphan file block: ob_magic is {found:#010x}, not 0x0b10ca04")]
    Magic {
        /// `ob_magic`.
        found: u32,
    },
    /// `ob_checksum` is not the checksum of the block.
    #[error("orphan file block: ob_checksum: {0}")]
    Checksum(ChecksumMismatch),
    /// An entry past the last inode.
    #[error("orphan file block: entry {index} is inode {found}, past the last, {inodes_count}")]
    Entry {
        /// The slot, from 0.
        index: usize,
        /// Its inode.
        found: InodeNr,
        /// `s_inodes_count`.
        inodes_count: u32,
    },
}

/// The number of slots of one block.
#[must_use]
pub fn slots(block_size: BlockSize) -> usize {
    (block_size.bytes() - size_of::<RawOrphanTail>()) / size_of::<U32>()
}

/// The orphans of one block, each with its slot. Every one is an existing inode.
///
/// `seed` is the orphan file's own ([`Inode::checksum_seed`](crate::inode::Inode::checksum_seed)),
/// `place` the block's number on the device.
///
/// # Errors
/// The first check that fails.
pub fn parse<'a>(
    block: &'a [u8],
    place: PhysBlock,
    seed: InodeSeed,
    sb: &Superblock,
) -> Result<impl Iterator<Item = (usize, InodeNr)> + use<'a>, OrphanError> {
    let (entries, tail) = split(block, sb)?;
    let magic = tail.ob_magic.get();
    if magic != ORPHAN_BLOCK_MAGIC {
        return Err(OrphanError::Magic { found: magic });
    }
    if sb.has_metadata_csum() {
        let expected = checksum(entries, place, seed);
        ChecksumMismatch::check(tail.ob_checksum.get(), expected).map_err(OrphanError::Checksum)?;
    }
    let inodes_count = sb.geometry().inodes();
    for (index, entry) in entries.iter().enumerate() {
        let found = InodeNr(entry.get());
        if found.0 > inodes_count {
            return Err(OrphanError::Entry {
                index,
                found,
                inodes_count,
            });
        }
    }
    Ok(entries
        .iter()
        .map(|entry| InodeNr(entry.get()))
        .enumerate()
        .filter(|(_, inode)| inode.0 != 0))
}

/// Writes the magic number and the checksum of a block of the orphan file. Without `metadata_csum`
/// the checksum is not changed.
///
/// # Errors
/// [`OrphanError::Length`].
pub fn seal(
    block: &mut [u8],
    place: PhysBlock,
    seed: InodeSeed,
    sb: &Superblock,
) -> Result<(), OrphanError> {
    let (entries, _) = split(block, sb)?;
    let value = sb
        .has_metadata_csum()
        .then(|| checksum(entries, place, seed));
    if let Ok((_, tail)) = RawOrphanTail::mut_from_suffix(block) {
        tail.ob_magic = ORPHAN_BLOCK_MAGIC.into();
        if let Some(value) = value {
            tail.ob_checksum = value.into();
        }
    }
    Ok(())
}

fn split<'a>(
    block: &'a [u8],
    sb: &Superblock,
) -> Result<(&'a [U32], &'a RawOrphanTail), OrphanError> {
    let needed_bytes = sb.geometry().block_size().bytes();
    let wrong = OrphanError::Length {
        found_bytes: block.len(),
        needed_bytes,
    };
    if block.len() != needed_bytes {
        return Err(wrong);
    }
    let Ok((entries, tail)) = RawOrphanTail::ref_from_suffix(block) else {
        return Err(wrong);
    };
    let Ok(entries) = <[U32]>::ref_from_bytes(entries) else {
        return Err(wrong);
    };
    Ok((entries, tail))
}

fn checksum(entries: &[U32], place: PhysBlock, seed: InodeSeed) -> u32 {
    seed.start()
        .update_le64(place.0)
        .update(entries.as_bytes())
        .value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::InodeGeneration;
    use crate::testing::image;

    fn block(sb: &Superblock, orphans: &[(usize, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; sb.geometry().block_size().bytes()];
        for &(index, inode) in orphans {
            bytes[index * 4..index * 4 + 4].copy_from_slice(&inode.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn sealed_blocks_list_their_orphans() {
        let sb = image::metadata_csum();
        let seed = sb
            .checksum_seed()
            .for_inode(InodeNr(12), InodeGeneration(3));
        let mut bytes = block(&sb, &[(0, 13), (7, 11)]);
        seal(&mut bytes, PhysBlock(77), seed, &sb).unwrap();
        let orphans: Vec<_> = parse(&bytes, PhysBlock(77), seed, &sb).unwrap().collect();
        assert_eq!(orphans, [(0, InodeNr(13)), (7, InodeNr(11))]);
        assert_eq!(slots(sb.geometry().block_size()), (bytes.len() - 8) / 4);

        let elsewhere = parse(&bytes, PhysBlock(78), seed, &sb).map(|_| ());
        assert!(matches!(elsewhere, Err(OrphanError::Checksum(_))));
        let magic_at = bytes.len() - 8;
        bytes[magic_at] ^= 1;
        let error = parse(&bytes, PhysBlock(77), seed, &sb).map(|_| ());
        assert_eq!(error, Err(OrphanError::Magic { found: 0x0b10_ca05 }));
    }

    #[test]
    fn entries_past_the_last_inode_are_corrupt() {
        let sb = image::metadata_csum();
        let seed = sb
            .checksum_seed()
            .for_inode(InodeNr(12), InodeGeneration(3));
        let inodes_count = sb.geometry().inodes();
        let found = InodeNr(inodes_count + 1);
        let mut bytes = block(&sb, &[(2, found.0)]);
        seal(&mut bytes, PhysBlock(77), seed, &sb).unwrap();
        let error = parse(&bytes, PhysBlock(77), seed, &sb).map(|_| ());
        assert_eq!(
            error,
            Err(OrphanError::Entry {
                index: 2,
                found,
                inodes_count
            })
        );
        let error = parse(&bytes[1..], PhysBlock(77), seed, &sb).map(|_| ());
        assert!(matches!(error, Err(OrphanError::Length { .. })));
    }
}
