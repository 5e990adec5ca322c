//! **Purpose.** The superblock: what the file system is, how large its parts are, and what
//! happened to it.
//!
//! | module | responsibility |
//! |---|---|
//! | `raw` | the 1024 bytes |
//! | `parse` | the checks between bytes and [`Superblock`] |
//! | `fields` | accessors for everything dumpe2fs shows |
//! | `values` | the types of fields: flags, policies, the journal's place |
//! | `backup` | the copy of the journal's inode |
//! | `error` | why a superblock is not accepted |
//!
//! **Not here.** Where things are: [`Geometry`], which a superblock
//! owns.
//!
//! **Invariants.** A `Superblock` exists only for a file system that can be read: all features
//! are known or harmless, sizes fit each other, the checksum is right where there is one. Fields
//! that are wrong and that reading does not depend on are told by [`Superblock::faults`]; the
//! accessors treat them as if they named nothing, so inodes and blocks that they give exist. Free
//! and reserved counts are hints from the last clean unmount and are *not* checked: the sums of
//! the descriptors are the truth.
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

/// Where the primary superblock starts on the device, in bytes, whatever the block size.
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

    /// What is wrong with fields that reading does not depend on: `e2fsck` repairs them, and
    /// nothing may be written before. A journal, quota file, orphan file or MMP block that is named
    /// wrongly is treated as absent, and `s_first_meta_bg` as the greatest value that it can have.
    #[must_use]
    pub fn faults(&self) -> &[SuperblockError] {
        &self.faults
    }

    /// Sizes, counts and places.
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
