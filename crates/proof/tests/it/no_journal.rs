//! File systems without a journal: they are written, and after a crash repaired by e2fsck to the
//! state that was synced.

use std::fs;

use anyhow::{Result, ensure};
use fourscore::{Fs, InodeNr, MountOptions, OpenInode, OpenOptions, Replace};
use fourscore_block::{BlockDevice, DeviceOptions, Event, RecordingDevice, open_path};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::{Effort, History, Rng, explore};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, dumpe2fs_header, e2fsck_repair};

use crate::common::{
    OF_USER, image_of, mount, open, quiet, require_e2fsprogs, require_kernel, try_mount,
    unmount_clean,
};
use crate::tree::{Tree, assert_same, host_tree, our_tree};

fn state(image: &Image) -> String {
    dumpe2fs_header(image.path()).unwrap()["Filesystem state"].clone()
}

/// Writes a file with the number of its owner in every sector.
fn write(fs: &Fs, inode: InodeNr, owner: u64, sectors: u64) {
    let content = owner.to_le_bytes().repeat(64);
    let content = content.repeat(usize::try_from(sectors).unwrap());
    fs.write_at(inode, &content, 0).unwrap();
}

/// Returns the owner of a file; `None` for an empty one.
fn owner(content: &[u8]) -> Result<Option<u64>> {
    let mut found = None;
    for word in content.chunks_exact(8) {
        let word = u64::from_le_bytes(word.try_into()?);
        if word != 0 {
            ensure!(*found.get_or_insert(word) == word, "content of two files");
        }
    }
    Ok(found)
}

/// Directories of several blocks, files of several extents, links, attributes; some are removed.
fn populate(fs: &Fs) {
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            scope.spawn(move || {
                let name = format!("dir {thread}").into_bytes();
                let dir = fs.mkdir(InodeNr::ROOT, &name, &OF_USER).unwrap();
                for number in 0..150_u64 {
                    let name = format!("a name that is rather long {number}").into_bytes();
                    let inode = fs.create(dir, &name, &OF_USER).unwrap();
                    write(fs, inode, number + 1, 1 + number % 40);
                    if number % 5 == 0 {
                        fs.write_at(inode, b"far", 100_000 + number * 7919).unwrap();
                        fs.truncate(inode, 50_000).unwrap();
                    }
                    if number % 3 == 0 {
                        fs.unlink(dir, &name).unwrap();
                    } else if number % 7 == 0 {
                        let to = format!("moved {thread} {number}").into_bytes();
                        fs.rename((dir, &name), (InodeNr::ROOT, &to), Replace::Yes)
                            .unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn a_file_system_without_a_journal_is_written() {
    require_kernel!();
    let configurations: [(u32, &[&str]); 4] = [
        (4096, &["^has_journal"]),
        (1024, &["^has_journal", "^metadata_csum"]),
        (1024, &["^has_journal", "uninit_bg", "^metadata_csum"]),
        (2048, &["^has_journal", "^64bit", "^flex_bg"]),
    ];
    for (block_size, features) in configurations {
        let image = image_of(block_size, features);
        let mounts = |image: &Image| -> u32 {
            let header = dumpe2fs_header(image.path()).unwrap();
            header["Mount count"].parse().unwrap()
        };
        let before = mounts(&image);
        let fs = mount(&image);
        assert_eq!(state(&image), "not clean", "while it is mounted");
        populate(&fs);
        let expected = our_tree(&fs);
        fs.unmount().unwrap();
        assert_eq!(state(&image), "clean");
        assert_eq!(mounts(&image), before + 1);
        assert_clean(image.path());
        assert_same(&our_tree(&open(&image)), &expected, "ours");
        let kernel = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
        assert_eq!(host_tree(kernel.path()), expected, "{features:?}");
        kernel.unmount().unwrap();
        // We continue on the image that the kernel leaves.
        let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
        fs::write(kernel.path().join("the kernel's"), "content").unwrap();
        kernel.unmount().unwrap();
        let fs = mount(&image);
        fs.unlink(InodeNr::ROOT, b"the kernel's").unwrap();
        unmount_clean(fs, &image);
    }
}

#[test]
fn what_was_not_unmounted_has_to_be_checked_and_keeps_what_was_synced() {
    require_kernel!();
    for features in ["^has_journal", "^has_journal,^metadata_csum"] {
        let image = image_of(1024, &[features]);
        let fs = mount(&image);
        populate(&fs);
        let open_file = OpenInode::unnamed(&*fs, InodeNr::ROOT, &OF_USER).unwrap();
        write(&fs, open_file.inode(), 9, 30);
        let synced = fs.create(InodeNr::ROOT, b"synced", &OF_USER).unwrap();
        write(&fs, synced, 77, 100);
        fs.fsync(synced).unwrap();
        let expected = our_tree(&fs);
        let crashed = image.copy().unwrap();
        drop(open_file);
        unmount_clean(fs, &image);

        assert_eq!(state(&crashed), "not clean");
        let refused = try_mount(&crashed, &MountOptions::new()).unwrap_err();
        assert_eq!(refused.errno(), 30);
        assert!(refused.to_string().contains("checked first"), "{refused}");
        assert_eq!(our_tree(&open(&crashed)), expected, "only read");

        // The kernel only warns, and finishes the inodes on the orphan list.
        let by_kernel = crashed.copy().unwrap();
        let kernel = KernelMount::new(by_kernel.path(), Access::ReadWrite, "").unwrap();
        assert_eq!(host_tree(kernel.path()), expected);
        kernel.unmount().unwrap();
        e2fsck_repair(by_kernel.path(), &[]).unwrap();
        assert_eq!(our_tree(&open(&by_kernel)), expected);

        let repaired = e2fsck_repair(crashed.path(), &[]).unwrap();
        assert_eq!(repaired.code, 1, "{}", repaired.output);
        let cleared = repaired.output.contains("orphaned inode");
        assert!(
            cleared,
            "the open file is on the orphan list: {}",
            repaired.output
        );
        assert_clean(crashed.path());
        assert_eq!(our_tree(&open(&crashed)), expected);
        let fs = mount(&crashed);
        assert_eq!(fs.orphans().unwrap(), []);
        populate_again(&fs);
        unmount_clean(fs, &crashed);
    }
}

fn populate_again(fs: &Fs) {
    let dir = fs.mkdir(InodeNr::ROOT, b"again", &OF_USER).unwrap();
    for number in 0..100_u64 {
        let name = number.to_string().into_bytes();
        let inode = fs.create(dir, &name, &OF_USER).unwrap();
        write(fs, inode, number + 1, 9);
    }
}

/// Numbers of inodes are held back until a commit; when they run out, a commit is made.
#[test]
fn numbers_of_deleted_inodes_come_back() {
    require_e2fsprogs!();
    let image = Image::builder(MiB(8)).kind("ext4");
    let image = image.features(&["^has_journal"]).arguments(["-N", "32"]);
    let image = image.make().unwrap();
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let options = quiet();
    let fs = Fs::mount(Arc::new(device), &options).unwrap();
    let mut before = None;
    for number in 0..200_u32 {
        let inode = fs.create(InodeNr::ROOT, b"file", &OF_USER).unwrap();
        fs.unlink(InodeNr::ROOT, b"file").unwrap();
        assert_ne!(before.replace(inode), Some(inode), "round {number}");
    }
    unmount_clean(fs, &image);
}

const ROUNDS: u64 = 10;

/// In each round files are created, changed and removed in one directory, and one file is synced
/// that is not changed again.
fn record(image: &Image) -> History {
    let base: Arc<dyn BlockDevice> =
        Arc::new(open_path(image.path(), DeviceOptions::default()).unwrap());
    let device = Arc::new(RecordingDevice::new(Arc::clone(&base)));
    let options = quiet();
    let fs = Fs::mount(device.clone(), &options).unwrap();
    let mut random = Rng::new(11);
    let kept = (0..ROUNDS).map(|round| {
        let name = format!("kept {round}").into_bytes();
        fs.mkdir(InodeNr::ROOT, &name, &OF_USER).unwrap()
    });
    let kept: Vec<InodeNr> = kept.collect();
    let work = fs.mkdir(InodeNr::ROOT, b"work", &OF_USER).unwrap();
    fs.sync().unwrap();
    device.note(0);
    let mut files: Vec<(u64, InodeNr)> = Vec::new();
    let mut next = 1000;
    for (round, &dir) in (1..).zip(&kept) {
        for _ in 0..30 {
            let name = |owner: u64| owner.to_string().into_bytes();
            match random.below(6) {
                0..=2 => {
                    let inode = fs.create(work, &name(next), &OF_USER).unwrap();
                    write(&fs, inode, next, 1 + random.below(40) as u64);
                    files.push((next, inode));
                    next += 1;
                }
                3 if !files.is_empty() => {
                    let (owner, _) = files.swap_remove(random.below(files.len()));
                    fs.unlink(work, &name(owner)).unwrap();
                }
                4 if !files.is_empty() => {
                    let &(owner, inode) = random.pick(&files);
                    let at = 512 * random.below(400) as u64;
                    let content = owner.to_le_bytes().repeat(64);
                    fs.write_at(inode, &content, at).unwrap();
                }
                5 if !files.is_empty() => {
                    let &(_, inode) = random.pick(&files);
                    fs.truncate(inode, 512 * random.below(20) as u64).unwrap();
                }
                _ => {}
            }
        }
        let inode = fs.create(dir, b"file", &OF_USER).unwrap();
        write(&fs, inode, round, 3 * round);
        fs.fsync(inode).unwrap();
        device.note(round);
    }
    // Mounting and unmounting write the superblock alone, which has no copy here if the write is
    // torn.
    let history = History::of(&device, &*base).unwrap();
    fs.unmount().unwrap();
    history
}

/// Returns the number of files that were synced before a crash; `None` before the first commit.
fn synced(events: &[Event]) -> Option<u64> {
    let notes = events.iter().filter_map(|event| match event {
        Event::Note(round) => Some(*round),
        _ => None,
    });
    notes.max()
}

fn check_repaired(tree: &Tree, synced: u64) -> Result<()> {
    for (path, object) in tree {
        let text = path.escape_ascii();
        let found = owner(&object.content)?;
        if let Some(name) = path.strip_prefix(b"work/") {
            let expected: u64 = std::str::from_utf8(name)?.parse()?;
            ensure!(
                found.is_none_or(|found| found == expected),
                "{text} shows {found:?}"
            );
        }
    }
    for round in 1..=synced {
        let path = format!("kept {}/file", round - 1).into_bytes();
        let expected = round.to_le_bytes().repeat(usize::try_from(64 * 3 * round)?);
        let is_there = tree
            .get(&path)
            .is_some_and(|object| object.content == expected);
        ensure!(is_there, "the file that was synced in round {round}");
    }
    Ok(())
}

#[test]
fn a_crash_during_a_commit_exposes_no_data_of_other_files() {
    require_e2fsprogs!();
    for features in ["^has_journal", "^has_journal,^metadata_csum"] {
        let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(1024);
        let image = image.features(&[features]).make().unwrap();
        let history = record(&image);
        let scratch = Image::blank(MiB(8)).unwrap();
        let effort = Effort {
            seed: 5,
            samples: 6,
            block_bytes: 1024,
            only: None,
            whole: None,
        };
        let mut repaired = 0;
        let states = explore(&history, effort, |crash, disk| {
            let Some(synced) = synced(&history.events[..crash.cut]) else {
                return Ok(());
            };
            fs::write(scratch.path(), disk.bytes())?;
            repaired += u32::from(e2fsck_repair(scratch.path(), &[])?.code != 0);
            assert_clean(scratch.path());
            let device = open_path(scratch.path(), DeviceOptions::default())?;
            let fs = Fs::open(Arc::new(device), &OpenOptions::new())?;
            check_repaired(&our_tree(&fs), synced)
        });
        let states = states.unwrap_or_else(|failure| panic!("{features}: {failure}"));
        assert!(
            states > 60 && repaired > 40,
            "{states} states, {repaired} repaired"
        );
    }
}
