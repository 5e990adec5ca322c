//! **Purpose.** Tests with directories in memory that grow from one block to a deep tree.

use std::collections::BTreeSet;
use std::ops::Range;

use proptest::prelude::*;

use super::super::split::LeafSplit;
use super::super::{check_node, check_root, looks_like_node, root_info, seal_node, seal_root};
use super::*;
use crate::dirent::write::NewEntry;
use crate::dirent::{EntryType, NameForm, TypeByte};
use crate::dirhash::NameHasher;
use crate::inode::InodeFlags;
use crate::oracle::{Image, le32};
use crate::testing::dirs::{formats, name, stored};
use crate::types::InodeNr;

const DOTS: Dots = Dots {
    own: InodeNr(12),
    parent: InodeNr(2),
};

type HashOf = fn(&[u8]) -> u32;

/// The index blocks on the path to a leaf, with the entries of the path.
type Path = Vec<(usize, usize)>;

/// A directory in memory, hashed as soon as it needs a second block.
struct Dir<H> {
    format: DirFormat,
    dots: Dots,
    algorithm: HashAlgorithm,
    levels: IndexLevels,
    hash_of: H,
    blocks: Vec<Vec<u8>>,
    split: LeafSplit,
}

/// The index is full.
#[derive(Debug, PartialEq, Eq)]
struct Full;

impl<H: Fn(&[u8]) -> u32 + Copy> Dir<H> {
    fn new(format: DirFormat, bytes: usize, levels: IndexLevels, hash_of: H) -> Self {
        let algorithm = match format.names {
            NameForm::EncryptedHashed => HashAlgorithm::SipHash,
            NameForm::Plain | NameForm::Encrypted => HashAlgorithm::Tea,
        };
        let mut dir = Self {
            format,
            dots: DOTS,
            algorithm,
            levels,
            hash_of,
            blocks: vec![vec![0xa5; bytes]],
            split: LeafSplit::default(),
        };
        dir.format.init_directory(&mut dir.blocks[0], &DOTS);
        dir
    }

    fn logical(block: usize) -> LogicalBlock {
        LogicalBlock(u32::try_from(block).unwrap())
    }

    fn index(&self, level: usize, block: usize) -> Index<'_> {
        Index::at(&self.blocks[block], entries_at(level)).unwrap()
    }

    fn child(&self, path: &Path) -> usize {
        let (block, position) = *path.last().unwrap();
        let child = self.index(path.len() - 1, block).block(position).unwrap();
        child.0 as usize
    }

    /// Walks down to the leaf of a hash.
    fn descend(&self, path: &mut Path, hash: u32) {
        let depth = usize::from(root_info(&self.blocks[0]).unwrap().indirect_levels) + 1;
        while path.len() < depth {
            let block = if path.is_empty() { 0 } else { self.child(path) };
            let position = self.index(path.len(), block).search(hash);
            path.push((block, position));
        }
    }

    /// Moves on to the next leaf, if the hash may continue there.
    fn move_right(&self, path: &mut Path, hash: u32) -> bool {
        while let Some((block, position)) = path.pop() {
            let index = self.index(path.len(), block);
            if position + 1 < index.len() {
                path.push((block, position + 1));
                let goes_on = index.continues(position + 1, hash);
                self.descend(path, 0);
                return goes_on;
            }
        }
        false
    }

    fn finds(&self, name: &[u8]) -> bool {
        let in_block = |block: usize| self.format.find(&self.blocks[block], name).unwrap();
        if self.blocks.len() == 1 {
            return in_block(0).is_some();
        }
        let (mut path, hash) = (Path::new(), (self.hash_of)(name));
        self.descend(&mut path, hash);
        loop {
            if in_block(self.child(&path)).is_some() {
                return true;
            }
            if !self.move_right(&mut path, hash) {
                return false;
            }
        }
    }

    fn insert(&mut self, name: &[u8]) -> Result<(), Full> {
        self.insert_file(name, self.dots.own)
    }

    fn insert_file(&mut self, name: &[u8], inode: InodeNr) -> Result<(), Full> {
        let format = self.format;
        let new = NewEntry::new(inode, name, EntryType::Regular).unwrap();
        let new = new.with_hash(stored(name));
        if self.blocks.len() == 1 {
            if format.insert(&mut self.blocks[0], &new).unwrap().is_some() {
                return Ok(());
            }
            let mut leaf = vec![0xa5; self.blocks[0].len()];
            let algorithm = self.algorithm;
            make_indexed(&format, &mut self.blocks[0], &mut leaf, algorithm).unwrap();
            self.blocks.push(leaf);
        }
        let (mut path, hash) = (Path::new(), (self.hash_of)(name));
        self.descend(&mut path, hash);
        let mut leaf = self.child(&path);
        if format
            .insert(&mut self.blocks[leaf], &new)
            .unwrap()
            .is_none()
        {
            leaf = self.divide(&path, leaf, hash)?;
            let inserted = format.insert(&mut self.blocks[leaf], &new).unwrap();
            assert!(inserted.is_some(), "no space after a split");
        }
        Ok(())
    }

    /// Splits a leaf; returns the half for `hash`.
    fn divide(&mut self, path: &Path, leaf: usize, hash: u32) -> Result<usize, Full> {
        let (format, hash_of) = (self.format, self.hash_of);
        let of = |entry: &crate::dirent::Entry<'_>| hash_of(entry.name);
        assert_eq!(self.split.plan(&format, &self.blocks[leaf], of), Ok(true));
        let child = Child {
            hash: self.split.hash(),
            block: Self::logical(self.blocks.len()),
        };
        let step = |(level, &(block, position)): (usize, &(usize, usize))| Step {
            index: self.index(level, block),
            position,
        };
        let steps: Vec<_> = path.iter().enumerate().map(step).collect();
        let growth = growth(&steps, child.hash, self.levels).unwrap();
        let growth = growth.ok_or(Full)?;

        let of_path = |dir: &Self| -> Vec<Vec<u8>> {
            let blocks = path.iter().map(|&(block, _)| dir.blocks[block].clone());
            blocks.collect()
        };
        let (before, mut after) = (of_path(self), of_path(self));
        let mut steps: Vec<_> = after
            .iter_mut()
            .zip(path)
            .map(|(block, &(_, position))| StepMut { block, position })
            .collect();
        let mut added = vec![vec![0xa5; before[0].len()]; 1 + growth.new_nodes];
        let (new_leaf, new_nodes) = added.split_first_mut().unwrap();
        let mut nodes: Vec<_> = new_nodes
            .iter_mut()
            .zip(self.blocks.len() + 1..)
            .map(|(block, at)| NewNode {
                at: Self::logical(at),
                block,
            })
            .collect();
        if let [_, too_few @ ..] = &mut nodes[..] {
            let error = add_leaf(&format, &mut steps, child, too_few).unwrap_err();
            assert!(matches!(error, HtreeError::Count { .. }));
        }
        add_leaf(&format, &mut steps, child, &mut nodes).unwrap();
        self.split.apply(&format, &mut self.blocks[leaf], new_leaf);
        for (level, ((before, after), (block, _))) in before.iter().zip(after).zip(path).enumerate()
        {
            assert_eq!(
                *before != after,
                level >= growth.first_changed,
                "{growth:?}"
            );
            self.blocks[*block] = after;
        }
        let new = self.blocks.len();
        self.blocks.extend(added);
        Ok(if self.split.moves(hash) { new } else { leaf })
    }

    fn remove(&mut self, name: &[u8]) {
        let holds = |block: &&mut Vec<u8>| self.format.find(block, name).unwrap().is_some();
        let block = self.blocks.iter_mut().find(holds).unwrap();
        let at = self.format.find(block, name).unwrap().unwrap().at;
        self.format.remove(block, at).unwrap();
    }

    /// Checks that every block is valid, that every name is in the leaf of its hash, and that there
    /// are exactly `names`.
    fn assert_holds(&self, names: &BTreeSet<Vec<u8>>) {
        let mut found = BTreeSet::new();
        assert_eq!(self.format.dots(&self.blocks[0]), Ok(self.dots));
        if self.blocks.len() == 1 {
            self.check_leaf(0, 0..u32::MAX, &mut found);
            assert!(found.remove(&b"."[..]) && found.remove(&b".."[..]));
        } else {
            let info = root_info(&self.blocks[0]).unwrap();
            assert_eq!(info.algorithm, self.algorithm);
            let levels = usize::from(info.indirect_levels) + 1;
            let mut seen = BTreeSet::new();
            self.check_below(0, 0, levels, 0..u32::MAX, &mut seen, &mut found);
            assert_eq!(seen.len(), self.blocks.len(), "an unreferenced block");
        }
        assert!(found == *names);
        assert!(names.iter().all(|name| self.finds(name)));
        assert!(!self.finds(b"never added"));
    }

    /// Checks `block` at `level` of `levels` index levels, and all blocks below it.
    fn check_below(
        &self,
        block: usize,
        level: usize,
        levels: usize,
        hashes: Range<u32>,
        seen: &mut BTreeSet<usize>,
        found: &mut BTreeSet<Vec<u8>>,
    ) {
        assert!(seen.insert(block), "two references to block {block}");
        if level == levels {
            return self.check_leaf(block, hashes, found);
        }
        let (bytes, end_of_dir) = (self.sealed(block), Self::logical(self.blocks.len()));
        let checked = match level {
            0 => check_root(&bytes, &self.format, self.levels, end_of_dir),
            _ => check_node(&bytes, &self.format, end_of_dir),
        };
        assert_eq!(checked, Ok(()));
        assert_eq!(self.format.has_names(&bytes), Ok(false));
        let index = self.index(level, block);
        for position in 0..index.len() {
            let child = index.block(position).unwrap().0 as usize;
            let first = index.hash(position).unwrap().max(hashes.start);
            let end = index.hash(position + 1).unwrap_or(hashes.end);
            self.check_below(child, level + 1, levels, first..end, seen, found);
        }
    }

    /// A block with the checksum of its kind.
    fn sealed(&self, block: usize) -> Vec<u8> {
        let mut bytes = self.blocks[block].clone();
        if let Some(seed) = self.format.seed {
            match block {
                0 if self.blocks.len() > 1 => seal_root(&mut bytes, seed).unwrap(),
                _ if looks_like_node(&bytes) => seal_node(&mut bytes, seed).unwrap(),
                _ => DirFormat::seal(&mut bytes, seed).unwrap(),
            }
        }
        bytes
    }

    fn check_leaf(&self, block: usize, hashes: Range<u32>, found: &mut BTreeSet<Vec<u8>>) {
        let Range { start, end } = hashes;
        let bytes = self.sealed(block);
        assert_eq!(self.format.check_block(&bytes), Ok(()));
        for entry in self.format.entries(&bytes) {
            let entry = entry.unwrap();
            let hash = (self.hash_of)(entry.name);
            let stored_here = self.format.names == NameForm::EncryptedHashed && !entry.is_dots();
            assert_eq!(entry.hash, stored_here.then(|| stored(entry.name)));
            // If a hash continues in the next leaf, the hash of that leaf is odd.
            assert!(
                start & !1 <= hash && hash < end.max(1),
                "{start:#x} {hash:#x} {end:#x}"
            );
            assert!(found.insert(entry.name.to_vec()), "a name twice");
        }
    }
}

fn spread(name: &[u8]) -> u32 {
    let mixed = stored(name).hash.wrapping_mul(0x9e37_79b1);
    (mixed ^ mixed >> 15) & !1
}

/// A hash function with few values, including the lowest and the highest.
fn colliding(name: &[u8]) -> u32 {
    [0, 2, 0x1000, 0x7000_0000, 0xffff_fffc][spread(name) as usize % 5]
}

fn equal(_: &[u8]) -> u32 {
    0x1234
}

#[derive(Clone, Debug)]
enum Change {
    Insert { id: u16, bytes: usize },
    Remove { nr: usize },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (0..5000u16, 1..=255usize).prop_map(|(id, bytes)| Change::Insert { id, bytes }),
        1 => (0..1000usize).prop_map(|nr| Change::Remove { nr }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn changes_of_a_tree_are_those_of_a_set(
        format in proptest::sample::select(formats()),
        bytes in prop_oneof![4 => Just(1024), 2 => Just(4096), 1 => Just(65536)],
        hash_of in proptest::sample::select(vec![spread as HashOf, colliding, equal]),
        changes in proptest::collection::vec(change(), 1..400),
    ) {
        let mut dir = Dir::new(format, bytes, IndexLevels::Three, hash_of);
        let mut names = BTreeSet::new();
        for (nr, change) in changes.iter().enumerate() {
            match *change {
                Change::Insert { id, bytes } => {
                    let name = name(id, bytes);
                    prop_assert_eq!(dir.finds(&name), names.contains(&name));
                    if names.insert(name.clone()) {
                        dir.insert(&name).unwrap();
                    }
                }
                Change::Remove { nr } => {
                    let Some(name) = names.iter().nth(nr % names.len().max(1)).cloned() else {
                        continue;
                    };
                    dir.remove(&name);
                    names.remove(&name);
                }
            }
            if nr % 20 == 0 {
                dir.assert_holds(&names);
            }
        }
        dir.assert_holds(&names);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        root in proptest::collection::vec(any::<u8>(), 0..200),
        node in proptest::collection::vec(any::<u8>(), 0..200),
        (limit, count) in (0..30u8, 0..30u8),
        position in 0..30usize,
        hash: u32,
        format in proptest::sample::select(formats()),
    ) {
        let (mut root, mut node) = (root, node);
        for (bytes, at) in [(&mut root, ROOT_ENTRIES_AT), (&mut node, NODE_ENTRIES_AT)] {
            if let Some(place) = bytes.get_mut(at..at + 4) {
                place.copy_from_slice(&[limit, 0, count, 0]);
            }
        }
        let mut first = root.clone();
        let _ = make_indexed(&format, &mut first, &mut node.clone(), HashAlgorithm::Tea);
        let _ = LeafSplit::default().plan(&format, &root, |_| hash);
        let mut fresh = [(); 2].map(|()| vec![0; 200]);
        let [one, two] = &mut fresh;
        let at = LogicalBlock(9);
        let mut nodes = [NewNode { at, block: one }, NewNode { at, block: two }];
        let mut path = [
            StepMut { block: &mut root, position },
            StepMut { block: &mut node, position },
        ];
        let child = Child { hash, block: at };
        let _ = add_leaf(&format, &mut path, child, &mut nodes);
    }
}

/// With blocks of 1 KiB and the longest names the root and then the whole tree are full soon.
#[test]
fn a_tree_grows_to_its_last_level() {
    let names = |range: std::ops::Range<u16>| range.map(|id| name(id, 255));
    // Names with increasing hashes: each leaf stays half full.
    let rising: HashOf = |name| {
        let id = name.split(|&byte| byte == b'-').next().unwrap();
        u32::from_str_radix(std::str::from_utf8(id).unwrap(), 16).unwrap_or(1) << 8
    };
    for format in [formats()[0], formats()[1]] {
        for hash_of in [spread as HashOf, rising] {
            let mut dir = Dir::new(format, 1024, IndexLevels::Two, hash_of);
            let mut all = BTreeSet::new();
            let full_at = names(0..u16::MAX).position(|name| {
                let full = dir.insert(&name) == Err(Full);
                all.insert(name);
                full
            });
            all.pop_last();
            let full_at = u16::try_from(full_at.unwrap()).unwrap();
            let last = name(full_at, 255);
            all = names(0..full_at).collect();
            dir.assert_holds(&all);
            assert_eq!(root_info(&dir.blocks[0]).unwrap().indirect_levels, 1);

            dir.levels = IndexLevels::Three;
            dir.insert(&last).unwrap();
            all.insert(last);
            all.extend(names(full_at + 1..full_at + 2000));
            for name in names(full_at + 1..full_at + 2000) {
                dir.insert(&name).unwrap();
            }
            dir.assert_holds(&all);
            assert_eq!(root_info(&dir.blocks[0]).unwrap().indirect_levels, 2);
        }
    }
}

#[test]
fn equal_hashes_fill_a_deep_tree() {
    let mut dir = Dir::new(formats()[1], 1024, IndexLevels::Three, equal as HashOf);
    let names: BTreeSet<_> = (0..400).map(|id| name(id, 255)).collect();
    for name in &names {
        dir.insert(name).unwrap();
    }
    assert!(root_info(&dir.blocks[0]).unwrap().indirect_levels > 0);
    dir.assert_holds(&names);
}

#[test]
fn an_entry_goes_only_where_it_is_in_order() {
    let format = formats()[0];
    let mut block = vec![0; 1024];
    init_node(&format, &mut block, LogicalBlock(1)).unwrap();
    let mut index = IndexMut::node(&mut block).unwrap();
    let child = |hash| Child {
        hash,
        block: LogicalBlock(2),
    };
    index.push(child(100)).unwrap();
    index.push(child(200)).unwrap();
    index.insert_after(1, child(101)).unwrap();
    let order = |entry, found, previous| {
        Err(HtreeError::Order {
            entry,
            found,
            previous,
        })
    };
    assert_eq!(index.insert_after(1, child(98)), order(2, 98, 100));
    assert_eq!(index.insert_after(1, child(102)), order(3, 101, 102));
    let limit = (1024 - NODE_ENTRIES_AT) / 8;
    let (found, count) = (6, |found| Err(HtreeError::Count { found, limit }));
    assert_eq!(index.insert_after(4, child(300)), count(found));
    while index.as_index().len() < limit {
        index.push(child(300)).unwrap();
    }
    assert_eq!(index.push(child(300)), count(limit + 1));
    assert_eq!(check_node(&block, &format, LogicalBlock(3)), Ok(()));
}

/// A leaf with names of other leaves cannot corrupt the index above it.
#[test]
fn a_leaf_out_of_place_is_refused_before_anything_changes() {
    let format = formats()[0];
    let mut block = vec![0; 1024];
    let info = RootInfo {
        algorithm: HashAlgorithm::Tea,
        indirect_levels: 0,
    };
    init_root(&format, &mut block, &DOTS, info, LogicalBlock(1)).unwrap();
    let mut index = IndexMut::root(&mut block).unwrap();
    let (hash, two) = (100, LogicalBlock(2));
    index.push(Child { hash, block: two }).unwrap();
    let before = block.clone();
    let block = two;
    let mut bytes = before.clone();
    let mut path = [StepMut {
        block: &mut bytes,
        position: 0,
    }];
    let error = add_leaf(&format, &mut path, Child { hash: 102, block }, &mut []);
    assert!(matches!(error, Err(HtreeError::Order { entry: 2, .. })));
    assert_eq!(bytes, before);
}

/// Replaces a directory that mke2fs made by an indexed one with the same names; e2fsck must find no
/// problems.
#[test]
fn e2fsck_agrees_with_a_tree_of_ours() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir(tree.path().join("dir")).unwrap();
    for id in 0..1200 {
        let name = String::from_utf8(name(id, 120)).unwrap();
        std::fs::write(tree.path().join("dir").join(name), b"").unwrap();
    }
    let args = ["-b", "1024", "-N", "2000", "-O", "metadata_csum,dir_index"];
    let Some(image) = Image::make(&args, tree.path(), 16) else {
        return;
    };
    let own = image.inode_nr("/dir");
    let (raw, seed) = image.inode(own);
    let format = DirFormat {
        names: NameForm::Plain,
        type_byte: TypeByte::Present,
        inodes_count: InodeNr(2000),
        seed: Some(seed),
    };
    let sb = image.superblock();
    let algorithm = HashAlgorithm::Tea;
    let hasher = NameHasher::seeded(algorithm, sb.hash_sign(), sb.hash_seed()).unwrap();
    let hash_of = |name: &[u8]| hasher.hash(name).hash;
    let mut dir = Dir::new(format, 1024, IndexLevels::Two, hash_of);

    let linear_blocks = le32(&raw, 4) / 1024;
    let linear = image.map_all(own, LogicalBlock(linear_blocks));
    dir.dots = format.dots(&image.block(linear[0])).unwrap();
    let dots = dir.dots;
    format.init_directory(&mut dir.blocks[0], &dots);
    for block in linear {
        for entry in format.entries(&image.block(block)) {
            let entry = entry.unwrap();
            if !entry.is_dots() {
                dir.insert_file(entry.name, entry.inode).unwrap();
            }
        }
    }
    let depth = root_info(&dir.blocks[0]).unwrap().indirect_levels;
    assert_eq!(depth, 1);

    let end = Dir::<HashOf>::logical(dir.blocks.len());
    let grow = "expand_dir /dir\n".repeat((end.0 - linear_blocks) as usize);
    let flags = le32(&raw, 0x20) | InodeFlags::INDEX_FL.bits();
    image.debugfs(&format!("{grow}set_inode_field /dir flags {flags:#x}\n"));
    for (nr, block) in image.map_all(own, end).into_iter().enumerate() {
        image.write_block(block, &dir.sealed(nr));
    }
    assert_eq!(image.fsck_problems(), "");
    let found = image.debugfs("htree_dump /dir\n");
    assert!(found.contains("Indirect levels: 1"), "{found}");
}
