//! **Purpose.** `fourscore info --quota`: usage and limits, in the columns of repquota(8).
//!
//! **Model.** Users and groups have the names of the image's own `/etc/passwd` and `/etc/group`,
//! and `#` with their number otherwise. Space is in KiB, grace times are what is left of them.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fourscore::{GraceTimes, QuotaEntry, QuotaKind, QuotaReport};
use serde_json::{Map, Value, json};

use crate::edit::ids::Database;
use crate::failure::{Failure, Result};
use crate::image::Image;
use crate::output::Stdout;

const KINDS: [(QuotaKind, &str); 3] = [
    (QuotaKind::User, "user"),
    (QuotaKind::Group, "group"),
    (QuotaKind::Project, "project"),
];

/// Prints the usage of all kinds.
pub(crate) fn print(image: &Image, out: &mut Stdout) -> Result<()> {
    for (kind, noun) in KINDS {
        if let Some(report) = report(image, kind)? {
            out.write(to_text(image, kind, noun, &report).as_bytes())?;
        }
    }
    Ok(())
}

/// The usage of all kinds as an object.
pub(crate) fn as_json(image: &Image) -> Result<Value> {
    let mut all = Map::new();
    for (kind, noun) in KINDS {
        if let Some(report) = report(image, kind)? {
            let entries = report.entries.iter();
            let entries: Vec<_> = entries
                .map(|(id, entry)| entry_as_json(*id, entry))
                .collect();
            let GraceTimes { space, inodes } = report.grace;
            let kind = json!({
                "space_grace_seconds": space,
                "inodes_grace_seconds": inodes,
                "entries": entries,
            });
            all.insert(noun.into(), kind);
        }
    }
    Ok(Value::Object(all))
}

fn report(image: &Image, kind: QuotaKind) -> Result<Option<QuotaReport>> {
    let failed = |why| image.failure(b"quota", why);
    let report = image.fs.quota(kind).map_err(failed)?;
    let has_any = image.fs.superblock().quota_inodes();
    let has_any = has_any.user.or(has_any.group).or(has_any.project).is_some();
    match has_any {
        true => Ok(report),
        false => {
            let failure = Failure::new("--quota", "the file system has no feature quota");
            Err(failure.advise("make it with mkfs -O quota, or switch it on with tune2fs -O quota"))
        }
    }
}

fn entry_as_json(id: u32, entry: &QuotaEntry) -> Value {
    let QuotaEntry { counts, limits, .. } = entry;
    json!({
        "id": id,
        "used_bytes": counts.bytes,
        "soft_bytes": limits.soft_bytes,
        "hard_bytes": limits.hard_bytes,
        "space_grace_end": entry.bytes_grace_end,
        "used_inodes": counts.inodes,
        "soft_inodes": limits.soft_inodes,
        "hard_inodes": limits.hard_inodes,
        "inodes_grace_end": entry.inodes_grace_end,
    })
}

fn to_text(image: &Image, kind: QuotaKind, noun: &str, report: &QuotaReport) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let mut text = format!("*** Report for {noun} quotas\n");
    let period = |seconds: u32| duration(Duration::from_secs(seconds.into()));
    let (space, inodes) = (period(report.grace.space), period(report.grace.inodes));
    let title = format!("{}{}", noun[..1].to_uppercase(), &noun[1..]);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "Block grace time: {space}; Inode grace time: {inodes}"
    );
    let _ = writeln!(
        text,
        "{:<19}{:>30}{:>31}",
        "", "Block limits", "File limits"
    );
    let _ = writeln!(
        text,
        "{title:<16}{:>11}{:>10}{:>10}  {:<8}{:>9}{:>8}{:>8}  grace",
        "used", "soft", "hard", "grace", "used", "soft", "hard"
    );
    let _ = writeln!(text, "{}", "-".repeat(86));
    for (&id, entry) in &report.entries {
        if *entry != QuotaEntry::default() {
            let name = name_of(image, kind, id);
            text.push_str(&line(&name, entry, now));
        }
    }
    text.push('\n');
    text
}

fn line(name: &str, entry: &QuotaEntry, now: u64) -> String {
    let QuotaEntry { counts, limits, .. } = entry;
    let is_over = |used: u64, soft: u64| soft != 0 && used > soft;
    let (over_space, over_inodes) = (
        is_over(counts.bytes, limits.soft_bytes),
        is_over(counts.inodes, limits.soft_inodes),
    );
    let mark = |is_over: bool| if is_over { '+' } else { '-' };
    let left = |is_over: bool, end: u64| match (is_over, end.checked_sub(now)) {
        (false, _) => String::new(),
        (true, None | Some(0)) => "none".to_owned(),
        (true, Some(left)) => duration(Duration::from_secs(left)),
    };
    let line = format!(
        "{name:<15}{}{}{:>10}{:>10}{:>10}  {:<8}{:>9}{:>8}{:>8}  {}",
        mark(over_space),
        mark(over_inodes),
        counts.bytes.div_ceil(1024),
        limits.soft_bytes / 1024,
        limits.hard_bytes / 1024,
        left(over_space, entry.bytes_grace_end),
        counts.inodes,
        limits.soft_inodes,
        limits.hard_inodes,
        left(over_inodes, entry.inodes_grace_end),
    );
    format!("{}\n", line.trim_end())
}

fn name_of(image: &Image, kind: QuotaKind, id: u32) -> String {
    let name = match kind {
        QuotaKind::User => Database::Users.name(&*image.fs, id),
        QuotaKind::Group => Database::Groups.name(&*image.fs, id),
        QuotaKind::Project => None,
    };
    name.unwrap_or_else(|| format!("#{id}"))
}

/// A time as repquota prints it: days, or hours and minutes.
fn duration(time: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    let seconds = time.as_secs();
    match seconds {
        0..DAY => format!("{:02}:{:02}", seconds / 3600, seconds % 3600 / 60),
        DAY..=u64::MAX => format!("{}days", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use fourscore::{QuotaCounts, QuotaLimits};

    use super::*;

    #[test]
    fn a_line_says_what_is_exceeded_and_for_how_long() {
        let entry = QuotaEntry {
            counts: QuotaCounts {
                inodes: 3,
                bytes: 3000,
            },
            limits: QuotaLimits {
                soft_bytes: 2048,
                hard_bytes: 4096,
                ..QuotaLimits::default()
            },
            bytes_grace_end: 100 + 2 * 86_400,
            inodes_grace_end: 0,
        };
        let words = |now| -> Vec<String> {
            let line = line("anna", &entry, now);
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(
            words(100),
            ["anna", "+-", "3", "2", "4", "2days", "3", "0", "0"]
        );
        assert_eq!(words(200_000)[5], "none");
        assert_eq!(words(100 + 86_400 + 3600)[5], "23:00");
    }
}
