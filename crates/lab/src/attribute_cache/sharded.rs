//! **Purpose.** The cache of the work of 2013: a lock for each bucket, and one lock that remains,
//! for the list of entries in the order of their use.
//!
//! **Model.** As [`one_lock`](super::one_lock), with the blocks of a bucket in the bucket. A lookup
//! and its comparison, and each change of a number of users, are under the lock of the bucket; what
//! changes the order of use is under that of the list.
//!
//! **Invariants.** The list has the entries that lookups find, and no others.
//!
//! **Locking.** The lock of a bucket, then that of the list. To take the oldest entry out, it is
//! looked up in the list, then its bucket is locked, and it is taken out if it is still the oldest.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use fourscore_sync::{CachePadded, Mutex};

use super::{AttributeCache, MOST_USERS, Taken};

/// Buckets of the cache of a file system.
const BUCKETS: usize = 64;
/// Entries of a full cache.
const MOST_ENTRIES: usize = 16_384;
/// Bits of a block's number for its place in its bucket.
const PLACE_BITS: u32 = 32;

/// A cache with a lock for each bucket.
#[derive(Debug)]
pub struct Sharded {
    hasher: RandomState,
    most_entries: usize,
    buckets: Vec<CachePadded<Mutex<Bucket>>>,
    by_use: CachePadded<Mutex<ByUse>>,
}

#[derive(Debug, Default)]
struct Bucket {
    blocks: Vec<Block>,
    free: Vec<usize>,
    /// The places of the entries with a hash.
    by_hash: HashMap<u64, Vec<usize>>,
}

#[derive(Debug, Default)]
struct Block {
    content: Box<[u8]>,
    hash: u64,
    users: u32,
    /// The place in the list, of an entry.
    link: Option<usize>,
}

/// The entries in the order of their last use.
#[derive(Debug, Default)]
struct ByUse {
    links: Vec<Link>,
    free: Vec<usize>,
    newest: Option<usize>,
    oldest: Option<usize>,
    entries: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    block: u64,
    newer: Option<usize>,
    older: Option<usize>,
}

impl ByUse {
    /// Adds an entry as the newest, and returns its place.
    fn add(&mut self, block: u64) -> usize {
        let at = self.free.pop().unwrap_or(self.links.len());
        if at == self.links.len() {
            self.links.push(Link::default());
        }
        self.links[at].block = block;
        self.link(at);
        self.entries += 1;
        at
    }

    fn remove(&mut self, at: usize) {
        self.unlink(at);
        self.free.push(at);
        self.entries -= 1;
    }

    /// Makes an entry the newest.
    fn touch(&mut self, at: usize) {
        self.unlink(at);
        self.link(at);
    }

    fn link(&mut self, at: usize) {
        let older = self.newest.replace(at);
        self.links[at].older = older;
        self.links[at].newer = None;
        match older {
            Some(older) => self.links[older].newer = Some(at),
            None => self.oldest = Some(at),
        }
    }

    fn unlink(&mut self, at: usize) {
        let Link { newer, older, .. } = self.links[at];
        match newer {
            Some(newer) => self.links[newer].older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => self.links[older].newer = newer,
            None => self.oldest = newer,
        }
    }
}

impl Bucket {
    fn find(&self, hash: u64, content: &[u8]) -> Option<usize> {
        let places = self.by_hash.get(&hash)?;
        let is_equal = |&&place: &&usize| *self.blocks[place].content == *content;
        places.iter().find(is_equal).copied()
    }

    fn put(&mut self, block: Block) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.blocks[place] = block;
                place
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() - 1
            }
        }
    }

    /// Makes a block an entry, with this place in the list.
    fn insert(&mut self, place: usize, link: usize) {
        self.blocks[place].link = Some(link);
        let hash = self.blocks[place].hash;
        self.by_hash.entry(hash).or_default().push(place);
    }

    /// Takes an entry out of the cache, and returns its place in the list; its block stays.
    fn remove(&mut self, place: usize) -> Option<usize> {
        let link = self.blocks[place].link.take()?;
        let hash = self.blocks[place].hash;
        if let Some(same) = self.by_hash.get_mut(&hash) {
            same.retain(|&other| other != place);
            if same.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
        Some(link)
    }
}

impl Default for Sharded {
    fn default() -> Self {
        Self::with_entries(MOST_ENTRIES)
    }
}

impl Sharded {
    fn with_entries(most_entries: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            most_entries,
            buckets: (0..BUCKETS).map(|_| CachePadded::default()).collect(),
            by_use: CachePadded::default(),
        }
    }

    fn bucket_of(hash: u64) -> usize {
        usize::try_from(hash % BUCKETS as u64).unwrap_or(0)
    }

    /// The bucket and the place of a block.
    fn place_of(block: u64) -> (usize, usize) {
        let place = block & ((1 << PLACE_BITS) - 1);
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        (index(block >> PLACE_BITS), index(place))
    }

    /// Makes a block an entry. Returns whether there are too many then.
    fn insert(&self, bucket: &mut Bucket, place: usize, block: u64) -> bool {
        let mut by_use = self.by_use.lock();
        bucket.insert(place, by_use.add(block));
        by_use.entries > self.most_entries
    }

    fn remove(&self, bucket: &mut Bucket, place: usize) {
        if let Some(link) = bucket.remove(place) {
            self.by_use.lock().remove(link);
        }
    }

    /// The oldest entry, if there are too many.
    fn excess(&self, by_use: &ByUse) -> Option<u64> {
        let oldest = by_use
            .oldest
            .filter(|_| by_use.entries > self.most_entries)?;
        Some(by_use.links[oldest].block)
    }

    /// Takes the oldest entries out while there are too many.
    fn shrink(&self) {
        loop {
            let Some(oldest) = self.excess(&self.by_use.lock()) else {
                return;
            };
            let (bucket, place) = Self::place_of(oldest);
            let mut bucket = self.buckets[bucket].lock();
            let mut by_use = self.by_use.lock();
            // It is not the oldest any more if it was used meanwhile.
            if self.excess(&by_use) == Some(oldest)
                && let Some(link) = bucket.remove(place)
            {
                by_use.remove(link);
            }
        }
    }
}

impl AttributeCache for Sharded {
    fn name(&self) -> &'static str {
        "sharded"
    }

    fn take(&self, content: &[u8]) -> Taken {
        let hash = self.hasher.hash_one(content);
        let nr = Self::bucket_of(hash);
        let number = |place: usize| (nr as u64) << PLACE_BITS | place as u64;
        let mut bucket = self.buckets[nr].lock();
        if let Some(place) = bucket.find(hash, content) {
            let block = number(place);
            bucket.blocks[place].users += 1;
            if bucket.blocks[place].users >= MOST_USERS {
                self.remove(&mut bucket, place);
            } else if let Some(link) = bucket.blocks[place].link {
                self.by_use.lock().touch(link);
            }
            let was_shared = true;
            return Taken { block, was_shared };
        }
        let place = bucket.put(Block {
            content: content.into(),
            hash,
            users: 1,
            link: None,
        });
        let block = number(place);
        let is_full = self.insert(&mut bucket, place, block);
        drop(bucket);
        if is_full {
            self.shrink();
        }
        Taken {
            block,
            was_shared: false,
        }
    }

    fn give_back(&self, block: u64) {
        let (nr, place) = Self::place_of(block);
        let mut bucket = self.buckets[nr].lock();
        let users = bucket.blocks[place].users;
        assert!(users > 0, "the block is in use");
        bucket.blocks[place].users = users - 1;
        let mut is_full = false;
        if users == 1 {
            self.remove(&mut bucket, place);
            bucket.blocks[place] = Block::default();
            bucket.free.push(place);
        } else if users == MOST_USERS {
            is_full = self.insert(&mut bucket, place, block);
        }
        drop(bucket);
        if is_full {
            self.shrink();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute_cache::tests::{assert_shares_up_to_the_limit, share_and_give_back};

    #[test]
    fn equal_contents_share_a_block_up_to_the_limit() {
        assert_shares_up_to_the_limit(&Sharded::default());
    }

    #[test]
    fn the_entry_that_was_not_used_for_longest_leaves_and_keeps_its_users() {
        let cache = Sharded::with_entries(2);
        let (a, b) = (cache.take(b"a"), cache.take(b"b"));
        assert!(cache.take(b"a").was_shared);
        let c = cache.take(b"c");
        assert!(!cache.take(b"b").was_shared, "b has left");
        let users = |block| {
            let (bucket, place) = Sharded::place_of(block);
            cache.buckets[bucket].lock().blocks[place].users
        };
        assert_eq!([a, b, c].map(|taken| users(taken.block)), [2, 1, 1]);
    }

    #[test]
    fn a_block_is_gone_with_its_last_user() {
        let cache = Sharded::default();
        share_and_give_back(&cache);
        let buckets = cache.buckets.iter().map(|bucket| bucket.lock());
        let (mut free, mut entries) = (0, 0);
        for bucket in buckets {
            free += bucket.free.len();
            entries += bucket.by_hash.len();
        }
        assert_eq!((free, entries), (10, 0));
        let by_use = cache.by_use.lock();
        assert_eq!((by_use.entries, by_use.free.len()), (0, by_use.links.len()));
        assert_eq!((by_use.newest, by_use.oldest), (None, None));
    }
}
