//! **Purpose.** `fourscore tune`: changes the features and the superblock of a file system that is
//! not mounted, with the options of tune2fs; and the tunables of a mount.
//!
//! **Not here.** The names `tune2fs` and `e2label` ([`crate::e2fsprogs`]); what can be changed, and
//! how (`fourscore_mkfs::tune` for the superblock, `fourscore_check::convert` for the rest,
//! `fourscore_resize` for `64bit`);
//! tunables ([`crate::live::tune`]).
//!
//! | module | responsibility |
//! |---|---|
//! | `changes` | which options are changes of more than the superblock |
//! | `width` | the feature `64bit` |

mod changes;
mod width;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use fourscore_block::{Access, BlockDevice, DeviceOptions};
use fourscore_check::{CheckError, CheckOptions, ConvertError, UndoDevice, clear_mmp, convert};
use fourscore_mkfs::{FeatureChange, FormatError, Reserved, Surroundings, Tuning};
use fourscore_sync::Arc;
use uuid::Uuid;

use crate::check::repair::abandon;
use crate::edit::ids::Database;
use crate::edit::random_uuid;
use crate::failure::{Failure, Result};
use crate::image::{Image, ImageSpec, device};
use crate::output::Stdout;
use crate::{foreign, live, mkfs, signals, time};

/// The extended option that clears the block of multi-mount protection.
const CLEAR_MMP: &str = "clear_mmp";

/// `tune`
#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// Image file or block device with @p2 or @OFFSET for a partition, or mount point
    #[arg(value_name = "IMAGE or DIR")]
    target: OsString,
    /// Of a mount: tunables with their new values, such as mb_stream_req=32 [default: shows all]
    #[arg(value_name = "NAME=VALUE", conflicts_with = "superblock")]
    values: Vec<String>,
    #[command(flatten)]
    options: TuneOptions,
}

/// Options of an image, in the spelling of tune2fs.
#[derive(Clone, Debug, Args)]
#[group(id = "superblock", multiple = true)]
pub(crate) struct TuneOptions {
    /// Mounts after which a check is due; 0 or -1 for never
    #[arg(short = 'c', value_name = "COUNT", allow_hyphen_values = true)]
    max_mount_count: Option<i16>,
    /// Mounts since the last check
    #[arg(short = 'C', value_name = "COUNT")]
    mount_count: Option<u16>,
    /// Behavior on errors: continue, remount-ro, panic
    #[arg(short = 'e', value_name = "POLICY")]
    errors: Option<String>,
    /// stride=, stripe_width=, mount_opts=, hash_alg=, test_fs, ^test_fs, force_fsck; with -f:
    /// clear_mmp
    #[arg(short = 'E', value_name = "OPTIONS")]
    extended: Vec<String>,
    /// Does what -E clear_mmp says: no host uses the file system, and no check of it runs
    #[arg(short = 'f')]
    force: bool,
    /// Group that may use reserved blocks, a number or a name of this host
    #[arg(short = 'g', value_name = "GROUP")]
    reserved_gid: Option<String>,
    /// Time after which a check is due, in days, or with d, w, m (30 days), s; 0 for never
    #[arg(short = 'i', value_name = "INTERVAL")]
    check_interval: Option<String>,
    /// Adds a journal, as -O has_journal does
    #[arg(short = 'j')]
    with_journal: bool,
    /// A new journal: size= in MiB, fast_commit_size= in KiB, location=
    #[arg(short = 'J', value_name = "OPTIONS")]
    journal: Vec<String>,
    /// Label, at most 16 bytes
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<OsString>,
    /// Percent of the blocks that are reserved
    #[arg(
        short = 'm',
        value_name = "PERCENT",
        conflicts_with = "reserved_blocks"
    )]
    reserved_percent: Option<f64>,
    /// Directory of the last mount
    #[arg(short = 'M', value_name = "DIR")]
    last_mounted: Option<OsString>,
    /// Default mount options to set, or to clear with a leading ^
    #[arg(short = 'o', value_name = "OPTIONS")]
    mount_options: Vec<String>,
    /// Features to set, or to clear with a leading ^
    #[arg(short = 'O', value_name = "FEATURES")]
    features: Vec<String>,
    /// Quota to count from now on, or with a leading ^ no longer: usrquota, grpquota, prjquota
    #[arg(short = 'Q', value_name = "TYPES")]
    quota: Vec<String>,
    /// Number of reserved blocks
    #[arg(short = 'r', value_name = "BLOCKS")]
    reserved_blocks: Option<u64>,
    /// Time of the last check: now, YYYYMMDD, YYYYMMDDhhmm or YYYYMMDDhhmmss, in local time
    #[arg(short = 'T', value_name = "TIME")]
    last_check: Option<String>,
    /// User who may use reserved blocks, a number or a name of this host
    #[arg(short = 'u', value_name = "USER")]
    reserved_uid: Option<String>,
    /// UUID, or random, time, clear
    #[arg(short = 'U', value_name = "UUID")]
    uuid: Option<String>,
    /// Saves what is overwritten in a new file, which e2undo and `check --undo-apply` apply
    #[arg(short = 'z', value_name = "FILE")]
    undo: Option<PathBuf>,
}

impl TuneOptions {
    fn tuning(&self) -> Result<Tuning> {
        let bytes = |text: &Option<OsString>| text.as_ref().map(|text| text.as_bytes().to_vec());
        let percent = self.reserved_percent.map(Reserved::Percent);
        let interval = self.check_interval.as_deref().map(interval_seconds);
        let id = |option, text: &Option<String>, database| {
            let text = text.as_deref();
            text.map(|text| id_on_host(option, text, database))
                .transpose()
        };
        let mut tuning = Tuning {
            label: bytes(&self.label),
            uuid: self.uuid.as_deref().map(uuid).transpose()?,
            last_mounted: bytes(&self.last_mounted),
            // As in tune2fs: 0 has always meant never, and Linux prints -1 for that.
            max_mount_count: self
                .max_mount_count
                .map(|count| if count == 0 { -1 } else { count }),
            mount_count: self.mount_count,
            check_interval_seconds: interval.transpose()?,
            last_check_seconds: self.last_check.as_deref().map(seconds).transpose()?,
            errors: self.errors.as_deref().map(errors).transpose()?,
            reserved: percent.or(self.reserved_blocks.map(Reserved::Blocks)),
            reserved_uid: id("-u", &self.reserved_uid, Database::Users)?,
            reserved_gid: id("-g", &self.reserved_gid, Database::Groups)?,
            mount_options: words(&self.mount_options).map(ToOwned::to_owned).collect(),
            ..Tuning::default()
        };
        for word in words(&self.features) {
            let change = FeatureChange::parse(word).map_err(mkfs::format_failure)?;
            tuning.features.push(change);
        }
        for word in words(&self.extended) {
            add_extended(&mut tuning, word)?;
        }
        Ok(tuning)
    }
}

/// The parts of options that are separated by commas.
fn words(options: &[String]) -> impl Iterator<Item = &str> {
    let all = options.iter().flat_map(|option| option.split(','));
    all.filter(|word| !word.is_empty())
}

fn add_extended(tuning: &mut Tuning, word: &str) -> Result<()> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let wrong = |why: &str| Failure::usage(format!("-E {name}"), why);
    let number = || {
        value
            .parse::<u32>()
            .map_err(|_| wrong("needs a number of blocks"))
    };
    match name {
        "stride" => {
            let blocks = u16::try_from(number()?);
            tuning.stride_blocks = Some(blocks.map_err(|_| wrong("is 65535 at most"))?);
        }
        "stripe_width" | "stripe-width" => tuning.stripe_width_blocks = Some(number()?),
        "mount_opts" => tuning.mount_opts = Some(value.as_bytes().to_vec()),
        "hash_alg" | "hash-alg" => {
            let version = ["legacy", "half_md4", "tea"]
                .iter()
                .position(|name| *name == value);
            let version = version.and_then(|version| u8::try_from(version).ok());
            let version = version.ok_or_else(|| wrong("is legacy, half_md4 or tea"))?;
            tuning.hash_version = Some(version);
        }
        "test_fs" => tuning.is_test_fs = Some(true),
        "^test_fs" => tuning.is_test_fs = Some(false),
        "force_fsck" => tuning.force_check = true,
        // Done before all else: see `clear`.
        CLEAR_MMP => {}
        _ => return Err(wrong("there is no such extended option")),
    }
    Ok(())
}

/// A user or a group of this host, which owns reserved blocks while the file system is mounted: a
/// number as strtoul(3) takes it, or a name.
fn id_on_host(option: &str, text: &str, database: Database) -> Result<u32> {
    let number = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => u32::from_str_radix(&text[2..], 16).ok(),
        [b'0', _, ..] => u32::from_str_radix(text, 8).ok(),
        _ => text.parse().ok(),
    };
    number.or_else(|| database.id_on_host(text)).ok_or_else(|| {
        let (noun, path) = (database.noun(), database.path());
        let why = format!("'{text}' is neither a number nor a {noun} in {path} of this host");
        Failure::usage(option, why)
    })
}

fn uuid(text: &str) -> Result<Uuid> {
    let parsed = fourscore_mkfs::parse_uuid("-U", text).map_err(mkfs::format_failure)?;
    parsed.map_or_else(random_uuid, Ok)
}

/// The value of `s_errors`.
fn errors(text: &str) -> Result<u16> {
    let all = ["continue", "remount-ro", "panic"];
    let found = all.iter().position(|name| *name == text);
    let number = found.and_then(|number| u16::try_from(number + 1).ok());
    number.ok_or_else(|| Failure::usage("-e", "is continue, remount-ro or panic"))
}

/// The seconds of an interval, in days without a unit.
fn interval_seconds(text: &str) -> Result<u32> {
    const DAY: u32 = 24 * 60 * 60;
    let (digits, unit) = match text.as_bytes().last() {
        Some(b's' | b'S') => (&text[..text.len() - 1], 1),
        Some(b'd' | b'D') => (&text[..text.len() - 1], DAY),
        Some(b'w' | b'W') => (&text[..text.len() - 1], 7 * DAY),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 30 * DAY),
        _ => (text, DAY),
    };
    let number = digits.parse::<u32>().ok();
    let seconds = number.and_then(|number| number.checked_mul(unit));
    seconds.ok_or_else(|| Failure::usage("-i", "is a number of days, or has the unit d, w, m or s"))
}

/// Seconds since 1970 of a time in the spelling of `-T`.
fn seconds(text: &str) -> Result<u64> {
    let wrong = || Failure::usage("-T", "is now, or YYYYMMDD[hhmm[ss]]");
    let has_digits = text.len() >= 8 && text.bytes().all(|byte| byte.is_ascii_digit());
    let part = |at: usize| text.get(at..at + 2).unwrap_or("00");
    let at = match text {
        "now" => time::now(),
        _ if has_digits && [8, 12, 14].contains(&text.len()) => {
            let date = format!("{}-{}-{}", &text[..4], part(4), part(6));
            let full = format!("{date}T{}:{}:{}", part(8), part(10), part(12));
            time::parse(&full).ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    u64::try_from(at.seconds()).map_err(|_| wrong())
}

/// Runs `tune`.
pub(crate) fn run(args: &Tune) -> Result<()> {
    let options = &args.options;
    let tuning = options.tuning()?;
    let clears_mmp = words(&options.extended).any(|word| word == CLEAR_MMP);
    let is_nothing = tuning == Tuning::default() && !options.has_changes() && !clears_mmp;
    if clears_mmp && !options.force {
        let why =
            "is for a file system that no host uses, and that is not checked now: then add -f";
        return Err(Failure::usage("-E clear_mmp", why));
    }
    let path = Path::new(&args.target);
    if path.is_dir() || !args.values.is_empty() {
        if !is_nothing {
            let why = "is a mount point; options change a file system that is not mounted";
            return Err(Failure::usage(path.display().to_string(), why));
        }
        return live::tune(path, &args.values);
    }
    let spec = ImageSpec::parse(&args.target);
    let spec = spec.map_err(|why| Failure::usage(path.display().to_string(), why))?;
    if is_nothing {
        let why = "give what to change, as in `fourscore tune disk.img -L data`";
        return Err(Failure::usage("tune", why));
    }
    let image = device(&spec, DeviceOptions::read_write(), Access::ReadWrite)?;
    signals::release_at_end()?;
    let now = mkfs::time_seconds().map_err(mkfs::format_failure)?;
    let clock = u64::try_from(time::now().seconds()).unwrap_or_default();
    let around = Surroundings {
        now_seconds: now.unwrap_or(clock),
        hash_seed: random_uuid()?,
    };
    let Some(undo) = &options.undo else {
        return apply(image, options, &tuning, around, &spec);
    };
    let why = |why| Failure::new(undo.display().to_string(), why);
    let undo = UndoDevice::create(undo, Arc::clone(&image), spec.offset_bytes).map_err(why)?;
    let undo = Arc::new(undo);
    let saving: Arc<dyn BlockDevice> = Arc::<UndoDevice>::clone(&undo);
    if let Err(failure) = apply(saving, options, &tuning, around, &spec) {
        abandon(Some(&undo));
        return Err(failure);
    }
    undo.finish().map_err(why)
}

/// Makes the block of multi-mount protection say that no host has the file system.
fn clear(device: &dyn BlockDevice, spec: &ImageSpec) -> Result<()> {
    let failed = |why: &dyn std::fmt::Display| Failure::new(spec.path.display().to_string(), why);
    match clear_mmp(device).map_err(|why| failed(&why))? {
        true => Ok(()),
        false => Err(failed(&"has no multi-mount protection (mmp)")),
    }
}

/// Makes the changes on a device.
fn apply(
    device: Arc<dyn BlockDevice>,
    options: &TuneOptions,
    tuning: &Tuning,
    around: Surroundings,
    spec: &ImageSpec,
) -> Result<()> {
    if words(&options.extended).any(|word| word == CLEAR_MMP) {
        clear(&*device, spec)?;
        if *tuning == Tuning::default() && !options.has_changes() {
            return Ok(());
        }
    }
    let changes = changes::of(&*device, options, tuning)?;
    let check = CheckOptions {
        threads: std::thread::available_parallelism().unwrap_or(std::num::NonZeroUsize::MIN),
        ..CheckOptions::default()
    };
    let mut rest = |device: &dyn BlockDevice| fourscore_mkfs::tune(device, tuning, around);
    let name = || spec.path.display().to_string();
    if let Some(width) = width::wished(&*device, tuning, options)? {
        return width::set(device, &check, width, &name());
    }
    // Also without such changes: it keeps other hosts away meanwhile.
    convert(device, &check, &changes, &mut rest).map_err(|why| match why {
        // Which option is at fault says more than which image.
        ConvertError::Rest(FormatError::Option { option, why }) => {
            Failure::new(name(), format!("{option}: {why}"))
        }
        ConvertError::Check(CheckError::Refused(why)) => {
            let failure = Failure::new(name(), why);
            foreign::failure(spec).unwrap_or(failure)
        }
        why => Failure::new(name(), why),
    })
}

/// `print-label`, which `e2label IMAGE` is.
#[derive(Debug, Args)]
pub(crate) struct PrintLabel {
    /// Image file or block device
    image: ImageSpec,
}

/// Prints the label.
pub(crate) fn print_label(args: &PrintLabel) -> Result<()> {
    let image = Image::open(&args.image)?;
    let label = image.fs.label().map_err(|why| image.problem(why))?;
    let mut out = Stdout::open()?;
    out.name(&label)?;
    out.write(b"\n")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers_or_names() {
        let parsed = |text| id_on_host("-u", text, Database::Users).ok();
        assert_eq!(
            (parsed("12"), parsed("0x10"), parsed("010")),
            (Some(12), Some(16), Some(8))
        );
        assert_eq!((parsed("root"), parsed("0")), (Some(0), Some(0)));
        for wrong in ["", "12x", "0x", "09", "-1", "no such user"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn intervals_have_units() {
        let parsed = |text| interval_seconds(text).ok();
        assert_eq!(parsed("7"), Some(604_800));
        assert_eq!((parsed("7d"), parsed("1w")), (parsed("7"), parsed("7")));
        assert_eq!((parsed("30d"), parsed("9s")), (parsed("1m"), Some(9)));
        for wrong in ["", "d", "-1", "1y", "99999999w"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
