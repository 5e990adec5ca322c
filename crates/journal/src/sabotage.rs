//! **Purpose.** Injected faults: each skips one step of the argument for crash safety, to show that
//! the crash tests find a missing step.
//!
//! **Model.** Only a build with the feature `sabotage` can switch one on; in all others the
//! functions below are constant.

use fourscore_ondisk::PhysBlock;
use fourscore_sync::Arc;
#[cfg(feature = "sabotage")]
use fourscore_sync::epoch;

use crate::Error;
use crate::checkpoint::CommittedBlock;
use crate::journal::Inner;

/// A step that is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "sabotage"),
    expect(dead_code, reason = "never switched on")
)]
#[cfg_attr(
    not(feature = "sabotage"),
    expect(unreachable_pub, reason = "exported with the feature")
)]
pub enum Sabotage {
    /// The commit block is written without a flush before it.
    NoFlushBeforeCommit,
    /// A fast commit is written without a flush before it.
    NoFlushBeforeFastCommit,
    /// A fast commit is written while the commit block of the transaction before is not.
    EarlyFastCommit,
    /// Revoke records are not logged.
    NoRevoke,
    /// The tags hold no checksums of their blocks.
    NoTagChecksum,
    /// The tail moves before the checkpointed blocks are durable.
    EarlyTail,
    /// Blocks that are in use are written to their home locations before the commit block, as if
    /// they were new.
    KnownBlocksInPlace,
    /// A buffer that a newer transaction has changed is logged with the newer change.
    NoCopyOnWrite,
    /// Threads that wait for a commit are not woken when it has ended.
    NoWakeUp,
}

impl Inner {
    /// Whether this step is skipped.
    #[cfg(feature = "sabotage")]
    pub(crate) fn skips(&self, step: Sabotage) -> bool {
        self.options().sabotage == Some(step)
    }

    /// Whether this step is skipped.
    #[cfg(not(feature = "sabotage"))]
    #[expect(clippy::unused_self, reason = "the other build reads the options")]
    pub(crate) fn skips(&self, _: Sabotage) -> bool {
        false
    }

    /// A block as it is written to the log.
    #[cfg(feature = "sabotage")]
    pub(crate) fn as_logged(&self, block: &CommittedBlock) -> Arc<[u8]> {
        if self.skips(Sabotage::NoCopyOnWrite) {
            return block.buffer.bytes(&epoch::pin()).into();
        }
        Arc::clone(&block.sealed.bytes)
    }

    /// A block as it is written to the log.
    #[cfg(not(feature = "sabotage"))]
    #[expect(clippy::unused_self, reason = "the other build reads the options")]
    pub(crate) fn as_logged(&self, block: &CommittedBlock) -> Arc<[u8]> {
        Arc::clone(&block.sealed.bytes)
    }

    /// With the fault `EarlyFastCommit`, makes a fast commit of the running transaction although
    /// the one before is not durable. Returns whether it has. Only for the committer.
    #[cfg(feature = "sabotage")]
    pub(crate) fn fast_commit_early(&self) -> Result<bool, Error> {
        use crate::commit::Outcome;

        if !self.skips(Sabotage::EarlyFastCommit) {
            return Ok(false);
        }
        self.queue().wait_for_arrival();
        if self.running().is_empty() {
            return Ok(false);
        }
        let outcome = self.try_fast_commit()?;
        match outcome {
            Some(_) => self.queue().wake_all(),
            // The hook has taken notes for a full commit.
            None => self.queue().request(self.gate().state().tid()),
        }
        Ok(outcome == Some(Outcome::Committed))
    }

    /// Makes no fast commit.
    #[cfg(not(feature = "sabotage"))]
    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "as with the feature"
    )]
    pub(crate) fn fast_commit_early(&self) -> Result<bool, Error> {
        Ok(false)
    }

    /// The revoke records as they are written to the log.
    pub(crate) fn as_revoked<'r>(&self, revoked: &'r [PhysBlock]) -> &'r [PhysBlock] {
        if self.skips(Sabotage::NoRevoke) {
            return &[];
        }
        revoked
    }
}
