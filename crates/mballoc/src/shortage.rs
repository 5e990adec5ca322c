//! **Purpose.** Running out of space: decides whether a request that finds too few tokens fails or
//! has to wait, and lets one thread wait for space that is becoming free.
//!
//! **Not here.** Committing, ending grace periods, and the order in which threads that are short of
//! space are served: the file system does that.
//!
//! **Model.** A cluster that is not in use is in one of these states; an arrow is labelled with the
//! event that moves the cluster on:
//!
//! ```text
//! freed, pending in its group --commit durable, grace period over--> due --> being discarded
//!                                                                     |      (mounts that discard)
//!                                                                     v              v
//!       reservation of a request  <-- taken --  token of a core, of a pool, or kept for a thread
//! ```
//!
//! A preallocated cluster has its token with the cores: it can always be taken from its owner. So
//! [`Allocator::reserve`] alone decides whether there is space, by counting the clusters in all of
//! these states but the last. A request that holds tokens always finds clusters; if concurrent
//! requests move them, it searches again.
//!
//! **Invariants.**
//! - `reserve` returns [`Error::NoSpace`] only if at one moment during the call the tokens, the
//!   pending clusters and those being discarded, less those that go to the pools first, were fewer
//!   than requested. Proof: [`Tokens::take_counting`] closes the tokens of all cores at one moment.
//!   From then on clusters only move along the arrows, and not past the tokens. They are counted in
//!   that order: pending ones under the lock of each group; then those being discarded, which
//!   become so under the same lock; then tokens. The token of a cluster is added under the lock
//!   under which the cluster stops being pending, before the group leaves the set of groups to
//!   visit, and before the cluster stops being discarded. So each cluster that was free at that
//!   moment is counted at least once. A cluster that is freed during the count may be missed: then
//!   the request came before the free.
//! - No thread sleeps for ever in [`Allocator::wait_for_grace_period`]: it registers itself as the
//!   `Waiter`, then reads the state that it waits for; a thread that changes the state wakes the
//!   waiter afterwards. Both sides write first and read second, with a full fence between, so at
//!   least one sees the other. If a reader does not end and no wake-up comes, the wait ends at its
//!   deadline.
//!
//! **Locking.** Counting takes the slow lock of the tokens, and the locks of groups one by one
//! under it. Waking takes the lock of the waiter, under which nothing is done but to read or
//! replace it: destructors of values that readers keep alive wake threads, whatever locks those
//! hold.
//!
//! [`Tokens::take_counting`]: crate::tokens::Tokens::take_counting

use std::time::Instant;

use fourscore_sync::Mutex;
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use fourscore_sync::thread::{self, Thread, ThreadId};

use crate::allocator::Allocator;
use crate::error::Error;
use crate::pending::{Stamp, Waiting};
use crate::tokens::{Privilege, Reservation};

/// Clusters that are being discarded: claimed until the discard has completed, then free again.
#[derive(Debug, Default)]
pub(crate) struct Discards {
    in_flight: AtomicU64,
    /// The number of discards that have completed.
    completed: AtomicU64,
}

impl Discards {
    /// Counts clusters as being discarded: before their tokens are taken, or under the lock of
    /// their group when they stop being pending.
    pub(crate) fn begin(&self, clusters: u64) {
        self.in_flight.fetch_add(clusters, Ordering::SeqCst);
    }

    /// Ends what [`Discards::begin`] began, after the tokens have been returned.
    pub(crate) fn end(&self, clusters: u64) {
        self.in_flight.fetch_sub(clusters, Ordering::SeqCst);
        self.completed.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of clusters being discarded.
    pub(crate) fn clusters(&self) -> u64 {
        self.in_flight.load(Ordering::SeqCst)
    }
}

/// The one thread that waits until clusters become free, if any does.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    is_registered: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Waiter {
    /// Wakes the waiter; to be called after the state that it waits for has changed. Pins no epoch:
    /// a destructor that does would run the next destructor inside itself when it unpins, and that
    /// one the next, until the stack ends.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if !self.is_registered.load(Ordering::SeqCst) {
            return;
        }
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }

    /// Replaces the waiter.
    fn register(&self, thread: Option<Thread>) {
        let is_registered = thread.is_some();
        *self.thread.lock() = thread;
        self.is_registered.store(is_registered, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// The number of completed discards at some moment, to wait for a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardsCompleted(u64);

impl Allocator {
    /// The slow path of [`Allocator::reserve`], after this core had too few tokens.
    #[cold]
    pub(crate) fn reserve_slow(
        &self,
        clusters: u64,
        privilege: Privilege,
    ) -> Result<Reservation, Error> {
        self.release_due();
        let mut waiting = Waiting::default();
        let count = || {
            waiting = self.table().becoming_free();
            waiting.clusters
        };
        let tokens = &self.table().shared.tokens;
        let taken = tokens.take_counting(clusters, privilege, count);
        taken.map_err(|short| {
            let (wanted, available) = (short.wanted, short.available);
            if short.expected < short.wanted {
                return Error::NoSpace { wanted, available };
            }
            Error::CommitFirst {
                wanted,
                available,
                waiting: waiting.clusters,
                tid: waiting.newest,
            }
        })
    }

    /// Keeps all clusters that are free or become free for requests of `thread` alone, in place of
    /// the thread that was favoured before; `None` ends that. Existing preallocations still serve
    /// every thread.
    pub fn favour(&self, thread: Option<ThreadId>) {
        self.table().shared.tokens.favour(thread);
    }

    /// The number of discards completed so far.
    #[must_use]
    pub fn discards_completed(&self) -> DiscardsCompleted {
        DiscardsCompleted(
            self.table()
                .shared
                .discards
                .completed
                .load(Ordering::SeqCst),
        )
    }

    /// Registers the calling thread as the waiter, instead of any other: to be called before
    /// [`Allocator::wait_for_grace_period`].
    pub fn listen(&self) {
        let waiter = &self.table().shared.waiter;
        waiter.register(Some(thread::current()));
    }

    /// Sleeps until the grace period `stamp` has ended and, if discards are in flight, the number
    /// of completed discards differs from `completed`; at the longest until `deadline`. Calls
    /// `may_continue` whenever the thread is woken ([`Thread::unpark`]), and returns early if that
    /// returns `false`.
    pub fn wait_for_grace_period(
        &self,
        stamp: Stamp,
        completed: DiscardsCompleted,
        deadline: Instant,
        may_continue: impl Fn() -> bool,
    ) {
        let shared = &self.table().shared;
        let is_over = || {
            let is_discarded =
                shared.discards.clusters() == 0 || self.discards_completed() != completed;
            is_discarded && shared.clocks.has_ended(stamp)
        };
        while !is_over() && may_continue() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::park_timeout(left);
        }
    }

    /// Unregisters the waiter.
    pub fn stop_listening(&self) {
        self.table().shared.waiter.register(None);
    }
}
