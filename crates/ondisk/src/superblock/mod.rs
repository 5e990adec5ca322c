//! **Purpose.** The superblock: identity, features, sizes and state of the file system.
//!
//! | module | responsibility |
//! |---|---|
//! | `raw` | the 1024 bytes |
//! | `parse` | the checks of the bytes, which make a [`Superblock`] |
//! | `fields` | accessors for all that dumpe2fs prints |
//! | `values` | the types of fields: flags, policies, the journal's place |
//! | `backup` | the copy of the journal's inode |
//! | `error` | the errors of the checks |
//!
//! **Not here.** The layout: [`Geometry`], which a superblock owns.
//!
//! **Invariants.** A `Superblock` exists only for a file system that can be read: all features are
//! known or harmless, sizes are consistent, the checksum is correct if there is one.
//! [`Superblock::faults`] lists invalid fields that reading does not depend on. Accessors treat
//! these as absent, so inodes and blocks that they return exist. Free and reserved counts are hints
//! from the last clean unmount and are *not* checked: the sums of the descriptors are
//! authoritative.
//!
//! **References.** Documentation/filesystems/ext4/super.rst of the kernel.

mod backup;
mod error;
mod fields;
mod parse;
mod raw;
mod values;

use crate::checksum::ChecksumSeed;
use crate::features::FeatureSet;
use crate::geometry::Geometry;

pub use error::{SuperblockError, SuperblockRejected, UnsupportedFormat};
pub use parse::JournalDevice;
pub use raw::RawSuperblock;
pub use values::{
    CreatorOs, DefaultMountOpts, ErrorPolicy, ErrorRecord, JournalPlace, MetadataChecksum,
    NameEncoding, QuotaInodes, State, SuperFlags,
};

/// The offset of the primary superblock on the device in bytes, for all block sizes.
pub const SUPERBLOCK_OFFSET_BYTES: u64 = 1024;
/// The size of the superblock in bytes.
pub const SUPERBLOCK_SIZE_BYTES: usize = 1024;

/// A checked superblock, with the bytes it came from.
#[derive(Clone, Debug)]
pub struct Superblock {
    raw: RawSuperblock,
    features: FeatureSet,
    geometry: Geometry,
    checksum_seed: ChecksumSeed,
    faults: Vec<SuperblockError>,
}

impl Superblock {
    /// The bytes, as read.
    #[must_use]
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// The features, unknown bits included.
    #[must_use]
    pub fn features(&self) -> FeatureSet {
        self.features
    }

    /// The invalid fields that reading does not depend on. The file system must not be written
    /// before `e2fsck` has repaired them. A journal, quota file, orphan file or MMP block with an
    /// invalid number is treated as absent, and `s_first_meta_bg` as its maximum.
    #[must_use]
    pub fn faults(&self) -> &[SuperblockError] {
        &self.faults
    }

    /// The layout.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The seed of all crc32c of this file system.
    #[must_use]
    pub fn checksum_seed(&self) -> ChecksumSeed {
        self.checksum_seed
    }
}

#[cfg(test)]
mod tests;
