//! **Purpose.** The workloads with which changes of ext4's allocator were measured. They run on
//! ordinary directories as well.

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

/// Allocates one run of clusters and frees it: the cost of an allocation without preallocation. One
/// step is one such pair.
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

/// will-it-scale's fallocate3, a loop like that of rocksdb: creates a file or truncates it to 0,
/// allocates 73 819 750 bytes, closes it. One step is one such round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fallocate3;

impl Fallocate3 {
    /// The length of the file.
    pub const BYTES: u64 = 73_819_750;
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
        // Create truncates it: each step has closed it.
        worker.apply(FileNr(0), Operation::Create)?;
        worker.apply(FileNr(0), Operation::Close)?;
        worker.apply(FileNr(0), Operation::Unlink).map(|_| ())
    }
}

/// Writes one small file after another, as fs_mark does; each worker keeps its last ones. One step
/// is one file.
#[derive(Clone, Copy, Debug)]
pub struct SmallFiles {
    /// Size of a file.
    pub file_bytes: u64,
    /// Number of files that a worker keeps; the next step truncates the oldest.
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

/// Writes the beginning of one file after another that are to be larger, and closes them; the files
/// stay. While a file is open the allocator looks for space for more of it, and what it got more is
/// given back when the file is closed: so each file needs a search. Its goal is
/// [`Self::GOAL_BYTES`] for blocks of 4 and of 64 KiB. One step is one file.
#[derive(Clone, Copy, Debug)]
pub struct LargeGoals {
    /// Bytes that are written to a file.
    pub written_bytes: u64,
}

impl LargeGoals {
    /// What ext4's size classes make of a short write to a file of [`Self::FILE_BYTES`].
    pub const GOAL_BYTES: u64 = 8 << 20;
    /// The size of a file, of which most is a hole.
    pub const FILE_BYTES: u64 = 16 << 20;
}

impl Workload for LargeGoals {
    fn prepare(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let nr = FileNr(u32::try_from(step).map_err(io::Error::other)?);
        worker.apply(nr, Operation::Create)?;
        let len = Self::FILE_BYTES;
        worker.apply(nr, Operation::Truncate { len })?;
        let len = self.written_bytes;
        let bytes = worker.apply(nr, Operation::Write { offset: 0, len })?;
        worker.apply(nr, Operation::Close)?;
        Ok(one(bytes))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// Appends of random length to a few files in random order, like those of logs and databases. One
/// step is one append.
#[derive(Clone, Copy, Debug)]
pub struct MixedAppend {
    /// Files of each worker.
    pub files: u32,
    /// Approximate size at which the files are truncated to 0.
    pub file_bytes: u64,
    /// Bytes of the longest append.
    pub max_append_bytes: u64,
}

impl MixedAppend {
    /// File, offset and length of the append of a step. They depend on the step alone, so that no
    /// state is kept: a file gets every `files`th append on average, and an append is half as long
    /// as the longest on average, from which the end of the file is estimated.
    fn append(&self, step: u64) -> (FileNr, u64, u64) {
        let mut random = Random::new(step + 1);
        let files = u64::from(self.files.max(1));
        let file = u32::try_from(random.below(files)).unwrap_or(0);
        let offset = self.in_round(step) / files * (self.max_append_bytes / 2);
        (
            FileNr(file),
            offset,
            1 + random.below(self.max_append_bytes.max(1)),
        )
    }

    /// Steps since the files were last truncated.
    fn in_round(&self, step: u64) -> u64 {
        let appends = self.file_bytes * 2 / self.max_append_bytes.max(1);
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
        let (file, offset, len) = self.append(step);
        Ok(one(worker.apply(file, Operation::Write { offset, len })?))
    }

    /// Keeps the files, so that their effect on the free space can be measured.
    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()> {
        (0..self.files).try_for_each(|nr| worker.apply(FileNr(nr), Operation::Close).map(|_| ()))
    }
}
