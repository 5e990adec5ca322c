//! **Purpose.** Creates objects below one directory of the host, and never outside of it.
//!
//! **Model.** Every object is created relative to an open parent directory by a name of one
//! component, and only if that name does not exist (`O_EXCL` and similar flags), so that no
//! symbolic link of a hostile image is followed. A directory is opened again by its path below the
//! target ([`fourscore_build::host::beneath`]).
//!
//! **Invariants.** A name is refused when it is empty, `.` or `..`, or has a slash or NUL in it.

use std::fs::File;
use std::path::Path;

use fourscore_build::host::beneath;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    makedev, mkdirat, mknodat, openat, symlinkat, utimensat,
};
use rustix::io::Errno;

use crate::facts::{Facts, Kind, Time};
use crate::failure::{Failure, Result};
use crate::walk::line::Attributes;

/// What this user can restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Owners, devices and all attributes are restored.
    Root,
    /// All objects belong to this user. Devices, and attributes that only root may set, are left
    /// out.
    User,
}

/// The directory that a tree is extracted to.
#[derive(Debug)]
pub(crate) struct TargetTree {
    root: OwnedFd,
    pub(crate) privilege: Privilege,
}

/// An open directory of the target.
#[derive(Debug)]
pub(crate) struct TargetDir(OwnedFd);

impl AsFd for TargetDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn why(errno: Errno) -> Failure {
    Failure::new("", errno)
}

impl TargetTree {
    /// Opens `path`, which is created if it does not exist, and must be empty if it does.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let named = |error: std::io::Error| Failure::new(path.display().to_string(), error);
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(named(error));
            }
            _ => {}
        }
        if std::fs::read_dir(path).map_err(named)?.next().is_some() {
            return Err(
                Failure::new(path.display().to_string(), "the directory is not empty")
                    .advise("extract into a new or an empty directory"),
            );
        }
        Self::existing(path)
    }

    /// Opens the directory `path`, which need not be empty.
    pub(crate) fn existing(path: &Path) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        let privilege = if rustix::process::geteuid().is_root() {
            Privilege::Root
        } else {
            Privilege::User
        };
        Ok(Self {
            root: root.map_err(|errno| Failure::new(path.display().to_string(), errno))?,
            privilege,
        })
    }

    /// Opens the directory at `path` (names joined by slashes, empty for the root).
    pub(crate) fn directory(&self, path: &[u8]) -> Result<TargetDir> {
        beneath::open_directory(&self.root, path)
            .map(TargetDir)
            .map_err(why)
    }
}

/// Refuses names that are not one component of a path.
fn checked(name: &[u8]) -> rustix::io::Result<&[u8]> {
    let harmful = name.is_empty() || name == b"." || name == b"..";
    if harmful || name.contains(&b'/') || name.contains(&0) {
        Err(Errno::INVAL)
    } else {
        Ok(name)
    }
}

/// As [`checked`], with a message.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    checked(name).map(|_| ()).map_err(|_| {
        Failure::new(
            "",
            "the image has an entry with this name, which would be outside of the target",
        )
    })
}

impl TargetDir {
    /// Creates a directory that only this user can enter until its contents are complete.
    pub(crate) fn create_directory(&self, name: &[u8]) -> Result<()> {
        check_name(name)?;
        mkdirat(&self.0, name, Mode::RWXU).map_err(why)
    }

    /// Creates an empty file that only this user can open.
    pub(crate) fn create_file(&self, name: &[u8]) -> Result<File> {
        check_name(name)?;
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(why)
    }

    /// Creates a symbolic link.
    pub(crate) fn create_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        check_name(name)?;
        symlinkat(target, &self.0, name).map_err(why)
    }

    /// Creates a fifo, socket or device node.
    pub(crate) fn create_node(&self, name: &[u8], facts: &Facts) -> Result<()> {
        check_name(name)?;
        let kind = match facts.kind {
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::CharDevice => FileType::CharacterDevice,
            Kind::BlockDevice => FileType::BlockDevice,
            other => {
                return Err(Failure::new(
                    "",
                    format_args!("cannot create a {}", other.name()),
                ));
            }
        };
        let device = makedev(facts.rdev_major, facts.rdev_minor);
        mknodat(&self.0, name, kind, Mode::RUSR | Mode::WUSR, device).map_err(why)
    }

    /// Creates a hard link `name` to `old_name` in the directory `old`.
    pub(crate) fn create_hard_link(&self, name: &[u8], old: &Self, old_name: &[u8]) -> Result<()> {
        check_name(name)?;
        check_name(old_name)?;
        rustix::fs::linkat(&old.0, old_name, &self.0, name, AtFlags::empty()).map_err(why)
    }

    /// Sets owner, attributes, mode and times of a new object. The order matters: a new owner
    /// clears setuid and capabilities, an ACL changes the mode, and everything changes the times.
    /// Returns the number of attributes that were left out because only root may set them.
    pub(crate) fn finish(
        &self,
        name: &[u8],
        facts: &Facts,
        attributes: &Attributes,
        privilege: Privilege,
    ) -> Result<u64> {
        check_name(name)?;
        if privilege == Privilege::Root {
            chownat(
                &self.0,
                name,
                owner(facts),
                group(facts),
                AtFlags::SYMLINK_NOFOLLOW,
            )
            .map_err(why)?;
        }
        let path = [
            format!("/proc/self/fd/{}/", self.0.as_raw_fd()).as_bytes(),
            name,
        ]
        .concat();
        let left_out = set_attributes(attributes, privilege, |key, value| {
            rustix::fs::lsetxattr(path.as_slice(), key, value, XattrFlags::empty())
        })?;
        if facts.kind != Kind::Symlink {
            // The object was created here under this name, and only this user can replace it.
            chmodat(&self.0, name, mode(facts), AtFlags::empty()).map_err(why)?;
        }
        utimensat(&self.0, name, &times(facts), AtFlags::SYMLINK_NOFOLLOW).map_err(why)?;
        Ok(left_out)
    }

    /// As [`TargetDir::finish`], for the open directory itself.
    pub(crate) fn finish_itself(
        &self,
        facts: &Facts,
        attributes: &Attributes,
        privilege: Privilege,
    ) -> Result<u64> {
        finish_open(&self.0, facts, attributes, privilege)
    }
}

/// As [`TargetDir::finish`], for an open file or directory.
pub(crate) fn finish_open(
    fd: impl AsFd,
    facts: &Facts,
    attributes: &Attributes,
    privilege: Privilege,
) -> Result<u64> {
    let fd = fd.as_fd();
    if privilege == Privilege::Root {
        rustix::fs::fchown(fd, owner(facts), group(facts)).map_err(why)?;
    }
    let left_out = set_attributes(attributes, privilege, |key, value| {
        rustix::fs::fsetxattr(fd, key, value, XattrFlags::empty())
    })?;
    rustix::fs::fchmod(fd, mode(facts)).map_err(why)?;
    rustix::fs::futimens(fd, &times(facts)).map_err(why)?;
    Ok(left_out)
}

/// Sets every attribute that this user may set. Returns the number of those that were left out.
fn set_attributes(
    attributes: &Attributes,
    privilege: Privilege,
    mut set: impl FnMut(&[u8], &[u8]) -> rustix::io::Result<()>,
) -> Result<u64> {
    let mut left_out = 0;
    for (name, value) in attributes.iter() {
        let for_root = name.starts_with(b"trusted.") || name.starts_with(b"security.");
        if for_root && privilege == Privilege::User {
            left_out += 1;
            continue;
        }
        set(name, value).map_err(|errno| {
            let name = crate::text::printable(name);
            Failure::new("", format_args!("extended attribute {name}: {errno}"))
        })?;
    }
    Ok(left_out)
}

fn owner(facts: &Facts) -> Option<Uid> {
    Some(Uid::from_raw(facts.uid))
}

fn group(facts: &Facts) -> Option<Gid> {
    Some(Gid::from_raw(facts.gid))
}

fn mode(facts: &Facts) -> Mode {
    Mode::from_raw_mode(facts.permissions)
}

fn times(facts: &Facts) -> Timestamps {
    let spec = |time: Time| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    Timestamps {
        last_access: spec(facts.atime),
        last_modification: spec(facts.mtime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> (tempfile::TempDir, TargetTree) {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let tree = TargetTree::open(&scratch.path().join("new")).expect("a new directory");
        (scratch, tree)
    }

    #[test]
    fn names_outside_of_the_target_are_refused() {
        let (_scratch, tree) = target();
        let root = tree.directory(b"").expect("the root");
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b", b"../x"] {
            assert!(root.create_directory(name).is_err(), "{name:?}");
            assert!(root.create_file(name).is_err(), "{name:?}");
            assert!(root.create_symlink(name, b"x").is_err(), "{name:?}");
        }
        root.create_directory(b"...")
            .expect("an odd but harmless name");
    }

    #[test]
    fn symbolic_links_are_never_followed() {
        let (scratch, tree) = target();
        let root = tree.directory(b"").expect("the root");
        std::fs::create_dir(scratch.path().join("outside")).expect("space");
        root.create_symlink(b"link", b"../outside").expect("a link");
        root.create_symlink(b"file", b"../outside/f")
            .expect("a link");
        assert!(tree.directory(b"link").is_err());
        assert!(tree.directory(b"../outside").is_err());
        assert!(root.create_file(b"file").is_err());
        assert!(root.create_directory(b"link").is_err());
        let left = std::fs::read_dir(scratch.path().join("outside")).expect("it exists");
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn deep_directories_are_opened_again() {
        let (_scratch, tree) = target();
        let name = [b'n'; 250];
        let mut path = Vec::new();
        for _ in 0..40 {
            tree.directory(&path)
                .and_then(|dir| dir.create_directory(&name))
                .expect("space");
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
        }
        assert!(path.len() > 2 * 4096);
        tree.directory(&path)
            .and_then(|dir| dir.create_file(b"f"))
            .expect("space");
    }

    #[test]
    fn only_an_empty_directory_is_a_target() {
        let (scratch, tree) = target();
        tree.directory(b"")
            .and_then(|root| root.create_file(b"f"))
            .expect("space");
        let again = TargetTree::open(&scratch.path().join("new")).expect_err("not empty");
        assert!(again.to_string().contains("not empty"), "{again}");
    }
}
