//! **Purpose.** Gives access to the state before the fast commits: the file system with its log
//! replayed and its fast commits not yet applied.
//!
//! **Not here.** Applying the fast commits to this state (`crate::mount::fast_commit`).

use fourscore_ondisk::{Inode, InodeNr};

use crate::core::Core;
use crate::dir::{find, names};
use crate::inode::{cache, orphan_list};
use crate::mount::fast_commit::Before;
use crate::{Error, Result};

/// A file system whose log was replayed and whose fast commits were not applied yet.
impl Before for Core {
    fn orphans(&self) -> Result<Vec<InodeNr>> {
        match orphan_list::orphans(self) {
            Err(Error::Corrupt(_) | Error::NotFound) => Ok(Vec::new()),
            found => found,
        }
    }

    fn inode(&self, nr: InodeNr) -> Result<Option<Inode>> {
        match cache::load_inode(self, nr) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::NotFound | Error::Corrupt(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn find(&self, dir: InodeNr, name: &[u8]) -> Result<Option<InodeNr>> {
        match find::lookup(self, dir, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn key(&self, dir: InodeNr, name: &[u8]) -> Result<Vec<u8>> {
        let dir = match cache::inode_copy(self, dir) {
            Ok(dir) => dir,
            Err(Error::NotFound | Error::Corrupt(_)) => return Ok(name.to_vec()),
            Err(error) => return Err(error),
        };
        let wanted = names::wanted(self, &dir, name);
        Ok(wanted.hash_input().unwrap_or(name).to_vec())
    }
}
