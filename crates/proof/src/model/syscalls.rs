//! **Purpose.** A model and a directory of the host, on which the same calls are done by system
//! calls, as [`Pair`](super::Pair) does for file systems of ours.
//!
//! **Not here.** Comparing the two ([`Model::compare_with_host`]).
//!
//! **Model.** An inode is accessed by a path from the model's names, or through `/proc/self/fd` if
//! it is open and has no name. Some calls are not possible as a single system call;
//! [`Call::by_host`] replaces them by others before they are done.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use fourscore::{Fallocate, FileType, SetXattr};
use fourscore_ondisk::inode::InodeFlags;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::Errno;

use super::content::bytes_to_write;
use super::{Call, Expected, How, Id, Model, NewKind, Node, Owner, Place, Which, Whole};

/// The mode bits that mkdir(2) uses.
const MODE_OF_MKDIR: u16 = 0o1777;

/// A model and a directory of the host.
#[derive(Debug)]
pub(crate) struct HostPair {
    pub(crate) model: Model,
    root: PathBuf,
    /// Open files.
    handles: Vec<(Id, File)>,
}

/// The same permissions, for root with an empty umask.
fn by_root(owner: &Owner) -> Owner {
    Owner {
        umask: 0,
        uid: 0,
        gid: 0,
        ..*owner
    }
}

fn can_be_opened(node: &Node) -> bool {
    node.is_file() || node.is_dir()
}

impl Call {
    /// The call as a process of root can do it in one step; `None` if it cannot.
    ///
    /// - New inodes belong to root: another owner needs a second call.
    /// - Symbolic links and special files cannot be opened, so their directory is synced instead,
    ///   and their flags are not changed.
    /// - Whether `O_TMPFILE` works in a removed directory depends on the kernel, so it is not used.
    /// - Trim and freeze are not used.
    pub(crate) fn by_host(self, model: &Model) -> Option<Self> {
        Some(match self {
            Self::Make(place, kind, owner) => {
                let mut owner = by_root(&owner);
                if matches!(kind, NewKind::Directory) {
                    owner.permissions &= MODE_OF_MKDIR;
                }
                Self::Make(place, kind, owner)
            }
            Self::MakeUnnamed(dir, owner) if model.node(dir).links > 0 => {
                Self::MakeUnnamed(dir, by_root(&owner))
            }
            Self::Rename(from, to, How::Whiteout(owner)) => {
                Self::Rename(from, to, How::Whiteout(by_root(&owner)))
            }
            Self::Fsync(id) | Self::Fdatasync(id) if !can_be_opened(model.node(id)) => {
                Self::Fsync(name_of(model, id)?.dir)
            }
            Self::SetFlags(id, _) if !can_be_opened(model.node(id)) => return None,
            Self::MakeUnnamed(..)
            | Self::SetProject(..)
            | Self::Disturb(_)
            | Self::Whole(Whole::Trim | Whole::FreezeAndThaw) => return None,
            call => call,
        })
    }
}

/// A name of an inode, if it has one.
fn name_of(model: &Model, id: Id) -> Option<Place> {
    model.nodes().find_map(|(dir, node)| {
        let (name, _) = node.entries()?.iter().find(|(_, child)| **child == id)?;
        let name = name.clone();
        Some(Place { dir, name })
    })
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The result, with the error number of the system call.
fn os<T>(result: io::Result<T>) -> Result<T, Errno> {
    result.map_err(|error| errno_of(&error))
}

fn mode(permissions: u16) -> Mode {
    Mode::from_raw_mode(permissions.into())
}

impl HostPair {
    /// Continues with a model whose tree is below `root`; no file of it is open. Sets the umask of
    /// the process to zero, so that new inodes have the permissions of the calls.
    pub(crate) fn new(root: PathBuf, model: Model) -> Self {
        rustix::process::umask(Mode::empty());
        Self {
            model,
            root,
            handles: Vec::new(),
        }
    }

    /// Does a call, which must come from [`Call::by_host`], on both, and returns the result. `None`
    /// if there was no space: the model is unchanged then.
    ///
    /// # Errors
    /// If the results differ.
    pub(crate) fn call(&mut self, call: &Call) -> Result<Option<Expected>> {
        let before = self.model.clone();
        let expected = self.model.apply(call);
        match (expected, self.perform(&before, call)) {
            (Expected::Done(id), Ok(opened)) => {
                let newest = self.model.nodes().last().map(|(id, _)| id);
                let owner = match call {
                    Call::Open(id) => Some(*id),
                    _ => newest,
                };
                self.handles.extend(owner.zip(opened));
                Ok(Some(Expected::Done(id)))
            }
            (Expected::Refused(why), Err(errno)) if why.contains(errno) => {
                Ok(Some(Expected::Refused(why)))
            }
            (_, Err(Errno::NOSPC)) => {
                self.model = before;
                Ok(None)
            }
            (expected, result) => {
                bail!("{}: {result:?}, expected {expected:?}", call.shown());
            }
        }
    }

    /// A path to an inode.
    fn path(&self, model: &Model, id: Id) -> PathBuf {
        if id == Model::ROOT {
            return self.root.clone();
        }
        match name_of(model, id) {
            Some(place) => self.at(model, &place),
            None => {
                let handle = self.handles.iter().find(|(open, _)| *open == id);
                let number = handle.map_or(-1, |(_, file)| file.as_raw_fd());
                PathBuf::from(format!("/proc/self/fd/{number}"))
            }
        }
    }

    fn at(&self, model: &Model, place: &Place) -> PathBuf {
        let name = OsStr::from_bytes(&place.name);
        self.path(model, place.dir).join(name)
    }

    /// Does the system call; returns the file that it opened. `model` is the state before.
    fn perform(&mut self, model: &Model, call: &Call) -> Result<Option<File>, Errno> {
        match call {
            Call::MakeUnnamed(dir, owner) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let dir = self.path(model, *dir);
                let file = rustix::fs::open(dir, flags, mode(owner.permissions))?;
                Ok(Some(file.into()))
            }
            Call::Open(id) => os(File::open(self.path(model, *id))).map(Some),
            Call::Close(id) => {
                let at = self.handles.iter().position(|(open, _)| open == id);
                self.handles.swap_remove(at.ok_or(Errno::BADF)?);
                Ok(None)
            }
            Call::Make(place, kind, owner) => {
                make(&self.at(model, place), kind, owner)?;
                Ok(None)
            }
            Call::Link(..) | Call::Unlink(_) | Call::Rmdir(_) | Call::Rename(..) => {
                self.change_names(model, call).map(|()| None)
            }
            Call::Write { .. }
            | Call::Append { .. }
            | Call::Truncate(..)
            | Call::Copy(..)
            | Call::Fallocate(..) => self.change_content(model, call).map(|()| None),
            Call::Fsync(id) => {
                let file = os(File::open(self.path(model, *id)))?;
                os(file.sync_all()).map(|()| None)
            }
            Call::Fdatasync(id) => {
                let file = os(File::open(self.path(model, *id)))?;
                os(file.sync_data()).map(|()| None)
            }
            Call::Whole(Whole::Sync) => {
                rustix::fs::syncfs(os(File::open(&self.root))?)?;
                Ok(None)
            }
            other => self.change_attributes(model, other).map(|()| None),
        }
    }

    fn change_names(&self, model: &Model, call: &Call) -> Result<(), Errno> {
        match call {
            Call::Link(id, place) => {
                let new = self.at(model, place);
                let flags = match name_of(model, *id) {
                    Some(_) => AtFlags::empty(),
                    None => AtFlags::SYMLINK_FOLLOW,
                };
                rustix::fs::linkat(CWD, self.path(model, *id), CWD, new, flags)
            }
            Call::Unlink(place) => os(fs::remove_file(self.at(model, place))),
            Call::Rmdir(place) => os(fs::remove_dir(self.at(model, place))),
            Call::Rename(from, to, how) => {
                let flags = match how {
                    How::Replace => RenameFlags::empty(),
                    How::NoReplace => RenameFlags::NOREPLACE,
                    How::Exchange => RenameFlags::EXCHANGE,
                    How::Whiteout(_) => RenameFlags::WHITEOUT,
                };
                let (from, to) = (self.at(model, from), self.at(model, to));
                rustix::fs::renameat_with(CWD, from, CWD, to, flags)
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn writable(&self, model: &Model, id: Id) -> Result<File, Errno> {
        let path = self.path(model, id);
        os(OpenOptions::new().write(true).open(path))
    }

    fn change_content(&self, model: &Model, call: &Call) -> Result<(), Errno> {
        match call {
            Call::Write {
                node,
                offset,
                len,
                tag,
            } => self.write(model, *node, *offset, *len, *tag),
            Call::Append { node, len, tag } => {
                let end = model.node(*node).content().map_or(0, super::Content::size);
                self.write(model, *node, end, *len, *tag)
            }
            Call::Truncate(node, size) => os(self.writable(model, *node)?.set_len(*size)),
            Call::Copy(from, range, to, offset) => {
                let from = os(File::open(self.path(model, *from)))?;
                let to = self.writable(model, *to)?;
                let (mut at, mut offset) = (range.start, *offset);
                while at < range.end {
                    let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
                    let (here, there) = (Some(&mut at), Some(&mut offset));
                    if rustix::fs::copy_file_range(&from, here, &to, there, left)? == 0 {
                        break;
                    }
                }
                Ok(())
            }
            Call::Fallocate(node, what, range) => {
                let flags = match what {
                    Fallocate::Allocate => FallocateFlags::empty(),
                    Fallocate::AllocateKeepSize => FallocateFlags::KEEP_SIZE,
                    Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Fallocate::ZeroRange => FallocateFlags::ZERO_RANGE,
                    Fallocate::ZeroRangeKeepSize => {
                        FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
                    }
                    Fallocate::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
                    Fallocate::InsertRange => FallocateFlags::INSERT_RANGE,
                };
                let file = self.writable(model, *node)?;
                rustix::fs::fallocate(file, flags, range.start, range.end - range.start)
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// Writes with a single pwrite(2); a short write is an error.
    fn write(&self, model: &Model, node: Id, offset: u64, len: u64, tag: u8) -> Result<(), Errno> {
        let bytes = bytes_to_write(tag, offset, len);
        let written = os(self.writable(model, node)?.write_at(&bytes, offset))?;
        match written == bytes.len() {
            true => Ok(()),
            // An error number that no write fails with.
            false => Err(Errno::MSGSIZE),
        }
    }

    fn change_attributes(&self, model: &Model, call: &Call) -> Result<(), Errno> {
        match call {
            Call::Chmod(node, permissions) => {
                let permissions = Permissions::from_mode((*permissions).into());
                os(fs::set_permissions(self.path(model, *node), permissions))
            }
            Call::Chown { node, uid, gid } => {
                os(chown(self.path(model, *node), Some(*uid), Some(*gid)))
            }
            Call::Touch { node, atime, mtime } => {
                let at = |tv_sec: i64| Timespec { tv_sec, tv_nsec: 0 };
                let times = Timestamps {
                    last_access: at(*atime),
                    last_modification: at(*mtime),
                };
                let path = self.path(model, *node);
                rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
            }
            Call::SetFlags(node, wanted) => {
                let file = os(File::open(self.path(model, *node)))?;
                let there = rustix::fs::ioctl_getflags(&file)?;
                let others = InodeFlags::from_bits_retain(there.bits()) - Model::FLAGS;
                let all = others | *wanted;
                rustix::fs::ioctl_setflags(&file, IFlags::from_bits_retain(all.bits()))
            }
            Call::SetXattr {
                node,
                name,
                value,
                how,
            } => {
                let flags = match how {
                    SetXattr::Any => XattrFlags::empty(),
                    SetXattr::Create => XattrFlags::CREATE,
                    SetXattr::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::setxattr(self.path(model, *node), &name[..], value, flags)
            }
            Call::RemoveXattr(node, name) => {
                rustix::fs::removexattr(self.path(model, *node), &name[..])
            }
            Call::SetAcl(node, which, list) => {
                let name = match which {
                    Which::Access => "system.posix_acl_access",
                    Which::Default => "system.posix_acl_default",
                };
                let path = self.path(model, *node);
                match list {
                    Some(list) => {
                        rustix::fs::setxattr(path, name, &list.bytes(), XattrFlags::empty())
                    }
                    None => rustix::fs::removexattr(path, name),
                }
            }
            other => unreachable!("{other:?}"),
        }
    }
}

fn make(path: &Path, kind: &NewKind, owner: &Owner) -> Result<(), Errno> {
    let permissions = owner.permissions;
    let node = |file_type: FileType, device| {
        let file_type = match file_type {
            FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
            FileType::CharDevice => rustix::fs::FileType::CharacterDevice,
            FileType::Fifo => rustix::fs::FileType::Fifo,
            _ => rustix::fs::FileType::Socket,
        };
        rustix::fs::mknodat(CWD, path, file_type, mode(permissions), device)
    };
    match kind {
        NewKind::File => {
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true);
            os(options.mode(permissions.into()).open(path)).map(drop)
        }
        NewKind::Directory => os(DirBuilder::new().mode(permissions.into()).create(path)),
        NewKind::Symlink(target) => os(symlink(OsStr::from_bytes(target), path)),
        NewKind::Device(file_type, major, minor) => {
            node(*file_type, rustix::fs::makedev(*major, *minor))
        }
        NewKind::Endpoint(file_type) => node(*file_type, 0),
    }
}
