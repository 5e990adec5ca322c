//! **Purpose.** The states between the buddy in memory and the bitmap on disk: a claim, used in the
//! buddy but free on disk; a free in progress; and the change of the bitmap that the caller's
//! transaction logs.
//!
//! **Model.**
//!
//! ```text
//! allocate -> Claim -> data is written -> handle opens
//!          -> claim.change() is applied to bitmap block, descriptor and counts -> mark(claim)
//! begin_free -> Freeing -> freeing.change() is applied -> finish_free(freeing)
//! ```
//!
//! If the write fails, `give_back` ends the claim instead; `cancel_free` ends a free whose change
//! was not applied. Both ways the bitmap changes while the clusters are used in the buddy, and the
//! group stays in memory until the end, so that no buddy is made from a bitmap in between.
//!
//! **Crash safety.** A crash between claim and mark leaks nothing, because a claim is not recorded
//! on disk.

use std::mem;

use crate::geometry::{ClusterCount, Run};

/// Clusters that belong to the holder and are still free on disk. It must be ended by
/// [`crate::Allocator::mark`] or [`crate::Allocator::give_back`]. Dropping it otherwise is a bug
/// that debug builds report; release builds lose the clusters until the next mount.
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

    /// The number of clusters.
    #[must_use]
    pub fn len(&self) -> ClusterCount {
        self.run.len
    }

    /// Whether it is empty. The allocator returns no empty claim; [`Claim::split_at`] may.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.run.len.0 == 0
    }

    /// The change that has to be applied to the bitmap before the claim is marked.
    #[must_use]
    pub fn change(&self) -> Change {
        Change {
            run: self.run,
            kind: ChangeKind::Set,
        }
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

    /// Ends the claim as a value; the caller takes over the clusters.
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

/// Clusters that are being freed: their bits may be cleared now. It must be ended by
/// [`crate::Allocator::finish_free`] or [`crate::Allocator::cancel_free`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a free that has begun must be finished or cancelled"]
pub struct Freeing {
    run: Run,
}

impl Freeing {
    pub(crate) fn new(run: Run) -> Self {
        Self { run }
    }

    /// The clusters.
    #[must_use]
    pub fn run(&self) -> Run {
        self.run
    }

    /// The change that has to be applied to the bitmap before the free is finished.
    #[must_use]
    pub fn change(&self) -> Change {
        Change {
            run: self.run,
            kind: ChangeKind::Clear,
        }
    }

    pub(crate) fn end(self) -> Run {
        let run = self.run;
        mem::forget(self);
        run
    }
}

impl Drop for Freeing {
    fn drop(&mut self) {
        debug_assert!(
            std::thread::panicking(),
            "a free of {:?} was dropped, neither finished nor cancelled",
            self.run
        );
    }
}

/// The direction of a [`Change`].
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
    /// Whether they become used or free.
    pub kind: ChangeKind,
}
