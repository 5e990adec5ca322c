//! data=journal, data=writeback, and files whose data is journaled because of their flag: their
//! data while it is written, and their data after a crash.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use fourscore::{
    DataMode, Extent, Fallocate, Follow, Fs, InodeNr, MountOptions, NewAttributes, Replace,
};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::thread;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, debugfs_write, e2fsck_repair};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use crate::common::{
    OF_USER, ROOT, content, mount_with, open, quiet, require_e2fsprogs, require_kernel, try_mount,
    unmount_clean,
};
use crate::tree::{Tree, assert_same, host_tree, our_tree};

/// The magic number at the beginning of the journal's blocks.
const MAGIC: [u8; 4] = 0xc03b_3998_u32.to_be_bytes();

fn image(features: &[&str]) -> Image {
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
    let image = image.features(features).journal(MiB(4));
    image.make().unwrap()
}

/// Data with some blocks that look like blocks of the journal.
fn journal_like(random: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|_| random.bits().to_le_bytes()[0]).collect();
    for block in bytes.chunks_mut(1024).step_by(3) {
        let magic = MAGIC.len().min(block.len());
        block[..magic].copy_from_slice(&MAGIC[..magic]);
    }
    bytes
}

/// Writes, cuts, punches and moves one file, and keeps the expected data.
fn disturb(fs: &Fs, inode: InodeNr, expected: &mut Vec<u8>, random: &mut Rng) {
    let size = expected.len();
    let offset = random.below(200_000);
    let len = 1 + random.below(30_000);
    match random.below(9) {
        0..=3 => {
            let bytes = journal_like(random, len);
            fs.write_at(inode, &bytes, offset as u64).unwrap();
            expected.resize(size.max(offset + len), 0);
            expected[offset..offset + len].copy_from_slice(&bytes);
        }
        4 => {
            fs.truncate(inode, offset as u64).unwrap();
            expected.resize(offset, 0);
        }
        5 | 6 => {
            let what = [Fallocate::PunchHole, Fallocate::ZeroRangeKeepSize][random.below(2)];
            fs.fallocate(inode, what, offset as u64, len as u64)
                .unwrap();
            let end = size.min(offset + len);
            expected[offset.min(end)..end].fill(0);
        }
        7 => {
            let (offset, len) = (offset & !1023, 1024 * (1 + len / 1024));
            if offset + len < size {
                let what = Fallocate::CollapseRange;
                fs.fallocate(inode, what, offset as u64, len as u64)
                    .unwrap();
                expected.drain(offset..offset + len);
            }
        }
        _ => {
            let what = Fallocate::Allocate;
            fs.fallocate(inode, what, offset as u64, len as u64)
                .unwrap();
            expected.resize(size.max(offset + len), 0);
        }
    }
    assert_eq!(fs.stat(inode).unwrap().size_bytes, expected.len() as u64);
    let from = random.below(expected.len() + 1);
    let len = random.below(expected.len() + 1 - from);
    let mut bytes = vec![1; len];
    assert_eq!(fs.read_at(inode, &mut bytes, from as u64).unwrap(), len);
    assert!(
        bytes == expected[from..from + len],
        "{from} and {len} bytes"
    );
}

/// A crashed image is recovered by the kernel, by e2fsck and by us; each result must be clean, and
/// all must be equal.
fn assert_recovered_alike(crashed: &Image) -> Tree {
    let by_kernel = crashed.copy().unwrap();
    let kernel = KernelMount::new(by_kernel.path(), Access::ReadWrite, "").unwrap();
    let expected = host_tree(kernel.path());
    kernel.unmount().unwrap();
    assert_clean(by_kernel.path());
    let by_e2fsck = crashed.copy().unwrap();
    e2fsck_repair(by_e2fsck.path(), &[]).unwrap();
    assert_clean(by_e2fsck.path());
    assert_same(&our_tree(&open(&by_e2fsck)), &expected, "e2fsck");
    assert!(our_tree(&open(crashed)) == expected, "only read");
    let by_us = crashed.copy().unwrap();
    mount_with(&by_us, &quiet()).unmount().unwrap();
    assert_clean(by_us.path());
    assert!(our_tree(&open(&by_us)) == expected, "ours");
    expected
}

/// The bytes of a file at their home location, read without any journal.
fn in_place(fs: &Fs, image: &Image, inode: InodeNr) -> Vec<u8> {
    let file = File::open(image.path()).unwrap();
    let mut bytes = Vec::new();
    for extent in fs.extents(inode).unwrap() {
        let mut part = vec![0; extent.blocks as usize * 1024];
        file.read_exact_at(&mut part, extent.physical.0 * 1024)
            .unwrap();
        bytes.extend(part);
    }
    bytes
}

#[test]
fn content_goes_through_the_journal() {
    require_kernel!();
    for (seed, features) in [(1, &[][..]), (2, &["^metadata_csum", "^64bit"])] {
        let image = image(features);
        let fs = mount_with(&image, &quiet().data(DataMode::Journal));
        let mut random = Rng::new(seed);
        let names = [&b"one"[..], b"two", b"three"];
        let mut files = names.map(|name| (fs.create(ROOT, name, &OF_USER).unwrap(), Vec::new()));
        for round in 0..300 {
            let (inode, expected) = &mut files[random.below(names.len())];
            disturb(&fs, *inode, expected, &mut random);
            if round % 60 == 59 {
                fs.fsync(*inode).unwrap();
            }
        }
        fs.sync().unwrap();
        // The data that was committed last is only in the log.
        let (inode, expected) = &mut files[0];
        let last = journal_like(&mut random, 5000);
        fs.write_at(*inode, &last, 0).unwrap();
        expected.resize(expected.len().max(5000), 0);
        expected[..5000].copy_from_slice(&last);
        fs.fsync(*inode).unwrap();
        assert!(
            in_place(&fs, &image, *inode)[..5000] != last,
            "in its place already"
        );
        let crashed = image.copy().unwrap();
        for (inode, expected) in &files {
            assert!(content(&fs, *inode) == *expected);
        }
        unmount_clean(fs, &image);
        let tree = assert_recovered_alike(&crashed);
        for (name, (_, expected)) in names.iter().zip(&files) {
            assert!(tree[*name].content == *expected, "{}", name.escape_ascii());
            assert!(our_tree(&open(&image))[*name].content == *expected);
        }
    }
}

#[test]
fn a_small_cache_loses_nothing_that_is_not_in_its_place() {
    require_e2fsprogs!();
    let image = image(&[]);
    let cache = fourscore::OpenOptions::new().cache_bytes(256 << 10);
    let fs = mount_with(
        &image,
        &MountOptions::new().open(cache).data(DataMode::Journal),
    );
    thread::scope(|scope| {
        for seed in 1..=3 {
            let fs = &fs;
            scope.spawn(move || {
                let name = seed.to_string().into_bytes();
                let inode = fs.create(ROOT, &name, &OF_USER).unwrap();
                let (mut expected, mut random) = (Vec::new(), Rng::new(seed));
                for _ in 0..150 {
                    disturb(fs, inode, &mut expected, &mut random);
                }
                assert!(content(fs, inode) == expected);
            });
        }
    });
    unmount_clean(fs, &image);
}

#[test]
fn a_flag_has_single_files_journaled() {
    require_kernel!();
    let image = image(&[]);
    let fs = mount_with(&image, &quiet());
    let inode = fs.create(ROOT, b"file", &OF_USER).unwrap();
    let extents = InodeFlags::EXTENTS_FL;
    let (mut expected, mut random) = (Vec::new(), Rng::new(7));
    for turn in 1..=6 {
        let flag = match turn % 2 {
            1 => InodeFlags::JOURNAL_DATA_FL,
            _ => InodeFlags::empty(),
        };
        fs.set_flags(inode, flag | extents).unwrap();
        for _ in 0..20 {
            disturb(&fs, inode, &mut expected, &mut random);
        }
        fs.write_at(inode, &[turn; 3000], 0).unwrap();
        expected.resize(expected.len().max(3000), 0);
        expected[..3000].fill(turn);
        assert!(content(&fs, inode) == expected, "turn {turn}");
        let is_in_place = in_place(&fs, &image, inode)[..3000] == [turn; 3000];
        assert_eq!(is_in_place, flag.is_empty(), "turn {turn}");
    }
    fs.sync().unwrap();
    let crashed = image.copy().unwrap();
    unmount_clean(fs, &image);
    let tree = assert_recovered_alike(&crashed);
    assert!(tree[&b"file"[..]].content == expected);
}

/// A write of several steps enters the freezer for each of them in turn. A writer that is inside
/// and enters again must not wait for a freezing thread that waits for the writer.
#[test]
fn writers_and_a_freeze_do_not_deadlock() {
    require_e2fsprogs!();
    let runs = [
        (&[][..], DataMode::Journal),
        (&["inline_data"], DataMode::Ordered),
    ];
    for (features, mode) in runs {
        let image = image(features);
        let fs = mount_with(&image, &quiet().data(mode));
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..60_u32 {
                    let name = number.to_string().into_bytes();
                    let inode = fs.create(ROOT, &name, &OF_USER).unwrap();
                    for _ in 0..4 {
                        fs.append(inode, &[1; 77]).unwrap();
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                fs.freeze().unwrap();
                fs.thaw().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
        for number in 0..60_u32 {
            let inode = fs.lookup(ROOT, &number.to_string().into_bytes()).unwrap();
            assert_eq!(content(&fs, inode), [1; 4 * 77]);
        }
        unmount_clean(fs, &image);
    }
}

/// Data that was journaled for a block must not be replayed over the block's newer data.
#[test]
fn freed_content_is_revoked() {
    require_kernel!();
    let image = image(&[]);
    let fs = mount_with(&image, &quiet().use_reserve());
    let flags = InodeFlags::JOURNAL_DATA_FL | InodeFlags::EXTENTS_FL;
    let journaled = fs.create(ROOT, b"journaled", &OF_USER).unwrap();
    fs.set_flags(journaled, flags).unwrap();
    fs.write_at(journaled, &[1; 400 << 10], 0).unwrap();
    fs.fsync(journaled).unwrap();
    let old: Vec<_> = fs.extents(journaled).unwrap();
    fs.unlink(ROOT, b"journaled").unwrap();
    fs.sync().unwrap();
    let end = |run: &Extent| run.physical.0 + u64::from(run.blocks);
    let overlap =
        |one: &Extent, other: &Extent| one.physical.0 < end(other) && other.physical.0 < end(one);
    let is_reused = |inode| {
        let new = fs.extents(inode).unwrap();
        new.iter()
            .any(|new| old.iter().any(|old| overlap(old, new)))
    };
    // Uses all free space until the same blocks are reused; they wait for readers, also for those
    // of other tests.
    let mut reused = false;
    for number in 0..2000_u32 {
        let name = number.to_string().into_bytes();
        let inode = fs.create(ROOT, &name, &OF_USER).unwrap();
        let is_full = fs.write_at(inode, &vec![2; 1 << 20], 0).is_err();
        fs.sync().unwrap();
        reused = is_reused(inode);
        if reused {
            break;
        }
        if is_full {
            thread::sleep(Duration::from_millis(10));
        }
    }
    assert!(reused, "no block was used again");
    let crashed = image.copy().unwrap();
    fs.unmount().unwrap();
    let tree = assert_recovered_alike(&crashed);
    for object in tree.values().filter(|object| !object.content.is_empty()) {
        assert!(object.content.iter().all(|&byte| byte == 2));
    }
}

fn tune(image: &Image, arguments: &[&str]) {
    let mut tune = tools::command("tune2fs").unwrap();
    tools::stdout_of(tune.args(arguments).arg(image.path())).unwrap();
}

#[test]
fn the_superblock_says_what_the_mount_does_not() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("tune2fs"),
        Need::Program("debugfs")
    );
    let mut byte = 0;
    let mut goes_through = |image: &Image, options: &MountOptions| {
        byte += 1;
        let fs = mount_with(image, options);
        let name = b"file";
        let inode = fs.create(ROOT, name, &OF_USER).unwrap();
        fs.write_at(inode, &[byte; 2000], 0).unwrap();
        let is_in_place = in_place(&fs, image, inode)[..2000] == [byte; 2000];
        assert_eq!(content(&fs, inode), [byte; 2000]);
        fs.unlink(ROOT, name).unwrap();
        unmount_clean(fs, image);
        !is_in_place
    };
    let image = image(&[]);
    assert!(!goes_through(&image, &quiet()));
    tune(&image, &["-o", "journal_data"]);
    assert!(goes_through(&image, &quiet()));
    assert!(!goes_through(&image, &quiet().data(DataMode::Ordered)));
    tune(&image, &["-o", "journal_data_writeback"]);
    assert!(!goes_through(&image, &quiet()));
    debugfs_write(image.path(), &["ssv mount_opts nonsense,data=journal"]).unwrap();
    assert!(goes_through(&image, &quiet()));
    assert!(!goes_through(
        &image,
        &quiet().parse("data=writeback").unwrap()
    ));
}

#[test]
fn directories_give_their_group_where_that_is_said() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("tune2fs")
    );
    let image = image(&[]);
    tune(&image, &["-o", "bsdgroups"]);
    for (words, gid) in [("", 77), ("nogrpid", 2), ("bsdgroups", 77)] {
        let fs = mount_with(&image, &quiet().parse(words).unwrap());
        let owner = NewAttributes::owned_by(OF_USER.uid, 77);
        let dir = match fs.resolve(b"dir", Follow::No) {
            Ok(dir) => dir,
            Err(_) => fs.mkdir(ROOT, b"dir", &owner).unwrap(),
        };
        if words.is_empty() {
            // Its own group is that of the root directory.
            assert_eq!(fs.stat(dir).unwrap().gid, 0);
            let change = fourscore::AttributeChange {
                gid: Some(77),
                ..Default::default()
            };
            fs.set_attributes(dir, &change).unwrap();
        }
        let file = fs
            .create(dir, words.as_bytes().get(..3).unwrap_or(b"def"), &OF_USER)
            .unwrap();
        assert_eq!(fs.stat(file).unwrap().gid, gid, "{words}");
        fs.unmount().unwrap();
    }
    assert_clean(image.path());
}

#[test]
fn without_a_journal_content_is_not_journaled() {
    require_e2fsprogs!();
    let without = Image::builder(MiB(16))
        .kind("ext4")
        .features(&["^has_journal"]);
    let without = without.make().unwrap();
    let refused = try_mount(&without, &quiet().data(DataMode::Journal));
    let refused = refused.unwrap_err();
    assert_eq!(refused.errno(), 22);
    assert!(refused.to_string().contains("data=journal"), "{refused}");
    let fs = mount_with(&without, &quiet().data(DataMode::Writeback));
    let inode = fs.create(ROOT, b"file", &OF_USER).unwrap();
    fs.set_flags(inode, InodeFlags::JOURNAL_DATA_FL | InodeFlags::EXTENTS_FL)
        .unwrap();
    assert!(
        !fs.stat(inode)
            .unwrap()
            .flags
            .contains(InodeFlags::JOURNAL_DATA_FL)
    );
    fs.rename((ROOT, b"file"), (ROOT, b"other"), Replace::Yes)
        .unwrap();
    unmount_clean(fs, &without);
}
