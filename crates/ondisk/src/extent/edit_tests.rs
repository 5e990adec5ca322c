//! **Purpose.** Tests of tree changes against a model of single blocks; after each step every node
//! passes the checks of a reader.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::checksum::{ChecksumSeed, InodeGeneration};
use crate::oracle::Image;
use crate::types::InodeNr;

const PHYSICAL: Range<PhysBlock> = PhysBlock(1)..PhysBlock(1 << 47);
/// The number of the first block for nodes; data blocks have lower numbers.
const NODES_FROM: u64 = 1 << 40;

/// The mapping of a logical block.
type Model = BTreeMap<u32, (u64, ExtentState)>;

/// A tree in memory.
struct Tree {
    root: [u8; ROOT_BYTES],
    nodes: BTreeMap<u64, Vec<u8>>,
    next: u64,
    node_bytes: usize,
}

fn blocks(range: Range<u32>) -> Range<LogicalBlock> {
    LogicalBlock(range.start)..LogicalBlock(range.end)
}

fn extent(logical: u32, physical: u64, blocks: u32, state: ExtentState) -> Extent {
    Extent {
        logical: LogicalBlock(logical),
        physical: PhysBlock(physical),
        blocks,
        state,
    }
}

impl Tree {
    fn new(node_bytes: usize) -> Self {
        let mut root = [0xff; ROOT_BYTES];
        init_root(&mut root);
        Self {
            root,
            nodes: BTreeMap::new(),
            next: NODES_FROM,
            node_bytes,
        }
    }

    /// The blocks of the nodes on the path to `logical`, and the positions of the children on it.
    fn way(&self, logical: LogicalBlock) -> (Vec<u64>, Vec<usize>) {
        let (mut at, mut positions) = (Vec::new(), Vec::new());
        let mut node = Node::parse(&self.root).unwrap();
        while let Node::Inner(inner) = node {
            let position = inner.position(logical);
            let child = inner.get(position, LOGICAL_END).unwrap();
            at.push(child.block.0);
            positions.push(position);
            node = Node::parse(&self.nodes[&child.block.0]).unwrap();
        }
        positions.push(0);
        (at, positions)
    }

    /// Calls `change` with the path to `logical`.
    fn on_path<T>(
        &mut self,
        logical: LogicalBlock,
        change: impl FnOnce(&mut [Step<'_>]) -> T,
    ) -> (T, Vec<u64>) {
        let (at, positions) = self.way(logical);
        let mut taken: Vec<_> = at.iter().map(|at| self.nodes.remove(at).unwrap()).collect();
        let all = std::iter::once(&mut self.root[..]).chain(taken.iter_mut().map(|n| &mut n[..]));
        let mut steps: Vec<_> = all
            .zip(positions)
            .map(|(bytes, position)| Step { bytes, position })
            .collect();
        let result = change(&mut steps);
        self.nodes.extend(at.iter().copied().zip(taken));
        (result, at)
    }

    /// Calls `change` with the path to `logical` and the new nodes that `entries` more entries may
    /// need; keeps the nodes that were used.
    fn adding(
        &mut self,
        logical: LogicalBlock,
        entries: u16,
        change: impl FnOnce(&mut [Step<'_>], &mut [NewNode<'_>]) -> Result<usize, ExtentEditError>,
    ) -> Result<(), ExtentEditError> {
        let mut fresh = vec![vec![0xee; self.node_bytes]; 20];
        let first = self.next;
        let (result, _) = self.on_path(logical, |path| {
            let fills = path.iter().map(|step| Fill::of(step.bytes).unwrap());
            let most: usize = new_nodes(&fills.collect::<Vec<_>>(), entries).into();
            let mut new: Vec<_> = (first..)
                .zip(&mut fresh[..most])
                .map(|(at, bytes)| NewNode {
                    at: PhysBlock(at),
                    bytes,
                })
                .collect();
            let used = change(path, &mut new)?;
            assert!(
                entries > 1 || used == 0 || used == most,
                "the plan is exact"
            );
            Ok::<_, ExtentEditError>(used)
        });
        let used = result?;
        self.nodes.extend((first..).zip(fresh).take(used));
        self.next += used as u64;
        Ok(())
    }

    fn insert(&mut self, extent: Extent) -> Result<(), ExtentEditError> {
        self.adding(extent.logical, 1, |path, new| insert(path, extent, new))
    }

    /// The end of the range of the leaf for `logical`.
    fn leaf_end(&self, logical: LogicalBlock) -> LogicalBlock {
        let mut end = LOGICAL_END;
        let mut node = Node::parse(&self.root).unwrap();
        while let Node::Inner(inner) = node {
            let child = inner.find(logical, end).unwrap();
            end = child.logical.end;
            node = Node::parse(&self.nodes[&child.block.0]).unwrap();
        }
        end
    }

    /// Changes each leaf with blocks in `range`.
    fn on_leaves(
        &mut self,
        range: Range<LogicalBlock>,
        mut change: impl FnMut(&mut LeafMut<'_>) -> Result<ForParent, ExtentEditError>,
    ) {
        let mut from = range.start;
        while from < range.end {
            let next_leaf = self.leaf_end(from);
            let (result, at) = self.on_path(from, |path| {
                let (last, above) = path.split_last_mut().unwrap();
                let NodeMut::Leaf(mut leaf) = NodeMut::parse(last.bytes).unwrap() else {
                    panic!("a path ends in a leaf");
                };
                Ok(carry_up(above, change(&mut leaf)?).unwrap())
            });
            match result {
                Ok(gone) => {
                    for at in at.iter().rev().take(gone) {
                        self.nodes.remove(at);
                    }
                    from = next_leaf;
                }
                Err(ExtentEditError::Full { .. }) => {
                    self.adding(from, 2, |path, new| make_room(path, 2, new))
                        .unwrap();
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn remove(&mut self, range: Range<LogicalBlock>) -> Vec<Extent> {
        let mut pieces = Vec::new();
        self.on_leaves(range.clone(), |leaf| {
            leaf.remove(range.clone(), |piece| pieces.push(piece))
        });
        self.shrink();
        pieces
    }

    fn set_state(&mut self, range: Range<LogicalBlock>, state: ExtentState) {
        self.on_leaves(range.clone(), |leaf| {
            leaf.set_state(range.clone(), state)?;
            Ok(ForParent::Unchanged)
        });
    }

    /// Removes levels that are not needed.
    fn shrink(&mut self) {
        loop {
            let Node::Inner(inner) = Node::parse(&self.root).unwrap() else {
                return;
            };
            let child = inner.get(0, LOGICAL_END).unwrap().block.0;
            let before = self.root;
            if shrink(&mut self.root, &self.nodes[&child]).is_err() {
                assert_eq!(before, self.root, "a refused change changes nothing");
                return;
            }
            self.nodes.remove(&child);
        }
    }

    /// Shifts every key and extent at or after `from`, node by node.
    fn shift(&mut self, from: LogicalBlock, by: Shift) {
        if let Shift::Right(_) = by {
            self.on_leaves(from..LogicalBlock(from.0 + 1), |leaf| {
                leaf.cut_at(from)?;
                Ok(ForParent::Unchanged)
            });
        }
        for bytes in self
            .nodes
            .values_mut()
            .map(|node| &mut node[..])
            .chain([&mut self.root[..]])
        {
            match NodeMut::parse(bytes).unwrap() {
                NodeMut::Leaf(mut leaf) => {
                    let _keys_move_too = leaf.shift(from, by).unwrap();
                }
                NodeMut::Inner(mut inner) => {
                    let _keys_move_too = inner.shift(from, by).unwrap();
                }
            }
        }
    }

    /// Checks every node as a reader does; returns the extents in order, and the number of nodes.
    fn check(&self) -> (Vec<Extent>, usize) {
        let seed = ChecksumSeed::from_stored(1).for_inode(InodeNr(12), InodeGeneration(0));
        check_root(&self.root, &PHYSICAL).unwrap();
        let (mut extents, mut count) = (Vec::new(), 0);
        let mut open = vec![(self.root.to_vec(), LOGICAL_END)];
        while let Some((bytes, end)) = open.pop() {
            match Node::parse(&bytes).unwrap() {
                Node::Leaf(leaf) => extents.extend(leaf.iter()),
                Node::Inner(inner) => {
                    for child in (0..inner.len()).rev().filter_map(|at| inner.get(at, end)) {
                        let mut block = self.nodes[&child.block.0].clone();
                        seal(&mut block, seed).unwrap();
                        check_node(&block, &child, &PHYSICAL, Some(seed)).unwrap();
                        assert!(Fill::of(&block).unwrap().entries > 0, "no leaf is empty");
                        open.push((block, child.logical.end));
                        count += 1;
                    }
                }
            }
        }
        (extents, count)
    }

    /// Checks the tree, and that it maps the same blocks as the model and refers to all nodes.
    fn agrees_with(&self, model: &Model) {
        let (extents, nodes) = self.check();
        assert_eq!(nodes, self.nodes.len(), "unreferenced nodes");
        let mut found = Model::new();
        for extent in extents {
            for offset in 0..extent.blocks {
                let physical = extent.physical.0 + u64::from(offset);
                found.insert(extent.logical.0 + offset, (physical, extent.state));
            }
        }
        assert_eq!(&found, model);
    }
}

/// One step of a test.
#[derive(Clone, Debug)]
enum Change {
    /// Maps the holes of a range, to consecutive blocks if `near` is set.
    Map(Range<u32>, ExtentState, bool),
    Remove(Range<u32>),
    State(Range<u32>, ExtentState),
    /// Collapses a range of the file.
    Collapse(Range<u32>),
    /// Inserts a range into the file.
    Open(Range<u32>),
}

fn changes() -> impl Strategy<Value = Change> {
    let range = (0..400_u32, 1..40_u32).prop_map(|(start, blocks)| start..start + blocks);
    let state = prop_oneof![Just(ExtentState::Written), Just(ExtentState::Unwritten)];
    prop_oneof![
        4 => (range.clone(), state.clone(), any::<bool>())
            .prop_map(|(range, state, near)| Change::Map(range, state, near)),
        2 => range.clone().prop_map(Change::Remove),
        3 => (range.clone(), state).prop_map(|(range, state)| Change::State(range, state)),
        1 => range.clone().prop_map(Change::Collapse),
        1 => range.prop_map(Change::Open),
    ]
}

/// Makes a change in the tree and in the model. Written and unwritten data alternates between
/// blocks, so that there are many extents.
fn apply(tree: &mut Tree, model: &mut Model, change: Change, fresh: &mut u64) {
    match change {
        Change::Map(range, state, near) => {
            for logical in range.clone().filter(|at| near || at % 2 == 0) {
                if model.contains_key(&logical) {
                    continue;
                }
                *fresh += if near { 1 } else { 2 };
                tree.insert(extent(logical, *fresh, 1, state)).unwrap();
                model.insert(logical, (*fresh, state));
            }
            let there = model
                .range(range)
                .next()
                .map(|(at, &(physical, state))| (*at, physical, state));
            if let Some((at, physical, state)) = there {
                let again = tree.insert(extent(at, physical, 1, state)).unwrap_err();
                assert!(matches!(again, ExtentEditError::Overlap { .. }));
            }
        }
        Change::Remove(range) => {
            let pieces = tree.remove(blocks(range.clone()));
            let mut cut = Model::new();
            for piece in pieces {
                for offset in 0..piece.blocks {
                    let physical = piece.physical.0 + u64::from(offset);
                    cut.insert(piece.logical.0 + offset, (physical, piece.state));
                }
            }
            let gone: Model = model.range(range).map(|(at, to)| (*at, *to)).collect();
            assert_eq!(cut, gone);
            model.retain(|at, _| !gone.contains_key(at));
        }
        Change::State(range, state) => {
            tree.set_state(blocks(range.clone()), state);
            model.range_mut(range).for_each(|(_, to)| to.1 = state);
        }
        Change::Collapse(range) => {
            apply(tree, model, Change::Remove(range.clone()), fresh);
            let by = range.end - range.start;
            tree.shift(LogicalBlock(range.end), Shift::Left(by));
            let moved = model.split_off(&range.end);
            model.extend(moved.into_iter().map(|(at, to)| (at - by, to)));
        }
        Change::Open(range) => {
            let by = range.end - range.start;
            tree.shift(LogicalBlock(range.start), Shift::Right(by));
            let moved = model.split_off(&range.start);
            model.extend(moved.into_iter().map(|(at, to)| (at + by, to)));
        }
    }
    tree.agrees_with(model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn trees_follow_the_model(
        steps in proptest::collection::vec(changes(), 1..30),
        node_bytes in prop_oneof![Just(112_usize), Just(1024)],
    ) {
        let (mut tree, mut model, mut fresh) = (Tree::new(node_bytes), Model::new(), 1000);
        for step in steps {
            apply(&mut tree, &mut model, step, &mut fresh);
        }
        // Removing all extents leaves an empty leaf in the root.
        apply(&mut tree, &mut model, Change::Remove(0..u32::MAX - 1), &mut fresh);
        prop_assert!(tree.nodes.is_empty());
        let mut empty = [0; ROOT_BYTES];
        init_root(&mut empty);
        prop_assert_eq!(Fill::of(&tree.root), Fill::of(&empty));
        prop_assert_eq!(Node::parse(&tree.root).unwrap().depth(), 0);
    }

    #[test]
    fn arbitrary_nodes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 60..140),
        (entries, max, depth) in (0..10_u16, 0..10_u16, 0..3_u16),
        (at, length) in (any::<u32>(), 0..70_000_u32),
        position in 0..12_usize,
        physical in 0..1_u64 << 49,
    ) {
        if let Ok((header, _)) = RawHeader::mut_from_prefix(&mut bytes) {
            header.eh_magic = MAGIC.into();
            header.eh_entries = entries.into();
            header.eh_max = max.into();
            header.eh_depth = depth.into();
        }
        let range = LogicalBlock(at)..LogicalBlock(at.saturating_add(length));
        let mut other = vec![0; 112];
        match NodeMut::parse(&mut bytes) {
            Ok(NodeMut::Leaf(mut leaf)) => {
                let _ = leaf.insert(extent(at, physical, length, ExtentState::Written));
                let _ = leaf.set_state(range.clone(), ExtentState::Unwritten);
                let _ = leaf.set_state(range.clone(), ExtentState::Written);
                let _ = leaf.cut_at(range.end);
                let _ = leaf.shift(range.start, Shift::Right(length));
                let _ = leaf.shift(range.end, Shift::Left(length));
                let _ = leaf.remove(range, |_| {});
                let _ = leaf.split_off(position, &mut other);
            }
            Ok(NodeMut::Inner(mut inner)) => {
                let _ = inner.insert(range.start, PhysBlock(physical));
                let _ = inner.set_key(position, range.end);
                let _ = inner.set_block(position, PhysBlock(physical));
                let _ = inner.shift(range.start, Shift::Right(length));
                let _ = inner.remove(position);
                let _ = inner.split_off(position, &mut other);
            }
            Err(_) => {}
        }
        let mut root = [0; ROOT_BYTES];
        root.copy_from_slice(&bytes[..ROOT_BYTES]);
        let _ = shrink(&mut root, &bytes);
        let _ = grow(&mut root, &mut other, PhysBlock(physical));
        let _ = make_room(&mut [Step { bytes: &mut bytes, position }], 2, &mut []);
    }
}

/// A file written in order has full leaves, as in Linux.
#[test]
fn appends_leave_full_leaves() {
    for node_bytes in [112, 1024, 4096] {
        let mut tree = Tree::new(node_bytes);
        let most = u32::from(capacity(node_bytes));
        let count = most * 6 + 1;
        for at in 0..count {
            tree.insert(extent(
                at * 2,
                u64::from(at) * 3 + 1,
                1,
                ExtentState::Written,
            ))
            .unwrap();
        }
        let (extents, _) = tree.check();
        assert_eq!(extents.len(), count as usize);
        let leaves = tree
            .nodes
            .values()
            .filter(|bytes| Node::parse(bytes).unwrap().depth() == 0);
        assert_eq!(leaves.count(), 7, "six full ones and one with one extent");
    }
}

/// So does a file written backwards.
#[test]
fn prepends_leave_full_leaves() {
    let mut tree = Tree::new(112);
    for at in (0..8 * 6 + 1).rev() {
        tree.insert(extent(
            at * 2,
            u64::from(at) * 3 + 1,
            1,
            ExtentState::Written,
        ))
        .unwrap();
        tree.check();
    }
    let leaves = tree
        .nodes
        .values()
        .filter(|bytes| Node::parse(bytes).unwrap().depth() == 0);
    assert_eq!(leaves.count(), 7);
}

fn root_with(extents: &[Extent]) -> [u8; ROOT_BYTES] {
    let mut root = [0; ROOT_BYTES];
    init_root(&mut root);
    for extent in extents {
        let _ = leaf(&mut root).insert(*extent).unwrap();
    }
    root
}

fn leaf(bytes: &mut [u8]) -> LeafMut<'_> {
    match NodeMut::parse(bytes).unwrap() {
        NodeMut::Leaf(leaf) => leaf,
        NodeMut::Inner(_) => panic!("a leaf was made"),
    }
}

fn all(root: &[u8]) -> Vec<Extent> {
    match Node::parse(root).unwrap() {
        Node::Leaf(leaf) => leaf.iter().collect(),
        Node::Inner(_) => panic!("a leaf was made"),
    }
}

#[test]
fn extents_join_up_to_the_longest() {
    use ExtentState::{Unwritten, Written};
    for (state, most) in [(Written, 32768), (Unwritten, 32767)] {
        let first = extent(0, 100, most - 1, state);
        let next = |blocks| extent(most - 1, 100 + u64::from(most) - 1, blocks, state);
        let root = root_with(&[first, next(1)]);
        assert_eq!(all(&root), [extent(0, 100, most, state)]);
        let root = root_with(&[first, next(2)]);
        assert_eq!(all(&root), [first, next(2)]);
        let error = leaf(&mut root_with(&[]))
            .insert(extent(0, 1, most + 1, state))
            .unwrap_err();
        assert_eq!(error, ExtentEditError::Length { blocks: most + 1 });
    }
    // The extent in between joins both.
    let parts = [
        extent(0, 10, 2, Written),
        extent(5, 15, 2, Written),
        extent(2, 12, 3, Written),
    ];
    assert_eq!(all(&root_with(&parts)), [extent(0, 10, 7, Written)]);
    // Extents with another state or another location on disk stay separate.
    let parts = [
        extent(0, 10, 2, Written),
        extent(2, 12, 2, Unwritten),
        extent(4, 15, 2, Unwritten),
    ];
    assert_eq!(all(&root_with(&parts)), parts);
}

#[test]
fn the_longest_written_extent_becomes_two_unwritten_ones() {
    let mut root = root_with(&[extent(7, 100, 32768, ExtentState::Written)]);
    leaf(&mut root)
        .set_state(blocks(0..u32::MAX), ExtentState::Unwritten)
        .unwrap();
    let unwritten =
        |logical, physical, blocks| extent(logical, physical, blocks, ExtentState::Unwritten);
    let expected = [
        unwritten(7, 100, 32767),
        unwritten(7 + 32767, 100 + 32767, 1),
    ];
    assert_eq!(all(&root), expected);
    leaf(&mut root)
        .set_state(blocks(0..u32::MAX), ExtentState::Written)
        .unwrap();
    assert_eq!(all(&root), [extent(7, 100, 32768, ExtentState::Written)]);
}

#[test]
fn a_full_leaf_accepts_an_extent_that_joins() {
    use ExtentState::{Unwritten, Written};
    let parts = [
        extent(0, 100, 10, Written),
        extent(10, 110, 10, Unwritten),
        extent(30, 200, 10, Unwritten),
        extent(50, 300, 10, Written),
    ];
    let mut root = root_with(&parts);
    leaf(&mut root).set_state(blocks(10..13), Written).unwrap();
    assert_eq!(
        all(&root)[..2],
        [extent(0, 100, 13, Written), extent(13, 113, 7, Unwritten)]
    );
    let _ = leaf(&mut root).insert(extent(60, 310, 5, Written)).unwrap();
    let before = root;
    let full = ExtentEditError::Full { max: 4 };
    assert_eq!(
        leaf(&mut root).set_state(blocks(32..35), Written),
        Err(full.clone())
    );
    assert_eq!(
        leaf(&mut root).remove(blocks(32..35), |_| panic!("refused")),
        Err(full.clone())
    );
    assert_eq!(
        leaf(&mut root).insert(extent(80, 9, 1, Written)),
        Err(full.clone())
    );
    assert_eq!(leaf(&mut root).cut_at(LogicalBlock(35)), Err(full));
    assert_eq!(root, before, "a refused change changes nothing");
}

#[test]
fn shifts_stop_at_mapped_blocks_and_at_the_ends() {
    let end = u32::MAX;
    let parts = [
        extent(10, 100, 5, ExtentState::Written),
        extent(20, 200, 5, ExtentState::Written),
    ];
    let mut root = root_with(&parts);
    let before = root;
    let mut shift = |from, by| leaf(&mut root).shift(LogicalBlock(from), by);
    let overlap = |result| matches!(result, Err(ExtentEditError::Overlap { .. }));
    assert!(
        overlap(shift(12, Shift::Right(1))),
        "the shift begins inside an extent"
    );
    assert!(overlap(shift(20, Shift::Left(6))));
    let logical = LogicalBlock(10);
    assert_eq!(
        shift(0, Shift::Left(11)),
        Err(ExtentEditError::Logical { logical })
    );
    let logical = LogicalBlock(25);
    assert_eq!(
        shift(0, Shift::Right(end - 24)),
        Err(ExtentEditError::Logical { logical })
    );
    assert_eq!(root, before);
    let what = leaf(&mut root)
        .shift(LogicalBlock(0), Shift::Right(end - 25))
        .unwrap();
    assert_eq!(what, ForParent::NewKey(LogicalBlock(end - 15)));
    check_root(&root, &PHYSICAL).unwrap();
}

#[test]
fn plans_of_new_nodes() {
    let fill = |entries, max| Fill { entries, max };
    assert_eq!(new_nodes(&[fill(3, 4)], 1), 0);
    assert_eq!(new_nodes(&[fill(4, 4)], 1), 1);
    assert_eq!(new_nodes(&[fill(4, 4)], 2), 1);
    assert_eq!(new_nodes(&[fill(2, 4), fill(84, 84)], 1), 1);
    assert_eq!(new_nodes(&[fill(4, 4), fill(84, 84)], 1), 2);
    assert_eq!(new_nodes(&[fill(4, 4), fill(83, 84), fill(84, 84)], 1), 1);
    assert_eq!(new_nodes(&[fill(4, 4), fill(84, 84), fill(84, 84)], 1), 3);
    assert_eq!(new_nodes(&[fill(4, 4), fill(84, 84), fill(83, 84)], 2), 3);
}

/// Writes extent nodes to an image; e2fsck and debugfs read them.
#[test]
fn e2fsprogs_read_a_tree_made_here() {
    let Some(image) = Image::of_file(1024, "metadata_csum", &vec![7; 300 << 10]) else {
        return;
    };
    let nr = image.inode_nr("/file");
    let start = image.map(nr, LogicalBlock(0)).unwrap().0;
    assert_eq!(
        image.map(nr, LogicalBlock(299)).unwrap().0,
        start + 299,
        "one run"
    );
    let (mut inode, seed) = image.inode(nr);
    // The file keeps every second block; two others become nodes, and the rest is freed.
    let mut tree = Tree::new(1024);
    for at in (0..250).step_by(2) {
        let state = [ExtentState::Written, ExtentState::Unwritten][at as usize / 2 % 2];
        tree.insert(extent(at, start + u64::from(at), 1, state))
            .unwrap();
    }
    let places: Vec<u64> = (0..tree.nodes.len() as u64)
        .map(|n| start + 251 + 2 * n)
        .collect();
    let NodeMut::Inner(mut root) = NodeMut::parse(&mut tree.root).unwrap() else {
        panic!("125 extents need nodes");
    };
    assert_eq!(root.as_inner().len(), places.len());
    for (position, &at) in places.iter().enumerate() {
        let child = root.as_inner().get(position, LOGICAL_END).unwrap();
        root.set_block(position, PhysBlock(at)).unwrap();
        let mut node = tree.nodes[&child.block.0].clone();
        seal(&mut node, seed).unwrap();
        image.write_block(PhysBlock(at), &node);
    }
    inode[0x28..0x28 + ROOT_BYTES].copy_from_slice(&tree.root);
    let sectors = 2 * (125 + u32::try_from(places.len()).unwrap());
    inode[0x1c..0x20].copy_from_slice(&sectors.to_le_bytes());
    let sb = image.superblock();
    crate::inode::seal(&mut inode, nr, &sb).unwrap();
    image.write_inode(nr, &inode);
    assert_eq!(
        image.map(nr, LogicalBlock(100)),
        Some(PhysBlock(start + 100))
    );
    assert_eq!(image.map(nr, LogicalBlock(101)), None);
    // The only problem may be the freed blocks, which are still set in the bitmap.
    let problems = image.fsck_problems();
    assert!(
        !problems.contains("node") && !problems.contains("extent"),
        "{problems}"
    );
    let freed: usize = 300 - 125 - places.len();
    assert_eq!(problems.matches(" -").count() > 0, freed > 0, "{problems}");
}
