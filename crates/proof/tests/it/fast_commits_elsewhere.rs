//! Fast commits that Linux or e2fsck replays wrongly: see docs/FINDINGS.md. The fast commits that
//! fourscore writes avoid all of this. Where a test fails because the file system is recovered,
//! that finding is out of date.

use fourscore::{Fs, InodeNr, OpenInode, SetXattr};
use fourscore_block::BlockDevice;
use fourscore_journal::{JournalMap, JournalRun, Log, recover};
use fourscore_ondisk::fast_commit::{AddRange, Dentry, FastCommitBlocks, RangeState, Record};
use fourscore_ondisk::inode::{InodeFlags, RawInode, RawInodeExtra};
use fourscore_ondisk::jbd2::JournalBlock;
use fourscore_ondisk::{LogicalBlock, PhysBlock};
use fourscore_sync::Arc;
use fourscore_testkit::image::Image;
use fourscore_testkit::mount::{Access, KernelMount, Log as KernelLog};
use fourscore_testkit::oracle::e2fsck_repair;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use std::fs::{self, File};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use crate::common::{OWNER, ROOT, device, image_of, mount, names, open, require_kernel};

/// A file system that crashed after `setup`, which is in the log alone.
fn crashed<R>(block_bytes: u32, setup: impl FnOnce(&Fs) -> R) -> (Image, R) {
    crashed_with(block_bytes, &["fast_commit"], setup)
}

/// The same with these features.
fn crashed_with<R>(
    block_bytes: u32,
    features: &[&str],
    setup: impl FnOnce(&Fs) -> R,
) -> (Image, R) {
    let image = image_of(block_bytes, features);
    let fs = mount(&image);
    let made = setup(&fs);
    fs.sync().unwrap();
    (image.copy().unwrap(), made)
}

/// Writes a fast commit of these records to the journal of a crashed image.
fn write(image: &Image, records: &[Record<'_>]) {
    let device = device(image);
    let fs = open(image);
    let geometry = fs.superblock().geometry();
    let run = |extent: &fourscore_ondisk::extent::Extent| JournalRun {
        journal_block: JournalBlock(extent.logical.0),
        block: extent.physical,
        blocks: extent.blocks,
    };
    let runs = fs.extents(InodeNr::JOURNAL).unwrap();
    let map = JournalMap::from_runs(runs.iter().map(run), geometry.blocks()).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device);
    let log = Log::open(shared, geometry.block_size(), map).unwrap();
    let tid = recover(&log, geometry.blocks()).unwrap().end_tid();
    let block_bytes = geometry.block_size().bytes();
    let mut blocks = FastCommitBlocks::new(block_bytes);
    records.iter().for_each(|record| blocks.push(record));
    let content = [FastCommitBlocks::head(block_bytes, tid), blocks.end(tid)].concat();
    let area = log.superblock().fast_commit_area();
    for (nr, block) in (area.start.0..area.end.0).zip(content.chunks(block_bytes)) {
        let offset = log.offset(JournalBlock(nr)).unwrap();
        device.write_at(block, offset).unwrap();
    }
}

/// An inode in a record.
fn raw_inode(mode: u16, flags: InodeFlags, links: u16) -> Vec<u8> {
    let mut raw = RawInode::new_zeroed();
    raw.i_mode = U16::new(mode);
    raw.i_flags = U32::new(flags.bits());
    raw.i_links_count = U16::new(links);
    let mut extra = RawInodeExtra::new_zeroed();
    extra.i_extra_isize = U16::new(32);
    [raw.as_bytes(), extra.as_bytes()].concat()
}

fn name(nr: u32) -> String {
    format!("a name that is rather long, number {nr}")
}

/// Writes a fast commit in which `file` gets further names in `dir`.
fn link(image: &Image, file: InodeNr, dir: InodeNr, numbers: std::ops::Range<u32>) {
    let all: Vec<String> = numbers.clone().map(name).collect();
    let links = u16::try_from(numbers.len() + 1).unwrap();
    let raw = raw_inode(0o100_644, InodeFlags::EXTENTS_FL, links);
    let mut records = Vec::new();
    for name in &all {
        records.push(Record::Link(Dentry {
            parent: dir,
            inode: file,
            name: name.as_bytes(),
        }));
    }
    records.push(Record::Inode {
        inode: file,
        raw: &raw,
    });
    write(image, &records);
}

/// The number of names in `dir` as fourscore reads the crashed image, and after e2fsck.
fn numbers_of_names(image: &Image, dir: InodeNr) -> (usize, usize) {
    let ours = names(&open(image), dir).len();
    let repaired = image.copy().unwrap();
    e2fsck_repair(repaired.path(), &[]).unwrap();
    (ours, names(&open(&repaired), dir).len())
}

#[test]
fn a_fifo_is_cleared() {
    require_kernel!();
    let (image, made) = crashed(1024, |fs| fs.create(ROOT, b"file", &OWNER).unwrap());
    let fifo = InodeNr(made.0 + 8);
    let raw = raw_inode(0o010_644, InodeFlags::empty(), 1);
    let dentry = Dentry {
        parent: ROOT,
        inode: fifo,
        name: b"fifo",
    };
    let inode = Record::Inode {
        inode: fifo,
        raw: &raw,
    };
    write(&image, &[inode, Record::Creat(dentry)]);
    let (ours, by_e2fsck) = numbers_of_names(&image, ROOT);
    assert_eq!(by_e2fsck + 1, ours);
}

#[test]
fn a_directory_without_an_index_does_not_grow() {
    require_kernel!();
    let (image, (dir, file)) = crashed(1024, |fs| {
        let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
        (dir, fs.create(ROOT, b"file", &OWNER).unwrap())
    });
    link(&image, file, dir, 0..40);
    let (ours, by_e2fsck) = numbers_of_names(&image, dir);
    assert!(ours == 40 && by_e2fsck < 40, "{by_e2fsck} names");
}

#[test]
fn blocks_that_a_directory_gets_are_not_counted_by_linux() {
    require_kernel!();
    require!(Need::KernelMount);
    let (image, (dir, file)) = crashed(1024, |fs| {
        let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
        let file = fs.create(ROOT, b"file", &OWNER).unwrap();
        for nr in 100..150 {
            fs.create(dir, name(nr).as_bytes(), &OWNER).unwrap();
        }
        (dir, file)
    });
    link(&image, file, dir, 0..100);
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    mount.unmount().unwrap();
    let repaired = e2fsck_repair(image.path(), &[]).unwrap().output;
    assert!(repaired.contains("i_blocks is"), "{repaired}");
}

/// The block of the inode table with the inode of the journal is as it was before the log.
/// A file that is in a block of the inode table without the inode of the journal.
fn file_elsewhere(fs: &Fs) -> InodeNr {
    for nth in 0..8 {
        let name = format!("file {nth}");
        fs.create(ROOT, name.as_bytes(), &OWNER).unwrap();
    }
    fs.create(ROOT, b"file", &OWNER).unwrap()
}

/// Has Linux recover the image.
fn recover_by_kernel(image: &Image) {
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    mount.unmount().unwrap();
}

#[test]
fn values_in_inodes_are_not_counted() {
    require_kernel!();
    let (by_kernel, file) = crashed_with(1024, &["fast_commit", "ea_inode"], |fs| {
        let file = file_elsewhere(fs);
        fs.set_xattr(file, b"user.large", &[7; 5000], SetXattr::Any)
            .unwrap();
        file
    });
    let raw = raw_inode(0o100_644, InodeFlags::EXTENTS_FL, 1);
    let (inode, raw) = (file, &raw[..]);
    write(&by_kernel, &[Record::Inode { inode, raw }]);
    let by_e2fsck = by_kernel.copy().unwrap();
    recover_by_kernel(&by_kernel);
    for image in [by_kernel, by_e2fsck] {
        let repaired = e2fsck_repair(image.path(), &[]).unwrap().output;
        assert!(
            repaired.contains("i_blocks is 0, should be 10"),
            "{repaired}"
        );
    }
}

#[test]
fn the_last_cluster_of_a_range_stays_free() {
    require_kernel!();
    let (image, file) = crashed_with(1024, &["fast_commit", "bigalloc"], file_elsewhere);
    let raw = raw_inode(0o100_644, InodeFlags::EXTENTS_FL, 1);
    let (inode, raw) = (file, &raw[..]);
    // As many blocks as a cluster has, from the middle of one.
    let range = AddRange {
        inode,
        logical: LogicalBlock(8),
        physical: PhysBlock(40_008),
        blocks: 16,
        state: RangeState::Written,
    };
    let image_record = Record::Inode { inode, raw };
    write(
        &image,
        &[image_record, Record::AddRange(range), image_record],
    );
    recover_by_kernel(&image);
    let repaired = e2fsck_repair(image.path(), &[]).unwrap().output;
    assert!(
        repaired.contains("Block bitmap differences:  +40016"),
        "{repaired}"
    );
}

#[test]
fn inodes_beside_that_of_the_journal_are_stale() {
    require_kernel!();
    let (image, file) = crashed(4096, |fs| fs.create(ROOT, b"file", &OWNER).unwrap());
    assert!(file.0 <= 16, "{file} is in another block");
    link(&image, file, ROOT, 0..1);
    let (ours, by_e2fsck) = numbers_of_names(&image, ROOT);
    assert!(by_e2fsck < ours, "{by_e2fsck} names of {ours}");
}

/// e2fsck takes a block for a node of a tree that a later record maps.
#[test]
fn blocks_are_taken_for_nodes_of_extent_trees() {
    require_kernel!();
    let (image, (deep, other, next)) = crashed(1024, |fs| {
        let deep = fs.create(ROOT, b"deep", &OWNER).unwrap();
        for nr in 0..4 {
            fs.write_at(deep, b"x", nr * 2048).unwrap();
        }
        let other = fs.create(ROOT, b"other", &OWNER).unwrap();
        let last = fs.extents(deep).unwrap()[3].physical;
        (deep, other, PhysBlock(last.0 + 100))
    });
    let range = |inode, logical, physical: PhysBlock, blocks| {
        Record::AddRange(AddRange {
            inode,
            logical: LogicalBlock(logical),
            physical,
            blocks,
            state: RangeState::Written,
        })
    };
    let raw = raw_inode(0o100_644, InodeFlags::EXTENTS_FL, 1);
    let image_of = |inode| Record::Inode { inode, raw: &raw };
    let fifth = range(deep, 100, next, 1);
    // The block that it takes if nothing follows.
    let alone = image.copy().unwrap();
    write(&alone, &[fifth, image_of(deep)]);
    e2fsck_repair(alone.path(), &[]).unwrap();
    let node = node_of(&alone, deep);
    write(
        &image,
        &[
            fifth,
            image_of(deep),
            range(other, 0, node, 1),
            image_of(other),
        ],
    );
    let repaired = e2fsck_repair(image.path(), &[]).unwrap().output;
    assert!(repaired.contains("Multiply-claimed"), "{repaired}");
}

/// The block with the only node of a file's extent tree, as debugfs shows it.
fn node_of(image: &Image, file: InodeNr) -> PhysBlock {
    let mut debugfs = std::process::Command::new("debugfs");
    let shown = debugfs.arg("-R").arg(format!("ex <{}>", file.0));
    let shown = shown.arg(image.path()).output().unwrap().stdout;
    let shown = String::from_utf8(shown).unwrap();
    let line = shown
        .lines()
        .find(|line| line.trim_start().starts_with("0/"));
    let line = line.unwrap_or_else(|| panic!("no node: {shown}"));
    // Level, entries and logical blocks come first: "0/ 1   1/  1     0 -   100   1234".
    let range = line.split(" - ").nth(1).unwrap();
    PhysBlock(range.split_whitespace().nth(1).unwrap().parse().unwrap())
}

/// e2fsck mixes the superblock that it read before the log with that of the log.
#[test]
fn a_superblock_in_the_log_is_broken() {
    require_kernel!();
    let (image, file) = crashed(1024, |fs| {
        let file = fs.create(ROOT, b"file", &OWNER).unwrap();
        let gone = fs.create(ROOT, b"gone", &OWNER).unwrap();
        // It is still open when the file system crashes.
        std::mem::forget(OpenInode::new(fs, gone).unwrap());
        fs.unlink(ROOT, b"gone").unwrap();
        file
    });
    link(&image, file, ROOT, 0..1);
    assert_eq!(names(&open(&image), ROOT).len(), 3);
    let refused = e2fsck_repair(image.path(), &[]).unwrap_err().to_string();
    assert!(
        refused.contains("Superblock checksum does not match"),
        "{refused}"
    );
}

/// The log of Linux turns from its last block to its first; e2fsck goes on in the area behind it.
#[test]
fn a_log_that_turns_is_lost() {
    require_kernel!();
    require!(Need::KernelMount);
    let lost = [1900, 2000, 2100, 2200].into_iter().any(|dirs| {
        let image = image_of(1024, &["fast_commit"]);
        let mount = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
        for nr in 0..dirs {
            // Each is committed in full.
            let dir = mount.path().join(format!("dir{nr}"));
            fs::create_dir(&dir).unwrap();
            File::open(&dir).unwrap().sync_all().unwrap();
        }
        mount.shut_down(KernelLog::Lost).unwrap();
        mount.unmount().unwrap();
        let (ours, by_e2fsck) = numbers_of_names(&image, ROOT);
        assert_eq!(ours, dirs + 1);
        by_e2fsck < ours
    });
    assert!(lost, "e2fsck lost nothing");
}
