//! **Purpose.** The blocks of one file that a fast commit maps: disjoint extents, the newest of
//! which counts.

use fourscore_ondisk::LogicalBlock;
use fourscore_ondisk::extent::Extent;

/// Disjoint extents of a file, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<Extent>);

impl Ranges {
    /// Maps an extent, in place of what was mapped there.
    pub(crate) fn put(&mut self, extent: Extent) {
        if let Some(last) = self.0.last_mut()
            && let Some(longer) = joined(last, &extent)
        {
            *last = longer;
            return;
        }
        let (start, end) = (extent.logical, extent.logical_end());
        let first = self.0.partition_point(|old| old.logical_end() <= start);
        let behind = self.0.partition_point(|old| old.logical < end);
        let mut kept = Vec::with_capacity(3);
        let overlapped = self.0.get(first..behind).unwrap_or_default();
        kept.extend(
            overlapped
                .iter()
                .filter_map(|old| old.part(&(LogicalBlock(0)..start))),
        );
        kept.push(extent);
        let rest = end..LogicalBlock(u32::MAX);
        kept.extend(overlapped.iter().filter_map(|old| old.part(&rest)));
        self.0.splice(first..behind.max(first), kept);
    }

    /// Returns the extents.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.0.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns `first` with `next` at its end, if one extent can map both.
fn joined(first: &Extent, next: &Extent) -> Option<Extent> {
    let blocks = first.blocks + next.blocks;
    let follows = first.logical_end() == next.logical
        && first.physical.0 + u64::from(first.blocks) == next.physical.0;
    let fits = first.state == next.state && blocks <= first.state.max_blocks();
    (follows && fits).then_some(Extent { blocks, ..*first })
}

#[cfg(test)]
mod tests {
    use fourscore_ondisk::PhysBlock;
    use fourscore_ondisk::extent::ExtentState;
    use proptest::prelude::*;

    use super::*;

    fn extent(logical: u32, blocks: u32, physical: u64, state: ExtentState) -> Extent {
        Extent {
            logical: LogicalBlock(logical),
            physical: PhysBlock(physical),
            blocks,
            state,
        }
    }

    #[test]
    fn what_is_appended_makes_one_extent_longer() {
        let mut ranges = Ranges::default();
        for at in 0..40_000 {
            ranges.put(extent(at, 1, 1000 + u64::from(at), ExtentState::Written));
        }
        let found: Vec<_> = ranges.iter().copied().collect();
        let expected = [
            extent(0, 32768, 1000, ExtentState::Written),
            extent(32768, 7232, 33768, ExtentState::Written),
        ];
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn the_newest_extent_counts_for_each_block(
            puts in prop::collection::vec((0..60_u32, 1..20_u32, any::<bool>(), 0..2_u64), 0..30),
        ) {
            let mut ranges = Ranges::default();
            let mut model = [None; 100];
            for (at, blocks, is_written, file) in puts {
                let state = if is_written { ExtentState::Written } else { ExtentState::Unwritten };
                ranges.put(extent(at, blocks, 1000 * file + u64::from(at), state));
                for block in at..at + blocks {
                    model[block as usize] = Some((1000 * file + u64::from(block), state));
                }
            }
            let mut found = [None; 100];
            let mut end = 0;
            for extent in ranges.iter() {
                prop_assert!(extent.logical.0 >= end && extent.blocks > 0);
                end = extent.logical_end().0;
                for nth in 0..extent.blocks {
                    let physical = extent.physical.0 + u64::from(nth);
                    found[(extent.logical.0 + nth) as usize] = Some((physical, extent.state));
                }
            }
            prop_assert_eq!(found, model);
        }
    }
}
