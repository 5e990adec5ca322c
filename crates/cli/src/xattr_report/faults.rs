//! **Purpose.** What is wrong with the attributes of an image: each fault is counted, the first of
//! each kind are printed, and none is believed.

use std::collections::BTreeMap;
use std::fmt;

use fourscore::{InodeNr, PhysBlock};
use fourscore_ondisk::GroupNr;

use crate::failure::{Failure, Result, message};
use crate::image::Image;

/// Faults of a kind that are printed; all are counted.
const PRINTED_OF_A_KIND: u64 = 10;

/// The object in which a fault was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Group(GroupNr),
    Inode(InodeNr),
    Block { block: PhysBlock, inode: InodeNr },
    Value(InodeNr),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(group) => write!(f, "group {}", group.0),
            Self::Inode(inode) => write!(f, "inode {}", inode.0),
            Self::Block { block, inode } => {
                write!(f, "attribute block {} of inode {}", block.0, inode.0)
            }
            Self::Value(inode) => write!(f, "value inode {}", inode.0),
        }
    }
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A group descriptor, a bitmap or a part of an inode table that cannot be read.
    Group,
    /// An inode that is not valid.
    Inode,
    /// Attributes inside an inode that are not valid.
    InInode,
    /// An attribute block outside of the file system.
    BlockPlace,
    /// An attribute block that cannot be read or is not valid.
    Block,
    /// Values that overlap.
    Overlap,
    /// A reference count that is not the number of users.
    Refcount,
    /// A hash of an entry that is not that of its name and value.
    EntryHash,
    /// A hash of a block that is not that of its entries.
    BlockHash,
    /// A value that is in no valid inode.
    ValueInode,
    /// A hash of a value that is not that of its bytes.
    ValueHash,
    /// A reference count of a value that is not the number of entries.
    ValueUsers,
}

impl Kind {
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Inode => "inode",
            Self::InInode => "in-inode",
            Self::BlockPlace => "block-place",
            Self::Block => "block",
            Self::Overlap => "overlap",
            Self::Refcount => "refcount",
            Self::EntryHash => "entry-hash",
            Self::BlockHash => "block-hash",
            Self::ValueInode => "value-inode",
            Self::ValueHash => "value-hash",
            Self::ValueUsers => "value-users",
        }
    }
}

/// The faults of an image.
#[derive(Debug, Default)]
pub(super) struct Faults {
    counts: BTreeMap<Kind, u64>,
}

impl Faults {
    pub(super) fn report(
        &mut self,
        image: &Image,
        kind: Kind,
        place: Place,
        why: impl fmt::Display,
    ) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= PRINTED_OF_A_KIND {
            let failure = image.failure(place.to_string().as_bytes(), why);
            message(&format!("{failure} [{}]", kind.code()));
        }
    }

    pub(super) fn counts(&self) -> &BTreeMap<Kind, u64> {
        &self.counts
    }

    /// Reports how many were not printed; an error if there was a fault.
    pub(super) fn result(&self, image: &Image) -> Result<()> {
        for (kind, count) in &self.counts {
            let left = count.saturating_sub(PRINTED_OF_A_KIND);
            if left > 0 {
                let why = format_args!("... and {left} more [{}]", kind.code());
                message(&image.problem(why).to_string());
            }
        }
        if self.counts.is_empty() {
            Ok(())
        } else {
            Err(Failure::AlreadyReported)
        }
    }
}
