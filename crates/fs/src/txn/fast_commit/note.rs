//! **Purpose.** Notes: what a plan changes, in the terms of fast-commit records.
//!
//! **Model.** While an operation is planned, names and maps note their changes in the plan's
//! memory. When the plan is applied, the slots of its inodes are added. All notes of a plan are one
//! *unit*: it is in a fast commit as a whole or not at all.
//!
//! **Invariants.** A change that no record can express is noted as a [`Note::Taint`]. What a plan
//! changes without a note is tainted when the slots are added ([`super::slots`]).

use std::ops::Range;

use fourscore_ondisk::extent::Extent;
use fourscore_ondisk::{InodeNr, PhysBlock};

use crate::txn::fast_commit::reason::Reason;

/// The blocks of a directory among which replay chooses one for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    /// Any block: the directory has no index.
    All,
    /// The leaf that the hash of the name maps to.
    Leaf(PhysBlock),
}

/// The space that a new name takes in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) space: Space,
    /// The largest free space of the block before the name was added, in bytes.
    pub(crate) gap: u32,
    /// The space that the name takes, in bytes.
    pub(crate) needed: u32,
}

/// A change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// The inode is as in these bytes.
    Image {
        nr: InodeNr,
        life: Life,
        bytes: Piece,
    },
    /// Blocks of a file are mapped like this. What was mapped there before, if anything, were the
    /// same physical blocks.
    Range { nr: InodeNr, extent: Extent },
    /// A name of the inode was added.
    Added {
        dir: InodeNr,
        nr: InodeNr,
        name: Piece,
        room: Room,
    },
    /// A name of the inode was removed, which left a free space of at most `freed` bytes.
    Removed {
        dir: InodeNr,
        nr: InodeNr,
        name: Piece,
        space: Space,
        freed: u32,
    },
    /// The inode was changed in a way that no record expresses.
    Taint { nr: InodeNr, why: Reason },
    /// No record expresses what the whole unit does.
    TaintAll { why: Reason },
}

/// Whether a unit makes an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    New,
    Existing,
}

/// Bytes of a note, relative to the start of the bytes of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) at: u32,
    pub(crate) len: u16,
}

/// The notes of a plan.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) all: Vec<Note>,
    pub(crate) bytes: Vec<u8>,
}

impl Notes {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.bytes.clear();
    }

    pub(crate) fn push(&mut self, note: Note) {
        self.all.push(note);
    }

    /// Keeps `bytes`, which are a name or an inode.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Piece {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Piece {
            // A plan notes a few names and inodes.
            at: u32::try_from(at).unwrap_or(u32::MAX),
            len: u16::try_from(bytes.len()).unwrap_or(u16::MAX),
        }
    }

    /// Whether blocks of the inode were mapped.
    pub(crate) fn has_range_of(&self, inode: InodeNr) -> bool {
        let is_range = |note: &Note| matches!(note, Note::Range { nr, .. } if *nr == inode);
        self.all.iter().any(is_range)
    }

    /// Whether names in the directory were added or removed.
    pub(crate) fn has_name_in(&self, directory: InodeNr) -> bool {
        let is_name = |note: &Note| match note {
            Note::Added { dir, .. } | Note::Removed { dir, .. } => *dir == directory,
            _ => false,
        };
        self.all.iter().any(is_name)
    }
}

/// Returns the inodes that a unit with these notes makes.
pub(crate) fn new_inodes(notes: &[Note]) -> impl Iterator<Item = InodeNr> {
    notes.iter().filter_map(|note| match *note {
        Note::Image {
            nr,
            life: Life::New,
            ..
        } => Some(nr),
        _ => None,
    })
}

/// The place of a unit in a list.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) clock: u64,
    pub(crate) notes: Range<usize>,
    pub(crate) bytes: Range<usize>,
}
