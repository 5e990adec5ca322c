//! **Purpose.** Compares the checker's own replay of fast commits with a mount: on a crashed image
//! it finds the same as on a copy that the library has mounted, which recovers it, and unmounted.
//!
//! **Model.** The kernel makes the changes and is shut down. Two differences are intended: the
//! checker keeps orphans, with their blocks, as the next mount would find them, but the library
//! frees them; and the checker allocates nothing, so a new directory or a larger tree takes no
//! block yet.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use fourscore::{Fs, MountOptions};
use fourscore_block::{BlockDevice, RamDevice};
use fourscore_check::{Finding, Report};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::crash::load::Seed;
use fourscore_testkit::crash::{Death, JOURNALS};
use fourscore_testkit::mount::{Access, KernelMount, Log};
use fourscore_testkit::oracle::debugfs_write;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, linkat};

use crate::common::{count, opened, report, report_on};

macro_rules! needs_kernel {
    () => {
        require!(
            Need::KernelMount,
            Need::Program("mke2fs"),
            Need::Program("debugfs"),
            Need::Program("xfs_io")
        )
    };
}

/// The texts of the findings, without those that differ on purpose.
fn faults(report: &Report) -> Vec<String> {
    let findings = report.findings().iter().filter(|finding| {
        !matches!(
            finding,
            Finding::FastCommitsReplayed { .. } | Finding::Orphan { .. }
        )
    });
    findings.map(ToString::to_string).collect()
}

/// Checks a crashed image in both ways, and returns the report of the checker's own replay.
fn assert_as_a_mount(image: &Path) -> Report {
    let ours = report(image, 2).expect("a report");
    let mounted: Arc<dyn BlockDevice> = Arc::new(RamDevice::over(opened(image).expect("an image")));
    Fs::mount(Arc::clone(&mounted), &MountOptions::new())
        .and_then(Fs::unmount)
        .expect("the library recovers the image");
    let theirs = report_on(mounted, 2).expect("a report");
    assert_eq!(
        count(&ours, "fast-commits-replayed"),
        1,
        "{:?}",
        ours.findings()
    );
    assert_eq!(faults(&ours), faults(&theirs));
    let (found, expected) = (ours.tally(), theirs.tally());
    // An inline directory into which new names do not fit gets a block, which has an entry `.` too.
    let with_blocks = found.entries..=found.entries + found.directories;
    assert!(
        with_blocks.contains(&expected.entries),
        "{found:?}, but {expected:?}"
    );
    let orphans = count(&ours, "orphan");
    assert!(
        (found.inodes - orphans..=found.inodes).contains(&expected.inodes),
        "{found:?}, {orphans} of them orphans, but {expected:?}"
    );
    ours
}

/// An image on which `setup` was done and committed, then `change`, which ends in fast commits.
fn crashed<S, K>(
    features: &[&str],
    options: &str,
    setup: impl FnOnce(&Path) -> S,
    change: impl FnOnce(&Path, S) -> K,
) -> Image {
    let image = Image::builder(MiB(64)).kind("ext4").features(features);
    let image = image.features(&["fast_commit"]).block_size_bytes(4096);
    let image = image.make().expect("mke2fs runs");
    crash(&image, options, setup, change);
    image
}

/// Changes an image as [`crashed`] says. What `change` returns is kept until the kernel has
/// stopped, and what `setup` returns until `change` drops it: open files, say.
fn crash<S, K>(
    image: &Image,
    options: &str,
    setup: impl FnOnce(&Path) -> S,
    change: impl FnOnce(&Path, S) -> K,
) {
    let mount = KernelMount::new(image.path(), Access::ReadWrite, options).expect("a mount");
    let root = mount.path();
    let held = setup(root);
    mount.sync().expect("a disk");
    // The first fsync after a mount is never a fast commit.
    fs::write(root.join("warm"), b"warm").expect("room");
    fsync(&root.join("warm"));
    mount.sync().expect("a disk");
    let kept = change(root, held);
    mount.shut_down(Log::Lost).expect("a kernel");
    drop(kept);
    mount.unmount().expect("a mount");
}

fn fsync(path: &Path) {
    let file = File::open(path).expect("it is there");
    file.sync_all().expect("a disk");
}

fn put(path: &Path, len: usize) {
    fs::write(path, vec![7; len]).expect("room");
}

/// Writes a file that needs what was freed just before. The kernel frees the blocks of a removed
/// file a moment later if its writeback still holds the inode.
fn put_when_there_is_room(path: &Path, len: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = fs::write(path, vec![7; len]) {
        let is_full = error.kind() == ErrorKind::StorageFull;
        assert!(is_full && Instant::now() < deadline, "{error}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that nothing is wrong with the image, in both ways.
fn assert_sound(image: &Image) {
    let report = assert_as_a_mount(image.path());
    assert!(report.is_clean(), "{:#?}", faults(&report));
}

/// Compares the reports of images that crashed under load with those of a mount. Returns how many
/// of them had fast commits.
fn compare_with_a_mount(first_seed: u64) -> u32 {
    let journals = JOURNALS.iter().filter(|journal| journal.has_fast_commits());
    let mut replayed = 0;
    for (journal, seed) in journals.zip([31, 41, 51]) {
        for (death, nth) in Death::ALL.into_iter().zip(0..) {
            let seed = Seed(first_seed + seed + nth);
            let crashed = journal.crashed(death, seed).expect("a crash");
            let ours = report(crashed.image.path(), 2).expect("a report");
            if count(&ours, "fast-commits-replayed") > 0 {
                assert_as_a_mount(crashed.image.path());
                replayed += 1;
            }
        }
    }
    replayed
}

#[test]
fn images_that_crashed_under_load() {
    needs_kernel!();
    // A full commit is the last one before two of three crashes.
    const MAX_ROUNDS: u64 = 8;
    let mut replayed = 0;
    for round in 0..MAX_ROUNDS {
        replayed += compare_with_a_mount(round * 100);
        if replayed > 0 {
            break;
        }
    }
    assert!(replayed > 0, "no image has fast commits");
}

#[test]
fn files_and_maps() {
    needs_kernel!();
    let image = crashed(
        &[],
        "",
        |root| {
            for name in ["grow", "shrink", "hole", "gone", "deep"] {
                put(&root.join(name), 400_000);
            }
            let deep = File::options().write(true).open(root.join("deep"));
            let deep = deep.expect("it is there");
            for nr in 0..400 {
                deep.write_all_at(&[2; 4096], nr * 8192).expect("room");
            }
        },
        |root, ()| {
            let open = |name: &str| {
                let file = File::options().write(true).open(root.join(name));
                file.expect("it is there")
            };
            put(&root.join("new"), 300_000);
            open("grow")
                .write_all_at(&[1; 9000], 400_000)
                .expect("room");
            open("shrink").set_len(5000).expect("a file");
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(open("hole"), punch, 8192, 40_960).expect("a file");
            fallocate(open("deep"), punch, 8192, 1 << 20).expect("a file");
            let keep = FallocateFlags::KEEP_SIZE;
            fallocate(open("new"), keep, 400_000, 40_000).expect("room");
            fs::remove_file(root.join("gone")).expect("it is there");
            for name in ["new", "grow", "shrink", "hole", "deep"] {
                fsync(&root.join(name));
            }
        },
    );
    assert_sound(&image);
}

#[test]
fn names_and_directories() {
    needs_kernel!();
    for features in [&[][..], &["inline_data"], &["^metadata_csum"]] {
        let image = crashed(
            features,
            "",
            |root| {
                fs::create_dir_all(root.join("old/below")).expect("room");
                fs::create_dir(root.join("big")).expect("room");
                for nr in 0..900 {
                    put(&root.join(format!("big/file number {nr}")), 0);
                }
                for name in ["a", "b", "c", "old/d"] {
                    put(&root.join(name), 100);
                }
                symlink("a", root.join("link")).expect("room");
            },
            |root, ()| {
                let moved = |from: &str, to: &str| {
                    fs::rename(root.join(from), root.join(to)).expect("it is there");
                };
                fs::create_dir_all(root.join("one/two/three")).expect("room");
                fs::create_dir(root.join("one/four")).expect("room");
                fs::remove_dir(root.join("one/four")).expect("it is empty");
                fs::remove_dir(root.join("old/below")).expect("it is empty");
                fs::hard_link(root.join("a"), root.join("one/a")).expect("room");
                moved("c", "old/d");
                moved("b", "one/b");
                for nr in (0..60).map(|nr| nr * 10) {
                    let path = root.join(format!("big/file number {nr}"));
                    fs::remove_file(path).expect("it is there");
                }
                for nr in 0..30 {
                    put(&root.join(format!("big/new {nr}")), 0);
                }
                put(&root.join("one/two/file"), 3000);
                fsync(&root.join("one/two/file"));
            },
        );
        assert_sound(&image);
    }
}

#[test]
fn orphans_and_files_without_a_name() {
    needs_kernel!();
    let tmpfile = |root: &Path, byte| {
        let flags = OFlags::TMPFILE | OFlags::WRONLY;
        let file = rustix::fs::open(root, flags, Mode::RUSR).expect("room");
        let file = File::from(file);
        file.write_all_at(&[byte; 10_000], 0).expect("room");
        file
    };
    let link = |file: &File, to: &Path| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, path, CWD, to, AtFlags::SYMLINK_FOLLOW).expect("room");
        file.sync_all().expect("a disk");
    };
    let image = crashed(
        &[],
        "",
        |root| {
            let removed_before = root.join("before");
            put(&removed_before, 10_000);
            put(&root.join("after"), 10_000);
            let held = [File::open(&removed_before), File::open(root.join("after"))];
            fs::remove_file(removed_before).expect("it is there");
            (held, tmpfile(root, 3))
        },
        |root, held| {
            fs::remove_file(root.join("after")).expect("it is there");
            let file = tmpfile(root, 4);
            link(&file, &root.join("named"));
            (held, file)
        },
    );
    assert_sound(&image);
    // A file that was an orphan in the last full commit gets a name.
    let image = crashed(
        &[],
        "",
        |root| tmpfile(root, 5),
        |root, file| {
            link(&file, &root.join("named"));
            file
        },
    );
    assert_sound(&image);
}

/// Fills a file system except for the blocks of the removed file "spare", with "old" in pieces.
fn fill(root: &Path) {
    const PIECE: u64 = 1 << 20;
    let write = |name: &str, nth: u64, pieces: u64| -> std::io::Result<()> {
        let options = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .clone();
        let file = options.open(root.join(name))?;
        for piece in nth..nth + pieces {
            file.write_all_at(&[15; 1 << 20], piece * PIECE)?;
        }
        file.sync_all()
    };
    write("spare", 0, 1).expect("room");
    for nth in 0..4 {
        write("old", 4 * nth, 4).expect("room");
        put(&root.join(format!("between {nth}")), 4096);
        fsync(&root.join(format!("between {nth}")));
    }
    for nth in 0.. {
        if write("rest", nth, 1).is_err() {
            break;
        }
    }
    fs::remove_file(root.join("spare")).expect("it is there");
}

/// With `data=writeback` the kernel gives what one file loses to another before it commits.
#[test]
fn blocks_that_go_from_one_file_to_another() {
    needs_kernel!();
    let need = |root: &Path| {
        put_when_there_is_room(&root.join("new"), 5 << 19);
        fsync(&root.join("new"));
    };
    let losses: [fn(&Path); 2] = [
        |old| fs::remove_file(old).expect("it is there"),
        |old| {
            let file = File::options().write(true).open(old).expect("it is there");
            file.set_len(14 << 20).expect("a file");
        },
    ];
    for lose in losses {
        let image = crashed(&[], "data=writeback", fill, |root, ()| {
            lose(&root.join("old"));
            need(root);
        });
        assert_sound(&image);
    }
    let setup = |root: &Path| {
        fill(root);
        let old = root.join("old");
        let held = File::open(&old).expect("it is there");
        fs::remove_file(old).expect("it is there");
        held
    };
    let image = crashed(&[], "data=writeback", setup, |root, held| {
        drop(held);
        need(root);
    });
    assert_sound(&image);
}

/// A fault that precedes the replay is found after it, in both ways.
#[test]
fn faults_beside_fast_commits_are_found() {
    needs_kernel!();
    let damages = [
        ("set_inode_field /old blocks 77", "inode-blocks"),
        ("set_inode_field /grow blocks 77", "inode-blocks"),
        ("set_inode_field /dir links_count 7", "links-count"),
        ("set_bg 0 used_dirs_count 7", "group-dirs"),
    ];
    let source = fourscore_testkit::scratch::folder().expect("a folder");
    fs::create_dir(source.path().join("dir")).expect("room");
    for name in ["old", "grow", "other"] {
        put(&source.path().join(name), 9000);
    }
    for (fault, code) in damages {
        let image = Image::builder(MiB(64))
            .kind("ext4")
            .features(&["fast_commit"]);
        let image = image.source(source.path()).make().expect("mke2fs runs");
        let seal = "set_bg 0 checksum calc";
        debugfs_write(image.path(), &[fault, seal]).expect("debugfs runs");
        crash(
            &image,
            "",
            |_| {},
            |root, ()| {
                put(&root.join("dir/new"), 9000);
                fs::create_dir(root.join("made")).expect("room");
                let grow = File::options().write(true).open(root.join("grow"));
                let grow = grow.expect("it is there");
                grow.write_all_at(&[1; 30_000], 9000).expect("room");
                fs::remove_file(root.join("other")).expect("it is there");
                fsync(&root.join("dir/new"));
                grow.sync_all().expect("a disk");
            },
        );
        let report = assert_as_a_mount(image.path());
        let codes: Vec<_> = report.counts().keys().copied().collect();
        let expected = ["fast-commits-replayed", "orphan", code];
        let others = codes.iter().filter(|found| !expected.contains(found));
        assert_eq!(others.count(), 0, "{fault}: {:#?}", faults(&report));
        assert!(codes.contains(&code), "{fault}: {codes:?}");
    }
}
