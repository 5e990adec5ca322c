//! **Purpose.** Blocks of one file of the host that become blocks of another without being copied
//! (reflinks).
//!
//! **Model.** `FICLONERANGE` of whole host blocks. Whether the host can do it shows when it is
//! asked: both files on one file system that shares blocks (xfs, btrfs, bcachefs), and places that
//! are multiples of its block size.
//!
//! **References.** ioctl_ficlonerange(2).

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::ioctl;

/// `_IOW(0x94, 13, struct file_clone_range)`.
const FICLONERANGE: ioctl::Opcode = ioctl::opcode::write::<CloneRange>(0x94, 13);

/// `struct file_clone_range`.
#[repr(C)]
struct CloneRange {
    src_fd: i64,
    src_offset: u64,
    src_length: u64,
    dest_offset: u64,
}

/// Has `len_bytes` bytes at `to` of a file share the blocks of `source` at `from`. `false`, with
/// nothing changed, where the host does not do this; a length of 0 is never shared.
pub(crate) fn share(
    file: BorrowedFd<'_>,
    to: u64,
    source: BorrowedFd<'_>,
    from: u64,
    len_bytes: u64,
) -> bool {
    if len_bytes == 0 {
        // The host would take it as "up to the end".
        return false;
    }
    let range = CloneRange {
        src_fd: source.as_raw_fd().into(),
        src_offset: from,
        src_length: len_bytes,
        dest_offset: to,
    };
    // SAFETY: FICLONERANGE takes a pointer to this structure, which it only reads; on any other
    // kind of file it fails without touching memory.
    unsafe {
        let command = ioctl::Setter::<FICLONERANGE, CloneRange>::new(range);
        ioctl::ioctl(file, command).is_ok()
    }
}
