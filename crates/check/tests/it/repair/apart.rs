//! **Purpose.** What a repair leaves alone, what it does without being asked, crashes while it
//! writes, and undo files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fourscore_block::{
    BlockDevice, DeviceOptions, RamDevice, RecordingDevice, Survival, open_path,
};
use fourscore_check::{CheckOptions, Scope, UndoDevice, apply_undo, repair};
use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;
use fourscore_sync::Arc;
use fourscore_testkit::explore::rng::{Rng, mix};
use fourscore_testkit::matrix::Populated;
use fourscore_testkit::oracle::{e2fsck, e2fsck_preen};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, matrix, require, scratch};

use super::drawn::{compare, paths};
use super::repaired;
use crate::common::{opened, report_on};
use crate::invariants::cases;
use crate::invariants::surgery::Surgery;

const EXT4: &str = "ext4-4k";
/// Damages of one image that do not hide each other: one of each stage.
const TOGETHER: [&str; 9] = [
    "shared-blocks",
    "dir-record",
    "dir-lost",
    "index-hash",
    "inode-time-range",
    "links-count",
    "xattr-refcount",
    "block-not-used",
    "group-dirs",
];

/// A file system with files of all kinds.
fn populated() -> Result<Populated> {
    let config = matrix::named(&[EXT4]).pop().context("a configuration")?;
    config.populated()
}

/// An image with the damages of several cases.
fn damaged(codes: &[&str]) -> Result<(Image, Image)> {
    let populated = populated()?;
    let sound = populated.image.copy()?;
    let mut surgery = Surgery::new(&populated.image)?;
    for case in cases::all().filter(|case| case.config == EXT4 && codes.contains(&case.code)) {
        (case.damage)(&mut surgery)?;
    }
    Ok((sound, populated.image.copy()?))
}

#[test]
fn a_sound_image_is_not_written() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let (image, _) = damaged(&[]).expect("an image");
    let before = fs::read(image.path()).expect("readable");
    for scope in [Scope::Safe, Scope::Everything] {
        let result = repaired(image.path(), scope).expect("it can be checked");
        assert!(result.is_clean() && !result.is_changed && result.mended.is_empty());
        assert!(
            fs::read(image.path()).expect("readable") == before,
            "{scope:?}"
        );
    }
}

#[test]
fn without_being_asked_only_what_is_safe_is_done() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let populated = populated().expect("an image");
    let mut surgery = Surgery::new(&populated.image).expect("sound");
    let (mut done, mut refused) = (0, 0);
    let mut faults = Vec::new();
    // One in ten, from pass 0 to pass 5, unless all are wanted.
    let one_in = match std::env::var_os("FOURSCORE_REPAIR_CASES") {
        Some(_) => 1,
        None => 10,
    };
    let own = cases::all().filter(|case| case.config == EXT4);
    let some = own.step_by(one_in);
    for case in some {
        (case.damage)(&mut surgery).expect("it fits");
        let image = populated.image.copy().expect("space");
        let theirs = populated.image.copy().expect("space");
        surgery.undo().expect("undone");
        let before = fs::read(image.path()).expect("readable");
        let Ok(result) = repaired(image.path(), Scope::Safe) else {
            continue;
        };
        let is_same = fs::read(image.path()).expect("readable") == before;
        if result.left.is_empty() {
            done += 1;
            let asks = e2fsck_preen(theirs.path()).is_ok_and(|fsck| fsck.left_errors());
            if asks || !e2fsck(image.path()).is_ok_and(|fsck| fsck.is_clean()) {
                faults.push(format!("{}: e2fsck asks: {asks}", case.code));
            }
        } else {
            refused += 1;
            if !is_same || result.left.is_empty() || !result.mended.is_empty() {
                faults.push(format!("{}: refused and changed", case.code));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(done > 0 && refused > 2, "{done} done, {refused} refused");
}

/// Repairs a device with one thread.
fn repair_device(device: Arc<dyn BlockDevice>) -> Result<()> {
    let result = repair(device, &CheckOptions::default(), Scope::Everything)?;
    ensure!(result.left.is_empty(), "left: {:?}", result.left);
    Ok(())
}

/// Whether a file of the image, to which the damage has no relation, has its content.
fn has_content(device: Arc<dyn BlockDevice>, path: &str, content: &[u8]) -> Result<()> {
    let fs = fourscore::Fs::open(device, &fourscore::OpenOptions::new())?;
    let found = fs.paths().read(path)?;
    ensure!(found == content, "{path} changed");
    Ok(())
}

#[test]
fn a_repair_that_is_interrupted_can_be_repeated() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let (sound, image) = damaged(&TOGETHER).expect("an image");
    let before = fourscore::Fs::open(
        opened(sound.path()).expect("readable"),
        &fourscore::OpenOptions::new(),
    );
    let path = "files/five-mib";
    let content = before.expect("sound").paths().read(path).expect("a file");
    let recorder = Arc::new(RecordingDevice::new(
        opened(image.path()).expect("readable"),
    ));
    repair_device(Arc::<RecordingDevice>::clone(&recorder)).expect("it can be repaired");
    let cuts = recorder.cuts();
    assert!(cuts > 15, "only {cuts} writes and flushes");
    for cut in 0..=cuts {
        for seed in 0..3_u64 {
            let mut rng = Rng::new(mix(seed + 1000 * cut as u64));
            let state = recorder.crashed(cut, |_, _| match seed {
                0 => Survival::Kept,
                1 => Survival::Lost,
                _ if rng.happens(1, 2) => Survival::Kept,
                _ => Survival::Lost,
            });
            let state = Arc::new(state.expect("a state"));
            let again = || -> Result<()> {
                repair_device(Arc::<RamDevice>::clone(&state))?;
                let report = report_on(Arc::<RamDevice>::clone(&state), 1)?;
                ensure!(report.findings().is_empty(), "{:?}", report.findings());
                has_content(Arc::<RamDevice>::clone(&state), path, &content)
            };
            if let Err(error) = again() {
                panic!("cut {cut} of {cuts}, seed {seed}: {error:#}");
            }
            if seed == 2 && cut % 8 == 0 {
                let copy = written(&image, &state).expect("space");
                let theirs = e2fsck(copy.path()).expect("it runs");
                assert!(theirs.is_clean(), "cut {cut}: {}", theirs.output);
            }
        }
    }
}

/// A copy of an image with what was written to a device over it.
fn written(image: &Image, device: &RamDevice) -> Result<Image> {
    let copy = image.copy()?;
    let file = open_path(copy.path(), DeviceOptions::read_write())?;
    for range in device.written_ranges() {
        let mut bytes = vec![0; usize::try_from(range.end - range.start)?];
        device.read_at(&mut bytes, range.start)?;
        file.write_at(&bytes, range.start)?;
    }
    Ok(copy)
}

#[test]
fn an_undo_file_brings_back_what_was_there() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2undo"),
        Need::KernelMount
    );
    let (_, image) = damaged(&TOGETHER).expect("an image");
    let before = fs::read(image.path()).expect("readable");
    let folder = scratch::folder().expect("a folder");
    let file = folder.path().join("undo");
    let device = open_path(image.path(), DeviceOptions::read_write()).expect("writable");
    let undo = Arc::new(UndoDevice::create(&file, Arc::new(device), 0).expect("a new file"));
    repair_device(Arc::<UndoDevice>::clone(&undo)).expect("it can be repaired");
    undo.finish().expect("written");
    drop(undo);
    let mode = fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o077, 0, "others can read what is saved");
    let after = fs::read(image.path()).expect("readable");
    assert!(after != before, "nothing was repaired");
    let by_e2undo = image.copy().expect("space");
    let output = Command::new("e2undo")
        .arg(&file)
        .arg(by_e2undo.path())
        .output();
    let output = output.expect("e2undo runs");
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(
        fs::read(by_e2undo.path()).expect("readable") == before,
        "e2undo: {text}"
    );
    undone(&file, image.path()).expect("it can be undone");
    assert!(
        fs::read(image.path()).expect("readable") == before,
        "by this program"
    );
}

fn undone(file: &Path, image: &Path) -> Result<u64> {
    let device = open_path(image, DeviceOptions::read_write())?;
    Ok(apply_undo(file, Arc::new(device))?)
}

#[test]
fn a_lost_root_and_lost_and_found_are_made_anew() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let populated = populated().expect("an image");
    let mut surgery = Surgery::new(&populated.image).expect("sound");
    for field in ["i_mode", "i_links_count", "eh_entries"] {
        surgery
            .reserved(InodeNr::ROOT, field, |_| 0)
            .expect("a field");
    }
    let result = super::assert_repaired(populated.image.path()).expect("it can be repaired");
    let codes: Vec<&str> = result
        .mended
        .iter()
        .map(|finding| finding.invariant().code)
        .collect();
    assert!(
        codes.contains(&"no-root") && codes.contains(&"dir-lost"),
        "{codes:?}"
    );
}

#[test]
fn a_directory_that_the_superblock_calls_the_journal_is_kept() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let populated = populated().expect("an image");
    let before = paths(populated.image.path()).expect("it can be read");
    let directories = before.values();
    let directory = directories
        .filter(|object| object.file_type == FileType::Directory)
        .map(|object| object.inode)
        .find(|inode| inode.0 > 11)
        .expect("a directory");
    let mut surgery = Surgery::new(&populated.image).expect("sound");
    surgery
        .sb("s_journal_inum", |_| directory.0.into())
        .expect("a field");
    super::assert_repaired(populated.image.path()).expect("it can be repaired");
    compare(&before, populated.image.path(), &BTreeSet::new()).expect("nothing is lost");
}
