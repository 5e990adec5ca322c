//! **Purpose.** The name cache (a positive dentry cache): maps a name in a directory to an inode
//! number, so that a repeated lookup reads neither the index of the directory nor its leaves.
//!
//! **Not here.** Negative entries, for names that are missing: every thread that makes a name would
//! have to invalidate one here, and all of them would contend. Inline directories, where a search
//! is short. Directories that fold names, where many names are equal. Encrypted directories, whose
//! names are presented in another form than they are stored in.
//!
//! **Model.** An entry says which inode one name of one directory refers to. Entries are found by a
//! hash of directory and name with a secret seed, and hold both: of two names with the same hash
//! the second is not kept. A name *departs* when it is removed or made to refer to another inode. A
//! new name changes nothing that is known here. A new entry is not *sure*: lookups ignore it until
//! it is certain that its name did not depart during the search.
//!
//! ```text
//! look:    known and sure -> there.  Else: the moment -> search -> put in, not sure yet
//!                                              -> still that moment? sure : taken out again
//! depart:  begin (no moment holds on) -> take out -> the blocks change -> end
//! ```
//!
//! A *moment* is the departure count of a directory, read while no departure is in progress. The
//! count is in the directory's cell ([`crate::inode::cell::InodeCell`]). A thread that makes a name
//! depart holds this cell and has written to it already.
//!
//! **Invariants.** As long as a sure entry can be found here, its name refers to the inode in the
//! entry:
//! - A departure removes the entry before the first block changes. A lookup that has found the
//!   entry by then ran before the change. A lookup that does not find it searches the directory,
//!   and sees what the blocks hold.
//! - While a name departs, no entry for it becomes sure. An entry is inserted before the moment is
//!   compared, and a departure begins before it removes the entry, with a full fence in both. So
//!   either the insertion sees that the moment is over, or the departure finds the entry and
//!   removes it. If the entry becomes sure after that, no lookup that begins later finds it.
//! - The search sees all changes that ended before the moment: the end of a departure is a release
//!   operation on the atomic that the moment is read from.
//! - A directory that leaves memory takes its count along. When it is loaded again it has a count
//!   of another *life*. A moment belongs to one life, so no moment lasts from one life to the next.
//! - A directory is removed when it is empty. All its names have departed then, and its number may
//!   be reused for another directory. Folding of names, too, is switched in empty directories only.
//!
//! **Locking.** A lookup takes no lock. An insertion takes the lock of one shard of the table,
//! while it inserts. A removal takes none, and writes nothing if the name is not cached. Names
//! depart under the locks of [`crate::mount::state`], which serialize two departures of one name.
//!
//! **Crash safety.** None of this is on disk.

use fourscore_cache::{ClockCache, Config, HitCounting, Seed, Stats};
use fourscore_ondisk::InodeNr;
use fourscore_sync::Arc;
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use fourscore_sync::epoch::Guard;

/// The memory of an entry without its name: the entry with its counts, its slot in a bucket, and
/// the overhead of three heap allocations.
const ENTRY_BYTES: usize = size_of::<Known>() + 128;
/// The typical memory of an entry.
const TYPICAL_ENTRY_BYTES: usize = ENTRY_BYTES + 16;

/// A hash of a name and its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameHash(u64);

/// The key of a lookup: a name and its directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameKey<'n> {
    pub(crate) hash: NameHash,
    pub(crate) dir: InodeNr,
    name: &'n [u8],
}

/// An entry: which inode a name refers to.
#[derive(Debug)]
struct Known {
    dir: InodeNr,
    name: Box<[u8]>,
    inode: InodeNr,
    /// Set once it is certain that the name did not depart while the entry was inserted.
    is_sure: AtomicBool,
}

impl Known {
    fn is_of(&self, key: &NameKey<'_>) -> bool {
        self.dir == key.dir && *self.name == *key.name
    }
}

/// The name cache of one file system.
#[derive(Debug)]
pub(crate) struct NameCache {
    names: ClockCache<NameHash, Known>,
    seed: Seed,
}

impl NameCache {
    /// Returns an empty cache, which takes `budget_bytes` of memory at most.
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

    /// Returns what was counted so far.
    pub(crate) fn stats(&self) -> Stats {
        self.names.stats()
    }

    pub(crate) fn key<'n>(&self, dir: InodeNr, name: &'n [u8]) -> NameKey<'n> {
        NameKey {
            hash: NameHash(self.seed.hash(&(dir.0, name))),
            dir,
            name,
        }
    }

    /// Returns the inode that the name refers to, if that is cached. Writes no memory that other
    /// cores read.
    pub(crate) fn get(&self, key: &NameKey<'_>, guard: &Guard) -> Option<InodeNr> {
        let known = self.names.get(&key.hash, guard)?;
        let is_it = known.is_of(key) && known.is_sure.load(Ordering::Acquire);
        is_it.then_some(known.inode)
    }

    /// Inserts the result of a search, if `is_unchanged` says that no name of the directory has
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
            // Another thread has just inserted it, or it is another name with this hash.
            return;
        }
        // Pairs with the fence of `Departures::begin`.
        fence(Ordering::SeqCst);
        if is_unchanged() {
            known.is_sure.store(true, Ordering::Release);
        } else {
            self.names
                .remove_if(&key.hash, |found| Arc::ptr_eq(found, &known));
        }
    }

    /// Removes the name with this hash, if it is cached.
    pub(crate) fn forget(&self, hash: NameHash) {
        self.names.take(&hash);
    }
}

/// Counts the departures of names of a directory, as long as it is in memory.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// Unique: no other directory in memory has or had this number, nor had this directory before.
    life: u64,
    /// How many departures have begun, in the upper half; how many are in progress, in the lower.
    count: AtomicU64,
}

/// A time at which no name of a directory was departing. It ends when one departs, or when the
/// directory leaves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    life: u64,
    count: u64,
}

const ONE_BEGUN: u64 = 1 << 32;
const UNDER_WAY: u64 = ONE_BEGUN - 1;

impl Departures {
    /// Returns the count of a directory that has been loaded into memory. No other life has the
    /// number `life`.
    pub(crate) fn of_life(life: u64) -> Self {
        let count = AtomicU64::new(0);
        Self { life, count }
    }

    /// Returns the current moment, unless a name is departing.
    pub(crate) fn moment(&self) -> Option<Moment> {
        let count = self.count.load(Ordering::Acquire);
        let life = self.life;
        (count & UNDER_WAY == 0).then_some(Moment { life, count })
    }

    pub(crate) fn begin(&self) {
        // The count wraps after 2^32 departures; no search lasts for so many.
        self.count.fetch_add(ONE_BEGUN + 1, Ordering::AcqRel);
        // Pairs with the fence of `NameCache::put`.
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
