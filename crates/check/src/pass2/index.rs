//! **Purpose.** Checks the hash index of one directory: each block is in it once and at the right
//! depth, and the names of a leaf have hashes in its range.
//!
//! **Model.** While the blocks are read, the lowest and the highest hash of each leaf and the
//! entries of each node are kept. When all are read, the index is walked from its root.
//!
//! **Invariants.** The walk enters a node once, so it ends for every index.

use fourscore_ondisk::htree::{Index as Entries, RootInfo};
use fourscore_ondisk::{InodeNr, LogicalBlock};

use crate::finding::Finding;
use crate::report::Findings;

/// The range of the hashes of a leaf; `lowest > highest` if it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hashes {
    pub(super) lowest: u32,
    pub(super) highest: u32,
}

impl Hashes {
    /// The range of an empty leaf.
    pub(super) const NONE: Self = Self {
        lowest: u32::MAX,
        highest: 0,
    };

    pub(super) fn add(&mut self, hash: u32) {
        self.lowest = self.lowest.min(hash);
        self.highest = self.highest.max(hash);
    }
}

/// The role of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Leaf(Hashes),
    Node { first_entry: usize, entries: usize },
}

/// A block that was read.
#[derive(Clone, Copy, Debug)]
struct Block {
    at: LogicalBlock,
    seen: Seen,
    is_referenced: bool,
}

/// What is known of an index.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// In ascending order. Sparse, because a directory may claim a size far beyond its blocks.
    blocks: Vec<Block>,
    /// Entries of all nodes: the lowest hash, and the block.
    entries: Vec<(u32, LogicalBlock)>,
    indirect_levels: u32,
}

/// A block that the walk has to visit, and the hashes that its parent gives it.
struct Step {
    block: LogicalBlock,
    depth: u32,
    first: u32,
    last: u32,
}

impl Index {
    /// Keeps a block. Blocks are read in order, so it is added at the end.
    fn add(&mut self, at: LogicalBlock, seen: Seen) {
        let block = Block {
            at,
            seen,
            is_referenced: false,
        };
        match self.find(at) {
            Ok(known) => self.blocks[known] = block,
            Err(place) => self.blocks.insert(place, block),
        }
    }

    /// The position of a block, or where it would be inserted.
    fn find(&self, at: LogicalBlock) -> Result<usize, usize> {
        self.blocks.binary_search_by_key(&at, |block| block.at)
    }

    /// Keeps the root.
    pub(super) fn add_root(&mut self, info: RootInfo, entries: Option<Entries<'_>>) {
        self.indirect_levels = info.indirect_levels.into();
        self.add_node(LogicalBlock(0), entries);
    }

    /// Keeps a node that was checked.
    pub(super) fn add_node(&mut self, block: LogicalBlock, entries: Option<Entries<'_>>) {
        let first_entry = self.entries.len();
        if let Some(node) = entries {
            for position in 0..node.len() {
                let entry = node.hash(position).zip(node.block(position));
                self.entries.extend(entry);
            }
        }
        let entries = self.entries.len() - first_entry;
        self.add(
            block,
            Seen::Node {
                first_entry,
                entries,
            },
        );
    }

    /// Keeps the hashes of a leaf. The block of the root is none.
    pub(super) fn add_leaf(&mut self, block: LogicalBlock, hashes: Hashes) {
        if block.0 > 0 {
            self.add(block, Seen::Leaf(hashes));
        }
    }

    /// Walks the index when all blocks of the directory are read.
    pub(super) fn check(mut self, dir: InodeNr, findings: &mut Findings) {
        let mut steps = vec![Step {
            block: LogicalBlock(0),
            depth: 0,
            first: 0,
            last: u32::MAX,
        }];
        while let Some(step) = steps.pop() {
            self.step(&step, dir, &mut steps, findings);
        }
        for block in self.blocks.iter().filter(|block| !block.is_referenced) {
            let block = block.at;
            findings.push(Finding::IndexUnreferenced { dir, block });
        }
    }

    fn step(&mut self, step: &Step, dir: InodeNr, steps: &mut Vec<Step>, findings: &mut Findings) {
        let &Step {
            block,
            depth,
            first,
            last,
        } = step;
        let known = self.find(block).ok().and_then(|at| self.blocks.get_mut(at));
        let Some(known) = known else {
            return;
        };
        let seen = known.seen;
        if std::mem::replace(&mut known.is_referenced, true) {
            findings.push(Finding::IndexTwice { dir, block });
            return;
        }
        let leaf_depth = self.indirect_levels + 1;
        match seen {
            Seen::Leaf(Hashes { lowest, highest }) => {
                if depth != leaf_depth {
                    findings.push(Finding::IndexDepth {
                        dir,
                        block,
                        found: depth,
                        expected: leaf_depth,
                    });
                }
                let is_empty = lowest > highest;
                if !is_empty && (lowest < first || highest > last) {
                    let found = if lowest < first { lowest } else { highest };
                    findings.push(Finding::IndexHash {
                        dir,
                        block,
                        found,
                        first,
                        last,
                    });
                }
            }
            Seen::Node {
                first_entry,
                entries,
            } => {
                if depth >= leaf_depth {
                    findings.push(Finding::IndexDepth {
                        dir,
                        block,
                        found: depth,
                        expected: leaf_depth - 1,
                    });
                }
                let end = first_entry + entries;
                let entries = self.entries.get(first_entry..end).unwrap_or(&[]);
                for (nth, &(hash, child)) in entries.iter().enumerate() {
                    // A name may have the hash that the next block begins with.
                    let next = entries.get(nth + 1).map_or(last, |next| next.0 & !1);
                    steps.push(Step {
                        block: child,
                        depth: depth + 1,
                        first: if nth == 0 { first } else { hash & !1 },
                        last: next,
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(entries: &[(u32, u32)], leaves: &[(u32, u32)]) -> Index {
        let mut index = Index {
            entries: entries
                .iter()
                .map(|&(hash, block)| (hash, LogicalBlock(block)))
                .collect(),
            ..Index::default()
        };
        let root = Seen::Node {
            first_entry: 0,
            entries: entries.len(),
        };
        index.add(LogicalBlock(0), root);
        for (block, &(lowest, highest)) in (1..).zip(leaves) {
            index.add_leaf(LogicalBlock(block), Hashes { lowest, highest });
        }
        index
    }

    fn codes(index: Index) -> Vec<&'static str> {
        let mut findings = Findings::new(99);
        index.check(InodeNr(12), &mut findings);
        let report = crate::Report::new(findings, crate::Tally::default());
        report.counts().keys().copied().collect()
    }

    #[test]
    fn hashes_lie_in_the_range_of_their_leaf() {
        let leaves = [(2, 10), (10, 40)];
        assert!(codes(index(&[(0, 1), (10, 2)], &leaves)).is_empty());
        assert!(codes(index(&[(0, 1), (11, 2)], &leaves)).is_empty());
        assert_eq!(codes(index(&[(0, 1), (8, 2)], &leaves)), ["index-hash"]);
        assert_eq!(codes(index(&[(0, 1), (12, 2)], &leaves)), ["index-hash"]);
    }

    #[test]
    fn each_block_is_in_the_index_once_at_its_depth() {
        let empty = (u32::MAX, 0);
        let lost = index(&[(0, 1)], &[empty, empty]);
        assert_eq!(codes(lost), ["index-unreferenced"]);
        let twice = index(&[(0, 1), (4, 1)], &[empty]);
        assert_eq!(codes(twice), ["index-twice"]);
        let loops = index(&[(0, 1), (4, 0)], &[empty]);
        assert_eq!(codes(loops), ["index-twice"]);
        let mut deep = index(&[(0, 1)], &[empty]);
        deep.indirect_levels = 1;
        assert_eq!(codes(deep), ["index-depth"]);
    }
}
