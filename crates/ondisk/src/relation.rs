//! **Purpose.** What can be wrong between structures that are each sound by themselves: a directory
//! with a hole, a value whose inode says another length, a device shorter than its file system.
//!
//! The parsers cannot see these; the layer that follows pointers can.

use std::ops::Range;

use crate::types::{LogicalBlock, PhysBlock};

/// A contradiction between two structures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelationError {
    /// The device ends before the file system does.
    #[error(
        "the device has {found_bytes} bytes, the file system needs {expected_bytes} (truncated?)"
    )]
    DeviceSize {
        /// Bytes of the device.
        found_bytes: u64,
        /// Bytes of the file system.
        expected_bytes: u64,
    },
    /// The journal must be replayed, and there is none.
    #[error("superblock: needs recovery, but there is no journal")]
    NoJournal,
    /// The inode of the journal is deleted, or no file.
    #[error("journal: not a regular file in use (i_mode {mode:#o}, i_links_count {links})")]
    JournalInode {
        /// `i_mode`.
        mode: u16,
        /// `i_links_count`.
        links: u16,
    },
    /// A file, directory or link claims more blocks than there are.
    #[error("maps {found} blocks, the file system has {limit}")]
    TooManyBlocks {
        /// Blocks mapped so far.
        found: u64,
        /// Blocks of the file system.
        limit: u64,
    },
    /// A block at another place in its cluster on disk than in the file.
    #[error("block {logical} lies at {physical}, another place in its cluster")]
    Cluster {
        /// The block of the file.
        logical: LogicalBlock,
        /// Where it is mapped.
        physical: PhysBlock,
    },
    /// A directory or orphan file with more blocks than the file system.
    #[error("i_size is {found_bytes}, the file system has {limit} blocks")]
    DirectorySize {
        /// `i_size` in bytes.
        found_bytes: u64,
        /// Blocks of the file system.
        limit: u64,
    },
    /// A directory block that is not there.
    #[error("directory: block {found} is a hole")]
    DirectoryHole {
        /// The block of the directory.
        found: LogicalBlock,
    },
    /// An orphan that is on record twice: a chain that comes back to it, or two entries.
    #[error("orphans: this inode is on record twice")]
    OrphanTwice,
    /// An orphan that is an inode of the file system itself.
    #[error("orphans: this inode is reserved")]
    OrphanReserved,
    /// An orphan that its bitmap says is free.
    #[error("orphans: this inode is not in use")]
    OrphanFree,
    /// An orphan file longer than any that is made.
    #[error("orphan file: i_size {found_bytes} is above the {limit_bytes} bytes it may have")]
    OrphanFileSize {
        /// `i_size`, both words.
        found_bytes: u64,
        /// The most that the kernel takes.
        limit_bytes: u64,
    },
    /// A block of the orphan file that is not there.
    #[error("orphan file: block {found} is a hole")]
    OrphanFileHole {
        /// The block of the file.
        found: LogicalBlock,
    },
    /// A block that is in the directory twice.
    #[error("directory: block {found} of the directory is one that an earlier block is already")]
    DirectoryBlockTwice {
        /// The block of the directory that is not its own.
        found: LogicalBlock,
    },
    /// A directory that is met twice on the way down from the root.
    #[error("directory: a second name leads to it")]
    DirectoryLoop,
    /// A symbolic link whose target is empty, or longer than a block.
    #[error("symbolic link: i_size is {found_bytes}, expected 1 to {most}")]
    SymlinkSize {
        /// `i_size` in bytes.
        found_bytes: u64,
        /// The longest target.
        most: usize,
    },
    /// An xattr block outside the file system.
    #[error("i_file_acl: block {found} is not in {}..{}", blocks.start, blocks.end)]
    XattrBlock {
        /// `i_file_acl`.
        found: PhysBlock,
        /// The blocks of the file system.
        blocks: Range<PhysBlock>,
    },
    /// An attribute's value is in an inode that is not one for values.
    #[error("holds the value of an attribute, but i_flags has no EA_INODE_FL")]
    NotAnEaInode,
    /// An inode for the value of an attribute, reached otherwise than through the attribute.
    #[error("i_flags has EA_INODE_FL: it is for the value of an attribute, and may have no name")]
    UnexpectedEaInode,
    /// The inode with an attribute's value has another size than the entry says.
    #[error("value of an attribute: i_size is {found}, expected {entry} and at most {most}")]
    EaInodeSize {
        /// `i_size` in bytes.
        found: u64,
        /// `e_value_size` of the entry.
        entry: u32,
        /// The longest value.
        most: usize,
    },
    /// The inode with an attribute's value has another hash than its content.
    #[error("value of an attribute: hash is {found:#010x}, expected {expected:#010x}")]
    EaInodeHash {
        /// The hash in the inode.
        found: u32,
        /// The hash of the content.
        expected: u32,
    },
    /// Inline data is longer than the room for it.
    #[error("inline data: i_size is {found_bytes}, stored are {stored}")]
    InlineSize {
        /// `i_size` in bytes.
        found_bytes: u64,
        /// Bytes stored in the inode.
        stored: usize,
    },
    /// A block bitmap that does not have as many free clusters as its descriptor says.
    #[error("block bitmap: {found} clusters are free, the descriptor says {expected}")]
    FreeClusters {
        /// By the bitmap.
        found: u32,
        /// By the descriptor.
        expected: u32,
    },
    /// A group whose bitmap was found wrong before.
    #[error("block bitmap: out of use since it was found wrong")]
    GroupOutOfUse,
    /// Clusters that are freed and are free already: two files claim them, or the bitmap is wrong.
    #[error("block bitmap: clusters {} to {} are freed and are not in use", clusters.start, clusters.end - 1)]
    FreedTwice {
        /// The clusters, counted in their group.
        clusters: Range<u32>,
    },
    /// Blocks outside of the file system that are freed.
    #[error("{clusters} clusters that are freed are not all inside the file system")]
    FreedOutside {
        /// How many clusters.
        clusters: u64,
    },
}
