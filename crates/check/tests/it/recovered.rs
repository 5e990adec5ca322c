//! **Purpose.** A file system with a dirty journal is checked as recovery would leave it: complete
//! transactions, fast commits, and orphans of the list and of the orphan file.
//!
//! **Model.** The kernel's file system crashes under load. `e2fsck -n` does not replay, so it
//! checks a copy that it has replayed before (`-E journal_only`), or, where it cannot do that (fast
//! commits of newer kernels, the orphan file), one that the kernel has recovered.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use fourscore_check::Finding;
use fourscore_testkit::crash::load::Seed;
use fourscore_testkit::crash::{Crashed, Death, JOURNALS, Journal};
use fourscore_testkit::mount::{Access, KernelMount, Log};
use fourscore_testkit::oracle::{debugfs_write, e2fsck, e2fsck_repair};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require};

use crate::common::{count, report, texts};

/// A copy with its journal replayed, by e2fsck if `by_e2fsck`, else by the kernel.
fn replayed(crashed: &Crashed, by_e2fsck: bool) -> Result<Image> {
    if !by_e2fsck {
        return crashed.recovered();
    }
    let copy = crashed.image.copy()?;
    e2fsck_repair(copy.path(), &["-E", "journal_only"])?;
    Ok(copy)
}

/// Whether e2fsck can replay a journal and leave a sound file system.
fn e2fsck_replays(journal: &Journal) -> bool {
    !journal.has_fast_commits() && journal.name != "orphan-file"
}

fn compare(journal: &Journal, death: Death, seed: u64) -> Result<()> {
    let crashed = journal.crashed(death, Seed(seed))?;
    let ours = report(crashed.image.path(), 2)?;
    let texts = texts(&ours);
    let notes = count(&ours, "journal-replayed") + count(&ours, "fast-commits-replayed");
    assert_eq!(notes, 1, "{texts:#?}");
    let replayed = replayed(&crashed, e2fsck_replays(journal))?;
    let theirs = e2fsck(replayed.path())?;
    if !journal.has_fast_commits() {
        assert!(theirs.is_clean(), "{}", theirs.output);
    }
    // What the kernel leaves in its own fast commits is miscounted now and then; then it is so for
    // both.
    let name = journal.name;
    assert_eq!(
        ours.is_clean(),
        theirs.is_clean(),
        "{name}: {texts:#?}\n{}",
        theirs.output
    );
    // The names are the same; the orphans are gone.
    let after = report(replayed.path(), 2)?;
    let orphans = count(&ours, "orphan");
    assert_eq!(ours.tally().entries, after.tally().entries, "{texts:#?}");
    let (most, least) = (
        ours.tally().inodes,
        ours.tally().inodes.saturating_sub(orphans),
    );
    assert!((least..=most).contains(&after.tally().inodes), "{texts:#?}");
    Ok(())
}

#[test]
fn journals_are_checked_as_recovery_leaves_them() {
    require!(
        Need::KernelMount,
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("xfs_io")
    );
    let deaths = Death::ALL.iter().cycle();
    for ((journal, &death), seed) in JOURNALS.iter().zip(deaths).zip(1..) {
        let outcome = compare(journal, death, seed);
        outcome
            .with_context(|| format!("{} {death:?}", journal.name))
            .expect("a comparison");
    }
}

/// An image with a fault that a mount does not notice: a wrong i_blocks.
fn with_fault(features: &str) -> Image {
    let source = fourscore_testkit::scratch::folder().expect("a folder");
    for nr in 0..8 {
        let path = source.path().join(format!("file-{nr}"));
        fs::write(path, vec![nr; 9000]).expect("room");
    }
    let image = Image::builder(MiB(32)).kind("ext4").features(&[features]);
    let image = image.source(source.path()).make().expect("mke2fs runs");
    debugfs_write(image.path(), &["set_inode_field /file-5 blocks 77"]).expect("debugfs runs");
    image
}

/// Makes files and a directory, removes the directory and two of the files while they are open, and
/// stops the file system. Returns the inodes of the removed ones.
fn die_with_orphans(image: &Image) -> Vec<u64> {
    use std::os::unix::fs::MetadataExt;
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("a mount");
    let (mut removed, mut kept) = (Vec::new(), Vec::new());
    for nr in 0..4 {
        let path = mount.path().join(format!("new-{nr}"));
        fs::write(&path, [7; 9000]).expect("room");
        let file = File::open(&path).expect("it is there");
        if nr % 2 == 1 {
            fs::remove_file(&path).expect("it is there");
            removed.push(file);
        } else {
            kept.push(file);
        }
    }
    let path = mount.path().join("new-directory");
    fs::create_dir(&path).expect("room");
    removed.push(File::open(&path).expect("it is there"));
    fs::remove_dir(&path).expect("it is empty");
    mount.sync().expect("a disk");
    mount.shut_down(Log::Flushed).expect("a kernel");
    let inode = |file: &File| file.metadata().map(|meta| meta.ino());
    let inodes = removed
        .iter()
        .map(|file| inode(file).expect("it is open"))
        .collect();
    drop((removed, kept));
    mount.unmount().expect("the mount is not busy");
    inodes
}

#[test]
fn orphans_of_the_list_and_of_the_file_are_no_faults() {
    require!(
        Need::KernelMount,
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("xfs_io")
    );
    for record in ["^orphan_file", "orphan_file", "inline_data"] {
        let image = with_fault(record);
        let mut expected = die_with_orphans(&image);
        let ours = report(image.path(), 2).expect("a file system");
        let mut orphans = Vec::new();
        let mut others = Vec::new();
        for finding in ours.findings() {
            match finding {
                Finding::Orphan { inode } => orphans.push(u64::from(inode.0)),
                Finding::JournalReplayed { .. } => {}
                other => others.push(other.invariant().code),
            }
        }
        expected.sort_unstable();
        assert_eq!(orphans, expected, "{record}");
        // The earlier fault is found, and nothing else.
        assert_eq!(others, ["inode-blocks"], "{record}");

        // Both find only that fault when the orphans are gone.
        KernelMount::new(image.path(), Access::ReadWrite, "")
            .and_then(KernelMount::unmount)
            .expect("the kernel recovers it");
        let ours = report(image.path(), 2).expect("a file system");
        let codes: Vec<_> = ours.counts().keys().copied().collect();
        assert_eq!(codes, ["inode-blocks"], "{record}");
        let theirs = e2fsck(image.path()).expect("e2fsck runs");
        assert!(theirs.code == 4 && theirs.output.contains("i_blocks is 77"));
    }
}

#[test]
fn fast_commits_are_replayed() {
    require!(
        Need::KernelMount,
        Need::Program("mke2fs"),
        Need::Program("xfs_io")
    );
    let image = Image::builder(MiB(32))
        .kind("ext4")
        .features(&["fast_commit"]);
    let image = image.make().expect("mke2fs runs");
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("a mount");
    mount.sync().expect("a disk");
    // What fsync writes for a new file is a fast commit; nothing else comes after it.
    for nr in 0..3 {
        let file = File::create(mount.path().join(format!("new-{nr}"))).expect("room");
        file.write_all_at(&[nr; 9000], 0).expect("room");
        file.sync_all().expect("a disk");
    }
    mount.shut_down(Log::Lost).expect("a kernel");
    mount.unmount().expect("the mount is not busy");
    let ours = report(image.path(), 2).expect("a file system");
    let codes: Vec<_> = ours.counts().keys().copied().collect();
    assert_eq!(codes, ["fast-commits-replayed"]);
    // `.` and `..` of the root and of lost+found, its name, and the files.
    assert_eq!(ours.tally().entries, 2 * 2 + 1 + 3);
}
