//! **Purpose.** A recorded workload and what may become of it: every crash state of it is recovered
//! and checked.
//!
//! **Model.** Notes in the recording tell which steps of which thread had begun and ended. What the
//! versions of the trees are follows from the workload; so a saved history is the events and the
//! workload.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore::block::{Event, RamDevice, RecordingDevice};
use fourscore::{Arc, Fs, InodeNr, OpenOptions};
use fourscore_sync::thread;
use fourscore_testkit::explore::rng::mix;
use fourscore_testkit::explore::{self, CrashDisk, Effort, Failure, History};
use serde::{Deserialize, Serialize};

use super::base::{Base, Company, mount_options, tree_name};
use super::breaking::Breaking;
use super::judge::{Known, judge, judge_unjournaled};
use super::notes::Note;
use super::outside;
use super::timeline::{DurableContents, Flushed, Timeline, carry_out};
use super::workload::{Mode, Workload};
use crate::model::Pair;
use crate::sound::check_clean;

/// One in so many states is given to e2fsck and to the kernel.
const OUTSIDE_EVERY: u64 = 50;
/// One in so many states of a file system without a journal is looked at: e2fsck is slow.
const UNJOURNALED_EVERY: u64 = 8;
/// The superblock, which has its checksum in its last bytes: the format cannot outlive one that is
/// torn, and e2fsck then takes a copy of it.
pub(super) const SUPERBLOCK: (u64, u64) = (1024, 2048);

/// A history and what may become of it.
#[derive(Debug)]
pub struct Session {
    beside: Beside,
    history: History,
    timelines: Vec<Timeline>,
}

/// What is saved beside a history.
#[derive(Debug, Serialize, Deserialize)]
struct Beside {
    workload: Workload,
    /// Steps of each thread that found no room.
    refused: Vec<Vec<usize>>,
}

/// What was seen in the states of a session; generated input must be what it is meant to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Crash states.
    pub states: u64,
    /// States whose tree was older than the newest that may have been found.
    pub older: u64,
    /// States that were given to e2fsck and to the kernel.
    pub outside: u64,
    /// States without a journal, which e2fsck repaired.
    pub repaired: u64,
    /// States with the same bytes as one that was looked at already; what was found there is one
    /// of the versions that may be found here.
    pub known: u64,
}

impl Seen {
    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.older += other.older;
        self.outside += other.outside;
        self.repaired += other.repaired;
        self.known += other.known;
    }
}

/// What is known where a crash comes.
#[derive(Debug, Default)]
struct AtCut {
    /// Of each thread.
    known: Vec<Known>,
    durable: Vec<DurableContents>,
    /// How many steps have made content durable.
    flushes: usize,
}

impl Session {
    /// Does a workload and records it.
    ///
    /// # Errors
    /// The file system fails although its device does not.
    ///
    /// # Panics
    /// If a call has another result than the model says.
    pub fn record(workload: Workload, breaking: Breaking) -> Result<Self> {
        let base = Base::of(workload.shape)?;
        let company = match workload.is_repeatable() {
            true => Company::None,
            false => Company::Threads,
        };
        let yields = match company {
            Company::None => 0,
            Company::Threads => 20,
        };
        let device = Arc::new(RecordingDevice::new(base.disk()).yielding_in_flushes(yields));
        let fs = Fs::mount(
            device.clone(),
            &mount_options(workload.mode, company, breaking),
        )?;
        let refused = thread::scope(|scope| {
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
                    let refused = carry_out(&mut pair, steps, begins, ends);
                    drop(pair.finish());
                    Ok(refused)
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
        Self::with(Beside { workload, refused }, history)
    }

    fn with(beside: Beside, history: History) -> Result<Self> {
        let base = Base::of(beside.workload.shape)?;
        let steps = beside.workload.threads.iter().zip(&beside.refused);
        let timelines = base.models.iter().zip(steps);
        let timelines =
            timelines.map(|(model, (steps, refused))| Timeline::of(model.clone(), steps, refused));
        Ok(Self {
            timelines: timelines.collect(),
            beside,
            history,
        })
    }

    /// What was done.
    #[must_use]
    pub fn workload(&self) -> &Workload {
        &self.beside.workload
    }

    /// What was recorded, for who changes it.
    #[cfg(test)]
    pub(super) fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// What the steps of a thread came to.
    #[cfg(test)]
    pub(super) fn calls(&self, thread: usize) -> &[String] {
        &self.timelines[thread].calls
    }

    /// Writes the session to a file, so that its states can be looked at again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.history.save(path, &serde_json::to_vec(&self.beside)?)
    }

    /// Reads what [`Session::save`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, or is not one.
    pub fn load(path: &Path) -> Result<Self> {
        let (history, beside) = History::load(path)?;
        Self::with(serde_json::from_slice(&beside)?, history)
    }

    /// What is known behind the first `cut` events.
    fn known(&self, cut: usize) -> AtCut {
        let threads = self.timelines.len();
        let mut at_cut = AtCut {
            known: vec![Known::default(); threads],
            durable: vec![DurableContents::default(); threads],
            flushes: 0,
        };
        let AtCut {
            known,
            durable,
            flushes,
        } = &mut at_cut;
        for event in &self.history.events[..cut] {
            let Event::Note(number) = *event else {
                continue;
            };
            match Note::of(number) {
                Note::Begins { thread, step } => known[thread].begun = step + 1,
                Note::Ends { thread, step } => {
                    let timeline = &self.timelines[thread];
                    let vouched = timeline.vouches[step];
                    known[thread].vouched = known[thread].vouched.max(vouched);
                    durable[thread].note(timeline.flushes[step], step + 1);
                    *flushes += usize::from(timeline.flushes[step] != Flushed::Nothing);
                }
                Note::Unmounted => {
                    for known in known.iter_mut() {
                        known.vouched = known.begun;
                    }
                }
            }
        }
        at_cut
    }

    /// Recovers and checks every state, or only that with the number `only`.
    ///
    /// # Errors
    /// The first state that is not good.
    pub fn explore(&self, samples: usize, only: Option<u64>) -> Result<Seen, Box<Failure>> {
        let workload = self.workload();
        let effort = Effort {
            seed: mix(workload.seed),
            samples,
            block_bytes: workload.shape.block_bytes.into(),
            only,
            whole: Some(SUPERBLOCK),
        };
        let asks_others = outside::is_possible();
        let mut seen = Seen::default();
        let mut known = (usize::MAX, AtCut::default());
        // What was found, and how many steps had made content durable.
        let mut looked_at: HashMap<u64, (Vec<usize>, usize)> = HashMap::new();
        let states = explore::explore(&self.history, effort, |crash, disk| {
            if known.0 != crash.cut {
                known = (crash.cut, self.known(crash.cut));
            }
            let at_cut = &known.1;
            if workload.mode == Mode::None {
                if asks_others && crash.number.is_multiple_of(UNJOURNALED_EVERY) {
                    self.check_unjournaled(disk, &at_cut.known)?;
                    seen.repaired += 1;
                }
                return Ok(());
            }
            let is_for_others =
                asks_others && (workload.seed + crash.number).is_multiple_of(OUTSIDE_EVERY);
            let fingerprint = disk.fingerprint();
            let versions = match looked_at.get(&fingerprint) {
                Some((versions, flushes))
                    if !is_for_others
                        && *flushes == at_cut.flushes
                        && allows(&at_cut.known, versions) =>
                {
                    seen.known += 1;
                    versions.clone()
                }
                _ => self.check(disk, at_cut, is_for_others)?,
            };
            let mut both = versions.iter().zip(&at_cut.known);
            let is_older = both.any(|(at, of)| *at < of.begun);
            looked_at.insert(fingerprint, (versions, at_cut.flushes));
            seen.older += u64::from(is_older);
            seen.outside += u64::from(is_for_others);
            Ok(())
        })?;
        seen.states = match workload.mode {
            Mode::None => seen.repaired,
            _ => states,
        };
        Ok(seen)
    }

    /// Checks one state of a file system without a journal: what was synced is there after e2fsck.
    fn check_unjournaled(&self, disk: &Arc<CrashDisk>, known: &[Known]) -> Result<()> {
        let repaired = outside::repair(&disk.bytes())?;
        let device = Arc::new(RamDevice::from_bytes(&repaired));
        let options = mount_options(Mode::None, Company::None, Breaking::default());
        let fs = Fs::mount(device.clone(), &options).context("mount")?;
        judge_unjournaled(&fs, &self.timelines, known)?;
        fs.unmount().context("unmount")?;
        check_clean(device).map(drop)
    }

    /// Checks one state, and gives the versions of the trees that were found.
    fn check(
        &self,
        disk: &Arc<CrashDisk>,
        AtCut { known, durable, .. }: &AtCut,
        is_for_others: bool,
    ) -> Result<Vec<usize>> {
        let crashed = is_for_others.then(|| disk.bytes());
        let is_torn = is_for_others && has_torn_commit(disk)?;
        let mode = self.workload().mode;
        let options = mount_options(mode, Company::None, Breaking::default());
        let fs = Fs::mount(disk.clone(), &options).context("mount")?;
        let versions = judge(&fs, &self.timelines, (known, durable), mode)?;
        let ours = match is_for_others {
            true => Some(outside::ours(&fs)?),
            false => None,
        };
        fs.unmount().context("unmount")?;
        check_clean(disk.clone())?;
        if let (Some(crashed), Some(ours)) = (crashed, ours) {
            let theirs = outside::look(&crashed, &disk.bytes(), (!is_torn).then_some(&ours))?;
            if let Some(theirs) = theirs {
                let device = Arc::new(RamDevice::from_bytes(&theirs));
                let fs = Fs::open(device, &OpenOptions::new().cache_bytes(1 << 20))?;
                judge(&fs, &self.timelines, (known, durable), mode)
                    .context("what the kernel made of it")?;
            }
        }
        Ok(versions)
    }
}

/// Whether these versions may be found. What may be found with one only becomes more, as long as it
/// may, and no content was made durable since: data that is newer than it.
fn allows(known: &[Known], versions: &[usize]) -> bool {
    let mut both = known.iter().zip(versions);
    both.all(|(known, version)| (known.vouched..=known.begun).contains(version))
}

/// Whether the last commit in the log is damaged. Newer kernels take one of which only the header
/// arrived for whole; we and e2fsck do not. So the two trees need not be the same, but both must be
/// good.
pub(super) fn has_torn_commit(disk: &Arc<CrashDisk>) -> Result<bool> {
    let fs = Fs::open(disk.clone(), &OpenOptions::new().cache_bytes(1 << 20))?;
    Ok(fs.journal_damage().is_some())
}

/// Leaves out steps of a workload of one thread whose states are not all good, as long as one of
/// them is not. Gives what is left, and its bad state.
///
/// # Errors
/// If there is nothing to be found in the workload itself.
pub fn shorten(
    workload: &Workload,
    samples: usize,
    breaking: Breaking,
) -> Result<(Session, Box<Failure>)> {
    ensure!(workload.is_repeatable(), "threads do not repeat themselves");
    shortest(workload, |shorter| {
        let session = Session::record(shorter, breaking).ok()?;
        let failure = session.explore(samples, None).err()?;
        Some((session, failure))
    })
}

/// The shortest workload of one thread, made of another one by leaving out steps, that `fault` says
/// something of.
///
/// # Errors
/// If it has nothing to say of the workload itself.
pub(super) fn shortest<T>(workload: &Workload, fault: impl Fn(Workload) -> Option<T>) -> Result<T> {
    let mut kept: Vec<usize> = (0..workload.threads[0].len()).collect();
    let mut found = fault(workload.only(&kept)).context("it is not there the second time")?;
    let mut at = kept.len();
    while at > 0 {
        at -= 1;
        let mut fewer = kept.clone();
        fewer.remove(at);
        if let Some(other) = fault(workload.only(&fewer)) {
            found = other;
            kept = fewer;
        }
    }
    Ok(found)
}
