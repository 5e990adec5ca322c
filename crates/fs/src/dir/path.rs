//! **Purpose.** From a path to an inode.
//!
//! **Model.** A path is walked component by component from the root directory. When a symbolic
//! link is met, what is still to be walked becomes its target followed by the rest; an absolute
//! target goes back to the root first. `..` is the entry of that name on disk (in the root it
//! leads to the root). Empty components are skipped; a slash behind a component asks for a
//! directory.
//!
//! **Invariants.** At most [`MAX_SYMLINKS`] links are followed, each with a target of at most one
//! block, so work and memory are bounded for any image.
//!
//! **Locking.** None as a rule; see [`crate::inode::consistent`]. Ancestors are not referenced: a step
//! holds only an inode number, and revalidates the name that led there.
//!
//! **References.** path_resolution(7).

use std::borrow::Cow;

use fourscore_ondisk::InodeNr;

use crate::dir::find::Keep;
use crate::inode::consistent::Step;
use crate::{Error, FileType, Fs, Result};

/// Links followed in one walk, as in Linux.
const MAX_SYMLINKS: u32 = 40;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The result is what the link leads to, as in `stat`.
    Yes,
    /// The result is the link itself, as in `lstat`.
    No,
}

impl Fs {
    /// The inode at `path`, which starts at the root whether it begins with a slash or not.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `TooManySymlinks`, `NameTooLong`.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<InodeNr> {
        let mut here = InodeNr::ROOT;
        let mut links = 0;
        let mut text = Cow::Borrowed(path);
        let mut at = 0;
        while let Some((name, end)) = next_component(&text, at) {
            let is_last = end >= text.len();
            let step = match is_last && follow == Follow::No {
                true => Step::Inode(self.find_name(here, name, Keep::Found)?),
                false => self.step_to(here, name)?,
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
        if text.ends_with(b"/") && self.stat(here)?.file_type != FileType::Directory {
            return Err(Error::NotADirectory);
        }
        Ok(here)
    }
}

/// The next component of `path` at or behind byte `at`, and the byte behind it.
fn next_component(path: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = path.get(at..)?;
    let start = at + rest.iter().position(|&byte| byte != b'/')?;
    let name = path.get(start..)?.split(|&byte| byte == b'/').next()?;
    Some((name, start + name.len()))
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
