//! **Purpose.** The moment at which a transaction ends and the next one begins, and what the file
//! system adds at that moment.
//!
//! # Model
//! Gate closed and drained -> the hook may add a few blocks -> lists detached, credits begun anew
//! -> gate open on the next transaction -> (handles run) -> each buffer of the sealed transaction
//! is finished by the hook and sealed.
//!
//! # Invariants
//! Nothing proportional to what was changed happens while the gate is closed. An empty transaction
//! is not sealed: the gate opens on it again, because recovery expects consecutive numbers.

use std::time::Instant;

use fourscore_block::{Buffer, Joined, VerifiedAs};
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::Arc;

use crate::handle::{ModifyError, pay_and_modify};
use crate::journal::Inner;
use crate::transaction::Changes;

/// What the file system does when a transaction is sealed.
pub trait SealHook: Send + Sync {
    /// Called while the gate is closed and no handle is open: the values of per-core counters are
    /// now exactly what the transaction leaves. Every starting handle waits meanwhile, so this
    /// must be quick, do no I/O, and take no lock that is held across anything slow. It may change
    /// as many buffers as [`JournalOptions::seal_credits`](crate::JournalOptions) allows.
    fn at_seal(&self, sealing: &mut Sealing<'_>) {
        let _ = sealing;
    }

    /// Writes what is written once per commit into the committing copy of `block`: checksums,
    /// above all. `tag` is what the last change of the block vouched for. Called with the buffer's
    /// lock held, while newer transactions run: takes no lock under which buffers are changed.
    fn finish(&self, tid: Tid, block: PhysBlock, tag: VerifiedAs, bytes: &mut [u8]) {
        let _ = (tid, block, tag, bytes);
    }

    /// Whether what `finish` writes into `block` follows from other blocks of the transaction, as
    /// descriptors do from bitmaps: such blocks are finished when all others are.
    fn follows_from_others(&self, block: PhysBlock) -> bool {
        let _ = block;
        false
    }

    /// Called by the committer when `tid` is durable and no checkpoint of a block that it revoked
    /// is in flight, after the transaction's own callbacks. Must be quick, as they must.
    fn on_durable(&self, tid: Tid) {
        let _ = tid;
    }
}

/// A hook that adds nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHook;

impl SealHook for NoHook {}

/// The transaction that is being sealed, for [`SealHook::at_seal`].
#[derive(Debug)]
pub struct Sealing<'s> {
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

    /// As [`Handle::modify`](crate::Handle::modify), with the credits set aside for the hook.
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
}

/// A sealed transaction.
#[derive(Debug)]
pub(crate) struct SealedTransaction {
    pub(crate) tid: Tid,
    pub(crate) changes: Vec<Changes>,
}

impl Inner {
    /// Seals the running transaction and opens the next one; `None` if it is empty. Only for who
    /// has the role of committer, after [`Inner::make_room`].
    pub(crate) fn seal(&self) -> Option<SealedTransaction> {
        let mut changes = self.running().room();
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
        self.budget().begin(self.gate());
        self.gate().open(next);
        let closed = began.elapsed();
        // From here on nobody is kept out, though it may take a while until all know.
        self.gate().wake_joiners();
        self.note_gate_closed(closed);
        (next != tid).then_some(SealedTransaction { tid, changes })
    }

    fn add_at_seal(&self, tid: Tid, changes: &mut Vec<Changes>) {
        let mut added = Changes::default();
        self.hook().at_seal(&mut Sealing {
            tid,
            credits: self.options().seal_credits.0,
            changes: &mut added,
        });
        if !added.is_empty() {
            changes.push(added);
        }
    }
}
