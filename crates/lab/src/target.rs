//! **Purpose.** The interface between workloads and what they measure: a directory of a mounted
//! file system, a file system in this process, or the block allocator alone.
//!
//! **Model.** A target gives each thread a [`Worker`]. A worker owns files, numbered from 0, that
//! no other worker touches, as in the will-it-scale and fs_mark workloads. A target decides what a
//! file is: a path, an inode, a list of extents. An operation that has no meaning for a target
//! fails with `Unsupported`.
//!
//! **Locking.** Workers share nothing but the target, so a workload measures the contention in the
//! target and none of the lab's own.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, XattrFlags};

/// The number of a thread of a workload, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkerNr(pub usize);

/// The number of a file of one worker, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileNr(pub u32);

/// An operation of a workload on a target. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates the file and opens it; an existing file is truncated to 0.
    Create,
    /// Looks the existing file up by its name and opens it for reading.
    Open,
    /// Reads the attributes of the open file.
    Stat,
    /// Allocates blocks for the range without writing to them, and keeps the size
    /// (`FALLOC_FL_KEEP_SIZE`).
    Fallocate {
        /// The first byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Sets the size and frees the blocks past it.
    Truncate {
        /// The new size.
        len: u64,
    },
    /// Writes arbitrary bytes.
    Write {
        /// The first byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Reads up to `len` bytes, fewer only at the end of the file.
    Read {
        /// The first byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Makes the file durable (`fsync`).
    Sync,
    /// Makes all changes of all workers durable (`syncfs`); the file is ignored.
    SyncAll,
    /// Sets the extended attribute `user.lab` of the file, which is looked up by its name unless it
    /// is open.
    SetAttribute {
        /// What distinguishes the value from others.
        value: AttributeValue,
        /// Its length, at most [`MAX_ATTRIBUTE_BYTES`].
        len: usize,
    },
    /// Removes the attribute that `SetAttribute` sets, of the file found in the same way.
    RemoveAttribute,
    /// Reads the names in the worker's directory and returns their number; the file is ignored.
    List,
    /// Removes the name. The open file stays usable until it is closed.
    Unlink,
    /// Closes the open file.
    Close,
}

/// The longest value of an attribute in bytes.
pub const MAX_ATTRIBUTE_BYTES: usize = 512;

/// The name of the attribute that workloads set.
pub(crate) const ATTRIBUTE: &str = "user.lab";

/// A value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// Equal in all workers for equal numbers.
    Common(u64),
    /// Different from the values of other workers.
    Own(u64),
}

impl AttributeValue {
    /// Writes the value of worker `nr` into `buffer`, and returns its first `len` bytes. Different
    /// values differ if `len` is at least 16.
    #[must_use]
    pub fn bytes(self, nr: WorkerNr, len: usize, buffer: &mut [u8; MAX_ATTRIBUTE_BYTES]) -> &[u8] {
        let (number, owner) = match self {
            Self::Common(number) => (number, 0),
            Self::Own(number) => (number, nr.0 as u64 + 1),
        };
        buffer.fill(0x5a);
        buffer[..8].copy_from_slice(&number.to_le_bytes());
        buffer[8..16].copy_from_slice(&owner.to_le_bytes());
        &buffer[..len.min(MAX_ATTRIBUTE_BYTES)]
    }
}

/// Where the files of several workers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Each worker has a directory `w<number>` of its own.
    #[default]
    Apart,
    /// All workers have one directory, `shared`.
    OneDirectory,
}

impl Placement {
    /// The name of the directory of worker `nr`.
    pub(crate) fn directory(self, nr: WorkerNr) -> String {
        match self {
            Self::Apart => format!("w{}", nr.0),
            Self::OneDirectory => "shared".to_owned(),
        }
    }

    /// What the names of the files of worker `nr` begin with.
    pub(crate) fn prefix(self, nr: WorkerNr) -> String {
        match self {
            Self::Apart => "f".to_owned(),
            Self::OneDirectory => format!("w{}f", nr.0),
        }
    }
}

/// What workloads run against.
pub trait Target: Sync {
    /// The name of the target in reports.
    fn name(&self) -> String;

    /// The worker for a thread.
    ///
    /// # Errors
    ///
    /// The target cannot be used.
    fn worker(&self, nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>>;
}

/// One thread's access to a target.
pub trait Worker {
    /// Carries out `operation` on `file` and returns how many bytes it moved or reserved.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the operation has no meaning for the target, `NotFound` if the file is not
    /// open, or the target's own error.
    fn apply(&mut self, file: FileNr, operation: Operation) -> io::Result<u64>;
}

/// A directory of any file system that is mounted on the host.
#[derive(Debug)]
pub struct DirectoryTarget {
    directory: PathBuf,
    placement: Placement,
}

impl DirectoryTarget {
    /// Runs workloads inside `directory`, each worker in a directory `w<number>` of its own.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            placement: Placement::Apart,
        }
    }

    /// The same with another placement of the workers' files.
    #[must_use]
    pub fn placed(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }
}

impl Target for DirectoryTarget {
    fn name(&self) -> String {
        self.directory.display().to_string()
    }

    fn worker(&self, nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
        let directory = self.directory.join(self.placement.directory(nr));
        DirBuilder::new().recursive(true).create(&directory)?;
        Ok(Box::new(DirectoryWorker {
            nr,
            directory,
            prefix: self.placement.prefix(nr),
            open: Vec::new(),
            buffer: Vec::new(),
        }))
    }
}

struct DirectoryWorker {
    nr: WorkerNr,
    directory: PathBuf,
    prefix: String,
    open: Vec<Option<File>>,
    buffer: Vec<u8>,
}

impl DirectoryWorker {
    fn path(&self, file: FileNr) -> PathBuf {
        Path::new(&self.directory).join(format!("{}{}", self.prefix, file.0))
    }

    fn set_open(&mut self, nr: FileNr, file: File) -> io::Result<u64> {
        let index = index(nr)?;
        if self.open.len() <= index {
            self.open.resize_with(index + 1, || None);
        }
        self.open[index] = Some(file);
        Ok(0)
    }

    fn file(&self, nr: FileNr) -> io::Result<&File> {
        let file = self.open.get(index(nr)?).and_then(Option::as_ref);
        file.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the file is not open"))
    }

    /// Makes the buffer at least `len` bytes long.
    fn grow_buffer(&mut self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        if self.buffer.len() < len {
            self.buffer.resize(len, 0x5a);
        }
        Ok(())
    }
}

fn index(nr: FileNr) -> io::Result<usize> {
    usize::try_from(nr.0).map_err(|_| io::ErrorKind::InvalidInput.into())
}

impl Worker for DirectoryWorker {
    fn apply(&mut self, nr: FileNr, operation: Operation) -> io::Result<u64> {
        match operation {
            Operation::Create => {
                let mut options = OpenOptions::new();
                let options = options.read(true).write(true).create(true).truncate(true);
                let file = options.open(self.path(nr))?;
                self.set_open(nr, file)
            }
            Operation::Open => {
                let file = File::open(self.path(nr))?;
                self.set_open(nr, file)
            }
            Operation::Stat => self.file(nr)?.metadata().map(|_| 0),
            Operation::Fallocate { offset, len } => {
                rustix::fs::fallocate(self.file(nr)?, FallocateFlags::KEEP_SIZE, offset, len)?;
                Ok(len)
            }
            Operation::Truncate { len } => self.file(nr)?.set_len(len).map(|()| 0),
            Operation::Write { offset, len } => {
                self.grow_buffer(len)?;
                let bytes = self.buffer.get(..usize::try_from(len).unwrap_or(0));
                self.file(nr)?
                    .write_all_at(bytes.unwrap_or_default(), offset)?;
                Ok(len)
            }
            Operation::Read { offset, len } => {
                self.grow_buffer(len)?;
                let mut buffer = std::mem::take(&mut self.buffer);
                let wanted = buffer.get_mut(..usize::try_from(len).unwrap_or(0));
                let read = read_up_to(self.file(nr), wanted.unwrap_or_default(), offset);
                self.buffer = buffer;
                read
            }
            Operation::Sync => self.file(nr)?.sync_all().map(|()| 0),
            Operation::SyncAll => {
                let directory = File::open(&self.directory)?;
                rustix::fs::syncfs(&directory)?;
                // Linux does not tell every FUSE server of the call before.
                directory.sync_all().map(|()| 0)
            }
            Operation::SetAttribute { value, len } => {
                let mut buffer = [0; MAX_ATTRIBUTE_BYTES];
                let (value, flags) = (value.bytes(self.nr, len, &mut buffer), XattrFlags::empty());
                match self.file(nr) {
                    Ok(file) => rustix::fs::fsetxattr(file, ATTRIBUTE, value, flags)?,
                    Err(_) => rustix::fs::lsetxattr(self.path(nr), ATTRIBUTE, value, flags)?,
                }
                Ok(0)
            }
            Operation::RemoveAttribute => {
                match self.file(nr) {
                    Ok(file) => rustix::fs::fremovexattr(file, ATTRIBUTE)?,
                    Err(_) => rustix::fs::lremovexattr(self.path(nr), ATTRIBUTE)?,
                }
                Ok(0)
            }
            Operation::List => {
                let mut entries = std::fs::read_dir(&self.directory)?;
                entries.try_fold(0, |names, entry| entry.map(|_| names + 1))
            }
            Operation::Unlink => std::fs::remove_file(self.path(nr)).map(|()| 0),
            Operation::Close => {
                if let Some(slot) = self.open.get_mut(index(nr)?) {
                    *slot = None;
                }
                Ok(0)
            }
        }
    }
}

fn read_up_to(file: io::Result<&File>, mut buf: &mut [u8], mut offset: u64) -> io::Result<u64> {
    let file = file?;
    let start = offset;
    while !buf.is_empty() {
        let count = file.read_at(buf, offset)?;
        if count == 0 {
            break;
        }
        buf = &mut buf[count..];
        offset += count as u64;
    }
    Ok(offset - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_common_or_of_one_worker() {
        let of = |value: AttributeValue, nr: usize| {
            let mut buffer = [0; MAX_ATTRIBUTE_BYTES];
            value.bytes(WorkerNr(nr), 200, &mut buffer).to_vec()
        };
        let (common, own) = (AttributeValue::Common(3), AttributeValue::Own(3));
        assert_eq!(of(common, 0).len(), 200);
        assert_eq!(of(common, 0), of(common, 1));
        assert_ne!(of(own, 0), of(own, 1));
        assert_ne!(of(own, 0), of(common, 0));
        assert_ne!(of(own, 0), of(AttributeValue::Own(4), 0));
    }

    #[test]
    fn a_directory_does_every_operation() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let target = DirectoryTarget::new(directory.path());
        let mut worker = target
            .worker(WorkerNr(3))
            .expect("the directory is writable");
        let mut apply = |operation| worker.apply(FileNr(7), operation);
        let missing = apply(Operation::Sync).expect_err("the file is not open");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert_eq!(apply(Operation::Create).ok(), Some(0));
        assert_eq!(
            apply(Operation::Write {
                offset: 10,
                len: 100
            })
            .ok(),
            Some(100)
        );
        assert_eq!(
            apply(Operation::Fallocate {
                offset: 0,
                len: 8192
            })
            .ok(),
            Some(8192)
        );
        let path = directory.path().join("w3/f7");
        assert_eq!(std::fs::metadata(&path).map(|m| m.len()).ok(), Some(110));
        assert_eq!(apply(Operation::Sync).ok(), Some(0));
        assert_eq!(apply(Operation::SyncAll).ok(), Some(0));
        assert_eq!(apply(Operation::List).ok(), Some(1));
        assert_eq!(apply(Operation::Close).ok(), Some(0));
        assert_eq!(apply(Operation::Open).ok(), Some(0));
        assert_eq!(apply(Operation::Stat).ok(), Some(0));
        assert_eq!(
            apply(Operation::Read {
                offset: 50,
                len: 4096
            })
            .ok(),
            Some(60)
        );
        assert_eq!(apply(Operation::Create).ok(), Some(0));
        assert_eq!(apply(Operation::Truncate { len: 5 }).ok(), Some(0));
        assert_eq!(apply(Operation::Unlink).ok(), Some(0));
        assert!(!path.exists());
        assert_eq!(
            apply(Operation::Read {
                offset: 0,
                len: 100
            })
            .ok(),
            Some(5)
        );
    }
}
