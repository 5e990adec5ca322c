//! **Purpose.** The kinds of file systems that experiments compare, and what a machine lacks for
//! one.

use std::path::Path;
use std::process::{Command, Stdio};

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// ext4 of the kernel on a loop device.
    Ext4,
    /// XFS of the kernel on a loop device.
    Xfs,
    /// Btrfs of the kernel on a loop device.
    Btrfs,
    /// ext4 through fuse2fs.
    Fuse2fs,
    /// ext4 through `fourscore mount`.
    Mount,
    /// ext4 through the library, in this process.
    InProcess,
}

impl FsKind {
    /// All of them, the kernel's ext4 first.
    pub const ALL: [Self; 6] = [
        Self::Ext4,
        Self::Xfs,
        Self::Btrfs,
        Self::Fuse2fs,
        Self::Mount,
        Self::InProcess,
    ];

    /// Its name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Fuse2fs => "fuse2fs",
            Self::Mount => "mount",
            Self::InProcess => "in-process",
        }
    }

    /// What it is, in a few words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Ext4 => "the kernel's ext4 on a loop device",
            Self::Xfs => "the kernel's XFS on a loop device",
            Self::Btrfs => "the kernel's Btrfs on a loop device",
            Self::Fuse2fs => "fuse2fs on an image file",
            Self::Mount => "fourscore mount on an image file",
            Self::InProcess => "the library of fourscore in this process, on an image file",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether programs can use it, which need a mount.
    #[must_use]
    pub fn is_mounted(self) -> bool {
        self != Self::InProcess
    }

    /// Whether its image is one of ext4.
    #[must_use]
    pub fn is_ext4(self) -> bool {
        !matches!(self, Self::Xfs | Self::Btrfs)
    }

    /// The type under which the kernel mounts it; `None` if it has a server, or no mount.
    pub(super) fn driver(self) -> Option<&'static str> {
        match self {
            Self::Ext4 => Some("ext4"),
            Self::Xfs => Some("xfs"),
            Self::Btrfs => Some("btrfs"),
            Self::Fuse2fs | Self::Mount | Self::InProcess => None,
        }
    }

    /// The programs besides fourscore that make and mount it.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["mount"],
            Self::Xfs => &["mkfs.xfs", "mount"],
            Self::Btrfs => &["mkfs.btrfs", "mount"],
            Self::Fuse2fs => &["fuse2fs"],
            Self::Mount | Self::InProcess => &[],
        }
    }

    /// What this machine or this user lacks for it; `None` if nothing is known to be missing.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        let mut programs = self.programs().iter();
        if let Some(program) = programs.find(|program| !is_installed(program)) {
            return Some(format!("{program} is not installed"));
        }
        let needs = |path: &str| (!Path::new(path).exists()).then(|| format!("there is no {path}"));
        match self.driver() {
            Some(_) if !rustix::process::geteuid().is_root() => Some("it needs root".to_owned()),
            Some(driver) if !has_driver(driver) => Some(format!("the kernel has no {driver}")),
            Some(_) => needs("/dev/loop-control"),
            None if self.is_mounted() => needs("/dev/fuse"),
            None => None,
        }
    }
}

/// Whether a program is in one of the directories of `PATH`.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Whether the kernel has a file system, or a module for it, which is loaded.
fn has_driver(driver: &str) -> bool {
    let is_listed = || {
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        known.lines().any(|line| line.trim_start() == driver)
    };
    let load = || {
        let mut modprobe = Command::new("modprobe");
        modprobe.args(["-q", driver]).stderr(Stdio::null());
        modprobe.status().is_ok_and(|status| status.success())
    };
    is_listed() || (load() && is_listed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_their_names() {
        for kind in FsKind::ALL {
            assert_eq!(FsKind::by_name(kind.name()), Some(kind));
        }
        assert_eq!(FsKind::by_name("ext5"), None);
        assert_eq!(FsKind::InProcess.missing(), None);
    }

    #[test]
    fn programs_and_drivers_that_do_not_exist_are_missing() {
        assert!(is_installed("sh") && !is_installed("mkfs.none"));
        assert!(has_driver("ext4") || !Path::new("/sys/fs/ext4").exists());
        assert!(!has_driver("none"));
    }
}
