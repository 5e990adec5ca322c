//! **Purpose.** The parts of a file's map that fast commits changed: disjoint runs of blocks, each
//! with its new mapping.

use std::collections::BTreeMap;

use fourscore_ondisk::LogicalBlock;
use fourscore_ondisk::extent::LOGICAL_END;

use crate::map::mapping::{Mapping, Target};

/// Runs under construction: first block -> (end, target), disjoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    runs: BTreeMap<u32, (u32, Target)>,
}

impl RangeSet {
    /// Maps `blocks` blocks from `logical` on to `target`, and replaces earlier mappings of them.
    /// Blocks past the last one that a file can have are ignored.
    pub(crate) fn set(&mut self, logical: LogicalBlock, blocks: u32, target: Target) {
        let start = logical.0;
        let end = start.saturating_add(blocks);
        if start >= end {
            return;
        }
        self.cut(start);
        self.cut(end);
        let replaced: Vec<u32> = self.runs.range(start..end).map(|(&at, _)| at).collect();
        for at in replaced {
            self.runs.remove(&at);
        }
        self.runs.insert(start, (end, target));
    }

    /// Splits the run that crosses `at`.
    fn cut(&mut self, at: u32) {
        if let Some((&start, (end, target))) = self.runs.range_mut(..at).next_back()
            && *end > at
        {
            let rest = (*end, moved(*target, at - start));
            *end = at;
            self.runs.insert(at, rest);
        }
    }

    /// Returns the runs, ready for lookups; `None` if there are none.
    pub(crate) fn finish(self) -> Option<RangeEdits> {
        let runs: Vec<Mapping> = self
            .runs
            .into_iter()
            .map(|(start, (end, target))| Mapping {
                logical: LogicalBlock(start),
                blocks: end - start,
                target,
            })
            .collect();
        (!runs.is_empty()).then_some(RangeEdits { runs: runs.into() })
    }
}

/// Returns the mapping of the block `by` blocks after the one that maps to `target`.
fn moved(target: Target, by: u32) -> Target {
    let add = |block: fourscore_ondisk::PhysBlock| {
        fourscore_ondisk::PhysBlock(block.0.saturating_add(by.into()))
    };
    match target {
        Target::Hole => Target::Hole,
        Target::Unwritten(block) => Target::Unwritten(add(block)),
        Target::Written(block) => Target::Written(add(block)),
    }
}

/// The changed parts of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeEdits {
    /// Ascending and disjoint.
    runs: Box<[Mapping]>,
}

impl RangeEdits {
    /// Returns the rest of the changed run that `logical` lies in; `None` if the map on disk
    /// counts.
    pub(crate) fn at(&self, logical: LogicalBlock) -> Option<Mapping> {
        let after = self.runs.partition_point(|run| run.logical <= logical);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let skipped = logical.0 - run.logical.0;
        let blocks = run
            .blocks
            .checked_sub(skipped)
            .filter(|&blocks| blocks > 0)?;
        Some(Mapping {
            logical,
            blocks,
            target: moved(run.target, skipped),
        })
    }

    /// Returns all runs, ascending and disjoint.
    pub(crate) fn runs(&self) -> &[Mapping] {
        &self.runs
    }

    /// Returns the start of the next changed run after `logical`, or the end of all files.
    pub(crate) fn next_after(&self, logical: LogicalBlock) -> LogicalBlock {
        let after = self.runs.partition_point(|run| run.logical <= logical);
        self.runs.get(after).map_or(LOGICAL_END, |run| run.logical)
    }
}
