//! **Purpose.** Tests changes of the size of a file system (`fourscore_resize`): every crash state
//! of one has the old or the new size, or one on the way, all files, and no error.
//!
//! **Model.** The base is an image on a longer device, with poison behind its end. All writes of a
//! resize are recorded; a shrink discards what it frees behind the new end. A state is recovered by
//! us, and one of some by e2fsck and the kernel, which fills it with files before it is unmounted.
//! These are more often the states in which the kernel reads another geometry than the log has.
//!
//! A shrink changes the number of groups by no log, and leaves states that are marked as having
//! errors. Their only errors are blocks that are marked used and are not.
//!
//! A file system that grows while it is mounted gets files before and after that, each durable
//! before the next is made. A state has the first of them, and those after the growth only in a
//! file system of the new size.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroUsize;

use anyhow::{Context, Result, ensure};
use fourscore::{Fs, InodeNr};
use fourscore_block::{BlockDevice, RamDevice, RecordingDevice};
use fourscore_check::{CheckOptions, Finding, Scope, repair};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::superblock::{
    SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, State, Superblock,
};
use fourscore_ondisk::{BlockCount, RawSuperblock};
use fourscore_resize::{Resizer, grow_mounted};
use fourscore_sync::Arc;
use fourscore_testkit::explore::{CrashDisk, Failure, History};
use fourscore_testkit::oracle::{debugfs_write, e2fsck_repair};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch, tools};

use super::base::{BackgroundWork, POISON, mount_options};
use super::external::{self, Filled};
use super::injected::InjectedFault;
use super::outcomes::{self, Change, Seen};
use super::session::has_torn_commit;
use super::tree::{Facts, Tree};
use super::workload::Mode;
use crate::sound::check_clean_but_for;

/// Files that are removed before a file system shrinks.
const BALLAST: u32 = 120;
const MIB: usize = 1 << 20;

/// Files that a mounted file system gets before it grows, and in all.
const EXTRA_BEFORE: usize = 3;
const EXTRA: usize = 9;

/// 15 or 16 groups need one block of descriptors, and up to 31 two.
const MORE_DESCRIPTORS: &str = "-t ext4 -g 1024 -N 512 -J size=1";

/// How many states are given to e2fsck and to the kernel as well.
#[derive(Clone, Copy, Debug)]
pub(super) struct External {
    /// One of this many.
    every: u64,
    /// Those of a change with another geometry in the log, or with a mark of errors.
    windows: usize,
}

impl External {
    const OFTEN: Self = Self {
        every: 60,
        windows: 5,
    };
    /// For changes whose states differ for others only in what the log has.
    pub(super) const RARELY: Self = Self {
        every: 150,
        windows: 1,
    };
}

/// A file system and its change.
struct Case {
    mke2fs: &'static str,
    from: Blocks,
    to: Blocks,
}

/// A number of blocks.
type Blocks = u64;

/// What is found under each name; inode numbers may change.
pub(super) type Names = BTreeMap<Vec<u8>, (Facts, Option<Arc<[u8]>>)>;

pub(super) fn names(fs: &Fs) -> Result<Names> {
    let tree = Tree::found(fs, InodeNr::ROOT)?;
    let entries = tree.names.iter().map(|(path, &index)| {
        let entry = &tree.inodes[index];
        (path.clone(), (entry.facts.clone(), entry.content.clone()))
    });
    Ok(entries.collect())
}

pub(super) fn mounted(device: Arc<dyn BlockDevice>) -> Result<Arc<Fs>> {
    let options = mount_options(
        Mode::Ordered,
        BackgroundWork::None,
        InjectedFault::default(),
    );
    Ok(Fs::mount(device, &options)?)
}

impl Case {
    /// The image before the change, on a device that is long enough for both sizes.
    fn base(&self) -> Result<Vec<u8>> {
        let folder = scratch::folder()?;
        let source = folder.path().join("source");
        for dir in 0..12 {
            let dir = source.join(format!("directory-{dir}"));
            fs::create_dir_all(&dir)?;
            for file in 0..6_u8 {
                let bytes = vec![file + 1; usize::from(file) * 9_000];
                fs::write(dir.join(format!("file-{file}")), bytes)?;
                let _ =
                    std::os::unix::fs::symlink("x".repeat(90), dir.join(format!("link-{file}")));
            }
            fs::hard_link(dir.join("file-3"), dir.join("another"))?;
        }
        let ballast = source.join("ballast");
        fs::create_dir(&ballast)?;
        for file in 0..BALLAST {
            fs::write(ballast.join(file.to_string()), [7; 12_000])?;
        }
        let image = folder.path().join("image");
        let mut command = tools::command("mke2fs")?;
        command.args(["-q", "-F", "-b", "1024", "-d"]).arg(&source);
        command.args(self.mke2fs.split_whitespace());
        command.arg(&image).arg(self.from.to_string());
        tools::stdout_of(&mut command)?;
        if self.to < self.from {
            // What comes behind the ballast in the directory gets later blocks and inodes.
            let gone = (0..BALLAST).map(|file| format!("rm /ballast/{file}"));
            debugfs_write(&image, &gone.collect::<Vec<_>>())?;
            e2fsck_repair(&image, &[])?;
        }
        let mut bytes = fs::read(&image)?;
        let len = usize::try_from(self.from.max(self.to) << 10)?.next_multiple_of(MIB);
        bytes.resize(len, POISON);
        Ok(bytes)
    }

    /// Records a file system that grows while it is mounted.
    fn record_mounted(&self) -> Result<Recording> {
        let base = self.base()?;
        let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::from_bytes(&base));
        let before = names(&*mounted(Arc::new(RamDevice::from_bytes(&base)))?)?;
        let recording = Arc::new(RecordingDevice::new(device));
        let fs = mounted(Arc::clone(&recording) as Arc<dyn BlockDevice>)?;
        let add = |nth| {
            fs.paths().write(extra_name(nth), extra(nth))?;
            fs.sync()
        };
        (0..EXTRA_BEFORE).try_for_each(add)?;
        let new = grow_mounted(&fs, BlockCount(self.to))?;
        let done = recording.events().len();
        (EXTRA_BEFORE..EXTRA).try_for_each(add)?;
        fs.unmount()?;
        Ok(Recording {
            sizes: [BlockCount(self.from), new],
            done,
            history: History {
                base,
                events: recording.events(),
            },
            before,
            block_bytes: 1024,
            external: External::OFTEN,
            windows: Cell::new(0),
        })
    }

    fn record(&self) -> Result<Recording> {
        Recording::of(self.base()?, BlockCount(self.to), |resizer| {
            resizer.discard_behind();
        })
    }
}

/// The recorded writes of a change.
pub(super) struct Recording {
    /// Before and after.
    sizes: [BlockCount; 2],
    pub(super) history: History,
    done: usize,
    before: Names,
    block_bytes: u64,
    external: External,
    /// States in which a resize is half done, as the kernel sees it.
    windows: Cell<usize>,
}

impl Recording {
    /// Records a change of the size of a file system that is not mounted.
    pub(super) fn of(
        base: Vec<u8>,
        wish: BlockCount,
        choose: impl FnOnce(&mut Resizer),
    ) -> Result<Self> {
        let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::from_bytes(&base));
        let before = names(&*mounted(Arc::new(RamDevice::from_bytes(&base)))?)?;
        let recording = Arc::new(RecordingDevice::new(device));
        let mut resizer = Resizer::open(Arc::clone(&recording) as Arc<dyn BlockDevice>)?;
        choose(&mut resizer);
        let geometry = *resizer.geometry();
        let new = resizer.resize(wish)?;
        let events = recording.events();
        Ok(Self {
            sizes: [geometry.blocks(), new],
            done: events.len(),
            history: History { base, events },
            before,
            block_bytes: geometry.block_size().bytes() as u64,
            external: External::OFTEN,
            windows: Cell::new(0),
        })
    }

    pub(super) fn with(self, external: External) -> Self {
        Self { external, ..self }
    }

    /// Recovers every crash state, and counts what is found.
    pub(super) fn explore(&self, samples: usize) -> Result<Seen, Box<Failure>> {
        let change = Change {
            history: &self.history,
            done: self.done,
            external_every: self.external.every,
            seed: self.done as u64,
            samples,
            block_bytes: self.block_bytes,
        };
        outcomes::explore(&change, |disk, is_external| self.check(disk, is_external))
    }

    /// Recovers a state. Returns whether it has the new size.
    fn check(&self, disk: &Arc<CrashDisk>, is_external: bool) -> Result<bool> {
        let in_place = superblock_of(&**disk)?;
        if in_place.journal().is_none() {
            return self.check_repaired(disk);
        }
        let is_marked = in_place.state().contains(State::ERROR_FS);
        let crashed = (is_external || self.may_be_window(&in_place)).then(|| disk.bytes());
        let is_torn = crashed.is_some() && has_torn_commit(disk)?;
        let fs = mounted(disk.clone()).context("mount")?;
        let mut found = names(&fs)?;
        let extras = take_extras(&mut found)?;
        let blocks = fs.geometry().blocks();
        let groups = fs.geometry().groups();
        let ours = external::ours(&fs)?;
        fs.unmount().context("unmount")?;
        check_clean_but_for(disk.clone(), |finding| is_marked && is_lost_space(finding))?;
        let [old, new] = self.sizes;
        let is_between = old.min(new) <= blocks && blocks <= old.max(new);
        ensure!(is_between, "it has {} blocks", blocks.0);
        ensure!(
            extras <= EXTRA_BEFORE || blocks == new,
            "{extras} files in {} blocks",
            blocks.0
        );
        let is_replayed = groups != in_place.geometry().groups();
        ensure!(new > old || !is_replayed, "a replay takes groups away");
        ensure!(new < old || !is_marked, "growing leaves a mark of errors");
        let mut before = self.before.clone();
        if extras > 0 {
            // The root has got names.
            before.remove(&[][..]);
            found.remove(&[][..]);
        }
        ensure!(found == before, "files have changed");
        let is_window = is_replayed || is_marked;
        self.windows
            .set(self.windows.get() + usize::from(is_window && crashed.is_some()));
        if let Some(crashed) = crashed.filter(|_| is_external || is_window) {
            if !is_marked {
                external::ensure_sound(&disk.bytes())?;
            }
            // Of a torn commit block the kernel may believe the header, and has the new size.
            let expected = match is_replayed {
                true => Filled::Sound,
                false => Filled::Whole,
            };
            external::fill_by_kernel(&crashed, (!is_torn).then_some(&ours), expected)?;
        }
        Ok(blocks == self.sizes[1])
    }

    /// Repairs a state without a journal. Returns whether it has the new size.
    fn check_repaired(&self, disk: &Arc<CrashDisk>) -> Result<bool> {
        let options = CheckOptions {
            threads: NonZeroUsize::MIN,
            most_of_a_code: 5,
            journal: None,
        };
        let repaired = repair(disk.clone(), &options, Scope::Everything).context("repair")?;
        ensure!(repaired.is_clean(), "{:?} is left", repaired.left);
        let fs = mounted(disk.clone()).context("mount")?;
        let found = names(&fs)?;
        let blocks = fs.geometry().blocks();
        fs.unmount().context("unmount")?;
        check_clean_but_for(disk.clone(), |_| false)?;
        let mended: Vec<_> = repaired.mended.iter().map(ToString::to_string).collect();
        // It may have another name in `lost+found`.
        let contents = |names: &Names| -> BTreeSet<_> {
            names
                .values()
                .filter_map(|(_, content)| content.clone())
                .collect()
        };
        let (before, after) = (contents(&self.before), contents(&found));
        ensure!(before.is_subset(&after), "files are lost: {mended:#?}");
        Ok(blocks == self.sizes[1])
    }

    /// Whether a state may be one that is given to the kernel because of what it reads there.
    fn may_be_window(&self, in_place: &Superblock) -> bool {
        let has_log = in_place.features().incompat.contains(Incompat::RECOVER);
        let is_marked = in_place.state().contains(State::ERROR_FS);
        let is_left = self.windows.get() < self.external.windows;
        external::is_possible() && is_left && (has_log || is_marked)
    }
}

/// The superblock in its place, whatever the log has.
pub(super) fn superblock_of(disk: &dyn BlockDevice) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    disk.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    Superblock::try_from(RawSuperblock::from_bytes(&bytes)?).context("the superblock")
}

/// Whether a finding is one of blocks that nothing uses, and that are not free.
pub(super) fn is_lost_space(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::BlockNotUsed { .. } | Finding::GroupFreeBlocks { .. }
    )
}

fn extra_name(nth: usize) -> String {
    format!("/extra-{nth:02}")
}

fn extra(nth: usize) -> Vec<u8> {
    vec![u8::try_from(nth).unwrap_or(0) + 100; 60_000 + nth]
}

/// Takes out the files that were made while the file system was mounted. Returns their number.
fn take_extras(found: &mut Names) -> Result<usize> {
    let names = (0..EXTRA).map(|nth| found.remove(extra_name(nth).as_bytes()));
    let extras: Vec<_> = names.take_while(Option::is_some).flatten().collect();
    for (nth, (_, content)) in extras.iter().enumerate() {
        let (content, whole) = (content.as_deref().unwrap_or_default(), extra(nth));
        let is_last = nth + 1 == extras.len();
        ensure!(
            content == whole || is_last && whole.starts_with(content),
            "file {nth} has {} bytes that are not its own",
            content.len()
        );
    }
    Ok(extras.len())
}

fn case(mke2fs: &'static str, from: Blocks, to: Blocks) -> Case {
    Case { mke2fs, from, to }
}

/// Shapes of a few small groups that grow.
fn growing() -> Vec<Case> {
    let ext4 = "-t ext4 -g 2048 -N 512 -J size=1";
    vec![
        case(ext4, 8192, 9000),
        case(ext4, 8192, 15000),
        case("-t ext4 -g 1024 -N 512 -J size=1 -O ^flex_bg", 8000, 12000),
        case(
            "-t ext4 -g 1024 -N 512 -J size=1 -O ^metadata_csum,uninit_bg",
            8000,
            12000,
        ),
        case(
            "-t ext4 -g 256 -N 512 -J size=1 -O ^resize_inode",
            8000,
            16000,
        ),
        case("-t ext3 -g 1024 -N 512 -J size=1", 8000, 13000),
        // The number of descriptor blocks changes, and that of the groups with a backup does not.
        case(MORE_DESCRIPTORS, 15360, 17408),
    ]
}

/// Shapes that shrink: inodes, directories, attributes, tables and the journal have to move.
fn shrinking() -> Vec<Case> {
    vec![
        case("-t ext4 -g 2048 -N 1024 -J size=1", 16000, 7500),
        case("-t ext4 -g 1024 -N 1024 -J size=1 -O ^flex_bg", 14000, 8000),
        case(
            "-t ext4 -g 1024 -N 1024 -J size=1 -O ^metadata_csum,uninit_bg",
            14000,
            8000,
        ),
        case(
            "-t ext4 -g 1024 -N 1024 -J size=1 -O inline_data,^resize_inode",
            14000,
            8000,
        ),
        case("-t ext3 -g 1024 -N 1024 -J size=1", 16000, 11000),
        // Two blocks of descriptors become one, in a cluster.
        case(
            "-t ext4 -C 2048 -g 512 -N 1024 -J size=1 -O bigalloc",
            18000,
            11000,
        ),
    ]
}

#[test]
fn a_crash_while_it_grows_leaves_the_old_or_the_new_size() {
    explore_all(growing());
}

#[test]
fn a_crash_while_it_shrinks_leaves_the_old_or_the_new_size() {
    explore_all(shrinking());
}

#[test]
fn a_crash_while_a_mounted_one_grows_leaves_the_old_or_the_new_size() {
    let ext4 = "-t ext4 -g 2048 -N 512 -J size=1";
    let cases = vec![
        case(ext4, 8192, 9000),
        case(ext4, 8192, 15000),
        case(
            "-t ext4 -g 256 -N 512 -J size=1 -O ^resize_inode",
            8000,
            16000,
        ),
        case("-t ext3 -g 1024 -N 512 -J size=1", 8000, 13000),
        case(MORE_DESCRIPTORS, 15360, 17408),
    ];
    explore_recorded(cases, Case::record_mounted);
}

fn explore_all(cases: Vec<Case>) {
    explore_recorded(cases, Case::record);
}

fn explore_recorded(cases: Vec<Case>, record: fn(&Case) -> Result<Recording>) {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let mut total = Seen::default();
    for Case { mke2fs, from, to } in cases {
        let what = format!("{mke2fs}, {from} to {to}");
        let recording = record(&case(mke2fs, from, to));
        let recording = recording.unwrap_or_else(|why| panic!("{what}: {why:#}"));
        let seen = recording.explore(4);
        let seen = seen.unwrap_or_else(|why| panic!("{what}: {why}"));
        assert!(seen.none > 0 && seen.all > 0, "{what}: {seen:?}");
        total.add(&seen);
    }
    assert!(total.none > 100 && total.all > 100, "{total:?}");
    assert!(total.external > 10 || !external::is_possible(), "{total:?}");
}
