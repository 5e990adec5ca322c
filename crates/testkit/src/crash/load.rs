//! **Purpose.** The writers on a file system that is going to crash.
//!
//! **Model.** Each writer has its own folder and its own random generator, so the seed determines
//! its calls. It knows its files. A call that must succeed and fails is a fault, unless the file
//! system is shut down or full.
//!
//! **Locking.** Each call holds a read-write lock for reading. The holder of the write lock has
//! paused all writers between two calls.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fourscore_sync::{RwLock, RwLockWriteGuard, thread};
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags, fallocate};
use rustix::io::Errno;

/// The number of writers.
const WRITERS: u64 = 4;

/// The number of calls of all writers before the crash.
const OPERATIONS: u64 = 3_000;

/// The most files one writer keeps.
const FILES: usize = 60;

/// The magic number of journal blocks; data that begins with it must be escaped in the log.
const JOURNAL_MAGIC: [u8; 4] = 0xc03b_3998_u32.to_be_bytes();

/// The seed of the random generators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// The next number, by splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `end`, which is not zero.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The calls that writers make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All of them.
    Everything,
    /// Only calls that a fast commit can record, so neither xattrs nor exchanges, and whose records
    /// the kernel replays correctly: not rmdir, after which e2fsck still finds the inode.
    FastCommit,
}

/// Several threads that write to a mounted file system.
#[derive(Debug)]
pub struct Load {
    root: PathBuf,
    seed: Seed,
    mix: Mix,
    gate: RwLock<()>,
    stop: AtomicBool,
    operations: AtomicU64,
}

impl Load {
    /// Prepares the writers' folders below `root`.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn new(root: &Path, seed: Seed, mix: Mix) -> Result<Self> {
        for writer in 0..WRITERS {
            fs::create_dir(root.join(format!("writer-{writer}")))?;
        }
        Ok(Self {
            root: root.to_path_buf(),
            seed,
            mix,
            gate: RwLock::new(()),
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
        })
    }

    /// Runs the writers, calls `then` while they run, after the given number of calls, and returns
    /// its result when all have stopped.
    ///
    /// # Errors
    /// Those of `then`, or a failed call of a writer that must succeed.
    pub fn run<T>(&self, then: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| scope.spawn(move || Writer::new(self, writer).work()))
                .collect();
            while self.operations() < OPERATIONS && !self.stop.load(Ordering::Acquire) {
                thread::yield_now();
            }
            let result = then(self);
            self.stop.store(true, Ordering::Release);
            for writer in writers {
                writer
                    .join()
                    .map_err(|_| anyhow::anyhow!("a writer panicked"))??;
            }
            result
        })
    }

    /// Pauses all writers after their current call while the guard lives.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
    }

    /// The number of completed calls.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }
}

/// One thread's state.
struct Writer<'a> {
    load: &'a Load,
    folder: PathBuf,
    seed: Seed,
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    names: u64,
}

impl<'a> Writer<'a> {
    fn new(load: &'a Load, writer: u64) -> Self {
        Self {
            load,
            folder: load.root.join(format!("writer-{writer}")),
            seed: Seed(load.seed.0 ^ (writer + 1).wrapping_mul(0x1234_5678_9abc_def1)),
            files: Vec::new(),
            folders: Vec::new(),
            names: 0,
        }
    }

    fn work(mut self) -> Result<()> {
        while !self.load.stop.load(Ordering::Acquire) {
            let _not_paused = self.load.gate.read();
            match self.step() {
                Ok(()) => {}
                Err(error) if is_full(&error) => self.make_room(),
                Err(error) if is_dead(&error) => return Ok(()),
                Err(error) => {
                    self.load.stop.store(true, Ordering::Release);
                    return Err(error).context("a writer's call failed");
                }
            }
            self.load.operations.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes half of the files; the next call reports errors.
    fn make_room(&mut self) {
        for file in self.files.split_off(self.files.len() / 2) {
            let _ = fs::remove_file(file);
        }
    }

    fn step(&mut self) -> io::Result<()> {
        if self.files.len() < 3 {
            return self.create();
        }
        let everything = self.load.mix == Mix::Everything;
        match self.seed.below(100) {
            0..20 if self.files.len() < FILES => self.create(),
            0..30 => self.remove(),
            30..45 => self.write(),
            45..52 => self.truncate(),
            52..60 => self.rename(),
            60..64 => self.link(),
            64..68 => self.symlink(),
            68..74 if everything => self.xattr(),
            74..80 => self.make_folder(),
            80..83 if everything => self.remove_folder(),
            83..87 => self.punch(),
            87..90 => self.change_mode(),
            _ => self.fsync(),
        }
    }

    /// A new path, in the writer's folder or one below it.
    fn new_path(&mut self) -> PathBuf {
        self.names += 1;
        let folder = match usize::try_from(self.seed.below(8)).ok() {
            Some(nr) if nr < self.folders.len() => &self.folders[nr],
            _ => &self.folder,
        };
        let padding = usize::try_from(self.names % 40).unwrap_or(0);
        folder.join(format!("{}-{:x<padding$}", self.names, ""))
    }

    /// One of the files, by its index.
    fn any(&mut self) -> usize {
        let files = u64::try_from(self.files.len()).unwrap_or(1).max(1);
        usize::try_from(self.seed.below(files)).unwrap_or(0)
    }

    fn create(&mut self) -> io::Result<()> {
        let path = self.new_path();
        File::create_new(&path)?;
        self.files.push(path);
        if self.seed.below(2) == 0 {
            self.write_to(self.files.len() - 1)
        } else {
            Ok(())
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let index = self.any();
        self.write_to(index)
    }

    /// Up to 48 KiB at an offset below 512 KiB; every other block starts like a journal block.
    fn write_to(&mut self, index: usize) -> io::Result<()> {
        let offset = match self.seed.below(3) {
            0 => 0,
            1 => self.seed.below(8) * 4096,
            _ => self.seed.below(512 << 10),
        };
        let len = usize::try_from(self.seed.below(48 << 10) + 1).unwrap_or(1);
        let mut bytes = vec![u8::try_from(self.seed.below(256)).unwrap_or(0); len];
        for block in bytes
            .chunks_mut(1024)
            .step_by(2)
            .filter(|block| block.len() >= 4)
        {
            block[..4].copy_from_slice(&JOURNAL_MAGIC);
        }
        self.open(index)?.write_all_at(&bytes, offset)
    }

    fn open(&self, index: usize) -> io::Result<File> {
        let path = self
            .files
            .get(index)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        OpenOptions::new().write(true).open(path)
    }

    fn truncate(&mut self) -> io::Result<()> {
        let index = self.any();
        let len_bytes = self.seed.below(300_000) / self.seed.below(30).max(1);
        self.open(index)?.set_len(len_bytes)
    }

    fn remove(&mut self) -> io::Result<()> {
        let index = self.any();
        fs::remove_file(self.files.swap_remove(index))
    }

    /// Renames a file to a new name, over another file, or in exchange with one.
    fn rename(&mut self) -> io::Result<()> {
        let from = self.any();
        let to = self.any();
        match self.seed.below(3) {
            0 => {
                let path = self.new_path();
                fs::rename(&self.files[from], &path)?;
                self.files[from] = path;
            }
            1 if from != to => {
                fs::rename(&self.files[from], &self.files[to])?;
                self.files.swap_remove(from);
            }
            _ if from != to && self.load.mix == Mix::Everything => {
                let here = rustix::fs::CWD;
                let (from, to) = (&self.files[from], &self.files[to]);
                rustix::fs::renameat_with(here, from, here, to, RenameFlags::EXCHANGE)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn link(&mut self) -> io::Result<()> {
        let index = self.any();
        let path = self.new_path();
        fs::hard_link(&self.files[index], &path)?;
        self.files.push(path);
        Ok(())
    }

    /// Makes a symbolic link. It is not kept among the files: the next one replaces it.
    fn symlink(&mut self) -> io::Result<()> {
        let path = self.folder.join("symlink");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let len = usize::try_from(self.seed.below(200) + 1).unwrap_or(1);
        symlink("s".repeat(len), path)
    }

    fn xattr(&mut self) -> io::Result<()> {
        let index = self.any();
        let name = format!("user.{}", self.seed.below(4));
        let len = usize::try_from(self.seed.below(400)).unwrap_or(0);
        let path = &self.files[index];
        if len < 100 {
            return match rustix::fs::removexattr(path, &*name) {
                Err(Errno::NODATA) | Ok(()) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        rustix::fs::setxattr(path, &*name, &vec![b'x'; len], XattrFlags::empty())?;
        Ok(())
    }

    fn make_folder(&mut self) -> io::Result<()> {
        if self.folders.len() >= 8 {
            return Ok(());
        }
        self.names += 1;
        let path = self.folder.join(format!("folder-{}", self.names));
        fs::create_dir(&path)?;
        self.folders.push(path);
        Ok(())
    }

    /// Removes a folder with everything in it, as one call with respect to pauses.
    fn remove_folder(&mut self) -> io::Result<()> {
        let Some(folder) = self.folders.pop() else {
            return Ok(());
        };
        self.files.retain(|file| !file.starts_with(&folder));
        fs::remove_dir_all(folder)
    }

    /// Punches or preallocates. Block maps support neither preallocation nor, below an offset,
    /// holes.
    fn punch(&mut self) -> io::Result<()> {
        let index = self.any();
        let (offset, len) = (self.seed.below(100_000), self.seed.below(100_000) + 1);
        let mode = match self.seed.below(3) {
            0 => FallocateFlags::KEEP_SIZE,
            1 => FallocateFlags::ZERO_RANGE,
            _ => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        };
        match fallocate(self.open(index)?, mode, offset, len) {
            Err(Errno::OPNOTSUPP) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn change_mode(&mut self) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let index = self.any();
        let mode = u32::try_from(0o600 | self.seed.below(0o200)).unwrap_or(0o600);
        fs::set_permissions(&self.files[index], fs::Permissions::from_mode(mode))
    }

    fn fsync(&mut self) -> io::Result<()> {
        let index = self.any();
        match self.seed.below(4) {
            0 => File::open(&self.folder)?.sync_all(),
            1 => self.open(index)?.sync_data(),
            _ => self.open(index)?.sync_all(),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    [Errno::NOSPC, Errno::DQUOT, Errno::MLINK]
        .iter()
        .any(|full| is(error, *full))
}

/// The errors of calls after the shutdown.
fn is_dead(error: &io::Error) -> bool {
    [Errno::IO, Errno::ROFS].iter().any(|dead| is(error, *dead))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
