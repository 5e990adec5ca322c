//! **Purpose.** The nodes of an extent tree: their content, their checks, and the search for a
//! logical block.
//!
//! | module | responsibility |
//! |---|---|
//! | `build` | the whole tree of a file whose runs are known |
//! | `edit` | changes of nodes in place: the common part of leaves and inner nodes |
//! | `leaf` | changes of the extents of a leaf |
//! | `inner` | changes of the indexes of an inner node |
//! | `path` | changes along a path: insertion with splits, and the update of parents |
//!
//! **Not here.** Reading the blocks of a tree, caching mappings, allocating blocks for new nodes.
//!
//! **Model.** A node is a header of 12 bytes and as many entries of 12 bytes, sorted by logical
//! block. The root lives in the 60 bytes of `i_block`; every other node fills a block and, with
//! `metadata_csum`, ends in a checksum after its last possible entry.
//!
//! ```text
//! depth 2        root   [ 0 | 700 ]                      inner nodes hold indexes: first logical
//!                        /      \                        block and the block of the child
//! depth 1   [ 0 | 340 ]        [ 700 | 900 ]
//!             /     \            /      \
//! depth 0  leaf    leaf       leaf     leaf              leaves hold extents: a logical run and
//!                                                        where it lies
//! ```
//!
//! A node is checked once, when its block is read ([`check_root`], [`check_node`]), and read many
//! times through [`Node`], which checks only what is needed to stay inside the bytes.
//!
//! **Invariants.** In a checked node the entries are sorted, do not overlap, are inside the logical
//! range that the parent gives the node, and point inside the physical range of the file system.
//! The first key of a child equals the key of its index. The depth falls by one at each level, so a
//! walk terminates after at most [`MAX_DEPTH`] + 1 nodes for any bytes on disk.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "The Contents of inode.i_block".

use std::ops::Range;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{ChecksumMismatch, InodeSeed};
use crate::types::{LogicalBlock, PhysBlock};

mod build;
mod edit;
mod inner;
mod leaf;
mod path;

pub use build::{ROOT_ENTRIES, build, build_extents, count_nodes, nodes_above};
pub use edit::{
    ExtentEditError, Fill, ForParent, MAX_UNWRITTEN_BLOCKS, NodeMut, Shift, capacity, grow,
    init_node, init_root, new_nodes, shrink,
};
pub use inner::InnerMut;
pub use leaf::LeafMut;
pub use path::{NewNode, Step, carry_up, insert, make_room};

/// Bytes of a root: the whole of `i_block`.
pub const ROOT_BYTES: usize = 60;
/// Value of `eh_magic`.
pub const MAGIC: u16 = 0xF30A;
/// The deepest root the kernel makes or accepts: enough for 2^32 extents of one block.
pub const MAX_DEPTH: u16 = 5;
/// The longest written extent in blocks, and the offset that marks a length as unwritten.
pub const MAX_WRITTEN_BLOCKS: u16 = 32768;
/// One past the last logical block a file can have.
pub const LOGICAL_END: LogicalBlock = LogicalBlock(u32::MAX);

const HEADER_BYTES: usize = size_of::<RawHeader>();
const ENTRY_BYTES: usize = size_of::<RawExtent>();

/// The header of a node.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawHeader {
    /// 0x0: [`MAGIC`].
    pub eh_magic: U16,
    /// 0x2: entries in use.
    pub eh_entries: U16,
    /// 0x4: the capacity of the node in entries.
    pub eh_max: U16,
    /// 0x6: 0 in a leaf, else levels below this node.
    pub eh_depth: U16,
    /// 0x8: not used by ext4.
    pub eh_generation: U32,
}

/// An entry of a leaf.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawExtent {
    /// 0x0: first logical block.
    pub ee_block: U32,
    /// 0x4: length; above [`MAX_WRITTEN_BLOCKS`] it is unwritten and that much shorter.
    pub ee_len: U16,
    /// 0x6: upper 16 bits of the physical block.
    pub ee_start_hi: U16,
    /// 0x8: lower 32 bits of the physical block.
    pub ee_start_lo: U32,
}

/// An entry of an inner node.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawIndex {
    /// 0x0: first logical block below the child.
    pub ei_block: U32,
    /// 0x4: lower 32 bits of the child's block.
    pub ei_leaf_lo: U32,
    /// 0x8: upper 16 bits of the child's block.
    pub ei_leaf_hi: U16,
    /// 0xA: not used.
    pub ei_unused: U16,
}

const _: () = {
    assert!(size_of::<RawHeader>() == 12);
    assert!(size_of::<RawExtent>() == 12);
    assert!(size_of::<RawIndex>() == 12);
    assert!(std::mem::offset_of!(RawExtent, ee_start_lo) == 8);
    assert!(std::mem::offset_of!(RawIndex, ei_leaf_hi) == 8);
};

/// What is wrong with a node of an extent tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtentError {
    /// There are too few bytes for a node.
    #[error("extent node of {found} bytes: a header and one entry need {expected}")]
    TooShort {
        /// Bytes found.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// The node has a wrong magic number.
    #[error("extent node: eh_magic is {found:#06x}, expected {MAGIC:#06x}")]
    Magic {
        /// Value of `eh_magic`.
        found: u16,
    },
    /// More entries in use than the capacity.
    #[error("extent node: eh_entries is {found}, but eh_max is {max}")]
    TooManyEntries {
        /// Value of `eh_entries`.
        found: u16,
        /// Value of `eh_max`.
        max: u16,
    },
    /// A capacity of 0, or of more entries than the node's bytes can hold.
    #[error("extent node: eh_max is {found}, expected 1 to {capacity}")]
    Max {
        /// Value of `eh_max`.
        found: u16,
        /// Entries that fit.
        capacity: usize,
    },
    /// A root deeper than the maximum.
    #[error("extent root: eh_depth is {found}, expected at most {MAX_DEPTH}")]
    TooDeep {
        /// Value of `eh_depth`.
        found: u16,
    },
    /// A child whose depth is not one less than its parent's.
    #[error("extent node: eh_depth is {found}, expected {expected} below its parent")]
    Depth {
        /// Value of `eh_depth`.
        found: u16,
        /// Depth of the parent less one.
        expected: u16,
    },
    /// An inner node without children.
    #[error("extent node: no entries at depth {depth}")]
    EmptyInner {
        /// Value of `eh_depth`.
        depth: u16,
    },
    /// The checksum does not match the node.
    #[error("extent node: {0}")]
    Checksum(#[from] ChecksumMismatch),
    /// A child whose first key differs from its index in the parent.
    #[error("extent node: first entry is for block {found}, expected {expected} as in its parent")]
    FirstKey {
        /// First logical block of the first entry.
        found: LogicalBlock,
        /// Key of the parent's index.
        expected: LogicalBlock,
    },
    /// An entry that overlaps the one before it.
    #[error("extent entry {entry}: begins at block {found}, expected {expected} or later")]
    Order {
        /// Position of the entry.
        entry: usize,
        /// First logical block.
        found: LogicalBlock,
        /// End of the entry before.
        expected: LogicalBlock,
    },
    /// An extent of no blocks.
    #[error("extent entry {entry}: ee_len is 0")]
    Empty {
        /// Position of the entry.
        entry: usize,
    },
    /// An entry that extends past the end of the range that the parent gives the node.
    #[error("extent entry {entry}: ends at block {found}, expected at most {expected}")]
    LogicalEnd {
        /// Position of the entry.
        entry: usize,
        /// End of the entry.
        found: u64,
        /// End of the node's range.
        expected: LogicalBlock,
    },
    /// An entry that points outside the file system.
    #[error(
        "extent entry {entry}: blocks {first}..{end} are not in {}..{}",
        expected.start, expected.end
    )]
    Physical {
        /// Position of the entry.
        entry: usize,
        /// First physical block.
        first: u64,
        /// One past the last.
        end: u64,
        /// Blocks of the file system.
        expected: Range<PhysBlock>,
    },
}

/// Whether the blocks of an extent hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentState {
    /// They hold the file's data.
    Written,
    /// They are allocated to the file but read as zeros.
    Unwritten,
}

/// A run of logical blocks and its physical location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First logical block.
    pub logical: LogicalBlock,
    /// First physical block.
    pub physical: PhysBlock,
    /// Length in blocks: 1 to 32768 written, 1 to 32767 unwritten.
    pub blocks: u32,
    /// Whether it holds data.
    pub state: ExtentState,
}

impl Extent {
    /// One past the last logical block.
    #[must_use]
    pub fn logical_end(&self) -> LogicalBlock {
        LogicalBlock(self.logical.0.saturating_add(self.blocks))
    }

    /// The physical block of `logical`, if it is in this extent.
    #[must_use]
    pub fn map(&self, logical: LogicalBlock) -> Option<PhysBlock> {
        let offset = logical.0.checked_sub(self.logical.0)?;
        (offset < self.blocks).then(|| PhysBlock(self.physical.0 + u64::from(offset)))
    }
}

impl From<&RawExtent> for Extent {
    fn from(raw: &RawExtent) -> Self {
        let len = raw.ee_len.get();
        let (blocks, state) = match len.checked_sub(MAX_WRITTEN_BLOCKS) {
            None | Some(0) => (len, ExtentState::Written),
            Some(unwritten) => (unwritten, ExtentState::Unwritten),
        };
        Self {
            logical: LogicalBlock(raw.ee_block.get()),
            physical: block48(raw.ee_start_hi, raw.ee_start_lo),
            blocks: blocks.into(),
            state,
        }
    }
}

/// A child of an inner node: its block, and the expected range and depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The block of the child.
    pub block: PhysBlock,
    /// The logical blocks of the child: from its key to the key of the next child.
    pub logical: Range<LogicalBlock>,
    /// The expected depth in its header.
    pub depth: u16,
}

/// A node, by the kind of its entries.
#[derive(Clone, Copy, Debug)]
pub enum Node<'a> {
    /// Depth 0: extents.
    Leaf(Leaf<'a>),
    /// Depth above 0: indexes.
    Inner(Inner<'a>),
}

/// The extents of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    extents: &'a [RawExtent],
}

/// The indexes of an inner node.
#[derive(Clone, Copy, Debug)]
pub struct Inner<'a> {
    indexes: &'a [RawIndex],
    depth: u16,
}

impl<'a> Node<'a> {
    /// Reads the node that fills `bytes`: an `i_block` or a block.
    ///
    /// # Errors
    /// Only for entries outside of the bytes; [`check_root`] and [`check_node`] check the entries
    /// themselves.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ExtentError> {
        let too_short = || ExtentError::TooShort {
            found: bytes.len(),
            expected: HEADER_BYTES + ENTRY_BYTES,
        };
        let (header, entries) = RawHeader::ref_from_prefix(bytes).map_err(|_| too_short())?;
        if header.eh_magic.get() != MAGIC {
            return Err(ExtentError::Magic {
                found: header.eh_magic.get(),
            });
        }
        let (count, depth) = (usize::from(header.eh_entries.get()), header.eh_depth.get());
        let beyond = || ExtentError::TooManyEntries {
            found: header.eh_entries.get(),
            max: u16::try_from(entries.len() / ENTRY_BYTES).unwrap_or(u16::MAX),
        };
        Ok(if depth == 0 {
            let extents = <[RawExtent]>::ref_from_prefix_with_elems(entries, count);
            Self::Leaf(Leaf {
                extents: extents.map_err(|_| beyond())?.0,
            })
        } else {
            let indexes = <[RawIndex]>::ref_from_prefix_with_elems(entries, count);
            Self::Inner(Inner {
                indexes: indexes.map_err(|_| beyond())?.0,
                depth,
            })
        })
    }

    /// The key of its first entry; `None` if it has no entries.
    #[must_use]
    pub fn first(&self) -> Option<LogicalBlock> {
        match self {
            Self::Leaf(leaf) => leaf.get(0).map(|extent| extent.logical),
            Self::Inner(inner) => inner.get(0, LOGICAL_END).map(|child| child.logical.start),
        }
    }

    /// Levels below this node: 0 for a leaf.
    #[must_use]
    pub fn depth(&self) -> u16 {
        match self {
            Self::Leaf(_) => 0,
            Self::Inner(inner) => inner.depth,
        }
    }
}

impl<'a> Leaf<'a> {
    /// The extent that covers `logical`, or else the first one after it (which gives the length of
    /// the hole); `None` if there is none up to the end of the leaf.
    #[must_use]
    pub fn find(&self, logical: LogicalBlock) -> Option<Extent> {
        self.get(self.position(logical))
    }

    /// The position of the extent that [`Leaf::find`] returns: the number of extents that end at or
    /// before `logical`.
    #[must_use]
    pub fn position(&self, logical: LogicalBlock) -> usize {
        self.extents
            .partition_point(|raw| Extent::from(raw).logical_end() <= logical)
    }

    /// The extent at a position.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<Extent> {
        self.extents.get(position).map(Extent::from)
    }

    /// Number of extents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// All extents, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Extent> + use<'a> {
        self.extents.iter().map(Extent::from)
    }
}

impl Inner<'_> {
    /// The child whose range includes `logical`, or the first one if `logical` is before all of
    /// them (no block can be mapped there, but the next mapped block is found through it). `None`
    /// only if the node has no entries. `end` is the end of the node's own logical range.
    #[must_use]
    pub fn find(&self, logical: LogicalBlock, end: LogicalBlock) -> Option<Child> {
        self.get(self.position(logical), end)
    }

    /// The position of the child that [`Inner::find`] returns: the last child whose key is at most
    /// `logical`.
    #[must_use]
    pub fn position(&self, logical: LogicalBlock) -> usize {
        let after = self
            .indexes
            .partition_point(|raw| raw.ei_block.get() <= logical.0);
        after.saturating_sub(1)
    }

    /// The child at a position. `end` is the end of the node's own logical range.
    #[must_use]
    pub fn get(&self, position: usize, end: LogicalBlock) -> Option<Child> {
        let raw = self.indexes.get(position)?;
        let next = self.indexes.get(position.saturating_add(1));
        Some(Child {
            block: block48(raw.ei_leaf_hi, raw.ei_leaf_lo),
            logical: LogicalBlock(raw.ei_block.get())
                ..next.map_or(end, |next| LogicalBlock(next.ei_block.get())),
            depth: self.depth.saturating_sub(1),
        })
    }

    /// Number of children.
    #[must_use]
    pub fn len(&self) -> usize {
        self.indexes.len()
    }

    /// Whether there are none, which is impossible in a checked node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }
}

/// Checks the root in `i_block`. `physical` are the blocks of the file system.
///
/// # Errors
/// The first violated rule.
pub fn check_root(i_block: &[u8], physical: &Range<PhysBlock>) -> Result<(), ExtentError> {
    let header = check_header(i_block)?;
    let depth = header.eh_depth.get();
    if depth > MAX_DEPTH {
        return Err(ExtentError::TooDeep { found: depth });
    }
    check_entries(
        &Node::parse(i_block)?,
        &(LogicalBlock(0)..LOGICAL_END),
        physical,
    )
}

/// Checks a node that fills a block: that it is as its parent requires, its entries, and with
/// `metadata_csum` its checksum, seeded by its inode. `physical` are the blocks of the file system.
///
/// # Errors
/// The first violated rule.
pub fn check_node(
    block: &[u8],
    child: &Child,
    physical: &Range<PhysBlock>,
    seed: Option<InodeSeed>,
) -> Result<(), ExtentError> {
    let header = check_header(block)?;
    if header.eh_depth.get() != child.depth {
        return Err(ExtentError::Depth {
            found: header.eh_depth.get(),
            expected: child.depth,
        });
    }
    if let Some(seed) = seed {
        verify(block, seed)?;
    }
    let node = Node::parse(block)?;
    if let Some(found) = node.first().filter(|&first| first != child.logical.start) {
        return Err(ExtentError::FirstKey {
            found,
            expected: child.logical.start,
        });
    }
    check_entries(&node, &child.logical, physical)
}

/// Writes the checksum of a node that fills a block, after its last possible entry.
///
/// # Errors
/// If the header is not that of a node with space for a checksum.
pub fn seal(block: &mut [u8], seed: InodeSeed) -> Result<(), ExtentError> {
    let (at, checksum) = checksum(block, seed)?;
    if let Some(tail) = block.get_mut(at..at + 4) {
        tail.copy_from_slice(&checksum.to_le_bytes());
    }
    Ok(())
}

fn verify(block: &[u8], seed: InodeSeed) -> Result<(), ExtentError> {
    let (at, expected) = checksum(block, seed)?;
    let found = block
        .get(at..)
        .and_then(|tail| U32::ref_from_prefix(tail).ok());
    let found = found.map_or(0, |(et_checksum, _)| et_checksum.get());
    Ok(ChecksumMismatch::check(found, expected)?)
}

/// The offset of the checksum in the block of a node, and its expected value. It follows the last
/// possible entry, and covers all bytes before it, used or not.
fn checksum(block: &[u8], seed: InodeSeed) -> Result<(usize, u32), ExtentError> {
    let max = check_header(block)?.eh_max.get();
    let at = HEADER_BYTES + usize::from(max) * ENTRY_BYTES;
    match block.get(..at) {
        Some(covered) if block.len() - at >= 4 => Ok((at, seed.start().update(covered).value())),
        _ => Err(ExtentError::Max {
            found: max,
            capacity: block.len().saturating_sub(HEADER_BYTES + 4) / ENTRY_BYTES,
        }),
    }
}

fn check_header(bytes: &[u8]) -> Result<&RawHeader, ExtentError> {
    let (header, entries) = RawHeader::ref_from_prefix(bytes)
        .ok()
        .filter(|(_, entries)| entries.len() >= ENTRY_BYTES)
        .ok_or(ExtentError::TooShort {
            found: bytes.len(),
            expected: HEADER_BYTES + ENTRY_BYTES,
        })?;
    let (magic, max) = (header.eh_magic.get(), header.eh_max.get());
    if magic != MAGIC {
        return Err(ExtentError::Magic { found: magic });
    }
    let capacity = entries.len() / ENTRY_BYTES;
    if max == 0 || usize::from(max) > capacity {
        return Err(ExtentError::Max {
            found: max,
            capacity,
        });
    }
    if header.eh_entries.get() > max {
        return Err(ExtentError::TooManyEntries {
            found: header.eh_entries.get(),
            max,
        });
    }
    Ok(header)
}

fn check_entries(
    node: &Node<'_>,
    logical: &Range<LogicalBlock>,
    physical: &Range<PhysBlock>,
) -> Result<(), ExtentError> {
    let mut from = logical.start;
    let mut check = |entry: usize, first: LogicalBlock, blocks: u32, at: PhysBlock, run: u32| {
        if first < from {
            return Err(ExtentError::Order {
                entry,
                found: first,
                expected: from,
            });
        }
        let end = u64::from(first.0) + u64::from(blocks);
        from = match u32::try_from(end) {
            Ok(end) if end <= logical.end.0 => LogicalBlock(end),
            _ => {
                return Err(ExtentError::LogicalEnd {
                    entry,
                    found: end,
                    expected: logical.end,
                });
            }
        };
        let end = at.0 + u64::from(run);
        if at < physical.start || end > physical.end.0 {
            let expected = physical.clone();
            return Err(ExtentError::Physical {
                entry,
                first: at.0,
                end,
                expected,
            });
        }
        Ok(())
    };
    match node {
        Node::Leaf(leaf) => leaf.iter().enumerate().try_for_each(|(entry, extent)| {
            if extent.blocks == 0 {
                return Err(ExtentError::Empty { entry });
            }
            check(
                entry,
                extent.logical,
                extent.blocks,
                extent.physical,
                extent.blocks,
            )
        }),
        Node::Inner(inner) if inner.is_empty() => {
            Err(ExtentError::EmptyInner { depth: inner.depth })
        }
        Node::Inner(inner) => inner
            .indexes
            .iter()
            .enumerate()
            .try_for_each(|(entry, raw)| {
                let block = block48(raw.ei_leaf_hi, raw.ei_leaf_lo);
                check(entry, LogicalBlock(raw.ei_block.get()), 1, block, 1)
            }),
    }
}

fn block48(hi: U16, lo: U32) -> PhysBlock {
    PhysBlock(u64::from(hi.get()) << 32 | u64::from(lo.get()))
}

#[cfg(test)]
mod edit_tests;
#[cfg(test)]
mod tests;
