//! **Purpose.** A recorded workload of the kernel's ext4: recovers and checks every crash state of
//! it.
//!
//! **Model.** As [`Session`](crate::crash::Session), with one thread. We recover each state. Some
//! states are also recovered by the kernel, and some by e2fsck. e2fsck then checks all results, and
//! they are judged like ours. Since all recover the same log, they must find the same version.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fourscore::{Fs, InodeNr};
use fourscore_block::{Event, RecordingDevice};
use fourscore_sync::Arc;
use fourscore_testkit::explore::rng::mix;
use fourscore_testkit::explore::{self, CrashDisk, Effort, Failure, History};
use serde::{Deserialize, Serialize};

use super::stage::Stage;
use crate::crash::base::{BackgroundWork, Base, mount_options, tree_name};
use crate::crash::external::{self, Recovered};
use crate::crash::injected::InjectedFault;
use crate::crash::judge::{Contents, Progress, judge_with};
use crate::crash::known_bugs::{KnownBug, SinceCommit};
use crate::crash::notes::Note;
use crate::crash::session::{SUPERBLOCK, has_torn_commit, shortest};
use crate::crash::timeline::{DurableContents, Executor, Flushed, ThreadState, Timeline};
use crate::crash::workload::{FreeSpace, LogKind, Mode, Workload};
use crate::model::{Expected, HostPair};
use crate::sound::check_clean;

/// Of this many states, the kernel recovers one, and e2fsck another.
const EXTERNAL_EVERY: u64 = 40;

/// The beginning of a commit block of the journal: magic number and block type.
const COMMIT_BLOCK: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];
/// The least number of recoveries by others for the limit on known bugs.
const MANY_RECOVERIES: u64 = 100;
/// The least number of states for that limit: more than one history has.
const MANY_STATES: u64 = 5_000;
/// At most one of this many results may be explained by known bugs.
const KNOWN_BUGS_ONE_IN: u64 = 3;

/// A recorded history of the kernel.
#[derive(Debug)]
pub struct KernelSession {
    saved: Saved,
    history: History,
    /// The timeline of the only thread.
    timelines: [Timeline; 1],
}

/// The part of a saved history that is not the recording.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    workload: Workload,
    /// Steps that failed for lack of space.
    refused: Vec<usize>,
    /// The release of the kernel.
    kernel: String,
    /// The number of fast commits.
    fast_commits: u64,
}

/// Counts of what the states of a session showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelSeen {
    /// Crash states.
    pub states: u64,
    /// States in which attributes of a directory are missing, a known bug (docs/FINDINGS.md).
    pub unset: u64,
    /// States whose tree was older than the newest that may have been found.
    pub older: u64,
    /// Fast commits in the histories.
    pub fast_commits: u64,
    /// States that the kernel recovered.
    pub by_kernel: u64,
    /// States that the kernel or e2fsck recovered wrongly by a known bug (docs/FINDINGS.md).
    pub known_bugs: u64,
    /// States that e2fsck recovered.
    pub by_e2fsck: u64,
    /// States with the same bytes as an earlier one, with the same progress of the thread.
    pub repeated: u64,
}

impl KernelSeen {
    /// Adds the counts of other states.
    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.unset += other.unset;
        self.older += other.older;
        self.fast_commits += other.fast_commits;
        self.by_kernel += other.by_kernel;
        self.known_bugs += other.known_bugs;
        self.by_e2fsck += other.by_e2fsck;
        self.repeated += other.repeated;
    }

    /// Fails if known bugs explain so many results that the others prove little.
    ///
    /// # Errors
    /// Then.
    pub fn ensure_few_known_bugs(&self) -> Result<()> {
        let recoveries = self.by_kernel + self.by_e2fsck;
        ensure!(
            recoveries < MANY_RECOVERIES || self.known_bugs * KNOWN_BUGS_ONE_IN <= recoveries,
            "known bugs explain {} of {recoveries} recoveries by others: more than a third",
            self.known_bugs
        );
        ensure!(
            self.states < MANY_STATES || self.unset * KNOWN_BUGS_ONE_IN <= self.states,
            "attributes of a directory are missing in {} of {} states: more than a third",
            self.unset,
            self.states
        );
        Ok(())
    }
}

/// Another program that recovers a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recoverer {
    Kernel,
    E2fsck,
}

/// How a recovered file system differs from the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deviation {
    None,
    /// By a known bug.
    Progress,
}

/// The result of the check of a state.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    version: usize,
    /// Whether attributes of directories are missing in Linux's log.
    log: Deviation,
    /// The recovery by another program.
    other: Deviation,
}

/// Our own recovery of a state.
#[derive(Clone, Copy)]
struct Ours<'a> {
    image: &'a [u8],
    version: usize,
    /// Whether the last commit block is torn, which others may accept.
    is_torn: bool,
}

/// What is known of the thread at a cut.
#[derive(Clone, Debug, Default)]
struct AtCut {
    /// The number of notes before it.
    notes: usize,
    tree: Progress,
    /// The version before the call in which the last full commit was made.
    full_commit: usize,
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

/// The release of the running kernel.
fn kernel_release() -> String {
    let release = rustix::system::uname().release().to_bytes().to_vec();
    String::from_utf8_lossy(&release).into_owned()
}

impl KernelSession {
    /// Runs a workload on the kernel's ext4, and records it.
    ///
    /// # Errors
    /// If a call has another result than the model expects, or the set-up of the mount fails.
    pub fn record(workload: Workload) -> Result<Self> {
        let base = Base::of(workload.shape)?;
        let device = Arc::new(RecordingDevice::new(base.disk()));
        let mut stage = Stage::new(Arc::clone(&device), &options(workload.mode))?;
        if let FreeSpace::Blocks(_) = workload.shape.free_space {
            stage.without_reserve()?;
        }
        let has_fast_commits = workload.shape.log == LogKind::FastCommit;
        if has_fast_commits {
            stage.warm_up()?;
        }
        let tree = String::from_utf8(tree_name(0))?;
        let mut pair = HostPair::new(stage.root()?.join(tree), base.models[0].clone());
        let mut state = ThreadState::of(Executor::Host);
        let mut refused = Vec::new();
        for (at, &step) in workload.threads[0].iter().enumerate() {
            let note = |note: fn(usize) -> Note| device.note(note(at).number());
            note(|step| Note::Begins { thread: 0, step });
            if let Some(call) = state.call(step, &pair.model) {
                let before = pair.model.clone();
                match pair.call(&call).with_context(|| format!("step {at}"))? {
                    Some(Expected::Done(_)) => {
                        state.done(&call, &before, &pair.model, at + 1);
                    }
                    Some(Expected::Refused(_)) => {}
                    None => refused.push(at),
                }
            }
            note(|step| Note::Ends { thread: 0, step });
        }
        // Open files would keep the mount busy.
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
        let saved = Saved {
            workload,
            refused,
            kernel,
            fast_commits,
        };
        Self::with(saved, history)
    }

    fn with(saved: Saved, history: History) -> Result<Self> {
        let base = Base::of(saved.workload.shape)?;
        let steps = saved.workload.threads.first().context("no thread")?;
        let model = base.models[0].clone();
        let timelines = [Timeline::of_executor(
            Executor::Host,
            model,
            steps,
            &saved.refused,
        )];
        Ok(Self {
            saved,
            history,
            timelines,
        })
    }

    /// The workload.
    #[must_use]
    pub fn workload(&self) -> &Workload {
        &self.saved.workload
    }

    /// The release of the kernel that ran it.
    #[must_use]
    pub fn kernel(&self) -> &str {
        &self.saved.kernel
    }

    /// The calls of the steps, as text.
    #[must_use]
    pub fn calls(&self) -> &[String] {
        let [timeline] = &self.timelines;
        &timeline.calls
    }

    /// The recording.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.history.events
    }

    /// The recording, to be changed.
    #[cfg(test)]
    pub(super) fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// Writes the session to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.history.save(path, &serde_json::to_vec(&self.saved)?)
    }

    /// Reads what [`KernelSession::save`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, or is not one.
    pub fn load(path: &Path) -> Result<Self> {
        let (history, saved) = History::load(path)?;
        Self::with(serde_json::from_slice(&saved)?, history)
    }

    /// What is known after the first `cut` events.
    fn at_cut(&self, cut: usize) -> AtCut {
        let mut at_cut = AtCut::default();
        // Full commits that are not durable: the event, and the version before the call.
        let mut commits = Vec::new();
        for (at, event) in self.history.events[..cut].iter().enumerate() {
            let number = match event {
                Event::Note(number) => *number,
                Event::Flush { covers } => {
                    commits.retain(|&(at, version)| {
                        let is_durable = at < *covers;
                        if is_durable {
                            at_cut.full_commit = version;
                        }
                        !is_durable
                    });
                    continue;
                }
                Event::Write { bytes, .. } => {
                    if self.has_commit_block(bytes) {
                        commits.push((at, at_cut.tree.begun.saturating_sub(1)));
                    }
                    continue;
                }
                Event::WriteZeroes(_) | Event::Discard(_) => continue,
            };
            at_cut.notes += 1;
            match Note::of(number) {
                Note::Begins { step, .. } => at_cut.tree.begun = step + 1,
                Note::Ends { step, .. } => {
                    let [timeline] = &self.timelines;
                    at_cut.tree.durable = at_cut.tree.durable.max(timeline.durable_after[step]);
                    at_cut.contents.note(timeline.flushes[step], step + 1);
                }
                Note::Unmounted => {
                    at_cut.tree.durable = at_cut.tree.begun;
                    at_cut.contents.note(Flushed::Everything, at_cut.tree.begun);
                }
            }
        }
        at_cut
    }

    /// What was done since the last full commit, after the first `cut` events.
    #[cfg(test)]
    pub(super) fn since_commit_at(&self, cut: usize) -> SinceCommit {
        self.since_commit(&self.at_cut(cut))
    }

    /// Whether one of the blocks of a write is the commit block of a full commit.
    fn has_commit_block(&self, bytes: &[u8]) -> bool {
        let mut blocks = bytes.chunks(self.workload().shape.block_bytes as usize);
        blocks.any(|block| block.starts_with(&COMMIT_BLOCK))
    }

    /// Recovers and checks every state, or only that with the number `only`.
    ///
    /// # Errors
    /// The first state that was recovered wrongly.
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
            fast_commits: self.saved.fast_commits,
            ..KernelSeen::default()
        };
        let (mut cut, mut at_cut) = (usize::MAX, AtCut::default());
        let mut checked = HashSet::new();
        seen.states = explore::explore(&self.history, effort, |crash, disk| {
            if cut != crash.cut {
                (cut, at_cut) = (crash.cut, self.at_cut(crash.cut));
            }
            let other = match (workload.seed + crash.number) % EXTERNAL_EVERY {
                0 => Some(Recoverer::Kernel),
                nr if nr == EXTERNAL_EVERY / 2 => Some(Recoverer::E2fsck),
                _ => None,
            };
            if !checked.insert((disk.fingerprint(), at_cut.notes)) && other.is_none() {
                seen.repeated += 1;
                return Ok(());
            }
            let verdict = self.check(disk, &at_cut, other)?;
            seen.known_bugs += u64::from(verdict.other == Deviation::Progress);
            seen.unset += u64::from(verdict.log == Deviation::Progress);
            seen.older += u64::from(verdict.version < at_cut.tree.begun);
            seen.by_kernel += u64::from(other == Some(Recoverer::Kernel));
            seen.by_e2fsck += u64::from(other == Some(Recoverer::E2fsck));
            Ok(())
        })?;
        Ok(seen)
    }

    /// Returns the version of a recovered file system, and whether attributes of a directory that
    /// were set since the last full commit are missing: Linux's fast commits do not contain them.
    fn judge(&self, fs: &Fs, at_cut: &AtCut) -> Result<(usize, Deviation)> {
        match self.judge_as(fs, at_cut, None) {
            Ok(version) => Ok((version, Deviation::None)),
            Err(error) if !self.has_fast_commits() => Err(error),
            Err(error) => match self.judge_as(fs, at_cut, Some(at_cut.full_commit)) {
                Ok(version) => Ok((version, Deviation::Progress)),
                Err(_) => Err(error),
            },
        }
    }

    fn judge_as(&self, fs: &Fs, at_cut: &AtCut, unset_since: Option<usize>) -> Result<usize> {
        let mode = self.workload().mode;
        let versions = |_, id, version: usize| {
            let durable = at_cut.contents.of(id);
            match mode {
                Mode::Journal => version.max(durable)..=version.max(durable),
                _ => durable..=at_cut.tree.begun,
            }
        };
        let contents = Contents {
            versions: &versions,
            block_bytes: self.workload().shape.block_bytes as usize,
            unset_since,
        };
        let found = judge_with(fs, &self.timelines, &[at_cut.tree], &contents)?;
        found.first().copied().context("no thread")
    }

    fn has_fast_commits(&self) -> bool {
        self.workload().shape.log == LogKind::FastCommit
    }

    /// Checks one state; the recovery of others may differ by a known bug.
    fn check(
        &self,
        disk: &Arc<CrashDisk>,
        at_cut: &AtCut,
        other: Option<Recoverer>,
    ) -> Result<Verdict> {
        let crashed = other.map(|other| (other, disk.bytes()));
        let is_torn = other.is_some() && has_torn_commit(disk)?;
        let ours = mount_options(
            self.workload().mode,
            BackgroundWork::None,
            InjectedFault::default(),
        );
        let fs = Fs::mount(disk.clone(), &ours).context("mount")?;
        let (version, log) = self.judge(&fs, at_cut).context("after our recovery")?;
        fs.unmount().context("unmount")?;
        check_clean(disk.clone())?;
        let other = match crashed {
            Some((other, crashed)) => {
                let ours = Ours {
                    image: &disk.bytes(),
                    version,
                    is_torn,
                };
                self.compare_with(other, &crashed, at_cut, ours)?
            }
            None => Deviation::None,
        };
        Ok(Verdict {
            version,
            log,
            other,
        })
    }

    /// Recovers a state with another program, which must find our version unless a commit block is
    /// torn.
    fn compare_with(
        &self,
        other: Recoverer,
        crashed: &[u8],
        at_cut: &AtCut,
        ours: Ours<'_>,
    ) -> Result<Deviation> {
        external::ensure_sound(ours.image).context("after our recovery")?;
        let (recovered, whose) = match other {
            Recoverer::Kernel => (
                external::recovered_by_kernel(crashed)?,
                "after recovery by the kernel",
            ),
            Recoverer::E2fsck => (
                external::recovered_by_e2fsck(crashed)?,
                "after recovery by e2fsck",
            ),
        };
        let theirs = match recovered {
            Recovered::Whole(theirs) => theirs,
            Recovered::KnownBugs(faults, said) => {
                let is_known = self.may_be(&faults, at_cut, ours.image)?;
                ensure!(is_known, "{whose}: {faults:?}: {said}");
                return Ok(Deviation::Progress);
            }
            Recovered::Unsound(said) => bail!("{whose}: {said}"),
        };
        let fs = external::opened(&theirs).context(whose)?;
        let (theirs, _) = self.judge(&fs, at_cut).context(whose)?;
        ensure!(
            ours.is_torn || theirs == ours.version,
            "{whose}: version {theirs}, but version {} after our recovery",
            ours.version
        );
        Ok(Deviation::None)
    }

    /// What was done since the last full commit: fast commits stay in the log until the next one.
    fn since_commit(&self, at_cut: &AtCut) -> SinceCommit {
        let [timeline] = &self.timelines;
        match self.has_fast_commits() {
            true => timeline.since_commit(at_cut.full_commit..=at_cut.tree.begun),
            false => SinceCommit::default(),
        }
    }

    /// Whether the history can have triggered these known bugs, where `ours` is our recovery.
    fn may_be(&self, faults: &BTreeSet<KnownBug>, at_cut: &AtCut, ours: &[u8]) -> Result<bool> {
        let fs = external::opened(ours)?;
        let sectors = |inode| Some(fs.stat(InodeNr(inode)).ok()?.sectors);
        Ok(self.since_commit(at_cut).may_show(faults, sectors))
    }

    /// Removes steps from a workload as long as some crash state is recovered wrongly.
    ///
    /// # Errors
    /// If all states of the workload itself are recovered correctly.
    pub fn shorten(workload: &Workload, samples: usize) -> Result<(Self, Box<Failure>)> {
        shortest(workload, |shorter| {
            let session = Self::record(shorter).ok()?;
            let failure = session.explore(samples, None).err()?;
            Some((session, failure))
        })
    }
}
