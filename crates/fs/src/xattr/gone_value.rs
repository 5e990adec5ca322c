//! **Purpose.** The inode of an attribute value that an operation deletes.

use fourscore_ondisk::InodeNr;

use crate::inode::cell::Pinned;

/// An inode that goes with the last attribute that had its value in it.
#[derive(Debug)]
pub(crate) struct GoneValue {
    pub(crate) nr: InodeNr,
    pub(crate) pinned: Pinned,
}

impl GoneValue {
    pub(crate) fn is(&self, nr: InodeNr) -> bool {
        self.nr == nr
    }

    /// Shows readers that it is gone.
    pub(crate) fn publish_end(&self) {
        self.pinned.publish(None);
    }
}
