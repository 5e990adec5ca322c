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

use zerocopy::FromBytes;

use super::write::{NewEntry, header_mut, set_rec_len};
use super::{
    DirFormat, DirentError, Entry, EntryType, HEADER_BYTES, MIN_REC_LEN, RawDirentHeader,
    decode_rec_len,
};
use crate::types::InodeNr;

/// A place for an entry, good until a record of the block changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The record that has the room.
    at: usize,
}

impl DirFormat {
    /// The first room of `needed_bytes` (see [`DirFormat::needed_bytes`]) in a block that was
    /// checked: of a record that has none only the header is looked at, since who adds a name to a
    /// full block comes by hundreds of them. `None`: the block is too full.
    ///
    /// # Errors
    /// If a record is broken, which cannot be in a checked block.
    pub fn room(&self, block: &[u8], needed_bytes: usize) -> Result<Option<Room>, DirentError> {
        let mut at = 0;
        while at < block.len() && !self.is_tail(block, at) {
            let Some((header, rec_len)) = skimmed(block, at) else {
                return self.record(block, at).map(|_| None);
            };
            // A hash behind the name takes more than this.
            let used = match header.inode.get() {
                0 => 0,
                _ => HEADER_BYTES + usize::from(header.name_len),
            };
            if rec_len >= used + needed_bytes {
                let entry = self.record(block, at)?;
                if entry.rec_len - self.used_bytes(&entry) >= needed_bytes {
                    return Ok(Some(Room { at }));
                }
            }
            at += rec_len;
        }
        Ok(None)
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
        match self.room(block, self.needed_bytes(new.name()))? {
            Some(room) => self.insert_into(block, room, new).map(Some),
            None => Ok(None),
        }
    }

    /// Puts an entry where [`DirFormat::room`] found room for it, and says where it begins.
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
        let (mut before, mut from) = (None, 0);
        while from < at.min(block.len()) {
            let Some((_, rec_len)) = skimmed(block, from) else {
                self.record(block, from)?;
                return Err(DirentError::NoEntry { at });
            };
            before = Some((from, rec_len));
            from += rec_len;
        }
        if from != at || at >= block.len() {
            return Err(DirentError::NoEntry { at });
        }
        let entry = self.record(block, at)?;
        let rec_len = entry.rec_len;
        if entry.inode.0 == 0 {
            return Err(DirentError::NoEntry { at });
        }
        if let Some(record) = block.get_mut(at..at + rec_len) {
            record.fill(0);
        }
        match before {
            Some((before, its_len)) => set_rec_len(block, before, its_len + rec_len),
            None => set_rec_len(block, at, rec_len),
        }
        Ok(())
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

/// The header and the length of the record at byte `at`, as far as they take a search further;
/// `None` if they do not.
fn skimmed(block: &[u8], at: usize) -> Option<(&RawDirentHeader, usize)> {
    let rest = block.get(at..)?;
    let (header, _) = RawDirentHeader::ref_from_prefix(rest).ok()?;
    let rec_len = decode_rec_len(header.rec_len.get(), block.len());
    let goes_on = (MIN_REC_LEN..=rest.len()).contains(&rec_len);
    goes_on.then_some((header, rec_len))
}

#[cfg(test)]
mod tests;
