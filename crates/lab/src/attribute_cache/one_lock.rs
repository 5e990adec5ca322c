//! **Purpose.** The base: a cache of attribute blocks with one lock around everything. Before 2013
//! ext2, ext3 and ext4 had one lock for the list and the buckets of all file systems of a machine.
//!
//! **Model.** Entries are found by a hash of their content and compared by it. They are in a list
//! in the order of their last use. If there are more than 16 384, the one that was not used for the
//! longest time leaves the cache: its block stays with its users, but is not found any more. So
//! does a block with [`MOST_USERS`], which comes back when it loses a user.
//!
//! **Locking.** One lock, for a lookup and its comparison, for each change of a number of users,
//! and for the list.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use fourscore_sync::Mutex;

use super::{AttributeCache, MOST_USERS, Taken};

/// Entries of a full cache: those of the cache of Linux today.
const MOST_ENTRIES: usize = 16_384;

/// A cache with one lock.
#[derive(Debug)]
pub struct OneLock {
    hasher: RandomState,
    state: Mutex<State>,
}

impl Default for OneLock {
    fn default() -> Self {
        Self::with_entries(MOST_ENTRIES)
    }
}

impl OneLock {
    fn with_entries(most_entries: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            state: Mutex::new(State {
                most_entries,
                ..State::default()
            }),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    most_entries: usize,
    blocks: Vec<Block>,
    free: Vec<usize>,
    /// The entries with a hash.
    by_hash: HashMap<u64, Vec<usize>>,
    /// The ends of the list of entries: the one used last, and the one that leaves first.
    newest: Option<usize>,
    oldest: Option<usize>,
    entries: usize,
}

#[derive(Debug, Default)]
struct Block {
    content: Box<[u8]>,
    hash: u64,
    users: u32,
    /// Whether it is in the cache.
    is_entry: bool,
    newer: Option<usize>,
    older: Option<usize>,
}

impl State {
    fn find(&self, hash: u64, content: &[u8]) -> Option<usize> {
        let found = self.by_hash.get(&hash)?;
        let is_equal = |&&place: &&usize| *self.blocks[place].content == *content;
        found.iter().find(is_equal).copied()
    }

    fn insert(&mut self, place: usize) {
        let hash = self.blocks[place].hash;
        self.by_hash.entry(hash).or_default().push(place);
        self.link(place);
        self.blocks[place].is_entry = true;
        self.entries += 1;
        if self.entries > self.most_entries
            && let Some(oldest) = self.oldest
        {
            self.remove(oldest);
        }
    }

    /// Takes an entry out of the cache; its block stays.
    fn remove(&mut self, place: usize) {
        if !std::mem::take(&mut self.blocks[place].is_entry) {
            return;
        }
        self.unlink(place);
        self.entries -= 1;
        let hash = self.blocks[place].hash;
        if let Some(same) = self.by_hash.get_mut(&hash) {
            same.retain(|&other| other != place);
            if same.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
    }

    /// Puts an entry at the head of the list.
    fn link(&mut self, place: usize) {
        let older = self.newest.replace(place);
        self.blocks[place].older = older;
        self.blocks[place].newer = None;
        match older {
            Some(older) => self.blocks[older].newer = Some(place),
            None => self.oldest = Some(place),
        }
    }

    fn unlink(&mut self, place: usize) {
        let Block { newer, older, .. } = self.blocks[place];
        match newer {
            Some(newer) => self.blocks[newer].older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => self.blocks[older].newer = newer,
            None => self.oldest = newer,
        }
    }
}

impl AttributeCache for OneLock {
    fn name(&self) -> &'static str {
        "one-lock"
    }

    fn take(&self, content: &[u8]) -> Taken {
        let hash = self.hasher.hash_one(content);
        let state = &mut *self.state.lock();
        if let Some(place) = state.find(hash, content) {
            state.blocks[place].users += 1;
            if state.blocks[place].users >= MOST_USERS {
                state.remove(place);
            } else {
                state.unlink(place);
                state.link(place);
            }
            let (block, was_shared) = (place as u64, true);
            return Taken { block, was_shared };
        }
        let new = Block {
            content: content.into(),
            hash,
            users: 1,
            ..Block::default()
        };
        let place = match state.free.pop() {
            Some(place) => {
                state.blocks[place] = new;
                place
            }
            None => {
                state.blocks.push(new);
                state.blocks.len() - 1
            }
        };
        state.insert(place);
        let (block, was_shared) = (place as u64, false);
        Taken { block, was_shared }
    }

    fn give_back(&self, block: u64) {
        let place = usize::try_from(block).unwrap_or(usize::MAX);
        let state = &mut *self.state.lock();
        let users = state.blocks[place].users;
        assert!(users > 0, "the block is in use");
        state.blocks[place].users = users - 1;
        if users == 1 {
            state.remove(place);
            state.blocks[place] = Block::default();
            state.free.push(place);
        } else if users == MOST_USERS {
            state.insert(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute_cache::tests::{assert_shares_up_to_the_limit, share_and_give_back};

    #[test]
    fn equal_contents_share_a_block_up_to_the_limit() {
        assert_shares_up_to_the_limit(&OneLock::default());
    }

    #[test]
    fn the_entry_that_was_not_used_for_longest_leaves_and_keeps_its_users() {
        let cache = OneLock::with_entries(2);
        let (a, b) = (cache.take(b"a"), cache.take(b"b"));
        assert!(cache.take(b"a").was_shared);
        cache.take(b"c");
        assert!(!cache.take(b"b").was_shared, "b has left");
        let found = cache.state.lock();
        assert_eq!(
            found.blocks[usize::try_from(b.block).expect("small")].users,
            1
        );
        assert_eq!(
            found.blocks[usize::try_from(a.block).expect("small")].users,
            2
        );
        assert_eq!(found.entries, 2);
    }

    #[test]
    fn a_block_is_gone_with_its_last_user() {
        let cache = OneLock::default();
        share_and_give_back(&cache);
        let state = cache.state.lock();
        assert_eq!((state.entries, state.free.len()), (0, 10));
        assert!(state.by_hash.is_empty());
        assert_eq!((state.newest, state.oldest), (None, None));
    }
}
