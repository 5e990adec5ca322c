//! **Purpose.** Tests shrinks in which much has to move: every crash state has all files, with
//! their content, also where old places were discarded.
//!
//! **Model.** The base is a file system of the smaller size that was filled, then grew, and got its
//! files; then what had filled it was removed. So all lies behind the new end: inodes, directories,
//! data, targets of symbolic links, and blocks of attributes that several files share. Where an
//! inode takes a whole block of its table, a step of a small journal has only a part of them.
//!
//! A device that fails at some moment leaves all files as well. And a test of the test: faults in
//! the order of copies, commits and discards are found.

use anyhow::{Context, Result, ensure};
use fourscore::{Error, Fs, InodeNr, SetXattr};
use fourscore_block::{BlockDevice, DeviceOp, Event, FaultyDevice, RamDevice, Rule};
use fourscore_ondisk::BlockCount;
use fourscore_ondisk::superblock::State;
use fourscore_resize::Resizer;
use fourscore_sync::Arc;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch, tools};

use super::base::POISON;
use super::outcomes::Seen;
use super::resize::{External, Names, Recording, is_lost_space, mounted, names, superblock_of};
use crate::sound::check_clean_but_for;

/// Directories that are made.
const DIRS: usize = 24;
/// The value of an attribute that has no space in an inode.
const VALUE: [u8; 700] = [0x61; 700];

/// A file system, and the number of blocks to which it shrinks.
struct Case {
    mke2fs: &'static str,
    block_bytes: u64,
    from: u64,
    to: u64,
    /// Files in each directory.
    files: usize,
    /// The bytes of another file in the first one. From a mebibyte on other threads copy as well.
    large_bytes: usize,
    /// The steps that free something behind the end.
    least_steps: usize,
}

/// Bytes that are found nowhere else.
fn content(dir: usize, file: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (nth, chunk) in bytes.chunks_mut(16).enumerate() {
        let text = format!("{dir:03} {file:03} {nth:07}\n");
        chunk.copy_from_slice(&text.as_bytes()[..chunk.len()]);
    }
    bytes
}

impl Case {
    /// The image before the change.
    fn base(&self) -> Result<Vec<u8>> {
        let folder = scratch::folder()?;
        let image = folder.path().join("image");
        let mut command = tools::command("mke2fs")?;
        command.args(["-q", "-F", "-b"]);
        command.arg(self.block_bytes.to_string());
        command.args(self.mke2fs.split_whitespace());
        command.arg(&image).arg(self.to.to_string());
        tools::stdout_of(&mut command)?;
        let mut bytes = std::fs::read(&image)?;
        bytes.resize(usize::try_from(self.from * self.block_bytes)?, POISON);
        let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::from_bytes(&bytes));
        let fs = mounted(Arc::clone(&device))?;
        use_up(&fs, usize::try_from(self.block_bytes)?)?;
        fs.unmount()?;
        Resizer::open(Arc::clone(&device))?.resize(BlockCount(self.from))?;
        let fs = mounted(Arc::clone(&device))?;
        for dir in 0..DIRS {
            self.fill_directory(&fs, dir)?;
        }
        let large = content(DIRS, 0, self.large_bytes);
        fs.paths().write("/directory-0/large", large)?;
        fs.sync()?;
        fs.paths().remove_dir_all("/ballast")?;
        fs.unmount()?;
        device.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn fill_directory(&self, fs: &Arc<Fs>, dir: usize) -> Result<()> {
        let paths = fs.paths();
        let path = &format!("/directory-{dir}");
        paths.create_dir(path)?;
        for file in 0..self.files {
            let name = format!("{path}/file-{file}");
            paths.write(&name, content(dir, file, file * 900 + 100))?;
            if file == 1 {
                let inode: InodeNr = paths.metadata(&name)?.inode;
                fs.set_xattr(inode, b"user.value", &VALUE, SetXattr::Any)?;
            }
            if file == 2 && self.mke2fs.contains("ea_inode") {
                let inode: InodeNr = paths.metadata(&name)?.inode;
                let value = content(dir / 4, 99, 3000);
                fs.set_xattr(inode, b"user.other", &value, SetXattr::Any)?;
            }
        }
        paths.create_dir(format!("{path}/inner"))?;
        paths.hard_link(format!("{path}/file-0"), format!("{path}/inner/another"))?;
        let target = format!("{dir:03}").repeat(60);
        Ok(paths.symlink(target, format!("{path}/link"))?)
    }

    fn record(&self, choose: impl FnOnce(&mut Resizer)) -> Result<Recording> {
        let recording = Recording::of(self.base()?, BlockCount(self.to), |resizer| {
            resizer.discard_behind();
            choose(resizer);
        })?;
        Ok(recording.with(External::RARELY))
    }
}

/// Takes all free inodes and all free blocks, for files in a directory.
fn use_up(fs: &Arc<Fs>, block_bytes: usize) -> Result<()> {
    let paths = fs.paths();
    paths.create_dir("/ballast")?;
    paths.write("/ballast/data", [])?;
    let data = paths.metadata("/ballast/data")?.inode;
    let create = |nth| paths.write(format!("/ballast/{nth}"), []);
    let full = (0..10_000).map(create).find_map(Result::err);
    ensure!(matches!(full, Some(Error::NoSpace)), "inodes: {full:?}");
    for bytes in [64 << 10, block_bytes] {
        let append = |_| fs.append(data, &vec![7; bytes]).map(drop);
        let full = (0..10_000).map(append).find_map(Result::err);
        ensure!(matches!(full, Some(Error::NoSpace)), "blocks: {full:?}");
    }
    Ok(())
}

/// Cases with a journal, in which each step is a transaction.
fn cases() -> Vec<Case> {
    vec![
        // An inode takes a block of its table.
        Case {
            mke2fs: "-t ext4 -g 1024 -I 1024 -N 384 -J size=1 -O ^flex_bg,^resize_inode",
            block_bytes: 1024,
            from: 12_000,
            to: 6_000,
            files: 5,
            large_bytes: 30_000,
            least_steps: 5,
        },
        // No checksums, and maps of pointers.
        Case {
            mke2fs: "-t ext3 -g 1024 -I 512 -N 256 -J size=1 -O ^resize_inode",
            block_bytes: 1024,
            from: 12_000,
            to: 6_000,
            files: 3,
            large_bytes: 400_000,
            least_steps: 1,
        },
        // Directories inside their inodes, and attributes whose values are inodes.
        Case {
            mke2fs: "-t ext4 -g 1024 -I 1024 -N 384 -J size=1 -O ^flex_bg,inline_data,ea_inode",
            block_bytes: 1024,
            from: 12_000,
            to: 6_000,
            files: 3,
            large_bytes: 30_000,
            least_steps: 1,
        },
        // Other threads copy as well.
        Case {
            mke2fs: "-t ext4 -g 512 -G 2 -I 1024 -N 256 -J size=4",
            block_bytes: 4096,
            from: 4_600,
            to: 2_300,
            files: 3,
            large_bytes: 1_200_000,
            least_steps: 3,
        },
    ]
}

/// Without a journal steps are made in place, and a state has to be repaired.
fn in_place() -> Vec<Case> {
    vec![Case {
        mke2fs: "-t ext4 -g 1024 -I 256 -N 512 -O ^has_journal,^flex_bg,^resize_inode",
        block_bytes: 1024,
        from: 12_000,
        to: 6_000,
        files: 3,
        large_bytes: 30_000,
        least_steps: 2,
    }]
}

/// The bytes that were discarded, and in how many steps.
fn discarded(recording: &Recording) -> (u64, usize) {
    let (mut bytes, mut steps, mut is_new) = (0, 0, true);
    for event in &recording.history.events {
        match event {
            Event::Discard(range) => {
                bytes += range.end - range.start;
                steps += usize::from(std::mem::take(&mut is_new));
            }
            Event::Flush { .. } => is_new = true,
            _ => {}
        }
    }
    (bytes, steps)
}

/// Explores the states of a case.
fn explore(case: &Case, samples: usize) -> Seen {
    let what = case.mke2fs;
    let recording = case.record(|_| ());
    let recording = recording.unwrap_or_else(|why| panic!("{what}: {why:#}"));
    let (bytes, steps) = discarded(&recording);
    let has_moved = bytes > 100_000 && steps >= case.least_steps;
    assert!(has_moved, "{what}: {bytes} bytes in {steps} steps");
    let seen = recording.explore(samples);
    let seen = seen.unwrap_or_else(|why| panic!("{what}: {why}"));
    assert!(seen.none > 0 && seen.all > 0, "{what}: {seen:?}");
    seen
}

#[test]
fn a_crash_while_much_moves_leaves_all_files() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let mut total = Seen::default();
    for case in cases() {
        total.add(&explore(&case, 2));
    }
    assert!(total.none > 400 && total.all > 100, "{total:?}");
}

#[test]
fn a_crash_while_much_moves_in_place_loses_no_file() {
    require!(Need::Program("mke2fs"));
    for case in in_place() {
        let seen = explore(&case, 8);
        assert!(seen.none > 60, "{seen:?}");
    }
}

/// The files are there after each error of the device, also of one in a copy by another thread.
#[test]
fn a_device_that_fails_leaves_all_files() {
    require!(Need::Program("mke2fs"));
    let case = cases().pop().expect("the last one");
    let base: Arc<dyn BlockDevice> = Arc::new(RamDevice::from_bytes(&case.base().unwrap()));
    let before = names(&mounted(Arc::new(RamDevice::over(Arc::clone(&base)))).unwrap()).unwrap();
    for (op, step) in [
        (DeviceOp::Write, 29),
        (DeviceOp::Flush, 2),
        (DeviceOp::Read, 61),
    ] {
        let mut struck = 0;
        for nth in (1..).step_by(step) {
            let memory = Arc::new(RamDevice::over(Arc::clone(&base)));
            let device = Arc::new(FaultyDevice::new(memory));
            let mut resizer = Resizer::open(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
            resizer.discard_behind();
            device.add(Rule::nth(op, nth));
            let done = resizer.resize(BlockCount(case.to));
            drop(resizer);
            assert_eq!(done.is_err(), device.has_struck(), "{op:?} {nth}: {done:?}");
            if done.is_ok() {
                break;
            }
            struck += 1;
            device.heal();
            let is_same = files_are(&before, device);
            is_same.unwrap_or_else(|why| panic!("{op:?} {nth}: {why:#}"));
        }
        assert!(struck > 8, "{op:?}: {struck} times");
    }
}

/// Recovers what a failed change has left, which must have the files of `before`.
fn files_are(before: &Names, device: Arc<dyn BlockDevice>) -> Result<()> {
    let is_marked = superblock_of(&*device)?.state().contains(State::ERROR_FS);
    let fs = mounted(Arc::clone(&device)).context("mount")?;
    let found = names(&fs)?;
    fs.unmount().context("unmount")?;
    ensure!(found == *before, "files have changed");
    check_clean_but_for(device, |finding| is_marked && is_lost_space(finding))?;
    Ok(())
}

/// Old places that are discarded before the step that frees them, and steps that are durable before
/// their data is copied.
#[cfg(feature = "sabotage")]
#[test]
fn an_early_discard_and_a_late_copy_are_noticed() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    use fourscore_resize::Sabotage::{EarlyDiscard, LateCopies};
    for case in cases() {
        for fault in [EarlyDiscard, LateCopies] {
            let recording = case
                .record(|resizer| resizer.sabotage(Some(fault)))
                .unwrap();
            let is_noticed = recording.explore(2).is_err();
            assert!(is_noticed, "{}: {fault:?} is not noticed", case.mke2fs);
        }
    }
}
