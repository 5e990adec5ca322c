//! **Purpose.** POSIX access control lists: conversion between the form that ext4 stores, typed
//! entries, and the form of Linux's extended attributes.
//!
//! **Model.** Both forms are a version and entries. If the tag needs no id, ext4 omits it, and the
//! attribute has all ones there.
//!
//! ```text
//! on disk    version 1 u32 | tag u16, perm u16 [, id u32] | ...
//! attribute  version 2 u32 | tag u16, perm u16,  id u32   | ...
//! ```
//!
//! **Invariants.** A list that passes [`check`] has exactly one entry each for the owner, the
//! owning group and others, and at most one mask, which is mandatory if there are named users or
//! groups. Entries are in the order of their tags.
//!
//! The module `mode` converts between lists and permission bits.
//!
//! **References.** acl(5); POSIX 1003.1e draft 17, section 23.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod mode;

pub use mode::{Asker, Says, chmod, grants, inherit, mode_of};

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
const HEADER_BYTES: usize = size_of::<U32>();
const SHORT_BYTES: usize = size_of::<RawShort>();
const LONG_BYTES: usize = size_of::<RawLong>();
/// The id in the attribute of an entry without id.
const NO_ID: u32 = u32::MAX;
const READ_WRITE_EXECUTE: u16 = 7;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// An entry on disk without id.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawShort {
    /// 0x0: the tag, which is the kind of user or group.
    e_tag: U16,
    /// 0x2: the permissions.
    e_perm: U16,
}

/// An entry on disk with an id, and any entry of the attribute.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawLong {
    /// 0x0: the tag, which is the kind of user or group.
    e_tag: U16,
    /// 0x2: the permissions.
    e_perm: U16,
    /// 0x4: the id of the user or group.
    e_id: U32,
}

const _: () = assert!(SHORT_BYTES == 4 && LONG_BYTES == 8);

/// What is wrong with an access control list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// The bytes end inside of the header or of an entry.
    #[error("ACL entry {entry}: {found} bytes left, expected {expected}")]
    TooShort {
        /// Position of the entry; the header counts as part of the first.
        entry: usize,
        /// Bytes left.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// A version other than that of this form.
    #[error("ACL: version is {found}, expected {expected}")]
    Version {
        /// Value of the version.
        found: u32,
        /// The version of this form.
        expected: u32,
    },
    /// A tag that does not exist.
    #[error("ACL entry {entry}: e_tag is {found:#x}, expected 0x1, 0x2, 0x4, 0x8, 0x10 or 0x20")]
    Tag {
        /// Position of the entry.
        entry: usize,
        /// Value of `e_tag`.
        found: u16,
    },
    /// A permission that does not exist.
    #[error("ACL entry {entry}: e_perm is {found:#x}, expected at most {READ_WRITE_EXECUTE:#x}")]
    Permissions {
        /// Position of the entry.
        entry: usize,
        /// Value of `e_perm`.
        found: u16,
    },
    /// Entries in the wrong order, or a duplicate entry.
    #[error("ACL entry {entry}: {found:?} may not follow {previous:?}")]
    Order {
        /// Position of the entry.
        entry: usize,
        /// The kind of the entry.
        found: AclWho,
        /// The kind of the entry before it.
        previous: AclWho,
    },
    /// The id of an entry without id, in an entry that needs one.
    #[error("ACL entry {entry}: for {found:?}, expected an id other than {NO_ID}")]
    Id {
        /// Position of the entry.
        entry: usize,
        /// The kind of the entry.
        found: AclWho,
    },
    /// A mandatory entry is missing.
    #[error("ACL: no entry for {expected:?}")]
    Missing {
        /// The kind of the entry.
        expected: AclWho,
    },
}

/// The kind of user or group of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclWho {
    /// The file's owner.
    Owner,
    /// A user, by id.
    User(u32),
    /// The file's group.
    OwningGroup,
    /// A group, by id.
    Group(u32),
    /// The mask: the maximum permissions of named users, groups and the owning group.
    Mask,
    /// Others.
    Other,
}

impl AclWho {
    fn tag(self) -> u16 {
        match self {
            Self::Owner => USER_OBJ,
            Self::User(_) => USER,
            Self::OwningGroup => GROUP_OBJ,
            Self::Group(_) => GROUP,
            Self::Mask => MASK,
            Self::Other => OTHER,
        }
    }

    fn id(self) -> Option<u32> {
        match self {
            Self::User(id) | Self::Group(id) => Some(id),
            Self::Owner | Self::OwningGroup | Self::Mask | Self::Other => None,
        }
    }

    /// Whether an entry for `self` may follow one for `previous`.
    fn may_follow(self, previous: Self) -> bool {
        self.tag() > previous.tag() || (self.tag() == previous.tag() && self.id().is_some())
    }
}

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The kind of user or group.
    pub who: AclWho,
    /// The permissions: read 4, write 2, execute 1.
    pub permissions: u16,
}

impl AclEntry {
    fn decode(entry: usize, tag: u16, permissions: u16, id: u32) -> Result<Self, AclError> {
        let who = match tag {
            USER_OBJ => AclWho::Owner,
            USER => AclWho::User(id),
            GROUP_OBJ => AclWho::OwningGroup,
            GROUP => AclWho::Group(id),
            MASK => AclWho::Mask,
            OTHER => AclWho::Other,
            found => return Err(AclError::Tag { entry, found }),
        };
        if permissions > READ_WRITE_EXECUTE {
            return Err(AclError::Permissions {
                entry,
                found: permissions,
            });
        }
        Ok(Self { who, permissions })
    }

    fn put(self, form: Form, out: &mut Vec<u8>) {
        out.extend(self.who.tag().to_le_bytes());
        out.extend(self.permissions.to_le_bytes());
        match (self.who.id(), form) {
            (Some(id), _) => out.extend(id.to_le_bytes()),
            (None, Form::Xattr) => out.extend(NO_ID.to_le_bytes()),
            (None, Form::Disk) => {}
        }
    }
}

/// The form of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Disk,
    Xattr,
}

/// The entries of a list in order. The iterator ends after an error.
#[derive(Clone, Debug)]
pub struct AclEntries<'a> {
    rest: &'a [u8],
    entry: usize,
    form: Form,
}

impl Iterator for AclEntries<'_> {
    type Item = Result<AclEntry, AclError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        let entry = self.entry;
        self.entry += 1;
        let too_short = |expected| {
            Some(Err(AclError::TooShort {
                entry,
                found: rest.len(),
                expected,
            }))
        };
        let Ok((short, behind_short)) = RawShort::ref_from_prefix(rest) else {
            return too_short(SHORT_BYTES);
        };
        let is_long = self.form == Form::Xattr || matches!(short.e_tag.get(), USER | GROUP);
        let (id, behind) = if is_long {
            let Ok((id, behind)) = U32::ref_from_prefix(behind_short) else {
                return too_short(LONG_BYTES);
            };
            (id.get(), behind)
        } else {
            (NO_ID, behind_short)
        };
        let decoded = AclEntry::decode(entry, short.e_tag.get(), short.e_perm.get(), id);
        if decoded.is_ok() {
            self.rest = behind;
        }
        Some(decoded)
    }
}

/// The entries of a list as ext4 stores it. A list without entries means the same as none.
///
/// # Errors
/// If the header is missing or of another version.
pub fn from_disk(value: &[u8]) -> Result<AclEntries<'_>, AclError> {
    entries(value, Form::Disk, DISK_VERSION)
}

/// The entries of a list in the form of the attributes `system.posix_acl_*` of Linux.
///
/// # Errors
/// If the header is missing or of another version.
pub fn from_xattr(value: &[u8]) -> Result<AclEntries<'_>, AclError> {
    entries(value, Form::Xattr, XATTR_VERSION)
}

/// The form of the attributes of Linux, from the form on disk.
///
/// # Errors
/// If the value on disk is not a list.
pub fn disk_to_xattr(value: &[u8]) -> Result<Vec<u8>, AclError> {
    encode(from_disk(value)?, Form::Xattr, XATTR_VERSION)
}

/// The form on disk, from the form of the attributes of Linux.
///
/// # Errors
/// If the value of the attribute is not a list.
pub fn xattr_to_disk(value: &[u8]) -> Result<Vec<u8>, AclError> {
    encode(from_xattr(value)?, Form::Disk, DISK_VERSION)
}

/// The form on disk of a list.
#[must_use]
pub fn to_disk(list: &[AclEntry]) -> Vec<u8> {
    let mut out = DISK_VERSION.to_le_bytes().to_vec();
    list.iter()
        .for_each(|entry| entry.put(Form::Disk, &mut out));
    out
}

/// Checks that the entries are a valid list for a file.
///
/// # Errors
/// The first violated rule, or the first invalid entry.
pub fn check(entries: AclEntries<'_>) -> Result<(), AclError> {
    let mut previous: Option<AclWho> = None;
    let (mut owner, mut group, mut other) = (false, false, false);
    let (mut named, mut mask) = (false, false);
    for (entry, decoded) in entries.enumerate() {
        let found = decoded?.who;
        if let Some(previous) = previous.filter(|&previous| !found.may_follow(previous)) {
            return Err(AclError::Order {
                entry,
                found,
                previous,
            });
        }
        previous = Some(found);
        if found.id() == Some(NO_ID) {
            return Err(AclError::Id { entry, found });
        }
        match found {
            AclWho::Owner => owner = true,
            AclWho::OwningGroup => group = true,
            AclWho::Other => other = true,
            AclWho::Mask => mask = true,
            AclWho::User(_) | AclWho::Group(_) => named = true,
        }
    }
    let needed = [
        (owner, AclWho::Owner),
        (group, AclWho::OwningGroup),
        (mask || !named, AclWho::Mask),
        (other, AclWho::Other),
    ];
    match needed.into_iter().find(|(is_there, _)| !is_there) {
        Some((_, expected)) => Err(AclError::Missing { expected }),
        None => Ok(()),
    }
}

fn entries(value: &[u8], form: Form, expected: u32) -> Result<AclEntries<'_>, AclError> {
    let (version, rest) = U32::ref_from_prefix(value).map_err(|_| AclError::TooShort {
        entry: 0,
        found: value.len(),
        expected: HEADER_BYTES,
    })?;
    if version.get() != expected {
        return Err(AclError::Version {
            found: version.get(),
            expected,
        });
    }
    Ok(AclEntries {
        rest,
        entry: 0,
        form,
    })
}

fn encode(entries: AclEntries<'_>, form: Form, version: u32) -> Result<Vec<u8>, AclError> {
    let mut out = version.to_le_bytes().to_vec();
    for entry in entries {
        entry?.put(form, &mut out);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `u::rw-,u:1000:r--,g::r--,g:7:r-x,m::r-x,o::---` on disk.
    const DISK: &[u8] = &[
        1, 0, 0, 0, // version
        1, 0, 6, 0, // owner
        2, 0, 4, 0, 0xe8, 3, 0, 0, // user 1000
        4, 0, 4, 0, // owning group
        8, 0, 5, 0, 7, 0, 0, 0, // group 7
        16, 0, 5, 0, // mask
        32, 0, 0, 0, // other
    ];

    fn list(value: &[u8]) -> Result<Vec<AclEntry>, AclError> {
        from_disk(value)?.collect()
    }

    #[test]
    fn entries_of_both_kinds() {
        let found: Vec<_> = list(DISK)
            .unwrap()
            .iter()
            .map(|e| (e.who, e.permissions))
            .collect();
        let expected = [
            (AclWho::Owner, 6),
            (AclWho::User(1000), 4),
            (AclWho::OwningGroup, 4),
            (AclWho::Group(7), 5),
            (AclWho::Mask, 5),
            (AclWho::Other, 0),
        ];
        assert_eq!(found, expected);
        check(from_disk(DISK).unwrap()).unwrap();
    }

    #[test]
    fn the_attribute_has_an_id_in_each_entry() {
        let xattr = disk_to_xattr(DISK).unwrap();
        assert_eq!(xattr.len(), 4 + 6 * 8);
        assert_eq!(xattr[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(xattr[12..20], [2, 0, 4, 0, 0xe8, 3, 0, 0]);
        assert_eq!(xattr_to_disk(&xattr).unwrap(), DISK);
        check(from_xattr(&xattr).unwrap()).unwrap();
    }

    #[test]
    fn corrupt_lists_are_named() {
        let with = |at: usize, byte: u8| {
            let mut value = DISK.to_vec();
            value[at] = byte;
            list(&value).unwrap_err()
        };
        assert_eq!(
            with(0, 2),
            AclError::Version {
                found: 2,
                expected: 1
            }
        );
        assert_eq!(with(4, 3), AclError::Tag { entry: 0, found: 3 });
        assert_eq!(with(6, 8), AclError::Permissions { entry: 0, found: 8 });
        let short = |entry, found, expected| AclError::TooShort {
            entry,
            found,
            expected,
        };
        assert_eq!(list(&DISK[..3]), Err(short(0, 3, 4)));
        assert_eq!(list(&DISK[..12]), Err(short(1, 4, 8)));
        assert_eq!(list(&DISK[..10]), Err(short(1, 2, 4)));
    }

    #[test]
    fn lists_that_may_not_be_set() {
        let of = |value: &[u8]| check(from_disk(value).unwrap()).unwrap_err();
        let missing = |expected| AclError::Missing { expected };
        assert_eq!(of(&[1, 0, 0, 0]), missing(AclWho::Owner));
        assert_eq!(of(&DISK[..DISK.len() - 4]), missing(AclWho::Other));
        let without_mask = [&DISK[..28], &DISK[32..]].concat();
        assert_eq!(of(&without_mask), missing(AclWho::Mask));
        let twice = [&DISK[..8], &DISK[4..]].concat();
        let (found, previous) = (AclWho::Owner, AclWho::Owner);
        assert_eq!(
            of(&twice),
            AclError::Order {
                entry: 1,
                found,
                previous
            }
        );
        let mut nobody = DISK.to_vec();
        nobody[12..16].fill(255);
        let found = AclWho::User(NO_ID);
        assert_eq!(of(&nobody), AclError::Id { entry: 1, found });
        let minimal = [1, 0, 0, 0, 1, 0, 6, 0, 4, 0, 4, 0, 32, 0, 0, 0];
        check(from_disk(&minimal).unwrap()).unwrap();
        let list = list(DISK).unwrap();
        assert_eq!(to_disk(&list), DISK);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            mut value in proptest::collection::vec(0..40u8, 0..60),
            version in 1..3u8,
        ) {
            if let Some(bytes) = value.get_mut(..4) {
                bytes.copy_from_slice(&[version, 0, 0, 0]);
            }
            if let Ok(xattr) = disk_to_xattr(&value) {
                prop_assert_eq!(xattr_to_disk(&xattr).unwrap(), value.as_slice());
            }
            let _ = disk_to_xattr(&value);
            let _ = xattr_to_disk(&value);
            let _ = from_xattr(&value).map(check);
        }
    }
}
