//! **Purpose.** Workloads of fsync: appending to a file, creating files and making them durable one
//! by one or afterwards, and one fsync behind many pending changes.
//!
//! **Model.** Each thread has directories of its own, so that the number of directories does not
//! depend on the machine. What it needs is made durable before the common start
//! ([`FsyncWorkload::prepare`]). Each call of fsync is timed alone. A run ends when the last thread
//! has made its last file durable, and leaves its files behind.
//!
//! | module | responsibility |
//! |---|---|
//! | [`quadratic`] | a reference for the commit: records by a walk over all inodes for each name |

pub mod quadratic;

use std::io;
use std::time::Duration;

use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::thread;

use crate::clock::Clock;
use crate::comparison::ThreadCount;
use crate::target::{AttributeValue, FileNr, Operation, Target, Worker, WorkerNr};
use crate::workload::Gate;

/// Bytes of an append.
const APPEND_BYTES: u64 = 4096;
/// Bytes of the value that the thread beside the others sets.
const ATTRIBUTE_BYTES: usize = 8;

/// A workload with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsyncWorkload {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Append(Neighbour),
    /// Files of this size, each made durable before the next.
    EachDurable(u64),
    /// Files of this size, made durable in their order when all have been created.
    ThenDurable(u64),
    Pending,
}

/// Whether another thread changes its own file meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Neighbour {
    None,
    SetsAttributes,
}

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsyncSize {
    /// Threads that call fsync.
    pub threads: ThreadCount,
    /// Directories, spread over the threads; each thread has at least one.
    pub directories: usize,
    /// Files in each directory, or appends to one file in it.
    pub files: u32,
}

/// What a run did.
#[derive(Clone, Debug)]
pub struct FsyncRun {
    /// Files created or appends made.
    pub operations: u64,
    /// The time from the common start to the end of the last thread.
    pub wall: Duration,
    /// The longest time of a thread from its first call of fsync to its end.
    pub sync_wall: Duration,
    /// How long each call of fsync took, sorted.
    pub latencies: Vec<Duration>,
    /// The processor time of each call, sorted; empty if the workload does not measure it.
    pub sync_times: Vec<Duration>,
    /// How often the thread beside them set an attribute.
    pub attributes_set: u64,
}

impl FsyncRun {
    /// Files or appends per second, their fsync included.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        per_second(self.operations, self.wall)
    }

    /// Calls of fsync per second, in the time from the first of them on.
    #[must_use]
    pub fn syncs_per_second(&self) -> f64 {
        per_second(self.latencies.len() as u64, self.sync_wall)
    }

    /// The time that this share of the calls of fsync, 0 to 100 %, took at most.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        percentile(&self.latencies, percent)
    }

    /// As [`Self::percentile`], of the processor time.
    #[must_use]
    pub fn time_percentile(&self, percent: usize) -> Duration {
        percentile(&self.sync_times, percent)
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    let found = sorted.get(last * percent.min(100) / 100);
    found.copied().unwrap_or_default()
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}

impl FsyncWorkload {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self {
            name: "append",
            about: "appends 4 KiB to a file and calls fsync",
            kind: Kind::Append(Neighbour::None),
        },
        Self {
            name: "append-beside",
            about: "... beside a thread that sets an extended attribute of its own file",
            kind: Kind::Append(Neighbour::SetsAttributes),
        },
        Self {
            name: "each",
            about: "creates a file of 4 KiB, calls fsync and closes it (fs_mark -S1)",
            kind: Kind::EachDurable(4096),
        },
        Self {
            name: "each-16k",
            about: "... of 16 KiB",
            kind: Kind::EachDurable(16384),
        },
        Self {
            name: "after",
            about: "creates files of 4 KiB, then calls fsync of each in order (fs_mark -S5)",
            kind: Kind::ThenDurable(4096),
        },
        Self {
            name: "after-empty",
            about: "... empty files",
            kind: Kind::ThenDurable(0),
        },
        Self {
            name: "pending",
            about: "creates empty files where earlier ones were removed, calls one fsync, removes them; \
                    several times",
            kind: Kind::Pending,
        },
    ];

    /// The workload with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|named| named.name == name)
    }

    /// Creates the directories and, for `pending`, files in all of them, which are removed again:
    /// the directories have their size then. Makes everything durable.
    ///
    /// # Errors
    /// The first failure of the target.
    pub fn prepare(self, target: &dyn Target, size: FsyncSize) -> io::Result<()> {
        for nr in 0..size.all_directories() {
            let mut worker = target.worker(WorkerNr(nr))?;
            if self.kind == Kind::Pending {
                for file in size.file_numbers() {
                    worker.apply(file, Operation::Create)?;
                    worker.apply(file, Operation::Close)?;
                }
                for file in size.file_numbers() {
                    worker.apply(file, Operation::Unlink)?;
                }
            }
        }
        let mut worker = target.worker(WorkerNr(0))?;
        worker.apply(FileNr(0), Operation::SyncAll).map(drop)
    }

    /// Runs it in the directories that [`Self::prepare`] has created.
    ///
    /// # Errors
    /// The first failure of the target.
    pub fn run(
        self,
        target: &dyn Target,
        size: FsyncSize,
        clock: &dyn Clock,
    ) -> io::Result<FsyncRun> {
        let run = Run {
            target,
            size,
            clock,
            neighbour: self.neighbour(),
            gate: Gate::default(),
            at_work: AtomicUsize::new(size.threads.get()),
        };
        let run = &run;
        thread::scope(|scope| {
            let neighbour = scope.spawn(move || match run.neighbour {
                Neighbour::None => Ok(0),
                Neighbour::SetsAttributes => run.set_attributes(),
            });
            let threads = 0..size.threads.get();
            let threads: Vec<_> = threads
                .map(|nr| scope.spawn(move || run.thread(nr, self.kind)))
                .collect();
            // All are joined before the first failure is returned.
            let done = threads.into_iter().map(|thread| joined(thread.join()));
            let done: Vec<_> = done.collect();
            let attributes_set = joined(neighbour.join())?;
            let done: io::Result<Vec<ThreadRun>> = done.into_iter().collect();
            Ok(total(done?, attributes_set))
        })
    }

    fn neighbour(self) -> Neighbour {
        match self.kind {
            Kind::Append(neighbour) => neighbour,
            _ => Neighbour::None,
        }
    }
}

fn joined<T, E>(end: Result<io::Result<T>, E>) -> io::Result<T> {
    end.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

fn total(threads: Vec<ThreadRun>, attributes_set: u64) -> FsyncRun {
    let mut all = FsyncRun {
        operations: 0,
        wall: Duration::ZERO,
        sync_wall: Duration::ZERO,
        latencies: Vec::new(),
        sync_times: Vec::new(),
        attributes_set,
    };
    for thread in threads {
        all.operations += thread.operations;
        all.wall = all.wall.max(thread.wall);
        all.sync_wall = all.sync_wall.max(thread.sync_wall);
        all.latencies.extend(thread.latencies);
        all.sync_times.extend(thread.sync_times);
    }
    all.latencies.sort_unstable();
    all.sync_times.sort_unstable();
    all
}

impl FsyncSize {
    /// At least one for each thread.
    fn all_directories(self) -> usize {
        self.directories.max(self.threads.get())
    }

    /// How often `pending` is repeated. The first time is slower: memory and code are used for the
    /// first time.
    fn repetitions(self) -> usize {
        let files = self.all_directories() * self.files as usize;
        (16_384 / files.max(1)).clamp(3, 100)
    }

    fn file_numbers(self) -> impl Iterator<Item = FileNr> {
        (0..self.files).map(FileNr)
    }
}

/// What all threads of a run see.
struct Run<'r> {
    target: &'r dyn Target,
    size: FsyncSize,
    clock: &'r dyn Clock,
    neighbour: Neighbour,
    gate: Gate,
    /// Threads that have not ended.
    at_work: AtomicUsize,
}

/// What one thread did.
#[derive(Default)]
struct ThreadRun {
    operations: u64,
    wall: Duration,
    sync_wall: Duration,
    latencies: Vec<Duration>,
    sync_times: Vec<Duration>,
}

type Workers<'r> = Vec<Box<dyn Worker + 'r>>;

impl Run<'_> {
    /// The body of thread `nr`.
    fn thread(&self, nr: usize, kind: Kind) -> io::Result<ThreadRun> {
        let workers = self.workers(nr, kind);
        // A thread that failed arrives as well: the others wait for it.
        let start = self.arrive();
        let done = workers.and_then(|mut workers| self.timed(&mut workers, kind, start));
        self.at_work.fetch_sub(1, Ordering::Release);
        done
    }

    fn arrive(&self) -> Duration {
        let beside = usize::from(self.neighbour != Neighbour::None);
        let expected = ThreadCount::new(self.size.threads.get() + beside);
        self.gate.arrive(expected, self.clock)
    }

    /// The workers of the thread's directories.
    fn workers(&self, nr: usize, kind: Kind) -> io::Result<Workers<'_>> {
        let own = (nr..self.size.all_directories()).step_by(self.size.threads.get());
        let workers = own.map(|directory| self.target.worker(WorkerNr(directory)));
        let mut workers: Workers<'_> = workers.collect::<io::Result<_>>()?;
        if let Kind::Append(_) = kind {
            for worker in &mut workers {
                worker.apply(FileNr(0), Operation::Create)?;
                worker.apply(FileNr(0), Operation::SyncAll)?;
            }
        }
        Ok(workers)
    }

    fn timed(
        &self,
        workers: &mut Workers<'_>,
        kind: Kind,
        start: Duration,
    ) -> io::Result<ThreadRun> {
        let mut done = ThreadRun::default();
        let mut syncs_from = start;
        match kind {
            Kind::Append(_) => {
                for step in 0..self.size.files {
                    let offset = u64::from(step) * APPEND_BYTES;
                    for worker in &mut *workers {
                        let append = Operation::Write {
                            offset,
                            len: APPEND_BYTES,
                        };
                        worker.apply(FileNr(0), append)?;
                        self.sync(worker, FileNr(0), &mut done)?;
                        done.operations += 1;
                    }
                }
            }
            Kind::EachDurable(bytes) => self.in_files(workers, |worker, file| {
                create(worker, file, bytes)?;
                self.sync(worker, file, &mut done)?;
                done.operations += 1;
                worker.apply(file, Operation::Close).map(drop)
            })?,
            Kind::ThenDurable(bytes) => {
                self.in_files(workers, |worker, file| {
                    create(worker, file, bytes)?;
                    done.operations += 1;
                    worker.apply(file, Operation::Close).map(drop)
                })?;
                syncs_from = self.clock.now();
                self.in_files(workers, |worker, file| {
                    worker.apply(file, Operation::Open)?;
                    self.sync(worker, file, &mut done)?;
                    worker.apply(file, Operation::Close).map(drop)
                })?;
            }
            Kind::Pending => {
                for _ in 0..self.size.repetitions() {
                    self.pending(workers, &mut done)?;
                }
            }
        }
        let end = self.clock.now();
        done.wall = end.saturating_sub(start);
        done.sync_wall = end.saturating_sub(syncs_from);
        Ok(done)
    }

    /// Creates all files, makes them durable by one fsync, and removes them again.
    fn pending(&self, workers: &mut Workers<'_>, done: &mut ThreadRun) -> io::Result<()> {
        self.in_files(workers, |worker, file| {
            done.operations += 1;
            create(worker, file, 0)
        })?;
        if let (Some(last), Some(worker)) = (self.size.files.checked_sub(1), workers.last_mut()) {
            let before = self.clock.thread_time();
            self.sync(worker, FileNr(last), done)?;
            let used = self.clock.thread_time().saturating_sub(before);
            done.sync_times.push(used);
        }
        self.in_files(workers, |worker, file| {
            worker.apply(file, Operation::Close)?;
            worker.apply(file, Operation::Unlink).map(drop)
        })?;
        match workers.first_mut() {
            Some(worker) => worker.apply(FileNr(0), Operation::SyncAll).map(drop),
            None => Ok(()),
        }
    }

    /// Calls `body` with each file, in all directories in turns.
    fn in_files(
        &self,
        workers: &mut Workers<'_>,
        mut body: impl FnMut(&mut Box<dyn Worker + '_>, FileNr) -> io::Result<()>,
    ) -> io::Result<()> {
        for file in self.size.file_numbers() {
            for worker in &mut *workers {
                body(worker, file)?;
            }
        }
        Ok(())
    }

    fn sync(
        &self,
        worker: &mut Box<dyn Worker + '_>,
        file: FileNr,
        done: &mut ThreadRun,
    ) -> io::Result<()> {
        let began = self.clock.now();
        worker.apply(file, Operation::Sync)?;
        done.latencies.push(self.clock.now().saturating_sub(began));
        Ok(())
    }

    /// The body of the thread beside the others: sets an attribute of its own file until they have
    /// ended. Returns how often.
    fn set_attributes(&self) -> io::Result<u64> {
        let directory = WorkerNr(self.size.all_directories());
        let made = self.target.worker(directory).and_then(|mut worker| {
            worker.apply(FileNr(0), Operation::Create)?;
            worker.apply(FileNr(0), Operation::SyncAll)?;
            Ok(worker)
        });
        self.arrive();
        let mut worker = made?;
        let mut times = 0;
        while self.at_work.load(Ordering::Acquire) > 0 {
            let (value, len) = (AttributeValue::Common(times), ATTRIBUTE_BYTES);
            worker.apply(FileNr(0), Operation::SetAttribute { value, len })?;
            times += 1;
        }
        Ok(times)
    }
}

/// Creates a file and writes it.
fn create(worker: &mut Box<dyn Worker + '_>, file: FileNr, bytes: u64) -> io::Result<()> {
    worker.apply(file, Operation::Create)?;
    if bytes > 0 {
        let (offset, len) = (0, bytes);
        worker.apply(file, Operation::Write { offset, len })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::target::DirectoryTarget;

    #[test]
    fn every_workload_calls_fsync_as_often_as_it_says() {
        let size = FsyncSize {
            threads: ThreadCount::new(2),
            directories: 5,
            files: 3,
        };
        let clock = MonotonicClock::default();
        for &workload in FsyncWorkload::ALL {
            let folder = tempfile::tempdir().expect("a temporary directory");
            let target = DirectoryTarget::new(folder.path());
            workload.prepare(&target, size).expect(workload.name);
            let run = workload.run(&target, size, &clock);
            let run = match run {
                // Not every file system has attributes of users.
                Err(why) if workload.neighbour() != Neighbour::None => {
                    assert_eq!(why.raw_os_error(), Some(95), "{why}");
                    continue;
                }
                run => run.expect(workload.name),
            };
            // Of the pending changes each of the two threads syncs one.
            let (operations, syncs) = match workload.kind {
                Kind::Pending => (15 * size.repetitions(), 2 * size.repetitions()),
                _ => (15, 15),
            };
            assert_eq!(run.operations, operations as u64, "{}", workload.name);
            assert_eq!(run.latencies.len(), syncs, "{}", workload.name);
            assert!(run.latencies.is_sorted() && run.sync_wall <= run.wall);
            assert!(run.percentile(50) <= run.percentile(100));
            let file = std::fs::metadata(folder.path().join("w4/f0"));
            let expected = match workload.kind {
                Kind::Append(_) => Some(3 * APPEND_BYTES),
                Kind::EachDurable(bytes) | Kind::ThenDurable(bytes) => Some(bytes),
                // Its files are removed before the next repetition, and at the end.
                Kind::Pending => None,
            };
            assert_eq!(
                file.ok().map(|file| file.len()),
                expected,
                "{}",
                workload.name
            );
        }
    }
}
