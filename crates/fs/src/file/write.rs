//! **Purpose.** Writes the data of files.
//!
//! **Not here.** Changing the size (`file::truncate`); making data durable ([`crate::file::sync`]);
//! what is different where data goes through the journal ([`crate::file::journaled`]).
//!
//! **Model.** Bytes that fall into written blocks go straight there. For the rest, clusters are
//! claimed, the data is written to them, and one plan maps them and moves the size. So all data
//! that is visible after a crash was written before it was mapped: blocks with stale data are never
//! part of a file. If all bytes fall into written blocks, and the inode's times already are those
//! of this tick of the clock, nothing of the inode changes and there is no plan.
//!
//! **Locking.** The inode's lock is held for the whole call, device writes included: writers of one
//! file come one after the other. Data that the caller cached
//! ([`Fs::write_back_at`](crate::Fs::write_back_at)) is overwritten under the shared lock: its
//! pieces do not overlap, so their writers need not wait for each other. Readers take no lock; they
//! see the old map or the new one.
//!
//! **Crash safety.** Data is on its way to the device before the transaction that maps it is
//! sealed, and the commit flushes the device before its last block. Data that was written without a
//! plan is noted, and fsync flushes the device for it.

use std::io::IoSlice;

use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock};
use fourscore_sync::epoch;

use crate::core::Core;
use crate::file::finish::{self, WrittenAt};
use crate::file::inline_change::{self, Written};
use crate::file::prepare::{self, ZEROES, index};
use crate::file::{claim, journal_data, journaled, truncate};
use crate::inode::cache;
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::cell::{Changing, Pinned};
use crate::map::mapping::Target;
use crate::map::{lookup, update};
use crate::mount::clock::now;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::faults::Sabotage;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, Result};

/// A write, limited to what one plan does.
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

/// When the permission to write was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    /// Now, by the flags that the file has.
    Now,
    /// Earlier, by the flags that the file had then.
    Earlier(WrittenAt),
}

impl Decided {
    fn written_at(self) -> WrittenAt {
        match self {
            Self::Now => WrittenAt::Now,
            Self::Earlier(written_at) => written_at,
        }
    }
}

/// See [`Fs::write_at`](crate::Fs::write_at).
pub(crate) fn write_at(mount: &Mount, inode: InodeNr, data: &[u8], offset: u64) -> Result<usize> {
    let written = write_to(mount, inode, data, Some(offset), Decided::Now);
    errors::noting(mount, written.map(|_| data.len()))
}

/// See [`Fs::write_back_at`](crate::Fs::write_back_at).
pub(crate) fn write_back_at(
    mount: &Mount,
    inode: InodeNr,
    data: &[u8],
    offset: u64,
    written_at: WrittenAt,
) -> Result<usize> {
    let written = write_to(
        mount,
        inode,
        data,
        Some(offset),
        Decided::Earlier(written_at),
    );
    errors::noting(mount, written.map(|_| data.len()))
}

/// See [`Fs::append`](crate::Fs::append).
pub(crate) fn append(mount: &Mount, inode: InodeNr, data: &[u8]) -> Result<u64> {
    errors::noting(mount, write_to(mount, inode, data, None, Decided::Now))
}

/// Writes at `offset`, or behind the end without one. Returns the offset of the data.
pub(crate) fn write_to(
    mount: &Mount,
    inode: InodeNr,
    data: &[u8],
    offset: Option<u64>,
    decided: Decided,
) -> Result<u64> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    if let (Some(offset), Decided::Earlier(written_at)) = (offset, decided)
        && write_beside(mount, &pinned, (data, offset), written_at)? == WrittenOver::Yes
    {
        return Ok(offset);
    }
    let mut locked = pinned.lock();
    let offset = match offset {
        Some(offset) => offset,
        None => pinned.version(&epoch::pin())?.size_bytes(),
    };
    write_locked(mount, (&pinned, &mut locked), (data, offset), decided)?;
    Ok(offset)
}

/// Overwrites cached data under the shared lock, beside other such writers, if nothing of the inode
/// changes by that.
fn write_beside(
    mount: &Mount,
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
    if inode.layout() == Layout::Inline || truncate::awaits_truncation(inode, &shared) {
        return Ok(WrittenOver::No);
    }
    let range = Range { offset, end };
    write_over(mount, (inode, &shared), (data, range), written_at)
}

/// Writes all of `data`; the caller holds the inode's lock.
pub(crate) fn write_locked(
    mount: &Mount,
    (pinned, locked): (&Pinned, &mut Changing),
    (data, offset): (&[u8], u64),
    decided: Decided,
) -> Result<()> {
    /// The most bytes that one plan writes, so that written data is mapped soon.
    const MOST_BYTES: usize = 64 << 20;
    let end = offset.checked_add(data.len() as u64);
    let limit = update::max_file_bytes(&mount.core, pinned.version(&epoch::pin())?);
    if end.is_none_or(|end| end > limit) {
        return Err(Error::FileTooLarge);
    }
    truncate::end_truncation(mount, pinned, locked)?;
    let mut done = 0;
    while done < data.len() {
        let part = &data[done..data.len().min(done + MOST_BYTES)];
        let at = offset + done as u64;
        done += mount
            .space
            .retried(|| write_part(mount, (pinned, &mut *locked), (part, at), decided))?;
    }
    Ok(())
}

/// Writes as much from the front of `data` as one plan has space for. Returns that number of bytes.
fn write_part(
    mount: &Mount,
    (pinned, locked): (&Pinned, &mut Changing),
    (data, offset): (&[u8], u64),
    decided: Decided,
) -> Result<usize> {
    check_may_write(pinned.version(&epoch::pin())?, offset, decided)?;
    let written_at = decided.written_at();
    if inline_change::write_inside(mount, (pinned, locked), (data, offset), written_at)?
        == Written::Inside
    {
        return Ok(data.len());
    }
    // The file's data may have left the inode.
    let inode = &pinned.copy()?;
    let bits = mount.core.geometry().block_size().bits();
    let range = Range {
        offset,
        end: offset + data.len() as u64,
    };
    let over = write_over(mount, (inode, locked), (data, range), written_at);
    if over? == WrittenOver::Yes {
        return Ok(data.len());
    }
    // Made before anything is written: while the plan lives, the file system cannot be frozen.
    let mut plan = Plan::new(mount);
    if range.end > inode.size_bytes() {
        // Zeroes nothing in front of the end: until the new data has arrived, readers see those
        // bytes, and a crash leaves them.
        prepare::zero_tail(&mount.core, &mut plan, inode, inode.size_bytes())?;
    }
    let (slot, mut late) = (slot::slot(&mut plan, inode.nr())?, Vec::new());
    let mut at = LogicalBlock(prepare::low32(offset >> bits));
    let end = LogicalBlock(prepare::low32((range.end + (1 << bits) - 1) >> bits));
    while at < end && plan.size() < mount.step_capacity() {
        let mapping = lookup::map_locked(&mount.core, inode, at)?;
        let blocks = mapping.blocks.min(end.0 - at.0);
        let blocks = blocks.min(journal_data::longest_run(mount, &plan, inode));
        let (physical, blocks) = match mapping.target {
            Target::Written(block) => (block, blocks),
            Target::Unwritten(block) => {
                let until = LogicalBlock(at.0 + blocks);
                update::set_state(&mut plan, inode, slot, at..until, ExtentState::Written)?;
                (block, blocks)
            }
            Target::Hole => {
                let blocks = blocks.min(update::blocks_at_once(&mount.core, inode, at));
                let file = (inode, slot, &mut *locked);
                let (block, blocks) =
                    claim::claim(&mount.core, &mut plan, file, (at, blocks), range.end)?;
                let extent = Extent {
                    logical: at,
                    physical: block,
                    blocks,
                    state: ExtentState::Written,
                };
                update::map_extent(&mut plan, inode, slot, extent)?;
                (block, blocks)
            }
        };
        let is_new = !matches!(mapping.target, Target::Written(_));
        if journaled::journals_content(&mount.core, inode) {
            let run = (at, blocks, physical);
            plan_journaled(&mount.core, &mut plan, inode, (data, range), run, is_new)?;
        } else if mount.core.faults.lacks(Sabotage::LateData) {
            late.push(((at, blocks), physical, is_new));
        } else {
            write_run(&mount.core, data, range, (at, blocks), physical, is_new)?;
        }
        at = LogicalBlock(at.0 + blocks);
    }
    let reached = range.end.min(u64::from(at.0) << bits);
    let size = inode.size_bytes().max(reached);
    finish::finish(plan, slot, (size, written_at), (pinned, locked))?;
    for (run, physical, is_new) in late {
        mount.journal().commit()?;
        write_run(&mount.core, data, range, run, physical, is_new)?;
    }
    Ok(prepare::index(reached - offset))
}

/// Overwrites data if nothing of the inode changes by that: one run of written blocks takes all of
/// it, inside the file, and the inode's times are those of now already, or the caller sets them
/// separately.
fn write_over(
    mount: &Mount,
    (inode, locked): (&CachedInode, &Changing),
    (data, range): (&[u8], Range),
    written_at: WrittenAt,
) -> Result<WrittenOver> {
    if range.end > inode.size_bytes() || journaled::journals_content(&mount.core, inode) {
        return Ok(WrittenOver::No);
    }
    // While this guard lives, the file system cannot be frozen; entering may have taken long.
    let _inside = mount.freezer().enter();
    let (on_disk, now) = (inode.on_disk(), now());
    let is_timed = (on_disk.mtime(), on_disk.ctime()) == (now, now);
    if !is_timed && written_at == WrittenAt::Now {
        return Ok(WrittenOver::No);
    }
    let bits = mount.core.geometry().block_size().bits();
    let first = LogicalBlock(prepare::low32(range.offset >> bits));
    let mapping = lookup::map_locked(&mount.core, inode, first)?;
    let Target::Written(physical) = mapping.target else {
        return Ok(WrittenOver::No);
    };
    if range.end > u64::from(mapping.end().0) << bits {
        return Ok(WrittenOver::No);
    }
    // First, since a write that fails may have written a part, too.
    locked.unjoined.note();
    write_run(
        &mount.core,
        data,
        range,
        (first, mapping.blocks),
        physical,
        false,
    )?;
    Ok(WrittenOver::Yes)
}

/// Writes the part of `data` that falls into a run of blocks; the rest of new blocks is filled with
/// zeroes.
fn write_run(
    core: &Core,
    data: &[u8],
    range: Range,
    (at, blocks): (LogicalBlock, u32),
    physical: PhysBlock,
    is_new: bool,
) -> Result<()> {
    let block_size = core.geometry().block_size();
    let start = u64::from(at.0) << block_size.bits();
    let stop = start + (u64::from(blocks) << block_size.bits());
    let (from, to) = (range.offset.max(start), range.end.min(stop));
    let part = &data[prepare::index(from - range.offset)..index(to - range.offset)];
    let place = block_size.offset(physical);
    // In one piece if possible: devices may do more with one large write.
    let is_whole = (from, to) == (start, stop);
    if is_new && !is_whole {
        let head = &ZEROES[..index(from - start)];
        let tail = &ZEROES[..index(stop - to)];
        let slices = [IoSlice::new(head), IoSlice::new(part), IoSlice::new(tail)];
        Ok(core.device.write_vectored_at(&slices, place)?)
    } else {
        Ok(core.device.write_at(part, place + (from - start))?)
    }
}

/// Plans the part of `data` that falls into a run of blocks of a file whose data is journaled.
fn plan_journaled(
    core: &Core,
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    (data, range): (&[u8], Range),
    (at, blocks, physical): (LogicalBlock, u32, PhysBlock),
    is_new: bool,
) -> Result<()> {
    let bits = core.geometry().block_size().bits();
    for nth in 0..u64::from(blocks) {
        let start = (u64::from(at.0) + nth) << bits;
        let (from, to) = (range.offset.max(start), range.end.min(start + (1 << bits)));
        let part = &data[prepare::index(from - range.offset)..index(to - range.offset)];
        let place = (PhysBlock(physical.0 + nth), prepare::index(from - start));
        journal_data::write_content(plan, inode, place, part, is_new)?;
    }
    Ok(())
}

/// Refuses inodes that are no writable files, and writes from `offset` on that the file's flags
/// forbid.
fn check_may_write(inode: &CachedInode, offset: u64, decided: Decided) -> Result<()> {
    prepare::check_is_writable(inode)?;
    let is_kept = inode.has(InodeFlags::IMMUTABLE_FL)
        || inode.has(InodeFlags::APPEND_FL) && offset < inode.size_bytes();
    match decided {
        Decided::Now if is_kept => Err(Error::NotPermitted),
        Decided::Now | Decided::Earlier(_) => Ok(()),
    }
}
