//! **Purpose.** A block device that a mount stands on, so that unmounting waits for the server.
//!
//! **Model.** Linux tells a FUSE server that it was unmounted, and waits until the server has heard
//! it, only where the file system lies on a block device (type `fuseblk`). It does nothing else
//! with that device. So a mount made by root lies on a loop device of its own, on one page of
//! memory that nobody reads, and `umount` returns when everything is in its place, as with the
//! kernel's ext4. The page is named after the image, which `losetup` shows.
//!
//! The loop device goes with the mount (`LO_FLAGS_AUTOCLEAR`), also when the server was killed.
//!
//! The kernel takes the source of such a mount for both: the path at which it looks for the device,
//! once, and what `/proc/mounts` says from then on, by which umount(8), findmnt(8) and `mount -a`
//! find the mount. The latter is to be the image, at whose path there is no device. So the mount is
//! made by a thread of its own, whose root directory is an empty file system in memory that has a
//! node of the loop device at that path. The tree of the host is neither changed nor hidden, and
//! what the thread saw goes when it ends.
//!
//! **Not here.** The image: it may be a file, a partition or a device with an exclusive user, and
//! is none of the kernel's business. A loop device on it would have it looked at by whatever on the
//! host looks at new devices.
//!
//! **References.** loop(4); `linux/loop.h`; unshare(2), `CLONE_FS`; `lookup_bdev` of Linux.

use std::ffi::{OsStr, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path};
use std::ptr;

use fourscore_sync::thread;
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::thread::UnshareFlags;
use zerocopy::{Immutable, IntoBytes};

const LOOP_CONFIGURE: Opcode = 0x4c0a;
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// The block size that the kernel is told, in bytes; nothing is read in such blocks.
pub(crate) const BLOCK_BYTES: u32 = 4096;
/// Somebody else may take the free device first; he does so seldom.
const ATTEMPTS: u32 = 16;

/// `struct loop_config` with the `struct loop_info64` inside of it.
#[derive(Clone, Copy, Immutable, IntoBytes)]
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// Numbers and the range, all as the kernel chooses.
    info: [u64; 5],
    lo_number: u32,
    lo_encrypt_type: u32,
    lo_encrypt_key_size: u32,
    lo_flags: u32,
    lo_file_name: [u8; 64],
    unused: [u8; 64 + 32 + 16],
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// `LOOP_CTL_GET_FREE`: the number of a free device is what the call returns.
struct GetFree;

// SAFETY: the call takes no argument and gives a number; nothing is read or written behind a
// pointer.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::null_mut()
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(number).map_err(|_| Errno::NODEV)
    }
}

/// A loop device that goes when it is neither mounted nor held.
#[derive(Debug)]
pub(crate) struct Anchor {
    pub(crate) path: String,
    device: OwnedFd,
}

impl Anchor {
    /// Makes one, named after `image`.
    ///
    /// # Errors
    /// Those of a host without loop devices, or that lets this process have none.
    pub(crate) fn new(image: &OsStr) -> Result<Self, Errno> {
        let name = Path::new(image).file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let name: String = name.chars().filter(|c| c.is_ascii_graphic()).collect();
        let name = &name[..name.len().min(usize::from(u8::MAX / 4))];
        let page = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&page, BLOCK_BYTES.into())?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let control = rustix::fs::open("/dev/loop-control", flags, Mode::empty())?;
        let config = LoopConfig::new(&page, name);
        for _ in 0..ATTEMPTS {
            // SAFETY: as said of `GetFree`.
            let number = unsafe { ioctl(&control, GetFree) }?;
            let path = format!("/dev/loop{number}");
            let device = rustix::fs::open(path.as_str(), flags, Mode::empty())?;
            // SAFETY: the call reads a `struct loop_config` behind the pointer, whose size is
            // asserted above, and gets one that lives through the call; the descriptor in it is
            // open. It changes nothing but the device, which was free.
            let configured = unsafe {
                let request = Setter::<LOOP_CONFIGURE, LoopConfig>::new(config);
                ioctl(&device, request)
            };
            match configured {
                Ok(()) => {
                    return Ok(Self { path, device });
                }
                Err(Errno::BUSY) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::BUSY)
    }

    /// Runs `act` in a thread for which the device lies at the path `name`, beside nothing else.
    /// Descriptors are those of all threads.
    ///
    /// # Errors
    /// `INVAL` for a name that leads upwards or nowhere; those of a host that lets this process
    /// make no nodes of devices, no root directory or no thread; those of `act`.
    pub(crate) fn under_name<T: Send>(
        &self,
        name: &OsStr,
        act: impl FnOnce() -> Result<T, Errno> + Send,
    ) -> Result<T, Errno> {
        let root = self.root_with(name)?;
        thread::scope(|scope| {
            let in_root = || {
                // SAFETY: only the root and the working directory of this thread become its own.
                // Its descriptors stay those of the process.
                unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
                rustix::process::fchdir(&root)?;
                rustix::process::chroot(".")?;
                act()
            };
            let thread = thread::spawn_scoped(scope, in_root).map_err(|_| Errno::AGAIN)?;
            // A panic is told by its own message.
            thread.join().unwrap_or(Err(Errno::CANCELED))
        })
    }

    /// A file system in memory, attached nowhere, with a node of the device at `name`.
    fn root_with(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let mut folder = rustix::mount::fsmount(&context, flags, attributes)?;
        let root = rustix::io::fcntl_dupfd_cloexec(&folder, 0)?;
        let mut names = Vec::new();
        for component in Path::new(name).components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::RootDir => {}
                _ => return Err(Errno::INVAL),
            }
        }
        let (last, above) = names.split_last().ok_or(Errno::INVAL)?;
        let (to_enter, to_open) = (Mode::RWXU, OFlags::DIRECTORY | OFlags::CLOEXEC);
        for name in above {
            rustix::fs::mkdirat(&folder, *name, to_enter)?;
            folder = rustix::fs::openat(&folder, *name, to_open, Mode::empty())?;
        }
        let number = rustix::fs::fstat(&self.device)?.st_rdev;
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(&folder, *last, FileType::BlockDevice, mode, number)?;
        Ok(root)
    }
}

impl LoopConfig {
    fn new(page: &OwnedFd, name: &str) -> Self {
        let mut lo_file_name = [0; 64];
        let shown = lo_file_name.iter_mut().zip(name.bytes());
        shown.for_each(|(to, from)| *to = from);
        Self {
            fd: page.as_raw_fd().cast_unsigned(),
            block_size: 0,
            info: [0; 5],
            lo_number: 0,
            lo_encrypt_type: 0,
            lo_encrypt_key_size: 0,
            lo_flags: LO_FLAGS_AUTOCLEAR,
            lo_file_name,
            unused: [0; 112],
            reserved: [0; 8],
        }
    }
}
