//! **Purpose.** Removes deleted inodes from memory and makes their numbers available.
//!
//! **Not here.** The deletion on disk (`crate::inode::end`).
//!
//! **Invariants.** The plan that deletes the inode has been applied, and its end is published
//! before its number becomes available.

use fourscore_ondisk::InodeNr;

use crate::inode::cell::Pinned;
use crate::inode::{alloc, cache};
use crate::mount::state::Mount;
use crate::xattr::gone_value::GoneValue;

/// Forgets the inodes of deleted attribute values. Their numbers can be allocated again after that,
/// so the inodes that had the attributes must have been published without them before.
pub(crate) fn forget_values(mount: &Mount, gone: Vec<GoneValue>) {
    for GoneValue { nr, pinned } in gone {
        forget_inode(mount, nr, &pinned);
    }
}

/// Forgets a deleted inode. Its number can be allocated again after that.
pub(crate) fn forget_inode(mount: &Mount, nr: InodeNr, pinned: &Pinned) {
    pinned.publish(None);
    cache::drop_pinned(&mount.core, nr, pinned);
    alloc::freed(mount, nr);
}
