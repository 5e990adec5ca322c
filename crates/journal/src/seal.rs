//! **Purpose.** Seals the running transaction: ends it, starts the next one, and calls the file
//! system's hook in between.
//!
//! # Model
//! Gate closed and drained -> the hook may add a few blocks -> lists detached, credits reset ->
//! gate open on the next transaction -> (handles run) -> each buffer of the sealed transaction is
//! finished by the hook and sealed.
//!
//! # Invariants
//! The time while the gate is closed does not depend on the number of changes. An empty transaction
//! is not sealed: the gate opens on it again, because recovery expects consecutive tids. A
//! transaction in which a handle or the hook has aborted the journal is not sealed either: half of
//! an operation may be in it.

use std::time::Instant;

use fourscore_block::{Buffer, Joined, VerifiedAs};
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::Arc;

use crate::error::{During, Error};
use crate::handle::{ModifyError, pay_and_modify};
use crate::journal::Inner;
use crate::transaction::Changes;

/// The file system's part in sealing and committing a transaction.
pub trait SealHook: Send + Sync {
    /// Called while the gate is closed and no handle is open: per-core counters hold exactly the
    /// values as of this transaction. Every starting handle waits meanwhile, so this must be quick,
    /// do no I/O, and take no lock that is held for long elsewhere. It may change as many buffers
    /// as [`JournalOptions::seal_credits`](crate::JournalOptions) allows.
    fn at_seal(&self, sealing: &mut Sealing<'_>) {
        let _ = sealing;
    }

    /// Completes the committing version of `block` once per commit, above all its checksum. `tag`
    /// is that of the block's last change. Called with the buffer's lock held, while newer
    /// transactions run: must take no lock under which buffers are changed.
    fn finish(&self, tid: Tid, block: PhysBlock, tag: VerifiedAs, bytes: &mut [u8]) {
        let _ = (tid, block, tag, bytes);
    }

    /// Whether `finish` of `block` depends on other blocks of the transaction, as a group
    /// descriptor depends on the bitmaps: such blocks are finished after all others.
    fn follows_from_others(&self, block: PhysBlock) -> bool {
        let _ = block;
        false
    }

    /// Called by the committer when a thread waits for a fast commit of `request.tid`, which is the
    /// running transaction and stays so until [`SealHook::on_fast_commit`]. Returns the records of
    /// what handles have changed so far. Must be quick and do no I/O.
    fn fast_commit(&self, request: &FastCommitRequest) -> FastCommit {
        let _ = request;
        FastCommit::InFull
    }

    /// A block whose committed content must be at its home location before a fast commit.
    fn home_before_fast_commits(&self) -> Option<PhysBlock> {
        None
    }

    /// Called by the committer when the records that [`SealHook::fast_commit`] returned are
    /// durable, with their memory.
    fn on_fast_commit(&self, tid: Tid, records: Vec<u8>) {
        let _ = (tid, records);
    }

    /// Called by the committer when `tid` is durable and no checkpoint of a block that it revoked
    /// is in flight, after the transaction's own callbacks. Must be quick like them.
    fn on_durable(&self, tid: Tid) {
        let _ = tid;
    }
}

/// What a fast commit may be.
#[derive(Clone, Copy, Debug)]
pub struct FastCommitRequest {
    /// The running transaction.
    pub tid: Tid,
    /// Whether it is the first one of the transaction. Its records follow the first block of the
    /// area ([`begin_area`](fourscore_ondisk::fast_commit::FastCommitBlocks::begin_area)), which is
    /// not counted in `room_blocks`.
    pub is_first: bool,
    /// The most blocks that the records may take.
    pub room_blocks: u32,
    /// The blocks that a full commit would write, or a few more.
    pub dirty_blocks: u32,
    /// The most blocks that a transaction can write.
    pub most_blocks: u32,
}

/// What is committed for the threads that wait for a fast commit.
#[derive(Debug)]
pub enum FastCommit {
    /// These records: whole blocks that end with a TAIL, as
    /// [`FastCommitBlocks`](fourscore_ondisk::fast_commit::FastCommitBlocks) makes them.
    Records(Vec<u8>),
    /// Nothing: there is nothing to record.
    Nothing,
    /// The whole transaction.
    InFull,
}

/// A hook that adds nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHook;

impl SealHook for NoHook {}

/// The transaction that is being sealed, for [`SealHook::at_seal`].
#[derive(Debug)]
pub struct Sealing<'s> {
    journal: &'s Inner,
    tid: Tid,
    credits: u32,
    changes: &'s mut Changes,
}

impl Sealing<'_> {
    /// The transaction.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// As [`Handle::modify`](crate::Handle::modify), with the credits reserved for the hook.
    ///
    /// # Errors
    /// See [`ModifyError`]; nothing was changed then.
    pub fn modify<R>(
        &mut self,
        buffer: &Arc<Buffer>,
        tag: VerifiedAs,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, ModifyError> {
        let (result, joined) = pay_and_modify(buffer, self.tid, &mut self.credits, tag, change)?;
        if joined == Joined::First {
            self.changes.add(buffer);
        }
        Ok(result)
    }

    /// As [`Handle::fail`](crate::Handle::fail): the transaction that is being sealed is not
    /// committed.
    pub fn fail(&self) {
        self.journal.abort(During::FileSystem, None);
    }
}

/// A sealed transaction.
#[derive(Debug)]
pub(crate) struct SealedTransaction {
    pub(crate) tid: Tid,
    pub(crate) changes: Vec<Changes>,
}

impl Inner {
    /// Seals the running transaction and opens the next one; `None` if it is empty. Only for the
    /// committer, after [`Inner::make_space`].
    ///
    /// # Errors
    /// `Aborted`, also if that has happened while the last handles ended, or in the hook.
    pub(crate) fn seal(&self) -> Result<Option<SealedTransaction>, Error> {
        let mut changes = self.running().capacity_for_all();
        let began = Instant::now();
        self.gate().close_and_drain();
        let tid = self.gate().state().tid();
        self.running().detach(&mut changes);
        let next = if changes.is_empty() {
            tid
        } else {
            self.add_at_seal(tid, &mut changes);
            tid.next()
        };
        let aborted = self.check_not_aborted();
        self.budget().reset(self.gate());
        self.gate().open(next);
        let closed = began.elapsed();
        // The gate is open again; waking all threads may take a while.
        self.gate().wake_joiners();
        self.note_gate_closed(closed);
        aborted?;
        Ok((next != tid).then_some(SealedTransaction { tid, changes }))
    }

    fn add_at_seal(&self, tid: Tid, changes: &mut Vec<Changes>) {
        let mut added = Changes::default();
        self.hook().at_seal(&mut Sealing {
            journal: self,
            tid,
            credits: self.options().seal_credits.0,
            changes: &mut added,
        });
        if !added.is_empty() {
            changes.push(added);
        }
    }
}
