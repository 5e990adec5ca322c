//! Logs that the kernel wrote and that a shutdown cut off: applying our plan gives, block by
//! block, what e2fsck's replay of the same log gives.
//!
//! Needs root, loop devices, e2fsprogs and xfs_io; says so where they are missing.

mod kernel;

use std::path::Path;

use fourscore_block::{BlockDevice, DeviceOptions, open_path};
use fourscore_journal::{Error, Log, Recovered, recover};
use fourscore_ondisk::jbd2::{JournalError, LogChecksums};
use fourscore_ondisk::{BlockCount, BlockSize};
use fourscore_sync::Arc;

use kernel::{Crash, Image, can_run, run};

fn device(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(open_path(path, DeviceOptions::default()).unwrap())
}

fn open_log(image: &Image) -> Log {
    let map = image.journal_map();
    Log::open(device(&image.path), image.block_size(), map).unwrap()
}

/// The image's bytes as the overlay shows them.
fn replayed(image: &Image, log: &Log, recovered: &Recovered) -> Vec<u8> {
    let overlay = recovered.overlay(log, device(&image.path)).unwrap();
    let mut bytes = vec![0; usize::try_from(overlay.len_bytes()).unwrap()];
    overlay.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Blocks that differ, without those of the journal and the one with the superblock (e2fsck
/// notes in both that it was there).
fn differences(ours: &[u8], theirs: &[u8], log: &Log) -> Vec<usize> {
    let block_bytes = log.block_size().bytes();
    let superblock = 1024 / block_bytes;
    let blocks = ours
        .chunks(block_bytes)
        .zip(theirs.chunks(block_bytes))
        .enumerate();
    blocks
        .filter(|(_, (ours, theirs))| ours != theirs)
        .map(|(block, _)| block)
        .filter(|&block| block != superblock)
        .filter(|&block| {
            !log.map()
                .contains(fourscore_ondisk::PhysBlock(block as u64))
        })
        .collect()
}

fn compare_with_e2fsck(image: &Image) -> (Log, Recovered) {
    compare(image, open_log(image), &[])
}

/// Compares our replay of `log` with that of e2fsck, called with `options` in addition.
fn compare(image: &Image, log: Log, options: &[&str]) -> (Log, Recovered) {
    let blocks = std::fs::metadata(&image.path).unwrap().len() >> log.block_size().bits();
    let recovered = recover(&log, BlockCount(blocks)).unwrap();
    let ours = replayed(image, &log, &recovered);
    let oracle = image.copy("oracle");
    let mut args = vec!["-y", "-E", "journal_only"];
    args.extend(options);
    args.push(oracle.path.to_str().unwrap());
    run("e2fsck", &args, &[0, 1]);
    let theirs = std::fs::read(&oracle.path).unwrap();
    assert_eq!(differences(&ours, &theirs, &log), Vec::<usize>::new());
    assert_eq!(recovered.damage(), None);
    (log, recovered)
}

/// What it takes to let the kernel write a log.
const KERNEL: &[&str] = &["mke2fs", "e2fsck", "debugfs", "xfs_io", "losetup"];

struct Case {
    mke2fs: &'static [&'static str],
    mount: &'static str,
    crash: Crash,
    checksums: fn(&LogChecksums) -> bool,
}

fn check(case: &Case) {
    if !can_run(KERNEL) {
        return;
    }
    let image = Image::make(case.mke2fs, "48M");
    image.crash(case.mount, case.crash, kernel::churn);
    let (log, recovered) = compare_with_e2fsck(&image);
    let format = log.superblock().log_format();
    assert!((case.checksums)(&format.checksums), "{format:?}");
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
    if !can_run(KERNEL) {
        return;
    }
    let image = Image::make(&[], "48M");
    image.crash("data=ordered", Crash::KeepLog, kernel::churn);
    let (log, recovered) = compare_with_e2fsck(&image);
    assert!(v3(&log.superblock().log_format().checksums));
    assert!(recovered.revoked() > 0, "no revoked copy");
}

#[test]
fn journaled_data_has_escapes() {
    if !can_run(KERNEL) {
        return;
    }
    let image = Image::make(&[], "48M");
    image.crash("data=journal", Crash::FlushLog, kernel::churn);
    let (_, recovered) = compare_with_e2fsck(&image);
    assert!(
        recovered.copies().iter().any(|copy| copy.escaped),
        "no escaped copy"
    );
}

#[test]
fn asynchronous_commits_with_checksums_in_tags() {
    let mount = "journal_async_commit,data=writeback";
    check(&Case {
        mke2fs: &[],
        mount,
        crash: Crash::KeepLog,
        checksums: v3,
    });
}

#[test]
fn a_log_without_checksums() {
    let mke2fs = &["-O", "^metadata_csum"];
    check(&Case {
        mke2fs,
        mount: "data=journal",
        crash: Crash::KeepLog,
        checksums: no_checksums,
    });
}

#[test]
fn one_checksum_for_each_transaction() {
    let mke2fs = &["-O", "^metadata_csum"];
    let mount = "journal_checksum,data=journal";
    check(&Case {
        mke2fs,
        mount,
        crash: Crash::FlushLog,
        checksums: v1,
    });
}

#[test]
fn asynchronous_commits_with_one_checksum_for_each_transaction() {
    let mke2fs = &["-O", "^metadata_csum,^64bit"];
    let mount = "journal_async_commit,data=writeback";
    check(&Case {
        mke2fs,
        mount,
        crash: Crash::KeepLog,
        checksums: v1,
    });
}

#[test]
fn narrow_block_numbers() {
    let mke2fs = &["-O", "^64bit", "-b", "1024"];
    check(&Case {
        mke2fs,
        mount: "data=journal",
        crash: Crash::KeepLog,
        checksums: v3,
    });
}

#[test]
fn narrow_block_numbers_without_checksums_in_a_journal_of_indirect_blocks() {
    let mke2fs = &["-t", "ext3", "-b", "2048"];
    check(&Case {
        mke2fs,
        mount: "data=journal",
        crash: Crash::KeepLog,
        checksums: no_checksums,
    });
}

#[test]
fn a_log_that_went_around() {
    if !can_run(KERNEL) {
        return;
    }
    // Where the log stands at the shutdown depends on when the kernel checkpoints.
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

#[test]
fn a_journal_on_a_device_of_its_own() {
    if !can_run(KERNEL) {
        return;
    }
    for block_bytes in ["1024", "4096"] {
        let journal = Image::make(&["-O", "journal_dev", "-b", block_bytes], "16M");
        let attached = kernel::Loop::attach(&journal.path);
        let journal_option = format!("device={}", attached.device);
        let image = Image::make(&["-b", block_bytes, "-J", &journal_option], "48M");
        let mount = format!("journal_path={}", attached.device);
        image.crash(&mount, Crash::KeepLog, kernel::churn);
        drop(attached);

        let block_size = image.block_size();
        let uuid = image.journal_uuid();
        let log = Log::open_external(device(&journal.path), uuid, block_size).unwrap();
        // e2fsck empties the journal, so it gets a copy.
        let copy = journal.copy("journal");
        let (_, recovered) = compare(&image, log, &["-j", copy.path.to_str().unwrap()]);
        assert!(recovered.transactions() > 3, "{recovered:?}");

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
        let data = image.dir.path().join("data");
        // Two blocks, the second of which must be escaped.
        let mut bytes = vec![0x11; 2048];
        bytes[1024..1028].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
        std::fs::write(&data, &bytes).unwrap();
        let write = |blocks: &str| format!("jw -b {blocks} {}\n", data.display());
        let script = format!(
            "jo -c -v 2\n{}{}jw -r 16001\n{}jc\n",
            write("16000,16001"),
            write("16002,16003"),
            write("16003,16004")
        );
        let commands = image.dir.path().join("commands");
        std::fs::write(&commands, script).unwrap();
        let image_path = image.path.to_str().unwrap();
        run(
            "debugfs",
            &["-w", "-f", commands.to_str().unwrap(), image_path],
            &[0],
        );
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
