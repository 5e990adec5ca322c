//! **Purpose.** Newtypes for every number with a meaning, so that a group number is never mistaken
//! for a block number.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

number! {
    /// A block of the file system, counted from its first byte in units of the block size.
    PhysBlock(u64)
}
number! {
    /// A block of a file, counted from the file's first byte in units of the block size.
    LogicalBlock(u32)
}
number! {
    /// A block group.
    GroupNr(u32)
}
number! {
    /// A block or cluster inside its group, or an inode inside its group, counted from 0.
    GroupOffset(u32)
}
number! {
    /// An inode number; the first is 1, and 0 means none.
    InodeNr(u32)
}
number! {
    /// A transaction of the journal. Wraps around: compare with [`Tid::is_after`].
    Tid(u32)
}
number! {
    /// A number of blocks.
    BlockCount(u64)
}

impl InodeNr {
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// The journal.
    pub const JOURNAL: Self = Self(8);
}

impl Tid {
    /// Whether this transaction came later than `other`, in the wrapping order of jbd2.
    #[must_use]
    pub fn is_after(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) > 0
    }

    /// The transaction after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// The block size: a power of two from 1 KiB to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u8);

impl BlockSize {
    /// From `s_log_block_size`, which counts from 1 KiB; `None` past 64 KiB.
    #[must_use]
    pub fn from_log(s_log_block_size: u32) -> Option<Self> {
        u8::try_from(s_log_block_size)
            .ok()
            .filter(|&log| log <= 6)
            .map(|log| Self(log + 10))
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        1 << self.0
    }

    /// log2 of the size in bytes, 10 to 16.
    #[must_use]
    pub fn bits(self) -> u32 {
        u32::from(self.0)
    }

    /// The offset of `block` in bytes. Saturates for numbers past the end of any device.
    #[must_use]
    pub fn offset(self, block: PhysBlock) -> u64 {
        block.0.saturating_mul(1 << self.0)
    }
}
