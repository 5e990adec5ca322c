//! **Purpose.** What the flags and the kind of an inode forbid: operations that nobody may do,
//! whatever the permissions.

use fourscore_ondisk::inode::InodeFlags;

use crate::inode::cached::CachedInode;
use crate::{Error, Result};

/// Refuses to take a name out of a directory that only grows, or from an inode that does not
/// change.
pub(crate) fn check_name_may_go(dir: &CachedInode, inode: &CachedInode) -> Result<()> {
    if dir.has(InodeFlags::APPEND_FL) {
        return Err(Error::NotPermitted);
    }
    check_changeable(inode)
}

/// Refuses what holds the value of an attribute, and is nobody's to change.
pub(crate) fn check_is_no_value(inode: &CachedInode) -> Result<()> {
    if inode.has(InodeFlags::EA_INODE_FL) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Refuses what is immutable, or may only grow.
pub(crate) fn check_changeable(inode: &CachedInode) -> Result<()> {
    check_is_no_value(inode)?;
    if inode.has(InodeFlags::IMMUTABLE_FL) || inode.has(InodeFlags::APPEND_FL) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Refuses to give an inode a name in a directory that keeps to another project.
pub(crate) fn check_project(dir: &CachedInode, inode: &CachedInode) -> Result<()> {
    let same = dir.on_disk().project_id() == inode.on_disk().project_id();
    if dir.has(InodeFlags::PROJINHERIT_FL) && !same {
        return Err(Error::CrossDevice);
    }
    Ok(())
}
