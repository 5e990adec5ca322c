//! **Purpose.** Which features can be switched by the superblock alone.
//!
//! **Model.** A feature can be switched on if a file system without anything of its kind is valid
//! with it, and off if nothing on the disk can depend on it. Everything else needs other blocks to
//! be written, or to be read to find out whether it is possible; it is refused with the reason.
//!
//! | feature | on | off |
//! |---|---|---|
//! | `dir_index` | yes: directories are indexed when they grow | no: indexed ones become linear first |
//! | `fast_commit` | with a journal | yes |
//! | `extent`, `flex_bg`, `large_dir`, `ea_inode`, `large_file`, `huge_file`, `dir_nlink`, `verity`, `stable_inodes` | yes | no: files may use it |
//! | `encrypt`, `casefold` | yes, with the usual algorithms | no: files may use it |
//! | `extra_isize` | yes | yes |
//! | `read-only` | yes | yes |
//! | `metadata_csum_seed` | with `metadata_csum` | if the UUID never changed |
//!
//! A feature that is as it is wished is left alone, so those that concern more than the superblock
//! may have been switched before.

use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::checksum::ChecksumSeed;
use fourscore_ondisk::features::{Compat, FeatureClass, FeatureRow, Incompat, RoCompat, table};
use fourscore_ondisk::superblock::Superblock;
use uuid::Uuid;

use crate::error::{FormatError, FormatResult};
use crate::text::canonical_feature;

/// A feature that is switched.
#[derive(Clone, Copy, Debug)]
pub struct FeatureChange {
    row: &'static FeatureRow,
    is_on: bool,
}

impl PartialEq for FeatureChange {
    fn eq(&self, other: &Self) -> bool {
        (self.row.class, self.row.bit, self.is_on) == (other.row.class, other.row.bit, other.is_on)
    }
}

impl FeatureChange {
    /// From the name of a feature, with a leading `^` to switch it off.
    ///
    /// # Errors
    /// `Option` for a name that is not known.
    pub fn parse(word: &str) -> FormatResult<Self> {
        let (name, is_on) = match word.strip_prefix('^') {
            Some(name) => (name, false),
            None => (word.strip_prefix('+').unwrap_or(word), true),
        };
        let canonical = canonical_feature(name);
        let row = table::rows().find(|row| row.name == canonical);
        let wrong =
            || FormatError::option("-O", format!("{name}: there is no feature of this name"));
        let row = row.ok_or_else(wrong)?;
        Ok(Self { row, is_on })
    }

    /// The name of the feature.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.row.name
    }

    /// Whether it is switched on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on
    }
}

const MAY_BE_USED: &str = "cannot be switched off: files may use it";

/// Switches a feature, and sets the fields that go with it. A feature that is as it is wanted is
/// left alone. `hash_seed` is for a file system that gets `dir_index` and has no seed.
pub(super) fn switch(
    raw: &mut RawSuperblock,
    before: &Superblock,
    change: FeatureChange,
    hash_seed: Uuid,
) -> FormatResult<()> {
    // With `metadata_csum`, descriptors have their checksums in any case.
    let is_covered = change.row.name == "uninit_bg" && before.has_metadata_csum();
    if is_set(raw, change.row) == change.is_on || is_covered {
        return Ok(());
    }
    let refused = |why: &str| {
        let why = format!("{}: {why}", change.row.name);
        Err(FormatError::option("-O", why))
    };
    let allowed = match change.is_on {
        true => switch_on(raw, before, change.row.name, hash_seed),
        false => switch_off(before, raw, change.row.name),
    };
    if let Err(why) = allowed {
        return refused(why);
    }
    set(raw, change);
    Ok(())
}

fn switch_on(
    raw: &mut RawSuperblock,
    before: &Superblock,
    name: &str,
    hash_seed: Uuid,
) -> Result<(), &'static str> {
    const HALF_MD4: u8 = 1;
    match name {
        "extent" | "flex_bg" | "large_dir" | "ea_inode" | "large_file" | "huge_file"
        | "dir_nlink" | "extra_isize" | "verity" | "stable_inodes" | "read-only" => Ok(()),
        "dir_index" => {
            if raw.s_def_hash_version == 0 {
                raw.s_def_hash_version = HALF_MD4;
            }
            if raw.s_hash_seed.iter().all(|word| word.get() == 0) {
                raw.s_hash_seed = words(hash_seed).map(Into::into);
            }
            Ok(())
        }
        "fast_commit" if raw.features().compat.contains(Compat::HAS_JOURNAL) => Ok(()),
        "fast_commit" => Err("needs a journal"),
        "encrypt" => {
            // AES-256 in XTS mode for data, and in CTS mode for names.
            raw.s_encrypt_algos[..2].copy_from_slice(&[1, 4]);
            Ok(())
        }
        "casefold" => {
            // Unicode 12.1.
            (raw.s_encoding, raw.s_encoding_flags) = (1.into(), 0.into());
            Ok(())
        }
        "metadata_csum_seed" if before.has_metadata_csum() => {
            raw.s_checksum_seed = before.checksum_seed().value().into();
            Ok(())
        }
        "metadata_csum_seed" => Err("needs checksums (metadata_csum)"),
        _ => Err(not_here(name)),
    }
}

fn switch_off(before: &Superblock, raw: &RawSuperblock, name: &str) -> Result<(), &'static str> {
    match name {
        "fast_commit" | "extra_isize" | "read-only" => Ok(()),
        "metadata_csum_seed" if before.checksum_seed() == ChecksumSeed::from_uuid(&raw.s_uuid) => {
            Ok(())
        }
        "metadata_csum_seed" => Err("cannot be switched off: the UUID was changed since"),
        "extent" | "flex_bg" | "large_dir" | "ea_inode" | "large_file" | "huge_file"
        | "dir_nlink" | "verity" | "stable_inodes" | "encrypt" | "casefold" | "inline_data"
        | "ext_attr" | "filetype" => Err(MAY_BE_USED),
        _ => Err(not_here(name)),
    }
}

/// Why a feature cannot be switched in either direction.
fn not_here(name: &str) -> &'static str {
    match name {
        "metadata_csum" | "uninit_bg" | "has_journal" | "orphan_file" | "quota" | "project"
        | "mmp" | "dir_index" => {
            "is not a change of the superblock alone (fourscore_check::convert)"
        }
        "64bit" => "is a change of the layout (fourscore_resize)",
        "sparse_super" => {
            "cannot be switched here: backups would have to be placed or freed; use tune2fs"
        }
        _ => "can only be chosen when the file system is made",
    }
}

fn is_set(raw: &RawSuperblock, row: &FeatureRow) -> bool {
    let features = raw.features();
    let bits = match row.class {
        FeatureClass::Compat => features.compat.bits(),
        FeatureClass::Incompat => features.incompat.bits(),
        FeatureClass::RoCompat => features.ro_compat.bits(),
    };
    bits & row.bit != 0
}

fn set(raw: &mut RawSuperblock, FeatureChange { row, is_on }: FeatureChange) {
    let mut features = raw.features();
    match row.class {
        FeatureClass::Compat => features
            .compat
            .set(Compat::from_bits_retain(row.bit), is_on),
        FeatureClass::Incompat => features
            .incompat
            .set(Incompat::from_bits_retain(row.bit), is_on),
        FeatureClass::RoCompat => features
            .ro_compat
            .set(RoCompat::from_bits_retain(row.bit), is_on),
    }
    raw.s_feature_compat = features.compat.bits().into();
    raw.s_feature_incompat = features.incompat.bits().into();
    raw.s_feature_ro_compat = features.ro_compat.bits().into();
}

/// A UUID as four little-endian words.
fn words(uuid: Uuid) -> [u32; 4] {
    let bytes = uuid.as_bytes();
    std::array::from_fn(|nr| {
        let at = 4 * nr;
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    })
}
