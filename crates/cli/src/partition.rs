//! **Purpose.** Finds a partition of a disk by what follows the `@` of `IMAGE@PART`: its number
//! (`p2`), its name or its `PARTUUID` in the partition table, or the label of the file system of
//! ext2, ext3 or ext4 in it.
//!
//! **Not here.** Reading the table (`fourscore_build::partitions`).

use std::io;
use std::ops::Range;
use std::path::Path;

use fourscore_block::{BlockDevice, DeviceOptions, Sharing, open_path};
use fourscore_build::{Partition, PartitionTable, partitions};
use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};

use crate::{failure, qcow2};

/// Partitions that a message names at most.
const MOST_NAMED: usize = 16;
/// What a message says of a cyclic chain of logical partitions.
const LOOP: &str = "the partition table is damaged: its extended partition refers back to itself, \
                    so that some logical partitions may be missing";
/// The magic number of ext2, ext3 and ext4.
const MAGIC: u16 = 0xEF53;

/// The bytes of the partition that `text` names; the error is a message without the disk's name.
pub(crate) fn find(path: &Path, text: &str) -> Result<Range<u64>, String> {
    let device = open(path).map_err(|why| why.to_string())?;
    let found = partitions(&*device).map_err(|why| why.to_string())?;
    let Some(table) = found else {
        return Err(format!("has no partition table, so no partition '{text}'"));
    };
    if table.is_cyclic {
        failure::message(&format!("{}: {LOOP}", path.display()));
    }
    let all = &table.partitions;
    let number = text
        .strip_prefix(['p', 'P'])
        .and_then(|digits| digits.parse().ok());
    let of_table = |one: &&Partition| one.name == text || one.uuid.eq_ignore_ascii_case(text);
    // A number is one, whatever partitions are called.
    let numbered = all.iter().filter(|one| number == Some(one.number));
    let mut named: Vec<&Partition> = numbered.collect();
    if named.is_empty() {
        named = all.iter().filter(of_table).collect();
    }
    if named.is_empty() {
        let has_label = |one: &&Partition| label(&*device, &one.range).as_deref() == Some(text);
        named = all.iter().filter(has_label).collect();
    }
    match named[..] {
        [one] => {
            let range = one.range.start..one.range.end.min(device.len_bytes());
            match range.is_empty() {
                false => Ok(range),
                true if one.range.is_empty() => Err(format!(
                    "the partition table is damaged: partition p{} ends before it begins",
                    one.number
                )),
                true => Err(format!("partition p{} lies behind its end", one.number)),
            }
        }
        [] => Err(format!(
            "has no partition '{text}'; {}",
            list(&*device, &table)
        )),
        _ => Err(format!(
            "has several partitions '{text}': {}; give a number, as in @p{}",
            { named.iter() }
                .map(|one| format!("p{}", one.number))
                .collect::<Vec<_>>()
                .join(", "),
            named[0].number
        )),
    }
}

/// What a message says of the partitions of a disk that is not a file system. `None` if it has no
/// partition table, or cannot be read.
pub(crate) fn describe(path: &Path) -> Option<String> {
    let device = open(path).ok()?;
    let table = partitions(&*device).ok()??;
    Some(list(&*device, &table))
}

fn open(path: &Path) -> io::Result<Box<dyn BlockDevice>> {
    if let Some(content) = qcow2::open(path)? {
        return Ok(Box::new(content));
    }
    let unlocked = DeviceOptions {
        sharing: Sharing::Unlocked,
        ..DeviceOptions::default()
    };
    Ok(Box::new(open_path(path, unlocked)?))
}

fn list(device: &dyn BlockDevice, table: &PartitionTable) -> String {
    let all = &table.partitions;
    let damage = match table.is_cyclic {
        true => format!("; {LOOP}"),
        false => String::new(),
    };
    if all.is_empty() {
        return format!("its partition table has no partitions, or is damaged{damage}");
    }
    let one = |one: &Partition| {
        let label = label(device, &one.range);
        let name = if one.name.is_empty() {
            label
        } else {
            Some(one.name.clone())
        };
        let name = name.map_or(String::new(), |name| {
            format!(" '{}'", crate::text::printable(name.as_bytes()))
        });
        let mib = one.range.end.saturating_sub(one.range.start) >> 20;
        format!("p{}{name} ({mib} MiB)", one.number)
    };
    let named: Vec<String> = all.iter().take(MOST_NAMED).map(one).collect();
    let more = match all.len().checked_sub(MOST_NAMED) {
        Some(more) if more > 0 => format!(" and {more} more"),
        _ => String::new(),
    };
    format!("its partitions are {}{more}{damage}", named.join(", "))
}

/// The label of the file system in a range; `None` without one.
fn label(device: &dyn BlockDevice, range: &Range<u64>) -> Option<String> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    let at = range.start.checked_add(SUPERBLOCK_OFFSET_BYTES)?;
    device.read_at(&mut bytes, at).ok()?;
    let raw = RawSuperblock::from_bytes(&bytes).ok()?;
    let label = raw.s_volume_name.split(|&byte| byte == 0).next()?;
    let is_one = raw.s_magic.get() == MAGIC && !label.is_empty();
    is_one.then(|| String::from_utf8_lossy(label).into_owned())
}
