//! **Purpose.** Temporary folders, removed on drop; in memory where there is enough.
//!
//! **Model.** Their names begin with `fourscore-` and the label of the run, if the variable
//! `FOURSCORE_RUN` has one: `cargo xtask test` finds by it what a run leaves behind.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// `/dev/shm` is used if this much is free. Containers often have one of 64 MiB.
const WANTED_FREE_BYTES: u64 = 2 << 30;

/// A new empty folder.
///
/// # Errors
/// If it cannot be made.
pub fn folder() -> Result<TempDir> {
    let base = base();
    let prefix = named_after_run("").unwrap_or_else(|| "fourscore-".to_owned());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(&base)
        .with_context(|| format!("no folder can be made in {}", base.display()))
}

/// The name of a folder that the programs of this run share, if the run has a label.
#[must_use]
pub fn named_after_run(name: &str) -> Option<String> {
    let label = std::env::var("FOURSCORE_RUN").ok()?;
    Some(format!("fourscore-{label}-{name}"))
}

/// The folder for temporary folders: `/dev/shm` if it has enough space, else that of the system.
#[must_use]
pub fn base() -> PathBuf {
    let shared_memory = Path::new("/dev/shm");
    let free_bytes = rustix::fs::statvfs(shared_memory)
        .map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    if free_bytes >= WANTED_FREE_BYTES {
        shared_memory.to_path_buf()
    } else {
        std::env::temp_dir()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_removed_on_drop() {
        let folder = folder().unwrap();
        let path = folder.path().to_path_buf();
        std::fs::write(path.join("file"), "content").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
