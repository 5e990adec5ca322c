//! **Purpose.** Reads the bytes of a file, and looks up where they lie.
//!
//! **Model.** A read is cut into runs of blocks that are contiguous on disk; each run is one device
//! read into the caller's own buffers. Holes and unwritten extents are filled with zeroes. Bytes at
//! and behind the file's size are never returned, whatever blocks lie there.
//!
//! **Locking.** None as a rule: the module [`consistent`] says how a read sees one state of a file
//! that is being written. No cache line is written that another thread reads.

use std::io::IoSliceMut;
use std::ops::ControlFlow;

use fourscore_ondisk::extent::{Extent, LOGICAL_END};
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock};
use fourscore_sync::epoch::Guard;

use crate::core::Core;
use crate::file::scatter::Scatter;
use crate::file::{inline, journaled};
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::consistent;
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::{Error, Result};

/// Extents that [`Fs::for_each_extent`](crate::Fs::for_each_extent) reads at once.
pub const EXTENTS_AT_ONCE: usize = 1024;

/// What [`Fs::seek`](crate::Fs::seek) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may hold data: `SEEK_DATA`.
    Data,
    /// The next byte that belongs to a hole; the end of the file counts as one: `SEEK_HOLE`.
    Hole,
}

/// See [`Fs::read_at`](crate::Fs::read_at).
pub(crate) fn read_at(core: &Core, inode: InodeNr, buf: &mut [u8], offset: u64) -> Result<usize> {
    read_vectored_at(core, inode, &mut [IoSliceMut::new(buf)], offset)
}

/// See [`Fs::read_vectored_at`](crate::Fs::read_vectored_at).
pub(crate) fn read_vectored_at(
    core: &Core,
    inode: InodeNr,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
) -> Result<usize> {
    consistent::read_consistent(core, inode, |inode, guard| match inode.file_type() {
        FileType::Regular => read_content(core, inode, bufs, offset, guard),
        FileType::Directory => Err(Error::IsADirectory),
        _ => Err(Error::InvalidArgument("not a regular file")),
    })
}

/// Reads the data of a file as its user sees it.
pub(crate) fn read_content(
    core: &Core,
    inode: &CachedInode,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    guard: &Guard,
) -> Result<usize> {
    if inode.is_encrypted() {
        return Err(Error::NoKey { inode: inode.nr() });
    }
    read_stored(core, inode, bufs, offset, guard)
}

/// Reads the data of any inode that has data, as it is stored: files, long symbolic links, the
/// values of EA inodes.
pub(crate) fn read_stored(
    core: &Core,
    inode: &CachedInode,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    guard: &Guard,
) -> Result<usize> {
    let asked: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
    let mut left = asked.min(inode.size_bytes().saturating_sub(offset));
    let mut out = Scatter::new(bufs);
    if inode.layout() == Layout::Inline {
        let inline = inline::inline_data(core, inode)?;
        let mut at = offset;
        while left > 0 {
            let done = out.with_next(left, |buf| inline.read_at(at, buf));
            if done == 0 {
                break;
            }
            at += done;
            left -= done;
        }
        return Ok(out.filled);
    }
    let journaled = journaled::journals_content(core, inode);
    let mut at = offset;
    while left > 0 {
        let run = byte_run(core, inode, at, left, guard)?;
        match run.device_offset {
            None => out.zero(run.len_bytes),
            Some(from) if journaled => {
                journaled::read_journaled(core, &mut out, run.len_bytes, from, guard)?;
            }
            Some(from) => out.read(run.len_bytes, from, |slices, from| {
                core.device.read_vectored_at(slices, from)
            })?,
        }
        at += run.len_bytes;
        left -= run.len_bytes;
    }
    Ok(out.filled)
}

/// Returns the longest run of at most `limit` bytes from byte `at` on that is contiguous on disk,
/// or one hole. It is never empty for a `limit` above 0.
fn byte_run(
    core: &Core,
    inode: &CachedInode,
    at: u64,
    limit: u64,
    guard: &Guard,
) -> Result<ByteRun> {
    let block_size = core.geometry().block_size();
    let block_bytes = block_size.bytes() as u64;
    let Ok(first) = u32::try_from(at / block_bytes) else {
        // Behind the last block that a file can have there is only a hole.
        return Ok(ByteRun {
            len_bytes: limit,
            device_offset: None,
        });
    };
    let inside_block = at % block_bytes;
    let mapping = lookup::map(core, inode, LogicalBlock(first), guard)?;
    let (target, mut end) = (mapping.target, mapping.end());
    let mut blocks = u64::from(mapping.blocks);
    while blocks * block_bytes - inside_block < limit && end < LOGICAL_END {
        let next = lookup::map(core, inode, end, guard)?;
        if !continues(target, blocks, next.target) {
            break;
        }
        blocks += u64::from(next.blocks);
        end = next.end();
    }
    let reached = (blocks * block_bytes - inside_block).min(limit);
    Ok(match target {
        Target::Written(physical) => ByteRun {
            len_bytes: reached,
            device_offset: Some(block_size.offset(physical).saturating_add(inside_block)),
        },
        // The last hole has no end: a file may be longer than its block numbers reach.
        _ if end == LOGICAL_END => ByteRun {
            len_bytes: limit,
            device_offset: None,
        },
        _ => ByteRun {
            len_bytes: reached,
            device_offset: None,
        },
    })
}

/// See [`Fs::for_each_extent`](crate::Fs::for_each_extent).
pub(crate) fn for_each_extent(
    core: &Core,
    inode: InodeNr,
    from: LogicalBlock,
    mut visit: impl FnMut(Extent) -> ControlFlow<()>,
) -> Result<()> {
    let (mut piece, mut at, mut blocks) = (Vec::new(), from, 0);
    while at < LOGICAL_END {
        (at, blocks) = consistent::read_consistent(core, inode, |inode, guard| {
            piece.clear();
            extents_from(
                core,
                inode,
                (at, blocks),
                EXTENTS_AT_ONCE,
                &mut piece,
                guard,
            )
        })?;
        if piece.drain(..).any(|extent| visit(extent).is_break()) {
            break;
        }
    }
    Ok(())
}

/// See [`Fs::extents`](crate::Fs::extents).
pub(crate) fn extents(core: &Core, inode: InodeNr) -> Result<Vec<Extent>> {
    consistent::read_consistent(core, inode, |inode, guard| extents_of(core, inode, guard))
}

/// The same for an inode that need not be in the cache.
pub(crate) fn extents_of(core: &Core, inode: &CachedInode, guard: &Guard) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let from = (LogicalBlock(0), 0);
    extents_from(core, inode, from, usize::MAX, &mut extents, guard)?;
    Ok(extents)
}

/// Adds at most `limit` extents from block `at` on to `extents`. `blocks` is the number of blocks
/// found before `at`. Returns where the search ended, and the number of blocks found by then.
fn extents_from(
    core: &Core,
    inode: &CachedInode,
    (mut at, mut blocks): (LogicalBlock, u64),
    limit: usize,
    extents: &mut Vec<Extent>,
    guard: &Guard,
) -> Result<(LogicalBlock, u64)> {
    let most_blocks = core.geometry().blocks().0;
    while at < LOGICAL_END && extents.len() < limit {
        let mapping = lookup::map(core, inode, at, guard)?;
        at = mapping.end();
        if let Some(extent) = mapping.extent() {
            blocks += u64::from(extent.blocks);
            check_mapped(inode, blocks, most_blocks)?;
            extents.push(extent);
        }
    }
    Ok((at, blocks))
}

/// See [`Fs::seek`](crate::Fs::seek).
pub(crate) fn seek(core: &Core, inode: InodeNr, offset: u64, what: Seek) -> Result<Option<u64>> {
    consistent::read_consistent(core, inode, |inode, guard| {
        seek_in(core, inode, offset, what, guard)
    })
}

fn seek_in(
    core: &Core,
    inode: &CachedInode,
    offset: u64,
    what: Seek,
    guard: &Guard,
) -> Result<Option<u64>> {
    if inode.file_type() != FileType::Regular {
        return Err(Error::InvalidArgument("not a regular file"));
    }
    let size_bytes = inode.size_bytes();
    if offset >= size_bytes {
        return Ok(None);
    }
    if inode.layout() == Layout::Inline {
        let end = (what == Seek::Hole).then_some(size_bytes);
        return Ok(end.or(Some(offset)));
    }
    let bits = core.geometry().block_size().bits();
    let limit = core.geometry().blocks().0;
    let (mut at, mut data) = (offset, 0_u64);
    while at < size_bytes {
        let block = LogicalBlock(u32::try_from(at >> bits).unwrap_or(u32::MAX));
        if block >= LOGICAL_END {
            // Behind the last block that a file can have there is only a hole.
            return Ok((what == Seek::Hole).then_some(at));
        }
        let mapping = lookup::map(core, inode, block, guard)?;
        let found = match mapping.target {
            Target::Written(_) => Seek::Data,
            Target::Hole | Target::Unwritten(_) => Seek::Hole,
        };
        if found == what {
            return Ok(Some(at));
        }
        if found == Seek::Data {
            data += u64::from(mapping.blocks);
            check_mapped(inode, data, limit)?;
        }
        at = u64::from(mapping.end().0) << bits;
    }
    Ok((what == Seek::Hole).then_some(size_bytes))
}

/// Returns an error if a file has mapped more blocks than there are: its map refers to some of them
/// more than once, perhaps without end.
fn check_mapped(inode: &CachedInode, found: u64, limit: u64) -> Result<()> {
    if found <= limit {
        return Ok(());
    }
    let error = RelationError::TooManyBlocks { found, limit };
    Err(Corrupt::from(error).in_inode(inode.nr()).into())
}

/// Whether a run that began with `first` and has `blocks` continues with `next`.
fn continues(first: Target, blocks: u64, next: Target) -> bool {
    match (first, next) {
        (Target::Written(first), Target::Written(next)) => next.0 == first.0.saturating_add(blocks),
        (Target::Written(_), _) | (_, Target::Written(_)) => false,
        _ => true,
    }
}

/// Bytes of a file that are contiguous on the device, or one hole.
struct ByteRun {
    len_bytes: u64,
    device_offset: Option<u64>,
}
