//! **Purpose.** Changes the extent tree of a file, as part of a plan.
//!
//! **Not here.** The bytes of a node (`fourscore_ondisk::extent::edit`); choosing between the two
//! forms of a map ([`crate::map::update`]); reading the map ([`crate::map::lookup`]).
//!
//! **Model.** Every change descends from the root in the inode's slot to the leaf in question, adds
//! the nodes on the way to the plan, and changes that path. A change that finds no space in the
//! path returns the number of nodes that it needs; they are allocated, and the change is retried.
//! If the change is one of mapped blocks, the nodes may be allocated from a reserve
//! ([`crate::mount::metadata_reserve`]), so a hole can be punched on a full disk.
//!
//! **Locking.** The inode's lock is held.

use std::ops::Range;

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::extent::{
    self, Extent, ExtentEditError, ExtentState, ForParent, LOGICAL_END, LeafMut, NewNode, Node,
    NodeMut, Step,
};
use fourscore_ondisk::inode::InodeMut;
use fourscore_ondisk::{Corrupt, LogicalBlock, PhysBlock};

use crate::dir::changed::tag;
use crate::inode::cached::CachedInode;
use crate::map::account;
use crate::txn::fast_commit::reason::Reason;
use crate::txn::faults::Sabotage;
use crate::txn::plan::{NodeFor, Plan, RegionId};
use crate::txn::slot::{self, Slot};
use crate::{Error, Result};

/// The largest depth of a tree.
const MAX_LEVELS: usize = 6;

/// A node on the way down, except the root, which is in the slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Below {
    pub(crate) region: RegionId,
    block: PhysBlock,
}

/// The path from the root to a leaf.
#[derive(Debug, Default)]
pub(crate) struct Path {
    pub(crate) nodes: Vec<Below>,
    /// The child taken in each node except the leaf, from the root on.
    positions: Vec<usize>,
}

/// A file whose map is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped<'i> {
    pub(crate) inode: &'i CachedInode,
    pub(crate) slot: Slot,
}

impl Mapped<'_> {
    fn tag(&self) -> VerifiedAs {
        tag(Structure::ExtentNode, self.inode)
    }

    pub(crate) fn broken(&self, error: ExtentEditError) -> Error {
        match error {
            ExtentEditError::Node(error) => {
                Error::Corrupt(Corrupt::from(error).in_inode(self.inode.nr()))
            }
            ExtentEditError::Length { .. } | ExtentEditError::Logical { .. } => Error::FileTooLarge,
            other => Error::Io(std::io::Error::other(other)),
        }
    }
}

/// Inserts an extent into the tree, where nothing is mapped.
pub(crate) fn enter_extent(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    extent: Extent,
) -> Result<()> {
    plan.note_range(inode, extent);
    insert_extent(plan, Mapped { inode, slot }, extent, NodeFor::NewExtent)
}

fn insert_extent(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    extent: Extent,
    nodes: NodeFor,
) -> Result<()> {
    let path = descend(plan, file, extent.logical)?;
    let first = node(plan, file, path.nodes.last())?.first();
    if first.is_some_and(|first| extent.logical < first) {
        change_key(plan, &path);
    }
    with_nodes(plan, file, &path, nodes, |steps, new| {
        extent::insert(steps, extent, new).map(drop)
    })
}

/// Sets the state of all that the tree maps in `blocks` to `state`.
pub(crate) fn set_extent_state(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    blocks: Range<LogicalBlock>,
    state: ExtentState,
) -> Result<()> {
    let file = Mapped { inode, slot };
    let mut at = blocks.start;
    // Without the comparison, an extent that reaches behind the end would be found again and again.
    while at < blocks.end
        && let Some(found) = next_extent(plan, file, at, blocks.end)?
    {
        let part = found.logical.max(at)..found.logical_end().min(blocks.end);
        if found.state != state {
            match found.part(&part).filter(|_| state == ExtentState::Written) {
                Some(extent) => plan.note_range(inode, Extent { state, ..extent }),
                None => plan.taint(inode.nr(), Reason::RangeOperation),
            }
            // Changing the middle of an extent makes three of one. The longest written extent is
            // too long for an unwritten one.
            change_leaf(plan, file, part.start, 3, |leaf| {
                leaf.set_state(part.clone(), state)?;
                Ok(ForParent::Unchanged)
            })?;
        }
        at = part.end;
    }
    Ok(())
}

/// Returns the first extent in `blocks` in the tree that the plan makes: the part of it in
/// `blocks`.
pub(crate) fn first_extent(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    blocks: Range<LogicalBlock>,
) -> Result<Option<Extent>> {
    let found = next_extent(plan, Mapped { inode, slot }, blocks.start, blocks.end)?;
    Ok(found.and_then(|extent| extent.part(&blocks)))
}

/// Returns the last extent in `blocks` in the tree that the plan makes: the part of it in `blocks`.
pub(crate) fn last_extent(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    blocks: Range<LogicalBlock>,
) -> Result<Option<Extent>> {
    let file = Mapped { inode, slot };
    let mut until = blocks.end;
    while let Some(last) = until.0.checked_sub(1) {
        let path = descend(plan, file, LogicalBlock(last))?;
        if let Node::Leaf(leaf) = node(plan, file, path.nodes.last())?
            && let Some(extent) = leaf
                .iter()
                .take_while(|extent| extent.logical < until)
                .last()
        {
            return Ok(extent.part(&blocks));
        }
        // The preceding leaf is under the nearest ancestor with a child in front of the one taken.
        let mut before = None;
        for (level, position) in path.positions.iter().enumerate().rev() {
            let above = level.checked_sub(1).map(|nth| &path.nodes[nth]);
            if let Node::Inner(inner) = node(plan, file, above)?
                && *position > 0
                && let Some(child) = inner.get(*position, LOGICAL_END)
            {
                before = Some(child.logical.start);
                break;
            }
        }
        match before {
            Some(before) if before < until => until = before,
            _ => break,
        }
    }
    Ok(None)
}

/// Moves `extent`, which is mapped, to the logical block `to`, where nothing else is mapped.
pub(crate) fn move_extent(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    extent: Extent,
    to: LogicalBlock,
) -> Result<()> {
    plan.taint(inode.nr(), Reason::RangeOperation);
    let file = Mapped { inode, slot };
    let from = extent.logical..extent.logical_end();
    change_leaf(plan, file, from.start, 1, |leaf| {
        leaf.remove(from.clone(), |_| ())
    })?;
    plan.raise_sequence();
    let moved = Extent {
        logical: to,
        ..extent
    };
    insert_extent(plan, file, moved, NodeFor::Change)
}

/// Descends to the leaf for `logical`.
pub(crate) fn descend(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    logical: LogicalBlock,
) -> Result<Path> {
    let core = &*plan.mount.core;
    let physical = core.geometry().data_blocks();
    let mut path = Path::default();
    let mut end = LOGICAL_END;
    loop {
        let child = {
            let node = node(plan, file, path.nodes.last())?;
            let Node::Inner(inner) = node else {
                return Ok(path);
            };
            let taken = (0..inner.len())
                .rev()
                .find(|&at| {
                    inner
                        .get(at, end)
                        .is_some_and(|it| it.logical.start <= logical)
                })
                .unwrap_or(0);
            path.positions.push(taken);
            inner.get(taken, end)
        };
        let Some(child) = child.filter(|_| path.nodes.len() < MAX_LEVELS) else {
            let found = u16::try_from(path.nodes.len()).unwrap_or(u16::MAX);
            return Err(file.broken(extent::ExtentError::TooDeep { found }.into()));
        };
        end = child.logical.end;
        let seed = file.inode.seed();
        let region = plan.block(child.block, file.tag(), |bytes| {
            extent::check_node(bytes, &child, &physical, seed)
                .map_err(|error| Corrupt::from(error).in_inode(file.inode.nr()))
        })?;
        path.nodes.push(Below {
            region,
            block: child.block,
        });
    }
}

/// Returns a node of the tree that the plan makes: the root if `below` is `None`.
pub(crate) fn node<'p>(
    plan: &'p Plan<'_>,
    file: Mapped<'_>,
    below: Option<&Below>,
) -> Result<Node<'p>> {
    let bytes = match below {
        Some(below) => plan.bytes(below.region),
        None => slot::i_block(plan, file.slot)?,
    };
    Node::parse(bytes).map_err(|error| file.broken(error.into()))
}

/// Calls `change` with the nodes of `path`, root first, and with as many new nodes as `change`
/// reported to need.
fn with_nodes<R>(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    path: &Path,
    nodes: NodeFor,
    mut change: impl FnMut(
        &mut [Step<'_>],
        &mut [NewNode<'_>],
    ) -> std::result::Result<R, ExtentEditError>,
) -> Result<R> {
    let mut fresh: Vec<Below> = Vec::new();
    loop {
        let changed = on_path(plan, file, path, &fresh, &mut change)?;
        let needed = match changed {
            Err(ExtentEditError::NewNodes { needed }) if needed > fresh.len() => needed,
            other => return other.map_err(|error| file.broken(error)),
        };
        plan.raise_sequence();
        let goal = match path.nodes.last() {
            Some(leaf) => leaf.block,
            None => account::goal_behind(plan, file.inode, LogicalBlock(0))?,
        };
        while fresh.len() < needed {
            let nr = file.inode.nr();
            let (block, region) = plan.allocate_node(nr, goal, file.tag(), nodes)?;
            account::count_clusters(plan, file.slot, 1)?;
            fresh.push(Below { region, block });
        }
    }
}

fn on_path<R>(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    path: &Path,
    fresh: &[Below],
    change: &mut impl FnMut(
        &mut [Step<'_>],
        &mut [NewNode<'_>],
    ) -> std::result::Result<R, ExtentEditError>,
) -> Result<std::result::Result<R, ExtentEditError>> {
    let mount = plan.mount;
    let superblock = mount.core.superblock();
    let in_inode = |error| Corrupt::from(error).in_inode(file.inode.nr());
    if path.nodes.is_empty() && fresh.is_empty() {
        // The whole tree is in the inode, as it is for most files.
        let slot = plan.bytes_mut(file.slot.region());
        let mut inode = InodeMut::of(slot, superblock).map_err(in_inode)?;
        let (bytes, position): (&mut [u8], _) = (inode.i_block_mut(), 0);
        return Ok(change(&mut [Step { bytes, position }], &mut []));
    }
    let below = path.nodes.iter().chain(fresh);
    let wanted: Vec<_> = std::iter::once(file.slot.region())
        .chain(below.map(|below| below.region))
        .collect();
    // A node cannot be below itself.
    let Some(all) = plan.all_mut(&wanted) else {
        return Ok(Err(ExtentEditError::Shape));
    };
    let mut all = all.into_iter();
    let slot = all.next().unwrap_or_default();
    let mut inode = InodeMut::of(slot, superblock).map_err(in_inode)?;
    let root: &mut [u8] = inode.i_block_mut();
    let nodes = std::iter::once(root).chain(all.by_ref().take(path.nodes.len()));
    let positions = path.positions.iter().copied().chain([0]);
    let mut steps: Vec<Step<'_>> = nodes
        .zip(positions)
        .map(|(bytes, position)| Step { bytes, position })
        .collect();
    let mut new: Vec<NewNode<'_>> = fresh
        .iter()
        .zip(all)
        .map(|(below, bytes)| NewNode {
            at: below.block,
            bytes,
        })
        .collect();
    Ok(change(&mut steps, &mut new))
}

/// Changes the leaf for `logical`, to which `change` adds at most `more` entries, and frees the
/// nodes that it leaves empty.
pub(crate) fn change_leaf(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    logical: LogicalBlock,
    more: u16,
    mut change: impl FnMut(&mut LeafMut<'_>) -> std::result::Result<ForParent, ExtentEditError>,
) -> Result<()> {
    loop {
        let path = descend(plan, file, logical)?;
        match change_at(plan, file, &path, &mut change)? {
            Fit::Changed => return Ok(()),
            Fit::Full => with_nodes(plan, file, &path, NodeFor::Change, |steps, new| {
                extent::make_room(steps, more, new).map(drop)
            })?,
        }
    }
}

/// Whether a leaf had the slots for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Changed,
    /// It had not, and nothing is changed.
    Full,
}

/// Changes the leaf for `logical` if it has the slots for that. `change` keeps the leaf's first
/// key.
pub(crate) fn change_fitting(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    logical: LogicalBlock,
    change: impl Fn(&mut LeafMut<'_>) -> std::result::Result<(), ExtentEditError>,
) -> Result<Fit> {
    let path = descend(plan, file, logical)?;
    change_at(plan, file, &path, &mut |leaf| {
        change(leaf)?;
        Ok(ForParent::Unchanged)
    })
}

/// Changes the leaf at the end of `path` if it has the slots for that, and frees the nodes that
/// this leaves empty.
fn change_at(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    path: &Path,
    change: &mut impl FnMut(&mut LeafMut<'_>) -> std::result::Result<ForParent, ExtentEditError>,
) -> Result<Fit> {
    let mut for_parent = ForParent::Unchanged;
    let changed = on_path(plan, file, path, &[], &mut |steps, _| {
        let Some((leaf, above)) = steps.split_last_mut() else {
            return Err(ExtentEditError::Shape);
        };
        let NodeMut::Leaf(mut leaf) = NodeMut::parse(leaf.bytes)? else {
            return Err(ExtentEditError::Shape);
        };
        for_parent = change(&mut leaf)?;
        extent::carry_up(above, for_parent)
    })?;
    if for_parent != ForParent::Unchanged {
        change_key(plan, path);
    }
    match changed {
        Ok(gone) => {
            let kept = path.nodes.len().saturating_sub(gone);
            free_nodes(plan, file, &path.nodes[kept..])?;
            Ok(Fit::Changed)
        }
        Err(ExtentEditError::Full { .. }) => Ok(Fit::Full),
        Err(error) => Err(file.broken(error)),
    }
}

/// Raises the sequence count, since the first key of the leaf at the end of `path` changes, and
/// that of nodes above with it. A reader that sees the old key in one node and the new key in the
/// other would take the tree for corrupt.
fn change_key(plan: &mut Plan<'_>, path: &Path) {
    if !path.nodes.is_empty() && !plan.mount.core.faults.lacks(Sabotage::UnsequencedKeyChange) {
        plan.raise_sequence();
    }
}

pub(crate) fn free_nodes(plan: &mut Plan<'_>, file: Mapped<'_>, nodes: &[Below]) -> Result<()> {
    for node in nodes {
        // A reader with the old root may look for the node in vain.
        plan.raise_sequence();
        plan.free_metadata(node.block)?;
        account::count_clusters(plan, file.slot, -1)?;
    }
    Ok(())
}

/// Returns the first extent that ends behind `from` and begins before `end`, in the tree that the
/// plan makes; `None` if the range is empty.
pub(crate) fn next_extent(
    plan: &mut Plan<'_>,
    file: Mapped<'_>,
    from: LogicalBlock,
    end: LogicalBlock,
) -> Result<Option<Extent>> {
    let mut from = from;
    while from < end {
        let path = descend(plan, file, from)?;
        if let Node::Leaf(leaf) = node(plan, file, path.nodes.last())?
            && let Some(extent) = leaf.iter().find(|extent| extent.logical_end() > from)
        {
            return Ok(Some(extent).filter(|extent| extent.logical < end));
        }
        // The next leaf is under the nearest ancestor with a child behind the one taken.
        let mut next = None;
        for (level, position) in path.positions.iter().enumerate().rev() {
            let above = level.checked_sub(1).map(|nth| &path.nodes[nth]);
            if let Node::Inner(inner) = node(plan, file, above)?
                && let Some(child) = inner.get(position + 1, LOGICAL_END)
            {
                next = Some(child.logical.start);
                break;
            }
        }
        match next {
            Some(next) if next > from => from = next,
            _ => break,
        }
    }
    Ok(None)
}
