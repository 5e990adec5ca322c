//! **Purpose.** Tests of index blocks.

use proptest::prelude::*;

use super::*;
use crate::checksum::{ChecksumSeed, InodeGeneration};
use crate::dirent::TypeByte;
use crate::dirhash::{CharSign, NameHasher};
use crate::oracle::{Image, le32};
use crate::types::InodeNr;

const END: LogicalBlock = LogicalBlock(1000);

fn seed() -> InodeSeed {
    ChecksumSeed::from_stored(7).for_inode(InodeNr(2), InodeGeneration(0))
}

fn format(seed: Option<InodeSeed>) -> DirFormat {
    DirFormat {
        names: NameForm::Plain,
        type_byte: TypeByte::Present,
        inodes_count: InodeNr(100),
        seed,
    }
}

fn entries(at: usize, bytes: usize, tail: usize, entries: &[(u32, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    let limit = u16::try_from((bytes - at - tail) / 8).unwrap();
    let count = u16::try_from(entries.len()).unwrap();
    for (position, &(hash, block)) in entries.iter().enumerate() {
        if position == 0 {
            out.extend(limit.to_le_bytes());
            out.extend(count.to_le_bytes());
        } else {
            out.extend(hash.to_le_bytes());
        }
        out.extend(block.to_le_bytes());
    }
    out
}

fn root(bytes: usize, format: &DirFormat, levels: u8, of: &[(u32, u32)]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0];
    out.extend([2, 0, 0, 0]);
    out.extend(u16::try_from(bytes - 12).unwrap().to_le_bytes());
    out.extend([2, 2, b'.', b'.', 0, 0]);
    out.extend([0, 0, 0, 0, 1, 8, levels, 0]);
    let tail = if format.seed.is_some() { TAIL_BYTES } else { 0 };
    out.extend(entries(ROOT_ENTRIES_AT, bytes, tail, of));
    out.resize(bytes, 0);
    if let Some(seed) = format.seed {
        seal_root(&mut out, seed).unwrap();
    }
    out
}

fn node(bytes: usize, format: &DirFormat, of: &[(u32, u32)]) -> Vec<u8> {
    let rec_len = crate::dirent::encode_rec_len(bytes, bytes).unwrap();
    let mut out = vec![0, 0, 0, 0];
    out.extend(rec_len.to_le_bytes());
    out.extend([0, 0]);
    let tail = if format.seed.is_some() { TAIL_BYTES } else { 0 };
    out.extend(entries(NODE_ENTRIES_AT, bytes, tail, of));
    out.resize(bytes, 0);
    if let Some(seed) = format.seed {
        seal_node(&mut out, seed).unwrap();
    }
    out
}

const ENTRIES: &[(u32, u32)] = &[(0, 1), (100, 5), (201, 6), (201, 7), (300, 2)];

#[test]
fn roots_and_nodes_of_all_sizes_are_good() {
    for seed in [None, Some(seed())] {
        for bytes in [1024, 4096, 65536] {
            let format = format(seed);
            let root = root(bytes, &format, 1, ENTRIES);
            check_root(&root, &format, IndexLevels::Two, END).unwrap();
            let info = RootInfo {
                algorithm: HashAlgorithm::HalfMd4,
                indirect_levels: 1,
            };
            assert_eq!(root_info(&root), Ok(info));
            assert!(!looks_like_node(&root));
            let node = node(bytes, &format, ENTRIES);
            check_node(&node, &format, END).unwrap();
            assert!(looks_like_node(&node));
            assert_eq!(Index::node(&node).unwrap().len(), ENTRIES.len());
        }
    }
}

#[test]
fn search_and_collisions() {
    let block = node(1024, &format(None), ENTRIES);
    let index = Index::node(&block).unwrap();
    let blocks = |hash| index.block(index.search(hash)).unwrap().0;
    assert_eq!(
        [blocks(0), blocks(98), blocks(100), blocks(200)],
        [1, 1, 5, 5]
    );
    assert_eq!([blocks(202), blocks(300), blocks(u32::MAX)], [7, 2, 2]);
    // Names with hash 200 begin in block 5 and continue in 6 and 7.
    assert!(index.continues(2, 200) && index.continues(3, 200));
    assert!(!index.continues(1, 100) && !index.continues(4, 300) && !index.continues(0, 0));
    assert!(!index.continues(2, 202) && !index.continues(9, 200));
    assert_eq!(
        (index.hash(0), index.hash(1), index.hash(9)),
        (Some(0), Some(100), None)
    );
}

#[test]
fn the_upper_bits_of_a_block_do_not_count() {
    let block = node(1024, &format(None), &[(0, 0xf000_0003)]);
    assert_eq!(Index::node(&block).unwrap().block(0), Some(LogicalBlock(3)));
}

#[test]
fn a_changed_byte_breaks_the_checksum_only_where_it_is_used() {
    let format = format(Some(seed()));
    let mut block = root(1024, &format, 0, ENTRIES);
    block[600] ^= 1;
    check_root(&block, &format, IndexLevels::Two, END).unwrap();
    block[36] ^= 2;
    let error = check_root(&block, &format, IndexLevels::Two, END).unwrap_err();
    assert!(matches!(error, HtreeError::Checksum(_)), "{error}");
}

/// The error for a valid root after one of its bytes was changed.
fn broken_root(at: usize, byte: u8) -> HtreeError {
    let format = format(None);
    let mut block = root(1024, &format, 0, ENTRIES);
    block[at] = byte;
    check_root(&block, &format, IndexLevels::Two, END).unwrap_err()
}

#[test]
fn corrupt_roots_are_named() {
    let with = broken_root;
    let field = |field, found, expected| HtreeError::RootField {
        field,
        found,
        expected,
    };
    let version = |found, expected| HtreeError::HashVersion { found, expected };
    let (name, found, expected) = ("..", 1000, 1012);
    assert!(matches!(with(8, b'x'), HtreeError::Dots(_)));
    assert_eq!(
        with(16, 232),
        HtreeError::DotLength {
            name,
            found,
            expected
        }
    );
    assert_eq!(with(24, 1), field("reserved_zero", 1, 0));
    assert_eq!(with(29, 9), field("info_length", 9, 8));
    assert_eq!(with(31, 1), field("unused_flags & 1", 1, 0));
    assert_eq!(with(28, 4), version(4, "0, 1, 2 or 6"));
    assert_eq!(with(28, 6), version(6, "0, 1 or 2"));
    assert_eq!(with(30, 2), HtreeError::Levels { found: 2, max: 1 });
    let deep = root(1024, &format(None), 2, ENTRIES);
    check_root(&deep, &format(None), IndexLevels::Three, END).unwrap();
}

#[test]
fn corrupt_entries_are_named() {
    let with = broken_root;
    let (entry, limit, last) = (1, 124, 999);
    let count = |found| HtreeError::Count { found, limit };
    let (found, expected) = (9, limit);
    assert_eq!(with(32, 9), HtreeError::Limit { found, expected });
    assert_eq!((with(34, 0), with(34, 125)), (count(0), count(125)));
    let (found, previous) = (201, 202);
    assert_eq!(
        with(40, 202),
        HtreeError::Order {
            entry: 2,
            found,
            previous
        }
    );
    let block = |found| HtreeError::Block { entry, found, last };
    assert_eq!((with(44, 0), with(45, 4)), (block(0), block(1029)));
}

#[test]
fn corrupt_nodes_are_named() {
    let format = format(None);
    let mut block = node(1024, &format, ENTRIES);
    block[0] = 1;
    let expected = 1024;
    let error = HtreeError::NodeRecord {
        inode: 1,
        rec_len: 1024,
        expected,
    };
    assert_eq!(check_node(&block, &format, END), Err(error));
    assert_eq!(
        check_node(&[0; 7], &format, END),
        Err(HtreeError::TooShort { found: 7 })
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        hash: u32,
        shaped: bool,
    ) {
        if shaped && bytes.len() >= 64 {
            let good = root(bytes.len(), &format(None), 0, &[(0, 1)]);
            let at = if hash & 1 == 0 { 34 } else { 24 };
            bytes[..at].copy_from_slice(&good[..at]);
        }
        for seed in [None, Some(seed())] {
            let _ = check_root(&bytes, &format(seed), IndexLevels::Three, END);
            let _ = check_node(&bytes, &format(seed), END);
        }
        let _ = looks_like_node(&bytes);
        let _ = root_info(&bytes);
        for index in [Index::root(&bytes), Index::node(&bytes)].into_iter().flatten() {
            let position = index.search(hash);
            prop_assert!(index.block(position).is_some());
            let _ = index.continues(position + 1, hash);
        }
        let _ = seal_root(&mut bytes, seed());
        let _ = seal_node(&mut bytes, seed());
    }

    #[test]
    fn search_equals_a_linear_scan(
        mut hashes in proptest::collection::vec(0..500u32, 0..100),
        hash in 0..600u32,
    ) {
        hashes.sort_unstable();
        hashes.insert(0, 0);
        let all: Vec<_> = hashes.iter().map(|&hash| (hash, 1)).collect();
        let block = node(1024, &format(None), &all);
        prop_assert_eq!(check_node(&block, &format(None), END), Ok(()));
        let index = Index::node(&block).unwrap();
        let scanned = hashes.iter().rposition(|&lowest| lowest <= hash).unwrap();
        prop_assert_eq!(index.search(hash), scanned);
    }
}

/// A directory of 6 000 names whose tree e2fsck built: every name is in the leaf of its hash.
#[test]
fn a_tree_made_by_e2fsck() {
    let tree = tempfile::tempdir().unwrap();
    for nr in 0..6000 {
        let name = format!("a-file-with-a-name-of-some-length-{nr}");
        std::fs::write(tree.path().join(name), b"").unwrap();
    }
    let args = [
        "-b",
        "1024",
        "-I",
        "256",
        "-N",
        "8000",
        "-O",
        "metadata_csum,dir_index",
    ];
    let Some(image) = Image::make(&args, tree.path(), 64) else {
        return;
    };
    image.e2fsck(&["-fyD"]);
    let superblock = image.bytes(1024, 1024);
    let seed_words = std::array::from_fn(|word| le32(&superblock, 0xEC + 4 * word));
    let (raw, seed) = image.inode(InodeNr::ROOT);
    let format = DirFormat {
        inodes_count: InodeNr(8000),
        ..format(Some(seed))
    };
    let end = LogicalBlock(le32(&raw, 4) / 1024);
    let blocks = image.map_all(InodeNr::ROOT, end);
    let read = |logical: LogicalBlock| image.block(blocks[logical.0 as usize]);

    let root = read(LogicalBlock(0));
    check_root(&root, &format, IndexLevels::Two, end).unwrap();
    let info = root_info(&root).unwrap();
    assert_eq!(info.indirect_levels, 1);
    let chars = if superblock[0x160] & 1 == 1 {
        CharSign::Signed
    } else {
        CharSign::Unsigned
    };
    let hasher = NameHasher::seeded(info.algorithm, chars, seed_words).unwrap();
    let (mut names, root) = (0, Index::root(&root).unwrap());
    for position in 0..root.len() {
        let node = read(root.block(position).unwrap());
        assert!(looks_like_node(&node));
        check_node(&node, &format, end).unwrap();
        let index = Index::node(&node).unwrap();
        let outer_end = root.hash(position + 1).unwrap_or(u32::MAX);
        for inner in 0..index.len() {
            let first = index.hash(inner).unwrap().max(root.hash(position).unwrap()) & !1;
            let end = index.hash(inner + 1).unwrap_or(outer_end);
            let leaf = read(index.block(inner).unwrap());
            format.check_block(&leaf).unwrap();
            for entry in format.entries(&leaf) {
                let hash = hasher.hash(entry.unwrap().name).hash;
                assert!(
                    first <= hash && hash <= end,
                    "{first:#x} {hash:#x} {end:#x}"
                );
                names += 1;
            }
        }
    }
    // The directory lost+found.
    assert_eq!(names, 6001);
}
