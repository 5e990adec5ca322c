//! **Purpose.** What file systems do all day, as workloads: files made, found, listed, written,
//! preallocated and removed, each worker in a directory of its own.
//!
//! **Model.** A run has a number of steps, since what it leaves to be made durable counts: the time
//! goes from the common start, before which everything prepared is durable, to the end of a sync
//! of the whole target. The files go after that, so that runs can follow each other.

use std::io;

use crate::alloc::workloads::Fallocate3;
use crate::clock::Clock;
use crate::comparison::{ThreadCount, Work};
use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};
use crate::workload::{Driven, Fallocate2, Until, Workload, drive};

/// A workload with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileWorkload {
    /// What it is called.
    pub name: &'static str,
    /// What a step of it does, in a few words.
    pub about: &'static str,
    does: Does,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Create,
    Stat,
    Unlink,
    List,
    Write,
    Fallocate2,
    Fallocate3,
}

impl FileWorkload {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self {
            name: "create",
            about: "makes an empty file",
            does: Does::Create,
        },
        Self {
            name: "stat",
            about: "finds a file by its name, opens it and asks for its attributes",
            does: Does::Stat,
        },
        Self {
            name: "unlink",
            about: "removes a file",
            does: Does::Unlink,
        },
        Self {
            name: "readdir",
            about: "reads the names of a directory of 1000 files",
            does: Does::List,
        },
        Self {
            name: "write",
            about: "writes the next mebibyte of a file, which begins anew at 64 MiB",
            does: Does::Write,
        },
        Self {
            name: "fallocate2",
            about: "8 KiB at the next offset of an own file, emptied at 1 MiB",
            does: Does::Fallocate2,
        },
        Self {
            name: "fallocate3",
            about: "empties an own file and allocates 73 819 750 bytes for it",
            does: Does::Fallocate3,
        },
    ];

    /// The workload of a name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|named| named.name == name)
    }

    /// Runs it in `threads` workers, `steps` steps each, and makes everything durable. What it made
    /// is removed in the end.
    ///
    /// # Errors
    /// The first failure of the target.
    pub fn run(
        self,
        target: &dyn Target,
        threads: ThreadCount,
        steps: u64,
        clock: &dyn Clock,
    ) -> io::Result<Driven> {
        let files = u32::try_from(steps).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (workload, left): (&dyn Workload, u32) = match self.does {
            Does::Create => (&CreateFiles, files),
            Does::Stat => (&StatFiles { files }, files),
            Does::Unlink => (&UnlinkFiles { files }, 0),
            Does::List => (&ListFiles, ListFiles::FILES),
            Does::Write => (&WriteFile, 1),
            Does::Fallocate2 => (&Fallocate2, 0),
            Does::Fallocate3 => (&Fallocate3, 0),
        };
        let driven = durable(target, workload, threads, steps, clock)?;
        for nr in (0..threads.get()).map(WorkerNr) {
            let mut worker = target.worker(nr)?;
            for file in (0..left).map(FileNr) {
                worker.apply(file, Operation::Unlink)?;
            }
        }
        Ok(driven)
    }
}

/// Drives a workload; the sync at the end counts for every worker.
fn durable(
    target: &dyn Target,
    workload: &dyn Workload,
    threads: ThreadCount,
    steps: u64,
    clock: &dyn Clock,
) -> io::Result<Driven> {
    let mut driven = drive(target, workload, threads, Until::Steps(steps), clock)?;
    let mut worker = target.worker(WorkerNr(0))?;
    let began = clock.now();
    worker.apply(FileNr(0), Operation::SyncAll)?;
    let synced = clock.now().saturating_sub(began);
    for work in &mut driven.workers {
        work.wall = work.wall.map(|wall| wall + synced);
    }
    Ok(driven)
}

fn one(bytes: u64) -> Work {
    Work {
        bytes,
        ..Work::ONCE
    }
}

/// The file of a step, of so many.
fn file_of(step: u64, files: u32) -> FileNr {
    FileNr(u32::try_from(step % u64::from(files.max(1))).unwrap_or(0))
}

/// Makes the files `0..files`, and everything durable.
fn make(worker: &mut dyn Worker, files: u32) -> io::Result<()> {
    for nr in (0..files).map(FileNr) {
        worker.apply(nr, Operation::Create)?;
        worker.apply(nr, Operation::Close)?;
    }
    worker.apply(FileNr(0), Operation::SyncAll).map(|_| ())
}

/// One empty file after another.
struct CreateFiles;

impl Workload for CreateFiles {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::SyncAll).map(|_| ())
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let nr = file_of(step, u32::MAX);
        worker.apply(nr, Operation::Create)?;
        worker.apply(nr, Operation::Close)?;
        Ok(one(0))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// One file after another found and asked.
struct StatFiles {
    files: u32,
}

impl Workload for StatFiles {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        make(worker, self.files)
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let nr = file_of(step, self.files);
        worker.apply(nr, Operation::Open)?;
        worker.apply(nr, Operation::Stat)?;
        worker.apply(nr, Operation::Close)?;
        Ok(one(0))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// One file after another removed: no more steps than files.
struct UnlinkFiles {
    files: u32,
}

impl Workload for UnlinkFiles {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        make(worker, self.files)
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        worker.apply(file_of(step, self.files), Operation::Unlink)?;
        Ok(one(0))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// The worker's directory listed again and again.
struct ListFiles;

impl ListFiles {
    const FILES: u32 = 1000;
}

impl Workload for ListFiles {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        make(worker, Self::FILES)
    }

    fn step(&self, worker: &mut dyn Worker, _step: u64) -> io::Result<Work> {
        let names = worker.apply(FileNr(0), Operation::List)?;
        if names < u64::from(Self::FILES) {
            return Err(io::Error::other("names are missing"));
        }
        Ok(one(0))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// A file written in large pieces.
struct WriteFile;

impl WriteFile {
    const STEP_BYTES: u64 = 1 << 20;
    const STEPS_PER_FILE: u64 = 64;
}

impl Workload for WriteFile {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Create)?;
        worker.apply(FileNr(0), Operation::SyncAll).map(|_| ())
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let in_file = step % Self::STEPS_PER_FILE;
        if in_file == 0 {
            worker.apply(FileNr(0), Operation::Truncate { len: 0 })?;
        }
        let (offset, len) = (in_file * Self::STEP_BYTES, Self::STEP_BYTES);
        Ok(one(
            worker.apply(FileNr(0), Operation::Write { offset, len })?
        ))
    }

    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Close).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::target::DirectoryTarget;

    #[test]
    fn every_workload_runs_on_a_directory_and_leaves_nothing() {
        for &workload in FileWorkload::ALL {
            let place = tempfile::tempdir().expect("a temporary directory");
            let target = DirectoryTarget::new(place.path());
            let (threads, clock) = (ThreadCount::new(2), MonotonicClock::default());
            let driven = workload.run(&target, threads, 3, &clock);
            let total = driven.expect(workload.name).total();
            assert_eq!(total.operations, 6, "{}", workload.name);
            let mut left = std::fs::read_dir(place.path().join("w1")).expect("a directory");
            assert!(left.next().is_none(), "{}", workload.name);
        }
    }
}
