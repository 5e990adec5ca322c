//! **Purpose.** Tests the switching of features (`fourscore_check::convert`, and for `64bit`
//! `fourscore_resize`): a repair makes every crash state of one a file system without errors, with
//! all files.
//!
//! **Model.** All writes of a change are recorded. A state that is marked as clean must be clean,
//! and have all files, without a repair. Any other one must be so after ours, and one of some after
//! e2fsck's; both may put a file of a feature into lost+found. The state after the call has the
//! features that were wished; between, they are the old ones, the new ones, or those without
//! checksums.
//!
//! With `64bit` the kernel is asked as well, since it uses descriptors before anything repairs
//! them: it refuses a state, or it finds all names and damages nothing.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use fourscore_block::{BlockDevice, RamDevice, RecordingDevice};
use fourscore_check::{Change, CheckOptions, ConvertError, NewJournal, Scope, Switch, repair};
use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::features::FeatureSet;
use fourscore_ondisk::quota::QuotaKind;
use fourscore_ondisk::superblock::{
    SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, State, Superblock,
};
use fourscore_resize::{Resizer, Width};
use fourscore_sync::Arc;
use fourscore_testkit::explore::{CrashDisk, Failure, History};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{e2fsck, e2fsck_repair};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch, tools};
use uuid::Uuid;

use super::external;
use super::outcomes::{self, Seen};
use super::resize::{Names, mounted, names};
use crate::sound::check_clean;

/// One state of this many is given to e2fsck as well; of those that the kernel mounts, one of so
/// many to both.
const EXTERNAL_EVERY: u64 = 40;
const KERNEL_EVERY: u64 = 20;
/// States that are drawn of each cut; many, where a change is a few writes, and few, where the
/// kernel mounts them.
const SAMPLES: usize = 4;
const FEW_SAMPLES: usize = 2;
const MANY_SAMPLES: usize = 24;
const BLOCKS: &str = "8192";
const LOST_AND_FOUND: &[u8] = b"/lost+found";

/// A file system and its change.
struct Case {
    mke2fs: &'static str,
    blocks: &'static str,
    /// The size in blocks that it has first. Then resize2fs shrinks it, which leaves descriptors of
    /// groups that vanish where they are.
    shrunk_from: Option<&'static str>,
    what: What,
}

/// What is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Features(Vec<Change>),
    /// The length of descriptors (`64bit`).
    Width(Width),
}

impl What {
    fn make(&self, target: Arc<dyn BlockDevice>) -> Result<()> {
        match self {
            Self::Features(changes) => {
                let mut rest = |_: &dyn BlockDevice| Ok::<(), ConvertError<()>>(());
                let options = CheckOptions::default();
                let done = fourscore_check::convert(target, &options, changes, &mut rest);
                done.map_err(|why| anyhow!("{why:?}"))
            }
            Self::Width(width) => Ok(Resizer::open(target)?.set_width(*width)?),
        }
    }

    fn removes_indexes(&self) -> bool {
        matches!(self, Self::Features(changes) if changes.contains(&Change::RemoveDirIndex))
    }
}

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    features: FeatureSet,
    uuid: Uuid,
}

fn superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    Ok(Superblock::try_from(RawSuperblock::from_bytes(&bytes)?)?)
}

fn identity(device: &dyn BlockDevice) -> Result<Identity> {
    let sb = superblock(device)?;
    Ok(Identity {
        features: sb.features(),
        uuid: sb.uuid(),
    })
}

/// Directories, one of them with blocks that have no byte left, data, long links.
fn fill(source: &Path) -> Result<()> {
    for dir in 0..6 {
        let dir = source.join(format!("directory-{dir}"));
        fs::create_dir_all(&dir)?;
        for file in 0..6_u8 {
            let bytes = vec![file + 1; usize::from(file) * 9_000];
            fs::write(dir.join(format!("file-{file}")), bytes)?;
            std::os::unix::fs::symlink("x".repeat(90), dir.join(format!("link-{file}")))?;
        }
    }
    let full = source.join("full");
    fs::create_dir(&full)?;
    for file in 0..120 {
        fs::write(full.join(format!("name-{file:07}")), [])?;
    }
    Ok(())
}

/// Directories of two blocks or more, which get an index.
fn fill_indexed(source: &Path) -> Result<()> {
    for dir in 0..16 {
        let dir = source.join(format!("indexed-{dir}"));
        fs::create_dir_all(&dir)?;
        for file in 0..17 {
            fs::write(dir.join(format!("{file:0>90}")), [])?;
        }
    }
    Ok(())
}

impl Case {
    fn base(&self) -> Result<Vec<u8>> {
        let folder = scratch::folder()?;
        let source = folder.path().join("source");
        fill(&source)?;
        let is_indexed = self.what.removes_indexes();
        if is_indexed {
            fill_indexed(&source)?;
        }
        let image = folder.path().join("image");
        let mut command = tools::command("mke2fs")?;
        command.args([
            "-q", "-F", "-t", "ext4", "-b", "1024", "-g", "2048", "-N", "512",
        ]);
        command
            .args(self.mke2fs.split_whitespace())
            .arg("-d")
            .arg(&source);
        let blocks = self.shrunk_from.unwrap_or(self.blocks);
        tools::stdout_of(command.arg(&image).arg(blocks))?;
        // mke2fs does not count the files that it copies for their owners.
        // Nor does it build indexes.
        e2fsck_repair(&image, if is_indexed { &["-D"] } else { &[] })?;
        if self.shrunk_from.is_some() {
            let mut resize2fs = tools::command("resize2fs")?;
            tools::stdout_of(resize2fs.arg("-f").arg(&image).arg(self.blocks))?;
            e2fsck_repair(&image, &[])?;
        }
        Ok(fs::read(&image)?)
    }

    fn record(&self) -> Result<Recording> {
        let base = self.base()?;
        let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::from_bytes(&base));
        let before = names(&*mounted(Arc::new(RamDevice::from_bytes(&base)))?)?;
        let old = identity(&*device)?;
        let recording = Arc::new(RecordingDevice::new(Arc::clone(&device)));
        let target: Arc<dyn BlockDevice> = Arc::<RecordingDevice>::clone(&recording);
        self.what.make(target)?;
        let new = identity(&*recording)?;
        ensure!(old != new, "nothing has changed");
        let events = recording.events();
        Ok(Recording {
            new,
            done: events.len(),
            history: History { base, events },
            before,
            damaged: Cell::new(0),
            asks_kernel: matches!(self.what, What::Width(_)),
            refused: Cell::new(0),
        })
    }
}

/// The recorded writes of a change.
struct Recording {
    new: Identity,
    history: History,
    done: usize,
    before: Names,
    /// States in which the check finds errors before the repair.
    damaged: Cell<u64>,
    /// Whether the kernel mounts states that were not repaired.
    asks_kernel: bool,
    /// States that it refused.
    refused: Cell<u64>,
}

impl Recording {
    fn explore(&self, samples: usize) -> Result<Seen, Box<Failure>> {
        let change = outcomes::Change {
            history: &self.history,
            done: self.done,
            external_every: if self.asks_kernel {
                KERNEL_EVERY
            } else {
                EXTERNAL_EVERY
            },
            seed: self.done as u64,
            samples,
            block_bytes: 1024,
        };
        outcomes::explore(&change, |disk, is_external| self.check(disk, is_external))
    }

    /// Repairs a state. Returns whether it is that after the change.
    fn check(&self, disk: &Arc<CrashDisk>, is_external: bool) -> Result<bool> {
        let state = superblock(&**disk)?.state();
        let is_marked = state.contains(State::ERROR_FS) || !state.contains(State::VALID_FS);
        if is_external {
            self.check_e2fsck(&disk.bytes())?;
            if self.asks_kernel {
                self.check_kernel(&disk.bytes()).context("the kernel")?;
            }
        }
        if is_marked {
            let is_damaged = check_clean(disk.clone()).is_err();
            self.damaged.set(self.damaged.get() + u64::from(is_damaged));
            let options = CheckOptions::default();
            let repaired = repair(disk.clone(), &options, Scope::Everything).context("repair")?;
            let left: Vec<_> = repaired.left.iter().map(|(finding, _)| finding).collect();
            ensure!(repaired.is_clean(), "errors are left: {left:?}");
        }
        self.check_files(disk.clone(), is_marked)?;
        Ok(!is_marked && identity(&**disk)? == self.new)
    }

    fn check_files(&self, device: Arc<dyn BlockDevice>, is_repaired: bool) -> Result<()> {
        check_clean(Arc::clone(&device)).context("the state")?;
        let fs = mounted(device).context("mount")?;
        let found = names(&fs)?;
        fs.unmount().context("unmount")?;
        for (name, entry) in &self.before {
            let text = String::from_utf8_lossy(name);
            let now = found.get(name);
            ensure!(now.is_some(), "{text} is lost (repaired: {is_repaired})");
            // The repair may put something there.
            let may_differ = is_repaired && name == LOST_AND_FOUND;
            ensure!(may_differ || now == Some(entry), "{text} has changed");
        }
        // A file of a feature that came or went, and that has no name yet or no more.
        let is_new = |name: &&Vec<u8>| !self.before.contains_key(*name);
        let strange = |name: &&Vec<u8>| !is_repaired || !name.starts_with(LOST_AND_FOUND);
        let strange = found.keys().filter(is_new).find(strange);
        let strange = strange.map(|name| String::from_utf8_lossy(name));
        ensure!(strange.is_none(), "{strange:?} is new");
        Ok(())
    }

    fn check_e2fsck(&self, bytes: &[u8]) -> Result<()> {
        let folder = scratch::folder()?;
        let image = folder.path().join("image");
        fs::write(&image, bytes)?;
        e2fsck_repair(&image, &[])?;
        let after = e2fsck(&image)?;
        ensure!(after.is_clean(), "e2fsck is not content: {}", after.output);
        let repaired = RamDevice::from_bytes(&fs::read(&image)?);
        self.check_files(Arc::new(repaired), true)
            .context("after e2fsck")
    }

    /// Has the kernel mount a state for writing, and then e2fsck repair it.
    fn check_kernel(&self, bytes: &[u8]) -> Result<()> {
        let folder = scratch::folder()?;
        let image = folder.path().join("image");
        fs::write(&image, bytes)?;
        match KernelMount::new(&image, Access::ReadWrite, "") {
            Err(_) => self.refused.set(self.refused.get() + 1),
            Ok(mounted) => {
                for name in self.before.keys().filter(|name| !name.is_empty()) {
                    let path = mounted.path().join(OsStr::from_bytes(&name[1..]));
                    let found = fs::symlink_metadata(&path);
                    found.with_context(|| path.display().to_string())?;
                }
                // The only directory that may change.
                fs::write(mounted.path().join("lost+found/written"), [1; 5000])?;
                mounted.unmount()?;
            }
        }
        self.check_e2fsck(&fs::read(&image)?)
    }
}

fn case(mke2fs: &'static str, changes: &[Change]) -> Case {
    Case {
        mke2fs,
        blocks: BLOCKS,
        shrunk_from: None,
        what: What::Features(changes.to_vec()),
    }
}

fn width(mke2fs: &'static str, width: Width) -> Case {
    Case {
        mke2fs,
        blocks: BLOCKS,
        shrunk_from: None,
        what: What::Width(width),
    }
}

fn quota(switch: Switch) -> Vec<Change> {
    let kinds = [QuotaKind::User, QuotaKind::Group];
    kinds.map(|kind| Change::Quota { kind, switch }).to_vec()
}

const UUID: Change = Change::Uuid(Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef));
const JOURNAL: Change = Change::AddJournal(NewJournal {
    log_blocks: 1024,
    fast_commit_blocks: 0,
    goal: None,
});

#[test]
fn a_crash_while_checksums_are_switched_loses_nothing() {
    use Switch::{Off, On};
    let journal = "-J size=1 -O ^metadata_csum,uninit_bg";
    explore_all(&[
        case(journal, &[Change::MetadataCsum(On)]),
        case(
            "-O ^has_journal,^metadata_csum,^uninit_bg",
            &[Change::MetadataCsum(On)],
        ),
        case("-J size=1", &[Change::MetadataCsum(Off)]),
        case(
            "-J size=1",
            &[Change::MetadataCsum(Off), Change::UninitBg(Off)],
        ),
        case("-J size=1", &[UUID]),
    ]);
}

#[test]
fn a_crash_while_files_of_features_come_and_go_loses_nothing() {
    use Switch::{Off, On};
    explore_all(&[
        case("-O ^has_journal", &[JOURNAL]),
        case("-J size=1", &[Change::RemoveJournal]),
        case("-J size=1", &quota(On)),
        case("-J size=1 -O quota", &quota(Off)),
        case("-J size=1", &[Change::OrphanFile(On), Change::Mmp(On)]),
        case("-J size=1 -O orphan_file", &[Change::OrphanFile(Off)]),
        case("-J size=1", &[Change::RemoveResizeInode]),
    ]);
}

#[test]
fn a_crash_while_directories_lose_their_indexes_loses_nothing() {
    explore_each(
        MANY_SAMPLES,
        &[
            case("-J size=1", &[Change::RemoveDirIndex]),
            case("-O ^has_journal,^metadata_csum", &[Change::RemoveDirIndex]),
            case("-J size=1 -O ^extents,^64bit", &[Change::RemoveDirIndex]),
            case("-J size=1 -O inline_data", &[Change::RemoveDirIndex]),
        ],
    );
}

/// Tables of one block and of two; blocks that are reserved, or become free; a single group, and
/// one that is left of two.
#[test]
fn a_crash_while_descriptors_get_longer_or_shorter_loses_nothing() {
    use Width::{Narrow, Wide};
    explore_each(
        FEW_SAMPLES,
        &[
            width("-J size=1 -g 256 -E resize=65000 -O ^64bit", Wide),
            width("-J size=1 -g 256 -E resize=65000", Narrow),
            // Two blocks become three.
            Case {
                blocks: "9000",
                ..width(
                    "-g 256 -E resize=65000 -O ^has_journal,^metadata_csum,^uninit_bg,^64bit",
                    Wide,
                )
            },
            width(
                "-g 256 -O ^has_journal,^metadata_csum,^uninit_bg,^resize_inode",
                Narrow,
            ),
            width("-g 8192 -J size=1 -O ^64bit", Wide),
            // A descriptor of another group is where the high half of its own will be.
            Case {
                shrunk_from: Some("16384"),
                ..width("-g 8192 -J size=1 -O ^64bit", Wide)
            },
        ],
    );
}

fn explore_all(cases: &[Case]) {
    explore_each(SAMPLES, cases);
}

fn explore_each(samples: usize, cases: &[Case]) {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("resize2fs")
    );
    let mut total = Seen::default();
    let (mut damaged, mut refused) = (0, 0);
    for case in cases {
        let Case { mke2fs, what, .. } = case;
        let from = case
            .shrunk_from
            .map(|blocks| format!(", shrunk from {blocks}"));
        let what = format!("{mke2fs}{}: {what:?}", from.unwrap_or_default());
        let recording = case.record();
        let recording = recording.unwrap_or_else(|why| panic!("{what}: {why:#}"));
        let seen = recording.explore(samples);
        let seen = seen.unwrap_or_else(|why| panic!("{what}: {why}"));
        assert!(seen.none > 0 && seen.all > 0, "{what}: {seen:?}");
        total.add(&seen);
        damaged += recording.damaged.get();
        refused += recording.refused.get();
    }
    assert!(
        total.none > 100 && damaged > 20,
        "{total:?}, {damaged} damaged"
    );
    assert!(total.external > 5 || !external::is_possible(), "{total:?}");
    let asks_kernel = cases.iter().any(|case| matches!(case.what, What::Width(_)));
    assert!(
        refused > 2 || !asks_kernel || !external::is_possible(),
        "{refused} refused by the kernel"
    );
}
