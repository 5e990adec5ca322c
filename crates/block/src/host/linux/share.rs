//! **Purpose.** Reflinks: makes a file of the host share blocks of another one instead of copying
//! them.
//!
//! **Model.** `FICLONERANGE` of whole host blocks. It succeeds only if both files are on one file
//! system with reflinks (xfs, btrfs, bcachefs), and the offsets are multiples of its block size;
//! this is found out by trying.
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

/// Makes `len_bytes` bytes at `to` of a file share the blocks of `source` at `from`. Returns
/// `false` with nothing changed if the host cannot do this, or if the length is 0.
pub(crate) fn share(
    file: BorrowedFd<'_>,
    to: u64,
    source: BorrowedFd<'_>,
    from: u64,
    len_bytes: u64,
) -> bool {
    if len_bytes == 0 {
        // The host would interpret 0 as "up to the end".
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
