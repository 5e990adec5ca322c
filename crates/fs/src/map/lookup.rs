//! **Purpose.** Looks up where a block of a file lies: one function,
//! [`lookup::map`](crate::map::lookup::map), for extent trees and block maps.
//!
//! **Model.** A file's logical blocks are cut into runs; `map` returns the run that starts at the
//! given block. A hole may be returned in pieces (a leaf of a tree does not know the extents of the
//! next leaf), so callers that need the whole hole call `map` repeatedly.
//!
//! ```text
//! map(b) = (blocks n >= 1, target)      target of b + i is target.physical + i  for i < n
//! ```
//!
//! **Invariants.** Every result makes progress (`blocks >= 1`) and stays inside the file system. A
//! walk down a tree ends because each node's depth is compared with the depth that its parent gave,
//! for cached nodes too: a node that is its own child is `Corrupt`, not a loop.
//!
//! **Locking.** None. Nodes are read from the buffer cache under the caller's guard.

use fourscore_block::Structure;
use fourscore_ondisk::extent::{self, Child, LOGICAL_END, Node};
use fourscore_ondisk::{Corrupt, LogicalBlock, PhysBlock, blockmap};
use fourscore_sync::profile::{self, Section};

use crate::core::Core;
use crate::guard::{Guard, with_guard};
use crate::inode::cached::{CachedInode, Layout};
use crate::map::mapping::{Mapping, Target};
use crate::{Result, metadata};

/// Returns the run of `inode` that starts at `logical`.
pub(crate) fn map(
    core: &Core,
    inode: &CachedInode,
    logical: LogicalBlock,
    guard: &Guard,
) -> Result<Mapping> {
    let _section = profile::enter(Section::Map);
    let Some(edits) = core.range_edits(inode.nr()) else {
        return map_on_disk(core, inode, logical, guard);
    };
    match edits.at(logical) {
        Some(edited) => Ok(edited),
        None => {
            let on_disk = map_on_disk(core, inode, logical, guard)?;
            Ok(on_disk.until(edits.next_after(logical)))
        }
    }
}

/// As [`map`], for a caller that holds the inode's lock and no guard.
pub(crate) fn map_locked(
    core: &Core,
    inode: &CachedInode,
    logical: LogicalBlock,
) -> Result<Mapping> {
    with_guard(core, |guard| map(core, inode, logical, guard))
}

fn map_on_disk(
    core: &Core,
    inode: &CachedInode,
    logical: LogicalBlock,
    guard: &Guard,
) -> Result<Mapping> {
    match inode.layout() {
        Layout::Extents => map_in_tree(core, inode, logical, guard),
        Layout::BlockMap => map_through_pointers(core, inode, logical, guard),
        Layout::Inline | Layout::FastSymlink | Layout::Nothing => {
            Ok(Mapping::hole(logical, LOGICAL_END))
        }
    }
}

fn map_in_tree(
    core: &Core,
    inode: &CachedInode,
    logical: LogicalBlock,
    guard: &Guard,
) -> Result<Mapping> {
    let in_inode = |error: extent::ExtentError| Corrupt::from(error).in_inode(inode.nr());
    let mut node = Node::parse(inode.i_block()).map_err(in_inode)?;
    let mut end = LOGICAL_END;
    loop {
        let inner = match node {
            Node::Leaf(leaf) => {
                return Ok(match leaf.find(logical) {
                    Some(extent) if extent.logical <= logical => Mapping::inside(&extent, logical),
                    Some(extent) => Mapping::hole(logical, extent.logical),
                    None => Mapping::hole(logical, end),
                });
            }
            Node::Inner(inner) => inner,
        };
        let Some(child) = inner.find(logical, end) else {
            return Ok(Mapping::hole(logical, end));
        };
        if logical < child.logical.start {
            return Ok(Mapping::hole(logical, child.logical.start));
        }
        end = child.logical.end;
        node = extent_node(core, inode, &child, guard)?;
    }
}

/// Reads and checks the extent node that `child` describes.
fn extent_node<'g>(
    core: &Core,
    inode: &CachedInode,
    child: &Child,
    guard: &'g Guard,
) -> Result<Node<'g>> {
    let place = |error: extent::ExtentError| {
        Corrupt::from(error)
            .in_inode(inode.nr())
            .in_block(child.block)
    };
    let physical = core.geometry().data_blocks();
    let check =
        |bytes: &[u8]| extent::check_node(bytes, child, &physical, inode.seed()).map_err(place);
    let bytes = metadata::metadata(
        core,
        child.block,
        Structure::ExtentNode,
        inode.nr(),
        guard,
        check,
    )?;
    let node = Node::parse(bytes).map_err(place)?;
    // The node may have been checked before as another node of this inode. With the right depth and
    // the right first key it cannot be reached by two paths, so a walk ends.
    if node.depth() != child.depth || node.first().is_some_and(|key| key != child.logical.start) {
        check(bytes)?;
    }
    Ok(node)
}

fn map_through_pointers(
    core: &Core,
    inode: &CachedInode,
    logical: LogicalBlock,
    guard: &Guard,
) -> Result<Mapping> {
    let block_size = core.geometry().block_size();
    let end = blockmap::logical_end(block_size);
    let Some(path) = blockmap::Path::to(logical, block_size) else {
        return Ok(Mapping::hole(logical, LOGICAL_END));
    };
    let mut bytes = inode.i_block();
    let (&last, above) = path.slots().split_last().unwrap_or((&0, &[]));
    for (level, &slot) in above.iter().enumerate() {
        let Some(block) = blockmap::pointer(bytes, slot) else {
            let below = u32::try_from(path.blocks_below(level)).unwrap_or(u32::MAX);
            return Ok(Mapping::hole(
                logical,
                LogicalBlock(logical.0.saturating_add(below)),
            ));
        };
        bytes = pointer_block(core, inode, block, guard)?;
    }
    let limit = end.0.saturating_sub(logical.0);
    let run = blockmap::run(bytes, last, limit);
    let (blocks, physical) = run.map_or((1, None), |run| (run.pointers, run.physical));
    let target = physical.map_or(Target::Hole, Target::Written);
    Ok(Mapping {
        logical,
        blocks,
        target,
    })
}

/// Reads and checks an indirect block.
fn pointer_block<'g>(
    core: &Core,
    inode: &CachedInode,
    block: PhysBlock,
    guard: &'g Guard,
) -> Result<&'g [u8]> {
    let physical = core.geometry().data_blocks();
    metadata::metadata(
        core,
        block,
        Structure::IndirectMap,
        inode.nr(),
        guard,
        |bytes| {
            blockmap::check_block(bytes, core.geometry().block_size(), &physical)
                .map_err(|error| Corrupt::from(error).in_inode(inode.nr()).in_block(block))
        },
    )
}
