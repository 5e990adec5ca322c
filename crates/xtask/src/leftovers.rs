//! **Purpose.** Finds and removes what a run of the tests has left behind: mounts, loop devices,
//! temporary folders.
//!
//! **Model.** The test kit puts the label of the run into the names of its temporary folders, in
//! which all images and mount points are. So other runs on the machine are not mistaken for this
//! one.

use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{fmt, fs};

use anyhow::{Result, bail};

/// The environment variable with the label of the run.
pub(crate) const RUN: &str = "FOURSCORE_RUN";

/// A run of the tests.
pub(crate) struct Run {
    label: PathBuf,
}

impl Run {
    /// Begins a run.
    pub(crate) fn begin() -> Self {
        Self {
            label: format!("run{}", process::id()).into(),
        }
    }

    /// The value of [`RUN`] for its programs.
    pub(crate) fn label(&self) -> &Path {
        &self.label
    }

    /// Removes what is left, and says what it was. A program that ends at the first finding of an
    /// injected fault may leave the image of another thread behind.
    ///
    /// # Errors
    /// Lists what could not be removed.
    pub(crate) fn finish(&self) -> Result<()> {
        let places = Places::default();
        let label = self.label.to_string_lossy();
        places.remove_shared_images(&label);
        let left_behind = left(&label, &places)?;
        if left_behind.is_empty() {
            return Ok(());
        }
        println!("left behind: {}", names(&left_behind));
        left_behind.iter().for_each(Left::remove);
        let remaining = left(&label, &places)?;
        if !remaining.is_empty() {
            bail!("cannot be removed: {}", names(&remaining));
        }
        Ok(())
    }
}

/// Something that a run has left behind.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    /// The mount point of a mount.
    Mount(PathBuf),
    /// The name of a loop device.
    Loop(PathBuf),
    Folder(PathBuf),
}

impl Left {
    /// Tries to remove it. Whether that worked is seen afterwards.
    fn remove(&self) {
        let run = |command: &mut Command| drop(command.output());
        match self {
            Self::Mount(point) => run(Command::new("umount").arg(point)),
            Self::Loop(name) => run(Command::new("losetup")
                .arg("-d")
                .arg(Path::new("/dev").join(name))),
            Self::Folder(folder) => drop(fs::remove_dir_all(folder)),
        }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(point) => write!(f, "the mount {}", point.display()),
            Self::Loop(name) => write!(f, "the loop device {}", name.display()),
            Self::Folder(folder) => write!(f, "the folder {}", folder.display()),
        }
    }
}

fn names(left: &[Left]) -> String {
    let names: Vec<_> = left.iter().map(ToString::to_string).collect();
    names.join("; ")
}

/// Where the machine lists mounts and loop devices, and where the test kit makes its folders.
struct Places {
    mounts: PathBuf,
    block_devices: PathBuf,
    folders: [PathBuf; 2],
}

impl Default for Places {
    fn default() -> Self {
        Self {
            mounts: "/proc/self/mounts".into(),
            block_devices: "/sys/block".into(),
            folders: ["/dev/shm".into(), std::env::temp_dir()],
        }
    }
}

impl Places {
    /// Removes the images that the programs of the run shared, which the test kit keeps to its end.
    fn remove_shared_images(&self, label: &str) {
        for folder in &self.folders {
            drop(fs::remove_dir_all(
                folder.join(format!("fourscore-{label}-images")),
            ));
        }
    }
}

/// All that has the label in its path.
fn left(label: &str, places: &Places) -> Result<Vec<Left>> {
    let label = format!("fourscore-{label}-");
    let mut left = Vec::new();
    let mounts = fs::read_to_string(&places.mounts)?;
    for line in mounts.lines().filter(|line| line.contains(&label)) {
        let point = line.split(' ').nth(1).unwrap_or_default();
        left.push(Left::Mount(point.into()));
    }
    for device in fs::read_dir(&places.block_devices).into_iter().flatten() {
        let device = device?;
        let file = fs::read_to_string(device.path().join("loop/backing_file"));
        if let Ok(file) = file
            && file.contains(&label)
        {
            left.push(Left::Loop(device.file_name().into()));
        }
    }
    for folder in &places.folders {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&label) {
                left.push(Left::Folder(entry.path()));
            }
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_the_label_of_the_run_is_listed() {
        let machine = tempfile::tempdir().unwrap();
        let path = |below: &str| machine.path().join(below);
        let device = |name: &str, file: &str| {
            fs::create_dir_all(path("block").join(name).join("loop")).unwrap();
            fs::write(path("block").join(name).join("loop/backing_file"), file).unwrap();
        };
        fs::create_dir_all(path("shm/fourscore-run7-abc")).unwrap();
        fs::create_dir_all(path("shm/fourscore-run71-abc")).unwrap();
        fs::create_dir_all(path("block/sda")).unwrap();
        device("loop0", "/shm/fourscore-run7-abc/image (deleted)\n");
        device("loop1", "/shm/other\n");
        let mounts = "/dev/loop0 /shm/fourscore-run7-def ext4 rw 0 0\n/dev/sda / ext4 rw 0 0\n";
        fs::write(path("mounts"), mounts).unwrap();
        let places = Places {
            mounts: path("mounts"),
            block_devices: path("block"),
            folders: [path("shm"), path("none")],
        };
        let folder = path("shm/fourscore-run7-abc");
        let expected = [
            Left::Mount("/shm/fourscore-run7-def".into()),
            Left::Loop("loop0".into()),
            Left::Folder(folder.clone()),
        ];
        assert_eq!(left("run7", &places).unwrap(), expected);
        expected[2].remove();
        assert!(!folder.exists());
        assert!(left("run8", &places).unwrap().is_empty());
        fs::create_dir_all(path("shm/fourscore-run9-images/ext4-1k")).unwrap();
        places.remove_shared_images("run9");
        assert!(left("run9", &places).unwrap().is_empty());
    }
}
