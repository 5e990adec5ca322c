//! **Purpose.** A loop device under a mount, so that unmounting waits for the server.
//!
//! **Model.** Linux sends a FUSE server the DESTROY request at an unmount, and waits for the reply,
//! only if the file system is on a block device (type `fuseblk`). It does nothing else with that
//! device. So a mount made by root is on a loop device of its own, backed by one unused page of
//! memory, and `umount` returns when everything has been written, as with the kernel's ext4. The
//! page is named after the image, which `losetup` shows.
//!
//! The loop device is removed with the mount (`LO_FLAGS_AUTOCLEAR`), also if the server was killed.
//!
//! The kernel uses the source of such a mount for two things: as the path at which it looks up the
//! device, once; and as the source in `/proc/mounts`, by which umount(8), findmnt(8) and `mount -a`
//! find the mount. The latter is to be the image, whose path is not that of a device. So a separate
//! thread makes the mount. Its root directory is an empty file system in memory that has a node of
//! the loop device at the path of the image. The tree of the host is neither changed nor hidden,
//! and the thread's root is dropped when it ends.
//!
//! **Not here.** The image: it may be a file, a partition or a device that is open exclusively. The
//! loop device is not backed by it, because programs of the host that probe new devices would then
//! read the image.
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

/// The block size given to the kernel, in bytes; no such blocks are read.
pub(crate) const BLOCK_BYTES: u32 = 4096;
/// Attempts to get a free loop device; another process may take one first, but seldom does.
const ATTEMPTS: u32 = 16;

/// `struct loop_config` with the `struct loop_info64` inside of it.
#[derive(Clone, Copy, Immutable, IntoBytes)]
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// Numbers and the range, all 0: the kernel's defaults.
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

/// `LOOP_CTL_GET_FREE`: returns the number of a free device.
struct GetFree;

// SAFETY: the call takes no argument and returns a number; it accesses no memory.
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

/// A loop device that is removed once it is neither mounted nor open.
#[derive(Debug)]
pub(crate) struct Anchor {
    pub(crate) path: String,
    device: OwnedFd,
}

impl Anchor {
    /// Makes a loop device, named after `image`.
    ///
    /// # Errors
    /// Those of a host without loop devices, or on which this process may not use them.
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
            // SAFETY: see `GetFree`.
            let number = unsafe { ioctl(&control, GetFree) }?;
            let path = format!("/dev/loop{number}");
            let device = rustix::fs::open(path.as_str(), flags, Mode::empty())?;
            // SAFETY: the call reads a `struct loop_config` behind the pointer, whose size is
            // asserted above, and gets one that lives through the call; the descriptor in it is
            // open. It changes only the device, which was free.
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

    /// Runs `act` in a thread whose root directory holds only the device, at the path `name`. The
    /// thread shares the descriptors of the process.
    ///
    /// # Errors
    /// `INVAL` for an empty name or one with `..`; those of a host on which this process may not
    /// make device nodes, change its root directory or start a thread; those of `act`.
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
            // A panic prints its own message.
            thread.join().unwrap_or(Err(Errno::CANCELED))
        })
    }

    /// A detached file system in memory, with a node of the device at `name`.
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
