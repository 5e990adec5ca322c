//! **Purpose.** Blocks for files, and the extent trees or block maps by which inodes find them.
//!
//! **Not here.** What the files hold (`files`, `quota`).
//!
//! **Model.** A new file system has room in one piece nearly everywhere, so files are sequences
//! from a goal on. A tree gets a node of its own with its fifth extent; a map gets index blocks in
//! the order in which writing the file from its start would need them.

use std::collections::BTreeMap;

use fourscore_ondisk::extent::{self, RawExtent, RawHeader, RawIndex};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::{GroupNr, InodeNr};
use zerocopy::IntoBytes;

use crate::error::{FormatError, FormatResult};
use crate::files::{DIRECT_BLOCKS, put};
use crate::plan::Planner;
use crate::superblock::{low, low16};
use crate::tables::mark_written;

/// The longest written extent.
const MOST_EXTENT_BLOCKS: u64 = 32768;
/// Extents, or children, that fit into an inode.
const ROOT_ENTRIES: usize = 4;
const ENTRY_BYTES: usize = size_of::<RawExtent>();

/// The blocks of a file.
pub(crate) struct Mapped {
    pub(crate) i_block: [u8; 60],
    /// By logical number from 0; of the journal only the first.
    pub(crate) blocks: Vec<u64>,
    /// Clusters taken, those of nodes and index blocks included.
    pub(crate) clusters: u64,
}

/// Logical block, physical block, length.
type Run = (u64, u64, u64);

/// An extent tree in the making.
struct Tree {
    number: u32,
    runs: Vec<Run>,
    leaf: Option<u64>,
    clusters: u64,
}

impl Planner {
    /// Takes the first free block from `goal` on, with its cluster.
    pub(crate) fn new_block(&mut self, goal: u64) -> FormatResult<u64> {
        let place = self.space.first_free(goal);
        let block = place.ok_or(FormatError::NoRoom {
            what: "the first files",
        })?;
        self.claim(block, 1);
        Ok(block)
    }

    /// Takes blocks outside of the fixed tables.
    pub(crate) fn claim(&mut self, block: u64, count: u64) {
        self.space.take(block..block + count);
        mark_written(self.sb.geometry(), &mut self.groups, block..block + count);
    }

    /// Where the blocks of an inode are looked for first: the start of its group or flex group.
    fn home(&self, number: u32) -> u64 {
        let place = self.geometry().inode_group(InodeNr(number));
        let group = place.map_or(0, |(group, _)| group.0);
        let log = u32::from(self.raw.s_log_groups_per_flex);
        let flex = 1u32.checked_shl(log).unwrap_or(0);
        let group = GroupNr(group & !flex.wrapping_sub(1));
        self.geometry().group_first_block(group).0
    }

    fn has_extents(&self) -> bool {
        self.raw.features().incompat.contains(Incompat::EXTENTS)
    }

    fn cluster_mask(&self) -> u64 {
        (1 << self.geometry().blocks_per_cluster_log()) - 1
    }

    /// `count` blocks for a directory.
    pub(crate) fn map_directory(&mut self, number: u32, count: usize) -> FormatResult<Mapped> {
        let goal = self.home(number);
        self.map_from(number, goal, count as u64)
    }

    /// `count` blocks from the first free one on.
    pub(crate) fn map_sequence(&mut self, number: u32, count: u64) -> FormatResult<Mapped> {
        self.map_from(number, 0, count)
    }

    fn map_from(&mut self, number: u32, goal: u64, count: u64) -> FormatResult<Mapped> {
        if !self.has_extents() {
            return self.map_indirect(goal, count);
        }
        let mask = self.cluster_mask();
        let mut tree = Tree::new(number);
        let mut blocks = Vec::new();
        let mut last = goal;
        for logical in 0..count {
            let implied = logical > 0 && last & mask != mask;
            last = if implied {
                last + 1
            } else {
                tree.clusters += 1;
                self.new_block(last)?
            };
            blocks.push(last);
            self.add_run(&mut tree, (logical, last, 1))?;
        }
        self.finish_tree(tree, blocks)
    }

    /// A file whose blocks get their places in the order of `writes`, logical numbers.
    pub(crate) fn map_writes(&mut self, number: u32, writes: &[u64]) -> FormatResult<Mapped> {
        let log = self.geometry().blocks_per_cluster_log();
        let mut places: BTreeMap<u64, u64> = BTreeMap::new();
        let mut clusters = 0;
        for &logical in writes {
            if places.contains_key(&logical) {
                continue;
            }
            let same_cluster = places
                .iter()
                .find(|(other, _)| *other >> log == logical >> log)
                .map(|(other, place)| place - other + logical);
            let block = match same_cluster {
                Some(block) => block,
                None => {
                    let before = logical.checked_sub(1).and_then(|one| places.get(&one));
                    let goal = match before {
                        Some(&before) if !self.has_extents() => before,
                        _ => self.home(number),
                    };
                    clusters += 1;
                    self.new_block(goal)?
                }
            };
            places.insert(logical, block);
        }
        let blocks: Vec<u64> = places.values().copied().collect();
        if !self.has_extents() {
            let mut i_block = [0; 60];
            for (&logical, &block) in &places {
                let slot = usize::try_from(logical).unwrap_or(DIRECT_BLOCKS);
                if slot >= DIRECT_BLOCKS {
                    return Err(FormatError::NoRoom {
                        what: "quota files",
                    });
                }
                put(&mut i_block, slot * 4, low(block).as_bytes());
            }
            return Ok(Mapped {
                i_block,
                blocks,
                clusters,
            });
        }
        let mut tree = Tree::new(number);
        tree.clusters = clusters;
        for (&logical, &block) in &places {
            self.add_run(&mut tree, (logical, block, 1))?;
        }
        self.finish_tree(tree, blocks)
    }

    /// The journal: as few runs from `goal` on as there can be. A block map knows no goal and
    /// begins at home.
    pub(crate) fn map_journal(
        &mut self,
        number: u32,
        goal: u64,
        count: u64,
    ) -> FormatResult<Mapped> {
        if !self.has_extents() {
            let home = self.home(number);
            let mut mapped = self.map_indirect(home, count)?;
            if !self.p.lazy_journal {
                self.zero
                    .extend(mapped.blocks.iter().skip(1).map(|&b| b..b + 1));
            }
            mapped.blocks.truncate(1);
            return Ok(mapped);
        }
        let mask = self.cluster_mask();
        let log = self.geometry().blocks_per_cluster_log();
        let most = MOST_EXTENT_BLOCKS & !mask;
        let mut tree = Tree::new(number);
        let (mut logical, mut goal) = (0, goal);
        let mut blocks = Vec::new();
        while logical < count {
            let run = self.space.first_run(goal, most.min(count - logical));
            let run = run.ok_or(FormatError::NoRoom {
                what: "the journal",
            })?;
            let length = run.end - run.start;
            self.claim(run.start, length);
            tree.clusters += length.div_ceil(1 << log);
            self.insert_run(&mut tree, (logical, run.start, length))?;
            if logical == 0 {
                blocks.push(run.start);
            }
            if !self.p.lazy_journal {
                let first = run.start + u64::from(logical == 0);
                self.zero.push(first..run.end);
            }
            logical += length;
            goal = run.end;
        }
        self.finish_tree(tree, blocks)
    }

    /// Adds a run, to the last one if it goes on from there.
    fn add_run(&mut self, tree: &mut Tree, run: Run) -> FormatResult<()> {
        let (logical, block, length) = run;
        if let Some((before, at, have)) = tree.runs.last_mut()
            && *before + *have == logical
            && *at + *have == block
            && *have + length <= MOST_EXTENT_BLOCKS
        {
            *have += length;
            return Ok(());
        }
        self.insert_run(tree, run)
    }

    fn insert_run(&mut self, tree: &mut Tree, run: Run) -> FormatResult<()> {
        if tree.runs.len() == ROOT_ENTRIES && tree.leaf.is_none() {
            tree.leaf = Some(self.new_block(tree.node_goal())?);
            tree.clusters += 1;
        }
        tree.runs.push(run);
        Ok(())
    }

    fn finish_tree(&mut self, tree: Tree, blocks: Vec<u64>) -> FormatResult<Mapped> {
        let goal = tree.node_goal();
        let Tree {
            number,
            runs,
            leaf,
            mut clusters,
        } = tree;
        let mut i_block = [0; 60];
        let Some(first_leaf) = leaf else {
            put_leaf(&mut i_block, ROOT_ENTRIES, &runs);
            return Ok(Mapped {
                i_block,
                blocks,
                clusters,
            });
        };
        let room = (self.block_bytes() - size_of::<RawHeader>()) / ENTRY_BYTES;
        let mut children = Vec::new();
        for part in runs.chunks(room) {
            let block = if children.is_empty() {
                first_leaf
            } else {
                clusters += 1;
                self.new_block(goal)?
            };
            let mut content = vec![0; self.block_bytes()];
            put_leaf(&mut content, room, part);
            if self.sb.has_metadata_csum() {
                extent::seal(&mut content, self.seed(number))
                    .map_err(|error| FormatError::Invalid(error.to_string()))?;
            }
            self.blocks.insert(block, content);
            children.push((part[0].0, block));
        }
        if children.len() > ROOT_ENTRIES {
            return Err(FormatError::NoRoom {
                what: "the extents of the journal",
            });
        }
        // Extents that the root held before it had a child stay behind its index, as libext2fs
        // leaves them.
        put_leaf(&mut i_block, ROOT_ENTRIES, &runs[..ROOT_ENTRIES]);
        put_header(&mut i_block, children.len(), ROOT_ENTRIES, 1);
        for (index, &(logical, block)) in children.iter().enumerate() {
            let raw = RawIndex {
                ei_block: low(logical),
                ei_leaf_lo: low(block),
                ei_leaf_hi: low16(block >> 32),
                ei_unused: 0.into(),
            };
            put(
                &mut i_block,
                size_of::<RawHeader>() + index * ENTRY_BYTES,
                raw.as_bytes(),
            );
        }
        Ok(Mapped {
            i_block,
            blocks,
            clusters,
        })
    }

    /// Twelve direct blocks, then trees of one, two and three levels of index blocks.
    fn map_indirect(&mut self, goal: u64, count: u64) -> FormatResult<Mapped> {
        let mut map = IndirectMap {
            left: count,
            last: goal,
            blocks: Vec::new(),
            index_blocks: 0,
        };
        let mut i_block = [0; 60];
        for slot in 0..DIRECT_BLOCKS + 3 {
            if map.left == 0 {
                break;
            }
            let levels = slot.saturating_sub(DIRECT_BLOCKS - 1);
            let block = self.fill_indirect(&mut map, levels)?;
            put(&mut i_block, slot * 4, low(block).as_bytes());
        }
        if map.left > 0 {
            return Err(FormatError::NoRoom {
                what: "the journal's block map",
            });
        }
        let clusters = map.blocks.len() as u64 + map.index_blocks;
        Ok(Mapped {
            i_block,
            blocks: map.blocks,
            clusters,
        })
    }

    /// A block with `levels` levels of index blocks above the data, which it is at 0.
    fn fill_indirect(&mut self, map: &mut IndirectMap, levels: usize) -> FormatResult<u64> {
        let block = self.new_block(map.last)?;
        map.last = block;
        if levels == 0 {
            map.blocks.push(block);
            map.left -= 1;
            return Ok(block);
        }
        map.index_blocks += 1;
        let mut content = vec![0; self.block_bytes()];
        for slot in 0..self.block_bytes() / 4 {
            if map.left == 0 {
                break;
            }
            let child = self.fill_indirect(map, levels - 1)?;
            put(&mut content, slot * 4, low(child).as_bytes());
        }
        self.blocks.insert(block, content);
        Ok(block)
    }
}

/// A block map in the making.
struct IndirectMap {
    left: u64,
    last: u64,
    blocks: Vec<u64>,
    index_blocks: u64,
}

impl Tree {
    fn new(number: u32) -> Self {
        Self {
            number,
            runs: Vec::new(),
            leaf: None,
            clusters: 0,
        }
    }

    /// Nodes are best read together with the data: right in front of it.
    fn node_goal(&self) -> u64 {
        let first = self.runs.first().map_or(0, |&(_, block, _)| block);
        first.saturating_sub(1)
    }
}

fn put_header(node: &mut [u8], entries: usize, most: usize, depth: u16) {
    let header = RawHeader {
        eh_magic: 0xf30a.into(),
        eh_entries: low16(entries as u64),
        eh_max: low16(most as u64),
        eh_depth: depth.into(),
        eh_generation: 0.into(),
    };
    put(node, 0, header.as_bytes());
}

fn put_leaf(node: &mut [u8], most: usize, runs: &[Run]) {
    put_header(node, runs.len(), most, 0);
    for (index, &(logical, block, length)) in runs.iter().enumerate() {
        let raw = RawExtent {
            ee_block: low(logical),
            ee_len: low16(length),
            ee_start_hi: low16(block >> 32),
            ee_start_lo: low(block),
        };
        put(
            node,
            size_of::<RawHeader>() + index * ENTRY_BYTES,
            raw.as_bytes(),
        );
    }
}
