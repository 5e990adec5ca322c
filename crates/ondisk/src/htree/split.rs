//! **Purpose.** Splitting a full leaf: dividing its entries between it and a new leaf.
//!
//! **Model.** The entries in order of their hashes are divided in two; those with the higher hashes
//! move. The higher part takes entries from the top as long as the middle of the last one is in the
//! upper half of all used bytes. So neither part has more than half of them plus half an entry, and
//! any name fits into either.
//!
//! ```text
//! bytes for entries   1 KiB block with checksums, the smallest: 1012
//! a part at most      1012 / 2 + 272 / 2 = 642       a name at most: 272 <= 1012 - 642
//! ```
//!
//! Names with equal hashes may end up on both sides; then the low bit of the new leaf's hash means
//! that names with that hash begin in the old one.
//!
//! **Invariants.** Both parts hold at least one entry; both pass [`DirFormat::check_block`] once
//! sealed. The result depends on the leaf only.
//!
//! **References.** Linux, `fs/ext4/namei.c`, which splits at half of the block instead of half of
//! the used bytes: the same in a leaf without gaps.

use crate::dirent::write::LeafWriter;
use crate::dirent::{DirFormat, DirentError, Entry};

/// An entry of the leaf to be split.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    hash: u32,
    at: usize,
    bytes: usize,
}

/// The plan of a split. One value can be reused for any number of leaves, with the same memory.
#[derive(Debug, Default)]
pub struct LeafSplit {
    /// The entries: first those that stay, then those that move.
    map: Vec<Mapped>,
    stay: usize,
    hash: u32,
}

impl LeafSplit {
    /// Plans the split of a leaf, given the hash of each entry. Returns `false` if it has at most
    /// one entry, and so has space for any other.
    ///
    /// # Errors
    /// If a record is corrupt, which is impossible in a checked block.
    pub fn plan(
        &mut self,
        format: &DirFormat,
        leaf: &[u8],
        mut hash_of: impl FnMut(&Entry<'_>) -> u32,
    ) -> Result<bool, DirentError> {
        self.map.clear();
        for entry in format.entries(leaf) {
            let entry = entry?;
            self.map.push(Mapped {
                hash: hash_of(&entry) & !1,
                at: entry.at,
                bytes: format.used(leaf, &entry).len(),
            });
        }
        self.map
            .sort_unstable_by_key(|entry| (entry.hash, entry.at));
        let total: usize = self.map.iter().map(|entry| entry.bytes).sum();
        let mut moved = 0;
        let in_upper_half = |entry: &&Mapped| {
            let fits = moved + entry.bytes / 2 <= total / 2;
            moved += entry.bytes;
            fits
        };
        let move_count = self.map.iter().rev().take_while(in_upper_half).count();
        self.stay = self.map.len() - move_count;
        let (stay, go) = self.map.split_at(self.stay);
        let (Some(last), Some(first)) = (stay.last(), go.first()) else {
            return Ok(false);
        };
        self.hash = first.hash | u32::from(first.hash == last.hash);
        Ok(true)
    }

    /// The hash of the new leaf, as in its index entry.
    #[must_use]
    pub fn hash(&self) -> u32 {
        self.hash
    }

    /// Whether a name with `hash` goes to the new leaf.
    #[must_use]
    pub fn moves(&self, hash: u32) -> bool {
        hash & !1 >= self.hash & !1
    }

    /// Splits the leaf that the plan was made for, which must not have changed since.
    pub fn apply(&mut self, format: &DirFormat, old: &mut [u8], new: &mut [u8]) {
        let (stay, go) = self.map.split_at_mut(self.stay);
        let mut writer = LeafWriter::new(format, new);
        for entry in go {
            let record = old.get(entry.at..entry.at + entry.bytes).unwrap_or(&[]);
            let fits = writer.append_copy(record);
            debug_assert!(fits, "a part is shorter than the whole");
        }
        writer.finish();
        // In the order of offsets, so that no record is overwritten before it was moved.
        stay.sort_unstable_by_key(|entry| entry.at);
        let mut writer = LeafWriter::new(format, old);
        for entry in stay {
            writer.pull(entry.at, entry.bytes);
        }
        writer.finish();
    }
}
