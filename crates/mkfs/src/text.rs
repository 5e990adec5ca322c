//! **Purpose.** Options written as text, in the spelling of mke2fs: `-E`, `-J`, `-O`, sizes.
//!
//! **Not here.** Whether options go together (`resolve`). Options with a letter of their own, which
//! the command line reads.
//!
//! **References.** mke2fs(8).

use std::fmt::Display;
use std::str::FromStr;

use fourscore_ondisk::features::{Compat, FeatureClass, FeatureSet, Incompat, RoCompat, table};
use uuid::Uuid;

use crate::error::{FormatError, FormatResult};
use crate::options::{Amount, Choice, JournalOptions, OldContent, Options, Owner, QuotaTypes};

/// A number with a suffix K, M, G or T (powers of 1024) or s (sectors of 512 bytes), in bytes;
/// without a suffix in units of `unit_bytes`.
///
/// # Errors
/// [`FormatError::Option`] that names `option` for anything else and for numbers past 64 bits.
pub fn parse_size(option: &str, text: &str, unit_bytes: u32) -> FormatResult<u64> {
    let wrong = || FormatError::option(option, format!("{text} is not a size (such as 64M)"));
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        Some(b't' | b'T') => (&text[..text.len() - 1], 1 << 40),
        Some(b's' | b'S') => (&text[..text.len() - 1], 512),
        _ => (text, u64::from(unit_bytes)),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

/// A UUID in the spelling of `-U`: `clear`, `random`, `time`, or the UUID itself. `None` for
/// `random` and `time`: a UUID is generated later.
///
/// # Errors
/// [`FormatError::Option`].
pub fn parse_uuid(option: &str, text: &str) -> FormatResult<Option<Uuid>> {
    match text.to_ascii_lowercase().as_str() {
        "null" | "clear" => Ok(Some(Uuid::nil())),
        "random" | "time" => Ok(None),
        text => match Uuid::parse_str(text) {
            Ok(uuid) => Ok(Some(uuid)),
            Err(_) => Err(FormatError::option(option, format!("{text} is not a UUID"))),
        },
    }
}

impl Amount {
    /// Blocks, or with a suffix as in [`parse_size`] bytes.
    pub(crate) fn parse(option: &str, text: &str) -> FormatResult<Self> {
        match text.parse() {
            Ok(blocks) => Ok(Self::Blocks(blocks)),
            Err(_) => Ok(Self::Bytes(parse_size(option, text, 1)?)),
        }
    }
}

impl Options {
    /// Adds the options in the text of one `-E`.
    ///
    /// # Errors
    /// [`FormatError::Option`] for the first part that is unknown or has a wrong value.
    pub fn add_extended(&mut self, text: &str) -> FormatResult<()> {
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (part, None),
            };
            let given = Given {
                option: format!("-E {name}"),
                value,
            };
            self.add_one_extended(name, &given)?;
        }
        Ok(())
    }

    fn add_one_extended(&mut self, name: &str, given: &Given<'_>) -> FormatResult<()> {
        match name {
            "stride" => self.stride_blocks = Some(given.number()?),
            "stripe-width" | "stripe_width" => self.stripe_width_blocks = Some(given.number()?),
            "resize" => self.resize = Some(given.amount()?),
            "desc-size" | "desc_size" => self.desc_size_bytes = Some(given.number()?),
            "num_backup_sb" => self.backup_superblocks = Some(given.number()?),
            "packed_meta_blocks" => self.packed_meta_blocks = Some(given.choice()?),
            "lazy_itable_init" => self.lazy_itable_init = Some(given.choice()?),
            "lazy_journal_init" => self.lazy_journal_init = Some(given.choice()?),
            "discard" => self.discard = Some(Choice::Yes),
            "nodiscard" => self.discard = Some(Choice::No),
            "assume_storage_prezeroed" => {
                if given.choice()?.is_yes() {
                    self.old_content = OldContent::AllZero;
                }
            }
            "hash_seed" => self.hash_seed = parse_uuid(&given.option, given.needed()?)?,
            "offset" => self.offset_bytes = parse_size(&given.option, given.needed()?, 1)?,
            "mmp_update_interval" => self.mmp_update_interval_seconds = Some(given.number()?),
            "root_owner" => self.root_owner = Some(given.owner()?),
            "quotatype" => self.quota_types = Some(given.quota_types()?),
            "orphan_file_size" => self.orphan_file_size = Some(given.amount()?),
            "encoding" => self.encoding = Some(given.encoding()?),
            "encoding_flags" => self.encoding_strict = given.encoding_strict()?,
            "test_fs" => self.test_fs = true,
            "no_copy_xattrs" => self.without_source_xattrs = true,
            _ => {
                return Err(FormatError::option(
                    given.option.clone(),
                    "there is no such extended option",
                ));
            }
        }
        Ok(())
    }

    /// Adds the options in the text of one `-J`.
    ///
    /// # Errors
    /// [`FormatError::Option`] for the first part that is unknown or has a wrong value.
    pub fn add_journal(&mut self, text: &str) -> FormatResult<()> {
        let mut journal = self.journal;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (part, None),
            };
            let given = Given {
                option: format!("-J {name}"),
                value,
            };
            let JournalOptions {
                size_mib,
                fast_commit_size_kib,
                location,
            } = &mut journal;
            match name {
                "size" => *size_mib = Some(given.number()?),
                "fast_commit_size" => *fast_commit_size_kib = Some(given.number()?),
                "location" => *location = Some(given.amount()?),
                "device" => self.journal_device = Some(given.needed()?.into()),
                _ => {
                    return Err(FormatError::option(
                        given.option,
                        "there is no such journal option (size, fast_commit_size, location, device)",
                    ));
                }
            }
        }
        if self.journal_device.is_some() && journal != JournalOptions::default() {
            let why = "the size and place of a journal on a device of its own are the device's";
            return Err(FormatError::option("-J", why));
        }
        self.journal = journal;
        Ok(())
    }
}

/// An option and the text behind its equals sign.
struct Given<'a> {
    option: String,
    value: Option<&'a str>,
}

impl<'a> Given<'a> {
    fn wrong(&self, why: impl Into<String>) -> FormatError {
        FormatError::option(self.option.clone(), why)
    }

    fn needed(&self) -> FormatResult<&'a str> {
        self.value.ok_or_else(|| self.wrong("needs a value"))
    }

    fn number<T: FromStr>(&self) -> FormatResult<T>
    where
        T::Err: Display,
    {
        let text = self.needed()?;
        text.parse()
            .map_err(|error| self.wrong(format!("{text}: {error}")))
    }

    /// Blocks, or with a suffix bytes.
    fn amount(&self) -> FormatResult<Amount> {
        Amount::parse(&self.option, self.needed()?)
    }

    /// On when named alone, else a number that is 0 for off.
    fn choice(&self) -> FormatResult<Choice> {
        match self.value {
            None => Ok(Choice::Yes),
            Some(_) => Ok(Choice::from(self.number::<u64>()? != 0)),
        }
    }

    fn owner(&self) -> FormatResult<Owner> {
        let text = match self.value {
            Some(text) => text.to_owned(),
            None => {
                let uid = rustix::process::getuid().as_raw();
                format!("{uid}:{}", rustix::process::getgid().as_raw())
            }
        };
        let parts = text.split_once(':');
        let parsed = parts.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
        match parsed {
            Some((uid, gid)) => Ok(Owner { uid, gid }),
            None => Err(self.wrong(format!("{text} is not UID:GID"))),
        }
    }

    fn quota_types(&self) -> FormatResult<QuotaTypes> {
        let mut types = QuotaTypes {
            user: false,
            group: false,
            project: false,
        };
        for name in self.needed()?.split(':') {
            match name {
                "usrquota" => types.user = true,
                "grpquota" => types.group = true,
                "prjquota" => types.project = true,
                _ => {
                    let known = "usrquota, grpquota, prjquota, joined by colons";
                    return Err(self.wrong(format!("{name} is none of {known}")));
                }
            }
        }
        Ok(types)
    }

    fn encoding(&self) -> FormatResult<Choice> {
        match self.needed()? {
            "utf8" | "utf8-12.1" => Ok(Choice::Yes),
            other => Err(self.wrong(format!("{other} is not utf8 or utf8-12.1"))),
        }
    }

    fn encoding_strict(&self) -> FormatResult<bool> {
        match self.needed()? {
            "strict" => Ok(true),
            "nostrict" | "^strict" => Ok(false),
            other => Err(self.wrong(format!("{other} is not strict or nostrict"))),
        }
    }
}

/// The features mke2fs may set.
fn settable() -> FeatureSet {
    FeatureSet {
        compat: Compat::HAS_JOURNAL
            | Compat::RESIZE_INODE
            | Compat::DIR_INDEX
            | Compat::EXT_ATTR
            | Compat::SPARSE_SUPER2
            | Compat::FAST_COMMIT
            | Compat::STABLE_INODES
            | Compat::ORPHAN_FILE,
        incompat: Incompat::FILETYPE
            | Incompat::EXTENTS
            | Incompat::JOURNAL_DEV
            | Incompat::META_BG
            | Incompat::FLEX_BG
            | Incompat::EA_INODE
            | Incompat::MMP
            | Incompat::BIT64
            | Incompat::INLINE_DATA
            | Incompat::ENCRYPT
            | Incompat::CASEFOLD
            | Incompat::CSUM_SEED
            | Incompat::LARGEDIR,
        ro_compat: RoCompat::LARGE_FILE
            | RoCompat::HUGE_FILE
            | RoCompat::DIR_NLINK
            | RoCompat::EXTRA_ISIZE
            | RoCompat::SPARSE_SUPER
            | RoCompat::GDT_CSUM
            | RoCompat::BIGALLOC
            | RoCompat::QUOTA
            | RoCompat::METADATA_CSUM
            | RoCompat::PROJECT
            | RoCompat::VERITY,
    }
}

/// Changes `features` by a list in the spelling of `-O`: names separated by commas or
/// blanks, `^` or `-` in front to clear, `none` to clear all. Returns what the list set.
pub(crate) fn edit_features(features: &mut FeatureSet, text: &str) -> FormatResult<FeatureSet> {
    let mut named = FeatureSet::default();
    for word in text.split([',', ' ', '\t']).filter(|word| !word.is_empty()) {
        if ["none", "clear"]
            .iter()
            .any(|all| word.eq_ignore_ascii_case(all))
        {
            *features = FeatureSet::default();
            continue;
        }
        let (name, set) = match word.strip_prefix(['^', '-']) {
            Some(name) => (name, false),
            None => (word.strip_prefix('+').unwrap_or(word), true),
        };
        let one = feature(name)?;
        change(features, one, set);
        change(&mut named, one, set);
    }
    Ok(named)
}

fn change(features: &mut FeatureSet, one: FeatureSet, set: bool) {
    features.compat.set(one.compat, set);
    features.incompat.set(one.incompat, set);
    features.ro_compat.set(one.ro_compat, set);
}

/// The name of a feature in the table, from any spelling that mke2fs takes.
pub(crate) fn canonical_feature(name: &str) -> String {
    match name.to_ascii_lowercase().as_str() {
        "extents" => "extent".to_owned(),
        "uninit_groups" => "uninit_bg".to_owned(),
        other => other.to_owned(),
    }
}

/// The one feature of this name.
fn feature(name: &str) -> FormatResult<FeatureSet> {
    let wrong = |why: &str| FormatError::option("-O", format!("{name}: {why}"));
    let canonical = canonical_feature(name);
    let row = table::rows()
        .find(|row| row.name == canonical)
        .ok_or_else(|| wrong("there is no feature of this name"))?;
    let mut one = FeatureSet::default();
    let allowed = match row.class {
        FeatureClass::Compat => {
            one.compat = Compat::from_bits_retain(row.bit);
            settable().compat.contains(one.compat)
        }
        FeatureClass::Incompat => {
            one.incompat = Incompat::from_bits_retain(row.bit);
            settable().incompat.contains(one.incompat)
        }
        FeatureClass::RoCompat => {
            one.ro_compat = RoCompat::from_bits_retain(row.bit);
            settable().ro_compat.contains(one.ro_compat)
        }
    };
    if allowed {
        Ok(one)
    } else {
        Err(wrong("cannot be set or cleared when a file system is made"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes_or_the_unit() {
        assert_eq!(parse_size("x", "3k", 1).unwrap(), 3072);
        assert_eq!(parse_size("x", "2T", 1).unwrap(), 2 << 40);
        assert_eq!(parse_size("x", "7", 4096).unwrap(), 7 * 4096);
        for wrong in ["", "K", "x", "-1", "99999999999T"] {
            assert!(parse_size("x", wrong, 1).is_err(), "{wrong}");
        }
    }

    #[test]
    fn features_are_set_and_cleared_in_order() {
        let mut features = FeatureSet::default();
        let text = "extents,64bit ^64bit,quota,none,has_journal,uninit_bg";
        edit_features(&mut features, text).unwrap();
        let names: Vec<_> = features.iter().map(|feature| feature.to_string()).collect();
        assert_eq!(names, ["has_journal", "uninit_bg"]);
    }

    #[test]
    fn mistakes_name_the_option() {
        let mut options = Options::default();
        for (text, expected) in [
            ("stride=x", "-E stride: "),
            ("nonsense", "-E nonsense: "),
            ("root_owner=1", "-E root_owner: "),
            ("quotatype=all", "-E quotatype: "),
            ("encoding=latin1", "-E encoding: "),
        ] {
            let error = options.add_extended(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = options.add_journal("speed=9").unwrap_err().to_string();
        assert!(error.starts_with("-J speed: "), "{error}");
        let mut features = FeatureSet::default();
        for text in ["nonsense", "needs_recovery"] {
            let error = edit_features(&mut features, text).unwrap_err().to_string();
            assert!(error.starts_with("-O: "), "{error}");
        }
    }
}
