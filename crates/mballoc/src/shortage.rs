//! **Purpose.** What a request means that is refused for lack of space, and how its caller waits
//! for space that is coming.
//!
//! **Not here.** Making commits and ending grace periods, and the order in which threads are served
//! that are short of space: the file system does that.
//!
//! **Model.** A cluster that is not in use is in one of these states; the arrows are what makes it
//! go on:
//!
//! ```text
//! freed, waits in its group --commit durable, quiet clock--> due --> told to the device
//!                                                             |       (mounts that do so) --.
//!                                                             v                             v
//!      reservation of a request  <-- taken --  token of a core, of a pool, or kept for a thread
//! ```
//!
//! A preallocated cluster has its token with the cores: it can always be taken from its owner. So
//! [`Allocator::reserve`] decides alone whether there is space, by counting the clusters in all of
//! these states but the last. A request that holds tokens finds clusters for them, and if others
//! move them about, it looks again.
//!
//! **Invariants.**
//! - `reserve` returns [`Error::NoSpace`] only if there was a moment during the call at which
//!   tokens, waiting clusters and those of which the device was being told, without what the pools
//!   get first, were fewer than what was asked for. Proof: [`Tokens::take_counting`] closes the
//!   tokens of all cores at some moment; clusters that are not in use go only forward from then on,
//!   and not beyond tokens. They are counted in the order in which they go: those that wait, under
//!   the lock of each group; those that are told, which are entered under the same lock; tokens at
//!   the end. The token of a cluster is added under the lock under which the cluster stops waiting,
//!   before the group leaves the set of those that are visited, and before the cluster stops being
//!   told. So each cluster that was there at the beginning is met at least once. One that is freed
//!   during the count may be missed: then the request came before the free.
//! - Nobody sleeps for ever in [`Allocator::wait_for_grace_period`]: the sleeper enters itself with the
//!   [`Bell`], then reads what it waits for; whoever changes that rings the bell afterwards. Both
//!   sides write first and read second, with a full fence between, so at least one sees the other.
//!   If nobody comes to ring, since a reader does not end, the sleep ends at its deadline.
//!
//! **Locking.** Counting takes the slow lock of the tokens, and the locks of groups one by one
//! under it. The bell takes no lock: it is rung by destructors of values that readers keep alive.
//!
//! [`Tokens::take_counting`]: crate::tokens::Tokens::take_counting

use std::time::Instant;

use fourscore_sync::atomic::{AtomicU64, Ordering, fence};
use fourscore_sync::epoch::{self, EpochCell};
use fourscore_sync::thread::{self, Thread, ThreadId};

use crate::allocator::Allocator;
use crate::error::Error;
use crate::pending::{Stamp, Waiting};
use crate::tokens::{Privilege, Reservation};

/// Clusters of which the device is being told: they belong to nobody, and come back.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    now: AtomicU64,
    /// How often some of them have come back.
    ended: AtomicU64,
}

impl Telling {
    /// Some are going to be told. Precedes taking their tokens, or follows their waiting under the
    /// lock of their group.
    pub(crate) fn begin(&self, clusters: u64) {
        self.now.fetch_add(clusters, Ordering::SeqCst);
    }

    /// Their tokens are back.
    pub(crate) fn end(&self, clusters: u64) {
        self.now.fetch_sub(clusters, Ordering::SeqCst);
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// How many.
    pub(crate) fn clusters(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }
}

/// Wakes the one thread that sleeps until waiting clusters go on.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    sleeper: EpochCell<Thread>,
}

impl Bell {
    /// Wakes who listens, after something has changed.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeper.is_empty() {
            return;
        }
        if let Some(thread) = self.sleeper.load(&epoch::pin()) {
            thread.unpark();
        }
    }
}

/// A point in the telling of the device, to wait for what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told(u64);

impl Allocator {
    /// As [`Allocator::reserve`], after too few tokens were found.
    #[cold]
    pub(crate) fn reserve_or_tell(
        &self,
        clusters: u64,
        privilege: Privilege,
    ) -> Result<Reservation, Error> {
        self.release_due();
        let mut waiting = Waiting::default();
        let count = || {
            waiting = self.table().on_the_way();
            waiting.clusters
        };
        let tokens = &self.table().shared.tokens;
        let taken = tokens.take_counting(clusters, privilege, count);
        taken.map_err(|short| {
            let (wanted, available) = (short.wanted, short.available);
            if short.in_sight < short.wanted {
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

    /// Keeps all clusters that are free, or become it, for requests of one thread, instead of the
    /// one before; or ends that. Preallocations that exist are served from all the same.
    pub fn favour(&self, thread: Option<ThreadId>) {
        self.table().shared.tokens.favour(thread);
    }

    /// The last time that the device was told of something.
    #[must_use]
    pub fn told(&self) -> Told {
        Told(self.table().shared.telling.ended.load(Ordering::SeqCst))
    }

    /// Lets the calling thread be woken by what [`Allocator::wait_for_grace_period`] waits for, from now
    /// on and instead of the one before; to be called first.
    pub fn listen(&self) {
        let thread = Box::new(thread::current());
        self.table().shared.bell.sleeper.store(Some(thread));
        fence(Ordering::SeqCst);
    }

    /// Sleeps until the grace period `stamp` has ended and, if discards are in flight, one has
    /// completed after `told`; at the longest until `deadline`. Calls `goes_on` whenever the thread
    /// is woken ([`Thread::unpark`]) and returns early if that says no.
    pub fn wait_for_grace_period(
        &self,
        stamp: Stamp,
        told: Told,
        deadline: Instant,
        goes_on: impl Fn() -> bool,
    ) {
        let shared = &self.table().shared;
        let is_over = || {
            let is_told = shared.telling.clusters() == 0 || self.told() != told;
            is_told && shared.clocks.has_ended(stamp)
        };
        while !is_over() && goes_on() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::park_timeout(left);
        }
    }

    /// Wakes nobody any more.
    pub fn stop_listening(&self) {
        self.table().shared.bell.sleeper.store(None);
    }
}
