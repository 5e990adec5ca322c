//! **Purpose.** What the fast commits of a transaction leave out, and the free space of directories
//! that decides it for names.

use std::collections::{HashMap, HashSet};

use fourscore_cache::Seed;
use fourscore_ondisk::InodeNr;

use crate::txn::fast_commit::note::{Room, Space};

/// What the fast commits of a transaction leave out.
#[derive(Debug, Default)]
pub(crate) struct Taints {
    pub(crate) inodes: HashSet<InodeNr, Seed>,
    pub(crate) names: HashMap<InodeNr, HashSet<Box<[u8]>, Seed>, Seed>,
    pub(crate) spaces: HashMap<(InodeNr, Space), FreeSpace, Seed>,
}

impl Taints {
    /// Forgets everything, for a new transaction.
    pub(crate) fn clear(&mut self) {
        self.inodes.clear();
        self.names.clear();
        self.spaces.clear();
    }

    /// Whether only a full commit makes the changes of inode `nr` durable: its own, and those of
    /// names in it.
    pub(crate) fn include(&self, nr: InodeNr) -> bool {
        self.inodes.contains(&nr) || self.names.contains_key(&nr)
    }

    /// Whether nothing is tainted.
    pub(crate) fn are_none(&self) -> bool {
        self.inodes.is_empty() && self.names.is_empty()
    }

    pub(crate) fn has_name(&self, dir: InodeNr, name: &[u8]) -> bool {
        self.names
            .get(&dir)
            .is_some_and(|names| names.contains(name))
    }
}

/// The free space of blocks of a directory, in one transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FreeSpace {
    /// A lower bound of the largest free space at the last full commit, in bytes.
    largest: u32,
    pub(crate) freed: u32,
    added: u32,
}

impl FreeSpace {
    /// Notes that a name was added. Returns whether it has space when its record is replayed.
    pub(crate) fn add(&mut self, room: Room) -> bool {
        self.largest = self.largest.max(room.gap.saturating_sub(self.freed));
        self.added = self.added.saturating_add(room.needed);
        self.added <= self.largest
    }
}
