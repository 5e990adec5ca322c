//! **Purpose.** A name that is looked up, in the form in which it is compared with the stored names
//! of its directory.
//!
//! **Not here.** Which form a directory requires (`dir::names`), and the search (`dir::find`).

use fourscore_ondisk::casefold::FoldedName;
use fourscore_ondisk::crypt::NoKeyName;
use fourscore_ondisk::dirent::{DirFormat, DirentError, Entry};

/// A name that is looked up in one directory.
#[derive(Debug)]
pub(crate) enum Wanted<'n> {
    /// The name with exactly these bytes.
    Exact(&'n [u8]),
    /// Any name that differs in case only.
    Folded(FoldedName<'n>),
    /// The name that has this form without the key.
    NoKey(NoKeyName),
    /// A name that this directory cannot have.
    Impossible,
}

impl Wanted<'_> {
    /// Returns the bytes that the hash of the name is computed of; `None` if they are not known.
    pub(crate) fn hash_input(&self) -> Option<&[u8]> {
        match self {
            Self::Exact(name) => Some(name),
            Self::Folded(name) => Some(name.hash_input()),
            Self::NoKey(_) | Self::Impossible => None,
        }
    }

    /// Whether the name may exist although it is not in the leaf of its hash: another version of
    /// Unicode may have folded it.
    pub(crate) fn hash_may_mislead(&self) -> bool {
        matches!(self, Self::Folded(_))
    }

    /// Whether the entry has this name.
    pub(crate) fn matches(&self, entry: &Entry<'_>) -> bool {
        match self {
            Self::Exact(name) => entry.name == *name,
            Self::Folded(name) => name.matches(entry.name),
            Self::NoKey(name) => name.matches(entry.name),
            Self::Impossible => false,
        }
    }

    /// Returns the entry with this name in a checked block of entries.
    pub(crate) fn find_in<'a>(
        &self,
        format: &DirFormat,
        block: &'a [u8],
    ) -> std::result::Result<Option<Entry<'a>>, DirentError> {
        match self {
            Self::Exact(name) => format.find(block, name),
            _ => format
                .entries(block)
                .find(|entry| entry.as_ref().map_or(true, |entry| self.matches(entry)))
                .transpose(),
        }
    }
}
