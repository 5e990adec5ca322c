//! **Purpose.** Changes of a tree along one path: an insertion that splits full nodes, and the
//! update of the nodes above a changed leaf.
//!
//! **Not here.** Finding the path, and allocating blocks for new nodes: [`new_nodes`] returns the
//! number that the caller must supply.
//!
//! **Model.** A path begins with the root, and each [`Step`] has the position of the next child. An
//! insertion into a full leaf takes a new node on each level up to the lowest one with a free slot:
//!
//! ```text
//!        [ a |   ]                      [ a | e ]          the lowest node with a free slot
//!          /                            /      \
//!   [ a  b  c  d ]   full        [ a b c d ]  [ e ]        split at its end: a new node
//!              /                          /      \
//!        [ x x x x ] full          [ x x x x ]  [ new ]
//! ```

use super::edit::{ExtentEditError, Fill, ForParent, NodeMut, grow, init_root, new_nodes};
use super::{Extent, InnerMut, LeafMut, ROOT_BYTES};
use crate::types::{LogicalBlock, PhysBlock};

/// A node on the path from the root to a leaf.
#[derive(Debug)]
pub struct Step<'a> {
    /// All its bytes.
    pub bytes: &'a mut [u8],
    /// The position of the next node of the path; no meaning in the leaf.
    pub position: usize,
}

/// A block for a new node.
#[derive(Debug)]
pub struct NewNode<'a> {
    /// The block.
    pub at: PhysBlock,
    /// Its bytes, with any content.
    pub bytes: &'a mut [u8],
}

impl Step<'_> {
    fn reborrow(&mut self) -> Step<'_> {
        Step {
            bytes: self.bytes,
            position: self.position,
        }
    }

    fn leaf(&mut self) -> Result<LeafMut<'_>, ExtentEditError> {
        leaf(self.bytes)
    }

    fn inner(&mut self) -> Result<InnerMut<'_>, ExtentEditError> {
        inner(self.bytes)
    }
}

fn i_block(bytes: &mut [u8]) -> Result<&mut [u8; ROOT_BYTES], ExtentEditError> {
    bytes.try_into().map_err(|_| ExtentEditError::Shape)
}

fn leaf(bytes: &mut [u8]) -> Result<LeafMut<'_>, ExtentEditError> {
    match NodeMut::parse(bytes)? {
        NodeMut::Leaf(leaf) => Ok(leaf),
        NodeMut::Inner(_) => Err(ExtentEditError::Shape),
    }
}

fn inner(bytes: &mut [u8]) -> Result<InnerMut<'_>, ExtentEditError> {
    match NodeMut::parse(bytes)? {
        NodeMut::Inner(inner) => Ok(inner),
        NodeMut::Leaf(_) => Err(ExtentEditError::Shape),
    }
}

/// Adds an extent to the leaf at the end of `path`, whose range includes it, and updates the nodes
/// above. Takes the needed nodes of `new` from the front, and returns their number; if it is not 0,
/// the path no longer leads to the extent.
///
/// # Errors
/// As [`LeafMut::insert`]; `NewNodes` if there are too few. Then nothing is changed.
pub fn insert(
    path: &mut [Step<'_>],
    extent: Extent,
    new: &mut [NewNode<'_>],
) -> Result<usize, ExtentEditError> {
    let (last, above) = path.split_last_mut().ok_or(ExtentEditError::Shape)?;
    match last.leaf()?.insert(extent) {
        Ok(what) => {
            carry_up(above, what)?;
            Ok(0)
        }
        Err(ExtentEditError::Full { .. }) => insert_splitting(path, extent, new),
        Err(other) => Err(other),
    }
}

fn insert_splitting(
    path: &mut [Step<'_>],
    extent: Extent,
    new: &mut [NewNode<'_>],
) -> Result<usize, ExtentEditError> {
    let mut new = Supply::for_full_leaf(path, new)?;
    let mut steps = deepened(path, &mut new)?;
    let (last, above) = steps.split_last_mut().ok_or(ExtentEditError::Shape)?;
    let mut old = last.leaf()?;
    if old.fill().free() > 0 {
        carry_up(above, old.insert(extent)?)?;
        return Ok(new.used);
    }
    let node = new.take()?;
    let position = old.insert_position(extent.logical);
    let key = match old.split_off(position, node.bytes)? {
        Some(key) => {
            carry_up(above, old.insert(extent)?)?;
            key
        }
        None => {
            let _key_is_known = leaf(node.bytes)?.insert(extent)?;
            extent.logical
        }
    };
    let block = node.at;
    add_child(above, NewIndex { key, block }, &mut new)?;
    Ok(new.used)
}

/// Makes sure that the leaf at the end of `path` has `entries` free slots (a change of the middle
/// of an extent needs up to two): splits it in the middle, or moves it out of the root. Takes nodes
/// of `new` as [`insert`] does; if any, the path is no longer valid.
///
/// # Errors
/// `NewNodes` if there are too few. Then nothing is changed.
pub fn make_room(
    path: &mut [Step<'_>],
    entries: u16,
    new: &mut [NewNode<'_>],
) -> Result<usize, ExtentEditError> {
    let (last, _) = path.split_last().ok_or(ExtentEditError::Shape)?;
    if Fill::of(last.bytes)?.free() >= entries {
        return Ok(0);
    }
    let mut new = Supply::for_full_leaf(path, new)?;
    let mut steps = deepened(path, &mut new)?;
    let (last, above) = steps.split_last_mut().ok_or(ExtentEditError::Shape)?;
    let mut old = last.leaf()?;
    if old.fill().free() < entries {
        let node = new.take()?;
        let middle = old.as_leaf().len() / 2;
        let key = old.split_off(middle, node.bytes)?;
        let key = key.ok_or(ExtentEditError::Shape)?;
        let block = node.at;
        add_child(above, NewIndex { key, block }, &mut new)?;
    }
    Ok(new.used)
}

/// The nodes that an insertion may take.
struct Supply<'n, 'a> {
    nodes: &'n mut [NewNode<'a>],
    used: usize,
    /// Whether no node of the path has a free slot.
    all_full: bool,
}

/// An index to be added to an inner node.
#[derive(Clone, Copy)]
struct NewIndex {
    /// The first key of the child.
    key: LogicalBlock,
    /// The block of the child.
    block: PhysBlock,
}

/// The nodes of a path, including new ones.
type Steps<'s> = Vec<Step<'s>>;

impl<'n, 'a> Supply<'n, 'a> {
    /// The nodes that are needed to split the leaf at the end of `path`.
    fn for_full_leaf(
        path: &[Step<'_>],
        new: &'n mut [NewNode<'a>],
    ) -> Result<Self, ExtentEditError> {
        let mut fills = Vec::with_capacity(path.len());
        for step in path {
            fills.push(Fill::of(step.bytes)?);
        }
        if let Some(leaf) = fills.last_mut() {
            leaf.entries = leaf.max;
        }
        let needed: usize = new_nodes(&fills, 1).into();
        let nodes = new.get_mut(..needed);
        Ok(Self {
            nodes: nodes.ok_or(ExtentEditError::NewNodes { needed })?,
            used: 0,
            all_full: fills.iter().all(|fill| fill.free() == 0),
        })
    }

    fn take(&mut self) -> Result<NewNode<'n>, ExtentEditError> {
        let needed = self.used + 1;
        let (first, rest) = std::mem::take(&mut self.nodes)
            .split_first_mut()
            .ok_or(ExtentEditError::NewNodes { needed })?;
        self.nodes = rest;
        self.used = needed;
        Ok(NewNode {
            at: first.at,
            bytes: first.bytes,
        })
    }
}

/// The path. If all nodes are full, the root is moved to a new node, and the path is one node
/// longer.
fn deepened<'s>(
    path: &'s mut [Step<'_>],
    new: &mut Supply<'s, '_>,
) -> Result<Steps<'s>, ExtentEditError> {
    let mut steps: Steps<'s> = path.iter_mut().map(Step::reborrow).collect();
    if new.all_full {
        let node = new.take()?;
        let root = steps.first_mut().ok_or(ExtentEditError::Shape)?;
        grow(i_block(root.bytes)?, node.bytes, node.at)?;
        let position = std::mem::replace(&mut root.position, 0);
        let child = Step {
            bytes: node.bytes,
            position,
        };
        steps.insert(1, child);
    }
    Ok(steps)
}

/// Adds a child after that of the path, and splits nodes of `above` from the lowest up to the first
/// one with a free slot.
fn add_child(
    above: &mut [Step<'_>],
    mut child: NewIndex,
    new: &mut Supply<'_, '_>,
) -> Result<(), ExtentEditError> {
    for step in above.iter_mut().rev() {
        let position = step.position + 1;
        let mut old = step.inner()?;
        if old.fill().free() > 0 {
            return check_unchanged(old.insert(child.key, child.block)?);
        }
        let node = new.take()?;
        let key = split_inner(&mut old, position, node.bytes, child)?;
        let block = node.at;
        child = NewIndex { key, block };
    }
    Err(ExtentEditError::Shape)
}

/// Splits a full inner node at `position` to add a child there; `block` becomes the new node, whose
/// first key is returned.
fn split_inner(
    old: &mut InnerMut<'_>,
    position: usize,
    block: &mut [u8],
    child: NewIndex,
) -> Result<LogicalBlock, ExtentEditError> {
    let first = old.split_off(position, block)?;
    if let Some(key) = first {
        check_unchanged(old.insert(child.key, child.block)?)?;
        return Ok(key);
    }
    let _key_is_known = inner(block)?.insert(child.key, child.block)?;
    Ok(child.key)
}

/// Checks that an added child, which follows another one, does not change its parent's first key.
fn check_unchanged(what: ForParent) -> Result<(), ExtentEditError> {
    match what {
        ForParent::Unchanged => Ok(()),
        ForParent::NewKey(_) | ForParent::Emptied => Err(ExtentEditError::Shape),
    }
}

/// Applies the effect `what` of a change of a node to the nodes of `above`, which ends with its
/// parent. Returns the number of nodes that are no longer in the tree: the changed one, if it is
/// empty, and those right above it that held nothing else. If the whole tree was removed, the root
/// is an empty leaf.
///
/// # Errors
/// If `above` is not a valid path.
pub fn carry_up(above: &mut [Step<'_>], what: ForParent) -> Result<usize, ExtentEditError> {
    let (mut what, mut gone) = (what, 0);
    for step in above.iter_mut().rev() {
        let position = step.position;
        what = match what {
            ForParent::Unchanged => return Ok(gone),
            ForParent::NewKey(key) => step.inner()?.set_key(position, key)?,
            ForParent::Emptied => {
                gone += 1;
                step.inner()?.remove(position)?
            }
        };
    }
    if let (ForParent::Emptied, Some(root)) = (what, above.first_mut()) {
        init_root(i_block(root.bytes)?);
    }
    Ok(gone)
}
