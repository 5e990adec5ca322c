//! **Purpose.** Whose usage changes, and by how much.

use fourscore_ondisk::quota::QuotaKind;

/// The user, group or project that uses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(super) kind: QuotaKind,
    pub(super) id: u32,
}

/// A change of usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(super) bytes: i64,
    pub(super) inodes: i64,
}

impl Usage {
    pub(super) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }

    pub(super) fn negated(self) -> Self {
        Self {
            bytes: self.bytes.saturating_neg(),
            inodes: self.inodes.saturating_neg(),
        }
    }

    /// The parts that grow.
    pub(super) fn taken(self) -> Self {
        Self {
            bytes: self.bytes.max(0),
            inodes: self.inodes.max(0),
        }
    }

    /// The parts that shrink.
    pub(super) fn given_back(self) -> Self {
        Self {
            bytes: self.bytes.min(0),
            inodes: self.inodes.min(0),
        }
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }
}
