//! **Purpose.** Reads the targets of symbolic links.
//!
//! **Model.** A target of less than 60 bytes lies in the inode. A longer one is the data of the
//! link, at most one block. A zero byte ends the target early, as it does for the kernel.

use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock};

use crate::core::Core;
use crate::dir::names;
use crate::file::read;
use crate::guard::Guard;
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::consistent;
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::{Error, Result};

/// See [`Fs::read_link`](crate::Fs::read_link).
pub(crate) fn read_link(core: &Core, inode: InodeNr) -> Result<Vec<u8>> {
    consistent::read_consistent(core, inode, |inode, guard| match inode.file_type() {
        FileType::Symlink => link_target(core, inode, guard),
        _ => Err(Error::InvalidArgument("not a symbolic link")),
    })
}

/// Returns the target of the symbolic link `inode`; it is not empty.
pub(crate) fn link_target(core: &Core, inode: &CachedInode, guard: &Guard) -> Result<Vec<u8>> {
    let most = match inode.layout() {
        Layout::FastSymlink => inode.i_block().len(),
        _ => core.geometry().block_size().bytes(),
    };
    let found_bytes = inode.size_bytes();
    let wrong = || {
        let error = RelationError::SymlinkSize { found_bytes, most };
        Error::from(Corrupt::from(error).in_inode(inode.nr()))
    };
    let len = usize::try_from(found_bytes)
        .ok()
        .filter(|len| (1..=most).contains(len));
    let len = len.ok_or_else(wrong)?;
    let mut target = match inode.layout() {
        Layout::FastSymlink => inode.i_block().get(..len).unwrap_or_default().to_vec(),
        _ => long_target(core, inode, len, guard)?,
    };
    if inode.is_encrypted() {
        return names::shown_link_target(inode, &target);
    }
    if let Some(end) = target.iter().position(|&byte| byte == 0) {
        target.truncate(end);
    }
    if target.is_empty() {
        Err(wrong())
    } else {
        Ok(target)
    }
}

/// Returns the data of a link that has a block. On a read-write mount the block may be newer in
/// memory than on the device.
fn long_target(core: &Core, inode: &CachedInode, len: usize, guard: &Guard) -> Result<Vec<u8>> {
    if core.is_live()
        && let Target::Written(block) = lookup::map(core, inode, LogicalBlock(0), guard)?.target
        && let Some(buffer) = core.buffers.cached(block, guard)
    {
        let bytes = buffer.bytes(guard);
        return Ok(bytes.get(..len).unwrap_or(bytes).to_vec());
    }
    let mut target = vec![0; len];
    read::read_pinned(core, inode, &mut target, guard)?;
    Ok(target)
}
