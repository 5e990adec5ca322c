//! **Purpose.** Changes of the nodes of an extent tree in place: the part that all nodes have in
//! common.
//!
//! | module | responsibility |
//! |---|---|
//! | `edit` | empty nodes, splitting, growing and shrinking in depth, planning |
//! | `leaf` | extents: insert, remove, change of state, shift |
//! | `inner` | indexes: insert, remove, change of key, shift |
//! | `path` | all nodes of a path at once |
//!
//! **Not here.** Allocating blocks for new nodes, walking the tree, checksums ([`super::seal`]
//! writes them once, when all changes are made).
//!
//! **Model.** To change a tree, the caller holds the nodes of one path and changes the lowest. The
//! result ([`ForParent`]) is applied to its parent, and so on up until it is `Unchanged`:
//!
//! ```text
//! leaf.insert(..)  -> NewKey(5)    its index gets the key 5     -> inner.set_key(at, 5)
//! leaf.remove(..)  -> Emptied      its index is removed         -> inner.remove(at)
//! inner.remove(..) -> NewKey(9)    and so on up to the root
//! ```
//!
//! A full node is split first: [`LeafMut::split_off`] moves the entries from the insert position on
//! to a new node, whose index is added to the parent with [`InnerMut::insert`]. At the end of a
//! node no entry moves, so that a file written in order has full leaves. A full root cannot be
//! split: [`grow`] moves all its entries into a new block, whose parent it then is.
//!
//! **Invariants.** A change is made completely, or refused before the first byte changes. It keeps
//! the entries sorted and disjoint; slots after the last entry are unchanged or zero. An empty leaf
//! below the root and an empty inner node exist only between two steps of the same change.
//! [`insert`](super::insert) and [`carry_up`](super::carry_up) do all of this for a path.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "The Contents of inode.i_block".

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{
    ENTRY_BYTES, Extent, ExtentError, ExtentState, HEADER_BYTES, InnerMut, LeafMut, MAGIC,
    MAX_DEPTH, MAX_WRITTEN_BLOCKS, Node, ROOT_BYTES, RawExtent, RawHeader, RawIndex, check_header,
};
use crate::types::{LogicalBlock, PhysBlock};
use crate::words::{low16, low32};

/// The longest unwritten extent in blocks.
pub const MAX_UNWRITTEN_BLOCKS: u16 = MAX_WRITTEN_BLOCKS - 1;

/// The reason why a node cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtentEditError {
    /// It is not a node.
    #[error(transparent)]
    Node(#[from] ExtentError),
    /// It has no free slot; it must be split first.
    #[error("extent node: all {max} entries are in use")]
    Full {
        /// Slots of the node.
        max: u16,
    },
    /// Some of the blocks are mapped already.
    #[error("extent node: blocks {}..{} overlap mapped blocks", logical.start, logical.end)]
    Overlap {
        /// The logical blocks.
        logical: Range<LogicalBlock>,
    },
    /// An extent of no blocks, or of more than the maximum.
    #[error("an extent cannot have {blocks} blocks")]
    Length {
        /// Its length.
        blocks: u32,
    },
    /// Logical blocks outside of the range of a file.
    #[error("extent at block {logical}: it would leave the range of a file")]
    Logical {
        /// Its first logical block.
        logical: LogicalBlock,
    },
    /// A physical block of more than 48 bits.
    #[error("block {block} does not fit an extent node")]
    Physical {
        /// The block.
        block: PhysBlock,
    },
    /// A position past the last entry.
    #[error("extent node: no entry {position}")]
    Position {
        /// The position.
        position: usize,
    },
    /// Fewer new nodes than the splits need.
    #[error("extent tree: {needed} new nodes are needed")]
    NewNodes {
        /// How many are needed.
        needed: usize,
    },
    /// A root and a node that are not parent and only child, or too many entries for the other
    /// node.
    #[error("extent root: the node is not its only child, or has too many entries")]
    Shape,
}

/// The effect of a change of a node on its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ForParent {
    /// No effect.
    Unchanged,
    /// The key of its index must change to this.
    NewKey(LogicalBlock),
    /// It has no entries any more: its index must be removed and its block freed. A root becomes an
    /// empty leaf instead, see [`init_root`].
    Emptied,
}

/// A node to be changed, by the kind of its entries.
#[derive(Debug)]
pub enum NodeMut<'a> {
    /// Depth 0: extents.
    Leaf(LeafMut<'a>),
    /// Depth above 0: indexes.
    Inner(InnerMut<'a>),
}

impl<'a> NodeMut<'a> {
    /// The node that fills `bytes`: an `i_block` or a block.
    ///
    /// # Errors
    /// If it has no valid header.
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, ExtentError> {
        let header = check_header(bytes)?;
        Ok(if header.eh_depth.get() == 0 {
            Self::Leaf(LeafMut(Slots::parse(bytes)?))
        } else {
            Self::Inner(InnerMut(Slots::parse(bytes)?))
        })
    }
}

/// The fill level of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Entries in use.
    pub entries: u16,
    /// Capacity in entries.
    pub max: u16,
}

impl Fill {
    /// The fill level of the node that fills `bytes`.
    ///
    /// # Errors
    /// If it has no valid header.
    pub fn of(bytes: &[u8]) -> Result<Self, ExtentError> {
        let header = check_header(bytes)?;
        Ok(Self {
            entries: header.eh_entries.get(),
            max: header.eh_max.get(),
        })
    }

    /// Slots that are free.
    #[must_use]
    pub fn free(self) -> u16 {
        self.max.saturating_sub(self.entries)
    }
}

/// The number of new nodes that may be needed to add `entries` entries to the leaf at the end of
/// `path`, which begins with the root. This is exact for one entry, and the worst case for more, of
/// which each may need a split.
#[must_use]
pub fn new_nodes(path: &[Fill], entries: u16) -> u16 {
    let mut needed = entries;
    let mut nodes = 0_u16;
    for fill in path.iter().rev() {
        // Each entry without a slot may split its node, which adds an entry to the parent.
        needed = needed.saturating_sub(fill.free());
        nodes = nodes.saturating_add(needed);
    }
    // If entries of the root have no slot, the root is not split, but gets one child.
    nodes.saturating_sub(needed.saturating_sub(1))
}

/// The capacity in entries of a node of `node_bytes`, with space for a checksum after them.
#[must_use]
pub fn capacity(node_bytes: usize) -> u16 {
    let entries = node_bytes.saturating_sub(HEADER_BYTES) / ENTRY_BYTES;
    u16::try_from(entries).unwrap_or(u16::MAX)
}

/// Makes the root of an empty tree of `i_block`.
pub fn init_root(i_block: &mut [u8; ROOT_BYTES]) {
    put_empty(i_block, 0);
}

/// Makes an empty node of a block. It must not stay empty: see the module's invariants.
///
/// # Errors
/// If the block is too short for a node.
pub fn init_node(block: &mut [u8], depth: u16) -> Result<(), ExtentError> {
    let expected = HEADER_BYTES + ENTRY_BYTES;
    if block.len() < expected {
        let found = block.len();
        return Err(ExtentError::TooShort { found, expected });
    }
    put_empty(block, depth);
    Ok(())
}

fn put_empty(node: &mut [u8], depth: u16) {
    node.fill(0);
    let max = capacity(node.len());
    if let Ok((header, _)) = RawHeader::mut_from_prefix(node) {
        header.eh_magic = MAGIC.into();
        header.eh_max = max.into();
        header.eh_depth = depth.into();
    }
}

/// Moves all entries of the root into `block`, which is at `at` and becomes its only child: the
/// tree is one level deeper, and the root has free slots.
///
/// # Errors
/// `Shape` if the root is empty; `TooDeep`; `Physical`.
pub fn grow(
    i_block: &mut [u8; ROOT_BYTES],
    block: &mut [u8],
    at: PhysBlock,
) -> Result<(), ExtentEditError> {
    let node = Node::parse(i_block)?;
    let depth = node.depth();
    let key = node.first().ok_or(ExtentEditError::Shape)?;
    if depth >= MAX_DEPTH {
        return Err(ExtentError::TooDeep { found: depth + 1 }.into());
    }
    let index = RawIndex::new(key, at)?;
    init_node(block, depth)?;
    copy_entries(i_block, block)?;
    put_empty(i_block, depth + 1);
    let mut root = Slots::<RawIndex>::parse(i_block)?;
    root.resize(0..0, 1)?;
    root.set(0, index);
    Ok(())
}

/// Moves all entries of `child`, the only child of the root, into the root: the tree has one level
/// less, and the block of the child can be freed.
///
/// # Errors
/// `Shape` if the root has other children too, if `child` is not one level below it, or if it has
/// more entries than the capacity of the root. Then nothing is changed.
pub fn shrink(i_block: &mut [u8; ROOT_BYTES], child: &[u8]) -> Result<(), ExtentEditError> {
    let only = Fill::of(i_block)?.entries == 1;
    let (root, node) = (Node::parse(i_block)?, Node::parse(child)?);
    let below = node.depth().checked_add(1) == Some(root.depth());
    let fits = Fill::of(child)?.entries <= capacity(ROOT_BYTES);
    if !(only && below && fits && root.first() == node.first()) {
        return Err(ExtentEditError::Shape);
    }
    put_empty(i_block, node.depth());
    copy_entries(child, i_block)
}

/// Copies the entries of a node into an empty one of the same kind.
fn copy_entries(from: &[u8], to: &mut [u8]) -> Result<(), ExtentEditError> {
    let entries = Fill::of(from)?.entries;
    let bytes = usize::from(entries) * ENTRY_BYTES;
    let from = from.get(HEADER_BYTES..).and_then(|all| all.get(..bytes));
    let (header, room) = RawHeader::mut_from_prefix(to).map_err(|_| ExtentEditError::Shape)?;
    match (from, room.get_mut(..bytes)) {
        (Some(from), Some(room)) if entries <= header.eh_max.get() => room.copy_from_slice(from),
        _ => return Err(ExtentEditError::Shape),
    }
    header.eh_entries = entries.into();
    Ok(())
}

/// The raw entries of nodes.
pub(super) trait Entry: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// The first logical block.
    fn key(&self) -> LogicalBlock;
    fn set_key(&mut self, key: LogicalBlock);
}

impl Entry for RawExtent {
    fn key(&self) -> LogicalBlock {
        LogicalBlock(self.ee_block.get())
    }
    fn set_key(&mut self, key: LogicalBlock) {
        self.ee_block = key.0.into();
    }
}

impl Entry for RawIndex {
    fn key(&self) -> LogicalBlock {
        LogicalBlock(self.ei_block.get())
    }
    fn set_key(&mut self, key: LogicalBlock) {
        self.ei_block = key.0.into();
    }
}

/// The header and the slots of a node; as many slots as `eh_max` says, of which the first
/// `eh_entries` are in use.
#[derive(Debug)]
pub(super) struct Slots<'a, T> {
    header: &'a mut RawHeader,
    slots: &'a mut [T],
}

impl<'a, T: Entry> Slots<'a, T> {
    fn parse(bytes: &'a mut [u8]) -> Result<Self, ExtentError> {
        let max = usize::from(check_header(bytes)?.eh_max.get());
        let found = bytes.len();
        let too_short = || ExtentError::TooShort {
            found,
            expected: HEADER_BYTES + max * ENTRY_BYTES,
        };
        let (header, rest) = RawHeader::mut_from_prefix(bytes).map_err(|_| too_short())?;
        let (slots, _) = <[T]>::mut_from_prefix_with_elems(rest, max).map_err(|_| too_short())?;
        Ok(Self { header, slots })
    }

    pub(super) fn used(&self) -> &[T] {
        self.slots.get(..self.len()).unwrap_or(&[])
    }

    pub(super) fn used_mut(&mut self) -> &mut [T] {
        let len = self.len();
        self.slots.get_mut(..len).unwrap_or(&mut [])
    }

    pub(super) fn len(&self) -> usize {
        self.header.eh_entries.get().into()
    }

    pub(super) fn depth(&self) -> u16 {
        self.header.eh_depth.get()
    }

    pub(super) fn fill(&self) -> Fill {
        Fill {
            entries: self.header.eh_entries.get(),
            max: self.header.eh_max.get(),
        }
    }

    pub(super) fn first_key(&self) -> Option<LogicalBlock> {
        self.used().first().map(T::key)
    }

    pub(super) fn set(&mut self, position: usize, entry: T) {
        if let Some(slot) = self.used_mut().get_mut(position) {
            *slot = entry;
        }
    }

    /// Checks that `count` more entries fit.
    pub(super) fn check_room(&self, more: usize) -> Result<(), ExtentEditError> {
        let fill = self.fill();
        if more > usize::from(fill.free()) {
            return Err(ExtentEditError::Full { max: fill.max });
        }
        Ok(())
    }

    /// Replaces the slots of `range` by `count` slots; the entries after them move. The caller sets
    /// the content of the slots.
    pub(super) fn resize(
        &mut self,
        range: Range<usize>,
        count: usize,
    ) -> Result<(), ExtentEditError> {
        let len = self.len();
        if range.start > range.end || range.end > len {
            return Err(ExtentEditError::Position {
                position: range.end,
            });
        }
        self.check_room(count.saturating_sub(range.len()))?;
        let new_len = len - range.len() + count;
        self.slots.copy_within(range.end..len, range.start + count);
        if let Some(vacated) = self.slots.get_mut(new_len..len.max(new_len)) {
            vacated.fill(T::new_zeroed());
        }
        self.header.eh_entries = low16(new_len as u64);
        Ok(())
    }

    /// Moves the entries from `position` on to `block`, which becomes a node of the same depth;
    /// returns its first key.
    pub(super) fn split_off(
        &mut self,
        position: usize,
        block: &mut [u8],
    ) -> Result<Option<LogicalBlock>, ExtentEditError> {
        let len = self.len();
        let moved = self.used().get(position..);
        let count = moved.ok_or(ExtentEditError::Position { position })?.len();
        if count > capacity(block.len()).into() {
            return Err(ExtentEditError::Shape);
        }
        init_node(block, self.depth())?;
        let mut new = Slots::<T>::parse(block)?;
        new.resize(0..0, count)?;
        if let Some(moved) = self.used().get(position..) {
            new.used_mut().copy_from_slice(moved);
        }
        self.resize(position..len, 0)?;
        Ok(new.first_key())
    }

    /// The effect of a change on the parent, if the first key was `before`.
    pub(super) fn for_parent(&self, before: Option<LogicalBlock>) -> ForParent {
        match self.first_key() {
            None => ForParent::Emptied,
            now if now == before => ForParent::Unchanged,
            Some(key) => ForParent::NewKey(key),
        }
    }
}

/// The direction and distance in blocks of a shift of logical numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    /// Towards the start of the file, after a range before was removed.
    Left(u32),
    /// Towards the end, to insert a range before.
    Right(u32),
}

impl Shift {
    /// The new number of a block.
    pub(super) fn apply(self, logical: LogicalBlock) -> Result<LogicalBlock, ExtentEditError> {
        let moved = match self {
            Self::Left(by) => logical.0.checked_sub(by),
            Self::Right(by) => logical.0.checked_add(by),
        };
        let error = ExtentEditError::Logical { logical };
        moved.map(LogicalBlock).ok_or(error)
    }
}

impl ExtentState {
    /// The longest extent of this state in blocks.
    #[must_use]
    pub fn max_blocks(self) -> u32 {
        match self {
            Self::Written => MAX_WRITTEN_BLOCKS.into(),
            Self::Unwritten => MAX_UNWRITTEN_BLOCKS.into(),
        }
    }
}

impl Extent {
    /// The part of it in `range`; `None` if there is none.
    #[must_use]
    pub fn part(&self, range: &Range<LogicalBlock>) -> Option<Self> {
        let start = self.logical.max(range.start);
        let end = self.logical_end().min(range.end);
        let blocks = end.0.checked_sub(start.0).filter(|&blocks| blocks > 0)?;
        Some(Self {
            logical: start,
            physical: self.map(start)?,
            blocks,
            state: self.state,
        })
    }

    /// This and the next extent as one, if they are adjacent in the file and on disk, have the same
    /// state, and are not too long together.
    #[must_use]
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let blocks = self.blocks.checked_add(next.blocks)?;
        let follows = self.logical.0.checked_add(self.blocks) == Some(next.logical.0)
            && self.physical.0.checked_add(self.blocks.into()) == Some(next.physical.0);
        let alike = self.state == next.state && blocks <= self.state.max_blocks();
        (follows && alike).then_some(Self { blocks, ..*self })
    }
}

impl TryFrom<&Extent> for RawExtent {
    type Error = ExtentEditError;

    /// # Errors
    /// `Length`, `Logical` or `Physical`, for an extent that the format cannot express.
    fn try_from(extent: &Extent) -> Result<Self, ExtentEditError> {
        let &Extent {
            logical,
            physical,
            blocks,
            state,
        } = extent;
        if blocks == 0 || blocks > state.max_blocks() {
            return Err(ExtentEditError::Length { blocks });
        }
        if logical.0.checked_add(blocks).is_none() {
            return Err(ExtentEditError::Logical { logical });
        }
        let end = physical.0.saturating_add(blocks.into());
        if end > 1 << 48 {
            return Err(ExtentEditError::Physical { block: physical });
        }
        let mark = match state {
            ExtentState::Written => 0,
            ExtentState::Unwritten => u32::from(MAX_WRITTEN_BLOCKS),
        };
        Ok(Self {
            ee_block: logical.0.into(),
            ee_len: low16((blocks + mark).into()),
            ee_start_hi: low16(physical.0 >> 32),
            ee_start_lo: low32(physical.0),
        })
    }
}

impl RawIndex {
    /// The index of the child at `block`, whose first key is `key`.
    ///
    /// # Errors
    /// `Physical` for a block number of more than 48 bits.
    pub fn new(key: LogicalBlock, block: PhysBlock) -> Result<Self, ExtentEditError> {
        if block.0 >= 1 << 48 {
            return Err(ExtentEditError::Physical { block });
        }
        Ok(Self {
            ei_block: key.0.into(),
            ei_leaf_lo: low32(block.0),
            ei_leaf_hi: low16(block.0 >> 32),
            ei_unused: 0.into(),
        })
    }
}
