//! **Purpose.** The superblock as labels and values.

use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::superblock::{
    CreatorOs, DefaultMountOpts, ErrorPolicy, ErrorRecord, JournalPlace, MetadataChecksum, State,
    SuperFlags, Superblock,
};
use fourscore_ondisk::time::Timestamp;

use super::Lines;
use crate::facts::Time;
use crate::text::printable;
use crate::time::{Zone, ctime};

/// Adds all lines about `sb`.
pub(crate) fn describe(sb: &Superblock, lines: &mut Lines) {
    identity(sb, lines);
    sizes(sb, lines);
    history(sb, lines);
    inodes(sb, lines);
    names_and_journal(sb, lines);
    errors(sb, lines);
    roles(sb, lines);
}

fn identity(sb: &Superblock, lines: &mut Lines) {
    let or = |bytes: &[u8], other: &str| {
        if bytes.is_empty() {
            other.to_owned()
        } else {
            printable(bytes)
        }
    };
    lines.text("Filesystem volume name", or(sb.volume_name(), "<none>"));
    lines.text("Last mounted on", or(sb.last_mounted(), "<not available>"));
    lines.text("Filesystem UUID", sb.uuid().to_string());
    lines.text(
        "Filesystem magic number",
        format!("0x{:04X}", sb.raw().s_magic.get()),
    );
    let (revision, _) = sb.revision();
    let kind = match revision {
        0 => "original",
        1 => "dynamic",
        _ => "unknown",
    };
    lines.text("Filesystem revision #", format!("{revision} ({kind})"));
    let features: Vec<_> = sb
        .features()
        .iter()
        .map(|feature| feature.to_string())
        .collect();
    lines.text("Filesystem features", or_none(&features));
    flags(sb, lines);
    lines.text(
        "Default mount options",
        or_none(&mount_options(sb.default_mount_opts())),
    );
    if !sb.mount_opts().is_empty() {
        lines.text("Mount options", printable(sb.mount_opts()));
    }
    lines.text("Filesystem state", state(sb.state()));
    let policy = match sb.error_policy() {
        ErrorPolicy::Continue => "Continue",
        ErrorPolicy::RemountReadOnly => "Remount read-only",
        ErrorPolicy::Panic => "Panic",
        ErrorPolicy::Unknown(_) => "Unknown (continue)",
    };
    lines.text("Errors behavior", policy);
    let os = match sb.creator_os() {
        CreatorOs::Linux => "Linux".to_owned(),
        CreatorOs::Hurd => "Hurd".to_owned(),
        CreatorOs::Masix => "Masix".to_owned(),
        CreatorOs::FreeBsd => "FreeBSD".to_owned(),
        CreatorOs::Lites => "Lites".to_owned(),
        CreatorOs::Unknown(os) => format!("(unknown os {os})"),
    };
    lines.text("Filesystem OS type", os);
}

fn or_none(words: &[String]) -> String {
    if words.is_empty() {
        "(none)".to_owned()
    } else {
        words.join(" ")
    }
}

fn flags(sb: &Superblock, lines: &mut Lines) {
    if sb.flags().is_empty() {
        return;
    }
    let names = [
        (SuperFlags::SIGNED_HASH, "signed_directory_hash "),
        (SuperFlags::UNSIGNED_HASH, "unsigned_directory_hash "),
        (SuperFlags::TEST_FILESYS, "test_filesystem "),
    ];
    let set = names.iter().filter(|(flag, _)| sb.flags().contains(*flag));
    let text: String = set.map(|(_, name)| *name).collect();
    lines.text(
        "Filesystem flags",
        if text.is_empty() {
            "(none)".to_owned()
        } else {
            text
        },
    );
}

fn mount_options(options: DefaultMountOpts) -> Vec<String> {
    let mode = options & DefaultMountOpts::JMODE;
    let mode = match mode {
        _ if mode.is_empty() => None,
        DefaultMountOpts::JMODE_DATA => Some("journal_data"),
        DefaultMountOpts::JMODE_ORDERED => Some("journal_data_ordered"),
        _ => Some("journal_data_writeback"),
    };
    let names = [
        (DefaultMountOpts::DEBUG, "debug"),
        (DefaultMountOpts::BSDGROUPS, "bsdgroups"),
        (DefaultMountOpts::XATTR_USER, "user_xattr"),
        (DefaultMountOpts::ACL, "acl"),
        (DefaultMountOpts::UID16, "uid16"),
        (DefaultMountOpts::NOBARRIER, "nobarrier"),
        (DefaultMountOpts::BLOCK_VALIDITY, "block_validity"),
        (DefaultMountOpts::DISCARD, "discard"),
        (DefaultMountOpts::NODELALLOC, "nodelalloc"),
    ];
    let set = names.iter().filter(|(option, _)| options.contains(*option));
    mode.into_iter()
        .chain(set.map(|(_, name)| *name))
        .map(str::to_owned)
        .collect()
}

fn state(state: State) -> String {
    let clean = if state.contains(State::VALID_FS) {
        "clean"
    } else {
        "not clean"
    };
    let errors = if state.contains(State::ERROR_FS) {
        " with errors"
    } else {
        ""
    };
    format!("{clean}{errors}")
}

fn sizes(sb: &Superblock, lines: &mut Lines) {
    let (geometry, features, raw) = (sb.geometry(), sb.features(), sb.raw());
    let block_bytes = geometry.block_size().bytes() as u64;
    let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
    lines.number("Inode count", geometry.inodes());
    lines.number("Block count", geometry.blocks().0);
    lines.number("Reserved block count", sb.reserved_blocks().0);
    lines.nonzero("Overhead clusters", sb.overhead_clusters());
    lines.number("Free blocks", sb.free_blocks().0);
    lines.number("Free inodes", sb.free_inodes());
    lines.number("First block", geometry.first_data_block().0);
    lines.number("Block size", block_bytes);
    let cluster_bytes = geometry.cluster_size_bytes() as u64;
    lines.number(
        if bigalloc {
            "Cluster size"
        } else {
            "Fragment size"
        },
        cluster_bytes,
    );
    if features.incompat.contains(Incompat::BIT64) {
        lines.number("Group descriptor size", geometry.desc_size_bytes() as u64);
    }
    lines.nonzero("Reserved GDT blocks", sb.reserved_gdt_blocks());
    lines.number("Blocks per group", geometry.blocks_per_group());
    let clusters = if bigalloc {
        "Clusters per group"
    } else {
        "Fragments per group"
    };
    lines.number(clusters, geometry.clusters_per_group());
    lines.number("Inodes per group", geometry.inodes_per_group());
    lines.number("Inode blocks per group", geometry.inode_table_blocks());
    lines.nonzero("RAID stride", sb.raid_stride_blocks());
    lines.nonzero("RAID stripe width", sb.raid_stripe_width_blocks());
    lines.nonzero("First meta block group", raw.s_first_meta_bg.get());
    if raw.s_log_groups_per_flex != 0 {
        lines.number("Flex block group size", sb.groups_per_flex());
    }
}

fn history(sb: &Superblock, lines: &mut Lines) {
    if let Some(time) = sb.mkfs_time() {
        lines.text("Filesystem created", date(Some(time)));
    }
    lines.text(
        "Last mount time",
        sb.mount_time().map_or("n/a".into(), |at| date(Some(at))),
    );
    lines.text("Last write time", date(sb.write_time()));
    lines.number("Mount count", sb.mount_count());
    lines.text("Maximum mount count", sb.max_mount_count().to_string());
    lines.text("Last checked", date(sb.last_check()));
    let interval = sb.check_interval_seconds();
    lines.text(
        "Check interval",
        format!("{interval} ({})", interval_text(interval)),
    );
    if interval != 0 {
        let last = sb.last_check().map_or(0, Timestamp::seconds);
        let next = Time {
            seconds: last + i64::from(interval),
            nanoseconds: 0,
        };
        lines.text("Next check after", ctime(next, Zone::Local));
    }
    if sb.kbytes_written() != 0 {
        lines.text("Lifetime writes", amount(sb.kbytes_written()));
    }
}

/// A time in the format of ctime(3); a time that is not recorded is the start of 1970.
fn date(time: Option<Timestamp>) -> String {
    ctime(time.map(Time::from).unwrap_or_default(), Zone::Local)
}

/// KiB in the largest unit that leaves at least four digits, rounded.
fn amount(kib: u64) -> String {
    let units = [
        (13, 0, "kB"),
        (23, 10, "MB"),
        (33, 20, "GB"),
        (43, 30, "TB"),
        (64, 40, "PB"),
    ];
    let fits = |&&(bits, _, _): &&(u32, u32, &str)| kib.checked_shr(bits).unwrap_or(0) == 0;
    let (_, shift, unit) = units.iter().find(fits).copied().unwrap_or((64, 40, "PB"));
    let half = if shift == 0 { 0 } else { 1_u64 << (shift - 1) };
    format!("{} {unit}", kib.saturating_add(half) >> shift)
}

/// Months of 30 days, weeks, days, and the rest as hours, minutes and seconds.
fn interval_text(mut seconds: u32) -> String {
    if seconds == 0 {
        return "<none>".into();
    }
    let mut parts = Vec::new();
    for (unit, len) in [
        ("month", 30 * 86_400),
        ("week", 7 * 86_400),
        ("day", 86_400),
    ] {
        let count = seconds / len;
        seconds %= len;
        if count > 0 {
            parts.push(format!(
                "{count} {unit}{}",
                if count > 1 { "s" } else { "" }
            ));
        }
    }
    if seconds > 0 {
        let (minutes, hours) = (seconds / 60 % 60, seconds / 3600);
        parts.push(format!("{hours}:{minutes:02}:{:02}", seconds % 60));
    }
    parts.join(", ")
}

fn inodes(sb: &Superblock, lines: &mut Lines) {
    let owner = |id: u32, kind: &str, file: &str| {
        let name = name_of(id, file);
        name.map_or(format!("{id} ({kind} unknown)"), |name| {
            format!("{id} ({kind} {name})")
        })
    };
    lines.text(
        "Reserved blocks uid",
        owner(sb.reserved_uid(), "user", "/etc/passwd"),
    );
    lines.text(
        "Reserved blocks gid",
        owner(sb.reserved_gid(), "group", "/etc/group"),
    );
    if sb.revision().0 >= 1 {
        lines.number("First inode", sb.first_inode().0);
        lines.number("Inode size", sb.geometry().inode_size_bytes() as u64);
        lines.nonzero("Required extra isize", sb.min_extra_isize_bytes());
        lines.nonzero("Desired extra isize", sb.want_extra_isize_bytes());
    }
}

/// The name of a user or group in the host's own files.
fn name_of(id: u32, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let found = fields.nth(1)?.parse::<u32>().ok()?;
        (found == id).then(|| name.to_owned())
    })
}

fn names_and_journal(sb: &Superblock, lines: &mut Lines) {
    let raw = sb.raw();
    if raw.s_journal_uuid != [0; 16] {
        let uuid = match sb.journal() {
            Some(JournalPlace::Device { uuid, .. }) => uuid.to_string(),
            _ => dashed(raw.s_journal_uuid),
        };
        lines.text("Journal UUID", uuid);
    }
    lines.nonzero("Journal inode", raw.s_journal_inum.get());
    if raw.s_journal_dev.get() != 0 {
        lines.text(
            "Journal device",
            format!("0x{:04x}", raw.s_journal_dev.get()),
        );
    }
    if let Some(orphan) = sb.last_orphan() {
        lines.number("First orphan inode", orphan.0);
    }
    let version = sb.def_hash_version();
    if sb.features().compat.contains(Compat::DIR_INDEX) || version != 0 {
        let hash = match version {
            0 => "legacy".to_owned(),
            1 => "half_md4".to_owned(),
            2 => "tea".to_owned(),
            6 => "siphash".to_owned(),
            other => format!("HASHALG_{other}"),
        };
        lines.text("Default directory hash", hash);
    }
    let mut seed = [0; 16];
    for (bytes, word) in seed.chunks_exact_mut(4).zip(sb.hash_seed()) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    if seed != [0; 16] {
        lines.text("Directory Hash Seed", dashed(seed));
    }
    match raw.s_jnl_backup_type {
        0 => {}
        1 => lines.text("Journal backup", "inode blocks"),
        other => lines.text("Journal backup", format!("type {other}")),
    }
    if sb.features().compat.contains(Compat::SPARSE_SUPER2) {
        let groups = raw.s_backup_bgs.map(|group| group.get());
        let groups: Vec<_> = groups.iter().filter(|&&group| group != 0).collect();
        let text: String = groups.iter().map(|group| format!("{group} ")).collect();
        lines.text(
            "Backup block groups",
            if text.is_empty() {
                "(none) ".to_owned()
            } else {
                text
            },
        );
    }
}

/// Sixteen bytes in the format of a UUID.
fn dashed(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (position, byte) in bytes.iter().enumerate() {
        if matches!(position, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn errors(sb: &Superblock, lines: &mut Lines) {
    lines.nonzero("FS Error count", sb.error_count());
    if let Some(first) = sb.first_error() {
        let labels = [
            "First error time",
            "First error function",
            "First error line #",
            "First error inode #",
            "First error block #",
            "First error err",
        ];
        error(&first, labels, lines);
    }
    if let Some(last) = sb.last_error() {
        let labels = [
            "Last error time",
            "Last error function",
            "Last error line #",
            "Last error inode #",
            "Last error block #",
            "Last error err",
        ];
        error(&last, labels, lines);
    }
}

fn error(record: &ErrorRecord<'_>, labels: [&'static str; 6], lines: &mut Lines) {
    let [time, function, line, inode, block, code] = labels;
    lines.text(time, date(Some(record.time)));
    lines.text(function, printable(record.function));
    lines.number(line, record.line);
    if let Some(found) = record.inode {
        lines.number(inode, found.0);
    }
    if let Some(found) = record.block {
        lines.number(block, found.0);
    }
    const CODES: [&str; 18] = [
        "",
        "UNKNOWN",
        "EIO",
        "ENOMEM",
        "EFSBADCRC",
        "EFSCORRUPTED",
        "ENOSPC",
        "ENOKEY",
        "EROFS",
        "EFBIG",
        "EEXIST",
        "ERANGE",
        "EOVERFLOW",
        "EBUSY",
        "ENOTDIR",
        "ENOTEMPTY",
        "ESHUTDOWN",
        "EFAULT",
    ];
    match CODES.get(usize::from(record.code)) {
        Some(&"") => {}
        Some(name) => lines.text(code, *name),
        None => lines.text(code, format!("UNKNOWN_ERRCODE_{}", record.code)),
    }
}

fn roles(sb: &Superblock, lines: &mut Lines) {
    if let Some(block) = sb.mmp_block() {
        lines.number("MMP block number", block.0);
        lines.number("MMP update interval", sb.mmp_update_interval_seconds());
    }
    let quota = sb.quota_inodes();
    let files = [
        ("User quota inode", quota.user),
        ("Group quota inode", quota.group),
        ("Project quota inode", quota.project),
    ];
    for (label, inode) in files {
        if let Some(inode) = inode {
            lines.number(label, inode.0);
        }
    }
    let raw = sb.raw();
    if sb.metadata_checksum() == MetadataChecksum::Crc32c {
        lines.text("Checksum type", "crc32c");
        lines.text("Checksum", format!("0x{:08x}", raw.s_checksum.get()));
    }
    if raw.s_encrypt_pw_salt != [0; 16] {
        lines.text("Encryption PW Salt", dashed(raw.s_encrypt_pw_salt));
    }
    if sb.features().incompat.contains(Incompat::CSUM_SEED) {
        lines.text(
            "Checksum seed",
            format!("0x{:08x}", raw.s_checksum_seed.get()),
        );
    }
    if let Some(encoding) = sb.encoding() {
        let strict = if encoding.strict { " (strict)" } else { "" };
        lines.text("Character encoding", format!("utf8-12.1{strict}"));
    }
    if let Some(inode) = sb.orphan_file_inode() {
        lines.number("Orphan file inode", inode.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert_eq!(interval_text(0), "<none>");
        assert_eq!(interval_text(180 * 86_400), "6 months");
        assert_eq!(interval_text(86_400 * 8 + 3_661), "1 week, 1 day, 1:01:01");
    }

    #[test]
    fn amounts_of_writes() {
        assert_eq!(amount(8191), "8191 kB");
        assert_eq!(amount(8192), "8 MB");
        assert_eq!(amount((1 << 23) + 512), "8 GB");
        assert_eq!(amount(u64::MAX), "16777215 PB");
    }
}
