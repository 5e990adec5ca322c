//! **Purpose.** Workloads, and the threads that drive them against a target.
//!
//! **Model.** A workload defines what a worker does before the measured time
//! ([`Workload::prepare`]), in each step, and after it. [`drive`] starts one thread per worker,
//! waits until all have prepared, opens a gate, and measures the time from the gate to the end of
//! the last worker.

use std::io;
use std::time::Duration;

use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::profile::operation;
use fourscore_sync::{OnceLock, thread};

use crate::clock::Clock;
use crate::comparison::{ThreadCount, Work};
use crate::fairness::Fairness;
use crate::profile::{Profile, Profiled};
use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};

/// The work of each worker of a run.
pub trait Workload: Sync {
    /// Sets up the worker's files; not timed.
    ///
    /// # Errors
    ///
    /// The target's failure.
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()>;

    /// Does step number `step` and returns the work done.
    ///
    /// # Errors
    ///
    /// The target's failure.
    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work>;

    /// Removes the worker's files; not timed.
    ///
    /// # Errors
    ///
    /// The target's failure.
    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()>;
}

/// When the workers stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Each after this number of steps.
    Steps(u64),
    /// Each when this time has passed; the last step ends a little later.
    Elapsed(Duration),
}

/// The work that each worker of a run did.
#[derive(Clone, Debug)]
pub struct Driven {
    /// By worker number, each with the time from the common start to its own end.
    pub workers: Vec<Work>,
    /// How much of that time was the sync of the whole target, after the steps of all workers.
    pub sync: Duration,
    /// Where the time of the steps and of the sync went, if a profile was on.
    pub profile: Option<Profile>,
}

impl Driven {
    /// The work of all workers, in the time of the slowest.
    #[must_use]
    pub fn total(&self) -> Work {
        let none = Work {
            operations: 0,
            bytes: 0,
            wall: None,
        };
        self.workers.iter().fold(none, |sum, work| Work {
            operations: sum.operations + work.operations,
            bytes: sum.bytes + work.bytes,
            wall: sum.wall.max(work.wall),
        })
    }

    /// Steps per second of all workers together.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        let total = self.total();
        let wall = total.wall.unwrap_or_default().as_secs_f64();
        total.operations as f64 / wall.max(1e-9)
    }

    /// How evenly the workers made progress.
    #[must_use]
    pub fn fairness(&self) -> Fairness {
        let rate = |work: &Work| {
            let seconds = work.wall.unwrap_or_default().as_secs_f64();
            if seconds > 0.0 {
                work.operations as f64 / seconds
            } else {
                0.0
            }
        };
        Fairness::of(&self.workers.iter().map(rate).collect::<Vec<_>>())
    }
}

/// Runs `workload` on each of `threads` workers of `target` at the same time.
///
/// # Errors
///
/// The first failure of a worker; the others run to their end.
pub fn drive(
    target: &dyn Target,
    workload: &dyn Workload,
    threads: ThreadCount,
    until: Until,
    clock: &dyn Clock,
) -> io::Result<Driven> {
    let (gate, profiled) = (Gate::default(), Profiled::begin());
    let run = &|nr| {
        let prepared = target.worker(WorkerNr(nr)).and_then(|mut worker| {
            workload.prepare(&mut *worker)?;
            Ok(worker)
        });
        // A worker that failed arrives at the gate as well: the others wait for it.
        let start = gate.arrive(threads, clock);
        let mut worker = prepared?;
        let done = run_steps(workload, &mut *worker, until, clock, start)?;
        workload.clean_up(&mut *worker)?;
        Ok(done)
    };
    let workers: io::Result<Vec<Work>> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.get())
            .map(|nr| scope.spawn(move || run(nr)))
            .collect();
        let failed = || Err(io::Error::other("a worker thread panicked"));
        let ended = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| failed()));
        // All are joined before the first failure is returned.
        ended.collect::<Vec<_>>().into_iter().collect()
    });
    let workers = workers?;
    let times = workers.iter().filter_map(|work| work.wall);
    let profile = profiled.end(times.sum());
    Ok(Driven {
        workers,
        sync: Duration::ZERO,
        profile,
    })
}

/// Batches of steps grow until one takes this long, so that reading the clock costs next to
/// nothing.
const BATCH: Duration = Duration::from_micros(50);

fn run_steps(
    workload: &dyn Workload,
    worker: &mut dyn Worker,
    until: Until,
    clock: &dyn Clock,
    start: Duration,
) -> io::Result<Work> {
    let mut done = Work {
        operations: 0,
        bytes: 0,
        wall: None,
    };
    let (mut step, mut batch, mut last) = (0, 1, start);
    loop {
        let end = match until {
            Until::Steps(steps) => steps,
            Until::Elapsed(_) => step + batch,
        };
        for step in step..end {
            let operation = operation();
            let work = workload.step(worker, step)?;
            drop(operation);
            done.operations += work.operations;
            done.bytes += work.bytes;
        }
        step = end;
        let now = clock.now();
        let wall = now.saturating_sub(start);
        if !matches!(until, Until::Elapsed(time) if wall < time) {
            done.wall = Some(wall);
            return Ok(done);
        }
        if now.saturating_sub(last) < BATCH {
            batch *= 2;
        }
        last = now;
    }
}

/// Makes the workers wait until all of them are ready. They wait by yielding: if a lock woke them
/// one by one, the last of many would start long after the first.
#[derive(Default)]
pub(crate) struct Gate {
    arrived: AtomicUsize,
    start: OnceLock<Duration>,
}

impl Gate {
    /// Waits until `expected` workers have arrived. Returns the time of the last arrival.
    pub(crate) fn arrive(&self, expected: ThreadCount, clock: &dyn Clock) -> Duration {
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == expected.get() {
            return *self.start.get_or_init(|| clock.now());
        }
        loop {
            if let Some(&start) = self.start.get() {
                return start;
            }
            thread::yield_now();
        }
    }
}

/// Reads complete files again and again: the worker's files `0..files`, one per step.
#[derive(Clone, Copy, Debug)]
pub struct ReadFiles {
    /// Number of files of each worker.
    pub files: u32,
    /// Size of a file.
    pub file_bytes: u64,
}

impl Workload for ReadFiles {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        for nr in (0..self.files).map(FileNr) {
            worker.apply(nr, Operation::Create)?;
            let len = self.file_bytes;
            worker.apply(nr, Operation::Write { offset: 0, len })?;
            worker.apply(nr, Operation::Sync)?;
        }
        Ok(())
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let nr = u32::try_from(step % u64::from(self.files.max(1))).unwrap_or(0);
        let read = Operation::Read {
            offset: 0,
            len: self.file_bytes,
        };
        Ok(Work {
            operations: 1,
            bytes: worker.apply(FileNr(nr), read)?,
            wall: None,
        })
    }

    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()> {
        for nr in (0..self.files).map(FileNr) {
            worker.apply(nr, Operation::Unlink)?;
            worker.apply(nr, Operation::Close)?;
        }
        Ok(())
    }
}

/// will-it-scale's fallocate2: allocates 8 KiB at the next offset of an unlinked file, which is
/// truncated to 0 at 1 MiB. One step is one fallocate call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fallocate2;

impl Fallocate2 {
    const STEP_BYTES: u64 = 8 << 10;
    const STEPS_PER_FILE: u64 = (1 << 20) / Self::STEP_BYTES;
}

impl Workload for Fallocate2 {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Create)?;
        worker.apply(FileNr(0), Operation::Unlink)?;
        Ok(())
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let in_file = step % Self::STEPS_PER_FILE;
        let offset = in_file * Self::STEP_BYTES;
        let len = Self::STEP_BYTES;
        let bytes = worker.apply(FileNr(0), Operation::Fallocate { offset, len })?;
        if in_file + 1 == Self::STEPS_PER_FILE {
            worker.apply(FileNr(0), Operation::Truncate { len: 0 })?;
        }
        Ok(Work {
            operations: 1,
            bytes,
            wall: None,
        })
    }

    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Close).map(|_| ())
    }
}

#[cfg(test)]
mod tests;
