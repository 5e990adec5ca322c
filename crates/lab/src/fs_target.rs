//! **Purpose.** A file system that is mounted for writing in this process, as a target. It calls
//! the library where [`DirectoryTarget`](crate::target::DirectoryTarget) uses system calls.

use std::io;
use std::ops::ControlFlow;

use fourscore::{Fallocate, Fs, InodeNr, NewAttributes, OpenInode, SetXattr};
use fourscore_sync::Arc;

use crate::target::{
    ATTRIBUTE, FileNr, MAX_ATTRIBUTE_BYTES, Operation, Placement, Target, Worker, WorkerNr,
};

/// Attributes of new directories and files; no workload depends on them.
const NEW: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);

/// A file system, in whose root directory workloads run.
#[derive(Debug)]
pub struct FsTarget {
    fs: Arc<Fs>,
    placement: Placement,
}

impl FsTarget {
    /// Runs workloads in `fs`, each worker in a directory `w<number>` of its own.
    #[must_use]
    pub fn new(fs: Arc<Fs>) -> Self {
        Self {
            fs,
            placement: Placement::Apart,
        }
    }

    /// The same with another placement of the workers' files.
    #[must_use]
    pub fn placed(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Returns the file system, so that the caller can unmount it.
    #[must_use]
    pub fn into_fs(self) -> Arc<Fs> {
        self.fs
    }
}

impl Target for FsTarget {
    fn name(&self) -> String {
        "in this process".to_owned()
    }

    fn worker(&self, nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
        let name = self.placement.directory(nr);
        let directory = match self.fs.mkdir(InodeNr::ROOT, name.as_bytes(), &NEW) {
            Err(fourscore::Error::Exists) => self.fs.lookup(InodeNr::ROOT, name.as_bytes()),
            created => created,
        };
        Ok(Box::new(FsWorker {
            nr,
            fs: &self.fs,
            directory: directory.map_err(io_error)?,
            prefix: self.placement.prefix(nr),
            open: Vec::new(),
            name: String::new(),
            buffer: Vec::new(),
        }))
    }
}

fn io_error(error: fourscore::Error) -> io::Error {
    io::Error::other(error)
}

struct FsWorker<'f> {
    nr: WorkerNr,
    fs: &'f Fs,
    directory: InodeNr,
    prefix: String,
    open: Vec<Option<OpenInode<&'f Fs>>>,
    name: String,
    buffer: Vec<u8>,
}

impl FsWorker<'_> {
    /// Sets `name` to the name of a file.
    fn set_name(&mut self, nr: FileNr) {
        use std::fmt::Write as _;
        self.name.clear();
        // Writing into a String cannot fail.
        let _ = write!(self.name, "{}{}", self.prefix, nr.0);
    }

    fn find(&mut self, nr: FileNr) -> fourscore::Result<InodeNr> {
        self.set_name(nr);
        self.fs.lookup(self.directory, self.name.as_bytes())
    }

    fn create(&mut self, nr: FileNr) -> fourscore::Result<InodeNr> {
        self.set_name(nr);
        let created = self.fs.create(self.directory, self.name.as_bytes(), &NEW);
        if matches!(created, Err(fourscore::Error::Exists)) {
            let found = self.find(nr)?;
            self.fs.truncate(found, 0)?;
            return Ok(found);
        }
        created
    }

    fn set_open(&mut self, nr: FileNr, inode: InodeNr) -> fourscore::Result<()> {
        let index = nr.0 as usize;
        if self.open.len() <= index {
            self.open.resize_with(index + 1, || None);
        }
        self.open[index] = Some(OpenInode::new(self.fs, inode)?);
        Ok(())
    }

    fn file(&self, nr: FileNr) -> fourscore::Result<InodeNr> {
        let open = self.open.get(nr.0 as usize).and_then(Option::as_ref);
        open.map(OpenInode::inode).ok_or(fourscore::Error::NotFound)
    }

    /// The open file, or the one that its name refers to.
    fn file_or_name(&mut self, nr: FileNr) -> fourscore::Result<InodeNr> {
        match self.file(nr) {
            Err(fourscore::Error::NotFound) => self.find(nr),
            found => found,
        }
    }

    fn buffer_of(&mut self, len: u64) -> fourscore::Result<&mut [u8]> {
        let len = usize::try_from(len).map_err(|_| fourscore::Error::FileTooLarge)?;
        if self.buffer.len() < len {
            self.buffer.resize(len, 0x5a);
        }
        Ok(&mut self.buffer[..len])
    }

    fn count_names(&self) -> fourscore::Result<u64> {
        let mut names = 0;
        self.fs.for_each_entry(self.directory, |entry| {
            names += u64::from(!matches!(entry.name, b"." | b".."));
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    fn operate(&mut self, nr: FileNr, operation: Operation) -> fourscore::Result<u64> {
        let fs = self.fs;
        match operation {
            Operation::Create => {
                let inode = self.create(nr)?;
                self.set_open(nr, inode)?;
            }
            Operation::Open => {
                let inode = self.find(nr)?;
                self.set_open(nr, inode)?;
            }
            Operation::Stat => fs.stat(self.file(nr)?).map(drop)?,
            Operation::Fallocate { offset, len } => {
                fs.fallocate(self.file(nr)?, Fallocate::AllocateKeepSize, offset, len)?;
                return Ok(len);
            }
            Operation::Truncate { len } => fs.truncate(self.file(nr)?, len)?,
            Operation::Write { offset, len } => {
                let file = self.file(nr)?;
                let bytes = self.buffer_of(len)?;
                return Ok(fs.write_at(file, bytes, offset)? as u64);
            }
            Operation::Read { offset, len } => {
                let file = self.file(nr)?;
                return Ok(fs.read_at(file, self.buffer_of(len)?, offset)? as u64);
            }
            Operation::Sync => fs.fsync(self.file(nr)?)?,
            Operation::SyncAll => fs.sync()?,
            Operation::SetAttribute { value, len } => {
                let file = self.file_or_name(nr)?;
                let mut buffer = [0; MAX_ATTRIBUTE_BYTES];
                let value = value.bytes(self.nr, len, &mut buffer);
                fs.set_xattr(file, ATTRIBUTE.as_bytes(), value, SetXattr::Any)?;
            }
            Operation::RemoveAttribute => {
                let file = self.file_or_name(nr)?;
                fs.remove_xattr(file, ATTRIBUTE.as_bytes())?;
            }
            Operation::List => return self.count_names(),
            Operation::Unlink => {
                self.set_name(nr);
                fs.unlink(self.directory, self.name.as_bytes())?;
            }
            Operation::Close => {
                let open = self.open.get_mut(nr.0 as usize).and_then(Option::take);
                open.map_or(Ok(()), OpenInode::close)?;
            }
        }
        Ok(0)
    }
}

impl Worker for FsWorker<'_> {
    fn apply(&mut self, nr: FileNr, operation: Operation) -> io::Result<u64> {
        self.operate(nr, operation).map_err(io_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::comparison::ThreadCount;
    use crate::files::FileWorkload;
    use fourscore::MountOptions;
    use fourscore_block::{DeviceOptions, open_path};
    use fourscore_testkit::oracle::assert_clean;
    use fourscore_testkit::tools::Need;
    use fourscore_testkit::{Image, MiB, require};

    #[test]
    fn every_workload_runs_and_leaves_a_clean_file_system() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        for &workload in FileWorkload::ALL {
            let image = Image::builder(MiB(512)).kind("ext4").make();
            let image = image.expect("mke2fs runs");
            let device = open_path(image.path(), DeviceOptions::read_write()).expect("an image");
            let fs = Fs::mount(Arc::new(device), &MountOptions::new()).expect("a file system");
            let target = FsTarget::new(fs);
            let (threads, clock) = (ThreadCount::new(2), MonotonicClock::default());
            let driven = workload.run(&target, threads, 70, &clock);
            let total = driven.expect(workload.name).total();
            assert_eq!(total.operations, 140, "{}", workload.name);
            target
                .into_fs()
                .unmount()
                .expect("no other reference to it");
            assert_clean(image.path());
        }
    }
}
