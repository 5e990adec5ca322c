//! **Purpose.** Checks that hold for all callers, whatever their permissions: what the flags and
//! the kind of an inode forbid.
//!
//! **Not here.** Permissions (`crate::inode::permission`).

use fourscore_ondisk::inode::InodeFlags;

use crate::inode::cached::CachedInode;
use crate::{Error, Result};

/// Refuses to remove a name from an append-only directory, or a name of an inode that is immutable
/// or append-only.
pub(crate) fn check_name_may_go(dir: &CachedInode, inode: &CachedInode) -> Result<()> {
    if dir.has(InodeFlags::APPEND_FL) {
        return Err(Error::NotPermitted);
    }
    check_changeable(inode)
}

/// Refuses an inode that holds the value of an attribute: no caller may change it directly.
pub(crate) fn check_is_no_value(inode: &CachedInode) -> Result<()> {
    if inode.has(InodeFlags::EA_INODE_FL) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Refuses an inode that is immutable or append-only.
pub(crate) fn check_changeable(inode: &CachedInode) -> Result<()> {
    check_is_no_value(inode)?;
    if inode.has(InodeFlags::IMMUTABLE_FL) || inode.has(InodeFlags::APPEND_FL) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Refuses to give an inode a name in a directory that accepts only inodes of its own project.
pub(crate) fn check_project(dir: &CachedInode, inode: &CachedInode) -> Result<()> {
    let same = dir.on_disk().project_id() == inode.on_disk().project_id();
    if dir.has(InodeFlags::PROJINHERIT_FL) && !same {
        return Err(Error::CrossDevice);
    }
    Ok(())
}
