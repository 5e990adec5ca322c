//! **Purpose.** A null file system: the baseline of benchmarks, which does as little as possible
//! for each request, over the same transport and kernel.
//!
//! **Model.** Names and attributes are in memory, in shards. A name is stored as a hash, so a
//! directory cannot be listed. File data is dropped, and reads return whatever the buffer holds.
//! Alternatively it is stored in one file, so that the cost of storing is included: each stretch of
//! [`STRETCH_BYTES`] of each file has a place there. Places of removed files are not used again.
//!
//! **Not here.** Checks that the kernel has made already.
//!
//! **Locking.** A shard's lock, one at a time.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{CachePadded, Mutex};

use crate::abi::{
    Attr, AttrOut, CreateIn, EntryOut, InHeader, LinkIn, MkdirIn, MknodIn, OpenOut, ROOT_ID,
    ReadIn, Rename2In, RenameIn, SetattrIn, StatfsOut, WriteIn, WriteOut, fattr, fopen, opcode,
};
use crate::negotiate::Granularity;
use crate::reply::{Errno, Reply};
use crate::request::{Arguments, Request};
use crate::serve::{Answered, Serve};
use crate::session::Session;

const SHARDS: usize = 256;
const VALID_SECS: u64 = 24 * 60 * 60;
const BLOCK_BYTES: u32 = 4096;
/// The length of a stretch of a file, which lies at one place of the file with all data.
const STRETCH_BYTES: u64 = 1 << 20;
/// The reported size: more blocks than a benchmark writes.
const BLOCKS: u64 = 1 << 30;

const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;

/// Serves a mount until it is unmounted. File data goes to the file `content`, or is dropped. Calls
/// `ready` when the mount can be used.
///
/// # Errors
/// As [`Session::serve`].
pub fn serve(
    session: &Session,
    content: Option<File>,
    ready: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    session.serve_with(
        |_| Null::new(content.map(Content::new)),
        Granularity::Nanoseconds,
        ready,
        &|_| (),
    )
}

type Shards<T> = Box<[CachePadded<Mutex<HashMap<u64, T>>>]>;

fn shards<T>() -> Shards<T> {
    let shards = (0..SHARDS).map(|_| CachePadded::new(Mutex::new(HashMap::new())));
    shards.collect()
}

fn shard<T>(shards: &Shards<T>, key: u64) -> &Mutex<HashMap<u64, T>> {
    &shards[usize::try_from(key % SHARDS as u64).unwrap_or_default()]
}

struct Null {
    /// Nodes, by the hashes of their directories and names.
    names: Shards<u64>,
    nodes: Shards<Attr>,
    hasher: RandomState,
    made: AtomicU64,
    content: Option<Content>,
}

/// The data of all files.
struct Content {
    file: File,
    /// The places of stretches, by the hashes of their nodes and numbers.
    places: Shards<u64>,
    /// The first place that no stretch has.
    end: AtomicU64,
    hasher: RandomState,
}

/// A part of a request's data that is in one stretch.
struct Part {
    place: u64,
    /// Its position in the data of the request.
    range: Range<usize>,
}

impl Content {
    fn new(file: File) -> Self {
        Self {
            file,
            places: shards(),
            end: AtomicU64::new(0),
            hasher: RandomState::new(),
        }
    }

    /// The parts of `len` bytes of a node from `offset` on. Stretches get their places here.
    fn parts(&self, node: u64, offset: u64, len: usize) -> impl Iterator<Item = Part> {
        let mut done = 0_usize;
        std::iter::from_fn(move || {
            let at = offset.checked_add(done as u64)?;
            let (stretch, inside) = (at / STRETCH_BYTES, at % STRETCH_BYTES);
            let most = usize::try_from(STRETCH_BYTES - inside).unwrap_or(usize::MAX);
            let range = done..len.min(done.saturating_add(most));
            done = range.end;
            (!range.is_empty()).then(|| Part {
                place: self.place(node, stretch) + inside,
                range,
            })
        })
    }

    fn place(&self, node: u64, stretch: u64) -> u64 {
        let key = self.hasher.hash_one((node, stretch));
        let mut places = shard(&self.places, key).lock();
        let new = || self.end.fetch_add(STRETCH_BYTES, Ordering::Relaxed);
        *places.entry(key).or_insert_with(new)
    }

    fn write(&self, node: u64, data: &[u8], offset: u64) -> io::Result<()> {
        for Part { place, range } in self.parts(node, offset, data.len()) {
            self.file.write_all_at(&data[range], place)?;
        }
        Ok(())
    }

    /// Reads what was written; bytes that were not are zeroes.
    fn read(&self, node: u64, space: &mut [u8], offset: u64) -> io::Result<()> {
        for Part { place, range } in self.parts(node, offset, space.len()) {
            let space = &mut space[range];
            let mut done = 0;
            while done < space.len() {
                match self.file.read_at(&mut space[done..], place + done as u64)? {
                    0 => break,
                    read => done += read,
                }
            }
            space[done..].fill(0);
        }
        Ok(())
    }
}

impl Serve for Null {
    fn answer(&self, request: &Request<'_>, reply: &mut Reply) -> Answered {
        reply.clear();
        if matches!(request.header.opcode, opcode::FORGET | opcode::BATCH_FORGET) {
            return Answered::WithoutReply;
        }
        let result = self.handle(&request.header, request.arguments(), reply);
        reply.finish(request.header.unique, result);
        Answered::WithReply
    }

    fn undo_lookups(&self, _reply: &mut Reply) {}
}

impl Null {
    fn new(content: Option<Content>) -> Self {
        let null = Self {
            names: shards(),
            nodes: shards(),
            hasher: RandomState::new(),
            made: AtomicU64::new(ROOT_ID),
            content,
        };
        let root = Attr {
            ino: ROOT_ID,
            mode: S_IFDIR | 0o755,
            nlink: 2,
            blksize: BLOCK_BYTES,
            ..Attr::default()
        };
        shard(&null.nodes, ROOT_ID).lock().insert(ROOT_ID, root);
        null
    }

    fn handle(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let node = header.nodeid;
        match header.opcode {
            opcode::LOOKUP => match self.found(node, arguments.name()?) {
                Some(node) => self.push_entry(node, reply),
                None => reply.push(&absent()),
            },
            opcode::GETATTR => self.push_attributes(node, reply),
            opcode::SETATTR => {
                self.change(node, &arguments.take()?)?;
                self.push_attributes(node, reply)
            }
            opcode::MKDIR => {
                let wanted: MkdirIn = arguments.take()?;
                self.make(header, arguments.name()?, S_IFDIR | wanted.mode, reply)
            }
            opcode::MKNOD => {
                let wanted: MknodIn = arguments.take()?;
                self.make(header, arguments.name()?, wanted.mode, reply)
            }
            opcode::SYMLINK => self.make(header, arguments.name()?, S_IFLNK | 0o777, reply),
            opcode::CREATE => {
                let wanted: CreateIn = arguments.take()?;
                self.make(header, arguments.name()?, wanted.mode, reply)?;
                reply.push(&opened(fopen::KEEP_CACHE))
            }
            opcode::LINK => {
                let wanted: LinkIn = arguments.take()?;
                self.name(node, arguments.name()?, wanted.oldnodeid);
                self.push_entry(wanted.oldnodeid, reply)
            }
            opcode::RENAME => {
                let wanted: RenameIn = arguments.take()?;
                self.rename(node, arguments.name()?, wanted.newdir, arguments.name()?)
            }
            opcode::RENAME2 => {
                let wanted: Rename2In = arguments.take()?;
                self.rename(node, arguments.name()?, wanted.newdir, arguments.name()?)
            }
            opcode::UNLINK | opcode::RMDIR => self.unname(node, arguments.name()?).map(drop),
            opcode::OPEN => reply.push(&opened(fopen::KEEP_CACHE)),
            opcode::OPENDIR => reply.push(&opened(fopen::KEEP_CACHE | fopen::CACHE_DIR)),
            opcode::READ => self.read(node, &arguments.take()?, reply),
            opcode::WRITE => {
                let wanted: WriteIn = arguments.take()?;
                let data = arguments.bytes(wanted.size)?;
                self.write(node, &wanted, data, reply)
            }
            opcode::STATFS => reply.push(&StatfsOut {
                blocks: BLOCKS,
                bfree: BLOCKS,
                bavail: BLOCKS,
                bsize: BLOCK_BYTES,
                namelen: 255,
                frsize: BLOCK_BYTES,
                ..StatfsOut::default()
            }),
            // No attributes; after `ENOSYS` the kernel would send no such requests any more.
            opcode::GETXATTR | opcode::REMOVEXATTR => Err(Errno::NODATA),
            opcode::READDIR | opcode::READDIRPLUS | opcode::SETXATTR => Ok(()),
            opcode::RELEASE | opcode::RELEASEDIR | opcode::FSYNC | opcode::FSYNCDIR => Ok(()),
            opcode::FALLOCATE | opcode::DESTROY => Ok(()),
            _ => Err(Errno::NOSYS),
        }
    }

    fn key(&self, dir: u64, name: &[u8]) -> u64 {
        self.hasher.hash_one((dir, name))
    }

    fn found(&self, dir: u64, name: &[u8]) -> Option<u64> {
        let key = self.key(dir, name);
        shard(&self.names, key).lock().get(&key).copied()
    }

    fn name(&self, dir: u64, name: &[u8], node: u64) {
        let key = self.key(dir, name);
        shard(&self.names, key).lock().insert(key, node);
    }

    fn unname(&self, dir: u64, name: &[u8]) -> Result<u64, Errno> {
        let key = self.key(dir, name);
        let node = shard(&self.names, key).lock().remove(&key);
        node.ok_or(Errno::STALE)
    }

    fn rename(&self, dir: u64, name: &[u8], to: u64, new: &[u8]) -> Result<(), Errno> {
        let node = self.unname(dir, name)?;
        self.name(to, new, node);
        Ok(())
    }

    fn make(
        &self,
        header: &InHeader,
        name: &[u8],
        mode: u32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let node = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let (seconds, nanoseconds) = now();
        let attr = Attr {
            ino: node,
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanoseconds,
            mtimensec: nanoseconds,
            ctimensec: nanoseconds,
            mode,
            nlink: 1,
            uid: header.uid,
            gid: header.gid,
            blksize: BLOCK_BYTES,
            ..Attr::default()
        };
        shard(&self.nodes, node).lock().insert(node, attr);
        self.name(header.nodeid, name, node);
        self.push_entry(node, reply)
    }

    fn attr(&self, node: u64) -> Result<Attr, Errno> {
        let attr = shard(&self.nodes, node).lock().get(&node).copied();
        attr.ok_or(Errno::STALE)
    }

    fn push_entry(&self, node: u64, reply: &mut Reply) -> Result<(), Errno> {
        reply.push(&EntryOut {
            nodeid: node,
            entry_valid: VALID_SECS,
            attr_valid: VALID_SECS,
            attr: self.attr(node)?,
            ..EntryOut::default()
        })
    }

    fn push_attributes(&self, node: u64, reply: &mut Reply) -> Result<(), Errno> {
        reply.push(&AttrOut {
            attr_valid: VALID_SECS,
            attr: self.attr(node)?,
            ..AttrOut::default()
        })
    }

    fn change(&self, node: u64, wanted: &SetattrIn) -> Result<(), Errno> {
        let mut nodes = shard(&self.nodes, node).lock();
        let attr = nodes.get_mut(&node).ok_or(Errno::STALE)?;
        let has = |field: u32| wanted.valid & field != 0;
        if has(fattr::MODE) {
            attr.mode = wanted.mode;
        }
        if has(fattr::UID) {
            attr.uid = wanted.uid;
        }
        if has(fattr::GID) {
            attr.gid = wanted.gid;
        }
        if has(fattr::SIZE) {
            attr.size = wanted.size;
        }
        if has(fattr::MTIME) {
            (attr.mtime, attr.mtimensec) = (wanted.mtime, wanted.mtimensec);
        }
        Ok(())
    }

    fn read(&self, node: u64, wanted: &ReadIn, reply: &mut Reply) -> Result<(), Errno> {
        let left = self.attr(node)?.size.saturating_sub(wanted.offset);
        let len = left.min(wanted.size.into());
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let space = reply.space(len)?;
        if let Some(content) = &self.content {
            let read = content.read(node, space, wanted.offset);
            read.map_err(|_| Errno::IO)?;
        }
        reply.grow(len);
        Ok(())
    }

    fn write(
        &self,
        node: u64,
        wanted: &WriteIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        if let Some(content) = &self.content {
            let written = content.write(node, data, wanted.offset);
            written.map_err(|_| Errno::IO)?;
        }
        let end = wanted.offset.saturating_add(wanted.size.into());
        let mut nodes = shard(&self.nodes, node).lock();
        let attr = nodes.get_mut(&node).ok_or(Errno::STALE)?;
        attr.size = attr.size.max(end);
        drop(nodes);
        reply.push(&WriteOut {
            size: wanted.size,
            padding: 0,
        })
    }
}

/// The time as of the last clock tick, in seconds and nanoseconds. New files have it: if they had
/// other times, the kernel would send a SETATTR for the first write to each.
fn now() -> (u64, u32) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
    (now.tv_sec.cast_unsigned(), nanoseconds)
}

fn absent() -> EntryOut {
    EntryOut {
        entry_valid: VALID_SECS,
        ..EntryOut::default()
    }
}

fn opened(open_flags: u32) -> OpenOut {
    OpenOut {
        open_flags,
        ..OpenOut::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_keeps_its_data() {
        let file = tempfile::tempfile().expect("a file");
        let content = Content::new(file);
        let offset = STRETCH_BYTES - 3;
        content.write(2, b"across", offset).expect("written");
        content.write(3, b"other", 0).expect("written");
        let mut read = [1; 8];
        content.read(2, &mut read, offset - 1).expect("read");
        assert_eq!(&read, b"\0across\0");
        content.read(3, &mut read, 0).expect("read");
        assert_eq!(&read, b"other\0\0\0");
        content.read(4, &mut read, 0).expect("read");
        assert_eq!(read, [0; 8]);
    }
}
