//! **Purpose.** Faults that are built in on purpose, one for each step of the crash argument and of
//! the order in which readers see changes, so that the crash harness and the concurrent oracle can
//! show that they notice when it is missing.
//!
//! **Model.** Only a build with the feature `sabotage` can switch one on; in all others the
//! question is answered "no" at compile time.

use fourscore_journal::Credits;
use fourscore_mballoc::Stamp;
use fourscore_sync::thread;

use crate::group::table::BitsChange;
use crate::inode::cache::InodeCell;
use crate::inode::consistent::Sequence;
use crate::mount::writer::Writer;
use crate::{Fs, Result};

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

/// What is left out, if anything.
#[cfg(feature = "sabotage")]
pub(crate) type Breaking = Option<Sabotage>;
/// What is left out: nothing, in a build without the feature.
#[cfg(not(feature = "sabotage"))]
pub(crate) type Breaking = Option<std::convert::Infallible>;

/// Whether this step is left out.
#[cfg(feature = "sabotage")]
pub(crate) fn lacks(breaking: Breaking, step: Sabotage) -> bool {
    breaking == Some(step)
}

/// Whether this step is left out.
#[cfg(not(feature = "sabotage"))]
pub(crate) fn lacks(_: Breaking, _: Sabotage) -> bool {
    false
}

/// Others have time for a commit. In the model no time passes, and others come first.
fn pass_time() {
    #[cfg(not(feature = "shuttle"))]
    thread::sleep(std::time::Duration::from_millis(2));
    #[cfg(feature = "shuttle")]
    thread::yield_now();
}

impl Fs {
    fn lacks(&self, step: Sabotage) -> bool {
        self.mounted().is_some_and(|writer| writer.lacks(step))
    }

    /// Whether what is found broken without a lock is looked at again under the lock. A file system
    /// that was opened for reading does not change, so there it would be found again.
    pub(crate) fn looks_again_at_damage(&self) -> bool {
        let writer = self.mounted();
        writer.is_some_and(|writer| !writer.lacks(Sabotage::QuietKeyChange))
    }

    /// Whether a walk along a path revalidates names.
    pub(crate) fn revalidates_paths(&self) -> bool {
        !self.lacks(Sabotage::PathWithoutRevalidation)
    }

    /// Whether listings go through the blocks that a directory had when they began.
    pub(crate) fn lists_to_old_end(&self) -> bool {
        self.lacks(Sabotage::ListingToOldEnd)
    }

    /// Whether a reader by `cell` that began at `begun` takes what it found although the inode has
    /// left memory meanwhile.
    pub(crate) fn overlooks_eviction(&self, cell: &InodeCell, begun: Sequence) -> bool {
        self.lacks(Sabotage::UnnoticedEviction)
            && cell.is_retired()
            && cell.sequence().was_only_closed(begun)
    }

    /// Whether a copy reads its source as it is at the moment.
    pub(crate) fn copies_without_lock(&self) -> bool {
        self.lacks(Sabotage::CopyWithoutLock)
    }
}

impl Writer {
    /// Whether this step is left out.
    pub(crate) fn lacks(&self, step: Sabotage) -> bool {
        lacks(self.breaking, step)
    }

    /// The stamp of frees, taken before the change is published, if that is what is done wrong.
    /// Then a commit that is under way has time to end before the change is published.
    pub(crate) fn stamp_before_publish(&self) -> Option<Stamp> {
        self.lacks(Sabotage::StampBeforePublish).then(|| {
            let early = self.stamp();
            pass_time();
            early
        })
    }

    /// Marks on disk what is only claimed, if that is what is done wrong.
    pub(crate) fn mark_early(&self, bits: &BitsChange) -> Result<()> {
        if !self.lacks(Sabotage::MarkAtClaim) {
            return Ok(());
        }
        let mut handle = self.start(Credits(u32::try_from(bits.blocks().len()).unwrap_or(0)))?;
        let marked = bits
            .join(&mut handle)
            .and_then(|()| self.groups().mark_uncounted(&mut handle, bits));
        handle.stop();
        if marked.is_ok() {
            self.journal().commit()?;
        }
        Ok(())
    }
}
