//! **Purpose.** Reads partition tables: the partitions of a disk, and the end of one that begins at
//! an offset.
//!
//! **Model.** A GPT is read from the second sector (of 512 or 4096 bytes); its header must have a
//! valid checksum. A DOS table has four entries in the first sector; an extended partition is a
//! chain of such sectors with one logical partition in each, which ends where a damaged one returns
//! to a sector of it. The boot sector of a file system has
//! the same two signature bytes at its end, so a sector is a table only if all four entries look
//! like entries and one is in use.
//!
//! **Invariants.** Reading terminates for any input.
//!
//! **References.** UEFI 2.10, section 5.3; the Linux manual of sfdisk(8).

use std::collections::HashSet;
use std::io;
use std::ops::Range;

use flate2::Crc;
use fourscore_block::BlockDevice;
use uuid::Uuid;

const SECTOR_BYTES: u64 = 512;
const GPT_SECTORS: [u64; 2] = [512, 4096];
const GPT_MAGIC: &[u8] = b"EFI PART";
/// The usual table has 128 entries, but the header may give any number.
const GPT_ENTRIES_MAX: u32 = 4096;
const GPT_ENTRY_BYTES_MAX: u32 = 4096;
const DOS_TABLE_AT: usize = 446;
const DOS_ENTRY_BYTES: usize = 16;
const DOS_END: [u8; 2] = [0x55, 0xAA];
const EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// Type of the protective MBR entry that marks a disk with a GPT.
const PROTECTIVE: u8 = 0xEE;
const LOGICAL_MAX: u32 = 256;
const FIRST_LOGICAL: u32 = 5;
/// The signature of a DOS table, in its sector.
const SIGNATURE_AT: usize = 440;

/// A partition of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1; logical partitions of a DOS table have 5 and more.
    pub number: u32,
    /// Its bytes on the disk, which may lie behind the end of a damaged one. The end may be before
    /// the start if the table is damaged.
    pub range: Range<u64>,
    /// Its name in a GPT (`PARTLABEL`); empty in a DOS table.
    pub name: String,
    /// Its `PARTUUID`: a UUID in a GPT, signature and number (`1234abcd-01`) in a DOS table.
    pub uuid: String,
}

/// The partition table of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionTable {
    /// The partitions, in the order of their numbers.
    pub partitions: Vec<Partition>,
    /// Whether the chain of logical partitions of a damaged DOS table returns to a sector of it. A
    /// partition of the chain is listed once.
    pub is_cyclic: bool,
}

/// How far a file system may extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// Start of the next partition, or end of the device.
    pub(crate) end: u64,
    /// Whether `end` is the end of a partition that begins at the file system's offset, or the disk
    /// has no partition table.
    pub(crate) is_partition: bool,
}

/// The space at byte `offset`, which must be inside the device; it ends after `offset`.
///
/// # Errors
/// If the device cannot be read, or the partition that begins there ends before it begins.
pub(crate) fn space_at<D: BlockDevice + ?Sized>(device: &D, offset: u64) -> io::Result<Space> {
    let len_bytes = device.len_bytes();
    let Some(table) = partitions(device)? else {
        return Ok(Space {
            end: len_bytes,
            is_partition: true,
        });
    };
    let partitions = table.partitions;
    let mut ranges = partitions.iter().map(|partition| &partition.range);
    let own = ranges.find(|own| own.start == offset);
    if let Some(own) = own {
        if own.is_empty() {
            let why = "the partition table is damaged: a partition ends before it begins";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        return Ok(Space {
            end: own.end.min(len_bytes),
            is_partition: true,
        });
    }
    let borders = { partitions.iter() }.flat_map(|one| [one.range.start, one.range.end]);
    Ok(Space {
        end: borders
            .filter(|&border| border > offset)
            .fold(len_bytes, u64::min),
        is_partition: false,
    })
}

/// Returns the partition table of a disk, if it has one. A GPT that is damaged has no partitions.
///
/// # Errors
/// If the device cannot be read.
pub fn partitions<D: BlockDevice + ?Sized>(device: &D) -> io::Result<Option<PartitionTable>> {
    let of_gpt = || Ok(gpt(device)?.map(PartitionTable::from));
    let Some(sector) = dos_sector(device, 0)? else {
        return of_gpt();
    };
    let entries = entries(&sector);
    let is_plausible = sector
        .get(DOS_TABLE_AT..)
        .unwrap_or_default()
        .chunks_exact(DOS_ENTRY_BYTES)
        .take(4)
        .all(|entry| matches!(entry, [0 | 0x80, ..]));
    if !is_plausible || entries.is_empty() {
        return of_gpt();
    }
    if entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        // A damaged GPT is still a partition table, but its partitions are unknown.
        return Ok(Some(of_gpt()?.unwrap_or_default()));
    }
    let signature = number32(&sector, SIGNATURE_AT).unwrap_or(0);
    let (mut found, mut logical) = (Vec::new(), Vec::new());
    let mut is_cyclic = false;
    for entry in entries {
        match EXTENDED.contains(&entry.kind) {
            true => is_cyclic |= add_logical(device, entry.start, signature, &mut logical)?,
            false => {
                let range = in_bytes(entry.start, entry.sectors);
                found.push(Partition::of_dos(entry.number, range, signature));
            }
        }
    }
    found.extend(logical);
    Ok(Some(PartitionTable {
        partitions: found,
        is_cyclic,
    }))
}

impl From<Vec<Partition>> for PartitionTable {
    fn from(partitions: Vec<Partition>) -> Self {
        Self {
            partitions,
            is_cyclic: false,
        }
    }
}

impl Partition {
    fn of_dos(number: u32, range: Range<u64>, signature: u32) -> Self {
        Self {
            number,
            range,
            name: String::new(),
            uuid: format!("{signature:08x}-{number:02x}"),
        }
    }
}

/// A used entry of a DOS table; start and length in sectors.
struct Entry {
    /// From 1.
    number: u32,
    kind: u8,
    start: u64,
    sectors: u64,
}

fn entries(sector: &[u8; 512]) -> Vec<Entry> {
    let table = sector.get(DOS_TABLE_AT..).unwrap_or_default();
    let all = table.chunks_exact(DOS_ENTRY_BYTES).take(4).zip(1..);
    all.filter_map(|(entry, number)| {
        let word = |at: usize| number32(entry, at).map(u64::from);
        let kind = *entry.get(4)?;
        let (start, sectors) = (word(8)?, word(12)?);
        (kind != 0 && sectors != 0).then_some(Entry {
            number,
            kind,
            start,
            sectors,
        })
    })
    .collect()
}

/// Follows the chain of logical partitions in an extended partition. Returns whether it comes back
/// to one of its sectors, at which the walk ends.
fn add_logical<D: BlockDevice + ?Sized>(
    device: &D,
    base: u64,
    signature: u32,
    found: &mut Vec<Partition>,
) -> io::Result<bool> {
    let mut at = base;
    let mut seen = HashSet::new();
    for _ in 0..LOGICAL_MAX {
        if !seen.insert(at) {
            return Ok(true);
        }
        let Some(sector) = dos_sector(device, at * SECTOR_BYTES)? else {
            return Ok(false);
        };
        let mut next = None;
        for entry in entries(&sector) {
            match EXTENDED.contains(&entry.kind) {
                true => next = Some(base + entry.start),
                false => {
                    let number = FIRST_LOGICAL + u32::try_from(found.len()).unwrap_or(0);
                    let range = in_bytes(at + entry.start, entry.sectors);
                    found.push(Partition::of_dos(number, range, signature));
                }
            }
        }
        match next {
            Some(next) => at = next,
            None => return Ok(false),
        }
    }
    Ok(false)
}

fn in_bytes(start: u64, sectors: u64) -> Range<u64> {
    let start = start.saturating_mul(SECTOR_BYTES);
    start..start.saturating_add(sectors.saturating_mul(SECTOR_BYTES))
}

/// A sector that ends with the signature of DOS tables.
fn dos_sector<D: BlockDevice + ?Sized>(device: &D, at: u64) -> io::Result<Option<[u8; 512]>> {
    let mut sector = [0; 512];
    if at.saturating_add(SECTOR_BYTES) > device.len_bytes() {
        return Ok(None);
    }
    device.read_at(&mut sector, at)?;
    Ok(sector.ends_with(&DOS_END).then_some(sector))
}

/// The partitions of a GPT.
fn gpt<D: BlockDevice + ?Sized>(device: &D) -> io::Result<Option<Vec<Partition>>> {
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
) -> io::Result<Option<Vec<Partition>>> {
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
    let entries = bytes.chunks_exact(usize::try_from(entry_bytes).unwrap_or(128));
    let found = { entries.zip(1..) }.filter_map(|(entry, number)| {
        let is_used = entry.iter().take(16).any(|&byte| byte != 0);
        let first = number64(entry, 32).filter(|_| is_used)?;
        let end = number64(entry, 40)?.saturating_add(1);
        let uuid: [u8; 16] = entry.get(16..32)?.try_into().ok()?;
        Some(Partition {
            number,
            range: first.saturating_mul(sector_bytes)..end.saturating_mul(sector_bytes),
            name: gpt_name(entry.get(56..128)?),
            uuid: Uuid::from_bytes_le(uuid).to_string(),
        })
    });
    Ok(Some(found.collect()))
}

/// A name of UTF-16, up to the first zero.
fn gpt_name(bytes: &[u8]) -> String {
    let units = { bytes.as_chunks::<2>().0.iter() }.map(|&unit| u16::from_le_bytes(unit));
    let units: Vec<u16> = units.take_while(|&unit| unit != 0).collect();
    String::from_utf16_lossy(&units)
}

fn has_checksum(header: &[u8; 512]) -> bool {
    let len = number32(header, 12).and_then(|len| usize::try_from(len).ok());
    let Some(bytes) = len.and_then(|len| header.get(..len)) else {
        return false;
    };
    let mut bytes = bytes.to_vec();
    let expected = number32(&bytes, 16);
    if let Some(place) = bytes.get_mut(16..20) {
        place.fill(0);
    }
    let mut crc = Crc::new();
    crc.update(&bytes);
    expected == Some(crc.sum())
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
    use std::ffi::OsStr;
    use std::path::Path;

    use fourscore_block::{DeviceOptions, RamDevice, open_path};
    use fourscore_testkit::require;
    use fourscore_testkit::tools::{self, Need};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(end: u64, is_partition: bool) -> Space {
        Space { end, is_partition }
    }

    #[test]
    fn without_a_table_the_space_extends_to_the_end() {
        let device = RamDevice::new(8 * MIB);
        assert_eq!(space_at(&device, MIB).unwrap(), space(8 * MIB, true));
        // The first sector of a FAT file system.
        let sector = [&[0xEB; 510][..], &DOS_END].concat();
        device.write_at(&sector, 0).unwrap();
        assert_eq!(space_at(&device, MIB).unwrap(), space(8 * MIB, true));
    }

    /// Writes an entry of a DOS table into a sector, and the signature of the sector.
    fn put_entry(device: &RamDevice, sector: u64, nr: u64, kind: u8, start: u32, len: u32) {
        let entry = [
            &[0, 0, 0, 0, kind, 0, 0, 0][..],
            &start.to_le_bytes(),
            &len.to_le_bytes(),
        ];
        let at = sector * SECTOR_BYTES;
        let table = at + DOS_TABLE_AT as u64;
        device.write_at(&entry.concat(), table + nr * 16).unwrap();
        device.write_at(&DOS_END, at + 510).unwrap();
    }

    /// A disk with two primary and two logical partitions.
    fn dos_disk() -> RamDevice {
        let device = RamDevice::new(64 * MIB);
        put_entry(&device, 0, 0, 0x83, 2048, 2048);
        put_entry(&device, 0, 1, 0x83, 8192, 4096);
        put_entry(&device, 0, 2, 0x05, 16_384, 65_536);
        put_entry(&device, 16_384, 0, 0x83, 2048, 2048);
        put_entry(&device, 16_384, 1, 0x05, 8192, 8192);
        put_entry(&device, 24_576, 0, 0x83, 2048, 4096);
        let signature = 0x1234_abcd_u32.to_le_bytes();
        device.write_at(&signature, SIGNATURE_AT as u64).unwrap();
        device
    }

    /// A disk with a GPT for sectors of this size, and the same two primary partitions.
    fn gpt_disk(sector_bytes: u64) -> RamDevice {
        let device = RamDevice::new(64 * MIB);
        put_entry(&device, 0, 0, PROTECTIVE, 1, 131_071);
        let sector = |bytes: u64| (bytes / sector_bytes).to_le_bytes();
        let mut table = vec![0; 128 * 128];
        for (nr, (start, end)) in [(0, (MIB, 2 * MIB)), (1, (4 * MIB, 6 * MIB))] {
            let entry = &mut table[nr * 128..][..128];
            entry[..16].fill(7);
            entry[16..32].fill(u8::try_from(nr + 1).unwrap());
            entry[20..22].copy_from_slice(&[0xab, 0xcd]);
            for (at, unit) in ["boot", "root"][nr].encode_utf16().enumerate() {
                entry[56 + 2 * at..][..2].copy_from_slice(&unit.to_le_bytes());
            }
            entry[32..40].copy_from_slice(&sector(start));
            entry[40..48].copy_from_slice(&sector(end - sector_bytes));
        }
        let crc_of = |bytes: &[u8]| {
            let mut crc = Crc::new();
            crc.update(bytes);
            crc.sum().to_le_bytes()
        };
        let last = 64 * MIB / sector_bytes - 1;
        let mut header = [0; 92];
        header[..8].copy_from_slice(GPT_MAGIC);
        header[10] = 1;
        header[12] = 92;
        for (at, number) in [(24, 1), (32, last), (40, 34), (48, last - 33), (72, 2)] {
            header[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        header[56..72].fill(9);
        (header[80], header[84]) = (128, 128);
        header[88..].copy_from_slice(&crc_of(&table));
        let crc = crc_of(&header);
        header[16..20].copy_from_slice(&crc);
        device.write_at(&header, sector_bytes).unwrap();
        device.write_at(&table, 2 * sector_bytes).unwrap();
        device
    }

    #[test]
    fn ends_of_partitions_are_found() {
        for device in [dos_disk(), gpt_disk(512), gpt_disk(4096)] {
            let at = |offset| space_at(&device, offset).unwrap();
            assert_eq!(at(MIB), space(2 * MIB, true));
            assert_eq!(at(4 * MIB), space(6 * MIB, true));
            assert_eq!(at(2 * MIB), space(4 * MIB, false));
            assert_eq!(at(5 * MIB), space(6 * MIB, false));
        }
        let device = dos_disk();
        let at = |offset| space_at(&device, offset).unwrap();
        assert_eq!(at(9 * MIB), space(10 * MIB, true));
        assert_eq!(at(13 * MIB), space(15 * MIB, true));
        // A damaged GPT has no partitions but still counts as a table.
        let device = gpt_disk(512);
        device.write_at(b"x", 512 + 40).unwrap();
        assert!(!space_at(&device, MIB).unwrap().is_partition);
    }

    #[test]
    fn a_partition_that_ends_before_it_begins_is_damage() {
        let device = gpt_disk(512);
        // The last sector of the second partition: the one before its first, and the first.
        for last in [2 * MIB / 512, 0] {
            let entry = 2 * 512 + 128;
            device.write_at(&last.to_le_bytes(), entry + 40).unwrap();
            let error = space_at(&device, 4 * MIB).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert_eq!(space_at(&device, MIB).unwrap(), space(2 * MIB, true));
            assert!(space_at(&device, 5 * MIB).unwrap().end > 5 * MIB);
        }
    }

    /// The partitions that libblkid finds in a disk, in order.
    fn by_partx(disk: &Path) -> Vec<Partition> {
        let arguments = ["-g", "-b", "-r", "-o", "NR,START,SECTORS,UUID,NAME"].map(OsStr::new);
        let arguments = [&arguments[..], &[disk.as_os_str()]].concat();
        let output = tools::run("partx", &arguments).expect("a table");
        let lines = output.lines().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |nth: usize| words[nth].parse::<u64>().unwrap();
            Partition {
                number: u32::try_from(number(0)).unwrap(),
                range: in_bytes(number(1), number(2)),
                uuid: words[3].to_owned(),
                name: words[4].to_owned(),
            }
        });
        // partx also lists the extended partition of these disks.
        let is_extended = |one: &Partition| one.range.start == 8 * MIB && one.range.end == 40 * MIB;
        lines.filter(|one| !is_extended(one)).collect()
    }

    #[test]
    fn partitions_are_those_that_libblkid_finds() {
        require!(Need::Program("partx"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        for (device, count) in [(dos_disk(), 4), (gpt_disk(512), 2)] {
            let mut bytes = vec![0; 64 << 20];
            device.read_at(&mut bytes, 0).unwrap();
            std::fs::write(&path, bytes).expect("disk space");
            let found = by_partx(&path);
            assert_eq!(found.len(), count);
            let uuids = [&found[0].uuid, &found[count - 1].uuid];
            assert!(uuids == ["1234abcd-01", "1234abcd-06"] || found[1].name == "root");
            assert_eq!(partitions(&device).unwrap(), Some(found.into()));
        }
    }

    #[test]
    fn a_table_of_systemd_repart_is_read() {
        require!(Need::Program("partx"), Need::Program("systemd-repart"));
        let folder = tempfile::tempdir().expect("a folder");
        for (name, size) in [("1.conf", "16M"), ("2.conf", "8M")] {
            let text = format!(
                "[Partition]\nType=linux-generic\nSizeMinBytes={size}\nSizeMaxBytes={size}\n"
            );
            std::fs::write(folder.path().join(name), text).expect("disk space");
        }
        let disk = folder.path().join("disk");
        let definitions = format!("--definitions={}", folder.path().display());
        let arguments = ["--empty=create", "--size=64M", "--dry-run=no", &definitions];
        let mut arguments = arguments.map(OsStr::new).to_vec();
        arguments.push(disk.as_os_str());
        tools::run("systemd-repart", &arguments).expect("a table");
        let device = open_path(&disk, DeviceOptions::default()).unwrap();
        let found = by_partx(&disk);
        assert_eq!(found.len(), 2);
        assert_eq!(partitions(&device).unwrap(), Some(found.into()));
    }

    #[test]
    fn partitions_of_a_cyclic_chain_are_listed_once() {
        let device = dos_disk();
        let sound = partitions(&device).unwrap().unwrap();
        assert!(!sound.is_cyclic);
        // The second sector of the chain refers to itself, then to the first one.
        for start in [8192, 0] {
            put_entry(&device, 24_576, 1, 0x05, start, 8192);
            let found = partitions(&device).unwrap().unwrap();
            assert_eq!(found.partitions, sound.partitions);
            assert!(found.is_cyclic);
        }
    }

    #[test]
    fn a_cyclic_chain_of_logical_partitions_terminates() {
        let device = RamDevice::new(8 * MIB);
        let mut sector = [0; 512];
        sector[510..].copy_from_slice(&DOS_END);
        // An extended partition whose first sector is the table itself.
        (sector[450], sector[458]) = (0x05, 1);
        device.write_at(&sector, 0).unwrap();
        let empty = PartitionTable {
            partitions: Vec::new(),
            is_cyclic: true,
        };
        assert_eq!(partitions(&device).unwrap(), Some(empty));
        for (at, bytes) in [(0, &sector[..]), (512, GPT_MAGIC), (524, &[0xFF; 4])] {
            device.write_at(bytes, at).unwrap();
        }
        assert_eq!(gpt(&device).unwrap(), None);
    }
}
