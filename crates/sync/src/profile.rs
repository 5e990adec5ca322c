//! **Purpose.** A profile of where the time of operations goes: in a handle, in maps, in the choice
//! of groups, in waits for group locks, in bitmaps, in the journal, at the device.
//!
//! **Not here.** The sections themselves: the crates enter them where they do the work. What is
//! measured and printed is chosen in the crate `lab`.
//!
//! **Model.** The caller of the library says where an operation begins and ends ([`operation`]),
//! and the library which [`Section`] a piece of code belongs to ([`enter`]). Sections nest; a time
//! belongs to the innermost one only:
//!
//! ```text
//!            operation ---------------------------------------- end  . . . .  operation
//!               rest  | map | rest | handle | bitmap | handle |       outside
//! ```
//!
//! So the times of all sections, of the rest and of what is outside add up to the time of the
//! thread.
//!
//! **Sampling.** Two readings of the clock for each section would be a tenth of the time of a short
//! operation. So sections are of two kinds:
//!
//! - *Waiting* (group lock, journal, device) is timed in every operation: it takes microseconds and
//!   more, and is rare or long.
//! - *Work* (the others, the rest, and what is outside) is timed in a sample. The operations of a
//!   thread are divided into blocks; one operation of a block, chosen at random, and the gap after
//!   it are measured and stand for all of the block. The length of the next block follows from the
//!   times of operations measured before: short ones are measured rarely, long ones always.
//!
//! The time of a thread from its first operation to the last one that was measured is known, and so
//! is the waiting in it. The kinds of work share the rest in proportion to their weighted times:
//!
//! ```text
//! time of a kind of work = (time of the thread - waiting) x its weighted time / all weighted time
//! ```
//!
//! Hence all times together are never more than that of the threads. [`Sampling::All`] measures
//! every operation; then each of them is exact.
//!
//! What threads of the library do in the background, a commit for instance, is in no operation; a
//! thread that waits for it is in the section of its wait.
//!
//! If a thread is preempted in a measured operation, the pause would be counted for every operation
//! of the block. So the weighted time of a piece of work is cut to a limit, or to its own time if
//! that is longer.
//!
//! **Invariants.** A section takes time only inside of an operation. While no profile is on, an
//! operation reads one word that no thread writes, and a section one word of its own thread.
//!
//! **Locking.** None. What is measured is kept in words of the thread, and added to words of the
//! core at the end of a measured operation. They are those of the process: operations on several
//! file systems are added up, as waits for locks are ([`crate::rank`]).

mod ticks;

use std::array;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
// Of std even in the other builds: statistics are no part of a model.
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread_local;
use std::time::Duration;

use crate::core_nr::PerCore;

/// A kind of work, or of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Section {
    /// A handle is open: blocks join the transaction and are changed.
    Handle,
    /// A block of a file is looked up, or mapped to another place.
    Map,
    /// A group, and a place in it, is chosen for an allocation.
    GroupChoice,
    /// A group is locked by another thread.
    GroupLockWait,
    /// Bits are changed in the bitmap of a group or in its free lists, or these are loaded.
    Bitmap,
    /// A commit or a checkpoint is made, or waited for.
    Journal,
    /// The device is read, written or flushed.
    Device,
}

/// The number of sections.
const SECTIONS: usize = 7;
/// Time of an operation in none of them.
const REST: u8 = 7;
/// The kinds of time inside of operations.
const KINDS: usize = SECTIONS + 1;
/// In place of the section around an entered one, if leaving that one changes nothing.
const UNTIMED: u8 = u8::MAX;

/// Whether a kind of time is waiting, which is timed in every operation.
const fn is_waiting(kind: u8) -> bool {
    kind == Section::GroupLockWait as u8
        || kind == Section::Journal as u8
        || kind == Section::Device as u8
}

impl Section {
    /// All sections.
    pub const ALL: [Self; SECTIONS] = [
        Self::Handle,
        Self::Map,
        Self::GroupChoice,
        Self::GroupLockWait,
        Self::Bitmap,
        Self::Journal,
        Self::Device,
    ];

    /// The name of the section.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handle => "handle",
            Self::Map => "map",
            Self::GroupChoice => "group choice",
            Self::GroupLockWait => "group lock wait",
            Self::Bitmap => "bitmap",
            Self::Journal => "journal",
            Self::Device => "device",
        }
    }
}

/// In which operations work is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// So many that measuring takes little of the time: about one in 80 microseconds.
    Some,
    /// All of them.
    All,
}

/// The profile that is on: 0 for none, else an even number that is unique to this call of
/// [`start`], plus 1 if all operations are measured.
static PROFILE: AtomicU64 = AtomicU64::new(0);
/// The profiles that were started.
static STARTED: AtomicU64 = AtomicU64::new(0);
static CORES: OnceLock<PerCore<CoreWords>> = OnceLock::new();

/// The sums of a core, times in ticks.
#[derive(Debug, Default)]
struct CoreWords {
    /// Weighted, except for waiting.
    ticks: [AtomicU64; KINDS],
    /// How often a section was entered, weighted in the same way.
    entered: [AtomicU64; SECTIONS],
    /// Weighted time between operations.
    outside: AtomicU64,
    /// The time of threads.
    covered: AtomicU64,
    operations: AtomicU64,
    measured: AtomicU64,
}

/// Begins to measure operations that begin from now on. The sums of an earlier profile stay:
/// callers take differences ([`Sums::since`]).
pub fn start(sampling: Sampling) {
    // The rate of the clock is known the better the longer it has run.
    ticks::now();
    CORES.get_or_init(PerCore::default);
    let nr = STARTED.fetch_add(1, Ordering::Relaxed) + 1;
    let all = u64::from(sampling == Sampling::All);
    PROFILE.store(nr * 2 + all, Ordering::Release);
}

/// Ends measuring. Operations that have begun are measured to their end.
pub fn stop() {
    PROFILE.store(0, Ordering::Release);
}

/// Whether operations are measured.
#[must_use]
pub fn is_on() -> bool {
    PROFILE.load(Ordering::Acquire) != 0
}

/// What a thread times: nothing, because it is in no operation or no profile is on; waiting; or all
/// sections.
const NOTHING: u8 = 0;
const WAITING: u8 = 1;
const EVERYTHING: u8 = 2;

thread_local! {
    static TIMED: Cell<u8> = const { Cell::new(NOTHING) };
    static THREAD: ThreadWords = const { ThreadWords::new() };
}

/// The words of a thread.
struct ThreadWords {
    /// Operations that the thread is in.
    depth: Cell<u32>,
    /// The profile that the words below belong to.
    profile: Cell<u64>,
    /// Operations up to the next one that ends a gap or is measured, that one included.
    left: Cell<u64>,
    /// While a gap lasts: operations up to the next one that is measured, that one included;
    /// else 1.
    until_measured: Cell<u64>,
    /// Operations from one that is measured to the next.
    distance: Cell<u64>,
    /// The block of the operation that was measured last.
    block: Cell<Block>,
    /// The block of the operation that is measured next.
    next_block: Cell<Block>,
    /// Whether the thread is in the gap after a measured operation.
    is_gap: Cell<bool>,
    /// Up to when the time of the thread has been added to the core's, in ticks.
    covered_until: Cell<u64>,
    /// The mean time of measured operations, recent ones most, in ticks.
    mean_ticks: Cell<u64>,
    random: Cell<u64>,
    /// When the measured operation began.
    began: Cell<u64>,
    /// The section that the thread is in, and since when.
    section: Cell<u8>,
    since: Cell<u64>,
    ticks: [Cell<u64>; KINDS],
    entered: [Cell<u64>; SECTIONS],
}

/// Operations of a thread that follow each other, of which one is measured.
#[derive(Clone, Copy)]
struct Block {
    len: u64,
    /// Operations of the block behind the one that is measured.
    behind: u64,
}

impl Block {
    const ONE: Self = Self { len: 1, behind: 0 };
}

/// Ticks between operations that are measured, about: 80 microseconds at 2.5 GHz. Measuring one
/// takes some hundred nanoseconds.
const TICKS_BETWEEN: u64 = 200_000;
/// The longest block.
const LONGEST_BLOCK: u64 = 256;
/// The limit of the weighted time of a piece of work: some milliseconds, as long as a preempted
/// thread does not run.
const MOST_WEIGHTED: u64 = 50 * TICKS_BETWEEN;

impl ThreadWords {
    const fn new() -> Self {
        Self {
            depth: Cell::new(0),
            profile: Cell::new(0),
            left: Cell::new(0),
            until_measured: Cell::new(1),
            distance: Cell::new(1),
            block: Cell::new(Block::ONE),
            next_block: Cell::new(Block::ONE),
            is_gap: Cell::new(false),
            covered_until: Cell::new(0),
            mean_ticks: Cell::new(0),
            random: Cell::new(1),
            began: Cell::new(0),
            section: Cell::new(REST),
            since: Cell::new(0),
            ticks: [const { Cell::new(0) }; KINDS],
            entered: [const { Cell::new(0) }; SECTIONS],
        }
    }

    /// Begins an operation. Returns what is timed in it.
    #[inline]
    fn begin(&self, profile: u64) -> u8 {
        self.depth.set(self.depth.get() + 1);
        if self.depth.get() > 1 {
            return NOTHING;
        }
        if self.profile.get() != profile {
            self.join(profile);
        }
        let left = self.left.get() - 1;
        self.left.set(left);
        let timed = match left == 0 && self.take_turn() {
            true => EVERYTHING,
            false => WAITING,
        };
        TIMED.set(timed);
        timed
    }

    /// Forgets what an earlier profile has left; the next operation is measured.
    #[cold]
    fn join(&self, profile: u64) {
        self.profile.set(profile);
        self.left.set(1);
        self.until_measured.set(1);
        self.distance.set(1);
        self.next_block.set(Block::ONE);
        self.is_gap.set(false);
        self.covered_until.set(ticks::now());
        self.mean_ticks.set(0);
        self.section.set(REST);
        self.ticks.iter().for_each(|ticks| ticks.set(0));
        self.entered.iter().for_each(|entered| entered.set(0));
        // Another one for each thread; a shift register needs a number that is not 0.
        self.random.set(std::ptr::from_ref(self).addr() as u64 | 1);
    }

    /// Ends the gap, if one lasts, and begins to measure the operation if it is its turn.
    #[inline(never)]
    fn take_turn(&self) -> bool {
        let now = ticks::now();
        if self.is_gap.take() {
            let gap = self.weighted(now.saturating_sub(self.since.get()));
            add(&core_words().outside, gap);
        }
        let until = self.until_measured.replace(1) - 1;
        if until > 0 {
            self.left.set(until);
            return false;
        }
        self.cover(now);
        self.block.set(self.next_block.get());
        self.section.set(REST);
        self.began.set(now);
        self.since.set(now);
        true
    }

    /// Ends an operation that is measured, and chooses the next one.
    #[inline(never)]
    fn finish(&self) {
        let now = ticks::now();
        self.turn_to(REST, now);
        let words = core_words();
        for (word, ticks) in words.ticks.iter().zip(&self.ticks) {
            add(word, ticks.take());
        }
        for (word, entered) in words.entered.iter().zip(&self.entered) {
            add(word, entered.take());
        }
        add(&words.operations, self.distance.get());
        add(&words.measured, 1);
        self.cover(now);
        self.choose_next(now.saturating_sub(self.began.get()));
        self.is_gap.set(true);
        self.since.set(now);
    }

    /// Adds the time of the thread up to now to that of the core.
    fn cover(&self, now: u64) {
        let since = self.covered_until.replace(now);
        add(&core_words().covered, now.saturating_sub(since));
    }

    /// What a time of work in the measured operation, or of the gap after it, stands for.
    fn weighted(&self, ticks: u64) -> u64 {
        let weighted = ticks.saturating_mul(self.block.get().len);
        weighted.min(MOST_WEIGHTED.max(ticks))
    }

    /// Chooses the operation that is measured next.
    fn choose_next(&self, ticks: u64) {
        let mean = (self.mean_ticks.get() * 3 + ticks.min(TICKS_BETWEEN * 4)) / 4;
        self.mean_ticks.set(mean);
        let measures_all = self.profile.get() & 1 != 0;
        let len = match measures_all {
            true => 1,
            false => (TICKS_BETWEEN / mean.max(1)).clamp(1, LONGEST_BLOCK),
        };
        let before = self.draw() % len;
        let behind = len - 1 - before;
        let distance = self.block.get().behind + before + 1;
        self.distance.set(distance);
        self.until_measured.set(distance);
        // The next operation ends the gap.
        self.left.set(1);
        self.next_block.set(Block { len, behind });
    }

    /// A random number (xorshift, by G. Marsaglia).
    fn draw(&self) -> u64 {
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        random
    }

    /// Ends the time of the section that the thread is in; it is in `section` from `now` on.
    #[inline]
    fn turn_to(&self, section: u8, now: u64) {
        let before = self.section.replace(section);
        let since = self.since.replace(now);
        let Some(sum) = self.ticks.get(usize::from(before)) else {
            return;
        };
        let ticks = now.saturating_sub(since);
        if is_waiting(before) {
            sum.set(sum.get() + ticks);
        } else if TIMED.get() == EVERYTHING {
            sum.set(sum.get() + self.weighted(ticks));
        }
    }

    /// Enters a section; returns the one around it.
    fn enter(&self, section: u8) -> u8 {
        let outer = self.section.get();
        if outer == section {
            return UNTIMED;
        }
        if let Some(entered) = self.entered.get(usize::from(section)) {
            let weight = match is_waiting(section) {
                true => 1,
                false => self.block.get().len,
            };
            entered.set(entered.get() + weight);
        }
        self.turn_to(section, ticks::now());
        outer
    }
}

fn add(word: &AtomicU64, value: u64) {
    if value != 0 {
        word.fetch_add(value, Ordering::Relaxed);
    }
}

/// The words of the core that the thread runs on.
fn core_words() -> &'static CoreWords {
    CORES.get_or_init(PerCore::default).mine()
}

/// An operation; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the operation ends when this is dropped"]
pub struct Operation {
    state: State,
    /// It ends on the thread on which it began.
    not_send: PhantomData<*const ()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It began while no profile was on.
    Unknown,
    /// It is part of another one.
    Inner,
    /// Waiting is timed in it, and no work.
    Counted,
    /// It is measured.
    Measured,
}

/// Begins an operation of the calling thread. What it does until the end of the operation is in the
/// profile, if one is on. An operation inside of another one is a part of that.
#[inline]
pub fn operation() -> Operation {
    let profile = PROFILE.load(Ordering::Relaxed);
    let state = match profile {
        0 => State::Unknown,
        _ => match THREAD.with(|words| words.begin(profile)) {
            NOTHING => State::Inner,
            WAITING => State::Counted,
            _ => State::Measured,
        },
    };
    Operation {
        state,
        not_send: PhantomData,
    }
}

impl Drop for Operation {
    #[inline]
    fn drop(&mut self) {
        if self.state == State::Unknown {
            return;
        }
        THREAD.with(|words| {
            words.depth.set(words.depth.get() - 1);
            if self.state == State::Measured {
                words.finish();
            }
            if self.state != State::Inner {
                TIMED.set(NOTHING);
            }
        });
    }
}

/// A section that the thread is in; it leaves it when this is dropped.
#[derive(Debug)]
#[must_use = "the section ends when this is dropped"]
pub struct Entered {
    /// The section around it, or [`UNTIMED`].
    outer: u8,
    /// It ends on the thread on which it began.
    not_send: PhantomData<*const ()>,
}

/// Enters a section. If the thread is in it already, nothing changes: that is one time.
#[inline(always)]
pub fn enter(section: Section) -> Entered {
    let least = match is_waiting(section as u8) {
        true => WAITING,
        false => EVERYTHING,
    };
    let outer = match TIMED.get() >= least {
        true => enter_timed(section as u8),
        false => UNTIMED,
    };
    Entered {
        outer,
        not_send: PhantomData,
    }
}

#[cold]
fn enter_timed(section: u8) -> u8 {
    THREAD.with(|words| words.enter(section))
}

impl Drop for Entered {
    #[inline(always)]
    fn drop(&mut self) {
        if self.outer != UNTIMED {
            leave_timed(self.outer);
        }
    }
}

#[cold]
fn leave_timed(outer: u8) {
    THREAD.with(|words| match TIMED.get() {
        // The operation has ended before the section. Its times have been added up.
        NOTHING => words.section.set(REST),
        _ => words.turn_to(outer, ticks::now()),
    });
}

/// The time in a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionTime {
    /// The time, without that in sections inside of it.
    pub time: Duration,
    /// How often it was entered.
    pub entered: u64,
}

/// The sums of a profile, from the beginning of the process or since an earlier moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    ticks: [u64; KINDS],
    entered: [u64; SECTIONS],
    outside: u64,
    covered: u64,
    operations: u64,
    measured: u64,
}

/// Where the time of threads went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The time in each section, in the order of [`Section::ALL`].
    pub sections: [SectionTime; SECTIONS],
    /// Time of operations in no section.
    pub rest: Duration,
    /// Time between operations of a thread.
    pub outside: Duration,
    /// Operations.
    pub operations: u64,
    /// Operations that were measured.
    pub measured: u64,
}

/// The sums since the process began; exact while no operation is in progress. All are 0 before the
/// first call of [`start`].
#[must_use]
pub fn sums() -> Sums {
    let mut sums = Sums::default();
    let Some(cores) = CORES.get() else {
        return sums;
    };
    let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
    for core in cores.iter() {
        for (sum, word) in sums.ticks.iter_mut().zip(&core.ticks) {
            *sum += read(word);
        }
        for (sum, word) in sums.entered.iter_mut().zip(&core.entered) {
            *sum += read(word);
        }
        sums.outside += read(&core.outside);
        sums.covered += read(&core.covered);
        sums.operations += read(&core.operations);
        sums.measured += read(&core.measured);
    }
    sums
}

/// [`Sums::totals`] of the sums since the process began.
#[must_use]
pub fn totals() -> Totals {
    sums().totals()
}

impl Sums {
    /// What was added since an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            ticks: array::from_fn(|nr| self.ticks[nr].saturating_sub(before.ticks[nr])),
            entered: array::from_fn(|nr| self.entered[nr].saturating_sub(before.entered[nr])),
            outside: self.outside.saturating_sub(before.outside),
            covered: self.covered.saturating_sub(before.covered),
            operations: self.operations.saturating_sub(before.operations),
            measured: self.measured.saturating_sub(before.measured),
        }
    }

    /// The times. May wait for a millisecond, until the rate of the clock is known.
    #[must_use]
    pub fn totals(&self) -> Totals {
        if self.measured == 0 {
            return Totals::default();
        }
        let tick = ticks::nanoseconds_per_tick();
        let time = |ticks: f64| Duration::from_secs_f64(ticks * tick / 1e9);
        let kinds = || self.ticks.iter().zip(0_u8..);
        let waiting = kinds().filter(|&(_, kind)| is_waiting(kind));
        let waiting: u64 = waiting.map(|(ticks, _)| ticks).sum();
        let work = kinds().filter(|&(_, kind)| !is_waiting(kind));
        let weights = work.map(|(ticks, _)| ticks).sum::<u64>() + self.outside;
        let scale = self.covered.saturating_sub(waiting) as f64 / weights.max(1) as f64;
        let of_kind = |kind: u8| {
            let ticks = self.ticks[usize::from(kind)] as f64;
            time(if is_waiting(kind) {
                ticks
            } else {
                ticks * scale
            })
        };
        Totals {
            sections: Section::ALL.map(|section| SectionTime {
                time: of_kind(section as u8),
                entered: self.entered[section as usize],
            }),
            rest: of_kind(REST),
            outside: time(self.outside as f64 * scale),
            operations: self.operations,
            measured: self.measured,
        }
    }
}

impl Totals {
    /// The time in a section.
    #[must_use]
    pub fn of(&self, section: Section) -> SectionTime {
        self.sections[section as usize]
    }

    /// The time in all sections together.
    #[must_use]
    pub fn in_sections(&self) -> Duration {
        self.sections.iter().map(|section| section.time).sum()
    }

    /// The time of all threads that is in the profile.
    #[must_use]
    pub fn all(&self) -> Duration {
        self.in_sections() + self.rest + self.outside
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
