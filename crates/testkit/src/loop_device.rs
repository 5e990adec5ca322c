//! **Purpose.** Block devices that are image files, detached when the value goes.

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
    /// Attaches an image file to a device that is free.
    ///
    /// # Errors
    /// If this user may not, or no device is free.
    pub fn new(image: &Path) -> Result<Self> {
        Self::with(&["--find", "--show"], image)
    }

    /// As [`LoopDevice::new`], but what the device is given goes to the file at once and side by
    /// side, past the page cache.
    ///
    /// # Errors
    /// As there; also if the file cannot be read or written like that.
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

    /// The device.
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
    fn a_device_is_there_as_long_as_its_value() {
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
