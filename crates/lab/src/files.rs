//! **Purpose.** The everyday work of a file system as workloads: creating, looking up, listing,
//! writing, preallocating and removing files, each worker in its own directory; and mixes of these,
//! after fs_mark and aim7.
//!
//! **Model.** A run has a number of steps and not a time, since making its changes durable is part
//! of it. The measured time begins at the common start, when everything prepared is durable, and
//! ends with a sync of the whole target. The files are removed after that, so that runs can follow
//! each other.

use std::io;
use std::time::Duration;

use fourscore_sync::profile::operation;

use crate::alloc::ram::Random;
use crate::alloc::workloads::Fallocate3;
use crate::clock::Clock;
use crate::comparison::{ThreadCount, Work};
use crate::profile::Profiled;
use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};
use crate::workload::{Driven, Fallocate2, Until, Workload, drive};

/// A workload with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileWorkload {
    /// Its name on the command line.
    pub name: &'static str,
    /// What a step does, in a few words.
    pub about: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Create,
    Stat,
    Unlink,
    List,
    Write,
    Append,
    Fallocate2,
    Fallocate3,
    WriteLarge(Order),
    Mixed,
    FsMark(Durability),
    FileServer,
}

/// Where the next write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The next MiB.
    Sequential,
    /// 4 KiB anywhere.
    Random,
}

/// Whether a file is durable when it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    /// No: `fs_mark -S0`.
    AtTheEnd,
    /// An fsync of each file before it is closed: `fs_mark -S1`.
    EachFile,
    /// An fsync of one file after the other when a number of them are closed: `fs_mark -S5`.
    Afterwards,
}

impl FileWorkload {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self {
            name: "create",
            about: "creates an empty file",
            kind: Kind::Create,
        },
        Self {
            name: "stat",
            about: "looks a file up, opens it and reads its attributes",
            kind: Kind::Stat,
        },
        Self {
            name: "unlink",
            about: "removes a file",
            kind: Kind::Unlink,
        },
        Self {
            name: "readdir",
            about: "reads the names of a directory of 1000 files",
            kind: Kind::List,
        },
        Self {
            name: "write",
            about: "writes the next MiB of a file, which is truncated to 0 at 64 MiB",
            kind: Kind::Write,
        },
        Self {
            name: "append",
            about: "appends 4 KiB to a file, which is truncated to 0 at 1 MiB",
            kind: Kind::Append,
        },
        Self {
            name: "fallocate2",
            about: "allocates the next 8 KiB of a file, which is truncated to 0 at 1 MiB",
            kind: Kind::Fallocate2,
        },
        Self {
            name: "fallocate3",
            about: "truncates a file to 0 and allocates 73 819 750 bytes for it",
            kind: Kind::Fallocate3,
        },
        Self {
            name: "write-5g",
            about: "writes the next MiB of a file, which is truncated to 0 at 5 GiB",
            kind: Kind::WriteLarge(Order::Sequential),
        },
        Self {
            name: "random-5g",
            about: "writes 4 KiB anywhere in a file of 5 GiB, a hole at first",
            kind: Kind::WriteLarge(Order::Random),
        },
        Self {
            name: "mixed-5g",
            about: "reads or writes 64 KiB, the next ones or any, of a file of 5 GiB, a hole at first",
            kind: Kind::Mixed,
        },
        Self {
            name: "fsmark-s0",
            about: "creates a file and writes 16 KiB to it",
            kind: Kind::FsMark(Durability::AtTheEnd),
        },
        Self {
            name: "fsmark-s1",
            about: "creates a file, writes 16 KiB to it and calls fsync",
            kind: Kind::FsMark(Durability::EachFile),
        },
        Self {
            name: "fsmark-s5",
            about: "creates 100 files and writes 16 KiB to each, then calls fsync of each",
            kind: Kind::FsMark(Durability::Afterwards),
        },
        Self {
            name: "fserver",
            about: "replaces one of 64 files, reads another, and lists them now and then",
            kind: Kind::FileServer,
        },
    ];

    /// The workload with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|named| named.name == name)
    }

    /// Runs it in `threads` workers, `steps` steps each, and makes all changes durable. The files
    /// are removed in the end.
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
        let (workload, left): (&dyn Workload, u32) = match self.kind {
            Kind::Create => (&CreateFiles, files),
            Kind::Stat => (&StatFiles { files }, files),
            Kind::Unlink => (&UnlinkFiles { files }, 0),
            Kind::List => (&ListFiles, ListFiles::FILES),
            Kind::Write => (&WriteFile::IN_LARGE_PIECES, 1),
            Kind::Append => (&WriteFile::BLOCK_BY_BLOCK, 1),
            Kind::Fallocate2 => (&Fallocate2, 0),
            Kind::Fallocate3 => (&Fallocate3, 0),
            Kind::WriteLarge(Order::Sequential) => (&WriteFile::UP_TO_5_GIB, 1),
            Kind::WriteLarge(Order::Random) => (&RandomWrites, 1),
            Kind::Mixed => (&Mixed, 1),
            Kind::FsMark(Durability::AtTheEnd) => (&FsMark(Durability::AtTheEnd), files),
            Kind::FsMark(Durability::EachFile) => (&FsMark(Durability::EachFile), files),
            Kind::FsMark(Durability::Afterwards) => (&FsMark(Durability::Afterwards), files),
            Kind::FileServer => (&FileServer, FileServer::FILES),
        };
        let driven = drive_and_sync(target, workload, threads, steps, clock)?;
        for nr in (0..threads.get()).map(WorkerNr) {
            let mut worker = target.worker(nr)?;
            for file in (0..left).map(FileNr) {
                worker.apply(file, Operation::Unlink)?;
            }
        }
        Ok(driven)
    }
}

/// Drives a workload and syncs the target; the time of the sync is added to that of every worker.
pub(crate) fn drive_and_sync(
    target: &dyn Target,
    workload: &dyn Workload,
    threads: ThreadCount,
    steps: u64,
    clock: &dyn Clock,
) -> io::Result<Driven> {
    let profiled = Profiled::begin();
    let mut driven = drive(target, workload, threads, Until::Steps(steps), clock)?;
    let mut worker = target.worker(WorkerNr(0))?;
    let began = clock.now();
    let operation = operation();
    worker.apply(FileNr(0), Operation::SyncAll)?;
    drop(operation);
    let synced = clock.now().saturating_sub(began);
    let times = driven.workers.iter().filter_map(|work| work.wall);
    driven.profile = profiled.end(times.sum::<Duration>() + synced);
    driven.sync = synced;
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

/// The file of a step, if there are `files` files.
fn file_of(step: u64, files: u32) -> FileNr {
    FileNr(u32::try_from(step % u64::from(files.max(1))).unwrap_or(0))
}

/// Creates the files `0..files` and syncs the target.
fn create_files(worker: &mut dyn Worker, files: u32) -> io::Result<()> {
    for nr in (0..files).map(FileNr) {
        worker.apply(nr, Operation::Create)?;
        worker.apply(nr, Operation::Close)?;
    }
    worker.apply(FileNr(0), Operation::SyncAll).map(|_| ())
}

/// Creates one empty file after another.
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

/// Looks one file after another up and reads its attributes.
struct StatFiles {
    files: u32,
}

impl Workload for StatFiles {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        create_files(worker, self.files)
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

/// Removes one file after another. There are as many files as steps.
struct UnlinkFiles {
    files: u32,
}

impl Workload for UnlinkFiles {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        create_files(worker, self.files)
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        worker.apply(file_of(step, self.files), Operation::Unlink)?;
        Ok(one(0))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// Lists the worker's directory again and again.
struct ListFiles;

impl ListFiles {
    const FILES: u32 = 1000;
}

impl Workload for ListFiles {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        create_files(worker, Self::FILES)
    }

    fn step(&self, worker: &mut dyn Worker, _step: u64) -> io::Result<Work> {
        let names = worker.apply(FileNr(0), Operation::List)?;
        if names < u64::from(Self::FILES) {
            return Err(io::Error::other(format!(
                "the directory of {} files has {names} names",
                Self::FILES
            )));
        }
        Ok(one(0))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a file from its beginning to its end, again and again.
struct WriteFile {
    step_bytes: u64,
    file_bytes: u64,
}

impl WriteFile {
    const IN_LARGE_PIECES: Self = Self {
        step_bytes: 1 << 20,
        file_bytes: 64 << 20,
    };
    const BLOCK_BY_BLOCK: Self = Self {
        step_bytes: 4 << 10,
        file_bytes: 1 << 20,
    };
    const UP_TO_5_GIB: Self = Self {
        step_bytes: 1 << 20,
        file_bytes: 5 << 30,
    };
}

impl Workload for WriteFile {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Create)?;
        worker.apply(FileNr(0), Operation::SyncAll).map(|_| ())
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let len = self.step_bytes;
        let offset = step * len % self.file_bytes;
        if offset == 0 {
            worker.apply(FileNr(0), Operation::Truncate { len: 0 })?;
        }
        Ok(one(
            worker.apply(FileNr(0), Operation::Write { offset, len })?
        ))
    }

    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Close).map(|_| ())
    }
}

/// Writes blocks of a file in an order that depends on the step alone.
struct RandomWrites;

impl RandomWrites {
    const FILE_BYTES: u64 = 5 << 30;
    const STEP_BYTES: u64 = 4 << 10;

    fn offset(step: u64) -> u64 {
        let blocks = Self::FILE_BYTES / Self::STEP_BYTES;
        Random::new(step + 1).below(blocks) * Self::STEP_BYTES
    }
}

impl Workload for RandomWrites {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        make_sparse(worker, Self::FILE_BYTES)
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let (offset, len) = (Self::offset(step), Self::STEP_BYTES);
        Ok(one(
            worker.apply(FileNr(0), Operation::Write { offset, len })?
        ))
    }

    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Close).map(|_| ())
    }
}

/// Reads and writes a large file, at places that follow each other and at any, in equal parts. It
/// is a hole at first, of which reads return zeroes.
struct Mixed;

/// Makes a file of `len` bytes without data.
fn make_sparse(worker: &mut dyn Worker, len: u64) -> io::Result<()> {
    worker.apply(FileNr(0), Operation::Create)?;
    worker.apply(FileNr(0), Operation::Truncate { len })?;
    worker.apply(FileNr(0), Operation::SyncAll).map(|_| ())
}

/// A read or a write of [`Mixed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset: u64,
    is_write: bool,
}

impl Mixed {
    const FILE_BYTES: u64 = 5 << 30;
    const STEP_BYTES: u64 = 64 << 10;

    fn piece(step: u64) -> Piece {
        let pieces = Self::FILE_BYTES / Self::STEP_BYTES;
        let mut random = Random::new(step + 1);
        let kind = random.below(4);
        let nr = match kind & 1 {
            // Of two steps one is in order, so the place moves by one in two steps.
            0 => step / 2 % pieces,
            _ => random.below(pieces),
        };
        Piece {
            offset: nr * Self::STEP_BYTES,
            is_write: kind & 2 == 0,
        }
    }
}

impl Workload for Mixed {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        make_sparse(worker, Self::FILE_BYTES)
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let Piece { offset, is_write } = Self::piece(step);
        let len = Self::STEP_BYTES;
        let operation = match is_write {
            true => Operation::Write { offset, len },
            false => Operation::Read { offset, len },
        };
        Ok(one(worker.apply(FileNr(0), operation)?))
    }

    fn clean_up(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::Close).map(|_| ())
    }
}

/// Creates one file after another with 16 KiB, as fs_mark does.
struct FsMark(Durability);

impl FsMark {
    const FILE_BYTES: u64 = 16 << 10;
    /// Files between calls of fsync of all of them.
    const LOOP_FILES: u32 = 100;
}

impl Workload for FsMark {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::SyncAll).map(|_| ())
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let nr = file_of(step, u32::MAX);
        worker.apply(nr, Operation::Create)?;
        let (offset, len) = (0, Self::FILE_BYTES);
        let bytes = worker.apply(nr, Operation::Write { offset, len })?;
        if self.0 == Durability::EachFile {
            worker.apply(nr, Operation::Sync)?;
        }
        worker.apply(nr, Operation::Close)?;
        let made = nr.0.saturating_add(1);
        if self.0 == Durability::Afterwards && made.is_multiple_of(Self::LOOP_FILES) {
            for nr in (made - Self::LOOP_FILES..made).map(FileNr) {
                worker.apply(nr, Operation::Open)?;
                worker.apply(nr, Operation::Sync)?;
                worker.apply(nr, Operation::Close)?;
            }
        }
        Ok(one(bytes))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// The mix of a file server, after aim7's `fserver`: in each step a file is removed and made again
/// with 4 to 256 KiB, and another one is looked up, read and extended. Every 16th step the names
/// are read.
struct FileServer;

impl FileServer {
    const FILES: u32 = 64;
    const LIST_STEPS: u64 = 16;
    const BLOCK_BYTES: u64 = 4 << 10;
    const MAX_BLOCKS: u64 = 64;

    fn write(worker: &mut dyn Worker, nr: FileNr, offset: u64, len: u64) -> io::Result<u64> {
        worker.apply(nr, Operation::Write { offset, len })
    }
}

impl Workload for FileServer {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        create_files(worker, Self::FILES)
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let mut random = Random::new(step + 1);
        let replaced = file_of(step, Self::FILES);
        worker.apply(replaced, Operation::Unlink)?;
        worker.apply(replaced, Operation::Create)?;
        let len = (1 + random.below(Self::MAX_BLOCKS)) * Self::BLOCK_BYTES;
        let mut bytes = Self::write(worker, replaced, 0, len)?;
        // The file stays open while it is read and extended, as by a client.
        let read = Operation::Read { offset: 0, len };
        bytes += worker.apply(replaced, read)?;
        worker.apply(replaced, Operation::Stat)?;
        bytes += Self::write(worker, replaced, len, Self::BLOCK_BYTES)?;
        worker.apply(replaced, Operation::Close)?;
        let other = file_of(random.below(u64::from(Self::FILES)), Self::FILES);
        worker.apply(other, Operation::Open)?;
        worker.apply(other, Operation::Stat)?;
        let len = Self::MAX_BLOCKS * Self::BLOCK_BYTES;
        bytes += worker.apply(other, Operation::Read { offset: 0, len })?;
        worker.apply(other, Operation::Close)?;
        if step.is_multiple_of(Self::LIST_STEPS) {
            worker.apply(other, Operation::List)?;
        }
        Ok(one(bytes))
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::target::DirectoryTarget;

    #[test]
    fn random_writes_go_to_blocks_all_over_the_file() {
        let offsets: Vec<u64> = (0..1000).map(RandomWrites::offset).collect();
        assert!(offsets.iter().all(|offset| offset.is_multiple_of(4096)));
        let last = RandomWrites::FILE_BYTES - RandomWrites::STEP_BYTES;
        assert!(offsets.iter().all(|&offset| offset <= last));
        for quarter in 0..4 {
            let quarter_bytes = RandomWrites::FILE_BYTES / 4;
            let in_it = offsets
                .iter()
                .filter(|&offset| offset / quarter_bytes == quarter);
            assert!((150..350).contains(&in_it.count()), "{quarter}");
        }
    }

    #[test]
    fn a_mix_has_as_many_reads_as_writes_in_order_and_anywhere() {
        let pieces: Vec<Piece> = (0..2000).map(Mixed::piece).collect();
        let at_front = |piece: &&Piece| piece.offset < 1100 * Mixed::STEP_BYTES;
        for is_write in [false, true] {
            let of_kind = pieces.iter().filter(|piece| piece.is_write == is_write);
            assert!((900..1100).contains(&of_kind.clone().count()));
            // Those in order have come to the 1000th place of 81 920.
            assert!((450..600).contains(&of_kind.filter(at_front).count()));
        }
        let last = Mixed::FILE_BYTES - Mixed::STEP_BYTES;
        assert!(pieces.iter().all(|piece| piece.offset <= last));
    }

    /// A target that notes what is applied to it.
    #[derive(Default)]
    struct Noted(Vec<(FileNr, Operation)>);

    impl Worker for Noted {
        fn apply(&mut self, file: FileNr, operation: Operation) -> io::Result<u64> {
            self.0.push((file, operation));
            Ok(0)
        }
    }

    #[test]
    fn files_are_synced_before_they_are_closed_or_one_after_the_other_at_the_end() {
        let syncs = |durability, steps| {
            let mut noted = Noted::default();
            for step in 0..steps {
                let done = FsMark(durability).step(&mut noted, step);
                done.expect("nothing fails");
            }
            let syncs = noted.0.iter().enumerate();
            let syncs = syncs.filter(|(_, (_, operation))| *operation == Operation::Sync);
            syncs
                .map(|(at, (file, _))| (at, file.0))
                .collect::<Vec<_>>()
        };
        assert_eq!(syncs(Durability::AtTheEnd, 200), []);
        assert_eq!(syncs(Durability::EachFile, 2), [(2, 0), (6, 1)]);
        assert_eq!(syncs(Durability::Afterwards, 99), []);
        let after = syncs(Durability::Afterwards, 200);
        assert_eq!(after.len(), 200);
        // The first 100 files take three operations each; opening the first one is the next.
        assert_eq!((after[0], after[99].1, after[100].1), ((301, 0), 99, 100));
    }

    #[test]
    fn every_workload_runs_on_a_directory_and_leaves_nothing() {
        for &workload in FileWorkload::ALL {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let target = DirectoryTarget::new(directory.path());
            let (threads, clock) = (ThreadCount::new(2), MonotonicClock::default());
            let driven = workload.run(&target, threads, 3, &clock);
            let total = driven.expect(workload.name).total();
            assert_eq!(total.operations, 6, "{}", workload.name);
            let mut left = std::fs::read_dir(directory.path().join("w1")).expect("a directory");
            assert!(left.next().is_none(), "{}", workload.name);
        }
    }
}
