//! **Purpose.** A device that fails at every moment of a workload, memory that is too little, and a
//! file system that is full: what each call says then, and what is left.
//!
//! **Model.** A *case* is an operation of the catalogue, made durable. A *trial* does a case with
//! one fault: the n-th read, write or flush fails, from the mount to the unmounting, once or from
//! then on. The trials of a case go on until the fault comes too late to strike. The first call
//! that fails ends the workload; then the device works again.
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
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use fourscore::block::{DeviceOp, FaultyDevice, RamDevice, Rule};
use fourscore::{Arc, Fs, InodeNr, MountOptions, OpenOptions};
use fourscore_sync::{Condvar, Mutex, thread};
use rustix::io::Errno;

use super::base::{Base, Company, PROBE, mount_options, owned_by_root};
use super::breaking::Breaking;
use super::campaign::caught;
use super::catalogue::OPS;
use super::judge::{Known, judge};
use super::session::check_clean;
use super::timeline::{Course, Timeline};
use super::workload::{LogWish, Mode, Room, Shape, Step};
use crate::model::Pair;

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
    /// Trials with little memory.
    pub memory: u64,
    /// Trials on a file system with few blocks.
    pub full: u64,
    /// Calls of the latter two that were refused.
    pub refused: u64,
}

impl fmt::Display for Trials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            faults,
            memory,
            full,
            refused,
        } = self;
        write!(
            f,
            "{faults} faults struck; {memory} trials with little memory, {full} with few blocks, \
             {refused} calls refused"
        )
    }
}

/// Does all trials on `threads` threads, each of which may take as long as `patience`.
///
/// # Errors
/// The first trial that did not end well.
pub fn run(threads: usize, patience: Duration) -> Result<Trials> {
    let work = Arc::new(Work::default());
    for _ in 0..threads {
        let work = Arc::clone(&work);
        thread::spawn(move || work.cases());
    }
    let mut progress = work.progress.lock();
    let mut before = 0;
    while progress.ended < threads {
        let timed_out = work.changed.wait_for(&mut progress, patience).timed_out();
        if let Some(error) = progress.error.take() {
            return Err(error);
        }
        ensure!(
            !timed_out || progress.beats > before,
            "no end after {patience:?}"
        );
        before = progress.beats;
    }
    Ok(progress.trials)
}

/// What threads share.
#[derive(Default)]
struct Work {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    next_case: usize,
    trials: Trials,
    beats: u64,
    ended: usize,
    error: Option<Error>,
}

impl Work {
    fn cases(&self) {
        loop {
            let nr = {
                let mut progress = self.progress.lock();
                let nr = progress.next_case;
                progress.next_case += 1;
                nr
            };
            let result = match nr < OPS.len() * MODES.len() {
                true => caught(|| self.case(OPS.len() - 1 - nr % OPS.len(), MODES[nr / OPS.len()])),
                false => break,
            };
            if let Err(error) = result {
                let mut progress = self.progress.lock();
                progress.error = Some(error);
                progress.next_case = usize::MAX / 2;
            }
        }
        self.progress.lock().ended += 1;
        self.changed.notify_all();
    }

    fn case(&self, op: usize, (mode, block_bytes): (Mode, u32)) -> Result<()> {
        let shown = || format!("{} with blocks of {block_bytes}, {mode:?}", OPS[op].name);
        self.faults(op, (mode, block_bytes)).with_context(shown)?;
        self.little_memory(op, (mode, block_bytes))
            .with_context(shown)?;
        self.full(op, (mode, block_bytes)).with_context(shown)
    }

    fn note(&self, add: impl FnOnce(&mut Trials)) {
        let mut progress = self.progress.lock();
        progress.beats += 1;
        add(&mut progress.trials);
    }

    fn faults(&self, op: usize, shape: (Mode, u32)) -> Result<()> {
        let case = Case::new(op, shape, Room::Ample)?;
        for fault in Fault::ALL {
            for nth in 1.. {
                let shown = || format!("{fault:?}, at the {nth}. time");
                match case.with_fault(fault, nth).with_context(shown)? {
                    Came::InTime => self.note(|trials| trials.faults += 1),
                    Came::TooLate => break,
                }
            }
        }
        Ok(())
    }

    fn little_memory(&self, op: usize, shape: (Mode, u32)) -> Result<()> {
        let case = Case::new(op, shape, Room::Ample)?;
        for cache_bytes in [0, 1 << 12, 1 << 14, 1 << 16] {
            let shown = || format!("{cache_bytes} bytes of cache");
            let open = OpenOptions::new().cache_bytes(cache_bytes);
            let options = case.options().open(open);
            let refused = case
                .to_the_end(&options, Errno::NOMEM)
                .with_context(shown)?;
            self.note(|trials| {
                trials.memory += 1;
                trials.refused += refused;
            });
        }
        Ok(())
    }

    fn full(&self, op: usize, shape: (Mode, u32)) -> Result<()> {
        for blocks in 0..=MOST_FREE_BLOCKS {
            let shown = || format!("{blocks} free blocks");
            let case = Case::new(op, shape, Room::Blocks(blocks))?;
            let refused = case.to_the_end(&case.options(), Errno::NOSPC);
            let refused = refused.with_context(shown)?;
            self.note(|trials| {
                trials.full += 1;
                trials.refused += refused;
            });
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
    InTime,
    TooLate,
}

impl Case {
    fn new(op: usize, (mode, block_bytes): (Mode, u32), room: Room) -> Result<Self> {
        let shape = Shape {
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
        let below = Arc::new(RamDevice::from_bytes(&self.base.bytes));
        let device = Arc::new(FaultyDevice::new(below.clone()));
        device.add(fault.rule(nth));
        let known = self.run_into(fault, &device)?;
        if !device.has_struck() {
            return Ok(Came::TooLate);
        }
        self.recover(&below, known)?;
        Ok(Came::InTime)
    }

    /// Does the workload up to the first failure, and says what is known then.
    fn run_into(&self, fault: Fault, device: &Arc<FaultyDevice>) -> Result<Known> {
        let told = |error: fourscore::Error, what: &str| {
            let is_right = fault.is_told_as(error.errno());
            ensure!(is_right, "{what} fails with {}: {error}", error.errno());
            Ok(())
        };
        let mut known = Known::default();
        let fs = match Fs::mount(device.clone(), &self.options()) {
            Ok(fs) => fs,
            Err(error) => return told(error, "the mount").map(|()| known),
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
                    return Ok(known);
                }
            }
        }
        known.begun = self.steps.len();
        drop(pair);
        match fs.unmount() {
            Ok(()) => known.vouched = known.begun,
            Err(error) => told(error, "unmounting")?,
        }
        Ok(known)
    }

    /// What a mount is after the call of step `at` has failed, and the device works again.
    fn look_at_living(&self, fs: &Fs, known: &mut Known, at: usize) -> Result<()> {
        let timelines = std::slice::from_ref(&self.timeline);
        let seen = Known {
            vouched: at,
            begun: known.begun,
        };
        judge(fs, timelines, &[seen], self.mode).context("while it is mounted")?;
        let probe = || fs.create(InodeNr::ROOT, PROBE, &owned_by_root());
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
        let device = Arc::new(RamDevice::from_bytes(&self.base.bytes));
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
        let strictly = judge(&fs, &timelines(refused), &[last], self.mode);
        if let (Err(_), Some(&first)) = (&strictly, refused.first()) {
            let begun = first + 1;
            let known = Known {
                begun,
                ..exactly(first)
            };
            let found = judge(&fs, &timelines(&[]), &[known], self.mode)?;
            ensure!(found == [first], "what was refused was done");
        } else {
            strictly?;
        }
        fs.unmount()?;
        check_clean(device.clone())
    }

    fn recover(&self, device: &Arc<RamDevice>, known: Known) -> Result<()> {
        let fs = Fs::mount(device.clone(), &self.options()).context("the next mount")?;
        let timelines = std::slice::from_ref(&self.timeline);
        judge(&fs, timelines, &[known], self.mode).context("after the next mount")?;
        fs.unmount()?;
        check_clean(device.clone())
    }
}
