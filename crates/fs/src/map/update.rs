//! **Purpose.** Changes what the blocks of a file map to, as part of a plan, for both forms of a
//! map.
//!
//! **Not here.** Changing extent trees ([`crate::map::extents`]) and pointers
//! ([`crate::map::pointers`]); reading either ([`crate::map::lookup`]).
//!
//! **Model.** A flag of the inode says which form its map has, and the form never changes. New
//! inodes get the form that the file system is made for: a tree with the feature `extent`, pointers
//! without. Pointers have no states: the blocks that they map are written, so nothing can be
//! preallocated.
//!
//! **Locking.** The inode's lock is held.

use std::ops::Range;

use fourscore_block::VerifiedAs;
use fourscore_ondisk::extent::{Extent, ExtentState, LOGICAL_END};
use fourscore_ondisk::features::RoCompat;
use fourscore_ondisk::{BlockCount, LogicalBlock, PhysBlock, blockmap};
use fourscore_sync::profile::{self, Section};

use crate::core::Core;
use crate::file::journal_data;
use crate::inode::cached::{CachedInode, Layout};
use crate::map::account::{self, Freed, SECTOR_BITS};
use crate::map::clusters::{self, Clusters};
use crate::map::form::MapForm;
use crate::map::{cut, extents, pointers, update};
use crate::txn::plan::{Content, Plan, RegionId};
use crate::txn::slot::Slot;
use crate::{Error, Result};

/// The longest extent of data, in blocks.
const EXTENT_MAX_BLOCKS: u32 = 32_768;

/// Returns the size that a file with the map of `inode` cannot exceed, in bytes.
pub(crate) fn max_file_bytes(core: &Core, inode: &CachedInode) -> u64 {
    let block_size = core.geometry().block_size();
    let longest = u64::from(LOGICAL_END.0);
    let blocks = match MapForm::of(inode) {
        MapForm::Tree => longest,
        MapForm::Pointers => {
            // As in Linux, `i_blocks` must be able to count the space of a dense file.
            let ro_compat = core.superblock().features().ro_compat;
            let countable = if ro_compat.contains(RoCompat::HUGE_FILE) {
                (1 << 48) - 1
            } else {
                u64::from(u32::MAX) >> (block_size.bits() - SECTOR_BITS)
            };
            let most = blockmap::max_blocks(block_size, BlockCount(countable));
            most.0.min(longest)
        }
    };
    blocks << block_size.bits()
}

/// Returns how many blocks of a file can be mapped by one call from `at` on, without the plan
/// becoming much larger.
pub(crate) fn blocks_at_once(core: &Core, inode: &CachedInode, at: LogicalBlock) -> u32 {
    match MapForm::of(inode) {
        MapForm::Tree => EXTENT_MAX_BLOCKS,
        MapForm::Pointers => {
            let path = blockmap::Path::to(at, core.geometry().block_size());
            path.map_or(1, |path| path.neighbours())
        }
    }
}

/// Maps one written block.
pub(crate) fn map_block(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    at: LogicalBlock,
    block: PhysBlock,
) -> Result<()> {
    let extent = Extent {
        logical: at,
        physical: block,
        blocks: 1,
        state: ExtentState::Written,
    };
    map_extent(plan, inode, slot, extent)
}

/// Maps an extent where nothing is mapped.
///
/// # Errors
/// `Unsupported` for an unwritten extent in a map of pointers.
pub(crate) fn map_extent(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    extent: Extent,
) -> Result<()> {
    let _section = profile::enter(Section::Map);
    let blocks = extent.logical..extent.logical_end();
    match (MapForm::of(inode), extent.state) {
        (MapForm::Tree, _) => {
            let own = clusters::own_clusters(plan, inode, slot, blocks)?;
            extents::enter_extent(plan, inode, slot, extent)?;
            let new = Clusters::of(&plan.mount.core).count(&own);
            account::count_clusters(plan, slot, new.0.into())
        }
        (MapForm::Pointers, ExtentState::Written) => {
            check_pointers(plan, inode)?;
            pointers::point_to(plan, inode, slot, extent)?;
            account::count_clusters(plan, slot, extent.blocks.into())
        }
        (MapForm::Pointers, ExtentState::Unwritten) => Err(no_states(inode)),
    }
}

/// Refuses maps of pointers on file systems whose clusters have several blocks: Linux has no such
/// file systems.
fn check_pointers(plan: &Plan<'_>, inode: &CachedInode) -> Result<()> {
    if plan.mount.core.geometry().blocks_per_cluster_log() == 0 {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "inode {}: a file mapped by pointers on a file system with bigalloc",
        inode.nr()
    )))
}

/// Sets the state of all that is mapped in `blocks` to `state`.
///
/// # Errors
/// `Unsupported` for unwritten blocks in a map of pointers.
pub(crate) fn set_state(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    blocks: Range<LogicalBlock>,
    state: ExtentState,
) -> Result<()> {
    let _section = profile::enter(Section::Map);
    match (MapForm::of(inode), state) {
        (MapForm::Tree, state) => extents::set_extent_state(plan, inode, slot, blocks, state),
        (MapForm::Pointers, ExtentState::Written) => Ok(()),
        (MapForm::Pointers, ExtentState::Unwritten) => Err(no_states(inode)),
    }
}

/// Unmaps `blocks`, and frees what was mapped there, from the front on and as far as the plan has
/// space.
pub(crate) fn unmap(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    blocks: Range<LogicalBlock>,
    was: Content,
) -> Result<Freed> {
    let _section = profile::enter(Section::Map);
    match MapForm::of(inode) {
        MapForm::Tree => cut::cut_extents(plan, inode, slot, blocks, was),
        MapForm::Pointers => {
            check_pointers(plan, inode)?;
            pointers::cut_pointers(plan, inode, slot, blocks, was)
        }
    }
}

/// Frees what is mapped from `start` on, as far as the plan has space. If all of it is freed and
/// `start` is 0, the map is empty.
pub(crate) fn free_map(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    start: LogicalBlock,
) -> Result<Freed> {
    let was = journal_data::content_of(&plan.mount.core, inode);
    match inode.layout() {
        Layout::Extents | Layout::BlockMap => unmap(plan, inode, slot, start..LOGICAL_END, was),
        Layout::Inline | Layout::FastSymlink | Layout::Nothing => Ok(Freed::All),
    }
}

fn no_states(inode: &CachedInode) -> Error {
    Error::Unsupported(format!(
        "inode {}: a file mapped by pointers has no unwritten blocks",
        inode.nr()
    ))
}

/// Maps a new block for metadata at the logical block `at`, to be written with the tag `tag`.
/// Returns the block and its region in the plan.
pub(crate) fn new_block(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    at: LogicalBlock,
    tag: VerifiedAs,
) -> Result<(PhysBlock, RegionId)> {
    let block = match clusters::place_in_cluster(plan, inode, slot, at)? {
        Some(block) => block,
        None => {
            let goal = account::goal_behind(plan, inode, at)?;
            let reach = MapForm::of(inode).reach();
            let first = plan.claim_metadata(inode.nr(), reach, goal)?;
            let inside = Clusters::of(&plan.mount.core).inside(at);
            PhysBlock(first.0 + u64::from(inside))
        }
    };
    update::map_block(plan, inode, slot, at, block)?;
    Ok((block, plan.fresh(block, tag)))
}
