//! **Purpose.** The error of a block that could not be changed in a handle.
//!
//! **Not here.** What follows from it: the plan loads the block again and restarts
//! (`crate::txn::apply`).

use fourscore_journal::ModifyError;
use fourscore_ondisk::PhysBlock;

use crate::{Error, Result};

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

    /// Whether the change may be tried again: the block has left the cache.
    ///
    /// # Errors
    /// `Internal` if the handle had too few credits.
    pub(crate) fn check_may_restart(&self) -> Result<()> {
        match self.error == ModifyError::OutOfCredits {
            true => Err(Error::Internal("an operation planned too few credits")),
            false => Ok(()),
        }
    }
}
