//! **Purpose.** Takes deleted inodes out of memory and gives their numbers back.

use fourscore_ondisk::InodeNr;

use crate::inode::cell::Pinned;
use crate::inode::{alloc, cache};
use crate::mount::state::Mount;
use crate::xattr::gone_value::GoneValue;

/// Forgets the inodes of values that are gone. They can be given out again after that, so those
/// who had the attributes must have been shown that.
pub(crate) fn forget_values(mount: &Mount, gone: Vec<GoneValue>) {
    for GoneValue { nr, pinned } in gone {
        forget_inode(mount, nr, &pinned);
    }
}

/// Forgets an inode that is gone. It can be given out again after that.
pub(crate) fn forget_inode(mount: &Mount, nr: InodeNr, pinned: &Pinned) {
    pinned.publish(None);
    cache::drop_pinned(&mount.core, nr, pinned);
    alloc::freed(mount, nr);
}
