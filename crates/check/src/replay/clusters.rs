//! **Purpose.** Sets of clusters as sorted ranges, and the clusters that one inode's map holds.

use std::ops::Range;

use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::{InodeNr, PhysBlock};

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::pass1::has_map;
use crate::volume::Volume;
use crate::walk::{Limits, Role, Sink, Walker};

/// A set of clusters: disjoint ranges in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clusters(Vec<Range<u64>>);

impl Clusters {
    pub(super) fn from_ranges(mut ranges: Vec<Range<u64>>) -> Self {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    pub(super) fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }

    /// The clusters that are not in `other`.
    pub(super) fn minus(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for range in &self.0 {
            let mut at = range.start;
            let first = other.0.partition_point(|cut| cut.end <= at);
            let cuts = other.0.get(first..).unwrap_or(&[]);
            for cut in cuts.iter().take_while(|cut| cut.start < range.end) {
                if at < cut.start {
                    left.push(at..cut.start);
                }
                at = at.max(cut.end);
            }
            if at < range.end {
                left.push(at..range.end);
            }
        }
        Self(left)
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        self.minus(other) != *self
    }
}

/// How many ranges are gathered before they are merged.
const FIRST_MERGE: usize = 1 << 16;

/// What the map of an inode holds.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Data and nodes of the map.
    pub(super) clusters: Clusters,
    /// Their number as `i_blocks` counts them: a node counts for a cluster.
    pub(super) counted: u64,
}

/// Follows the map of the inode `bytes` within `limits`. Faults are left to pass 1.
pub(super) fn held(volume: &Volume, nr: InodeNr, bytes: &[u8], limits: &mut Limits) -> Held {
    let Some(inode) = InodeView::new(bytes, nr).filter(has_map) else {
        return Held::default();
    };
    let mut gather = Gather {
        volume,
        ranges: Vec::new(),
        merge_at: FIRST_MERGE,
    };
    let mut walker = Walker::within(volume, *limits);
    let counted = walker.follow(&inode, &mut gather).clusters;
    *limits = walker.left();
    Held {
        clusters: Clusters::from_ranges(gather.ranges),
        counted,
    }
}

/// Gathers the clusters that a walk claims.
struct Gather<'a> {
    volume: &'a Volume,
    ranges: Vec<Range<u64>>,
    /// The number of ranges at which they are merged, so that memory follows the distinct ones.
    merge_at: usize,
}

impl Sink for Gather<'_> {
    fn claim(&mut self, run: Range<PhysBlock>, _role: Role) {
        if run.start < run.end {
            let last = self.volume.cluster(PhysBlock(run.end.0 - 1));
            self.ranges.push(self.volume.cluster(run.start)..last + 1);
            if self.ranges.len() >= self.merge_at {
                let merged = Clusters::from_ranges(std::mem::take(&mut self.ranges));
                self.ranges = merged.0;
                self.merge_at = FIRST_MERGE.max(2 * self.ranges.len());
            }
        }
    }

    fn wants_content(&self, _inode: &InodeView<'_>) -> bool {
        false
    }

    fn content(&mut self, _logical: u64, _run: Range<PhysBlock>, _state: ExtentState) {}

    fn fault(&mut self, _finding: Finding) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_cut() {
        let set = |ranges: &[(u64, u64)]| {
            Clusters::from_ranges(ranges.iter().map(|&(start, end)| start..end).collect())
        };
        let all = set(&[(20, 30), (0, 5), (5, 10), (40, 40), (28, 32)]);
        assert_eq!(all, set(&[(0, 10), (20, 32)]));
        let cut = set(&[(3, 4), (9, 21), (25, 26)]);
        assert_eq!(all.minus(&cut), set(&[(0, 3), (4, 9), (21, 25), (26, 32)]));
        assert!(all.meets(&cut) && !all.meets(&set(&[(10, 20), (32, 99)])));
    }
}
