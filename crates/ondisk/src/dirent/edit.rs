//! **Purpose.** Changing one entry of a block.
//!
//! **Not here.** Checksums, which are sealed once per commit; the choice of the block to change;
//! the check of names.
//!
//! **Model.** An entry is inserted into the first record with enough free space: a free record, or
//! the part of a used one that its own name does not need, which becomes a record of its own. A
//! removed entry is joined to the record before it; at the start of a block it becomes a free
//! record. Its bytes are zeroed, so that no name of a deleted file stays on disk.
//!
//! ```text
//! insert   | a      (free)    |   ->   | a | new  (free) |
//! remove   | a | b       | c  |   ->   | a   (zeros)  | c |
//! ```
//!
//! **Invariants.** A block that passed [`DirFormat::check_block`] before a change passes it
//! afterwards, once sealed. An error leaves the block unchanged.
//!
//! **References.** Linux, `fs/ext4/namei.c`: the same records are chosen, so that a directory
//! grows the same way under both.

use std::ops::Range;

use super::write::{NewEntry, header_mut, raw_rec_len};
use super::{DirFormat, DirentError, Entry, EntryType, HEADER_BYTES, MIN_REC_LEN, Skimmed};
use crate::types::InodeNr;

/// Free space for an entry; valid until a record of the block changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The offset of the record with the free space.
    at: usize,
    /// Its length in bytes.
    rec_len: usize,
    /// The bytes that its own entry needs.
    used: usize,
    /// The bytes that the new entry needs.
    needed: usize,
    block_bytes: usize,
}

impl Room {
    /// The bytes of the block that change when the entry is inserted.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.used + self.needed
    }
}

/// The result of a search for a name that is to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vacancy {
    /// The name exists already.
    Taken,
    /// It does not exist, and there is space for it.
    Room(Room),
    /// It does not exist, and there is no space for it.
    Full,
}

/// An entry that can be removed; valid until a record of the block changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The inode of the entry.
    pub inode: InodeNr,
    /// The offset of the record that its bytes are joined to: the one before it, or itself.
    from: usize,
    at: usize,
    end: usize,
    block_bytes: usize,
}

impl Removal {
    /// The bytes of the block that change.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.from..self.end
    }

    /// Removes the entry from `part`, the bytes of the block in [`Removal::range`].
    ///
    /// # Errors
    /// If it is shorter.
    pub fn apply(&self, part: &mut [u8]) -> Result<(), DirentError> {
        let (found, expected) = (part.len(), self.end - self.from);
        let Some(record) = part.get_mut(self.at - self.from..expected) else {
            let at = self.from;
            return Err(DirentError::NoRoom {
                at,
                found,
                expected,
            });
        };
        record.fill(0);
        set_raw_rec_len(part, raw_rec_len(expected, self.block_bytes));
        Ok(())
    }
}

impl DirFormat {
    /// The first free space of `needed_bytes` (see [`DirFormat::needed_bytes`]) in a checked block;
    /// `None` if there is none.
    ///
    /// # Errors
    /// If a record is corrupt, which is impossible in a checked block.
    pub fn room(&self, block: &[u8], needed_bytes: usize) -> Result<Option<Room>, DirentError> {
        let found = self.skim(block, |record| match record.may_have(needed_bytes) {
            true => self.room_at(block, record.at, needed_bytes).transpose(),
            false => None,
        });
        found?.transpose()
    }

    /// Searches a checked block for exactly this name and for the first free space for it.
    ///
    /// # Errors
    /// If a record is corrupt, which is impossible in a checked block.
    pub fn vacancy(&self, block: &[u8], name: &[u8]) -> Result<Vacancy, DirentError> {
        let needed_bytes = self.needed_bytes(name);
        let mut room = None;
        let is_taken = self.skim(block, |record| {
            if room.is_none() && record.may_have(needed_bytes) {
                room = self.room_at(block, record.at, needed_bytes).transpose();
            }
            record.is(name).then_some(())
        });
        Ok(match (is_taken?, room.transpose()?) {
            (Some(()), _) => Vacancy::Taken,
            (None, Some(room)) => Vacancy::Room(room),
            (None, None) => Vacancy::Full,
        })
    }

    /// The free space in the record at offset `at`, if it is enough.
    fn room_at(
        &self,
        block: &[u8],
        at: usize,
        needed_bytes: usize,
    ) -> Result<Option<Room>, DirentError> {
        if self.is_tail(block, at) {
            return Ok(None);
        }
        let entry = self.record(block, at)?;
        let used = self.used_bytes(&entry);
        let has_capacity = entry.rec_len - used >= needed_bytes;
        Ok(has_capacity.then_some(Room {
            at,
            rec_len: entry.rec_len,
            used,
            needed: needed_bytes,
            block_bytes: block.len(),
        }))
    }

    /// Inserts an entry into the first record with space for it, and returns its offset; `None`
    /// without a change if there is none. The caller makes sure that the name does not exist yet,
    /// and that the block is not an index block.
    ///
    /// # Errors
    /// If a record is corrupt, which is impossible in a checked block.
    pub fn insert(
        &self,
        block: &mut [u8],
        new: &NewEntry<'_>,
    ) -> Result<Option<usize>, DirentError> {
        match self.room(block, self.needed_bytes(new.name()))? {
            Some(room) => self.insert_into(block, room, new).map(Some),
            None => Ok(None),
        }
    }

    /// Inserts an entry into the space that was found for it, and returns its offset.
    ///
    /// # Errors
    /// If it needs more space.
    pub fn insert_into(
        &self,
        block: &mut [u8],
        room: Room,
        new: &NewEntry<'_>,
    ) -> Result<usize, DirentError> {
        let part = block.get_mut(room.range()).unwrap_or_default();
        self.insert_into_part(part, room, new)?;
        Ok(room.at + room.used)
    }

    /// As [`DirFormat::insert_into`], for callers that have only `part`, the bytes of the block in
    /// [`Room::range`].
    ///
    /// # Errors
    /// If the entry needs more space, or `part` is shorter.
    pub fn insert_into_part(
        &self,
        part: &mut [u8],
        room: Room,
        new: &NewEntry<'_>,
    ) -> Result<(), DirentError> {
        let found = part.len().saturating_sub(room.used).min(room.needed);
        let expected = self.needed_bytes(new.name());
        if found < expected {
            return Err(DirentError::NoRoom {
                at: room.at + room.used,
                found,
                expected,
            });
        }
        if room.used > 0 {
            set_raw_rec_len(part, raw_rec_len(room.used, room.block_bytes));
        }
        let rec_len = raw_rec_len(room.rec_len - room.used, room.block_bytes);
        self.put_entry(part, room.used, rec_len, new);
        Ok(())
    }

    /// The removal of the entry with exactly this name from a checked block; `None` if there is no
    /// such entry.
    ///
    /// # Errors
    /// If a record is corrupt, which is impossible in a checked block.
    pub fn removal(&self, block: &[u8], name: &[u8]) -> Result<Option<Removal>, DirentError> {
        self.removal_of(block, |record| record.is(name))
    }

    /// Removes the entry at offset `at`, and returns what was removed.
    ///
    /// # Errors
    /// If there is none; if a record is corrupt, which is impossible in a checked block.
    pub fn remove(&self, block: &mut [u8], at: usize) -> Result<Removal, DirentError> {
        let removal = self.removal_of(block, |record| record.at == at)?;
        let removal = removal.ok_or(DirentError::NoEntry { at })?;
        removal.apply(block.get_mut(removal.range()).unwrap_or_default())?;
        Ok(removal)
    }

    /// The largest free space of a checked block that one entry could take, in bytes.
    ///
    /// # Errors
    /// If a record is corrupt, which is impossible in a checked block.
    pub fn largest_room_bytes(&self, block: &[u8]) -> Result<usize, DirentError> {
        let mut largest = 0;
        let mut at = 0;
        while at < block.len() && !self.is_tail(block, at) {
            let entry = self.record(block, at)?;
            largest = largest.max(entry.rec_len.saturating_sub(self.used_bytes(&entry)));
            at += entry.rec_len;
        }
        Ok(largest)
    }

    fn removal_of(
        &self,
        block: &[u8],
        is_it: impl Fn(&Skimmed<'_>) -> bool,
    ) -> Result<Option<Removal>, DirentError> {
        let mut from = 0;
        self.skim(block, |record| {
            if is_it(record) && record.header.inode.get() != 0 {
                return Some(Removal {
                    inode: InodeNr(record.header.inode.get()),
                    from,
                    at: record.at,
                    end: record.at + record.rec_len,
                    block_bytes: block.len(),
                });
            }
            from = record.at;
            None
        })
    }

    /// Changes the inode of the entry at offset `at`, and returns the previous one: a rename
    /// replaces its target this way, so that the name exists at every moment.
    ///
    /// # Errors
    /// If there is none.
    pub fn redirect(
        &self,
        block: &mut [u8],
        at: usize,
        inode: InodeNr,
        kind: EntryType,
    ) -> Result<InodeNr, DirentError> {
        let before = self.record(block, at)?.inode;
        if before.0 == 0 {
            return Err(DirentError::NoEntry { at });
        }
        let file_type = self.type_byte_of(kind);
        if let Some(header) = header_mut(block, at) {
            header.inode = inode.0.into();
            header.file_type = file_type;
        }
        Ok(before)
    }

    /// Changes the inode of `..` in the first block of a directory, hashed or not.
    ///
    /// # Errors
    /// If `.` or `..` is missing.
    pub fn set_parent(&self, block: &mut [u8], parent: InodeNr) -> Result<(), DirentError> {
        self.dots(block)?;
        let at = self.record(block, 0)?.rec_len;
        self.redirect(block, at, parent, EntryType::Directory)
            .map(drop)
    }

    /// Whether a block holds an entry other than `.` and `..`. Index blocks hold none.
    ///
    /// # Errors
    /// If a record before it is corrupt, which is impossible in a checked block.
    pub fn has_names(&self, block: &[u8]) -> Result<bool, DirentError> {
        self.entries(block)
            .find(|entry| !matches!(entry, Ok(entry) if entry.is_dots()))
            .transpose()
            .map(|found| found.is_some())
    }

    /// Bytes of a record that its name needs: none in a free one.
    fn used_bytes(&self, entry: &Entry<'_>) -> usize {
        match entry.inode.0 {
            0 => 0,
            _ => self.needed_bytes(entry.name).max(MIN_REC_LEN),
        }
    }

    /// The bytes of a used record without the free space after them.
    pub(crate) fn used<'a>(&self, block: &'a [u8], entry: &Entry<'_>) -> &'a [u8] {
        let end = entry.at + self.used_bytes(entry).max(HEADER_BYTES);
        block.get(entry.at..end).unwrap_or(&[])
    }
}

/// Sets the length of the record at the start of a part of a block.
fn set_raw_rec_len(part: &mut [u8], raw: u16) {
    if let Some(header) = header_mut(part, 0) {
        header.rec_len = raw.into();
    }
}

#[cfg(test)]
mod tests;
