//! **Purpose.** Directories: finding a name, and listing all of them.
//!
//! **Model.** A directory is one of three things: inline data with entries in it, blocks of
//! entries, or such blocks with an index of hashes over them. Whatever it is, a list of its
//! entries is the entries of its blocks in order, the index left out; a search in an indexed one
//! follows the hash of the name.
//!
//! ```text
//! lookup:  inline -> scan      indexed -> hash, descend, scan one leaf (or the next, if the
//!          blocks -> scan                  hash goes on there)
//! ```
//!
//! **Invariants.** Work is bounded by the content of the file system: a directory with more blocks
//! than the file system, with a hole, or with the same block twice is `Corrupt`; a search visits
//! each leaf at most once.
//!
//! **Locking.** None.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::dirent::{
    DirFormat, DirentError, Entry, EntryType, MAX_NAME_BYTES, NameForm, TypeByte,
};
use fourscore_ondisk::features::{Compat, Incompat};
use fourscore_ondisk::htree::IndexLevels;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{BlockCount, Corrupt, InodeNr, LogicalBlock, PhysBlock, htree};
use fourscore_sync::epoch::{self, Guard};
use fourscore_sync::thread;

use crate::fast_commit::DirChanges;
use crate::inode::{CachedInode, Layout};
use crate::map::Target;
use crate::names::Wanted;
use crate::{Error, Fs, Result};

/// Blocks of a directory read together when it is listed.
const READAHEAD_BLOCKS: u32 = 32;

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode it leads to.
    pub inode: InodeNr,
    /// The name as a user sees it: any bytes but `/` and NUL. `.` and `..` are entries as well.
    /// In an encrypted directory, the form Linux shows without the key.
    pub name: &'a [u8],
    /// The type of the inode, where the directory tells it.
    pub file_type: Option<FileType>,
}

/// A name in a directory, with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedDirEntry {
    /// The inode it leads to.
    pub inode: InodeNr,
    /// The name, as in [`DirEntry::name`].
    pub name: Vec<u8>,
    /// The type of the inode, where the directory tells it.
    pub file_type: Option<FileType>,
}

impl DirEntry<'_> {
    /// The same with bytes of its own.
    #[must_use]
    pub fn to_owned(&self) -> OwnedDirEntry {
        OwnedDirEntry {
            inode: self.inode,
            name: self.name.to_vec(),
            file_type: self.file_type,
        }
    }
}

/// The blocks of a directory that were listed, as runs: first -> one past the last. Without them
/// the same block, mapped again and again, would make a list as long as the file system is large,
/// and a sparse image may claim to be very large.
#[derive(Default)]
struct OwnBlocks(BTreeMap<u64, u64>);

impl OwnBlocks {
    /// Adds a run; `false` if one of its blocks is there already.
    fn add(&mut self, first: PhysBlock, blocks: u32) -> bool {
        let end = first.0.saturating_add(blocks.into());
        let before = self.0.range_mut(..end).next_back();
        match before {
            Some((_, last)) if *last > first.0 => return false,
            Some((_, last)) if *last == first.0 => *last = end,
            _ => drop(self.0.insert(first.0, end)),
        }
        true
    }
}

/// Where a listing has the blocks of a directory in memory.
enum Through<'r> {
    /// In the buffer cache, for whoever asks next.
    Cache,
    /// Here, and nowhere afterwards.
    Room(&'r mut Vec<u8>),
}

/// How far the blocks of a directory are listed. They are read some at a time, and in between a
/// listing lets go of its guard: for as long as that is held nothing that others retire becomes
/// free, and a directory may have millions of names.
#[derive(Default)]
struct Course {
    at: LogicalBlock,
    own: OwnBlocks,
    /// Where the directory ended when the listing began, and which life of its number that was.
    began: Option<(LogicalBlock, u32)>,
}

/// What is left of a listing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    More,
    Nothing,
}

/// What a look for a name leaves in the cache of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The name, if it is found.
    Found,
    /// Nothing: it is looked for once, or because it is about to go.
    Nothing,
}

/// What a block of a directory is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirBlock {
    /// Entries.
    Leaf,
    /// The root of the index, which begins with `.` and `..`.
    Root,
    /// An index block below the root.
    Node,
}

impl DirBlock {
    /// How many of the block's records are entries of the directory.
    fn entries_to_list(self) -> usize {
        match self {
            Self::Leaf => usize::MAX,
            Self::Root => 2,
            Self::Node => 0,
        }
    }
}

/// A block of a directory that is being listed.
struct Listed<'b> {
    block: PhysBlock,
    bytes: &'b [u8],
    what: DirBlock,
}

impl Listed<'_> {
    fn broken(&self, dir: &CachedInode, error: DirentError) -> Corrupt {
        Corrupt::from(error).in_inode(dir.nr()).in_block(self.block)
    }
}

fn break_if(done: bool) -> ControlFlow<()> {
    if done {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

impl Fs {
    /// The inode that `name` leads to in directory `dir`.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`.
    pub fn lookup(&self, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
        self.look_up(dir, name, Keep::Found, &epoch::pin())
    }

    /// As [`Fs::lookup`], for whoever asks for many names once, such as a walk of the whole tree:
    /// the name is found in the cache of names, if it is there, but does not enter it.
    ///
    /// # Errors
    /// As [`Fs::lookup`].
    pub fn lookup_once(&self, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
        self.look_up(dir, name, Keep::Nothing, &epoch::pin())
    }

    pub(crate) fn look_up(
        &self,
        dir: InodeNr,
        name: &[u8],
        keep: Keep,
        guard: &Guard,
    ) -> Result<InodeNr> {
        let cell = self.cell(dir, guard)?;
        loop {
            let (moves, moment) = (cell.moves(), cell.departures().moment());
            let here = self.directory(cell.version(guard)?)?;
            let key = self.name_key(here, name);
            if let Some(known) = key.and_then(|key| self.names.get(&key, guard)) {
                return Ok(known);
            }
            match self.look_up_once(here, name, guard) {
                // It may have moved from a block not seen yet into one seen before, or a new index
                // may have led to a block that the old map does not know.
                Err(Error::NotFound | Error::Corrupt(_))
                    if moves % 2 == 1 || moves != cell.moves() =>
                {
                    thread::yield_now();
                }
                answer => {
                    if let (Keep::Found, Ok(inode)) = (keep, &answer)
                        && let (Some(key), Some(moment)) = (key, moment)
                    {
                        self.keep_name(&key, *inode, (cell, moment), guard);
                    }
                    return answer;
                }
            }
        }
    }

    fn look_up_once(&self, dir: &CachedInode, name: &[u8], guard: &Guard) -> Result<InodeNr> {
        if name.len() > MAX_NAME_BYTES {
            return Err(Error::NameTooLong);
        }
        if name == b"." {
            return Ok(dir.nr());
        }
        let wanted = self.wanted(dir, name);
        if let Some(changes) = self.dir_changes(dir.nr())
            && let Some(now) = changes.find(&wanted, name)
        {
            return now.ok_or(Error::NotFound);
        }
        if self.is_indexed(dir) && (name == b".." || wanted.hash_input().is_some()) {
            if let Some(inode) = self.search_index(dir, &wanted, guard)? {
                return Ok(inode);
            }
            if !wanted.hash_may_mislead() {
                return Err(Error::NotFound);
            }
        }
        self.search_blocks(dir, &wanted, guard)?
            .ok_or(Error::NotFound)
    }

    /// The inode of the name, which may be in any block of the directory.
    fn search_blocks(
        &self,
        dir: &CachedInode,
        wanted: &Wanted<'_>,
        guard: &Guard,
    ) -> Result<Option<InodeNr>> {
        let format = self.dir_format(dir);
        let mut found = None;
        if dir.layout() == Layout::Inline {
            self.visit_inline_entries(dir, &format, &mut |entry| {
                let here = wanted.matches(entry);
                found = here.then_some(entry.inode);
                Ok(break_if(here))
            })?;
            return Ok(found);
        }
        if self.size_in_blocks(dir)? == LogicalBlock(1) && !dir.has(InodeFlags::INDEX_FL) {
            return self.search_leaf(dir, &format, LogicalBlock(0), wanted, guard);
        }
        let mut course = Course::default();
        let mut left = Left::More;
        while left == Left::More {
            let cache = &mut Through::Cache;
            left = self.visit_blocks(dir, &format, &mut course, cache, guard, &mut |listed| {
                let entry = wanted.find_in(&format, listed.bytes);
                let entry = entry.map_err(|error| listed.broken(dir, error))?;
                found = entry.map(|entry| entry.inode);
                Ok(break_if(found.is_some()))
            })?;
        }
        Ok(found)
    }

    /// The inode of the name, if it is in block `at`, which is a leaf.
    pub(crate) fn search_leaf(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        at: LogicalBlock,
        wanted: &Wanted<'_>,
        guard: &Guard,
    ) -> Result<Option<InodeNr>> {
        let block = self.dir_place(dir, at, guard)?;
        let found = self.look_at_leaf(dir, format, block, guard, |bytes| {
            let entry = wanted.find_in(format, bytes)?;
            Ok(entry.map(|entry| entry.inode))
        })?;
        Ok(found.map_err(|error: DirentError| Corrupt::from(error).in_inode(dir.nr()))?)
    }

    /// What `look` makes of a leaf of `dir`. One in which names are being made stays as it is: who
    /// looks for a name before he makes it would else have the leaf copied for each. So `look` may
    /// run under the lock of the leaf's buffer, and is to be about bytes only.
    pub(crate) fn look_at_leaf<R>(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        block: PhysBlock,
        guard: &Guard,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let tag = VerifiedAs::new(Structure::DirectoryLeaf, dir.nr());
        let check = |bytes: &[u8]| self.check_bytes(dir, format, DirBlock::Leaf, bytes);
        self.look_at_metadata(block, tag, guard, check, look)
    }

    /// Where block `at` of a directory is.
    pub(crate) fn dir_place(
        &self,
        dir: &CachedInode,
        at: LogicalBlock,
        guard: &Guard,
    ) -> Result<PhysBlock> {
        match self.map(dir, at, guard)?.target {
            Target::Written(block) => Ok(block),
            Target::Hole | Target::Unwritten(_) => {
                let error = RelationError::DirectoryHole { found: at };
                Err(Corrupt::from(error).in_inode(dir.nr()).into())
            }
        }
    }

    /// Calls `visit` for each entry as it is stored, until it returns false.
    pub(crate) fn visit_stored(
        &self,
        dir: &CachedInode,
        guard: &Guard,
        visit: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<()> {
        let mut course = Course::default();
        let mut left = Left::More;
        while left == Left::More {
            let cache = &mut Through::Cache;
            left = self.visit_entries(dir, &mut course, cache, guard, &mut |entry| {
                Ok(break_if(!visit(entry)))
            })?;
        }
        Ok(())
    }

    /// The bytes of block `at`, at `block`, of a directory; `None` if it holds no names.
    pub(crate) fn listed_bytes<'g>(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        (at, block): (LogicalBlock, PhysBlock),
        guard: &'g Guard,
    ) -> Result<Option<&'g [u8]>> {
        let (bytes, what) = self.listed_block(dir, format, at, block, guard)?;
        Ok(Some(bytes).filter(|_| what == DirBlock::Leaf))
    }

    /// Calls `visit` for each entry of a directory, `.` and `..` included, in the order they have
    /// on disk.
    ///
    /// # Errors
    /// `NotADirectory`; `Corrupt` for the first block that is not what it must be.
    pub fn for_each_entry(
        &self,
        dir: InodeNr,
        mut visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut course = Course::default();
        let mut left = Left::More;
        while left == Left::More {
            let guard = epoch::pin();
            let dir = self.directory(self.inode(dir, &guard)?)?;
            left = self.visit_shown(dir, &mut course, &mut Through::Cache, &guard, &mut visit)?;
        }
        Ok(())
    }

    /// As [`Fs::for_each_entry`], for whoever lists many directories once, such as a walk of the
    /// whole tree: neither the directory nor its blocks enter a cache, which costs more than
    /// reading them. What is not in memory is read into `room`, which is reused from call to call.
    ///
    /// # Errors
    /// As [`Fs::for_each_entry`].
    pub fn scan_entries(
        &self,
        dir: InodeNr,
        room: &mut Vec<u8>,
        mut visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut course = Course::default();
        let mut through = Through::Room(room);
        let mut left = Left::More;
        while left == Left::More {
            let guard = epoch::pin();
            let loaded;
            let dir = self.directory(match self.inodes.get(&dir, &guard) {
                Some(cell) => cell.version(&guard)?,
                None => {
                    loaded = self.uncached_inode(dir)?;
                    &loaded
                }
            })?;
            left = self.visit_shown(dir, &mut course, &mut through, &guard, &mut visit)?;
        }
        Ok(())
    }

    /// Calls `visit` for the next entries of `dir` as a user sees them.
    fn visit_shown(
        &self,
        dir: &CachedInode,
        course: &mut Course,
        through: &mut Through<'_>,
        guard: &Guard,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<Left> {
        if let Some(changes) = self.dir_changes(dir.nr()) {
            return self.visit_changed(dir, changes, course, guard, visit);
        }
        let root = if self.is_indexed(dir) {
            self.index_algorithm(dir, guard)?
        } else {
            None
        };
        let shown = self.shown(dir, root);
        let mut name_room = Vec::new();
        self.visit_entries(dir, course, through, guard, &mut |entry| {
            let name = shown
                .name(entry, &mut name_room)
                .map_err(|error| Corrupt::from(error).in_inode(dir.nr()))?;
            let file_type = file_type(entry.kind);
            Ok(visit(DirEntry {
                inode: entry.inode,
                name,
                file_type,
            }))
        })
    }

    /// As [`Fs::for_each_entry`], for a directory whose names fast commits changed: what is left
    /// of those on disk, then the new ones. Such a directory is not encrypted.
    fn visit_changed(
        &self,
        dir: &CachedInode,
        changes: &DirChanges,
        course: &mut Course,
        guard: &Guard,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<Left> {
        let mut flow = ControlFlow::Continue(());
        if changes.made_in().is_none() {
            let cache = &mut Through::Cache;
            let left = self.visit_entries(dir, course, cache, guard, &mut |entry| {
                let wanted = self.wanted(dir, entry.name);
                if changes.find(&wanted, entry.name).is_none() {
                    let (inode, name) = (entry.inode, entry.name);
                    let file_type = file_type(entry.kind);
                    flow = visit(DirEntry {
                        inode,
                        name,
                        file_type,
                    });
                }
                Ok(flow)
            })?;
            if left == Left::More {
                return Ok(left);
            }
        }
        for (name, inode, file_type) in changes.entries(dir.nr()) {
            if flow.is_break() {
                break;
            }
            flow = visit(DirEntry {
                inode,
                name,
                file_type: Some(file_type),
            });
        }
        Ok(Left::Nothing)
    }

    /// All entries of a directory, as [`Fs::for_each_entry`] visits them.
    ///
    /// # Errors
    /// As [`Fs::for_each_entry`].
    pub fn read_dir(&self, dir: InodeNr) -> Result<Vec<OwnedDirEntry>> {
        let mut entries = Vec::new();
        self.for_each_entry(dir, |entry| {
            entries.push(entry.to_owned());
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    fn directory<'g>(&self, dir: &'g CachedInode) -> Result<&'g CachedInode> {
        if dir.file_type() == FileType::Directory {
            Ok(dir)
        } else {
            Err(Error::NotADirectory)
        }
    }

    pub(crate) fn is_indexed(&self, dir: &CachedInode) -> bool {
        let compat = self.superblock().features().compat;
        let indexed = compat.contains(Compat::DIR_INDEX) && dir.has(InodeFlags::INDEX_FL);
        indexed && dir.layout() != Layout::Inline
    }

    pub(crate) fn dir_format(&self, dir: &CachedInode) -> DirFormat {
        let incompat = self.superblock().features().incompat;
        let names = match (
            dir.has(InodeFlags::ENCRYPT_FL),
            dir.has(InodeFlags::CASEFOLD_FL),
        ) {
            (false, _) => NameForm::Plain,
            (true, false) => NameForm::Encrypted,
            (true, true) => NameForm::EncryptedHashed,
        };
        let type_byte = if incompat.contains(Incompat::FILETYPE) {
            TypeByte::Present
        } else {
            TypeByte::Absent
        };
        let inodes_count = InodeNr(self.geometry().inodes());
        DirFormat {
            names,
            type_byte,
            inodes_count,
            seed: dir.seed(),
        }
    }

    /// The number of blocks of a file that has no holes, such as a directory.
    pub(crate) fn size_in_blocks(
        &self,
        inode: &CachedInode,
    ) -> std::result::Result<LogicalBlock, Corrupt> {
        let block_bytes = self.geometry().block_size().bytes() as u64;
        let blocks = inode.size_bytes() / block_bytes;
        let limit = self.geometry().blocks().0;
        u32::try_from(blocks)
            .ok()
            .filter(|_| blocks <= limit)
            .map(LogicalBlock)
            .ok_or_else(|| {
                let error = RelationError::DirectorySize {
                    found_bytes: inode.size_bytes(),
                    limit,
                };
                Corrupt::from(error).in_inode(inode.nr())
            })
    }

    /// Calls `visit` for each entry in use of the next blocks.
    fn visit_entries(
        &self,
        dir: &CachedInode,
        course: &mut Course,
        through: &mut Through<'_>,
        guard: &Guard,
        visit: &mut dyn FnMut(&Entry<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<Left> {
        let format = self.dir_format(dir);
        if dir.layout() == Layout::Inline {
            self.visit_inline_entries(dir, &format, visit)?;
            return Ok(Left::Nothing);
        }
        self.visit_blocks(dir, &format, course, through, guard, &mut |listed| {
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

    /// Calls `visit` for the next blocks of a directory that has blocks, in order: as many as are
    /// read together.
    fn visit_blocks(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        course: &mut Course,
        through: &mut Through<'_>,
        guard: &Guard,
        visit: &mut dyn FnMut(&Listed<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<Left> {
        let (end, generation) = (self.size_in_blocks(dir)?, dir.on_disk().generation().0);
        let (began_end, began_generation) = *course.began.get_or_insert((end, generation));
        if generation != began_generation {
            // Its number belongs to another by now.
            return Err(Error::NotFound);
        }
        let (at, end) = (course.at, end.min(began_end));
        if at >= end {
            return Ok(Left::Nothing);
        }
        let run = self.map(dir, at, guard)?;
        let Target::Written(first) = run.target else {
            let hole = RelationError::DirectoryHole { found: at };
            return Err(Corrupt::from(hole).in_inode(dir.nr()).into());
        };
        let count = (run.end().min(end).0 - at.0).min(READAHEAD_BLOCKS);
        let start = PhysBlock(first.0 + u64::from(at.0 - run.logical.0));
        if !course.own.add(start, count) {
            let twice = RelationError::DirectoryBlockTwice { found: at };
            return Err(Corrupt::from(twice).in_inode(dir.nr()).into());
        }
        let passing = self.bring_in(start, count, through);
        for nr in 0..count {
            let at = LogicalBlock(at.0 + nr);
            let block = PhysBlock(start.0 + u64::from(nr));
            let (bytes, what) = match self.passing_block(dir, format, at, nr, passing) {
                Some(listed) => listed,
                None => self.listed_block(dir, format, at, block, guard)?,
            };
            if visit(&Listed { block, bytes, what })?.is_break() {
                return Ok(Left::Nothing);
            }
        }
        course.at = LogicalBlock(at.0 + count);
        Ok(match course.at < end {
            true => Left::More,
            false => Left::Nothing,
        })
    }

    /// Reads `count` blocks from `start` on together: into the cache or, if none of them is there
    /// (a block in the cache may be newer than on the device), into the room, and returns that.
    fn bring_in<'r>(&self, start: PhysBlock, count: u32, through: &'r mut Through<'_>) -> &'r [u8] {
        let blocks = || (0..u64::from(count)).map(|nr| PhysBlock(start.0 + nr));
        match through {
            Through::Room(room) if !blocks().any(|block| self.is_buffered(block)) => {
                let block_size = self.geometry().block_size();
                room.resize(block_size.bytes() * count as usize, 0);
                // A failure is told by the cache, which is asked for what is not here.
                match self.device().read_at(room, block_size.offset(start)) {
                    Ok(()) => room,
                    Err(_) => &[],
                }
            }
            _ => {
                if count > 1 {
                    self.buffers.read_ahead(start, BlockCount(count.into()));
                }
                &[]
            }
        }
    }

    fn is_buffered(&self, block: PhysBlock) -> bool {
        self.buffers.cached(block, &epoch::pin()).is_some()
    }

    /// Block number `nr` of those that `passing` holds, for listing block `at` of the directory;
    /// `None` if it is not there or not sound. It may have been written while it was read, so the
    /// cache has the last word.
    fn passing_block<'b>(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        at: LogicalBlock,
        nr: u32,
        passing: &'b [u8],
    ) -> Option<(&'b [u8], DirBlock)> {
        let block_bytes = self.geometry().block_size().bytes();
        let bytes = passing.chunks_exact(block_bytes).nth(nr as usize)?;
        let what = listed_as(dir, at, bytes);
        let sound = !is_checked(what, format) || self.check_bytes(dir, format, what, bytes).is_ok();
        sound.then_some((bytes, what))
    }

    /// Reads block `at` of a directory for listing it, and tells by its place and its first record
    /// what it is.
    fn listed_block<'g>(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        at: LogicalBlock,
        block: PhysBlock,
        guard: &'g Guard,
    ) -> Result<(&'g [u8], DirBlock)> {
        let bytes = self.unchecked_metadata(block, guard)?;
        let what = listed_as(dir, at, bytes);
        if !is_checked(what, format) {
            return Ok((bytes, what));
        }
        Ok((self.check_dir_block(dir, format, block, what, guard)?, what))
    }

    pub(crate) fn check_dir_block<'g>(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        block: PhysBlock,
        what: DirBlock,
        guard: &'g Guard,
    ) -> Result<&'g [u8]> {
        let structure = match what {
            DirBlock::Leaf => Structure::DirectoryLeaf,
            DirBlock::Root | DirBlock::Node => Structure::DirectoryIndex,
        };
        self.metadata(block, structure, dir.nr(), guard, |bytes| {
            self.check_bytes(dir, format, what, bytes)
        })
    }

    /// Whether `bytes` are `what` of the directory `dir`.
    pub(crate) fn check_bytes(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        what: DirBlock,
        bytes: &[u8],
    ) -> std::result::Result<(), Corrupt> {
        let end = self.size_in_blocks(dir)?;
        match what {
            DirBlock::Leaf => format.check_block(bytes).map_err(Corrupt::from),
            DirBlock::Root => {
                htree::check_root(bytes, format, self.index_levels(), end).map_err(Corrupt::from)
            }
            DirBlock::Node => htree::check_node(bytes, format, end).map_err(Corrupt::from),
        }
        .map_err(|corrupt| corrupt.in_inode(dir.nr()))
    }

    pub(crate) fn index_levels(&self) -> IndexLevels {
        if self
            .superblock()
            .features()
            .incompat
            .contains(Incompat::LARGEDIR)
        {
            IndexLevels::Three
        } else {
            IndexLevels::Two
        }
    }
}

/// What block `at` of a directory is when it is listed, by its place and its first record.
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

/// Whether a block can be checked: without checksums nothing tells an empty leaf from an index
/// block; neither has entries.
fn is_checked(what: DirBlock, format: &DirFormat) -> bool {
    what != DirBlock::Node || format.seed.is_some()
}

/// What the type byte of an entry says.
fn file_type(kind: EntryType) -> Option<FileType> {
    Some(match kind {
        EntryType::Unknown => return None,
        EntryType::Regular => FileType::Regular,
        EntryType::Directory => FileType::Directory,
        EntryType::CharDevice => FileType::CharDevice,
        EntryType::BlockDevice => FileType::BlockDevice,
        EntryType::Fifo => FileType::Fifo,
        EntryType::Socket => FileType::Socket,
        EntryType::Symlink => FileType::Symlink,
    })
}
