//! **Purpose.** The sharing cache without a file system, so that it can be measured alone, beside
//! other caches. Blocks of attributes are in memory.
//!
//! **Model.** The steps are those of [`crate::xattr::settle`]: look without a lock; then, under the
//! lock of the block, look again, compare, and count the user. Blocks have numbers that each core
//! gives out and takes back for itself, as an allocator without contention would.
//!
//! **Invariants.** As in [`super`]: a place that is known has a user.
//!
//! **Locking.** The lock of one block, then that of a shard of the cache. The lock of a core's
//! numbers is taken alone.

use fourscore_ondisk::xattr::MAX_BLOCK_REFS;
use fourscore_sync::{CoreNr, Mutex, PerCore, Sparse};

use super::{Candidate, Look, Miss, ShareKey, Sharing, Space, Users};
use crate::MountOptions;

/// Blocks of all cores together.
const MOST_BLOCKS: usize = 1 << 24;

/// The sharing cache of a mount, with blocks in memory.
#[derive(Debug)]
pub struct SharingAlone {
    sharing: Sharing,
    blocks: Sparse<Mutex<Block>>,
    numbers: PerCore<Mutex<Numbers>>,
}

/// A block that a file has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenBlock {
    /// Its number.
    pub block: u64,
    /// Whether another file had it already.
    pub was_shared: bool,
}

#[derive(Debug, Default)]
struct Block {
    users: u32,
    content: Vec<u8>,
}

/// The numbers of blocks that a core gives out.
#[derive(Debug, Default)]
struct Numbers {
    used: usize,
    free: Vec<usize>,
}

impl SharingAlone {
    /// Returns the cache that a mount with these options has; `None` if it shares nothing.
    #[must_use]
    pub fn new(options: &MountOptions) -> Option<Self> {
        Some(Self {
            sharing: options.sharing()?,
            blocks: Sparse::new(MOST_BLOCKS),
            numbers: PerCore::default(),
        })
    }

    /// Takes a block with this content: one that exists and has space for a user, or a new one.
    /// `None` if there are too many blocks.
    pub fn take(&self, content: &[u8]) -> Option<TakenBlock> {
        let (look, key) = self.sharing.look(Space::Enough, || self.key(content));
        let offer = match look {
            Look::Bypassed => None,
            Look::Absent(users) => {
                self.sharing.count_absent();
                Some(users)
            }
            Look::Found(candidate) => match self.join(&candidate, content) {
                Ok(block) => {
                    let was_shared = true;
                    return Some(TakenBlock { block, was_shared });
                }
                Err(users) => Some(users),
            },
        };
        let (place, block) = self.free_block()?;
        let mut block = block.lock();
        block.users = 1;
        block.content.clear();
        block.content.extend_from_slice(content);
        if let Some((key, users)) = key.zip(offer) {
            self.sharing.come(key, place, users);
        }
        Some(TakenBlock {
            block: place,
            was_shared: false,
        })
    }

    /// Gives a block back. With its last user it is gone.
    ///
    /// # Panics
    /// No file has the block.
    pub fn give_back(&self, place: u64) {
        let block = self.block(place).map(Mutex::lock);
        let mut block = block
            .filter(|block| block.users > 0)
            .expect("a block in use");
        block.users -= 1;
        let left = block.users;
        if left == 0 {
            self.sharing.end(self.key(&block.content), place);
            drop(block);
            self.give_number_back(place);
        } else if left + 1 == MAX_BLOCK_REFS && !self.sharing.is_paused() {
            let key = self.key(&block.content);
            self.sharing.come(key, place, Users::All);
        }
    }

    fn key(&self, content: &[u8]) -> ShareKey {
        ShareKey(self.sharing.seed.hash(&content))
    }

    fn block(&self, place: u64) -> Option<&Mutex<Block>> {
        self.blocks.get(usize::try_from(place).ok()?)
    }

    /// Adds a user to the block of a candidate. If that cannot be, returns for which users the new
    /// block is to be offered.
    fn join(&self, candidate: &Candidate, content: &[u8]) -> std::result::Result<u64, Users> {
        let place = candidate.place();
        let missed = |miss| Err(self.sharing.count_miss(candidate, miss));
        let Some(block) = self.block(place) else {
            return missed(Miss::Vanished);
        };
        let mut block = block.lock();
        if !self.sharing.still_has(candidate) {
            return missed(Miss::Vanished);
        }
        if block.content != content {
            return missed(Miss::Unequal);
        }
        if block.users >= MAX_BLOCK_REFS {
            self.sharing.leave(candidate.key, place);
            return missed(Miss::AtLimit);
        }
        let users = block.users.into();
        if self.sharing.wants_own(candidate, users, Space::Enough) {
            return missed(Miss::Own);
        }
        block.users += 1;
        self.sharing.count_hit();
        self.sharing.taken(candidate);
        if block.users == MAX_BLOCK_REFS {
            self.sharing.leave(candidate.key, place);
        }
        Ok(place)
    }

    /// Returns a block that no file has. Block 0 is none.
    fn free_block(&self) -> Option<(u64, &Mutex<Block>)> {
        let (core, cores) = (CoreNr::current(), CoreNr::count());
        let mut numbers = self.numbers.of(core).lock();
        let number = numbers.free.pop().unwrap_or_else(|| {
            numbers.used += 1;
            numbers.used * cores + core.index()
        });
        drop(numbers);
        Some((number as u64, self.blocks.get(number)?))
    }

    fn give_number_back(&self, place: u64) {
        let Ok(number) = usize::try_from(place) else {
            return;
        };
        if let Some(core) = CoreNr::new(number % CoreNr::count()) {
            self.numbers.of(core).lock().free.push(number);
        }
    }
}
