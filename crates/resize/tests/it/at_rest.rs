//! Blocks of the table of descriptors are taken and given back in file systems whose shapes are
//! rare: with clusters, with groups whose bitmaps were never written. And nothing is left behind.

use std::fs;
use std::path::Path;

use fourscore::block::{BlockDevice, DeviceOptions, open_path};
use fourscore::{Error, Fs, MountOptions};
use fourscore_block::{Event, RecordingDevice};
use fourscore_check::{CheckOptions, check};
use fourscore_ondisk::BlockCount;
use fourscore_resize::{Resizer, Width};
use fourscore_sync::Arc;
use fourscore_testkit::oracle::{assert_clean, debugfs, debugfs_write, e2fsck_repair};
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};

const BLOCK_BYTES: usize = 1024;

/// A file system with blocks of 1 KiB.
fn mke2fs(image: &Path, options: &str, blocks: u64) {
    let mut command = tools::command("mke2fs").unwrap();
    command.args(["-q", "-F", "-t", "ext4", "-b", "1024"]);
    command.args(options.split_whitespace());
    command.arg(image).arg(blocks.to_string());
    tools::stdout_of(&mut command).unwrap();
}

fn opened(image: &Path) -> Resizer {
    let device = open_path(image, DeviceOptions::read_write()).unwrap();
    Resizer::open(Arc::new(device)).unwrap()
}

fn assert_sound(image: &Path) {
    let device = open_path(image, DeviceOptions::default()).unwrap();
    let report = check(Arc::new(device), &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings());
    assert_clean(image);
}

/// Two blocks of descriptors become one, and two again. What is left of the table shares a cluster
/// with what it gives back.
#[test]
fn a_cluster_is_not_given_back_while_the_table_has_blocks_in_it() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    let image = folder.path().join("image");
    for (options, group) in [
        (
            "-C 8192 -g 256 -O bigalloc,^resize_inode,^has_journal",
            2048,
        ),
        ("-C 8192 -g 256 -O bigalloc,^has_journal", 2048),
        ("-C 8192 -g 256 -O bigalloc -J size=4 -E resize=1G", 2048),
        ("-C 2048 -g 512 -O bigalloc -J size=4", 1024),
        ("-C 2048 -g 512 -O bigalloc,^flex_bg -J size=4", 1024),
    ] {
        mke2fs(&image, &format!("-N 1024 {options}"), 21 * group);
        for groups in [15, 20, 8] {
            // The last group is half as long as the others.
            let blocks = BlockCount(groups * group + group / 2);
            let has = opened(&image).resize(blocks).unwrap();
            assert_eq!(has, blocks, "{options}");
            assert_sound(&image);
        }
    }
}

/// Descriptors of groups that a shrink takes away are not left where a longer table would take them
/// for its own.
#[test]
fn descriptors_of_groups_that_vanish_are_cleared() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    let image = folder.path().join("image");
    for options in ["-O ^64bit", "-O 64bit", "-O ^64bit,^has_journal"] {
        mke2fs(&image, options, 24 << 10);
        opened(&image).resize(BlockCount(8 << 10)).unwrap();
        assert_sound(&image);
        let desc_bytes = if options.contains("^64bit") { 32 } else { 64 };
        let bytes = fs::read(&image).unwrap();
        let table = &bytes[2 * BLOCK_BYTES..3 * BLOCK_BYTES];
        let (own, behind) = table.split_at(desc_bytes);
        assert!(own.iter().any(|&byte| byte != 0), "{options}");
        assert!(behind.iter().all(|&byte| byte == 0), "{options}");
    }
}

/// The bitmap of a group with a copy of the table is computed if it was never written: then it has
/// the blocks of the old table, not those that are to be taken.
#[test]
fn a_longer_table_takes_blocks_of_groups_without_a_written_bitmap() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let folder = scratch::folder().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, "-g 1024 -O ^64bit", 32 << 10);
    // e2fsck frees the reserved blocks, and lets bitmaps be that were never written.
    let script = [
        "feature ^resize_inode",
        "set_super_value reserved_gdt_blocks 0",
        "clri <7>",
    ];
    debugfs_write(&image, &script).unwrap();
    e2fsck_repair(&image, &[]).unwrap();
    let group = debugfs(&image, &["stats"]).unwrap();
    let group = group.split("Group  3:").nth(1).unwrap();
    let group = group.split("Group  4:").next().unwrap();
    assert!(group.contains("Block not init"), "{group}");
    opened(&image).set_width(Width::Wide).unwrap();
    assert_sound(&image);
    opened(&image).set_width(Width::Narrow).unwrap();
    assert_sound(&image);
}

/// The number that stands in front of a word in what debugfs says of a group, or of the whole.
fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap();
    before.split_whitespace().last().unwrap().parse().unwrap()
}

/// Takes the inode of reserved blocks away, and leaves the blocks reserved. Only the block that
/// held the pointers to them becomes free, with its cluster.
fn forget_resize_inode(image: &Path, group_blocks: u64, cluster_blocks: u64) {
    let inode = debugfs(image, &["stat <7>"]).unwrap();
    let top = inode.split("(DIND):").nth(1).unwrap();
    let digits = top.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    let top: u64 = digits.parse().unwrap();
    let stats = debugfs(image, &["stats"]).unwrap();
    let field = |name: &str| -> u64 {
        let value = stats.split(name).nth(1).unwrap();
        value.split_whitespace().next().unwrap().parse().unwrap()
    };
    let group = (top - field("First block:")) / group_blocks;
    let own = stats.split(&format!("Group {group:2}:")).nth(1).unwrap();
    let free = number_before(own, " free ");
    let script = [
        "feature ^resize_inode".to_owned(),
        "clri <7>".to_owned(),
        format!("freeb {top}"),
        format!("set_bg {group} free_blocks_count {}", free + 1),
        format!("set_bg {group} checksum calc"),
        format!(
            "set_super_value free_blocks_count {}",
            field("Free blocks:") + cluster_blocks
        ),
    ];
    debugfs_write(image, &script).unwrap();
}

/// Blocks may stay reserved behind the table although the inode that holds them is gone. A table
/// that gets shorter then has them behind its new end, and gives back what lay behind the old one.
#[test]
fn blocks_reserved_without_an_inode_move_with_the_end_of_the_table() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let folder = scratch::folder().unwrap();
    let image = folder.path().join("image");
    for (options, group_blocks, cluster_blocks) in [
        ("-g 1024 -O ^64bit -E resize=1000000", 1024, 1),
        (
            "-g 1024 -O ^64bit,^flex_bg,^metadata_csum -E resize=1000000",
            1024,
            1,
        ),
        (
            "-C 8192 -g 256 -O bigalloc -N 1024 -J size=4 -E resize=1G",
            2048,
            8,
        ),
        (
            "-C 2048 -g 512 -O bigalloc -N 1024 -J size=4 -E resize=200000",
            1024,
            2,
        ),
    ] {
        mke2fs(&image, options, 63 * group_blocks);
        forget_resize_inode(&image, group_blocks, cluster_blocks);
        assert_clean(&image);
        for groups in [30, 40, 12] {
            let blocks = BlockCount(groups * group_blocks);
            let has = opened(&image).resize(blocks).unwrap();
            assert_eq!(has, blocks, "{options}");
            assert_sound(&image);
        }
    }
}

/// The first cluster of a group without a copy of the superblock may hold nothing but a part of an
/// inode table of a group that vanishes.
#[test]
fn the_first_cluster_of_a_group_becomes_free_with_the_table_in_it() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    let image = folder.path().join("image");
    // The tables of sixteen groups take more than one of them.
    let options = "-C 4096 -g 512 -O bigalloc,^has_journal -G 16 -I 256 -N 16384";
    mke2fs(&image, options, 32 * 2048);
    for groups in [19, 18, 17] {
        opened(&image).resize(BlockCount(groups * 2048)).unwrap();
        assert_sound(&image);
    }
}

/// Bad blocks hold nothing: those behind the new end are dropped from their inode, not copied.
#[test]
fn bad_blocks_behind_the_new_end_are_dropped() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs")
    );
    let folder = scratch::folder().unwrap();
    let (image, list) = (folder.path().join("image"), folder.path().join("list"));
    // More than the direct pointers of an inode, and one in front of the new end.
    let bad: Vec<u64> = std::iter::once(6000)
        .chain((0..40).map(|nr| 20_001 + 3 * nr))
        .collect();
    let lines: Vec<String> = bad.iter().map(u64::to_string).collect();
    fs::write(&list, lines.join("\n")).unwrap();
    for options in ["", "-O quota", "-O ^has_journal"] {
        mke2fs(
            &image,
            &format!("{options} -l {}", list.display()),
            24 << 10,
        );
        assert_eq!(bad_blocks(&image), lines, "{options}");
        opened(&image).resize(BlockCount(12 << 10)).unwrap();
        assert_sound(&image);
        assert_eq!(bad_blocks(&image), ["6000"], "{options}");
    }
}

fn bad_blocks(image: &Path) -> Vec<String> {
    let mut command = tools::command("dumpe2fs").unwrap();
    let printed = tools::stdout_of(command.arg("-b").arg(image)).unwrap();
    printed.lines().map(str::to_owned).collect()
}

/// Makes a file system with nothing but free space in its first half, and files of 4 KiB behind
/// that: a file takes the whole first half while they are made.
fn fill_end(image: &Path, options: &str, half_blocks: u64, files: usize) {
    let half_bytes = half_blocks * BLOCK_BYTES as u64;
    // Without what an earlier image has left.
    fs::write(image, b"").unwrap();
    mke2fs(image, options, half_blocks);
    with_mount(image, |fs| {
        let all = vec![1; usize::try_from(half_bytes).unwrap()];
        // What fits is written.
        fs.paths().write("/ballast", all).unwrap_err();
    });
    let file = fs::File::options().write(true).open(image).unwrap();
    file.set_len(2 * half_bytes).unwrap();
    let mut resizer = opened(image);
    resizer.resize(BlockCount(2 * half_blocks)).unwrap();
    drop(resizer);
    with_mount(image, |fs| {
        let paths = fs.paths();
        for file in 0..files {
            paths
                .write(format!("/file-{file}"), CONTENT.repeat(4))
                .unwrap();
        }
        fs.sync().unwrap();
        paths.remove_file("/ballast").unwrap();
    });
}

/// The content of files.
const CONTENT: [u8; BLOCK_BYTES] = [0xa5; BLOCK_BYTES];

/// The blocks with the content of files, in some of an image.
fn blocks_with_content(bytes: &[u8]) -> usize {
    let blocks = bytes.chunks(BLOCK_BYTES);
    blocks.filter(|block| **block == CONTENT).count()
}

/// What moves is discarded behind the new end, if the caller wants that, and stays there if not.
#[test]
fn a_shrink_discards_what_it_frees_behind_the_new_end() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    let image = folder.path().join("image");
    for options in ["-J size=1", "-O ^has_journal", "-J size=1 -O ^flex_bg"] {
        for discards in [false, true] {
            fill_end(&image, &format!("-N 4096 {options}"), 24 << 10, 2000);
            let mut resizer = opened(&image);
            if discards {
                resizer.discard_behind();
            }
            let has = resizer.resize(BlockCount(24 << 10)).unwrap();
            drop(resizer);
            let bytes = fs::read(&image).unwrap();
            let (inside, behind) = bytes.split_at(usize::try_from(has.0).unwrap() * BLOCK_BYTES);
            assert!(blocks_with_content(inside) >= 2000 * 4, "{options}");
            let left = blocks_with_content(behind);
            assert_eq!(left == 0, discards, "{options}: {left} blocks");
            assert_sound(&image);
        }
    }
}

/// A step is as large as the journal allows, so a larger one needs fewer of them.
#[test]
fn a_longer_journal_takes_fewer_steps() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    let image = folder.path().join("image");
    let flushes = |journal_mib: u32| {
        let options = format!("-N 8192 -J size={journal_mib}");
        fill_end(&image, &options, 40 << 10, 4000);
        let device = open_path(&image, DeviceOptions::read_write()).unwrap();
        let recording = Arc::new(RecordingDevice::new(Arc::new(device)));
        let mut resizer = Resizer::open(Arc::clone(&recording) as Arc<dyn BlockDevice>).unwrap();
        resizer.resize(BlockCount(40 << 10)).unwrap();
        let events = recording.events();
        let is_flush = |event: &&Event| matches!(event, Event::Flush { .. });
        events.iter().filter(is_flush).count()
    };
    let [short, long] = [1, 8].map(flushes);
    assert!(
        long + 12 < short,
        "{long} flushes, {short} with a short one"
    );
}

/// A directory with many others in it moves in one transaction: not in one with the inodes that
/// moved before it, since all of them together would be more than the journal takes at once.
#[test]
fn a_directory_with_many_names_moves_in_a_transaction_of_its_own() {
    /// The offset of `s_state`, and its flag of a file system that was unmounted.
    const STATE_AT: usize = 58;
    const VALID_FS: u8 = 1;
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, "-g 1024 -I 512 -N 384 -J size=1", 6 << 10);
    with_mount(&image, |fs| {
        let paths = fs.paths();
        (0..200).for_each(|nr| paths.create_dir(format!("/front-{nr}")).unwrap());
        paths.create_dir("/ballast").unwrap();
        let create = |nr| paths.write(format!("/ballast/{nr}"), []);
        let full = (0..400).map(create).find_map(Result::err);
        assert!(matches!(full, Some(Error::NoSpace)), "{full:?}");
    });
    fs::File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(12 << 20)
        .unwrap();
    opened(&image).resize(BlockCount(12 << 10)).unwrap();
    with_mount(&image, |fs| {
        let paths = fs.paths();
        for nr in 0..32 {
            paths.create_dir(format!("/behind-{nr}")).unwrap();
            let file = format!("/behind-{nr}/file");
            paths.write(file, []).unwrap();
        }
        let number = |nr: &i32| paths.metadata(format!("/behind-{nr}")).unwrap().inode;
        let last = (0..32).max_by_key(number).unwrap();
        for nr in 0..200 {
            let from = format!("/front-{nr}");
            paths
                .rename(&from, format!("/behind-{last}{from}"))
                .unwrap();
        }
        paths.remove_dir_all("/ballast").unwrap();
    });
    let device = open_path(&image, DeviceOptions::read_write()).unwrap();
    let recording = Arc::new(RecordingDevice::new(Arc::new(device)));
    let mut resizer = Resizer::open(Arc::clone(&recording) as Arc<dyn BlockDevice>).unwrap();
    resizer.resize(BlockCount(6 << 10)).unwrap();
    let mut superblocks = 0;
    for event in recording.events() {
        if let Event::Write {
            offset: 1024,
            bytes,
            ..
        } = event
        {
            assert!(bytes[STATE_AT] & VALID_FS != 0, "a step was made in place");
            superblocks += 1;
        }
    }
    assert!(superblocks > 10, "{superblocks} writes of the superblock");
}

fn with_mount(image: &Path, change: impl FnOnce(&Arc<Fs>)) {
    let device = open_path(image, DeviceOptions::read_write()).unwrap();
    let fs = Fs::mount(Arc::new(device), &MountOptions::new()).unwrap();
    change(&fs);
    fs.unmount().unwrap();
}
