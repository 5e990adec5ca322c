//! **Purpose.** Writing index blocks, and adding a leaf to the index of a directory.
//!
//! **Not here.** Leaves (`split`, `dirent`), allocating blocks, checksums, which are sealed once
//! per commit.
//!
//! **Model.** A new leaf gets an entry after that of the leaf it was split from. If the index block
//! is full, its upper half moves to a new one, which gets an entry in the level above, and so on.
//! If all are full up to the root, the root's entries move to a new block and the tree has one
//! level more: nodes have a higher capacity than the root, so one step is enough.
//!
//! ```text
//! growth(path, hash)       the new blocks that are needed; nothing changes
//! add_leaf(path, leaf, ..) the change, from the bottom up
//! ```
//!
//! **Invariants.** Blocks that passed the checks of `htree` before a change pass them afterwards,
//! once sealed, if the size of the directory includes the new blocks. An error leaves all blocks
//! unchanged.
//!
//! **References.** Linux, `fs/ext4/namei.c`: the halves are the same.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{
    HtreeError, INFO_LENGTH, Index, IndexLevels, NODE_ENTRIES_AT, ROOT_ENTRIES_AT, ROOT_INFO_AT,
    RawEntry, RawRootInfo, RootInfo, limit_of, raw_info, tail_bytes,
};
use crate::dirent::write::{LeafWriter, set_rec_len};
use crate::dirent::{DirFormat, DirentError, Dots};
use crate::dirhash::HashAlgorithm;
use crate::types::LogicalBlock;

/// The maximum number of new index blocks for [`add_leaf`]: one for each level below the root.
pub const MAX_NEW_NODES: usize = 2;

/// A block below an index block, and its lowest hash. The low bit of the hash means that names with
/// the hash below it begin in the block before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// The lowest hash.
    pub hash: u32,
    /// The logical block of the directory.
    pub block: LogicalBlock,
}

/// The entries of an index block, to be changed.
#[derive(Debug)]
pub struct IndexMut<'a> {
    /// All entries up to the limit.
    slots: &'a mut [RawEntry],
    len: usize,
}

impl<'a> IndexMut<'a> {
    /// The entries of a root.
    ///
    /// # Errors
    /// If limit or count is invalid, which is impossible in a checked block.
    pub fn root(block: &'a mut [u8]) -> Result<Self, HtreeError> {
        Self::at(block, ROOT_ENTRIES_AT)
    }

    /// The entries of an index block that is not the root.
    ///
    /// # Errors
    /// If limit or count is invalid, which is impossible in a checked block.
    pub fn node(block: &'a mut [u8]) -> Result<Self, HtreeError> {
        Self::at(block, NODE_ENTRIES_AT)
    }

    fn at(block: &'a mut [u8], at: usize) -> Result<Self, HtreeError> {
        let index = Index::at(block, at)?;
        let (len, limit) = (index.len(), index.limit());
        let expected = limit_of(block.len(), at, 0);
        if limit > expected {
            return Err(HtreeError::Limit {
                found: limit,
                expected,
            });
        }
        if len > limit {
            return Err(HtreeError::Count { found: len, limit });
        }
        let too_short = HtreeError::TooShort { found: block.len() };
        block
            .get_mut(at..)
            .and_then(|bytes| <[RawEntry]>::mut_from_prefix_with_elems(bytes, limit).ok())
            .map(|(slots, _)| Self { slots, len })
            .ok_or(too_short)
    }

    /// Adds an entry after all others.
    ///
    /// # Errors
    /// If there is no space, or an entry with a higher hash.
    pub fn push(&mut self, child: Child) -> Result<(), HtreeError> {
        self.insert_after(self.len - 1, child)
    }

    /// Adds an entry after that at `position`.
    ///
    /// # Errors
    /// If there is no space or no such position, or the hash is not between those of its
    /// neighbours.
    pub fn insert_after(&mut self, position: usize, child: Child) -> Result<(), HtreeError> {
        let (at, limit) = (position + 1, self.slots.len());
        if self.len >= limit || at > self.len {
            return Err(HtreeError::Count {
                found: self.len.max(at) + 1,
                limit,
            });
        }
        self.as_index().check_next(position, child.hash)?;
        self.slots.copy_within(at..self.len, at + 1);
        self.put(at, child);
        self.set_len(self.len + 1);
        Ok(())
    }

    fn as_index(&self) -> Index<'_> {
        Index {
            entries: self.slots.get(..self.len).unwrap_or(&[]),
        }
    }

    fn put(&mut self, at: usize, child: Child) {
        if let Some(slot) = self.slots.get_mut(at) {
            slot.hash = child.hash.into();
            slot.block = child.block.0.into();
        }
    }

    /// Stores the count. Limit and count fit 16 bits, since the length of a block fits 17.
    fn set_len(&mut self, len: usize) {
        self.len = len;
        let [limit, count] = [self.slots.len(), len].map(|n| u16::try_from(n).unwrap_or(u16::MAX));
        if let Some(first) = self.slots.first_mut() {
            first.hash = (u32::from(limit) | u32::from(count) << 16).into();
        }
    }

    /// Replaces all entries with those of `from`, which fit.
    fn copy_from(&mut self, from: &[RawEntry]) {
        if let Some(to) = self.slots.get_mut(..from.len()) {
            to.copy_from_slice(from);
            self.set_len(from.len());
        }
    }
}

/// Sets the limit of a root to the capacity that it has in this format, which may have got or lost
/// checksums. `false`, and nothing is changed, if it has more entries than that.
///
/// # Errors
/// If the block has no valid count.
pub fn refit_root(format: &DirFormat, block: &mut [u8]) -> Result<bool, HtreeError> {
    refit(format, block, ROOT_ENTRIES_AT)
}

/// As [`refit_root`] for an index block other than the root.
///
/// # Errors
/// If the block has no valid count.
pub fn refit_node(format: &DirFormat, block: &mut [u8]) -> Result<bool, HtreeError> {
    refit(format, block, NODE_ENTRIES_AT)
}

fn refit(format: &DirFormat, block: &mut [u8], at: usize) -> Result<bool, HtreeError> {
    let count = Index::at(block, at)?.len();
    let tail_bytes = tail_bytes(format);
    let limit = limit_of(block.len(), at, tail_bytes);
    if count > limit {
        return Ok(false);
    }
    let [limit, count] = [limit, count].map(|n| u16::try_from(n).unwrap_or(u16::MAX));
    let first = block.get_mut(at..).and_then(|bytes| {
        let (first, _) = RawEntry::mut_from_prefix(bytes).ok()?;
        Some(first)
    });
    if let Some(first) = first {
        first.hash = (u32::from(limit) | u32::from(count) << 16).into();
    }
    let end = block.len() - tail_bytes;
    block.get_mut(end..).unwrap_or_default().fill(0);
    Ok(true)
}

/// Makes an index block, other than the root, that refers to one block.
///
/// # Errors
/// If the block is too short.
pub fn init_node(
    format: &DirFormat,
    block: &mut [u8],
    only: LogicalBlock,
) -> Result<(), HtreeError> {
    block.fill(0);
    set_rec_len(block, 0, block.len());
    init_entries(format, block, NODE_ENTRIES_AT, only)
}

/// Makes a root that refers to one block.
///
/// # Errors
/// If the block is too short.
pub fn init_root(
    format: &DirFormat,
    block: &mut [u8],
    dots: &Dots,
    info: RootInfo,
    only: LogicalBlock,
) -> Result<(), HtreeError> {
    if block.len() < ROOT_ENTRIES_AT {
        return Err(HtreeError::TooShort { found: block.len() });
    }
    format.init_directory(block, dots);
    // `..` covers the whole index, including the space for the checksum.
    let parent_at = super::DOT_BYTES;
    set_rec_len(block, parent_at, block.len() - parent_at);
    let raw = RawRootInfo {
        hash_version: info.algorithm.to_disk(),
        info_length: INFO_LENGTH,
        indirect_levels: info.indirect_levels,
        ..RawRootInfo::new_zeroed()
    };
    if let Some(place) = block.get_mut(ROOT_INFO_AT..) {
        place.fill(0);
        let _ = raw.write_to_prefix(place);
    }
    init_entries(format, block, ROOT_ENTRIES_AT, only)
}

fn init_entries(
    format: &DirFormat,
    block: &mut [u8],
    at: usize,
    only: LogicalBlock,
) -> Result<(), HtreeError> {
    let too_short = HtreeError::TooShort { found: block.len() };
    let limit = limit_of(block.len(), at, tail_bytes(format));
    let (slots, _) = block
        .get_mut(at..)
        .filter(|_| limit > 0)
        .and_then(|bytes| <[RawEntry]>::mut_from_prefix_with_elems(bytes, limit).ok())
        .ok_or(too_short)?;
    let mut index = IndexMut { slots, len: 1 };
    index.put(
        0,
        Child {
            hash: 0,
            block: only,
        },
    );
    index.set_len(1);
    Ok(())
}

/// Converts a directory of one block to a hashed one of two: `first`, its block, becomes the root,
/// and the entries move to `leaf`, which becomes block 1. If the leaf has no space for the entry to
/// be added, it must be split like any other leaf.
///
/// # Errors
/// If the first block is not that of a directory, which is impossible for a checked block.
pub fn make_indexed(
    format: &DirFormat,
    first: &mut [u8],
    leaf: &mut [u8],
    algorithm: HashAlgorithm,
) -> Result<(), HtreeError> {
    let dots = format.dots(first)?;
    let mut writer = LeafWriter::new(format, leaf);
    for record in format.records(first).skip(2) {
        let entry = record?;
        let used = format.used(first, &entry);
        if entry.inode.0 != 0 && !writer.append_copy(used) {
            let (at, expected) = (entry.at, used.len());
            let no_room = DirentError::NoRoom {
                at,
                found: 0,
                expected,
            };
            return Err(no_room.into());
        }
    }
    writer.finish();
    let info = RootInfo {
        algorithm,
        indirect_levels: 0,
    };
    init_root(format, first, &dots, info, LogicalBlock(1))
}

/// A step of the path from the root to a leaf: an index block and the entry of the path in it.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The index block.
    pub index: Index<'a>,
    /// The entry of the path.
    pub position: usize,
}

/// As [`Step`], for changes.
#[derive(Debug)]
pub struct StepMut<'b> {
    /// The bytes of the index block.
    pub block: &'b mut [u8],
    /// The entry of the path.
    pub position: usize,
}

/// A block to be added to the directory, with any content.
#[derive(Debug)]
pub struct NewNode<'b> {
    /// The logical block of the directory.
    pub at: LogicalBlock,
    /// Its bytes.
    pub block: &'b mut [u8],
}

/// The requirements for adding a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The number of new index blocks, besides the leaf: 0 to [`MAX_NEW_NODES`].
    pub new_nodes: usize,
    /// The highest level of the path whose block changes (0 is the root); all levels below change
    /// too.
    pub first_changed: usize,
    /// Whether the tree becomes one level deeper.
    pub deeper: bool,
}

/// Computes the requirements for adding a leaf with the lowest hash `hash` after the leaf at the
/// end of `path` (from the root down). `None` if the tree is full and may not become deeper, for
/// which Linux returns `ENOSPC`.
///
/// # Errors
/// If the hash is outside the range of the leaf in the index, or the path has a wrong number of
/// levels: then the directory is corrupt.
pub fn growth(
    path: &[Step<'_>],
    hash: u32,
    levels: IndexLevels,
) -> Result<Option<Growth>, HtreeError> {
    let steps = path.iter().rev().map(|step| Ok(*step));
    let growth = measure(steps, hash, path.len())?;
    let deepest = usize::from(levels.max_indirect()) + 1;
    Ok(Some(growth).filter(|growth| !growth.deeper || path.len() < deepest))
}

/// Adds `leaf` after the leaf at the end of `path`, with [`Growth::new_nodes`] blocks from `nodes`.
///
/// # Errors
/// As [`growth`], or if there are fewer blocks than needed.
pub fn add_leaf(
    format: &DirFormat,
    path: &mut [StepMut<'_>],
    leaf: Child,
    nodes: &mut [NewNode<'_>],
) -> Result<(), HtreeError> {
    let steps = path.iter().enumerate().rev().map(|(level, step)| {
        let index = Index::at(step.block, entries_at(level))?;
        Ok(Step {
            index,
            position: step.position,
        })
    });
    let needed = measure(steps, leaf.hash, path.len())?.new_nodes;
    if nodes.len() < needed {
        let (found, limit) = (needed, nodes.len());
        return Err(HtreeError::Count { found, limit });
    }
    let mut child = leaf;
    let mut nodes = nodes.iter_mut();
    for (level, step) in path.iter_mut().enumerate().rev() {
        let mut index = IndexMut::at(step.block, entries_at(level))?;
        if !index.as_index().is_full() {
            return index.insert_after(step.position, child);
        }
        // There are as many as needed.
        let Some(node) = nodes.next() else { break };
        if level == 0 {
            grow_root(format, step.block, node)?;
            return IndexMut::node(node.block)?.insert_after(step.position, child);
        }
        let (kept, hash) = split_node(format, step.block, node)?;
        match step.position.checked_sub(kept) {
            None => IndexMut::node(step.block)?.insert_after(step.position, child)?,
            Some(position) => IndexMut::node(node.block)?.insert_after(position, child)?,
        }
        let block = node.at;
        child = Child { hash, block };
    }
    Ok(())
}

/// Simulates an insertion from the lowest level upwards, `levels` in all.
fn measure<'a>(
    steps: impl Iterator<Item = Result<Step<'a>, HtreeError>>,
    mut hash: u32,
    levels: usize,
) -> Result<Growth, HtreeError> {
    let mut new_nodes = 0;
    for (step, level) in steps.zip((0..levels).rev()) {
        let Step { index, position } = step?;
        index.check_next(position, hash)?;
        if !index.is_full() {
            return Ok(Growth {
                new_nodes,
                first_changed: level,
                deeper: false,
            });
        }
        new_nodes += 1;
        hash = index.hash(kept_by_split(index.len())).unwrap_or(0);
    }
    Ok(Growth {
        new_nodes,
        first_changed: 0,
        deeper: true,
    })
}

/// Moves the upper half of the entries of a node to a new one; returns the number that stay, and
/// the lowest hash of those that moved.
fn split_node(
    format: &DirFormat,
    old: &mut [u8],
    new: &mut NewNode<'_>,
) -> Result<(usize, u32), HtreeError> {
    let mut old = IndexMut::node(old)?;
    let kept = kept_by_split(old.len);
    let moved = old.slots.get(kept..old.len).unwrap_or(&[]);
    let (Some(first), true) = (moved.first(), kept > 0) else {
        let (found, limit) = (old.len, old.slots.len());
        return Err(HtreeError::Count { found, limit });
    };
    let hash = first.hash.get();
    init_node(format, new.block, LogicalBlock(first.block.get()))?;
    IndexMut::node(new.block)?.copy_from(moved);
    old.set_len(kept);
    Ok((kept, hash))
}

/// The number of entries of a full node that stay in it.
fn kept_by_split(count: usize) -> usize {
    count / 2
}

/// Moves all entries of a root to a new node, to which the root then refers.
fn grow_root(
    format: &DirFormat,
    root: &mut [u8],
    node: &mut NewNode<'_>,
) -> Result<(), HtreeError> {
    let indirect_levels = raw_info(root)?.indirect_levels.saturating_add(1);
    let mut index = IndexMut::root(root)?;
    init_node(format, node.block, node.at)?;
    let entries = index.slots.get(..index.len).unwrap_or(&[]);
    IndexMut::node(node.block)?.copy_from(entries);
    index.put(
        0,
        Child {
            hash: 0,
            block: node.at,
        },
    );
    index.set_len(1);
    if let Some(bytes) = root.get_mut(ROOT_INFO_AT..)
        && let Ok((info, _)) = RawRootInfo::mut_from_prefix(bytes)
    {
        info.indirect_levels = indirect_levels;
    }
    Ok(())
}

fn entries_at(level: usize) -> usize {
    match level {
        0 => ROOT_ENTRIES_AT,
        _ => NODE_ENTRIES_AT,
    }
}

#[cfg(test)]
mod tests;
