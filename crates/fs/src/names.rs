//! **Purpose.** How names in a directory are compared, hashed and shown: as they are, without
//! regard to case, or encrypted.

use std::borrow::Cow;

use crate::Fs;
use crate::inode::CachedInode;

/// The rules for names of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Bytes.
    Exact,
}

impl Names {
    pub(crate) fn of(_dir: &CachedInode, _fs: &Fs) -> Self {
        Self::Exact
    }

    /// Whether the hash of a name can be computed.
    pub(crate) fn can_be_hashed(self) -> bool {
        true
    }

    /// Whether names that differ in case are the same.
    pub(crate) fn fold_case(self) -> bool {
        false
    }

    /// Whether the name `stored` is the one a user calls `wanted`.
    pub(crate) fn matches(self, stored: &[u8], wanted: &[u8]) -> bool {
        stored == wanted
    }

    /// What is hashed for a name.
    pub(crate) fn hashed_form(self, name: &[u8]) -> Cow<'_, [u8]> {
        Cow::Borrowed(name)
    }

    /// A stored name as a user sees it; `room` holds it where it differs.
    pub(crate) fn show<'a>(self, stored: &'a [u8], _room: &'a mut Vec<u8>) -> &'a [u8] {
        stored
    }
}
