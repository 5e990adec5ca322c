//! **Purpose.** The error of a block that could not be changed in a handle.
//!
//! **Not here.** What follows from it: the plan loads the block again and restarts
//! (`crate::txn::apply`).
//!
//! **Model.** A block that has joined a transaction stays in the cache. A change of it is refused
//! only if the block is freed as metadata before the transaction ends. An operation that frees a
//! block holds the lock of the one structure that has it. So the refused change is of another
//! structure: the image has two that use the block. Other changes of the plan were made before, so
//! the journal is aborted ([`Applying`]).

use fourscore_journal::{Handle, ModifyError};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, PhysBlock};

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

/// The changes of an operation whose blocks have all joined its handle.
#[derive(Debug)]
pub(crate) struct Applying<'h, 'j> {
    handle: &'h mut Handle<'j>,
    /// The first block whose change was refused.
    refused: Option<PhysBlock>,
}

impl<'h, 'j> Applying<'h, 'j> {
    pub(crate) fn in_handle(handle: &'h mut Handle<'j>) -> Self {
        Self {
            handle,
            refused: None,
        }
    }

    /// Makes a change. If it is refused, the journal is aborted, and the other changes are made as
    /// if it were not: memory is as after all of them, and none is committed.
    #[inline]
    pub(crate) fn make(
        &mut self,
        change: impl FnOnce(&mut Handle<'j>) -> std::result::Result<(), Refused>,
    ) {
        if let Err(refused) = change(self.handle) {
            self.refuse(&refused);
        }
    }

    #[cold]
    fn refuse(&mut self, refused: &Refused) {
        self.handle.fail();
        self.refused.get_or_insert(refused.block);
    }

    /// Ends the changes.
    ///
    /// # Errors
    /// `Corrupt` if one was refused; the journal is aborted then.
    pub(crate) fn end(self) -> Result<()> {
        match self.refused {
            None => Ok(()),
            Some(block) => Err(freed_in_use(block).into()),
        }
    }
}

/// Returns the error of a block that was freed while another structure was changed in it.
pub(crate) fn freed_in_use(block: PhysBlock) -> Corrupt {
    Corrupt::from(RelationError::FreedInUse).in_block(block)
}
