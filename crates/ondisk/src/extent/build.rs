//! **Purpose.** Builds the whole extent tree of a file whose runs are all known.
//!
//! **Not here.** Which blocks the nodes get; changes of a tree that exists (`edit`).
//!
//! **Model.** The caller counts the nodes with [`count_nodes`], allocates a block for each, and
//! passes the blocks to [`build`], which fills them in this order: all leaves from left to right,
//! then the inner nodes level by level up to the root. Every node is full, except the last one of
//! each level and the root.
//!
//! **Invariants.** A run is split where an extent would get too long; runs are never joined, so
//! runs that are extents already stay as they are.

use zerocopy::FromBytes;

use super::{
    ENTRY_BYTES, Extent, ExtentEditError, ExtentState, HEADER_BYTES, MAX_WRITTEN_BLOCKS,
    ROOT_BYTES, RawExtent, RawHeader, RawIndex, capacity, init_node, seal,
};
use crate::checksum::InodeSeed;
use crate::run::MappedRun;
use crate::types::{BlockSize, LogicalBlock, PhysBlock};
use crate::words::{low16, put};

/// Entries that fit into the root.
pub const ROOT_ENTRIES: usize = (ROOT_BYTES - HEADER_BYTES) / ENTRY_BYTES;

/// An entry of a node, in on-disk form, and its key.
struct Entry {
    key: LogicalBlock,
    bytes: [u8; ENTRY_BYTES],
}

/// The number of blocks that the tree of these runs needs beyond its root.
pub fn count_nodes(runs: impl IntoIterator<Item = MappedRun>, block_size: BlockSize) -> usize {
    let per_extent = u32::from(MAX_WRITTEN_BLOCKS);
    let extents = runs
        .into_iter()
        .map(|run| run.blocks.div_ceil(per_extent) as usize);
    nodes_above(extents.sum(), block_size)
}

/// The number of nodes below the root of a tree with so many extents.
#[must_use]
pub fn nodes_above(extents: usize, block_size: BlockSize) -> usize {
    let per_node = usize::from(capacity(block_size.bytes()));
    let (mut entries, mut nodes) = (extents, 0);
    while entries > ROOT_ENTRIES {
        entries = entries.div_ceil(per_node);
        nodes += entries;
    }
    nodes
}

/// Builds the tree of these written runs, which are sorted and do not overlap. Returns its root;
/// each other node is passed to `emit` with the block it belongs to. `nodes` are the blocks for
/// nodes, at least [`count_nodes`] of them; with a `seed` the nodes get checksums.
///
/// # Errors
/// `NewNodes` if there are too few `nodes`; then nothing is emitted. `Logical`, `Physical` and
/// `Length` for runs that extents cannot express.
pub fn build(
    runs: impl IntoIterator<Item = MappedRun>,
    nodes: &[PhysBlock],
    block_size: BlockSize,
    seed: Option<InodeSeed>,
    emit: &mut dyn FnMut(PhysBlock, Vec<u8>),
) -> Result<[u8; ROOT_BYTES], ExtentEditError> {
    tree(leaf_entries(runs)?, nodes, block_size, seed, emit)
}

/// As [`build`], for extents of any state, of which none is longer than its state allows.
///
/// # Errors
/// As [`build`]. `nodes` must be at least [`nodes_above`] of them.
pub fn build_extents(
    extents: &[Extent],
    nodes: &[PhysBlock],
    block_size: BlockSize,
    seed: Option<InodeSeed>,
    emit: &mut dyn FnMut(PhysBlock, Vec<u8>),
) -> Result<[u8; ROOT_BYTES], ExtentEditError> {
    let entry = |extent: &Extent| {
        Ok(Entry {
            key: extent.logical,
            bytes: zerocopy::transmute!(RawExtent::try_from(extent)?),
        })
    };
    let entries: Result<Vec<Entry>, ExtentEditError> = extents.iter().map(entry).collect();
    tree(entries?, nodes, block_size, seed, emit)
}

/// Builds the nodes above the entries of leaves.
fn tree(
    mut entries: Vec<Entry>,
    nodes: &[PhysBlock],
    block_size: BlockSize,
    seed: Option<InodeSeed>,
    emit: &mut dyn FnMut(PhysBlock, Vec<u8>),
) -> Result<[u8; ROOT_BYTES], ExtentEditError> {
    let needed = nodes_above(entries.len(), block_size);
    if nodes.len() < needed {
        return Err(ExtentEditError::NewNodes { needed });
    }
    let mut blocks = nodes.iter().copied();
    let mut depth = 0;
    while entries.len() > ROOT_ENTRIES {
        let parts = entries.chunks(capacity(block_size.bytes()).into());
        let mut parents = Vec::with_capacity(parts.len());
        for (part, block) in parts.zip(&mut blocks) {
            let mut node = vec![0; block_size.bytes()];
            fill_node(&mut node, depth, part)?;
            if let Some(seed) = seed {
                seal(&mut node, seed)?;
            }
            // A part of a slice is not empty.
            let key = part.first().map_or(LogicalBlock(0), |entry| entry.key);
            let bytes = zerocopy::transmute!(RawIndex::new(key, block)?);
            parents.push(Entry { key, bytes });
            emit(block, node);
        }
        entries = parents;
        depth += 1;
    }
    let mut root = [0; ROOT_BYTES];
    fill_node(&mut root, depth, &entries)?;
    Ok(root)
}

/// The extents of the runs as entries of leaves.
fn leaf_entries(runs: impl IntoIterator<Item = MappedRun>) -> Result<Vec<Entry>, ExtentEditError> {
    let runs = runs.into_iter();
    let mut entries: Vec<Entry> = Vec::with_capacity(runs.size_hint().0);
    let mut end = LogicalBlock(0);
    for run in runs {
        debug_assert!(end <= run.logical, "runs are sorted");
        let mut done = 0;
        while done < run.blocks {
            let blocks = (run.blocks - done).min(MAX_WRITTEN_BLOCKS.into());
            let logical = run.logical.0.checked_add(done);
            let logical = logical.ok_or(ExtentEditError::Logical {
                logical: run.logical,
            })?;
            let extent = Extent {
                logical: LogicalBlock(logical),
                physical: PhysBlock(run.physical.0 + u64::from(done)),
                blocks,
                state: ExtentState::Written,
            };
            entries.push(Entry {
                key: extent.logical,
                bytes: zerocopy::transmute!(RawExtent::try_from(&extent)?),
            });
            end = extent.logical_end();
            done += blocks;
        }
    }
    Ok(entries)
}

/// Fills an `i_block` or a block with a node.
fn fill_node(node: &mut [u8], depth: u16, entries: &[Entry]) -> Result<(), ExtentEditError> {
    init_node(node, depth)?;
    if let Ok((header, _)) = RawHeader::mut_from_prefix(node) {
        header.eh_entries = low16(entries.len() as u64);
    }
    for (index, entry) in entries.iter().enumerate() {
        put(node, HEADER_BYTES + index * ENTRY_BYTES, &entry.bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::extent::{Child, LOGICAL_END, Node, check_node, check_root};

    const PHYSICAL: std::ops::Range<PhysBlock> = PhysBlock(1)..PhysBlock(1 << 40);

    /// All extents below a node, each node checked as a reader checks it.
    fn extents_below(
        node: Node<'_>,
        end: LogicalBlock,
        blocks: &BTreeMap<PhysBlock, Vec<u8>>,
        found: &mut Vec<Extent>,
    ) {
        match node {
            Node::Leaf(leaf) => found.extend(leaf.iter()),
            Node::Inner(inner) => {
                for position in 0..inner.len() {
                    let child: Child = inner.get(position, end).unwrap();
                    let bytes = &blocks[&child.block];
                    check_node(bytes, &child, &PHYSICAL, None).unwrap();
                    let node = Node::parse(bytes).unwrap();
                    extents_below(node, child.logical.end, blocks, found);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_built_tree_is_sound_and_holds_the_runs(
            gaps_and_lengths in proptest::collection::vec((0u32..3, 1u32..70_000), 0..900),
        ) {
            let size = BlockSize::from_log(0).unwrap();
            let (mut logical, mut physical) = (0, 100_000);
            let mut runs = Vec::new();
            for (gap, blocks) in gaps_and_lengths {
                logical += gap;
                runs.push(MappedRun {
                    logical: LogicalBlock(logical),
                    physical: PhysBlock(physical),
                    blocks,
                });
                logical += blocks;
                physical += u64::from(blocks) + 7;
            }
            let needed = count_nodes(runs.iter().copied(), size);
            let nodes: Vec<_> = (1..=needed as u64).map(PhysBlock).collect();
            let mut blocks = BTreeMap::new();
            let root = build(runs.iter().copied(), &nodes, size, None, &mut |block, bytes| {
                blocks.insert(block, bytes);
            });
            let root = root.unwrap();
            prop_assert_eq!(blocks.len(), needed);
            check_root(&root, &PHYSICAL).unwrap();
            let mut found = Vec::new();
            extents_below(Node::parse(&root).unwrap(), LOGICAL_END, &blocks, &mut found);
            let mut rest = found.into_iter();
            for run in runs {
                let mut done = 0;
                while done < run.blocks {
                    let extent = rest.next().unwrap();
                    prop_assert_eq!(extent.logical.0, run.logical.0 + done);
                    prop_assert_eq!(extent.physical.0, run.physical.0 + u64::from(done));
                    done += extent.blocks;
                }
                prop_assert_eq!(done, run.blocks);
            }
            prop_assert_eq!(rest.next(), None);
        }
    }

    #[test]
    fn too_few_nodes_are_refused_before_anything_is_emitted() {
        let runs = (0..5).map(|index| MappedRun {
            logical: LogicalBlock(2 * index),
            physical: PhysBlock(100 + u64::from(index)),
            blocks: 1,
        });
        let size = BlockSize::from_log(2).unwrap();
        let built = build(runs, &[], size, None, &mut |_, _| panic!("a node"));
        assert_eq!(built, Err(ExtentEditError::NewNodes { needed: 1 }));
    }
}
