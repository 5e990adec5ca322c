//! **Purpose.** A directory of the host as a source of the walk.
//!
//! **Model.** Objects are opened relative to their open directory and never through a symbolic link
//! ([`fourscore_build::host::beneath`]), so the walk stays inside the tree even if the tree changes
//! meanwhile. Extended attributes have no system call relative to a directory and are read through
//! `/proc/self/fd`. Access times are not changed if this user may avoid that (`O_NOATIME`).

use std::ffi::CString;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fourscore_build::host::beneath;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, Mode, OFlags, RawDir, SeekFrom, Statx, StatxFlags, StatxTimestamp, readlinkat, statx,
};
use rustix::io::Errno;

use crate::facts::{Facts, Kind, Time};
use crate::failure::{Failure, Result};
use crate::tree::listing::Listing;
use crate::walk::hash::{ContentHash, READ_BYTES};
use crate::walk::line::Attributes;
use crate::walk::source::{Entry, Source};

/// Bytes of the longest list of attribute names that the kernel returns, and of the longest value.
const ATTRIBUTES_MAX_BYTES: usize = 64 << 10;

/// A tree of the host.
#[derive(Debug)]
pub(crate) struct HostTree {
    path: PathBuf,
    root: OwnedFd,
}

/// A directory by its path below the root, without a leading slash.
#[derive(Debug)]
pub(crate) struct HostDirectory(Vec<u8>);

/// An open directory.
#[derive(Debug)]
pub(crate) struct HostOpen {
    fd: OwnedFd,
    path: Vec<u8>,
}

/// Device and inode number of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity(u64, u64);

/// Buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct HostScratch {
    entries: Vec<MaybeUninit<u8>>,
    names: Vec<u8>,
    value: Vec<u8>,
    content: Vec<u8>,
}

impl HostTree {
    /// Opens the directory, or any other object, at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| Failure::new(path.display().to_string(), errno))?;
        Ok(Self {
            path: path.to_owned(),
            root,
        })
    }

    /// Opens a regular file to read it.
    pub(crate) fn file(&self, open: &HostOpen, entry: Entry<'_>) -> Result<File> {
        let fd = match entry {
            Entry::Itself => rustix::fs::open(&self.path, OFlags::CLOEXEC, Mode::empty()),
            Entry::Named(name, _) => beneath::open(&open.fd, name, OFlags::empty()),
        };
        fd.map(File::from).map_err(why)
    }

    /// Device and inode number of an object.
    pub(crate) fn identity(&self, open: &HostOpen, entry: Entry<'_>) -> Result<Identity> {
        let found = match entry {
            Entry::Itself => rustix::fs::fstat(&open.fd),
            Entry::Named(name, _) => rustix::fs::statat(&open.fd, name, AtFlags::SYMLINK_NOFOLLOW),
        };
        found
            .map(|found| Identity(found.st_dev, found.st_ino))
            .map_err(why)
    }
}

fn why(errno: Errno) -> Failure {
    Failure::new("", errno)
}

/// A path of the object, for system calls that take no directory.
fn proc_path(open: &HostOpen, entry: Entry<'_>) -> Result<CString> {
    let mut path = format!("/proc/self/fd/{}", open.fd.as_raw_fd()).into_bytes();
    if let Entry::Named(name, _) = entry {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    CString::new(path).map_err(|error| Failure::new("", error))
}

fn time(time: StatxTimestamp) -> Time {
    Time {
        seconds: time.tv_sec,
        nanoseconds: time.tv_nsec,
    }
}

fn facts_of(found: &Statx) -> Facts {
    let mode = u32::from(found.stx_mode);
    let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    Facts {
        inode: found.stx_ino,
        kind: Kind::from_mode(mode),
        permissions: mode & 0o7777,
        uid: found.stx_uid,
        gid: found.stx_gid,
        links: found.stx_nlink.into(),
        size_bytes: found.stx_size,
        blocks_512: found.stx_blocks,
        rdev_major: found.stx_rdev_major,
        rdev_minor: found.stx_rdev_minor,
        atime: time(found.stx_atime),
        mtime: time(found.stx_mtime),
        ctime: time(found.stx_ctime),
        btime: has_birth.then(|| time(found.stx_btime)),
        may_have_attributes: true,
    }
}

impl Source for HostTree {
    const KINDS_AGREE: bool = false;
    type Directory = HostDirectory;
    type Open = HostOpen;
    type Scratch = HostScratch;

    fn root(&self) -> Result<HostOpen> {
        let fd = self
            .root
            .try_clone()
            .map_err(|error| Failure::new("", error))?;
        Ok(HostOpen {
            fd,
            path: Vec::new(),
        })
    }

    fn root_directory(&self) -> HostDirectory {
        HostDirectory(Vec::new())
    }

    fn open(&self, directory: &HostDirectory) -> Result<HostOpen> {
        let path = &directory.0;
        Ok(HostOpen {
            fd: beneath::open_directory(&self.root, path).map_err(why)?,
            path: path.clone(),
        })
    }

    fn list(&self, open: &HostOpen, listing: &mut Listing, s: &mut HostScratch) -> Result<()> {
        s.entries.resize(64 << 10, MaybeUninit::uninit());
        let mut entries = RawDir::new(&open.fd, &mut s.entries);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(why)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = Kind::from_mode(entry.file_type().as_raw_mode());
            let known = (kind != Kind::Unknown).then_some(kind);
            listing.push(name, entry.ino(), known);
        }
        Ok(())
    }

    fn facts(&self, open: &HostOpen, entry: Entry<'_>, _: &mut HostScratch) -> Result<Facts> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = match entry {
            Entry::Itself => statx(&open.fd, c"", AtFlags::EMPTY_PATH, mask),
            Entry::Named(name, _) => statx(&open.fd, name, AtFlags::SYMLINK_NOFOLLOW, mask),
        };
        found.map(|found| facts_of(&found)).map_err(why)
    }

    fn target(
        &self,
        open: &HostOpen,
        entry: Entry<'_>,
        _: &Facts,
        target: &mut Vec<u8>,
    ) -> Result<()> {
        let name = match entry {
            Entry::Itself => b"",
            Entry::Named(name, _) => name,
        };
        let found = readlinkat(&open.fd, name, std::mem::take(target)).map_err(why)?;
        *target = found.into_bytes();
        Ok(())
    }

    fn attributes(
        &self,
        open: &HostOpen,
        entry: Entry<'_>,
        s: &mut HostScratch,
        attributes: &mut Attributes,
    ) -> Result<()> {
        let path = proc_path(open, entry)?;
        s.names.resize(ATTRIBUTES_MAX_BYTES, 0);
        s.value.resize(ATTRIBUTES_MAX_BYTES, 0);
        // The magic link of the open object itself has to be followed, an entry must not be.
        let follow = matches!(entry, Entry::Itself);
        let listed = if follow {
            rustix::fs::listxattr(&*path, s.names.as_mut_slice())
        } else {
            rustix::fs::llistxattr(&*path, s.names.as_mut_slice())
        };
        let names = match listed {
            Ok(len) => s.names.get(..len).unwrap_or_default(),
            // The file system does not support extended attributes.
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(errno) => return Err(why(errno)),
        };
        for name in names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            let got = if follow {
                rustix::fs::getxattr(&*path, name, s.value.as_mut_slice())
            } else {
                rustix::fs::lgetxattr(&*path, name, s.value.as_mut_slice())
            };
            let len = got.map_err(why)?;
            attributes.push(name, s.value.get(..len).unwrap_or_default());
        }
        Ok(())
    }

    fn sha256(
        &self,
        open: &HostOpen,
        entry: Entry<'_>,
        facts: &Facts,
        s: &mut HostScratch,
    ) -> Result<[u8; 32]> {
        let file = self.file(open, entry)?;
        s.content.resize(READ_BYTES, 0);
        hash_file(&file, facts, &mut s.content)
    }

    fn child(&self, open: &HostOpen, name: &[u8], _inode: u64) -> Result<HostDirectory> {
        let mut path = open.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Ok(HostDirectory(path))
    }
}

/// Hashes the data of `file`, with holes as zeros, up to the size in `facts`.
fn hash_file(file: &File, facts: &Facts, buffer: &mut [u8]) -> Result<[u8; 32]> {
    let size = facts.size_bytes;
    let failed = |error: std::io::Error| Failure::new("", error);
    let mut hash = ContentHash::new(size);
    let mut at = 0;
    // A file without holes needs no seek for them.
    let mut data_end = if facts.blocks_512.saturating_mul(512) >= size {
        size
    } else {
        0
    };
    while at < size {
        if at >= data_end {
            let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(data) => data.min(size),
                Err(Errno::NXIO) => size,
                Err(errno) => return Err(why(errno)),
            };
            hash.update_zeros(data - at);
            at = data;
            if at < size {
                data_end = rustix::fs::seek(file, SeekFrom::Hole(at))
                    .map_err(why)?
                    .min(size);
            }
            continue;
        }
        let wanted = usize::try_from(data_end - at).map_or(buffer.len(), |n| n.min(buffer.len()));
        let count = file.read_at(&mut buffer[..wanted], at).map_err(failed)?;
        if count == 0 {
            return Err(Failure::new("", "the file was truncated while it was read"));
        }
        hash.update(&buffer[..count]);
        at += count as u64;
    }
    Ok(hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_hash_as_zeros() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("sparse");
        let file = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(&path);
        let file = file.expect("a new file");
        file.write_all_at(b"data", 3 << 20).expect("space");
        file.set_len(5 << 20).expect("space");
        let mut plain = ContentHash::new(5 << 20);
        plain.update(&vec![0; 3 << 20]);
        plain.update(b"data");
        plain.update(&vec![0; (2 << 20) - 4]);
        let tree = HostTree::open(directory.path()).expect("it exists");
        let mut scratch = HostScratch::default();
        let open = tree.open(&tree.root_directory()).expect("a directory");
        let entry = Entry::Named(b"sparse", 0);
        let facts = tree.facts(&open, entry, &mut scratch).expect("it exists");
        let hash = tree
            .sha256(&open, entry, &facts, &mut scratch)
            .expect("readable");
        assert_eq!(hash, plain.finish());
    }
}
