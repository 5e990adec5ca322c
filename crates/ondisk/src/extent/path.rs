//! **Purpose.** Changes of a tree along one path, from the bytes of its nodes: an insertion that
//! splits what is full, and what a change of a leaf means to the nodes above.
//!
//! **Not here.** Finding the path, and the blocks of new nodes: [`new_nodes`] says how many the
//! caller must have at hand.
//!
//! **Model.** A path begins with the root, and each [`Step`] says which child leads on. An
//! insertion into a full leaf takes a new node on each level up to the lowest one with room:
//!
//! ```text
//!        [ a |   ]                      [ a | e ]          the lowest node with room
//!          /                            /      \
//!   [ a  b  c  d ]   full        [ a b c d ]  [ e ]        split at its end: a new node
//!              /                          /      \
//!        [ x x x x ] full          [ x x x x ]  [ new ]
//! ```

use super::edit::{ExtentEditError, Fill, ForParent, NodeMut, grow, init_root, new_nodes};
use super::{Extent, InnerMut, LeafMut, ROOT_BYTES};
use crate::types::{LogicalBlock, PhysBlock};

/// A node on the way from the root to a leaf.
#[derive(Debug)]
pub struct Step<'a> {
    /// All its bytes.
    pub bytes: &'a mut [u8],
    /// The position of the child that leads on; of no meaning in the leaf.
    pub position: usize,
}

/// A block that a new node may have.
#[derive(Debug)]
pub struct NewNode<'a> {
    /// Where it is.
    pub at: PhysBlock,
    /// Its bytes, whatever they are.
    pub bytes: &'a mut [u8],
}

impl Step<'_> {
    fn again(&mut self) -> Step<'_> {
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

/// Adds an extent to the leaf at the end of `path`, which is the one responsible for it, and tells
/// the nodes above. Takes nodes of `new` from the front as far as they are needed, and gives their
/// number; the path is then no longer the way to the extent.
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
    add_child(above, (key, node.at), &mut new)?;
    Ok(new.used)
}

/// Splits the leaf at the end of `path` in the middle, or moves it out of the root, if it has fewer
/// than `entries` free slots: what changes an extent in its midst needs up to two. Takes nodes of
/// `new` as [`insert`] does; if any, the path is no longer one.
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
        add_child(above, (key, node.at), &mut new)?;
    }
    Ok(new.used)
}

/// The nodes that an insertion may take.
struct Supply<'n, 'a> {
    nodes: &'n mut [NewNode<'a>],
    used: usize,
    /// Whether no node of the path has room.
    all_full: bool,
}

/// The nodes of a path, and those that came in between.
type Steps<'s> = Vec<Step<'s>>;

impl<'n, 'a> Supply<'n, 'a> {
    /// As many nodes as it takes to split the leaf at the end of `path`.
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

/// The path, one node longer if the root had to make room.
fn deepened<'s>(
    path: &'s mut [Step<'_>],
    new: &mut Supply<'s, '_>,
) -> Result<Steps<'s>, ExtentEditError> {
    let mut steps: Steps<'s> = path.iter_mut().map(Step::again).collect();
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

/// Adds a child behind the one that leads on, splitting nodes of `above` from the lowest up to the
/// first one with room.
fn add_child(
    above: &mut [Step<'_>],
    child: (LogicalBlock, PhysBlock),
    new: &mut Supply<'_, '_>,
) -> Result<(), ExtentEditError> {
    let mut child = child;
    for step in above.iter_mut().rev() {
        let position = step.position + 1;
        let mut old = step.inner()?;
        if old.fill().free() > 0 {
            return carry_nothing(old.insert(child.0, child.1)?);
        }
        let node = new.take()?;
        let key = split_inner(&mut old, position, node.bytes, child)?;
        child = (key, node.at);
    }
    Err(ExtentEditError::Shape)
}

/// Splits a full inner node at `position` to add a child there; `block` becomes the new node, whose
/// first key is given.
fn split_inner(
    old: &mut InnerMut<'_>,
    position: usize,
    block: &mut [u8],
    child: (LogicalBlock, PhysBlock),
) -> Result<LogicalBlock, ExtentEditError> {
    let first = old.split_off(position, block)?;
    if let Some(key) = first {
        carry_nothing(old.insert(child.0, child.1)?)?;
        return Ok(key);
    }
    let _key_is_known = inner(block)?.insert(child.0, child.1)?;
    Ok(child.0)
}

/// A child that is added behind another one does not change its parent's first key.
fn carry_nothing(what: ForParent) -> Result<(), ExtentEditError> {
    match what {
        ForParent::Unchanged => Ok(()),
        ForParent::NewKey(_) | ForParent::Emptied => Err(ExtentEditError::Shape),
    }
}

/// Tells the nodes of `above`, which ends with the parent of a node that was changed, what the
/// change means to them. Gives the number of nodes that are no longer in the tree: the changed one
/// and those right above it, as far as it was all they held. If all of the tree went, the root is
/// an empty leaf.
///
/// # Errors
/// If the path is not one; a sound path cannot fail.
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
