//! **Purpose.** Changing one entry of a block.
//!
//! **Not here.** Checksums, which are sealed once per commit; which block of a directory to
//! change; whether a name is allowed.
//!
//! **Model.** An entry goes into the first record with enough room: a free one, or the part of a
//! used one that its own name does not need, which becomes a record of its own. A removed entry
//! is joined to the record in front of it; at the start of a block it becomes a free record. Its
//! bytes are wiped, so that no name survives its file.
//!
//! ```text
//! insert   | a      room      |   ->   | a | new    room |
//! remove   | a | b       | c  |   ->   | a   (zeros)  | c |
//! ```
//!
//! **Invariants.** What passed [`DirFormat::check_block`] before passes it after, once sealed. An
//! error leaves the block as it was.
//!
//! **References.** Linux, `fs/ext4/namei.c`: the same records are chosen, so that a directory
//! grows the same way under both.

use super::write::{NewEntry, header_mut, set_rec_len};
use super::{DirFormat, DirentError, Entry, EntryType, HEADER_BYTES, MIN_REC_LEN};
use crate::types::InodeNr;

/// A place for an entry, good until a record of the block changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The record that has the room.
    at: usize,
}

/// What one pass over a block tells who wants to add a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survey<'a> {
    /// The name is there already.
    Present(Entry<'a>),
    /// It is not, and could be put here; `None`: the block is too full.
    Absent(Option<Room>),
}

impl DirFormat {
    /// Looks for the entry that `is_it` recognises and, in the same pass, for the first room of
    /// `needed_bytes` (see [`DirFormat::needed_bytes`]).
    ///
    /// # Errors
    /// If a record is broken, which cannot be in a checked block.
    pub fn survey<'a>(
        &self,
        block: &'a [u8],
        needed_bytes: usize,
        mut is_it: impl FnMut(&Entry<'a>) -> bool,
    ) -> Result<Survey<'a>, DirentError> {
        let mut room = None;
        for record in self.records(block) {
            let entry = record?;
            if entry.inode.0 != 0 && is_it(&entry) {
                return Ok(Survey::Present(entry));
            }
            if room.is_none() && entry.rec_len - self.used_bytes(&entry) >= needed_bytes {
                room = Some(Room { at: entry.at });
            }
        }
        Ok(Survey::Absent(room))
    }

    /// Puts an entry into the first record with room for it, and says where it begins; `None`,
    /// and no change, if there is none. That the name is not there yet is for the caller to see
    /// to, as is that the block is no index block.
    ///
    /// # Errors
    /// If a record is broken, which cannot be in a checked block.
    pub fn insert(
        &self,
        block: &mut [u8],
        new: &NewEntry<'_>,
    ) -> Result<Option<usize>, DirentError> {
        match self.survey(block, self.needed_bytes(new.name()), |_| false)? {
            Survey::Absent(Some(room)) => self.insert_into(block, room, new).map(Some),
            Survey::Absent(None) | Survey::Present(_) => Ok(None),
        }
    }

    /// Puts an entry where [`DirFormat::survey`] found room for it, and says where it begins.
    ///
    /// # Errors
    /// If there is no room any more.
    pub fn insert_into(
        &self,
        block: &mut [u8],
        room: Room,
        new: &NewEntry<'_>,
    ) -> Result<usize, DirentError> {
        let host = self.record(block, room.at)?;
        let (used, rec_len) = (self.used_bytes(&host), host.rec_len);
        let (at, found) = (room.at + used, rec_len - used);
        let expected = self.needed_bytes(new.name());
        if found < expected {
            return Err(DirentError::NoRoom {
                at,
                found,
                expected,
            });
        }
        if used > 0 {
            set_rec_len(block, room.at, used);
        }
        self.put_entry(block, at, found, new);
        Ok(at)
    }

    /// Removes the entry that begins at byte `at`.
    ///
    /// # Errors
    /// If there is none; if a record in front of it is broken, which cannot be in a checked block.
    pub fn remove(&self, block: &mut [u8], at: usize) -> Result<(), DirentError> {
        let mut before: Option<(usize, usize)> = None;
        for record in self.records(block) {
            let entry = record?;
            let (inode, rec_len) = (entry.inode, entry.rec_len);
            if entry.at < at {
                before = Some((entry.at, rec_len));
                continue;
            }
            if entry.at > at || inode.0 == 0 {
                break;
            }
            if let Some(record) = block.get_mut(at..at + rec_len) {
                record.fill(0);
            }
            match before {
                Some((before, its_len)) => set_rec_len(block, before, its_len + rec_len),
                None => set_rec_len(block, at, rec_len),
            }
            return Ok(());
        }
        Err(DirentError::NoEntry { at })
    }

    /// Lets the entry that begins at byte `at` lead to another inode: the target of a rename is
    /// replaced this way, so that its name is there at every moment.
    ///
    /// # Errors
    /// If there is none.
    pub fn redirect(
        &self,
        block: &mut [u8],
        at: usize,
        inode: InodeNr,
        kind: EntryType,
    ) -> Result<(), DirentError> {
        if self.record(block, at)?.inode.0 == 0 {
            return Err(DirentError::NoEntry { at });
        }
        let file_type = self.type_byte_of(kind);
        if let Some(header) = header_mut(block, at) {
            header.inode = inode.0.into();
            header.file_type = file_type;
        }
        Ok(())
    }

    /// Lets `..` lead to another directory, in the first block of a directory, hashed or not.
    ///
    /// # Errors
    /// If `.` and `..` are not there.
    pub fn set_parent(&self, block: &mut [u8], parent: InodeNr) -> Result<(), DirentError> {
        self.dots(block)?;
        let at = self.record(block, 0)?.rec_len;
        self.redirect(block, at, parent, EntryType::Directory)
    }

    /// Whether a block holds an entry other than `.` and `..`. Index blocks hold none.
    ///
    /// # Errors
    /// If a record in front of it is broken, which cannot be in a checked block.
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

    /// The bytes of a record that is in use, without the room behind them.
    pub(crate) fn used<'a>(&self, block: &'a [u8], entry: &Entry<'_>) -> &'a [u8] {
        let end = entry.at + self.used_bytes(entry).max(HEADER_BYTES);
        block.get(entry.at..end).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests;
