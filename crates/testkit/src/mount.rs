//! **Purpose.** Mounts of image files by the kernel, undone on drop.
//!
//! **Crash safety.** The loop device is made by `mount -o loop`, which marks it to disappear with
//! the mount; so one umount, lazy if need be, undoes everything, also when a test panics.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{scratch, tools};

/// How often a busy mount is tried to be undone before it is detached lazily.
const UMOUNT_TRIES: u32 = 40;

/// The pause between two tries.
const UMOUNT_PAUSE: Duration = Duration::from_millis(50);

/// Whether the kernel may write to the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Not at all: a dirty journal makes the mount fail unless `noload` is among the options.
    ReadOnly,
    /// A dirty journal is replayed.
    ReadWrite,
}

/// What becomes of the running transaction when the kernel is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// It is committed.
    Flushed,
    /// It is lost.
    Lost,
}

/// An image file, mounted by the kernel.
#[derive(Debug)]
pub struct KernelMount {
    folder: TempDir,
    mounted: bool,
}

impl KernelMount {
    /// Mounts an image with comma-separated options of ext4 (or none). The driver of ext4 also
    /// mounts ext2 and ext3.
    ///
    /// # Errors
    /// If the kernel refuses (the last lines of its log are part of the error), or this is not
    /// root.
    pub fn new(image: &Path, access: Access, options: &str) -> Result<Self> {
        Self::of_type("ext4", image, access, options)
    }

    /// As [`KernelMount::new`], of a file system of another type.
    ///
    /// # Errors
    /// As [`KernelMount::new`].
    pub fn of_type(fs_type: &str, image: &Path, access: Access, options: &str) -> Result<Self> {
        Self::with(fs_type, image, access, &format!("loop,{options}"))
    }

    /// As [`KernelMount::new`], of an existing block device, which stays.
    ///
    /// # Errors
    /// As [`KernelMount::new`].
    pub fn of_device(device: &Path, access: Access, options: &str) -> Result<Self> {
        Self::with("ext4", device, access, options)
    }

    fn with(fs_type: &str, source: &Path, access: Access, options: &str) -> Result<Self> {
        let folder = scratch::folder()?;
        let access = match access {
            Access::ReadOnly => "ro",
            Access::ReadWrite => "rw",
        };
        let all = format!("{access},{options}");
        let all = all.trim_end_matches(',');
        let mut command = tools::command("mount")?;
        command
            .args(["-t", fs_type, "-o", all])
            .arg(source)
            .arg(folder.path());
        let output = tools::output_of(&mut command)?;
        if !output.status.success() {
            bail!("{}{}", tools::describe(&command, &output), kernel_log());
        }
        Ok(Self {
            folder,
            mounted: true,
        })
    }

    /// The root of the mounted tree.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The name of the loop device below `/dev`.
    ///
    /// # Errors
    /// If the kernel does not list the mount.
    pub fn device_name(&self) -> Result<String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let here = self.path().to_string_lossy();
        let device = mounts.lines().find_map(|line| {
            let mut words = line.split(' ');
            let device = words.next()?;
            (words.next()? == here).then(|| device.trim_start_matches("/dev/").to_owned())
        });
        device.with_context(|| format!("{here} is not mounted"))
    }

    /// Opens the root, for calls on the whole file system.
    ///
    /// # Errors
    /// If the file system was shut down.
    pub fn open_root(&self) -> Result<std::fs::File> {
        std::fs::File::open(self.path()).with_context(|| format!("{}", self.path().display()))
    }

    /// Writes everything back (`syncfs`).
    ///
    /// # Errors
    /// If the kernel reports one.
    pub fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(self.open_root()?)?)
    }

    /// Shuts the file system down through the ioctl of XFS, which ext4 supports too: nothing
    /// reaches the image any more.
    ///
    /// # Errors
    /// If xfs_io is missing or the kernel refuses.
    pub fn shut_down(&self, log: Log) -> Result<()> {
        let command = match log {
            Log::Flushed => "shutdown -f",
            Log::Lost => "shutdown",
        };
        let mut xfs_io = tools::command("xfs_io")?;
        tools::stdout_of(xfs_io.args(["-x", "-c", command]).arg(self.path()))?;
        Ok(())
    }

    /// Unmounts, and returns the error if that fails. Afterwards the image is complete.
    ///
    /// # Errors
    /// If the mount stays busy.
    pub fn unmount(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        if !self.mounted {
            return Ok(());
        }
        let mut last = String::new();
        for _ in 0..UMOUNT_TRIES {
            let mut command = tools::command("umount")?;
            command.arg(self.folder.path());
            let output = tools::output_of(&mut command)?;
            if output.status.success() {
                self.mounted = false;
                return Ok(());
            }
            last = tools::describe(&command, &output);
            std::thread::sleep(UMOUNT_PAUSE);
        }
        let mut lazily = tools::command("umount")?;
        tools::stdout_of(lazily.arg("--lazy").arg(self.folder.path()))?;
        self.mounted = false;
        bail!("had to be detached lazily: {last}")
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            eprintln!("{}: {error:#}", self.folder.path().display());
        }
    }
}

/// The last lines that the kernel logged, as far as this user may read them.
fn kernel_log() -> String {
    let text = tools::run("dmesg", &[]).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Image, MiB};
    use crate::require;
    use crate::tools::Need;
    use std::path::PathBuf;

    /// The backing files of all loop devices below a folder: what should not be left behind.
    fn loop_backing_files_below(folder: &Path) -> Vec<PathBuf> {
        let listed = tools::run(
            "losetup",
            &["-l", "-n", "-O", "BACK-FILE"].map(AsRef::as_ref),
        );
        let text = listed.unwrap_or_default();
        text.lines()
            .map(PathBuf::from)
            .filter(|file| file.starts_with(folder))
            .collect()
    }

    #[test]
    fn what_is_written_through_one_mount_is_there_in_the_next() {
        require!(Need::Program("mke2fs"), Need::KernelMount);
        let image = Image::builder(MiB(16)).make().unwrap();
        let mount = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
        std::fs::write(mount.path().join("file"), "content").unwrap();
        mount.unmount().unwrap();
        let mount = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
        assert_eq!(
            std::fs::read(mount.path().join("file")).unwrap(),
            b"content"
        );
        assert!(std::fs::write(mount.path().join("file"), "other").is_err());
    }

    #[test]
    fn a_panic_leaves_neither_mount_nor_loop_device() {
        require!(Need::Program("mke2fs"), Need::KernelMount);
        let image = Image::builder(MiB(16)).make().unwrap();
        let result = std::panic::catch_unwind(|| {
            let _mount = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
            assert_eq!(loop_backing_files_below(image.folder()).len(), 1);
            panic!("on purpose");
        });
        assert!(result.is_err());
        assert!(loop_backing_files_below(image.folder()).is_empty());
    }

    #[test]
    fn a_refusal_is_an_error() {
        require!(Need::KernelMount);
        let image = Image::blank(MiB(1)).unwrap();
        assert!(KernelMount::new(image.path(), Access::ReadOnly, "").is_err());
    }
}
