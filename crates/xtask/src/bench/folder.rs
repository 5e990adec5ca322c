//! **Purpose.** The temporary folder of a benchmark, and commands whose output is discarded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A folder that is removed with everything in it when this value is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Creates a folder on tmpfs, so that no disk is measured.
    pub(super) fn on_tmpfs() -> Result<Self> {
        Self::in_directory(Path::new("/dev/shm"))
    }

    /// Creates a folder in `directory`.
    pub(super) fn in_directory(directory: &Path) -> Result<Self> {
        let path = directory.join(format!("fourscore-bench-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// The path of `name` in this folder.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("bench: {} is left behind: {error}", self.0.display());
        }
    }
}

/// Makes `to` a copy of `from`, with the same holes.
pub(super) fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    run_quietly(command.arg("--sparse=always").arg(from).arg(to))
}

/// Runs a command that belongs to every round: without printing it, its output only in an error.
pub(super) fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("{command:?} cannot be started"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
