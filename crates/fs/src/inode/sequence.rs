//! **Purpose.** The sequence count of an inode: odd while a change of several objects is published.
//! Beside it, the count of changes that freed blocks.
//!
//! **Not here.** What readers do with them ([`crate::inode::consistent`]).

use fourscore_sync::atomic::{AtomicU64, Ordering};

/// A sequence count: odd while the objects that it covers are being changed, and odd forever once
/// their inode has left memory. And a count of frees.
#[derive(Debug)]
pub(crate) struct SeqCount {
    /// The number of this life of the inode: each time that an inode is loaded, it has another.
    life: u64,
    count: AtomicU64,
    /// Changes that unmapped or freed blocks.
    frees: AtomicU64,
}

/// The value of the counts when a reader began. Values of two lives of an inode differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    life: u64,
    count: u64,
    frees: u64,
}

impl Sequence {
    /// Whether a change was in progress.
    pub(crate) fn is_in_change(self) -> bool {
        !self.count.is_multiple_of(2)
    }
}

impl SeqCount {
    /// Returns the counts of an inode that begins a life.
    pub(crate) fn of_life(life: u64) -> Self {
        Self {
            life,
            count: AtomicU64::new(0),
            frees: AtomicU64::new(0),
        }
    }

    /// Begins a read.
    pub(crate) fn begin(&self) -> Sequence {
        Sequence {
            life: self.life,
            count: self.count.load(Ordering::Acquire),
            frees: self.frees.load(Ordering::Acquire),
        }
    }

    /// Whether the objects have not changed since `begun`, and no change was in progress then. The
    /// reader's own loads have acquire ordering, so this load is not moved before them.
    pub(crate) fn is_still(&self, begun: Sequence) -> bool {
        let is_same = self.life == begun.life && self.count.load(Ordering::Acquire) == begun.count;
        is_same && !begun.is_in_change()
    }

    /// Whether in addition no block was unmapped or freed since `begun`.
    pub(crate) fn has_freed_nothing(&self, begun: Sequence) -> bool {
        self.is_still(begun) && self.frees.load(Ordering::Acquire) == begun.frees
    }

    /// Whether the inode has left memory since `begun` and nothing else has changed. For a caller
    /// that knows that the inode has left memory.
    pub(crate) fn was_only_closed(&self, begun: Sequence) -> bool {
        self.count.load(Ordering::Acquire) == begun.count + 1
    }

    /// Closes the count because the inode leaves memory. The next thread that changes the inode
    /// uses a new count, so readers that hold this count retry, and so do readers that find it from
    /// now on.
    pub(crate) fn close(&self) {
        let before = self.count.fetch_add(1, Ordering::AcqRel);
        debug_assert!(before.is_multiple_of(2), "it leaves while it is changed");
    }

    /// Begins a change, which ends when the result is dropped. Changes do not nest.
    pub(crate) fn change(&self) -> Change<'_> {
        let before = self.count.fetch_add(1, Ordering::AcqRel);
        debug_assert!(before.is_multiple_of(2), "changes of one inode nest");
        Change(self)
    }

    /// Counts a change that unmapped or freed blocks: after its publication, and before the blocks
    /// are handed to the allocator.
    pub(crate) fn count_free(&self) {
        self.frees.fetch_add(1, Ordering::AcqRel);
    }
}

/// A change that is in progress.
#[derive(Debug)]
pub(crate) struct Change<'c>(&'c SeqCount);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, Ordering::AcqRel);
    }
}
