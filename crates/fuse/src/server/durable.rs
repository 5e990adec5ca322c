//! **Purpose.** Makes a change durable before its call is answered, where something demands that.
//!
//! **Model.** A request changes inodes, names, or the superblock ([`Change`]). The change is synced
//! if one of these demands it:
//!
//! | demand | of |
//! |---|---|
//! | the mount's `sync` or `dirsync` | all changes, or those of names |
//! | `SYNC_FL` (`chattr +S`) of an inode that changes, `DIRSYNC_FL` (`chattr +D`) of a directory | that inode; its names |
//! | `O_SYNC` or `O_DSYNC` of a write through a descriptor with direct I/O ([`DIRECT_HANDLE`]) | that write |
//!
//! The flags are applied here and not in the library, where what is durable is the caller's choice.
//! A file whose writes the kernel caches is synced when these arrive.
//!
//! One of the inodes that an operation has changed is synced: its transaction has all changes of
//! the operation. The label is in no inode, so everything is synced for it.

use fourscore::Fs;
use fourscore_ondisk::inode::InodeFlags;

use super::Server;
use super::ioctls::{self, Changes};
use crate::abi::{CopyFileRangeIn, IoctlIn, OpenIn, RenameIn, WRITE_CACHE, WriteIn, opcode};
use crate::options::Durability;
use crate::reply::Errno;
use crate::request::Request;

/// The handle of a file that was opened with direct I/O by the server's choice. After a write
/// through it the kernel sends no FSYNC, whatever the descriptor's flags; after all others it does.
pub(super) const DIRECT_HANDLE: u64 = 1;

const O_TRUNC: u32 = 0o1000;
const O_DSYNC: u32 = 0o10_000;
/// The bit that `O_SYNC` has and `O_DSYNC` has not.
const O_SYNC_ONLY: u32 = 0o4_000_000;

/// What a request changes.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// The inode of a node.
    Inode(u64),
    /// Data of the node's file, with what the descriptor's flags demand for it.
    Data(u64, Demand),
    /// Names in one directory, or in two.
    Names(u64, u64),
    /// The superblock.
    Superblock,
}

/// What a descriptor's flags demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Nothing,
    Content,
    Everything,
}

impl Demand {
    fn of(write: &WriteIn) -> Self {
        if write.fh != DIRECT_HANDLE || write.write_flags & WRITE_CACHE != 0 {
            return Self::Nothing;
        }
        match (write.flags & O_DSYNC, write.flags & O_SYNC_ONLY) {
            (0, _) => Self::Nothing,
            (_, 0) => Self::Content,
            _ => Self::Everything,
        }
    }
}

impl Change {
    /// The change of a request; `None` for one that changes nothing to be made durable.
    fn of(request: &Request<'_>) -> Result<Option<Self>, Errno> {
        let (node, mut arguments) = (request.header.nodeid, request.arguments());
        Ok(Some(match request.header.opcode {
            opcode::RENAME | opcode::RENAME2 => {
                Self::Names(node, arguments.take::<RenameIn>()?.newdir)
            }
            opcode::SYMLINK..=opcode::LINK | opcode::CREATE => Self::Names(node, node),
            opcode::SETATTR | opcode::SETXATTR | opcode::REMOVEXATTR | opcode::FALLOCATE => {
                Self::Inode(node)
            }
            opcode::WRITE => Self::Data(node, Demand::of(&arguments.take()?)),
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                Self::Inode(arguments.take::<CopyFileRangeIn>()?.nodeid_out)
            }
            opcode::OPEN if arguments.take::<OpenIn>()?.flags & O_TRUNC != 0 => Self::Inode(node),
            opcode::IOCTL => match ioctls::changes(arguments.take::<IoctlIn>()?.cmd) {
                Changes::Inode => Self::Inode(node),
                Changes::Superblock => Self::Superblock,
                Changes::Nothing => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }

    fn durability(self) -> Durability {
        match self {
            Self::Names(..) => Durability::Names,
            Self::Inode(_) | Self::Data(..) | Self::Superblock => Durability::Everything,
        }
    }
}

impl Server<'_> {
    /// Makes the changes of an operation durable if that is demanded.
    pub(super) fn sync_if_wanted(&self, request: &Request<'_>) -> Result<(), Errno> {
        if self.is_read_only {
            return Ok(());
        }
        let Some(change) = Change::of(request)? else {
            return Ok(());
        };
        let is_demanded = change.durability() <= self.durability;
        let (node, sync): (_, fn(&Fs, _) -> _) = match change {
            Change::Superblock if is_demanded => return self.sync(),
            Change::Superblock => return Ok(()),
            Change::Inode(node) | Change::Names(node, _) | Change::Data(node, _)
                if is_demanded || self.flags_demand(change) =>
            {
                (node, Fs::fsync)
            }
            Change::Data(node, Demand::Everything) => (node, Fs::fsync),
            Change::Data(node, Demand::Content) => (node, Fs::fdatasync),
            Change::Data(_, Demand::Nothing) | Change::Inode(_) | Change::Names(..) => {
                return Ok(());
            }
        };
        Ok(sync(self.fs, self.nodes.inode(node)?)?)
    }

    /// Whether flags of the changed inodes demand that the change is durable. An inode that is gone
    /// by now demands nothing.
    fn flags_demand(&self, change: Change) -> bool {
        let has = |node: u64, flags: InodeFlags| {
            let stat = self.nodes.inode(node).ok().map(|inode| self.fs.stat(inode));
            stat.is_some_and(|stat| stat.is_ok_and(|stat| stat.flags.intersects(flags)))
        };
        let of_names = InodeFlags::SYNC_FL | InodeFlags::DIRSYNC_FL;
        match change {
            Change::Inode(node) | Change::Data(node, _) => has(node, InodeFlags::SYNC_FL),
            Change::Names(dir, other) => has(dir, of_names) || other != dir && has(other, of_names),
            Change::Superblock => false,
        }
    }
}
