//! **Purpose.** Clones a descriptor of `/dev/fuse`: opens a second one for the same mount.
//!
//! **References.** `FUSE_DEV_IOC_CLONE` of `linux/fuse.h`.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

/// The group of the device's ioctls.
const FUSE_DEV_IOC_MAGIC: u8 = 229;

/// Opens `/dev/fuse` once more for the mount of `session`. A request goes to the descriptor that
/// reads first, and its reply must be written to the same one.
///
/// # Errors
/// Those of opening the device, and of kernels that cannot clone.
pub(crate) fn clone_of(session: &impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let new = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let number = session.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: by its number the call reads a u32 behind the pointer, and gets one that lives
    // through the call. It changes only the new descriptor, which this function owns.
    unsafe {
        let request = Setter::<{ opcode::read::<u32>(FUSE_DEV_IOC_MAGIC, 0) }, u32>::new(number);
        ioctl(&new, request)?;
    }
    Ok(new)
}
