//! **Purpose.** Handles: through a handle one operation makes its changes in the running
//! transaction.
//!
//! # Model
//! An operation starts a handle with enough credits for its worst case, makes all its changes
//! through it, and stops it. All changes of one handle are in the same transaction: after a crash
//! all of them are there, or none.
//!
//! # Invariants
//! - While a handle is open its transaction is not sealed. So a handle must end soon: its owner
//!   does no I/O, takes no inode lock, and waits for no space and no commit.
//! - A thread has one open handle at most. A second one would wait for the gate, which its sealer
//!   keeps closed until the first one ends.
//! - A handle that is dropped by a panic aborts the journal, as one does that cannot make the rest
//!   of its changes ([`Handle::fail`]): half of an operation is in the transaction, and it must not
//!   be committed.
//!
//! # Locking
//! Starting a handle, changing a buffer that has joined already, and stopping write only the slot
//! of this core and the buffer. A thread that moves to another core meanwhile keeps using the slot
//! it joined.

use std::cell::Cell;

use fourscore_block::{Buffer, BufferCache, Joined, Retired, VerifiedAs};
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::profile::{self, Entered, Section};
use fourscore_sync::rank::{Held, Rank};
use fourscore_sync::{Arc, thread};

use crate::credits::Credits;
use crate::error::{During, Error};
use crate::gate::{Place, Refused};
use crate::journal::Inner;
use crate::transaction::{BeforeCommit, OnCommit};

/// The rank of handles in the lock order: after all locks that a client of the journal holds.
const HANDLE: Rank = Rank::new(80, "handle");

thread::thread_local! {
    /// Whether this thread has an open handle.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread has an open handle.
pub(crate) fn is_inside() -> bool {
    INSIDE.with(Cell::get)
}

/// Why a buffer was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The buffer has left the cache: stop the handle, load the block again, and retry.
    #[error(transparent)]
    Retired(#[from] Retired),
    /// The buffer is new in the transaction and the handle has no credit left: it was started with
    /// too few.
    #[error("the handle has no credits left")]
    OutOfCredits,
}

/// Changes `buffer` in the transaction `tid`, and takes one of `credits` if that is the first
/// change.
#[inline]
pub(crate) fn pay_and_modify<R>(
    buffer: &Buffer,
    tid: Tid,
    credits: &mut u32,
    tag: VerifiedAs,
    change: impl FnOnce(&mut [u8]) -> R,
) -> Result<(R, Joined), ModifyError> {
    if *credits == 0 && !buffer.is_dirty_in(tid) {
        return Err(ModifyError::OutOfCredits);
    }
    let (result, joined) = buffer.modify(tid, tag, change)?;
    if joined == Joined::First {
        // May be 0: the buffer was dirty above, and another handle has forgotten it since.
        *credits = credits.saturating_sub(1);
    }
    Ok((result, joined))
}

/// The result of [`Handle::extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "without the credits the handle has to be restarted"]
pub enum Extended {
    /// The handle has the credits.
    Yes,
    /// The transaction is full: the caller must bring its changes to a consistent state, and
    /// restart the handle.
    No,
}

/// The last transaction that changed an object such as an inode: an `fsync` of the object waits for
/// it. Written only when it changes.
#[derive(Debug, Default)]
pub struct LastTid(AtomicU64);

/// Set in a [`LastTid`] that holds a transaction.
const HAS_TID: u64 = 1 << 32;

impl LastTid {
    /// For an object that has not been changed.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// For an object that was last changed in `tid`.
    #[must_use]
    pub fn of(tid: Option<Tid>) -> Self {
        let last = Self::new();
        if let Some(tid) = tid {
            last.set(tid);
        }
        last
    }

    /// The transaction, if any has changed the object.
    #[must_use]
    pub fn get(&self) -> Option<Tid> {
        let value = self.0.load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the tid")]
        let tid = Tid(value as u32);
        (value & HAS_TID != 0).then_some(tid)
    }

    fn set(&self, tid: Tid) {
        let value = HAS_TID | u64::from(tid.0);
        if self.0.load(Ordering::Relaxed) != value {
            self.0.store(value, Ordering::Release);
        }
    }
}

/// One operation's membership in the running transaction; dropping it stops it. Belongs to the
/// thread that started it.
#[derive(Debug)]
pub struct Handle<'j> {
    journal: &'j Inner,
    place: Place,
    credits: u32,
    /// Revoke records that credits have paid for and that are not used yet.
    revokes_left: u32,
    /// Registers the handle in the lock order of this thread, so it cannot be sent to another.
    _held: Held,
    _section: Entered,
}

impl<'j> Handle<'j> {
    /// Joins the running transaction, waiting for credits or for a seal if necessary.
    #[inline]
    pub(crate) fn start(journal: &'j Inner, credits: Credits) -> Result<Self, Error> {
        assert!(
            !is_inside(),
            "a handle was started by a thread that has one"
        );
        let place = match journal.gate().join(credits.0) {
            Ok(place) => place,
            Err(refused) => journal.join_slow(credits, refused)?,
        };
        Ok(Self::inside(journal, place, credits))
    }

    /// Joins the running transaction if it is `tid` and has enough credits.
    pub(crate) fn start_in(journal: &'j Inner, tid: Tid, credits: Credits) -> Result<Self, Error> {
        assert!(
            !is_inside(),
            "a handle was started by a thread that has one"
        );
        let place = journal.join_in(tid, credits)?;
        Ok(Self::inside(journal, place, credits))
    }

    fn inside(journal: &'j Inner, place: Place, credits: Credits) -> Self {
        INSIDE.with(|inside| inside.set(true));
        Self {
            journal,
            place,
            credits: credits.0,
            revokes_left: 0,
            _held: HANDLE.only().enter(),
            _section: profile::enter(Section::Handle),
        }
    }

    /// The transaction.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.place.tid
    }

    /// The credits that are left.
    #[must_use]
    pub fn credits(&self) -> Credits {
        Credits(self.credits)
    }

    /// Changes `buffer`. `tag` is the structure that the result is valid as, except for its
    /// checksum. Takes a credit if this is the transaction's first change of the buffer.
    ///
    /// # Errors
    /// See [`ModifyError`]; nothing was changed then.
    #[inline]
    pub fn modify<R>(
        &mut self,
        buffer: &Arc<Buffer>,
        tag: VerifiedAs,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, ModifyError> {
        let (result, joined) =
            pay_and_modify(buffer, self.place.tid, &mut self.credits, tag, change)?;
        if joined == Joined::First {
            self.journal.running().of(self.place.core).add(buffer);
        }
        Ok(result)
    }

    /// Joins `buffer` to the transaction without a change. From then on a change of it by this
    /// handle cannot fail. If there is none, the transaction has the block as it is.
    ///
    /// # Errors
    /// See [`ModifyError`].
    #[inline]
    pub fn join(&mut self, buffer: &Arc<Buffer>) -> Result<(), ModifyError> {
        if self.credits == 0 && !buffer.is_dirty_in(self.place.tid) {
            return Err(ModifyError::OutOfCredits);
        }
        if buffer.join(self.place.tid)? == Joined::First {
            self.credits = self.credits.saturating_sub(1);
            self.journal.running().of(self.place.core).add(buffer);
        }
        Ok(())
    }

    /// Notes that `block`, which held metadata, was freed: discards this transaction's changes of
    /// it, and revokes it, so that no older copy is replayed or checkpointed once the transaction
    /// is durable. The block may be allocated again when the transaction's
    /// [`on_commit`](Self::on_commit) is called.
    ///
    /// # Errors
    /// [`ModifyError::OutOfCredits`]; nothing was noted then.
    pub fn forget(&mut self, cache: &BufferCache, block: PhysBlock) -> Result<(), ModifyError> {
        self.revoke(block)?;
        cache.forget(block, self.place.tid);
        Ok(())
    }

    /// As [`Handle::forget`], for a buffer that is in no cache.
    ///
    /// # Errors
    /// [`ModifyError::OutOfCredits`]; nothing was noted then.
    pub fn forget_buffer(&mut self, buffer: &Buffer) -> Result<(), ModifyError> {
        self.revoke(buffer.block())?;
        buffer.forget(self.place.tid);
        Ok(())
    }

    /// Revokes `block`: no copy of it logged so far may be replayed or checkpointed. Void if the
    /// block is changed as metadata again in the same transaction. One credit pays for as many
    /// records as fit into a block.
    ///
    /// # Errors
    /// [`ModifyError::OutOfCredits`]; nothing was noted then.
    pub fn revoke(&mut self, block: PhysBlock) -> Result<(), ModifyError> {
        if self.revokes_left == 0 {
            self.credits = self
                .credits
                .checked_sub(1)
                .ok_or(ModifyError::OutOfCredits)?;
            self.revokes_left = self.journal.revokes_per_credit();
        }
        self.revokes_left -= 1;
        let mut list = self.journal.running().of(self.place.core);
        list.revoked.push(block);
        Ok(())
    }

    /// Calls `then` when the transaction is durable and no checkpoint of a block that it revoked is
    /// in flight any more; never, if the journal is aborted before. The committer calls it: it must
    /// be quick, start no handle and wait for no commit.
    pub fn on_commit(&mut self, then: OnCommit) {
        let mut list = self.journal.running().of(self.place.core);
        list.on_commit.push(then);
    }

    /// Calls `first` before the transaction is written to the log: to write data that has to be on
    /// the device before the transaction exposes it. An error of it aborts the journal. It may do
    /// I/O; it must start no handle and wait for no commit.
    pub fn before_commit(&mut self, first: BeforeCommit) {
        let mut list = self.journal.running().of(self.place.core);
        list.before_commit.push(first);
    }

    /// Aborts the journal, because the file system is corrupt and so the handle cannot make the
    /// rest of its changes: its transaction is never committed. Records the error in the journal's
    /// superblock, as [`Journal::fail`](crate::Journal::fail) does.
    pub fn fail(&self) {
        self.journal.abort(During::FileSystem, None);
    }

    /// Notes in `last` that this transaction was the last to change the object.
    pub fn note(&self, last: &LastTid) {
        last.set(self.place.tid);
    }

    /// Extends the handle by `more` credits in the same transaction. Never waits.
    pub fn extend(&mut self, more: Credits) -> Extended {
        let gathered = self
            .journal
            .budget()
            .gather(self.journal.gate(), self.place, more.0);
        match gathered {
            Ok(()) => {
                self.credits += more.0;
                Extended::Yes
            }
            Err(_) => Extended::No,
        }
    }

    /// Stops, and starts again with `credits`, possibly in a later transaction. Waits as starting
    /// does. The changes before it are an operation of their own: after a crash they may be there
    /// without those that follow.
    ///
    /// # Errors
    /// As [`Journal::start`](crate::Journal::start).
    pub fn restart(self, credits: Credits) -> Result<Self, Error> {
        let journal = self.journal;
        drop(self);
        Self::start(journal, credits)
    }

    /// Stops the handle and returns its transaction, for which a caller that wants durability
    /// waits.
    #[inline]
    #[expect(clippy::must_use_candidate, reason = "most callers do not wait")]
    pub fn stop(self) -> Tid {
        self.place.tid
    }
}

impl Drop for Handle<'_> {
    #[inline]
    fn drop(&mut self) {
        if thread::panicking() {
            self.journal.abort(During::Operation, None);
        }
        self.journal.gate().leave(self.place, self.credits);
        INSIDE.with(|inside| inside.set(false));
    }
}

impl Inner {
    /// Joins after the first attempt was refused.
    #[cold]
    fn join_slow(&self, credits: Credits, refused: Refused) -> Result<Place, Error> {
        let _section = profile::enter(Section::Journal);
        let most = self.budget().limits().credits;
        if credits.0 > most {
            return Err(Error::TooManyCredits {
                wanted: credits,
                most: Credits(most),
            });
        }
        let mut refused = refused;
        loop {
            let again = match refused {
                Refused::Aborted => return Err(self.aborted()),
                Refused::Closed => {
                    self.gate().wait_open(None);
                    self.gate().join(credits.0)
                }
                Refused::Credits => self.join_and_gather(credits)?,
            };
            match again {
                Ok(place) => return Ok(place),
                Err(again) => refused = again,
            }
        }
    }

    /// Joins the transaction `tid` with credits, if it is running and has them.
    fn join_in(&self, tid: Tid, credits: Credits) -> Result<Place, Error> {
        let too_few = Error::TooManyCredits {
            wanted: credits,
            most: Credits(self.budget().limits().credits),
        };
        let place = match self.gate().join(0) {
            Ok(place) => place,
            Err(Refused::Aborted) => return Err(self.aborted()),
            Err(Refused::Closed | Refused::Credits) => return Err(too_few),
        };
        let gathers = || self.budget().gather(self.gate(), place, credits.0).is_ok();
        if place.tid == tid && gathers() {
            return Ok(place);
        }
        self.gate().leave(place, 0);
        Err(too_few)
    }

    /// Joins without credits and gathers them; if the transaction has too few left, gets it sealed.
    fn join_and_gather(&self, credits: Credits) -> Result<Result<Place, Refused>, Error> {
        let place = match self.gate().join(0) {
            Ok(place) => place,
            Err(refused) => return Ok(Err(refused)),
        };
        if self.budget().gather(self.gate(), place, credits.0).is_ok() {
            return Ok(Ok(place));
        }
        // While this thread is inside, the turn is that of its transaction.
        let turn = self.gate().state().turn();
        self.gate().leave(place, 0);
        self.seal_for_credits(place.tid, turn)?;
        Ok(self.gate().join(credits.0))
    }
}
