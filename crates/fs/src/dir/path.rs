//! **Purpose.** Path resolution: maps a path to an inode.
//!
//! **Model.** A path is walked component by component from the root directory. At a symbolic link,
//! the rest of the walk becomes the link's target followed by the rest of the path; an absolute
//! target restarts at the root. `..` is the entry of that name on disk (in the root it refers to
//! the root). Empty components are skipped; a slash after a component requires a directory.
//!
//! **Invariants.** At most [`MAX_SYMLINKS`] links are followed, each with a target of at most one
//! block, so work and memory are bounded for any image.
//!
//! **Locking.** None as a rule; see [`crate::inode::consistent`]. Ancestors are not referenced: a
//! step holds only an inode number, and revalidates the name that referred to it.
//!
//! **References.** path_resolution(7).

use std::borrow::Cow;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;
use fourscore_sync::thread;

use crate::core::Core;
use crate::dir::find::{self, Keep};
use crate::dir::name_cache::Moment;
use crate::file::symlink;
use crate::guard::{Guard, with_guard};
use crate::inode::cached::CachedInode;
use crate::inode::{cache, consistent, stat};
use crate::txn::faults::Sabotage;
use crate::{Error, Result};

/// The number of links that one walk follows at most, as in Linux.
const MAX_SYMLINKS: u32 = 40;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The result is the inode that the link refers to, as in `stat`.
    Yes,
    /// The result is the link itself, as in `lstat`.
    No,
}

/// See [`Fs::resolve`](crate::Fs::resolve).
pub(crate) fn resolve(core: &Core, path: &[u8], follow: Follow) -> Result<InodeNr> {
    let mut here = InodeNr::ROOT;
    let mut links = 0;
    let mut text = Cow::Borrowed(path);
    let mut at = 0;
    while let Some((name, end)) = next_component(&text, at) {
        let is_last = end >= text.len();
        let step = match is_last && follow == Follow::No {
            true => Step::Inode(find::find_name(core, here, name, Keep::Found)?),
            false => step_to(core, here, name)?,
        };
        match step {
            Step::Inode(inode) => (here, at) = (inode, end),
            Step::Link(mut target) => {
                links += 1;
                if links > MAX_SYMLINKS {
                    return Err(Error::TooManySymlinks);
                }
                if target.first() == Some(&b'/') {
                    here = InodeNr::ROOT;
                }
                target.extend_from_slice(text.get(end..).unwrap_or_default());
                (text, at) = (Cow::Owned(target), 0);
            }
        }
    }
    if text.ends_with(b"/") && stat::stat(core, here)?.file_type != FileType::Directory {
        return Err(Error::NotADirectory);
    }
    Ok(here)
}

/// Returns the next component of `path` at or after byte `at`, and the offset of the byte after it.
fn next_component(path: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = path.get(at..)?;
    let start = at + rest.iter().position(|&byte| byte != b'/')?;
    let name = path.get(start..)?.split(|&byte| byte == b'/').next()?;
    Some((name, start + name.len()))
}

/// How often an operation that starts from names is restarted before a name that refers to a
/// missing inode is taken for corrupt. Each restart requires that another thread renames over that
/// name between two steps of this one.
const NAME_ATTEMPTS: u32 = 64;

/// What one component of a path refers to.
#[derive(Debug)]
pub(crate) enum Step {
    /// An inode that is not a symbolic link.
    Inode(InodeNr),
    /// A symbolic link with this target.
    Link(Vec<u8>),
}
/// Returns what `name` refers to in `dir`, and the target if that is a symbolic link. The target is
/// that of the inode that had the name, even if other threads replace it meanwhile and its number
/// is reused.
///
/// # Errors
/// As [`find::find_name`]; `Corrupt` for a symbolic link that breaks the format.
pub(crate) fn step_to(core: &Core, dir: InodeNr, name: &[u8]) -> Result<Step> {
    let step = || {
        let moment = with_guard(core, |guard| {
            Ok(cache::cell(core, dir, guard)?.departures().moment())
        })?;
        let nr = find::find_name(core, dir, name, Keep::Found)?;
        let step =
            consistent::read_consistent(core, nr, |inode, guard| step_of(core, inode, guard))?;
        if has_kept_names(core, dir, moment)?
            || find::find_name(core, dir, name, Keep::Nothing)? == nr
        {
            return Ok(step);
        }
        // Restarted, since the name exists.
        Err(Error::NotFound)
    };
    match core.faults.lacks(Sabotage::PathWithoutRevalidation) {
        false => revalidated(core, &[(dir, name)], step),
        true => {
            let nr = find::find_name(core, dir, name, Keep::Found)?;
            with_guard(core, |guard| {
                step_of(core, cache::inode(core, nr, guard)?, guard)
            })
        }
    }
}

/// Whether no name has departed from the directory `dir` since `moment`.
pub(crate) fn has_kept_names(core: &Core, dir: InodeNr, moment: Option<Moment>) -> Result<bool> {
    with_guard(core, |guard| {
        let cell = cache::cell(core, dir, guard)?;
        // Names of an inline directory are removed without a departure.
        let has_departures = !cell.version(guard)?.is_inline();
        Ok(has_departures && moment.is_some() && cell.departures().moment() == moment)
    })
}

fn step_of(core: &Core, inode: &CachedInode, guard: &Guard) -> Result<Step> {
    match inode.file_type() {
        fourscore_ondisk::inode::FileType::Symlink => {
            Ok(Step::Link(symlink::link_target(core, inode, guard)?))
        }
        _ => Ok(Step::Inode(inode.nr())),
    }
}

/// Returns the result of `attempt` for an operation that starts from `names`. The operation looks
/// names up without a lock and then uses the inodes. Another thread may rename over a name in
/// between: the inode that the name referred to is deleted although the name was never missing, and
/// its number may be used again. So `NotFound` counts only if one of the names is missing;
/// otherwise the operation is restarted. No lock is held between two attempts.
///
/// # Errors
/// `NotFound` if one of the names is missing; `Corrupt` if one of them refers to the value of an
/// attribute; otherwise the error of `attempt`.
pub(crate) fn revalidated<T>(
    core: &Core,
    names: &[(InodeNr, &[u8])],
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut last = Error::NotFound;
    for _ in 0..NAME_ATTEMPTS {
        match attempt() {
            Err(error @ Error::NotFound) => last = error,
            answer => return answer,
        }
        for (dir, name) in names {
            find::find_name(core, *dir, name, Keep::Found)?;
        }
        thread::yield_now();
    }
    Err(last)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn components_skip_slashes_and_end() {
        let path = b"//usr/./lib//x/";
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = 0;
        while let Some((name, end)) = next_component(path, at) {
            names.push(name);
            at = end;
        }
        assert_eq!(names, [&b"usr"[..], b".", b"lib", b"x"]);
        assert_eq!(next_component(b"", 0), None);
        assert_eq!(next_component(b"///", 0), None);
    }
}
