//! **Purpose.** File systems of several kinds on image files, made for one run and removed after
//! it: what experiments compare, and what a program is run on.
//!
//! **Model.** A [`Scratch`] has a folder for images and mount points. [`Scratch::image`] formats a
//! sparse image and [`Scratch::mount`] mounts it; all ext4 kinds get the image of `fourscore mkfs`,
//! so that they differ in the implementation alone. [`Mounted::unmount`] unmounts and returns the
//! image, which is complete then. Whatever is still there is undone when a value is dropped, and by
//! [`Cleanup::end`] on a signal.
//!
//! **Not here.** What is measured: [`crate::study`], and `command` below.
//!
//! | module | responsibility |
//! |---|---|
//! | [`kind`] | the kinds of file systems, and what a machine lacks for one |
//! | [`cleanup`] | all that has to be undone, also after a signal |
//! | [`command`] | a program of the user in a file system, with figures before and after |
//! | [`space`] | used and free space, extents of files |

pub mod cleanup;
pub mod command;
pub mod kind;
pub mod space;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fourscore::{Fs, MountOptions};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::{Arc, thread};

pub use cleanup::Cleanup;
pub use kind::FsKind;
pub use space::{Extents, FreeSpace, Used};

use crate::fs_target::FsTarget;
use crate::target::{DirectoryTarget, Target};

/// Time limit for a server to mount.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// A folder for scratch file systems. It is removed when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    /// The command `fourscore`, which formats and mounts.
    fourscore: PathBuf,
    cleanup: Arc<Cleanup>,
    next: AtomicUsize,
}

impl Scratch {
    /// Makes a folder in `base`. `fourscore` is the path of the command, which formats images and
    /// serves mounts. `cleanup` is for the handler of signals.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(base: &Path, fourscore: PathBuf, cleanup: Arc<Cleanup>) -> io::Result<Self> {
        // Mount points are compared with those that the kernel lists.
        let folder = cleanup.make_folder(&base.canonicalize()?)?;
        Ok(Self {
            folder,
            fourscore,
            cleanup,
            next: AtomicUsize::new(0),
        })
    }

    /// Makes a sparse image of `bytes` bytes with an empty file system.
    ///
    /// # Errors
    /// A program that is needed is missing, or the error that it printed.
    pub fn image(&self, kind: FsKind, bytes: u64) -> io::Result<Image> {
        let nr = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("image-{nr}"));
        File::create_new(&path)?.set_len(bytes)?;
        let image = Image { path, kind };
        self.format(&image)?;
        Ok(image)
    }

    /// Mounts an image.
    ///
    /// # Errors
    /// A program that is needed is missing, or the error that it printed.
    pub fn mount(&self, image: Image) -> io::Result<Mounted<'_>> {
        let kind = image.kind;
        let mut mounted = Mounted {
            scratch: self,
            point: image.path.with_extension("mount"),
            server: None,
            fs: None,
            image: Some(image),
        };
        mounted.begin(kind)?;
        Ok(mounted)
    }

    fn format(&self, image: &Image) -> io::Result<()> {
        let mut mkfs = match image.kind {
            FsKind::Xfs => Command::new("mkfs.xfs"),
            FsKind::Btrfs => Command::new("mkfs.btrfs"),
            FsKind::Ext4 | FsKind::Fuse2fs | FsKind::Mount | FsKind::InProcess => {
                let mut fourscore = Command::new(&self.fourscore);
                fourscore.arg("mkfs");
                fourscore
            }
        };
        if !image.kind.is_ext4() {
            mkfs.args(["-q", "-f"]);
        }
        cleanup::run(mkfs.arg(&image.path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // After a signal there is no folder any more.
        let _ = self.cleanup.remove_folder(&self.folder);
    }
}

/// An image file, removed when this is dropped.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    kind: FsKind,
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A file system that is mounted. Dropping this unmounts it.
#[derive(Debug)]
pub struct Mounted<'s> {
    scratch: &'s Scratch,
    point: PathBuf,
    /// Of fuse2fs or of `fourscore mount`.
    server: Option<Child>,
    /// Of a file system in this process.
    fs: Option<Arc<Fs>>,
    /// `None` once it was handed out.
    image: Option<Image>,
}

impl Mounted<'_> {
    fn begin(&mut self, kind: FsKind) -> io::Result<()> {
        let image = self.image()?.path.clone();
        let cleanup = &self.scratch.cleanup;
        fs::create_dir(&self.point)?;
        if let Some(driver) = kind.driver() {
            let mut mount = Command::new("mount");
            // Tables of inodes that are written in the background would disturb a measurement.
            let options = match kind {
                FsKind::Ext4 => "loop,nosuid,nodev,noinit_itable",
                _ => "loop,nosuid,nodev",
            };
            mount.args(["-t", driver, "-o", options]).arg(image);
            return cleanup.mount(mount.arg(&self.point), &self.point);
        }
        if kind == FsKind::InProcess {
            let device =
                open_path(&image, DeviceOptions::read_write()).map_err(io::Error::other)?;
            let fs = Fs::mount(Arc::new(device), &MountOptions::new());
            self.fs = Some(fs.map_err(io::Error::other)?);
            return Ok(());
        }
        let mut server = match kind {
            FsKind::Fuse2fs => Command::new("fuse2fs"),
            _ => {
                let mut fourscore = Command::new(&self.scratch.fourscore);
                fourscore.arg("mount");
                fourscore
            }
        };
        server.arg("-f").arg(image).arg(&self.point);
        if kind == FsKind::Fuse2fs {
            server.args(["-o", "rw"]);
        }
        let null = Stdio::null;
        server.stdin(null()).stdout(null()).stderr(Stdio::null());
        self.server = Some(cleanup.start(&mut server)?);
        self.wait_for_server()
    }

    fn wait_for_server(&mut self) -> io::Result<()> {
        let began = Instant::now();
        while !cleanup::is_mounted(&self.point) {
            let server = self.server.as_ref().ok_or(io::ErrorKind::NotFound)?;
            if cleanup::has_ended(server) || began.elapsed() > MOUNT_TIMEOUT {
                let server = self.server.take().ok_or(io::ErrorKind::NotFound)?;
                let ended = self.scratch.cleanup.stop(server)?;
                let why = format!("the server did not mount it: {}", ended.status);
                return Err(io::Error::other(why));
            }
            thread::sleep(POLL);
        }
        // The first answer: the server is ready.
        fs::metadata(&self.point).map(drop)
    }

    fn image(&self) -> io::Result<&Image> {
        self.image.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }

    /// What workloads run against: the file system in this process, or the mount point.
    #[must_use]
    pub fn target(&self) -> Box<dyn Target> {
        match &self.fs {
            Some(fs) => Box::new(FsTarget::new(Arc::clone(fs))),
            None => Box::new(DirectoryTarget::new(&self.point)),
        }
    }

    /// Unmounts, and returns the image, which is complete then.
    ///
    /// # Errors
    /// It is in use, or it could not be written.
    pub fn unmount(mut self) -> io::Result<Image> {
        self.end()?;
        self.image.take().ok_or(io::ErrorKind::NotFound.into())
    }

    fn end(&mut self) -> io::Result<()> {
        if let Some(fs) = self.fs.take() {
            return fs.unmount().map_err(io::Error::other);
        }
        let cleanup = &self.scratch.cleanup;
        let served = match self.server.take() {
            // It unmounts, and writes what is left.
            Some(server) => cleanup.stop(server).map(drop),
            None => Ok(()),
        };
        served.and(cleanup.unmount(&self.point))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // A caller that wants to know unmounts.
        let _ = self.end();
    }
}
