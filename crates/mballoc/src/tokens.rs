//! **Purpose.** The right to allocate: the free clusters of the file system as tokens that lie
//! with the cores, so that taking and returning them touches no line of another core.
//!
//! **Not here.** Which clusters they are. A token says that some cluster is free, claimed by a
//! preallocation, or will be once preallocations are discarded.
//!
//! **Model.** `free clusters = sum of the cores' tokens + the two pools + tokens in
//! reservations`. The root pool holds `s_r_blocks_count`, the reserved pool what ext4 keeps for
//! writing back delayed data (`reserved_clusters`). Returned tokens fill the reserved pool first,
//! then the root pool, then go to the core. Clusters that are [retired](Tokens::retire) while their
//! tokens are out are owed, and paid before anything else.
//!
//! A thread that is short of tokens can be [favoured](Tokens::favour): tokens that lie with the
//! cores or come back are kept for it until it has enough, and nobody else can take them.
//!
//! **Invariants.**
//! - [`Tokens::take`] fails if the cores' words, read one after the other under the slow lock, hold
//!   too few. That is a hint: a token that was taken from one word and returned to another
//!   meanwhile was not seen.
//! - [`Tokens::take_counting`] fails only if there was a moment during the call at which the tokens
//!   and what its caller counts as on the way to become tokens were too few together. It closes the
//!   words of all cores first: from that moment on nobody takes a token, so tokens only come. Then
//!   it counts what is on the way, and gathers the tokens last. Whatever was on the way at that
//!   moment is met on the way, or has become a token by the end; so the sum is at least what there
//!   was at that moment.
//!
//! **Locking.** None on the fast path: one compare-and-swap on this core's word, and when tokens
//! return, one load of a word that is written only when a pool is drawn from or filled, or a thread
//! is favoured. The slow lock guards the gathering and the pools. Locks of groups may be taken
//! under it (by who counts), and it is never taken under one.

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
    /// Both: tree blocks at write-back, where failing would lose accepted data.
    Reserved,
}

/// Tokens that were taken and belong to the holder: for clusters not allocated yet. Dropping one
/// that is not empty loses the tokens until the next mount; debug builds report it.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "a reservation must be used up or returned"]
pub struct Reservation {
    clusters: u64,
}

impl Reservation {
    /// The clusters it stands for.
    #[must_use]
    pub fn clusters(&self) -> u64 {
        self.clusters
    }

    /// Moves all of `other` into this one.
    pub fn absorb(&mut self, mut other: Self) {
        self.clusters += std::mem::take(&mut other.clusters);
    }

    /// Cuts a part off.
    ///
    /// # Panics
    /// If `clusters` is more than it stands for.
    pub fn split_off(&mut self, clusters: u64) -> Self {
        assert!(
            clusters <= self.clusters,
            "{clusters} of a reservation of {}",
            self.clusters
        );
        self.clusters -= clusters;
        Self { clusters }
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

/// Too few tokens, with what there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Clusters that were asked for.
    pub wanted: u64,
    /// Clusters that there were for this privilege.
    pub available: u64,
    /// The same together with those that are on the way to become tokens for it, or that are kept
    /// for another thread.
    pub in_sight: u64,
}

/// Whether tokens may be taken out of the words of the cores. They may always be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Open,
    Closed,
}

impl Words {
    /// What a word with no tokens holds. Nobody takes a token from a word that is less than
    /// nothing, and there are fewer clusters than would make a closed one more than that.
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
    /// Tokens of retired clusters that are still out.
    owed: i64,
    root: Pool,
    reserved: Pool,
    /// The thread for which tokens are kept.
    favoured: Option<ThreadId>,
    /// Those that are kept for it.
    kept: i64,
}

impl Pools {
    /// What is kept for the calling thread.
    fn kept_for_me(&self) -> i64 {
        let is_mine = self.favoured == Some(thread::current().id());
        if is_mine { self.kept } else { 0 }
    }

    /// How many of the clusters that become free next are not for this privilege.
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

    /// Takes `wanted` from what was gathered, from what is kept for the calling thread and from the
    /// pools; if that is too few takes nothing, and says how many there are.
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

    /// Takes up to `wanted` out.
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
    /// Tokens for `free` clusters, of which up to `root` and `reserved` are set aside.
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
    /// [`Short`] if too few were found for this privilege: a hint.
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
            return Ok(Reservation { clusters });
        }
        self.take_counting(clusters, privilege, || 0)
    }

    /// The same by the slow path only. `count` says how many clusters are on the way to become
    /// tokens: it is called if there are too few tokens, and while it runs nobody takes any.
    ///
    /// # Errors
    /// [`Short`] if there were too few for this privilege. If `count` meets all that is on the way
    /// while it is called, [`Short::in_sight`] is at least what there was at one moment.
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
        let on_the_way = if paid.is_ok() { 0 } else { signed(count()) };
        gathered += self.gather(Words::Closed, Words::Open);
        if paid.is_err() {
            paid = pools.pay(&mut gathered, wanted, privilege);
        }
        let refused = paid.map_err(|available| {
            let coming = (on_the_way - pools.missing_before(privilege)).max(0);
            let of_another = pools.kept - pools.kept_for_me();
            let in_sight = available.saturating_add(coming).saturating_add(of_another);
            Short {
                wanted: clusters,
                available: available.max(0).unsigned_abs(),
                in_sight: in_sight.max(0).unsigned_abs(),
            }
        });
        self.settle(&mut pools, gathered);
        refused.map(|()| Reservation { clusters })
    }

    /// Keeps all tokens that there are, and that come back, for a thread, instead of the one
    /// before; or gives what was kept to everybody. Pools that are not full come first.
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

    /// Makes tokens of clusters that have become free.
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

    /// The second half: lets pools and the favoured thread have what was added. Tokens are added
    /// before `short` is read, and whoever sets `short` reads the words after that, all with
    /// sequential consistency; so either this sees `short`, or the other sees the tokens.
    #[inline]
    pub(crate) fn refill_if_short(&self) {
        if self.short.load(Ordering::SeqCst) {
            self.refill();
        }
    }

    /// Whether clusters were lost that have tokens: then somebody may hold a token in vain.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.pools.lock().owed > 0
    }

    /// Takes all tokens out of the words of the cores, and leaves the words open or closed.
    fn gather(&self, were: Words, then: Words) -> i64 {
        let words = self.cores.iter();
        words
            .map(|word| word.swap(then.empty(), Ordering::SeqCst) - were.empty())
            .sum()
    }

    /// Unmakes tokens of clusters that turned out to be unusable, even if there are not enough:
    /// the rest is owed.
    pub fn retire(&self, clusters: u64) {
        let mut pools = self.pools.lock();
        let gathered = self.gather(Words::Open, Words::Open);
        pools.owed = pools.owed.saturating_add(signed(clusters));
        self.settle(&mut pools, gathered);
    }

    /// All tokens, pools included; exact while nobody takes or returns any.
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

    /// Pays what is owed and fills the pools from `gathered` and from what is kept, and keeps what
    /// is left for the favoured thread, or spreads it over the cores.
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
