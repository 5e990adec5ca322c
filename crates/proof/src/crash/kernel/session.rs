//! **Purpose.** A workload that the kernel's ext4 did and we recorded, and what may become of it.
//!
//! **Model.** As [`Session`](crate::crash::Session), of one thread. Each state is recovered by us;
//! of two in so many, one is given to the kernel and one to e2fsck as well, and what they make of
//! it is judged like ours, which e2fsck looks at then, too. As the log is the same, so is the
//! version.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fourscore::block::{Event, RamDevice, RecordingDevice};
use fourscore::{Arc, Fs, InodeNr, OpenOptions};
use fourscore_testkit::explore::rng::mix;
use fourscore_testkit::explore::{self, CrashDisk, Effort, Failure, History};
use serde::{Deserialize, Serialize};

use super::stage::Stage;
use crate::crash::base::{Base, Company, mount_options, tree_name};
use crate::crash::breaking::Breaking;
use crate::crash::judge::{Contents, Known, judge_with};
use crate::crash::notes::Note;
use crate::crash::outside::{self, Recovered};
use crate::crash::session::{SUPERBLOCK, has_torn_commit, shortest};
use crate::crash::timeline::{By, Course, DurableContents, Flushed, Timeline};
use crate::crash::told::{Lately, Told};
use crate::crash::workload::{LogWish, Mode, Room, Workload};
use crate::model::{Expected, HostPair};
use crate::sound::check_clean;

/// One of so many states is given to the kernel, and one to e2fsck.
const OUTSIDE_EVERY: u64 = 40;

/// How a commit block of the journal begins: its magic number, and of which type it is.
const COMMIT_BLOCK: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];
/// Of so many opinions of others at least...
const MANY_OPINIONS: u64 = 100;
/// Or of so many states, which those of one history are not...
const MANY_STATES: u64 = 5_000;
/// ... one in so many may be forgiven: more would not be the faults that are told of.
const FORGIVEN_ONE_IN: u64 = 3;

/// A recorded history of the kernel.
#[derive(Debug)]
pub struct KernelSession {
    beside: Beside,
    history: History,
    /// Of the only thread.
    timelines: [Timeline; 1],
}

/// What is saved beside a history.
#[derive(Debug, Serialize, Deserialize)]
struct Beside {
    workload: Workload,
    /// Steps that found no room.
    refused: Vec<usize>,
    /// Whose ext4 it was.
    kernel: String,
    /// How many of its commits were fast ones.
    fast_commits: u64,
}

/// What was seen in the states of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelSeen {
    /// Crash states.
    pub states: u64,
    /// States in which what was set of a directory is missing, as docs/FINDINGS.md tells.
    pub unset: u64,
    /// States whose tree was older than the newest that may have been found.
    pub older: u64,
    /// Fast commits in the histories.
    pub fast_commits: u64,
    /// States that the kernel recovered.
    pub by_kernel: u64,
    /// States that the kernel or e2fsck got wrong as docs/FINDINGS.md tells.
    pub told_of: u64,
    /// States that e2fsck recovered.
    pub by_e2fsck: u64,
    /// States with the same bytes as one that was looked at with the same knowledge.
    pub known: u64,
}

impl KernelSeen {
    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.unset += other.unset;
        self.older += other.older;
        self.fast_commits += other.fast_commits;
        self.by_kernel += other.by_kernel;
        self.told_of += other.told_of;
        self.by_e2fsck += other.by_e2fsck;
        self.known += other.known;
    }

    /// Fails if so much is forgiven that the opinions of others prove little.
    ///
    /// # Errors
    /// As said.
    pub fn ensure_little_is_forgiven(&self) -> Result<()> {
        let opinions = self.by_kernel + self.by_e2fsck;
        ensure!(
            opinions < MANY_OPINIONS || self.told_of * FORGIVEN_ONE_IN <= opinions,
            "of {opinions} opinions of others {} are faults that are told of",
            self.told_of
        );
        ensure!(
            self.states < MANY_STATES || self.unset * FORGIVEN_ONE_IN <= self.states,
            "in {} of {} states what was set of a directory is missing",
            self.unset,
            self.states
        );
        Ok(())
    }
}

/// Who recovers a state beside us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    Kernel,
    E2fsck,
}

/// What is wrong with what was recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// What is told of elsewhere.
    Known,
}

/// What was found in a state.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    version: usize,
    /// Of Linux's log, which lacks what was set of directories.
    log: Fault,
    /// Of what another made of it.
    other: Fault,
}

/// What is known at a cut.
#[derive(Clone, Debug, Default)]
struct Durable {
    /// How many notes came before it.
    notes: usize,
    tree: Known,
    /// The version before the call in which the last commit of the usual kind was made.
    usual: usize,
    contents: DurableContents,
}

/// The options of the kernel's mount.
fn options(mode: Mode) -> String {
    let data = match mode {
        Mode::Journal => "journal",
        _ => "ordered",
    };
    format!("nodelalloc,noatime,noinit_itable,commit=300,data={data}")
}

/// A file system that is only read.
fn opened(bytes: &[u8]) -> Result<Arc<Fs>> {
    let device = Arc::new(RamDevice::from_bytes(bytes));
    Ok(Fs::open(device, &OpenOptions::new().cache_bytes(1 << 20))?)
}

/// The release of the running kernel.
fn kernel_release() -> String {
    let release = rustix::system::uname().release().to_bytes().to_vec();
    String::from_utf8_lossy(&release).into_owned()
}

impl KernelSession {
    /// Has the kernel do a workload and records it.
    ///
    /// # Errors
    /// A call has another result than the model says; something on the way to the kernel fails.
    pub fn record(workload: Workload) -> Result<Self> {
        let base = Base::of(workload.shape)?;
        let device = Arc::new(RecordingDevice::new(base.disk()));
        let mut stage = Stage::new(Arc::clone(&device), &options(workload.mode))?;
        if let Room::Blocks(_) = workload.shape.room {
            stage.without_reserve()?;
        }
        let has_fast_commits = workload.shape.log == LogWish::FastCommit;
        if has_fast_commits {
            stage.warm_up()?;
        }
        let tree = String::from_utf8(tree_name(0))?;
        let mut pair = HostPair::new(stage.root()?.join(tree), base.models[0].clone());
        let mut course = Course::of(By::Host);
        let mut refused = Vec::new();
        for (at, &step) in workload.threads[0].iter().enumerate() {
            let note = |note: fn(usize) -> Note| device.note(note(at).number());
            note(|step| Note::Begins { thread: 0, step });
            if let Some(call) = course.call(step, &pair.model) {
                let before = pair.model.clone();
                match pair.call(&call).with_context(|| format!("step {at}"))? {
                    Some(Expected::Done(_)) => course.done(&call, (&before, &pair.model), at + 1),
                    Some(Expected::Refused(_)) => {}
                    None => refused.push(at),
                }
            }
            note(|step| Note::Ends { thread: 0, step });
        }
        // What is open keeps the mount.
        drop(pair);
        let fast_commits = match has_fast_commits {
            true => stage.fast_commits()?,
            false => 0,
        };
        stage.unmount()?;
        device.note(Note::Unmounted.number());
        stage.end()?;
        let history = History {
            base: base.bytes.clone(),
            events: device.events(),
        };
        let kernel = kernel_release();
        let beside = Beside {
            workload,
            refused,
            kernel,
            fast_commits,
        };
        Self::with(beside, history)
    }

    fn with(beside: Beside, history: History) -> Result<Self> {
        let base = Base::of(beside.workload.shape)?;
        let steps = beside.workload.threads.first().context("no thread")?;
        let model = base.models[0].clone();
        let timelines = [Timeline::by(By::Host, model, steps, &beside.refused)];
        Ok(Self {
            beside,
            history,
            timelines,
        })
    }

    /// What was done.
    #[must_use]
    pub fn workload(&self) -> &Workload {
        &self.beside.workload
    }

    /// The release of the kernel that did it.
    #[must_use]
    pub fn kernel(&self) -> &str {
        &self.beside.kernel
    }

    /// The calls that the steps came to, for people.
    #[must_use]
    pub fn calls(&self) -> &[String] {
        let [timeline] = &self.timelines;
        &timeline.calls
    }

    /// What was recorded.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.history.events
    }

    /// What was recorded, for who changes it.
    #[cfg(test)]
    pub(super) fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// Writes the session to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.history.save(path, &serde_json::to_vec(&self.beside)?)
    }

    /// Reads what [`KernelSession::save`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, or is not one.
    pub fn load(path: &Path) -> Result<Self> {
        let (history, beside) = History::load(path)?;
        Self::with(serde_json::from_slice(&beside)?, history)
    }

    /// What is known behind the first `cut` events.
    fn durable(&self, cut: usize) -> Durable {
        let mut known = Durable::default();
        // Commits of the usual kind that are not durable: which events, and during which call.
        let mut commits = Vec::new();
        for (at, event) in self.history.events[..cut].iter().enumerate() {
            let number = match event {
                Event::Note(number) => *number,
                Event::Flush { covers } => {
                    commits.retain(|&(at, usual)| {
                        let is_durable = at < *covers;
                        if is_durable {
                            known.usual = usual;
                        }
                        !is_durable
                    });
                    continue;
                }
                Event::Write { bytes, .. } => {
                    if self.has_commit_block(bytes) {
                        commits.push((at, known.tree.begun.saturating_sub(1)));
                    }
                    continue;
                }
                Event::WriteZeroes(_) | Event::Discard(_) => continue,
            };
            known.notes += 1;
            match Note::of(number) {
                Note::Begins { step, .. } => known.tree.begun = step + 1,
                Note::Ends { step, .. } => {
                    let [timeline] = &self.timelines;
                    known.tree.vouched = known.tree.vouched.max(timeline.vouches[step]);
                    known.contents.note(timeline.flushes[step], step + 1);
                }
                Note::Unmounted => {
                    known.tree.vouched = known.tree.begun;
                    known.contents.note(Flushed::Everything, known.tree.begun);
                }
            }
        }
        known
    }

    /// What was done lately behind the first `cut` events.
    #[cfg(test)]
    pub(super) fn lately_at(&self, cut: usize) -> Lately {
        self.lately(&self.durable(cut))
    }

    /// Whether one of the blocks that are written is the commit block of a usual commit.
    fn has_commit_block(&self, bytes: &[u8]) -> bool {
        let mut blocks = bytes.chunks(self.workload().shape.block_bytes as usize);
        blocks.any(|block| block.starts_with(&COMMIT_BLOCK))
    }

    /// Recovers and checks every state, or only that with the number `only`.
    ///
    /// # Errors
    /// The first state that is not good.
    pub fn explore(&self, samples: usize, only: Option<u64>) -> Result<KernelSeen, Box<Failure>> {
        let workload = self.workload();
        let effort = Effort {
            seed: mix(workload.seed),
            samples,
            block_bytes: workload.shape.block_bytes.into(),
            only,
            whole: Some(SUPERBLOCK),
        };
        let mut seen = KernelSeen {
            fast_commits: self.beside.fast_commits,
            ..KernelSeen::default()
        };
        let mut known = (usize::MAX, Durable::default());
        let mut looked_at = HashSet::new();
        seen.states = explore::explore(&self.history, effort, |crash, disk| {
            if known.0 != crash.cut {
                known = (crash.cut, self.durable(crash.cut));
            }
            let other = match (workload.seed + crash.number) % OUTSIDE_EVERY {
                0 => Some(Other::Kernel),
                nr if nr == OUTSIDE_EVERY / 2 => Some(Other::E2fsck),
                _ => None,
            };
            if !looked_at.insert((disk.fingerprint(), known.1.notes)) && other.is_none() {
                seen.known += 1;
                return Ok(());
            }
            let verdict = self.check(disk, &known.1, other)?;
            seen.told_of += u64::from(verdict.other == Fault::Known);
            seen.unset += u64::from(verdict.log == Fault::Known);
            seen.older += u64::from(verdict.version < known.1.tree.begun);
            seen.by_kernel += u64::from(other == Some(Other::Kernel));
            seen.by_e2fsck += u64::from(other == Some(Other::E2fsck));
            Ok(())
        })?;
        Ok(seen)
    }

    /// The version that a recovered file system is of, and whether what was set of a directory
    /// since the last commit of the usual kind is missing, as fast ones do not have it.
    fn judge(&self, fs: &Fs, known: &Durable) -> Result<(usize, Fault)> {
        match self.judge_as(fs, known, None) {
            Ok(version) => Ok((version, Fault::None)),
            Err(error) if !self.has_fast_commits() => Err(error),
            Err(error) => match self.judge_as(fs, known, Some(known.usual)) {
                Ok(version) => Ok((version, Fault::Known)),
                Err(_) => Err(error),
            },
        }
    }

    fn judge_as(&self, fs: &Fs, known: &Durable, unset_since: Option<usize>) -> Result<usize> {
        let mode = self.workload().mode;
        let versions = |_, id, version: usize| {
            let durable = known.contents.of(id);
            match mode {
                Mode::Journal => version.max(durable)..=version.max(durable),
                _ => durable..=known.tree.begun,
            }
        };
        let contents = Contents {
            versions: &versions,
            block_bytes: self.workload().shape.block_bytes as usize,
            unset_since,
        };
        let found = judge_with(fs, &self.timelines, &[known.tree], &contents)?;
        found.first().copied().context("no thread")
    }

    fn has_fast_commits(&self) -> bool {
        self.workload().shape.log == LogWish::FastCommit
    }

    /// Checks one state; others may find it otherwise for a reason that is known.
    fn check(
        &self,
        disk: &Arc<CrashDisk>,
        known: &Durable,
        other: Option<Other>,
    ) -> Result<Verdict> {
        let crashed = other.map(|other| (other, disk.bytes()));
        let is_torn = other.is_some() && has_torn_commit(disk)?;
        let ours = mount_options(self.workload().mode, Company::None, Breaking::default());
        let fs = Fs::mount(disk.clone(), &ours).context("mount")?;
        let (version, log) = self.judge(&fs, known).context("what we made of it")?;
        fs.unmount().context("unmount")?;
        check_clean(disk.clone())?;
        let other = match crashed {
            Some((other, crashed)) => {
                let ours = (&*disk.bytes(), version, is_torn);
                self.ask(other, &crashed, known, ours)?
            }
            None => Fault::None,
        };
        Ok(Verdict {
            version,
            log,
            other,
        })
    }

    /// Has another recover a state of which we made `ours`, and the version that it is of, which
    /// must be the same unless a commit block is torn.
    fn ask(
        &self,
        other: Other,
        crashed: &[u8],
        known: &Durable,
        (ours, version, is_torn): (&[u8], usize, bool),
    ) -> Result<Fault> {
        outside::ensure_sound(ours).context("what we made of it")?;
        let (recovered, whose) = match other {
            Other::Kernel => (
                outside::recovered_by_kernel(crashed)?,
                "what the kernel made of it",
            ),
            Other::E2fsck => (
                outside::recovered_by_e2fsck(crashed)?,
                "what e2fsck made of it",
            ),
        };
        let theirs = match recovered {
            Recovered::Whole(theirs) => theirs,
            Recovered::Told(faults, said) => {
                let is_told_of = self.may_be(&faults, known, ours)?;
                ensure!(is_told_of, "{whose}: {faults:?}: {said}");
                return Ok(Fault::Known);
            }
            Recovered::Unsound(said) => bail!("{whose}: {said}"),
        };
        let fs = opened(&theirs).context(whose)?;
        let (theirs, _) = self.judge(&fs, known).context(whose)?;
        ensure!(
            is_torn || theirs == version,
            "{whose} is version {theirs}, and ours is {version}"
        );
        Ok(Fault::None)
    }

    /// What was done since the last commit of the usual kind: fast ones are in the log until one
    /// has followed.
    fn lately(&self, known: &Durable) -> Lately {
        let [timeline] = &self.timelines;
        match self.has_fast_commits() {
            true => timeline.lately(known.usual..=known.tree.begun),
            false => Lately::default(),
        }
    }

    /// Whether these may be the faults that docs/FINDINGS.md tells of, where we made `ours`.
    fn may_be(&self, faults: &BTreeSet<Told>, known: &Durable, ours: &[u8]) -> Result<bool> {
        let fs = opened(ours)?;
        let sectors = |inode| Some(fs.stat(InodeNr(inode)).ok()?.sectors);
        Ok(self.lately(known).may_lead_to(faults, sectors))
    }

    /// Leaves out steps of a workload whose states are not all good, as long as one of them is not.
    ///
    /// # Errors
    /// If there is nothing to be found in the workload itself.
    pub fn shorten(workload: &Workload, samples: usize) -> Result<(Self, Box<Failure>)> {
        shortest(workload, |shorter| {
            let session = Self::record(shorter).ok()?;
            let failure = session.explore(samples, None).err()?;
            Some((session, failure))
        })
    }
}
