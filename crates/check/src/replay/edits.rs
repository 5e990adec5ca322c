//! **Purpose.** What the ADD_RANGE and DEL_RANGE records of one inode make of its map: disjoint
//! ranges of logical blocks, each with what it maps to after the replay.

use std::collections::BTreeMap;

use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::{LogicalBlock, PhysBlock};

/// What a range maps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Hole,
    Blocks(PhysBlock, ExtentState),
}

impl Target {
    /// The target of the block that lies `by` blocks further in the range.
    fn advanced(self, by: u32) -> Self {
        match self {
            Self::Hole => Self::Hole,
            Self::Blocks(first, state) => {
                Self::Blocks(PhysBlock(first.0.saturating_add(by.into())), state)
            }
        }
    }
}

/// The changed ranges of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapEdits {
    /// First block -> (end, target); disjoint.
    ranges: BTreeMap<u32, (u32, Target)>,
}

impl MapEdits {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Maps `blocks` blocks from `logical` on to `target`, whatever earlier records said of them.
    /// Blocks past the last one that a file can have are left out.
    pub(crate) fn set(&mut self, logical: LogicalBlock, blocks: u32, target: Target) {
        let start = logical.0;
        let end = start.saturating_add(blocks);
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        let replaced: Vec<u32> = self.ranges.range(start..end).map(|(&at, _)| at).collect();
        for at in replaced {
            self.ranges.remove(&at);
        }
        self.ranges.insert(start, (end, target));
    }

    /// Splits the range that contains both `at` and the block before it.
    fn split(&mut self, at: u32) {
        if let Some((&start, (end, target))) = self.ranges.range_mut(..at).next_back()
            && *end > at
        {
            let rest = (*end, target.advanced(at - start));
            *end = at;
            self.ranges.insert(at, rest);
        }
    }

    /// The map after the replay, in ascending order, of a file whose tree holds `stored`.
    pub(crate) fn applied_to(&self, stored: &[Extent]) -> Vec<Extent> {
        let mut map = Vec::with_capacity(stored.len() + self.ranges.len());
        for extent in stored {
            self.keep_unchanged(extent, &mut map);
        }
        for (&start, &(end, target)) in &self.ranges {
            if let Target::Blocks(physical, state) = target {
                map.push(Extent {
                    logical: LogicalBlock(start),
                    physical,
                    blocks: end - start,
                    state,
                });
            }
        }
        map.sort_unstable_by_key(|extent| extent.logical);
        map
    }

    /// Adds to `map` the parts of a stored extent that no range changes.
    fn keep_unchanged(&self, extent: &Extent, map: &mut Vec<Extent>) {
        let mut at = extent.logical.0;
        let end = at.saturating_add(extent.blocks);
        let before = self.ranges.range(..=at).next_back();
        let first = before.map_or(at, |(&start, _)| start);
        let changed = self.ranges.range(first..end);
        let changed = changed.map(|(&start, &(end, _))| (start, end));
        for (start, next) in changed.chain([(end, end)]) {
            if at < start {
                let skipped = u64::from(at - extent.logical.0);
                map.push(Extent {
                    logical: LogicalBlock(at),
                    physical: PhysBlock(extent.physical.0.saturating_add(skipped)),
                    blocks: start - at,
                    state: extent.state,
                });
            }
            at = at.max(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u32, physical: u64, blocks: u32) -> Extent {
        Extent {
            logical: LogicalBlock(logical),
            physical: PhysBlock(physical),
            blocks,
            state: ExtentState::Written,
        }
    }

    fn blocks(first: u64) -> Target {
        Target::Blocks(PhysBlock(first), ExtentState::Written)
    }

    #[test]
    fn later_ranges_replace_earlier_ones_and_the_stored_map() {
        let stored = [extent(0, 100, 10), extent(20, 200, 10)];
        let mut edits = MapEdits::default();
        assert_eq!(edits.applied_to(&stored), stored);
        edits.set(LogicalBlock(5), 20, blocks(500));
        edits.set(LogicalBlock(8), 2, Target::Hole);
        edits.set(LogicalBlock(29), u32::MAX, Target::Hole);
        let expected = [
            extent(0, 100, 5),
            extent(5, 500, 3),
            extent(10, 505, 15),
            extent(25, 205, 4),
        ];
        assert_eq!(edits.applied_to(&stored), expected);
    }
}
