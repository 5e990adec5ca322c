//! **Purpose.** A concurrent counter for each inode, which takes two bits while it is 0 or 1.
//!
//! **Model.** Nearly all inodes have one name: one bit stands for "at least one", another for
//! "more", and a map holds how many more. So memory follows the inodes with several names, mostly
//! directories.
//!
//! **Locking.** The map is sharded by inode. The lock of a shard is held for one access.

use fourscore_ondisk::InodeNr;
use fourscore_sync::Mutex;
use std::collections::HashMap;
use std::ops::Range;

use crate::bits::Bits;

const SHARDS: usize = 64;

/// The counts.
#[derive(Debug)]
pub(crate) struct LinkCounts {
    one: Bits,
    more: Bits,
    shards: [Mutex<HashMap<u32, u32>>; SHARDS],
}

impl LinkCounts {
    /// All zero, for inodes up to `last`.
    pub(crate) fn new(last: InodeNr) -> Self {
        let len = u64::from(last.0) + 1;
        Self {
            one: Bits::new(len),
            more: Bits::new(len),
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
        }
    }

    /// Adds `count` to that of `inode`.
    pub(crate) fn add(&self, inode: InodeNr, count: u32) {
        let nr = u64::from(inode.0);
        if count == 0 || nr >= self.one.len() {
            return;
        }
        let more = if self.one.insert(nr) {
            count
        } else {
            count - 1
        };
        if more > 0 {
            let mut shard = self.shard(inode).lock();
            let sum = shard.entry(inode.0).or_default();
            *sum = sum.saturating_add(more);
            drop(shard);
            self.more.insert(nr);
        }
    }

    /// Adds one to each of a run of inodes.
    pub(crate) fn add_one_each(&self, inodes: Range<u64>) {
        self.one.insert_run(inodes, |again| {
            for nr in again {
                // It is set, so this counts as one more.
                self.add(InodeNr(u32::try_from(nr).unwrap_or(u32::MAX)), 1);
            }
        });
    }

    /// The count of `inode`.
    pub(crate) fn get(&self, inode: InodeNr) -> u32 {
        let nr = u64::from(inode.0);
        if !self.one.contains(nr) {
            return 0;
        }
        if !self.more.contains(nr) {
            return 1;
        }
        let more = self.shard(inode).lock().get(&inode.0).copied();
        more.unwrap_or(0).saturating_add(1)
    }

    /// Which of the 64 inodes from number `first` on have the count 1.
    pub(crate) fn ones_at(&self, first: u64) -> u64 {
        self.one.bits_at(first) & !self.more.bits_at(first)
    }

    fn shard(&self, inode: InodeNr) -> &Mutex<HashMap<u32, u32>> {
        // One thread counts neighbours in the table: they fall into different shards.
        &self.shards[inode.0 as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let counts = LinkCounts::new(InodeNr(100));
        for nr in [1, 2, 2, 2, 100, 101] {
            counts.add(InodeNr(nr), 1);
        }
        counts.add(InodeNr(7), 65_000);
        counts.add(InodeNr(8), 0);
        let found = [0, 1, 2, 7, 8, 100, 101].map(|nr| counts.get(InodeNr(nr)));
        assert_eq!(found, [0, 1, 3, 65_000, 0, 1, 0]);
        counts.add_one_each(2..9);
        let found = [1, 2, 3, 7, 8, 9].map(|nr| counts.get(InodeNr(nr)));
        assert_eq!(found, [1, 4, 1, 65_001, 1, 0]);
        // Of 1 to 9 all but 2, 7 and 9.
        let ones = 0b1_0111_1010;
        assert_eq!((counts.ones_at(0), counts.ones_at(64)), (ones, 1 << 36));
    }
}
