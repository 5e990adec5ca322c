//! **Purpose.** `aging`: what it costs that a file system is nearly full and old. Files are
//! replaced again and again while most of them stay, and then large files are written.
//!
//! **Model.** Each thread fills its share of the file system with files of 4 KiB to 1 MiB, whose
//! sizes are drawn evenly by their logarithm from a seed. A step of the churn removes a file,
//! chosen at random, and creates another one; while the share is exceeded no file is created, so
//! the fill stays near that of the case. Large files are written before the churn and after it, in
//! free space of the same size: the ratio of both speeds is the price of fragmentation. The device
//! is a file in memory, on which a seek costs nothing, so that the price is that of the software
//! alone.
//!
//! Btrfs is not among the sides: with a file system of this size, a run at 95 % ended with
//! `ENOSPC`.
//!
//! A file system that says `ENOSPC` early, because its metadata grows into the data, loses another
//! file each time. How full it was in the end is among the figures.

use std::io;
use std::time::Duration;

use fourscore_sync::profile::operation;
use fourscore_sync::thread;

use crate::clock::Clock;
use crate::comparison::ThreadCount;
use crate::profile::Profiled;
use crate::scratch::FsKind;
use crate::study::peers::side;
use crate::study::{
    Case, Facts, Measure, Sample, ScratchSize, Side, Study, Surroundings, ThreadList,
};
use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};
use crate::workload::Gate;

const IMAGE_BYTES: u64 = 512 << 20;
const HOST_BYTES: u64 = 768 << 20;
const SMALLEST_FILE_LOG: u64 = 12;
const LARGEST_FILE_LOG: u64 = 20;
/// The number of the large file of a worker, behind all others.
const LARGE_FILE: FileNr = FileNr(50_000);
const LARGE_FILE_BYTES: u64 = 8 << 20;
const LARGE_FILES: u32 = 3;
const PIECE_BYTES: u64 = 1 << 20;
/// The churn ends when requests found no space this often.
const MAX_REFUSALS: u32 = 1000;
/// The file system counts as full when requests found no space this often: a share may be out of
/// reach, where blocks are reserved for root.
const FULL_REFUSALS: u32 = 20;

/// The experiment.
pub(super) const STUDY: Study = Study {
    name: "aging",
    about: "what a full and old file system costs",
    source: "",
    load: "fills its share with files, then replaces one after the other, at random",
    cases: &[
        case("50", "50 % full"),
        case("70", "70 % full"),
        case("80", "80 % full"),
        case("90", "90 % full"),
        case("95", "95 % full"),
    ],
    smallest_cases: 1,
    smallest_steps: 100,
    sides: &[
        side(FsKind::Ext4),
        side(FsKind::Xfs),
        side(FsKind::Mount),
        side(FsKind::InProcess),
    ],
    published: &[],
    threads: ThreadList::One,
    scratch: Some(ScratchSize {
        image_bytes: IMAGE_BYTES,
        host_bytes: HOST_BYTES,
    }),
    measure: &Aging,
};

const fn case(name: &'static str, about: &'static str) -> Case {
    Case { name, about }
}

struct Aging;

impl Measure for Aging {
    fn steps(&self, _: &Case, threads: ThreadCount) -> u64 {
        4000 / threads.get() as u64
    }

    fn memory_bytes(&self, _: &Case) -> u64 {
        256 << 20
    }

    fn missing(&self, side: &Side) -> Option<String> {
        FsKind::by_name(side.name).and_then(FsKind::missing)
    }

    fn has_sections(&self, side: &Side) -> bool {
        side.name == FsKind::InProcess.name()
    }

    fn run(
        &self,
        case: &Case,
        side: &Side,
        threads: ThreadCount,
        steps: u64,
        around: &Surroundings<'_>,
    ) -> io::Result<Sample> {
        let kind = FsKind::by_name(side.name).ok_or(io::ErrorKind::InvalidInput)?;
        let percent: u64 = case.name.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
        let scratch = around.scratch()?;
        let mounted = scratch.mount(scratch.image(kind, IMAGE_BYTES)?)?;
        let empty = mounted.used()?;
        let wanted = (empty.total_bytes / 100 * percent).saturating_sub(empty.used_bytes);
        let plan = Plan {
            share_bytes: wanted / threads.get() as u64,
            steps,
        };
        let profiled = Profiled::begin();
        let aged = age(&*mounted.target(), &plan, threads, around.clock)?;
        let profile = profiled.end(aged.iter().map(|aged| aged.churn).sum());
        let used = mounted.used()?;
        let image = mounted.unmount()?;
        let wall = aged.iter().map(|aged| aged.churn).max().unwrap_or_default();
        let replaced: u64 = aged.iter().map(|aged| aged.replaced).sum();
        let speed = |of: fn(&Aged) -> Duration| {
            let times = aged.iter().map(|aged| mib_per_second(of(aged)));
            times.sum::<f64>()
        };
        let (fresh, old) = (speed(|aged| aged.fresh), speed(|aged| aged.old));
        let mut facts = Facts::from([
            ("large files before, MiB/s", fresh),
            ("large files after, MiB/s", old),
            ("large files after by before", old / fresh.max(1e-9)),
            (
                "full at the end, %",
                used.used_bytes as f64 * 100.0 / (used.total_bytes as f64).max(1.0),
            ),
            (
                "requests without space",
                aged.iter().map(|aged| f64::from(aged.refusals)).sum(),
            ),
        ]);
        let is_large = |name: &[u8]| name == format!("f{}", LARGE_FILE.0).as_bytes();
        if let Some(large) = image.extents(is_large)? {
            facts.insert(
                "extents of a large file",
                per_file(large.extents, large.files),
            );
        }
        if let Some(small) = image.extents(|name| !is_large(name))? {
            facts.insert("extents of a file", per_file(small.extents, small.files));
        }
        if let Some(free) = image.free_space()? {
            let kib = free.mean_bytes() >> 10;
            facts.insert("mean free extent, KiB", kib as f64);
        }
        Ok(Sample {
            operations_per_second: replaced as f64 / wall.as_secs_f64().max(1e-9),
            facts,
            profile: profile.filter(|_| self.has_sections(side)),
        })
    }
}

fn per_file(extents: u64, files: u64) -> f64 {
    extents as f64 / (files as f64).max(1.0)
}

fn mib_per_second(time: Duration) -> f64 {
    let mib = (LARGE_FILE_BYTES * u64::from(LARGE_FILES)) >> 20;
    mib as f64 / time.as_secs_f64().max(1e-9)
}

/// What each worker does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Bytes of its files.
    share_bytes: u64,
    /// Files that it replaces.
    steps: u64,
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default)]
struct Aged {
    /// Files that were removed and created.
    replaced: u64,
    /// The time of that, and of a sync.
    churn: Duration,
    /// The time of the large files before it.
    fresh: Duration,
    /// The time of the large files after it.
    old: Duration,
    /// Requests that found no space.
    refusals: u32,
}

/// Ages a file system in threads.
fn age(
    target: &dyn Target,
    plan: &Plan,
    threads: ThreadCount,
    clock: &dyn Clock,
) -> io::Result<Vec<Aged>> {
    let gate = Gate::default();
    let run = &|nr: usize| {
        let filled = target.worker(WorkerNr(nr)).and_then(|worker| {
            let mut files = Files::new(worker, WorkerNr(nr));
            files.fill(plan)?;
            Ok(files)
        });
        // A worker that failed arrives as well: the others wait for it.
        gate.arrive(threads, clock);
        filled?.age(plan, clock)
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.get())
            .map(|nr| scope.spawn(move || run(nr)))
            .collect();
        let failed = || Err(io::Error::other("a worker thread panicked"));
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| failed()));
        // All are joined before the first failure is returned.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The files of a worker: the size of each, in bytes.
struct Files<'t> {
    worker: Box<dyn Worker + 't>,
    sizes: Vec<u64>,
    bytes: u64,
    random: u64,
    next: u32,
    /// Numbers of files, in the order of `sizes`.
    numbers: Vec<FileNr>,
    refusals: u32,
}

impl<'t> Files<'t> {
    fn new(worker: Box<dyn Worker + 't>, nr: WorkerNr) -> Self {
        Self {
            worker,
            sizes: Vec::new(),
            bytes: 0,
            random: nr.0 as u64 + 1,
            next: 0,
            numbers: Vec::new(),
            refusals: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        // The constants of Knuth's MMIX.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below.max(1)
    }

    /// A size, a multiple of 4 KiB.
    fn draw_size(&mut self) -> u64 {
        let log = SMALLEST_FILE_LOG + self.draw(LARGEST_FILE_LOG - SMALLEST_FILE_LOG);
        let within = self.draw(1 << (log - SMALLEST_FILE_LOG));
        (1 << log) + (within << SMALLEST_FILE_LOG)
    }

    fn fill(&mut self, plan: &Plan) -> io::Result<()> {
        while self.bytes < plan.share_bytes && self.refusals < FULL_REFUSALS {
            let size = self.draw_size();
            self.create(size)?;
        }
        self.sync()
    }

    fn age(mut self, plan: &Plan, clock: &dyn Clock) -> io::Result<Aged> {
        let fresh = self.write_large(clock)?;
        self.remove_large()?;
        let began = clock.now();
        let mut replaced = 0;
        for _ in 0..plan.steps {
            if self.refusals >= MAX_REFUSALS {
                break;
            }
            let operation = operation();
            self.remove_one()?;
            if self.bytes < plan.share_bytes {
                let size = self.draw_size();
                self.create(size)?;
            }
            drop(operation);
            replaced += 1;
        }
        let last = operation();
        self.sync()?;
        drop(last);
        let churn = clock.now().saturating_sub(began);
        let old = self.write_large(clock)?;
        Ok(Aged {
            replaced,
            churn,
            fresh,
            old,
            refusals: self.refusals,
        })
    }

    /// Creates a file. If there is no space for it, it and another file are removed.
    fn create(&mut self, size: u64) -> io::Result<()> {
        let nr = FileNr(self.next);
        self.next = (self.next + 1) % LARGE_FILE.0;
        let written = self.write(nr, size);
        match written {
            Ok(()) => {
                self.numbers.push(nr);
                self.sizes.push(size);
                self.bytes += size;
                Ok(())
            }
            Err(why) if is_full(&why) => {
                self.refusals += 1;
                self.unlink(nr)?;
                self.remove_one()?;
                // Freed blocks may be used after a commit only.
                self.sync()
            }
            Err(why) => Err(why),
        }
    }

    /// Creates a file with its content. It is closed in any case.
    fn write(&mut self, nr: FileNr, size: u64) -> io::Result<()> {
        self.worker.apply(nr, Operation::Create)?;
        let write = Operation::Write {
            offset: 0,
            len: size,
        };
        let written = self.worker.apply(nr, write);
        self.worker.apply(nr, Operation::Close)?;
        written.map(drop)
    }

    fn remove_one(&mut self) -> io::Result<()> {
        if self.numbers.is_empty() {
            return Ok(());
        }
        let at = self.draw(self.numbers.len() as u64);
        let at = usize::try_from(at).map_err(io::Error::other)?;
        let nr = self.numbers.swap_remove(at);
        self.bytes -= self.sizes.swap_remove(at);
        self.unlink(nr)
    }

    /// Removes a name. A full file system may have no space for that until a commit.
    fn unlink(&mut self, nr: FileNr) -> io::Result<()> {
        loop {
            match self.worker.apply(nr, Operation::Unlink) {
                Err(why) if is_full(&why) && self.refusals < MAX_REFUSALS => {
                    self.refusals += 1;
                    // What it says of space does not matter here.
                    let _ = self.worker.apply(FileNr(0), Operation::SyncAll);
                }
                ended => return ended.map(drop),
            }
        }
    }

    /// Makes everything durable. A FUSE mount that caches writes finds out here that there is no
    /// space for them: files are removed then.
    fn sync(&mut self) -> io::Result<()> {
        loop {
            match self.worker.apply(FileNr(0), Operation::SyncAll) {
                Err(why) if is_full(&why) && self.refusals < MAX_REFUSALS => {
                    self.refusals += 1;
                    self.remove_one()?;
                }
                ended => return ended.map(drop),
            }
        }
    }

    /// Writes large files one after the other, each durable before the next one. The last one
    /// stays. Returns the time of those that found space.
    fn write_large(&mut self, clock: &dyn Clock) -> io::Result<Duration> {
        let (mut time, mut written) = (Duration::ZERO, 0);
        while written < LARGE_FILES {
            let began = clock.now();
            match self.try_large() {
                Ok(()) => {
                    time += clock.now().saturating_sub(began);
                    written += 1;
                    if written < LARGE_FILES {
                        self.remove_large()?;
                    }
                }
                Err(why) if is_full(&why) && self.refusals < MAX_REFUSALS => {
                    self.refusals += 1;
                    // What it takes, with the mean file in mind.
                    for _ in 0..LARGE_FILE_BYTES >> (LARGEST_FILE_LOG - 2) {
                        self.remove_one()?;
                    }
                    self.remove_large()?;
                }
                Err(why) => return Err(why),
            }
        }
        Ok(time)
    }

    /// Writes a large file. It is closed in any case.
    fn try_large(&mut self) -> io::Result<()> {
        self.worker.apply(LARGE_FILE, Operation::Create)?;
        let pieces = 0..LARGE_FILE_BYTES / PIECE_BYTES;
        let mut operations = pieces.map(|piece| Operation::Write {
            offset: piece * PIECE_BYTES,
            len: PIECE_BYTES,
        });
        let written = operations
            .try_for_each(|write| self.worker.apply(LARGE_FILE, write).map(drop))
            .and_then(|()| self.worker.apply(LARGE_FILE, Operation::Sync).map(drop));
        self.worker.apply(LARGE_FILE, Operation::Close)?;
        written
    }

    fn remove_large(&mut self) -> io::Result<()> {
        self.unlink(LARGE_FILE)?;
        self.sync()
    }
}

/// Whether a file system says that it is full.
fn is_full(why: &io::Error) -> bool {
    let ours = why.get_ref().and_then(|inner| inner.downcast_ref());
    why.kind() == io::ErrorKind::StorageFull || matches!(ours, Some(fourscore::Error::NoSpace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::target::DirectoryTarget;

    #[test]
    fn the_fill_stays_while_files_are_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let target = DirectoryTarget::new(directory.path());
        let plan = Plan {
            share_bytes: 8 << 20,
            steps: 100,
        };
        let clock = MonotonicClock::default();
        let aged = age(&target, &plan, ThreadCount::new(2), &clock).expect("it runs");
        for (nr, aged) in aged.iter().enumerate() {
            assert_eq!((aged.replaced, aged.refusals), (100, 0));
            assert!(aged.fresh > Duration::ZERO && aged.old > Duration::ZERO);
            let folder = directory.path().join(format!("w{nr}"));
            let files = std::fs::read_dir(folder).expect("a folder");
            let sizes = files.map(|file| {
                let file = file.expect("a name");
                let is_large = file.file_name() == "f50000";
                let len = file.metadata().expect("a file").len();
                if is_large { 0 } else { len }
            });
            let bytes: u64 = sizes.sum();
            // A file too many, or two that were removed since.
            let near = plan.share_bytes - (2 << 20)..plan.share_bytes + (1 << 20);
            assert!(near.contains(&bytes), "{bytes}");
        }
    }

    #[test]
    fn sizes_are_whole_blocks_of_4_kib_to_a_mib() {
        let directory = tempfile::tempdir().expect("a directory");
        let target = DirectoryTarget::new(directory.path());
        let worker = target.worker(WorkerNr(0)).expect("a worker");
        let mut files = Files::new(worker, WorkerNr(0));
        let sizes: Vec<u64> = (0..1000).map(|_| files.draw_size()).collect();
        assert!(sizes.iter().all(|size| size.is_multiple_of(4096)));
        assert!(sizes.iter().all(|size| (4096..1 << 20).contains(size)));
        assert!(sizes.iter().any(|&size| size < 16 << 10));
        assert!(sizes.iter().any(|&size| size > 512 << 10));
    }
}
