//! **Purpose.** Fast commits of new files alone, without the rest of a file system: the ways to
//! make the records of many new names, compared on the workloads of [`fsync`](crate::fsync).
//!
//! **Not here.** The fast commits of fourscore, which take part through `ours`.
//!
//! **Model.** A directory is a worker. A new file is an inode in memory of the size that it has in
//! Linux, which is listed for the next fast commit. A sync of a file makes the records of all that
//! is listed, unless the file is durable. There is no device: records are durable when they are
//! made, so a measured time is that of listing and of making records.
//!
//! A transaction is committed in full when [`MOST_PENDING`] files are listed, as the size of the
//! journal ends one in a file system. Full commits cost nothing here. The first directory counts
//! its own files, and calls for one when it has its share: all directories get files in turns.
//!
//! **References.** Linux b3998b3bc658, "ext4: improve fast_commit performance and scalability",
//! 2022.
//!
//! | module | responsibility |
//! |---|---|
//! | [`queues`] | the bases: one queue of inodes and one of names, searched or linked |
//! | `ours` | our lists of units; with the feature `fs` |

#[cfg(feature = "fs")]
pub mod ours;
pub mod queues;

use std::fmt::Write as _;
use std::io;

use fourscore_ondisk::InodeNr;
use fourscore_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fourscore_sync::{Arc, Mutex};

use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};

/// Files of a transaction.
pub const MOST_PENDING: u32 = 65_536;

/// Bytes of an inode's record with the usual extra fields.
const INODE_BYTES: usize = 160;
/// Further bytes of an inode in the memory of Linux, in a kernel for servers.
const MEMORY_BYTES: usize = 864;

/// A new inode in memory.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub nr: InodeNr,
    /// What its record has.
    pub raw: [u8; INODE_BYTES],
    /// Whether it waits for a commit.
    pub is_listed: AtomicBool,
    /// For the owner of the list: when the inode was listed, or which one comes next.
    pub word: AtomicU64,
    /// For the owner of the list: the transaction.
    pub transaction: AtomicU32,
    _memory: [u8; MEMORY_BYTES],
}

impl Inode {
    fn new(nr: InodeNr) -> Self {
        Self {
            nr,
            raw: [7; INODE_BYTES],
            is_listed: AtomicBool::new(false),
            word: AtomicU64::new(0),
            transaction: AtomicU32::new(0),
            _memory: [0; MEMORY_BYTES],
        }
    }
}

/// A way to list new files and to make their records.
pub trait FastCommit: Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Lists a new file with its name in a directory.
    fn list(&self, inode: &Arc<Inode>, dir: InodeNr, name: &str);

    /// Makes the records of everything listed, unless the file is durable. Returns how many records
    /// the call made.
    fn sync(&self, inode: &Inode) -> u64;

    /// Forgets everything listed: a full commit has made it durable.
    fn full_commit(&self);
}

/// Commits and records of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of fsync that made records.
    pub fast_commits: u64,
    /// Full commits.
    pub full_commits: u64,
    /// Records of all fast commits.
    pub records: u64,
}

/// Fast commits as a target of workloads.
pub struct FastCommitTarget<'c> {
    commits: &'c dyn FastCommit,
    /// Files that the first directory lists before it calls for a full commit.
    own_pending: u32,
    /// Of the workers that have ended.
    counts: Mutex<Counts>,
}

impl<'c> FastCommitTarget<'c> {
    /// A target with this many directories.
    #[must_use]
    pub fn new(commits: &'c dyn FastCommit, directories: usize) -> Self {
        let directories = u32::try_from(directories).unwrap_or(u32::MAX).max(1);
        Self {
            commits,
            own_pending: (MOST_PENDING / directories).max(1),
            counts: Mutex::default(),
        }
    }

    /// What the workers that have ended did.
    #[must_use]
    pub fn counts(&self) -> Counts {
        *self.counts.lock()
    }
}

impl Target for FastCommitTarget<'_> {
    fn name(&self) -> String {
        self.commits.name().to_owned()
    }

    fn worker(&self, nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
        Ok(Box::new(FastCommitWorker {
            target: self,
            nr,
            files: Vec::new(),
            listed: 0,
            name: String::new(),
            counts: Counts::default(),
        }))
    }
}

struct FastCommitWorker<'t> {
    target: &'t FastCommitTarget<'t>,
    nr: WorkerNr,
    files: Vec<Arc<Inode>>,
    /// Files since the directory's last full commit.
    listed: u32,
    name: String,
    counts: Counts,
}

impl FastCommitWorker<'_> {
    /// The numbers of inodes of a directory follow each other, and no other directory has them.
    fn number(&self, file: FileNr) -> InodeNr {
        const FIRST: u32 = 64;
        const EACH: u32 = 1 << 20;
        let directory = u32::try_from(self.nr.0).unwrap_or(u32::MAX);
        let first = directory.wrapping_mul(EACH).wrapping_add(FIRST);
        InodeNr(first.wrapping_add(file.0))
    }

    fn create(&mut self, file: FileNr) -> io::Result<()> {
        if file.0 as usize != self.files.len() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if self.nr.0 == 0 && self.listed == self.target.own_pending {
            self.listed = 0;
            self.target.commits.full_commit();
            self.counts.full_commits += 1;
        }
        self.listed += 1;
        self.name.clear();
        // Writing into a String cannot fail.
        let _ = write!(self.name, "f{}", file.0);
        let inode = Arc::new(Inode::new(self.number(file)));
        let dir = InodeNr(u32::try_from(self.nr.0 + 12).unwrap_or(u32::MAX));
        self.target.commits.list(&inode, dir, &self.name);
        self.files.push(inode);
        Ok(())
    }
}

impl Worker for FastCommitWorker<'_> {
    fn apply(&mut self, file: FileNr, operation: Operation) -> io::Result<u64> {
        match operation {
            Operation::Create => self.create(file)?,
            Operation::Sync => {
                let inode = self.files.get(file.0 as usize);
                let inode = inode.ok_or(io::ErrorKind::NotFound)?;
                let records = self.target.commits.sync(inode);
                self.counts.records += records;
                self.counts.fast_commits += u64::from(records > 0);
            }
            Operation::Open | Operation::Close | Operation::SyncAll => {}
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(0)
    }
}

impl Drop for FastCommitWorker<'_> {
    fn drop(&mut self) {
        let mut all = self.target.counts.lock();
        all.fast_commits += self.counts.fast_commits;
        all.full_commits += self.counts.full_commits;
        all.records += self.counts.records;
    }
}

/// The names of the ways.
pub const NAMES: [&str; 3] = ["quadratic", "linear", "fourscore"];

/// Makes a way by its name; `None` for an unknown one, and for our own in a build without the
/// feature `fs`.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn FastCommit>> {
    match name {
        "quadratic" => Some(Box::new(queues::Queues::searched())),
        "linear" => Some(Box::new(queues::Queues::linked())),
        #[cfg(feature = "fs")]
        "fourscore" => Some(Box::new(ours::Ours::default())),
        _ => None,
    }
}

/// The state of a flag that a commit clears.
fn is_listed(inode: &Inode) -> bool {
    inode.is_listed.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::comparison::ThreadCount;
    use crate::fsync::{FsyncSize, FsyncWorkload};

    fn run(name: &str, directories: usize, files: u32) -> Counts {
        let commits = by_name(name).expect("it exists");
        assert_eq!(commits.name(), name);
        let target = FastCommitTarget::new(&*commits, directories);
        let workload = FsyncWorkload::by_name("after-empty").expect("it exists");
        let size = FsyncSize {
            threads: ThreadCount::ONE,
            directories,
            files,
        };
        let run = workload.run(&target, size, &MonotonicClock::default());
        assert_eq!(
            run.expect(name).operations,
            directories as u64 * u64::from(files)
        );
        target.counts()
    }

    #[test]
    fn one_fast_commit_has_an_inode_and_a_name_for_each_file() {
        for name in NAMES {
            if name == "fourscore" && !cfg!(feature = "fs") {
                continue;
            }
            let counts = run(name, 4, 50);
            // Ours begins with an inode of its choice.
            let expected = 2 * 200 + u64::from(name == "fourscore");
            assert_eq!((counts.fast_commits, counts.full_commits), (1, 0), "{name}");
            assert_eq!(counts.records, expected, "{name}");
        }
    }

    #[test]
    fn a_transaction_has_as_many_files_as_the_journal_has_space_for() {
        for name in ["linear", "fourscore"] {
            if name == "fourscore" && !cfg!(feature = "fs") {
                continue;
            }
            let counts = run(name, 1, MOST_PENDING + 10);
            assert_eq!((counts.fast_commits, counts.full_commits), (1, 1), "{name}");
            assert_eq!(
                counts.records,
                20 + u64::from(name == "fourscore"),
                "{name}"
            );
        }
    }

    #[test]
    fn other_operations_and_unknown_names_are_refused() {
        let commits = by_name("linear").expect("it exists");
        let target = FastCommitTarget::new(&*commits, 1);
        let mut worker = target.worker(WorkerNr(0)).expect("a worker");
        let mut apply = |operation| worker.apply(FileNr(3), operation).map_err(|why| why.kind());
        assert_eq!(apply(Operation::Unlink), Err(io::ErrorKind::Unsupported));
        assert_eq!(apply(Operation::Sync), Err(io::ErrorKind::NotFound));
        assert_eq!(apply(Operation::Create), Err(io::ErrorKind::AlreadyExists));
        assert!(by_name("cubic").is_none());
    }
}
