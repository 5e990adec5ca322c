//! **Purpose.** The figures of the report, and whether sharing pays.
//!
//! **Model.** Sharing pays if at least [`LEAST_HIT_PERCENT`] of 100 lookups are hits. A lookup
//! costs a hash of the attributes and one probe. A hit saves the allocation of a block, its header
//! and its place in the journal, which cost some twenty times as much.
//!
//! ```text
//! hits * cost of a block > lookups * cost of a lookup
//! hits / lookups > 1 / 20
//! ```

use fourscore_ondisk::xattr::MAX_BLOCK_REFS;

use super::clock::Clock;
use super::contents::Contents;
use super::scan::Scan;
use super::values::Count;

/// The hits of 100 lookups from which on sharing pays.
pub(super) const LEAST_HIT_PERCENT: f64 = 5.0;
/// A larger cache is advised only for more than this part of its hits.
const WORTH_LARGER: f64 = 0.02;

/// Contents whose numbers of users are between two powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) contents: u64,
    pub(super) copies: u64,
    pub(super) users: u64,
}

/// The sharing of blocks, or of values in inodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sharing {
    /// All, also those without a valid content.
    pub(super) count: Count,
    pub(super) contents: u64,
    pub(super) copies: u64,
    pub(super) users: u64,
    /// The fewest copies for these users.
    pub(super) least_copies: u64,
    pub(super) saved_bytes: u64,
    pub(super) could_save_bytes: u64,
    /// Comparisons of different bytes with one hash.
    pub(super) unequal: u64,
    /// `[i]` counts contents of `2^i` to `2^(i+1) - 1` users.
    pub(super) by_users: Vec<Bucket>,
}

impl Sharing {
    fn of<P>(contents: &Contents<P>, count: Count, limit: u64) -> Self {
        let mut sharing = Self {
            count,
            unequal: contents.unequal,
            ..Self::default()
        };
        for content in contents.all() {
            sharing.contents += 1;
            sharing.copies += content.copies;
            sharing.users += content.users;
            sharing.least_copies += content.least_copies(limit);
            sharing.saved_bytes += content.saved_bytes();
            sharing.could_save_bytes += content.could_save_bytes(limit);
            let power = content.users.max(1).ilog2() as usize;
            if sharing.by_users.len() <= power {
                sharing.by_users.resize(power + 1, Bucket::default());
            }
            if let Some(bucket) = sharing.by_users.get_mut(power) {
                bucket.contents += 1;
                bucket.copies += content.copies;
                bucket.users += content.users;
            }
        }
        sharing
    }

    pub(super) fn of_blocks(scan: &Scan<'_>) -> Self {
        let limit = MAX_BLOCK_REFS.into();
        Self::of(&scan.blocks.contents, scan.blocks.count(), limit)
    }

    pub(super) fn of_values(scan: &Scan<'_>) -> Self {
        Self::of(&scan.values.contents, scan.values.count(), u64::MAX)
    }
}

/// Whether sharing should be on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Advice {
    /// Nothing would be looked up.
    NoDifference,
    /// On, with a cache of this size.
    On { cache_bytes: u64, hit_percent: f64 },
    /// Off: even the cache with the most hits has too few.
    Off { hit_percent: f64 },
}

impl Advice {
    pub(super) fn of(clocks: &[Clock]) -> Self {
        let best = clocks.iter().map(|clock| clock.tally.hits).max();
        let best = best.unwrap_or_default();
        let is_near =
            |clock: &&Clock| clock.tally.hits as f64 >= best as f64 * (1.0 - WORTH_LARGER);
        let near = clocks.iter().filter(is_near);
        match near.min_by_key(|clock| clock.size_bytes) {
            Some(clock) if clock.tally.lookups > 0 => {
                let hit_percent = clock.tally.hit_percent();
                let cache_bytes = clock.size_bytes;
                match hit_percent >= LEAST_HIT_PERCENT {
                    true => Self::On {
                        cache_bytes,
                        hit_percent,
                    },
                    false => Self::Off { hit_percent },
                }
            }
            _ => Self::NoDifference,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NoDifference => "no-difference",
            Self::On { .. } => "on",
            Self::Off { .. } => "off",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::{ENTRY_BYTES, Key};
    use super::super::contents::ContentNr;
    use super::*;

    /// Caches of some sizes after `count` lookups of contents in turns.
    fn clocks(sizes: &[u64], count: u32, contents: u32) -> Vec<Clock> {
        let mut clocks: Vec<Clock> = sizes.iter().copied().map(Clock::new).collect();
        for nr in 0..count {
            for clock in &mut clocks {
                clock.look_up(Key::Block(ContentNr(nr % contents)), 1024);
            }
        }
        clocks
    }

    #[test]
    fn the_smallest_cache_with_nearly_all_hits_is_advised() {
        let sizes = [1, 16, 1024].map(|entries| entries * ENTRY_BYTES);
        let Advice::On { cache_bytes, .. } = Advice::of(&clocks(&sizes, 1000, 10)) else {
            panic!("not on");
        };
        assert_eq!(cache_bytes, ENTRY_BYTES * 16);
    }

    #[test]
    fn off_is_advised_without_hits_and_nothing_without_lookups() {
        let sizes = [ENTRY_BYTES * 1024];
        let off = Advice::of(&clocks(&sizes, 1000, 1000));
        assert_eq!(off, Advice::Off { hit_percent: 0.0 });
        // 40 hits of 1000 are too few, 50 are enough.
        assert_eq!(Advice::of(&clocks(&sizes, 1000, 960)).name(), "off");
        assert_eq!(Advice::of(&clocks(&sizes, 1000, 950)).name(), "on");
        let none = Advice::of(&clocks(&sizes, 0, 1));
        assert_eq!(none, Advice::NoDifference);
    }
}
