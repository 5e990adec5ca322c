//! **Purpose.** Allocates blocks for files, and builds the extent trees and block maps by which
//! inodes find them.
//!
//! **Not here.** What the files hold (`root`, `journal`, `hidden`, `quota`); the format of trees
//! and maps (crate `ondisk`).
//!
//! **Model.** Nearly all space of a new file system is free in one piece, so a file is allocated
//! block after block from a goal on. As in libext2fs, a tree gets its first leaf when it gets its
//! fifth extent, and a map gets its indirect blocks in the order in which writing the file from its
//! start needs them.

use std::collections::BTreeMap;

use fourscore_ondisk::extent::{self, MAX_WRITTEN_BLOCKS, ROOT_BYTES, ROOT_ENTRIES};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::{GroupNr, InodeNr, LogicalBlock, MappedRun, PhysBlock, blockmap};

use crate::draft::LayoutDraft;
use crate::error::{FormatError, FormatResult};

/// Bytes of each entry of an extent node, and of its header.
const EXTENT_BYTES: usize = size_of::<extent::RawExtent>();

/// The blocks of a file.
pub(crate) struct Mapped {
    pub(crate) i_block: [u8; ROOT_BYTES],
    /// By logical number from 0; of the journal only the first.
    pub(crate) blocks: Vec<u64>,
    /// Clusters taken, those of extent nodes and indirect blocks included.
    pub(crate) clusters: u64,
}

/// An extent tree for which blocks are being allocated.
struct Tree {
    number: u32,
    runs: Vec<MappedRun>,
    /// The first leaf below the root.
    leaf: Option<PhysBlock>,
    clusters: u64,
}

/// The goal for the blocks of an inode: the start of its group or flex group.
fn home(draft: &LayoutDraft, number: u32) -> u64 {
    let place = draft.geometry().inode_group(InodeNr(number));
    let group = place.map_or(0, |(group, _)| group.0);
    let log = u32::from(draft.raw.s_log_groups_per_flex);
    let flex = 1u32.checked_shl(log).unwrap_or(0);
    let group = GroupNr(group & !flex.wrapping_sub(1));
    draft.geometry().group_first_block(group).0
}

/// Whether files have extent trees.
fn has_extents(draft: &LayoutDraft) -> bool {
    draft.raw.features().incompat.contains(Incompat::EXTENTS)
}

/// The bits of a block number that count blocks inside a cluster.
fn cluster_mask(draft: &LayoutDraft) -> u64 {
    (1 << draft.geometry().blocks_per_cluster_log()) - 1
}

/// Allocates `count` blocks for a directory.
pub(crate) fn map_directory(
    draft: &mut LayoutDraft,
    number: u32,
    count: usize,
) -> FormatResult<Mapped> {
    let goal = home(draft, number);
    map_from(draft, number, goal, count as u64)
}

/// Allocates `count` blocks from the first free one on.
pub(crate) fn map_sequence(
    draft: &mut LayoutDraft,
    number: u32,
    count: u64,
) -> FormatResult<Mapped> {
    map_from(draft, number, 0, count)
}

/// Allocates `count` blocks, one after the other from `goal` on.
fn map_from(draft: &mut LayoutDraft, number: u32, goal: u64, count: u64) -> FormatResult<Mapped> {
    if !has_extents(draft) {
        return map_indirect(draft, goal, count);
    }
    let mask = cluster_mask(draft);
    let mut tree = Tree::new(number);
    let mut blocks = Vec::new();
    let mut last = goal;
    for logical in 0..count {
        let implied = logical > 0 && last & mask != mask;
        last = if implied {
            last + 1
        } else {
            tree.clusters += 1;
            draft.new_block(last)?
        };
        blocks.push(last);
        tree.add(draft, one_block(logical, last)?)?;
    }
    tree.finish(draft, blocks)
}

/// Allocates the blocks of a file in the order of `writes`, which are logical numbers.
pub(crate) fn map_writes(
    draft: &mut LayoutDraft,
    number: u32,
    writes: &[u64],
) -> FormatResult<Mapped> {
    let log = draft.geometry().blocks_per_cluster_log();
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
                    Some(&before) if !has_extents(draft) => before,
                    _ => home(draft, number),
                };
                clusters += 1;
                draft.new_block(goal)?
            }
        };
        places.insert(logical, block);
    }
    let blocks: Vec<u64> = places.values().copied().collect();
    if !has_extents(draft) {
        let runs = places
            .iter()
            .map(|(&logical, &block)| one_block(logical, block));
        let runs = runs.collect::<FormatResult<Vec<_>>>()?;
        let i_block = build_block_map(draft, runs, &[])?;
        return Ok(Mapped {
            i_block,
            blocks,
            clusters,
        });
    }
    let mut tree = Tree::new(number);
    tree.clusters = clusters;
    for (&logical, &block) in &places {
        tree.add(draft, one_block(logical, block)?)?;
    }
    tree.finish(draft, blocks)
}

/// Allocates `count` blocks for the journal: as few runs from `goal` on as possible. With a block
/// map the goal is that of the inode, as in libext2fs.
pub(crate) fn map_journal(
    draft: &mut LayoutDraft,
    number: u32,
    goal: u64,
    count: u64,
) -> FormatResult<Mapped> {
    if !has_extents(draft) {
        let home = home(draft, number);
        let mut mapped = map_indirect(draft, home, count)?;
        if !draft.p.lazy_journal {
            draft
                .zero
                .extend(mapped.blocks.iter().skip(1).map(|&b| b..b + 1));
        }
        mapped.blocks.truncate(1);
        return Ok(mapped);
    }
    let mask = cluster_mask(draft);
    let log = draft.geometry().blocks_per_cluster_log();
    let most = u64::from(MAX_WRITTEN_BLOCKS) & !mask;
    let mut tree = Tree::new(number);
    let (mut logical, mut goal) = (0, goal);
    let mut blocks = Vec::new();
    while logical < count {
        let run = draft.space.first_run(goal, most.min(count - logical));
        let run = run.ok_or(FormatError::NoRoom {
            what: "the journal",
        })?;
        let length = run.end - run.start;
        draft.claim(run.start, length);
        tree.clusters += length.div_ceil(1 << log);
        tree.push(draft, mapped_run(logical, run.start, length)?)?;
        if logical == 0 {
            blocks.push(run.start);
        }
        if !draft.p.lazy_journal {
            let first = run.start + u64::from(logical == 0);
            draft.zero.push(first..run.end);
        }
        logical += length;
        goal = run.end;
    }
    tree.finish(draft, blocks)
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

    /// The goal for nodes: right in front of the data, with which they are read.
    fn node_goal(&self) -> u64 {
        let first = self.runs.first().map_or(0, |run| run.physical.0);
        first.saturating_sub(1)
    }

    /// Adds a run, joined with the last one if both together are an extent.
    fn add(&mut self, draft: &mut LayoutDraft, run: MappedRun) -> FormatResult<()> {
        if let Some(last) = self.runs.last_mut()
            && last.logical.0 + last.blocks == run.logical.0
            && last.physical.0 + u64::from(last.blocks) == run.physical.0
            && last.blocks + run.blocks <= MAX_WRITTEN_BLOCKS.into()
        {
            last.blocks += run.blocks;
            return Ok(());
        }
        self.push(draft, run)
    }

    /// Adds a run as an extent of its own.
    fn push(&mut self, draft: &mut LayoutDraft, run: MappedRun) -> FormatResult<()> {
        if self.runs.len() == ROOT_ENTRIES && self.leaf.is_none() {
            self.leaf = Some(PhysBlock(draft.new_block(self.node_goal())?));
            self.clusters += 1;
        }
        self.runs.push(run);
        Ok(())
    }

    /// Allocates the other leaves and builds the tree.
    fn finish(self, draft: &mut LayoutDraft, blocks: Vec<u64>) -> FormatResult<Mapped> {
        let block_size = draft.geometry().block_size();
        let needed = extent::count_nodes(self.runs.iter().copied(), block_size);
        if needed > ROOT_ENTRIES {
            return Err(FormatError::NoRoom {
                what: "the extents of the journal",
            });
        }
        let goal = self.node_goal();
        let mut clusters = self.clusters;
        let mut nodes: Vec<PhysBlock> = self.leaf.into_iter().collect();
        while nodes.len() < needed {
            nodes.push(PhysBlock(draft.new_block(goal)?));
            clusters += 1;
        }
        let seed = draft.sb.has_metadata_csum();
        let seed = seed.then(|| draft.seed(self.number));
        let emit = &mut |block: PhysBlock, node| {
            draft.blocks.insert(block.0, node);
        };
        let root = extent::build(self.runs.iter().copied(), &nodes, block_size, seed, emit);
        let mut i_block = root.map_err(FormatError::invalid)?;
        if needed > 0 {
            // Extents that the root held before it got a child stay behind its indexes, as
            // libext2fs leaves them.
            let old = self.runs.iter().copied().take(ROOT_ENTRIES);
            let old = extent::build(old, &[], block_size, None, &mut |_, _| {});
            let old = old.map_err(FormatError::invalid)?;
            let used = EXTENT_BYTES * (1 + needed);
            i_block[used..].copy_from_slice(&old[used..]);
        }
        Ok(Mapped {
            i_block,
            blocks,
            clusters,
        })
    }
}

/// Allocates `count` blocks and their indirect blocks, one after the other from `goal` on.
fn map_indirect(draft: &mut LayoutDraft, goal: u64, count: u64) -> FormatResult<Mapped> {
    let block_size = draft.geometry().block_size();
    let (mut blocks, mut indirect, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = goal;
    for logical in 0..count {
        let path = u32::try_from(logical).ok();
        let path = path.and_then(|at| blockmap::Path::to(LogicalBlock(at), block_size));
        let path = path.ok_or(FormatError::NoRoom {
            what: "the journal's block map",
        })?;
        for _ in 0..path.indirect_blocks_begun() {
            last = draft.new_block(last)?;
            indirect.push(PhysBlock(last));
        }
        last = draft.new_block(last)?;
        blocks.push(last);
        runs.push(one_block(logical, last)?);
    }
    let i_block = build_block_map(draft, runs, &indirect)?;
    let clusters = (blocks.len() + indirect.len()) as u64;
    Ok(Mapped {
        i_block,
        blocks,
        clusters,
    })
}

/// Builds a block map whose indirect blocks are placed.
fn build_block_map(
    draft: &mut LayoutDraft,
    runs: Vec<MappedRun>,
    indirect: &[PhysBlock],
) -> FormatResult<[u8; ROOT_BYTES]> {
    let block_size = draft.geometry().block_size();
    let emit = &mut |block: PhysBlock, pointers| {
        draft.blocks.insert(block.0, pointers);
    };
    blockmap::build(runs, indirect, block_size, emit).map_err(FormatError::invalid)
}

fn one_block(logical: u64, physical: u64) -> FormatResult<MappedRun> {
    mapped_run(logical, physical, 1)
}

fn mapped_run(logical: u64, physical: u64, blocks: u64) -> FormatResult<MappedRun> {
    Ok(MappedRun {
        logical: LogicalBlock(u32::try_from(logical).map_err(FormatError::invalid)?),
        physical: PhysBlock(physical),
        blocks: u32::try_from(blocks).map_err(FormatError::invalid)?,
    })
}
