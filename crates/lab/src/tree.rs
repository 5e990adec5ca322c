//! **Purpose.** Reading an existing tree: a workload, and a directory of the host as its target.
//!
//! **Not here.** A tree inside an image, which is `fs_tree`.
//!
//! **Model.** A target of this kind lists its objects once, directory by directory and sorted by
//! name, so that two targets with the same tree number their objects alike. All workers share the
//! numbers, since no worker changes anything. A read returns the data of a file, the names of a
//! directory or the target of a symbolic link, and nothing for other objects.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::comparison::Work;
use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};
use crate::workload::Workload;

/// The kind of an object, which decides what a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first bytes of its data.
    File,
    /// Its names.
    Directory,
    /// Its target.
    Symlink,
    /// Nothing.
    Other,
}

/// Visits one object after another, each worker all of them in the same order: looks it up by its
/// path, reads its attributes and its first 4 KiB. One step is one visit.
#[derive(Clone, Copy, Debug)]
pub struct ReadTree {
    /// Number of objects.
    pub objects: u32,
}

impl ReadTree {
    const READ_BYTES: u64 = 4096;
}

impl Workload for ReadTree {
    fn prepare(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let nr = u32::try_from(step % u64::from(self.objects.max(1))).unwrap_or(0);
        let (nr, len) = (FileNr(nr), Self::READ_BYTES);
        worker.apply(nr, Operation::Open)?;
        worker.apply(nr, Operation::Stat)?;
        let bytes = worker.apply(nr, Operation::Read { offset: 0, len })?;
        worker.apply(nr, Operation::Close)?;
        Ok(Work {
            operations: 1,
            bytes,
            wall: None,
        })
    }

    fn clean_up(&self, _worker: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// A directory of the host and everything below it.
#[derive(Debug)]
pub struct HostTree {
    root: PathBuf,
    objects: Vec<(PathBuf, Kind)>,
}

impl HostTree {
    /// Lists the tree.
    ///
    /// # Errors
    /// The error of the first directory that cannot be read.
    pub fn new(root: &Path) -> io::Result<Self> {
        let mut objects = Vec::new();
        let mut pending = Vec::new();
        push_entries(root, &mut pending)?;
        while let Some((path, kind)) = pending.pop() {
            if kind == Kind::Directory {
                push_entries(&path, &mut pending)?;
            }
            objects.push((path, kind));
        }
        Ok(Self {
            root: root.to_owned(),
            objects,
        })
    }

    /// Number of objects below the root.
    #[must_use]
    pub fn objects(&self) -> u32 {
        u32::try_from(self.objects.len()).unwrap_or(u32::MAX)
    }
}

/// Pushes the entries of a directory onto a stack, the first name on top.
fn push_entries(directory: &Path, pending: &mut Vec<(PathBuf, Kind)>) -> io::Result<()> {
    let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_unstable_by_key(|entry| Reverse(entry.file_name()));
    for entry in entries {
        let file_type = entry.file_type()?;
        let kind = match file_type {
            _ if file_type.is_dir() => Kind::Directory,
            _ if file_type.is_file() => Kind::File,
            _ if file_type.is_symlink() => Kind::Symlink,
            _ => Kind::Other,
        };
        pending.push((entry.path(), kind));
    }
    Ok(())
}

impl Target for HostTree {
    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn worker(&self, _nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
        Ok(Box::new(HostWorker {
            tree: self,
            open: None,
            buffer: Vec::new(),
        }))
    }
}

/// A worker with at most one open object.
struct HostWorker<'a> {
    tree: &'a HostTree,
    open: Option<(FileNr, Option<File>)>,
    buffer: Vec<u8>,
}

/// Returns `len` bytes of a buffer that is reused.
pub(crate) fn buffer_of(buffer: &mut Vec<u8>, len: u64) -> io::Result<&mut [u8]> {
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    Ok(&mut buffer[..len])
}

impl Worker for HostWorker<'_> {
    fn apply(&mut self, nr: FileNr, operation: Operation) -> io::Result<u64> {
        let object = self.tree.objects.get(nr.0 as usize);
        let (path, kind) = object.ok_or(io::ErrorKind::NotFound)?;
        if operation == Operation::Open {
            let has_content = *kind == Kind::File;
            self.open = Some((nr, has_content.then(|| File::open(path)).transpose()?));
            return Ok(0);
        }
        let Some((_, file)) = self.open.as_ref().filter(|(open, _)| *open == nr) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        match (operation, file) {
            (Operation::Stat, Some(file)) => file.metadata().map(|_| 0),
            (Operation::Stat, None) => fs::symlink_metadata(path).map(|_| 0),
            (Operation::Read { offset, len }, Some(file)) => {
                let read = file.read_at(buffer_of(&mut self.buffer, len)?, offset)?;
                Ok(read as u64)
            }
            (Operation::Read { .. }, None) => match kind {
                Kind::Directory => {
                    fs::read_dir(path)?.try_fold(0, |names, entry| entry.map(|_| names + 1))
                }
                Kind::Symlink => Ok(fs::read_link(path)?.as_os_str().len() as u64),
                Kind::File | Kind::Other => Ok(0),
            },
            (Operation::Close, _) => {
                self.open = None;
                Ok(0)
            }
            _ => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::comparison::ThreadCount;
    use crate::workload::{Until, drive};

    #[test]
    fn every_object_is_visited() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(directory.path().join("b")).expect("space");
        fs::write(directory.path().join("b/file"), [1; 5000]).expect("space");
        fs::write(directory.path().join("c"), "12345").expect("space");
        std::os::unix::fs::symlink("gone", directory.path().join("a")).expect("space");
        let tree = HostTree::new(directory.path()).expect("a tree");
        let names: Vec<_> = tree
            .objects
            .iter()
            .map(|(path, _)| path.file_name())
            .collect();
        assert_eq!(
            names,
            ["a", "b", "file", "c"].map(|name| Some(name.as_ref()))
        );
        let workload = ReadTree {
            objects: tree.objects(),
        };
        let (threads, clock) = (ThreadCount::new(2), MonotonicClock::default());
        let done = drive(&tree, &workload, threads, Until::Steps(4), &clock).expect("a run");
        // "gone", one name, 4096 bytes, "12345"; by both.
        assert_eq!(done.total().bytes, 2 * (4 + 1 + 4096 + 5));
        let mut worker = tree.worker(WorkerNr(0)).expect("a worker");
        let write = worker.apply(FileNr(3), Operation::Truncate { len: 0 });
        assert_eq!(
            write.map_err(|why| why.kind()),
            Err(io::ErrorKind::NotFound)
        );
    }
}
