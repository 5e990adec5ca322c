//! **Purpose.** Partition tables, as far as they tell how long a partition is.
//!
//! **Model.** A GPT is read from the sector behind the first one, of 512 or 4096 bytes, and its
//! header must have its checksum. A DOS table has four entries in the first sector; an extended
//! partition is a chain of such sectors, with one logical partition in each. A first sector that
//! is that of a file system has the same two bytes at its end: it is a table only if all four
//! entries look like entries and one is in use.
//!
//! **Invariants.** Whatever the bytes say, reading ends.
//!
//! **References.** UEFI 2.10, section 5.3; the Linux manual of sfdisk(8).

use std::io;
use std::ops::Range;

use flate2::Crc;
use fourscore_block::BlockDevice;

const SECTOR_BYTES: u64 = 512;
const GPT_SECTORS: [u64; 2] = [512, 4096];
const GPT_MAGIC: &[u8] = b"EFI PART";
/// The usual table has 128 entries; the header may say any number.
const GPT_ENTRIES_MAX: u32 = 4096;
const GPT_ENTRY_BYTES_MAX: u32 = 4096;
const DOS_TABLE_AT: usize = 446;
const DOS_ENTRY_BYTES: usize = 16;
const DOS_END: [u8; 2] = [0x55, 0xAA];
const EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// The type of the entry that hides a GPT from programs that do not know it.
const PROTECTIVE: u8 = 0xEE;
const LOGICAL_MAX: u32 = 256;

/// How far a file system may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Where something else begins, or the device ends.
    pub(super) end: u64,
    /// Whether this is the end of a partition that begins where the file system does, or there are
    /// no partitions.
    pub(super) is_partition: bool,
}

/// The room from byte `offset` on, which must be in the device.
pub(super) fn room_at<D: BlockDevice + ?Sized>(device: &D, offset: u64) -> io::Result<Room> {
    let len_bytes = device.len_bytes();
    let Some(partitions) = partitions(device)? else {
        return Ok(Room {
            end: len_bytes,
            is_partition: true,
        });
    };
    let own = partitions.iter().find(|own| own.start == offset);
    if let Some(own) = own {
        return Ok(Room {
            end: own.end.min(len_bytes),
            is_partition: true,
        });
    }
    let borders = partitions.iter().flat_map(|one| [one.start, one.end]);
    Ok(Room {
        end: borders
            .filter(|&border| border > offset)
            .fold(len_bytes, u64::min),
        is_partition: false,
    })
}

/// The partitions, in bytes; `None` without a table.
fn partitions<D: BlockDevice + ?Sized>(device: &D) -> io::Result<Option<Vec<Range<u64>>>> {
    let Some(sector) = dos_sector(device, 0)? else {
        return gpt(device);
    };
    let entries = entries(&sector);
    let is_plausible = sector
        .get(DOS_TABLE_AT..)
        .unwrap_or_default()
        .chunks_exact(DOS_ENTRY_BYTES)
        .take(4)
        .all(|entry| matches!(entry, [0 | 0x80, ..]));
    if !is_plausible || entries.is_empty() {
        return gpt(device);
    }
    if entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        // A damaged GPT tells of no partition, but is one.
        return Ok(Some(gpt(device)?.unwrap_or_default()));
    }
    let mut found = Vec::new();
    for entry in entries {
        match EXTENDED.contains(&entry.kind) {
            true => add_logical(device, entry.start, &mut found)?,
            false => found.push(in_bytes(entry.start, entry.sectors)),
        }
    }
    Ok(Some(found))
}

/// An entry in use of a DOS table, in sectors.
struct Entry {
    kind: u8,
    start: u64,
    sectors: u64,
}

fn entries(sector: &[u8; 512]) -> Vec<Entry> {
    let table = sector.get(DOS_TABLE_AT..).unwrap_or_default();
    let all = table.chunks_exact(DOS_ENTRY_BYTES).take(4);
    all.filter_map(|entry| {
        let word = |at: usize| number32(entry, at).map(u64::from);
        let kind = *entry.get(4)?;
        let (start, sectors) = (word(8)?, word(12)?);
        (kind != 0 && sectors != 0).then_some(Entry {
            kind,
            start,
            sectors,
        })
    })
    .collect()
}

/// Follows the chain of an extended partition.
fn add_logical<D: BlockDevice + ?Sized>(
    device: &D,
    base: u64,
    found: &mut Vec<Range<u64>>,
) -> io::Result<()> {
    let mut at = base;
    for _ in 0..LOGICAL_MAX {
        let Some(sector) = dos_sector(device, at * SECTOR_BYTES)? else {
            return Ok(());
        };
        let mut next = None;
        for entry in entries(&sector) {
            match EXTENDED.contains(&entry.kind) {
                true => next = Some(base + entry.start),
                false => found.push(in_bytes(at + entry.start, entry.sectors)),
            }
        }
        match next {
            Some(next) => at = next,
            None => return Ok(()),
        }
    }
    Ok(())
}

fn in_bytes(start: u64, sectors: u64) -> Range<u64> {
    let start = start.saturating_mul(SECTOR_BYTES);
    start..start.saturating_add(sectors.saturating_mul(SECTOR_BYTES))
}

/// A sector that ends as those with DOS tables do.
fn dos_sector<D: BlockDevice + ?Sized>(device: &D, at: u64) -> io::Result<Option<[u8; 512]>> {
    let mut sector = [0; 512];
    if at.saturating_add(SECTOR_BYTES) > device.len_bytes() {
        return Ok(None);
    }
    device.read_at(&mut sector, at)?;
    Ok(sector.ends_with(&DOS_END).then_some(sector))
}

/// The partitions of a GPT.
fn gpt<D: BlockDevice + ?Sized>(device: &D) -> io::Result<Option<Vec<Range<u64>>>> {
    for sector_bytes in GPT_SECTORS {
        if let Some(found) = gpt_of(device, sector_bytes)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn gpt_of<D: BlockDevice + ?Sized>(
    device: &D,
    sector_bytes: u64,
) -> io::Result<Option<Vec<Range<u64>>>> {
    let mut header = [0; 512];
    if device.len_bytes() < sector_bytes + 512 {
        return Ok(None);
    }
    device.read_at(&mut header, sector_bytes)?;
    if !header.starts_with(GPT_MAGIC) || !has_checksum(&header) {
        return Ok(None);
    }
    let (table, count, entry_bytes) = (
        number64(&header, 72).unwrap_or(0),
        number32(&header, 80).unwrap_or(0).min(GPT_ENTRIES_MAX),
        number32(&header, 84).unwrap_or(0),
    );
    if !(128..=GPT_ENTRY_BYTES_MAX).contains(&entry_bytes) {
        return Ok(None);
    }
    let table = table.saturating_mul(sector_bytes);
    let len_bytes = u64::from(count) * u64::from(entry_bytes);
    if table.saturating_add(len_bytes) > device.len_bytes() {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(len_bytes).unwrap_or(0)];
    device.read_at(&mut bytes, table)?;
    let mut found = Vec::new();
    for entry in bytes.chunks_exact(usize::try_from(entry_bytes).unwrap_or(128)) {
        let is_used = entry.iter().take(16).any(|&byte| byte != 0);
        if let (true, Some(first), Some(last)) = (is_used, number64(entry, 32), number64(entry, 40))
        {
            let end = last.saturating_add(1);
            found.push(first.saturating_mul(sector_bytes)..end.saturating_mul(sector_bytes));
        }
    }
    Ok(Some(found))
}

fn has_checksum(header: &[u8; 512]) -> bool {
    let len = number32(header, 12).and_then(|len| usize::try_from(len).ok());
    let Some(bytes) = len.and_then(|len| header.get(..len)) else {
        return false;
    };
    let mut bytes = bytes.to_vec();
    let promised = number32(&bytes, 16);
    if let Some(place) = bytes.get_mut(16..20) {
        place.fill(0);
    }
    let mut crc = Crc::new();
    crc.update(&bytes);
    promised == Some(crc.sum())
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn number64(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Stdio;

    use fourscore_block::{DeviceOptions, RamDevice, open_path};
    use fourscore_testkit::require;
    use fourscore_testkit::tools::{self, Need};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(end: u64, is_partition: bool) -> Room {
        Room { end, is_partition }
    }

    #[test]
    fn without_a_table_there_is_room_up_to_the_end() {
        let device = RamDevice::new(8 * MIB);
        assert_eq!(room_at(&device, MIB).unwrap(), room(8 * MIB, true));
        // The first sector of a FAT file system.
        let sector = [&[0xEB; 510][..], &DOS_END].concat();
        device.write_at(&sector, 0).unwrap();
        assert_eq!(room_at(&device, MIB).unwrap(), room(8 * MIB, true));
    }

    #[test]
    fn tables_of_sfdisk_tell_where_partitions_end() {
        require!(Need::Program("sfdisk"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let primary = "2048,2048\n8192,4096\n";
        let scripts = [
            format!("label: gpt\n{primary}"),
            format!("label: dos\n{primary}16384,+,E\n18432,2048\n,2048\n"),
        ];
        for script in scripts {
            let file = std::fs::File::create(&path).expect("room");
            file.set_len(64 * MIB).expect("room");
            let mut command = tools::command("sfdisk").expect("it is there");
            let mut child = command
                .args(["-q", "--no-reread", "--no-tell-kernel"])
                .arg(&path)
                .stdin(Stdio::piped())
                .spawn()
                .expect("it runs");
            let mut input = child.stdin.take().expect("a pipe");
            input.write_all(script.as_bytes()).expect("it reads");
            drop(input);
            assert!(child.wait().expect("it ran").success(), "{script}");
            let device = open_path(&path, DeviceOptions::default()).unwrap();
            let at = |offset| room_at(&device, offset).unwrap();
            assert_eq!(at(MIB), room(2 * MIB, true), "{script}");
            assert_eq!(at(4 * MIB), room(6 * MIB, true), "{script}");
            assert_eq!(at(2 * MIB), room(4 * MIB, false), "{script}");
            assert_eq!(at(5 * MIB), room(6 * MIB, false), "{script}");
            if script.contains("dos") {
                assert_eq!(at(9 * MIB), room(10 * MIB, true), "{script}");
                let second = partitions(&device).unwrap().expect("a table");
                let second = second.last().expect("partitions").clone();
                assert_eq!(second.end - second.start, MIB);
                assert_eq!(at(second.start), room(second.end, true), "{script}");
            }
        }
    }

    #[test]
    fn chains_without_an_end_are_left() {
        let device = RamDevice::new(8 * MIB);
        let mut sector = [0; 512];
        sector[510..].copy_from_slice(&DOS_END);
        // An extended partition whose first sector is the table itself.
        (sector[450], sector[458]) = (0x05, 1);
        device.write_at(&sector, 0).unwrap();
        assert_eq!(partitions(&device).unwrap(), Some(Vec::new()));
        for (at, bytes) in [(0, &sector[..]), (512, GPT_MAGIC), (524, &[0xFF; 4])] {
            device.write_at(bytes, at).unwrap();
        }
        assert_eq!(gpt(&device).unwrap(), None);
    }
}
