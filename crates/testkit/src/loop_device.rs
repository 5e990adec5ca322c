//! **Purpose.** Loop devices over image files, detached on drop.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tools;

/// A loop device.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches an image file to a free device.
    ///
    /// # Errors
    /// If the user lacks the privilege, or no device is free.
    pub fn new(image: &Path) -> Result<Self> {
        Self::with(&["--find", "--show"], image)
    }

    /// As [`LoopDevice::new`], with direct I/O: requests go to the file in parallel, past the page
    /// cache.
    ///
    /// # Errors
    /// As [`LoopDevice::new`]; also if the file does not support direct I/O.
    pub fn direct(image: &Path) -> Result<Self> {
        Self::with(&["--find", "--show", "--direct-io=on"], image)
    }

    fn with(options: &[&str], image: &Path) -> Result<Self> {
        let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        arguments.push(image.as_os_str());
        let printed = tools::run("losetup", &arguments)?;
        let path = PathBuf::from(printed.trim());
        Ok(Self { path })
    }

    /// Gives the device the length that its file has now.
    ///
    /// # Errors
    /// If the user lacks the privilege.
    pub fn update_length(&self) -> Result<()> {
        let arguments = ["--set-capacity".as_ref(), self.path.as_os_str()];
        tools::run("losetup", &arguments).map(drop)
    }

    /// The path of the device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = tools::run("losetup", &["-d".as_ref(), self.path.as_os_str()]) {
            eprintln!("{}: {error:#}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::require;
    use crate::tools::Need;

    #[test]
    fn a_device_is_detached_on_drop() {
        require!(Need::KernelMount);
        let folder = crate::scratch::folder().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, [7; 8192]).unwrap();
        let device = LoopDevice::new(&image).unwrap();
        assert_eq!(std::fs::read(device.path()).unwrap(), [7; 8192]);
        drop(device);
        let used = tools::run("losetup", &["-j".as_ref(), image.as_os_str()]).unwrap();
        assert_eq!(used, "");
    }
}
