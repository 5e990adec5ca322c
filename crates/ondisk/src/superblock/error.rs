//! **Purpose.** The errors of the superblock's checks: not ext4, not supported, or corrupt, with
//! one variant for each check.

use thiserror::Error;

use crate::checksum::ChecksumMismatch;
use crate::features::UnsupportedFeatures;

/// The reason why a superblock was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SuperblockRejected {
    /// The device ends before the superblock does.
    #[error("{found_bytes} bytes found at the superblock's place, which takes 1024 (truncated?)")]
    TooShort {
        /// The bytes found.
        found_bytes: usize,
    },
    /// Not ext2, ext3 or ext4.
    #[error("not ext2, ext3 or ext4: s_magic is {found:#06x}, not 0xef53")]
    NotExt4 {
        /// The bytes in place of the magic number.
        found: u16,
    },
    /// The journal of another file system (`journal_dev`), on a device of its own.
    #[error("the journal of another file system, not a file system")]
    JournalDevice,
    /// A file system where the journal of another one was expected.
    #[error("not an external journal: the feature journal_dev is missing")]
    NotJournalDevice,
    /// A format that fourscore does not support.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedFormat),
    /// An ext4 superblock with an invalid field.
    #[error(transparent)]
    Corrupt(#[from] SuperblockError),
}

/// A format that fourscore does not support.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnsupportedFormat {
    /// Features that forbid it.
    #[error(transparent)]
    Features(#[from] UnsupportedFeatures),
    /// A revision later than 1.
    #[error("s_rev_level {found} is later than 1")]
    Revision {
        /// `s_rev_level`.
        found: u32,
    },
    /// A checksum algorithm other than crc32c.
    #[error("s_checksum_type {found} is not 1 (crc32c)")]
    ChecksumType {
        /// `s_checksum_type`.
        found: u8,
    },
    /// An encoding of names other than UTF-8.
    #[error("s_encoding {found} is not 1 (utf8-12.1)")]
    Encoding {
        /// `s_encoding`.
        found: u16,
    },
    /// A version of encryption after the first.
    #[error("s_encryption_level {found} is not 0")]
    EncryptionLevel {
        /// `s_encryption_level`.
        found: u8,
    },
}

/// An invalid field of the superblock, with one variant for each check.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SuperblockError {
    /// `s_checksum` is not the checksum of the bytes.
    #[error("superblock: s_checksum: {0}")]
    Checksum(ChecksumMismatch),
    /// Blocks of more than 64 KiB.
    #[error("superblock: s_log_block_size {found} is over 6")]
    LogBlockSize {
        /// `s_log_block_size`.
        found: u32,
    },
    /// Clusters smaller than a block, larger than 1 GiB, or other than a block without
    /// `bigalloc`.
    #[error(
        "superblock: s_log_cluster_size {found} does not fit s_log_block_size {log_block_size}"
    )]
    LogClusterSize {
        /// `s_log_cluster_size`.
        found: u32,
        /// `s_log_block_size`.
        log_block_size: u32,
    },
    /// Neither 0, nor 1 with blocks and clusters of 1 KiB.
    #[error("superblock: s_first_data_block is {found}, not {expected}")]
    FirstDataBlock {
        /// `s_first_data_block`.
        found: u32,
        /// The value required by the block size.
        expected: u32,
    },
    /// Not a multiple of the cluster ratio, or more than one bitmap block covers.
    #[error(
        "superblock: s_blocks_per_group {blocks} and s_clusters_per_group {clusters} \
         do not fit one bitmap block of {bitmap_bits} bits"
    )]
    BlocksPerGroup {
        /// `s_blocks_per_group`.
        blocks: u32,
        /// `s_clusters_per_group`.
        clusters: u32,
        /// Bits in a block.
        bitmap_bits: u32,
    },
    /// Less than one group, or more than can be addressed.
    #[error("superblock: blocks count {found} is out of range")]
    BlocksCount {
        /// The blocks count, both halves.
        found: u64,
    },
    /// The file system ends before its descriptors do.
    #[error("superblock: descriptor block {found} is not below the blocks count {blocks}")]
    Descriptors {
        /// The block of a descriptor.
        found: u64,
        /// The blocks count, both halves.
        blocks: u64,
    },
    /// An inode size other than a power of two from 128 to the block size.
    #[error("superblock: s_inode_size {found} is no power of two from 128 to {block_size_bytes}")]
    InodeSize {
        /// `s_inode_size`.
        found: u16,
        /// The block size.
        block_size_bytes: usize,
    },
    /// A descriptor size other than a power of two from 64 to 1024.
    #[error("superblock: s_desc_size {found} is no power of two from 64 to 1024")]
    DescSize {
        /// `s_desc_size`.
        found: u16,
    },
    /// Less than a block of inodes, more than a bitmap block covers, or a table that does not
    /// fit the group.
    #[error("superblock: s_inodes_per_group {found} is not from {least} to {most}")]
    InodesPerGroup {
        /// `s_inodes_per_group`.
        found: u32,
        /// The inodes of one block.
        least: u32,
        /// The bits of one block, or the inodes of a table as large as the group.
        most: u32,
    },
    /// Not `s_inodes_per_group` for each group.
    #[error("superblock: s_inodes_count is {found}, not {expected}")]
    InodesCount {
        /// `s_inodes_count`.
        found: u32,
        /// Groups times inodes per group.
        expected: u64,
    },
    /// A first inode inside the ten that are always reserved, or past the end.
    #[error("superblock: s_first_ino {found} is not from 11 to {inodes_count}")]
    FirstInode {
        /// `s_first_ino`.
        found: u32,
        /// `s_inodes_count`.
        inodes_count: u32,
    },
    /// More blocks reserved for growth than one indirect block can list.
    #[error("superblock: s_reserved_gdt_blocks {found} is over {most}")]
    ReservedGdtBlocks {
        /// `s_reserved_gdt_blocks`.
        found: u16,
        /// A quarter of the block size.
        most: u32,
    },
    /// A first meta block group past the last.
    #[error("superblock: s_first_meta_bg {found} is over {descriptor_blocks}")]
    FirstMetaBg {
        /// `s_first_meta_bg`.
        found: u32,
        /// The number of descriptor blocks.
        descriptor_blocks: u32,
    },
    /// A journal both in an inode and on a device, or in neither.
    #[error(
        "superblock: has_journal needs either s_journal_inum or an external journal, \
         found inode {inode} and device {device:#x}"
    )]
    Journal {
        /// `s_journal_inum`.
        inode: u32,
        /// `s_journal_dev`.
        device: u32,
    },
    /// A reserved inode past the last inode.
    #[error("superblock: {field} {found} is not from 1 to {inodes_count}")]
    HiddenInode {
        /// The field's name.
        field: &'static str,
        /// Its value.
        found: u32,
        /// `s_inodes_count`.
        inodes_count: u32,
    },
    /// A quota file in an inode with another role.
    #[error("superblock: {field} {found} is an inode that has another role")]
    QuotaInode {
        /// The field's name.
        field: &'static str,
        /// Its value.
        found: u32,
    },
    /// An MMP block outside the file system, or that overlaps superblocks or descriptors.
    #[error("superblock: s_mmp_block {found} is outside the file system or on fixed metadata")]
    MmpBlock {
        /// `s_mmp_block`.
        found: u64,
    },
}
