//! **Purpose.** Statistics of the sharing cache.
//!
//! **Locking.** Counters are kept per core. The time is that of every 64th lookup of a core, times
//! 64: reading the clock for each would cost as much as the lookup.

use std::time::{Duration, Instant};

use fourscore_sync::atomic::{AtomicU32, Ordering};
use fourscore_sync::{Counter, PerCore};

/// One lookup in this many is timed.
const TIMED: u32 = 64;

/// Statistics of the cache of shared attributes: how often it is queried, and what that saves. They
/// count blocks of attributes and values in inodes of their own alike, unless a field says
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct XattrSharingStats {
    /// Contents to be stored for which an equal one was looked for.
    pub lookups: u64,
    /// Contents to be stored that were not looked for, since the automatic bypass was on.
    pub bypassed: u64,
    /// Lookups that found an equal content that can have another user.
    pub hits: u64,
    /// Users that were given a content that exists. Fewer than hits if operations failed later.
    pub shared: u64,
    /// Lookups that found a block with the most users that a block may have (1024).
    pub at_limit: u64,
    /// Lookups that found another content with the same hash.
    pub unequal: u64,
    /// Lookups that found a content whose last user was leaving, or whose entry was evicted.
    pub vanished: u64,
    /// Lookups that found a value whose lock another operation held.
    pub busy: u64,
    /// Places that were made although an equal one had room, so that a core has one of its own. For
    /// blocks, this is the price of sharing on many cores.
    pub own_places: u64,
    /// Entries that were added to the cache.
    pub offered: u64,
    /// Entries that left the cache for lack of space.
    pub evictions: u64,
    /// Blocks that were not allocated, less those that were needed later when a shared block was
    /// divided or lost a user. Counted since the mount, so it can be less than what is shared.
    pub blocks_saved: u64,
    /// The time that lookups took, hashes included; estimated from one lookup in 64.
    pub time: Duration,
}

/// The counters behind [`XattrSharingStats`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) lookups: Counter,
    pub(crate) bypassed: Counter,
    pub(crate) hits: Counter,
    pub(crate) shared: Counter,
    pub(crate) at_limit: Counter,
    pub(crate) unequal: Counter,
    pub(crate) vanished: Counter,
    pub(crate) busy: Counter,
    pub(crate) own_places: Counter,
    pub(crate) offered: Counter,
    /// Users that were given to blocks.
    pub(crate) block_users: Counter,
    /// Users that left blocks which others still use.
    pub(crate) block_losses: Counter,
    nanoseconds: Counter,
    turns: PerCore<AtomicU32>,
}

impl Counts {
    pub(crate) fn sums(&self, evictions: u64) -> XattrSharingStats {
        let (gained, lost) = (self.block_users.sum(), self.block_losses.sum());
        XattrSharingStats {
            lookups: self.lookups.sum(),
            bypassed: self.bypassed.sum(),
            hits: self.hits.sum(),
            shared: self.shared.sum(),
            at_limit: self.at_limit.sum(),
            unequal: self.unequal.sum(),
            vanished: self.vanished.sum(),
            busy: self.busy.sum(),
            own_places: self.own_places.sum(),
            offered: self.offered.sum(),
            evictions,
            blocks_saved: gained.saturating_sub(lost),
            time: Duration::from_nanos(self.nanoseconds.sum()),
        }
    }

    /// Calls `look`, and times it if it is this core's turn.
    pub(crate) fn timed<R>(&self, look: impl FnOnce() -> R) -> R {
        let turn = self.turns.mine();
        let number = turn.load(Ordering::Relaxed);
        turn.store(number.wrapping_add(1), Ordering::Relaxed);
        if !number.is_multiple_of(TIMED) {
            return look();
        }
        let began = Instant::now();
        let found = look();
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.add(took.saturating_mul(TIMED.into()));
        found
    }
}
