//! **Purpose.** Predicts how fast a workload on the allocator is on a machine with many cores, for
//! machines that are not at hand (feature `count`).
//!
//! **Model.** Virtual cores with clocks run the workload ([`fourscore_sync::count`]): the allocator
//! that runs is the real one, every lock and word of it. What is modelled is the machine
//! ([`machines`]) and the file system around the allocator ([`Rest`]):
//!
//! ```text
//! step    = work alone, a handle, work under one lock, the step of the workload
//! request = work alone, a handle, the allocator
//! handle  = words that all cores write
//! ```
//!
//! A request gets one extent of a file. One more core commits each transaction that has become
//! old, as jbd2's thread does every 5 seconds. So the space that threads have freed comes back
//! while they are still gathering the last short extents.
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
use fourscore_sync::{Arc, CachePadded, CoreNr, Mutex, work};

use crate::alloc::bench::AllocBench;
use crate::alloc::ram::Random;
use crate::alloc::target::{AllocTarget, Surroundings};
use crate::comparison::ThreadCount;
use crate::target::{Target, WorkerNr};
use crate::workload::Workload;

/// The file system around the allocator, for one step of a workload: system calls, transactions,
/// extent trees, directories. Work is in steps of [`fourscore_sync::work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Work that disturbs no other core.
    pub alone: u64,
    /// Words that all cores write in each handle of a transaction, each on a line of its own.
    pub shared_words: usize,
    /// Work of the handle of each request to the allocator, for an extent of the file.
    pub extent: u64,
    /// Only one of so many handles of a core writes the shared words.
    pub handles_per_write: u64,
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
    /// The age at which a transaction is committed, in the time of the machine.
    pub commit_every: Duration,
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
#[derive(Debug)]
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

    /// What a step does apart from its requests to the allocator, with one handle.
    fn step(&self, nr: u64) {
        work(self.rest.alone);
        self.handle(nr);
        if self.rest.locked > 0 {
            let _held = self.lock.lock();
            work(self.rest.locked);
            write_all(&self.locked);
        }
    }

    /// Writes what all handles write.
    fn handle(&self, nr: u64) {
        if nr.is_multiple_of(self.rest.handles_per_write.max(1)) {
            write_all(&self.shared);
        }
    }
}

impl Surroundings for Around {
    fn request(&self, nr: u64) {
        if self.rest.extent > 0 {
            work(self.rest.extent);
            self.handle(nr);
        }
    }
}

fn write_all(words: &[CachePadded<AtomicU64>]) {
    for word in words {
        word.fetch_add(1, Ordering::Relaxed);
    }
}

impl Setup<'_> {
    /// Predicts the rate.
    ///
    /// # Errors
    /// The file system cannot be set up, or the first failure of a worker.
    pub fn predict(&self) -> io::Result<Predicted> {
        // One more core commits.
        with_cores(self.threads.get() + 1, |cores| {
            let around = Arc::new(Around::new(self.rest));
            let target = self.bench.target()?;
            let target = target.surrounded_by(Arc::<Around>::clone(&around));
            if self.laid_out_as_ext4 {
                target.allocator().lay_out_as_ext4(cores);
            }
            self.race(cores, &target, &around)
        })
    }

    fn race(&self, cores: &Cores, target: &AllocTarget, around: &Around) -> io::Result<Predicted> {
        let progress = Progress::new(self.length);
        let order = start_order(self.threads);
        cores.restart();
        let ends = cores.race(self.machine, |core| match order.get(core.index()) {
            Some(place) => {
                // Real threads do not begin in the same nanosecond.
                work(place * 97);
                self.run_core(core, target, around, &progress)
            }
            None => {
                self.commit_old_transactions(target, &progress);
                Ok(())
            }
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
        self.workload.prepare(&mut *worker)?;
        let mut step = 0;
        while progress.goes_on() {
            around.step(step);
            self.workload.step(&mut *worker, step)?;
            step += 1;
            progress.end();
        }
        Ok(())
    }

    /// Commits each transaction that has become old, until the run stops. A transaction begins when
    /// the last one is committed, for its age or on demand.
    fn commit_old_transactions(&self, target: &AllocTarget, progress: &Progress) {
        let pause = self.commit_every / AGES;
        let steps = pause.as_nanos() * 1000 / u128::from(self.machine.step_ps.max(1));
        let steps = u64::try_from(steps).unwrap_or(u64::MAX).max(1);
        let (mut seen, mut age) = (target.tid(), 0);
        loop {
            work(steps);
            // The access lets all cores run up to this time.
            let tid = target.tid();
            if !progress.goes_on() {
                return;
            }
            age = if tid == seen { age + 1 } else { 0 };
            seen = tid;
            if age == AGES {
                target.commit();
                (seen, age) = (target.tid(), 0);
            }
        }
    }
}

/// The age of a transaction is looked at so many times until it is old.
const AGES: u32 = 16;

/// The place of each thread in the order in which they begin. It is drawn, since threads that have
/// run for seconds queue for a lock in any order. If they came by number, each would take the lock
/// and all lines from its neighbour, which is the nearest core.
fn start_order(threads: ThreadCount) -> Vec<u64> {
    let mut order: Vec<u64> = (0..threads.get() as u64).collect();
    let mut random = Random::new(1);
    for nr in (1..order.len()).rev() {
        let other = random.below(nr as u64 + 1);
        order.swap(nr, usize::try_from(other).unwrap_or(nr));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_place_and_neighbours_are_not_next_to_each_other() {
        let order = start_order(ThreadCount::new(64));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..64));
        let next = order
            .windows(2)
            .filter(|pair| pair[0].abs_diff(pair[1]) == 1);
        assert!(next.count() < 8, "{order:?}");
    }
}
