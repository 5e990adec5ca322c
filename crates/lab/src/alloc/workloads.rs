//! **Purpose.** The workloads of the works on ext4's allocation that ordinary directories can run
//! as well.

use std::io;

use crate::alloc::ram::Random;
use crate::comparison::Work;
use crate::target::{FileNr, Operation, Worker};
use crate::workload::Workload;

fn one(bytes: u64) -> Work {
    Work {
        operations: 1,
        bytes,
        wall: None,
    }
}

/// One run of clusters allocated and freed again: what an allocation costs when nothing helps.
/// One step is one pair.
#[derive(Clone, Copy, Debug)]
pub struct AllocFree {
    /// The length of the run.
    pub bytes: u64,
}

impl Workload for AllocFree {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Create).map(|_| ())
    }

    fn step(&self, worker: &mut dyn Worker, _step: u64) -> io::Result<Work> {
        let len = self.bytes;
        let bytes = worker.apply(FileNr(0), Operation::Fallocate { offset: 0, len })?;
        worker.apply(FileNr(0), Operation::Truncate { len: 0 })?;
        Ok(one(bytes))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// The rocksdb-like loop of the prefetch work: create or empty an own file, fallocate 73 819 750
/// bytes, close. One step is one round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fallocate3;

impl Fallocate3 {
    const BYTES: u64 = 73_819_750;
}

impl Workload for Fallocate3 {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Create).map(|_| ())
    }

    fn step(&self, worker: &mut dyn Worker, _step: u64) -> io::Result<Work> {
        worker.apply(FileNr(0), Operation::Create)?;
        let len = Self::BYTES;
        let bytes = worker.apply(FileNr(0), Operation::Fallocate { offset: 0, len })?;
        worker.apply(FileNr(0), Operation::Close)?;
        Ok(one(bytes))
    }

    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()> {
        // Empties it: each step has closed it.
        worker.apply(FileNr(0), Operation::Create)?;
        worker.apply(FileNr(0), Operation::Close)?;
        worker.apply(FileNr(0), Operation::Unlink).map(|_| ())
    }
}

/// fs_mark's files: one after another, each written whole; each worker keeps its last ones. One
/// step is one file.
#[derive(Clone, Copy, Debug)]
pub struct SmallFiles {
    /// The size of each.
    pub file_bytes: u64,
    /// How many a worker keeps; the oldest is emptied for the next.
    pub keep: u32,
}

impl Workload for SmallFiles {
    fn prepare(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let nr = u32::try_from(step % u64::from(self.keep.max(1))).unwrap_or(0);
        worker.apply(FileNr(nr), Operation::Create)?;
        let len = self.file_bytes;
        let bytes = worker.apply(FileNr(nr), Operation::Write { offset: 0, len })?;
        worker.apply(FileNr(nr), Operation::Close)?;
        Ok(one(bytes))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// Appends of random length to a few files in random order, as logs and databases make them. One
/// step is one append.
#[derive(Clone, Copy, Debug)]
pub struct MixedAppend {
    /// Files of each worker.
    pub files: u32,
    /// At about this size files begin again.
    pub file_bytes: u64,
    /// The longest append.
    pub most_bytes: u64,
}

impl MixedAppend {
    /// File, offset and length of a step: the same in every run, so that where a file ends is
    /// known without being kept. A file gets every `files`th append on average, of half the
    /// longest on average.
    fn draw(&self, step: u64) -> (FileNr, u64, u64) {
        let mut random = Random::new(step + 1);
        let files = u64::from(self.files.max(1));
        let file = u32::try_from(random.below(files)).unwrap_or(0);
        let offset = self.in_round(step) / files * (self.most_bytes / 2);
        (
            FileNr(file),
            offset,
            1 + random.below(self.most_bytes.max(1)),
        )
    }

    /// The number of a step since the files were last empty.
    fn in_round(&self, step: u64) -> u64 {
        let appends = self.file_bytes * 2 / self.most_bytes.max(1);
        step % (u64::from(self.files) * appends).max(1)
    }
}

impl Workload for MixedAppend {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        (0..self.files).try_for_each(|nr| worker.apply(FileNr(nr), Operation::Create).map(|_| ()))
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        if self.in_round(step) == 0 {
            for nr in (0..self.files).map(FileNr) {
                worker.apply(nr, Operation::Truncate { len: 0 })?;
            }
        }
        let (file, offset, len) = self.draw(step);
        Ok(one(worker.apply(file, Operation::Write { offset, len })?))
    }

    /// The files stay, so that what they did to the free space can be seen.
    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()> {
        (0..self.files).try_for_each(|nr| worker.apply(FileNr(nr), Operation::Close).map(|_| ()))
    }
}
