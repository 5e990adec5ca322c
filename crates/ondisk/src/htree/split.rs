//! **Purpose.** Dividing the entries of a full leaf between it and a new one.
//!
//! **Model.** The entries in order of their hashes are cut in two; those with the higher hashes
//! move. The higher part takes entries from the top for as long as the middle of the last one
//! lies in the upper half of all bytes in use. So neither part has more than half of them and half
//! an entry, and any name fits into either.
//!
//! ```text
//! room for bytes      1 KiB block with checksums, the smallest: 1012
//! a part at most      1012 / 2 + 272 / 2 = 642       a name at most: 272 <= 1012 - 642
//! ```
//!
//! Names with equal hashes may end up on both sides; the low bit of the new leaf's hash then says
//! that names with that hash begin in the old one.
//!
//! **Invariants.** Both parts hold at least one entry; both pass [`DirFormat::check_block`] once
//! sealed. The same leaf is always divided the same way.
//!
//! **References.** Linux, `fs/ext4/namei.c`, which cuts at half of the block instead of half of
//! what is used: the same in a leaf without gaps.

use crate::dirent::write::LeafWriter;
use crate::dirent::{DirFormat, DirentError, Entry};

/// An entry of the leaf to be divided.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    hash: u32,
    at: usize,
    bytes: usize,
}

/// How to divide a leaf. One value serves any number of leaves, one after the other, with the same
/// memory.
#[derive(Debug, Default)]
pub struct LeafSplit {
    /// The entries: those that stay, then those that move.
    map: Vec<Mapped>,
    stay: usize,
    hash: u32,
}

impl LeafSplit {
    /// Finds out how to divide a leaf, given the hash of each entry; `false` if it has only one
    /// entry or none, which then has room for any other.
    ///
    /// # Errors
    /// If a record is broken, which cannot be in a checked block.
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

    /// The hash that leads to the new leaf, as it stands in the index.
    #[must_use]
    pub fn hash(&self) -> u32 {
        self.hash
    }

    /// Whether a name with `hash` goes to the new leaf.
    #[must_use]
    pub fn moves(&self, hash: u32) -> bool {
        hash & !1 >= self.hash & !1
    }

    /// Divides the leaf that the plan was made for, which must not have changed since.
    pub fn carry_out(&mut self, format: &DirFormat, old: &mut [u8], new: &mut [u8]) {
        let (stay, go) = self.map.split_at_mut(self.stay);
        let mut writer = LeafWriter::new(format, new);
        for entry in go {
            let record = old.get(entry.at..entry.at + entry.bytes).unwrap_or(&[]);
            let fits = writer.append_copy(record);
            debug_assert!(fits, "a part is shorter than the whole");
        }
        writer.finish();
        // In the order of places, so that no record is overwritten before it was pulled up.
        stay.sort_unstable_by_key(|entry| entry.at);
        let mut writer = LeafWriter::new(format, old);
        for entry in stay {
            writer.pull(entry.at, entry.bytes);
        }
        writer.finish();
    }
}
