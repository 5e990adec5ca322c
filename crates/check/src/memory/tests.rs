//! What a check with a memory reads, and that it finds the same.

use std::io::{IoSlice, IoSliceMut, Result};
use std::num::NonZeroUsize;

use anyhow::Context;
use fourscore_block::{BlockDevice, DeviceOptions, Hints, open_path};
use fourscore_ondisk::GroupNr;
use fourscore_sync::Arc;
use fourscore_sync::atomic::{AtomicU64, Ordering::Relaxed};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{damage, matrix, scratch};

use super::*;
use crate::{CheckOptions, Examined, examine};

/// More files than fit into a few blocks of inodes.
const FILES: u32 = 600;

/// Damages that are drawn of each configuration.
const SEEDS: u64 = 16;

/// A device that counts the bytes that are read.
#[derive(Debug)]
struct Counting {
    base: Arc<dyn BlockDevice>,
    read_bytes: AtomicU64,
}

impl BlockDevice for Counting {
    fn len_bytes(&self) -> u64 {
        self.base.len_bytes()
    }

    fn hints(&self) -> Hints {
        self.base.hints()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
        self.base.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.base.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> Result<()> {
        self.base.flush()
    }
}

/// An image with [`FILES`] files, and its device.
struct Patient {
    _image: Image,
    device: Arc<Counting>,
}

impl Patient {
    fn new() -> Option<Self> {
        if !tools::are_met(&[Need::Program("mke2fs")]) {
            return None;
        }
        let folder = scratch::folder().expect("a folder");
        for nr in 0..FILES {
            let content = if nr % 2 == 0 { "some bytes" } else { "" };
            std::fs::write(folder.path().join(format!("file-{nr}")), content).expect("a file");
        }
        let image = Image::builder(MiB(24)).source(folder.path()).make();
        let image = image.expect("mke2fs runs");
        let base = open_path(image.path(), DeviceOptions::read_write()).expect("an image");
        let device = Arc::new(Counting {
            base: Arc::new(base),
            read_bytes: AtomicU64::new(0),
        });
        Some(Self {
            _image: image,
            device,
        })
    }

    /// Checks with a memory; returns also how many bytes were read.
    fn check(&self, memory: Option<&mut Memory>) -> (Examined, u64) {
        let before = self.device.read_bytes.load(Relaxed);
        let device: Arc<dyn BlockDevice> = Arc::<Counting>::clone(&self.device);
        let options = CheckOptions {
            threads: NonZeroUsize::MIN,
            ..CheckOptions::default()
        };
        let found = examine(device, &options, memory, &|_| false).expect("a superblock");
        (found, self.device.read_bytes.load(Relaxed) - before)
    }

    /// Asserts that a check with the memory finds what one without finds; returns the bytes that it
    /// read.
    fn assert_same(&self, memory: &mut Memory) -> u64 {
        let ((with, bytes), (without, _)) = (self.check(Some(memory)), self.check(None));
        assert_same(&with, &without);
        bytes
    }

    /// The offset of an inode in bytes, and the size of inodes.
    fn inode(&self, nr: InodeNr) -> (u64, usize) {
        let (found, _) = self.check(None);
        let geometry = found.volume.geometry();
        let (group, index) = geometry.inode_group(nr).expect("an inode");
        let group = found.volume.group(group).expect("a group");
        let table = group.inode_table.expect("a table");
        let place = geometry.inode_place(table, fourscore_ondisk::GroupOffset(index.0));
        let at = geometry.block_size().offset(place.block) + place.offset_bytes as u64;
        (at, geometry.inode_size_bytes())
    }
}

/// Asserts that two checks found the same, and counted the same names.
fn assert_same(with: &Examined, without: &Examined) {
    assert_eq!(with.report.findings(), without.report.findings());
    assert_eq!(with.report.tally(), without.report.tally());
    assert!(with.tree.nodes().eq(without.tree.nodes()));
    for nr in (0..=with.volume.geometry().inodes()).map(InodeNr) {
        let [with, without] = [with, without].map(|found| found.state.names.get(nr));
        assert_eq!(with, without, "names of inode {nr}");
    }
}

/// The bytes of the used part of the first inode table.
fn table_bytes(found: &Examined) -> u64 {
    let geometry = found.volume.geometry();
    let group = found.volume.group(GroupNr(0)).expect("a group");
    u64::from(found.volume.inodes_to_read(group)) * geometry.inode_size_bytes() as u64
}

#[test]
fn plain_inodes_are_read_once() {
    let Some(patient) = Patient::new() else {
        return;
    };
    let mut memory = Memory::default();
    let (first, all_bytes) = patient.check(Some(&mut memory));
    let table = table_bytes(&first);
    assert!(
        table > 32 * 1024,
        "too few inodes for the test: {table} bytes"
    );
    let again = patient.assert_same(&mut memory);
    // Blocks with a directory or a reserved inode are read again.
    assert!(
        again + table / 2 < all_bytes,
        "{again} of {all_bytes} bytes"
    );
}

#[test]
fn a_change_of_a_forgotten_block_is_found() {
    let Some(patient) = Patient::new() else {
        return;
    };
    let mut memory = Memory::default();
    patient.check(Some(&mut memory));
    // The number of links, at offset 26, of an inode in the middle.
    let (at, _) = patient.inode(InodeNr(FILES / 2));
    patient.device.write_at(&[7, 0], at + 26).expect("inside");
    memory.forget(vec![at + 26..at + 28]);
    patient.assert_same(&mut memory);
    let (found, _) = patient.check(Some(&mut memory));
    assert_eq!(found.report.counts().get("links-count"), Some(&1));
    // It is no longer plain, as it has a finding, so it is found also when nothing is forgotten.
    patient.assert_same(&mut memory);
}

#[test]
fn only_inodes_that_changed_are_read() {
    let Some(patient) = Patient::new() else {
        return;
    };
    let mut memory = Memory::default();
    patient.check(Some(&mut memory));
    let before = patient.assert_same(&mut memory);
    let (at, size) = patient.inode(InodeNr(FILES / 2));
    memory.forget(vec![at..at + 1]);
    let after = patient.assert_same(&mut memory);
    assert_eq!(after - before, size as u64, "bytes of one inode");
    assert_eq!(patient.assert_same(&mut memory), before, "known again");
}

#[test]
fn reserved_descriptor_blocks_are_read_again_when_one_is_written() {
    let Some(patient) = Patient::new() else {
        return;
    };
    let mut memory = Memory::default();
    let (found, first) = patient.check(Some(&mut memory));
    let by_memory = patient.assert_same(&mut memory);
    let size = found.volume.block_bytes() as u64;
    let reserved = memory.reserved.clone();
    let bytes = (reserved.end - reserved.start) * size;
    assert!(bytes > 0 && by_memory + bytes < first, "read once");
    // A pointer to a copy, in the last of the reserved blocks.
    let last = (reserved.end - 1) * size;
    let mut pointer = [0; 4];
    patient.device.read_at(&mut pointer, last).expect("inside");
    for (now, is_clean) in [([1, 2, 3, 0], false), (pointer, true)] {
        patient.device.write_at(&now, last).expect("inside");
        memory.forget(vec![last..last + 4]);
        patient.assert_same(&mut memory);
        let (found, _) = patient.check(Some(&mut memory));
        let findings = found.report.counts();
        assert_eq!(
            !findings.contains_key("resize-inode"),
            is_clean,
            "{findings:?}"
        );
    }
}

#[test]
fn shared_blocks_are_found_by_memory() {
    let Some(patient) = Patient::new() else {
        return;
    };
    let (at, size) = patient.inode(InodeNr(FILES / 2));
    let mut bytes = vec![0; size];
    patient.device.read_at(&mut bytes, at).expect("inside");
    let mut memory = Memory::default();
    patient.check(Some(&mut memory));
    // Another inode gets its map, and both are in blocks of their own.
    let (other, _) = patient.inode(InodeNr(FILES / 2 - 100));
    let map = &bytes[40..100];
    patient.device.write_at(map, other + 40).expect("inside");
    memory.forget(vec![other + 40..other + 100]);
    patient.assert_same(&mut memory);
    let (found, _) = patient.check(Some(&mut memory));
    assert_eq!(found.report.counts().get("shared-blocks"), Some(&1));
}

#[test]
fn another_superblock_ends_all_memories() {
    let Some(patient) = Patient::new() else {
        return;
    };
    let mut memory = Memory::default();
    let (mut found, _) = patient.check(Some(&mut memory));
    assert!(!memory.tables.is_empty() && memory.inodes > 0);
    let mut raw = *found.volume.sb.raw();
    raw.s_free_inodes_count = 1.into();
    raw.s_free_blocks_count_lo = 1.into();
    raw.seal();
    found.volume.sb = (&raw).try_into().expect("a superblock");
    memory.meet(&found.volume);
    assert!(!memory.tables.is_empty(), "counts say nothing about inodes");
    raw.s_wtime = 1.into();
    raw.seal();
    found.volume.sb = (&raw).try_into().expect("a superblock");
    memory.meet(&found.volume);
    assert!(memory.tables.is_empty() && memory.inodes == 0);
}

#[test]
fn slots_are_for_the_same_inodes_only() {
    let mut memory = Memory::default();
    let slots = Slots::new(InodeNr(33), &[Slot::NOTHING; 16], &[]);
    let place = |table, nth| TablePlace {
        group: GroupNr(2),
        table: PhysBlock(table),
        nth,
    };
    memory.learn([(place(68, 2), slots)]);
    assert!(memory.slots(place(68, 2), InodeNr(33), 16).is_some());
    assert!(memory.slots(place(68, 2), InodeNr(49), 16).is_none());
    assert!(memory.slots(place(68, 2), InodeNr(33), 8).is_none());
    assert!(memory.slots(place(68, 3), InodeNr(33), 16).is_none());
    assert!(memory.slots(place(69, 1), InodeNr(33), 16).is_none());
    let elsewhere = TablePlace {
        group: GroupNr(1),
        ..place(68, 2)
    };
    assert!(memory.slots(elsewhere, InodeNr(33), 16).is_none());
    memory.block_bytes = 1024;
    memory.inode_bytes = 64;
    memory.superblock = Some(Box::new(zerocopy::FromZeros::new_zeroed()));
    let again = |memory: &Memory| -> Vec<usize> {
        let slots = memory.slots(place(68, 2), InodeNr(33), 16);
        let slots = slots.expect("known").iter().enumerate();
        let again = slots.filter(|(_, (_, slot))| slot.kind == Kind::Again);
        again.map(|(nth, _)| nth).collect()
    };
    memory.forget(vec![70 * 1024 - 9..70 * 1024, 71 * 1024..72 * 1024]);
    assert!(again(&memory).is_empty());
    // The last byte of the second inode, and two bytes of the fourth and the fifth.
    let block = 70 * 1024;
    memory.forget(vec![block + 127..block + 128, block + 255..block + 257]);
    assert_eq!(again(&memory), [1, 3, 4]);
    memory.forget(vec![block..block + 1024]);
    assert_eq!(again(&memory).len(), 16);
}

#[test]
fn directories_are_read_once() {
    let Some(patient) = Patient::new() else {
        return;
    };
    let mut memory = Memory::default();
    let (first, _) = patient.check(Some(&mut memory));
    assert_eq!(memory.names.len() as u64, first.report.tally().directories);
    let by_memory = patient.assert_same(&mut memory);
    memory.names.clear();
    let (_, with_names) = patient.check(Some(&mut memory));
    // Each of the names takes at least 16 bytes.
    let least = u64::from(FILES) * 16;
    assert!(
        by_memory + least <= with_names,
        "{by_memory} and {with_names} bytes"
    );
}

#[test]
fn a_name_of_an_inode_that_changes_is_found_again() {
    let Some(patient) = Patient::new() else {
        return;
    };
    let mut memory = Memory::default();
    patient.check(Some(&mut memory));
    let (at, size) = patient.inode(InodeNr(FILES / 2));
    let mut bytes = vec![0; size];
    patient.device.read_at(&mut bytes, at).expect("inside");
    let blank = vec![0; size];
    for (now, code) in [(&blank, Some("entry-unused")), (&bytes, None)] {
        patient.device.write_at(now, at).expect("inside");
        // No block of a directory is written.
        memory.forget(vec![at..at + size as u64]);
        patient.assert_same(&mut memory);
        let (found, _) = patient.check(Some(&mut memory));
        let is_found = code.is_none_or(|code| found.report.counts().contains_key(code));
        assert!(is_found, "{:?}", found.report.findings());
        assert_eq!(found.report.is_clean(), code.is_none());
    }
}

#[test]
fn names_in_a_block_that_was_written_are_read_again() {
    let Some(patient) = Patient::new() else {
        return;
    };
    let mut memory = Memory::default();
    let (found, _) = patient.check(Some(&mut memory));
    let all = memory.names.len();
    assert!(all > 1, "the root and lost+found");
    let root = memory.names.first_run_of(InodeNr::ROOT).expect("the root");
    let size = found.volume.block_bytes() as u64;
    let (first, end) = (root.start.0, root.start.0 + u64::from(root.blocks));
    // In front of the root lies a table of inodes.
    memory.forget(vec![
        (first - 1) * size..first * size,
        first * size..first * size,
    ]);
    assert_eq!(memory.names.len(), all, "another block, and no bytes");
    memory.forget(vec![0..1, end * size - 1..end * size]);
    assert_eq!(memory.names.len(), all - 1);
    patient.assert_same(&mut memory);
    assert_eq!(memory.names.len(), all);
}

#[test]
fn ranges_are_merged() {
    let written = vec![5000..5001, 10..20, 30..40, 0..0, 9000..9000, 20..25, 12..14];
    assert_eq!(merged(written), [10..25, 30..40, 5000..5001]);
}

#[test]
fn files_in_blocks_that_follow_each_other_are_one_run() {
    let file = |first, blocks| Slot {
        first: PhysBlock(first),
        blocks,
        links: 1,
        kind: Kind::Regular,
    };
    let all = [file(0, 0), file(70, 2), file(0, 0), file(72, 1)];
    assert_eq!(files_in(&all), Some(PhysBlock(70)..PhysBlock(73)));
    assert_eq!(files_in(&[file(70, 2), file(73, 1)]), None);
    let two_links = Slot {
        links: 2,
        ..file(70, 2)
    };
    for other in [two_links, Slot::NOTHING, Slot::AGAIN] {
        assert_eq!(files_in(&[other]), None, "{other:?}");
    }
}

/// Damages images as seeds choose, and undoes it, with one memory for all of it: each check finds
/// what one without a memory finds.
#[test]
fn drawn_damage_is_found_as_without_a_memory() {
    if !tools::are_met(&[Need::Program("mke2fs"), Need::KernelMount]) {
        return;
    }
    let configs = ["ext4-4k", "ext3-4k", "hash-legacy"];
    matrix::assert_each(&matrix::named(&configs), |config| {
        let populated = config.populated()?;
        let damaged = damage::Patient::new(populated.image.path())?;
        let device = open_path(populated.image.path(), DeviceOptions::default())?;
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let options = CheckOptions::default();
        let mut memory = Memory::default();
        let mut compare = |written: Vec<Range<u64>>| -> anyhow::Result<()> {
            memory.forget(written);
            let device = || Arc::clone(&device);
            // Without a superblock there is nothing to compare.
            let with = examine(device(), &options, Some(&mut memory), &|_| false);
            let without = examine(device(), &options, None, &|_| false);
            match (with, without) {
                (Ok(with), Ok(without)) => assert_same(&with, &without),
                (Err(_), Err(_)) => {}
                _ => anyhow::bail!("a superblock by memory, or without"),
            }
            Ok(())
        };
        compare(Vec::new())?;
        for seed in 0..SEEDS {
            let damage = damaged.damage(seed)?;
            let written: Vec<Range<u64>> = damage.written().collect();
            compare(written.clone()).context(damage.to_string())?;
            damaged.undo(damage)?;
            compare(written)?;
        }
        anyhow::ensure!(memory.names.len() > 10, "too few directories");
        Ok(())
    });
}
