//! **Purpose.** Reads the bytes of a file, and looks up where they lie.
//!
//! **Model.** A read is cut into runs of blocks that are contiguous on disk; each run is one device
//! read into the caller's own buffers. Holes and unwritten extents are filled with zeroes. Bytes at
//! and behind the file's size are never returned, whatever blocks lie there.
//!
//! **Locking.** None as a rule: the module [`consistent`] says how a read sees one state of a file
//! that is being written. No cache line is written that another thread reads, and no epoch guard is
//! held while the device is read.

use std::io::IoSliceMut;
use std::iter;
use std::ops::ControlFlow;

use fourscore_ondisk::extent::{Extent, LOGICAL_END};
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock};

use crate::core::Core;
use crate::file::scatter::Scatter;
use crate::file::{inline, journaled};
use crate::guard::{Guard, with_guard};
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::consistent::{self, Found, Validity};
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::{Error, Result};

/// Extents that [`Fs::for_each_extent`](crate::Fs::for_each_extent) reads at once.
const EXTENTS_AT_ONCE: usize = 1024;

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
    consistent::read_consistent_data(
        core,
        inode,
        bufs,
        |bufs, inode, guard| match inode.file_type() {
            FileType::Regular => find_content(core, inode, bufs, offset, guard),
            FileType::Directory => Err(Error::IsADirectory),
            _ => Err(Error::InvalidArgument("not a regular file")),
        },
        |bufs, places| places.read(core, bufs),
    )
}

/// As [`read_at`], from an inode that the caller found before, without checking that it has not
/// changed.
pub(crate) fn read_unchecked(
    core: &Core,
    inode: &CachedInode,
    buf: &mut [u8],
    offset: u64,
) -> Result<usize> {
    let bufs = &mut [IoSliceMut::new(buf)][..];
    match with_guard(core, |guard| find_content(core, inode, bufs, offset, guard))? {
        Found::All(len) => Ok(len),
        Found::Places(places, _) => places.read(core, bufs),
    }
}

/// The places of the data that one call reads.
struct Places {
    runs: Runs,
    /// Whether the data is journaled, so that data in memory may be newer.
    are_journaled: bool,
}

/// Runs of bytes that follow each other in a file. Most reads have one run, which needs no heap
/// memory.
struct Runs {
    first: ByteRun,
    more: Vec<ByteRun>,
}

/// Finds the data of a file as its user sees it; copies it if it is in the inode. Returns the
/// places, or the number of bytes copied.
fn find_content(
    core: &Core,
    inode: &CachedInode,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    guard: &Guard,
) -> Result<Found<Places, usize>> {
    if inode.is_encrypted() {
        return Err(Error::NoKey { inode: inode.nr() });
    }
    let asked: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
    let left = asked.min(inode.size_bytes().saturating_sub(offset));
    if inode.layout() == Layout::Inline {
        return copy_inline(core, inode, bufs, offset, left).map(Found::All);
    }
    match runs(core, inode, offset, left, guard)? {
        None => Ok(Found::All(0)),
        Some(runs) => {
            let are_journaled = journaled::journals_content(core, inode);
            let validity = match are_journaled {
                true => Validity::UntilChange,
                false => Validity::UntilReuse,
            };
            let places = Places {
                runs,
                are_journaled,
            };
            Ok(Found::Places(places, validity))
        }
    }
}

/// Copies the data of an inode that holds its data itself. Returns the number of bytes.
fn copy_inline(
    core: &Core,
    inode: &CachedInode,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    mut left: u64,
) -> Result<usize> {
    let mut out = Scatter::new(bufs);
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
    Ok(out.filled)
}

/// Returns the runs of the next `len` bytes; `None` for no bytes.
fn runs(
    core: &Core,
    inode: &CachedInode,
    offset: u64,
    len: u64,
    guard: &Guard,
) -> Result<Option<Runs>> {
    if len == 0 {
        return Ok(None);
    }
    let first = byte_run(core, inode, offset, len, guard)?;
    let mut found = first.len_bytes;
    let mut more = Vec::new();
    while found < len {
        let run = byte_run(core, inode, offset + found, len - found, guard)?;
        found += run.len_bytes;
        more.push(run);
    }
    Ok(Some(Runs { first, more }))
}

impl Runs {
    fn iter(&self) -> impl Iterator<Item = &ByteRun> {
        iter::once(&self.first).chain(&self.more)
    }
}

impl Places {
    /// Reads the data from the device. Returns the number of bytes.
    fn read(&self, core: &Core, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let mut out = Scatter::new(bufs);
        for run in self.runs.iter() {
            match run.device_offset {
                None => out.zero(run.len_bytes),
                Some(from) if self.are_journaled => {
                    journaled::read_journaled(core, &mut out, run.len_bytes, from)?;
                }
                Some(from) => out.read(run.len_bytes, from, |slices, from| {
                    core.device.read_vectored_at(slices, from)
                })?,
            }
        }
        Ok(out.filled)
    }
}

/// Reads the data of an inode, as it is stored, under the caller's guard: a long symbolic link, or
/// the value of an EA inode. `out` is as long as the data or shorter.
///
/// # Errors
/// The data is not loaded and was noted as missed.
pub(crate) fn read_pinned(
    core: &Core,
    inode: &CachedInode,
    out: &mut [u8],
    guard: &Guard,
) -> Result<()> {
    if inode.layout() == Layout::Inline {
        let len = out.len() as u64;
        return copy_inline(core, inode, &mut [IoSliceMut::new(out)], 0, len).map(drop);
    }
    let Some(runs) = runs(core, inode, 0, out.len() as u64, guard)? else {
        return Ok(());
    };
    let mut rest = out;
    for run in runs.iter() {
        let len = usize::try_from(run.len_bytes).unwrap_or(usize::MAX);
        let (part, behind) = rest.split_at_mut(len.min(rest.len()));
        if let Some(from) = run.device_offset {
            part.copy_from_slice(guard.data(from, part.len())?);
        }
        rest = behind;
    }
    Ok(())
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
            extents_from(core, inode, at, blocks, EXTENTS_AT_ONCE, &mut piece, guard)
        })?;
        if piece.drain(..).any(|extent| visit(extent).is_break()) {
            break;
        }
    }
    Ok(())
}

/// See [`Fs::extents`](crate::Fs::extents).
pub(crate) fn extents(core: &Core, inode: InodeNr) -> Result<Vec<Extent>> {
    consistent::read_consistent(core, inode, |inode, guard| all_extents(core, inode, guard))
}

/// The same for an inode that need not be in the cache.
pub(crate) fn extents_of(core: &Core, inode: &CachedInode) -> Result<Vec<Extent>> {
    with_guard(core, |guard| all_extents(core, inode, guard))
}

fn all_extents(core: &Core, inode: &CachedInode, guard: &Guard) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let (from, most) = (LogicalBlock(0), usize::MAX);
    extents_from(core, inode, from, 0, most, &mut extents, guard)?;
    Ok(extents)
}

/// Adds at most `limit` extents from block `at` on to `extents`. `blocks` is the number of blocks
/// found before `at`. Returns where the search ended, and the number of blocks found by then.
fn extents_from(
    core: &Core,
    inode: &CachedInode,
    mut at: LogicalBlock,
    mut blocks: u64,
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
pub(crate) fn check_mapped(inode: &CachedInode, found: u64, limit: u64) -> Result<()> {
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
