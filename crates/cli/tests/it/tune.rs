//! `tune` beside tune2fs: after the same options both images have the same bytes, and e2fsck finds
//! nothing. And what is refused.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use fourscore_testkit::oracle::e2fsck;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};

use crate::common::{failing, fourscore, printed, refused, text};

const MADE: &str = "1700000000";
const TUNED: &str = "1700000100";
/// `s_kbytes_written`, which counts what each program writes.
const KBYTES_AT: usize = 0x178;

fn mke2fs(image: &Path, options: &str) {
    let mut command = tools::command("mke2fs").expect("found before");
    let kind = if options.contains("-t ext") {
        ""
    } else {
        "-t ext4"
    };
    let words = kind.split_whitespace().chain(options.split_whitespace());
    command
        .args(["-q", "-F"])
        .args(words)
        .args([text(image), "64M"])
        .env("E2FSPROGS_FAKE_TIME", MADE);
    tools::stdout_of(&mut command).expect("mke2fs runs");
}

/// The image without what both programs count for themselves, and without the checksums of
/// superblocks, which depend on it.
fn comparable(image: &Path) -> Vec<u8> {
    let mut bytes = fs::read(image).expect("an image");
    let magics: Vec<usize> = (0..bytes.len() / 1024)
        .map(|nr| nr * 1024)
        .filter(|at| bytes[at + 0x38..at + 0x3a] == [0x53, 0xef])
        .collect();
    for at in magics {
        bytes[at + KBYTES_AT..at + KBYTES_AT + 8].fill(0);
        bytes[at + 0x3fc..at + 0x400].fill(0);
    }
    bytes
}

/// The first byte that differs, with the number of its block of 1 KiB.
#[track_caller]
fn assert_same(ours: &Path, theirs: &Path, what: &str) {
    let (a, b) = (comparable(ours), comparable(theirs));
    if a == b {
        return;
    }
    let differs = a.iter().zip(&b).position(|(a, b)| a != b);
    assert_eq!(a.len(), b.len(), "{what}");
    if let Some(at) = differs {
        let (a, b) = (a[at], b[at]);
        panic!(
            "{what}: byte {:#x} of KiB {} is {a:#x}, not {b:#x}",
            at % 1024,
            at / 1024
        );
    }
}

#[test]
fn superblocks_are_those_of_tune2fs() {
    require!(
        Need::Program("tune2fs"),
        Need::Program("mke2fs"),
        Need::Program("e2fsck")
    );
    let folder = scratch::folder().expect("a folder");
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let seed =
        "-E hash_seed=5ad0b7f0-4a4c-4c39-8a55-0f8b0f2a3c11 -U 0b5d8f2c-77a4-4b53-9f0e-3a1d6f1e9b20";
    let uuid = "-U 12345678-9abc-4def-8123-456789abcdef";
    let cases = [
        ("", "-L label"),
        ("-L old-and-long-label", "-L new"),
        ("-L old", "-L "),
        ("", "-c 20 -C 3 -i 2w -e remount-ro"),
        ("", "-c 0 -i 0"),
        ("", "-c -1 -T 20240229"),
        ("", "-m 2.5"),
        ("-b 4096", "-r 1000 -u 700 -g 7"),
        ("", "-M /mnt/place -o journal_data,^acl,discard"),
        ("", "-o ^journal_data_writeback,nodelalloc"),
        ("", "-E stride=16,stripe_width=64,hash_alg=tea,test_fs"),
        ("-E test_fs", "-E ^test_fs,mount_opts=noatime"),
        ("", "-E force_fsck"),
        ("-O ^dir_index", "-O dir_index"),
        (
            "-O ^large_file,^huge_file",
            "-O large_file,huge_file,dir_nlink,extra_isize",
        ),
        ("-O ^dir_nlink,^extra_isize", "-O dir_nlink,extra_isize"),
        ("", "-O ^extra_isize"),
        ("", "-O large_dir,ea_inode"),
        ("", "-O fast_commit"),
        ("-O fast_commit", "-O ^fast_commit"),
        ("-O ^extents,^64bit,^flex_bg", "-O extent,flex_bg"),
        ("", "-O stable_inodes,verity"),
        ("", "-O encrypt"),
        ("", "-O casefold"),
        ("", "-O read-only"),
        ("", "-O metadata_csum_seed"),
        ("-O metadata_csum_seed", "-O ^metadata_csum_seed"),
        ("-O metadata_csum_seed", uuid),
        ("-O ^metadata_csum,^uninit_bg", uuid),
        ("-O sparse_super2,^resize_inode", "-L two -m 1"),
        ("-O meta_bg,^resize_inode", "-L meta"),
        ("-O bigalloc -C 16384", "-L big -m 3"),
        ("-b 1024 -g 1024", "-L many"),
        ("-t ext2", "-L two -c 5"),
        ("-t ext3 -I 128", "-L three -O extent,dir_nlink,extra_isize"),
    ];
    for (made, tuned) in cases {
        mke2fs(&ours, &format!("{seed} {made}"));
        fs::copy(&ours, &theirs).expect("space");
        let words = |image: &Path| -> Vec<String> {
            let words = tuned.split(' ').map(ToOwned::to_owned);
            words.chain([text(image).to_owned()]).collect()
        };
        let mut tune2fs = tools::command("tune2fs").expect("found before");
        tune2fs
            .args(words(&theirs))
            .env("E2FSPROGS_FAKE_TIME", TUNED)
            .env("TZ", "UTC");
        tools::stdout_of(&mut tune2fs).unwrap_or_else(|why| panic!("tune2fs {tuned}: {why}"));
        let mut tune = fourscore(&[] as &[&str]);
        tune.arg("tune")
            .args(words(&ours))
            .env("E2FSPROGS_FAKE_TIME", TUNED);
        printed(&mut tune);
        assert_same(&ours, &theirs, &format!("{made} | {tuned}"));
        if !tuned.contains("force_fsck") {
            e2fsck(&ours).unwrap_or_else(|why| panic!("{made} | {tuned}: {why}"));
        }
    }
}

/// How an image is made, options of tune, and how the error begins.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "-O stable_inodes,metadata_csum_seed",
        "-U random",
        "-U: with the feature stable_inodes",
    ),
    (
        "-O meta_bg,^resize_inode",
        "-O ^64bit",
        "with meta_bg, other blocks would have to move: resize2fs",
    ),
    (
        "-O ^64bit,^extents",
        "-O 64bit",
        "64bit needs the feature extent",
    ),
    (
        "-b 1024 -g 256 -O ^64bit,^resize_inode",
        "-O 64bit",
        "longer descriptors need 8 more blocks in front of block 18, and other things",
    ),
    (
        "-b 1024 -g 1024 -O sparse_super2 -E num_backup_sb=0",
        "-O ^64bit",
        "there is no copy of its descriptors",
    ),
    (
        "",
        "-O ^huge_file",
        "-O: huge_file: cannot be switched off: files may use it",
    ),
    (
        "-O ^has_journal",
        "-O fast_commit",
        "-O: fast_commit: needs a journal",
    ),
    (
        "",
        "-O bigalloc",
        "-O: bigalloc: can only be chosen when the file system is made",
    ),
    (
        "-O ^resize_inode",
        "-O resize_inode",
        "-O: resize_inode: can only be chosen when the file system is made",
    ),
    (
        "",
        "-L label-of-17-bytes",
        "-L: has 17 bytes, of which 16 fit",
    ),
    ("", "-m 51", "-m: is not a percentage from 0 to 50"),
    (
        "",
        "-r 999999",
        "-r: 999999 of 65536 blocks are more than half",
    ),
    (
        "",
        "-o nonsense",
        "-o: nonsense: there is no default mount option of this name",
    ),
];

#[test]
fn what_the_superblock_alone_cannot_change_is_refused() {
    require!(Need::Program("mke2fs"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    let path = text(&image);
    for (made, tuned, expected) in REFUSED.iter().copied() {
        mke2fs(&image, made);
        let before = fs::read(&image).expect("an image");
        let words: Vec<&str> = ["tune", path].into_iter().chain(tuned.split(' ')).collect();
        refused(&words, &format!("{path}: {expected}"));
        assert!(
            before == fs::read(&image).expect("an image"),
            "{tuned}: it was changed"
        );
    }
    for wrong in [
        &["-O", "none-such"][..],
        &["-E", "none"],
        &["-i", "1y"],
        &["-T", "x"],
        &["-e", "x"],
        &[],
    ] {
        assert_eq!(
            failing(&[&["tune", path], wrong].concat()).0,
            Some(2),
            "{wrong:?}"
        );
    }
    // The first option would be possible, the second is not: neither is made.
    let before = fs::read(&image).expect("an image");
    refused(&["tune", path, "-L", "label", "-m", "99"], "-m:");
    assert!(
        before == fs::read(&image).expect("an image"),
        "it was changed"
    );
}

#[test]
fn a_file_system_that_is_not_at_rest_is_refused() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    let path = text(&image);
    for (made, change, expected) in [
        (
            "",
            "feature needs_recovery",
            "its journal needs recovery: mount it once, or run e2fsck",
        ),
        (
            "-O orphan_file",
            "feature orphan_present",
            "it has files whose deletion a crash",
        ),
        (
            "",
            "ssv last_orphan 12",
            "it has files whose deletion a crash",
        ),
    ] {
        mke2fs(&image, made);
        tools::run("debugfs", &["-w", "-R", change, path].map(AsRef::as_ref)).expect("it runs");
        refused(&["tune", path, "-L", "x"], &format!("{path}: {expected}"));
    }
    fs::write(&image, [0; 8192]).expect("space");
    refused(&["tune", path, "-L", "x"], &format!("{path}: "));
    refused(
        &["tune", text(&folder.path().join("none")), "-L", "x"],
        "No such file",
    );
}

/// A crash may leave the new superblock with the old backups. The file system is consistent then,
/// has the new values, and e2fsck brings the backups up to date.
#[test]
fn a_crash_before_the_backups_are_written_loses_nothing() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = scratch::folder().expect("a folder");
    let (image, cut) = (folder.path().join("image"), folder.path().join("cut"));
    for (made, tuned) in [
        ("-L old", "-L new"),
        (
            "-L old",
            "-L new -O fast_commit,metadata_csum_seed -U random",
        ),
        ("-L old", "-L new -O large_dir,casefold -m 1"),
    ] {
        mke2fs(&image, made);
        fs::copy(&image, &cut).expect("space");
        let words: Vec<&str> = ["tune", text(&image)]
            .into_iter()
            .chain(tuned.split(' '))
            .collect();
        printed(&mut fourscore(&words));
        let after = fs::read(&image).expect("an image");
        let device = File::options().write(true).open(&cut).expect("an image");
        device
            .write_all_at(&after[1024..2048], 1024)
            .expect("space");
        let mut repair = tools::command("e2fsck").expect("found before");
        let status = repair
            .args(["-fy", text(&cut)])
            .output()
            .expect("it runs")
            .status;
        assert!(
            status.code().is_some_and(|code| code <= 1),
            "{tuned}: {status}"
        );
        e2fsck(&cut).unwrap_or_else(|why| panic!("{tuned}: {why}"));
        let info = printed(&mut fourscore(&["info", text(&cut)]));
        assert!(info.contains("new"), "{info}");
    }
}

/// `-U` and the feature that makes it possible may come together, and the image stays readable.
#[test]
fn a_new_uuid_with_stored_seed_keeps_all_checksums_valid() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    mke2fs(&image, "");
    let before = printed(&mut fourscore(&["walk", text(&image)]));
    let words = [
        "tune",
        text(&image),
        "-U",
        "random",
        "-O",
        "metadata_csum_seed",
    ];
    printed(&mut fourscore(&words));
    e2fsck(&image).expect("it is clean");
    assert_eq!(printed(&mut fourscore(&["walk", text(&image)])), before);
    printed(&mut fourscore(&["check", "-n", "-q", text(&image)]));
}

#[test]
fn the_names_tune2fs_and_e2label_take_their_arguments() {
    require!(Need::Program("mke2fs"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    mke2fs(&image, "-L before");
    let under = |name: &str, words: &[&str]| {
        let program = folder.path().join(name);
        if !program.exists() {
            let command = fourscore(&[] as &[&str]);
            std::os::unix::fs::symlink(command.get_program(), &program).expect("space");
        }
        printed(Command::new(program).args(words))
    };
    let path = text(&image);
    assert_eq!(under("e2label", &[path]), "before\n");
    assert_eq!(under("e2label", &[path, "after"]), "");
    assert_eq!(under("e2label", &[path]), "after\n");
    assert_eq!(under("tune2fs", &["-f", "-L", "again", path]), "");
    assert!(under("tune2fs", &["-l", path]).contains("again"));
    assert!(under("e2fsck", &["-fyC0", path]).contains(": clean: "));
    let wrong = |name: &str, words: &[&str]| {
        let run = Command::new(folder.path().join(name)).args(words).output();
        run.expect("the program exists").status.code()
    };
    // What clap refuses, and what the verb refuses.
    assert_eq!(wrong("tune2fs", &["--none", path]), Some(1));
    assert_eq!(wrong("tune2fs", &["-e", "x", path]), Some(1));
    assert_eq!(wrong("e2fsck", &["-N", path]), Some(16));
}

#[test]
fn a_refused_change_leaves_no_undo_file() {
    require!(Need::Program("mke2fs"));
    let folder = scratch::folder().expect("a folder");
    let (image, undo) = (folder.path().join("image"), folder.path().join("undo"));
    mke2fs(&image, "");
    let words = ["tune", "-m", "99", "-z", text(&undo), text(&image)];
    refused(&words, "-m:");
    assert!(
        !undo.exists(),
        "nothing was changed, and there is an undo file"
    );
    printed(&mut fourscore(&[
        "tune",
        "-m",
        "9",
        "-z",
        text(&undo),
        text(&image),
    ]));
    // The file is of use, and an image that is none leaves it alone.
    let saved = fs::read(&undo).expect("an undo file");
    assert!(!failing(&words).1.is_empty());
    assert!(fs::read(&undo).expect("it is still there") == saved);
    fs::write(&image, vec![0; 1 << 20]).expect("space");
    fs::remove_file(&undo).expect("it is there");
    let (status, _) = failing(&["check", "-y", "--undo", text(&undo), text(&image)]);
    assert_eq!(status, Some(8));
    assert!(
        !undo.exists(),
        "nothing was repaired, and there is an undo file"
    );
}
