//! **Purpose.** Writes the data of files.
//!
//! **Not here.** Changing the size (`file::truncate`); making data durable ([`crate::file::sync`]);
//! what is different where data goes through the journal ([`crate::file::journaled`]).
//!
//! **Model.** A write takes three steps for each run of blocks:
//!
//! ```text
//! claim   find the run's blocks: those that the file has, or new ones from the allocator
//! data    write the data to them
//! insert  enter new blocks into the map, and mark preallocated ones as written, in the plan
//! ```
//!
//! Then the plan is applied, with the new size and times. So all data that is visible after a crash
//! was written before it was mapped: blocks with stale data are never part of a file. If all bytes
//! fall into written blocks, and the inode's times already are those of this tick of the clock,
//! nothing of the inode changes and there is no plan.
//!
//! Preallocated blocks are an extent, which becomes several when a part of it is marked as written.
//! If there is no space for the node that this may need, more of the extent becomes written, and is
//! zeroed ([`crate::map::in_place`]): preallocated space can be written to however full the disk or
//! the quota is.
//!
//! A part that the disk or a quota has no space for is written in halves, down to a block. So a
//! write that does not fit writes what does, and ends there ([`Progress`]). Linux does so page by
//! page, and refuses a whole folio of its page cache, which since 6.16 may be as large as the
//! write. A part that is refused has given back what it claimed, so nothing is left of it. All
//! parts of a write together wait for space that is being released as long as one operation does.
//!
//! Privileges (set-id bits, capabilities) that a write by a user removes are removed with its first
//! part, in the plan that maps it: a write that is refused removes none. Bytes that are overwritten
//! in place are visible at once. So a plan of its own removes the privileges before these are
//! written, even if the blocks that follow then find no space.
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
use std::ops::Range;

use fourscore_mballoc::Sizing;
use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock};
use fourscore_sync::epoch;

use crate::core::Core;
use crate::file::claim::Claimer;
use crate::file::data::Data;
use crate::file::finish::{self, Ending, WrittenAt};
use crate::file::inline_change::{self, Written};
use crate::file::journal_data::{BlockPart, Novelty};
use crate::file::prepare::{self, ZEROES, index};
use crate::file::{claim, journal_data, journaled, truncate};
use crate::guard::with_guard;
use crate::inode::attributes::{self, LostPrivileges, Privileges};
use crate::inode::cache;
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::caller::Caller;
use crate::inode::cell::{Changing, LockedInode, Pinned};
use crate::map::in_place::Bounds;
use crate::map::mapping::Target;
use crate::map::run::BlockRun;
use crate::map::{in_place, lookup, update};
use crate::mount::clock::now;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::faults::Sabotage;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::txn::space::Patience;
use crate::{Error, Result};

/// A run of blocks that takes a part of the data.
#[derive(Clone, Copy)]
struct Piece {
    run: BlockRun,
    physical: PhysBlock,
    before: Before,
}

/// What the blocks of a [`Piece`] were before the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Blocks of the file, with data.
    Written,
    /// Blocks of the file that are preallocated.
    Unwritten,
    /// Not blocks of the file.
    Hole,
}

impl Piece {
    /// Whether the blocks hold no data of the file yet, so that bytes around the data are zeroed.
    fn novelty(&self) -> Novelty {
        match self.before {
            Before::Written => Novelty::Old,
            Before::Unwritten | Before::Hole => Novelty::New,
        }
    }
}

/// Whether a write needed no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenOver {
    Yes,
    No,
}

/// When the permission to write was checked, and for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Decided<'c> {
    /// Now, by the flags that the file has.
    Now,
    /// Now; the file loses the privileges that a write by this caller removes.
    NowFor(&'c Caller<'c>),
    /// Earlier, by the flags that the file had then.
    Earlier(WrittenAt),
}

impl Decided<'_> {
    fn written_at(self) -> WrittenAt {
        match self {
            Self::Now | Self::NowFor(_) => WrittenAt::Now,
            Self::Earlier(written_at) => written_at,
        }
    }
}

/// What a write on behalf of a caller did; see [`Fs::write_at_as`](crate::Fs::write_at_as).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOutcome {
    /// The number of bytes written, from the front of the data: fewer than all if there was no
    /// space for more.
    pub bytes: usize,
    /// Whether the file has lost privileges.
    pub privileges: Privileges,
}

/// How far a write came.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The number of bytes written, from the front of the data.
    pub(crate) bytes: usize,
    /// Why the rest is not written: `NoSpace` or `QuotaExceeded`.
    pub(crate) stopped: Option<Error>,
    privileges: Privileges,
}

impl Progress {
    /// Returns the number of bytes written, as write(2) does: an error only if that is none.
    pub(crate) fn part(self) -> Result<usize> {
        match self.stopped {
            Some(error) if self.bytes == 0 => Err(error),
            _ => Ok(self.bytes),
        }
    }

    /// Returns the number of bytes written, and an error if that is less than all.
    pub(crate) fn whole(self) -> Result<usize> {
        match self.stopped {
            Some(error) => Err(error),
            None => Ok(self.bytes),
        }
    }
}

/// How one part of the data is written.
#[derive(Clone, Copy, Debug)]
struct Manner {
    written_at: WrittenAt,
    conversion: Conversion,
    /// The privileges that the file loses with this part.
    lost: Option<LostPrivileges>,
}

/// How preallocated blocks become written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conversion {
    /// The blocks that are written to, which may split their extent and so need a node.
    Split,
    /// More of the extent where a node would be needed; it is zeroed. A plan has one run.
    InPlace,
}

/// See [`Fs::write_at`](crate::Fs::write_at).
pub(crate) fn write_at(mount: &Mount, inode: InodeNr, data: &[u8], offset: u64) -> Result<usize> {
    let bytes = data;
    let written = write_piece(mount, inode, Data { bytes, offset });
    errors::noting(mount, written.and_then(Progress::part))
}

/// See [`Fs::write_all_at`](crate::Fs::write_all_at).
pub(crate) fn write_all_at(mount: &Mount, inode: InodeNr, bytes: &[u8], offset: u64) -> Result<()> {
    let written = write_piece(mount, inode, Data { bytes, offset });
    errors::noting(mount, written.and_then(Progress::whole).map(drop))
}

/// As [`write_at`], for callers that note errors themselves.
pub(crate) fn write_piece(mount: &Mount, inode: InodeNr, data: Data<'_>) -> Result<Progress> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let mut locked = pinned.lock();
    write_locked(mount, pinned.locked(&mut locked), data, Decided::Now)
}

/// See [`Fs::write_at_as`](crate::Fs::write_at_as).
pub(crate) fn write_at_as(
    mount: &Mount,
    caller: &Caller<'_>,
    inode: InodeNr,
    bytes: &[u8],
    offset: u64,
) -> Result<WriteOutcome> {
    let write = || {
        let pinned = cache::pin_inode(&mount.core, inode)?;
        let mut locked = pinned.lock();
        let data = Data { bytes, offset };
        let decided = Decided::NowFor(caller);
        let written = write_locked(mount, pinned.locked(&mut locked), data, decided)?;
        let privileges = written.privileges;
        let bytes = written.part()?;
        Ok(WriteOutcome { bytes, privileges })
    };
    errors::noting(mount, write())
}

/// See [`Fs::write_back_at`](crate::Fs::write_back_at).
pub(crate) fn write_back_at(
    mount: &Mount,
    inode: InodeNr,
    bytes: &[u8],
    offset: u64,
    written_at: WrittenAt,
) -> Result<usize> {
    let data = Data { bytes, offset };
    let written = write_cached(mount, inode, data, written_at);
    errors::noting(mount, written.map(|()| bytes.len()))
}

/// Writes all of the data, or fails: the kernel ignores the count of a write-back.
fn write_cached(
    mount: &Mount,
    inode: InodeNr,
    data: Data<'_>,
    written_at: WrittenAt,
) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    if write_beside(mount, &pinned, data, written_at)? == WrittenOver::Yes {
        return Ok(());
    }
    let mut locked = pinned.lock();
    let decided = Decided::Earlier(written_at);
    let written = write_locked(mount, pinned.locked(&mut locked), data, decided)?;
    written.whole().map(drop)
}

/// Data behind the former end of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended {
    /// Where it begins.
    pub(crate) offset: u64,
    /// The number of bytes: fewer than all if there was no space for more.
    pub(crate) bytes: usize,
}

/// See [`Fs::append`](crate::Fs::append).
pub(crate) fn append(mount: &Mount, inode: InodeNr, bytes: &[u8]) -> Result<u64> {
    let appended = append_with(mount, inode, bytes, Progress::whole)?;
    Ok(appended.offset)
}

/// Appends what there is space for.
pub(crate) fn append_part(mount: &Mount, inode: InodeNr, bytes: &[u8]) -> Result<Appended> {
    append_with(mount, inode, bytes, Progress::part)
}

fn append_with(
    mount: &Mount,
    inode: InodeNr,
    bytes: &[u8],
    result: fn(Progress) -> Result<usize>,
) -> Result<Appended> {
    let append = || {
        let pinned = cache::pin_inode(&mount.core, inode)?;
        let mut locked = pinned.lock();
        let offset = pinned.version(&epoch::pin())?.size_bytes();
        let data = Data { bytes, offset };
        let written = write_locked(mount, pinned.locked(&mut locked), data, Decided::Now)?;
        let bytes = result(written)?;
        Ok(Appended { offset, bytes })
    };
    errors::noting(mount, append())
}

/// Overwrites cached data under the shared lock, beside other such writers, if nothing of the inode
/// changes by that.
fn write_beside(
    mount: &Mount,
    pinned: &Pinned,
    data: Data<'_>,
    written_at: WrittenAt,
) -> Result<WrittenOver> {
    let shared = pinned.share();
    let decided = Decided::Earlier(written_at);
    let inode = &pinned.copy_if(|inode| check_may_write(inode, data.offset, decided))?;
    let reaches_too_far = data.offset.checked_add(data.bytes.len() as u64).is_none();
    if reaches_too_far
        || inode.layout() == Layout::Inline
        || truncate::awaits_truncation(inode, &shared)
    {
        return Ok(WrittenOver::No);
    }
    write_over(mount, inode, &shared, data, written_at)
}

/// Writes all of the data for which there is space; the caller holds the inode's lock. A file that
/// cannot be written to is refused even if there is no data.
///
/// # Errors
/// Those that do not depend on space, also after a part was written. Want of space is part of the
/// [`Progress`].
pub(crate) fn write_locked(
    mount: &Mount,
    mut file: LockedInode<'_>,
    data: Data<'_>,
    decided: Decided<'_>,
) -> Result<Progress> {
    /// The most bytes that one plan writes, so that written data is mapped soon.
    const MOST_BYTES: usize = 64 << 20;
    let end = data.offset.checked_add(data.bytes.len() as u64);
    let limit = {
        let guard = epoch::pin();
        let inode = file.pinned.version(&guard)?;
        check_may_write(inode, data.offset, decided)?;
        update::max_file_bytes(&mount.core, inode)
    };
    if end.is_none_or(|end| end > limit) {
        return Err(Error::FileTooLarge);
    }
    truncate::end_truncation(mount, file.reborrow())?;
    let mut manner = Manner {
        written_at: decided.written_at(),
        conversion: Conversion::Split,
        lost: match decided {
            Decided::NowFor(caller) => attributes::lost_privileges(mount, file.pinned, caller)?,
            Decided::Now | Decided::Earlier(_) => None,
        },
    };
    let mut progress = Progress {
        bytes: 0,
        stopped: None,
        privileges: Privileges::Kept,
    };
    let (mut most_bytes, mut patience) = (MOST_BYTES, Patience::default());
    while progress.bytes < data.bytes.len() {
        let part = front(mount, data, progress.bytes, most_bytes);
        let write = || write_part(mount, file.reborrow(), part, manner);
        match mount.space.retried_within(&mut patience, write) {
            Ok(written) => {
                progress.bytes += written;
                manner.conversion = Conversion::Split;
                if manner.lost.take().is_some() {
                    progress.privileges = Privileges::Taken;
                }
            }
            Err(error) if !is_shortage(&error) => return Err(error),
            Err(_)
                if manner.conversion == Conversion::Split
                    && may_save_node(mount, file.pinned, part)? =>
            {
                manner.conversion = Conversion::InPlace;
            }
            Err(error) => match half(mount, part) {
                Some(half_bytes) => {
                    most_bytes = half_bytes;
                    manner.conversion = Conversion::Split;
                }
                None => {
                    progress.stopped = Some(error);
                    break;
                }
            },
        }
    }
    Ok(progress)
}

/// Whether the disk or a quota had too little space.
fn is_shortage(error: &Error) -> bool {
    matches!(error, Error::QuotaExceeded | Error::NoSpace)
}

/// Returns what one plan writes of `data`, of which `done` bytes are written: at most `most_bytes`,
/// a multiple of the block size, and whole blocks except at the ends of the data.
fn front<'d>(mount: &Mount, data: Data<'d>, done: usize, most_bytes: usize) -> Data<'d> {
    let offset = data.offset + done as u64;
    let inside = prepare::index(offset & (mount.core.geometry().block_size().bytes() as u64 - 1));
    let end = done.saturating_add(most_bytes - inside);
    Data {
        bytes: &data.bytes[done..data.bytes.len().min(end)],
        offset,
    }
}

/// Returns how much is to be written at once where there was no space for `part`, in bytes: half of
/// its blocks; `None` if it lies in one block.
#[cold]
fn half(mount: &Mount, part: Data<'_>) -> Option<usize> {
    let bits = mount.core.geometry().block_size().bits();
    let blocks = part.end().div_ceil(1 << bits) - (part.offset >> bits);
    (blocks > 1).then(|| prepare::index(blocks.div_ceil(2) << bits))
}

/// Whether preallocated blocks are among those that `part` is written to: then the node for
/// splitting their extent can be saved.
#[cold]
fn may_save_node(mount: &Mount, pinned: &Pinned, part: Data<'_>) -> Result<bool> {
    let core = &mount.core;
    let bits = core.geometry().block_size().bits();
    let end = LogicalBlock(prepare::low32(part.end().div_ceil(1 << bits)));
    with_guard(core, |guard| {
        let inode = pinned.version(guard)?;
        let mut at = LogicalBlock(prepare::low32(part.offset >> bits));
        while at < end && !inode.is_inline() {
            let mapping = lookup::map(core, inode, at, guard)?;
            if matches!(mapping.target, Target::Unwritten(_)) {
                return Ok(true);
            }
            at = mapping.end();
        }
        Ok(false)
    })
}

/// Writes as much from the front of the data as one plan has space for. Returns that number of
/// bytes.
fn write_part(
    mount: &Mount,
    mut file: LockedInode<'_>,
    data: Data<'_>,
    manner: Manner,
) -> Result<usize> {
    let Manner {
        written_at,
        conversion,
        mut lost,
    } = manner;
    let inside = inline_change::write_inside(mount, file.reborrow(), data, written_at, lost)?;
    if inside == Written::Inside {
        return Ok(data.bytes.len());
    }
    if let Some(now) = lost
        && begins_in_written_block(mount, file.pinned, data.offset)?
    {
        attributes::take_now(mount, file.held(), now)?;
        lost = None;
    }
    // The file's data may have left the inode.
    let inode = &file.pinned.copy()?;
    if lost.is_none()
        && write_over(mount, inode, file.locked, data, written_at)? == WrittenOver::Yes
    {
        return Ok(data.bytes.len());
    }
    let bits = mount.core.geometry().block_size().bits();
    // Made before anything is written: while the plan lives, the file system cannot be frozen.
    let mut plan = Plan::new(mount);
    if data.end() > inode.size_bytes() {
        // Zeroes nothing in front of the end: until the new data has arrived, readers see those
        // bytes, and a crash leaves them.
        prepare::zero_tail(&mount.core, &mut plan, inode, inode.size_bytes())?;
    }
    let (slot, mut late) = (slot::slot(&mut plan, inode.nr())?, Vec::new());
    if let Some(lost) = lost {
        attributes::plan_loss(&mut plan, slot, lost)?;
    }
    let mut at = LogicalBlock(prepare::low32(data.offset >> bits));
    let end = LogicalBlock(prepare::low32((data.end() + (1 << bits) - 1) >> bits));
    while at < end && plan.size() < mount.step_capacity() {
        let claimer = &mut Claimer {
            inode,
            slot,
            locked: &mut *file.locked,
            sizing: Sizing::Normalize,
            hole_end: at,
        };
        let piece = claim_piece(&mut plan, claimer, at..end, data.end())?;
        if lost.is_some() && piece.before == Before::Written {
            // Would be visible before the plan is applied.
            break;
        }
        if journaled::journals_content(&mount.core, inode) {
            plan_journaled(&mut plan, inode, data, &piece)?;
        } else if mount.core.faults.lacks(Sabotage::LateData) {
            late.push(piece);
        } else {
            write_run(&mount.core, data, &piece)?;
        }
        at = piece.run.end();
        if conversion == Conversion::InPlace {
            insert_in_place(&mut plan, inode, slot, &piece, data)?;
            break;
        }
        insert_piece(&mut plan, inode, slot, &piece)?;
    }
    let reached = data.end().min(u64::from(at.0) << bits);
    let size = inode.size_bytes().max(reached);
    finish::finish(plan, slot, Ending { size, written_at }, file.held())?;
    for piece in late {
        mount.journal().commit()?;
        write_run(&mount.core, data, &piece)?;
    }
    Ok(prepare::index(reached - data.offset))
}

/// Whether the block at `offset` (bytes) is a written one, which a write from there on overwrites
/// in place.
#[cold]
fn begins_in_written_block(mount: &Mount, pinned: &Pinned, offset: u64) -> Result<bool> {
    let inode = &pinned.copy()?;
    let bits = mount.core.geometry().block_size().bits();
    let at = LogicalBlock(prepare::low32(offset >> bits));
    let mapping = lookup::map_locked(&mount.core, inode, at)?;
    Ok(matches!(mapping.target, Target::Written(_)))
}

/// Finds the blocks for the front of `blocks`: those that the file has, or new ones. The file is
/// going to be at least `end_bytes` long.
fn claim_piece(
    plan: &mut Plan<'_>,
    file: &mut Claimer<'_>,
    blocks: Range<LogicalBlock>,
    end_bytes: u64,
) -> Result<Piece> {
    let mount = plan.mount;
    let (inode, at) = (file.inode, blocks.start);
    let mapping = lookup::map_locked(&mount.core, inode, at)?;
    file.hole_end = mapping.end();
    let blocks = mapping.blocks.min(blocks.end.0 - at.0);
    let blocks = blocks.min(journal_data::longest_run(mount, plan, inode));
    let (before, physical, blocks) = match mapping.target {
        Target::Written(physical) => (Before::Written, physical, blocks),
        Target::Unwritten(physical) => (Before::Unwritten, physical, blocks),
        Target::Hole => {
            let blocks = blocks.min(update::blocks_at_once(&mount.core, inode, at));
            let hole = BlockRun { at, blocks };
            let (physical, blocks) = claim::claim(&mount.core, plan, file, hole, end_bytes)?;
            (Before::Hole, physical, blocks)
        }
    };
    Ok(Piece {
        run: BlockRun { at, blocks },
        physical,
        before,
    })
}

/// Makes the blocks of a piece part of the file.
fn insert_piece(plan: &mut Plan<'_>, inode: &CachedInode, slot: Slot, piece: &Piece) -> Result<()> {
    let (run, state) = (piece.run, ExtentState::Written);
    match piece.before {
        Before::Written => Ok(()),
        Before::Unwritten => update::set_state(plan, inode, slot, run.at..run.end(), state),
        Before::Hole => {
            let extent = Extent {
                logical: run.at,
                physical: piece.physical,
                blocks: run.blocks,
                state,
            };
            update::map_extent(plan, inode, slot, extent)
        }
    }
}

/// Makes the blocks of a piece part of the file, without a new node for preallocated ones. What
/// becomes written with them is zeroed.
#[cold]
fn insert_in_place(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    piece: &Piece,
    data: Data<'_>,
) -> Result<()> {
    if piece.before != Before::Unwritten {
        return insert_piece(plan, inode, slot, piece);
    }
    let bits = plan.mount.core.geometry().block_size().bits();
    let wanted = piece.run.at..piece.run.end();
    let reached = data.end().min(u64::from(wanted.end.0) << bits);
    let size = inode.size_bytes().max(reached);
    let bounds = Bounds {
        end: LogicalBlock(prepare::low32(size.div_ceil(1 << bits))),
        blocks: journal_data::longest_run(plan.mount, plan, inode).max(piece.run.blocks),
    };
    let written = in_place::set_written(plan, inode, slot, &wanted, bounds)?;
    for around in [
        written.logical..wanted.start,
        wanted.end..written.logical_end(),
    ] {
        if let Some(blocks) = written.part(&around) {
            prepare::zero_blocks(plan, inode, &blocks)?;
        }
    }
    Ok(())
}

/// Overwrites data if nothing of the inode changes by that: one run of written blocks takes all of
/// it, inside the file, and the inode's times are those of now already, or the caller sets them
/// separately.
fn write_over(
    mount: &Mount,
    inode: &CachedInode,
    locked: &Changing,
    data: Data<'_>,
    written_at: WrittenAt,
) -> Result<WrittenOver> {
    if data.end() > inode.size_bytes() || journaled::journals_content(&mount.core, inode) {
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
    let at = LogicalBlock(prepare::low32(data.offset >> bits));
    let mapping = lookup::map_locked(&mount.core, inode, at)?;
    let Target::Written(physical) = mapping.target else {
        return Ok(WrittenOver::No);
    };
    if data.end() > u64::from(mapping.end().0) << bits {
        return Ok(WrittenOver::No);
    }
    // First, since a write that fails may have written a part, too.
    locked.unjoined.note();
    let blocks = mapping.blocks;
    let piece = Piece {
        run: BlockRun { at, blocks },
        physical,
        before: Before::Written,
    };
    write_run(&mount.core, data, &piece)?;
    Ok(WrittenOver::Yes)
}

/// Writes the part of the data that falls into a run of blocks; the rest of new blocks is filled
/// with zeroes.
fn write_run(core: &Core, data: Data<'_>, piece: &Piece) -> Result<()> {
    let block_size = core.geometry().block_size();
    let start = u64::from(piece.run.at.0) << block_size.bits();
    let stop = start + (u64::from(piece.run.blocks) << block_size.bits());
    let (from, to) = (data.offset.max(start), data.end().min(stop));
    let part = data.between(from, to);
    let place = block_size.offset(piece.physical);
    // In one piece if possible: devices may do more with one large write.
    let is_whole = (from, to) == (start, stop);
    if piece.novelty() == Novelty::New && !is_whole {
        let head = &ZEROES[..index(from - start)];
        let tail = &ZEROES[..index(stop - to)];
        let slices = [IoSlice::new(head), IoSlice::new(part), IoSlice::new(tail)];
        Ok(core.device.write_vectored_at(&slices, place)?)
    } else {
        Ok(core.device.write_at(part, place + (from - start))?)
    }
}

/// Plans the part of the data that falls into a run of blocks of a file whose data is journaled.
fn plan_journaled(
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    data: Data<'_>,
    piece: &Piece,
) -> Result<()> {
    let bits = plan.mount.core.geometry().block_size().bits();
    for nth in 0..u64::from(piece.run.blocks) {
        let start = (u64::from(piece.run.at.0) + nth) << bits;
        let (from, to) = (data.offset.max(start), data.end().min(start + (1 << bits)));
        let place = BlockPart {
            block: PhysBlock(piece.physical.0 + nth),
            offset: prepare::index(from - start),
            novelty: piece.novelty(),
        };
        journal_data::write_content(plan, inode, place, data.between(from, to))?;
    }
    Ok(())
}

/// Refuses inodes that are no writable files, and writes from `offset` on that the file's flags
/// forbid.
pub(crate) fn check_may_write(
    inode: &CachedInode,
    offset: u64,
    decided: Decided<'_>,
) -> Result<()> {
    prepare::check_is_writable(inode)?;
    let is_kept = inode.has(InodeFlags::IMMUTABLE_FL)
        || inode.has(InodeFlags::APPEND_FL) && offset < inode.size_bytes();
    match decided {
        Decided::Now | Decided::NowFor(_) if is_kept => Err(Error::NotPermitted),
        Decided::Now | Decided::NowFor(_) | Decided::Earlier(_) => Ok(()),
    }
}
