//! **Purpose.** Loads on a mounted file system: creating and removing names, buffered and direct
//! reads and writes, and fsync.
//!
//! **Model.** A [`Load`] runs in a directory that is empty or holds what earlier loads have left,
//! and returns its operations per second. The time of a write load includes an fsync of the dirty
//! pages at its end.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use fourscore_sync::thread;
use rustix::fs::OFlags;

use crate::comparison::ThreadCount;

/// Size of the file that transfers read and write.
const FILE_BYTES: u64 = 256 << 20;
/// Alignment of the memory of direct transfers.
const ALIGN_BYTES: usize = 4096;

/// A load on a mounted file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Creates empty files. The directories are created before the time begins.
    Create(Spread),
    /// Removes the files that [`Load::Create`] has created with the same numbers. The directories
    /// stay.
    Remove(Spread),
    /// Creates files of 4 KiB, with an fsync of each before the next one.
    CreateDurable {
        /// Number of files.
        files: u32,
    },
    /// Appends 4 KiB to one file and calls fsync, again and again. The rate is that of the median
    /// append.
    AppendDurable {
        /// Number of appends.
        times: u32,
    },
    /// Reads or writes one file.
    Transfer(Transfer),
}

/// Files spread evenly over directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Number of directories.
    pub directories: u32,
    /// Number of files in all directories together.
    pub files: u32,
}

/// Reads or writes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Whether the file is read or written.
    pub direction: Direction,
    /// Offset and size of each operation.
    pub order: Order,
    /// Whether the transfers go through the page cache.
    pub mode: IoMode,
    /// Number of operations of each thread.
    pub times: u32,
}

/// Whether the file is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The file is read. It is created before if it does not exist. In [`IoMode::Buffered`] it is
    /// read into the page cache before the time begins.
    Read,
    /// The file is written, with one fsync at the end of the load.
    Write,
}

/// Offset and size of each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// 1 MiB at the next offset. A file that is written is created again.
    Sequential,
    /// 4 KiB at a random offset.
    Random,
}

/// Whether transfers go through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// Through the page cache.
    Buffered,
    /// Around the page cache (`O_DIRECT`).
    Direct,
}

impl Load {
    /// Runs the load below `directory` in `threads` threads. Returns its operations per second.
    ///
    /// # Errors
    /// The first error of the file system.
    pub fn run(self, directory: &Path, threads: ThreadCount) -> io::Result<f64> {
        let run = LoadRun { directory, threads };
        match self {
            Self::Create(spread) => run.create(spread),
            Self::Remove(spread) => run.remove(spread),
            Self::CreateDurable { files } => run.create_durable(files),
            Self::AppendDurable { times } => run.append_durable(times),
            Self::Transfer(transfer) => run.transfer(transfer),
        }
    }
}

/// A run of a load.
struct LoadRun<'d> {
    directory: &'d Path,
    threads: ThreadCount,
}

impl LoadRun<'_> {
    /// Calls `body` in each thread with the thread's number.
    fn in_each_thread(&self, body: impl Fn(u32) -> io::Result<()> + Sync) -> io::Result<()> {
        thread::scope(|scope| {
            let body = &body;
            let workers: Vec<_> = (0..self.threads())
                .map(|thread| scope.spawn(move || body(thread)))
                .collect();
            let mut ends = workers.into_iter().map(|worker| worker.join());
            ends.try_for_each(|end| end.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
        })
    }

    /// Calls `one` with each number below `operations`; the threads take the numbers in turns.
    /// Returns the operations per second.
    fn rate(&self, operations: u32, one: impl Fn(u32) -> io::Result<()> + Sync) -> io::Result<f64> {
        let began = Instant::now();
        self.in_each_thread(|thread| {
            let mut own = (thread..operations).step_by(self.threads.get());
            own.try_for_each(&one)
        })?;
        Ok(f64::from(operations) / began.elapsed().as_secs_f64())
    }

    fn threads(&self) -> u32 {
        u32::try_from(self.threads.get()).unwrap_or(u32::MAX)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The directory `nr` of a spread.
    fn directory_of(&self, spread: Spread, nr: u32) -> PathBuf {
        self.path(&format!("of-{}/{nr}", spread.directories))
    }

    /// The file `nr` of a spread.
    fn file_of(&self, spread: Spread, nr: u32) -> PathBuf {
        let directory = self.directory_of(spread, nr % spread.directories.max(1));
        directory.join(format!("file-{nr}"))
    }

    fn create(&self, spread: Spread) -> io::Result<f64> {
        for directory in 0..spread.directories {
            fs::create_dir_all(self.directory_of(spread, directory))?;
        }
        self.rate(spread.files, |nr| {
            File::create_new(self.file_of(spread, nr)).map(drop)
        })
    }

    fn remove(&self, spread: Spread) -> io::Result<f64> {
        self.rate(spread.files, |nr| fs::remove_file(self.file_of(spread, nr)))
    }

    fn create_durable(&self, files: u32) -> io::Result<f64> {
        let parent = self.path("durable");
        fs::create_dir_all(&parent)?;
        self.rate(files, |nr| {
            let path = parent.join(format!("{}-{nr}", self.threads));
            let file = File::create_new(path)?;
            file.write_all_at(&[7; 4096], 0)?;
            file.sync_all()
        })
    }

    fn append_durable(&self, times: u32) -> io::Result<f64> {
        let file = File::create(self.path("log"))?;
        // Other work on the machine disturbs some appends, which the median leaves out.
        let mut took = Vec::new();
        for nr in 0..times {
            let began = Instant::now();
            file.write_all_at(&[7; 4096], u64::from(nr) * 4096)?;
            file.sync_all()?;
            took.push(began.elapsed());
        }
        took.sort_unstable();
        let median = took
            .get(took.len() / 2)
            .ok_or(io::ErrorKind::InvalidInput)?;
        Ok(1.0 / median.as_secs_f64())
    }

    fn transfer(&self, transfer: Transfer) -> io::Result<f64> {
        let path = self.path("content");
        let is_new = transfer.direction == Direction::Write && transfer.order == Order::Sequential;
        if is_new && path.exists() {
            fs::remove_file(&path)?;
        } else if !is_new && !path.exists() {
            fill(&path)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        if transfer.mode == IoMode::Direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        let file = options.open(&path)?;
        if transfer.direction == Direction::Read && transfer.mode == IoMode::Buffered {
            read_all(&file)?;
        }
        let began = Instant::now();
        self.in_each_thread(|thread| transfer.run(&file, thread))?;
        if transfer.direction == Direction::Write {
            file.sync_all()?;
        }
        let operations = f64::from(self.threads()) * f64::from(transfer.times);
        Ok(operations / began.elapsed().as_secs_f64())
    }
}

impl Transfer {
    /// Bytes of one operation.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self.order {
            Order::Sequential => 1 << 20,
            Order::Random => 4096,
        }
    }

    fn run(self, file: &File, thread: u32) -> io::Result<()> {
        let bytes = self.bytes();
        let mut memory = vec![0x5a; bytes + ALIGN_BYTES];
        let start = memory.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        let buffer = &mut memory[start..start + bytes];
        let positions = FILE_BYTES / bytes as u64;
        let mut random = u64::from(thread) + 1;
        for step in 0..u64::from(self.times) {
            let position = match self.order {
                Order::Sequential => step,
                Order::Random => {
                    // The constants of Knuth's MMIX.
                    random = random.wrapping_mul(6_364_136_223_846_793_005);
                    random = random.wrapping_add(1_442_695_040_888_963_407);
                    random >> 33
                }
            };
            let offset = position % positions * bytes as u64;
            match self.direction {
                Direction::Read => file.read_exact_at(buffer, offset)?,
                Direction::Write => file.write_all_at(buffer, offset)?,
            }
        }
        Ok(())
    }
}

/// Creates the file, fills it and calls fsync.
fn fill(path: &Path) -> io::Result<()> {
    let file = File::create(path)?;
    let piece = vec![0x5a; 1 << 20];
    for nr in 0..FILE_BYTES >> 20 {
        file.write_all_at(&piece, nr << 20)?;
    }
    file.sync_all()
}

/// Reads the file into the page cache.
fn read_all(file: &File) -> io::Result<()> {
    let mut piece = vec![0; 1 << 20];
    for nr in 0..FILE_BYTES >> 20 {
        file.read_exact_at(&mut piece, nr << 20)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_runs_on_a_directory() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let spread = Spread {
            directories: 3,
            files: 10,
        };
        let runs = |load: Load| {
            let rate = load
                .run(directory.path(), ThreadCount::new(2))
                .expect("it runs");
            assert!(rate > 0.0, "{load:?}");
        };
        let count = |name: &str| {
            fs::read_dir(directory.path().join(name))
                .expect("made")
                .count()
        };
        runs(Load::Create(spread));
        assert_eq!((count("of-3/0"), count("of-3/1")), (4, 3));
        runs(Load::Remove(spread));
        assert_eq!((count("of-3/0"), count("of-3")), (0, 3));
        runs(Load::CreateDurable { files: 10 });
        assert_eq!(count("durable"), 10);
        runs(Load::AppendDurable { times: 3 });
        let log = fs::metadata(directory.path().join("log")).expect("made");
        assert_eq!(log.len(), 3 * 4096);
        for direction in [Direction::Write, Direction::Read] {
            for order in [Order::Random, Order::Sequential] {
                runs(Load::Transfer(Transfer {
                    direction,
                    order,
                    mode: IoMode::Buffered,
                    times: 300,
                }));
            }
        }
        let content = fs::metadata(directory.path().join("content")).expect("made");
        assert_eq!(content.len(), FILE_BYTES);
    }
}
