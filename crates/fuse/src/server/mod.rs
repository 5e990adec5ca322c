//! **Purpose.** From a request to one call of the library, and from what that gives to a reply.
//!
//! **Not here.** Where requests come from: a test feeds them as well as a kernel does.
//!
//! **Model.** One request, one call, one reply. What Linux then does by itself is answered with
//! `ENOSYS`, once: FLUSH (it has written everything back by then), ACCESS (it asks for permissions
//! itself), INTERRUPT (no call waits for anything but the disk), POLL, BMAP, locks; and LSEEK with
//! the writeback cache, since the kernel does not hand on what it holds before it asks where data
//! is: a file then counts as having no holes.
//!
//! | module | operations |
//! |---|---|
//! | `attributes` | GETATTR, SETATTR, STATX, STATFS, and how an inode is told |
//! | `names` | LOOKUP, making, linking, renaming and removing names |
//! | `directories` | OPENDIR, READDIR, READDIRPLUS, RELEASEDIR |
//! | `content` | OPEN, READ, WRITE, FSYNC, FALLOCATE, LSEEK, COPY_FILE_RANGE, READLINK |
//! | `xattrs` | extended attributes |
//! | `ioctls` | flags, projects, generations, label, trim |

mod attributes;
mod content;
mod directories;
mod ioctls;
mod names;
#[cfg(test)]
mod tests;
mod xattrs;

use std::os::fd::OwnedFd;
use std::time::Instant;

use fourscore::{Caller, Capabilities, Fs, InodeNr, Privileges};
use fourscore_ondisk::features::Incompat;

use fourscore_sync::atomic::{AtomicBool, Ordering};

use crate::abi::{BatchForgetIn, ForgetIn, ForgetOne, InHeader, opcode};
use crate::device;
use crate::latencies::Latencies;
use crate::listing::Listings;
use crate::negotiate::Agreed;
use crate::nodes::Nodes;
use crate::options::{Durability, SessionOptions};
use crate::reply::{Errno, Reply};
use crate::request::{Arguments, Request};
use crate::serve::{Answered, Serve};

/// How long what the kernel was told holds, in seconds: until it changes it itself.
const VALID_SECS: u64 = 24 * 60 * 60;

/// What all workers of a mount share.
#[derive(Debug)]
pub(crate) struct Server<'f> {
    fs: &'f Fs,
    /// Where the kernel is told of what it does not ask for; none in a test.
    device: Option<&'f OwnedFd>,
    agreed: Agreed,
    is_read_only: bool,
    durability: Durability,
    latencies: &'f Latencies,
    /// Whether the kernel has said that nothing more comes. What comes all the same, reading ahead
    /// for nobody, must not wait for a file system that is frozen.
    has_ended: AtomicBool,
    /// Whether some directories take names of other cases for the same.
    folds_case: bool,
    nodes: Nodes<'f>,
    listings: Listings,
}

/// A request whose node was found.
#[derive(Clone, Debug)]
struct Call<'r> {
    header: InHeader,
    inode: InodeNr,
    arguments: Arguments<'r>,
}

impl Serve for Server<'_> {
    fn answer(&self, request: &Request<'_>, reply: &mut Reply) -> Answered {
        let start = Instant::now();
        let answered = self.answered(request, reply);
        self.latencies.note(request.header.opcode, start);
        answered
    }

    /// The kernel will not forget what a reply told it that did not arrive.
    fn take_back(&self, reply: &mut Reply) {
        for inode in reply.counted.drain(..) {
            self.nodes.forget(inode, 1);
        }
    }
}

impl<'f> Server<'f> {
    pub(crate) fn new(
        (fs, device): (&'f Fs, Option<&'f OwnedFd>),
        agreed: Agreed,
        options: &SessionOptions,
        latencies: &'f Latencies,
    ) -> Self {
        let incompat = fs.superblock().features().incompat;
        Self {
            fs,
            device,
            agreed,
            is_read_only: options.is_read_only,
            durability: options.durability,
            latencies,
            has_ended: AtomicBool::new(false),
            folds_case: incompat.contains(Incompat::CASEFOLD),
            nodes: Nodes::new(fs),
            listings: Listings::new(),
        }
    }

    fn answered(&self, request: &Request<'_>, reply: &mut Reply) -> Answered {
        reply.clear();
        match request.header.opcode {
            opcode::FORGET => self.forget(request),
            opcode::BATCH_FORGET => self.batch_forget(request),
            opcode::DESTROY if !self.has_ended.swap(true, Ordering::Relaxed) => {
                reply.finish(request.header.unique, Ok(()));
                return Answered::Farewell(self.end());
            }
            _ => {
                let result = self.done(request, reply);
                let result = result.and_then(|()| self.made_durable(request.header.opcode));
                if result.is_err() {
                    self.take_back(reply);
                }
                reply.finish(request.header.unique, result);
                return Answered::WithReply;
            }
        }
        Answered::WithoutReply
    }

    fn done(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let header = request.header;
        if self.has_ended.load(Ordering::Relaxed) {
            return Err(Errno::IO);
        }
        match header.opcode {
            // These are about the whole file system, and may come without a node.
            opcode::STATFS => return self.statfs(reply),
            opcode::SYNCFS => return self.sync(),
            opcode::INTERRUPT => return Err(Errno::NOSYS),
            _ => {}
        }
        let call = Call {
            header,
            inode: self.nodes.inode(header.nodeid)?,
            arguments: request.arguments(),
        };
        match header.opcode {
            opcode::LOOKUP => self.lookup(call, reply),
            opcode::GETATTR => self.getattr(&call, reply),
            opcode::SETATTR => self.setattr(call, reply),
            opcode::STATX => self.statx(call, reply),
            opcode::READLINK => self.readlink(&call, reply),
            opcode::SYMLINK => self.symlink(call, reply),
            opcode::MKNOD => self.mknod(call, reply),
            opcode::MKDIR => self.mkdir(call, reply),
            opcode::UNLINK => self.unlink(call),
            opcode::RMDIR => self.rmdir(call),
            opcode::RENAME => self.rename(call),
            opcode::RENAME2 => self.rename2(call),
            opcode::LINK => self.link(call, reply),
            opcode::OPEN => self.open(call, reply),
            opcode::CREATE => self.create(call, reply),
            opcode::TMPFILE => self.tmpfile(call, reply),
            opcode::READ => self.read(call, reply),
            opcode::WRITE => self.write(call, reply),
            // Nothing is kept for an open file.
            opcode::RELEASE => Ok(()),
            opcode::FSYNC | opcode::FSYNCDIR => self.fsync(call),
            opcode::SETXATTR => self.setxattr(call),
            opcode::GETXATTR => self.getxattr(call, reply),
            opcode::LISTXATTR => self.listxattr(call, reply),
            opcode::REMOVEXATTR => self.removexattr(call),
            opcode::OPENDIR => self.opendir(&call, reply),
            opcode::READDIR => self.readdir(call, reply),
            opcode::READDIRPLUS => self.readdirplus(call, reply),
            opcode::RELEASEDIR => self.releasedir(call),
            opcode::IOCTL => self.ioctl(call, reply),
            opcode::FALLOCATE => self.fallocate(call),
            opcode::LSEEK => self.lseek(call, reply),
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                self.copy_file_range(call, reply)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn sync(&self) -> Result<(), Errno> {
        match self.is_read_only {
            true => Ok(()),
            false => Ok(self.fs.sync()?),
        }
    }

    /// Makes durable what a call has changed, where the mount is to do that.
    fn made_durable(&self, done: u32) -> Result<(), Errno> {
        let changes = match done {
            opcode::SYMLINK..=opcode::LINK | opcode::CREATE | opcode::RENAME2 => Durability::Names,
            opcode::SETATTR
            | opcode::WRITE
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
            | opcode::FALLOCATE
            | opcode::COPY_FILE_RANGE
            | opcode::COPY_FILE_RANGE_64
            | opcode::OPEN
            | opcode::TMPFILE => Durability::Everything,
            _ => return Ok(()),
        };
        match changes <= self.durability {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// Brings everything to its place, for good.
    fn end(&self) -> fourscore::Result<()> {
        self.nodes.forget_all();
        match self.is_read_only {
            true => Ok(()),
            false => self.fs.freeze(),
        }
    }

    fn forget(&self, request: &Request<'_>) {
        let inode = self.nodes.inode(request.header.nodeid);
        let forgotten: Result<ForgetIn, Errno> = request.arguments().take();
        if let (Ok(inode), Ok(forgotten)) = (inode, forgotten) {
            self.nodes.forget(inode, forgotten.nlookup);
        }
    }

    fn batch_forget(&self, request: &Request<'_>) {
        let mut arguments = request.arguments();
        let Ok(batch) = arguments.take::<BatchForgetIn>() else {
            return;
        };
        for _ in 0..batch.count {
            let Ok(one) = arguments.take::<ForgetOne>() else {
                return;
            };
            if let Ok(inode) = self.nodes.inode(one.nodeid) {
                self.nodes.forget(inode, one.nlookup);
            }
        }
    }

    /// Whoever asks, when the kernel has said that he may: what is left to decide is which set-id
    /// bits stay. The kernel does not tell capabilities; those of root are root's.
    fn writer_of(header: &InHeader) -> Caller<'static> {
        match header.uid {
            0 => Caller::ROOT,
            _ => Self::without_set_id(header),
        }
    }

    /// Whoever asks, as somebody who may do everything but keep set-id bits. Of his groups the
    /// kernel tells the first.
    fn without_set_id(header: &InHeader) -> Caller<'static> {
        Caller {
            uid: 0,
            gid: header.gid,
            groups: &[],
            capabilities: Capabilities::all() - Capabilities::FSETID,
        }
    }

    /// Takes away what a file must not keep when `writer` changes it. The kernel, which asks for
    /// that, goes on believing in the mode that it knows: it is told to ask for it anew.
    fn take_privileges(&self, inode: InodeNr, writer: &Caller<'_>) -> Result<(), Errno> {
        let privileges = self.fs.remove_privileges(inode, writer)?;
        if privileges == Privileges::Taken {
            self.have_asked_anew(inode);
        }
        Ok(())
    }

    /// Has the kernel ask for what an inode says of itself, which has changed without its doing.
    fn have_asked_anew(&self, inode: InodeNr) {
        if let Some(device) = self.device {
            device::forget_attributes(device, Nodes::node(inode));
        }
    }
}
