//! **Purpose.** Changes of a block map's pointers in place, and the walk through all blocks of a
//! part of it, to free them.
//!
//! **Model.** A pointer refers to a [`Branch`]: a data block, or an indirect block with more
//! branches. To unmap a range, the caller walks down the branches that overlap it:
//!
//! ```text
//! root_branches(i_block, range) -> branch   in range: free all below, clear its pointer
//!   branches(its block, range)  -> branch   else: clear it only if is_empty(its block)
//! ```
//!
//! **Invariants.** A block has one level less than the one that points to it, and data blocks have
//! none, so a walk terminates for any pointers.

use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{DIRECT, POINTER_BYTES, Path, ROOT_POINTERS, pointers, target};
use crate::types::{BlockSize, LogicalBlock, PhysBlock};
use crate::words::low32;

/// The reason why a pointer cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockMapEditError {
    /// The bytes have no such slot.
    #[error("block map: no entry {slot}")]
    Slot {
        /// The slot.
        slot: u16,
    },
    /// A block number of more than 32 bits, which a file without extents cannot have.
    #[error("block {block} does not fit a block map")]
    Physical {
        /// The block.
        block: PhysBlock,
    },
}

/// Makes the slots from `slot` on, of `i_block` or of an indirect block, point to `count`
/// consecutive blocks.
///
/// # Errors
/// `Slot` if the bytes end before the last one, `Physical`. Then nothing is changed.
pub fn set_run(
    bytes: &mut [u8],
    slot: u16,
    physical: PhysBlock,
    count: u16,
) -> Result<(), BlockMapEditError> {
    let end = physical.0.saturating_add(count.into());
    if end > 1 << 32 {
        return Err(BlockMapEditError::Physical { block: physical });
    }
    let first = usize::from(slot);
    let slots = pointers_mut(bytes).get_mut(first..first + usize::from(count));
    let slots = slots.ok_or(BlockMapEditError::Slot { slot })?;
    for (pointer, block) in slots.iter_mut().zip(physical.0..) {
        *pointer = low32(block);
    }
    Ok(())
}

/// Makes a slot point to `block`; returns the block it pointed to before.
///
/// # Errors
/// As [`set_run`].
pub fn set_pointer(
    bytes: &mut [u8],
    slot: u16,
    block: PhysBlock,
) -> Result<Option<PhysBlock>, BlockMapEditError> {
    let before = super::pointer(bytes, slot);
    set_run(bytes, slot, block, 1)?;
    Ok(before)
}

/// Makes a slot a hole; returns the block it pointed to.
///
/// # Errors
/// `Slot`.
pub fn clear_pointer(bytes: &mut [u8], slot: u16) -> Result<Option<PhysBlock>, BlockMapEditError> {
    let pointer = pointers_mut(bytes).get_mut(usize::from(slot));
    let pointer = pointer.ok_or(BlockMapEditError::Slot { slot })?;
    Ok(target(&std::mem::take(pointer)))
}

/// Whether all pointers are holes, so that an indirect block with these bytes is not needed.
#[must_use]
pub fn is_empty(bytes: &[u8]) -> bool {
    pointers(bytes).iter().all(|raw| raw.get() == 0)
}

impl Path {
    /// The number of new indirect blocks that the path needs if the pointer at `level` is its first
    /// hole. Level 0 is the slot in `i_block`; the last slot points to data.
    #[must_use]
    pub fn new_blocks_from(&self, level: usize) -> usize {
        self.slots().len().saturating_sub(level.saturating_add(1))
    }
}

/// A data block or indirect block that a pointer refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The slot that holds the pointer.
    pub slot: u16,
    /// The block it points to.
    pub block: PhysBlock,
    /// The logical blocks below it.
    pub logical: Range<LogicalBlock>,
    /// Levels of pointers below it: 0 for a data block.
    pub levels: u8,
}

impl Branch {
    /// Whether all logical blocks below it are in `range`.
    #[must_use]
    pub fn is_within(&self, range: &Range<LogicalBlock>) -> bool {
        range.start <= self.logical.start && self.logical.end <= range.end
    }

    fn reaches(&self, range: &Range<LogicalBlock>) -> bool {
        self.logical.start < range.end && range.start < self.logical.end
    }
}

/// The branches of `i_block` that overlap `range`, in order.
pub fn root_branches(
    i_block: &[u8; 60],
    block_size: BlockSize,
    range: Range<LogicalBlock>,
) -> impl Iterator<Item = Branch> {
    let mut start = 0_u64;
    let slots = pointers(i_block).iter().take(ROOT_POINTERS);
    (0_u16..)
        .zip(slots)
        .filter_map(move |(slot, raw)| {
            let levels = u8::try_from((u32::from(slot) + 1).saturating_sub(DIRECT)).unwrap_or(0);
            let first = start;
            start += blocks_of(levels, block_size);
            branch(slot, raw, first..start, levels)
        })
        .filter(move |branch| branch.reaches(&range))
}

/// The branches of the indirect block `parent` with the content `bytes` that overlap `range`, in
/// order; none if `parent` is a data block.
pub fn branches(
    bytes: &[u8],
    parent: &Branch,
    block_size: BlockSize,
    range: Range<LogicalBlock>,
) -> impl Iterator<Item = Branch> {
    let levels = parent.levels.checked_sub(1);
    let each = blocks_of(levels.unwrap_or(0), block_size);
    let origin = u64::from(parent.logical.start.0);
    let first = u64::from(range.start.0).saturating_sub(origin) / each;
    let first = usize::try_from(first).unwrap_or(usize::MAX);
    let count = block_size.bytes() / POINTER_BYTES;
    let all = levels.map_or(&[][..], |_| pointers(bytes));
    (0_u16..)
        .zip(all.iter().take(count))
        .skip(first)
        .filter_map(move |(slot, raw)| {
            let start = origin + u64::from(slot) * each;
            branch(slot, raw, start..start + each, levels.unwrap_or(0))
        })
        .take_while({
            let end = range.end;
            move |branch| branch.logical.start < end
        })
        .filter(move |branch| branch.reaches(&range))
}

fn branch(slot: u16, raw: &U32, logical: Range<u64>, levels: u8) -> Option<Branch> {
    let clamp = |at: u64| LogicalBlock(u32::try_from(at).unwrap_or(u32::MAX));
    Some(Branch {
        slot,
        block: target(raw)?,
        logical: clamp(logical.start)..clamp(logical.end),
        levels,
    })
}

/// The number of logical blocks below a pointer with `levels` levels.
fn blocks_of(levels: u8, block_size: BlockSize) -> u64 {
    1 << ((block_size.bits() - 2) * u32::from(levels))
}

fn pointers_mut(bytes: &mut [u8]) -> &mut [U32] {
    let whole = bytes.len() / POINTER_BYTES;
    <[U32]>::mut_from_prefix_with_elems(bytes, whole).map_or(&mut [], |(pointers, _)| pointers)
}

#[cfg(test)]
mod tests;
