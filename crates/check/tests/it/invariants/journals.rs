//! **Purpose.** Unusable journals: inodes that are not in use, and devices that were not given.

use std::collections::BTreeMap;
use std::path::Path;

use fourscore_block::{DeviceOptions, open_path};
use fourscore_check::{CheckOptions, Report, check};
use fourscore_sync::Arc;
use fourscore_testkit::crash::load::Seed;
use fourscore_testkit::crash::{Death, JOURNALS};
use fourscore_testkit::loop_device::LoopDevice;
use fourscore_testkit::mount::{Access, KernelMount, Log};
use fourscore_testkit::oracle::debugfs_write;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{Image, MiB, require};

use super::{assert_found, checked};

use crate::common::{self, codes};

/// Changes that make the journal's inode unusable, and the text of the finding.
const NOT_IN_USE: [(&str, &str); 4] = [
    ("mode 0", "not in use: i_mode is 0"),
    ("mode 040755", "not a regular file"),
    ("links_count 0", "not in use: i_links_count is 0"),
    ("size 4096", "too short for a log"),
];

fn texts(report: &Report) -> String {
    common::texts(report).join("\n")
}

fn break_journal(image: &Path, field: &str) {
    let command = format!("set_inode_field <8> {field}");
    debugfs_write(image, &[command]).expect("debugfs runs");
}

#[test]
fn the_copy_in_the_superblock_replaces_an_unused_journal_inode() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    for features in ["extent", "^extent,^64bit"] {
        let image = Image::builder(MiB(64)).kind("ext4").features(&[features]);
        let image = image.make().expect("mke2fs runs");
        let sound = checked(image.path()).expect("a report");
        assert!(sound.findings().is_empty(), "{}", texts(&sound));
        for (field, says) in NOT_IN_USE {
            let copy = image.copy().expect("room");
            break_journal(copy.path(), field);
            let found = checked(copy.path()).expect("a report");
            // The blocks of the log are still in use.
            let expected = BTreeMap::from([("journal-copy-used", 1), ("journal-inode", 1)]);
            assert_eq!(codes(&found), expected, "{field}: {}", texts(&found));
            let says = format!("inode 8 (journal): {says}");
            assert!(texts(&found).contains(&says), "{}", texts(&found));
            assert_eq!(found.tally(), sound.tally());

            let no_copy = "set_super_value jnl_backup_type 0";
            debugfs_write(copy.path(), &[no_copy]).expect("debugfs runs");
            let found = checked(copy.path()).expect("a report");
            assert!(texts(&found).contains(&says), "{}", texts(&found));
            assert!(!codes(&found).contains_key("journal-copy-used"));
        }
    }
}

#[test]
fn a_log_with_an_unused_inode_is_replayed() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("xfs_io"),
        Need::KernelMount
    );
    let journal = JOURNALS.iter().find(|journal| journal.name == "ordered");
    let journal = journal.expect("there is one");
    // On a busy machine some of the bitmaps have not been written with their checksums, and debugfs
    // opens no such image for writing.
    let crashed = (11..31).find_map(|seed| {
        let crashed = journal.crashed(Death::ShutdownLogFlushed, Seed(seed));
        let crashed = crashed.expect("a crash");
        let nothing: [&str; 0] = [];
        debugfs_write(crashed.image.path(), &nothing).ok()?;
        Some(crashed)
    });
    let crashed = crashed.expect("debugfs opens one of twenty");
    let sound = checked(crashed.image.path()).expect("a report");
    assert!(sound.is_clean(), "{}", texts(&sound));
    for (field, _) in NOT_IN_USE {
        let copy = crashed.image.copy().expect("room");
        break_journal(copy.path(), field);
        let found = checked(copy.path()).expect("a report");
        let mut expected = codes(&sound);
        expected.extend([("journal-inode", 1), ("journal-copy-used", 1)]);
        assert_eq!(codes(&found), expected, "{field}: {}", texts(&found));
        assert_eq!(found.tally(), sound.tally());
        assert!(!found.is_clean());
    }
}

/// A file system with a journal on another device, in which the log holds files.
fn on_two_devices() -> (Image, Image) {
    let journal = Image::blank(MiB(16)).expect("room");
    let made = tools::command("mke2fs")
        .expect("it is there")
        .args([
            "-q",
            "-F",
            "-O",
            "journal_dev",
            "-b",
            "4096",
            path(&journal),
        ])
        .status();
    assert!(made.expect("mke2fs runs").success());
    let device = LoopDevice::new(journal.path()).expect("a device");
    let name = device.path().to_str().expect("text");
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(4096);
    let image = image.arguments(["-J", &format!("device={name}")]).make();
    let image = image.expect("mke2fs runs");
    let options = format!("journal_path={name}");
    let mount = KernelMount::new(image.path(), Access::ReadWrite, &options).expect("a mount");
    for nr in 0..20 {
        std::fs::write(mount.path().join(format!("file-{nr}")), vec![nr; 5000]).expect("room");
    }
    mount.shut_down(Log::Flushed).expect("a kernel");
    mount.unmount().expect("the mount is not busy");
    (image, journal)
}

fn path(image: &Image) -> &str {
    image.path().to_str().expect("text")
}

/// The exit status of e2fsck.
fn e2fsck(options: &[&str], paths: &[&str]) -> Option<i32> {
    let mut command = tools::command("e2fsck").expect("it is there");
    let output = command.args(options).args(paths).output();
    output.expect("e2fsck runs").status.code()
}

/// A check of a file system together with the device of its journal.
fn with_journal(image: &Path, journal: &Path) -> Report {
    let open = |path| open_path(path, DeviceOptions::default()).expect("it is there");
    let options = CheckOptions {
        journal: Some(Arc::new(open(journal))),
        ..CheckOptions::default()
    };
    check(Arc::new(open(image)), &options).expect("a file system")
}

#[test]
fn a_log_on_a_device_that_was_not_given_is_an_error() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("xfs_io"),
        Need::KernelMount
    );
    let (image, journal) = on_two_devices();
    assert_found(image.path(), "journal-not-given").expect("both find it");
    let alone = checked(image.path()).expect("a report");
    assert!(!alone.is_clean());

    let both = with_journal(image.path(), journal.path());
    let expected = BTreeMap::from([("journal-replayed", 1)]);
    assert_eq!(codes(&both), expected, "{}", texts(&both));
    // `.` and `..` of the root and of lost+found, its name, and the files.
    assert_eq!(both.tally().entries, 2 * 2 + 1 + 20);

    // Not a journal, and one of another file system.
    let blank = Image::blank(MiB(16)).expect("room");
    let none = with_journal(image.path(), blank.path());
    assert!(
        codes(&none).contains_key("journal-unreadable"),
        "{}",
        texts(&none)
    );
    let (_, other) = on_two_devices();
    let other = with_journal(image.path(), other.path());
    assert!(texts(&other).contains("s_uuid"), "{}", texts(&other));
    assert!(!other.is_clean());

    let both = ["-j", path(&journal), path(&image)];
    e2fsck(&["-fp"], &both);
    assert_eq!(e2fsck(&["-fn"], &both), Some(0));
    let replayed = with_journal(image.path(), journal.path());
    assert!(replayed.findings().is_empty(), "{}", texts(&replayed));
    let alone = checked(image.path()).expect("a report");
    assert_eq!(codes(&alone), BTreeMap::from([("journal-elsewhere", 1)]));
}
