//! **Purpose.** Changes file data that goes through the journal (`data=journal`,
//! `JOURNAL_DATA_FL`), as part of a plan.
//!
//! **Not here.** Which files have their data in the journal, and reading it (`file::journaled`).
//!
//! **Locking.** The inode's lock is held.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::extent::LOGICAL_END;
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::{LogicalBlock, PhysBlock};

use crate::Result;
use crate::core::Core;
use crate::file::journaled::journals_content;
use crate::file::read::check_mapped;
use crate::inode::cached::CachedInode;
use crate::map::lookup;
use crate::mount::modes::DataMode;
use crate::mount::state::Mount;
use crate::txn::plan::{Content, Plan, RegionId};

/// Returns what the blocks of `inode` hold, for callers that free them.
pub(crate) fn content_of(core: &Core, inode: &CachedInode) -> Content {
    let is_file = inode.file_type() == FileType::Regular;
    if is_file && !journals_content(core, inode) {
        Content::Data
    } else {
        Content::Metadata
    }
}

/// Returns how many blocks of `inode` one run of `plan` should write: journaled blocks are part of
/// the plan.
pub(crate) fn longest_run(mount: &Mount, plan: &Plan<'_>, inode: &CachedInode) -> u32 {
    if !journals_content(&mount.core, inode) {
        return u32::MAX;
    }
    let left = plan.mount.step_capacity().saturating_sub(plan.size());
    u32::try_from(left.max(1)).unwrap_or(u32::MAX)
}

/// Checkpoints all data of `inode`, whose lock is held, to its home location, and forgets the
/// buffers of its blocks, since `JOURNAL_DATA_FL` changes.
///
/// # Errors
/// `Corrupt` if the file maps more blocks than the file system has.
pub(crate) fn forget_content(mount: &Mount, inode: &CachedInode) -> Result<()> {
    if mount.data == DataMode::Journal || inode.file_type() != FileType::Regular {
        return Ok(());
    }
    mount.journal().commit()?;
    mount.journal().checkpoint()?;
    let tid = mount.journal().running_tid();
    let limit = mount.core.geometry().blocks().0;
    let (mut at, mut blocks) = (LogicalBlock(0), 0);
    while at < LOGICAL_END {
        let mapping = lookup::map_locked(&mount.core, inode, at)?;
        at = mapping.end();
        let Some(extent) = mapping.extent() else {
            continue;
        };
        blocks += u64::from(extent.blocks);
        check_mapped(inode, blocks, limit)?;
        for block in extent.physical.0..extent.physical.0 + u64::from(extent.blocks) {
            // No thread changes the block, so no change is lost.
            mount.core.buffers.forget(PhysBlock(block), tid);
        }
    }
    Ok(())
}

/// Plans zeroes for bytes of a block of a file whose data is journaled.
pub(crate) fn zero_content(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    block: PhysBlock,
    inside: std::ops::Range<usize>,
) -> Result<()> {
    let region = whole_of_content(plan, inode, block)?;
    plan.bytes_mut(region)[inside].fill(0);
    Ok(())
}

/// Whether a block is new to its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Novelty {
    /// The bytes around those that are written become zeroes.
    New,
    Old,
}

/// A part of a block that is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPart {
    pub(crate) block: PhysBlock,
    /// Where the part begins in the block, in bytes.
    pub(crate) offset: usize,
    pub(crate) novelty: Novelty,
}

/// Plans `bytes` at a place in a block of a file whose data is journaled. If the block is new to
/// the file, the rest of it is zeroes.
pub(crate) fn write_content(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    place: BlockPart,
    bytes: &[u8],
) -> Result<()> {
    let region = match place.novelty {
        Novelty::New => plan.fresh_content(place.block, content_tag(inode)),
        Novelty::Old => whole_of_content(plan, inode, place.block)?,
    };
    plan.bytes_mut(region)[place.offset..place.offset + bytes.len()].copy_from_slice(bytes);
    Ok(())
}

/// Adds a block of a file whose data is journaled to the plan: all of it, since a plan may zero one
/// part of the block and write another.
pub(crate) fn whole_of_content(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    block: PhysBlock,
) -> Result<RegionId> {
    let whole = 0..plan.mount.core.geometry().block_size().bytes();
    plan.part(block, whole, content_tag(inode))
}

pub(crate) fn content_tag(inode: &CachedInode) -> VerifiedAs {
    VerifiedAs::new(Structure::Content, inode.nr())
}
