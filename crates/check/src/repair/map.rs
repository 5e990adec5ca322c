//! **Purpose.** Maps of inodes: reads what can be followed, and builds a sound map of it.
//!
//! **Model.** A map is never mended in place. The extents that a walk could follow are gathered,
//! changed as the patch wants, and a new tree (or new indirect blocks) is built of them, in free
//! blocks. The old nodes become free with the bitmaps. So a crash in the middle of the writes
//! leaves the old map, or the new one.
//!
//! **Invariants.** `i_blocks` and bitmaps are not touched: the next round finds them.

use std::collections::BTreeMap;
use std::ops::Range;

use fourscore_ondisk::extent::{self, Extent, ExtentState};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::{InodeFlags, RawInode};
use fourscore_ondisk::run::MappedRun;
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock, blockmap};
use zerocopy::FromBytes;

use super::editor::{Editor, Left, Patch};
use crate::finding::Finding;
use crate::inode::InodeView;
use crate::pass1::has_map;
use crate::state::State;
use crate::walk::{Role, Sink, Walker};

/// Which shared blocks of an inode are left to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    /// None: they belong to another owner.
    None,
    /// Where it maps them first: no other inode has them.
    First,
}

/// Gathers the extents of a map.
struct Gatherer<'s> {
    state: &'s State,
    extents: Vec<Extent>,
}

impl Sink for Gatherer<'_> {
    fn claim(&mut self, _run: Range<PhysBlock>, _role: Role) {}

    fn wants_content(&self, _inode: &InodeView<'_>) -> bool {
        true
    }

    fn content(&mut self, logical: u64, run: Range<PhysBlock>, state: ExtentState) {
        let most = u64::from(state.max_blocks());
        let (mut logical, mut start) = (logical, run.start.0);
        while start < run.end.0 {
            let blocks = most.min(run.end.0 - start);
            let (Ok(at), Ok(length)) = (u32::try_from(logical), u32::try_from(blocks)) else {
                return;
            };
            self.extents.push(Extent {
                logical: LogicalBlock(at),
                physical: PhysBlock(start),
                blocks: length,
                state,
            });
            start += blocks;
            logical += blocks;
        }
    }

    /// A block of pointers that lies on fixed metadata holds none.
    fn enters(&self, block: PhysBlock) -> bool {
        !self.state.metadata.contains(block.0)
    }

    fn fault(&mut self, _finding: Finding) {}
}

impl Editor<'_> {
    /// The extents of an inode as far as its map can be followed, in order.
    pub(super) fn extents_of(&self, nr: InodeNr) -> Patch<Vec<Extent>> {
        self.with_inode(nr, |inode| {
            let mut gatherer = Gatherer {
                state: self.state,
                extents: Vec::new(),
            };
            if has_map(inode) || nr == InodeNr(1) {
                Walker::new(self.volume).follow(inode, &mut gatherer);
            }
            gatherer.extents
        })
    }

    /// Builds a map of these extents, which are in order and do not overlap.
    pub(super) fn write_map(&self, nr: InodeNr, extents: &[Extent]) -> Patch {
        let volume = self.volume;
        let size = volume.geometry().block_size();
        let mut bytes = self.inode_bytes(nr)?;
        let view = InodeView::new(&bytes, nr).ok_or_else(|| Left::because("too short"))?;
        let uses_extents = view.has(InodeFlags::EXTENTS_FL) && volume.incompat(Incompat::EXTENTS);
        let seed = volume.sb.has_metadata_csum().then(|| view.seed(&volume.sb));
        let mut blocks = Vec::new();
        let mut emit = |block, bytes| blocks.push((block, bytes));
        let text = |error: &dyn std::fmt::Display| Left(format!("its map: {error}"));
        let root = if uses_extents {
            let nodes = self.take_blocks(extent::nodes_above(extents.len(), size))?;
            extent::build_extents(extents, &nodes, size, seed, &mut emit)
                .map_err(|error| text(&error))?
        } else {
            let runs = || {
                extents.iter().map(|extent| MappedRun {
                    logical: extent.logical,
                    physical: extent.physical,
                    blocks: extent.blocks,
                })
            };
            let indirect = self.take_blocks(blockmap::count_indirect_blocks(runs(), size))?;
            blockmap::build(runs(), &indirect, size, &mut emit).map_err(|error| text(&error))?
        };
        for (block, bytes) in blocks {
            self.write_block(block, &bytes)?;
        }
        if let Ok((base, _)) = RawInode::mut_from_prefix(&mut bytes) {
            base.i_block = root;
        }
        self.write_inode(nr, &mut bytes)
    }

    /// Builds a sound map of what can be followed of the map of an inode. The blocks of a
    /// directory are written, and without holes; a file loses what is allocated behind its end and
    /// not written: a length that was damaged makes such blocks of those of other files, and
    /// e2fsck accepts no entry of an inner node behind the end. With clusters, a block at another
    /// offset of its cluster than in the file moves to a cluster of its own.
    pub(super) fn rebuild_map(&self, nr: InodeNr) -> Patch {
        let mut extents = self.extents_of(nr)?;
        let is_directory = self.with_inode(nr, |inode| inode.is_directory())?;
        if is_directory {
            extents = self.without_holes(&extents);
        } else {
            let size_bytes = self.with_inode(nr, |inode| inode.size_bytes())?;
            let blocks = size_bytes.div_ceil(self.volume.block_bytes() as u64);
            extents = without_preallocation(extents, blocks);
        }
        if self.volume.geometry().blocks_per_cluster_log() > 0 {
            extents = self.aligned(&extents)?;
        }
        self.write_map(nr, &extents)
    }

    /// The blocks of a directory, moved down over holes and marked as written. A part past 2 GiB
    /// is left out, unless directories may be so large.
    fn without_holes(&self, extents: &[Extent]) -> Vec<Extent> {
        let mut next = 0_u32;
        let mut result = Vec::new();
        for extent in extents {
            result.push(Extent {
                logical: LogicalBlock(next),
                state: ExtentState::Written,
                ..*extent
            });
            next = next.saturating_add(extent.blocks);
        }
        result
    }

    /// Copies blocks that lie at the wrong offset of their cluster.
    fn aligned(&self, extents: &[Extent]) -> Patch<Vec<Extent>> {
        let log = self.volume.geometry().blocks_per_cluster_log();
        let mask = (1_u64 << log) - 1;
        let mut result: Vec<Extent> = Vec::new();
        let mut home: Option<(u64, u64)> = None;
        for extent in extents {
            for nth in 0..extent.blocks {
                let logical = u64::from(extent.logical.0) + u64::from(nth);
                let physical = extent.physical.0 + u64::from(nth);
                let (file, offset) = (logical >> log, logical & mask);
                let known = home.filter(|(other, _)| *other == file).map(|(_, at)| at);
                let base = physical - (physical & mask);
                let place = match known {
                    Some(at) => at + offset,
                    None if physical & mask == offset => physical,
                    None => self.take_cluster()?.0 + offset,
                };
                if place != physical {
                    let bytes = self.read_block(PhysBlock(physical))?;
                    self.write_block(PhysBlock(place), &bytes)?;
                }
                home = Some((
                    file,
                    if place == physical {
                        base
                    } else {
                        place - offset
                    },
                ));
                push_block(&mut result, logical, place, extent.state);
            }
        }
        Ok(result)
    }

    /// Gives an inode copies of those of its blocks that are in `shared`, and of its map. The
    /// ranges are in ascending order.
    pub(super) fn clone_blocks(&self, nr: InodeNr, shared: &[Range<u64>], kept: Kept) -> Patch {
        let volume = self.volume;
        let log = volume.geometry().blocks_per_cluster_log();
        let mask = (1_u64 << log) - 1;
        let mut result = Vec::new();
        // The cluster of the file that keeps each cluster of the device.
        let mut keepers: BTreeMap<u64, u64> = BTreeMap::new();
        // Both clusters of the last copy, and where the copy begins.
        let mut copied: Option<((u64, u64), u64)> = None;
        for extent in self.extents_of(nr)? {
            for nth in 0..extent.blocks {
                let logical = u64::from(extent.logical.0) + u64::from(nth);
                let physical = extent.physical.0 + u64::from(nth);
                let mut place = physical;
                let next = shared.partition_point(|range| range.end <= physical);
                let is_shared = shared
                    .get(next)
                    .is_some_and(|range| range.contains(&physical));
                let pair = (volume.cluster(PhysBlock(physical)), logical >> log);
                let is_kept = is_shared
                    && kept == Kept::First
                    && *keepers.entry(pair.0).or_insert(pair.1) == pair.1;
                if is_shared && !is_kept {
                    let start = match copied.filter(|(from, _)| *from == pair) {
                        Some((_, start)) => start,
                        None => self.take_cluster()?.0,
                    };
                    copied = Some((pair, start));
                    place = start + (logical & mask);
                    let bytes = self.read_block(PhysBlock(physical))?;
                    self.write_block(PhysBlock(place), &bytes)?;
                }
                push_block(&mut result, logical, place, extent.state);
            }
        }
        self.write_map(nr, &result)
    }
}

/// Extents without unwritten blocks from block `end` of the file on.
fn without_preallocation(extents: Vec<Extent>, end: u64) -> Vec<Extent> {
    let cut = |mut extent: Extent| {
        if extent.state == ExtentState::Unwritten {
            let left = end.saturating_sub(u64::from(extent.logical.0));
            extent.blocks =
                u32::try_from(left).map_or(extent.blocks, |left| left.min(extent.blocks));
        }
        (extent.blocks > 0).then_some(extent)
    };
    extents.into_iter().filter_map(cut).collect()
}

/// Adds a block to extents, the last of which it may extend.
pub(super) fn push_block(to: &mut Vec<Extent>, logical: u64, physical: u64, state: ExtentState) {
    let Ok(at) = u32::try_from(logical) else {
        return;
    };
    if let Some(last) = to.last_mut()
        && last.state == state
        && u64::from(last.logical.0) + u64::from(last.blocks) == logical
        && last.physical.0 + u64::from(last.blocks) == physical
        && last.blocks < state.max_blocks()
    {
        last.blocks += 1;
        return;
    }
    to.push(Extent {
        logical: LogicalBlock(at),
        physical: PhysBlock(physical),
        blocks: 1,
        state,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritten_blocks_behind_the_end_are_dropped() {
        let extent = |logical, blocks, state| Extent {
            logical: LogicalBlock(logical),
            physical: PhysBlock(1000 + u64::from(logical)),
            blocks,
            state,
        };
        let (written, unwritten) = (ExtentState::Written, ExtentState::Unwritten);
        let all = vec![
            extent(0, 4, unwritten),
            extent(4, 8, unwritten),
            extent(12, 2, written),
            extent(14, 2, unwritten),
        ];
        let left = [
            extent(0, 4, unwritten),
            extent(4, 2, unwritten),
            extent(12, 2, written),
        ];
        assert_eq!(without_preallocation(all.clone(), 6), left);
        assert_eq!(without_preallocation(all.clone(), 16), all);
    }
}
