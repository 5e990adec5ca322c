//! **Purpose.** A descriptor of `/dev/fuse` that belongs to a mount made with another one.
//!
//! **References.** `FUSE_DEV_IOC_CLONE` of `linux/fuse.h`.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

/// The group of the device's ioctls.
const FUSE_DEV_IOC_MAGIC: u8 = 229;

/// Opens `/dev/fuse` anew for the mount of `session`. Requests are handed out to whichever
/// descriptor asks first, and a reply goes back through the one that the request came from.
///
/// # Errors
/// Those of opening the device, and of kernels that do not clone.
pub(crate) fn clone_of(session: &impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let new = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let number = session.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: the number of the call says that it reads a u32 behind the pointer, and gets one that
    // lives through the call. It changes nothing but the new descriptor, which is ours.
    unsafe {
        let request = Setter::<{ opcode::read::<u32>(FUSE_DEV_IOC_MAGIC, 0) }, u32>::new(number);
        ioctl(&new, request)?;
    }
    Ok(new)
}
