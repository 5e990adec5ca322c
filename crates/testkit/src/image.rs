//! **Purpose.** Image files made by mke2fs.
//!
//! **Model.** All images have the same UUID and hash seed, so that a failure can be reproduced.
//! Images are sparse files in a [`scratch`] folder.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{scratch, tools};

/// The UUID and the hash seed of all images.
const UUID: &str = "f0055c09-e4a0-4b1d-9c00-000000000080";

/// A size in units of 2^20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MiB(pub u64);

impl MiB {
    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0 << 20
    }
}

/// An image file, removed on drop.
#[derive(Debug)]
pub struct Image {
    folder: TempDir,
    path: PathBuf,
}

impl Image {
    /// A builder for an image of a size.
    #[must_use]
    pub fn builder(size: MiB) -> ImageBuilder {
        ImageBuilder {
            size,
            arguments: Vec::new(),
            extended: Vec::new(),
            source: None,
        }
    }

    /// An unformatted file of zeroes.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn blank(size: MiB) -> Result<Self> {
        let folder = scratch::folder()?;
        let path = folder.path().join("image");
        File::create(&path)?.set_len(size.bytes())?;
        Ok(Self { folder, path })
    }

    /// Where the image is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A folder that is removed with the image, for files that belong to it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A second image with the same content; holes stay holes.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn copy(&self) -> Result<Self> {
        Self::copy_of(&self.path)
    }

    /// An image with the content of any file; holes stay holes.
    ///
    /// # Errors
    /// If the file cannot be read or the copy not be written.
    pub fn copy_of(file: &Path) -> Result<Self> {
        let folder = scratch::folder()?;
        let path = folder.path().join("image");
        copy(file, &path)?;
        Ok(Self { folder, path })
    }

    /// Writes the content to a file that is not there yet; holes stay holes.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn copy_to(&self, file: &Path) -> Result<()> {
        copy(&self.path, file)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let options = ["--sparse=always", "--reflink=auto"].map(OsStr::new);
    tools::stdout_of(tools::command("cp")?.args(options).arg(from).arg(to))?;
    Ok(())
}

/// The options of an image. mke2fs chooses those that are not set.
#[derive(Clone, Debug)]
pub struct ImageBuilder {
    size: MiB,
    arguments: Vec<OsString>,
    extended: Vec<String>,
    source: Option<PathBuf>,
}

impl ImageBuilder {
    /// `ext2`, `ext3` or `ext4` (`-t`).
    #[must_use]
    pub fn kind(self, kind: &str) -> Self {
        self.arguments(["-t", kind])
    }

    /// The block size in bytes (`-b`), 1024 to 65536.
    #[must_use]
    pub fn block_size_bytes(self, bytes: u32) -> Self {
        self.arguments(["-b", &bytes.to_string()])
    }

    /// The inode size in bytes (`-I`), 128 to the block size.
    #[must_use]
    pub fn inode_size_bytes(self, bytes: u32) -> Self {
        self.arguments(["-I", &bytes.to_string()])
    }

    /// Features as mke2fs spells them, `^name` to turn one off (`-O`).
    #[must_use]
    pub fn features(self, features: &[&str]) -> Self {
        if features.is_empty() {
            self
        } else {
            self.arguments(["-O", &features.join(",")])
        }
    }

    /// The size of the journal (`-J size=`).
    #[must_use]
    pub fn journal(self, size: MiB) -> Self {
        self.arguments(["-J", &format!("size={}", size.0)])
    }

    /// An extended option such as `stride=16` (`-E`).
    #[must_use]
    pub fn extended(mut self, option: &str) -> Self {
        self.extended.push(option.to_owned());
        self
    }

    /// Any other arguments.
    #[must_use]
    pub fn arguments<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(OsString::from));
        self
    }

    /// Copies a directory into the image (`-d`).
    #[must_use]
    pub fn source(mut self, directory: &Path) -> Self {
        self.source = Some(directory.to_path_buf());
        self
    }

    /// Runs mke2fs.
    ///
    /// # Errors
    /// If mke2fs is missing or fails; the error contains its output.
    pub fn make(&self) -> Result<Image> {
        let image = Image::blank(self.size)?;
        let mut extended = vec![format!("hash_seed={UUID}"), "nodiscard".to_owned()];
        extended.extend_from_slice(&self.extended);
        let mut command = tools::command("mke2fs")?;
        command
            .args(["-q", "-F", "-U", UUID, "-E", &extended.join(",")])
            .args(&self.arguments);
        if let Some(source) = &self.source {
            command.arg("-d").arg(source);
        }
        command.arg(image.path());
        let output = tools::output_of(&mut command)?;
        // mke2fs exits with 0 after "invalid option ignored".
        let words = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || words.contains("ignored") {
            bail!("{}", tools::describe(&command, &output));
        }
        let length = fs::metadata(image.path())
            .context("the image is gone")?
            .len();
        if length != self.size.bytes() {
            bail!(
                "{command:?} made {length} bytes instead of {}",
                self.size.bytes()
            );
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle;
    use crate::require;
    use crate::tools::Need;

    #[test]
    fn an_image_has_the_requested_options() {
        require!(Need::Program("mke2fs"), Need::Program("dumpe2fs"));
        let image = Image::builder(MiB(16))
            .kind("ext4")
            .block_size_bytes(1024)
            .inode_size_bytes(512)
            .features(&["^has_journal"])
            .extended("stride=4")
            .make()
            .unwrap();
        let header = oracle::dumpe2fs_header(image.path()).unwrap();
        assert_eq!(header["Block size"], "1024");
        assert_eq!(header["Inode size"], "512");
        assert_eq!(header["RAID stride"], "4");
        assert_eq!(header["Filesystem UUID"], UUID);
        assert!(!header["Filesystem features"].contains("has_journal"));
        oracle::assert_clean(image.path());
    }

    #[test]
    fn a_failure_contains_the_output_of_mke2fs() {
        require!(Need::Program("mke2fs"));
        let error = Image::builder(MiB(16))
            .features(&["no_such_feature"])
            .make()
            .unwrap_err();
        assert!(error.to_string().contains("no_such_feature"), "{error}");
    }

    #[test]
    fn a_copy_is_equal_and_independent() {
        require!(Need::Program("mke2fs"));
        let image = Image::builder(MiB(8)).make().unwrap();
        let copy = image.copy().unwrap();
        assert_eq!(
            fs::read(image.path()).unwrap(),
            fs::read(copy.path()).unwrap()
        );
        fs::write(copy.path(), "other").unwrap();
        assert_eq!(fs::metadata(image.path()).unwrap().len(), MiB(8).bytes());
    }
}
