//! **Purpose.** Mounts and unmounts: by system calls as root, else through `fusermount3`, which is
//! set-user-ID root.
//!
//! **Model.** The kernel identifies a mount by the descriptor of `/dev/fuse` with which it was
//! made. `fusermount3` opens one, mounts, and sends the descriptor back through a socket.
//! Unmounting a mount made by root waits for the server (see `anchor`), if the host has loop
//! devices. The source in `/proc/mounts` is the image; only if this process may not make device
//! nodes is it the loop device.
//!
//! **References.** mount(2), fsopen(2), fusermount3(1); its environment variable `_FUSE_COMMFD`.

use std::ffi::{CString, OsStr};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::anchor::{self, Anchor};
use crate::options::{Permissions, SessionOptions};

/// The helper of the package fuse3.
const HELPER: &str = "fusermount3";
/// The file system type in `mount -t` and `/proc/mounts`.
const TYPE: &str = "fuse.fourscore";
/// The file system type on a block device.
const BLOCK_TYPE: &str = "fuseblk";
const SUBTYPE: &str = "fourscore";

/// Why a mount could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("{0}")]
    Point(io::Error),
    /// The mount point is not a directory.
    #[error("not a directory")]
    NotADirectory,
    /// The mount point is not empty: the mount would hide its entries.
    #[error("not empty (the option nonempty mounts over its entries)")]
    NotEmpty,
    /// `/dev/fuse` cannot be opened.
    #[error("/dev/fuse: {0} (is the kernel's module fuse loaded?)")]
    Device(io::Error),
    /// The kernel refused the mount.
    #[error("the kernel refuses to mount: {0}")]
    Refused(io::Error),
    /// `fusermount3` could not be run.
    #[error("fusermount3: {0} (install the package fuse3, or mount as root)")]
    NoHelper(io::Error),
    /// `fusermount3` refused the mount, with this message.
    #[error("{0}")]
    HelperRefused(String),
}

/// Ends a mount, from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    point: PathBuf,
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    SystemCall,
    Helper,
}

/// Mounts on the directory `point`; returns the descriptor for the first worker.
pub(crate) fn mount(
    point: &Path,
    options: &SessionOptions,
) -> Result<(OwnedFd, Unmounter), MountError> {
    // Unmounting uses this path later, whatever the working directory is then.
    let point = std::fs::canonicalize(point).map_err(MountError::Point)?;
    if !point.metadata().map_err(MountError::Point)?.is_dir() {
        return Err(MountError::NotADirectory);
    }
    let mut inside = std::fs::read_dir(&point).map_err(MountError::Point)?;
    if !options.may_hide && inside.next().is_some() {
        return Err(MountError::NotEmpty);
    }
    let unmounter = Unmounter::of(point);
    let point = &unmounter.point;
    let device = match unmounter.way {
        Way::SystemCall => by_system_call(point, options)?,
        Way::Helper => through_helper(point, options)?,
    };
    Ok((device, unmounter))
}

/// The parameters of a mount, for mount(2) and for fsopen(2).
struct Parameters {
    options: Vec<(&'static str, Option<String>)>,
    flags: MountFlags,
    attributes: MountAttrFlags,
}

impl Parameters {
    fn of(device: &OwnedFd, options: &SessionOptions) -> Self {
        let mut mount_options = vec![
            ("fd", Some(device.as_raw_fd().to_string())),
            ("rootmode", Some("40000".into())),
            ("user_id", Some(rustix::process::getuid().to_string())),
            ("group_id", Some(rustix::process::getgid().to_string())),
        ];
        if options.permissions == Permissions::Kernel {
            mount_options.push(("default_permissions", None));
        }
        if options.is_for_all {
            mount_options.push(("allow_other", None));
        }
        let switches = [
            (
                options.is_read_only,
                MountFlags::RDONLY,
                MountAttrFlags::MOUNT_ATTR_RDONLY,
            ),
            (
                !options.honours_set_id,
                MountFlags::NOSUID,
                MountAttrFlags::MOUNT_ATTR_NOSUID,
            ),
            (
                !options.honours_devices,
                MountFlags::NODEV,
                MountAttrFlags::MOUNT_ATTR_NODEV,
            ),
            (
                !options.runs_programs,
                MountFlags::NOEXEC,
                MountAttrFlags::MOUNT_ATTR_NOEXEC,
            ),
        ];
        let (mut flags, mut attributes) = (MountFlags::empty(), MountAttrFlags::empty());
        for (_, flag, attribute) in switches.into_iter().filter(|(is_set, ..)| *is_set) {
            flags |= flag;
            attributes |= attribute;
        }
        Self {
            options: mount_options,
            flags,
            attributes,
        }
    }

    /// Adds the parameters of a mount on a block device.
    fn on_device(mut self) -> Self {
        let bytes = Some(anchor::BLOCK_BYTES.to_string());
        self.options.push(("blksize", bytes));
        self
    }

    /// Mounts by mount(2).
    fn mount(&self, source: &OsStr, kind: &str, point: &Path) -> Result<(), Errno> {
        let words = self.options.iter().map(|(name, value)| match value {
            Some(value) => format!("{name}={value}"),
            None => (*name).to_owned(),
        });
        let words = words.collect::<Vec<_>>().join(",");
        let words = CString::new(words).map_err(|_| Errno::INVAL)?;
        rustix::mount::mount(source, point, kind, self.flags, words.as_c_str())
    }

    /// Makes a detached mount on the block device at `source`.
    fn detached(&self, source: &OsStr) -> Result<OwnedFd, Errno> {
        let context = rustix::mount::fsopen(BLOCK_TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_set_string(&context, "source", source)?;
        rustix::mount::fsconfig_set_string(&context, "subtype", SUBTYPE)?;
        for (name, value) in &self.options {
            match value {
                Some(value) => rustix::mount::fsconfig_set_string(&context, *name, value)?,
                None => rustix::mount::fsconfig_set_flag(&context, *name)?,
            }
        }
        if self.flags.contains(MountFlags::RDONLY) {
            rustix::mount::fsconfig_set_flag(&context, "ro")?;
        }
        rustix::mount::fsconfig_create(&context)?;
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, self.attributes)
    }
}

/// Mounts as root, on a loop device if possible. Each attempt opens its own descriptor, because a
/// failed mount may have consumed it.
fn by_system_call(point: &Path, options: &SessionOptions) -> Result<OwnedFd, MountError> {
    match on_block_device(point, options) {
        Ok(device) => return Ok(device),
        Err(error) => tracing::debug!(%error, "umount will not wait for the server"),
    }
    let device = fuse_device().map_err(|errno| MountError::Device(errno.into()))?;
    let mounted = Parameters::of(&device, options).mount(&options.source, TYPE, point);
    mounted.map_err(|errno| MountError::Refused(errno.into()))?;
    Ok(device)
}

fn fuse_device() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open("/dev/fuse", flags, Mode::empty())
}

/// Mounts on a loop device, so that umount waits for the server; with the image as source if
/// possible.
fn on_block_device(point: &Path, options: &SessionOptions) -> Result<OwnedFd, Errno> {
    let anchor = Anchor::new(&options.source)?;
    match under_name_of_image(&anchor, point, options) {
        Ok(device) => return Ok(device),
        Err(error) => tracing::debug!(%error, "the source of the mount is its loop device"),
    }
    let device = fuse_device()?;
    let kind = format!("{BLOCK_TYPE}.{SUBTYPE}");
    let parameters = Parameters::of(&device, options).on_device();
    parameters.mount(anchor.path.as_ref(), &kind, point)?;
    Ok(device)
}

fn under_name_of_image(
    anchor: &Anchor,
    point: &Path,
    options: &SessionOptions,
) -> Result<OwnedFd, Errno> {
    let device = fuse_device()?;
    let parameters = Parameters::of(&device, options).on_device();
    let source = &options.source;
    let mount = anchor.under_name(source, || parameters.detached(source))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&mount, "", rustix::fs::CWD, point, flags)?;
    Ok(device)
}

fn through_helper(point: &Path, options: &SessionOptions) -> Result<OwnedFd, MountError> {
    let no_helper = |error: io::Error| MountError::NoHelper(error);
    let (ours, its) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|errno| no_helper(errno.into()))?;
    rustix::io::fcntl_setfd(&its, FdFlags::empty()).map_err(|errno| no_helper(errno.into()))?;
    let mut words = format!("fsname={},subtype=fourscore", options.source_word());
    let more = [
        (
            options.permissions == Permissions::Kernel,
            ",default_permissions",
        ),
        (options.is_read_only, ",ro"),
        (!options.runs_programs, ",noexec"),
        (options.honours_set_id, ",suid"),
        (options.honours_devices, ",dev"),
        (options.is_for_all, ",allow_other"),
    ];
    for (_, word) in more.into_iter().filter(|(is_set, _)| *is_set) {
        words.push_str(word);
    }
    let run = Command::new(HELPER)
        .args(["-o", &words, "--"])
        .arg(point)
        .env("_FUSE_COMMFD", its.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    drop(its);
    let device = received(&ours);
    let output = run.wait_with_output().map_err(no_helper)?;
    match device.map_err(|errno| no_helper(errno.into()))? {
        Some(device) if output.status.success() => Ok(device),
        _ => Err(MountError::HelperRefused(one_line(&output.stderr))),
    }
}

/// Receives a descriptor through a socket; `None` if the socket is closed without one.
fn received(socket: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(socket, &mut slices, &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            return Ok(descriptors.next());
        }
    }
    Ok(None)
}

/// The error output of the helper, as one line.
fn one_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let said: Vec<&str> = said.lines().map(str::trim).collect();
    match said.join("; ") {
        nothing if nothing.is_empty() => format!("{HELPER} failed without a message"),
        said => said,
    }
}

impl Unmounter {
    /// The unmounter of the mount on `point`, for another process than the one that made the mount.
    /// The path is used as it is: it must be absolute and contain no symbolic link.
    #[must_use]
    pub fn of(point: PathBuf) -> Self {
        let way = match rustix::process::geteuid().is_root() {
            true => Way::SystemCall,
            false => Way::Helper,
        };
        Self { point, way }
    }

    /// The mount point, as an absolute path.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Unmounts, after the kernel's dirty pages have been written. Open files stay usable:
    /// [`Session::serve`](crate::Session::serve) returns when the last one is closed.
    ///
    /// # Errors
    /// `InvalidInput` if it is not mounted any more.
    pub fn unmount(&self) -> io::Result<()> {
        match self.way {
            Way::SystemCall => {
                match rustix::mount::unmount(&self.point, UnmountFlags::NOFOLLOW) {
                    Err(Errno::BUSY) => {}
                    done => return Ok(done?),
                }
                self.write_back();
                let lazily = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                Ok(rustix::mount::unmount(&self.point, lazily)?)
            }
            Way::Helper => match self.run_helper("-u") {
                Ok(()) => Ok(()),
                Err(_) => {
                    self.write_back();
                    self.run_helper("-uz")
                }
            },
        }
    }

    /// Detaches the mount with this root directory, whose server has ended, and no other mount that
    /// was made at the same mount point meanwhile. Through fusermount3 only the mount point can be
    /// given.
    pub fn abandon_root(&self, root: &OwnedFd) {
        if self.way == Way::Helper {
            return self.abandon();
        }
        let root = format!("/proc/self/fd/{}", root.as_raw_fd());
        // Fails if the mount has been detached already.
        if let Err(error) = rustix::mount::unmount(root, UnmountFlags::DETACH) {
            tracing::debug!(%error, "the mount has been removed already");
        }
    }

    /// Detaches a mount that has no server any more.
    pub fn abandon(&self) {
        let lazily = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        let gone = match self.way {
            Way::SystemCall => rustix::mount::unmount(&self.point, lazily).map_err(io::Error::from),
            Way::Helper => self.run_helper("-uz"),
        };
        if let Err(error) = gone {
            tracing::warn!(%error, "the mount could not be removed");
        }
    }

    /// Lets the kernel write its dirty pages. Errors are also reported to the processes that sync.
    fn write_back(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.point, flags, Mode::empty());
        if let Err(error) = root.and_then(rustix::fs::syncfs) {
            tracing::warn!(%error, "dirty pages of the kernel could not be written back");
        }
    }

    fn run_helper(&self, how: &str) -> io::Result<()> {
        let mut helper = Command::new(HELPER);
        helper.args([how, "-q", "--"]).arg(&self.point);
        let status = helper.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
        }
    }
}
