//! **Purpose.** How full a scratch file system is, how fragmented its free space and its files are.
//!
//! **Model.** The used space is what the file system itself says, mounted. Free extents and extents
//! of files are read from the image of an ext4 after it was unmounted, by the library, so that the
//! figures of all implementations are counted in one way.

use std::io;
use std::ops::ControlFlow;

use fourscore::{Fs, InodeNr, OpenOptions};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_ondisk::GroupNr;
use fourscore_sync::Arc;

use crate::scratch::{Image, Mounted};

/// How full a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Bytes for users, metadata of fixed size excluded where the file system does so.
    pub total_bytes: u64,
    /// Bytes that are in use.
    pub used_bytes: u64,
    /// Inodes that are in use; 0 where they are not counted.
    pub files: u64,
}

/// The free extents of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Number of free extents, which end at the end of a group.
    pub extents: u64,
    /// Free bytes.
    pub bytes: u64,
    /// The longest free extent.
    pub longest_bytes: u64,
}

/// The extents of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// Number of files.
    pub files: u64,
    /// Number of extents of all files together.
    pub extents: u64,
}

impl FreeSpace {
    /// Bytes of the mean free extent.
    #[must_use]
    pub fn mean_bytes(&self) -> u64 {
        self.bytes / self.extents.max(1)
    }
}

impl Mounted<'_> {
    /// How full it is.
    ///
    /// # Errors
    /// The file system's own.
    pub fn used(&self) -> io::Result<Used> {
        if let Some(fs) = &self.fs {
            let found = fs.statfs().map_err(io::Error::other)?;
            let block_bytes = found.block_bytes as u64;
            return Ok(Used {
                total_bytes: found.blocks * block_bytes,
                used_bytes: found.blocks.saturating_sub(found.free_blocks) * block_bytes,
                files: u64::from(found.inodes.saturating_sub(found.free_inodes)),
            });
        }
        let found = rustix::fs::statvfs(&self.point)?;
        Ok(Used {
            total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
            used_bytes: found
                .f_blocks
                .saturating_sub(found.f_bfree)
                .saturating_mul(found.f_frsize),
            files: found.f_files.saturating_sub(found.f_ffree),
        })
    }
}

impl Image {
    /// The file system, read-only; `None` if it is not ext4.
    fn open(&self) -> io::Result<Option<Arc<Fs>>> {
        if !self.kind.is_ext4() {
            return Ok(None);
        }
        let device = open_path(&self.path, DeviceOptions::default()).map_err(io::Error::other)?;
        let fs = Fs::open(Arc::new(device), &OpenOptions::new());
        fs.map(Some).map_err(io::Error::other)
    }

    /// The free space; `None` if it is not ext4.
    ///
    /// # Errors
    /// The image cannot be read, or is damaged.
    pub fn free_space(&self) -> io::Result<Option<FreeSpace>> {
        let Some(fs) = self.open()? else {
            return Ok(None);
        };
        let geometry = fs.geometry();
        let cluster_log = geometry.blocks_per_cluster_log();
        let cluster_bytes = (geometry.block_size().bytes() as u64) << cluster_log;
        let mut found = FreeSpace::default();
        for group in (0..geometry.groups()).map(GroupNr) {
            let bitmap = fs.block_bitmap(group).map_err(io::Error::other)?;
            for run in bitmap.free_runs() {
                let bytes = u64::from(run.end - run.start) * cluster_bytes;
                found.extents += 1;
                found.bytes += bytes;
                found.longest_bytes = found.longest_bytes.max(bytes);
            }
        }
        Ok(Some(found))
    }

    /// The extents of the files in the directories of workers whose names `is_counted` says;
    /// `None` if it is not ext4.
    ///
    /// # Errors
    /// The image cannot be read, or is damaged.
    pub fn extents(&self, is_counted: impl Fn(&[u8]) -> bool) -> io::Result<Option<Extents>> {
        let Some(fs) = self.open()? else {
            return Ok(None);
        };
        let mut found = Extents::default();
        for directory in entries(&fs, InodeNr::ROOT, |name| name.starts_with(b"w"))? {
            for file in entries(&fs, directory, &is_counted)? {
                let extents = fs.extents(file).map_err(io::Error::other)?;
                found.files += 1;
                found.extents += extents.len() as u64;
            }
        }
        Ok(Some(found))
    }
}

/// The inodes of the names of a directory that `is_counted` says.
fn entries(fs: &Fs, dir: InodeNr, is_counted: impl Fn(&[u8]) -> bool) -> io::Result<Vec<InodeNr>> {
    let mut names = Vec::new();
    fs.for_each_entry(dir, |entry| {
        if !matches!(entry.name, b"." | b"..") && is_counted(entry.name) {
            names.push(entry.name.to_vec());
        }
        ControlFlow::Continue(())
    })
    .map_err(io::Error::other)?;
    let inodes = names.iter().map(|name| fs.lookup(dir, name));
    inodes.collect::<Result<_, _>>().map_err(io::Error::other)
}
