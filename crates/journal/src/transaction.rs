//! **Purpose.** Per-core lists of the running transaction's changed buffers, revoke records and
//! callbacks, until it is sealed.
//!
//! **Not here.** The changed bytes: buffers keep them, by transaction (`fourscore_block::buffer`).
//!
//! # Model
//! Each core has a list of its own; sealing swaps all of them for empty ones, at a cost that does
//! not depend on their length. The commit finds out which of the buffers on the lists still hold
//! changes of the transaction, and which revoke records are still valid.
//!
//! # Locking
//! A list's lock is a leaf. It is taken when a handle changes a buffer that is new in the
//! transaction, not when it changes one that has joined already.

use std::fmt;
use std::io;
use std::mem;

use fourscore_block::Buffer;
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::{Arc, CoreNr, Mutex, MutexGuard, PerCore};

/// Called when a transaction is durable.
pub type OnCommit = Box<dyn FnOnce(Tid) + Send>;

/// Called before a transaction is written to the log: writes the data that it will expose.
pub type BeforeCommit = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// A buffer that a transaction has changed.
#[derive(Debug)]
pub(crate) struct ChangedBuffer {
    /// The buffer's block; kept here so that sorting does not access the buffer.
    pub(crate) block: PhysBlock,
    pub(crate) buffer: Arc<Buffer>,
}

/// The changes of the handles of one core.
#[derive(Default)]
pub(crate) struct Changes {
    /// Buffers that were changed for the first time in the transaction.
    pub(crate) buffers: Vec<ChangedBuffer>,
    /// Blocks whose copies of older transactions must not be replayed.
    pub(crate) revoked: Vec<PhysBlock>,
    pub(crate) before_commit: Vec<BeforeCommit>,
    pub(crate) on_commit: Vec<OnCommit>,
}

impl Changes {
    /// Notes that `buffer` was changed for the first time in the transaction.
    pub(crate) fn add(&mut self, buffer: &Arc<Buffer>) {
        self.buffers.push(ChangedBuffer {
            block: buffer.block(),
            buffer: Arc::clone(buffer),
        });
    }

    /// The changes of all cores as one.
    pub(crate) fn merged(mut all: Vec<Self>) -> Self {
        let mut merged = all.pop().unwrap_or_default();
        for mut changes in all {
            merged.buffers.append(&mut changes.buffers);
            merged.revoked.append(&mut changes.revoked);
            merged.before_commit.append(&mut changes.before_commit);
            merged.on_commit.append(&mut changes.on_commit);
        }
        merged
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
            && self.revoked.is_empty()
            && self.before_commit.is_empty()
            && self.on_commit.is_empty()
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Changes({} buffers, {} revoked)",
            self.buffers.len(),
            self.revoked.len()
        )
    }
}

/// The lists of the running transaction.
#[derive(Debug, Default)]
pub(crate) struct Running {
    lists: PerCore<Mutex<Changes>>,
}

impl Running {
    /// The list of one core.
    pub(crate) fn of(&self, core: CoreNr) -> MutexGuard<'_, Changes> {
        self.lists.of(core).lock()
    }

    /// Whether no changes are listed yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.lists.iter().all(|list| list.lock().is_empty())
    }

    /// An empty vector with capacity for all lists, for [`Running::detach`]. It is made before the
    /// gate is closed, because the memory allocator may take long: it may first tidy up the memory
    /// that previous transactions have freed.
    pub(crate) fn capacity_for_all(&self) -> Vec<Changes> {
        Vec::with_capacity(self.lists.iter().count() + 1)
    }

    /// Moves all lists that are not empty to `taken`.
    pub(crate) fn detach(&self, taken: &mut Vec<Changes>) {
        let lists = self.lists.iter().map(|list| mem::take(&mut *list.lock()));
        taken.extend(lists.filter(|changes| !changes.is_empty()));
    }
}
