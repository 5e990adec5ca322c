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
//! **Invariants.** [`Tokens::take`] fails only if, while all cores' tokens were gathered under the
//! slow lock, there were too few.
//!
//! **Locking.** None on the fast path: one compare-and-swap on this core's word, and when tokens
//! return, one load of a word that is written only when a pool is drawn from or filled. The slow
//! lock guards the gathering and the pools, and is a leaf.

use fourscore_sync::atomic::{AtomicBool, AtomicI64, Ordering};
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
    /// [`Short`] when there are too few for this privilege.
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
        let mut pools = self.pools.lock();
        let gathered: i64 = self
            .cores
            .iter()
            .map(|slot| slot.swap(0, Ordering::AcqRel))
            .sum();
        let pool_has = match privilege {
            Privilege::User => 0,
            Privilege::Root => pools.root.has,
            Privilege::Reserved => pools.root.has + pools.reserved.has,
        };
        let enough = gathered.saturating_add(pool_has) >= wanted;
        let mut left = gathered;
        if enough {
            let mut missing = (wanted - gathered).max(0);
            left = (gathered - wanted).max(0);
            pools.root.draw(&mut missing);
            pools.reserved.draw(&mut missing);
        }
        self.settle(&mut pools, left);
        if enough {
            return Ok(Reservation { clusters });
        }
        let available = gathered.saturating_add(pool_has).max(0).unsigned_abs();
        Err(Short {
            wanted: clusters,
            available,
        })
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
        self.cores
            .of(core)
            .fetch_add(signed(clusters), Ordering::AcqRel);
        if self.short.load(Ordering::Relaxed) {
            self.refill();
        }
    }

    /// Unmakes tokens of clusters that turned out to be unusable, even if there are not enough:
    /// the rest is owed.
    pub fn retire(&self, clusters: u64) {
        let mut pools = self.pools.lock();
        let gathered: i64 = self
            .cores
            .iter()
            .map(|slot| slot.swap(0, Ordering::AcqRel))
            .sum();
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
            .saturating_add(pools.root.has + pools.reserved.has - pools.owed)
            .max(0)
            .unsigned_abs()
    }

    /// Fills the pools from all cores.
    fn refill(&self) {
        let mut pools = self.pools.lock();
        let gathered = self
            .cores
            .iter()
            .map(|slot| slot.swap(0, Ordering::AcqRel))
            .sum();
        self.settle(&mut pools, gathered);
    }

    /// Pays what is owed and fills the pools from `gathered`, and spreads what is left over the
    /// cores.
    fn settle(&self, pools: &mut Pools, mut gathered: i64) {
        let paid = pools.owed.min(gathered);
        pools.owed -= paid;
        gathered -= paid;
        pools.reserved.fill(&mut gathered);
        pools.root.fill(&mut gathered);
        let is_short = pools.owed > 0
            || pools.root.has < pools.root.size
            || pools.reserved.has < pools.reserved.size;
        if self.short.load(Ordering::Relaxed) != is_short {
            self.short.store(is_short, Ordering::Relaxed);
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
