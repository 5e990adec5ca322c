//! **Purpose.** Makes files with the attributes that the files of an existing image have, so that
//! the ways to share attributes are compared on those of real trees.
//!
//! **Model.** The attributes are those of the regular files of an image, in the order of their
//! inodes, and are in memory before the measured time. A step makes a file and sets its attributes,
//! if it has any, as a program does that unpacks a tree. Files of several workers are taken in
//! turns. The time ends with a sync.

use std::io;

use fourscore::{FileType, Fs, InodeNr, NewAttributes, SetXattr, Xattr};
use fourscore_ondisk::{GroupNr, GroupOffset};
use fourscore_sync::Arc;

use crate::clock::Clock;
use crate::comparison::{ThreadCount, Work};
use crate::files::drive_and_sync;
use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};
use crate::workload::{Driven, Workload};

/// Files in a directory.
const PER_DIRECTORY: u64 = 1000;

/// Attributes of new directories and files; access control lists change the permissions.
const NEW: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);

/// The attributes of files.
#[derive(Debug)]
pub struct Attributes {
    of_files: Vec<Vec<Xattr>>,
}

impl Attributes {
    /// Reads the attributes of the first `most` regular files of `fs` in the order of their inodes.
    ///
    /// # Errors
    /// The first inode that cannot be read.
    pub fn of(fs: &Fs, most: usize) -> fourscore::Result<Self> {
        let (geometry, first) = (fs.geometry(), fs.superblock().first_inode());
        let mut of_files = Vec::new();
        for group in (0..geometry.groups()).map(GroupNr) {
            let used = fs.inode_bitmap(group)?;
            for bit in (0..used.len()).filter(|&bit| used.is_used(bit)) {
                if of_files.len() == most {
                    return Ok(Self { of_files });
                }
                let nr = geometry.inode_at(group, GroupOffset(bit));
                if let Some(nr) = nr.filter(|&nr| nr >= first)
                    && !fs.holds_value(nr)?
                    && fs.stat(nr)?.file_type == FileType::Regular
                {
                    of_files.push(fs.xattrs(nr)?);
                }
            }
        }
        Ok(Self { of_files })
    }

    /// The number of files.
    #[must_use]
    pub fn files(&self) -> usize {
        self.of_files.len()
    }

    /// Makes a file in `fs` for each of them, and makes all durable. The operations are the files.
    ///
    /// # Errors
    /// The first failure of the file system.
    pub fn copy_to(
        &self,
        fs: &Arc<Fs>,
        threads: ThreadCount,
        clock: &dyn Clock,
    ) -> io::Result<Driven> {
        let steps = self.of_files.len().div_ceil(threads.get()) as u64;
        let target = Copies {
            attributes: self,
            fs,
            threads,
        };
        drive_and_sync(&target, &CopyAll, threads, steps, clock)
    }
}

/// The file system that gets the files.
struct Copies<'a> {
    attributes: &'a Attributes,
    fs: &'a Arc<Fs>,
    threads: ThreadCount,
}

impl Target for Copies<'_> {
    fn name(&self) -> String {
        "in this process".to_owned()
    }

    fn worker(&self, nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
        Ok(Box::new(Copier {
            of: self,
            nr,
            directory: InodeNr::ROOT,
        }))
    }
}

struct Copier<'a> {
    of: &'a Copies<'a>,
    nr: WorkerNr,
    /// The directory of the next file.
    directory: InodeNr,
}

impl Copier<'_> {
    /// Makes the file of a step of this worker.
    fn copy(&mut self, step: u64) -> fourscore::Result<()> {
        let fs = self.of.fs;
        if step.is_multiple_of(PER_DIRECTORY) {
            let name = format!("w{}-{}", self.nr.0, step / PER_DIRECTORY);
            self.directory = fs.mkdir(InodeNr::ROOT, name.as_bytes(), &NEW)?;
        }
        let at = usize::try_from(step).unwrap_or(usize::MAX);
        let at = at.saturating_mul(self.of.threads.get());
        let of_files = &self.of.attributes.of_files;
        let Some(xattrs) = of_files.get(at.saturating_add(self.nr.0)) else {
            return Ok(());
        };
        let file = fs.create(self.directory, format!("f{step}").as_bytes(), &NEW)?;
        for Xattr { name, value } in xattrs {
            fs.set_xattr(file, name, value, SetXattr::Any)?;
        }
        Ok(())
    }
}

impl Worker for Copier<'_> {
    fn apply(&mut self, file: FileNr, operation: Operation) -> io::Result<u64> {
        let done = match operation {
            Operation::Create => self.copy(file.0.into()),
            Operation::SyncAll => self.of.fs.sync(),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        done.map(|()| 0).map_err(io::Error::other)
    }
}

/// Makes one file after another.
struct CopyAll;

impl Workload for CopyAll {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        worker.apply(FileNr(0), Operation::SyncAll).map(drop)
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let file = FileNr(u32::try_from(step).unwrap_or(u32::MAX));
        worker.apply(file, Operation::Create)?;
        Ok(Work::ONCE)
    }

    fn clean_up(&self, _: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}
