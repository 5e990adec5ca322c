//! **Purpose.** Tests of extent trees.

use proptest::prelude::*;

use super::*;
use crate::checksum::{ChecksumSeed, InodeGeneration};
use crate::oracle::Image;
use crate::types::InodeNr;

const BLOCKS: Range<PhysBlock> = PhysBlock(1)..PhysBlock(1 << 40);

fn seed() -> InodeSeed {
    ChecksumSeed::from_stored(0x1234_5678).for_inode(InodeNr(12), InodeGeneration(7))
}

/// A node of `bytes` bytes with the given entries (logical, length field, physical).
fn node(bytes: usize, depth: u16, entries: &[(u32, u16, u64)]) -> Vec<u8> {
    let header = RawHeader {
        eh_magic: MAGIC.into(),
        eh_entries: u16::try_from(entries.len()).unwrap().into(),
        eh_max: u16::try_from((bytes - 12) / 12).unwrap().into(),
        eh_depth: depth.into(),
        eh_generation: 0.into(),
    };
    let mut out = header.as_bytes().to_vec();
    for &(logical, len, physical) in entries {
        let (hi, lo) = (
            u16::try_from(physical >> 32).unwrap(),
            physical & 0xffff_ffff,
        );
        let lo = u32::try_from(lo).unwrap();
        if depth == 0 {
            let raw = RawExtent {
                ee_block: logical.into(),
                ee_len: len.into(),
                ee_start_hi: hi.into(),
                ee_start_lo: lo.into(),
            };
            out.extend(raw.as_bytes());
        } else {
            let raw = RawIndex {
                ei_block: logical.into(),
                ei_leaf_lo: lo.into(),
                ei_leaf_hi: hi.into(),
                ei_unused: 0.into(),
            };
            out.extend(raw.as_bytes());
        }
    }
    out.resize(bytes, 0);
    out
}

fn child(logical: Range<u32>, depth: u16) -> Child {
    Child {
        block: PhysBlock(9),
        logical: LogicalBlock(logical.start)..LogicalBlock(logical.end),
        depth,
    }
}

fn leaf(bytes: &[u8]) -> Leaf<'_> {
    match Node::parse(bytes).unwrap() {
        Node::Leaf(leaf) => leaf,
        Node::Inner(_) => panic!("a leaf was built"),
    }
}

fn check(bytes: &[u8]) -> Result<(), ExtentError> {
    check_node(bytes, &child(0..u32::MAX, 0), &BLOCKS, None)
}

#[test]
fn lengths_tell_written_from_unwritten() {
    let bytes = node(
        60,
        0,
        &[(0, 32768, 10), (40_000, 32769, 1 << 33), (80_000, 65535, 7)],
    );
    check_root(&bytes, &BLOCKS).unwrap();
    let found: Vec<_> = leaf(&bytes).iter().map(|e| (e.blocks, e.state)).collect();
    let expected = [
        (32768, ExtentState::Written),
        (1, ExtentState::Unwritten),
        (32767, ExtentState::Unwritten),
    ];
    assert_eq!(found, expected);
    assert_eq!(leaf(&bytes).get(1).unwrap().physical, PhysBlock(1 << 33));
}

#[test]
fn find_returns_the_covering_extent_or_the_next() {
    let bytes = node(1024, 0, &[(5, 3, 100), (20, 2, 200)]);
    let starts = |at| {
        leaf(&bytes)
            .find(LogicalBlock(at))
            .map(|extent| extent.logical.0)
    };
    assert_eq!(starts(0), Some(5));
    assert_eq!(starts(7), Some(5));
    assert_eq!(starts(8), Some(20));
    assert_eq!(starts(21), Some(20));
    assert_eq!(starts(22), None);
    let extent = leaf(&bytes).find(LogicalBlock(6)).unwrap();
    assert_eq!(extent.map(LogicalBlock(6)), Some(PhysBlock(101)));
    assert_eq!(extent.map(LogicalBlock(8)), None);
}

#[test]
fn children_cover_the_range_without_gaps() {
    let bytes = node(60, 2, &[(0, 0, 50), (100, 0, 51), (300, 0, 1 << 40)]);
    let physical = PhysBlock(0)..PhysBlock((1 << 40) + 1);
    check_root(&bytes, &physical).unwrap();
    let Node::Inner(inner) = Node::parse(&bytes).unwrap() else {
        panic!("an inner node")
    };
    let of = |at| inner.find(LogicalBlock(at), LOGICAL_END).unwrap();
    assert_eq!(
        of(0),
        Child {
            block: PhysBlock(50),
            ..child(0..100, 1)
        }
    );
    assert_eq!(
        of(299),
        Child {
            block: PhysBlock(51),
            ..child(100..300, 1)
        }
    );
    assert_eq!(
        of(u32::MAX),
        Child {
            block: PhysBlock(1 << 40),
            ..child(300..u32::MAX, 1)
        }
    );
}

#[test]
fn a_block_in_front_of_the_first_key_goes_to_the_first_child() {
    let bytes = node(60, 1, &[(10, 0, 50), (100, 0, 51)]);
    let Node::Inner(inner) = Node::parse(&bytes).unwrap() else {
        panic!("an inner node")
    };
    assert_eq!(
        inner.find(LogicalBlock(3), LOGICAL_END).unwrap().block,
        PhysBlock(50)
    );
}

#[test]
fn the_checksum_covers_the_whole_node() {
    let expected = child(0..u32::MAX, 0);
    for size in [1024, 2048, 4096, 65536] {
        let mut bytes = node(size, 0, &[(0, 1, 10)]);
        seal(&mut bytes, seed()).unwrap();
        check_node(&bytes, &expected, &BLOCKS, Some(seed())).unwrap();
        let last_covered = 12 + (size - 12) / 12 * 12 - 1;
        bytes[last_covered] ^= 1;
        let error = check_node(&bytes, &expected, &BLOCKS, Some(seed())).unwrap_err();
        assert!(matches!(error, ExtentError::Checksum(_)), "{error}");
    }
}

#[test]
fn corrupt_headers_are_named() {
    let good = node(1024, 0, &[(0, 1, 10)]);
    let with = |at: usize, value: u16| {
        let mut bytes = good.clone();
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    assert_eq!(check(&with(0, 1)), Err(ExtentError::Magic { found: 1 }));
    assert_eq!(
        check(&with(2, 85)),
        Err(ExtentError::TooManyEntries { found: 85, max: 84 })
    );
    assert_eq!(
        check(&with(4, 85)),
        Err(ExtentError::Max {
            found: 85,
            capacity: 84
        })
    );
    assert_eq!(
        check(&with(4, 0)),
        Err(ExtentError::Max {
            found: 0,
            capacity: 84
        })
    );
    assert_eq!(
        check(&with(6, 3)),
        Err(ExtentError::Depth {
            found: 3,
            expected: 0
        })
    );
    assert_eq!(
        check(&good[..20]),
        Err(ExtentError::TooShort {
            found: 20,
            expected: 24
        })
    );
    let deep = node(60, 6, &[(0, 0, 10)]);
    assert_eq!(
        check_root(&deep, &BLOCKS),
        Err(ExtentError::TooDeep { found: 6 })
    );
    let empty = node(60, 1, &[]);
    assert_eq!(
        check_root(&empty, &BLOCKS),
        Err(ExtentError::EmptyInner { depth: 1 })
    );
    check_root(&node(60, 0, &[]), &BLOCKS).unwrap();
}

#[test]
fn corrupt_entries_are_named() {
    let of = |entries: &[(u32, u16, u64)]| check(&node(1024, 0, entries)).unwrap_err();
    let order = ExtentError::Order {
        entry: 1,
        found: LogicalBlock(1),
        expected: LogicalBlock(2),
    };
    assert_eq!(of(&[(0, 2, 10), (1, 1, 20)]), order);
    assert_eq!(of(&[(0, 0, 10)]), ExtentError::Empty { entry: 0 });
    assert!(matches!(
        of(&[(0, 1, 0)]),
        ExtentError::Physical {
            first: 0,
            end: 1,
            ..
        }
    ));
    assert!(matches!(
        of(&[(0, 2, (1 << 40) - 1)]),
        ExtentError::Physical { .. }
    ));
    let bytes = node(1024, 0, &[(10, 32768, 10), (u32::MAX - 1, 2, 10)]);
    assert_eq!(
        check_node(&bytes, &child(10..u32::MAX, 0), &BLOCKS, None),
        Err(ExtentError::LogicalEnd {
            entry: 1,
            found: 1 << 32,
            expected: LOGICAL_END
        })
    );
    assert_eq!(
        check_node(&bytes, &child(9..u32::MAX, 0), &BLOCKS, None),
        Err(ExtentError::FirstKey {
            found: LogicalBlock(10),
            expected: LogicalBlock(9)
        })
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        entries in 0..20u16,
        depth in 0..7u16,
        at: u32,
    ) {
        if let Ok((header, _)) = RawHeader::mut_from_prefix(&mut bytes) {
            header.eh_magic = MAGIC.into();
            header.eh_entries = entries.into();
            header.eh_max = 20.into();
            header.eh_depth = depth.into();
        }
        let _ = check_root(&bytes, &BLOCKS);
        let _ = check_node(&bytes, &child(at..u32::MAX, depth), &BLOCKS, Some(seed()));
        let _ = seal(&mut bytes, seed());
        match Node::parse(&bytes) {
            Ok(Node::Leaf(leaf)) => {
                let _ = leaf.find(LogicalBlock(at));
            }
            Ok(Node::Inner(inner)) => {
                let _ = inner.find(LogicalBlock(at), LOGICAL_END);
            }
            Err(_) => {}
        }
    }

    #[test]
    fn search_equals_a_linear_scan(
        gaps in proptest::collection::vec((0..5u32, 1..5u16), 0..80),
        at in 0..500u32,
    ) {
        let mut next = 0;
        let entries: Vec<_> = gaps
            .iter()
            .map(|&(gap, len)| {
                let first = next + gap;
                next = first + u32::from(len);
                (first, len, 1000 + u64::from(first))
            })
            .collect();
        let bytes = node(1024, 0, &entries);
        let start = entries.first().map_or(0, |entry| entry.0);
        prop_assert_eq!(check_node(&bytes, &child(start..u32::MAX, 0), &BLOCKS, None), Ok(()));
        let scanned = leaf(&bytes).iter().find(|extent| extent.logical_end().0 > at);
        prop_assert_eq!(leaf(&bytes).find(LogicalBlock(at)), scanned);

        let keys: Vec<_> = entries.iter().map(|&(first, _, at)| (first, 0, at)).collect();
        let bytes = node(1024, 1, &keys);
        let Node::Inner(inner) = Node::parse(&bytes).unwrap() else { panic!("an inner node") };
        let scanned = (0..inner.len())
            .filter_map(|position| inner.get(position, LOGICAL_END))
            .rfind(|child| child.logical.start.0 <= at)
            .or_else(|| inner.get(0, LOGICAL_END));
        prop_assert_eq!(inner.find(LogicalBlock(at), LOGICAL_END), scanned);
    }
}

/// Checks every node and every block of a file with 900 extents that mke2fs made, three levels
/// deep.
#[test]
fn a_tree_made_by_mke2fs() {
    use std::os::unix::fs::FileExt as _;
    let tree = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(tree.path().join("file")).unwrap();
    for block in 0..900 {
        file.write_all_at(b"data", block * 8192).unwrap();
    }
    let args = ["-b", "1024", "-I", "256", "-O", "metadata_csum"];
    let Some(image) = Image::make(&args, tree.path(), 32) else {
        return;
    };
    let nr = image.inode_nr("/file");
    let (raw, seed) = image.inode(nr);
    let i_block = &raw[0x28..0x28 + ROOT_BYTES];
    let physical = PhysBlock(1)..PhysBlock(32 << 10);
    check_root(i_block, &physical).unwrap();
    let mut nodes = vec![(i_block.to_vec(), LOGICAL_END)];
    let (mut deepest, mut extents) = (0, Vec::new());
    while let Some((bytes, end)) = nodes.pop() {
        let node = Node::parse(&bytes).unwrap();
        deepest = deepest.max(node.depth());
        match node {
            Node::Leaf(leaf) => extents.extend(leaf.iter()),
            Node::Inner(inner) => {
                for child in (0..inner.len()).filter_map(|position| inner.get(position, end)) {
                    let block = image.block(child.block);
                    check_node(&block, &child, &physical, Some(seed)).unwrap();
                    nodes.push((block, child.logical.end));
                }
            }
        }
    }
    assert_eq!(deepest, 2);
    extents.sort_by_key(|extent| extent.logical);
    assert_eq!(extents.len(), 900);
    let all = extents.iter().enumerate();
    for (position, extent) in all.clone() {
        assert_eq!(
            (extent.logical.0 as usize, extent.blocks >= 1),
            (position * 8, true)
        );
    }
    for (_, extent) in all.step_by(97) {
        assert_eq!(image.map(nr, extent.logical), extent.map(extent.logical));
    }
}
