//! **Purpose.** Looks for a name in one leaf block of a directory.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::dirent::{DirFormat, DirentError};
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock};
use fourscore_sync::epoch::Guard;

use crate::core::Core;
use crate::dir::structure::{self, DirBlock};
use crate::dir::wanted::Wanted;
use crate::inode::cached::CachedInode;
use crate::{Result, metadata};

/// The inode of the name, if it is in block `at`, which is a leaf.
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

/// What `look` makes of a leaf of `dir`. One in which names are being made stays as it is: who
/// looks for a name before he makes it would else have the leaf copied for each. So `look` may
/// run under the lock of the leaf's buffer, and is to be about bytes only.
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
