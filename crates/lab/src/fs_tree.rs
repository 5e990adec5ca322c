//! **Purpose.** A tree inside an image as a target of [`ReadTree`](crate::tree::ReadTree), read in
//! this process.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;

use fourscore::{FileType, Follow, Fs, InodeNr};
use fourscore_sync::Arc;

use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};
use crate::tree::{Kind, buffer_of};

/// A file system and the paths of everything in it.
#[derive(Debug)]
pub struct FsTree {
    fs: Arc<Fs>,
    objects: Vec<(Vec<u8>, Kind)>,
}

impl FsTree {
    /// Lists the tree.
    ///
    /// # Errors
    /// The error of the first directory that cannot be read.
    pub fn new(fs: Arc<Fs>) -> fourscore::Result<Self> {
        let mut objects = Vec::new();
        let mut pending = Vec::new();
        push_entries(&fs, InodeNr::ROOT, b"", &mut pending)?;
        // A corrupt image may have a directory with several parents, or inside itself.
        let mut listed = BTreeSet::from([InodeNr::ROOT]);
        while let Some((path, inode)) = pending.pop() {
            let kind = match fs.stat(inode)?.file_type {
                FileType::Directory => Kind::Directory,
                FileType::Regular => Kind::File,
                FileType::Symlink => Kind::Symlink,
                _ => Kind::Other,
            };
            if kind == Kind::Directory && listed.insert(inode) {
                push_entries(&fs, inode, &path, &mut pending)?;
            }
            objects.push((path, kind));
        }
        Ok(Self { fs, objects })
    }

    /// Number of objects below the root.
    #[must_use]
    pub fn objects(&self) -> u32 {
        u32::try_from(self.objects.len()).unwrap_or(u32::MAX)
    }
}

/// Pushes the entries of the directory at `path` onto a stack, the first name on top.
fn push_entries(
    fs: &Fs,
    directory: InodeNr,
    path: &[u8],
    pending: &mut Vec<(Vec<u8>, InodeNr)>,
) -> fourscore::Result<()> {
    let mut entries = fs.read_dir(directory)?;
    entries.retain(|entry| !matches!(entry.name.as_slice(), b"." | b".."));
    entries.sort_unstable_by(|a, b| b.name.cmp(&a.name));
    pending.extend(
        entries
            .into_iter()
            .map(|entry| ([path, b"/", &entry.name].concat(), entry.inode)),
    );
    Ok(())
}

impl Target for FsTree {
    fn name(&self) -> String {
        "in this process".to_owned()
    }

    fn worker(&self, _nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
        Ok(Box::new(FsWorker {
            tree: self,
            open: None,
            buffer: Vec::new(),
        }))
    }
}

/// A worker with at most one open object.
struct FsWorker<'a> {
    tree: &'a FsTree,
    open: Option<(FileNr, InodeNr)>,
    buffer: Vec<u8>,
}

impl Worker for FsWorker<'_> {
    fn apply(&mut self, nr: FileNr, operation: Operation) -> io::Result<u64> {
        let (fs, object) = (&self.tree.fs, self.tree.objects.get(nr.0 as usize));
        let (path, kind) = object.ok_or(io::ErrorKind::NotFound)?;
        if operation == Operation::Open {
            let inode = fs.resolve(path, Follow::No).map_err(io::Error::other)?;
            self.open = Some((nr, inode));
            return Ok(0);
        }
        let open = self.open.filter(|(open, _)| *open == nr);
        let (_, inode) = open.ok_or(io::ErrorKind::NotFound)?;
        let done = match operation {
            Operation::Stat => fs.stat(inode).map(|_| 0),
            Operation::Read { offset, len } => match kind {
                Kind::File => {
                    let buffer = buffer_of(&mut self.buffer, len)?;
                    fs.read_at(inode, buffer, offset).map(|read| read as u64)
                }
                Kind::Directory => count_names(fs, inode),
                Kind::Symlink => fs.read_link(inode).map(|target| target.len() as u64),
                Kind::Other => Ok(0),
            },
            Operation::Close => {
                self.open = None;
                Ok(0)
            }
            _ => return Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        };
        done.map_err(io::Error::other)
    }
}

/// Number of names in a directory without `.` and `..`.
fn count_names(fs: &Fs, inode: InodeNr) -> fourscore::Result<u64> {
    let mut names = 0;
    fs.for_each_entry(inode, |entry| {
        names += u64::from(!matches!(entry.name, b"." | b".."));
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::comparison::ThreadCount;
    use crate::tree::{HostTree, ReadTree};
    use crate::workload::{Until, drive};
    use fourscore::OpenOptions;
    use fourscore_block::{DeviceOptions, open_path};
    use fourscore_testkit::tools::Need;
    use fourscore_testkit::{Image, MiB, require, scratch};

    #[test]
    fn an_image_reads_as_the_directory_it_was_made_of() {
        require!(Need::Program("mke2fs"));
        let source = scratch::folder().expect("a folder");
        std::fs::create_dir(source.path().join("etc")).expect("space");
        std::fs::write(source.path().join("etc/file"), [7; 6000]).expect("space");
        std::os::unix::fs::symlink("etc/file", source.path().join("link")).expect("space");
        std::fs::create_dir(source.path().join("lost+found")).expect("space");
        let image = Image::builder(MiB(16))
            .kind("ext4")
            .source(source.path())
            .make();
        let image = image.expect("mke2fs runs");
        let device = open_path(image.path(), DeviceOptions::default()).expect("an image");
        let fs = Fs::open(Arc::new(device), &OpenOptions::new()).expect("a file system");
        let (ours, theirs) = (
            FsTree::new(fs).expect("a tree"),
            HostTree::new(source.path()).expect("a tree"),
        );
        assert_eq!((ours.objects(), theirs.objects()), (4, 4));
        let workload = ReadTree { objects: 4 };
        let (threads, clock) = (ThreadCount::new(2), MonotonicClock::default());
        let read = |target: &dyn Target| {
            let done = drive(target, &workload, threads, Until::Steps(12), &clock);
            done.expect("a run").total()
        };
        let (ours_read, theirs_read) = (read(&ours), read(&theirs));
        assert_eq!(ours_read.bytes, theirs_read.bytes);
        assert_eq!(ours_read.bytes, 6 * (1 + 4096 + 8));
        let mut worker = ours.worker(WorkerNr(0)).expect("a worker");
        worker.apply(FileNr(0), Operation::Open).expect("it exists");
        let write = worker
            .apply(FileNr(0), Operation::Create)
            .map_err(|why| why.kind());
        assert_eq!(write, Err(io::ErrorKind::ReadOnlyFilesystem));
    }
}
