//! **Purpose.** The feature bits of the superblock: sets that keep unknown bits, and the checks
//! that decide whether a file system may be opened.
//!
//! | module | responsibility |
//! |---|---|
//! | [`table`] | the one table: each bit, its name, and read / write / refuse |
//!
//! **Invariants.** Unknown bits are kept, never dropped: a superblock that is written back has
//! the bits it came with. An unknown INCOMPAT bit refuses reading, an unknown RO_COMPAT bit
//! refuses writing, an unknown COMPAT bit refuses nothing.
//!
//! **References.** Documentation/filesystems/ext4/super.rst of the kernel; ext4(5) for the names.

use std::fmt;

pub mod table;

pub use table::{Compat, Incompat, RoCompat};

/// The feature field of the superblock that a bit is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureClass {
    /// `s_feature_compat`: an implementation that does not know the bit may read and write.
    Compat,
    /// `s_feature_incompat`: an implementation that does not know the bit must refuse the file
    /// system.
    Incompat,
    /// `s_feature_ro_compat`: an implementation that does not know the bit may only read.
    RoCompat,
}

impl FeatureClass {
    /// The letter e2fsprogs names unknown bits with, as in `FEATURE_I20`.
    fn letter(self) -> char {
        match self {
            Self::Compat => 'C',
            Self::Incompat => 'I',
            Self::RoCompat => 'R',
        }
    }
}

impl fmt::Display for FeatureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compat => "COMPAT",
            Self::Incompat => "INCOMPAT",
            Self::RoCompat => "RO_COMPAT",
        })
    }
}

/// What fourscore does with a file system that has a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Support {
    /// Refuses to open it.
    Refuse,
    /// Reads it, and refuses to write it.
    Read,
    /// Reads and writes it.
    Write,
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "refuse",
            Self::Read => "read",
            Self::Write => "read, write",
        })
    }
}

/// One line of the feature table.
#[derive(Clone, Copy, Debug)]
pub struct FeatureRow {
    /// The field the bit is in.
    pub class: FeatureClass,
    /// The bit, as a mask.
    pub bit: u32,
    /// The name mke2fs and dumpe2fs use.
    pub name: &'static str,
    /// What fourscore does with it.
    pub support: Support,
    /// A description of the feature, and the reason if it is refused.
    pub note: &'static str,
}

/// All features of one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet {
    /// `s_feature_compat`.
    pub compat: Compat,
    /// `s_feature_incompat`.
    pub incompat: Incompat,
    /// `s_feature_ro_compat`.
    pub ro_compat: RoCompat,
}

impl FeatureSet {
    /// The bits set, in the order dumpe2fs prints them: COMPAT, INCOMPAT, RO_COMPAT, each from
    /// the lowest bit up.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        [
            (FeatureClass::Compat, self.compat.bits()),
            (FeatureClass::Incompat, self.incompat.bits()),
            (FeatureClass::RoCompat, self.ro_compat.bits()),
        ]
        .into_iter()
        .flat_map(|(class, bits)| {
            (0..u32::BITS)
                .map(|shift| 1 << shift)
                .filter(move |bit| bits & bit != 0)
                .map(move |bit| Feature { class, bit })
        })
    }

    /// Whether fourscore can read the file system.
    ///
    /// # Errors
    /// The features that forbid it, all at once.
    pub fn check_reading(self) -> Result<(), UnsupportedFeatures> {
        self.check(Access::Read)
    }

    /// Whether fourscore can write the file system.
    ///
    /// # Errors
    /// The features that forbid it, all at once.
    pub fn check_writing(self) -> Result<(), UnsupportedFeatures> {
        self.check(Access::Write)
    }

    fn check(self, access: Access) -> Result<(), UnsupportedFeatures> {
        let needed = match access {
            Access::Read => Support::Read,
            Access::Write => Support::Write,
        };
        let features: Vec<_> = self.iter().filter(|f| f.support() < needed).collect();
        if features.is_empty() {
            Ok(())
        } else {
            Err(UnsupportedFeatures { access, features })
        }
    }
}

/// One feature bit of one class, known or not. Prints as e2fsprogs names it: `extent`, or
/// `FEATURE_I20` for an unknown bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Feature {
    class: FeatureClass,
    bit: u32,
}

impl Feature {
    /// The field the bit is in.
    #[must_use]
    pub fn class(self) -> FeatureClass {
        self.class
    }

    /// The bit, as a mask.
    #[must_use]
    pub fn bit(self) -> u32 {
        self.bit
    }

    /// Its line in the table; `None` for a bit that is not known.
    #[must_use]
    pub fn row(self) -> Option<&'static FeatureRow> {
        table::rows().find(|row| row.class == self.class && row.bit == self.bit)
    }

    /// What fourscore does with it; for an unknown bit this follows from its class.
    #[must_use]
    pub fn support(self) -> Support {
        match (self.row(), self.class) {
            (Some(row), _) => row.support,
            (None, FeatureClass::Compat) => Support::Write,
            (None, FeatureClass::RoCompat) => Support::Read,
            (None, FeatureClass::Incompat) => Support::Refuse,
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row() {
            Some(row) => f.write_str(row.name),
            None => write!(
                f,
                "FEATURE_{}{}",
                self.class.letter(),
                self.bit.trailing_zeros()
            ),
        }
    }
}

/// The intended access to the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only read.
    Read,
    /// Read and write.
    Write,
}

/// Features of a file system that fourscore cannot read, or cannot write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedFeatures {
    access: Access,
    features: Vec<Feature>,
}

impl UnsupportedFeatures {
    /// The refused access.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The features that forbid it; at least one.
    #[must_use]
    pub fn features(&self) -> &[Feature] {
        &self.features
    }
}

impl fmt::Display for UnsupportedFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.access {
            Access::Read => "read",
            Access::Write => "write",
        };
        write!(f, "features that fourscore cannot {verb}: ")?;
        for (i, feature) in self.features.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{feature} ({} {:#x})", feature.class, feature.bit)?;
        }
        Ok(())
    }
}

impl std::error::Error for UnsupportedFeatures {}

#[cfg(test)]
mod tests;
