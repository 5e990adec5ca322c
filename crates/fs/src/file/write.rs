//! **Purpose.** Changing the content of files: write, truncate.
//!
//! **Not here.** Making it durable ([`crate::file::sync`]).
//!
//! **Not here.** What is different where content goes through the journal ([`crate::file::journaled`]).
//!
//! **Model.** Bytes that fall into written blocks go straight there. For the rest clusters are
//! claimed, the data is written to them, and one plan maps them and moves the size. So what a file
//! shows after a crash was written before it was mapped: blocks with old content are never part of
//! it. Where all bytes fall into written blocks, and the inode says already that it was changed at
//! this tick of the clock, nothing of it changes and there is no plan.
//!
//! **Locking.** The inode's lock is held for the whole call, device writes included: writers of one
//! file come one after the other. Content that was kept ([`Fs::write_back_at`]) is written over
//! with the lock shared: its pieces do not overlap, so they need not wait for each other. Readers
//! take no lock; they see the old map or the new one.
//!
//! **Crash safety.** Data is on its way to the device before the transaction that maps it is
//! sealed, and the commit flushes the device before its last block. Data that was written without a
//! plan is noted, and fsync flushes the device for it.

use std::io::IoSlice;

use fourscore_mballoc::{ClusterCount, FilePrealloc, Neighbour, Request};
use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::inode::{InodeFlags, needs_large_file};
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock};
use fourscore_sync::Arc;
use fourscore_sync::epoch;

use crate::file::inline_change::Written;
use crate::inode::cache::{CachedInode, Changing, Layout, Pinned};
use crate::inode::flags::{check_changeable, check_is_no_value};
use crate::map::clusters::{Clusters, Place};
use crate::map::lookup::{Mapping, Target};
use crate::map::update::{Freed, MapForm};
use crate::mount::writer::now;
use crate::txn::apply::Show;
use crate::txn::faults::Sabotage;
use crate::txn::plan::Plan;
use crate::txn::slot::Slot;
use crate::{Error, FileType, Fs, Result};

/// What pads a block at either end.
static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// When so much is cut off a file, it pays to see at once whether anybody reads it still: what was
/// written and cut off in one transaction can then be written again, in memory that is warm.
const MUCH_BYTES: u64 = 4 << 20;

/// A write, cut to what one plan does.
#[derive(Clone, Copy)]
struct Range {
    offset: u64,
    end: u64,
}

/// Whether a write needed no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenOver {
    Yes,
    No,
}

/// When it was decided that somebody may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    /// Now, by the flags that the file has.
    Now,
    /// Earlier, by those that it had.
    Earlier(WrittenAt),
}

/// Who tells when content was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenAt {
    /// Nobody: the file's times become the time of the call.
    Now,
    /// Whoever kept it, with [`Fs::note_times`]: the file's times stay as they are.
    Told,
}

impl Decided {
    fn written_at(self) -> WrittenAt {
        match self {
            Self::Now => WrittenAt::Now,
            Self::Earlier(written_at) => written_at,
        }
    }
}

impl Fs {
    /// Writes `data` at `offset` (bytes) into a regular file, which grows as need be. Returns the
    /// number of bytes written: all of them. Durable after [`Fs::fsync`].
    ///
    /// # Errors
    /// `IsADirectory`, `InvalidArgument` for what is no file, `NoSpace`, `FileTooLarge`,
    /// `ReadOnly`; `NotPermitted` for what flags keep. With `NoSpace` a part at the front may be
    /// written; the size tells.
    pub fn write_at(&self, inode: InodeNr, data: &[u8], offset: u64) -> Result<usize> {
        let written = self.write_to(inode, data, Some(offset), Decided::Now);
        self.noting(written.map(|_| data.len()))
    }

    /// As [`Fs::write_at`], for who has kept what somebody wrote before now: flags that the file
    /// got since then keep nothing out. Linux, too, asks when something is written and not when its
    /// page cache writes it back. The caller may know the times, and tell them by himself.
    ///
    /// Calls for one file run beside each other where they write over blocks that it has: of bytes
    /// that two of them write at the same time, either may be kept.
    ///
    /// # Errors
    /// As [`Fs::write_at`], but `NotPermitted` for a file with verity only.
    pub fn write_back_at(
        &self,
        inode: InodeNr,
        data: &[u8],
        offset: u64,
        written_at: WrittenAt,
    ) -> Result<usize> {
        let written = self.write_to(inode, data, Some(offset), Decided::Earlier(written_at));
        self.noting(written.map(|_| data.len()))
    }

    /// Writes `data` behind the end of a regular file, and returns the offset at which it begins.
    ///
    /// # Errors
    /// As [`Fs::write_at`].
    pub fn append(&self, inode: InodeNr, data: &[u8]) -> Result<u64> {
        self.noting(self.write_to(inode, data, None, Decided::Now))
    }

    /// Writes at `offset`, or behind the end, and says where.
    pub(crate) fn write_to(
        &self,
        inode: InodeNr,
        data: &[u8],
        offset: Option<u64>,
        decided: Decided,
    ) -> Result<u64> {
        let pinned = self.pin_inode(inode)?;
        if let (Some(offset), Decided::Earlier(written_at)) = (offset, decided)
            && self.write_beside(&pinned, (data, offset), written_at)? == WrittenOver::Yes
        {
            return Ok(offset);
        }
        let mut locked = pinned.lock();
        let offset = match offset {
            Some(offset) => offset,
            None => pinned.version(&epoch::pin())?.size_bytes(),
        };
        self.write_locked((&pinned, &mut locked), (data, offset), decided)?;
        Ok(offset)
    }

    /// Writes over content that was kept, beside others who do, if nothing of the inode changes by
    /// that.
    fn write_beside(
        &self,
        pinned: &Pinned,
        (data, offset): (&[u8], u64),
        written_at: WrittenAt,
    ) -> Result<WrittenOver> {
        let shared = pinned.share();
        let decided = Decided::Earlier(written_at);
        let inode = &pinned.copy_if(|inode| check_may_write(inode, offset, decided))?;
        let Some(end) = offset.checked_add(data.len() as u64) else {
            return Ok(WrittenOver::No);
        };
        if inode.layout() == Layout::Inline || awaits_truncation(inode, &shared) {
            return Ok(WrittenOver::No);
        }
        let range = Range { offset, end };
        self.write_over((inode, &shared), (data, range), written_at)
    }

    /// Writes all of `data`, for the holder of the inode's lock.
    pub(crate) fn write_locked(
        &self,
        (pinned, locked): (&Pinned, &mut Changing),
        (data, offset): (&[u8], u64),
        decided: Decided,
    ) -> Result<()> {
        /// So much is done in one plan at most, in bytes: what is written is mapped soon.
        const MOST_BYTES: usize = 64 << 20;
        let writer = self.writer()?;
        let end = offset.checked_add(data.len() as u64);
        let limit = self.max_file_bytes(pinned.version(&epoch::pin())?);
        if end.is_none_or(|end| end > limit) {
            return Err(Error::FileTooLarge);
        }
        self.end_truncation(pinned, locked)?;
        let mut done = 0;
        while done < data.len() {
            let part = &data[done..data.len().min(done + MOST_BYTES)];
            let at = offset + done as u64;
            done +=
                writer.retried(|| self.write_part((pinned, &mut *locked), (part, at), decided))?;
        }
        Ok(())
    }

    /// Writes as much from the front of `data` on as one plan has room for, and says how many
    /// bytes that is.
    fn write_part(
        &self,
        (pinned, locked): (&Pinned, &mut Changing),
        (data, offset): (&[u8], u64),
        decided: Decided,
    ) -> Result<usize> {
        let writer = self.writer()?;
        check_may_write(pinned.version(&epoch::pin())?, offset, decided)?;
        let written_at = decided.written_at();
        if self.write_inside((pinned, locked), (data, offset), written_at)? == Written::Inside {
            return Ok(data.len());
        }
        // It may have left the inode.
        let inode = &pinned.copy()?;
        let bits = self.geometry().block_size().bits();
        let range = Range {
            offset,
            end: offset + data.len() as u64,
        };
        let over = self.write_over((inode, locked), (data, range), written_at);
        if over? == WrittenOver::Yes {
            return Ok(data.len());
        }
        // Made before anything is written: while it lives the file system is not frozen.
        let mut plan = Plan::new(self, writer);
        if range.end > inode.size_bytes() {
            // Nothing in front of the end: until the data has arrived a crash shows that, and
            // readers see it.
            self.zero_tail(&mut plan, inode, inode.size_bytes())?;
        }
        let (slot, mut late) = (plan.slot(inode.nr())?, Vec::new());
        let mut at = LogicalBlock(low32(offset >> bits));
        let end = LogicalBlock(low32((range.end + (1 << bits) - 1) >> bits));
        while at < end && plan.size() < writer.room_of_a_step() {
            let mapping = self.map(inode, at, &epoch::pin())?;
            let blocks = mapping.blocks.min(end.0 - at.0);
            let blocks = blocks.min(self.longest_run(&plan, inode));
            let (physical, blocks) = match mapping.target {
                Target::Written(block) => (block, blocks),
                Target::Unwritten(block) => {
                    let until = LogicalBlock(at.0 + blocks);
                    plan.set_state(inode, slot, at..until, ExtentState::Written)?;
                    (block, blocks)
                }
                Target::Hole => {
                    let blocks = blocks.min(self.blocks_at_once(inode, at));
                    let file = (inode, slot, &mut *locked);
                    let (block, blocks) = self.claim(&mut plan, file, (at, blocks), range.end)?;
                    let extent = Extent {
                        logical: at,
                        physical: block,
                        blocks,
                        state: ExtentState::Written,
                    };
                    plan.map_extent(inode, slot, extent)?;
                    (block, blocks)
                }
            };
            let is_new = !matches!(mapping.target, Target::Written(_));
            if self.journals_content(inode) {
                let run = (at, blocks, physical);
                self.plan_journaled(&mut plan, inode, (data, range), run, is_new)?;
            } else if writer.lacks(Sabotage::LateData) {
                late.push(((at, blocks), physical, is_new));
            } else {
                self.write_run(data, range, (at, blocks), physical, is_new)?;
            }
            at = LogicalBlock(at.0 + blocks);
        }
        let reached = range.end.min(u64::from(at.0) << bits);
        let size = inode.size_bytes().max(reached);
        finish(plan, slot, (size, written_at), (pinned, locked))?;
        for (run, physical, is_new) in late {
            writer.journal().commit()?;
            self.write_run(data, range, run, physical, is_new)?;
        }
        Ok(index(reached - offset))
    }

    /// Writes over content, if nothing of the inode changes by that: one run of written blocks
    /// takes all of it, inside of the file, and the inode says already that it was changed now, or
    /// somebody else tells that.
    fn write_over(
        &self,
        (inode, locked): (&CachedInode, &Changing),
        (data, range): (&[u8], Range),
        written_at: WrittenAt,
    ) -> Result<WrittenOver> {
        if range.end > inode.size_bytes() || self.journals_content(inode) {
            return Ok(WrittenOver::No);
        }
        // While this lives the file system is not frozen; coming in may have taken long.
        let _inside = self.writer()?.freezer().enter();
        let (on_disk, now) = (inode.on_disk(), now());
        let is_timed = (on_disk.mtime(), on_disk.ctime()) == (now, now);
        if !is_timed && written_at == WrittenAt::Now {
            return Ok(WrittenOver::No);
        }
        let bits = self.geometry().block_size().bits();
        let first = LogicalBlock(low32(range.offset >> bits));
        let mapping = self.map(inode, first, &epoch::pin())?;
        let Target::Written(physical) = mapping.target else {
            return Ok(WrittenOver::No);
        };
        if range.end > u64::from(mapping.end().0) << bits {
            return Ok(WrittenOver::No);
        }
        // First, since also a write that fails may have written something.
        locked.unjoined.note();
        self.write_run(data, range, (first, mapping.blocks), physical, false)?;
        Ok(WrittenOver::Yes)
    }

    /// Finds blocks for a hole in a file that is going to be at least `end_bytes` long: those of a
    /// cluster that the file has, or new ones.
    pub(crate) fn claim(
        &self,
        plan: &mut Plan<'_>,
        (inode, slot, locked): (&CachedInode, Slot, &mut Changing),
        (at, blocks): (LogicalBlock, u32),
        end_bytes: u64,
    ) -> Result<(PhysBlock, u32)> {
        let blocks = match plan.place_for(inode, slot, (at, blocks))? {
            Place::There(block, blocks) => return Ok((block, blocks)),
            Place::New(blocks) => blocks,
        };
        let clusters = Clusters::of(self);
        let wanted = at..LogicalBlock(at.0.saturating_add(blocks));
        let start = clusters.floor(at);
        let goal = plan.goal_behind(inode, start)?;
        let len = clusters.count(&wanted);
        let mut request = Request::data(inode.nr(), clusters.nr(at), len, goal);
        let size = inode.size_bytes().max(end_bytes);
        let cluster_bytes = self.geometry().cluster_size_bytes() as u64;
        request.size = ClusterCount(low32(size.div_ceil(cluster_bytes)));
        request.reach = MapForm::of(inode).reach();
        request.left = match start.0.checked_sub(1) {
            None => None,
            Some(before) => {
                let before = self.map(inode, LogicalBlock(before), &epoch::pin())?;
                neighbour(&before, clusters)
            }
        };
        let behind = clusters.ceil(wanted.end);
        request.right = neighbour(&self.map(inode, behind, &epoch::pin())?, clusters);
        let file = locked
            .prealloc
            .get_or_insert_with(|| Arc::new(FilePrealloc::default()));
        let (first, found) = plan.allocate(&request, Some(file))?;
        let block = PhysBlock(first.0 + u64::from(clusters.inside(at)));
        Ok((block, blocks.min(clusters.blocks(ClusterCount(found), at))))
    }

    /// Writes the part of `data` that falls into a run of blocks; the rest of new blocks is
    /// filled with zeroes.
    fn write_run(
        &self,
        data: &[u8],
        range: Range,
        (at, blocks): (LogicalBlock, u32),
        physical: PhysBlock,
        is_new: bool,
    ) -> Result<()> {
        let block_size = self.geometry().block_size();
        let start = u64::from(at.0) << block_size.bits();
        let stop = start + (u64::from(blocks) << block_size.bits());
        let (from, to) = (range.offset.max(start), range.end.min(stop));
        let part = &data[index(from - range.offset)..index(to - range.offset)];
        let place = block_size.offset(physical);
        // In one piece, where it can be: devices may do more with that.
        let is_whole = (from, to) == (start, stop);
        if is_new && !is_whole {
            let head = &ZEROES[..index(from - start)];
            let tail = &ZEROES[..index(stop - to)];
            let slices = [IoSlice::new(head), IoSlice::new(part), IoSlice::new(tail)];
            Ok(self.device().write_vectored_at(&slices, place)?)
        } else {
            Ok(self.device().write_at(part, place + (from - start))?)
        }
    }

    /// Plans the part of `data` that falls into a run of blocks of a file whose content is
    /// journaled.
    fn plan_journaled(
        &self,
        plan: &mut Plan<'_>,
        inode: &CachedInode,
        (data, range): (&[u8], Range),
        (at, blocks, physical): (LogicalBlock, u32, PhysBlock),
        is_new: bool,
    ) -> Result<()> {
        let bits = self.geometry().block_size().bits();
        for nth in 0..u64::from(blocks) {
            let start = (u64::from(at.0) + nth) << bits;
            let (from, to) = (range.offset.max(start), range.end.min(start + (1 << bits)));
            let part = &data[index(from - range.offset)..index(to - range.offset)];
            let place = (PhysBlock(physical.0 + nth), index(from - start));
            plan.write_content(inode, place, part, is_new)?;
        }
        Ok(())
    }

    /// Zeroes what lies behind `size` in the block that holds it, as [`Self::zero_in_block`] does,
    /// since it is going to be shown.
    pub(crate) fn zero_tail(
        &self,
        plan: &mut Plan<'_>,
        inode: &CachedInode,
        size: u64,
    ) -> Result<()> {
        let block_size = self.geometry().block_size();
        let mask = block_size.bytes() as u64 - 1;
        self.zero_in_block(plan, inode, size..(size + mask) & !mask)
    }

    /// Zeroes bytes of one block, if it is mapped and written: with `plan` where content is
    /// journaled, else at once, as a write that overwrites does.
    pub(crate) fn zero_in_block(
        &self,
        plan: &mut Plan<'_>,
        inode: &CachedInode,
        bytes: std::ops::Range<u64>,
    ) -> Result<()> {
        let block_size = self.geometry().block_size();
        if bytes.is_empty() {
            return Ok(());
        }
        let at = LogicalBlock(low32(bytes.start >> block_size.bits()));
        let target = self.map(inode, at, &epoch::pin())?.target;
        if let Target::Written(block) = target {
            let inside = bytes.start & (block_size.bytes() as u64 - 1);
            if self.journals_content(inode) {
                let end = inside + (bytes.end - bytes.start);
                return plan.zero_content(inode, block, index(inside)..index(end));
            }
            let zeroes = &ZEROES[..index(bytes.end - bytes.start)];
            let place = block_size.offset(block) + inside;
            self.device().write_at(zeroes, place)?;
        }
        Ok(())
    }

    /// Sets the size of a regular file in bytes. What comes to be in front of the new end reads as
    /// zeroes; what lay behind it is freed.
    ///
    /// # Errors
    /// As [`Fs::write_at`].
    pub fn truncate(&self, inode: InodeNr, size: u64) -> Result<()> {
        self.noting(self.change_size(inode, size))
    }

    fn change_size(&self, inode: InodeNr, size: u64) -> Result<()> {
        let pinned = self.pin_inode(inode)?;
        let mut locked = pinned.lock();
        let (before, is_longer) = {
            let inode = self.file_to_change(&pinned)?;
            check_changeable(&inode)?;
            if size > self.max_file_bytes(&inode) {
                return Err(Error::FileTooLarge);
            }
            let is_longer = self.is_longer_than_inside(&inode, size)?;
            (inode.size_bytes(), is_longer)
        };
        if is_longer {
            self.retried(|| self.move_out((&pinned, &mut locked)))?;
        }
        self.truncate_locked(&pinned, &mut locked, size)?;
        if before.saturating_sub(size) >= MUCH_BYTES {
            self.writer()?.hurry_readers();
        }
        Ok(())
    }

    /// Sets the size, in as many transactions as it takes to free what comes to lie behind it. The
    /// first one shows the new size; until the last the file is on record.
    pub(crate) fn truncate_locked(
        &self,
        pinned: &Pinned,
        locked: &mut Changing,
        size: u64,
    ) -> Result<()> {
        let writer = self.writer()?;
        if let Some(file) = &locked.prealloc {
            writer.allocator().discard(file);
        }
        loop {
            let inode = &pinned.copy()?;
            let mut plan = Plan::new(self, writer);
            self.zero_tail(&mut plan, inode, size.min(inode.size_bytes()))?;
            let slot = plan.slot(inode.nr())?;
            if inode.layout() == Layout::Inline {
                plan.cut_content(slot, size.min(inode.size_bytes()))?;
            }
            let bits = self.geometry().block_size().bits();
            let first = LogicalBlock(low32((size + (1 << bits) - 1) >> bits));
            let freed = plan.free_map(inode, slot, first)?;
            let has_name = inode.on_disk().links_count() > 0;
            let orphan = match (freed, locked.orphan) {
                (Freed::Part, None) => Some(plan.add_orphan(slot)?),
                (Freed::All, Some(place)) if has_name => {
                    plan.remove_orphan(slot, place)?;
                    None
                }
                (_, unchanged) => unchanged,
            };
            finish(plan, slot, (size, WrittenAt::Now), (pinned, locked))?;
            locked.orphan = orphan;
            if freed == Freed::All {
                return Ok(());
            }
        }
    }

    /// Ends a truncation that failed midway, so that nothing of what it cut off is shown again.
    pub(crate) fn end_truncation(&self, pinned: &Pinned, locked: &mut Changing) -> Result<()> {
        let (size, is_awaited) = {
            let guard = epoch::pin();
            let inode = pinned.version(&guard)?;
            (inode.size_bytes(), awaits_truncation(inode, locked))
        };
        if is_awaited {
            self.truncate_locked(pinned, locked, size)?;
        }
        Ok(())
    }

    /// The regular file, if its content can be changed, and may be.
    pub(crate) fn file_to_change(&self, pinned: &Pinned) -> Result<CachedInode> {
        pinned.copy_if(|inode| {
            check_is_writable(inode)?;
            match inode.has(InodeFlags::IMMUTABLE_FL) {
                true => Err(Error::NotPermitted),
                false => Ok(()),
            }
        })
    }
}

/// Refuses what is no regular file, or one whose content this library cannot change.
fn check_is_writable(inode: &CachedInode) -> Result<()> {
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

/// Refuses what is no file to write into, and to change content from `offset` on that flags keep.
fn check_may_write(inode: &CachedInode, offset: u64, decided: Decided) -> Result<()> {
    check_is_writable(inode)?;
    let is_kept = inode.has(InodeFlags::IMMUTABLE_FL)
        || inode.has(InodeFlags::APPEND_FL) && offset < inode.size_bytes();
    match decided {
        Decided::Now if is_kept => Err(Error::NotPermitted),
        Decided::Now | Decided::Earlier(_) => Ok(()),
    }
}

/// Ends a change of a file's content: its new size and times are part of the plan, which is carried
/// out and shown.
pub(crate) fn finish(
    plan: Plan<'_>,
    slot: Slot,
    (size, written_at): (u64, WrittenAt),
    (pinned, locked): (&Pinned, &Changing),
) -> Result<()> {
    show(plan, slot, (size, written_at), (pinned, locked), &[pinned])
}

/// The same where the sequence count of the inode is raised for several plans together.
pub(crate) fn finish_in_change(
    plan: Plan<'_>,
    slot: Slot,
    (size, written_at): (u64, WrittenAt),
    (pinned, locked): (&Pinned, &Changing),
) -> Result<()> {
    show(plan, slot, (size, written_at), (pinned, locked), &[])
}

fn show(
    mut plan: Plan<'_>,
    slot: Slot,
    (size, written_at): (u64, WrittenAt),
    (pinned, locked): (&Pinned, &Changing),
    changes: &[&Pinned],
) -> Result<()> {
    let now = now();
    let before = pinned.version(&epoch::pin())?.size_bytes();
    if size < before && plan.size() > 1 {
        // Blocks of the map change before the size: until then they would read as a hole.
        plan.raise_sequence();
    }
    if needs_large_file(size) && !needs_large_file(before) {
        plan.set_large_file()?;
    }
    let sized = plan.edit(slot, |inode| {
        if written_at == WrittenAt::Now {
            inode.set_mtime(now);
            inode.set_ctime(now);
        }
        inode.set_size_bytes(size)
    })?;
    sized.map_err(|_| Error::FileTooLarge)?;
    let version = plan.version(slot)?;
    let changes_more = plan.size() > 1 || {
        let guard = epoch::pin();
        let before = pinned.version(&guard)?;
        let is_inside = version.layout() == Layout::Inline;
        is_inside || before.size_bytes() != size || before.i_block() != version.i_block()
    };
    let fs = plan.fs();
    if let (false, Some(times)) = (changes_more, plan.writer().lazy_times()) {
        drop(plan);
        return fs.publish_times(times, (pinned, locked), version);
    }
    let last = [&locked.last, &locked.last_data];
    let last = if changes_more { &last[..] } else { &last[..1] };
    plan.carry_out_showing(last, Show::of(changes), || pinned.publish(Some(version)))?;
    // All that was written so far was on its way before that transaction.
    locked.unjoined.settle();
    Ok(())
}

/// Whether a file is on record although it has a name: what lies behind its end is not freed yet.
fn awaits_truncation(inode: &CachedInode, changing: &Changing) -> bool {
    inode.on_disk().links_count() > 0 && changing.orphan.is_some()
}

fn neighbour(mapping: &Mapping, clusters: Clusters) -> Option<Neighbour> {
    match mapping.target {
        Target::Hole => None,
        Target::Written(block) | Target::Unwritten(block) => Some(Neighbour {
            logical: clusters.nr(mapping.logical),
            block,
        }),
    }
}

/// A length that is bounded by one in memory.
fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A block of a file, which was checked to be one.
pub(crate) fn low32(block: u64) -> u32 {
    u32::try_from(block).unwrap_or(u32::MAX)
}
