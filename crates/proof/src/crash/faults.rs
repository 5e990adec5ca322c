//! **Purpose.** A device that fails at every moment of a workload, too little memory, and a full
//! file system: checks the error of each call, and the state that is left.
//!
//! **Model.** A *case* is an operation of the catalogue, made durable. A *trial* runs a case with
//! one fault: the n-th read, write or flush between mount and unmount fails, once or from then on.
//! The trials of a case end when the fault comes too late to strike; a shorter run tries only one
//! of several moments, different ones in each case. The first call that fails ends the workload;
//! then the device works again.
//!
//! # What is checked
//! - The call fails with the error of the device and no other.
//! - The mount either continues or is stopped. If it continues, another call succeeds, and a sync
//!   succeeds and makes everything durable. If it is stopped, calls fail with `EROFS` from the
//!   second on, and no sync succeeds.
//! - The call that failed has either happened or not, as every reader sees at once; nothing else
//!   has changed.
//! - The next mount finds a version between the one that was durable and the last that had begun,
//!   as after a crash, and the checker finds no leaked or shared blocks.
//! - No thread panics or waits for ever: [`run`] takes the longest time of a trial.
//!
//! On a full file system a call fails with `ENOSPC` and changes nothing, or it is done; of a write,
//! an append and a copy a part at the front may be done, whose length is what the call says. With
//! little memory each call is done.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::AddAssign;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use fourscore::{Fs, InodeNr, MountOptions, OpenOptions};
use fourscore_block::{DeviceOp, FaultyDevice, RamDevice, Rule};
use fourscore_sync::Arc;
use fourscore_testkit::worker_pool::{Watch, Work, WorkerPool};
use rustix::io::Errno;

use super::base::{BackgroundWork, Base, PROBE, mount_options};
use super::campaign::caught;
use super::catalogue::OPS;
use super::injected::InjectedFault;
use super::judge::{AtCrash, Progress, judge};
use super::timeline::{Executor, ThreadState, Timeline};
use super::workload::{Format, FreeSpace, LogKind, Mode, Shape, Step};
use crate::BY_ROOT;
use crate::model::{Call, Pair};
use crate::sound::check_clean;

/// The fault of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// One operation of the device.
    Once(DeviceOp),
    /// This operation and all later ones of its kind.
    FromThenOn(DeviceOp),
    /// A write of which only the front arrives.
    Short,
    /// All writes from then on, since the host has no space for the image.
    HostFull,
}

impl Fault {
    const ALL: [Self; 8] = [
        Self::Once(DeviceOp::Read),
        Self::Once(DeviceOp::Write),
        Self::Once(DeviceOp::Flush),
        Self::FromThenOn(DeviceOp::Read),
        Self::FromThenOn(DeviceOp::Write),
        Self::FromThenOn(DeviceOp::Flush),
        Self::Short,
        Self::HostFull,
    ];

    fn rule(self, nth: u64) -> Rule {
        /// Enough for the superblock to arrive completely: the format cannot survive a torn one.
        const FRONT_SECTORS: u64 = 2;
        match self {
            Self::Once(op) => Rule::nth(op, nth),
            Self::FromThenOn(op) => Rule::nth(op, nth).and_after(),
            Self::Short => Rule::nth(DeviceOp::Write, nth).short_of_sectors(FRONT_SECTORS),
            Self::HostFull => {
                let rule = Rule::nth(DeviceOp::Write, nth).and_after();
                rule.with_errno(Errno::NOSPC.raw_os_error())
            }
        }
    }

    /// Whether a call may fail with this error.
    fn is_reported_as(self, errno: i32) -> bool {
        let errno = Errno::from_raw_os_error(errno);
        errno == Errno::IO || self == Self::HostFull && errno == Errno::NOSPC
    }
}

/// An operation of the catalogue, made durable, on one file system.
struct Case {
    steps: Vec<Step>,
    mode: Mode,
    timeline: Timeline,
    base: Arc<Base>,
}

/// Counts of trials.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trials {
    /// Trials in which the fault struck.
    pub faults: u64,
    /// ... and made a call between mount and unmount fail.
    pub calls: u64,
    /// Trials with little memory.
    pub memory: u64,
    /// Trials on a file system with few blocks.
    pub full: u64,
    /// Calls of the latter that were refused.
    pub refused: u64,
}

impl AddAssign for Trials {
    fn add_assign(&mut self, done: Self) {
        self.faults += done.faults;
        self.calls += done.calls;
        self.memory += done.memory;
        self.full += done.full;
        self.refused += done.refused;
    }
}

impl fmt::Display for Trials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            faults,
            calls,
            memory,
            full,
            refused,
        } = self;
        write!(
            f,
            "{faults} faults struck, {calls} of them in a call; {memory} trials with little memory, \
             {full} with few blocks, {refused} calls refused"
        )
    }
}

/// One of this many moments at which a fault may strike is tried.
#[derive(Clone, Copy, Debug)]
pub struct OneIn(pub NonZeroU64);

/// Runs the trials on `threads` threads. Each trial may take as long as `patience`.
///
/// # Errors
/// The first trial that failed.
pub fn run(threads: usize, patience: Duration, share: OneIn) -> Result<Trials> {
    let pool = WorkerPool {
        first: 0,
        threads,
        patience,
    };
    let (_, trials) = pool.run(Cases { share })?;
    ensure!(trials.calls > 0, "no fault struck a call: {trials}");
    Ok(trials)
}

/// All cases.
struct Cases {
    share: OneIn,
}

impl Work for Cases {
    type Part = ();
    type Done = Trials;
    type Finding = Error;

    fn is_enough(&self, number: u64, _: &Trials) -> bool {
        number >= (OPS.len() * SETTINGS.len()) as u64
    }

    fn piece(&self, number: u64, watch: &Watch<'_, ()>) -> Result<Trials> {
        let number = usize::try_from(number)?;
        let (op, setting) = (number % OPS.len(), SETTINGS[number / OPS.len()]);
        let Setting { mode, block_bytes } = setting;
        let shown = || format!("{} with blocks of {block_bytes}, {mode:?}", OPS[op].name);
        let work = CaseTrials {
            op,
            setting,
            share: self.share,
            watch,
            trials: Trials::default(),
        };
        work.all().with_context(shown)
    }

    fn overdue(&self, (): (), error: Error) -> Error {
        error
    }
}

/// The trials of an operation in one setting.
struct CaseTrials<'c> {
    op: usize,
    setting: Setting,
    share: OneIn,
    watch: &'c Watch<'c, ()>,
    trials: Trials,
}

impl CaseTrials<'_> {
    fn all(mut self) -> Result<Trials> {
        self.faults()?;
        self.little_memory()?;
        self.full()?;
        Ok(self.trials)
    }

    /// Runs a trial, and counts it.
    fn trial<T>(
        &mut self,
        work: impl FnOnce() -> Result<T>,
        shown: impl FnOnce() -> String,
        count: impl FnOnce(&T, &mut Trials),
    ) -> Result<T> {
        self.watch.begins(());
        let done = caught(work).with_context(shown)?;
        count(&done, &mut self.trials);
        Ok(done)
    }

    fn faults(&mut self) -> Result<()> {
        let case = Case::new(self.op, self.setting, FreeSpace::Ample)?;
        let OneIn(step) = self.share;
        for (kind, fault) in (0..).zip(Fault::ALL) {
            let first = 1 + (self.op as u64 + kind) % step;
            for nth in (0..).map(|times| first + times * step.get()) {
                let struck = self.trial(
                    || case.with_fault(fault, nth),
                    || format!("{fault:?}, operation {nth} of the device"),
                    |struck, trials| {
                        trials.faults += u64::from(*struck != Struck::TooLate);
                        trials.calls += u64::from(*struck == Struck::InCall);
                    },
                )?;
                if struck == Struck::TooLate {
                    break;
                }
            }
        }
        Ok(())
    }

    fn little_memory(&mut self) -> Result<()> {
        let case = Case::new(self.op, self.setting, FreeSpace::Ample)?;
        for cache_bytes in [0, 1 << 12, 1 << 14, 1 << 16] {
            let open = OpenOptions::new().cache_bytes(cache_bytes);
            let options = case.options().open(open);
            self.trial(
                || case.run_all(&options, None),
                || format!("{cache_bytes} bytes of cache"),
                |_, trials| trials.memory += 1,
            )?;
        }
        Ok(())
    }

    fn full(&mut self) -> Result<()> {
        for blocks in 0..=MOST_FREE_BLOCKS {
            let case = Case::new(self.op, self.setting, FreeSpace::Blocks(blocks))?;
            self.trial(
                || case.run_all(&case.options(), Some(Errno::NOSPC)),
                || format!("{blocks} free blocks"),
                |refused, trials| {
                    trials.full += 1;
                    trials.refused += refused;
                },
            )?;
        }
        Ok(())
    }
}

/// How the file system of a case is formatted and mounted.
#[derive(Clone, Copy)]
struct Setting {
    mode: Mode,
    block_bytes: u32,
}

const SETTINGS: [Setting; 3] = [
    Setting::of(Mode::Ordered, 1024),
    Setting::of(Mode::Journal, 1024),
    Setting::of(Mode::Ordered, 4096),
];

impl Setting {
    const fn of(mode: Mode, block_bytes: u32) -> Self {
        Self { mode, block_bytes }
    }
}

/// More than any operation takes.
const MOST_FREE_BLOCKS: u32 = 6;

/// The steps that failed for lack of space, with the parts of them that were done.
type Refused = BTreeMap<usize, Option<Call>>;

/// Whether a fault struck before the workload had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Struck {
    /// It made a call fail other than mount and unmount.
    InCall,
    /// It struck, but no call between mount and unmount failed.
    Elsewhere,
    /// It did not strike.
    TooLate,
}

impl Case {
    fn new(op: usize, setting: Setting, free_space: FreeSpace) -> Result<Self> {
        let Setting { mode, block_bytes } = setting;
        let shape = Shape {
            format: Format::Usual,
            block_bytes,
            trees: 1,
            log: LogKind::Journal,
            free_space,
        };
        let base = Base::of(shape)?;
        // If the call changes nothing, there is no inode to fsync; hence the sync.
        let steps = vec![Step::Named(op), Step::Fsync, Step::Sync];
        let timeline = Timeline::of(base.models[0].clone(), &steps, &[]);
        Ok(Self {
            steps,
            mode,
            timeline,
            base,
        })
    }

    fn options(&self) -> MountOptions {
        mount_options(self.mode, BackgroundWork::None, InjectedFault::default())
    }

    fn pair(&self, fs: &Arc<Fs>) -> Pair {
        let (model, numbers) = (self.base.models[0].clone(), self.base.numbers[0].clone());
        Pair::with(Arc::clone(fs), model, numbers)
    }

    fn with_fault(&self, fault: Fault, nth: u64) -> Result<Struck> {
        let below = self.base.disk();
        let device = Arc::new(FaultyDevice::new(below.clone()));
        device.add(fault.rule(nth));
        let (progress, struck) = self.run_with_fault(fault, &device)?;
        if struck != Struck::TooLate {
            self.recover(&below, progress)?;
        }
        Ok(struck)
    }

    /// Runs the workload up to the first failure; returns the progress at that time.
    fn run_with_fault(
        &self,
        fault: Fault,
        device: &Arc<FaultyDevice>,
    ) -> Result<(Progress, Struck)> {
        let ensure_expected = |error: fourscore::Error, what: &str| {
            let is_right = fault.is_reported_as(error.errno());
            ensure!(is_right, "{what} fails with {}: {error}", error.errno());
            Ok(())
        };
        let mut progress = Progress::default();
        let fs = match Fs::mount(device.clone(), &self.options()) {
            Ok(fs) => fs,
            Err(error) => {
                return ensure_expected(error, "the mount").map(|()| (progress, Struck::Elsewhere));
            }
        };
        let mut pair = self.pair(&fs);
        let mut state = ThreadState::default();
        for (at, &step) in self.steps.iter().enumerate() {
            let Some(call) = state.call(step, &pair.model) else {
                continue;
            };
            progress.begun = at + 1;
            let before = pair.model.clone();
            match pair.attempt(&call) {
                Ok(expected) => {
                    if expected.is_done() {
                        state.done(&call, &before, &pair.model, at + 1);
                    }
                    progress.durable = progress.durable.max(self.timeline.durable_after[at]);
                }
                Err(error) => {
                    ensure_expected(error, &format!("{call:?}"))?;
                    drop(pair);
                    device.heal();
                    self.check_mounted(&fs, &mut progress, at)?;
                    // A mount that was stopped fails here as well.
                    drop(fs.unmount());
                    return Ok((progress, Struck::InCall));
                }
            }
        }
        progress.begun = self.steps.len();
        drop(pair);
        match fs.unmount() {
            Ok(()) => progress.durable = progress.begun,
            Err(error) => ensure_expected(error, "unmounting")?,
        }
        let struck = match device.has_struck() {
            true => Struck::Elsewhere,
            false => Struck::TooLate,
        };
        Ok((progress, struck))
    }

    /// Checks a mount after the call of step `at` has failed and the device works again.
    fn check_mounted(&self, fs: &Fs, progress: &mut Progress, at: usize) -> Result<()> {
        let timelines = std::slice::from_ref(&self.timeline);
        let seen = Progress {
            durable: at,
            begun: progress.begun,
        };
        judge(fs, timelines, AtCrash::of(&[seen]), self.mode).context("while it is mounted")?;
        let probe = || fs.create(InodeNr::ROOT, PROBE, &BY_ROOT);
        match probe() {
            Ok(_) => {
                fs.sync().context("a file can be created, but sync fails")?;
                progress.durable = at;
            }
            Err(error) => {
                // The call that finds the journal aborted fails with its error; later calls fail
                // with EROFS.
                let errno = Errno::from_raw_os_error(error.errno());
                let is_right = matches!(errno, Errno::IO | Errno::ROFS);
                ensure!(is_right, "after a failure: {error}");
                for _ in 0..2 {
                    let Err(error) = probe() else {
                        bail!("a call succeeds after one failed: the mount was not stopped");
                    };
                    let errno = Errno::from_raw_os_error(error.errno());
                    ensure!(errno == Errno::ROFS, "a stopped mount fails with: {error}");
                    ensure!(fs.sync().is_err(), "sync succeeds on a stopped mount");
                }
                fs.statfs().context("statfs of a stopped mount")?;
            }
        }
        Ok(())
    }

    /// Runs all of the workload, in which calls may fail with `refusal`, if at all; returns how
    /// many did.
    fn run_all(&self, options: &MountOptions, refusal: Option<Errno>) -> Result<u64> {
        let device = self.base.disk();
        let fs = Fs::mount(device.clone(), options).context("the mount")?;
        let mut pair = self.pair(&fs);
        let mut state = ThreadState::default();
        let mut refused = Refused::new();
        for (at, &step) in self.steps.iter().enumerate() {
            let Some(call) = state.call(step, &pair.model) else {
                continue;
            };
            let before = pair.model.clone();
            match pair.attempt(&call) {
                Ok(expected) if expected.is_done() => {
                    state.done(&call, &before, &pair.model, at + 1);
                }
                Ok(_) => {}
                Err(error) => {
                    let found = Errno::from_raw_os_error(error.errno());
                    let is_right = refusal == Some(found);
                    ensure!(is_right, "{call:?} fails with {error}");
                    let part = pair.part_of_refused().cloned();
                    if let Some(part) = &part {
                        state.done(part, &before, &pair.model, at + 1);
                    }
                    refused.insert(at, part);
                }
            }
        }
        drop(pair);
        fs.unmount().context("unmounting")?;
        self.check_end(&device, &refused)?;
        Ok(refused.len() as u64)
    }

    /// Checks that the file system after the unmount is the last version, without the steps that
    /// were refused, except for the parts of these that were done. Data of the first of them may be
    /// there if no part was done: it is written before blocks are allocated for the rest.
    fn check_end(&self, device: &Arc<RamDevice>, refused: &Refused) -> Result<()> {
        let fs = Fs::mount(device.clone(), &self.options())?;
        let timelines = |refused| {
            let model = self.base.models[0].clone();
            let executor = Executor::Library;
            [Timeline::of_parts(executor, model, &self.steps, refused)]
        };
        let exactly = |version| Progress {
            durable: version,
            begun: version,
        };
        let last = exactly(self.steps.len());
        let strictly = judge(&fs, &timelines(refused), AtCrash::of(&[last]), self.mode);
        if let (Err(_), Some((&first, None))) = (&strictly, refused.first_key_value()) {
            let begun = first + 1;
            let progress = Progress {
                begun,
                ..exactly(first)
            };
            let found = judge(
                &fs,
                &timelines(&Refused::new()),
                AtCrash::of(&[progress]),
                self.mode,
            )?;
            ensure!(found == [first], "a refused call changed the file system");
        } else {
            strictly?;
        }
        fs.unmount()?;
        check_clean(device.clone()).map(drop)
    }

    fn recover(&self, device: &Arc<RamDevice>, progress: Progress) -> Result<()> {
        let fs = Fs::mount(device.clone(), &self.options()).context("the next mount")?;
        let timelines = std::slice::from_ref(&self.timeline);
        judge(&fs, timelines, AtCrash::of(&[progress]), self.mode)
            .context("after the next mount")?;
        fs.unmount()?;
        check_clean(device.clone()).map(drop)
    }
}
