//! **Purpose.** A lock-free set of group numbers that finds the next member at or after a goal in a
//! handful of loads, however many groups there are.
//!
//! **Model.** A 64-way tree of words. Bit `i` of the leaves is member `i`; bit `w` of the level
//! above says that word `w` below is not zero; the root is one word. Three levels hold 262 144
//! groups, four hold 16 million.
//!
//! **Invariants.** While no change is in progress, a summary bit is set for every word that is not
//! zero. A summary bit over a zero word is allowed: a search that meets one goes on after it. A
//! missing bit over a non-zero word is not allowed, because it would hide members for good. It can
//! be seen only for the few instructions between the clearing of a summary bit and its restoration.
//! That is harmless because members are hints: a search checks them under the group's lock, and
//! makes one exact pass over all groups before it gives up.
//!
//! **Locking.** None. A thread that sets a leaf bit *then* reads the summaries; a thread that
//! clears a summary bit *then* reads the word below it and sets the bit again if the word is no
//! longer zero. Both sides write first and read second, so with sequentially consistent operations
//! at least one of them sees the other's write. This argument needs sequential consistency, so
//! nothing here uses a weaker ordering. Changes of one member must be ordered by the caller (the
//! group's lock does). A change that finds all bits as they should be writes nothing.

use fourscore_sync::atomic::{AtomicU64, Ordering::SeqCst};

#[cfg(test)]
use crate::num::len32;

/// The set. All methods take `&self`.
#[derive(Debug)]
pub struct BitSet {
    /// `levels[0]` are the leaves; the last level is one word.
    levels: Box<[Box<[AtomicU64]>]>,
    len: u32,
}

/// The position of bit `i` of a level: the word, and the bit in it.
fn at(i: u32) -> (u32, u64) {
    (i / 64, 1 << (i % 64))
}

impl BitSet {
    /// An empty set for members from 0 to `len - 1`.
    #[must_use]
    pub fn new(len: u32) -> Self {
        let mut levels = Vec::new();
        let mut words = len.div_ceil(64).max(1);
        loop {
            levels.push((0..words).map(|_| AtomicU64::new(0)).collect());
            if words == 1 {
                break;
            }
            words = words.div_ceil(64);
        }
        Self {
            levels: levels.into(),
            len,
        }
    }

    /// One more than the largest member it can hold.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.len
    }

    /// Whether `i` is a member now; `false` past the capacity.
    #[must_use]
    pub fn contains(&self, i: u32) -> bool {
        let (word, bit) = at(i);
        i < self.len && self.levels[0][word as usize].load(SeqCst) & bit != 0
    }

    /// Whether there may be members, by the root word.
    #[must_use]
    pub fn maybe_any(&self) -> bool {
        self.root().load(SeqCst) != 0
    }

    /// The number of members; exact while no thread changes the set.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.levels[0]
            .iter()
            .map(|word| word.load(SeqCst).count_ones())
            .sum()
    }

    /// Makes `i` a member.
    ///
    /// # Panics
    /// If `i` is not below the capacity.
    pub fn insert(&self, i: u32) {
        assert!(i < self.len, "member {i} of a set of {}", self.len);
        self.raise(0, i);
    }

    /// Sets bit `i` of `level` and the summary bits above it, where they are not set already.
    fn raise(&self, level: usize, mut i: u32) {
        for words in &self.levels[level..] {
            let (word, bit) = at(i);
            let word_ref = &words[word as usize];
            if word_ref.load(SeqCst) & bit == 0 {
                word_ref.fetch_or(bit, SeqCst);
            }
            i = word;
        }
    }

    /// Removes member `i`. Returns whether the set may have become empty by that.
    pub fn remove(&self, mut i: u32) -> bool {
        if !self.contains(i) {
            return false;
        }
        for (level, words) in self.levels.iter().enumerate() {
            let (word, bit) = at(i);
            let left = words[word as usize].fetch_and(!bit, SeqCst) & !bit;
            // The bit just cleared summarises word `i` of the level below: read that word again.
            if level > 0 && self.levels[level - 1][i as usize].load(SeqCst) != 0 {
                self.raise(level, i);
                return false;
            }
            if left != 0 {
                return false;
            }
            i = word;
        }
        true
    }

    /// The smallest member that is `from` or above.
    #[must_use]
    pub fn next_at_or_after(&self, from: u32) -> Option<u32> {
        if from >= self.len {
            return None;
        }
        let mut level = 0;
        // The next bit to test, counted on `level`.
        let mut i = from;
        loop {
            let words = &self.levels[level];
            let (word, bit) = at(i);
            let rest = match words.get(word as usize) {
                Some(word) => word.load(SeqCst) & (bit.wrapping_neg()),
                None => return None,
            };
            if rest == 0 {
                // No further bit in this word: go on after it, one level up.
                level += 1;
                i = word + 1;
                if level == self.levels.len() {
                    return None;
                }
            } else {
                i = word * 64 + rest.trailing_zeros();
                if level == 0 {
                    return (i < self.len).then_some(i);
                }
                level -= 1;
                i *= 64;
            }
        }
    }

    /// Visits members in ascending order, among them every one that stays a member throughout the
    /// walk. Reads all leaves, and no summary, which may hide a member for a moment.
    pub(crate) fn for_each_leaf(&self, mut visit: impl FnMut(u32)) {
        for (first, word) in (0..).step_by(64).zip(&self.levels[0]) {
            let mut rest = word.load(SeqCst);
            while rest != 0 {
                visit(first + rest.trailing_zeros());
                rest &= rest - 1;
            }
        }
    }

    fn root(&self) -> &AtomicU64 {
        &self.levels[self.levels.len() - 1][0]
    }

    /// Panics if a summary bit is missing. Only meaningful while no thread changes the set.
    #[cfg(test)]
    pub(crate) fn assert_summaries(&self) {
        for pair in self.levels.windows(2) {
            for (i, word) in pair[0].iter().enumerate() {
                let (up, bit) = at(len32(i));
                let set = pair[1][up as usize].load(SeqCst) & bit != 0;
                assert!(set || word.load(SeqCst) == 0, "word {i} is hidden");
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
