//! **Purpose.** A block device as the only file of a mount. If a loop device is made of that file,
//! a file system on it, such as the kernel's, makes its requests to our block device.
//!
//! **Not here.** Recording the calls, and injecting errors: the device does that.
//!
//! **Model.** One directory with one file, which is as long as the device. The kernel caches none
//! of its pages (`FOPEN_DIRECT_IO`), so a read or a write of the file is one of the device, and
//! fsync is its flush. Writes to different ranges may be concurrent. Punching holes and zeroing
//! write zeroes. The directory cannot be listed; the file is found by its name.
//!
//! **Invariants.** A request is answered when the device has completed it. So a flush covers all
//! writes that were acknowledged before it was requested.

use std::io;
use std::ops::Range;

use fourscore_block::BlockDevice;

use crate::abi::{
    Attr, AttrOut, EntryOut, FallocateIn, InHeader, OpenOut, ROOT_ID, ReadIn, SetattrIn, StatfsOut,
    WriteIn, WriteOut, fattr, fopen, opcode,
};
use crate::negotiate::Granularity;
use crate::reply::{Errno, Reply};
use crate::request::{Arguments, Request};
use crate::serve::{Answered, Serve};
use crate::session::Session;

/// The name of the file.
pub const NAME: &str = "device";

/// The node of the file.
const NODE: u64 = ROOT_ID + 1;
const VALID_SECS: u64 = 24 * 60 * 60;
const BLOCK_BYTES: u32 = 4096;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
/// Writes that do not extend the file may be concurrent.
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
const ENOENT: Errno = Errno(libc::ENOENT);

/// Serves a mount until it is unmounted and the file is closed. Calls `ready` when the mount can be
/// used. Does not flush the device at the end.
///
/// # Errors
/// As [`Session::serve`].
pub fn serve(
    session: &Session,
    device: &dyn BlockDevice,
    ready: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    session.serve_with(
        |_| DeviceFile { device },
        Granularity::Nanoseconds,
        ready,
        &|_| (),
    )
}

struct DeviceFile<'d> {
    device: &'d dyn BlockDevice,
}

impl Serve for DeviceFile<'_> {
    fn answer(&self, request: &Request<'_>, reply: &mut Reply) -> Answered {
        reply.clear();
        let header = request.header;
        if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET) {
            return Answered::WithoutReply;
        }
        let result = self.handle(&header, request.arguments(), reply);
        reply.finish(header.unique, result);
        Answered::WithReply
    }

    fn undo_lookups(&self, _reply: &mut Reply) {}
}

impl DeviceFile<'_> {
    fn handle(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        match (header.opcode, header.nodeid) {
            (opcode::LOOKUP, ROOT_ID) if arguments.name()? == NAME.as_bytes() => {
                reply.push(&EntryOut {
                    nodeid: NODE,
                    entry_valid: VALID_SECS,
                    attr_valid: VALID_SECS,
                    attr: self.attr(NODE),
                    ..EntryOut::default()
                })
            }
            (opcode::LOOKUP, _) => Err(ENOENT),
            (opcode::GETATTR, node) => self.push_attributes(node, reply),
            (opcode::SETATTR, node) => {
                let wanted: SetattrIn = arguments.take()?;
                // The size cannot change; times and owners are not stored.
                match wanted.valid & fattr::SIZE {
                    0 => self.push_attributes(node, reply),
                    _ => Err(Errno::PERM),
                }
            }
            (opcode::OPEN, NODE) => reply.push(&OpenOut {
                open_flags: fopen::DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES,
                ..OpenOut::default()
            }),
            (opcode::OPENDIR, ROOT_ID) => reply.push(&OpenOut::default()),
            (opcode::READ, NODE) => self.read(&arguments.take()?, reply),
            (opcode::WRITE, NODE) => {
                let wanted: WriteIn = arguments.take()?;
                let bytes = arguments.bytes(wanted.size)?;
                self.device
                    .write_at(bytes, wanted.offset)
                    .map_err(|error| errno_of(&error))?;
                reply.push(&WriteOut {
                    size: wanted.size,
                    padding: 0,
                })
            }
            (opcode::FSYNC, NODE) => self.device.flush().map_err(|error| errno_of(&error)),
            (opcode::FALLOCATE, NODE) => self.zero(&arguments.take()?),
            (opcode::STATFS, _) => {
                let blocks = self.device.len_bytes() / u64::from(BLOCK_BYTES);
                reply.push(&StatfsOut {
                    blocks,
                    bsize: BLOCK_BYTES,
                    namelen: 255,
                    frsize: BLOCK_BYTES,
                    ..StatfsOut::default()
                })
            }
            (
                opcode::READDIR
                | opcode::READDIRPLUS
                | opcode::RELEASE
                | opcode::RELEASEDIR
                | opcode::FSYNCDIR
                | opcode::DESTROY,
                _,
            ) => Ok(()),
            _ => Err(Errno::NOSYS),
        }
    }

    fn attr(&self, node: u64) -> Attr {
        let (mode, nlink, size) = match node {
            ROOT_ID => (S_IFDIR | 0o700, 2, 0),
            _ => (S_IFREG | 0o600, 1, self.device.len_bytes()),
        };
        Attr {
            ino: node,
            size,
            blocks: size.div_ceil(512),
            mode,
            nlink,
            blksize: BLOCK_BYTES,
            ..Attr::default()
        }
    }

    fn push_attributes(&self, node: u64, reply: &mut Reply) -> Result<(), Errno> {
        reply.push(&AttrOut {
            attr_valid: VALID_SECS,
            attr: self.attr(node),
            ..AttrOut::default()
        })
    }

    /// Reads up to the end of the device.
    fn read(&self, wanted: &ReadIn, reply: &mut Reply) -> Result<(), Errno> {
        let left = self.device.len_bytes().saturating_sub(wanted.offset);
        let len = left.min(wanted.size.into());
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        if len > 0 {
            let space = reply.space(len)?;
            self.device
                .read_at(space, wanted.offset)
                .map_err(|error| errno_of(&error))?;
            reply.grow(len);
        }
        Ok(())
    }

    fn zero(&self, wanted: &FallocateIn) -> Result<(), Errno> {
        const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE.cast_unsigned();
        const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE.cast_unsigned();
        const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE.cast_unsigned();
        if !matches!(wanted.mode & !KEEP_SIZE, PUNCH_HOLE | ZERO_RANGE) {
            return Err(Errno::OPNOTSUPP);
        }
        let end = wanted.offset.checked_add(wanted.length);
        let end = end.filter(|&end| end <= self.device.len_bytes());
        let range: Range<u64> = wanted.offset..end.ok_or(Errno::INVAL)?;
        self.device
            .write_zeroes(range)
            .map_err(|error| errno_of(&error))
    }
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno)
}

#[cfg(test)]
mod tests {
    use fourscore_block::{Event, RamDevice, RecordingDevice};
    use fourscore_sync::Arc;
    use zerocopy::{FromBytes, Immutable, IntoBytes};

    use super::*;

    const LEN_BYTES: usize = 8192;

    /// Sends a request as the kernel does; returns the body of the reply.
    fn request(
        device: &RecordingDevice,
        opcode: u32,
        nodeid: u64,
        arguments: &(impl IntoBytes + Immutable),
        payload: &[u8],
    ) -> Result<Vec<u8>, i32> {
        let len = size_of::<InHeader>() + size_of_val(arguments) + payload.len();
        let header = InHeader {
            len: u32::try_from(len).expect("short"),
            opcode,
            nodeid,
            ..InHeader::default()
        };
        let bytes = [header.as_bytes(), arguments.as_bytes(), payload].concat();
        let request = Request::parse(&bytes).expect("a request");
        let mut reply = Reply::new(2 * LEN_BYTES);
        let answered = DeviceFile { device }.answer(&request, &mut reply);
        assert!(matches!(answered, Answered::WithReply));
        match reply.header().error {
            0 => Ok(reply.body().to_vec()),
            error => Err(-error),
        }
    }

    #[test]
    fn calls_of_the_file_are_calls_of_the_device() {
        let base = Arc::new(RamDevice::from_bytes(&[7; LEN_BYTES]));
        let device = RecordingDevice::new(base);
        let found = request(&device, opcode::LOOKUP, ROOT_ID, &(), b"device\0").expect("there");
        let (entry, _) = EntryOut::read_from_prefix(&found).expect("whole");
        assert_eq!((entry.nodeid, entry.attr.size), (NODE, 8192));
        assert_eq!(
            request(&device, opcode::LOOKUP, ROOT_ID, &(), b"other\0"),
            Err(libc::ENOENT)
        );
        let write = WriteIn {
            offset: 512,
            size: 4,
            ..WriteIn::default()
        };
        request(&device, opcode::WRITE, NODE, &write, b"four").expect("written");
        request(&device, opcode::FSYNC, NODE, &[0_u32; 4], b"").expect("flushed");
        let zero = |mode: i32, offset: u64, length: u64| {
            let wanted = FallocateIn {
                offset,
                length,
                mode: mode.cast_unsigned(),
                ..FallocateIn::default()
            };
            request(&device, opcode::FALLOCATE, NODE, &wanted, b"")
        };
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        zero(punch, 1024, 512).expect("zeroed");
        assert_eq!(zero(punch, 8192, 1), Err(libc::EINVAL));
        assert_eq!(zero(punch, u64::MAX, 2), Err(libc::EINVAL));
        assert_eq!(zero(0, 0, 512), Err(libc::EOPNOTSUPP));
        let read = ReadIn {
            offset: 514,
            size: 1 << 20,
            ..ReadIn::default()
        };
        let bytes = request(&device, opcode::READ, NODE, &read, b"").expect("read");
        assert_eq!(bytes.len(), LEN_BYTES - 514, "up to the end");
        assert_eq!((&bytes[..2], bytes[2]), (&b"ur"[..], 7));
        assert_eq!(bytes[1024 - 514..][..513], [&[0; 512][..], &[7]].concat());
        let shorter = SetattrIn {
            valid: fattr::SIZE,
            ..SetattrIn::default()
        };
        assert_eq!(
            request(&device, opcode::SETATTR, NODE, &shorter, b""),
            Err(libc::EPERM)
        );
        let events = device.events();
        let expected = [
            Event::Write {
                offset: 512,
                bytes: b"four"[..].into(),
                durable: fourscore_block::Durable::AfterFlush,
            },
            Event::Flush { covers: 1 },
            Event::WriteZeroes(1024..1536),
        ];
        assert_eq!(events, expected, "and nothing else");
    }
}
