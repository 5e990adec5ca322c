//! **Purpose.** Creates objects below one directory of the host, and never outside of it.
//!
//! **Model.** Every object is created relative to an open parent directory by a name of one
//! component, and only if that name does not exist (`O_EXCL` and similar flags), so that no
//! symbolic link of a hostile image is followed. A directory is opened again by its path below the
//! target ([`fourscore_build::host::beneath`]). What has been created is opened once, and owner,
//! attributes, mode and times are set on that descriptor, never by name: the directory may belong
//! to another user, who may have put something else there meanwhile.
//!
//! **Invariants.** A name is refused when it is empty, `.` or `..`, or has a slash or NUL in it. An
//! object has set-id bits only if it has the owner and group that they were meant for.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use fourscore_build::host::beneath;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat,
    chownat, fstat, makedev, mkdirat, mknodat, openat, statat, symlinkat, utimensat,
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
    /// All objects belong to this user. Devices, attributes that only root may set, and set-id bits
    /// that were meant for another owner or group are left out.
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
    /// Opens `path`, which is created if it does not exist, and must be empty if it does. Only this
    /// user can enter a new one until it is finished.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let named = |error: std::io::Error| Failure::new(path.display().to_string(), error);
        match DirBuilder::new().mode(0o700).create(path) {
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

    /// The tree below the directory at `path` (names joined by slashes, empty for the root).
    /// Missing directories are created. Symbolic links are not followed: `ELOOP`.
    pub(crate) fn below(&self, path: &[u8]) -> Result<Self> {
        let mut dir = self.directory(b"")?;
        for name in path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty())
        {
            dir = dir.enter(name)?;
        }
        Ok(Self {
            root: dir.0,
            privilege: self.privilege,
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

    /// Opens the directory `name`, which is created as mkdir(1) does if it is missing.
    fn enter(&self, name: &[u8]) -> Result<Self> {
        check_name(name)?;
        match mkdirat(&self.0, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(why(errno)),
        }
        match beneath::open_directory(&self.0, name) {
            Ok(fd) => Ok(Self(fd)),
            Err(Errno::NOTDIR) if self.is_symlink(name) => Err(why(Errno::LOOP)),
            Err(errno) => Err(why(errno)),
        }
    }

    fn is_symlink(&self, name: &[u8]) -> bool {
        let found = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
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
        let node = self.created(name, facts)?;
        if privilege == Privilege::Root {
            set_owner(&node, facts)?;
        }
        let path = path_of(&node);
        let set = set_attributes(attributes, privilege, |key, value| {
            rustix::fs::setxattr(path.as_str(), key, value, XattrFlags::empty())
        });
        let set = set.with_owner(facts, privilege);
        let (mode, lost) = set.permitted(facts, node.as_fd())?;
        if facts.kind != Kind::Symlink {
            chmodat(CWD, path.as_str(), mode, AtFlags::empty()).map_err(why)?;
        }
        set_times(&node, facts)?;
        set.left_out(lost)
    }

    /// Opens the symbolic link or node that was just created under this name, without following it.
    /// Something else that was put there since is refused.
    fn created(&self, name: &[u8], facts: &Facts) -> Result<OwnedFd> {
        check_name(name)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = openat(&self.0, name, flags, Mode::empty()).map_err(why)?;
        let found = fstat(&node).map_err(why)?;
        let device = makedev(facts.rdev_major, facts.rdev_minor);
        let is_kind = Kind::from_mode(found.st_mode) == facts.kind;
        let is_device = !facts.kind.is_device() || found.st_rdev == device;
        // A new object has one name. One that was linked here could be anybody's.
        if is_kind && is_device && found.st_nlink == 1 {
            return Ok(node);
        }
        Err(Failure::new(
            "",
            "was replaced by another program while it was extracted",
        ))
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
    let set = set_attributes(attributes, privilege, |key, value| {
        rustix::fs::fsetxattr(fd, key, value, XattrFlags::empty())
    });
    let set = set.with_owner(facts, privilege);
    let (mode, lost) = set.permitted(facts, fd)?;
    rustix::fs::fchmod(fd, mode).map_err(why)?;
    rustix::fs::futimens(fd, &times(facts)).map_err(why)?;
    set.left_out(lost)
}

/// The id that no user and no group of Linux has, although an image can hold it.
const NO_ID: u32 = u32::MAX;

/// A path by which the object of an `O_PATH` descriptor is reached, also if it is a symbolic link.
fn path_of(node: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

/// Sets owner and group of an object that was opened with `O_PATH`.
fn set_owner(node: &OwnedFd, facts: &Facts) -> Result<()> {
    let (uid, gid) = (owner(facts), group(facts));
    match chownat(node, c"", uid, gid, AtFlags::EMPTY_PATH) {
        // fakeroot does not know the flag.
        Err(Errno::NOENT) => chownat(CWD, path_of(node), uid, gid, AtFlags::empty()),
        set => set,
    }
    .map_err(why)
}

/// Sets the times of an object that was opened with `O_PATH`.
fn set_times(node: &OwnedFd, facts: &Facts) -> Result<()> {
    match utimensat(node, c"", &times(facts), AtFlags::EMPTY_PATH) {
        // Linux before 5.8 does not know the flag, and neither does fakeroot.
        Err(Errno::INVAL | Errno::NOENT) => {
            utimensat(CWD, path_of(node), &times(facts), AtFlags::empty())
        }
        set => set,
    }
    .map_err(why)
}

/// What became of the attributes of an object.
#[derive(Debug, Default)]
struct SetAttributes {
    /// How many were left out because only root may set them.
    left_out: u64,
    /// The first that the host refused.
    refused: Option<Failure>,
    /// Whether the access ACL is among the refused.
    is_acl_refused: bool,
}

impl SetAttributes {
    /// Notes an owner or group that this host cannot have.
    fn with_owner(mut self, facts: &Facts, privilege: Privilege) -> Self {
        if privilege == Privilege::Root && (facts.uid == NO_ID || facts.gid == NO_ID) {
            let why = format_args!("no user or group has the id {NO_ID}, the owner is left out");
            self.refused.get_or_insert(Failure::new("", why));
        }
        self
    }

    /// The mode that an object may have, after owner and attributes have been set, and whether
    /// set-id bits were left out: they are for the owner and group of the image only. Without its
    /// ACL, a group has no rights, since the bits of the group are then the mask of the ACL.
    fn permitted(&self, facts: &Facts, fd: BorrowedFd<'_>) -> Result<(Mode, bool)> {
        let set_ids = Mode::SUID | Mode::SGID;
        let mut mode = Mode::from_raw_mode(facts.permissions);
        if self.is_acl_refused {
            mode.remove(Mode::RWXG);
        }
        if !mode.intersects(set_ids) {
            return Ok((mode, false));
        }
        let found = fstat(fd).map_err(why)?;
        let is_meant = (found.st_uid, found.st_gid) == (facts.uid, facts.gid);
        if !is_meant {
            mode.remove(set_ids);
        }
        Ok((mode, !is_meant))
    }

    /// The number of attributes and set-id modes that were left out, or why the host refused one.
    fn left_out(self, lost_set_id: bool) -> Result<u64> {
        let count = self.left_out + u64::from(lost_set_id);
        self.refused.map_or(Ok(count), Err)
    }
}

/// Sets every attribute that this user may set and the host takes. ACLs are the last, since they
/// may forbid the owner to write, and Linux then refuses the user's attributes.
fn set_attributes(
    attributes: &Attributes,
    privilege: Privilege,
    mut set: impl FnMut(&[u8], &[u8]) -> rustix::io::Result<()>,
) -> SetAttributes {
    let mut done = SetAttributes::default();
    let is_acl = |name: &[u8]| name.starts_with(b"system.posix_acl_");
    let others = attributes.iter().filter(|(name, _)| !is_acl(name));
    let acls = attributes.iter().filter(|(name, _)| is_acl(name));
    for (name, value) in others.chain(acls) {
        let for_root = name.starts_with(b"trusted.") || name.starts_with(b"security.");
        if for_root && privilege == Privilege::User {
            done.left_out += 1;
            continue;
        }
        if let Err(errno) = set(name, value) {
            done.is_acl_refused |= name == b"system.posix_acl_access";
            let name = crate::text::printable(name);
            let failure = Failure::new("", format_args!("extended attribute {name}: {errno}"));
            done.refused.get_or_insert(failure);
        }
    }
    done
}

/// The owner to set; `None` for the id that means "no change" to the system.
fn owner(facts: &Facts) -> Option<Uid> {
    (facts.uid != NO_ID).then(|| Uid::from_raw(facts.uid))
}

/// As [`owner`], for the group.
fn group(facts: &Facts) -> Option<Gid> {
    (facts.gid != NO_ID).then(|| Gid::from_raw(facts.gid))
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
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

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

    fn facts(kind: Kind, permissions: u32, uid: u32) -> Facts {
        let time = Time {
            seconds: 1_000_000_000,
            nanoseconds: 0,
        };
        Facts {
            inode: 12,
            kind,
            permissions,
            uid,
            gid: rustix::process::getegid().as_raw(),
            links: 1,
            size_bytes: 0,
            blocks_512: 0,
            rdev_major: 0,
            rdev_minor: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            may_have_attributes: true,
        }
    }

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn what_replaced_a_new_node_is_not_changed() {
        let (scratch, tree) = target();
        let root = tree.directory(b"").expect("the root");
        let at = |name: &str| scratch.path().join(name);
        std::fs::write(at("secret"), "").expect("space");
        std::fs::set_permissions(at("secret"), Permissions::from_mode(0o600)).expect("ours");
        let fifo = facts(Kind::Fifo, 0o666, own_uid());
        root.create_symlink(b"link", b"../secret").expect("a link");
        std::fs::hard_link(at("secret"), at("new/file")).expect("a name");
        root.create_node(b"fifo", &fifo).expect("space");
        std::fs::hard_link(at("new/fifo"), at("new/twin")).expect("a name");
        for name in [&b"link"[..], b"file", b"fifo"] {
            let finished = root.finish(name, &fifo, &Attributes::default(), tree.privilege);
            let error = finished.expect_err("replaced");
            assert!(error.to_string().contains("replaced"), "{error}");
        }
        for name in ["secret", "new/fifo"] {
            let mode = std::fs::metadata(at(name)).expect("there").mode();
            assert_eq!(mode & 0o7777, 0o600, "{name}");
        }
    }

    #[test]
    fn set_id_bits_are_only_for_the_owner_that_they_were_meant_for() {
        let (scratch, tree) = target();
        let root = tree.directory(b"").expect("the root");
        let none = Attributes::default();
        for (name, uid, mode, lost) in [
            ("own", own_uid(), 0o6755, 0),
            ("other", own_uid() + 1, 0o755, 1),
        ] {
            let file = root.create_file(name.as_bytes()).expect("space");
            let wanted = facts(Kind::File, 0o6755, uid);
            let left_out = finish_open(&file, &wanted, &none, Privilege::User);
            assert_eq!(left_out.expect("ours"), lost);
            let found = std::fs::metadata(scratch.path().join("new").join(name));
            assert_eq!(found.expect("there").mode() & 0o7777, mode, "{name}");
        }
    }

    #[test]
    fn an_owner_that_no_host_has_is_reported() {
        let (_scratch, tree) = target();
        let root = tree.directory(b"").expect("the root");
        let file = root.create_file(b"f").expect("space");
        let mut wanted = facts(Kind::File, 0o4640, u32::MAX);
        wanted.gid = u32::MAX;
        let error = finish_open(&file, &wanted, &Attributes::default(), Privilege::Root);
        let error = error.expect_err("-1 changes no owner").to_string();
        assert!(error.contains("4294967295"), "{error}");
        let mode = file.metadata().expect("there").mode();
        assert_eq!(mode & 0o7777, 0o640, "set-id bits are for the owner");
    }

    #[test]
    fn a_refused_attribute_is_reported_and_mode_and_times_are_set() {
        let (scratch, tree) = target();
        let root = tree.directory(b"").expect("the root");
        let file = root.create_file(b"f").expect("space");
        let mut attributes = Attributes::default();
        attributes.push(b"no_such_class.name", b"value");
        let wanted = facts(Kind::File, 0o640, own_uid());
        let error = finish_open(&file, &wanted, &attributes, Privilege::User);
        let error = error.expect_err("no host has this class");
        assert!(error.to_string().contains("no_such_class.name"), "{error}");
        let found = std::fs::metadata(scratch.path().join("new/f")).expect("there");
        assert_eq!(
            (found.mode() & 0o7777, found.mtime()),
            (0o640, 1_000_000_000)
        );
    }

    #[test]
    fn only_this_user_enters_a_tree_that_is_not_finished() {
        let (scratch, _tree) = target();
        let found = std::fs::metadata(scratch.path().join("new")).expect("there");
        assert_eq!(found.mode() & 0o7777, 0o700);
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
