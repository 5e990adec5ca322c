//! **Purpose.** Errors between structures that are each valid by themselves: a directory with a
//! hole, an attribute value whose inode has another length, a device shorter than its file system.
//!
//! Parsers cannot find these; the layer that follows pointers does.

use std::ops::Range;

use crate::types::{InodeNr, LogicalBlock, PhysBlock};

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
    /// A quota file is broken.
    #[error("quota file: {why}")]
    QuotaFile {
        /// What is wrong with it.
        why: &'static str,
    },
    /// The inode of the journal is deleted, or not a regular file.
    #[error("journal: not a regular file in use (i_mode {mode:#o}, i_links_count {links})")]
    JournalInode {
        /// `i_mode`.
        mode: u16,
        /// `i_links_count`.
        links: u16,
    },
    /// A file, directory or link maps more blocks than the file system has.
    #[error("maps {found} blocks, the file system has {limit}")]
    TooManyBlocks {
        /// Blocks mapped so far.
        found: u64,
        /// Blocks of the file system.
        limit: u64,
    },
    /// A block whose offset in its cluster on disk differs from that in the file.
    #[error("block {logical} is mapped to {physical}, at another offset in its cluster")]
    Cluster {
        /// The block of the file.
        logical: LogicalBlock,
        /// The block it is mapped to.
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
    /// A directory block that is not mapped.
    #[error("directory: block {found} is a hole")]
    DirectoryHole {
        /// The block of the directory.
        found: LogicalBlock,
    },
    /// An orphan that is listed twice: by a cycle in the chain, or by two entries.
    #[error("orphans: this inode is listed twice")]
    OrphanTwice,
    /// An orphan that is a reserved inode.
    #[error("orphans: this inode is reserved")]
    OrphanReserved,
    /// An orphan that is free in its bitmap.
    #[error("orphans: this inode is not in use")]
    OrphanFree,
    /// An orphan file longer than the maximum.
    #[error("orphan file: i_size {found_bytes} is above the {limit_bytes} bytes it may have")]
    OrphanFileSize {
        /// `i_size`, both halves.
        found_bytes: u64,
        /// The maximum that the kernel accepts.
        limit_bytes: u64,
    },
    /// A block of the orphan file that is not mapped.
    #[error("orphan file: block {found} is a hole")]
    OrphanFileHole {
        /// The block of the file.
        found: LogicalBlock,
    },
    /// A block that a directory maps twice.
    #[error(
        "directory: block {found} of the directory is mapped to the same place as an earlier one"
    )]
    DirectoryBlockTwice {
        /// The later one of the two blocks of the directory.
        found: LogicalBlock,
    },
    /// A directory with two parents, which a walk from the root reaches twice.
    #[error("directory: a second name refers to it")]
    DirectoryLoop,
    /// A name of an inode that may have none: a reserved one, or a file of the file system's own.
    #[error("directory: a name refers to inode {found}, which may have no name")]
    NamedReserved {
        /// The inode.
        found: InodeNr,
    },
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
    /// The block of an inode's attributes is free in its bitmap.
    #[error("i_file_acl: block {found} is not in use")]
    XattrBlockFree {
        /// `i_file_acl`.
        found: PhysBlock,
    },
    /// A block of attributes that belongs to one inode by its count, and was changed through
    /// another one.
    #[error("i_file_acl: block {found} was changed by another inode, so h_refcount is too low")]
    XattrBlockChanged {
        /// `i_file_acl`.
        found: PhysBlock,
    },
    /// An attribute's value is in an inode that is deleted or counts no users.
    #[error("holds the value of an attribute, but has {users} users and i_links_count is {links}")]
    EaInodeUsers {
        /// The users that it counts.
        users: u64,
        /// `i_links_count`.
        links: u16,
    },
    /// An attribute's value is in an inode without `EA_INODE_FL`.
    #[error("holds the value of an attribute, but i_flags has no EA_INODE_FL")]
    NotAnEaInode,
    /// An inode for the value of an attribute that is used as a file.
    #[error("i_flags has EA_INODE_FL: an inode with the value of an attribute may have no name")]
    UnexpectedEaInode,
    /// The size of an inode with an attribute's value differs from that in the entry.
    #[error("value of an attribute: i_size is {found}, expected {entry} and at most {most}")]
    EaInodeSize {
        /// `i_size` in bytes.
        found: u64,
        /// `e_value_size` of the entry.
        entry: u32,
        /// The longest value.
        most: usize,
    },
    /// The hash in an inode with an attribute's value differs from that of its content.
    #[error("value of an attribute: hash is {found:#010x}, expected {expected:#010x}")]
    EaInodeHash {
        /// The hash in the inode.
        found: u32,
        /// The hash of the content.
        expected: u32,
    },
    /// A block that one operation changes as two structures, such as the data of a file and a part
    /// of the inode table.
    #[error(
        "one block with two uses: a part at byte {offset_bytes} has {found_bytes} bytes as one of them, {expected_bytes} as the other"
    )]
    TwoUses {
        /// Where the part begins in the block, in bytes.
        offset_bytes: usize,
        /// Its length as the structure that was found first, in bytes.
        found_bytes: usize,
        /// Its length as the structure that was found later, in bytes.
        expected_bytes: usize,
    },
    /// Inline data is longer than the space for it.
    #[error("inline data: i_size is {found_bytes}, but {stored} bytes are stored")]
    InlineSize {
        /// `i_size` in bytes.
        found_bytes: u64,
        /// Bytes stored in the inode.
        stored: usize,
    },
    /// A block bitmap whose number of free clusters differs from that in its descriptor.
    #[error("block bitmap: {found} clusters are free, the descriptor says {expected}")]
    FreeClusters {
        /// The number in the bitmap.
        found: u32,
        /// The number in the descriptor.
        expected: u32,
    },
    /// A group that is not used because its bitmap was found corrupt before.
    #[error("block bitmap: not used, as it was found corrupt before")]
    GroupOutOfUse,
    /// A group whose inodes are not used because their bitmap was found corrupt before.
    #[error("inode bitmap: not used, as it was found corrupt before")]
    InodesOutOfUse,
    /// Clusters to be freed that are free already: two files use them, or the bitmap is corrupt.
    #[error("block bitmap: clusters {} to {} cannot be freed, as they are free already", clusters.start, clusters.end - 1)]
    FreedTwice {
        /// The clusters, as offsets in their group.
        clusters: Range<u32>,
    },
    /// A block that was freed as metadata while another operation changed it: two structures use
    /// it.
    #[error("freed as metadata of one structure while another one was changed in it")]
    FreedInUse,
    /// Blocks to be freed that are outside of the file system.
    #[error("{clusters} clusters cannot be freed, as not all are inside the file system")]
    FreedOutside {
        /// The number of clusters.
        clusters: u64,
    },
}
