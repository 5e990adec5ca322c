//! **Purpose.** How an inode finds its blocks: extent trees and block maps, from runs that are
//! known at last.
//!
//! **Not here.** Which blocks a file gets (`place`).
//!
//! **Model.** The blocks of a tree or map beyond the inode (nodes) are counted before they are
//! placed and filled when the file is written, by the same walk. Nodes are numbered in the order in
//! which the walk meets them: of an extent tree leaves first, then level by level up to the root;
//! of a block map each index block before those below it.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "The Contents of inode.i_block".

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::extent::{self, RawExtent, RawHeader, RawIndex};
use zerocopy::IntoBytes;

use super::content::Range;
use super::facts::Facts;
use crate::bytes::{low16, low32, put};

/// The 60 bytes of an inode that lead to its blocks.
pub(crate) type IBlock = [u8; 60];

/// The longest written extent.
const MOST_EXTENT_BLOCKS: u64 = 32768;
/// Extents, or children, that fit into an inode.
const ROOT_ENTRIES: usize = 4;
const HEADER_BYTES: usize = size_of::<RawHeader>();
const ENTRY_BYTES: usize = size_of::<RawExtent>();
/// Blocks that an inode points to directly.
const DIRECT_BLOCKS: u64 = 12;

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

/// Takes a node: its position among the file's nodes, and its content.
type Emit<'a> = &'a mut dyn FnMut(usize, Vec<u8>);

/// The extents of these runs, none longer than an extent may be.
fn extents(runs: &[Run]) -> impl Iterator<Item = Run> {
    runs.iter().flat_map(|run| {
        let pieces = run.blocks.div_ceil(MOST_EXTENT_BLOCKS);
        (0..pieces).map(|piece| {
            let from = piece * MOST_EXTENT_BLOCKS;
            Run {
                logical: run.logical + from,
                physical: run.physical + from,
                blocks: (run.blocks - from).min(MOST_EXTENT_BLOCKS),
            }
        })
    })
}

impl Facts {
    /// One past the last block a file may have.
    pub(crate) fn logical_end(&self) -> u64 {
        if self.extents {
            return u32::MAX.into();
        }
        let pointers = self.pointers();
        let all = DIRECT_BLOCKS + pointers * (1 + pointers * (1 + pointers));
        all.min(u32::MAX.into())
    }

    /// Blocks that one index block of a block map points to.
    fn pointers(&self) -> u64 {
        1 << (self.block_bits - 2)
    }

    /// Entries of an extent node that fills a block.
    fn node_entries(&self) -> usize {
        (self.block_bytes() - HEADER_BYTES) / ENTRY_BYTES
    }

    /// Nodes that a file of these runs needs beyond its inode.
    pub(crate) fn nodes(&self, runs: &[Run]) -> usize {
        if !self.extents {
            return self.walk_map(runs, None, &mut [0; 60], &mut |_, _| {});
        }
        let mut level = extents(runs).count();
        let mut nodes = 0;
        while level > ROOT_ENTRIES {
            level = level.div_ceil(self.node_entries());
            nodes += level;
        }
        nodes
    }

    /// What the inode says, and through `emit` the content of its nodes, which lie at `nodes`.
    pub(crate) fn map(
        &self,
        runs: &[Run],
        nodes: &[u64],
        owner: InodeNr,
        emit: Emit<'_>,
    ) -> IBlock {
        let mut i_block = [0; 60];
        if self.extents {
            self.build_tree(runs, nodes, owner, &mut i_block, emit);
        } else {
            self.walk_map(runs, Some(nodes), &mut i_block, emit);
        }
        i_block
    }

    fn build_tree(
        &self,
        runs: &[Run],
        nodes: &[u64],
        owner: InodeNr,
        i_block: &mut IBlock,
        emit: Emit<'_>,
    ) {
        let mut entries: Vec<(u64, [u8; ENTRY_BYTES])> = extents(runs)
            .map(|run| (run.logical, extent_entry(run)))
            .collect();
        let mut depth = 0;
        let mut next = 0;
        while entries.len() > ROOT_ENTRIES {
            let mut above = Vec::new();
            for part in entries.chunks(self.node_entries()) {
                let mut block = vec![0; self.block_bytes()];
                put_node(&mut block, self.node_entries(), depth, part);
                if self.metadata_csum {
                    // The header says what fits.
                    let _ = extent::seal(&mut block, self.seed(owner));
                }
                let place = nodes.get(next).copied().unwrap_or(0);
                let first = part.first().map_or(0, |entry| entry.0);
                above.push((first, index_entry(first, place)));
                emit(next, block);
                next += 1;
            }
            entries = above;
            depth += 1;
        }
        put_node(i_block, ROOT_ENTRIES, depth, &entries);
    }

    /// Walks a block map in the order of logical blocks; says how many index blocks it has. They
    /// are given to `emit` only where their places are known.
    fn walk_map(
        &self,
        runs: &[Run],
        nodes: Option<&[u64]>,
        i_block: &mut IBlock,
        emit: Emit<'_>,
    ) -> usize {
        let mut map = MapWalk {
            block_bytes: if nodes.is_some() {
                self.block_bytes()
            } else {
                0
            },
            nodes: nodes.unwrap_or_default(),
            open: Vec::new(),
            count: 0,
        };
        for run in runs {
            let mut done = 0;
            while done < run.blocks {
                let (way, levels) = self.way(run.logical + done);
                let way = &way[..=levels];
                map.descend(way, i_block, emit);
                let slot = way[levels];
                let room = if levels == 0 {
                    DIRECT_BLOCKS
                } else {
                    self.pointers()
                };
                let now = (run.blocks - done).min(room - slot);
                map.point(slot, run.physical + done, now, i_block);
                done += now;
            }
        }
        map.close(0, emit);
        map.count
    }

    /// The slots from the inode down to a block, and how many index blocks lie between.
    fn way(&self, logical: u64) -> ([u64; 4], usize) {
        let (pointers, bits) = (self.pointers(), self.block_bits - 2);
        let Some(mut rest) = logical.checked_sub(DIRECT_BLOCKS) else {
            return ([logical, 0, 0, 0], 0);
        };
        let mask = pointers - 1;
        if rest < pointers {
            return ([DIRECT_BLOCKS, rest, 0, 0], 1);
        }
        rest -= pointers;
        if rest < pointers << bits {
            return ([DIRECT_BLOCKS + 1, rest >> bits, rest & mask, 0], 2);
        }
        rest -= pointers << bits;
        let top = (rest >> (2 * bits)) & mask;
        (
            [DIRECT_BLOCKS + 2, top, (rest >> bits) & mask, rest & mask],
            3,
        )
    }
}

/// An index block under way.
struct OpenNode {
    slot_above: u64,
    position: usize,
    content: Vec<u8>,
}

struct MapWalk<'a> {
    block_bytes: usize,
    nodes: &'a [u64],
    open: Vec<OpenNode>,
    count: usize,
}

impl MapWalk<'_> {
    /// Opens the index blocks on the way to a block, and closes those that are behind it.
    fn descend(&mut self, way: &[u64], i_block: &mut IBlock, emit: Emit<'_>) {
        let above = way.split_last().map_or(&[][..], |(_, above)| above);
        let same = self
            .open
            .iter()
            .zip(above)
            .take_while(|(open, slot)| open.slot_above == **slot)
            .count();
        self.close(same, emit);
        for &slot in above.iter().skip(same) {
            let place = self.nodes.get(self.count).copied().unwrap_or(0);
            self.point(slot, place, 1, i_block);
            self.open.push(OpenNode {
                slot_above: slot,
                position: self.count,
                content: vec![0; self.block_bytes],
            });
            self.count += 1;
        }
    }

    /// Has slots of the lowest open node, or of the inode, point to blocks in a row.
    fn point(&mut self, slot: u64, block: u64, count: u64, i_block: &mut IBlock) {
        let content: &mut [u8] = match self.open.last_mut() {
            Some(open) => &mut open.content,
            None => i_block,
        };
        for offset in 0..count {
            let at = usize::try_from((slot + offset) * 4).unwrap_or(usize::MAX);
            if let Some(place) = content.get_mut(at..).and_then(|rest| rest.get_mut(..4)) {
                place.copy_from_slice(low32(block + offset).as_bytes());
            }
        }
    }

    fn close(&mut self, keep: usize, emit: Emit<'_>) {
        while self.open.len() > keep
            && let Some(open) = self.open.pop()
        {
            if self.block_bytes > 0 {
                emit(open.position, open.content);
            }
        }
    }
}

fn put_node(node: &mut [u8], most: usize, depth: u16, entries: &[(u64, [u8; ENTRY_BYTES])]) {
    let header = RawHeader {
        eh_magic: extent::MAGIC.into(),
        eh_entries: low16(entries.len() as u64),
        eh_max: low16(most as u64),
        eh_depth: depth.into(),
        eh_generation: 0.into(),
    };
    put(node, 0, header.as_bytes());
    for (index, (_, entry)) in entries.iter().enumerate() {
        put(node, HEADER_BYTES + index * ENTRY_BYTES, entry);
    }
}

fn extent_entry(run: Run) -> [u8; ENTRY_BYTES] {
    let raw = RawExtent {
        ee_block: low32(run.logical),
        ee_len: low16(run.blocks),
        ee_start_hi: low16(run.physical >> 32),
        ee_start_lo: low32(run.physical),
    };
    zerocopy::transmute!(raw)
}

fn index_entry(logical: u64, block: u64) -> [u8; ENTRY_BYTES] {
    let raw = RawIndex {
        ei_block: low32(logical),
        ei_leaf_lo: low32(block),
        ei_leaf_hi: low16(block >> 32),
        ei_unused: 0.into(),
    };
    zerocopy::transmute!(raw)
}
