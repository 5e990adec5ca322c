//! **Purpose.** Operations that only block devices of the host have: their size, the properties of
//! their queue, and the discard command.
//!
//! **Not here.** Reads and writes, which are the same as for a file: `file`.
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

/// `_IO(0x12, 119)`: discards a range of bytes.
const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);

/// The size of an open block device in bytes.
pub(crate) fn len_bytes(mut device: &File) -> io::Result<u64> {
    device.seek(SeekFrom::End(0))
}

/// The properties that the device reports. Others have their defaults.
pub(crate) fn hints(device: &File) -> io::Result<Hints> {
    let defaults = Hints::default();
    let number = device.metadata()?.rdev();
    let attribute = |name: &str| queue_attribute(number, name);
    Ok(Hints {
        logical_sector_bytes: rustix::fs::ioctl_blksszget(device)?,
        rotational: attribute("rotational") == Some(1),
        max_segment_bytes: attribute("max_sectors_kb")
            .and_then(|kib| u32::try_from(kib.saturating_mul(1024)).ok())
            .filter(|&bytes| bytes >= 4096)
            .unwrap_or(defaults.max_segment_bytes),
        discard: attribute("discard_max_bytes").is_some_and(|bytes| bytes > 0),
        read_only: defaults.read_only,
    })
}

/// A numeric attribute of the queue of the device, or for a partition of that of its disk.
fn queue_attribute(number: u64, name: &str) -> Option<u64> {
    let directory = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let own = fs::read_to_string(format!("{directory}/queue/{name}"));
    let text = own.or_else(|_| fs::read_to_string(format!("{directory}/../queue/{name}")));
    text.ok()?.trim().parse().ok()
}

/// Discards the bytes in `range`. Both ends are multiples of the device's sector size.
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
