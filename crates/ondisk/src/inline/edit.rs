//! **Purpose.** Changing a directory that is stored in its inode, and moving it out.
//!
//! **Not here.** Making the value of `system.data` longer (`xattr`), `i_size`.
//!
//! **Model.** An entry is inserted into the first part with space for it. If there is none, the
//! second part is grown as far as the inode has space, and its last record is extended; if that is
//! not enough, the entries move to a block.
//!
//! ```text
//! insert -> None -> value grows, grow_second -> insert -> None -> move_out -> a block
//! ```
//!
//! **Invariants.** As for blocks (`dirent`): a directory that passed [`InlineDir::check`] before a
//! change passes it afterwards, and an error changes nothing.
//!
//! **References.** Linux, `fs/ext4/inline.c`, which takes the same steps.

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{HEAD_BYTES, InlineDir, InlineError, PARENT_BYTES, part_format};
use crate::dirent::write::{LeafWriter, NewEntry, set_rec_len};
use crate::dirent::{DirFormat, DirentError, Dots, EntryType};
use crate::types::InodeNr;

/// A directory stored in an inode, to be changed. Positions are those of [`InlineDir`].
#[derive(Debug)]
pub struct InlineDirMut<'a> {
    parent: &'a mut U32,
    first: &'a mut [u8],
    second: &'a mut [u8],
    format: DirFormat,
}

impl<'a> InlineDirMut<'a> {
    /// From `i_block` and the value of `system.data`, both checked before.
    ///
    /// # Errors
    /// If `i_block` is too short.
    pub fn new(
        format: &DirFormat,
        i_block: &'a mut [u8],
        value: &'a mut [u8],
    ) -> Result<Self, InlineError> {
        let found = i_block.len();
        let (parent, first) = i_block
            .get_mut(..HEAD_BYTES)
            .and_then(|head| U32::mut_from_prefix(head).ok())
            .ok_or(InlineError::TooShort { found })?;
        Ok(Self {
            parent,
            first,
            second: value,
            format: part_format(format),
        })
    }

    /// Inserts an entry and returns its position; `None` if there is no space. The caller makes
    /// sure that the name does not exist yet.
    ///
    /// # Errors
    /// If a record is corrupt, which is impossible in a checked directory.
    pub fn insert(&mut self, new: &NewEntry<'_>) -> Result<Option<usize>, DirentError> {
        if let Some(at) = self.format.insert(self.first, new)? {
            return Ok(Some(at));
        }
        let at = self.format.insert(self.second, new)?;
        Ok(at.map(|at| at + InlineDir::SECOND_AT))
    }

    /// Removes the entry at a position.
    ///
    /// # Errors
    /// As [`DirFormat::remove`].
    pub fn remove(&mut self, at: usize) -> Result<(), DirentError> {
        let format = self.format;
        let (part, at) = self.part(at);
        format.remove(part, at).map(drop)
    }

    /// Changes the inode of the entry at a position.
    ///
    /// # Errors
    /// As [`DirFormat::redirect`].
    pub fn redirect(
        &mut self,
        at: usize,
        inode: InodeNr,
        kind: EntryType,
    ) -> Result<(), DirentError> {
        let format = self.format;
        let (part, at) = self.part(at);
        format.redirect(part, at, inode, kind).map(drop)
    }

    /// Sets the parent directory.
    pub fn set_parent(&mut self, parent: InodeNr) {
        self.parent.set(parent.0);
    }

    /// The part that contains a position, and the offset in it.
    fn part(&mut self, at: usize) -> (&mut [u8], usize) {
        match at.checked_sub(InlineDir::SECOND_AT) {
            None => (self.first, at),
            Some(at) => (self.second, at),
        }
    }
}

/// Makes the first part of a new directory, without entries. The second is the empty value.
///
/// # Errors
/// If `i_block` is too short.
pub fn init(i_block: &mut [u8], parent: InodeNr) -> Result<(), InlineError> {
    let found = i_block.len();
    let head = i_block
        .get_mut(..HEAD_BYTES)
        .ok_or(InlineError::TooShort { found })?;
    head.fill(0);
    let (place, records) = head.split_at_mut(PARENT_BYTES);
    place.copy_from_slice(&parent.0.to_le_bytes());
    set_rec_len(records, 0, records.len());
    Ok(())
}

/// Extends the records of the second part from the first `old_bytes` of `value` to all of it: the
/// last record is extended, or a free one made if there was none. Returns `false` without a change
/// if no record can be that long.
///
/// # Errors
/// If a record is corrupt, which is impossible in a checked directory.
pub fn grow_second(
    format: &DirFormat,
    value: &mut [u8],
    old_bytes: usize,
) -> Result<bool, DirentError> {
    let (bytes, format) = (value.len(), part_format(format));
    let shortest = format.needed_bytes(b"x");
    if bytes < shortest.max(old_bytes) || !bytes.is_multiple_of(4) {
        return Ok(false);
    }
    let mut last = 0;
    for record in format.records(value.get(..old_bytes).unwrap_or(&[])) {
        last = record?.at;
    }
    if let Some(grown) = value.get_mut(old_bytes..) {
        grown.fill(0);
    }
    set_rec_len(value, last, bytes - last);
    Ok(true)
}

impl<'a> InlineDir<'a> {
    /// Whether one of the parts has space for an entry of `needed_bytes`, see
    /// [`DirFormat::needed_bytes`].
    ///
    /// # Errors
    /// As [`DirFormat::room`].
    pub fn has_capacity(&self, needed_bytes: usize) -> Result<bool, DirentError> {
        for part in [self.first, self.second] {
            if self.format.room(part, needed_bytes)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there is an entry.
    ///
    /// # Errors
    /// If a record is corrupt, which is impossible in a checked directory.
    pub fn has_names(&self) -> Result<bool, DirentError> {
        Ok(self.entries().next().transpose()?.is_some())
    }

    /// Writes the directory to the first block of a directory outside of its inode, which has the
    /// number `own` and the format `format`.
    ///
    /// # Errors
    /// If a record is corrupt, or the block is too short for all entries, which is impossible for a
    /// checked directory and a block at least as long as an inode.
    pub fn move_out(
        &self,
        format: &DirFormat,
        own: InodeNr,
        block: &mut [u8],
    ) -> Result<(), DirentError> {
        let parent = self.parent;
        let mut writer = LeafWriter::with_dots(format, block, &Dots { own, parent });
        for (part, before) in [(self.first, 0), (self.second, Self::SECOND_AT)] {
            for entry in self.format.entries(part) {
                let entry = entry?;
                let record = self.format.used(part, &entry);
                if !writer.append_copy(record) {
                    return Err(DirentError::NoRoom {
                        at: before + entry.at,
                        found: 0,
                        expected: record.len(),
                    });
                }
            }
        }
        writer.finish();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
