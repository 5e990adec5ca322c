//! **Purpose.** Extended attributes: the entries inside an inode and in a block, their checks and
//! hashes, and the fields of an inode that holds a large value.
//!
//! The module `edit` changes areas in place.
//!
//! **Not here.** The location of the area inside an inode (`inode`), reading blocks and inodes,
//! sharing blocks, the meaning of values (`acl`, `crypt`, `inline`).
//!
//! **Model.** Entries grow from the front, values from the back. Offsets of values count from the
//! block's first byte, and inside an inode from its first entry.
//!
//! ```text
//! in an inode:  magic u32 | entry | entry | 0 u32 |   free   | value | value
//! in a block:   header 32 | entry | entry | 0 u32 |   free   | value | value
//! entry:        name_len u8 | index u8 | value_offs u16 | value_inum u32 | value_size u32
//!               | hash u32 | name without prefix | pad to 4
//! ```
//!
//! A name's prefix is stored as a number ([`NameIndex`]). A value too large for the block is the
//! content of an inode of its own, `value_inum` (feature `ea_inode`).
//!
//! Blocks may be shared by inodes with equal attributes; a block with equal attributes is found by
//! its hash. The hash of an entry is computed from its name and value, that of a block from the
//! hashes of its entries in order.
//!
//! **Invariants.** In a checked area the entries and the terminator are inside, names contain no
//! NUL, and each value is after the terminator and ends, padded, inside the area. Two entries may
//! refer to the same bytes as their values, which is harmless for a reader.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Extended Attributes".

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{ChecksumMismatch, ChecksumSeed};
use crate::dirhash::CharSign;
use crate::inode::RawInode;
use crate::types::{InodeNr, PhysBlock};
use crate::words::low32;

mod edit;
mod share;

pub use share::{REFCOUNT, SharedContent, put_users, users};

pub(crate) use edit::shift_start;
pub use edit::{
    BlockRoom, MAX_NAME_BYTES, NewValue, Placement, Was, XattrEditError, XattrsMut, place,
};

/// Value of `h_magic`, in inodes and in blocks.
pub const MAGIC: u32 = 0xEA02_0000;
/// The maximum number of inodes that may share a block.
pub const MAX_BLOCK_REFS: u32 = 1024;
/// The largest value in bytes.
pub const MAX_VALUE_BYTES: u32 = 1 << 24;

const HEADER_BYTES: usize = size_of::<RawBlockHeader>();
const ENTRY_BYTES: usize = size_of::<RawEntry>();
const MAGIC_BYTES: usize = 4;
/// The four zero bytes after the last entry.
const TERMINATOR_BYTES: usize = 4;
/// Names and values are padded to a multiple of this.
const PAD: usize = 4;

/// The header of a block of attributes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawBlockHeader {
    /// 0x0: [`MAGIC`].
    pub h_magic: U32,
    /// 0x4: inodes that use the block.
    pub h_refcount: U32,
    /// 0x8: 1.
    pub h_blocks: U32,
    /// 0xC: hash of all entries; 0 means that the block must not be shared.
    pub h_hash: U32,
    /// 0x10: checksum of the block's number and content.
    pub h_checksum: U32,
    /// 0x14: 0.
    pub h_reserved: [U32; 3],
}

/// An entry, without the name after it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawEntry {
    /// 0x0: length of the name in bytes, without prefix.
    pub e_name_len: u8,
    /// 0x1: the name's prefix.
    pub e_name_index: u8,
    /// 0x2: the offset of the value.
    pub e_value_offs: U16,
    /// 0x4: the inode that holds the value, or 0.
    pub e_value_inum: U32,
    /// 0x8: length of the value in bytes.
    pub e_value_size: U32,
    /// 0xC: hash of name and value; inside an inode it may be 0.
    pub e_hash: U32,
}

const _: () = {
    assert!(HEADER_BYTES == 32);
    assert!(ENTRY_BYTES == 16);
    assert!(std::mem::offset_of!(RawBlockHeader, h_checksum) == 0x10);
    assert!(std::mem::offset_of!(RawEntry, e_hash) == 0xC);
};

/// An error in an area of attributes. Entries are identified by their offset in the area.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrError {
    /// The area is too short for a header and a terminator.
    #[error("xattrs: {found} bytes, expected at least {expected}")]
    TooShort {
        /// Bytes of the area.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// The area has a wrong magic number.
    #[error("xattrs: h_magic is {found:#010x}, expected {MAGIC:#010x}")]
    Magic {
        /// Value of `h_magic`.
        found: u32,
    },
    /// A block whose `h_blocks` is not 1.
    #[error("xattr block: h_blocks is {found}, expected 1")]
    Blocks {
        /// Value of `h_blocks`.
        found: u32,
    },
    /// A block with an impossible number of inodes that use it.
    #[error("xattr block: h_refcount is {found}, expected 1 to {MAX_BLOCK_REFS}")]
    Users {
        /// Value of `h_refcount`.
        found: u32,
    },
    /// The checksum does not match the block.
    #[error("xattr block: {0}")]
    Checksum(#[from] ChecksumMismatch),
    /// An entry that leaves no space for the terminator.
    #[error("xattr entry at byte {at}: ends at byte {found}, expected at most {expected}")]
    EntryEnd {
        /// The offset of the entry.
        at: usize,
        /// Its end.
        found: usize,
        /// The maximum of its end.
        expected: usize,
    },
    /// A name with a NUL.
    #[error("xattr entry at byte {at}: name has a NUL at {position}")]
    NameByte {
        /// The offset of the entry.
        at: usize,
        /// Position in the name.
        position: usize,
    },
    /// A value in an inode, although the file system does not have the feature `ea_inode`.
    #[error("xattr entry at byte {at}: e_value_inum is {found}, expected 0 without ea_inode")]
    NoEaInodes {
        /// The offset of the entry.
        at: usize,
        /// Value of `e_value_inum`.
        found: InodeNr,
    },
    /// A value in an inode that does not exist.
    #[error("xattr entry at byte {at}: e_value_inum is {found}, expected {first} to {last}")]
    ValueInode {
        /// The offset of the entry.
        at: usize,
        /// Value of `e_value_inum`.
        found: InodeNr,
        /// The first valid inode.
        first: InodeNr,
        /// The last valid inode.
        last: InodeNr,
    },
    /// A value larger than the maximum.
    #[error("xattr entry at byte {at}: e_value_size is {found}, expected at most {max}")]
    ValueSize {
        /// The offset of the entry.
        at: usize,
        /// Value of `e_value_size`.
        found: u32,
        /// The largest value.
        max: u32,
    },
    /// A value that overlaps the entries or extends past the end.
    #[error(
        "xattr entry at byte {at}: e_value_offs is {found} for {size} bytes, \
         expected inside {first}..{end}"
    )]
    ValueOffset {
        /// The offset of the entry.
        at: usize,
        /// Value of `e_value_offs`.
        found: usize,
        /// Bytes of the value.
        size: u32,
        /// The first possible offset of a value.
        first: usize,
        /// One past the last.
        end: usize,
    },
    /// Two values that share bytes, one of which must be moved.
    #[error("xattr entry at byte {at}: its value shares bytes with that of the entry at {other}")]
    SharedValue {
        /// The offset of the entry.
        at: usize,
        /// The offset of the other entry.
        other: usize,
    },
}

/// The inodes that may hold values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EaInodes {
    /// None: the file system is without the feature `ea_inode`.
    Absent,
    /// Those from the first unreserved one to the last one.
    Between {
        /// `s_first_ino`.
        first: InodeNr,
        /// `s_inodes_count`.
        last: InodeNr,
    },
}

/// The prefix of a name, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameIndex(pub u8);

impl NameIndex {
    /// `user.`
    pub const USER: Self = Self(1);
    /// `system.posix_acl_access`, a complete name.
    pub const POSIX_ACL_ACCESS: Self = Self(2);
    /// `system.posix_acl_default`, a complete name.
    pub const POSIX_ACL_DEFAULT: Self = Self(3);
    /// `trusted.`
    pub const TRUSTED: Self = Self(4);
    /// `security.`
    pub const SECURITY: Self = Self(6);
    /// `system.`
    pub const SYSTEM: Self = Self(7);
    /// `system.richacl`, a complete name.
    pub const RICHACL: Self = Self(8);
    /// The encryption context, which is not listed to users.
    pub const ENCRYPTION: Self = Self(9);
    /// `gnu.`, the attributes of the Hurd.
    pub const HURD: Self = Self(10);

    const PREFIXES: [(Self, &'static str); 8] = [
        (Self::USER, "user."),
        (Self::POSIX_ACL_ACCESS, "system.posix_acl_access"),
        (Self::POSIX_ACL_DEFAULT, "system.posix_acl_default"),
        (Self::TRUSTED, "trusted."),
        (Self::SECURITY, "security."),
        (Self::RICHACL, "system.richacl"),
        (Self::SYSTEM, "system."),
        (Self::HURD, "gnu."),
    ];

    /// The prefix with this number; `None` for a number that names listed to users cannot have.
    #[must_use]
    pub fn prefix(self) -> Option<&'static str> {
        Self::PREFIXES
            .iter()
            .find(|(index, _)| *index == self)
            .map(|(_, prefix)| *prefix)
    }

    /// Splits a full name into the number of its prefix and the rest that is stored; `None` if it
    /// has no known prefix, or nothing after a prefix that needs a rest.
    #[must_use]
    pub fn split(name: &[u8]) -> Option<(Self, &[u8])> {
        Self::PREFIXES.iter().find_map(|(index, prefix)| {
            let rest = name.strip_prefix(prefix.as_bytes())?;
            // A prefix that ends in a dot needs a rest, one that is a complete name allows none.
            (prefix.ends_with('.') != rest.is_empty()).then_some((*index, rest))
        })
    }
}

/// The value of an attribute, or its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The bytes of the value.
    Inline(&'a [u8]),
    /// The value is the content of an inode.
    Inode {
        /// The inode.
        inode: InodeNr,
        /// Its length in bytes.
        bytes: u32,
    },
}

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The offset of the entry from the start of the area, in bytes.
    pub at: usize,
    /// The prefix of the name.
    pub index: NameIndex,
    /// The name without the prefix.
    pub name: &'a [u8],
    /// The value, or its location.
    pub value: Value<'a>,
    /// `e_hash`: see [`entry_hash`].
    pub hash: u32,
}

/// An area of attributes: inside an inode or a block.
#[derive(Clone, Copy, Debug)]
pub struct Xattrs<'a> {
    area: &'a [u8],
    /// The offset of the first entry.
    entries_at: usize,
    /// The base of value offsets.
    values_from: usize,
}

impl<'a> Xattrs<'a> {
    /// The attributes inside an inode: `area` is the part after the fixed fields, up to the end of
    /// the inode. Without the magic number there are none, whatever the other bytes are.
    #[must_use]
    pub fn in_inode(area: &'a [u8]) -> Self {
        match U32::ref_from_prefix(area) {
            Ok((magic, _)) if magic.get() == MAGIC => Self {
                area,
                entries_at: MAGIC_BYTES,
                values_from: MAGIC_BYTES,
            },
            _ => Self {
                area: &[],
                entries_at: 0,
                values_from: 0,
            },
        }
    }

    /// The attributes in a block.
    ///
    /// # Errors
    /// Only if the magic is missing or the block too short for a header.
    pub fn in_block(block: &'a [u8]) -> Result<Self, XattrError> {
        let header = block_header(block)?;
        if header.h_magic.get() != MAGIC {
            return Err(XattrError::Magic {
                found: header.h_magic.get(),
            });
        }
        Ok(Self {
            area: block,
            entries_at: HEADER_BYTES,
            values_from: 0,
        })
    }

    /// The entries in order.
    #[must_use]
    pub fn entries(&self) -> Entries<'a> {
        Entries {
            xattrs: *self,
            at: self.entries_at,
        }
    }

    /// The entry with this name.
    ///
    /// # Errors
    /// If an entry before it is corrupt, which is impossible in a checked area.
    pub fn find(&self, index: NameIndex, name: &[u8]) -> Result<Option<Entry<'a>>, XattrError> {
        for entry in self.entries() {
            let entry = entry?;
            if entry.index == index && entry.name == name {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// The offset in the area of the value of one of its entries; `None` if the value is empty or
    /// in an inode.
    #[must_use]
    pub fn value_place(&self, entry: &Entry<'_>) -> Option<usize> {
        let (raw, _) = RawEntry::ref_from_prefix(self.area.get(entry.at..)?).ok()?;
        let here = raw.e_value_inum.get() == 0 && raw.e_value_size.get() > 0;
        here.then(|| self.values_from + usize::from(raw.e_value_offs.get()))
    }

    fn check(&self, ea_inodes: EaInodes) -> Result<(), XattrError> {
        if self.area.is_empty() {
            return Ok(());
        }
        let expected = self.entries_at + TERMINATOR_BYTES;
        if self.area.len() < expected {
            return Err(XattrError::TooShort {
                found: self.area.len(),
                expected,
            });
        }
        let mut raws = self.raw_entries();
        for raw in &mut raws {
            let (at, _, name) = raw?;
            if let Some(position) = name.iter().position(|&byte| byte == 0) {
                return Err(XattrError::NameByte { at, position });
            }
        }
        let first = raws.at + TERMINATOR_BYTES;
        for raw in self.raw_entries() {
            let (at, raw, _) = raw?;
            self.check_value(at, raw, first, ea_inodes)?;
        }
        Ok(())
    }

    fn check_value(
        &self,
        at: usize,
        raw: &RawEntry,
        first: usize,
        ea_inodes: EaInodes,
    ) -> Result<(), XattrError> {
        let (inode, size) = (InodeNr(raw.e_value_inum.get()), raw.e_value_size.get());
        if size > MAX_VALUE_BYTES {
            return Err(XattrError::ValueSize {
                at,
                found: size,
                max: MAX_VALUE_BYTES,
            });
        }
        if inode.0 != 0 {
            return match ea_inodes {
                EaInodes::Absent => Err(XattrError::NoEaInodes { at, found: inode }),
                EaInodes::Between { first, last } if inode < first || inode > last => {
                    Err(XattrError::ValueInode {
                        at,
                        found: inode,
                        first,
                        last,
                    })
                }
                EaInodes::Between { .. } => Ok(()),
            };
        }
        let start = self.values_from + usize::from(raw.e_value_offs.get());
        let end = usize::try_from(size)
            .ok()
            .and_then(|size| start.checked_add(size.next_multiple_of(PAD)));
        let inside = start >= first && end.is_some_and(|end| end <= self.area.len());
        if size == 0 || inside {
            return Ok(());
        }
        let found = usize::from(raw.e_value_offs.get());
        let (first, end) = (first - self.values_from, self.area.len() - self.values_from);
        Err(XattrError::ValueOffset {
            at,
            found,
            size,
            first,
            end,
        })
    }

    fn raw_entries(&self) -> RawEntries<'a> {
        RawEntries {
            area: self.area,
            at: self.entries_at,
        }
    }

    fn value(&self, at: usize, raw: &RawEntry) -> Result<Value<'a>, XattrError> {
        let (inode, bytes) = (InodeNr(raw.e_value_inum.get()), raw.e_value_size.get());
        if inode.0 != 0 {
            return Ok(Value::Inode { inode, bytes });
        }
        if bytes == 0 {
            return Ok(Value::Inline(&[]));
        }
        let found = usize::from(raw.e_value_offs.get());
        let start = self.values_from + found;
        usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.area.get(start..start.checked_add(bytes)?))
            .map(Value::Inline)
            .ok_or(XattrError::ValueOffset {
                at,
                found,
                size: bytes,
                first: self.entries_at.saturating_sub(self.values_from),
                end: self.area.len().saturating_sub(self.values_from),
            })
    }
}

/// The attributes of an area in order.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    xattrs: Xattrs<'a>,
    at: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, XattrError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut raws = RawEntries {
            area: self.xattrs.area,
            at: self.at,
        };
        let decoded = raws.next()?.and_then(|(at, raw, name)| {
            let value = self.xattrs.value(at, raw)?;
            let (index, hash) = (NameIndex(raw.e_name_index), raw.e_hash.get());
            Ok(Entry {
                at,
                index,
                name,
                value,
                hash,
            })
        });
        self.at = raws.at;
        Some(decoded)
    }
}

/// The entries of an area up to the terminator. Their values are not checked.
struct RawEntries<'a> {
    area: &'a [u8],
    at: usize,
}

impl<'a> Iterator for RawEntries<'a> {
    type Item = Result<(usize, &'a RawEntry, &'a [u8]), XattrError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at;
        let rest = self.area.get(at..)?;
        let (terminator, _) = U32::ref_from_prefix(rest).ok()?;
        if terminator.get() == 0 {
            return None;
        }
        let end = self.area.len();
        // After an error the offset of the next entry is unknown.
        self.at = end;
        let too_long = |found| {
            let expected = end.saturating_sub(TERMINATOR_BYTES);
            Some(Err(XattrError::EntryEnd {
                at,
                found,
                expected,
            }))
        };
        let Ok((raw, behind)) = RawEntry::ref_from_prefix(rest) else {
            return too_long(at + ENTRY_BYTES);
        };
        let name_len = usize::from(raw.e_name_len);
        let next = at + ENTRY_BYTES + name_len.next_multiple_of(PAD);
        match behind.get(..name_len) {
            Some(name) if next + TERMINATOR_BYTES <= end => {
                self.at = next;
                Some(Ok((at, raw, name)))
            }
            _ => too_long(next),
        }
    }
}

/// Checks the attributes inside an inode: `area` as for [`Xattrs::in_inode`].
///
/// # Errors
/// The first violated rule.
pub fn check_in_inode(area: &[u8], ea_inodes: EaInodes) -> Result<(), XattrError> {
    Xattrs::in_inode(area).check(ea_inodes)
}

/// Checks a block of attributes; with `metadata_csum` also its checksum, which covers the number
/// of the block.
///
/// # Errors
/// The first violated rule.
pub fn check_block(
    block: &[u8],
    at: PhysBlock,
    ea_inodes: EaInodes,
    seed: Option<ChecksumSeed>,
) -> Result<(), XattrError> {
    let xattrs = Xattrs::in_block(block)?;
    let header = block_header(block)?;
    if header.h_blocks.get() != 1 {
        return Err(XattrError::Blocks {
            found: header.h_blocks.get(),
        });
    }
    if let Some(seed) = seed {
        ChecksumMismatch::check(header.h_checksum.get(), checksum(block, at, seed))?;
    }
    xattrs.check(ea_inodes)
}

/// Writes the checksum of a block of attributes.
///
/// # Errors
/// If the block is too short for a header.
pub fn seal_block(block: &mut [u8], at: PhysBlock, seed: ChecksumSeed) -> Result<(), XattrError> {
    block_header(block)?;
    let value = checksum(block, at, seed);
    if let Ok((header, _)) = RawBlockHeader::mut_from_prefix(block) {
        header.h_checksum = value.into();
    }
    Ok(())
}

/// The header of a block of attributes.
///
/// # Errors
/// If the block is too short for one.
pub fn block_header(block: &[u8]) -> Result<&RawBlockHeader, XattrError> {
    RawBlockHeader::ref_from_prefix(block)
        .map(|(header, _)| header)
        .map_err(|_| XattrError::TooShort {
            found: block.len(),
            expected: HEADER_BYTES,
        })
}

/// Sets the reference count of a copy of a shared block of attributes to 1.
pub fn set_single_user(block: &mut [u8]) {
    if let Ok((header, _)) = RawBlockHeader::mut_from_prefix(block) {
        header.h_refcount = 1.into();
    }
}

/// Decrements the reference count of a block of attributes, and returns the new count.
pub fn drop_user(block: &mut [u8]) -> u32 {
    let Ok((header, _)) = RawBlockHeader::mut_from_prefix(block) else {
        return 0;
    };
    let left = header.h_refcount.get().saturating_sub(1);
    header.h_refcount = left.into();
    left
}

/// Increments the reference count of a block of attributes.
pub fn add_user(block: &mut [u8]) {
    if let Ok((header, _)) = RawBlockHeader::mut_from_prefix(block) {
        header.h_refcount = header.h_refcount.get().saturating_add(1).into();
    }
}

fn checksum(block: &[u8], at: PhysBlock, seed: ChecksumSeed) -> u32 {
    let field = std::mem::offset_of!(RawBlockHeader, h_checksum);
    let (before, rest) = block.split_at(field.min(block.len()));
    let after = rest.get(4..).unwrap_or(&[]);
    seed.start()
        .update_le64(at.0)
        .update(before)
        .update_le32(0)
        .update(after)
        .value()
}

/// The input of the hash of an entry for its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashedValue<'a> {
    /// A value in the block: its bytes.
    Inline(&'a [u8]),
    /// A value in an inode: the checksum that the inode stores, [`EaInode::value_hash`].
    Inode(u32),
}

/// The hash of an entry.
///
/// Linux treats the bytes of the name as unsigned since 6.2, and as the machine's `char` before.
/// Both forms exist on disk, so a reader that verifies hashes must accept both.
#[must_use]
pub fn entry_hash(name: &[u8], value: HashedValue<'_>, chars: CharSign) -> u32 {
    let hash = name.iter().fold(0_u32, |hash, &byte| {
        let byte = match chars {
            CharSign::Signed => i32::from(byte.cast_signed()).cast_unsigned(),
            CharSign::Unsigned => byte.into(),
        };
        hash.rotate_left(5) ^ byte
    });
    let mix = |hash: u32, word: u32| hash.rotate_left(16) ^ word;
    match value {
        HashedValue::Inode(checksum) => mix(hash, checksum),
        HashedValue::Inline(bytes) => bytes.chunks(4).fold(hash, |hash, chunk| {
            let mut word = [0; 4];
            word.iter_mut()
                .zip(chunk)
                .for_each(|(to, from)| *to = *from);
            mix(hash, u32::from_le_bytes(word))
        }),
    }
}

/// The hash of a block, computed from the hashes of its entries in order. If one of them is 0, it
/// is 0, which means that the block must not be shared.
#[must_use]
pub fn block_hash(entry_hashes: impl IntoIterator<Item = u32>) -> u32 {
    entry_hashes
        .into_iter()
        .try_fold(0_u32, |hash, entry| {
            (entry != 0).then(|| hash.rotate_left(16) ^ entry)
        })
        .unwrap_or(0)
}

/// The properties of an inode that holds a value, which are stored in fields that otherwise hold
/// times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EaInode {
    /// The reference count: high half in `i_ctime`, low half in `l_i_version`.
    pub refs: u64,
    /// Checksum of the value, in `i_atime`: see [`EaInode::hash_of`].
    pub value_hash: u32,
    /// In `i_mtime`, the only inode that uses the value, if Lustre wrote it. Such a value (this
    /// inode is the one that uses it, and their generations are equal) has no hash to verify.
    pub lustre_parent: InodeNr,
}

impl EaInode {
    /// Reads the fields of the inode.
    #[must_use]
    pub fn of(inode: &RawInode) -> Self {
        let (high, low) = (inode.i_ctime.get(), inode.i_version.get());
        Self {
            refs: u64::from(high) << 32 | u64::from(low),
            value_hash: inode.i_atime.get(),
            lustre_parent: InodeNr(inode.i_mtime.get()),
        }
    }

    /// Writes the fields of the inode.
    pub fn put(&self, inode: &mut RawInode) {
        (inode.i_ctime, inode.i_version) = (low32(self.refs >> 32), low32(self.refs));
        inode.i_atime = self.value_hash.into();
        inode.i_mtime = self.lustre_parent.0.into();
    }

    /// The checksum of a value. It is used to find equal values, so it does not depend on the
    /// inode.
    #[must_use]
    pub fn hash_of(value: &[u8], seed: ChecksumSeed) -> u32 {
        seed.start().update(value).value()
    }
}

#[cfg(test)]
mod tests;
