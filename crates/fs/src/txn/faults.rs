//! **Purpose.** Injected faults, one for each step of the crash-safety argument and of the order in
//! which readers see changes. With them the crash harness and the concurrent oracle are tested:
//! they must notice when a step is missing.
//!
//! **Model.** A fault can be switched on only in a build with the feature `sabotage`. In all other
//! builds the query returns `false` at compile time. A fault that only shows if another thread runs
//! at a certain moment gives that thread time to run ([`pass_time`]).

use fourscore_sync::thread;

/// A step that is left out, or done too early or too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "sabotage"),
    expect(unreachable_pub, reason = "exported with the feature")
)]
pub enum Sabotage {
    /// Freed blocks are allocated again before the commit that freed them.
    EarlyReuse,
    /// Inodes whose deletion or truncation is unfinished are not put on the orphan list.
    NoOrphanRecord,
    /// Blocks get no checksums when they are committed.
    NoSeal,
    /// Data goes to its home location after the commit that makes it part of a file.
    LateData,
    /// The new name of a file and the removal of its old one are in two transactions.
    HalfRename,
    /// Blocks are marked as used when they are claimed, in a separate transaction.
    MarkAtClaim,
    /// A rename reads inodes by number before it pins them.
    RenameByNumber,
    /// A copy reads its source without a check of the sequence count, and keeps what it reads.
    CopyWithoutLock,
    /// Keys of the nodes of a map change without a change of the sequence count, and a node that
    /// looks broken is not read again.
    UnsequencedKeyChange,
    /// Blocks are unmapped and freed without a change of the count of frees.
    UncountedFree,
    /// The reuse clock does not advance when a grace period ends.
    UnnoticedReuse,
    /// The reuse clock does not advance when blocks have moved to other offsets of their file.
    UnnoticedMove,
    /// Buffers of journaled data are forgotten without a change of the sequence count.
    ForgetBeforePublish,
    /// The stamp of a free is taken before the map without the freed blocks is published.
    StampBeforePublish,
    /// A name is visible before the inode that it refers to.
    NameBeforeInode,
    /// A listing reads only the blocks that the directory had when the listing began.
    ListingToOldEnd,
    /// A walk along a path does not revalidate names.
    PathWithoutRevalidation,
    /// A fast commit has the names of new files and not their inodes.
    NameWithoutInode,
    /// A fast commit removes names before it adds others.
    UnorderedRecords,
    /// Blocks that a fast commit refers to are used again before the full commit.
    RecordedBlockReused,
    /// The number of a freed inode is used again before the full commit, and nothing that the freed
    /// inode tainted taints the new one.
    FreedNumberReused,
    /// A fast commit has units without those that they depend on.
    UnclosedCut,
    /// A block of attributes whose last user has gone can still be found in the sharing cache.
    FreedStaysKnown,
    /// A block of attributes gets a user without a second look whether it is still known.
    TakenUnseen,
    /// A plan or a reader offers a block of attributes, or a value, without the lock of it.
    OfferedUnlocked,
    /// A plan locks two blocks of attributes in the order in which it meets them.
    UnorderedXattrLocks,
    /// The seal of a transaction does not write the usage of users, groups and projects.
    UnsealedUsage,
    /// A reader does not notice that the inode that it reads has left memory.
    UnnoticedEviction,
    /// A growth reads the device before what was changed is in its place there.
    UnsettledGrowth,
    /// `statfs` returns the size of a growth before it has the free space of the new groups.
    SizeBeforeSpace,
}

/// The injected fault of a mount, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    #[cfg(feature = "sabotage")]
    injected: Option<Sabotage>,
}

impl Faults {
    /// Returns the fault state of a mount with this fault.
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

/// Gives other threads time to do something, such as to end a commit. In a model (shuttle) no time
/// passes, and other threads run first.
pub(crate) fn pass_time() {
    #[cfg(not(feature = "shuttle"))]
    thread::sleep(std::time::Duration::from_millis(2));
    #[cfg(feature = "shuttle")]
    thread::yield_now();
}
