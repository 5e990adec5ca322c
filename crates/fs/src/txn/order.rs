//! **Purpose.** The order of the locks of the write path, which debug builds assert.
//!
//! **Model.** A thread takes locks in ascending order of their levels, and locks of the same level
//! in ascending order of their numbers. Inodes are ordered by their inode numbers, and locks of
//! attributes by their places in their table ([`crate::txn::striped`]); of every other level a
//! thread holds one lock at a time. Handles come after all of them (`fourscore_journal`), so a
//! thread with an open handle takes none. After handles come buffers (`fourscore_block`) and, last,
//! groups (`fourscore_mballoc`), which are held one at a time.

use fourscore_sync::rank::Rank;

/// All ranks, in the order in which locks are taken.
pub(crate) const ALL: [Rank; 12] = [
    RENAMES,
    DIRECTORY,
    FILE,
    LEAF,
    VALUES,
    XATTR_BLOCK,
    VALUE,
    ORPHAN_CHAIN,
    INODE_GROUP,
    QUOTA_FILE,
    fourscore_block::BUFFER,
    fourscore_mballoc::GROUP,
];

/// The lock of directory renames.
pub(crate) const RENAMES: Rank = Rank::new(10, "the lock of renames");
/// A directory.
pub(crate) const DIRECTORY: Rank = Rank::new(20, "directory");
/// Any other inode.
pub(crate) const FILE: Rank = Rank::new(30, "inode");
/// A leaf of a directory.
pub(crate) const LEAF: Rank = Rank::new(40, "leaf of a directory");
/// The count of users of an inode that holds the value of attributes.
pub(crate) const VALUES: Rank = Rank::new(48, "users of an attribute's value");
/// A block of attributes.
pub(crate) const XATTR_BLOCK: Rank = Rank::new(50, "block of attributes");
/// An inode that holds the value of an attribute.
pub(crate) const VALUE: Rank = Rank::new(55, "value of an attribute");
/// The chain of orphans.
pub(crate) const ORPHAN_CHAIN: Rank = Rank::new(60, "the chain of orphans");
/// The inodes of a group.
pub(crate) const INODE_GROUP: Rank = Rank::new(70, "inodes of a group");
/// The thread that adds an entry to a quota file.
pub(crate) const QUOTA_FILE: Rank = Rank::new(75, "quota file");
