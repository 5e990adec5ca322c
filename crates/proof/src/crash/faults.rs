//! **Purpose.** A device that fails at every moment of a workload, memory that is too little, and a
//! file system that is full: what each call says then, and what is left.
//!
//! **Model.** A *case* is an operation of the catalogue, made durable. A *trial* does a case with
//! one fault: the n-th read, write or flush fails, from the mount to the unmounting, once or from
//! then on. The trials of a case go on until the fault comes too late to strike; who has less time
//! tries one n in so many, others in each case. The first call that fails ends the workload; then
//! the device works again.
//!
//! # What is checked
//! - The call fails with the error of the device and no other.
//! - The mount goes on or is stopped: if another call succeeds, a sync does and vouches for all;
//!   if it is refused as read-only, so is every later one, and no sync succeeds.
//! - The call that failed was done or was not, as everybody sees at once; and nothing else has
//!   changed.
//! - What is mounted anew is a version between what was vouched for and what had begun, as after a
//!   crash, and the checker finds nothing leaked and nothing shared.
//! - Nobody panics, and nobody waits for ever: [`run`] is told how long a trial may take.
//!
//! A full file system refuses with `ENOSPC`, which changes nothing; what has room is done. With
//! little memory everything is done, or refused with `ENOMEM`.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::AddAssign;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use fourscore::block::{DeviceOp, FaultyDevice, RamDevice, Rule};
use fourscore::{Arc, Fs, InodeNr, MountOptions, OpenOptions};
use fourscore_testkit::crew::{Crew, Watch, Work};
use rustix::io::Errno;

use super::base::{Base, Company, PROBE, mount_options};
use super::breaking::Breaking;
use super::campaign::caught;
use super::catalogue::OPS;
use super::judge::{Known, judge};
use super::timeline::{Course, Timeline};
use super::workload::{Format, LogWish, Mode, Room, Shape, Step};
use crate::BY_ROOT;
use crate::model::Pair;
use crate::sound::check_clean;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// One operation of the device.
    Once(DeviceOp),
    /// It and all later ones of its kind.
    FromThenOn(DeviceOp),
    /// A write of which the front arrives.
    Short,
    /// All writes from then on, since the host has no room for the image.
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
        /// The superblock arrives as a whole: the format cannot outlive one that is torn.
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

    /// Whether a call may fail so.
    fn is_told_as(self, errno: i32) -> bool {
        let told = Errno::from_raw_os_error(errno);
        told == Errno::IO || self == Self::HostFull && told == Errno::NOSPC
    }
}

/// What is done.
struct Case {
    steps: Vec<Step>,
    mode: Mode,
    timeline: Timeline,
    base: Arc<Base>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trials {
    /// Trials with a fault that struck.
    pub faults: u64,
    /// ... and made a call fail between the mount and the unmounting.
    pub calls: u64,
    /// Trials with little memory.
    pub memory: u64,
    /// Trials on a file system with few blocks.
    pub full: u64,
    /// Calls of the latter two that were refused.
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
            "{faults} faults struck, {calls} of them a call; {memory} trials with little memory, \
             {full} with few blocks, {refused} calls refused"
        )
    }
}

/// Of so many moments at which a fault may strike, one is tried.
#[derive(Clone, Copy, Debug)]
pub struct OneIn(pub NonZeroU64);

/// Does trials on `threads` threads, each of which may take as long as `patience`.
///
/// # Errors
/// The first trial that did not end well.
pub fn run(threads: usize, patience: Duration, share: OneIn) -> Result<Trials> {
    let crew = Crew {
        first: 0,
        threads,
        patience,
    };
    let (_, trials) = crew.run(Cases { share })?;
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
        number >= (OPS.len() * MODES.len()) as u64
    }

    fn piece(&self, number: u64, watch: &Watch<'_, ()>) -> Result<Trials> {
        let number = usize::try_from(number)?;
        let (op, shape) = (number % OPS.len(), MODES[number / OPS.len()]);
        let (mode, block_bytes) = shape;
        let shown = || format!("{} with blocks of {block_bytes}, {mode:?}", OPS[op].name);
        let trying = Trying {
            op,
            shape,
            share: self.share,
            watch,
            trials: Trials::default(),
        };
        trying.all().with_context(shown)
    }

    fn overdue(&self, (): (), error: Error) -> Error {
        error
    }
}

/// The trials with an operation in a shape.
struct Trying<'c> {
    op: usize,
    shape: (Mode, u32),
    share: OneIn,
    watch: &'c Watch<'c, ()>,
    trials: Trials,
}

impl Trying<'_> {
    fn all(mut self) -> Result<Trials> {
        self.faults()?;
        self.little_memory()?;
        self.full()?;
        Ok(self.trials)
    }

    /// Does a trial, and counts it.
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
        let case = Case::new(self.op, self.shape, Room::Ample)?;
        let OneIn(step) = self.share;
        for (kind, fault) in (0..).zip(Fault::ALL) {
            let first = 1 + (self.op as u64 + kind) % step;
            for nth in (0..).map(|times| first + times * step.get()) {
                let came = self.trial(
                    || case.with_fault(fault, nth),
                    || format!("{fault:?}, at the {nth}. time"),
                    |came, trials| {
                        trials.faults += u64::from(*came != Came::TooLate);
                        trials.calls += u64::from(*came == Came::IntoACall);
                    },
                )?;
                if came == Came::TooLate {
                    break;
                }
            }
        }
        Ok(())
    }

    fn little_memory(&mut self) -> Result<()> {
        let case = Case::new(self.op, self.shape, Room::Ample)?;
        for cache_bytes in [0, 1 << 12, 1 << 14, 1 << 16] {
            let open = OpenOptions::new().cache_bytes(cache_bytes);
            let options = case.options().open(open);
            self.trial(
                || case.to_the_end(&options, Errno::NOMEM),
                || format!("{cache_bytes} bytes of cache"),
                |refused, trials| {
                    trials.memory += 1;
                    trials.refused += refused;
                },
            )?;
        }
        Ok(())
    }

    fn full(&mut self) -> Result<()> {
        for blocks in 0..=MOST_FREE_BLOCKS {
            let case = Case::new(self.op, self.shape, Room::Blocks(blocks))?;
            self.trial(
                || case.to_the_end(&case.options(), Errno::NOSPC),
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

const MODES: [(Mode, u32); 3] = [
    (Mode::Ordered, 1024),
    (Mode::Journal, 1024),
    (Mode::Ordered, 4096),
];
/// More than what any operation takes.
const MOST_FREE_BLOCKS: u32 = 6;

/// Whether a fault struck before the workload had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// It made a call fail that was neither the mount nor unmounting.
    IntoACall,
    InTime,
    TooLate,
}

impl Case {
    fn new(op: usize, (mode, block_bytes): (Mode, u32), room: Room) -> Result<Self> {
        let shape = Shape {
            format: Format::Usual,
            block_bytes,
            trees: 1,
            log: LogWish::Journal,
            room,
        };
        let base = Base::of(shape)?;
        // A call that changes nothing leaves nothing to be made durable.
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
        mount_options(self.mode, Company::None, Breaking::default())
    }

    fn pair(&self, fs: &Arc<Fs>) -> Pair {
        let (model, numbers) = (self.base.models[0].clone(), self.base.numbers[0].clone());
        Pair::with(Arc::clone(fs), model, numbers)
    }

    fn with_fault(&self, fault: Fault, nth: u64) -> Result<Came> {
        let below = self.base.disk();
        let device = Arc::new(FaultyDevice::new(below.clone()));
        device.add(fault.rule(nth));
        let (known, came) = self.run_into(fault, &device)?;
        if came != Came::TooLate {
            self.recover(&below, known)?;
        }
        Ok(came)
    }

    /// Does the workload up to the first failure, and says what is known then.
    fn run_into(&self, fault: Fault, device: &Arc<FaultyDevice>) -> Result<(Known, Came)> {
        let told = |error: fourscore::Error, what: &str| {
            let is_right = fault.is_told_as(error.errno());
            ensure!(is_right, "{what} fails with {}: {error}", error.errno());
            Ok(())
        };
        let mut known = Known::default();
        let fs = match Fs::mount(device.clone(), &self.options()) {
            Ok(fs) => fs,
            Err(error) => return told(error, "the mount").map(|()| (known, Came::InTime)),
        };
        let mut pair = self.pair(&fs);
        let mut course = Course::default();
        for (at, &step) in self.steps.iter().enumerate() {
            let Some(call) = course.call(step, &pair.model) else {
                continue;
            };
            known.begun = at + 1;
            let before = pair.model.clone();
            match pair.attempt(&call) {
                Ok(expected) => {
                    if expected.is_done() {
                        course.done(&call, (&before, &pair.model), at + 1);
                    }
                    known.vouched = known.vouched.max(self.timeline.vouches[at]);
                }
                Err(error) => {
                    told(error, &format!("{call:?}"))?;
                    drop(pair);
                    device.heal();
                    self.look_at_living(&fs, &mut known, at)?;
                    // What was stopped says so to the end.
                    drop(fs.unmount());
                    return Ok((known, Came::IntoACall));
                }
            }
        }
        known.begun = self.steps.len();
        drop(pair);
        match fs.unmount() {
            Ok(()) => known.vouched = known.begun,
            Err(error) => told(error, "unmounting")?,
        }
        let came = match device.has_struck() {
            true => Came::InTime,
            false => Came::TooLate,
        };
        Ok((known, came))
    }

    /// What a mount is after the call of step `at` has failed, and the device works again.
    fn look_at_living(&self, fs: &Fs, known: &mut Known, at: usize) -> Result<()> {
        let timelines = std::slice::from_ref(&self.timeline);
        let seen = Known {
            vouched: at,
            begun: known.begun,
        };
        judge(fs, timelines, (&[seen], &[]), self.mode).context("while it is mounted")?;
        let probe = || fs.create(InodeNr::ROOT, PROBE, &BY_ROOT);
        match probe() {
            Ok(_) => {
                fs.sync().context("a file can be made, and a sync fails")?;
                known.vouched = at;
            }
            Err(error) => {
                // Who finds the journal aborted is told so; whoever comes later, that nothing is
                // written.
                let errno = Errno::from_raw_os_error(error.errno());
                let is_right = matches!(errno, Errno::IO | Errno::ROFS);
                ensure!(is_right, "after a failure: {error}");
                for _ in 0..2 {
                    let Err(error) = probe() else {
                        bail!("what was stopped goes on");
                    };
                    let errno = Errno::from_raw_os_error(error.errno());
                    ensure!(errno == Errno::ROFS, "what was stopped says {error}");
                    ensure!(fs.sync().is_err(), "what was stopped makes durable");
                }
                fs.statfs().context("what was stopped is read")?;
            }
        }
        Ok(())
    }

    /// Does all of the workload and says how many calls were refused, which they may be with
    /// `refusal`.
    fn to_the_end(&self, options: &MountOptions, refusal: Errno) -> Result<u64> {
        let device = self.base.disk();
        let fs = Fs::mount(device.clone(), options).context("the mount")?;
        let mut pair = self.pair(&fs);
        let mut course = Course::default();
        let mut refused = Vec::new();
        for (at, &step) in self.steps.iter().enumerate() {
            let Some(call) = course.call(step, &pair.model) else {
                continue;
            };
            let before = pair.model.clone();
            match pair.attempt(&call) {
                Ok(expected) if expected.is_done() => {
                    course.done(&call, (&before, &pair.model), at + 1);
                }
                Ok(_) => {}
                Err(error) => {
                    let is_right = error.errno() == refusal.raw_os_error();
                    ensure!(is_right, "{call:?} fails with {error}");
                    refused.push(at);
                }
            }
        }
        drop(pair);
        fs.unmount().context("unmounting")?;
        self.ends_as(&device, &refused)?;
        Ok(refused.len() as u64)
    }

    /// What was unmounted is the last version, without the steps that were refused. Of the first of
    /// these there may be data: what goes to its place goes there before blocks are asked for.
    fn ends_as(&self, device: &Arc<RamDevice>, refused: &[usize]) -> Result<()> {
        let fs = Fs::mount(device.clone(), &self.options())?;
        let timelines = |refused| {
            let model = self.base.models[0].clone();
            [Timeline::of(model, &self.steps, refused)]
        };
        let exactly = |version| Known {
            vouched: version,
            begun: version,
        };
        let last = exactly(self.steps.len());
        let strictly = judge(&fs, &timelines(refused), (&[last], &[]), self.mode);
        if let (Err(_), Some(&first)) = (&strictly, refused.first()) {
            let begun = first + 1;
            let known = Known {
                begun,
                ..exactly(first)
            };
            let found = judge(&fs, &timelines(&[]), (&[known], &[]), self.mode)?;
            ensure!(found == [first], "what was refused was done");
        } else {
            strictly?;
        }
        fs.unmount()?;
        check_clean(device.clone()).map(drop)
    }

    fn recover(&self, device: &Arc<RamDevice>, known: Known) -> Result<()> {
        let fs = Fs::mount(device.clone(), &self.options()).context("the next mount")?;
        let timelines = std::slice::from_ref(&self.timeline);
        judge(&fs, timelines, (&[known], &[]), self.mode).context("after the next mount")?;
        fs.unmount()?;
        check_clean(device.clone()).map(drop)
    }
}
