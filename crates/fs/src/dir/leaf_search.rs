//! **Purpose.** Looks for a name in one leaf block of a directory.
//!
//! **Not here.** Which leaf may have the name: the hash index (`dir::index`) or the walk through
//! all blocks (`dir::blocks`) decides that.
//!
//! **Locking.** None for the caller to hold; the buffer of a leaf that is being changed is locked
//! while the leaf is examined.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::dirent::{DirFormat, DirentError};
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock};

use crate::core::Core;
use crate::dir::structure::{self, DirBlock};
use crate::dir::wanted::Wanted;
use crate::guard::Guard;
use crate::inode::cached::CachedInode;
use crate::{Result, metadata};

/// Returns the inode of the name, if it is in block `at`, which is a leaf.
pub(crate) fn search_leaf(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    at: LogicalBlock,
    wanted: &Wanted<'_>,
    guard: &Guard,
) -> Result<Option<InodeNr>> {
    let block = structure::dir_place(core, dir, at, guard)?;
    let found = look_at_leaf(core, dir, format, block, guard, |bytes| {
        let entry = wanted.find_in(format, bytes)?;
        Ok(entry.map(|entry| entry.inode))
    })?;
    Ok(found.map_err(|error: DirentError| Corrupt::from(error).in_inode(dir.nr()))?)
}

/// Returns the result of `look` on the bytes of a leaf of `dir`. As a rule this does not freeze a
/// mutable copy of the leaf. An operation that looks for a name before it adds one would otherwise
/// copy the leaf for each name. So `look` may run under the lock of the leaf's buffer, and must do
/// nothing but examine the bytes.
pub(crate) fn look_at_leaf<R>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    block: PhysBlock,
    guard: &Guard,
    look: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    let tag = VerifiedAs::new(Structure::DirectoryLeaf, dir.nr());
    let check = |bytes: &[u8]| structure::check_bytes(core, dir, format, DirBlock::Leaf, bytes);
    metadata::look_at_metadata(core, block, tag, guard, check, look)
}
