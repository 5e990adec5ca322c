//! **Purpose.** Handles: the part of one operation in the running transaction.
//!
//! # Model
//! An operation opens a handle with enough credits for its worst case, makes all its changes
//! through it, and stops it. Whatever is done through one handle is in the same transaction: after
//! a crash all of it is there, or nothing.
//!
//! # Invariants
//! - While a handle is open its transaction is not sealed. So a handle must end soon: its owner
//!   does no I/O, takes no inode lock, and waits for no space and no commit.
//! - A thread has one open handle at most. A second one would wait for the gate, which its sealer
//!   keeps closed until the first one ends.
//! - A handle that is dropped by a panic aborts the journal: half of an operation is in the
//!   transaction, and it must not be committed.
//!
//! # Locking
//! Starting a handle, changing a buffer that has joined already, and stopping write the slot of
//! this core and the buffer, nothing else. A thread that moves to another core meanwhile goes on
//! with the slot it joined.

use std::cell::Cell;

use fourscore_block::{Buffer, BufferCache, Joined, Retired, VerifiedAs};
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::rank::{Held, Rank};
use fourscore_sync::{Arc, thread};

use crate::credits::Credits;
use crate::error::{During, Error};
use crate::gate::{Place, Refused};
use crate::journal::Inner;
use crate::transaction::{BeforeCommit, OnCommit};

/// Where handles stand in the order of locks: behind all that a client of the journal holds.
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
    /// The buffer has left the cache: close the handle, load the block anew, and retry.
    #[error(transparent)]
    Retired(#[from] Retired),
    /// The buffer is new in the transaction and the handle has no credit left: its owner asked
    /// for too few.
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
        // A buffer that is dirty in the running transaction stays so, unless it is forgotten.
        *credits = credits.saturating_sub(1);
    }
    Ok((result, joined))
}

/// What became of [`Handle::extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "without the credits the handle has to be restarted"]
pub enum Extended {
    /// The handle has the credits.
    Yes,
    /// The transaction is full: bring what was done to a consistent end, and restart.
    No,
}

/// The last transaction in which something was changed, such as an inode: what an `fsync` of it
/// waits for. Written only when it changes.
#[derive(Debug, Default)]
pub struct LastTid(AtomicU64);

/// Set in a [`LastTid`] that holds a transaction.
const HAS_TID: u64 = 1 << 32;

impl LastTid {
    /// Nothing was changed yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// With `tid` as the last so far.
    #[must_use]
    pub fn of(tid: Option<Tid>) -> Self {
        let last = Self::new();
        if let Some(tid) = tid {
            last.set(tid);
        }
        last
    }

    /// The transaction, if anything was changed since the value was made.
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

/// The part of one operation in the running transaction; ends when it is dropped. Belongs to the
/// thread that started it.
#[derive(Debug)]
pub struct Handle<'j> {
    journal: &'j Inner,
    place: Place,
    credits: u32,
    /// Revoke records that are paid for and not used yet.
    revokes_left: u32,
    /// The thread knows that it has a handle, so it cannot be given away.
    _held: Held,
}

impl<'j> Handle<'j> {
    /// Joins the running transaction, waiting for room or for a seal if need be.
    #[inline]
    pub(crate) fn start(journal: &'j Inner, credits: Credits) -> Result<Self, Error> {
        assert!(
            !is_inside(),
            "a handle was started by a thread that has one"
        );
        let place = match journal.gate().join(credits.0) {
            Ok(place) => place,
            Err(refused) => journal.join_slowly(credits, refused)?,
        };
        Ok(Self::inside(journal, place, credits))
    }

    /// Joins the running transaction if it is `tid` and has room.
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

    /// Changes `buffer`, and vouches that the result is what `tag` says but for its checksum.
    /// Takes a credit if this is the transaction's first change of the buffer.
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

    /// Brings `buffer` into the transaction, and changes nothing. From then on a change of it by
    /// this handle is not refused.
    ///
    /// # Errors
    /// See [`ModifyError`].
    #[inline]
    pub fn join(&mut self, buffer: &Arc<Buffer>, tag: VerifiedAs) -> Result<(), ModifyError> {
        if buffer.is_dirty_in(self.place.tid) {
            return Ok(());
        }
        self.modify(buffer, tag, |_| ())
    }

    /// Notes that `block`, which held metadata, was freed: what this transaction changed in it is
    /// given up, and no older copy of it will be replayed or checkpointed once the transaction is
    /// durable. The block may be given out again when the transaction's
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

    /// Notes that no copy of `block` logged so far may be replayed or checkpointed. Void if the
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

    /// Calls `then` when the transaction is durable and no checkpoint of a block that it revoked
    /// is in flight any more; never, if the journal is aborted before. It is called by some
    /// thread that commits: it must be quick, start no handle and wait for no commit.
    pub fn on_commit(&mut self, then: OnCommit) {
        let mut list = self.journal.running().of(self.place.core);
        list.on_commit.push(then);
    }

    /// Calls `first` before the transaction is written to the log: for data that has to be on the
    /// device before the transaction exposes it. Its failure aborts the journal. It may do I/O;
    /// it must start no handle and wait for no commit.
    pub fn before_commit(&mut self, first: BeforeCommit) {
        let mut list = self.journal.running().of(self.place.core);
        list.before_commit.push(first);
    }

    /// Notes in `last` that this transaction is the last to have changed its owner.
    pub fn note(&self, last: &LastTid) {
        last.set(self.place.tid);
    }

    /// Asks for `more` credits in the same transaction. Never waits.
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
    /// does. What was done before is an operation of its own: after a crash it may be there
    /// without what follows.
    ///
    /// # Errors
    /// As [`Journal::start`](crate::Journal::start).
    pub fn restart(self, credits: Credits) -> Result<Self, Error> {
        let journal = self.journal;
        drop(self);
        Self::start(journal, credits)
    }

    /// Ends the handle and says in which transaction it was: what a caller that wants durability
    /// waits for.
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
    /// Joins after a first try was refused.
    #[cold]
    fn join_slowly(&self, credits: Credits, refused: Refused) -> Result<Place, Error> {
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
        let no_room = Error::TooManyCredits {
            wanted: credits,
            most: Credits(self.budget().limits().credits),
        };
        let place = match self.gate().join(0) {
            Ok(place) => place,
            Err(Refused::Aborted) => return Err(self.aborted()),
            Err(Refused::Closed | Refused::Credits) => return Err(no_room),
        };
        let gathers = || self.budget().gather(self.gate(), place, credits.0).is_ok();
        if place.tid == tid && gathers() {
            return Ok(place);
        }
        self.gate().leave(place, 0);
        Err(no_room)
    }

    /// Joins without credits and gathers them, or has the transaction sealed if it has none left.
    fn join_and_gather(&self, credits: Credits) -> Result<Result<Place, Refused>, Error> {
        let place = match self.gate().join(0) {
            Ok(place) => place,
            Err(refused) => return Ok(Err(refused)),
        };
        if self.budget().gather(self.gate(), place, credits.0).is_ok() {
            return Ok(Ok(place));
        }
        // While we are inside, the turn is that of our transaction.
        let turn = self.gate().state().turn();
        self.gate().leave(place, 0);
        self.seal_for_room(place.tid, turn)?;
        Ok(self.gate().join(credits.0))
    }
}
