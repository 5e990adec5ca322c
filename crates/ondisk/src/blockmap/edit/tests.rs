//! **Purpose.** Tests of map changes against a model of single blocks.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::{check_block, check_root, logical_end};
use super::*;
use crate::oracle::Image;

/// The number of the first indirect block of the maps; data blocks have lower numbers.
const NODES_FROM: u64 = 1 << 31;
const PHYSICAL: Range<PhysBlock> = PhysBlock(1)..PhysBlock(1 << 32);

/// A map in memory.
struct Map {
    root: [u8; 60],
    nodes: BTreeMap<u64, Vec<u8>>,
    next: u64,
    block_size: BlockSize,
}

impl Map {
    fn new(block_size: BlockSize) -> Self {
        Self {
            root: [0; 60],
            nodes: BTreeMap::new(),
            next: NODES_FROM,
            block_size,
        }
    }

    fn bytes(&mut self, at: Option<u64>) -> &mut [u8] {
        match at {
            None => &mut self.root,
            Some(at) => self.nodes.get_mut(&at).unwrap(),
        }
    }

    /// Maps a block; returns the number of new indirect blocks.
    fn set(&mut self, logical: LogicalBlock, physical: u64) -> usize {
        let path = Path::to(logical, self.block_size).unwrap();
        let (&last, above) = path.slots().split_last().unwrap();
        let (mut at, mut planned, before) = (None, None, self.nodes.len());
        for (level, &slot) in above.iter().enumerate() {
            let below = super::super::pointer(self.bytes(at), slot).map(|block| block.0);
            at = Some(below.unwrap_or_else(|| {
                planned.get_or_insert(path.new_blocks_from(level));
                let new = self.next;
                self.next += 1;
                assert_eq!(set_pointer(self.bytes(at), slot, PhysBlock(new)), Ok(None));
                self.nodes.insert(new, vec![0; self.block_size.bytes()]);
                new
            }));
        }
        set_pointer(self.bytes(at), last, PhysBlock(physical)).unwrap();
        let made = self.nodes.len() - before;
        assert_eq!(planned.unwrap_or(0), made);
        made
    }

    /// Unmaps a range; returns the data blocks that were mapped there.
    fn remove(&mut self, range: &Range<LogicalBlock>) -> BTreeSet<u64> {
        let mut freed = BTreeSet::new();
        let all: Vec<_> = root_branches(&self.root, self.block_size, range.clone()).collect();
        for branch in all {
            if self.cut(&branch, range, &mut freed) {
                let was = clear_pointer(&mut self.root, branch.slot);
                assert_eq!(was, Ok(Some(branch.block)));
            }
        }
        freed
    }

    /// Frees the part of a branch in `range`; returns whether nothing is left of it.
    fn cut(
        &mut self,
        branch: &Branch,
        range: &Range<LogicalBlock>,
        freed: &mut BTreeSet<u64>,
    ) -> bool {
        if branch.levels == 0 {
            assert!(branch.is_within(range));
            freed.insert(branch.block.0);
            return true;
        }
        let bytes = self.nodes[&branch.block.0].clone();
        for below in branches(&bytes, branch, self.block_size, range.clone()) {
            if self.cut(&below, range, freed) {
                clear_pointer(self.bytes(Some(branch.block.0)), below.slot).unwrap();
            }
        }
        let gone = is_empty(&self.nodes[&branch.block.0]);
        assert!(gone || !branch.is_within(range));
        if gone {
            self.nodes.remove(&branch.block.0);
        }
        gone
    }

    /// All mapped blocks, found by paths instead of branches.
    fn all(&self) -> BTreeMap<u32, u64> {
        check_root(&self.root, &PHYSICAL).unwrap();
        let mut found = BTreeMap::new();
        let mut nodes = 0;
        let everything = LogicalBlock(0)..LogicalBlock(u32::MAX);
        let mut open: Vec<_> =
            root_branches(&self.root, self.block_size, everything.clone()).collect();
        while let Some(branch) = open.pop() {
            if branch.levels == 0 {
                found.insert(branch.logical.start.0, branch.block.0);
                let path = Path::to(branch.logical.start, self.block_size).unwrap();
                assert_eq!(path.slots().last(), Some(&branch.slot));
                continue;
            }
            let bytes = &self.nodes[&branch.block.0];
            nodes += 1;
            check_block(bytes, self.block_size, &PHYSICAL).unwrap();
            open.extend(branches(
                bytes,
                &branch,
                self.block_size,
                everything.clone(),
            ));
        }
        assert_eq!(nodes, self.nodes.len(), "unreferenced blocks");
        found
    }
}

/// Logical blocks near the borders of all parts of a map, and arbitrary ones.
fn logical(log: u32) -> impl Strategy<Value = u32> {
    let p = 1_u64 << (log + 8);
    let end = logical_end(BlockSize::from_log(log).unwrap()).0;
    let near = move |border: u64, off: u64| {
        u32::try_from((border + off).saturating_sub(3))
            .unwrap_or(u32::MAX)
            .min(end - 1)
    };
    prop_oneof![
        (
            prop_oneof![Just(3), Just(12), Just(12 + p), Just(12 + p + p * p)],
            0..9_u64
        )
            .prop_map(move |(border, off)| near(border, off)),
        0..end,
    ]
}

fn maps() -> impl Strategy<Value = (u32, Vec<u32>, Vec<(u32, u32)>)> {
    (0..7_u32).prop_flat_map(|log| {
        let cuts = proptest::collection::vec((logical(log), logical(log)), 1..6);
        (
            Just(log),
            proptest::collection::vec(logical(log), 1..40),
            cuts,
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn maps_follow_the_model((log, mapped, cuts) in maps()) {
        let mut map = Map::new(BlockSize::from_log(log).unwrap());
        let mut model = BTreeMap::new();
        for (physical, &logical) in (100..).zip(&mapped) {
            map.set(LogicalBlock(logical), physical);
            model.insert(logical, physical);
        }
        prop_assert_eq!(&map.all(), &model);
        for (a, b) in cuts {
            let range = a.min(b)..a.max(b);
            let freed = map.remove(&(LogicalBlock(range.start)..LogicalBlock(range.end)));
            let expected = model.range(range.clone()).map(|(_, physical)| *physical).collect();
            prop_assert_eq!(freed, expected);
            model.retain(|logical, _| !range.contains(logical));
            prop_assert_eq!(&map.all(), &model);
        }
        map.remove(&(LogicalBlock(0)..LogicalBlock(u32::MAX)));
        prop_assert_eq!((map.root, map.nodes.len()), ([0; 60], 0));
    }
}

#[test]
fn runs_are_set_completely_or_not_at_all() {
    let mut root = [0; 60];
    set_run(&mut root, 3, PhysBlock(100), 9).unwrap();
    let run = super::super::run(&root, 3, 99).unwrap();
    assert_eq!((run.physical, run.pointers), (Some(PhysBlock(100)), 9));
    let before = root;
    let error = set_run(&mut root, 14, PhysBlock(7), 2).unwrap_err();
    assert_eq!(error, BlockMapEditError::Slot { slot: 14 });
    let block = PhysBlock(u32::MAX.into());
    let error = set_run(&mut root, 0, block, 2).unwrap_err();
    assert_eq!(error, BlockMapEditError::Physical { block });
    assert_eq!(
        clear_pointer(&mut root, 15),
        Err(BlockMapEditError::Slot { slot: 15 })
    );
    assert_eq!(root, before);
    set_run(&mut root, 0, block, 1).unwrap();
    assert_eq!(clear_pointer(&mut root, 0), Ok(Some(block)));
    assert_eq!(clear_pointer(&mut root, 0), Ok(None));
    assert_eq!(root, before);
}

/// Punches a hole into a map that mke2fs made, and fills it again; e2fsck accepts the result.
#[test]
fn e2fsprogs_read_a_map_changed_here() {
    let Some(image) = Image::of_file(1024, "^extent,^64bit", &vec![7; 600 << 10]) else {
        return;
    };
    let nr = image.inode_nr("/file");
    let (mut inode, _) = image.inode(nr);
    let mut root = [0; 60];
    root.copy_from_slice(&inode[0x28..0x64]);
    let mut map = Map::new(BlockSize::from_log(0).unwrap());
    map.root = root;
    let range = LogicalBlock(5)..LogicalBlock(500);
    let everything = LogicalBlock(0)..LogicalBlock(u32::MAX);
    let mut open: Vec<_> = root_branches(&root, map.block_size, everything.clone()).collect();
    while let Some(branch) = open.pop().filter(|_| map.nodes.len() < 99) {
        if branch.levels > 0 {
            let bytes = image.block(branch.block);
            open.extend(branches(
                &bytes,
                &branch,
                map.block_size,
                everything.clone(),
            ));
            map.nodes.insert(branch.block.0, bytes);
        }
    }
    assert_eq!(
        map.nodes.len(),
        4,
        "one indirect block, one double one with two below it"
    );
    let before = map.all();
    let nodes: Vec<u64> = map.nodes.keys().copied().collect();
    assert_eq!(map.remove(&range).len(), 495);
    let gone: Vec<_> = nodes
        .iter()
        .filter(|at| !map.nodes.contains_key(at))
        .collect();
    assert_eq!(gone.len(), 1, "the indirect block");
    map.next = *gone[0];
    let made = before
        .range(5..500)
        .map(|(&at, &to)| map.set(LogicalBlock(at), to))
        .sum::<usize>();
    assert_eq!(made, 1);
    assert_eq!(map.all(), before);
    inode[0x28..0x64].copy_from_slice(&map.root);
    image.write_inode(nr, &inode);
    for (&at, bytes) in &map.nodes {
        image.write_block(PhysBlock(at), bytes);
    }
    for logical in [0, 11, 12, 267, 268, 523, 524, 599] {
        let expected = before.get(&logical).map(|&physical| PhysBlock(physical));
        assert_eq!(image.map(nr, LogicalBlock(logical)), expected);
    }
    assert_eq!(image.fsck_problems(), "");
}
