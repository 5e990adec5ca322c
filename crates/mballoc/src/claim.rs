//! **Purpose.** The two values that stand between the buddy in memory and the bitmap on disk: a
//! claim, which nobody else can get but which is not on disk, and a change of the bitmap, which
//! the caller's transaction logs.
//!
//! **Model.** allocate -> [`Claim`] -> data is written -> a handle opens -> `mark` -> [`Change`]
//! -> the bitmap block, the descriptor and the counts change in that handle. If the write fails,
//! `give_back` ends the claim instead.
//!
//! **Crash safety.** A crash between claim and mark leaks nothing, because nothing on disk knows
//! of the claim.

use std::mem;

use crate::geometry::{ClusterCount, Run};

/// Clusters that belong to the holder and are still free on disk. It must be ended by
/// [`crate::Allocator::mark`] or [`crate::Allocator::give_back`]; dropping it otherwise is a bug
/// that debug builds report, and in others costs the clusters until the next mount.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a claim must be marked or given back"]
pub struct Claim {
    run: Run,
}

impl Claim {
    pub(crate) fn new(run: Run) -> Self {
        Self { run }
    }

    /// The clusters.
    #[must_use]
    pub fn run(&self) -> Run {
        self.run
    }

    /// How many clusters.
    #[must_use]
    pub fn len(&self) -> ClusterCount {
        self.run.len
    }

    /// Whether it is empty, which none is that the allocator hands out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.run.len.0 == 0
    }

    /// Cuts the claim in two, so that a part can be marked before the rest. Either part may be
    /// empty, and then simply ends.
    ///
    /// # Panics
    /// If `len` is longer than the claim.
    pub fn split_at(self, len: ClusterCount) -> (Self, Self) {
        let (front, rest) = self.end().split_at(len);
        (Self::new(front), Self::new(rest))
    }

    /// Ends the claim as a value; the caller does what has to be done about the clusters.
    pub(crate) fn end(self) -> Run {
        let run = self.run;
        mem::forget(self);
        run
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        debug_assert!(
            self.run.len.0 == 0 || std::thread::panicking(),
            "a claim of {:?} was dropped, neither marked nor given back",
            self.run
        );
    }
}

/// What happens to the bits of a [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The clusters become used.
    Set,
    /// The clusters become free.
    Clear,
}

/// A change of one group's block bitmap, and so of its descriptor and the free counts, that the
/// caller applies in its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The clusters.
    pub run: Run,
    /// What becomes of them.
    pub kind: ChangeKind,
}
