//! **Purpose.** Names that were found before: the next look needs neither the index of their
//! directory nor its leaves.
//!
//! **Not here.** Names that are missing: whoever makes a name would have to tell of it here, and so
//! all who make names would meet. Directories inside of their inode, where a look is short; those
//! that fold names, where many names are one; encrypted ones, whose names are shown as they are not
//! stored.
//!
//! **Model.** An entry says where one name of one directory leads. It is found by a hash of both
//! with a secret seed, and holds both: of two names that have one hash the second is not kept. A
//! name that goes or is led elsewhere *departs*; one that comes changes nothing of what is known
//! here.
//!
//! ```text
//! look:    known and sure -> there.  Else: the moment -> search -> put in, not sure yet
//!                                              -> still that moment? sure : taken out again
//! depart:  begin (no moment holds on) -> take out -> the blocks change -> end
//! ```
//!
//! A *moment* is the count of departures of a directory, taken while there is none under way. It is
//! kept in the directory's cell ([`crate::inode::cell::InodeCell`]), which who has a name depart
//! holds
//! and has written to already.
//!
//! **Invariants.** As long as a sure entry can be found here, its name leads where it says:
//! - A departure takes the entry out before the first block changes. Who has found it by then has
//!   looked before the change; who does not find it searches, and sees what is there.
//! - While a name departs nothing about it becomes sure. An entry is put in before the moment is
//!   compared, and a departure begins before it takes out, with a full fence in both: so either the
//!   moment is seen to be over, or the departure finds the entry and takes it out. What is made
//!   sure after that is found by nobody who begins to look.
//! - What ended before the moment was seen by the search: the end of a departure is released by the
//!   word that the moment is read from.
//! - A directory that leaves memory takes its count along, and comes back with one of another
//!   *life*. A moment belongs to a life, so no moment lasts from one to the next.
//! - A directory goes when it is empty. Its names have departed then, and its number may become
//!   that of another. Whether names are folded changes in empty directories only, too.
//!
//! **Locking.** None to look. To put in takes the lock of a shard of the table, for that moment; to
//! take out takes none, and writes nothing if the name is not there. Names depart under the locks
//! of [`crate::mount::state`], which keep two departures of one name apart.
//!
//! **Crash safety.** None of this is on disk.

use fourscore_cache::{ClockCache, Config, HitCounting, Seed};
use fourscore_ondisk::InodeNr;
use fourscore_sync::Arc;
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use fourscore_sync::epoch::Guard;

/// What an entry takes beside its name: itself with its counts, its place in a bucket, and what the
/// heap adds to three pieces of memory.
const ENTRY_BYTES: usize = size_of::<Known>() + 128;
/// What an entry takes, as a rule.
const TYPICAL_ENTRY_BYTES: usize = ENTRY_BYTES + 16;

/// A hash of a name and its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameHash(u64);

/// A name of a directory that is looked for here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameKey<'n> {
    pub(crate) hash: NameHash,
    pub(crate) dir: InodeNr,
    name: &'n [u8],
}

/// Where a name leads.
#[derive(Debug)]
struct Known {
    dir: InodeNr,
    name: Box<[u8]>,
    inode: InodeNr,
    /// Set once it is known that nothing changed while it was put in.
    is_sure: AtomicBool,
}

impl Known {
    fn is_of(&self, key: &NameKey<'_>) -> bool {
        self.dir == key.dir && *self.name == *key.name
    }
}

/// The names of one file system.
#[derive(Debug)]
pub(crate) struct NameCache {
    names: ClockCache<NameHash, Known>,
    seed: Seed,
}

impl NameCache {
    /// A cache without names, which takes `budget_bytes` at most.
    pub(crate) fn new(budget_bytes: usize) -> Self {
        Self {
            names: ClockCache::new(&Config {
                number: |hash: &NameHash| hash.0,
                budget_bytes,
                expected_weight_bytes: TYPICAL_ENTRY_BYTES,
                evictable: |_| true,
                hits: HitCounting::Off,
            }),
            seed: Seed::new(),
        }
    }

    pub(crate) fn key<'n>(&self, dir: InodeNr, name: &'n [u8]) -> NameKey<'n> {
        NameKey {
            hash: NameHash(self.seed.hash(&(dir.0, name))),
            dir,
            name,
        }
    }

    /// Where the name leads, if that is known. Writes no memory that others read.
    pub(crate) fn get(&self, key: &NameKey<'_>, guard: &Guard) -> Option<InodeNr> {
        let known = self.names.get(&key.hash, guard)?;
        let is_it = known.is_of(key) && known.is_sure.load(Ordering::Acquire);
        is_it.then_some(known.inode)
    }

    /// Puts in what a search has found, if `is_unchanged` says that no name of the directory has
    /// departed since before that search.
    pub(crate) fn put(
        &self,
        key: &NameKey<'_>,
        inode: InodeNr,
        is_unchanged: impl FnOnce() -> bool,
    ) {
        let known = Arc::new(Known {
            dir: key.dir,
            name: key.name.into(),
            inode,
            is_sure: AtomicBool::new(false),
        });
        let weight_bytes = ENTRY_BYTES + key.name.len();
        let there = self
            .names
            .insert(key.hash, Arc::clone(&known), weight_bytes);
        if !Arc::ptr_eq(&there, &known) {
            // Somebody else has just found it, or it is another name with this hash.
            return;
        }
        // Against the fence of `Departures::begin`.
        fence(Ordering::SeqCst);
        if is_unchanged() {
            known.is_sure.store(true, Ordering::Release);
        } else {
            self.names
                .remove_if(&key.hash, |found| Arc::ptr_eq(found, &known));
        }
    }

    /// Forgets the name with this hash, if it is known.
    pub(crate) fn forget(&self, hash: NameHash) {
        self.names.take(&hash);
    }
}

/// The names of a directory that depart, as long as it is in memory.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// No other directory in memory has or had this number, nor had this one before.
    life: u64,
    /// How many have begun to depart, in the upper half, and how many are at it.
    count: AtomicU64,
}

/// A time at which no name of a directory was departing; it ends when one does, or when the
/// directory leaves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    life: u64,
    count: u64,
}

const ONE_BEGUN: u64 = 1 << 32;
const UNDER_WAY: u64 = ONE_BEGUN - 1;

impl Departures {
    /// Those of a directory that has come into memory; nothing else has this number.
    pub(crate) fn of_life(life: u64) -> Self {
        let count = AtomicU64::new(0);
        Self { life, count }
    }

    /// This moment, unless a name is departing.
    pub(crate) fn moment(&self) -> Option<Moment> {
        let count = self.count.load(Ordering::Acquire);
        let life = self.life;
        (count & UNDER_WAY == 0).then_some(Moment { life, count })
    }

    pub(crate) fn begin(&self) {
        // The count starts anew after four thousand million departures, which no search lasts for.
        self.count.fetch_add(ONE_BEGUN + 1, Ordering::AcqRel);
        // Against the fence of `NameCache::put`.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        self.count.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
