//! **Purpose.** Resolves a path, or the parent of a path, such that the call that follows works on
//! the inode to which the path referred.
//!
//! **Model.** Between the resolution of a path and the call by inode number, other threads may
//! remove the inode, and its number may be reused. A call that changes something therefore pins the
//! inode and resolves the path again: a pinned number is not reused. A call that only reads
//! resolves the path again afterwards, and pins nothing, so that it writes no shared memory. Either
//! starts again if the path refers to another inode by then.
//!
//! **Invariants.** A call starts again at most [`ATTEMPTS`] times.
//!
//! **Locking.** None is held between the steps.

use std::ops::Deref;

use fourscore_ondisk::InodeNr;
use fourscore_sync::thread;

use crate::core::Core;
use crate::dir::find::{self, Keep};
use crate::dir::path::{self, Follow};
use crate::facade::open_inode::OpenInode;
use crate::inode::cache;
use crate::inode::cell::Pinned;
use crate::{Error, Fs, Result};

/// How often a call starts again because other threads changed what its path refers to.
pub(crate) const ATTEMPTS: u32 = 64;

/// The last component of a path and the directory that it is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'p> {
    /// The directory, which is pinned.
    pub(crate) dir: InodeNr,
    /// The component; empty for the root.
    pub(crate) name: &'p [u8],
    /// What follows the component.
    pub(crate) ending: Ending,
}

/// What follows the last component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Nothing,
    /// One or several slashes: the path refers to a directory.
    Slash,
}

impl Place<'_> {
    /// Whether the component is a name that can be made and removed: not the root, `.` or `..`.
    pub(crate) fn is_name(&self) -> bool {
        !matches!(self.name, b"" | b"." | b"..")
    }
}

/// Refuses paths that nothing can have.
///
/// # Errors
/// `NotFound` for an empty path, `InvalidArgument` for one with a zero byte.
pub(crate) fn check(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        return Err(Error::NotFound);
    }
    match path.contains(&0) {
        true => Err(Error::InvalidArgument("a path with a zero byte")),
        false => Ok(()),
    }
}

/// Cuts a path into the part before its last component, which is empty or ends with a slash, the
/// component, and what follows it.
fn split(path: &[u8]) -> (&[u8], &[u8], Ending) {
    let is_no_slash = |&byte: &u8| byte != b'/';
    let end = path
        .iter()
        .rposition(is_no_slash)
        .map_or(0, |last| last + 1);
    let (whole, rest) = path.split_at(end);
    let begin = whole.iter().rposition(|&byte| byte == b'/');
    let (parent, name) = whole.split_at(begin.map_or(0, |slash| slash + 1));
    let ending = match rest.is_empty() {
        true => Ending::Nothing,
        false => Ending::Slash,
    };
    (parent, name, ending)
}

/// Calls `read` with the inode at `path`, and returns its result if the path still refers to that
/// inode afterwards.
///
/// # Errors
/// As [`Fs::resolve`]; `NotFound` for an empty path; those of `read`.
pub(crate) fn reading<T>(
    fs: &Fs,
    path: &[u8],
    follow: Follow,
    mut read: impl FnMut(InodeNr) -> Result<T>,
) -> Result<T> {
    check(path)?;
    let mut nr = fs.resolve(path, follow)?;
    for _ in 0..ATTEMPTS {
        let answer = read(nr);
        if fs.mount.is_none() {
            return answer;
        }
        match fs.resolve(path, follow)? {
            now if now == nr => return answer,
            now => nr = now,
        }
        thread::yield_now();
    }
    Err(Error::NotFound)
}

/// Calls `act` with the inode at `path`, which is pinned.
///
/// # Errors
/// As [`Fs::resolve`]; `NotFound` for an empty path; those of `act`.
pub(crate) fn pinned<T>(
    fs: &Fs,
    path: &[u8],
    follow: Follow,
    act: impl FnMut(InodeNr) -> Result<T>,
) -> Result<T> {
    check(path)?;
    pinning(&fs.core, || path::resolve(&fs.core, path, follow), act)
}

/// Calls `act` with the last component of `path` and the directory that it is in, which is pinned.
///
/// # Errors
/// As [`Fs::resolve`] for the directory; `NotFound` for an empty path; those of `act`.
pub(crate) fn at_parent<'p, T>(
    fs: &Fs,
    path: &'p [u8],
    mut act: impl FnMut(&Place<'p>) -> Result<T>,
) -> Result<T> {
    check(path)?;
    let (parent, name, ending) = split(path);
    let resolve = || path::resolve(&fs.core, parent, Follow::Yes);
    pinning(&fs.core, resolve, |dir| act(&Place { dir, name, ending }))
}

/// Opens the inode at `path`. Symbolic links are followed.
///
/// # Errors
/// As [`Fs::resolve`]; `NotFound` for an empty path.
pub(crate) fn opened<F: Deref<Target = Fs> + Clone>(fs: &F, path: &[u8]) -> Result<OpenInode<F>> {
    pinned(fs, path, Follow::Yes, |nr| OpenInode::new(fs.clone(), nr))
}

/// Pins the inode to which `name` refers in the directory `dir`, which is pinned.
///
/// # Errors
/// As [`Fs::lookup`].
pub(crate) fn pin_name(core: &Core, dir: InodeNr, name: &[u8]) -> Result<(InodeNr, Pinned)> {
    let resolve = || find::find_name(core, dir, name, Keep::Nothing);
    let mut nr = resolve()?;
    for _ in 0..ATTEMPTS {
        let pinned = cache::pin_inode(core, nr);
        match resolve()? {
            now if now == nr => return Ok((nr, pinned?)),
            now => nr = now,
        }
        thread::yield_now();
    }
    Err(Error::NotFound)
}

/// Calls `act` with the inode that `resolve` returns, which is pinned. If that is missing because
/// it was removed meanwhile, and another inode took its place, the call starts again.
fn pinning<T>(
    core: &Core,
    resolve: impl Fn() -> Result<InodeNr>,
    mut act: impl FnMut(InodeNr) -> Result<T>,
) -> Result<T> {
    let mut nr = resolve()?;
    for _ in 0..ATTEMPTS {
        let pinned = cache::pin_inode(core, nr);
        let mut now = resolve()?;
        if now == nr {
            let _pinned = pinned?;
            match act(nr) {
                Err(Error::NotFound) => now = resolve()?,
                answer => return answer,
            }
            if now == nr {
                return Err(Error::NotFound);
            }
        }
        nr = now;
        thread::yield_now();
    }
    Err(Error::NotFound)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_cut_before_its_last_component() {
        let cases: [(&str, (&str, &str, Ending)); 8] = [
            ("/a/b", ("/a/", "b", Ending::Nothing)),
            ("a/b//", ("a/", "b", Ending::Slash)),
            ("a", ("", "a", Ending::Nothing)),
            ("//a", ("//", "a", Ending::Nothing)),
            ("/", ("", "", Ending::Slash)),
            ("..", ("", "..", Ending::Nothing)),
            ("a/./", ("a/", ".", Ending::Slash)),
            ("", ("", "", Ending::Nothing)),
        ];
        for (path, (parent, name, ending)) in cases {
            let wanted = (parent.as_bytes(), name.as_bytes(), ending);
            assert_eq!(split(path.as_bytes()), wanted, "{path}");
        }
    }
}
