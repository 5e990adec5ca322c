//! **Purpose.** Changes of extended attributes in place, inside an inode and in a block: setting,
//! resizing, removing, and choosing between inode and block.
//!
//! **Not here.** Checksums ([`super::seal_block`] writes them once, when all changes are made),
//! sharing of blocks, inodes that hold values and their reference counts, permissions.
//!
//! **Model.** As the kernel does it: the entries of a block are sorted by prefix, length of name
//! and name, those of an inode are in the order of insertion. Values are without gaps at the end of
//! the area; a new one is stored before them, and when one is removed, those before it move up. An
//! entry of a block has a hash, and the block has one of all entries; an entry of an inode has one
//! only if its value is in another inode. Removing the last entry of an area in an inode also
//! removes its magic number.
//!
//! **Invariants.** A change is made completely, or refused before the first byte changes. Unused
//! bytes that were zero stay zero; the padding of values is zero. A change that would move a value
//! that shares bytes with another one is refused.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Extended Attributes".

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::{
    ENTRY_BYTES, EaInodes, HEADER_BYTES, HashedValue, MAGIC, MAGIC_BYTES, NameIndex, PAD,
    RawBlockHeader, RawEntries, RawEntry, TERMINATOR_BYTES, XattrError, Xattrs, block_hash,
    entry_hash,
};
use crate::dirhash::CharSign;
use crate::types::InodeNr;
use crate::words::{low16, low32};

/// The longest name without its prefix, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// For changes here it does not matter which inodes may hold values.
const ANY_INODE: EaInodes = EaInodes::Between {
    first: InodeNr(0),
    last: InodeNr(u32::MAX),
};

/// The reason why attributes cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrEditError {
    /// The area is corrupt.
    #[error(transparent)]
    Area(#[from] XattrError),
    /// There is not enough space.
    #[error("xattrs: {needed_bytes} bytes are needed, {free_bytes} are free")]
    NoSpace {
        /// The bytes that entry and value need.
        needed_bytes: usize,
        /// The free bytes.
        free_bytes: usize,
    },
    /// A name that is empty, longer than [`MAX_NAME_BYTES`], or contains a NUL.
    #[error("xattrs: not a name")]
    Name,
    /// No such attribute, or its value is in an inode.
    #[error("xattrs: no such value")]
    Absent,
}

/// A value to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewValue<'a> {
    /// The bytes of the value, to be stored in the area.
    Inline(&'a [u8]),
    /// The content of an inode.
    Inode {
        /// The inode.
        inode: InodeNr,
        /// Its length in bytes.
        bytes: u32,
        /// The checksum that the inode stores, [`super::EaInode::value_hash`].
        hash: u32,
    },
}

impl NewValue<'_> {
    fn inline(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Inode { .. } => &[],
        }
    }
}

/// The state of an attribute before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// It did not exist.
    Absent,
    /// It existed, with its value in the area.
    Inline,
    /// It existed, with its value in an inode, which is no longer referenced by it.
    Inode(InodeNr),
}

/// The location for an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The inode; it must be removed from the block.
    Inode,
    /// The existing block; it must be removed from the inode.
    Block,
    /// A new block; it must be removed from the inode.
    NewBlock,
    /// There is no space for it.
    Nowhere,
}

/// The space of a block of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRoom {
    /// Its length.
    bytes: usize,
    /// The minimum offset of values.
    values_from: usize,
}

impl BlockRoom {
    /// The space of blocks of `bytes` bytes. If values may be in inodes, Linux reserves the start
    /// of a block for entries, so that a long value does not take all of it.
    #[must_use]
    pub fn new(bytes: usize, ea_inodes: EaInodes) -> Self {
        /// The maximum that is reserved for entries.
        const MOST_KEPT_BYTES: usize = 1024;
        let values_from = match ea_inodes {
            EaInodes::Absent => 0,
            EaInodes::Between { .. } => (bytes / 8).min(MOST_KEPT_BYTES),
        };
        Self { bytes, values_from }
    }

    /// Whether a value of `value_bytes` may be stored before the values that begin at `values_at`.
    fn allows(self, values_at: usize, value_bytes: usize) -> bool {
        value_bytes == 0 || values_at >= self.values_from + padded(value_bytes)
    }
}

/// The location for an attribute with this value, by the kernel's rule: the inode if it fits there,
/// else the block. `area` is the inode's area if it has one, `block` its block if it has one.
///
/// # Errors
/// If an area is corrupt.
pub fn place(
    area: Option<&[u8]>,
    block: Option<&[u8]>,
    room: BlockRoom,
    index: NameIndex,
    name: &[u8],
    value: &NewValue<'_>,
) -> Result<Placement, XattrError> {
    let value_bytes = value.inline().len();
    if let Some(area) = area
        && Layout::in_inode(area)?.fits(area, index, name, value_bytes)?
    {
        return Ok(Placement::Inode);
    }
    let (there, fits) = match block {
        Some(block) => {
            let layout = Layout::in_block(block)?;
            let (taken, given) = layout.cost(block, index, name, value_bytes)?;
            let fits = taken <= layout.free_bytes() + given
                && room.allows(layout.values_at + given, value_bytes);
            (Placement::Block, fits)
        }
        None => {
            let taken = HEADER_BYTES + TERMINATOR_BYTES + entry_bytes(name) + padded(value_bytes);
            let fits = taken <= room.bytes && room.allows(room.bytes, value_bytes);
            (Placement::NewBlock, fits)
        }
    };
    Ok(if fits { there } else { Placement::Nowhere })
}

/// The layout of an area.
#[derive(Clone, Copy, Debug)]
struct Layout {
    entries_at: usize,
    values_from: usize,
    /// The offset of the terminator.
    entries_end: usize,
    /// The offset of the first value from the start of the area.
    values_at: usize,
}

impl Layout {
    /// The layout of the area of an inode, which is empty without the magic number.
    fn in_inode(area: &[u8]) -> Result<Self, XattrError> {
        let expected = MAGIC_BYTES + TERMINATOR_BYTES;
        if area.len() < expected {
            let found = area.len();
            return Err(XattrError::TooShort { found, expected });
        }
        Self::of(
            &Xattrs::in_inode(area),
            MAGIC_BYTES,
            MAGIC_BYTES,
            area.len(),
        )
    }

    fn in_block(block: &[u8]) -> Result<Self, XattrError> {
        Self::of(&Xattrs::in_block(block)?, HEADER_BYTES, 0, block.len())
    }

    fn of(
        xattrs: &Xattrs<'_>,
        entries_at: usize,
        values_from: usize,
        area_bytes: usize,
    ) -> Result<Self, XattrError> {
        xattrs.check(ANY_INODE)?;
        let mut layout = Self {
            entries_at,
            values_from,
            entries_end: entries_at,
            values_at: area_bytes,
        };
        for raw in xattrs.raw_entries() {
            let (at, raw, name) = raw?;
            layout.entries_end = at + entry_bytes(name);
            if let Some(value) = layout.stored(raw) {
                layout.values_at = layout.values_at.min(value.start);
            }
        }
        Ok(layout)
    }

    /// The range of a padded value in the area.
    fn stored(&self, raw: &RawEntry) -> Option<Range<usize>> {
        let size = usize::try_from(raw.e_value_size.get()).ok()?;
        let start = self.values_from + usize::from(raw.e_value_offs.get());
        let inline = raw.e_value_inum.get() == 0 && size > 0;
        inline.then(|| start..start + padded(size))
    }

    fn free_bytes(&self) -> usize {
        self.values_at - self.entries_end - TERMINATOR_BYTES
    }

    /// The bytes that setting the attribute needs, and those that it frees.
    fn cost(
        &self,
        area: &[u8],
        index: NameIndex,
        name: &[u8],
        value_bytes: usize,
    ) -> Result<(usize, usize), XattrError> {
        let value = padded(value_bytes);
        Ok(match self.find(area, index, name)? {
            Some((_, raw)) => (value, self.stored(&raw).map_or(0, |old| old.len())),
            None => (entry_bytes(name) + value, 0),
        })
    }

    fn fits(
        &self,
        area: &[u8],
        index: NameIndex,
        name: &[u8],
        value_bytes: usize,
    ) -> Result<bool, XattrError> {
        let (taken, given) = self.cost(area, index, name, value_bytes)?;
        Ok(taken <= self.free_bytes() + given)
    }

    /// The entry with this name, and its offset.
    fn find(
        &self,
        area: &[u8],
        index: NameIndex,
        name: &[u8],
    ) -> Result<Option<(usize, RawEntry)>, XattrError> {
        for raw in self.entries(area) {
            let (at, raw, found) = raw?;
            if raw.e_name_index == index.0 && found == name {
                return Ok(Some((at, *raw)));
            }
        }
        Ok(None)
    }

    fn entries<'a>(&self, area: &'a [u8]) -> RawEntries<'a> {
        RawEntries {
            area: area
                .get(..self.entries_end + TERMINATOR_BYTES)
                .unwrap_or(area),
            at: self.entries_at,
        }
    }
}

/// Whether an area is that of an inode or of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Inode,
    Block,
}

/// An area of attributes, to be changed.
#[derive(Debug)]
pub struct XattrsMut<'a> {
    area: &'a mut [u8],
    home: Home,
    layout: Layout,
}

impl<'a> XattrsMut<'a> {
    /// The attributes inside an inode: `area` as for [`Xattrs::in_inode`]. An area without the
    /// magic number is initialised as empty.
    ///
    /// # Errors
    /// If the area is corrupt or too short for attributes.
    pub fn in_inode(area: &'a mut [u8]) -> Result<Self, XattrError> {
        let layout = Layout::in_inode(area)?;
        if layout.entries_end == layout.entries_at {
            area.fill(0);
        }
        Ok(Self {
            area,
            home: Home::Inode,
            layout,
        })
    }

    /// The attributes in a block.
    ///
    /// # Errors
    /// If the block is corrupt.
    pub fn in_block(block: &'a mut [u8]) -> Result<Self, XattrError> {
        let layout = Layout::in_block(block)?;
        Ok(Self {
            area: block,
            home: Home::Block,
            layout,
        })
    }

    /// Initialises an empty block of attributes with a reference count of 1.
    ///
    /// # Errors
    /// If the block is too short for one.
    pub fn init_block(block: &'a mut [u8]) -> Result<Self, XattrError> {
        block.fill(0);
        let (found, expected) = (block.len(), HEADER_BYTES + TERMINATOR_BYTES);
        let header = RawBlockHeader {
            h_magic: MAGIC.into(),
            h_refcount: 1.into(),
            h_blocks: 1.into(),
            h_hash: 0.into(),
            h_checksum: 0.into(),
            h_reserved: [0.into(); 3],
        };
        match block.get_mut(..HEADER_BYTES) {
            Some(place) if found >= expected => place.copy_from_slice(header.as_bytes()),
            _ => return Err(XattrError::TooShort { found, expected }),
        }
        Self::in_block(block)
    }

    /// The attributes, for reading.
    #[must_use]
    pub fn as_xattrs(&self) -> Xattrs<'_> {
        match self.home {
            Home::Inode => Xattrs::in_inode(self.area),
            Home::Block => Xattrs {
                area: self.area,
                entries_at: HEADER_BYTES,
                values_from: 0,
            },
        }
    }

    /// Whether there are none, so that their block can be freed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layout.entries_end == self.layout.entries_at
    }

    /// Bytes free for entries, which are 16 longer than their names, and values, all padded to 4.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.layout.free_bytes()
    }

    /// Whether the attribute can be set to a value of `value_bytes` in the area.
    ///
    /// # Errors
    /// If the area is corrupt.
    pub fn fits(
        &self,
        index: NameIndex,
        name: &[u8],
        value_bytes: usize,
    ) -> Result<bool, XattrError> {
        self.layout.fits(self.area, index, name, value_bytes)
    }

    /// The longest value in the area that the attribute can be set to; 0 also if not even an entry
    /// fits.
    ///
    /// # Errors
    /// If the area is corrupt.
    pub fn most_value_bytes(&self, index: NameIndex, name: &[u8]) -> Result<usize, XattrError> {
        let (taken, given) = self.layout.cost(self.area, index, name, 0)?;
        let room = self.layout.free_bytes() + given;
        Ok(room.saturating_sub(taken))
    }

    /// Sets an attribute; returns its state before.
    ///
    /// # Errors
    /// `NoSpace`; `Name`; `Area` if the area is corrupt. Then nothing is changed.
    pub fn set(
        &mut self,
        index: NameIndex,
        name: &[u8],
        value: &NewValue<'_>,
    ) -> Result<Was, XattrEditError> {
        if name.contains(&0) || (index.0 == 0 && name.is_empty()) {
            return Err(XattrEditError::Name);
        }
        let bytes = value.inline();
        self.check_room(index, name, bytes.len())?;
        let found = self.layout.find(self.area, index, name)?;
        let (at, was) = match found {
            Some((at, raw)) => {
                let old = self.layout.stored(&raw).map_or(0, |old| old.len());
                if old != padded(bytes.len()) {
                    self.move_values(at, &raw, 0)?;
                }
                (at, was(&raw))
            }
            None => (self.insert_entry(index, name)?, Was::Absent),
        };
        self.put_value(at, bytes);
        self.change_entry(at, |raw| {
            (raw.e_value_inum, raw.e_value_size) = match *value {
                NewValue::Inline(bytes) => (0.into(), low32(bytes.len() as u64)),
                NewValue::Inode { inode, bytes, .. } => (inode.0.into(), bytes.into()),
            };
            let hashed = match *value {
                NewValue::Inline(bytes) => HashedValue::Inline(bytes),
                NewValue::Inode { hash, .. } => HashedValue::Inode(hash),
            };
            raw.e_hash = entry_hash(name, hashed, CharSign::Unsigned).into();
        });
        self.finish(at, value);
        Ok(was)
    }

    /// Removes an attribute; returns its state before.
    ///
    /// # Errors
    /// `Area` if the area is corrupt. Then nothing is changed.
    pub fn remove(&mut self, index: NameIndex, name: &[u8]) -> Result<Was, XattrEditError> {
        let Some((at, raw)) = self.layout.find(self.area, index, name)? else {
            return Ok(Was::Absent);
        };
        self.move_values(at, &raw, 0)?;
        let (size, end) = (entry_bytes(name), self.layout.entries_end);
        self.area.copy_within(at + size..end, at);
        self.layout.entries_end = end - size;
        self.zero(end - size..end);
        self.seal_hashes();
        Ok(was(&raw))
    }

    /// Changes the length of the value of an attribute: it is truncated, or extended with zeros.
    /// For inline data, whose entry has no hash.
    ///
    /// # Errors
    /// `NoSpace`; `Absent`; `Area` if the area is corrupt. Then nothing is changed.
    pub(crate) fn resize(
        &mut self,
        index: NameIndex,
        name: &[u8],
        value_bytes: usize,
    ) -> Result<(), XattrEditError> {
        let found = self.layout.find(self.area, index, name)?;
        let (at, raw) = found.ok_or(XattrEditError::Absent)?;
        if raw.e_value_inum.get() != 0 {
            return Err(XattrEditError::Absent);
        }
        self.check_room(index, name, value_bytes)?;
        let old_bytes = usize::try_from(raw.e_value_size.get()).unwrap_or(usize::MAX);
        let (old, new) = (padded(old_bytes), padded(value_bytes));
        if old == 0 && new > 0 {
            let values_at = self.layout.values_at - new;
            self.layout.values_at = values_at;
            self.zero(values_at..values_at + new);
            let offset = values_at - self.layout.values_from;
            self.change_entry(at, |raw| raw.e_value_offs = low16(offset as u64));
        } else {
            self.move_values(at, &raw, new)?;
        }
        self.change_entry(at, |raw| raw.e_value_size = low32(value_bytes as u64));
        if let Some(value) = self.value_mut(index, name)? {
            let kept = old_bytes.min(value_bytes);
            value.get_mut(kept..).unwrap_or(&mut []).fill(0);
        }
        self.clear_padding(at);
        Ok(())
    }

    /// The bytes of a value in the area, for changes in place. For inline data, whose entry has no
    /// hash. `None` if there is no such attribute or its value is in an inode.
    ///
    /// # Errors
    /// If the area is corrupt.
    pub(crate) fn value_mut(
        &mut self,
        index: NameIndex,
        name: &[u8],
    ) -> Result<Option<&mut [u8]>, XattrError> {
        let Some((_, raw)) = self.layout.find(self.area, index, name)? else {
            return Ok(None);
        };
        if raw.e_value_inum.get() != 0 {
            return Ok(None);
        }
        let start = self.layout.stored(&raw).map_or(0, |stored| stored.start);
        let bytes = usize::try_from(raw.e_value_size.get()).unwrap_or(0);
        Ok(self.area.get_mut(start..start + bytes))
    }

    fn check_room(
        &self,
        index: NameIndex,
        name: &[u8],
        value_bytes: usize,
    ) -> Result<(), XattrEditError> {
        if name.len() > MAX_NAME_BYTES {
            return Err(XattrEditError::Name);
        }
        let (needed_bytes, given) = self.layout.cost(self.area, index, name, value_bytes)?;
        let free_bytes = self.layout.free_bytes() + given;
        if needed_bytes > free_bytes {
            return Err(XattrEditError::NoSpace {
                needed_bytes,
                free_bytes,
            });
        }
        Ok(())
    }

    /// Inserts an entry without a value at the position by the order of the area.
    fn insert_entry(&mut self, index: NameIndex, name: &[u8]) -> Result<usize, XattrError> {
        let end = self.layout.entries_end;
        let mut at = end;
        if self.home == Home::Block {
            for raw in self.layout.entries(self.area) {
                let (before, raw, other) = raw?;
                if (raw.e_name_index, other.len(), other) > (index.0, name.len(), name) {
                    at = before;
                    break;
                }
            }
        }
        let size = entry_bytes(name);
        self.area.copy_within(at..end, at + size);
        self.layout.entries_end = end + size;
        self.zero(at..at + size);
        self.zero(end + size..end + size + TERMINATOR_BYTES);
        self.change_entry(at, |raw| {
            raw.e_name_len = u8::try_from(name.len()).unwrap_or(u8::MAX);
            raw.e_name_index = index.0;
        });
        self.copy(at + ENTRY_BYTES, name);
        Ok(at)
    }

    /// Resizes the space of the value of the entry at `at` to `new` padded bytes, by moving it and
    /// the values before it. With 0 the value is removed.
    fn move_values(&mut self, at: usize, raw: &RawEntry, new: usize) -> Result<(), XattrError> {
        let Some(old) = self.layout.stored(raw) else {
            return Ok(());
        };
        for other in self.layout.entries(self.area) {
            let (other_at, other, _) = other?;
            let apart = self
                .layout
                .stored(other)
                .is_none_or(|other| other.end <= old.start || other.start >= old.end);
            if other_at != at && !apart {
                return Err(XattrError::SharedValue {
                    at,
                    other: other_at,
                });
            }
        }
        let from = self.layout.values_at;
        let kept = old.start + old.len().min(new);
        let to = (from + old.len()) - new;
        self.area.copy_within(from..kept, to);
        self.layout.values_at = to;
        if to > from {
            self.zero(from..to);
        }
        // Each offset moves as far as its bytes.
        let moved = |offset: usize| (offset + to) - from;
        let (last, values_from) = (old.start, self.layout.values_from);
        let layout = self.layout;
        self.change_all(|raw| {
            if let Some(value) = layout.stored(raw).filter(|value| value.start <= last) {
                let gone = value.start == last && new == 0;
                let offset = if gone {
                    0
                } else {
                    moved(value.start) - values_from
                };
                raw.e_value_offs = low16(offset as u64);
            }
        });
        if new == 0 {
            self.change_entry(at, |raw| raw.e_value_size = 0.into());
        }
        Ok(())
    }

    /// Stores a value: over the existing one of the same padded length, or before all others.
    fn put_value(&mut self, at: usize, value: &[u8]) {
        let size = padded(value.len());
        let stored = self.raw(at).and_then(|raw| self.layout.stored(&raw));
        let start = match stored {
            Some(stored) if size > 0 => stored.start,
            _ if size == 0 => {
                self.change_entry(at, |raw| raw.e_value_offs = 0.into());
                return;
            }
            _ => {
                self.layout.values_at -= size;
                self.layout.values_at
            }
        };
        self.zero(start..start + size);
        self.copy(start, value);
        let offset = start - self.layout.values_from;
        self.change_entry(at, |raw| raw.e_value_offs = low16(offset as u64));
    }

    /// Updates the hashes after a value was set, and the magic number.
    fn finish(&mut self, at: usize, value: &NewValue<'_>) {
        let inline = matches!(value, NewValue::Inline(_));
        if self.home == Home::Inode && inline {
            self.change_entry(at, |raw| raw.e_hash = 0.into());
        }
        self.seal_hashes();
    }

    /// Updates the fields that depend on all entries: the hash of a block, and the magic number of
    /// an area in an inode.
    fn seal_hashes(&mut self) {
        match self.home {
            Home::Inode => {
                let magic = if self.is_empty() { 0 } else { MAGIC };
                self.copy(0, &magic.to_le_bytes());
            }
            Home::Block => {
                let entries = self.layout.entries(self.area);
                let hash = block_hash(entries.flatten().map(|(_, raw, _)| raw.e_hash.get()));
                if let Ok((header, _)) = RawBlockHeader::mut_from_prefix(self.area) {
                    header.h_hash = hash.into();
                }
            }
        }
    }

    /// Zeroes the padding of a value.
    fn clear_padding(&mut self, at: usize) {
        if let Some(raw) = self.raw(at)
            && let Some(stored) = self.layout.stored(&raw)
        {
            let bytes = usize::try_from(raw.e_value_size.get()).unwrap_or(stored.len());
            self.zero(stored.start + bytes..stored.end);
        }
    }

    fn raw(&self, at: usize) -> Option<RawEntry> {
        let (raw, _) = RawEntry::read_from_prefix(self.area.get(at..)?).ok()?;
        Some(raw)
    }

    fn change_entry(&mut self, at: usize, change: impl FnOnce(&mut RawEntry)) {
        let rest = self.area.get_mut(at..).unwrap_or(&mut []);
        if let Ok((raw, _)) = RawEntry::mut_from_prefix(rest) {
            change(raw);
        }
    }

    fn change_all(&mut self, mut change: impl FnMut(&mut RawEntry)) {
        let mut at = self.layout.entries_at;
        while at < self.layout.entries_end {
            let name_len = self.area.get(at).map_or(0, |&len| usize::from(len));
            self.change_entry(at, &mut change);
            at += ENTRY_BYTES + padded(name_len);
        }
    }

    fn zero(&mut self, range: Range<usize>) {
        if let Some(bytes) = self.area.get_mut(range) {
            bytes.fill(0);
        }
    }

    fn copy(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.area.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

/// Moves the start of the attributes of an inode from `from` to the larger offset `to` in `tail`,
/// which extends to the end of the inode; the freed bytes are zeroed.
///
/// # Errors
/// `NoSpace`; `Area` if the area is corrupt. Then nothing is changed.
pub(crate) fn shift_start(tail: &mut [u8], from: usize, to: usize) -> Result<(), XattrEditError> {
    let by = to.saturating_sub(from);
    let Some(area) = tail
        .get(from..)
        .filter(|area| Xattrs::in_inode(area).entries().next().is_some())
    else {
        tail.get_mut(from..).unwrap_or(&mut []).fill(0);
        return Ok(());
    };
    let layout = Layout::in_inode(area)?;
    let free_bytes = layout.free_bytes();
    if by > free_bytes {
        let needed_bytes = by;
        return Err(XattrEditError::NoSpace {
            needed_bytes,
            free_bytes,
        });
    }
    let end = from + layout.entries_end + TERMINATOR_BYTES;
    tail.copy_within(from..end, to);
    tail.get_mut(from..to).unwrap_or(&mut []).fill(0);
    let mut moved = XattrsMut {
        area: tail.get_mut(to..).unwrap_or(&mut []),
        home: Home::Inode,
        layout,
    };
    moved.change_all(|raw| {
        if layout.stored(raw).is_some() {
            raw.e_value_offs = low16((usize::from(raw.e_value_offs.get()) - by) as u64);
        }
    });
    Ok(())
}

fn was(raw: &RawEntry) -> Was {
    match raw.e_value_inum.get() {
        0 => Was::Inline,
        inode => Was::Inode(InodeNr(inode)),
    }
}

fn entry_bytes(name: &[u8]) -> usize {
    ENTRY_BYTES + padded(name.len())
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(PAD)
}

#[cfg(test)]
mod tests;
