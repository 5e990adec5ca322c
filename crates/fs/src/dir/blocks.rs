//! **Purpose.** Visits the blocks of a directory in order, a group of them at a time.
//!
//! **Not here.** The order in which a directory that is being changed is listed
//! ([`crate::dir::listing`]), and the search for one name ([`crate::dir::find`],
//! [`crate::dir::index`]).
//!
//! **Model.** A [`Course`] is the position of a walk. Each call visits the entries of the next
//! [`READAHEAD_BLOCKS`] blocks at most, which are read together, and notes the next position, which
//! [`Course::accept`] makes the current one. Between two calls the caller holds no epoch guard: a
//! directory may have millions of names, and retired memory is not freed while a guard is held.
//!
//! **Invariants.** Work is bounded by the content of the file system: a directory with more blocks
//! than the file system, with a hole, or with the same block twice is `Corrupt`.
//!
//! **Locking.** None. The caller holds the directory's lock or compares its sequence count.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use fourscore_ondisk::dirent::{DirFormat, DirentError, Entry};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{BlockCount, Corrupt, LogicalBlock, PhysBlock, htree};
use fourscore_sync::epoch;

use crate::core::Core;
use crate::dir::structure::{self, DirBlock};
use crate::file::inline;
use crate::guard::{Guard, with_guard};
use crate::inode::cached::{CachedInode, Layout};
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::{Error, Result, metadata};

/// The number of blocks of a directory that are read together.
pub(crate) const READAHEAD_BLOCKS: u32 = 32;

/// The blocks of a directory that were visited, as runs: first -> one past the last. They detect a
/// block that is mapped again and again; otherwise it could make a listing as long as the file
/// system is large, and a sparse image may claim to be very large.
#[derive(Default)]
struct OwnBlocks(BTreeMap<u64, u64>);

impl OwnBlocks {
    /// Whether one of the blocks of a run was visited already.
    fn has_any(&self, first: PhysBlock, blocks: u32) -> bool {
        let end = first.0.saturating_add(blocks.into());
        let before = self.0.range(..end).next_back();
        before.is_some_and(|(_, last)| *last > first.0)
    }

    /// Adds a run, none of whose blocks was visited.
    fn add(&mut self, first: PhysBlock, blocks: u32) {
        let end = first.0.saturating_add(blocks.into());
        match self.0.range_mut(..=first.0).next_back() {
            Some((_, last)) if *last == first.0 => *last = end,
            _ => drop(self.0.insert(first.0, end)),
        }
    }
}

/// The position of a walk through the blocks of a directory.
#[derive(Default)]
pub(crate) struct Course {
    /// The next block, in a directory that is visited in the order of its blocks.
    at: LogicalBlock,
    /// The least hash of the names to visit next, in a directory that is visited in the order of
    /// its index.
    hash: u32,
    /// The blocks visited so far.
    own: OwnBlocks,
    /// The end of the directory when the walk began, and its generation then.
    began: Option<(LogicalBlock, u32)>,
    /// What the last call has visited; it is not accepted yet.
    visited: Vec<(PhysBlock, u32)>,
    next: (LogicalBlock, u32),
}

impl Course {
    /// Accepts what the last call has visited: the walk continues after it.
    pub(crate) fn accept(&mut self) {
        for (first, blocks) in self.visited.drain(..) {
            self.own.add(first, blocks);
        }
        (self.at, self.hash) = self.next;
    }

    /// Restarts a piece: what was visited since the last [`Course::accept`] does not count. Returns
    /// the end of the directory when the walk began.
    ///
    /// # Errors
    /// `NotFound` if the number belongs to another directory in the meantime.
    pub(crate) fn begin_piece(&mut self, core: &Core, dir: &CachedInode) -> Result<LogicalBlock> {
        self.visited.clear();
        self.next = (self.at, self.hash);
        let generation = dir.on_disk().generation().0;
        let now = (structure::size_in_blocks(core, dir)?, generation);
        let (end, began) = *self.began.get_or_insert(now);
        match began == generation {
            true => Ok(end),
            false => Err(Error::NotFound),
        }
    }

    /// Returns the least hash of the names to visit next.
    pub(crate) fn hash(&self) -> u32 {
        self.hash
    }

    /// Notes that the walk continues with names whose hash is `hash` at least.
    pub(crate) fn go_on_at_hash(&mut self, hash: u32) {
        self.next.1 = hash;
    }

    /// Notes a run of blocks; `at` is the first in the directory.
    ///
    /// # Errors
    /// `Corrupt` if one of them was visited before.
    pub(crate) fn visit(
        &mut self,
        dir: &CachedInode,
        at: LogicalBlock,
        first: PhysBlock,
        blocks: u32,
    ) -> Result<()> {
        let is_twice = |&(other, count): &(PhysBlock, u32)| {
            first.0 < other.0 + u64::from(count) && other.0 < first.0 + u64::from(blocks)
        };
        if self.own.has_any(first, blocks) || self.visited.iter().any(is_twice) {
            let twice = RelationError::DirectoryBlockTwice { found: at };
            return Err(Corrupt::from(twice).in_inode(dir.nr()).into());
        }
        self.visited.push((first, blocks));
        Ok(())
    }
}

/// Where a listing reads the blocks of a directory to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    /// Into the buffer cache, for later readers.
    Cache,
    /// Into memory of the reader only.
    Passing,
}

/// Whether a walk has visited all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    More,
    Nothing,
}

/// A block of a directory that is being visited.
pub(crate) struct Listed<'b> {
    block: PhysBlock,
    pub(crate) bytes: &'b [u8],
    what: DirBlock,
}

impl Listed<'_> {
    pub(crate) fn broken(&self, dir: &CachedInode, error: DirentError) -> Corrupt {
        Corrupt::from(error).in_inode(dir.nr()).in_block(self.block)
    }
}

impl DirBlock {
    /// Returns how many of the block's records are entries of the directory.
    fn entries_to_list(self) -> usize {
        match self {
            Self::Leaf => usize::MAX,
            Self::Root => 2,
            Self::Node => 0,
        }
    }
}

pub(crate) fn break_if(done: bool) -> ControlFlow<()> {
    if done {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// Calls `visit` for each entry as it is stored, until it returns false. It may be called twice for
/// the same entry. The caller holds the directory's lock.
pub(crate) fn visit_stored(
    core: &Core,
    dir: &CachedInode,
    visit: &mut dyn FnMut(&Entry<'_>) -> bool,
) -> Result<()> {
    let mut course = Course::default();
    let mut left = Left::More;
    while left == Left::More {
        left = with_guard(core, |guard| {
            let visit = &mut |entry: &Entry<'_>| Ok(break_if(!visit(entry)));
            visit_entries(core, dir, &mut course, Through::Cache, guard, visit)
        })?;
        course.accept();
    }
    Ok(())
}

/// Returns the bytes of block `at`, at `block`, of a directory; `None` if it holds no names.
pub(crate) fn listed_bytes<'g>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    at: LogicalBlock,
    block: PhysBlock,
    guard: &'g Guard,
) -> Result<Option<&'g [u8]>> {
    let (bytes, what) = listed_block(core, dir, format, at, block, guard)?;
    Ok(Some(bytes).filter(|_| what == DirBlock::Leaf))
}

/// Calls `visit` for each entry in use of the next blocks.
pub(crate) fn visit_entries(
    core: &Core,
    dir: &CachedInode,
    course: &mut Course,
    through: Through,
    guard: &Guard,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<ControlFlow<()>>,
) -> Result<Left> {
    let format = structure::dir_format(core, dir);
    if dir.layout() == Layout::Inline {
        inline::visit_inline_entries(core, dir, &format, visit)?;
        return Ok(Left::Nothing);
    }
    visit_blocks(core, dir, &format, course, through, guard, &mut |listed| {
        let entries = format.entries(listed.bytes);
        for entry in entries.take(listed.what.entries_to_list()) {
            let entry = entry.map_err(|error| listed.broken(dir, error))?;
            if visit(&entry)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Calls `visit` for the next blocks of a directory that has blocks, in order: as many as are read
/// together. Afterwards the caller accepts the course.
pub(crate) fn visit_blocks(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    course: &mut Course,
    through: Through,
    guard: &Guard,
    visit: &mut dyn FnMut(&Listed<'_>) -> Result<ControlFlow<()>>,
) -> Result<Left> {
    let end = course
        .begin_piece(core, dir)?
        .min(structure::size_in_blocks(core, dir)?);
    let at = course.at;
    if at >= end {
        return Ok(Left::Nothing);
    }
    let run = lookup::map(core, dir, at, guard)?;
    let Target::Written(first) = run.target else {
        let hole = RelationError::DirectoryHole { found: at };
        return Err(Corrupt::from(hole).in_inode(dir.nr()).into());
    };
    let count = (run.end().min(end).0 - at.0).min(READAHEAD_BLOCKS);
    let start = PhysBlock(first.0 + u64::from(at.0 - run.logical.0));
    course.visit(dir, at, start, count)?;
    let passing = bring_in(core, start, count, through, guard)?;
    for nr in 0..count {
        let at = LogicalBlock(at.0 + nr);
        let block = PhysBlock(start.0 + u64::from(nr));
        let (bytes, what) = match passing_block(core, dir, format, at, nr, passing) {
            Some(listed) => listed,
            None => listed_block(core, dir, format, at, block, guard)?,
        };
        if visit(&Listed { block, bytes, what })?.is_break() {
            return Ok(Left::Nothing);
        }
    }
    course.next.0 = LogicalBlock(at.0 + count);
    Ok(match course.next.0 < end {
        true => Left::More,
        false => Left::Nothing,
    })
}

/// Calls `visit` for each entry of block `at` of a directory, which is a leaf or the root of its
/// index.
pub(crate) fn visit_listed(
    core: &Core,
    dir: &CachedInode,
    at: LogicalBlock,
    what: DirBlock,
    course: &mut Course,
    guard: &Guard,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<()>,
) -> Result<()> {
    let format = structure::dir_format(core, dir);
    let run = lookup::map(core, dir, at, guard)?;
    let block = structure::dir_place(core, dir, at, guard)?;
    course.visit(dir, at, block, 1)?;
    if !is_buffered(core, block) {
        let count = run.blocks.min(READAHEAD_BLOCKS);
        bring_in(core, block, count, Through::Cache, guard)?;
    }
    let bytes = structure::check_dir_block(core, dir, &format, block, what, guard)?;
    let listed = Listed { block, bytes, what };
    for entry in format.entries(bytes).take(what.entries_to_list()) {
        visit(&entry.map_err(|error| listed.broken(dir, error))?)?;
    }
    Ok(())
}

/// Reads `count` blocks from `start` on together. With `Through::Passing` their bytes are returned,
/// if none of the blocks is in the cache: a block there may be newer than the device's. Otherwise
/// the blocks go into the cache, and an empty slice is returned.
///
/// # Errors
/// The blocks are not in memory and were noted as missed.
fn bring_in<'g>(
    core: &Core,
    start: PhysBlock,
    count: u32,
    through: Through,
    guard: &'g Guard,
) -> Result<&'g [u8]> {
    let blocks = (0..u64::from(count)).map(|nr| PhysBlock(start.0 + nr));
    let is_absent = |block: &PhysBlock| core.buffers.cached(*block, guard).is_none();
    if through == Through::Passing && blocks.clone().all(|block| is_absent(&block)) {
        let block_size = core.geometry().block_size();
        let (offset, len) = (
            block_size.offset(start),
            block_size.bytes() * count as usize,
        );
        // If they cannot be read, the caller reads each through the cache, which reports that.
        return Ok(guard.data_if_readable(offset, len)?.unwrap_or_default());
    }
    if count > 1 && blocks.clone().any(|block| is_absent(&block)) {
        guard.read_ahead(core, start, BlockCount(count.into()))?;
    }
    Ok(&[])
}

fn is_buffered(core: &Core, block: PhysBlock) -> bool {
    core.buffers.cached(block, &epoch::pin()).is_some()
}

/// Returns the block at index `nr` of `passing`, which is block `at` of the directory. Returns
/// `None` if it is missing or not valid. The caller then reads it through the cache, since it may
/// have been written while it was read.
fn passing_block<'b>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    at: LogicalBlock,
    nr: u32,
    passing: &'b [u8],
) -> Option<(&'b [u8], DirBlock)> {
    let block_bytes = core.geometry().block_size().bytes();
    let bytes = passing.chunks_exact(block_bytes).nth(nr as usize)?;
    let what = listed_as(dir, at, bytes);
    let sound =
        !is_checked(what, format) || structure::check_bytes(core, dir, format, what, bytes).is_ok();
    sound.then_some((bytes, what))
}

/// Reads block `at` of a directory for listing it, and determines its kind from its position and
/// its first record.
fn listed_block<'g>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    at: LogicalBlock,
    block: PhysBlock,
    guard: &'g Guard,
) -> Result<(&'g [u8], DirBlock)> {
    let bytes = metadata::unchecked_metadata(core, block, guard)?;
    let what = listed_as(dir, at, bytes);
    if !is_checked(what, format) {
        return Ok((bytes, what));
    }
    Ok((
        structure::check_dir_block(core, dir, format, block, what, guard)?,
        what,
    ))
}

/// Returns the kind of block `at` of a directory that is listed, from its position and its first
/// record.
fn listed_as(dir: &CachedInode, at: LogicalBlock, bytes: &[u8]) -> DirBlock {
    if !dir.has(InodeFlags::INDEX_FL) {
        DirBlock::Leaf
    } else if at == LogicalBlock(0) {
        DirBlock::Root
    } else if htree::looks_like_node(bytes) {
        DirBlock::Node
    } else {
        DirBlock::Leaf
    }
}

/// Whether a block can be checked. Without checksums an empty leaf and an index block look the
/// same; neither has entries.
fn is_checked(what: DirBlock, format: &DirFormat) -> bool {
    what != DirBlock::Node || format.seed.is_some()
}
