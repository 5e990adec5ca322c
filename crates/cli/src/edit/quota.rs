//! **Purpose.** `fourscore edit IMAGE setquota`: limits of users, groups and projects.
//!
//! **References.** setquota(8).

use fourscore::{Fs, GraceTimes, QuotaKind, QuotaLimits};

use super::ids::Database;
use super::verbs::Setquota;
use crate::failure::{Failure, Result};
use crate::image::parse_size;

/// The unit of limits of space that have no suffix.
const UNIT_BYTES: u64 = 1024;

/// Sets limits, or grace times.
pub(super) fn setquota(fs: &Fs, args: &Setquota) -> Result<()> {
    let kind = match (args.group, args.project) {
        (true, _) => QuotaKind::Group,
        (_, true) => QuotaKind::Project,
        _ => QuotaKind::User,
    };
    let failed = |why| Failure::new("setquota", why);
    match (args.edit_period, &args.words[..]) {
        (true, [space, inodes]) => {
            let grace = GraceTimes {
                space: seconds(space)?,
                inodes: seconds(inodes)?,
            };
            fs.set_quota_grace(kind, grace).map_err(failed)
        }
        (false, [name, soft_bytes, hard_bytes, soft_inodes, hard_inodes]) => {
            let id = id(fs, kind, name)?;
            let limits = QuotaLimits {
                soft_bytes: space(soft_bytes)?,
                hard_bytes: space(hard_bytes)?,
                soft_inodes: count(soft_inodes)?,
                hard_inodes: count(hard_inodes)?,
            };
            fs.set_quota(kind, id, limits).map_err(failed)
        }
        (true, _) => {
            let why = "give the grace times of space and of inodes, in seconds";
            Err(Failure::usage("setquota -t", why))
        }
        (false, _) => {
            let why = "give a name, and soft and hard limits of space and of inodes";
            Err(Failure::usage("setquota", why))
        }
    }
}

fn id(fs: &Fs, kind: QuotaKind, name: &str) -> Result<u32> {
    match kind {
        QuotaKind::User => Database::Users.id(fs, name),
        QuotaKind::Group => Database::Groups.id(fs, name),
        QuotaKind::Project => name.parse().map_err(|_| {
            let why = "is no project; give its number";
            Failure::usage(format!("'{name}'"), why)
        }),
    }
}

fn space(text: &str) -> Result<u64> {
    let unit = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => UNIT_BYTES,
        false => 1,
    };
    let bytes = parse_size(text).filter(|_| !text.is_empty());
    let bytes = bytes.and_then(|number| number.checked_mul(unit));
    let why = "is no limit of space; give KiB, or a number with K, M, G or T";
    bytes.ok_or_else(|| Failure::usage(format!("'{text}'"), why))
}

fn count(text: &str) -> Result<u64> {
    let why = "is no limit of inodes; give a number";
    text.parse()
        .map_err(|_| Failure::usage(format!("'{text}'"), why))
}

fn seconds(text: &str) -> Result<u32> {
    let why = "is no grace time; give seconds";
    text.parse()
        .map_err(|_| Failure::usage(format!("'{text}'"), why))
}
