//! **Purpose.** How an inode finds its blocks: extent trees and block maps, from runs that are
//! known at last.
//!
//! **Not here.** Which blocks a file gets (`place`); the format of trees and maps (crate `ondisk`).
//!
//! **Model.** The blocks of a tree or map beyond the inode (nodes) are counted before they are
//! placed, and built when the file is written. Their order is that of `ondisk`.

use fourscore_ondisk::{InodeNr, LogicalBlock, MappedRun, PhysBlock, blockmap, extent};

use super::content::Range;
use super::facts::Facts;
use crate::error::{BuildError, BuildResult};

/// The 60 bytes of an inode that lead to its blocks.
pub(crate) type IBlock = [u8; 60];

/// Blocks in a row, in the file and on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) blocks: u64,
}

/// The runs of a file whose clusters fill the pieces one after the other; `ranges` are the blocks
/// of them that the file really has.
pub(crate) fn runs_in_pieces(
    clusters: &[Range],
    ranges: &[Range],
    pieces: &[std::ops::Range<u64>],
    runs: &mut Vec<Run>,
) {
    let mut pieces = pieces.iter().cloned();
    let mut piece = 0..0;
    let mut rest = ranges.iter().copied().peekable();
    for cluster in clusters {
        let mut at = cluster.first;
        let end = cluster.first + cluster.blocks;
        while at < end {
            if piece.is_empty() {
                piece = pieces.next().unwrap_or(0..0);
            }
            let now = (end - at).min(piece.end - piece.start);
            if now == 0 {
                break;
            }
            while let Some(range) = rest.peek().copied() {
                let first = range.first.max(at);
                let last = (range.first + range.blocks).min(at + now);
                if first < last {
                    let run = Run {
                        logical: first,
                        physical: piece.start + (first - at),
                        blocks: last - first,
                    };
                    push_run(runs, run);
                }
                if range.first + range.blocks > at + now {
                    break;
                }
                rest.next();
            }
            piece.start += now;
            at += now;
        }
    }
}

/// Adds a run, to the last one if it goes on from there.
pub(crate) fn push_run(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last)
            if last.logical + last.blocks == run.logical
                && last.physical + last.blocks == run.physical =>
        {
            last.blocks += run.blocks;
        }
        _ => runs.push(run),
    }
}

/// The runs as `ondisk` takes them. Files with blocks past 32 bits were refused.
fn mapped(runs: &[Run]) -> impl Iterator<Item = MappedRun> {
    let low = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    runs.iter().map(move |run| MappedRun {
        logical: LogicalBlock(low(run.logical)),
        physical: PhysBlock(run.physical),
        blocks: low(run.blocks),
    })
}

impl Facts {
    /// One past the last block a file may have.
    pub(crate) fn logical_end(&self) -> u64 {
        let end = match self.extents {
            true => extent::LOGICAL_END,
            false => blockmap::logical_end(self.block_size),
        };
        end.0.into()
    }

    /// Nodes that a file of these runs needs beyond its inode.
    pub(crate) fn nodes(&self, runs: &[Run]) -> usize {
        match self.extents {
            true => extent::count_nodes(mapped(runs), self.block_size),
            false => blockmap::count_indirect_blocks(mapped(runs), self.block_size),
        }
    }

    /// Builds the tree or map of these runs, whose nodes lie at `nodes`. Returns what the inode
    /// holds of it; each node is passed to `emit` with its block.
    pub(crate) fn map(
        &self,
        runs: &[Run],
        nodes: &[u64],
        owner: InodeNr,
        emit: &mut dyn FnMut(PhysBlock, Vec<u8>),
    ) -> BuildResult<IBlock> {
        let nodes: Vec<PhysBlock> = nodes.iter().copied().map(PhysBlock).collect();
        if self.extents {
            let seed = self.metadata_csum.then(|| self.seed(owner));
            let root = extent::build(mapped(runs), &nodes, self.block_size, seed, emit);
            root.map_err(|_| BuildError::Invalid("runs that fit no extent tree"))
        } else {
            let i_block = blockmap::build(mapped(runs), &nodes, self.block_size, emit);
            i_block.map_err(|_| BuildError::Invalid("runs that fit no block map"))
        }
    }
}
