//! **Purpose.** Calls on names that all threads share, with any result.
//!
//! **Model.** A thread draws a call and does it; another thread may have removed its subject
//! meanwhile. So any result is possible, except for an error of a corrupted file system or a failed
//! device.

use anyhow::{Result, bail};
use fourscore::{
    AttributeChange, Error, Fallocate, FileType, Fs, InodeNr, OpenInode, Replace, SetXattr,
};
use fourscore_ondisk::inode::DeviceNr;
use fourscore_sync::Arc;
use fourscore_testkit::explore::Rng;

use crate::BY_ROOT;
use crate::model::FALLOCATE;

/// The directories, below the root.
const FOLDERS: [&str; 3] = ["wild-0", "wild-1", "wild-2"];
/// Names in each.
const NAMES: usize = 20;
/// The offset up to which calls write and allocate, so that they do not fill the image.
const FAR_BYTES: usize = 300_000;
/// The most files that a thread has open.
const MOST_OPEN: usize = 4;

/// A thread that does these calls.
pub(super) struct Wild<'a> {
    fs: &'a Arc<Fs>,
    folders: Vec<InodeNr>,
    open: Vec<OpenInode>,
    random: Rng,
    buffer: Vec<u8>,
}

impl<'a> Wild<'a> {
    /// A new thread; creates the directories if they do not exist.
    ///
    /// # Errors
    /// If they cannot be created.
    pub(super) fn new(fs: &'a Arc<Fs>, random: Rng) -> Result<Self> {
        let mut folders = Vec::new();
        for name in FOLDERS {
            folders.push(match fs.mkdir(InodeNr::ROOT, name.as_bytes(), &BY_ROOT) {
                Ok(dir) => dir,
                Err(Error::Exists) => fs.lookup(InodeNr::ROOT, name.as_bytes())?,
                // A later life may create it.
                Err(Error::NoSpace) => continue,
                Err(error) => return Err(error.into()),
            });
        }
        folders.push(InodeNr::ROOT);
        Ok(Self {
            fs,
            folders,
            open: Vec::new(),
            random,
            buffer: vec![0; FAR_BYTES],
        })
    }

    /// Does one call.
    ///
    /// # Errors
    /// If the file system reports that it is corrupted, or that the device failed.
    pub(super) fn step(&mut self) -> Result<()> {
        let result = match self.random.below(20) {
            0..=10 => self.change_names(),
            11..=17 => self.change_inode(),
            _ => self.open_or_close(),
        };
        accept(result)
    }

    fn place(&mut self) -> (InodeNr, Vec<u8>) {
        let dir = *self.random.pick(&self.folders);
        let nr = self.random.below(NAMES);
        let long = if nr.is_multiple_of(5) { 200 } else { 1 };
        (dir, format!("wild name {nr:0long$}").into_bytes())
    }

    fn change_names(&mut self) -> fourscore::Result<()> {
        let (from, to) = (self.place(), self.place());
        let fs = self.fs;
        let (dir, name) = (from.0, &from.1[..]);
        match self.random.below(14) {
            0 | 1 => fs.create(dir, name, &BY_ROOT).map(drop),
            2 | 3 => OpenInode::created(Arc::clone(fs), dir, name, &BY_ROOT)?.close(),
            4 => fs.mkdir(dir, name, &BY_ROOT).map(drop),
            5 => {
                let length = *self.random.pick(&[5, 59, 60, 900]);
                fs.symlink(dir, name, &vec![b's'; length], &BY_ROOT)
                    .map(drop)
            }
            6 => {
                let device = DeviceNr { major: 3, minor: 7 };
                fs.mknod(dir, name, FileType::CharDevice, device, &BY_ROOT)
                    .map(drop)
            }
            7 => {
                let held = self.held(to.0, &to.1)?;
                let linked = fs.link(held.inode(), dir, name);
                held.close()?;
                linked
            }
            8 | 9 => fs.unlink(dir, name),
            10 => fs.rmdir(dir, name),
            11 => fs.exchange((dir, name), (to.0, &to.1)),
            _ => {
                let replace = *self.random.pick(&[Replace::Yes, Replace::No]);
                fs.rename((dir, name), (to.0, &to.1), replace)
            }
        }
    }

    /// Opens the inode of a name. A looked-up inode number alone may have been reused by another
    /// thread.
    fn held(&self, dir: InodeNr, name: &[u8]) -> fourscore::Result<OpenInode> {
        OpenInode::named(Arc::clone(self.fs), dir, name)
    }

    /// Changes an inode that is open, or that has a name now.
    fn change_inode(&mut self) -> fourscore::Result<()> {
        if !self.open.is_empty() && self.random.happens(1, 2) {
            let inode = self.random.pick(&self.open).inode();
            return self.change(inode);
        }
        let (dir, name) = self.place();
        let held = self.held(dir, &name)?;
        let changed = self.change(held.inode());
        held.close()?;
        changed
    }

    fn change(&mut self, inode: InodeNr) -> fourscore::Result<()> {
        let fs = self.fs;
        let offset = self.random.below(FAR_BYTES);
        let length = 1 + self.random.below(FAR_BYTES - offset);
        let bytes = self
            .buffer
            .get_mut(..length.min(40_000))
            .unwrap_or_default();
        match self.random.below(16) {
            0..=4 => fs.write_at(inode, bytes, offset as u64).map(drop),
            5 if fs.stat(inode)?.size_bytes < FAR_BYTES as u64 => fs.append(inode, bytes).map(drop),
            5 | 6 => fs.truncate(inode, offset as u64),
            7 | 8 => {
                let what = *self.random.pick(&FALLOCATE);
                // Ranges are moved by whole clusters.
                let unit = fs.geometry().cluster_size_bytes();
                let (offset, length) = (offset - offset % unit, length.next_multiple_of(unit));
                if what == Fallocate::InsertRange && fs.stat(inode)?.size_bytes > FAR_BYTES as u64 {
                    return fs.truncate(inode, 0);
                }
                fs.fallocate(inode, what, offset as u64, length as u64)
            }
            9 => fs.read_at(inode, bytes, offset as u64).map(drop),
            10 => {
                let name = format!("user.{}", self.random.below(6)).into_bytes();
                let value = vec![7; *self.random.pick(&[0, 30, 500, 3_000])];
                fs.set_xattr(inode, &name, &value, SetXattr::Any)
            }
            11 => {
                let name = format!("user.{}", self.random.below(6)).into_bytes();
                fs.remove_xattr(inode, &name)
            }
            12 => {
                let change = AttributeChange {
                    permissions: Some(0o640),
                    uid: Some(1000),
                    ..AttributeChange::default()
                };
                fs.set_attributes(inode, &change)
            }
            13 => fs.fdatasync(inode),
            14 => fs.fsync(inode),
            _ => fs.xattrs(inode).map(drop),
        }
    }

    fn open_or_close(&mut self) -> fourscore::Result<()> {
        if self.open.len() >= MOST_OPEN || self.random.happens(1, 3) {
            return self.open.pop().map_or(Ok(()), OpenInode::close);
        }
        let (dir, name) = self.place();
        let opened = if self.random.happens(1, 2) {
            OpenInode::unnamed(Arc::clone(self.fs), dir, &BY_ROOT)?
        } else {
            self.held(dir, &name)?
        };
        self.open.push(opened);
        Ok(())
    }

    /// Closes all files.
    ///
    /// # Errors
    /// If the file system reports that it is corrupted, or that the device failed.
    pub(super) fn finish(mut self) -> Result<()> {
        while let Some(open) = self.open.pop() {
            accept(open.close())?;
        }
        Ok(())
    }
}

/// Accepts any result except for an I/O error, corruption, or a file system that became read-only.
pub(super) fn accept(result: fourscore::Result<()>) -> Result<()> {
    match result {
        Err(error @ (Error::Io(_) | Error::Corrupt(_) | Error::ReadOnly(_))) => bail!(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
