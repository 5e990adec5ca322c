//! **Purpose.** Finds a name through the hash index (htree) of a directory.
//!
//! **Model.** The hash of the name selects one entry in each index block from the root down to a
//! leaf. Names with equal hashes may continue in the next leaf, which the low bit of that leaf's
//! hash says. So the path is kept, and moved one leaf to the right while the bit is set.
//!
//! **Invariants.** The path only moves to the right, and a search visits no more leaves than the
//! directory has blocks, whatever the index says.
//!
//! **Locking.** None.

use fourscore_ondisk::dirent::DirFormat;
use fourscore_ondisk::htree::{self, Index};
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock};

use crate::Result;
use crate::core::Core;
use crate::dir::blocks::READAHEAD_BLOCKS;
use crate::dir::leaf_search;
use crate::dir::structure::{self, DirBlock};
use crate::dir::wanted::Wanted;
use crate::guard::Guard;
use crate::inode::cached::CachedInode;

/// The bit of a leaf's least hash which says that the names of the leaf before continue in it.
const CONTINUES: u32 = 1;
/// The most index blocks on a path to a leaf: the root and at most two levels below.
const MAX_LEVELS: usize = 3;

/// The index blocks on the path to a leaf, each with the selected entry.
struct IndexPath<'g> {
    steps: [Option<(Index<'g>, usize)>; MAX_LEVELS],
    levels: usize,
}

/// An entry of an index block on the path to a leaf.
#[derive(Clone, Copy)]
struct NextEntry<'g> {
    index: Index<'g>,
    level: usize,
    position: usize,
}

impl<'g> IndexPath<'g> {
    /// Returns the entry after the selected ones: of the lowest block that has one.
    fn next(&self) -> Option<NextEntry<'g>> {
        (0..self.levels.min(MAX_LEVELS)).rev().find_map(|level| {
            let (index, position) = self.steps[level]?;
            (position + 1 < index.len()).then_some(NextEntry {
                index,
                level,
                position: position + 1,
            })
        })
    }

    /// Returns the leaf at the end of the path.
    fn leaf(&self) -> Option<LogicalBlock> {
        let (index, position) = self.steps.get(self.levels.checked_sub(1)?)?.as_ref()?;
        index.block(*position)
    }
}

/// Returns the inode of the name in the indexed directory `dir`, or `None` if it is not found.
pub(crate) fn search_index(
    core: &Core,
    dir: &CachedInode,
    wanted: &Wanted<'_>,
    guard: &Guard,
) -> Result<Option<InodeNr>> {
    let format = structure::dir_format(core, dir);
    let root =
        structure::indexed_block(core, dir, &format, LogicalBlock(0), DirBlock::Root, guard)?;
    let Some(input) = wanted.hash_input() else {
        return Ok(None);
    };
    if input == b".." {
        let dots = format
            .dots(root)
            .map_err(|e| Corrupt::from(e).in_inode(dir.nr()))?;
        return Ok(Some(dots.parent));
    }
    let Some((hash, mut path)) = path_to(core, dir, &format, root, input, guard)? else {
        return Ok(None);
    };
    for _ in 0..structure::size_in_blocks(core, dir)?.0 {
        let Some(leaf) = path.leaf() else {
            return Ok(None);
        };
        let found = leaf_search::search_leaf(core, dir, &format, leaf, wanted, guard)?;
        if found.is_some() {
            return Ok(found);
        }
        if !move_right(core, dir, &format, &mut path, hash, guard)? {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Returns the only leaf of the indexed directory `dir` that can have `name`, as it is stored.
/// Returns `None` if there is no such single leaf: names with its hash may be in several leaves.
pub(crate) fn only_leaf(
    core: &Core,
    dir: &CachedInode,
    name: &[u8],
    guard: &Guard,
) -> Result<Option<LogicalBlock>> {
    let format = structure::dir_format(core, dir);
    let root =
        structure::indexed_block(core, dir, &format, LogicalBlock(0), DirBlock::Root, guard)?;
    let Some((hash, mut path)) = path_to(core, dir, &format, root, name, guard)? else {
        return Ok(None);
    };
    let leaf = path.leaf();
    let goes_on = move_right(core, dir, &format, &mut path, hash, guard)?;
    Ok(leaf.filter(|_| !goes_on))
}

/// Returns the hash of a name, and its path through the index below `root`; `None` if the hash
/// function is not known.
fn path_to<'g>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    root: &'g [u8],
    input: &[u8],
    guard: &'g Guard,
) -> Result<Option<(u32, IndexPath<'g>)>> {
    let place = |error: htree::HtreeError| Corrupt::from(error).in_inode(dir.nr());
    let info = htree::root_info(root).map_err(place)?;
    let Some(hasher) = structure::hasher(core, info.algorithm) else {
        return Ok(None);
    };
    let hash = hasher.hash(input).hash;
    let path = path_below(core, dir, format, root, hash, guard)?;
    Ok(Some((hash, path)))
}

/// Returns the path of a hash through the index below `root`.
fn path_below<'g>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    root: &'g [u8],
    hash: u32,
    guard: &'g Guard,
) -> Result<IndexPath<'g>> {
    let place = |error: htree::HtreeError| Corrupt::from(error).in_inode(dir.nr());
    let info = htree::root_info(root).map_err(place)?;
    let mut path = IndexPath {
        steps: [None; MAX_LEVELS],
        levels: usize::from(info.indirect_levels) + 1,
    };
    let top = Index::root(root).map_err(place)?;
    path.steps[0] = Some((top, top.search(hash)));
    descend(core, dir, format, &mut path, 0, hash, guard)?;
    Ok(path)
}

/// Fills the steps of `path` below `level` with the entries responsible for `hash`.
fn descend<'g>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    path: &mut IndexPath<'g>,
    level: usize,
    hash: u32,
    guard: &'g Guard,
) -> Result<()> {
    for below in level + 1..path.levels.min(MAX_LEVELS) {
        let block = path.steps[below - 1].and_then(|(index, position)| index.block(position));
        let Some(block) = block else { return Ok(()) };
        let bytes = structure::indexed_block(core, dir, format, block, DirBlock::Node, guard)?;
        let index = Index::node(bytes).map_err(|e| Corrupt::from(e).in_inode(dir.nr()))?;
        path.steps[below] = Some((index, index.search(hash)));
    }
    Ok(())
}

/// Moves the path to the next leaf if names with `hash` may continue there; returns whether it did.
fn move_right<'g>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    path: &mut IndexPath<'g>,
    hash: u32,
    guard: &'g Guard,
) -> Result<bool> {
    match path.next() {
        Some(next) if next.index.continues(next.position, hash) => {
            take(core, dir, format, path, next, guard)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Moves the path to an entry of an index block and, below it, to the lowest hash.
fn take<'g>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    path: &mut IndexPath<'g>,
    next: NextEntry<'g>,
    guard: &'g Guard,
) -> Result<()> {
    path.steps[next.level] = Some((next.index, next.position));
    // The lowest hash selects the first entry of each block below.
    descend(core, dir, format, path, next.level, 0, guard)
}

/// Calls `visit` with the leaves of the indexed directory `dir` in the order of the index, from the
/// one that is responsible for `hash` on. Visits as many leaves as are listed together, and further
/// ones as long as a hash continues in the next leaf. Returns the least hash of the next leaf, if
/// there is one.
pub(crate) fn visit_leaves(
    core: &Core,
    dir: &CachedInode,
    hash: u32,
    guard: &Guard,
    visit: &mut dyn FnMut(LogicalBlock) -> Result<()>,
) -> Result<Option<u32>> {
    let format = structure::dir_format(core, dir);
    let root =
        structure::indexed_block(core, dir, &format, LogicalBlock(0), DirBlock::Root, guard)?;
    let mut path = path_below(core, dir, &format, root, hash, guard)?;
    let mut visited = 0;
    while let Some(leaf) = path.leaf() {
        visit(leaf)?;
        visited += 1;
        let Some(next) = path.next() else {
            break;
        };
        let least = next.index.hash(next.position).unwrap_or(0);
        let goes_on = least & CONTINUES != 0;
        if visited >= READAHEAD_BLOCKS && !goes_on {
            return Ok(Some(least));
        }
        take(core, dir, &format, &mut path, next, guard)?;
    }
    Ok(None)
}
