//! **Purpose.** Writing a block of entries from its start.
//!
//! **Model.** Records are written without free space between them; finishing the block extends the
//! last one to the end. The record of the checksum is written, but not its value: the block is
//! sealed once, after all changes.
//!
//! **Invariants.** A finished block passes [`DirFormat::check_block`] once it is sealed. Nothing of
//! its former bytes is left.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    DirFormat, Dots, EntryType, HEADER_BYTES, MAX_NAME_BYTES, NameForm, RawDirentHeader, RawHash,
    RawTail, StoredHash, TAIL_BYTES, TAIL_FILE_TYPE, TypeByte, encode_rec_len,
};
use crate::types::InodeNr;

/// An entry to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'a> {
    /// The inode; not 0.
    pub inode: InodeNr,
    /// The type of the inode. Not written if entries do not hold it.
    pub kind: EntryType,
    /// The hash of the name. Needed for [`NameForm::EncryptedHashed`], else unused.
    pub hash: Option<StoredHash>,
    name: &'a [u8],
}

impl<'a> NewEntry<'a> {
    /// `None` for a name that no record can hold: empty, or longer than [`MAX_NAME_BYTES`]. The
    /// caller makes sure that the bytes of the name are allowed.
    #[must_use]
    pub fn new(inode: InodeNr, name: &'a [u8], kind: EntryType) -> Option<Self> {
        let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
        fits.then_some(Self {
            inode,
            kind,
            hash: None,
            name,
        })
    }

    /// Adds the hash that is stored after the name.
    #[must_use]
    pub fn with_hash(self, hash: StoredHash) -> Self {
        Self {
            hash: Some(hash),
            ..self
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &'a [u8] {
        self.name
    }

    fn dot(inode: InodeNr, name: &'static [u8]) -> Self {
        Self {
            inode,
            kind: EntryType::Directory,
            hash: None,
            name,
        }
    }
}

/// Writes the records of a block one after the other.
#[derive(Debug)]
pub struct LeafWriter<'b> {
    format: DirFormat,
    block: &'b mut [u8],
    /// The offset of the last record.
    last: usize,
    /// The offset of the next record.
    end: usize,
}

impl<'b> LeafWriter<'b> {
    /// Begins a block that is not the first of its directory.
    #[must_use]
    pub fn new(format: &DirFormat, block: &'b mut [u8]) -> Self {
        Self {
            format: *format,
            block,
            last: 0,
            end: 0,
        }
    }

    /// Begins the first block of a directory, with `.` and `..`.
    #[must_use]
    pub fn with_dots(format: &DirFormat, block: &'b mut [u8], dots: &Dots) -> Self {
        let mut writer = Self::new(format, block);
        for dot in [
            NewEntry::dot(dots.own, b"."),
            NewEntry::dot(dots.parent, b".."),
        ] {
            let fits = writer.append(&dot);
            debug_assert!(fits, "no block is that short");
        }
        writer
    }

    /// Adds an entry; returns `false` without a change if there is no space for it.
    #[must_use]
    pub fn append(&mut self, new: &NewEntry<'_>) -> bool {
        let bytes = self.format.needed_bytes(new.name);
        if !self.has_capacity(bytes) {
            return false;
        }
        let rec_len = raw_rec_len(bytes, self.block.len());
        self.format.put_entry(self.block, self.end, rec_len, new);
        self.advance(bytes);
        true
    }

    /// Adds a record as a copy of the used bytes of another one; returns `false` if there is no
    /// space.
    pub(crate) fn append_copy(&mut self, record: &[u8]) -> bool {
        if !self.has_capacity(record.len()) {
            return false;
        }
        if let Some(to) = self.block.get_mut(self.end..self.end + record.len()) {
            to.copy_from_slice(record);
        }
        set_rec_len(self.block, self.end, record.len());
        self.advance(record.len());
        true
    }

    /// Moves the bytes at `at` in the same block, after the last record written, to become the next
    /// record. The bytes between are lost.
    pub(crate) fn pull(&mut self, at: usize, bytes: usize) {
        debug_assert!(self.end <= at, "{at} is before {}", self.end);
        if self.end <= at && at + bytes <= self.block.len() {
            self.block.copy_within(at..at + bytes, self.end);
            set_rec_len(self.block, self.end, bytes);
            self.advance(bytes);
        }
    }

    /// Extends the last record to the end, or fills an empty block with a free one.
    pub fn finish(self) {
        let room = self.format.room_bytes(self.block.len());
        if let Some(rest) = self.block.get_mut(self.end..room) {
            rest.fill(0);
        }
        set_rec_len(self.block, self.last, room - self.last.min(room));
        if self.format.seed.is_some() {
            put_tail(self.block);
        }
    }

    fn has_capacity(&self, bytes: usize) -> bool {
        self.end + bytes <= self.format.room_bytes(self.block.len())
    }

    fn advance(&mut self, bytes: usize) {
        self.last = self.end;
        self.end += bytes;
    }
}

impl DirFormat {
    /// Makes a block without entries, which is not the first of its directory.
    pub fn init_leaf(&self, block: &mut [u8]) {
        LeafWriter::new(self, block).finish();
    }

    /// Makes the first block of a new directory: `.` and `..`.
    pub fn init_directory(&self, block: &mut [u8], dots: &Dots) {
        LeafWriter::with_dots(self, block, dots).finish();
    }

    /// Writes an entry with the stored length `rec_len` at offset `at` of a block or a part of one.
    /// The caller makes sure that there is space for it.
    pub(super) fn put_entry(&self, part: &mut [u8], at: usize, rec_len: u16, new: &NewEntry<'_>) {
        let stores_hash = self.names == NameForm::EncryptedHashed && !super::is_dots(new.name);
        debug_assert!(new.hash.is_some() || !stores_hash, "an entry without hash");
        let header = RawDirentHeader {
            inode: new.inode.0.into(),
            rec_len: rec_len.into(),
            name_len: u8::try_from(new.name.len()).unwrap_or(u8::MAX),
            file_type: self.type_byte_of(new.kind),
        };
        let used = self.needed_bytes(new.name);
        let Some(record) = part.get_mut(at..at + used) else {
            debug_assert!(false, "no space at {at}");
            return;
        };
        let (place, behind) = record.split_at_mut(HEADER_BYTES);
        place.copy_from_slice(header.as_bytes());
        let (name, behind) = behind.split_at_mut(new.name.len());
        name.copy_from_slice(new.name);
        behind.fill(0);
        if let Some(hash) = new.hash.filter(|_| stores_hash)
            && let Ok((_, place)) = RawHash::mut_from_suffix(behind)
        {
            place.hash = hash.hash.into();
            place.minor_hash = hash.minor_hash.into();
        }
    }

    /// The byte `file_type` of an entry; 0 if entries do not hold the type.
    pub(super) fn type_byte_of(&self, kind: EntryType) -> u8 {
        match self.type_byte {
            TypeByte::Present => kind.to_byte(),
            TypeByte::Absent => 0,
        }
    }
}

/// Sets the length of the record at `at`.
pub(crate) fn set_rec_len(block: &mut [u8], at: usize, bytes: usize) {
    let raw = raw_rec_len(bytes, block.len());
    if let Some(header) = header_mut(block, at) {
        header.rec_len = raw.into();
    }
}

/// The header of the record at `at`.
pub(super) fn header_mut(block: &mut [u8], at: usize) -> Option<&mut RawDirentHeader> {
    let (header, _) = RawDirentHeader::mut_from_prefix(block.get_mut(at..)?).ok()?;
    Some(header)
}

/// The stored form of a length, which is that of a record of the block.
pub(super) fn raw_rec_len(bytes: usize, block_bytes: usize) -> u16 {
    let raw = encode_rec_len(bytes, block_bytes);
    debug_assert!(raw.is_some(), "no record has {bytes} bytes");
    raw.unwrap_or(u16::MAX)
}

fn put_tail(block: &mut [u8]) {
    let new = RawTail {
        det_reserved_zero1: U32::ZERO,
        det_rec_len: raw_rec_len(TAIL_BYTES, block.len()).into(),
        det_reserved_zero2: 0,
        det_reserved_ft: TAIL_FILE_TYPE,
        det_checksum: U32::ZERO,
    };
    if let Ok((_, tail)) = RawTail::mut_from_suffix(block) {
        *tail = new;
    }
}
