//! Tests with logs that the kernel wrote before a forced shutdown: our replay must give, block by
//! block, the same result as e2fsck's.
//!
//! Needs root, loop devices, e2fsprogs and xfs_io; prints that the test was skipped otherwise.

use fourscore_journal::{Error, Log, Recovered};
use fourscore_ondisk::BlockSize;
use fourscore_ondisk::jbd2::{JournalError, LogChecksums};

use crate::kernel::{
    self, Crash, Image, can_run, compare, compare_with_e2fsck, device, has_orphans, replay,
};

/// The programs needed to let the kernel write a log.
const KERNEL: &[&str] = &["mke2fs", "e2fsck", "debugfs", "xfs_io", "losetup"];

/// Lets the kernel write a log and crash, and compares e2fsck's replay with ours; `None` if the
/// programs are missing.
fn crashed(mke2fs: &[&str], mount: &str, crash: Crash) -> Option<(Log, Recovered)> {
    if !can_run(KERNEL) {
        return None;
    }
    let image = Image::make(mke2fs, "48M");
    image.crash(mount, crash, kernel::churn);
    Some(compare_with_e2fsck(&image))
}

/// As [`crashed`], where the log must have checksums of one kind.
fn check(mke2fs: &[&str], mount: &str, crash: Crash, checksums: fn(&LogChecksums) -> bool) {
    let Some((log, recovered)) = crashed(mke2fs, mount, crash) else {
        return;
    };
    let format = log.superblock().log_format();
    assert!(checksums(&format.checksums), "{format:?}");
    assert!(recovered.transactions() > 3, "{recovered:?}");
    assert!(recovered.copies().len() > 10);
}

fn no_checksums(checksums: &LogChecksums) -> bool {
    *checksums == LogChecksums::None
}

fn v1(checksums: &LogChecksums) -> bool {
    *checksums == LogChecksums::V1
}

fn v3(checksums: &LogChecksums) -> bool {
    matches!(checksums, LogChecksums::V3 { .. })
}

#[test]
fn ordered_data_has_revokes() {
    if let Some((log, recovered)) = crashed(&[], "data=ordered", Crash::KeepLog) {
        assert!(v3(&log.superblock().log_format().checksums));
        assert!(recovered.revoked() > 0, "no revoked copy");
    }
}

#[test]
fn journaled_data_has_escapes() {
    if let Some((_, recovered)) = crashed(&[], "data=journal", Crash::FlushLog) {
        let escaped = recovered.copies().iter().any(|copy| copy.escaped);
        assert!(escaped, "no escaped copy");
    }
}

#[test]
fn asynchronous_commits_with_checksums_in_tags() {
    let mount = "journal_async_commit,data=writeback";
    check(&[], mount, Crash::KeepLog, v3);
}

#[test]
fn a_log_without_checksums() {
    let mke2fs = &["-O", "^metadata_csum"];
    check(mke2fs, "data=journal", Crash::KeepLog, no_checksums);
}

#[test]
fn one_checksum_for_each_transaction() {
    let mke2fs = &["-O", "^metadata_csum"];
    let mount = "journal_checksum,data=journal";
    check(mke2fs, mount, Crash::FlushLog, v1);
}

#[test]
fn asynchronous_commits_with_one_checksum_for_each_transaction() {
    let mke2fs = &["-O", "^metadata_csum,^64bit"];
    let mount = "journal_async_commit,data=writeback";
    check(mke2fs, mount, Crash::KeepLog, v1);
}

#[test]
fn narrow_block_numbers() {
    let mke2fs = &["-O", "^64bit", "-b", "1024"];
    check(mke2fs, "data=journal", Crash::KeepLog, v3);
}

#[test]
fn narrow_block_numbers_without_checksums_in_a_journal_of_indirect_blocks() {
    let mke2fs = &["-t", "ext3", "-b", "2048"];
    check(mke2fs, "data=journal", Crash::KeepLog, no_checksums);
}

#[test]
fn a_log_that_wrapped() {
    if !can_run(KERNEL) {
        return;
    }
    // The position in the log at the shutdown depends on the kernel's checkpoints.
    let wrapped = (4..20).any(|rounds| {
        let image = Image::make(&["-b", "1024", "-J", "size=1"], "48M");
        image.crash("data=journal", Crash::KeepLog, |root| {
            for round in 0..rounds {
                kernel::churn(root);
                std::fs::rename(root.join("churn"), root.join(format!("round{round}"))).unwrap();
            }
        });
        let (log, recovered) = compare_with_e2fsck(&image);
        recovered.head() < log.superblock().start().unwrap()
    });
    assert!(wrapped, "no log wrapped");
}

/// As [`crashed`], with a journal on a device of its own, which is returned too.
fn crashed_with_external_journal(block_bytes: &str) -> (Image, Image, Recovered) {
    loop {
        let journal = Image::make(&["-O", "journal_dev", "-b", block_bytes], "16M");
        let attached = kernel::Loop::attach(&journal.path);
        let journal_option = format!("device={}", attached.device);
        let image = Image::make(&["-b", block_bytes, "-J", &journal_option], "48M");
        let mount = format!("journal_path={}", attached.device);
        image.crash(&mount, Crash::KeepLog, kernel::churn);
        drop(attached);

        let (block_size, uuid) = (image.block_size(), image.journal_uuid());
        let log = Log::open_external(device(&journal.path), uuid, block_size).unwrap();
        if has_orphans(&replay(&image, &log).0) {
            // Only e2fsck replays such a journal, and it would free the orphans too.
            continue;
        }
        // e2fsck empties the journal, so it gets a copy.
        let copy = journal.copy("journal");
        let (_, recovered) = compare(&image, log, &["-j", copy.path.to_str().unwrap()]);
        return (image, journal, recovered);
    }
}

#[test]
fn an_external_journal() {
    if !can_run(KERNEL) {
        return;
    }
    for block_bytes in ["1024", "4096"] {
        let (image, journal, recovered) = crashed_with_external_journal(block_bytes);
        assert!(recovered.transactions() > 3, "{recovered:?}");

        let (block_size, uuid) = (image.block_size(), image.journal_uuid());
        let other = uuid::Uuid::from_bytes([1; 16]);
        let error = Log::open_external(device(&journal.path), other, block_size).unwrap_err();
        let expected = JournalError::WrongDevice {
            found: uuid,
            expected: other,
        };
        assert!(matches!(error, Error::Corrupt(error) if error == expected));
        let error = Log::open_external(device(&image.path), uuid, block_size).unwrap_err();
        assert!(error.to_string().contains("s_feature_incompat"), "{error}");
    }
}

/// No kernel of today writes checksums of version 2, but debugfs does.
#[test]
fn checksums_of_version_2() {
    if !can_run(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for features in ["64bit", "^64bit"] {
        let image = Image::make(&["-O", features, "-b", "1024"], "16M");
        image.log_with_version_2();
        let (log, recovered) = compare_with_e2fsck(&image);
        let format = log.superblock().log_format();
        assert!(
            matches!(format.checksums, LogChecksums::V2 { .. }),
            "{format:?}"
        );
        let blocks: Vec<_> = recovered.copies().iter().map(|copy| copy.block.0).collect();
        assert_eq!(blocks, [16000, 16002, 16003, 16004]);
        let escaped: Vec<_> = recovered.copies().iter().map(|copy| copy.escaped).collect();
        assert_eq!((escaped[3], recovered.transactions()), (true, 4));
        assert_eq!(log.block_size(), BlockSize::from_log(0).unwrap());
    }
}
