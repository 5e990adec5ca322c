//! **Purpose.** Marks unwritten blocks as written without a new node of the tree, where no space is
//! left for one.
//!
//! **Model.** Writing into the middle of an unwritten extent makes three extents of one. If the
//! leaf has no slots for them, the leaf is split, which takes a block. Without a block, more of the
//! extent becomes written than is written to, so that fewer slots are needed:
//!
//! ```text
//! wanted           ......wwww.........      two more slots
//! up to an edge    wwwwwwwwww.........      one more; none if a written extent adjoins in front
//!                  ......wwwwwwwwwwwww      one more; none if a written extent adjoins behind
//! all              wwwwwwwwwwwwwwwwwww      none
//! ```
//!
//! The shortest range for which the leaf has space is chosen. The caller zeroes what it does not
//! write, so one call zeroes an extent at most, and no block of a file is zeroed twice.
//!
//! Blocks that lie completely behind the end of a file must not be written ones (e2fsck refuses
//! them). So an extent that reaches behind the end keeps that part, which takes a slot.
//!
//! **Locking.** The inode's lock is held.
//!
//! **Crash safety.** The caller zeroes the blocks before it applies the plan, as it writes data.
//!
//! **References.** `ext4_split_extent_at` of Linux (`EXT4_EXT_MAY_ZEROOUT`).

use std::ops::Range;

use fourscore_ondisk::LogicalBlock;
use fourscore_ondisk::extent::{Extent, ExtentEditError, ExtentState};

use crate::inode::cached::CachedInode;
use crate::map::extents::{self, Fit, Mapped};
use crate::txn::plan::Plan;
use crate::txn::slot::Slot;
use crate::{Error, Result};

/// What may become written besides the blocks that are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The first block that must stay as it is.
    pub(crate) end: LogicalBlock,
    /// The most blocks that may become written in all.
    pub(crate) blocks: u32,
}

/// Marks `wanted`, which lies in one unwritten extent, as written, and more of that extent as far
/// as the tree would otherwise need a node. Returns what became written.
///
/// # Errors
/// `NoSpace` if no range within `bounds` does without a node.
pub(crate) fn set_written(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    wanted: &Range<LogicalBlock>,
    bounds: Bounds,
) -> Result<Extent> {
    let (file, state) = (Mapped { inode, slot }, ExtentState::Written);
    let found = extents::next_extent(plan, file, wanted.start, wanted.end)?;
    let covers = |found: &Extent| {
        found.state == ExtentState::Unwritten
            && found.logical <= wanted.start
            && wanted.end <= found.logical_end()
    };
    let Some(whole) = found.filter(covers) else {
        return Err(file.broken(ExtentEditError::Shape));
    };
    for range in ranges(&whole, wanted, bounds) {
        let Some(part) = whole.part(&range) else {
            continue;
        };
        let fit = extents::change_fitting(plan, file, range.start, |leaf| {
            leaf.set_state(range.clone(), state)
        })?;
        if fit == Fit::Changed {
            let written = Extent { state, ..part };
            plan.note_range(inode, written);
            return Ok(written);
        }
    }
    Err(Error::NoSpace)
}

/// Returns the ranges of `whole` that can become written for the sake of `wanted`, the shortest
/// first.
fn ranges(
    whole: &Extent,
    wanted: &Range<LogicalBlock>,
    bounds: Bounds,
) -> Vec<Range<LogicalBlock>> {
    let end = whole.logical_end().min(bounds.end).max(wanted.end);
    let mut all = vec![
        wanted.clone(),
        whole.logical..wanted.end,
        wanted.start..end,
        whole.logical..end,
    ];
    let len = |range: &Range<LogicalBlock>| range.end.0.saturating_sub(range.start.0);
    all.retain(|range| len(range) <= bounds.blocks);
    all.sort_by_key(len);
    all
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use fourscore_ondisk::PhysBlock;

    fn of(wanted: Range<u32>, end: u32, blocks: u32) -> Vec<Range<u32>> {
        let whole = Extent {
            logical: LogicalBlock(10),
            physical: PhysBlock(100),
            blocks: 20,
            state: ExtentState::Unwritten,
        };
        let end = LogicalBlock(end);
        let wanted = LogicalBlock(wanted.start)..LogicalBlock(wanted.end);
        let found = ranges(&whole, &wanted, Bounds { end, blocks });
        found.iter().map(|it| it.start.0..it.end.0).collect()
    }

    #[test]
    fn short_ranges_come_first_and_long_ones_are_left_out() {
        assert_eq!(of(12..13, 90, 90), [12..13, 10..13, 12..30, 10..30]);
        assert_eq!(of(27..28, 90, 90), [27..28, 27..30, 10..28, 10..30]);
        assert_eq!(of(27..28, 90, 18), [27..28, 27..30, 10..28]);
    }

    #[test]
    fn nothing_behind_the_end_is_added() {
        assert_eq!(of(12..13, 20, 90), [12..13, 10..13, 12..20, 10..20]);
        assert_eq!(of(12..13, 13, 90), [12..13, 12..13, 10..13, 10..13]);
    }
}
