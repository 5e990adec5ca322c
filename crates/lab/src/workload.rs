//! **Purpose.** Workloads, and the threads that drive them against a target.
//!
//! **Model.** A workload says what a worker does before the clock runs ([`Workload::prepare`]),
//! in each step, and afterwards. [`drive`] starts one thread per worker, waits until all have
//! prepared, opens a gate, and takes the time from the gate to the last worker's end.

use std::io;
use std::time::Duration;

use fourscore_sync::{Condvar, Mutex, thread};

use crate::clock::Clock;
use crate::comparison::{ThreadCount, Work};
use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};

/// What each worker does.
pub trait Workload: Sync {
    /// Sets up the worker's files; not timed.
    ///
    /// # Errors
    ///
    /// The target's failure.
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()>;

    /// Does step number `step` and says what it did.
    ///
    /// # Errors
    ///
    /// The target's failure.
    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work>;

    /// Takes the worker's files away; not timed.
    ///
    /// # Errors
    ///
    /// The target's failure.
    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()>;
}

/// Runs `steps` steps of `workload` on each of `threads` workers of `target` at the same time
/// and returns the work of all of them together with the time it took.
///
/// # Errors
///
/// The first failure of a worker; the others run to their end.
pub fn drive(
    target: &dyn Target,
    workload: &dyn Workload,
    threads: ThreadCount,
    steps: u64,
    clock: &dyn Clock,
) -> io::Result<Work> {
    let gate = Gate::default();
    let run = &|nr| {
        let prepared = target.worker(WorkerNr(nr)).and_then(|mut worker| {
            workload.prepare(&mut *worker)?;
            Ok(worker)
        });
        // Every worker reports to the gate, also one that failed: the others wait for it.
        let start = gate.arrive(threads, clock);
        let mut worker = prepared?;
        let mut done = Work {
            operations: 0,
            bytes: 0,
            wall: None,
        };
        for step in 0..steps {
            let work = workload.step(&mut *worker, step)?;
            done.operations += work.operations;
            done.bytes += work.bytes;
        }
        done.wall = Some(clock.now().saturating_sub(start));
        workload.clean_up(&mut *worker)?;
        Ok(done)
    };
    let results: Vec<io::Result<Work>> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.get())
            .map(|nr| scope.spawn(move || run(nr)))
            .collect();
        let failed = || Err(io::Error::other("a worker thread panicked"));
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| failed()))
            .collect()
    });
    let mut total = Work {
        operations: 0,
        bytes: 0,
        wall: None,
    };
    for result in results {
        let work = result?;
        total.operations += work.operations;
        total.bytes += work.bytes;
        total.wall = total.wall.max(work.wall);
    }
    Ok(total)
}

/// Holds the workers back until all of them are ready.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Default)]
struct GateState {
    arrived: usize,
    start: Option<Duration>,
}

impl Gate {
    /// Waits until `expected` workers have arrived; returns when that was.
    fn arrive(&self, expected: ThreadCount, clock: &dyn Clock) -> Duration {
        let mut state = self.state.lock();
        state.arrived += 1;
        if state.arrived == expected.get() {
            state.start = Some(clock.now());
            self.opened.notify_all();
        }
        loop {
            if let Some(start) = state.start {
                return start;
            }
            self.opened.wait(&mut state);
        }
    }
}

/// Reads whole files again and again: the worker's files `0..files`, one per step.
#[derive(Clone, Copy, Debug)]
pub struct ReadFiles {
    /// How many files each worker has.
    pub files: u32,
    /// The size of each.
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

/// will-it-scale's fallocate2: 8 KiB at the next offset of an unlinked file of one's own, and
/// back to nothing at 1 MiB. One step is one fallocate call.
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
