//! **Purpose.** Distinct contents of attribute blocks and of values in inodes, with the number of
//! their users and copies.
//!
//! **Model.** A content is found by a hash of 128 bits and confirmed by its bytes, which are read
//! again from the first copy. Contents with one hash and different bytes form a chain.
//!
//! ```text
//! users >= copies >= 1        a content is shared if it has more users than copies
//! least copies = 1, or for blocks ceil(users / 1024)
//! ```
//!
//! **Invariants.** The memory is a fixed size for each distinct content, besides its place and the
//! list of values in inodes that it refers to.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::failure::Result;

/// A wide hash of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WideHash(u128);

impl WideHash {
    /// The first 128 bits of SHA-256: an image cannot be made such that many contents have one
    /// hash.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let digest = Sha256::digest(bytes);
        let half = digest.first_chunk::<16>().copied().unwrap_or_default();
        Self(u128::from_le_bytes(half))
    }
}

/// The number of a distinct content, in the order in which they were met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ContentNr(pub(super) u32);

/// A distinct content.
#[derive(Clone, Debug)]
pub(super) struct Content<P> {
    /// The first copy.
    pub(super) first: P,
    /// Blocks or inodes with this content.
    pub(super) copies: u64,
    /// Inodes that use one of the copies; for values, entries that do.
    pub(super) users: u64,
    /// The space of a copy.
    pub(super) bytes: u64,
    /// Values in inodes to which its entries refer.
    pub(super) values: Box<[ContentNr]>,
    /// The next content with the same hash.
    next: Option<ContentNr>,
}

impl<P> Content<P> {
    /// The fewest copies that its users need if a copy has at most `limit` users.
    pub(super) fn least_copies(&self, limit: u64) -> u64 {
        self.users.div_ceil(limit.max(1)).clamp(1, self.copies)
    }

    /// The space that sharing saves.
    pub(super) fn saved_bytes(&self) -> u64 {
        self.users.saturating_sub(self.copies) * self.bytes
    }

    /// The space that would be saved besides if there were as few copies as possible.
    pub(super) fn could_save_bytes(&self, limit: u64) -> u64 {
        (self.copies - self.least_copies(limit)) * self.bytes
    }
}

/// A content that is added.
pub(super) struct NewContent<P> {
    pub(super) hash: WideHash,
    pub(super) place: P,
    pub(super) bytes: u64,
    pub(super) values: Box<[ContentNr]>,
}

/// All distinct contents of one kind.
#[derive(Debug)]
pub(super) struct Contents<P> {
    all: Vec<Content<P>>,
    by_hash: HashMap<WideHash, ContentNr>,
    /// How often a hash was equal and the bytes were not.
    pub(super) unequal: u64,
}

impl<P> Default for Contents<P> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            by_hash: HashMap::new(),
            unequal: 0,
        }
    }
}

impl<P> Contents<P> {
    /// Adds a copy. `is_equal` compares it with the first copy of a content with the same hash.
    pub(super) fn add(
        &mut self,
        new: NewContent<P>,
        mut is_equal: impl FnMut(&P) -> Result<bool>,
    ) -> Result<ContentNr> {
        let head = self.by_hash.get(&new.hash).copied();
        let mut candidate = head;
        while let Some(nr) = candidate {
            let Some(known) = self.all.get_mut(nr.0 as usize) else {
                break;
            };
            if is_equal(&known.first)? {
                known.copies += 1;
                return Ok(nr);
            }
            self.unequal += 1;
            candidate = known.next;
        }
        // There are fewer blocks of attributes than inodes, whose number has 32 bits.
        let nr = ContentNr(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        self.all.push(Content {
            first: new.place,
            copies: 1,
            users: 0,
            bytes: new.bytes,
            values: new.values,
            next: head,
        });
        self.by_hash.insert(new.hash, nr);
        Ok(nr)
    }

    /// Counts one more user.
    pub(super) fn add_user(&mut self, nr: ContentNr) {
        if let Some(content) = self.all.get_mut(nr.0 as usize) {
            content.users += 1;
        }
    }

    pub(super) fn get(&self, nr: ContentNr) -> Option<&Content<P>> {
        self.all.get(nr.0 as usize)
    }

    pub(super) fn all(&self) -> &[Content<P>] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(hash: u128, place: u32) -> NewContent<u32> {
        NewContent {
            hash: WideHash(hash),
            place,
            bytes: 4096,
            values: Box::default(),
        }
    }

    #[test]
    fn equal_hashes_with_different_bytes_stay_apart() {
        let bytes = [b"a", b"b", b"a", b"c", b"b"];
        let mut contents = Contents::default();
        let numbers: Vec<u32> = (0..bytes.len())
            .map(|place| {
                let nr = u32::try_from(place).expect("small");
                let equal = |first: &u32| Ok(bytes[*first as usize] == bytes[place]);
                contents.add(new(7, nr), equal).expect("no I/O").0
            })
            .collect();
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        let copies: Vec<u64> = contents.all().iter().map(|one| one.copies).collect();
        assert_eq!(copies, [2, 2, 1]);
        assert!(contents.unequal >= 3, "{}", contents.unequal);
    }

    #[test]
    fn different_hashes_are_not_compared() {
        let mut contents = Contents::default();
        for nr in 0..3 {
            let never = |_: &u32| -> Result<bool> { panic!("compared") };
            contents.add(new(nr.into(), nr), never).expect("no I/O");
        }
        assert_eq!((contents.all().len(), contents.unequal), (3, 0));
        assert_ne!(WideHash::of(b"a"), WideHash::of(b"b"));
        assert_eq!(WideHash::of(b"a"), WideHash::of(b"a"));
    }

    #[test]
    fn savings_follow_the_limit_of_users() {
        let mut contents = Contents::default();
        for place in 0..5 {
            contents.add(new(1, place), |_| Ok(true)).expect("no I/O");
        }
        (0..2100).for_each(|_| contents.add_user(ContentNr(0)));
        let content = contents.get(ContentNr(0)).expect("added");
        assert_eq!(content.least_copies(1024), 3);
        assert_eq!(content.saved_bytes(), 2095 * 4096);
        assert_eq!(content.could_save_bytes(1024), 2 * 4096);
        assert_eq!(content.could_save_bytes(u64::MAX), 4 * 4096);
        // A forged image may have more users than a block can count.
        assert_eq!(content.least_copies(1), 5);
    }
}
