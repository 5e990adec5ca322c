//! **Purpose.** The error of a block that could not be changed in a handle.
//!
//! **Not here.** What follows from it: the plan loads the block again and restarts
//! (`crate::txn::apply`).

use fourscore_journal::ModifyError;
use fourscore_ondisk::PhysBlock;

/// A block could not be changed in a handle.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: ModifyError,
    pub(crate) block: PhysBlock,
}

impl Refused {
    pub(crate) fn new(error: ModifyError, block: PhysBlock) -> Self {
        Self { error, block }
    }
}
