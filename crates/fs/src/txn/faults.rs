//! **Purpose.** Faults that are built in on purpose, one for each step of the crash argument and of
//! the order in which readers see changes, so that the crash harness and the concurrent oracle can
//! show that they notice when it is missing.
//!
//! **Model.** Only a build with the feature `sabotage` can switch one on; in all others the
//! question is answered "no" at compile time.

/// A step that is left out, or done too early or too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "sabotage"),
    expect(unreachable_pub, reason = "exported with the feature")
)]
pub enum Sabotage {
    /// Freed blocks are given out again before the commit that freed them.
    EarlyReuse,
    /// Inodes that are not whole are not put on record.
    NoOrphanRecord,
    /// Blocks get no checksums when they are committed.
    NoSeal,
    /// Data goes to its place after the commit that makes it part of a file.
    LateData,
    /// The new name of a file and the end of its old one are in two transactions.
    HalfRename,
    /// Blocks are marked as used when they are claimed, in a transaction of its own.
    MarkAtClaim,
    /// A renaming looks at inodes by number before it pins them.
    RenameByNumber,
    /// A copy reads its source without a look at the sequence count, and notes what it meets.
    CopyWithoutLock,
    /// Keys of the nodes of a map change without a change of the sequence count, and what is found
    /// broken is not looked at again.
    QuietKeyChange,
    /// Buffers of journaled content are forgotten without a change of the sequence count.
    ForgetBeforePublish,
    /// The stamp of a free is taken before the map without it is published.
    StampBeforePublish,
    /// A name is visible before the inode that it leads to.
    NameBeforeInode,
    /// A listing goes through the blocks that the directory had when it began.
    ListingToOldEnd,
    /// A walk along a path does not revalidate names.
    PathWithoutRevalidation,
    /// A reader does not notice that the inode which it looks at has left memory.
    UnnoticedEviction,
}

/// The injected fault of a mount, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    #[cfg(feature = "sabotage")]
    injected: Option<Sabotage>,
}

impl Faults {
    /// A mount with this fault.
    #[cfg(feature = "sabotage")]
    pub(crate) fn injected(fault: Option<Sabotage>) -> Self {
        Self { injected: fault }
    }

    /// Whether `step` is left out.
    #[cfg(feature = "sabotage")]
    pub(crate) fn lacks(self, step: Sabotage) -> bool {
        self.injected == Some(step)
    }

    /// Whether `step` is left out: never, in a build without the feature.
    #[cfg(not(feature = "sabotage"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn lacks(self, _: Sabotage) -> bool {
        false
    }
}
