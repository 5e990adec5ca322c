//! **Purpose.** What programs do to a mounted file system: names made and removed, content written
//! and read with and without the page cache, and content made durable.
//!
//! **Model.** A [`Load`] runs in an empty directory, or in what earlier loads have left there, and
//! says how many operations it did in a second. What the page cache holds back when a load ends is
//! written within its time.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use fourscore_sync::thread;
use rustix::fs::OFlags;

use crate::comparison::ThreadCount;

/// The size of the file whose content is read and written, in bytes.
const FILE_BYTES: u64 = 256 << 20;
/// Direct transfers begin in memory at multiples of this.
const ALIGN_BYTES: usize = 4096;

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Makes so many empty files, spread over so many directories.
    Create {
        /// The directories, which are made before the time begins.
        directories: u32,
        /// Files in all of them together.
        files: u32,
    },
    /// Removes what [`Load::Create`] has made of the same numbers.
    Remove {
        /// The directories, which stay.
        directories: u32,
        /// Files in all of them together.
        files: u32,
    },
    /// Makes files of 4 KiB, each durable before the next.
    CreateDurable {
        /// How many.
        files: u32,
    },
    /// Appends 4 KiB and makes that durable, again and again.
    AppendDurable {
        /// How often.
        times: u32,
    },
    /// Moves content of one file.
    Transfer(Transfer),
}

/// How content is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// Where in the file.
    pub order: Order,
    /// Whether through the page cache.
    pub cache: Cache,
    /// How many operations each thread does.
    pub times: u32,
}

/// Which way content goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out of the file, which is made before if it is not there. With the page cache it is read
    /// once before the time begins.
    Read,
    /// Into the file.
    Write,
}

/// Which parts of the file are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// 1 MiB behind the other; the file is new if it is written.
    Sequential,
    /// 4 KiB anywhere.
    Random,
}

/// Whether content goes through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// It does.
    Through,
    /// It does not (`O_DIRECT`).
    Around,
}

impl Load {
    /// Runs it below `directory` in so many threads; operations per second.
    ///
    /// # Errors
    /// The first of the file system's.
    pub fn run(self, directory: &Path, threads: ThreadCount) -> io::Result<f64> {
        let place = Place { directory, threads };
        match self {
            Self::Create { directories, files } => place.create(directories, files),
            Self::Remove { directories, files } => place.remove(directories, files),
            Self::CreateDurable { files } => place.create_durable(files),
            Self::AppendDurable { times } => place.append_durable(times),
            Self::Transfer(transfer) => place.transfer(transfer),
        }
    }
}

struct Place<'d> {
    directory: &'d Path,
    threads: ThreadCount,
}

impl Place<'_> {
    /// Does something in each thread, which is told its number.
    fn each(&self, does: impl Fn(u32) -> io::Result<()> + Sync) -> io::Result<()> {
        thread::scope(|scope| {
            let does = &does;
            let workers: Vec<_> = (0..self.threads())
                .map(|thread| scope.spawn(move || does(thread)))
                .collect();
            let mut ends = workers.into_iter().map(|worker| worker.join());
            ends.try_for_each(|end| end.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
        })
    }

    /// Does `operations` in all, each with its number, which are dealt to the threads in turns;
    /// operations per second.
    fn all(&self, operations: u32, one: impl Fn(u32) -> io::Result<()> + Sync) -> io::Result<f64> {
        let began = Instant::now();
        self.each(|thread| {
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

    fn file_in(&self, directories: u32, nr: u32) -> PathBuf {
        let directory = format!("of-{directories}/{}", nr % directories.max(1));
        self.path(&directory).join(format!("file-{nr}"))
    }

    fn create(&self, directories: u32, files: u32) -> io::Result<f64> {
        for directory in 0..directories {
            fs::create_dir_all(self.path(&format!("of-{directories}/{directory}")))?;
        }
        self.all(files, |nr| {
            File::create_new(self.file_in(directories, nr)).map(drop)
        })
    }

    fn remove(&self, directories: u32, files: u32) -> io::Result<f64> {
        self.all(files, |nr| fs::remove_file(self.file_in(directories, nr)))
    }

    fn create_durable(&self, files: u32) -> io::Result<f64> {
        let parent = self.path("durable");
        fs::create_dir_all(&parent)?;
        self.all(files, |nr| {
            let path = parent.join(format!("{}-{nr}", self.threads));
            let file = File::create_new(path)?;
            file.write_all_at(&[7; 4096], 0)?;
            file.sync_all()
        })
    }

    fn append_durable(&self, times: u32) -> io::Result<f64> {
        let file = File::create(self.path("log"))?;
        // Of one that is disturbed now and then the median is what a program usually sees.
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
        if transfer.cache == Cache::Around {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        let file = options.open(&path)?;
        if transfer.direction == Direction::Read && transfer.cache == Cache::Through {
            walk(&file)?;
        }
        let began = Instant::now();
        self.each(|thread| transfer.run(&file, thread))?;
        if transfer.direction == Direction::Write {
            file.sync_all()?;
        }
        let operations = f64::from(self.threads()) * f64::from(transfer.times);
        Ok(operations / began.elapsed().as_secs_f64())
    }
}

impl Transfer {
    /// The bytes of one operation.
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
        let places = FILE_BYTES / bytes as u64;
        let mut random = u64::from(thread) + 1;
        for step in 0..u64::from(self.times) {
            let place = match self.order {
                Order::Sequential => step,
                Order::Random => {
                    // The constants of Knuth's MMIX.
                    random = random.wrapping_mul(6_364_136_223_846_793_005);
                    random = random.wrapping_add(1_442_695_040_888_963_407);
                    random >> 33
                }
            };
            let offset = place % places * bytes as u64;
            match self.direction {
                Direction::Read => file.read_exact_at(buffer, offset)?,
                Direction::Write => file.write_all_at(buffer, offset)?,
            }
        }
        Ok(())
    }
}

/// Makes the file, and all of it durable.
fn fill(path: &Path) -> io::Result<()> {
    let file = File::create(path)?;
    let piece = vec![0x5a; 1 << 20];
    for nr in 0..FILE_BYTES >> 20 {
        file.write_all_at(&piece, nr << 20)?;
    }
    file.sync_all()
}

/// Reads the file.
fn walk(file: &File) -> io::Result<()> {
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
        let place = tempfile::tempdir().expect("a temporary directory");
        let (directories, files) = (3, 10);
        let runs = |load: Load| {
            let rate = load
                .run(place.path(), ThreadCount::new(2))
                .expect("it runs");
            assert!(rate > 0.0, "{load:?}");
        };
        let count = |name: &str| fs::read_dir(place.path().join(name)).expect("made").count();
        runs(Load::Create { directories, files });
        assert_eq!((count("of-3/0"), count("of-3/1")), (4, 3));
        runs(Load::Remove { directories, files });
        assert_eq!((count("of-3/0"), count("of-3")), (0, 3));
        runs(Load::CreateDurable { files });
        assert_eq!(count("durable"), 10);
        runs(Load::AppendDurable { times: 3 });
        let log = fs::metadata(place.path().join("log")).expect("made");
        assert_eq!(log.len(), 3 * 4096);
        for direction in [Direction::Write, Direction::Read] {
            for order in [Order::Random, Order::Sequential] {
                runs(Load::Transfer(Transfer {
                    direction,
                    order,
                    cache: Cache::Through,
                    times: 300,
                }));
            }
        }
        let content = fs::metadata(place.path().join("content")).expect("made");
        assert_eq!(content.len(), FILE_BYTES);
    }
}
