//! **Purpose.** Predicts how fast a workload on the allocator is on a machine with many cores, for
//! machines that are not at hand (feature `count`).
//!
//! **Model.** Virtual cores with clocks run the workload ([`fourscore_sync::count`]): the allocator
//! that runs is the real one, every lock and word of it. What is modelled is the machine
//! ([`machines`]) and the file system around the allocator ([`Rest`]):
//!
//! ```text
//! step = work alone, words that all cores write, work under one lock, the step of the workload
//! ```
//!
//! A run goes on until all cores together have made a number of steps ([`Length`]): in tables of
//! fallocate3, at least so many that the free space has been used twice. Each time is a cycle:
//! clusters that ext4 frees can be allocated again only after a commit, which a request asks for
//! that finds nothing else. At the beginning of a cycle a file finds an empty group next to the
//! last one; at its end it is made of short extents, for each of which all groups are walked. A
//! rate over a part of a cycle would be that of the part. So a run whose two halves have different
//! rates is made twice as long, within limits.
//!
//! The rate is the number of steps by the time that passes between the end of the first step of any
//! core and the end of the last one.
//!
//! **Invariants.** The same seed gives the same figures: nothing here depends on time, and in a
//! program with [`fourscore_sync::count::LineHeap`] nothing depends on addresses.
//!
//! | module | responsibility |
//! |---|---|
//! | [`machines`] | models of machines, and what each was fitted on |
//! | [`tables`] | the published tables, cell by cell |
//! | [`outlook`] | predicted cells beside published ones, and how many agree |

pub mod machines;
pub mod outlook;
pub mod tables;

use std::cell::Cell;
use std::io;
use std::time::Duration;

use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::count::{Cores, Machine, now, with_cores};
use fourscore_sync::{CachePadded, CoreNr, Mutex, work};

use crate::alloc::bench::AllocBench;
use crate::alloc::target::AllocTarget;
use crate::comparison::ThreadCount;
use crate::target::{Target, WorkerNr};
use crate::workload::Workload;

/// The file system around the allocator, for one step of a workload: system calls, transactions,
/// extent trees, directories. Work is in steps of [`fourscore_sync::work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Work that disturbs no other core.
    pub alone: u64,
    /// Words that all cores write, each on a line of its own.
    pub shared_words: usize,
    /// Work under a lock that all cores take; 0 if they take none.
    pub locked: u64,
    /// Words written under that lock.
    pub locked_words: usize,
}

/// What is predicted.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The file system and the switches of the allocator.
    pub bench: &'a AllocBench,
    /// What each core does.
    pub workload: &'a dyn Workload,
    /// The machine.
    pub machine: Machine,
    /// The file system around the allocator.
    pub rest: Rest,
    /// Cores that take part.
    pub threads: ThreadCount,
    /// How long the run is.
    pub length: Length,
    /// Whether state words and locks are counted as if they lay where they lie in ext4.
    pub laid_out_as_ext4: bool,
}

/// How many steps all cores together make: `least`, then twice as many as before while the rates of
/// the two halves of the run differ by [`HALVES_WITHIN`] or more and there would be no more than
/// `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Steps of the shortest run.
    pub least: u64,
    /// No run is longer, unless `least` is.
    pub most: u64,
}

/// Halves of a run whose rates differ by less than this are alike.
pub const HALVES_WITHIN: f64 = 0.05;

/// A prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Steps per second of all cores.
    pub per_second: f64,
    /// The rate of the second half of the run by that of the first.
    pub halves: f64,
    /// Steps of the run, of all cores together.
    pub steps: u64,
    /// Transfers of cache lines in a step.
    pub transfers_per_step: f64,
    /// Accesses to shared memory in a step.
    pub accesses_per_step: f64,
}

/// The progress of all cores; they run on one thread.
struct Progress {
    /// The steps after which the run stops, as far as is known.
    steps: Cell<u64>,
    most: u64,
    /// Steps that have ended.
    ended: Cell<u64>,
    /// The end of the step that ended first.
    first: Cell<Duration>,
    /// The end of the first half of the steps.
    half: Cell<Duration>,
    /// The end of the last step that counts.
    last: Cell<Duration>,
}

impl Progress {
    fn new(length: Length) -> Self {
        let time = || Cell::new(Duration::ZERO);
        Self {
            steps: Cell::new(length.least.max(2)),
            most: length.most,
            ended: Cell::new(0),
            first: time(),
            half: time(),
            last: time(),
        }
    }

    fn goes_on(&self) -> bool {
        self.ended.get() < self.steps.get()
    }

    /// Notes the end of a step, which counts if the run goes on. Steps that others have begun when
    /// it stops are left out, so that the rate is one of all cores to the end.
    fn end(&self) {
        if !self.goes_on() {
            return;
        }
        let ended = self.ended.get() + 1;
        self.ended.set(ended);
        self.last
            .set(self.last.get().max(now().unwrap_or_default()));
        if ended == 1 {
            self.first.set(self.last.get());
        }
        if ended == self.steps.get() / 2 {
            self.half.set(self.last.get());
        }
        let twice = ended.saturating_mul(2);
        let is_uneven = || (self.halves() - 1.0).abs() >= HALVES_WITHIN;
        if !self.goes_on() && twice <= self.most && is_uneven() {
            self.half.set(self.last.get());
            self.steps.set(twice);
        }
    }

    fn per_second(&self) -> f64 {
        rate(self.ended.get() - 1, self.first.get(), self.last.get())
    }

    /// The rate of the second half by that of the first.
    fn halves(&self) -> f64 {
        let half = self.steps.get() / 2;
        let first = rate(half.saturating_sub(1), self.first.get(), self.half.get());
        let second = rate(self.ended.get() - half, self.half.get(), self.last.get());
        second / first.max(1e-9)
    }
}

fn rate(steps: u64, begin: Duration, end: Duration) -> f64 {
    steps as f64 / end.saturating_sub(begin).as_secs_f64().max(1e-9)
}

/// The shared words of the file system around the allocator.
struct Around {
    rest: Rest,
    shared: Vec<CachePadded<AtomicU64>>,
    locked: Vec<CachePadded<AtomicU64>>,
    lock: CachePadded<Mutex<()>>,
}

impl Around {
    fn new(rest: Rest) -> Self {
        let words = |count| (0..count).map(|_| CachePadded::default()).collect();
        Self {
            rest,
            shared: words(rest.shared_words),
            locked: words(rest.locked_words),
            lock: CachePadded::default(),
        }
    }

    fn step(&self) {
        let write = |words: &[CachePadded<AtomicU64>]| {
            for word in words {
                word.fetch_add(1, Ordering::Relaxed);
            }
        };
        work(self.rest.alone);
        write(&self.shared);
        if self.rest.locked > 0 {
            let _held = self.lock.lock();
            work(self.rest.locked);
            write(&self.locked);
        }
    }
}

impl Setup<'_> {
    /// Predicts the rate.
    ///
    /// # Errors
    /// The file system cannot be set up, or the first failure of a worker.
    pub fn predict(&self) -> io::Result<Predicted> {
        with_cores(self.threads.get(), |cores| {
            let target = self.bench.target()?;
            if self.laid_out_as_ext4 {
                target.allocator().lay_out_as_ext4(cores);
            }
            self.race(cores, &target)
        })
    }

    fn race(&self, cores: &Cores, target: &AllocTarget) -> io::Result<Predicted> {
        let (around, progress) = (Around::new(self.rest), Progress::new(self.length));
        cores.restart();
        let ends = cores.race(self.machine, |core| {
            self.run_core(core, target, &around, &progress)
        });
        ends.into_iter().collect::<io::Result<()>>()?;
        let steps = usize::try_from(progress.ended.get()).unwrap_or(usize::MAX);
        let per_step = cores.report(steps).per_operation();
        Ok(Predicted {
            per_second: progress.per_second(),
            halves: progress.halves(),
            steps: progress.ended.get(),
            transfers_per_step: per_step.transfers,
            accesses_per_step: per_step.reads + per_step.writes,
        })
    }

    fn run_core(
        &self,
        core: CoreNr,
        target: &AllocTarget,
        around: &Around,
        progress: &Progress,
    ) -> io::Result<()> {
        let mut worker = target.worker(WorkerNr(core.index()))?;
        // Real threads do not begin in the same nanosecond.
        work(core.index() as u64 * 97);
        self.workload.prepare(&mut *worker)?;
        let mut step = 0;
        while progress.goes_on() {
            around.step();
            self.workload.step(&mut *worker, step)?;
            step += 1;
            progress.end();
        }
        Ok(())
    }
}
