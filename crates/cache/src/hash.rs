//! **Purpose.** A fast keyed hash, whose results cannot be predicted without the seed.
//!
//! **Model.** Each word `x` is folded in by `state = fold((state ^ x) * multiplier)`, where the
//! product has 128 bits and `fold` xors its halves, so that each bit of the key reaches the top
//! bits, which choose the bucket. Block and inode numbers come from images that may be hostile, and
//! they form patterns. Start and multiplier are secret and differ from cache to cache, so an image
//! cannot direct its blocks to one bucket.

use std::hash::{BuildHasher, Hash, Hasher};

/// The secret of a cache. A user whose keys are not numbers (such as names) hashes them with a seed
/// of its own for [`Config::number`](crate::Config::number), so that an attacker cannot make many
/// keys with the same number.
#[derive(Debug)]
pub struct Seed {
    start: u64,
    multiplier: u64,
}

impl Seed {
    /// Makes a random seed. In the `shuttle` and `count` builds, whose runs must be reproducible,
    /// all seeds are the same.
    #[must_use]
    pub fn new() -> Self {
        #[cfg(not(any(feature = "shuttle", feature = "count")))]
        let (start, multiplier) = {
            let random = std::collections::hash_map::RandomState::new();
            (random.hash_one(1_u8), random.hash_one(2_u8))
        };
        #[cfg(any(feature = "shuttle", feature = "count"))]
        let (start, multiplier) = (0x243f_6a88_85a3_08d3, 0x9e37_79b9_7f4a_7c15);
        Self::from_secret(start, multiplier)
    }

    /// Odd multipliers lose no bit of the key in the low half of the product.
    fn from_secret(start: u64, multiplier: u64) -> Self {
        Self {
            start,
            multiplier: multiplier | 1,
        }
    }

    /// The hash of a key. Two different keys have the same one with a probability of about 2^-64.
    #[inline]
    #[must_use]
    pub fn hash<K: Hash>(&self, key: &K) -> u64 {
        self.hash_one(key)
    }
}

impl Default for Seed {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for Seed {
    type Hasher = Folder;

    #[inline]
    fn build_hasher(&self) -> Folder {
        Folder {
            state: self.start,
            multiplier: self.multiplier,
        }
    }
}

/// The state of a hash under way.
#[derive(Debug)]
pub struct Folder {
    state: u64,
    multiplier: u64,
}

impl Folder {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves are wanted")]
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.multiplier);
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for Folder {
    #[inline]
    fn finish(&self) -> u64 {
        // One more round, so that a change in the last word's top bits spreads as well.
        let mut last = Self {
            state: self.state,
            multiplier: self.multiplier,
        };
        last.fold(0x5851_f42d_4c95_7f2d);
        last.state
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.fold(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        }
        let mut tail = [0; 8];
        let rest = words.remainder();
        tail[..rest.len()].copy_from_slice(rest);
        self.fold(u64::from_le_bytes(tail));
        // The length tells a tail of zeros from no tail.
        self.fold(bytes.len() as u64);
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.fold(u64::from(number));
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.fold(u64::from(number));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.fold(u64::from(number));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.fold(number);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.fold(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of keys in the fullest of 1 024 buckets, when 4 096 keys are spread by their top
    /// bits.
    fn fullest<K: Hash>(keys: impl Iterator<Item = K>) -> usize {
        let seed = Seed::new();
        let mut buckets = vec![0_usize; 1024];
        for key in keys.take(4096) {
            buckets[usize::try_from(seed.hash(&key) >> 54).expect("ten bits")] += 1;
        }
        buckets.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn patterns_of_block_numbers_spread_evenly() {
        // A random spread with an average of 4 has its maximum near 13, and practically never 24.
        for shift in [0, 3, 8, 15, 24, 32, 40, 52] {
            let fullest = fullest((0_u64..).map(|number| number << shift));
            assert!(fullest < 24, "stride 1 << {shift}: {fullest}");
        }
        assert!(fullest((0_u64..).map(|n| n * 0x0001_0001_0001)) < 24);
        assert!(fullest(0_u32..) < 24);
        assert!(fullest((0_u32..).map(|n| (n, n ^ 7))) < 24);
    }

    #[test]
    fn byte_strings_differ_by_content_and_length() {
        let seed = Seed::new();
        let all: std::collections::HashSet<u64> =
            (0..64).map(|len| seed.hash(&vec![0_u8; len])).collect();
        assert_eq!(all.len(), 64);
        assert_ne!(
            seed.hash(&"security.selinux"),
            seed.hash(&"security.selinuy")
        );
    }

    #[test]
    fn the_seed_matters() {
        let (one, two) = (Seed::from_secret(1, 5), Seed::from_secret(2, 7));
        assert!((0..64_u64).all(|key| one.hash(&key) != two.hash(&key)));
    }
}
