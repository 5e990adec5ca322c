//! **Purpose.** Reading the bytes of a file, and asking where they lie.
//!
//! **Model.** A read is cut into runs of blocks that go on without a gap on disk; each run is one
//! device read into the caller's own buffers. Holes and unwritten extents are filled with zeroes.
//! Bytes at and behind the file's size are never shown, whatever blocks lie there.
//!
//! **Locking.** None as a rule: the module [`consistent`](crate::inode::consistent) says how a read beside
//! writers comes to one state of the file. No cache line is written that another thread reads.

use std::io::IoSliceMut;
use std::ops::ControlFlow;

use fourscore_ondisk::extent::{Extent, LOGICAL_END};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock};
use fourscore_sync::epoch::Guard;

use crate::inode::cache::{CachedInode, Layout};
use crate::map::lookup::Target;
use crate::{Error, FileType, Fs, Result};

/// Extents that [`Fs::for_each_extent`] reads at once.
pub const EXTENTS_AT_ONCE: usize = 1024;
/// Slices handed to the device in one call; a read into more is cut.
const SLICES: usize = 16;

/// What [`Fs::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may hold data: `SEEK_DATA`.
    Data,
    /// The next byte that belongs to a hole; the end of the file counts as one: `SEEK_HOLE`.
    Hole,
}

impl Fs {
    /// Reads from a regular file at `offset` (bytes) into `buf`, as much as there is. Returns the
    /// number of bytes read, less than the buffer only at the end of the file.
    ///
    /// # Errors
    /// `IsADirectory`; `InvalidArgument` for what is neither a file nor a directory; `NoKey` for
    /// an encrypted file.
    pub fn read_at(&self, inode: InodeNr, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_vectored_at(inode, &mut [IoSliceMut::new(buf)], offset)
    }

    /// Reads like [`Fs::read_at`] into several buffers, one after the other.
    ///
    /// # Errors
    /// As [`Fs::read_at`].
    pub fn read_vectored_at(
        &self,
        inode: InodeNr,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<usize> {
        self.read_consistent(inode, |inode, guard| match inode.file_type() {
            FileType::Regular => self.read_content(inode, bufs, offset, guard),
            FileType::Directory => Err(Error::IsADirectory),
            _ => Err(Error::InvalidArgument("not a regular file")),
        })
    }

    /// Reads the content of a file as its user sees it.
    pub(crate) fn read_content(
        &self,
        inode: &CachedInode,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
        guard: &Guard,
    ) -> Result<usize> {
        if inode.is_encrypted() {
            return Err(Error::NoKey { inode: inode.nr() });
        }
        self.read_stored(inode, bufs, offset, guard)
    }

    /// Reads the content of anything that has one as it is stored: files, long symbolic links,
    /// the values of EA inodes.
    pub(crate) fn read_stored(
        &self,
        inode: &CachedInode,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
        guard: &Guard,
    ) -> Result<usize> {
        let asked: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let mut left = asked.min(inode.size_bytes().saturating_sub(offset));
        let mut out = Scatter::new(bufs);
        if inode.layout() == Layout::Inline {
            let inline = self.inline_data(inode)?;
            let mut at = offset;
            while left > 0 {
                let done = out.with_next(left, |room| inline.read_at(at, room));
                if done == 0 {
                    break;
                }
                at += done;
                left -= done;
            }
            return Ok(out.filled);
        }
        let journaled = self.journals_content(inode);
        let mut at = offset;
        while left > 0 {
            let run = self.byte_run(inode, at, left, guard)?;
            match run.device_offset {
                None => out.zero(run.len_bytes),
                Some(from) if journaled => {
                    self.read_journaled(&mut out, run.len_bytes, from, guard)?;
                }
                Some(from) => out.read(run.len_bytes, from, |slices, from| {
                    self.device().read_vectored_at(slices, from)
                })?,
            }
            at += run.len_bytes;
            left -= run.len_bytes;
        }
        Ok(out.filled)
    }

    /// The longest run of at most `limit` bytes from byte `at` on that is one piece on disk, or
    /// one hole. Never empty for a `limit` above 0.
    fn byte_run(&self, inode: &CachedInode, at: u64, limit: u64, guard: &Guard) -> Result<ByteRun> {
        let block_size = self.geometry().block_size();
        let block_bytes = block_size.bytes() as u64;
        let Ok(first) = u32::try_from(at / block_bytes) else {
            // Behind the last block a file can have there is nothing but hole.
            return Ok(ByteRun {
                len_bytes: limit,
                device_offset: None,
            });
        };
        let inside_block = at % block_bytes;
        let mapping = self.map(inode, LogicalBlock(first), guard)?;
        let (target, mut end) = (mapping.target, mapping.end());
        let mut blocks = u64::from(mapping.blocks);
        while blocks * block_bytes - inside_block < limit && end < LOGICAL_END {
            let next = self.map(inode, end, guard)?;
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
            // The last hole has no end: a file may be larger than what its blocks can number.
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

    /// Calls `visit` for each extent of a file from logical block `from` on, in order, holes left
    /// out, blocks behind the file's size included. Extents are reported as they are on disk; the
    /// runs of a block map are reported as extents. Inline data has none.
    ///
    /// Of a file that others change meanwhile, each piece of [`EXTENTS_AT_ONCE`] extents belongs to
    /// one state of the file; [`Fs::extents`] gives all of them in one state.
    ///
    /// # Errors
    /// What reading the map meets.
    pub fn for_each_extent(
        &self,
        inode: InodeNr,
        from: LogicalBlock,
        mut visit: impl FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut piece, mut at, mut blocks) = (Vec::new(), from, 0);
        while at < LOGICAL_END {
            (at, blocks) = self.read_consistent(inode, |inode, guard| {
                piece.clear();
                self.extents_from(inode, (at, blocks), EXTENTS_AT_ONCE, &mut piece, guard)
            })?;
            if piece.drain(..).any(|extent| visit(extent).is_break()) {
                break;
            }
        }
        Ok(())
    }

    /// The extents of a file, as [`Fs::for_each_extent`] reports them, as they all were at one
    /// moment.
    ///
    /// # Errors
    /// What reading the map meets.
    pub fn extents(&self, inode: InodeNr) -> Result<Vec<Extent>> {
        self.read_consistent(inode, |inode, guard| self.extents_of(inode, guard))
    }

    /// The same of an inode that is not in the cache, for one.
    pub(crate) fn extents_of(&self, inode: &CachedInode, guard: &Guard) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let from = (LogicalBlock(0), 0);
        self.extents_from(inode, from, usize::MAX, &mut extents, guard)?;
        Ok(extents)
    }

    /// Adds at most `limit` extents from block `at` on to `extents`. `blocks` were found before
    /// `at`; gives where it ended, and how many were found by then.
    fn extents_from(
        &self,
        inode: &CachedInode,
        (mut at, mut blocks): (LogicalBlock, u64),
        limit: usize,
        extents: &mut Vec<Extent>,
        guard: &Guard,
    ) -> Result<(LogicalBlock, u64)> {
        let most_blocks = self.geometry().blocks().0;
        while at < LOGICAL_END && extents.len() < limit {
            let mapping = self.map(inode, at, guard)?;
            at = mapping.end();
            if let Some(extent) = mapping.extent() {
                blocks += u64::from(extent.blocks);
                self.check_mapped(inode, blocks, most_blocks)?;
                extents.push(extent);
            }
        }
        Ok((at, blocks))
    }

    /// The first byte at or behind `offset` that is data, or hole, inside the file's size.
    /// Unwritten blocks count as holes, as they do for the kernel while nothing is cached. `None`
    /// if there is no such byte, or `offset` is not in the file: `ENXIO`.
    ///
    /// # Errors
    /// `InvalidArgument` for anything but a regular file.
    pub fn seek(&self, inode: InodeNr, offset: u64, what: Seek) -> Result<Option<u64>> {
        self.read_consistent(inode, |inode, guard| {
            self.seek_in(inode, offset, what, guard)
        })
    }

    fn seek_in(
        &self,
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
        let bits = self.geometry().block_size().bits();
        let limit = self.geometry().blocks().0;
        let (mut at, mut data) = (offset, 0_u64);
        while at < size_bytes {
            let block = LogicalBlock(u32::try_from(at >> bits).unwrap_or(u32::MAX));
            if block >= LOGICAL_END {
                // Behind the last block a file can have there is nothing but hole.
                return Ok((what == Seek::Hole).then_some(at));
            }
            let mapping = self.map(inode, block, guard)?;
            let found = match mapping.target {
                Target::Written(_) => Seek::Data,
                Target::Hole | Target::Unwritten(_) => Seek::Hole,
            };
            if found == what {
                return Ok(Some(at));
            }
            if found == Seek::Data {
                data += u64::from(mapping.blocks);
                self.check_mapped(inode, data, limit)?;
            }
            at = u64::from(mapping.end().0) << bits;
        }
        Ok((what == Seek::Hole).then_some(size_bytes))
    }

    /// An error if a file has mapped more blocks than there are: its map leads to some of them
    /// more than once, perhaps without end.
    fn check_mapped(&self, inode: &CachedInode, found: u64, limit: u64) -> Result<()> {
        if found <= limit {
            return Ok(());
        }
        let error = RelationError::TooManyBlocks { found, limit };
        Err(Corrupt::from(error).in_inode(inode.nr()).into())
    }
}

/// Whether a run that began with `first` and has `blocks` goes on with `next`.
fn continues(first: Target, blocks: u64, next: Target) -> bool {
    match (first, next) {
        (Target::Written(first), Target::Written(next)) => next.0 == first.0.saturating_add(blocks),
        (Target::Written(_), _) | (_, Target::Written(_)) => false,
        _ => true,
    }
}

/// Bytes of a file that are one piece on the device, or one hole.
struct ByteRun {
    len_bytes: u64,
    device_offset: Option<u64>,
}

/// The caller's buffers, filled from the front.
pub(crate) struct Scatter<'a, 'b> {
    bufs: &'a mut [IoSliceMut<'b>],
    /// The buffer to fill next, and how much of it is filled.
    next: usize,
    used: usize,
    filled: usize,
}

impl<'a, 'b> Scatter<'a, 'b> {
    fn new(bufs: &'a mut [IoSliceMut<'b>]) -> Self {
        Self {
            bufs,
            next: 0,
            used: 0,
            filled: 0,
        }
    }

    /// Hands the next free bytes, at most `limit` of one buffer, to `fill`.
    pub(crate) fn with_next(&mut self, limit: u64, fill: impl FnOnce(&mut [u8])) -> u64 {
        while let Some(buf) = self.bufs.get_mut(self.next) {
            let room = buf.get_mut(self.used..).unwrap_or_default();
            if room.is_empty() {
                self.next += 1;
                self.used = 0;
                continue;
            }
            let len = usize::try_from(limit).unwrap_or(usize::MAX).min(room.len());
            fill(&mut room[..len]);
            self.used += len;
            self.filled += len;
            return len as u64;
        }
        0
    }

    fn zero(&mut self, mut len_bytes: u64) {
        while len_bytes > 0 {
            let done = self.with_next(len_bytes, |room| room.fill(0));
            if done == 0 {
                break;
            }
            len_bytes -= done;
        }
    }

    /// Fills `len_bytes` with as few calls of `read` as there are groups of [`SLICES`] buffers.
    pub(crate) fn read(
        &mut self,
        mut len_bytes: u64,
        mut from: u64,
        mut read: impl FnMut(&mut [IoSliceMut<'_>], u64) -> std::io::Result<()>,
    ) -> Result<()> {
        while len_bytes > 0 {
            let mut slices: [IoSliceMut<'_>; SLICES] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let (mut count, mut gathered) = (0, 0_u64);
            let (mut next, mut used) = (self.next, self.used);
            for buf in self.bufs.iter_mut().skip(self.next) {
                if count == SLICES || gathered == len_bytes {
                    break;
                }
                let room = buf.get_mut(used..).unwrap_or_default();
                let want = usize::try_from(len_bytes - gathered).unwrap_or(usize::MAX);
                let len = want.min(room.len());
                if len == room.len() {
                    (next, used) = (next + 1, 0);
                } else {
                    used += len;
                }
                if len > 0 {
                    slices[count] = IoSliceMut::new(&mut room[..len]);
                    count += 1;
                    gathered += len as u64;
                }
            }
            if gathered == 0 {
                break;
            }
            read(&mut slices[..count], from)?;
            (self.next, self.used) = (next, used);
            self.filled += usize::try_from(gathered).unwrap_or(usize::MAX);
            from += gathered;
            len_bytes -= gathered;
        }
        Ok(())
    }
}
