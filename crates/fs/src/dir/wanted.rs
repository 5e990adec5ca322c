//! **Purpose.** A name that is looked for, as it is compared in its directory.

use fourscore_ondisk::casefold::FoldedName;
use fourscore_ondisk::crypt::NoKeyName;
use fourscore_ondisk::dirent::{DirFormat, DirentError, Entry};

/// A name that is looked for in one directory.
#[derive(Debug)]
pub(crate) enum Wanted<'n> {
    /// These bytes.
    Exact(&'n [u8]),
    /// Any name that differs in case only.
    Folded(FoldedName<'n>),
    /// The name that has this form without the key.
    NoKey(NoKeyName),
    /// Not a name that this directory could have.
    Impossible,
}

impl Wanted<'_> {
    /// What the hash of the name is taken of; `None` where it cannot be known.
    pub(crate) fn hash_input(&self) -> Option<&[u8]> {
        match self {
            Self::Exact(name) => Some(name),
            Self::Folded(name) => Some(name.hash_input()),
            Self::NoKey(_) | Self::Impossible => None,
        }
    }

    /// Whether a name that its hash does not find may still be there: it may have been folded by
    /// another version of Unicode.
    pub(crate) fn hash_may_mislead(&self) -> bool {
        matches!(self, Self::Folded(_))
    }

    /// Whether this is the entry.
    pub(crate) fn matches(&self, entry: &Entry<'_>) -> bool {
        match self {
            Self::Exact(name) => entry.name == *name,
            Self::Folded(name) => name.matches(entry.name),
            Self::NoKey(name) => name.matches(entry.name),
            Self::Impossible => false,
        }
    }

    /// The entry of a checked block of entries.
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
