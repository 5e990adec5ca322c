//! **Purpose.** The map of an inode as a whole: read, changed, and written to new blocks.
//!
//! **Model.** A changed map is written to blocks that are free, and `i_block` is what refers to it.
//! So however large it is, a step changes one inode. Blocks of pointers whose content stays are
//! kept where they are, unless they lie behind the new end.
//!
//! **Invariants.** What is read is checked: runs lie inside the file system, and a tree ends.

use std::ops::Range;

use fourscore_ondisk::extent::{self, Child, Extent, LOGICAL_END, Node};
use fourscore_ondisk::inode::Inode;
use fourscore_ondisk::{InodeSeed, LogicalBlock, PhysBlock, blockmap};

use crate::error::{ResizeError, Result};
use crate::inodes::{BAD_BLOCKS_INODE, Form, form};
use crate::space::Space;
use crate::volume::Volume;

/// Slots of `i_block`.
const ROOT_SLOTS: u16 = 15;
const DIRECT_SLOTS: u16 = 12;

/// A map that was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    /// Runs in the order of the file; of pointers as well.
    pub(crate) extents: Vec<Extent>,
    /// Blocks of the map itself.
    pub(crate) nodes: Vec<PhysBlock>,
}

impl Map {
    pub(crate) fn read(volume: &Volume<'_>, inode: &Inode) -> Result<Self> {
        let mut map = Self::default();
        match form(inode, volume.sb()) {
            Form::None => {}
            Form::Extents => map.add_extents(volume, inode)?,
            Form::Pointers => {
                let root = inode.i_block();
                for slot in 0..ROOT_SLOTS {
                    if let Some(block) = blockmap::pointer(root, slot) {
                        let level = slot.saturating_sub(DIRECT_SLOTS - 1);
                        map.add_pointers(volume, block, level)?;
                    }
                }
            }
        }
        Ok(map)
    }

    fn add_extents(&mut self, volume: &Volume<'_>, inode: &Inode) -> Result<()> {
        let physical = volume.geometry().data_blocks();
        extent::check_root(inode.i_block(), &physical).map_err(ResizeError::corrupt)?;
        let seed = volume
            .sb()
            .has_metadata_csum()
            .then(|| inode.checksum_seed());
        self.add_node(volume, inode.i_block(), LOGICAL_END, seed)
    }

    fn add_node(
        &mut self,
        volume: &Volume<'_>,
        bytes: &[u8],
        end: LogicalBlock,
        seed: Option<InodeSeed>,
    ) -> Result<()> {
        match Node::parse(bytes).map_err(ResizeError::corrupt)? {
            Node::Leaf(leaf) => self.extents.extend(leaf.iter()),
            Node::Inner(inner) => {
                for position in 0..inner.len() {
                    let child = inner.get(position, end);
                    let child: Child = child.ok_or_else(|| ResizeError::corrupt("a node"))?;
                    let bytes = volume.read(child.block)?;
                    let physical = volume.geometry().data_blocks();
                    extent::check_node(&bytes, &child, &physical, seed)
                        .map_err(ResizeError::corrupt)?;
                    self.nodes.push(child.block);
                    self.add_node(volume, &bytes, child.logical.end, seed)?;
                }
            }
        }
        Ok(())
    }

    /// Adds what a pointer of some level refers to. Only the place of data matters here, so its
    /// logical blocks are numbered consecutively.
    fn add_pointers(&mut self, volume: &Volume<'_>, block: PhysBlock, level: u16) -> Result<()> {
        if !volume.geometry().data_blocks().contains(&block) {
            return Err(ResizeError::corrupt("a pointer outside the file system"));
        }
        if level == 0 {
            self.add_block(block);
            return Ok(());
        }
        self.nodes.push(block);
        if self.nodes.len() as u64 > volume.geometry().blocks().0 {
            return Err(ResizeError::corrupt("a map that has itself"));
        }
        let bytes = volume.read(block)?;
        for slot in 0..pointers_of(volume) {
            if let Some(child) = blockmap::pointer(&bytes, slot) {
                self.add_pointers(volume, child, level - 1)?;
            }
        }
        Ok(())
    }

    fn add_block(&mut self, block: PhysBlock) {
        match self.extents.last_mut() {
            Some(last)
                if last.physical.0 + u64::from(last.blocks) == block.0
                    && last.blocks < u32::from(extent::MAX_WRITTEN_BLOCKS) =>
            {
                last.blocks += 1;
            }
            last => {
                let logical = last.map_or(0, |last| last.logical_end().0);
                self.extents.push(Extent {
                    logical: LogicalBlock(logical),
                    physical: block,
                    blocks: 1,
                    state: extent::ExtentState::Written,
                });
            }
        }
    }
}

fn pointers_of(volume: &Volume<'_>) -> u16 {
    u16::try_from(volume.block_bytes() / 4).unwrap_or(u16::MAX)
}

/// A move of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) from: Range<PhysBlock>,
    pub(crate) to: PhysBlock,
}

/// Moves, by the block that they begin at; they do not overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moves(Vec<Piece>);

impl Moves {
    pub(crate) fn new(mut pieces: Vec<Piece>) -> Self {
        pieces.sort_by_key(|piece| piece.from.start);
        Self(pieces)
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// The new place of a block, and how many blocks from there on stay together.
    pub(crate) fn find(&self, block: PhysBlock) -> (PhysBlock, u64) {
        let next = self.0.partition_point(|piece| piece.from.end <= block);
        match self.0.get(next) {
            Some(piece) if piece.from.start <= block => {
                let offset = block.0 - piece.from.start.0;
                (PhysBlock(piece.to.0 + offset), piece.from.end.0 - block.0)
            }
            Some(piece) => (block, piece.from.start.0 - block.0),
            None => (block, u64::MAX),
        }
    }

    /// The extents at their new places, joined where they can be.
    pub(crate) fn translate(&self, extents: &[Extent]) -> Vec<Extent> {
        let mut moved: Vec<Extent> = Vec::with_capacity(extents.len());
        for extent in extents {
            let mut done = 0;
            while done < extent.blocks {
                let from = PhysBlock(extent.physical.0 + u64::from(done));
                let (to, together) = self.find(from);
                let left = extent.blocks - done;
                let blocks = u32::try_from(together).unwrap_or(left).min(left);
                let part = Extent {
                    logical: LogicalBlock(extent.logical.0 + done),
                    physical: to,
                    blocks,
                    state: extent.state,
                };
                match moved
                    .last_mut()
                    .and_then(|last| Some((last.joined(&part)?, last)))
                {
                    Some((joined, last)) => *last = joined,
                    None => moved.push(part),
                }
                done += blocks;
            }
        }
        moved
    }
}

/// A map at new places.
#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) i_block: [u8; 60],
    /// The change of the number of the inode's blocks: blocks of the map are added or freed, bad
    /// ones dropped.
    pub(crate) more_blocks: i64,
}

/// Writes the map of an inode with its blocks moved. The checksums of its nodes are made with
/// `seed`. Nodes that are not needed any more are freed.
pub(crate) fn rewrite(
    volume: &Volume<'_>,
    space: &mut Space,
    inode: &Inode,
    map: &Map,
    moves: &Moves,
    seed: InodeSeed,
    end: PhysBlock,
) -> Result<Rewritten> {
    match form(inode, volume.sb()) {
        Form::None => Ok(Rewritten {
            i_block: *inode.i_block(),
            more_blocks: 0,
        }),
        Form::Extents => rewrite_extents(volume, space, map, moves, seed),
        Form::Pointers => {
            let mut rewrite = Pointers {
                volume,
                space,
                moves,
                end,
                are_bad: inode.number() == BAD_BLOCKS_INODE,
                dropped: 0,
            };
            let mut i_block = *inode.i_block();
            for slot in 0..ROOT_SLOTS {
                if let Some(block) = blockmap::pointer(&i_block, slot) {
                    let level = slot.saturating_sub(DIRECT_SLOTS - 1);
                    let block = rewrite.block(block, level)?;
                    put(&mut i_block, slot, block)?;
                }
            }
            Ok(Rewritten {
                i_block,
                more_blocks: -rewrite.dropped,
            })
        }
    }
}

fn rewrite_extents(
    volume: &Volume<'_>,
    space: &mut Space,
    map: &Map,
    moves: &Moves,
    seed: InodeSeed,
) -> Result<Rewritten> {
    let extents = moves.translate(&map.extents);
    let block_size = volume.geometry().block_size();
    let count = extent::nodes_above(extents.len(), block_size);
    let mut nodes = Vec::with_capacity(count);
    for _ in 0..count {
        nodes.push(space.take(volume, 1, 1)?.start);
    }
    let seed = volume.sb().has_metadata_csum().then_some(seed);
    let mut written = Ok(());
    let root = extent::build_extents(&extents, &nodes, block_size, seed, &mut |block, bytes| {
        if written.is_ok() {
            written = volume.write_now(block, &bytes);
        }
    });
    written?;
    for &node in &map.nodes {
        space.free(volume, &(node..PhysBlock(node.0 + 1)));
    }
    let counts = [count, map.nodes.len()].map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    Ok(Rewritten {
        i_block: root.map_err(ResizeError::corrupt)?,
        more_blocks: counts[0] - counts[1],
    })
}

/// Rewrites blocks of pointers.
struct Pointers<'a> {
    volume: &'a Volume<'a>,
    space: &'a mut Space,
    moves: &'a Moves,
    end: PhysBlock,
    /// Blocks that hold nothing: those behind the end are dropped, and become holes.
    are_bad: bool,
    /// How many were dropped.
    dropped: i64,
}

impl Pointers<'_> {
    /// The new place of a block of some level, `None` for one that is dropped; its content is
    /// written there.
    fn block(&mut self, block: PhysBlock, level: u16) -> Result<Option<PhysBlock>> {
        if level == 0 && self.are_bad && block >= self.end {
            self.dropped += 1;
            self.space
                .free(self.volume, &(block..PhysBlock(block.0 + 1)));
            return Ok(None);
        }
        if level == 0 {
            return Ok(Some(self.moves.find(block).0));
        }
        let mut bytes = self.volume.read(block)?;
        let mut is_changed = block >= self.end;
        for slot in 0..pointers_of(self.volume) {
            let Some(child) = blockmap::pointer(&bytes, slot) else {
                continue;
            };
            let moved = self.block(child, level - 1)?;
            if moved != Some(child) {
                put(&mut bytes, slot, moved)?;
                is_changed = true;
            }
        }
        if !is_changed {
            return Ok(Some(block));
        }
        let new = self.space.take(self.volume, 1, 1)?.start;
        self.volume.write_now(new, &bytes)?;
        self.space
            .free(self.volume, &(block..PhysBlock(block.0 + 1)));
        Ok(Some(new))
    }
}

/// Sets a pointer, or makes it a hole.
fn put(pointers: &mut [u8], slot: u16, block: Option<PhysBlock>) -> Result<()> {
    let done = match block {
        Some(block) => blockmap::set_pointer(pointers, slot, block),
        None => blockmap::clear_pointer(pointers, slot),
    };
    done.map(drop).map_err(ResizeError::corrupt)
}

#[cfg(test)]
mod tests {
    use fourscore_ondisk::extent::ExtentState;

    use super::*;

    fn extent(logical: u32, physical: u64, blocks: u32) -> Extent {
        Extent {
            logical: LogicalBlock(logical),
            physical: PhysBlock(physical),
            blocks,
            state: ExtentState::Written,
        }
    }

    #[test]
    fn extents_are_cut_and_joined_where_their_blocks_move() {
        let piece = |from: u64, blocks: u64, to| Piece {
            from: PhysBlock(from)..PhysBlock(from + blocks),
            to: PhysBlock(to),
        };
        let moves = Moves::new(vec![piece(110, 5, 20), piece(100, 10, 10)]);
        let moved = moves.translate(&[extent(0, 98, 17), extent(40, 300, 2)]);
        let expected = [extent(0, 98, 2), extent(2, 10, 15), extent(40, 300, 2)];
        assert_eq!(moved, expected);
    }
}
