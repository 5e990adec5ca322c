//! **Purpose.** A log with damage that no crash explains: what is intact of it is replayed, the
//! whole file system is checked, and `-p`, `-y` end as `e2fsck -p`, `-y` do.
//!
//! **Model.** debugfs writes transactions with checksums of version 3 into the log of a file system
//! of 16 MiB in blocks of 1 KiB; each logged block is filled with a letter. Then a byte of the log
//! changes.

use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use fourscore_block::{BlockDevice, RamDevice, RecordingDevice, Survival};
use fourscore_check::{CheckOptions, Finding, Repaired, Scope, repair};
use fourscore_sync::Arc;
use fourscore_testkit::oracle::{
    Fsck, debugfs, debugfs_write, e2fsck, e2fsck_preen, e2fsck_repair,
};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require, scratch};

use super::{assert_repaired, repaired};
use crate::common::{count, opened, report, report_on, texts};

const BLOCK: usize = 1024;
const MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];
/// Free blocks that transactions write to.
const HOMES: [u64; 4] = [15000, 15001, 15002, 15003];

/// Blocks in the log, by what they hold.
#[derive(Clone, Copy, Debug)]
enum Logged {
    /// A copy that is filled with this letter.
    Copy(u8),
    /// The descriptor of this transaction.
    Descriptor(u8),
    /// The commit block of this transaction.
    Commit(u8),
}

impl Logged {
    fn is_in(self, block: &[u8]) -> bool {
        let is_kind =
            |kind, tid| block.starts_with(&MAGIC) && block[4..12] == [0, 0, 0, kind, 0, 0, 0, tid];
        match self {
            Self::Copy(letter) => block.iter().all(|byte| *byte == letter),
            Self::Descriptor(tid) => is_kind(1, tid),
            Self::Commit(tid) => is_kind(2, tid),
        }
    }
}

/// An image whose log has two transactions: 1 writes A, B and C to the first three of [`HOMES`], 2
/// writes D to the second one and E to the last one.
fn logged() -> Image {
    let source = scratch::folder().expect("a folder");
    for nr in 0..9 {
        let dir = source.path().join("dir");
        fs::create_dir_all(&dir).expect("room");
        fs::write(dir.join(format!("file-{nr}")), [nr; 700]).expect("room");
    }
    let image = Image::builder(MiB(16)).kind("ext4").block_size_bytes(1024);
    let image = image.source(source.path()).make().expect("mke2fs runs");
    let [first, second] = ["ABC", "DE"].map(|letters| {
        let path = source.path().join(letters);
        let bytes: Vec<u8> = letters.bytes().flat_map(|letter| [letter; BLOCK]).collect();
        fs::write(&path, bytes).expect("room");
        path.display().to_string()
    });
    let commands = [
        "jo -c".to_owned(),
        format!("jw -b 15000,15001,15002 {first}"),
        format!("jw -b 15001,15003 {second}"),
        "jc".to_owned(),
    ];
    debugfs_write(image.path(), &commands).expect("debugfs has a journal");
    image
}

/// Changes a byte of a block in the log.
fn damage(image: &Image, logged: Logged) {
    let bytes = fs::read(image.path()).expect("the image");
    let at = bytes.chunks(BLOCK).position(|block| logged.is_in(block));
    let at = at.expect("it is in the log") * BLOCK + 500;
    let file = fs::File::options().write(true).open(image.path());
    let byte = [bytes[at] ^ 1];
    file.expect("it is there")
        .write_all_at(&byte, u64::try_from(at).expect("small"))
        .expect("room");
}

/// The letters in [`HOMES`]; `.` is a block of zeroes, `?` anything else.
fn homes(device: &dyn BlockDevice) -> String {
    let letter = |block: u64| {
        let mut bytes = [0; BLOCK];
        let read = device.read_at(&mut bytes, block * BLOCK as u64);
        read.expect("readable");
        match bytes[0] {
            0 => '.',
            letter if bytes == [letter; BLOCK] => char::from(letter),
            _ => '?',
        }
    };
    HOMES.into_iter().map(letter).collect()
}

fn homes_of(image: &Image) -> String {
    homes(&*opened(image.path()).expect("readable"))
}

fn is_salvaged(result: &Repaired) -> bool {
    let is_it = |finding: &Finding| matches!(finding, Finding::JournalDamaged { .. });
    result.mended.iter().any(is_it)
}

/// What e2fsck does with a copy of the image, and what it leaves in [`HOMES`].
fn theirs(image: &Image, run: impl Fn(&Image) -> Result<Fsck>) -> (i32, String) {
    let copy = image.copy().expect("room");
    let outcome = run(&copy).expect("e2fsck runs");
    (outcome.code, homes_of(&copy))
}

#[test]
fn what_is_intact_of_a_damaged_log_is_replayed() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("e2fsck")
    );
    let sound = logged();
    assert_eq!(
        count(
            &report(sound.path(), 1).expect("a report"),
            "journal-damaged"
        ),
        0
    );
    // An older copy takes the place of a damaged one.
    let cases = [
        (Logged::Copy(b'E'), "ADC."),
        (Logged::Copy(b'D'), "ABCE"),
        (Logged::Copy(b'C'), "AD.E"),
        (Logged::Copy(b'B'), "ADCE"),
    ];
    for (logged, expected) in cases {
        let image = sound.copy().expect("room");
        damage(&image, logged);
        let found = report(image.path(), 2).expect("a report");
        assert_eq!(count(&found, "journal-damaged"), 1, "{logged:?}");
        assert!(!found.is_clean());
        let preened = theirs(&image, |copy| e2fsck_preen(copy.path()));
        assert_eq!(preened, (1, expected.to_owned()), "{logged:?}");
        let all = theirs(&image, |copy| e2fsck_repair(copy.path(), &[]));
        assert_eq!(all, (1, expected.to_owned()), "{logged:?}");
        for scope in [Scope::Safe, Scope::Everything] {
            let copy = image.copy().expect("room");
            let ours = repaired(copy.path(), scope).expect("a repair");
            assert!(is_salvaged(&ours), "{:?}", ours.mended);
            // The exit status 1.
            assert!(ours.is_clean() && ours.is_changed && ours.is_replayed);
            assert_eq!(homes_of(&copy), expected, "{logged:?}");
            let again = report(copy.path(), 2).expect("a report");
            assert!(again.findings().is_empty(), "{:?}", texts(&again));
            assert!(e2fsck(copy.path()).expect("it runs").is_clean());
        }
    }
}

#[test]
fn the_log_is_used_up_to_damage_of_another_kind() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("e2fsck")
    );
    let sound = logged();
    for (logged, expected) in [
        (Logged::Descriptor(2), "ABC."),
        (Logged::Descriptor(1), "...."),
        (Logged::Commit(1), "...."),
    ] {
        let image = sound.copy().expect("room");
        damage(&image, logged);
        if let Logged::Descriptor(_) = logged {
            // A damaged commit block alone does not make e2fsck 1.47 exit with 1.
            let status = theirs(&image, |copy| e2fsck_preen(copy.path())).0;
            assert_eq!(status, 1, "{logged:?}");
        }
        let ours = assert_repaired(image.path()).expect("a repair");
        assert!(is_salvaged(&ours) && ours.is_changed);
        assert_eq!(homes_of(&image), expected, "{logged:?}");
    }
}

/// A commit block that was torn is what a crash leaves.
#[test]
fn a_torn_commit_block_is_no_error() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = logged();
    damage(&image, Logged::Commit(2));
    let ours = repaired(image.path(), Scope::Safe).expect("a repair");
    assert!(ours.is_clean() && !ours.is_changed && ours.is_replayed);
    assert_eq!(homes_of(&image), "ABC.");
}

/// An image in which the only sound copy of the block of `/dir` was in the log, and is damaged.
fn without_a_directory() -> Result<Image> {
    let image = logged();
    let block: usize = debugfs(image.path(), &["blocks /dir"])?.trim().parse()?;
    let bytes = fs::read(image.path())?;
    let content = bytes.get(block * BLOCK..(block + 1) * BLOCK);
    let folder = scratch::folder()?;
    let copy = folder.path().join("copy");
    fs::write(&copy, content.context("a block")?)?;
    let write = format!("jw -b {block} {}", copy.display());
    debugfs_write(image.path(), &["jo -c".to_owned(), write, "jc".to_owned()])?;
    let file = fs::File::options().write(true).open(image.path())?;
    let fill = [0x5a; 200];
    let now = fs::read(image.path())?;
    let blocks = now.chunks(BLOCK).enumerate();
    let copies = blocks.filter(|(_, other)| Some(*other) == content);
    let copies: Vec<usize> = copies.map(|(at, _)| at).collect();
    assert_eq!(copies.len(), 2, "in place, and in the log");
    for at in copies {
        file.write_all_at(&fill, u64::try_from(at * BLOCK)?)?;
    }
    Ok(image)
}

#[test]
fn what_a_damaged_copy_leaves_is_repaired_or_left_alone() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("e2fsck")
    );
    let image = without_a_directory().expect("an image");
    let before = fs::read(image.path()).expect("the image");
    let status = theirs(&image, |copy| e2fsck_preen(copy.path())).0;
    assert_eq!(status, 4);
    let safe = repaired(image.path(), Scope::Safe).expect("a repair");
    assert!(!safe.is_clean() && !safe.is_changed && !safe.is_replayed);
    assert!(safe.mended.is_empty());
    let is_left = |code| {
        safe.left
            .iter()
            .any(|(finding, _)| finding.invariant().code == code)
    };
    assert!(
        is_left("journal-damaged") && is_left("dir-record"),
        "{:?}",
        safe.left
    );
    let after = fs::read(image.path()).expect("the image");
    assert!(before == after, "-p has written");

    let ours = assert_repaired(image.path()).expect("a repair");
    assert!(is_salvaged(&ours));
    assert_eq!(homes_of(&image), "ADCE");
}

/// Whatever of a repair has arrived, it can be repeated with the same result, and until it is done
/// the file system does not seem sound.
#[test]
fn a_salvage_that_is_interrupted_can_be_repeated() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = logged();
    damage(&image, Logged::Copy(b'E'));
    let bytes = fs::read(image.path()).expect("the image");
    let device = Arc::new(RamDevice::from_bytes(&bytes));
    let recorder = Arc::new(RecordingDevice::new(device));
    let run = |device: Arc<dyn BlockDevice>| {
        repair(device, &CheckOptions::default(), Scope::Everything).expect("a repair")
    };
    run(Arc::<RecordingDevice>::clone(&recorder));
    let cuts = recorder.cuts();
    assert!(cuts > 8, "only {cuts} writes and flushes");
    for cut in 0..=cuts {
        for survival in [Survival::Kept, Survival::Lost] {
            let state = Arc::new(recorder.crashed(cut, |_, _| survival).expect("a state"));
            let found = report_on(Arc::<RamDevice>::clone(&state), 1).expect("a report");
            let is_marked = ["journal-damaged", "not-clean"].map(|code| count(&found, code));
            let is_due = is_marked != [0, 0] || !found.is_clean();
            let is_done = homes(&*state) == "ADC." && cut + 2 >= cuts;
            assert!(
                is_due || is_done,
                "cut {cut} of {cuts}: {:?}",
                texts(&found)
            );
            run(Arc::<RamDevice>::clone(&state));
            assert_eq!(homes(&*state), "ADC.", "cut {cut} of {cuts}");
            let again = report_on(Arc::<RamDevice>::clone(&state), 1).expect("a report");
            assert!(again.findings().is_empty(), "{:?}", texts(&again));
        }
    }
}
