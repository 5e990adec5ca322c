//! **Purpose.** Checks that precede every change of file data, and zeroing of parts of a block and
//! of blocks.
//!
//! **Model.** Zeroes go where data goes: into the plan where data is journaled, else to the device
//! at once.
//!
//! **Locking.** The inode's lock is held.

use fourscore_ondisk::extent::Extent;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::{LogicalBlock, PhysBlock};

use crate::core::Core;
use crate::file::{journal_data, journaled};
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::cell::Pinned;
use crate::inode::immutable::check_is_no_value;
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::txn::plan::Plan;
use crate::{Error, Result};

/// Zeroes the bytes behind `size` in the block that holds it, since they are going to be visible.
/// They are zeroed as by [`prepare::zero_in_block`](crate::file::prepare::zero_in_block).
///
/// As in Linux, the bytes of an encrypted file stay: they are the end of its last encryption unit,
/// which zeroes would make unreadable. They are zeroes once that unit is decrypted.
pub(crate) fn zero_tail(
    core: &Core,
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    size: u64,
) -> Result<()> {
    if inode.is_encrypted() {
        return Ok(());
    }
    let block_size = core.geometry().block_size();
    let mask = block_size.bytes() as u64 - 1;
    zero_in_block(core, plan, inode, size..(size + mask) & !mask)
}

/// Zeroes bytes of one block, if it is mapped and written. Where data is journaled this is part of
/// `plan`; else it is done at once, as by a write that overwrites.
pub(crate) fn zero_in_block(
    core: &Core,
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    bytes: std::ops::Range<u64>,
) -> Result<()> {
    let block_size = core.geometry().block_size();
    if bytes.is_empty() {
        return Ok(());
    }
    let at = LogicalBlock(low32(bytes.start >> block_size.bits()));
    let target = lookup::map_locked(core, inode, at)?.target;
    if let Target::Written(block) = target {
        let inside = bytes.start & (block_size.bytes() as u64 - 1);
        if journaled::journals_content(core, inode) {
            let end = inside + (bytes.end - bytes.start);
            return journal_data::zero_content(plan, inode, block, index(inside)..index(end));
        }
        let zeroes = &ZEROES[..index(bytes.end - bytes.start)];
        let place = block_size.offset(block) + inside;
        core.device.write_at(zeroes, place)?;
    }
    Ok(())
}

/// Zeroes blocks that the plan makes written ones: where data is journaled as part of `plan`, else
/// at once, as by a write.
pub(crate) fn zero_blocks(plan: &mut Plan<'_>, inode: &CachedInode, blocks: &Extent) -> Result<()> {
    let core = &plan.mount.core;
    if journaled::journals_content(core, inode) {
        let tag = journal_data::content_tag(inode);
        for nth in 0..u64::from(blocks.blocks) {
            plan.fresh_content(PhysBlock(blocks.physical.0 + nth), tag);
        }
        return Ok(());
    }
    let block_size = core.geometry().block_size();
    let start = block_size.offset(blocks.physical);
    let len = u64::from(blocks.blocks) << block_size.bits();
    Ok(core.device.write_zeroes(start..start + len)?)
}

/// Returns a copy of the inode of a regular file whose data can and may be changed.
pub(crate) fn file_to_change(pinned: &Pinned) -> Result<CachedInode> {
    pinned.copy_if(|inode| {
        check_is_writable(inode)?;
        match inode.has(InodeFlags::IMMUTABLE_FL) {
            true => Err(Error::NotPermitted),
            false => Ok(()),
        }
    })
}

/// Refuses inodes that are no regular files, and files whose data this library cannot change.
pub(crate) fn check_is_writable(inode: &CachedInode) -> Result<()> {
    match inode.file_type() {
        FileType::Regular => {}
        FileType::Directory => return Err(Error::IsADirectory),
        _ => return Err(Error::InvalidArgument("not a regular file")),
    }
    check_is_no_value(inode)?;
    if inode.is_encrypted() {
        return Err(Error::NoKey { inode: inode.nr() });
    }
    if inode.has(InodeFlags::VERITY_FL) {
        return Err(Error::NotPermitted);
    }
    if !matches!(
        inode.layout(),
        Layout::Extents | Layout::BlockMap | Layout::Inline
    ) {
        return Err(Error::Unsupported(format!(
            "inode {}: a file that has no blocks is not changed",
            inode.nr()
        )));
    }
    Ok(())
}

/// Converts the number of a file's block that was checked to fit into 32 bits.
pub(crate) fn low32(block: u64) -> u32 {
    u32::try_from(block).unwrap_or(u32::MAX)
}

/// Zeroes that pad a block at either end.
pub(crate) static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// Converts a length that is bounded by a length in memory.
pub(crate) fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
