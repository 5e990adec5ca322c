//! **Purpose.** Reads the attributes of one object of the host.
//!
//! **Model.** `statx` gives nearly everything. Most kernels have no system call that reads extended
//! attributes relative to a directory: a thread with a private working directory changes to the
//! directory, other threads use a path through `/proc/self/fd`, which takes three times as long.
//! All calls go through the C library (rustix's feature `use-libc`) and name the object, because
//! build systems run image builders under fakeroot or pseudo, which intercept these calls to report
//! other owners. Such a library tracks one working directory for all threads, so under it no thread
//! changes its directory.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::{DeviceNr, FileMode, FileType};
use fourscore_sync::thread;
use rustix::fs::{AtFlags, OFlags, SeekFrom, Statx, StatxFlags, StatxTimestamp, readlinkat, statx};
use rustix::io::Errno;

use super::Directory;
use super::beneath;
use crate::manifest::Saved;
use crate::tree::{
    Content, DataPlace, Kind, Meta, NodeId, Piece, Sparse, Tree, TreeResult, Xattrs, is_supported,
};

/// The longest list of attribute names and the longest value on Linux.
const XATTRS_MAX_BYTES: usize = 64 << 10;
/// Size of the first attempt, which nearly all lists and values fit into: the kernel allocates a
/// buffer of the given size for each call.
const XATTRS_USUAL_BYTES: usize = 512;

/// Device and inode number, which identify an object of the host.
pub(super) type ObjectKey = (u32, u32, u64);

/// An object of the host and one of its names.
pub(super) struct Object {
    pub(super) name: CString,
    meta: Meta,
    kind: Found,
    xattrs: Option<Box<Xattrs>>,
    /// Names of attributes that ext4 cannot store.
    pub(super) left_out: Vec<Vec<u8>>,
    /// Set for objects with more than one name.
    shared: Option<ObjectKey>,
}

/// Like [`Kind`], but independent of the tree.
enum Found {
    Kind(Kind),
    Dense(u64),
    Sparse(u64, Vec<Piece>),
}

/// Buffers of one thread for reading attributes.
#[derive(Default)]
pub(super) struct Inspector {
    names: Vec<u8>,
    value: Vec<u8>,
    /// Names of attributes of the last object that ext4 cannot store.
    left_out: Vec<Vec<u8>>,
    /// Whether the thread has a private working directory.
    own_directory: bool,
    /// Prefix of the paths of objects: empty, or the open directory in `/proc` and a slash.
    directory: Vec<u8>,
    path: Vec<u8>,
}

impl Inspector {
    /// For a worker thread; gets a private working directory if possible.
    pub(super) fn for_worker() -> Self {
        let is_preloaded = std::env::var_os("LD_PRELOAD").is_some();
        Self {
            own_directory: !is_preloaded && thread::own_working_directory().is_ok(),
            ..Self::default()
        }
    }

    /// Sets the directory of the next objects.
    pub(super) fn enter(&mut self, directory: &OwnedFd) {
        self.directory.clear();
        // A directory that may be listed but not entered is accessed through `/proc`.
        if !self.own_directory || rustix::process::fchdir(directory).is_err() {
            self.directory = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
        }
    }

    /// Reads the attributes of the root of a source.
    pub(super) fn root(
        &mut self,
        root: &File,
        saved: Option<&Saved>,
    ) -> io::Result<(Meta, Xattrs, Vec<Vec<u8>>)> {
        let mut found = statx(root, c".", AtFlags::empty(), StatxFlags::BASIC_STATS)?;
        apply_saved(&mut found, saved);
        self.path = format!("/proc/self/fd/{}\0", root.as_raw_fd()).into_bytes();
        let xattrs = self.xattrs(Follow::MagicLink)?;
        Ok((
            meta(&found),
            xattrs.map_or_else(Xattrs::new, |xattrs| *xattrs),
            std::mem::take(&mut self.left_out),
        ))
    }

    /// Reads the attributes of an object by its name in a directory.
    pub(super) fn object(
        &mut self,
        directory: &OwnedFd,
        name: &CStr,
        saved: Option<&Saved>,
    ) -> io::Result<Object> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let mut found = statx(directory, name, flags, StatxFlags::BASIC_STATS)?;
        apply_saved(&mut found, saved);
        self.path.clear();
        self.path.extend_from_slice(&self.directory);
        self.path.extend_from_slice(name.to_bytes_with_nul());
        let xattrs = self.xattrs(Follow::Never)?;
        let kind = kind(directory, name, &found)?;
        let shared = found.stx_nlink > 1 && !matches!(kind, Found::Kind(Kind::Directory));
        let key = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
        Ok(Object {
            name: name.to_owned(),
            meta: meta(&found),
            kind,
            xattrs,
            left_out: std::mem::take(&mut self.left_out),
            shared: shared.then_some(key),
        })
    }

    /// Reads the extended attributes of the object at `self.path`.
    fn xattrs(&mut self, follow: Follow) -> io::Result<Option<Box<Xattrs>>> {
        let path = CStr::from_bytes_with_nul(&self.path).unwrap_or_default();
        let listed = call_with_buffer(&mut self.names, |buffer| match follow {
            Follow::MagicLink => rustix::fs::listxattr(path, buffer),
            Follow::Never => rustix::fs::llistxattr(path, buffer),
        });
        let names = match listed {
            Ok([]) => return Ok(None),
            Ok(names) => names,
            // The file system does not support extended attributes.
            Err(Errno::OPNOTSUPP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut xattrs = Box::new(Xattrs::new());
        for name in names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            if !is_supported(name) {
                self.left_out.push(name.to_vec());
                continue;
            }
            let value = call_with_buffer(&mut self.value, |buffer| match follow {
                Follow::MagicLink => rustix::fs::getxattr(path, name, buffer),
                Follow::Never => rustix::fs::lgetxattr(path, name, buffer),
            })?;
            xattrs.set(name, value);
        }
        Ok(Some(xattrs))
    }
}

/// Calls the host with a buffer, which is enlarged if the result does not fit.
fn call_with_buffer(
    buffer: &mut Vec<u8>,
    mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<&[u8]> {
    let mut most = XATTRS_USUAL_BYTES;
    loop {
        buffer.resize(most.max(buffer.len()), 0);
        match call(buffer.get_mut(..most).unwrap_or_default()) {
            Err(Errno::RANGE) if most < XATTRS_MAX_BYTES => most = XATTRS_MAX_BYTES,
            len => return Ok(buffer.get(..len?).unwrap_or_default()),
        }
    }
}

/// Whether the last component of a path is followed.
#[derive(Clone, Copy)]
enum Follow {
    /// The component is the magic link in `/proc` to an open file.
    MagicLink,
    Never,
}

fn kind(directory: &OwnedFd, name: &CStr, found: &Statx) -> io::Result<Found> {
    let device = DeviceNr {
        major: found.stx_rdev_major,
        minor: found.stx_rdev_minor,
    };
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "neither file nor directory");
    let file_type = FileType::from_mode(FileMode(found.stx_mode)).ok_or_else(unknown)?;
    Ok(Found::Kind(match file_type {
        FileType::Directory => Kind::Directory,
        FileType::Regular => return file(directory, name, found),
        FileType::Symlink => Kind::Symlink(readlinkat(directory, name, Vec::new())?.into_bytes()),
        FileType::CharDevice => Kind::CharDevice(device),
        FileType::BlockDevice => Kind::BlockDevice(device),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
    }))
}

fn file(directory: &OwnedFd, name: &CStr, found: &Statx) -> io::Result<Found> {
    let size = found.stx_size;
    if size == 0 {
        return Ok(Found::Kind(Kind::File(Content::Empty)));
    }
    if found.stx_blocks.saturating_mul(512) >= size {
        return Ok(Found::Dense(size));
    }
    let file = File::from(beneath::open(directory, name.to_bytes(), OFlags::empty())?);
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            // The file system does not support SEEK_DATA.
            Err(Errno::INVAL) => return Ok(Found::Dense(size)),
            Err(error) => return Err(error.into()),
        };
        if data >= size {
            break;
        }
        let end = rustix::fs::seek(&file, SeekFrom::Hole(data))?.min(size);
        pieces.push(Piece {
            at: data,
            from: data,
            len_bytes: end - data,
        });
        at = end;
    }
    match pieces.as_slice() {
        [only] if only.len_bytes == size => Ok(Found::Dense(size)),
        _ => Ok(Found::Sparse(size, pieces)),
    }
}

/// Replaces the attributes of the host by those in the fakeroot file.
fn apply_saved(found: &mut Statx, saved: Option<&Saved>) {
    let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
    let inode = saved.and_then(|saved| saved.lookup(device, found.stx_ino, found.stx_mode));
    if let Some(inode) = inode {
        found.stx_mode = inode.mode;
        (found.stx_uid, found.stx_gid) = (inode.uid, inode.gid);
        found.stx_rdev_major = inode.device.major;
        found.stx_rdev_minor = inode.device.minor;
    }
}

fn meta(found: &Statx) -> Meta {
    Meta {
        permissions: found.stx_mode & 0o7777,
        uid: found.stx_uid,
        gid: found.stx_gid,
        project: 0,
        atime: time(found.stx_atime),
        mtime: time(found.stx_mtime),
        ctime: time(found.stx_ctime),
    }
}

fn time(time: StatxTimestamp) -> Timestamp {
    Timestamp::new(time.tv_sec, time.tv_nsec).unwrap_or_default()
}

impl Object {
    /// Puts the object into the tree. Returns its node, or `None` if it is one more name of a known
    /// object.
    pub(super) fn put(
        &self,
        tree: &mut Tree,
        objects: &mut HashMap<ObjectKey, NodeId>,
        directory: &Directory,
    ) -> TreeResult<Option<NodeId>> {
        let name = self.name.to_bytes();
        if let Some(&node) = self.shared.and_then(|key| objects.get(&key)) {
            let before = match directory.is_new {
                true => None,
                false => tree.find(directory.node, name),
            };
            tree.link_in(directory.node, name, before, node)?;
            return Ok(None);
        }
        let kind = match &self.kind {
            Found::Kind(kind) => kind.clone(),
            Found::Dense(len_bytes) => Kind::File(Content::Host {
                path: tree.host_path(directory.host, name)?,
                len_bytes: *len_bytes,
            }),
            Found::Sparse(len_bytes, pieces) => {
                let path = tree.host_path(directory.host, name)?;
                Kind::File(Content::Sparse(Box::new(Sparse {
                    data: DataPlace::Host(path),
                    len_bytes: *len_bytes,
                    pieces: pieces.clone(),
                })))
            }
        };
        let none = Xattrs::new();
        let xattrs = self.xattrs.as_deref().unwrap_or(&none);
        let node = if directory.is_new {
            tree.insert_new(directory.node, name, &self.meta, kind, xattrs)?
        } else {
            tree.insert_in(directory.node, name, &self.meta, kind, xattrs)?
        };
        if let Some(key) = self.shared {
            objects.insert(key, node);
        }
        Ok(Some(node))
    }
}
