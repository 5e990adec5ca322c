//! **Purpose.** A recorded workload: recovers and checks every crash state of it.
//!
//! **Model.** Notes in the recording mark where each step of each thread began and ended. The
//! versions of the trees follow from the workload, so a saved history consists of the events and
//! the workload.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore::{Fs, InodeNr, OpenOptions};
use fourscore_block::{Event, RamDevice, RecordingDevice};
use fourscore_check::Finding;
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::rng::mix;
use fourscore_testkit::explore::{self, CrashDisk, Effort, Failure, History};
use serde::{Deserialize, Serialize};

use super::base::{BackgroundWork, Base, mount_options, tree_name};
use super::call_sets::{CallSet, CallSets, Certain, judge_sets};
use super::campaign::Log;
use super::external::{self, Opinion};
use super::injected::InjectedFault;
use super::judge::{AtCrash, Progress, judge, judge_unjournaled};
use super::notes::Note;
use super::timeline::{DurableContents, Flushed, Timeline, run_steps};
use super::workload::{LogKind, Mode, Workload};
use crate::model::{Id, Pair};
use crate::sound::{check_clean, check_clean_but_for};

/// One of this many states is checked by e2fsck and the kernel as well.
const EXTERNAL_EVERY: u64 = 50;
/// One of this many states of a file system without a journal is checked: e2fsck is slow.
const UNJOURNALED_EVERY: u64 = 8;
/// The byte range of the superblock, which is never torn: its checksum is in its last bytes, and
/// e2fsck would take a backup copy of a torn one.
pub(super) const SUPERBLOCK: (u64, u64) = (1024, 2048);

/// A recorded history.
#[derive(Debug)]
pub struct Session {
    saved: Saved,
    history: History,
    timelines: Vec<Timeline>,
    /// With fast commits: what the calls of each thread rest on.
    sets: Vec<CallSets>,
}

/// The part of a saved history that is not the recording.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    workload: Workload,
    /// The steps of each thread that failed for lack of space.
    refused: Vec<Vec<usize>>,
    /// The inode numbers of each thread's tree.
    #[serde(default)]
    numbers: Vec<BTreeMap<Id, u32>>,
}

/// Counts of what the states of a session showed, so that a run shows what it covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Crash states.
    pub states: u64,
    /// States whose tree was older than the newest that may have been found.
    pub older: u64,
    /// States that e2fsck and the kernel checked.
    pub external: u64,
    /// States without a journal, which e2fsck repaired.
    pub repaired: u64,
    /// States with the same bytes as an earlier one, in which the same version is allowed.
    pub repeated: u64,
    /// States with fast commits whose tree is that of no prefix of the calls of a thread.
    pub sets: u64,
    /// Logs that e2fsck did not replay because of finding 6 of docs/FINDINGS.md.
    pub known_bugs: u64,
}

impl Seen {
    /// Adds the counts of other states.
    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.older += other.older;
        self.external += other.external;
        self.repaired += other.repaired;
        self.repeated += other.repeated;
        self.sets += other.sets;
        self.known_bugs += other.known_bugs;
    }

    /// Fails if many states prove little: if e2fsck did not replay more than a third of the logs
    /// that it was given, or if `log` should have had fast commits and none decided a state.
    ///
    /// # Errors
    /// Then.
    pub fn ensure_proof(&self, log: Log) -> Result<()> {
        const MANY_STATES: u64 = 10_000;
        const MANY_OPINIONS: u64 = 100;
        ensure!(
            self.external < MANY_OPINIONS || self.known_bugs * 3 <= self.external,
            "a known bug explains {} of {} recoveries by e2fsck: more than a third",
            self.known_bugs,
            self.external
        );
        ensure!(
            log != Log::FastCommits || self.states < MANY_STATES || self.sets > 0,
            "no fast commit decided one of {} states",
            self.states
        );
        Ok(())
    }
}

/// What is known of the threads at a cut.
#[derive(Debug, Default)]
struct AtCut {
    /// How far each thread is.
    progress: Vec<Progress>,
    /// The durable data of each thread.
    contents: Vec<DurableContents>,
    /// The number of steps that have made data durable.
    flushes: usize,
    /// With fast commits: the calls of each thread that are durable.
    certain: Vec<Certain>,
}

/// What was found in a state, by thread.
#[derive(Clone, Debug)]
enum Found {
    /// Versions of the trees.
    Versions(Vec<usize>),
    /// Sets of calls.
    Sets(Vec<CallSet>),
}

impl Found {
    /// Whether it may be found. What was allowed at an earlier cut stays allowed with the same
    /// data, as long as it is not too old and no data was made durable since.
    fn is_allowed(&self, at: &AtCut) -> bool {
        match self {
            Self::Versions(versions) => {
                let mut both = at.progress.iter().zip(versions);
                both.all(|(progress, version)| {
                    (progress.durable..=progress.begun).contains(version)
                })
            }
            Self::Sets(sets) => {
                let mut both = at.certain.iter().zip(sets);
                both.all(|(certain, set)| set.holds(certain))
            }
        }
    }

    /// Whether something is missing that had begun.
    fn is_older(&self, at: &AtCut) -> bool {
        let mut begun = at.progress.iter().map(|progress| progress.begun);
        match self {
            Self::Versions(versions) => versions.iter().zip(begun).any(|(at, begun)| *at < begun),
            Self::Sets(sets) => !sets
                .iter()
                .all(|set| begun.next().is_some_and(|begun| set.is_all(begun))),
        }
    }

    /// Whether it is no prefix of the calls of a thread.
    fn is_set(&self) -> bool {
        match self {
            Self::Versions(_) => false,
            Self::Sets(sets) => sets.iter().any(|set| !set.is_prefix),
        }
    }
}

/// What a check of a state has shown.
struct Verdict {
    found: Found,
    /// Whether e2fsck did not replay the log.
    is_known_bug: bool,
}

impl AtCut {
    fn crash(&self) -> AtCrash<'_> {
        AtCrash {
            progress: &self.progress,
            contents: &self.contents,
        }
    }
}

impl Session {
    /// Runs a workload and records it.
    ///
    /// # Errors
    /// The file system fails although its device does not.
    ///
    /// # Panics
    /// If a call has another result than the model says.
    pub fn record(workload: Workload, injected: InjectedFault) -> Result<Self> {
        let base = Base::of(workload.shape)?;
        let background = match workload.is_repeatable() {
            true => BackgroundWork::None,
            false => BackgroundWork::Threads,
        };
        let yields = match background {
            BackgroundWork::None => 0,
            BackgroundWork::Threads => 20,
        };
        let device = Arc::new(RecordingDevice::new(base.disk()).yielding_in_flushes(yields));
        let options = mount_options(workload.mode, background, injected);
        let options = options.open(OpenOptions::new().cache_bytes(workload.cache_bytes));
        let fs = Fs::mount(device.clone(), &options)?;
        let ended = thread::scope(|scope| {
            let start = |nr: usize| {
                let (fs, device) = (&fs, &device);
                let (base, steps) = (&base, &workload.threads[nr]);
                scope.spawn(move || {
                    let dir = fs.lookup(InodeNr::ROOT, &tree_name(nr))?;
                    let model = base.models[nr].clone();
                    let mut pair = Pair::resume(Arc::clone(fs), dir, model);
                    let thread = nr;
                    let begins = |step| device.note(Note::Begins { thread, step }.number());
                    let ends = |step| device.note(Note::Ends { thread, step }.number());
                    let refused = run_steps(&mut pair, steps, begins, ends);
                    let numbers = pair.numbers().iter();
                    let numbers = numbers.map(|(&id, number)| (id, number.0)).collect();
                    drop(pair.finish());
                    Ok((refused, numbers))
                })
            };
            let threads: Vec<_> = (0..workload.threads.len()).map(start).collect();
            let ended = threads.into_iter().map(|thread| match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.collect::<Result<Vec<_>>>()
        })?;
        fs.unmount()?;
        device.note(Note::Unmounted.number());
        let history = History {
            base: base.bytes.clone(),
            events: device.events(),
        };
        let (refused, numbers) = ended.into_iter().unzip();
        let saved = Saved {
            workload,
            refused,
            numbers,
        };
        Self::with(saved, history)
    }

    fn with(saved: Saved, history: History) -> Result<Self> {
        let base = Base::of(saved.workload.shape)?;
        let steps = saved.workload.threads.iter().zip(&saved.refused);
        let timelines = base.models.iter().zip(steps);
        let timelines =
            timelines.map(|(model, (steps, refused))| Timeline::of(model.clone(), steps, refused));
        let timelines: Vec<_> = timelines.collect();
        let sets = match saved.workload.shape.log {
            LogKind::FastCommit => {
                let both = timelines.iter().zip(&saved.numbers);
                let sets = both.map(|(timeline, numbers)| {
                    let numbers = numbers.iter().map(|(&id, &number)| (id, InodeNr(number)));
                    CallSets::of(timeline, &numbers.collect())
                });
                sets.collect::<Result<_>>()?
            }
            LogKind::Journal | LogKind::None => Vec::new(),
        };
        Ok(Self {
            timelines,
            sets,
            saved,
            history,
        })
    }

    /// The workload.
    #[must_use]
    pub fn workload(&self) -> &Workload {
        &self.saved.workload
    }

    /// The recording, to be changed.
    #[cfg(test)]
    pub(super) fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// The calls of a thread, as text.
    #[cfg(test)]
    pub(super) fn calls(&self, thread: usize) -> &[String] {
        &self.timelines[thread].calls
    }

    /// Writes the session to a file, so that its states can be checked again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.history.save(path, &serde_json::to_vec(&self.saved)?)
    }

    /// Reads what [`Session::save`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, or is not one.
    pub fn load(path: &Path) -> Result<Self> {
        let (history, saved) = History::load(path)?;
        Self::with(serde_json::from_slice(&saved)?, history)
    }

    /// What is known after the first `cut` events.
    fn at_cut(&self, cut: usize) -> AtCut {
        let threads = self.timelines.len();
        let mut at_cut = AtCut {
            progress: vec![Progress::default(); threads],
            contents: vec![DurableContents::default(); threads],
            flushes: 0,
            certain: vec![Certain::default(); self.sets.len()],
        };
        let AtCut {
            progress,
            contents,
            flushes,
            certain,
        } = &mut at_cut;
        for event in &self.history.events[..cut] {
            let Event::Note(number) = *event else {
                continue;
            };
            match Note::of(number) {
                Note::Begins { thread, step } => progress[thread].begun = step + 1,
                Note::Ends { thread, step } => {
                    let timeline = &self.timelines[thread];
                    let durable = timeline.durable_after[step];
                    progress[thread].durable = progress[thread].durable.max(durable);
                    contents[thread].note(timeline.flushes[step], step + 1);
                    if let Some(sets) = self.sets.get(thread) {
                        certain[thread].add(sets.vouched_after(step));
                    }
                    *flushes += usize::from(timeline.flushes[step] != Flushed::Nothing);
                }
                Note::Unmounted => {
                    for progress in progress.iter_mut() {
                        progress.durable = progress.begun;
                    }
                    for (certain, progress) in certain.iter_mut().zip(progress.iter()) {
                        certain.until = progress.begun;
                    }
                }
            }
        }
        at_cut
    }

    /// Recovers and checks every state, or only that with the number `only`.
    ///
    /// # Errors
    /// The first state that was recovered wrongly.
    pub fn explore(&self, samples: usize, only: Option<u64>) -> Result<Seen, Box<Failure>> {
        let workload = self.workload();
        let effort = Effort {
            seed: mix(workload.seed),
            samples,
            block_bytes: workload.shape.block_bytes.into(),
            only,
            whole: Some(SUPERBLOCK),
        };
        let has_external = external::is_possible();
        let mut seen = Seen::default();
        let (mut cut, mut at_cut) = (usize::MAX, AtCut::default());
        // What was found, and the number of steps that had made data durable.
        let mut checked: HashMap<u64, (Found, usize)> = HashMap::new();
        let states = explore::explore(&self.history, effort, |crash, disk| {
            if cut != crash.cut {
                (cut, at_cut) = (crash.cut, self.at_cut(crash.cut));
            }
            if workload.mode == Mode::None {
                if has_external && crash.number.is_multiple_of(UNJOURNALED_EVERY) {
                    self.check_unjournaled(disk, &at_cut.progress)?;
                    seen.repaired += 1;
                }
                return Ok(());
            }
            let is_external =
                has_external && (workload.seed + crash.number).is_multiple_of(EXTERNAL_EVERY);
            let fingerprint = disk.fingerprint();
            let found = match checked.get(&fingerprint) {
                Some((found, flushes))
                    if !is_external && *flushes == at_cut.flushes && found.is_allowed(&at_cut) =>
                {
                    seen.repeated += 1;
                    found.clone()
                }
                _ => {
                    let verdict = self.check(disk, &at_cut, is_external)?;
                    seen.known_bugs += u64::from(verdict.is_known_bug);
                    verdict.found
                }
            };
            seen.older += u64::from(found.is_older(&at_cut));
            seen.sets += u64::from(found.is_set());
            seen.external += u64::from(is_external);
            checked.insert(fingerprint, (found, at_cut.flushes));
            Ok(())
        })?;
        seen.states = match workload.mode {
            Mode::None => seen.repaired,
            _ => states,
        };
        Ok(seen)
    }

    /// Checks one state of a file system without a journal: synced files are intact after e2fsck.
    fn check_unjournaled(&self, disk: &Arc<CrashDisk>, progress: &[Progress]) -> Result<()> {
        let repaired = external::repair(&disk.bytes())?;
        let device = Arc::new(RamDevice::from_bytes(&repaired));
        let options = mount_options(Mode::None, BackgroundWork::None, InjectedFault::default());
        let fs = Fs::mount(device.clone(), &options).context("mount")?;
        judge_unjournaled(&fs, &self.timelines, progress)?;
        let dir = fs.lookup(InodeNr::ROOT, b"lost+found")?;
        let lost: BTreeSet<_> = fs.read_dir(dir)?.iter().map(|entry| entry.inode).collect();
        fs.unmount().context("unmount")?;
        // e2fsck gives a name to the inode of a value that no attribute has (docs/FINDINGS.md, 24).
        let is_known = |finding: &Finding| match finding {
            Finding::ValueFlag { inode } => lost.contains(inode),
            _ => false,
        };
        check_clean_but_for(device, is_known).map(drop)
    }

    /// Compares a recovered file system with what the threads did.
    fn judge(&self, fs: &Fs, at_cut: &AtCut) -> Result<Found> {
        let (mode, crash) = (self.workload().mode, at_cut.crash());
        if self.sets.is_empty() {
            return judge(fs, &self.timelines, crash, mode).map(Found::Versions);
        }
        let threads: Vec<_> = self.timelines.iter().zip(&self.sets).collect();
        judge_sets(fs, &threads, crash, &at_cut.certain, mode).map(Found::Sets)
    }

    /// Checks one state, and returns what was found.
    fn check(&self, disk: &Arc<CrashDisk>, at_cut: &AtCut, is_external: bool) -> Result<Verdict> {
        let crashed = is_external.then(|| disk.bytes());
        let is_torn = is_external && has_torn_commit(disk)?;
        let mode = self.workload().mode;
        let options = mount_options(mode, BackgroundWork::None, InjectedFault::default());
        let fs = Fs::mount(disk.clone(), &options).context("mount")?;
        let mut verdict = Verdict {
            found: self.judge(&fs, at_cut)?,
            is_known_bug: false,
        };
        let ours = match is_external {
            true => Some(external::ours(&fs)?),
            false => None,
        };
        fs.unmount().context("unmount")?;
        check_clean(disk.clone())?;
        if let (Some(crashed), Some(ours)) = (crashed, ours) {
            let ours = (!is_torn).then_some(&ours);
            let theirs = external::compare_with_kernel(&crashed, &disk.bytes(), ours)?;
            self.judge_theirs(theirs, at_cut)
                .context("after recovery by the kernel")?;
            if !self.sets.is_empty() {
                match external::compare_with_e2fsck(&crashed, ours)? {
                    Opinion::KnownBug => verdict.is_known_bug = true,
                    Opinion::Same => {}
                    Opinion::Other(theirs) => self
                        .judge_theirs(Some(theirs), at_cut)
                        .context("after recovery by e2fsck")?,
                }
            }
        }
        Ok(verdict)
    }

    /// Judges what another program recovered, if it was not compared with ours.
    fn judge_theirs(&self, theirs: Option<Vec<u8>>, at_cut: &AtCut) -> Result<()> {
        let Some(theirs) = theirs else {
            return Ok(());
        };
        let fs = external::opened(&theirs)?;
        self.judge(&fs, at_cut).map(drop)
    }
}

/// Whether the last commit in the log is damaged. Newer kernels accept a commit block of which only
/// the header arrived; we and e2fsck do not. The two recovered trees may then differ, but both must
/// be correct.
pub(super) fn has_torn_commit(disk: &Arc<CrashDisk>) -> Result<bool> {
    let fs = Fs::open(disk.clone(), &OpenOptions::new().cache_bytes(1 << 20))?;
    Ok(fs.journal_damage().is_some())
}

/// Removes steps from a workload of one thread as long as some crash state is recovered wrongly.
/// Returns what is left, and the failure.
///
/// # Errors
/// If all states of the workload itself are recovered correctly.
pub fn shorten(
    workload: &Workload,
    samples: usize,
    injected: InjectedFault,
) -> Result<(Session, Box<Failure>)> {
    ensure!(
        workload.is_repeatable(),
        "a workload of several threads cannot be repeated"
    );
    shortest(workload, |shorter| {
        let session = Session::record(shorter, injected).ok()?;
        let failure = session.explore(samples, None).err()?;
        Some((session, failure))
    })
}

/// Removes steps from a workload of one thread as long as `fault` finds something, and returns what
/// it found last: first many steps at once, then single ones.
///
/// # Errors
/// If it finds nothing in the workload itself.
pub(super) fn shortest<T>(workload: &Workload, fault: impl Fn(Workload) -> Option<T>) -> Result<T> {
    let mut kept: Vec<usize> = (0..workload.threads[0].len()).collect();
    let mut found = fault(workload.only(&kept)).context("the failure does not occur again")?;
    let mut part = kept.len().div_ceil(2);
    while part > 0 {
        let mut end = kept.len();
        while end > 0 {
            let start = end.saturating_sub(part);
            let mut fewer = kept.clone();
            fewer.drain(start..end);
            if let Some(other) = fault(workload.only(&fewer)) {
                found = other;
                kept = fewer;
            }
            end = start;
        }
        part /= 2;
    }
    Ok(found)
}
