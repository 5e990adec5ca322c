//! **Purpose.** Opens files below a directory of the host without leaving it.
//!
//! **Model.** No symbolic link is followed, neither at the end of a path nor on the way, so that
//! concurrent changes of the tree cannot redirect an open. `openat2(RESOLVE_BENEATH |
//! RESOLVE_NO_SYMLINKS)` ensures this in one call; where it is not available, the path is opened
//! name by name with `O_NOFOLLOW`. A path longer than `PATH_MAX` is opened in several steps. Access
//! times are preserved where the user may do so (`O_NOATIME`).
//!
//! **References.** openat2(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, Result};

/// How many bytes of a path are opened in one call; PATH_MAX is 4096.
const OPEN_BYTES_MAX: usize = 4000;

/// Opens the directory at `path`, names joined by slashes, below `root`. The empty path reopens the
/// root itself, with its own read position.
///
/// # Errors
/// Those of openat2; `ELOOP` for a symbolic link.
pub fn open_directory(root: impl AsFd, path: &[u8]) -> Result<OwnedFd> {
    let first = if path.is_empty() { b"." } else { path };
    let (piece, mut rest) = split_path(first);
    let mut open = open(root, piece, OFlags::DIRECTORY)?;
    while !rest.is_empty() {
        let (piece, after) = split_path(rest);
        open = self::open(&open, piece, OFlags::DIRECTORY)?;
        rest = after;
    }
    Ok(open)
}

/// Opens a path of at most 4000 bytes below `directory` for reading, with these additional flags.
///
/// # Errors
/// Those of openat2; `ELOOP` for a symbolic link.
pub fn open(directory: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let directory = directory.as_fd();
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match open_strictly(directory, path, flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open_strictly(directory, path, flags),
        opened => opened,
    }
}

fn open_strictly(directory: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    if !path.contains(&b'/') {
        return openat(directory, path, flags, Mode::empty());
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(directory, path, flags, Mode::empty(), resolve) {
        // The kernel is too old, or a sandbox blocks the call.
        Err(Errno::NOSYS) => open_name_by_name(directory, path, flags),
        opened => opened,
    }
}

fn open_name_by_name(directory: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let intermediate = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut names = path.split(|&byte| byte == b'/').peekable();
    let mut open: Option<OwnedFd> = None;
    while let Some(name) = names.next() {
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::INVAL);
        }
        let flags = if names.peek().is_some() {
            intermediate
        } else {
            flags
        };
        let from = open.as_ref().map_or(directory, AsFd::as_fd);
        open = Some(openat(from, name, flags, Mode::empty())?);
    }
    open.ok_or(Errno::NOENT)
}

/// Splits off a prefix that one call can open. A component has at most 255 bytes, so there is a
/// slash before the limit.
fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    let start = path
        .get(..OPEN_BYTES_MAX)
        .filter(|_| path.len() > OPEN_BYTES_MAX);
    let slash = start.and_then(|start| start.iter().rposition(|&byte| byte == b'/'));
    match slash {
        Some(slash) => (&path[..slash], path.get(slash + 1..).unwrap_or_default()),
        None => (path, b""),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn long_paths_are_opened_piece_by_piece() {
        let path = [b"0123456789012345".as_slice(); 255].join(&b'/');
        assert!(path.len() > OPEN_BYTES_MAX);
        let (first, rest) = split_path(&path);
        assert!(first.len() <= OPEN_BYTES_MAX && first.ends_with(b"5") && rest.starts_with(b"0"));
        assert_eq!([first, rest].join(&b'/'), path);
        assert_eq!(split_path(b"a/b"), (&b"a/b"[..], &b""[..]));
    }

    #[test]
    fn no_symbolic_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", folder.path().join("link")).unwrap();
        let root = File::open(folder.path()).unwrap();
        let by_name =
            |path| open_name_by_name(root.as_fd(), path, OFlags::DIRECTORY | OFlags::NOFOLLOW);
        assert!(open_directory(&root, b"").is_ok());
        for path in [&b"a/b"[..], b"a"] {
            assert!(open_directory(&root, path).is_ok());
            assert!(by_name(path).is_ok());
        }
        for path in [&b"link"[..], b"link/b", b"a/../a/b/../../../x", b"a/../.."] {
            assert!(open_directory(&root, path).is_err(), "{path:?}");
            assert!(by_name(path).is_err(), "{path:?}");
        }
    }
}
