//! **Purpose.** What only block devices of the host have: their size, their queue's facts and
//! the discard command.
//!
//! **Not here.** Reads and writes, which are the same as for a file: [`crate::file`].
//!
//! **References.** `Documentation/ABI/stable/sysfs-block` for the files of the queue.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{major, minor};
use rustix::io::Errno;
use rustix::ioctl;

use crate::device::Hints;

/// `_IO(0x12, 119)`: tells the device that a range of bytes is not needed any more.
const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);

/// The size of an open block device in bytes.
pub(crate) fn len_bytes(mut device: &File) -> io::Result<u64> {
    device.seek(SeekFrom::End(0))
}

/// What the device says of itself. Facts it does not give keep their defaults.
pub(crate) fn hints(device: &File) -> io::Result<Hints> {
    let defaults = Hints::default();
    let number = device.metadata()?.rdev();
    let fact = |name: &str| queue_fact(number, name);
    Ok(Hints {
        logical_sector_bytes: rustix::fs::ioctl_blksszget(device)?,
        rotational: fact("rotational") == Some(1),
        max_segment_bytes: fact("max_sectors_kb")
            .and_then(|kib| u32::try_from(kib.saturating_mul(1024)).ok())
            .filter(|&bytes| bytes >= 4096)
            .unwrap_or(defaults.max_segment_bytes),
        discard: fact("discard_max_bytes").is_some_and(|bytes| bytes > 0),
        read_only: defaults.read_only,
    })
}

/// A number from the queue of the device, or for a partition from that of its disk.
fn queue_fact(number: u64, name: &str) -> Option<u64> {
    let directory = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let own = fs::read_to_string(format!("{directory}/queue/{name}"));
    let text = own.or_else(|_| fs::read_to_string(format!("{directory}/../queue/{name}")));
    text.ok()?.trim().parse().ok()
}

/// Gives the bytes in `range` back to the device. Both ends are multiples of its sector.
pub(crate) fn discard(fd: BorrowedFd<'_>, range: &Range<u64>) -> Result<(), Errno> {
    let argument = [range.start, range.end.saturating_sub(range.start)];
    // SAFETY: BLKDISCARD takes a pointer to two 64-bit numbers, start and length in bytes,
    // which it only reads; on any other kind of file it fails without touching memory.
    unsafe {
        let command = ioctl::Setter::<BLKDISCARD, [u64; 2]>::new(argument);
        ioctl::ioctl(fd, command)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
