//! **Purpose.** The server of a file system: translates each request into one call of the library,
//! and its result into a reply.
//!
//! **Not here.** The transport of requests; tests call this module directly.
//!
//! **Model.** One request, one call, one reply. `ENOSYS` is the reply to operations that Linux then
//! does by itself without asking again: FLUSH (it has written dirty pages by then), ACCESS (it
//! checks permissions itself), INTERRUPT (calls wait for the disk only), POLL, BMAP, locks. LSEEK
//! gets `ENOSYS` too if there is a writeback cache, since the kernel does not write dirty pages
//! before it asks for data or holes: the file then counts as having no holes.
//!
//! | module | operations |
//! |---|---|
//! | `attributes` | GETATTR, SETATTR, STATX, STATFS, entries of lookups |
//! | `names` | LOOKUP, creating, linking, renaming and removing names |
//! | `directories` | OPENDIR, READDIR, READDIRPLUS, RELEASEDIR |
//! | `content` | OPEN, RELEASE, READ, WRITE, FSYNC, FALLOCATE, LSEEK, COPY_FILE_RANGE, READLINK |
//! | `xattrs` | extended attributes |
//! | `ioctls` | flags, projects, generations, label, trim, growing |
//! | `durable` | after an operation: what has to be durable before the reply |

mod attributes;
mod content;
mod directories;
mod durable;
mod ioctls;
mod names;
#[cfg(test)]
mod tests;
mod xattrs;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use fourscore::{Caller, Capabilities, Fs, InodeNr, Privileges, exempt_from_quota};
use fourscore_ondisk::features::Incompat;

use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Mutex, thread};

use crate::abi::{BatchForgetIn, ForgetIn, ForgetOne, InHeader, WRITE_CACHE, WriteIn, opcode};
use crate::device;
use crate::latencies::Latencies;
use crate::listing::Listings;
use crate::negotiate::Agreed;
use crate::nodes::Nodes;
use crate::options::{Durability, SessionOptions};
use crate::reply::{Errno, Reply};
use crate::request::{Arguments, Request};
use crate::serve::{Answered, Serve};

/// How long names and attributes are valid in the kernel's cache, in seconds: practically for ever,
/// because only the kernel changes them.
const VALID_SECS: u64 = 24 * 60 * 60;

/// The state shared by all workers of a mount.
#[derive(Debug)]
pub(crate) struct Server<'f> {
    fs: &'f Fs,
    /// For notices to the kernel; `None` in tests.
    device: Option<&'f OwnedFd>,
    agreed: Agreed,
    is_read_only: bool,
    durability: Durability,
    latencies: &'f Latencies,
    /// Whether DESTROY has been received. Requests that still come, such as read-ahead, must not
    /// wait for the frozen file system.
    has_ended: AtomicBool,
    /// Whether some directories may be case-insensitive.
    folds_case: bool,
    nodes: Nodes<'f>,
    listings: Listings,
    /// Held by ioctls that check an inode's flags or generation and then change it: before Linux
    /// 5.13 the kernel does not lock the inode for them.
    ioctl_changes: Mutex<()>,
}

/// A request whose node was found.
#[derive(Clone, Debug)]
struct Call<'r> {
    header: InHeader,
    inode: InodeNr,
    arguments: Arguments<'r>,
}

/// Whether a request is exempt from limits of quota: one of the super-user. Write-back of pages
/// that were changed through mmap(2) names no user, and is not.
fn is_exempt(request: &Request<'_>) -> bool {
    let is_write_back = request.header.opcode == opcode::WRITE
        && request
            .arguments()
            .take::<WriteIn>()
            .is_ok_and(|wanted| wanted.write_flags & WRITE_CACHE != 0);
    request.header.uid == 0 && !is_write_back
}

impl Serve for Server<'_> {
    fn answer(&self, request: &Request<'_>, reply: &mut Reply) -> Answered {
        let start = Instant::now();
        let answered = self.reply_to(request, reply);
        self.latencies.note(request.header.opcode, start);
        answered
    }

    /// The kernel sends no FORGET for inodes of a reply that did not arrive.
    fn undo_lookups(&self, reply: &mut Reply) {
        for inode in reply.lookups.drain(..) {
            self.nodes.forget(inode, 1);
        }
    }
}

impl<'f> Server<'f> {
    pub(crate) fn new(
        fs: &'f Fs,
        device: Option<&'f OwnedFd>,
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
            ioctl_changes: Mutex::new(()),
        }
    }

    fn reply_to(&self, request: &Request<'_>, reply: &mut Reply) -> Answered {
        reply.clear();
        match request.header.opcode {
            opcode::FORGET => self.forget(request),
            opcode::BATCH_FORGET => self.batch_forget(request),
            opcode::DESTROY if !self.has_ended.swap(true, Ordering::Relaxed) => {
                reply.finish(request.header.unique, Ok(()));
                return Answered::Farewell(self.destroy());
            }
            _ => {
                let result = match is_exempt(request) {
                    true => exempt_from_quota(|| self.handle(request, reply)),
                    false => self.handle(request, reply),
                };
                let result = result.and_then(|()| self.sync_if_wanted(request));
                if result.is_err() {
                    self.undo_lookups(reply);
                }
                reply.finish(request.header.unique, result);
                return Answered::WithReply;
            }
        }
        Answered::WithoutReply
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let header = request.header;
        if self.has_ended.load(Ordering::Relaxed) {
            return Err(Errno::IO);
        }
        match header.opcode {
            // These are about the whole file system, and may come without a node.
            opcode::STATFS => return self.statfs(header.nodeid, reply),
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
            opcode::RELEASE => self.release(call),
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

    /// DESTROY: writes everything to the device, freezes the file system, and unlocks the image:
    /// when umount(8) returns, other programs can use it, although the server still exits.
    fn destroy(&self) -> fourscore::Result<()> {
        self.nodes.forget_all();
        if !self.is_read_only {
            self.freeze()?;
        }
        self.fs.device().unlock();
        Ok(())
    }

    /// Freezes the file system. A growth keeps changes out in the same way, one piece at a time:
    /// this waits for the end of a piece, and the growth cannot begin the next one.
    fn freeze(&self) -> fourscore::Result<()> {
        const POLL: Duration = Duration::from_millis(1);
        loop {
            match self.fs.freeze() {
                Err(fourscore::Error::Busy) => thread::sleep(POLL),
                done => return done,
            }
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

    /// The caller of a write that the kernel has permitted; it matters only for whether set-id bits
    /// stay. The kernel does not pass capabilities; root is taken to have all.
    fn writer_of(header: &InHeader) -> Caller<'static> {
        match header.uid {
            0 => Caller::ROOT,
            _ => Self::without_set_id(header),
        }
    }

    /// The caller of a request of which the kernel may have checked nothing.
    fn unchecked_caller(header: &InHeader) -> Caller<'static> {
        match header.uid {
            0 => Caller::ROOT,
            uid => Caller {
                uid,
                gid: header.gid,
                groups: &[],
                capabilities: Capabilities::empty(),
            },
        }
    }

    /// A caller that may do everything except keep set-id bits. The kernel passes only the first of
    /// its groups.
    fn without_set_id(header: &InHeader) -> Caller<'static> {
        Caller {
            uid: 0,
            gid: header.gid,
            groups: &[],
            capabilities: Capabilities::all() - Capabilities::FSETID,
        }
    }

    /// Clears set-id bits and capabilities of a file that `writer` changes. The kernel keeps the
    /// old mode in its cache, so that is invalidated.
    fn clear_privileges(&self, inode: InodeNr, writer: &Caller<'_>) -> Result<(), Errno> {
        let privileges = self.fs.remove_privileges(inode, writer)?;
        self.note_privileges(inode, privileges);
        Ok(())
    }

    /// Invalidates the kernel's cached mode of a file that has lost privileges.
    fn note_privileges(&self, inode: InodeNr, privileges: Privileges) {
        if privileges == Privileges::Taken {
            self.invalidate_attributes(inode);
        }
    }

    /// Invalidates the attributes of an inode in the kernel's cache, after a change that the kernel
    /// does not know of.
    fn invalidate_attributes(&self, inode: InodeNr) {
        if let Some(device) = self.device {
            device::invalidate_attributes(device, Nodes::node(inode));
        }
    }
}
