//! **Purpose.** Caches of attribute blocks alone, without a file system: the ways to find a block
//! that can be shared, compared on the workloads of [`xattrs`](crate::xattrs).
//!
//! **Not here.** The cache of fourscore, which takes part through `sharing`.
//!
//! **Model.** A cache has blocks in memory, each with its content and the number of its users. A
//! file takes a block for its attributes and gives it back when it changes or goes. [`CacheTarget`]
//! makes a cache a target: setting an attribute takes a block, and everything that has nothing to
//! do with attributes does nothing. So what is measured is the cache.
//!
//! **References.** The work on the scalability of ext4's mbcache, linux-ext4, 2013: "ext4: increase
//! mbcache scalability". It gave each bucket and each file system a lock of its own ([`sharded`]),
//! where [`one_lock`] has one for everything.
//!
//! | module | responsibility |
//! |---|---|
//! | [`one_lock`] | the base: one lock around lookups, users and the list for eviction |
//! | [`sharded`] | the work of 2013: a lock for each bucket, and one for the list for eviction |
//! | `sharing` | our sharing cache; with the feature `fs` |
//! | [`unshared`] | no cache: each file has a block of its own |

pub mod one_lock;
pub mod sharded;
#[cfg(feature = "fs")]
pub mod sharing;
pub mod unshared;

use std::io;

use fourscore_sync::Mutex;

use crate::target::{FileNr, MAX_ATTRIBUTE_BYTES, Operation, Target, Worker, WorkerNr};

/// The most users of a block, as in ext4.
pub const MOST_USERS: u32 = 1024;

/// By how much the work of 2013 made loads of aim7 faster on 90 cores, in percent, as published.
pub const PUBLISHED_AIM7: [(&str, f64); 6] = [
    ("alltests", 11.85),
    ("custom", 14.42),
    ("fserver", 21.36),
    ("new_dbase", 5.59),
    ("new_fserver", 21.45),
    ("shared", 12.84),
];

/// A block that a file has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Taken {
    /// Its number.
    pub block: u64,
    /// Whether other files had it already.
    pub was_shared: bool,
}

/// A cache of attribute blocks.
pub trait AttributeCache: Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Takes a block with this content: one that exists and has fewer than [`MOST_USERS`], or a new
    /// one.
    fn take(&self, content: &[u8]) -> Taken;

    /// Gives a block back. With its last user it is gone.
    fn give_back(&self, block: u64);
}

/// Makes a cache by the name it has on the command line; `None` for an unknown one, and for our own
/// in a build without the feature `fs`.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn AttributeCache>> {
    match name {
        "one-lock" => Some(Box::new(one_lock::OneLock::default())),
        "sharded" => Some(Box::new(sharded::Sharded::default())),
        "unshared" => Some(Box::new(unshared::Unshared::default())),
        #[cfg(feature = "fs")]
        "fourscore" => {
            let options = fourscore::MountOptions::new();
            Some(Box::new(sharing::Ours::new(&options)?))
        }
        _ => None,
    }
}

/// The names of the caches.
pub const NAMES: [&str; 4] = ["one-lock", "sharded", "unshared", "fourscore"];

/// A cache as a target of workloads.
pub struct CacheTarget<'c> {
    cache: &'c dyn AttributeCache,
    /// Of the workers that have ended.
    takes: Mutex<Takes>,
}

/// How often files took blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// All of them.
    pub all: u64,
    /// Those of a block that another file had already.
    pub shared: u64,
}

impl<'c> CacheTarget<'c> {
    /// The cache as a target.
    #[must_use]
    pub fn new(cache: &'c dyn AttributeCache) -> Self {
        let takes = Mutex::default();
        Self { cache, takes }
    }

    /// How often files of workers that have ended took blocks.
    #[must_use]
    pub fn takes(&self) -> Takes {
        *self.takes.lock()
    }
}

impl Target for CacheTarget<'_> {
    fn name(&self) -> String {
        self.cache.name().to_owned()
    }

    fn worker(&self, nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
        Ok(Box::new(CacheWorker {
            target: self,
            nr,
            blocks: Vec::new(),
            takes: Takes::default(),
        }))
    }
}

struct CacheWorker<'t> {
    target: &'t CacheTarget<'t>,
    nr: WorkerNr,
    /// The block of each file.
    blocks: Vec<Option<u64>>,
    takes: Takes,
}

impl CacheWorker<'_> {
    /// Replaces the block of a file, and gives the old one back.
    fn replace(&mut self, file: FileNr, block: Option<u64>) {
        let index = file.0 as usize;
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, None);
        }
        if let Some(old) = std::mem::replace(&mut self.blocks[index], block) {
            self.target.cache.give_back(old);
        }
    }
}

impl Worker for CacheWorker<'_> {
    fn apply(&mut self, file: FileNr, operation: Operation) -> io::Result<u64> {
        match operation {
            Operation::SetAttribute { value, len } => {
                let mut buffer = [0; MAX_ATTRIBUTE_BYTES];
                let value = value.bytes(self.nr, len, &mut buffer);
                let taken = self.target.cache.take(value);
                self.takes.all += 1;
                self.takes.shared += u64::from(taken.was_shared);
                self.replace(file, Some(taken.block));
            }
            Operation::RemoveAttribute | Operation::Unlink => self.replace(file, None),
            Operation::Create | Operation::Close | Operation::SyncAll => {}
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(0)
    }
}

impl Drop for CacheWorker<'_> {
    /// Files of a worker are not known to the next one.
    fn drop(&mut self) {
        for block in std::mem::take(&mut self.blocks).into_iter().flatten() {
            self.target.cache.give_back(block);
        }
        let mut all = self.target.takes.lock();
        all.all += self.takes.all;
        all.shared += self.takes.shared;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::comparison::ThreadCount;
    use crate::xattrs::{Values, XattrLoad, XattrWorkload};

    #[test]
    fn every_cache_runs_every_load_and_keeps_no_block() {
        for name in NAMES {
            let Some(cache) = by_name(name) else {
                assert_eq!((name, cfg!(feature = "fs")), ("fourscore", false));
                continue;
            };
            assert_eq!(cache.name(), name);
            for load in [XattrLoad::Set, XattrLoad::Mix] {
                for values in [Values::Same, Values::Distinct, Values::Few(10)] {
                    let workload = XattrWorkload {
                        load,
                        values,
                        value_bytes: 200,
                    };
                    let (target, clock) = (CacheTarget::new(&*cache), MonotonicClock::default());
                    let driven = workload.run(&target, ThreadCount::new(3), 3000, &clock);
                    let operations = driven.expect(name).total().operations;
                    assert!(operations >= 3000, "{name}: {operations}");
                    let takes = target.takes();
                    assert!(takes.all >= 3000 && takes.shared <= takes.all, "{takes:?}");
                    if values == Values::Distinct || name == "unshared" {
                        assert_eq!(takes.shared, 0, "{name}");
                    }
                }
            }
            let first = cache.take(b"content");
            assert!(!first.was_shared, "{name}: a block was left behind");
            cache.give_back(first.block);
        }
        assert!(by_name("nothing").is_none());
    }

    // What the tests of the caches have in common.

    pub(super) fn assert_shares_up_to_the_limit(cache: &impl AttributeCache) {
        let first = cache.take(b"same");
        for _ in 1..MOST_USERS {
            let next = cache.take(b"same");
            assert_eq!((next.block, next.was_shared), (first.block, true));
        }
        let second = cache.take(b"same");
        assert!(!second.was_shared && second.block != first.block);
        assert_ne!(cache.take(b"other").block, first.block);
        // The full block comes back when it loses a user.
        cache.give_back(second.block);
        cache.give_back(first.block);
        let again = cache.take(b"same");
        assert_eq!((again.block, again.was_shared), (first.block, true));
    }

    /// Takes ten different blocks, each for ten files, and gives all back.
    pub(super) fn share_and_give_back(cache: &impl AttributeCache) {
        let blocks = (0..100_u64).map(|nr| cache.take(&(nr % 10).to_le_bytes()).block);
        let blocks: Vec<u64> = blocks.collect();
        for block in blocks {
            cache.give_back(block);
        }
    }
}
