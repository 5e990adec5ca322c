//! **Purpose.** The error type for corrupt disk content, with its location.
//!
//! Each parser has an error enum of its own with one variant for each check. This module joins them
//! in [`CorruptKind`] and adds the location (inode, group, block), which a parser does not know, as
//! it gets only bytes.

use std::fmt;

use crate::acl::AclError;
use crate::blockmap::BlockMapError;
use crate::crypt::CryptError;
use crate::dirent::DirentError;
use crate::extent::ExtentError;
use crate::group::GroupDescError;
use crate::htree::HtreeError;
use crate::inline::InlineError;
use crate::inode::InodeError;
use crate::jbd2::JournalError;
use crate::mmp::MmpError;
use crate::orphan::OrphanError;
use crate::relation::RelationError;
use crate::superblock::SuperblockError;
use crate::types::{GroupNr, InodeNr, PhysBlock};
use crate::verity::VerityError;
use crate::xattr::XattrError;

/// Disk content that violates the format, with its location as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt {
    kind: Box<CorruptKind>,
    place: Place,
}

/// The location of corrupt content; parts that do not apply are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The inode the bytes belong to.
    pub inode: Option<InodeNr>,
    /// The block group the bytes belong to.
    pub group: Option<GroupNr>,
    /// The block that holds the bytes.
    pub block: Option<PhysBlock>,
}

/// The kind of corruption: one variant for each parser, which holds one variant for each check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptKind {
    /// The superblock.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// A group descriptor, or a bitmap it has the checksum of.
    #[error(transparent)]
    GroupDesc(#[from] GroupDescError),
    /// An inode.
    #[error(transparent)]
    Inode(#[from] InodeError),
    /// Two structures that contradict each other.
    #[error(transparent)]
    Relation(#[from] RelationError),
    /// In the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A node of an extent tree.
    #[error(transparent)]
    Extent(#[from] ExtentError),
    /// A block of pointers of a file without extents.
    #[error(transparent)]
    BlockMap(#[from] BlockMapError),
    /// A directory block.
    #[error(transparent)]
    Dirent(#[from] DirentError),
    /// An index block of a hashed directory.
    #[error(transparent)]
    Htree(#[from] HtreeError),
    /// Extended attributes.
    #[error(transparent)]
    Xattr(#[from] XattrError),
    /// An access control list.
    #[error(transparent)]
    Acl(#[from] AclError),
    /// Content stored in an inode.
    #[error(transparent)]
    Inline(#[from] InlineError),
    /// Something encrypted.
    #[error(transparent)]
    Crypt(#[from] CryptError),
    /// The metadata of a verity file.
    #[error(transparent)]
    Verity(#[from] VerityError),
    /// A block of the orphan file.
    #[error(transparent)]
    Orphan(#[from] OrphanError),
    /// The MMP block.
    #[error(transparent)]
    Mmp(#[from] MmpError),
}

impl Corrupt {
    /// The kind of corruption.
    #[must_use]
    pub fn kind(&self) -> &CorruptKind {
        &self.kind
    }

    /// The location.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Adds the inode, unless a deeper layer knew it already.
    #[must_use]
    pub fn in_inode(mut self, inode: InodeNr) -> Self {
        self.place.inode.get_or_insert(inode);
        self
    }

    /// Adds the group, unless a deeper layer knew it already.
    #[must_use]
    pub fn in_group(mut self, group: GroupNr) -> Self {
        self.place.group.get_or_insert(group);
        self
    }

    /// Adds the block, unless a deeper layer knew it already.
    #[must_use]
    pub fn in_block(mut self, block: PhysBlock) -> Self {
        self.place.block.get_or_insert(block);
        self
    }
}

impl<K: Into<CorruptKind>> From<K> for Corrupt {
    fn from(kind: K) -> Self {
        Self {
            kind: Box::new(kind.into()),
            place: Place::default(),
        }
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place {
            inode,
            group,
            block,
        } = self.place;
        if let Some(inode) = inode {
            write!(f, "inode {inode}: ")?;
        }
        if let Some(group) = group {
            write!(f, "group {group}: ")?;
        }
        if let Some(block) = block {
            write!(f, "block {block}: ")?;
        }
        self.kind.fmt(f)
    }
}

impl std::error::Error for Corrupt {}
