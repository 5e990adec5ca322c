//! **Purpose.** The inode of an attribute value that an operation deletes.
//!
//! **Model.** A plan collects these inodes. While the plan is applied, their end is published;
//! afterwards `crate::inode::forget` removes them from memory and makes their numbers available.

use fourscore_ondisk::InodeNr;

use crate::inode::cell::Pinned;

/// An inode that is deleted with the last attribute that had its value in it.
#[derive(Debug)]
pub(crate) struct GoneValue {
    pub(crate) nr: InodeNr,
    pub(crate) pinned: Pinned,
}

impl GoneValue {
    pub(crate) fn is(&self, nr: InodeNr) -> bool {
        self.nr == nr
    }

    /// Publishes that the inode is deleted.
    pub(crate) fn publish_end(&self) {
        self.pinned.publish(None);
    }
}
