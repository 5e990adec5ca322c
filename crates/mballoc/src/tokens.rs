//! **Purpose.** Reservation of space: counts the free clusters of the file system as tokens, kept
//! per core, so that taking and returning them touches no cache line of another core.
//!
//! **Not here.** Which clusters are free. A token stands for some cluster that is free or in a
//! preallocation.
//!
//! **Model.** `free clusters = sum of the cores' tokens + the two pools + tokens in reservations`.
//! The root pool holds `s_r_blocks_count`, the reserved pool the clusters that ext4 reserves for
//! writing back delayed data (`reserved_clusters`). Returned tokens fill the reserved pool first,
//! then the root pool, then go to the core. If clusters are [retired](Tokens::retire) while their
//! tokens are in reservations, the tokens are owed: returned tokens pay them before anything else.
//!
//! A thread that is short of tokens can be [favoured](Tokens::favour): the cores' tokens and those
//! that are returned are kept for it until it has enough, and no other thread can take them.
//!
//! **Invariants.**
//! - [`Tokens::take`] fails if the cores' words, read one after the other under the slow lock, hold
//!   too few. That is a hint: a token that was taken from one word and returned to another
//!   meanwhile was not seen.
//! - [`Tokens::take_counting`] fails only if at one moment during the call the tokens and the
//!   clusters that its caller counts as becoming free were too few together. It first closes the
//!   words of all cores: from that moment on no thread takes a token, so tokens are only added.
//!   Then it counts the clusters becoming free, and gathers the tokens last. A cluster that was
//!   becoming free at that moment is counted as such, or has become a token by the end; so the sum
//!   is at least the sum at that moment.
//!
//! **Locking.** None on the fast path: one compare-and-swap on this core's word, and when tokens
//! are returned, one load of a word that is written only when a pool is drawn from or filled, or a
//! thread is favoured. The slow lock guards the gathering and the pools. Group locks may be taken
//! under it (by the count), and it is never taken under one.

use fourscore_sync::atomic::{AtomicBool, AtomicI64, Ordering};
use fourscore_sync::thread::{self, ThreadId};
use fourscore_sync::{CachePadded, CoreNr, Mutex, PerCore};

use crate::geometry::ClusterCount;

/// Which pools may be drawn from when the cores have too few tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// None.
    User,
    /// The root pool.
    Root,
    /// Both pools: for tree blocks at write-back, where a failure would lose accepted data.
    Reserved,
}

/// Tokens that belong to the holder, for clusters not allocated yet. Dropping a reservation that is
/// not empty loses the tokens until the next mount; debug builds report it.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "a reservation must be used up or returned"]
pub struct Reservation {
    clusters: u64,
    /// See [`Tokens::take_ahead`].
    is_ahead: bool,
}

impl Reservation {
    fn of(clusters: u64) -> Self {
        Self {
            clusters,
            is_ahead: false,
        }
    }

    /// The number of clusters reserved.
    #[must_use]
    pub fn clusters(&self) -> u64 {
        self.clusters
    }

    /// Whether there may be no clusters for it before a commit.
    pub(crate) fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Moves all of `other` into this one.
    pub fn absorb(&mut self, mut other: Self) {
        self.clusters += std::mem::take(&mut other.clusters);
        self.is_ahead |= other.is_ahead;
    }

    /// Splits off a reservation of `clusters` clusters.
    ///
    /// # Panics
    /// If `clusters` is more than this one has.
    pub fn split_off(&mut self, clusters: u64) -> Self {
        assert!(
            clusters <= self.clusters,
            "{clusters} of a reservation of {}",
            self.clusters
        );
        self.clusters -= clusters;
        Self {
            clusters,
            is_ahead: self.is_ahead,
        }
    }

    /// Uses tokens up, for clusters that now belong to a claim.
    pub(crate) fn spend(&mut self, len: ClusterCount) {
        let mut spent = self.split_off(u64::from(len.0));
        spent.clusters = 0;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        debug_assert!(
            self.clusters == 0 || std::thread::panicking(),
            "a reservation of {} clusters was dropped",
            self.clusters
        );
    }
}

/// The error of too few tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Clusters that were requested.
    pub wanted: u64,
    /// Clusters that were available to this privilege.
    pub available: u64,
    /// The same, plus the clusters that are becoming free for this privilege and those kept for
    /// another thread.
    pub expected: u64,
}

/// Whether tokens may be taken out of the words of the cores. They may always be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Open,
    Closed,
}

impl Words {
    /// The value of a word with no tokens. No token is taken from a negative word, and a closed
    /// word stays negative however many tokens are added.
    fn empty(self) -> i64 {
        match self {
            Self::Open => 0,
            Self::Closed => -(1 << 62),
        }
    }
}

/// The tokens of a file system.
#[derive(Debug)]
pub struct Tokens {
    cores: PerCore<AtomicI64>,
    /// Whether a pool is below its size: read on every return, written rarely.
    short: CachePadded<AtomicBool>,
    pools: Mutex<Pools>,
}

#[derive(Debug)]
struct Pools {
    /// Tokens of retired clusters that are still in reservations.
    owed: i64,
    root: Pool,
    reserved: Pool,
    /// The thread for which tokens are kept.
    favoured: Option<ThreadId>,
    /// The tokens kept for it.
    kept: i64,
}

impl Pools {
    /// The tokens kept for the calling thread.
    fn kept_for_me(&self) -> i64 {
        let is_mine = self.favoured == Some(thread::current().id());
        if is_mine { self.kept } else { 0 }
    }

    /// How many of the clusters that become free next go to debts and pools, not to this privilege.
    fn missing_before(&self, privilege: Privilege) -> i64 {
        let root = match privilege {
            Privilege::User => self.root.missing(),
            Privilege::Root | Privilege::Reserved => 0,
        };
        let reserved = match privilege {
            Privilege::User | Privilege::Root => self.reserved.missing(),
            Privilege::Reserved => 0,
        };
        self.owed + root + reserved
    }

    /// Takes `wanted` tokens from the gathered ones, from those kept for the calling thread and
    /// from the pools. If they are too few, takes nothing and returns their number as the error.
    fn pay(&mut self, gathered: &mut i64, wanted: i64, privilege: Privilege) -> Result<(), i64> {
        let kept = self.kept_for_me();
        let pools = match privilege {
            Privilege::User => 0,
            Privilege::Root => self.root.has,
            Privilege::Reserved => self.root.has + self.reserved.has,
        };
        let available = gathered.saturating_add(kept).saturating_add(pools);
        if available < wanted {
            return Err(available);
        }
        let mut missing = wanted;
        for (has, most) in [(&mut *gathered, i64::MAX), (&mut self.kept, kept)] {
            let moved = (*has).min(missing).min(most).max(0);
            *has -= moved;
            missing -= moved;
        }
        self.root.draw(&mut missing);
        self.reserved.draw(&mut missing);
        Ok(())
    }
}

#[derive(Debug)]
struct Pool {
    size: i64,
    has: i64,
}

impl Pool {
    fn new(size: u64) -> Self {
        Self {
            size: signed(size),
            has: 0,
        }
    }

    fn missing(&self) -> i64 {
        (self.size - self.has).max(0)
    }

    fn fill(&mut self, from: &mut i64) {
        let moved = (self.size - self.has).min(*from).max(0);
        self.has += moved;
        *from -= moved;
    }

    /// Takes up to `wanted` tokens, and subtracts them from `wanted`.
    fn draw(&mut self, wanted: &mut i64) {
        let moved = self.has.min(*wanted).max(0);
        self.has -= moved;
        *wanted -= moved;
    }
}

/// Cluster counts stay below 2^63: there are at most 2^32 groups of 2^19 clusters.
fn signed(clusters: u64) -> i64 {
    i64::try_from(clusters).unwrap_or(i64::MAX)
}

impl Tokens {
    /// Makes tokens for `free` clusters, of which up to `root` and `reserved` fill the pools.
    #[must_use]
    pub fn new(free: u64, root: u64, reserved: u64) -> Self {
        let tokens = Self {
            cores: PerCore::new(|_| AtomicI64::new(0)),
            short: CachePadded::new(AtomicBool::new(false)),
            pools: Mutex::new(Pools {
                owed: 0,
                root: Pool::new(root),
                reserved: Pool::new(reserved),
                favoured: None,
                kept: 0,
            }),
        };
        let mut pools = tokens.pools.lock();
        tokens.settle(&mut pools, signed(free));
        drop(pools);
        tokens
    }

    /// Takes `clusters` tokens.
    ///
    /// # Errors
    /// [`Short`] if too few were found for this privilege. That is a hint: see the invariants.
    pub fn take(
        &self,
        core: CoreNr,
        clusters: u64,
        privilege: Privilege,
    ) -> Result<Reservation, Short> {
        let wanted = signed(clusters);
        let enough = |has: i64| (has >= wanted).then(|| has - wanted);
        let mine = self.cores.of(core);
        if mine
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, enough)
            .is_ok()
        {
            return Ok(Reservation::of(clusters));
        }
        self.take_counting(clusters, privilege, || 0)
    }

    /// Takes `clusters` tokens from this core, whether it has as many or not: its word may become
    /// negative. [`Tokens::total`] stays right.
    pub(crate) fn take_ahead(&self, core: CoreNr, clusters: u64) -> Reservation {
        let mine = self.cores.of(core);
        mine.fetch_sub(signed(clusters), Ordering::AcqRel);
        Reservation {
            clusters,
            is_ahead: true,
        }
    }

    /// As [`Tokens::take`], on the slow path. `count` returns how many clusters are becoming free:
    /// it is called if there are too few tokens, and while it runs no thread can take any.
    ///
    /// # Errors
    /// [`Short`] if there were too few for this privilege. If `count` counts every cluster that is
    /// becoming free while it runs, [`Short::expected`] is at least the sum at one moment.
    pub fn take_counting(
        &self,
        clusters: u64,
        privilege: Privilege,
        count: impl FnOnce() -> u64,
    ) -> Result<Reservation, Short> {
        let wanted = signed(clusters);
        let mut pools = self.pools.lock();
        let mut gathered = self.gather(Words::Open, Words::Closed);
        let mut paid = pools.pay(&mut gathered, wanted, privilege);
        let becoming_free = if paid.is_ok() { 0 } else { signed(count()) };
        gathered += self.gather(Words::Closed, Words::Open);
        if paid.is_err() {
            paid = pools.pay(&mut gathered, wanted, privilege);
        }
        let refused = paid.map_err(|available| {
            let coming = (becoming_free - pools.missing_before(privilege)).max(0);
            let of_another = pools.kept - pools.kept_for_me();
            let expected = available.saturating_add(coming).saturating_add(of_another);
            Short {
                wanted: clusters,
                available: available.max(0).unsigned_abs(),
                expected: expected.max(0).unsigned_abs(),
            }
        });
        self.settle(&mut pools, gathered);
        refused.map(|()| Reservation::of(clusters))
    }

    /// Keeps all tokens, including those returned later, for `thread` alone, in place of the thread
    /// that was favoured before; `None` distributes the kept tokens over the cores. Pools that are
    /// not full are filled first.
    pub fn favour(&self, thread: Option<ThreadId>) {
        let mut pools = self.pools.lock();
        pools.favoured = thread;
        if thread.is_some() {
            // Before the words are read: see `refill_if_short`.
            self.short.store(true, Ordering::SeqCst);
        }
        let gathered = self.gather(Words::Open, Words::Open);
        self.settle(&mut pools, gathered);
    }

    /// Returns a reservation.
    pub fn give_back(&self, core: CoreNr, mut reservation: Reservation) {
        self.add(core, std::mem::take(&mut reservation.clusters));
    }

    /// Adds tokens for clusters that have become free.
    pub fn add(&self, core: CoreNr, clusters: u64) {
        if clusters == 0 {
            return;
        }
        self.deposit(core, clusters);
        self.refill_if_short();
    }

    /// The first half of [`Tokens::add`], which takes no lock. The second half must follow.
    #[inline]
    pub(crate) fn deposit(&self, core: CoreNr, clusters: u64) {
        self.cores
            .of(core)
            .fetch_add(signed(clusters), Ordering::SeqCst);
    }

    /// The second half of [`Tokens::add`]: moves the tokens to the pools and the favoured thread if
    /// `short` is set. This thread adds tokens before it reads `short`; a thread that sets `short`
    /// reads the words afterwards, all with sequential consistency. So either this thread sees
    /// `short`, or the other sees the tokens.
    #[inline]
    pub(crate) fn refill_if_short(&self) {
        if self.short.load(Ordering::SeqCst) {
            self.refill();
        }
    }

    /// Whether tokens of retired clusters are owed: then a reservation may hold a token for which
    /// there is no cluster.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.pools.lock().owed > 0
    }

    /// Takes all tokens out of the words of the cores, which are in state `were`, and leaves the
    /// words in state `then`.
    fn gather(&self, were: Words, then: Words) -> i64 {
        let words = self.cores.iter();
        words
            .map(|word| word.swap(then.empty(), Ordering::SeqCst) - were.empty())
            .sum()
    }

    /// Removes the tokens of clusters that turned out to be unusable. Tokens that are in
    /// reservations are owed.
    pub fn retire(&self, clusters: u64) {
        let mut pools = self.pools.lock();
        let gathered = self.gather(Words::Open, Words::Open);
        pools.owed = pools.owed.saturating_add(signed(clusters));
        self.settle(&mut pools, gathered);
    }

    /// Sets the size of the root pool, and fills it as far as there are tokens.
    pub fn set_root(&self, clusters: u64) {
        let mut pools = self.pools.lock();
        pools.root.size = signed(clusters);
        let mut gathered = self.gather(Words::Open, Words::Open);
        gathered += std::mem::take(&mut pools.root.has);
        self.settle(&mut pools, gathered);
    }

    /// All tokens, pools included; exact while no thread takes or returns any.
    #[must_use]
    pub fn total(&self) -> u64 {
        let pools = self.pools.lock();
        let cores: i64 = self
            .cores
            .iter()
            .map(|slot| slot.load(Ordering::Acquire))
            .sum();
        cores
            .saturating_add(pools.root.has + pools.reserved.has + pools.kept - pools.owed)
            .max(0)
            .unsigned_abs()
    }

    /// Fills the pools from all cores.
    fn refill(&self) {
        let mut pools = self.pools.lock();
        let gathered = self.gather(Words::Open, Words::Open);
        self.settle(&mut pools, gathered);
    }

    /// Pays owed tokens and fills the pools from `gathered` and the kept tokens. Keeps the rest for
    /// the favoured thread, or distributes it over the cores.
    fn settle(&self, pools: &mut Pools, mut gathered: i64) {
        gathered += std::mem::take(&mut pools.kept);
        let paid = pools.owed.min(gathered);
        pools.owed -= paid;
        gathered -= paid;
        pools.reserved.fill(&mut gathered);
        pools.root.fill(&mut gathered);
        let is_short = pools.owed > 0
            || pools.favoured.is_some()
            || pools.root.has < pools.root.size
            || pools.reserved.has < pools.reserved.size;
        if self.short.load(Ordering::Relaxed) != is_short {
            self.short.store(is_short, Ordering::SeqCst);
        }
        if pools.favoured.is_some() {
            pools.kept = gathered;
            return;
        }
        let cores = signed(self.cores.iter().count() as u64);
        let share = gathered / cores;
        let mut odd = gathered % cores;
        for slot in self.cores.iter() {
            let extra = i64::from(odd > 0);
            odd -= extra;
            if share + extra != 0 {
                slot.fetch_add(share + extra, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
