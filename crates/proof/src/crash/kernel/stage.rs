//! **Purpose.** A recording device that the kernel has mounted as ext4, with its clean-up.
//!
//! **Model.** A FUSE mount of ours exports the device as a file, a loop device is attached to the
//! file, and the kernel mounts the loop device. The loop device is detached at once (lazily), so
//! that it disappears with the kernel's mount, also if this process dies.
//!
//! **Locking.** None. The server answers in threads of its own, which never wait for users of the
//! mount.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use fourscore_block::RecordingDevice;
use fourscore_fuse::{Cache, Session, SessionOptions, Transport, Unmounter, device_file};
use fourscore_sync::Arc;
use fourscore_sync::thread::{self, JoinHandle};
use fourscore_testkit::{Access, KernelMount, LoopDevice, scratch};

use crate::crash::base::PROBE;

/// A file system that the kernel has mounted from a device of ours.
pub(super) struct Stage {
    /// Dropped before the file that it is mounted from.
    kernel: Option<KernelMount>,
    file: DeviceMount,
}

/// The FUSE mount that exports a device as a file.
struct DeviceMount {
    folder: tempfile::TempDir,
    unmounter: Unmounter,
    server: Option<JoinHandle<io::Result<()>>>,
}

impl DeviceMount {
    fn new(device: Arc<RecordingDevice>) -> Result<Self> {
        let folder = scratch::folder()?;
        let options = SessionOptions {
            source: "recorded".into(),
            cache: Cache::Writethrough,
            transport: Transport::Classic,
            ..SessionOptions::default()
        };
        let session = Session::mount(folder.path(), &options).context("mount of the device")?;
        let unmounter = session.unmounter();
        // Requests that come before it serves wait.
        let server = thread::spawn(move || device_file::serve(&session, &*device, || Ok(())));
        Ok(Self {
            folder,
            unmounter,
            server: Some(server),
        })
    }

    fn undo(&mut self) -> Result<()> {
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        let unmounted = self.unmounter.unmount();
        match server.join() {
            Ok(served) => served.context("serving the device")?,
            Err(_) => return Err(anyhow!("the server of the device panicked")),
        }
        unmounted.context("unmounting the device")
    }
}

impl Drop for DeviceMount {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            eprintln!("{}: {error:#}", self.folder.path().display());
        }
    }
}

impl Stage {
    /// Mounts `device` in the kernel with these options.
    ///
    /// # Errors
    /// If the kernel refuses, or the FUSE mount or the loop device fails.
    pub(super) fn new(device: Arc<RecordingDevice>, options: &str) -> Result<Self> {
        let file = DeviceMount::new(device)?;
        let path = file.folder.path().join(device_file::NAME);
        let below = LoopDevice::direct(&path)?;
        let kernel = KernelMount::of_device(below.path(), Access::ReadWrite, options)?;
        Ok(Self {
            kernel: Some(kernel),
            file,
        })
    }

    /// The mount point.
    pub(super) fn root(&self) -> Result<&Path> {
        Ok(self.mounted()?.path())
    }

    fn mounted(&self) -> Result<&KernelMount> {
        self.kernel.as_ref().context("it was unmounted")
    }

    /// Turns off the kernel's reserve of clusters for splitting extents, so that the last block can
    /// be allocated.
    pub(super) fn without_reserve(&self) -> Result<()> {
        let name = self.mounted()?.device_name()?;
        let file = format!("/sys/fs/ext4/{name}/reserved_clusters");
        std::fs::write(&file, "0").with_context(|| file)
    }

    /// Makes the kernel do a full commit, as it must after each mount before the first fast commit.
    pub(super) fn warm_up(&self) -> Result<()> {
        let mounted = self.mounted()?;
        let probe = OsStr::from_bytes(PROBE);
        File::create(mounted.path().join(probe))?.sync_all()?;
        mounted.sync()
    }

    /// The number of fast commits that the kernel has made.
    pub(super) fn fast_commits(&self) -> Result<u64> {
        let file = format!("/proc/fs/ext4/{}/fc_info", self.mounted()?.device_name()?);
        let text = std::fs::read_to_string(&file).with_context(|| file.clone())?;
        let mut lines = text.lines();
        let commits = lines.find_map(|line| line.trim().strip_suffix(" commits")?.parse().ok());
        commits.with_context(|| format!("{file}: {text}"))
    }

    /// Unmounts the file system; everything is written then.
    pub(super) fn unmount(&mut self) -> Result<()> {
        match self.kernel.take() {
            Some(kernel) => kernel.unmount(),
            None => Ok(()),
        }
    }

    /// Unmounts everything.
    pub(super) fn end(mut self) -> Result<()> {
        self.unmount()?;
        self.file.undo()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // It reports its own errors, and must be gone before the device.
        drop(self.kernel.take());
    }
}
