//! Commands that write a file system that is not mounted keep other hosts away, and are kept away
//! by them (feature `mmp`).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::mmp::MmpSequence;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_sync::thread;
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::other_host;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use zerocopy::IntoBytes;

use crate::common::{failing, fourscore, printed, refused, text};

/// How often a command is interrupted until it was not too fast for that.
const TRIES: usize = 40;
const INTERRUPTED: i32 = 2;
/// How long a command runs before it is looked at.
const SLICE: Duration = Duration::from_micros(300);

fn image(options: &str) -> (TempDir, PathBuf) {
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    let mut command = tools::command("mke2fs").expect("found before");
    command.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "mmp"]);
    command.args(options.split_whitespace());
    tools::stdout_of(command.arg(&image).arg("32M")).expect("mke2fs runs");
    (folder, image)
}

fn sequence(image: &Path) -> MmpSequence {
    let block = other_host::block(image);
    block.expect("a valid block").sequence()
}

/// Marks the log as one that has to be replayed.
fn need_recovery(image: &Path) {
    let file = File::options().read(true).write(true).open(image);
    let file = file.expect("an image");
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    let read = file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES);
    read.expect("a superblock");
    let mut raw = *RawSuperblock::from_bytes(&bytes).expect("a superblock");
    let incompat = raw.features().incompat | Incompat::RECOVER;
    raw.s_feature_incompat = incompat.bits().into();
    raw.seal();
    let written = file.write_all_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES);
    written.expect("space");
}

#[test]
fn what_a_check_elsewhere_has_is_refused_until_it_is_cleared() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (folder, image) = image("");
    let path = text(&image);
    other_host::leave(&image, MmpSequence::Fsck).expect("space");
    let before = fs::read(&image).expect("an image");
    let expected = "a check of it runs on host elsewhere, from sdx, or was cut short";
    for arguments in [
        &["resize", path, "-M"][..],
        &["resize", path, "40M"],
        &["tune", path, "-L", "x"],
        &["tune", path, "-O", "^64bit"],
        &["tune", path, "-O", "^metadata_csum"],
        &["tune", path, "-O", "^mmp"],
        &["edit", path, "mkdir", "/x"],
    ] {
        refused(arguments, expected);
    }
    let undo = folder.path().join("undo");
    for option in ["-p", "-y"] {
        let (status, message) = failing(&["check", option, "--undo", text(&undo), path]);
        assert_eq!(status, Some(8), "{message}");
        assert!(message.contains(expected), "{message}");
        assert!(!undo.exists(), "nothing can be undone");
    }
    assert!(fs::read(&image).expect("an image") == before);
    // What is only read is not refused.
    printed(&mut fourscore(&["check", "-n", path]));
    printed(&mut fourscore(&["resize", "-P", path]));
    let (status, message) = failing(&["tune", path, "-E", "clear_mmp"]);
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("then add -f"), "{message}");
    printed(&mut fourscore(&["tune", path, "-f", "-E", "clear_mmp"]));
    assert_clean(&image);
    printed(&mut fourscore(&["tune", path, "-L", "x", "-O", "^mmp"]));
    let none = "has no multi-mount protection (mmp)";
    refused(&["tune", path, "-f", "-E", "clear_mmp"], none);
}

/// Overwrites the primary superblock.
fn wipe(image: &Path) {
    let file = File::options().write(true).open(image);
    let wiped = file.expect("an image").write_all_at(&[0; 1024], 1024);
    wiped.expect("it is written");
}

/// A repair that goes by a backup of the superblock claims by it, and may be cut short.
#[test]
fn a_claim_is_cleared_by_a_backup_of_the_superblock() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (_folder, image) = image("");
    let path = text(&image);
    other_host::leave(&image, MmpSequence::Fsck).expect("space");
    wipe(&image);
    let (status, message) = failing(&["check", "-y", path]);
    assert_eq!(status, Some(8), "{message}");
    printed(&mut fourscore(&["tune", path, "-f", "-E", "clear_mmp"]));
    let (status, message) = failing(&["check", "-y", path]);
    assert_eq!(status, Some(1), "{message}");
    assert_eq!(sequence(&image), MmpSequence::Clean);
    assert_clean(&image);
}

#[test]
fn what_a_repair_changed_is_not_undone_below_another_host() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (folder, image) = image("");
    let (path, undo) = (text(&image), folder.path().join("undo"));
    wipe(&image);
    let before = fs::read(&image).expect("an image");
    let (status, message) = failing(&["check", "-y", "--undo", text(&undo), path]);
    assert_eq!(status, Some(1), "{message}");
    for left in [MmpSequence::Fsck, MmpSequence::Clean] {
        other_host::leave(&image, left).expect("space");
        let arguments = ["check", "--undo-apply", text(&undo), path];
        match left {
            MmpSequence::Fsck => {
                let (status, message) = failing(&arguments);
                assert_eq!(status, Some(8), "{message}");
                assert!(message.contains("a check of it runs"), "{message}");
                assert_eq!(sequence(&image), left);
            }
            _ => drop(printed(&mut fourscore(&arguments))),
        }
    }
    let after = fs::read(&image).expect("an image");
    let differs = (before.iter().zip(&after)).filter(|(a, b)| a != b);
    assert!(differs.count() < 1024, "more than the block has changed");
    assert_eq!(before[1024..2048], after[1024..2048], "the superblock");
}

/// A log that is dirty is replayed by a mount, which is refused, too: then nothing else is tried.
#[test]
fn a_dirty_log_is_not_replayed_on_a_file_system_of_another_host() {
    require!(Need::Program("mke2fs"));
    let (_folder, image) = image("");
    need_recovery(&image);
    other_host::leave(&image, MmpSequence::Fsck).expect("space");
    let before = fs::read(&image).expect("an image");
    let (status, message) = failing(&["check", "-y", text(&image)]);
    assert_eq!((status, message.lines().count()), (Some(8), 1), "{message}");
    assert!(
        message.contains("a check of it runs on host else"),
        "{message}"
    );
    assert!(fs::read(&image).expect("an image") == before);
}

#[test]
fn each_command_releases_it() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (_folder, image) = image("");
    let path = text(&image);
    for arguments in [
        &["check", "-y", path][..],
        &["check", "-y", "--superblock", "8193", path],
        &["resize", path, "20M"],
        &["resize", path, "40M"],
        &["resize", path, "-M"],
        &["tune", path, "-L", "x"],
        &["tune", path, "-O", "^64bit"],
        &["tune", path, "-O", "^metadata_csum"],
        &["tune", path, "-O", "metadata_csum"],
        &["tune", path, "-U", "random"],
    ] {
        let output = fourscore(arguments).output().expect("the program exists");
        let status = output.status.code();
        // A repair with a backup of the superblock has mended the primary one.
        assert!(matches!(status, Some(0 | 1)), "{arguments:?}: {output:?}");
        assert_eq!(sequence(&image), MmpSequence::Clean, "{arguments:?}");
        assert_clean(&image);
    }
}

/// One that is refused when it has claimed the file system changes nothing, and there is nothing to
/// be undone.
#[test]
fn a_refused_command_leaves_every_byte_as_it_was() {
    require!(Need::Program("mke2fs"));
    let (folder, image) = image("-O ^has_journal");
    let (path, undo) = (text(&image), folder.path().join("undo"));
    let before = fs::read(&image).expect("an image");
    let undo_at = text(&undo);
    for (arguments, expected) in [
        (&["resize", path, "1M"][..], "are too few"),
        (
            &["tune", path, "-J", "size=20", "-z", undo_at],
            "over half of the",
        ),
    ] {
        refused(arguments, expected);
        assert!(fs::read(&image).expect("an image") == before);
        assert!(!undo.exists(), "nothing can be undone");
    }
}

/// Runs a command in slices, and stops it between them, until it has claimed the file system.
/// Returns whether that was seen before it ended.
fn stop_claimed(command: &mut Child, image: &Path) -> bool {
    let pid = Pid::from_child(command);
    while command.try_wait().expect("a child").is_none() {
        let _ = kill_process(pid, Signal::STOP);
        if sequence(image) == MmpSequence::Fsck {
            return true;
        }
        let _ = kill_process(pid, Signal::CONT);
        thread::sleep(SLICE);
    }
    false
}

#[test]
fn a_signal_releases_it() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    // All inodes are read.
    let (_folder, image) = image("-I 128 -N 180000 -O ^metadata_csum,^uninit_bg");
    for _ in 0..TRIES {
        let mut check = fourscore(&["check", "-y", "--threads", "1", text(&image)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program exists");
        if stop_claimed(&mut check, &image) {
            let pid = Pid::from_child(&check);
            for signal in [Signal::INT, Signal::CONT] {
                let _ = kill_process(pid, signal);
            }
        }
        let status = check.wait().expect("a child");
        assert_eq!(sequence(&image), MmpSequence::Clean, "{status}");
        if status.signal() == Some(INTERRUPTED) {
            assert_clean(&image);
            return;
        }
        assert!(status.success(), "{status}");
    }
    panic!("no command was interrupted");
}
