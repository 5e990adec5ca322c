//! **Purpose.** The sharing cache: finds a block, or the inode of a value, that holds the
//! attributes which an operation is about to store, so that the inode becomes another user of it
//! instead of getting one of its own.
//!
//! **Not here.** The plans that look, take and leave ([`crate::xattr::settle`],
//! [`crate::xattr::ea_inode`]); the count of users, which is on disk.
//!
//! **Model.** The cache is a hint, and the disk is the truth:
//!
//! ```text
//! key: 64 bits of a secret hash over names and values  ->  Known: places with this content
//! look    (no lock)              the place this core should use, if any is known
//! take    (the place's lock)     still known?  count 1 to 1023?  bytes equal?  -> count + 1
//! come    (the place's lock)     a new or loaded place, or one that is below the limit again
//! leave   (the place's lock)     the limit is reached, or the last user has gone
//! ```
//!
//! The *place's lock* is that of the block of attributes or of the inode of a value. A plan holds
//! it from the look at the count until it has been applied. So found, checked and taken are one
//! step for every other thread.
//!
//! Keys of values are made of the checksum and the length that their inode holds, so a value can
//! leave without being read.
//!
//! **Invariants.** A place that can be found under its lock has at least one user on disk or in the
//! running transaction:
//! - It comes under its lock, from a thread that knows a user: the plan that gives it one, or a
//!   reader whose inode refers to it now.
//! - The plan that takes away the last user removes it before it releases the lock. The content is
//!   the one that was offered, since a content with one user is changed in place only together with
//!   its entry, and one with more is not changed.
//! - An entry that is evicted is not found afterwards, and does not come back: a look under the
//!   lock asks the table again. The answer of a look without the lock counts for nothing.
//!
//! A damaged image may have inodes that refer to a block which is free. A reader finds such a block
//! as well, and it has no time to look into the bitmap. So the first plan that wants what a reader
//! has found looks there ([`Known`]: *unproven*).
//!
//! So no freed block is read as one of attributes, and none is taken that is about to be freed.
//! What is not in the cache is merely not shared.
//!
//! **Many cores.** A hit reads the table and writes nothing in memory that others read; what
//! remains is the count on disk. A core that takes a user from a place of another core when the
//! count is a multiple of [`PER_OWN_PLACE`] makes a place of its own, once. So frequent users part,
//! rare ones do not, and the price is at most one block for so many users ([`Known`] has the
//! details).
//!
//! **Locking.** As above. The lock of a shard of the table is taken for insertions, in memory only.
//!
//! **Crash safety.** None of this is on disk.
//!
//! | module | responsibility |
//! |---|---|
//! | `known` | the places of one content |
//! | `bypass` | when lookups are left out |
//! | `counts` | statistics |
//! | `alone` | the cache with blocks in memory, to measure it |

use fourscore_cache::{ClockCache, Config, HitCounting, Seed};
use fourscore_ondisk::xattr::SharedContent;
use fourscore_sync::epoch;
use fourscore_sync::{Arc, CoreNr};

use crate::Result;
use crate::txn::faults::{Faults, Sabotage};

#[cfg(feature = "lab")]
pub(crate) mod alone;
pub(crate) mod bypass;
pub(crate) mod counts;
pub(crate) mod known;

pub use bypass::{BypassLimits, XattrSharing};
pub use counts::XattrSharingStats;

use bypass::Bypass;
use counts::Counts;
pub(crate) use known::Users;
use known::{Allowance, Choice, Known, Proof};

/// The memory of an entry: its places and counts, its slot in a bucket, and the overhead of the
/// heap.
const ENTRY_BYTES: usize = size_of::<Known>() + 96;
/// The memory of the sharing cache for each content that it knows, in bytes: its entry, and its
/// part of what is set aside for places of cores. The limit
/// [`MountOptions::xattr_sharing_bytes`](crate::MountOptions::xattr_sharing_bytes) divided by this
/// is the number of contents that it can know.
pub const XATTR_SHARING_ENTRY_BYTES: u64 = (ENTRY_BYTES + ENTRY_BYTES / 3) as u64;
/// A core may have its own place when a foreign one has a multiple of this many users.
const PER_OWN_PLACE: u64 = 32;

/// The hash of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareKey(u64);

/// A content that was found, to be checked under the lock of its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) key: ShareKey,
    choice: Choice,
    /// The core of the lookup.
    core: CoreNr,
}

impl Candidate {
    pub(crate) fn place(&self) -> u64 {
        self.choice.place
    }
}

/// Whether a new place may be made for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Enough,
    /// An operation has found no space, and is being repeated: nothing is left out that may save
    /// some.
    Short,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    /// Nothing was looked for: the new content is not offered either.
    Bypassed,
    /// A new content is to be offered for these users.
    Absent(Users),
    Found(Candidate),
}

/// Why a candidate is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    Vanished,
    Unequal,
    AtLimit,
    Busy,
    /// The core is to make a place of its own.
    Own,
}

/// The sharing cache of one file system.
#[derive(Debug)]
pub(crate) struct Sharing {
    known: ClockCache<ShareKey, Known>,
    seed: Seed,
    bypass: Bypass,
    pub(crate) counts: Counts,
    allowance: Allowance,
    faults: Faults,
}

impl Sharing {
    /// Returns an empty cache, which takes `budget_bytes` of memory at most; `None` if nothing is
    /// to be shared.
    pub(crate) fn new(how: XattrSharing, budget_bytes: usize, faults: Faults) -> Option<Self> {
        let limits = match how {
            XattrSharing::Off => return None,
            XattrSharing::On => None,
            XattrSharing::Automatic(limits) => Some(limits),
        };
        // Tables of own places are made for few contents.
        let own_bytes = budget_bytes / 4;
        Some(Self {
            known: ClockCache::new(&Config {
                number: |key: &ShareKey| key.0,
                budget_bytes: budget_bytes - own_bytes,
                expected_weight_bytes: ENTRY_BYTES,
                evictable: |_| true,
                hits: HitCounting::Off,
            }),
            seed: Seed::new(),
            bypass: Bypass::new(limits),
            counts: Counts::default(),
            allowance: Allowance::new(own_bytes),
            faults,
        })
    }

    pub(crate) fn stats(&self) -> XattrSharingStats {
        self.counts.sums(self.known.stats().evictions)
    }

    /// Returns the key of the attributes of a block.
    pub(crate) fn key_of_block(&self, content: &SharedContent<'_>) -> ShareKey {
        ShareKey(self.seed.hash(&(0_u8, content)))
    }

    /// Returns the key of a value of `bytes` bytes with this checksum.
    pub(crate) fn key_of_value(&self, checksum: u32, bytes: u64) -> ShareKey {
        ShareKey(self.seed.hash(&(1_u8, checksum, bytes)))
    }

    /// Whether lookups and offers are left out on this core now.
    pub(crate) fn is_paused(&self) -> bool {
        self.bypass.is_paused()
    }

    /// Looks for a place with the content of the key that `key` makes.
    pub(crate) fn look(
        &self,
        space: Space,
        key: impl FnOnce() -> ShareKey,
    ) -> (Look, Option<ShareKey>) {
        if !self.bypass.looks() && space == Space::Enough {
            self.counts.bypassed.add(1);
            return (Look::Bypassed, None);
        }
        self.counts.lookups.add(1);
        self.counts.timed(|| {
            let key = key();
            let core = CoreNr::current();
            let guard = epoch::pin();
            let Some(known) = self.known.get(&key, &guard) else {
                return (Look::Absent(Users::All), Some(key));
            };
            let choice = match known.choose(core) {
                None if space == Space::Short => known.any(),
                choice => choice,
            };
            let look = match choice {
                Some(choice) => Look::Found(Candidate { key, choice, core }),
                None if known.awaits_own(core) => Look::Absent(Users::Own(core)),
                None => Look::Absent(Users::All),
            };
            (look, Some(key))
        })
    }

    /// Whether there is an entry for the key.
    pub(crate) fn knows(&self, key: ShareKey) -> bool {
        self.known.get(&key, &epoch::pin()).is_some()
    }

    /// Counts a lookup that found nothing.
    pub(crate) fn count_absent(&self) {
        self.bypass.count(false);
    }

    /// Whether a candidate is still known. For the holder of its lock.
    pub(crate) fn still_has(&self, candidate: &Candidate) -> bool {
        let guard = epoch::pin();
        let known = self.known.get(&candidate.key, &guard);
        known.is_some_and(|known| known.has(candidate.place()))
            || self.faults.lacks(Sabotage::TakenUnseen)
    }

    /// Whether the core of the lookup is to make a place of its own instead of taking the
    /// candidate, which has `users`.
    pub(crate) fn wants_own(&self, candidate: &Candidate, users: u64, space: Space) -> bool {
        space == Space::Enough
            && candidate.choice.is_foreign
            && users.is_multiple_of(PER_OWN_PLACE)
            && self.allowance.has_some()
    }

    /// Counts a candidate that is not taken, and returns for which users the new content is to be
    /// offered.
    pub(crate) fn count_miss(&self, candidate: &Candidate, miss: Miss) -> Users {
        let counter = match miss {
            Miss::Vanished => &self.counts.vanished,
            Miss::Unequal => &self.counts.unequal,
            Miss::AtLimit => &self.counts.at_limit,
            Miss::Busy => &self.counts.busy,
            Miss::Own => &self.counts.own_places,
        };
        counter.add(1);
        // A content that is there twice on purpose is one that is found often.
        self.bypass.count(miss == Miss::Own);
        match miss {
            Miss::Own => Users::Own(candidate.core),
            _ => Users::All,
        }
    }

    /// Counts a candidate that gets a user.
    pub(crate) fn count_hit(&self) {
        self.counts.hits.add(1);
        self.bypass.count(true);
    }

    /// Makes a candidate the current place if it was a spare one. For the holder of its lock, once
    /// the user counts.
    pub(crate) fn taken(&self, candidate: &Candidate) {
        self.counts.shared.add(1);
        if candidate.choice.is_spare {
            let guard = epoch::pin();
            if let Some(known) = self.known.get(&candidate.key, &guard) {
                known.promote(candidate.place(), candidate.core);
            }
        }
    }

    /// Adds a place. For the holder of its lock, whose plan has made it or given it a user, or has
    /// found it in use.
    pub(crate) fn come(&self, key: ShareKey, place: u64, users: Users) {
        let add = |known: &Known| known.add(place, users, &self.allowance);
        self.add(key, place, Proof::Used, add);
    }

    /// Adds a place that a reader has loaded. For the holder of its lock, which knows that it has a
    /// user, but not whether its bitmap says so.
    pub(crate) fn come_unproven(&self, key: ShareKey, place: u64) {
        self.add(key, place, Proof::None, |known| known.add_unproven(place));
    }

    fn add(&self, key: ShareKey, place: u64, proof: Proof, add: impl Fn(&Known)) {
        let guard = epoch::pin();
        if let Some(known) = self.known.get(&key, &guard) {
            return add(known);
        }
        let made = Arc::new(Known::new(place, proof));
        let known = self.known.insert(key, Arc::clone(&made), ENTRY_BYTES);
        self.counts.offered.add(1);
        if !Arc::ptr_eq(&known, &made) {
            add(&known);
        }
    }

    /// Whether a candidate, which is still known, is in use by its bitmap. `is_in_use` looks there;
    /// it is asked once for a place that a reader has found. For the holder of the place's lock.
    pub(crate) fn has_proof(
        &self,
        candidate: &Candidate,
        is_in_use: impl FnOnce() -> Result<bool>,
    ) -> Result<bool> {
        let is_unproven = || {
            let guard = epoch::pin();
            let known = self.known.get(&candidate.key, &guard);
            known.is_some_and(|known| known.is_unproven(candidate.place()))
        };
        if !is_unproven() {
            return Ok(true);
        }
        let is_in_use = is_in_use()?;
        let guard = epoch::pin();
        if let Some(known) = self.known.get(&candidate.key, &guard) {
            match is_in_use {
                true => known.prove(candidate.place()),
                false => known.remove(candidate.place()),
            }
        }
        Ok(is_in_use)
    }

    /// Removes a place that has reached the limit of users. For the holder of its lock.
    pub(crate) fn leave(&self, key: ShareKey, place: u64) {
        let guard = epoch::pin();
        if let Some(known) = self.known.get(&key, &guard) {
            known.remove(place);
        }
    }

    /// Removes a place whose last user has gone, or whose content has changed. For the holder of
    /// its lock.
    pub(crate) fn end(&self, key: ShareKey, place: u64) {
        if self.faults.lacks(Sabotage::FreedStaysKnown) {
            return;
        }
        let guard = epoch::pin();
        let Some(known) = self.known.get(&key, &guard) else {
            return;
        };
        known.remove(place);
        if known.is_empty() {
            // A place that is added meanwhile is forgotten: it is not shared until it is loaded.
            self.known.remove_if(&key, |known| known.is_empty());
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
