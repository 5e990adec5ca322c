//! **Purpose.** Directory blocks that hold entries: their checks and their content.
//!
//! **Not here.** Index blocks of hashed directories (`htree`), directories inside the inode
//! (`inline`), reading blocks.
//!
//! | module | responsibility |
//! |---|---|
//! | [`edit`] | adding, removing and replacing entries of a block |
//! | [`mod@write`] | writing a block from its start |
//!
//! **Model.** A block is a chain of records without gaps. A record has a length field (`rec_len`),
//! so there may be free space after its name; a record of inode 0 is free. With `metadata_csum` the
//! last record of the block is free, 12 bytes long, and holds the checksum.
//!
//! ```text
//! inode u32 | rec_len u16 | name_len u8 | file_type u8 | name | pad to 4 | [hash u32 | minor u32]
//! ```
//!
//! The hash follows the name only in directories that are both encrypted and casefolded, where
//! it cannot be computed without the key.
//!
//! **Invariants.** In a checked block the records fill the block exactly, each at least as long as
//! its name needs; names of used records are not empty and, where they are not encrypted, hold
//! neither `/` nor NUL; inode numbers exist. Each step of an iterator moves forward by at least 12
//! bytes, so it terminates for any bytes.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Linear (Classic) Directories".

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{ChecksumMismatch, InodeSeed};
use crate::inode::FileType;
use crate::types::InodeNr;

pub mod edit;
pub mod write;

/// The longest name in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Bytes of the record that holds the checksum of a block.
pub const TAIL_BYTES: usize = 12;
/// Bytes of the shortest record.
pub const MIN_REC_LEN: usize = 12;
/// `file_type` of the record that holds the checksum of a block.
pub const TAIL_FILE_TYPE: u8 = 0xDE;

const HEADER_BYTES: usize = size_of::<RawDirentHeader>();
const HASH_BYTES: usize = size_of::<RawHash>();
/// The largest block whose length fits `rec_len` as it is.
const PLAIN_REC_LEN_BLOCK: usize = 32768;

/// The header of a record, before the name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawDirentHeader {
    /// 0x0: inode number; 0 in a free record.
    pub inode: U32,
    /// 0x4: length of the record in bytes, see [`encode_rec_len`].
    pub rec_len: U16,
    /// 0x6: length of the name in bytes.
    pub name_len: u8,
    /// 0x7: type of the inode, with the feature `filetype`.
    pub file_type: u8,
}

/// The hash after a name in an encrypted and casefolded directory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHash {
    /// 0x0: hash that orders the tree.
    hash: U32,
    /// 0x4: further bits of the hash.
    minor_hash: U32,
}

/// The last record of a block, with `metadata_csum`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawTail {
    /// 0x0: 0, so that it looks like a free record.
    pub det_reserved_zero1: U32,
    /// 0x4: 12.
    pub det_rec_len: U16,
    /// 0x6: 0, where a record has the length of its name.
    pub det_reserved_zero2: u8,
    /// 0x7: [`TAIL_FILE_TYPE`].
    pub det_reserved_ft: u8,
    /// 0x8: checksum of all bytes before the tail.
    pub det_checksum: U32,
}

const _: () = {
    assert!(size_of::<RawDirentHeader>() == 8);
    assert!(size_of::<RawTail>() == TAIL_BYTES);
    assert!(std::mem::offset_of!(RawTail, det_checksum) == 8);
};

/// An error in a directory block. Offsets are bytes from the start of the block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirentError {
    /// The rest of the block is too short for a record.
    #[error("directory entry at byte {at}: {found} bytes left, a record needs {expected}")]
    NoRoom {
        /// The offset of the rest.
        at: usize,
        /// Bytes to the end of the block.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// A record shorter than the minimum, or than its name needs.
    #[error("directory entry at byte {at}: rec_len is {found}, expected at least {expected}")]
    RecLenShort {
        /// The offset of the record.
        at: usize,
        /// Value of `rec_len`.
        found: usize,
        /// Bytes its header, name and hash need.
        expected: usize,
    },
    /// A record whose length is no multiple of 4.
    #[error("directory entry at byte {at}: rec_len is {found}, expected a multiple of 4")]
    RecLenAlign {
        /// The offset of the record.
        at: usize,
        /// Value of `rec_len`.
        found: usize,
    },
    /// A record that extends past the end of the block.
    #[error("directory entry at byte {at}: rec_len is {found}, expected at most {expected}")]
    RecLenLong {
        /// The offset of the record.
        at: usize,
        /// Value of `rec_len`.
        found: usize,
        /// Bytes to the end of the block.
        expected: usize,
    },
    /// An inode number past the last inode.
    #[error("directory entry at byte {at}: inode is {found}, expected at most {max}")]
    Inode {
        /// The offset of the record.
        at: usize,
        /// Value of `inode`.
        found: InodeNr,
        /// Number of inodes of the file system.
        max: InodeNr,
    },
    /// A used record without a name.
    #[error("directory entry at byte {at}: name_len is 0")]
    EmptyName {
        /// The offset of the record.
        at: usize,
    },
    /// A name with a byte no name can have.
    #[error("directory entry at byte {at}: name has byte {found:#04x} at {position}")]
    NameByte {
        /// The offset of the record.
        at: usize,
        /// The byte: `/` or NUL.
        found: u8,
        /// Its position in the name.
        position: usize,
    },
    /// There is no entry at the offset of a change.
    #[error("directory block: no entry begins at byte {at}")]
    NoEntry {
        /// The offset of the change.
        at: usize,
    },
    /// The last record is not the one that holds the checksum.
    #[error("directory block: no checksum record in the last {TAIL_BYTES} bytes")]
    NoTail,
    /// The checksum does not match the block.
    #[error("directory block: {0}")]
    Checksum(#[from] ChecksumMismatch),
    /// The first record of a directory is not `.`, or the second not `..`.
    #[error("directory entry at byte {at}: expected the name {expected:?}")]
    Dots {
        /// The offset of the record.
        at: usize,
        /// `.` or `..`.
        expected: &'static str,
    },
}

/// The form of the names of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameForm {
    /// Plain.
    Plain,
    /// Encrypted: any bytes.
    Encrypted,
    /// Encrypted, each followed by the hash of the casefolded plain name.
    EncryptedHashed,
}

/// Whether entries hold the type of their inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeByte {
    /// Feature `filetype`.
    Present,
    /// The byte has no meaning.
    Absent,
}

/// The format of the blocks of a directory, as given by the superblock and its inode.
#[derive(Clone, Copy, Debug)]
pub struct DirFormat {
    /// The form of names; encrypted ones may contain any bytes.
    pub names: NameForm,
    /// Feature `filetype`.
    pub type_byte: TypeByte,
    /// `s_inodes_count`.
    pub inodes_count: InodeNr,
    /// With `metadata_csum`, the seed of the directory's inode: blocks then have checksums.
    pub seed: Option<InodeSeed>,
}

/// The type of an inode in its directory entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryType {
    /// Not stored, or an unknown value: the inode has the type.
    Unknown,
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Symbolic link.
    Symlink,
}

impl EntryType {
    /// From the byte `file_type`.
    #[must_use]
    pub fn from_byte(file_type: u8) -> Self {
        match file_type {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => Self::Unknown,
        }
    }

    /// The byte `file_type`.
    #[must_use]
    pub fn to_byte(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }
}

impl From<FileType> for EntryType {
    fn from(file_type: FileType) -> Self {
        match file_type {
            FileType::Regular => Self::Regular,
            FileType::Directory => Self::Directory,
            FileType::CharDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::Symlink => Self::Symlink,
        }
    }
}

/// The hash that an encrypted and casefolded directory stores with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoredHash {
    /// The hash that orders the tree.
    pub hash: u32,
    /// Further bits of the hash.
    pub minor_hash: u32,
}

/// A record of a directory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The offset of the record from the start of the block, in bytes.
    pub at: usize,
    /// Its length in bytes, including the free space after the name.
    pub rec_len: usize,
    /// The inode; 0 in a free record.
    pub inode: InodeNr,
    /// The name as stored; in a free record, the bytes of a former entry.
    pub name: &'a [u8],
    /// The type of the inode.
    pub kind: EntryType,
    /// The hash after the name, if the directory stores one.
    pub hash: Option<StoredHash>,
}

impl Entry<'_> {
    /// Whether this is `.` or `..`.
    #[must_use]
    pub fn is_dots(&self) -> bool {
        is_dots(self.name)
    }
}

/// A record of which only the length was checked: it lies inside the block.
struct Skimmed<'a> {
    at: usize,
    rec_len: usize,
    header: &'a RawDirentHeader,
    /// The bytes from after the header to the end of the block.
    behind: &'a [u8],
}

impl Skimmed<'_> {
    /// Whether it is in use and has this name. Names in a directory are often of one length and
    /// begin with the same bytes.
    #[inline]
    fn is(&self, name: &[u8]) -> bool {
        let last = name.len().wrapping_sub(1);
        usize::from(self.header.name_len) == name.len()
            && self.behind.get(last) == name.last()
            && self.behind.starts_with(name)
            && self.header.inode.get() != 0
    }

    /// Whether it may have `needed_bytes` of free space.
    #[inline]
    fn may_have(&self, needed_bytes: usize) -> bool {
        // A hash after the name takes even more.
        let used = match self.header.inode.get() {
            0 => 0,
            _ => HEADER_BYTES + usize::from(self.header.name_len),
        };
        self.rec_len >= used + needed_bytes
    }
}

/// The inodes of `.` and `..` of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dots {
    /// The inode of `.`: must be the directory itself.
    pub own: InodeNr,
    /// The inode of `..`.
    pub parent: InodeNr,
}

/// The records of a block in order, free ones included.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    block: &'a [u8],
    format: DirFormat,
    at: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Entry<'a>, DirentError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.block.len() || self.format.is_tail(self.block, self.at) {
            return None;
        }
        let record = self.format.record(self.block, self.at);
        // After an error the offset of the next record is unknown.
        self.at = record
            .as_ref()
            .map_or(self.block.len(), |entry| entry.at + entry.rec_len);
        Some(record)
    }
}

impl DirFormat {
    /// Checks a block of entries: every record, and with `metadata_csum` the checksum.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check_block(&self, block: &[u8]) -> Result<(), DirentError> {
        self.verify(block)?;
        let mut end = 0;
        for record in self.records(block) {
            let entry = record?;
            end = entry.at + entry.rec_len;
            self.check_entry(&entry)?;
        }
        if end == self.room_bytes(block.len()) {
            Ok(())
        } else {
            Err(DirentError::NoTail)
        }
    }

    /// Checks only the checksum of a block of entries.
    ///
    /// # Errors
    /// [`DirentError::NoTail`], [`DirentError::Checksum`].
    pub fn verify(&self, block: &[u8]) -> Result<(), DirentError> {
        let Some(seed) = self.seed else {
            return Ok(());
        };
        let tail = tail(block).ok_or(DirentError::NoTail)?;
        Ok(ChecksumMismatch::check(
            tail.det_checksum.get(),
            checksum(block, seed),
        )?)
    }

    /// Checks the fields that [`DirFormat::records`] does not check: inode number and name.
    ///
    /// # Errors
    /// The first violated rule.
    pub(crate) fn check_entry(&self, entry: &Entry<'_>) -> Result<(), DirentError> {
        let at = entry.at;
        if entry.inode.0 == 0 {
            return Ok(());
        }
        if entry.inode > self.inodes_count {
            return Err(DirentError::Inode {
                at,
                found: entry.inode,
                max: self.inodes_count,
            });
        }
        if entry.name.is_empty() {
            return Err(DirentError::EmptyName { at });
        }
        let forbidden = |byte: &u8| matches!(byte, b'/' | 0);
        match entry
            .name
            .iter()
            .position(forbidden)
            .filter(|_| self.names == NameForm::Plain)
        {
            Some(position) => {
                let found = entry.name.get(position).copied().unwrap_or(0);
                Err(DirentError::NameByte {
                    at,
                    found,
                    position,
                })
            }
            None => Ok(()),
        }
    }

    /// The records of a block in order, including free ones, but without that of the checksum.
    #[must_use]
    pub fn records<'a>(&self, block: &'a [u8]) -> Records<'a> {
        Records {
            block,
            format: *self,
            at: 0,
        }
    }

    /// The entries of a block in order: the records in use.
    pub fn entries<'a>(
        &self,
        block: &'a [u8],
    ) -> impl Iterator<Item = Result<Entry<'a>, DirentError>> + use<'a> {
        self.records(block)
            .filter(|record| !matches!(record, Ok(entry) if entry.inode.0 == 0))
    }

    /// The entry with exactly this name, in a checked block. Of the records before it only the
    /// length is read, for the speed of lookups.
    ///
    /// # Errors
    /// If a record before it, or the entry itself, is not inside the block.
    pub fn find<'a>(&self, block: &'a [u8], name: &[u8]) -> Result<Option<Entry<'a>>, DirentError> {
        let found = self.skim(block, |record| record.is(name).then_some(record.at))?;
        found.map(|at| self.record(block, at)).transpose()
    }

    /// Returns the first result of `look` for the records of a checked block. Of each record only
    /// the length is read here, as a search for a name or for space passes hundreds of them.
    ///
    /// # Errors
    /// If a record is not inside the block, or has a length that no record has.
    #[inline]
    fn skim<'a, T>(
        &self,
        block: &'a [u8],
        mut look: impl FnMut(&Skimmed<'a>) -> Option<T>,
    ) -> Result<Option<T>, DirentError> {
        let (mut at, mut rest) = (0, block);
        while let Ok((header, behind)) = RawDirentHeader::ref_from_prefix(rest) {
            let rec_len = decode_rec_len(header.rec_len.get(), block.len());
            let is_possible = rec_len >= MIN_REC_LEN && rec_len.is_multiple_of(4);
            let Some(next) = rest.get(rec_len..).filter(|_| is_possible) else {
                return self.record(block, at).map(|_| None);
            };
            let found = look(&Skimmed {
                at,
                rec_len,
                header,
                behind,
            });
            if found.is_some() {
                return Ok(found);
            }
            (at, rest) = (at + rec_len, next);
        }
        Ok(None)
    }

    /// The inodes of `.` and `..`, which are the first two records of the first block of each
    /// directory, hashed or not.
    ///
    /// # Errors
    /// If one of them is missing, or has the number of an inode that does not exist.
    pub fn dots(&self, block: &[u8]) -> Result<Dots, DirentError> {
        let own = self.dot(block, 0, ".")?;
        let parent = self.dot(block, own.rec_len, "..")?;
        Ok(Dots {
            own: own.inode,
            parent: parent.inode,
        })
    }

    fn dot<'a>(
        &self,
        block: &'a [u8],
        at: usize,
        expected: &'static str,
    ) -> Result<Entry<'a>, DirentError> {
        let entry = self.record(block, at)?;
        self.check_entry(&entry)?;
        if entry.inode.0 == 0 || entry.name != expected.as_bytes() {
            return Err(DirentError::Dots { at, expected });
        }
        Ok(entry)
    }

    /// Writes the checksum into the last record of a block, which must be the record for it.
    ///
    /// # Errors
    /// If it is not that record.
    pub fn seal(block: &mut [u8], seed: InodeSeed) -> Result<(), DirentError> {
        tail(block).ok_or(DirentError::NoTail)?;
        let value = checksum(block, seed);
        if let Ok((_, tail)) = RawTail::mut_from_suffix(block) {
            tail.det_checksum = value.into();
        }
        Ok(())
    }

    /// Bytes that a record needs for a name: header, name, padding, and the hash if one is stored.
    #[must_use]
    pub fn needed_bytes(&self, name: &[u8]) -> usize {
        let hash = if self.names == NameForm::EncryptedHashed && !is_dots(name) {
            HASH_BYTES
        } else {
            0
        };
        (HEADER_BYTES + name.len()).next_multiple_of(4) + hash
    }

    /// Bytes for records in a block of `block_bytes`: all but the record of the checksum.
    #[must_use]
    pub fn room_bytes(&self, block_bytes: usize) -> usize {
        let tail = if self.seed.is_some() { TAIL_BYTES } else { 0 };
        block_bytes.saturating_sub(tail)
    }

    fn is_tail(&self, block: &[u8], at: usize) -> bool {
        self.seed.is_some() && at + TAIL_BYTES == block.len() && tail(block).is_some()
    }

    /// Decodes the record at an offset of the block, and checks that it and its name are inside.
    fn record<'a>(&self, block: &'a [u8], at: usize) -> Result<Entry<'a>, DirentError> {
        let rest = block.get(at..).unwrap_or(&[]);
        let no_room = DirentError::NoRoom {
            at,
            found: rest.len(),
            expected: MIN_REC_LEN,
        };
        if rest.len() < MIN_REC_LEN {
            return Err(no_room);
        }
        let Ok((header, behind)) = RawDirentHeader::ref_from_prefix(rest) else {
            return Err(no_room);
        };
        let rec_len = decode_rec_len(header.rec_len.get(), block.len());
        let name_len = usize::from(header.name_len);
        let name = behind.get(..name_len).unwrap_or(&[]);
        let expected = if name.len() == name_len {
            self.needed_bytes(name).max(MIN_REC_LEN)
        } else {
            HEADER_BYTES + name_len
        };
        if rec_len < expected {
            return Err(DirentError::RecLenShort {
                at,
                found: rec_len,
                expected,
            });
        }
        if !rec_len.is_multiple_of(4) {
            return Err(DirentError::RecLenAlign { at, found: rec_len });
        }
        if rec_len > rest.len() {
            return Err(DirentError::RecLenLong {
                at,
                found: rec_len,
                expected: rest.len(),
            });
        }
        let left = rest.len() - rec_len;
        if left != 0 && left < MIN_REC_LEN {
            let at = at + rec_len;
            return Err(DirentError::NoRoom {
                at,
                found: left,
                expected: MIN_REC_LEN,
            });
        }
        let kind = match self.type_byte {
            TypeByte::Present => EntryType::from_byte(header.file_type),
            TypeByte::Absent => EntryType::Unknown,
        };
        let inode = InodeNr(header.inode.get());
        Ok(Entry {
            at,
            rec_len,
            inode,
            name,
            kind,
            hash: self.hash(rest, name),
        })
    }

    fn hash(&self, record: &[u8], name: &[u8]) -> Option<StoredHash> {
        if self.names != NameForm::EncryptedHashed || is_dots(name) {
            return None;
        }
        let at = (HEADER_BYTES + name.len()).next_multiple_of(4);
        let (raw, _) = RawHash::ref_from_prefix(record.get(at..)?).ok()?;
        Some(StoredHash {
            hash: raw.hash.get(),
            minor_hash: raw.minor_hash.get(),
        })
    }
}

/// The length in bytes that a `rec_len` means in a block of `block_bytes`.
///
/// In blocks of 64 KiB lengths do not fit 16 bits: their two low bits, always 0, hold bits 16 and
/// 17, and 0 and 65535 mean the whole block.
#[must_use]
pub fn decode_rec_len(rec_len: u16, block_bytes: usize) -> usize {
    match rec_len {
        _ if block_bytes <= PLAIN_REC_LEN_BLOCK => usize::from(rec_len),
        0 | u16::MAX => block_bytes,
        _ => usize::from(rec_len & !3) | usize::from(rec_len & 3) << 16,
    }
}

/// The `rec_len` for a length in bytes; `None` if no record of a block of `block_bytes` can be
/// that long. The inverse of [`decode_rec_len`].
#[must_use]
pub fn encode_rec_len(bytes: usize, block_bytes: usize) -> Option<u16> {
    if bytes > block_bytes || !bytes.is_multiple_of(4) {
        return None;
    }
    // Only a record that fills a block of 64 KiB does not fit.
    Some(u16::try_from(bytes).unwrap_or(u16::MAX))
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn tail(block: &[u8]) -> Option<&RawTail> {
    let (_, tail) = RawTail::ref_from_suffix(block).ok()?;
    let is_tail = tail.det_reserved_zero1.get() == 0
        && usize::from(tail.det_rec_len.get()) == TAIL_BYTES
        && tail.det_reserved_zero2 == 0
        && tail.det_reserved_ft == TAIL_FILE_TYPE;
    is_tail.then_some(tail)
}

fn checksum(block: &[u8], seed: InodeSeed) -> u32 {
    let covered = block.len().saturating_sub(TAIL_BYTES);
    seed.start()
        .update(block.get(..covered).unwrap_or(&[]))
        .value()
}

#[cfg(test)]
mod tests;
