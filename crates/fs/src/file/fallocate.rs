//! **Purpose.** Changes what is mapped in a range of a file, as fallocate(2) does: preallocates,
//! punches holes, zeroes, and takes out or inserts a part.
//!
//! **Model.** A range may have any number of extents, so the call is done in steps. Each step is a
//! plan of bounded size and leaves a valid file. Extents move without their data being read: they
//! are taken out of the tree one after the other and inserted where they belong. Parts of a block
//! at either end of the range are zeroed by the step that reaches them, or by the first step.
//!
//! **Locking.** The inode's lock is held for the whole call. While extents move, readers wait: they
//! see the file before the move or after it.
//!
//! **Crash safety.** One step has space for some hundred extents, and is atomic. Where a range has
//! more, a crash leaves the steps that were committed: a part at the front of the range is
//! preallocated, punched or zeroed, or a part of the file has moved already. Linux needs several
//! transactions sooner than that. Zeroes in blocks that stay mapped go where data goes. With
//! `data=journal` they are part of the step; else they are on the device before the step, and a
//! crash between the two leaves only the zeroes.
//!
//! **References.** fallocate(2); `ext4_fallocate` of Linux.

use std::ops::Range;

use fourscore_mballoc::Sizing;
use fourscore_ondisk::extent::{Extent, ExtentState, LOGICAL_END};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, LogicalBlock};
use fourscore_sync::epoch;

use crate::file::claim::Claimer;
use crate::file::finish::{Ending, WrittenAt, finish, finish_in_change};
use crate::file::prepare::{self, low32};
use crate::file::{claim, inline_change, journal_data, truncate};
use crate::inode::cache;
use crate::inode::cached::CachedInode;
use crate::inode::cell::{Changing, Pinned};
use crate::inode::sequence::Change;
use crate::map::account::Freed;
use crate::map::clusters::Clusters;
use crate::map::extents::Mapped;
use crate::map::form::MapForm;
use crate::map::mapping::Target;
use crate::map::run::BlockRun;
use crate::map::{extents, lookup, update};
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::faults::Sabotage;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::{Error, Result};

/// An operation on a range of a file; named after the flags of fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Holes become preallocated blocks, which read as zeroes. The file grows to the range's end.
    Allocate,
    /// As `Allocate`, but the size stays.
    AllocateKeepSize,
    /// The range reads as zeroes, and whole blocks in it are freed. The size stays.
    PunchHole,
    /// The range reads as zeroes and is preallocated. The file grows to the range's end.
    ZeroRange,
    /// As `ZeroRange`, but the size stays.
    ZeroRangeKeepSize,
    /// The range is taken out: the data behind it moves down, and the file gets shorter. Offset and
    /// length are multiples of the block size (with `bigalloc` of the cluster size), and the range
    /// ends before the file does.
    CollapseRange,
    /// A hole of the range's length is inserted: the data behind its offset moves up, and the file
    /// gets longer. Offset and length are multiples as of `CollapseRange`, and the range begins
    /// before the file ends.
    InsertRange,
}

impl Fallocate {
    fn grows(self) -> bool {
        matches!(self, Self::Allocate | Self::ZeroRange)
    }

    /// Whether no written data is lost, so that the call is allowed for append-only files.
    fn only_adds(self) -> bool {
        matches!(self, Self::Allocate | Self::AllocateKeepSize)
    }

    fn moves(self) -> bool {
        matches!(self, Self::CollapseRange | Self::InsertRange)
    }
}

/// What happens to data in a range that is preallocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    /// The data stays.
    Kept,
    /// The data reads as zeroes: whole blocks are as if they had just been preallocated.
    Zeroed,
}

/// A file that is changed in steps, by the holder of its lock.
struct Steps<'a> {
    mount: &'a Mount,
    pinned: &'a Pinned,
    locked: &'a mut Changing,
    /// Whether the sequence count of the inode is raised for all steps together.
    is_sequence_raised: bool,
}

/// The progress of taking out a range.
#[derive(Clone, Copy, Debug)]
struct Collapsing {
    /// Whether all of the range's space is free, or a part of it.
    freed: Freed,
    /// Where the rest begins that has to move.
    from: LogicalBlock,
    is_done: bool,
}

/// See [`Fs::fallocate`](crate::Fs::fallocate).
pub(crate) fn fallocate(
    mount: &Mount,
    inode: InodeNr,
    what: Fallocate,
    offset: u64,
    len: u64,
) -> Result<()> {
    errors::noting(mount, change_range(mount, inode, what, offset, len))
}

/// Does the same for callers that note errors themselves.
pub(crate) fn change_range(
    mount: &Mount,
    inode: InodeNr,
    what: Fallocate,
    offset: u64,
    len: u64,
) -> Result<()> {
    let limit = u64::from(LOGICAL_END.0) << mount.core.geometry().block_size().bits();
    if len == 0 {
        return Err(Error::InvalidArgument("an empty range"));
    }
    let end = offset.checked_add(len).filter(|&end| end <= limit);
    let bytes = offset..end.ok_or(Error::FileTooLarge)?;
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let mut locked = pinned.lock();
    truncate::end_truncation(mount, pinned.locked(&mut locked))?;
    let (size, only_grows) = {
        let inode = prepare::file_to_change(&pinned)?;
        (inode.size_bytes(), inode.has(InodeFlags::APPEND_FL))
    };
    if only_grows && !what.only_adds() {
        return Err(Error::NotPermitted);
    }
    mount
        .space
        .retried(|| inline_change::move_out(mount, pinned.locked(&mut locked)))?;
    let form = MapForm::of(pinned.version(&epoch::pin())?);
    if form == MapForm::Pointers && what != Fallocate::PunchHole {
        return Err(Error::Unsupported(
            "a file mapped by pointers has holes and nothing else".into(),
        ));
    }
    // In between the file is not valid: readers wait for the inode's lock.
    let _moving = what.moves().then(|| Moving::begin(mount, &pinned));
    let mut steps = Steps {
        mount,
        pinned: &pinned,
        locked: &mut locked,
        is_sequence_raised: what.moves(),
    };
    match what {
        Fallocate::Allocate | Fallocate::AllocateKeepSize => {
            steps.allocate(&bytes, Existing::Kept, what.grows())
        }
        Fallocate::ZeroRange | Fallocate::ZeroRangeKeepSize => {
            steps.discard_preallocation()?;
            steps.allocate(&bytes, Existing::Zeroed, what.grows())
        }
        Fallocate::PunchHole => steps.punch(bytes, size),
        Fallocate::CollapseRange => steps.collapse(&bytes, size),
        Fallocate::InsertRange => steps.insert(&bytes, size, limit),
    }
}

/// A move of blocks to other offsets of the file. It is dropped while the inode is still locked;
/// then readers that found the blocks earlier notice the move.
struct Moving<'a> {
    mount: &'a Mount,
    change: Option<Change<'a>>,
}

impl<'a> Moving<'a> {
    fn begin(mount: &'a Mount, pinned: &'a Pinned) -> Self {
        let change = Some(pinned.change_sequence());
        Self { mount, change }
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.change = None;
        if !self.mount.core.faults.lacks(Sabotage::UnnoticedMove) {
            self.mount.core.advance_reuse_clock();
        }
    }
}

impl<'a> Steps<'a> {
    fn begin(&self) -> Result<(CachedInode, Plan<'a>, Slot)> {
        let inode = prepare::file_to_change(self.pinned)?;
        let mut plan = Plan::new(self.mount);
        let slot = slot::slot(&mut plan, inode.nr())?;
        Ok((inode, plan, slot))
    }

    /// Applies the plan of a step; the file has `size` bytes then.
    fn end(&self, plan: Plan<'_>, slot: Slot, size: u64) -> Result<()> {
        let written_at = WrittenAt::Now;
        let (ending, file) = (Ending { size, written_at }, self.pinned.held(self.locked));
        match self.is_sequence_raised {
            true => finish_in_change(plan, slot, ending, file),
            false => finish(plan, slot, ending, file),
        }
    }

    /// Gives back the space that is preallocated for this file alone. It would hide free space, or
    /// be in the way of extents that move.
    fn discard_preallocation(&self) -> Result<()> {
        if let Some(file) = &self.locked.prealloc {
            self.mount.allocator().discard(file);
        }
        Ok(())
    }

    fn bits(&self) -> u32 {
        self.mount.core.geometry().block_size().bits()
    }

    /// Returns the blocks that lie completely in a range of bytes.
    fn whole_blocks(&self, bytes: &Range<u64>) -> Range<LogicalBlock> {
        let bits = self.bits();
        let start = LogicalBlock(low32((bytes.start + (1 << bits) - 1) >> bits));
        let end = LogicalBlock(low32(bytes.end >> bits));
        start..end.max(start)
    }

    /// How much to search for. A length that one extent can have is searched for exactly, as in
    /// Linux; for a longer one it is the size class of the file.
    fn sizing(&self, bytes: &Range<u64>) -> Sizing {
        let blocks = (bytes.end.div_ceil(1 << self.bits())) - (bytes.start >> self.bits());
        match blocks <= u64::from(ExtentState::Unwritten.max_blocks()) {
            true => Sizing::Exact,
            false => Sizing::Normalize,
        }
    }

    /// Maps unwritten blocks wherever the range touches a hole, and treats written data there as
    /// `existing` says.
    fn allocate(&mut self, bytes: &Range<u64>, existing: Existing, grows: bool) -> Result<()> {
        let bits = self.bits();
        let end = LogicalBlock(low32((bytes.end + (1 << bits) - 1) >> bits));
        let mut at = LogicalBlock(low32(bytes.start >> bits));
        let mount = self.mount;
        while at < end {
            let size = if grows { bytes.end } else { 0 };
            at = mount
                .space
                .retried(|| self.allocate_step(at..end, bytes, existing, size))?;
        }
        Ok(())
    }

    /// Preallocates the front of `blocks`, as `existing` says and as far as one plan has space.
    /// Returns the block that it reached. The file grows that far, at most to `size` bytes.
    fn allocate_step(
        &mut self,
        blocks: Range<LogicalBlock>,
        bytes: &Range<u64>,
        existing: Existing,
        size: u64,
    ) -> Result<LogicalBlock> {
        let capacity = self.mount.step_capacity();
        let (mut at, end) = (blocks.start, blocks.end);
        let (inode, mut plan, slot) = self.begin()?;
        let inode = &inode;
        if size > inode.size_bytes() {
            prepare::zero_tail(&self.mount.core, &mut plan, inode, inode.size_bytes())?;
        }
        let (whole, sizing) = (self.whole_blocks(bytes), self.sizing(bytes));
        while at < end && plan.size() < capacity {
            let mapping = lookup::map_locked(&self.mount.core, inode, at)?;
            let mut run = mapping.blocks.min(end.0 - at.0);
            match mapping.target {
                Target::Hole => {
                    let blocks = run.min(ExtentState::Unwritten.max_blocks());
                    let locked = &mut *self.locked;
                    let file = &mut Claimer {
                        inode,
                        slot,
                        locked,
                        sizing,
                        hole_end: mapping.end(),
                    };
                    let hole = BlockRun { at, blocks };
                    let (physical, got) =
                        claim::claim(&self.mount.core, &mut plan, file, hole, bytes.end)?;
                    let extent = Extent {
                        logical: at,
                        physical,
                        blocks: got,
                        state: ExtentState::Unwritten,
                    };
                    update::map_extent(&mut plan, inode, slot, extent)?;
                    run = got;
                }
                Target::Written(_) if existing == Existing::Zeroed => {
                    let end = LogicalBlock(at.0 + run).min(whole.end);
                    let part = at.max(whole.start)..end;
                    update::set_state(&mut plan, inode, slot, part, ExtentState::Unwritten)?;
                }
                Target::Written(_) | Target::Unwritten(_) => {}
            }
            at = LogicalBlock(at.0 + run);
        }
        let reached = u64::from(at.0) << self.bits();
        if existing == Existing::Zeroed {
            let from = u64::from(blocks.start.0) << self.bits();
            let done = from.max(bytes.start)..reached.min(bytes.end);
            self.zero_edges(&mut plan, inode, &done)?;
        }
        let reached = reached.min(size);
        self.end(plan, slot, inode.size_bytes().max(reached))?;
        Ok(at)
    }

    /// Zeroes the parts of blocks at both ends of a range.
    fn zero_edges(
        &self,
        plan: &mut Plan<'_>,
        inode: &CachedInode,
        bytes: &Range<u64>,
    ) -> Result<()> {
        let mask = (1_u64 << self.bits()) - 1;
        let head = bytes.start..bytes.end.min((bytes.start + mask) & !mask);
        prepare::zero_in_block(&self.mount.core, plan, inode, head.clone())?;
        let tail = head.end.max(bytes.end & !mask)..bytes.end;
        prepare::zero_in_block(&self.mount.core, plan, inode, tail)
    }

    fn punch(&mut self, bytes: Range<u64>, size: u64) -> Result<()> {
        if bytes.start >= size {
            return Ok(());
        }
        self.discard_preallocation()?;
        // The bytes of the last block behind the end of the file are not visible.
        let mask = (1_u64 << self.bits()) - 1;
        let end = bytes.end.min((size + mask) & !mask);
        let edges = bytes.start..bytes.end.min(size);
        self.unmap(self.whole_blocks(&(bytes.start..end)), edges)
    }

    /// Frees whole blocks, and zeroes the parts of blocks at both ends of `edges`.
    fn unmap(&mut self, blocks: Range<LogicalBlock>, edges: Range<u64>) -> Result<()> {
        let mut edges = Some(edges);
        while self.retried(|| self.unmap_step(&blocks, edges.as_ref()))? != Freed::All {
            edges = None;
        }
        Ok(())
    }

    fn unmap_step(
        &self,
        blocks: &Range<LogicalBlock>,
        edges: Option<&Range<u64>>,
    ) -> Result<Freed> {
        let (inode, mut plan, slot) = self.begin()?;
        let inode = &inode;
        if let Some(edges) = edges {
            self.zero_edges(&mut plan, inode, edges)?;
        }
        let freed = update::unmap(
            &mut plan,
            inode,
            slot,
            blocks.clone(),
            journal_data::content_of(&self.mount.core, inode),
        )?;
        self.end(plan, slot, inode.size_bytes())?;
        Ok(freed)
    }

    /// Tries a step, and retries it if it finds no space while some is about to become free.
    fn retried<T>(&self, step: impl FnMut() -> Result<T>) -> Result<T> {
        self.mount.space.retried(step)
    }

    /// Returns the blocks of a range that is to be taken out or inserted.
    fn moved_range(&self, bytes: &Range<u64>) -> Result<Range<LogicalBlock>> {
        let mask = self.mount.core.geometry().cluster_size_bytes() as u64 - 1;
        if (bytes.start | bytes.end) & mask != 0 {
            return Err(Error::InvalidArgument("not whole clusters"));
        }
        Ok(self.whole_blocks(bytes))
    }

    fn collapse(&mut self, bytes: &Range<u64>, size: u64) -> Result<()> {
        let blocks = self.moved_range(bytes)?;
        if bytes.end >= size {
            return Err(Error::InvalidArgument("nothing lies behind the range"));
        }
        self.discard_preallocation()?;
        let by = blocks.end.0 - blocks.start.0;
        let mut at = Collapsing {
            freed: Freed::Part,
            from: blocks.end,
            is_done: false,
        };
        while !at.is_done {
            at = self.retried(|| {
                let (inode, mut plan, slot) = self.begin()?;
                let inode = &inode;
                let mut at = at;
                if at.freed != Freed::All {
                    at.freed = update::unmap(
                        &mut plan,
                        inode,
                        slot,
                        blocks.clone(),
                        journal_data::content_of(&self.mount.core, inode),
                    )?;
                }
                at.is_done = at.freed == Freed::All
                    && self.move_down(&mut plan, Mapped { inode, slot }, &mut at.from, by)?;
                let cut_bytes = match at.is_done {
                    true => bytes.end - bytes.start,
                    false => 0,
                };
                self.end(plan, slot, size - cut_bytes)?;
                Ok(at)
            })?;
        }
        Ok(())
    }

    /// Moves the blocks from `from` on down by a number of blocks, as far as the plan has space;
    /// `from` then is where the rest begins. Returns whether nothing is left.
    fn move_down(
        &self,
        plan: &mut Plan<'_>,
        file: Mapped<'_>,
        from: &mut LogicalBlock,
        by: u32,
    ) -> Result<bool> {
        let Mapped { inode, slot } = file;
        let clusters = Clusters::of(&self.mount.core);
        let capacity = self.mount.step_capacity();
        loop {
            // A cluster moves as a whole.
            let has_capacity = plan.size() < capacity;
            let end = if has_capacity {
                LOGICAL_END
            } else {
                clusters.ceil(*from)
            };
            let Some(found) = extents::first_extent(plan, inode, slot, *from..end)? else {
                return Ok(has_capacity);
            };
            *from = found.logical_end();
            extents::move_extent(plan, inode, slot, found, LogicalBlock(found.logical.0 - by))?;
        }
    }

    fn insert(&mut self, bytes: &Range<u64>, size: u64, limit: u64) -> Result<()> {
        let blocks = self.moved_range(bytes)?;
        let len = bytes.end - bytes.start;
        if bytes.start >= size {
            return Err(Error::InvalidArgument("the file ends before the range"));
        }
        if size > limit - len {
            return Err(Error::FileTooLarge);
        }
        self.discard_preallocation()?;
        let by = blocks.end.0 - blocks.start.0;
        let (mut until, mut is_done) = (LOGICAL_END, false);
        while !is_done {
            (until, is_done) = self.retried(|| {
                let (inode, mut plan, slot) = self.begin()?;
                let inode = &inode;
                let mut until = until;
                let file = Mapped { inode, slot };
                let is_done = self.move_up(&mut plan, file, blocks.start, &mut until, by)?;
                // The size comes first: moved blocks must not lie behind the end of the file.
                self.end(plan, slot, size + len)?;
                Ok((until, is_done))
            })?;
        }
        Ok(())
    }

    /// Moves the blocks between `from` and `until` up by a number of blocks, as far as the plan has
    /// space; `until` then is where the rest ends. Returns whether nothing is left.
    fn move_up(
        &self,
        plan: &mut Plan<'_>,
        file: Mapped<'_>,
        from: LogicalBlock,
        until: &mut LogicalBlock,
        by: u32,
    ) -> Result<bool> {
        let Mapped { inode, slot } = file;
        let clusters = Clusters::of(&self.mount.core);
        let capacity = self.mount.step_capacity();
        loop {
            // A cluster moves as a whole.
            let has_capacity = plan.size() < capacity;
            let start = if has_capacity {
                from
            } else {
                clusters.floor(*until)
            };
            let Some(found) = extents::last_extent(plan, inode, slot, start..*until)? else {
                return Ok(has_capacity);
            };
            *until = found.logical;
            // Blocks behind the end of the file may be mapped, too.
            let to = found.logical.0.checked_add(by);
            let to = to.filter(|to| LOGICAL_END.0 - found.blocks >= *to);
            let to = to.ok_or(Error::InvalidArgument("preallocated to the last block"))?;
            extents::move_extent(plan, inode, slot, found, LogicalBlock(to))?;
        }
    }
}
