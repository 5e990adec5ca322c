//! **Purpose.** Lists the names of a directory, also while other threads make, remove and rename
//! names in it.
//!
//! **Model.** A listing is made of pieces. Each piece is read in one state of the directory
//! ([`crate::inode::consistent`]), copied, and then handed to the caller, who may take any time.
//! Between two pieces names are added and removed, and full leaves are split. A listing guarantees:
//!
//! - A name that exists from the beginning of the listing to its end is listed exactly once.
//! - A name that exists at no moment of the listing is not listed.
//!
//! A split moves names with high hashes from a leaf to a new block at the end of the directory. So
//! an indexed directory is not listed in the order of its blocks but in the order of its index: a
//! piece is a run of leaves, and the next one begins at the least hash that is not listed yet. A
//! split divides a range of hashes and never moves a name across the border between two pieces,
//! because a piece does not end between two leaves that share a hash. Without an index names do not
//! move, and the order is that of blocks.
//!
//! A file system that was opened for reading does not change. There all directories are listed in
//! the order of their blocks, which is how they lie on the device, and names are handed to the
//! caller without a copy.
//!
//! **Invariants.** Index entries are not removed and their hashes do not change while a file system
//! is mounted. So the hash at which a piece ends is the first of a leaf as long as the directory
//! exists.
//!
//! **Locking.** None as a rule; no lock and no epoch guard is held while the caller examines names
//! of a mounted file system.

use std::ops::{ControlFlow, Range};

use fourscore_ondisk::dirent::{Entry, EntryType};
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock};
use fourscore_sync::epoch;

use crate::Result;
use crate::core::Core;
use crate::dir::blocks::{self, Course, Left, Through};
use crate::dir::find::{DirEntry, OwnedDirEntry};
use crate::dir::index;
use crate::dir::names::{self, NamePresentation};
use crate::dir::structure::{self, DirBlock};
use crate::guard::{Guard, Loader};
use crate::inode::cached::CachedInode;
use crate::inode::{cache, consistent};
use crate::mount::fast_commit::DirChanges;
use crate::txn::faults::Sabotage;

/// Names of a directory, copied one after the other.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    names: Vec<(InodeNr, Option<FileType>, Range<usize>)>,
}

impl Piece {
    fn clear(&mut self) {
        self.bytes.clear();
        self.names.clear();
    }

    fn add(&mut self, entry: DirEntry<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(entry.name);
        let range = start..self.bytes.len();
        self.names.push((entry.inode, entry.file_type, range));
    }

    fn entries(&self) -> impl Iterator<Item = DirEntry<'_>> {
        self.names.iter().map(|(inode, file_type, range)| DirEntry {
            inode: *inode,
            name: self.bytes.get(range.clone()).unwrap_or_default(),
            file_type: *file_type,
        })
    }
}

/// See [`Fs::for_each_entry`](crate::Fs::for_each_entry).
pub(crate) fn for_each_entry(
    core: &Core,
    dir: InodeNr,
    mut visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    if core.is_live() {
        return list_live(core, dir, &mut visit);
    }
    let list = Unchanging {
        core,
        dir,
        uncached: None,
        through: Through::Cache,
    };
    list.visit(&mut Loader::default(), &mut visit)
}

/// A listing of a directory of a file system that was opened for reading.
struct Unchanging<'c> {
    core: &'c Core,
    dir: InodeNr,
    /// The directory, if it is not in the inode cache.
    uncached: Option<CachedInode>,
    through: Through,
}

impl Unchanging<'_> {
    fn visit(
        &self,
        loader: &mut Loader,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut course = Course::default();
        let mut left = Left::More;
        while left == Left::More {
            // A piece that is restarted after a miss has the same entries again.
            let mut visited = 0;
            left = loader.run(self.core, |guard| {
                let dir = match &self.uncached {
                    Some(uncached) => uncached,
                    None => cache::inode(self.core, self.dir, guard)?,
                };
                let mut nth = 0;
                let mut visit_once = |entry: DirEntry<'_>| {
                    nth += 1;
                    if nth <= visited {
                        return ControlFlow::Continue(());
                    }
                    visited = nth;
                    visit(entry)
                };
                let (core, through) = (self.core, self.through);
                let dir = dir.as_directory()?;
                visit_shown(core, dir, &mut course, through, guard, &mut visit_once)
            })?;
            course.accept();
            loader.next_piece();
        }
        Ok(())
    }
}

/// Lists a directory that other threads may be changing.
fn list_live(
    core: &Core,
    dir: InodeNr,
    visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let (mut course, mut piece) = (Course::default(), Piece::default());
    let mut left = Left::More;
    while left == Left::More {
        left = consistent::read_consistent(core, dir, |dir, guard| {
            piece.clear();
            let dir = dir.as_directory()?;
            visit_piece(core, dir, &mut course, guard, &mut |entry| {
                piece.add(entry);
                ControlFlow::Continue(())
            })
        })?;
        course.accept();
        if piece.entries().any(|entry| visit(entry).is_break()) {
            break;
        }
    }
    Ok(())
}

/// Calls `visit` for the next entries of a directory that may change between two calls.
fn visit_piece(
    core: &Core,
    dir: &CachedInode,
    course: &mut Course,
    guard: &Guard,
    visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<Left> {
    if !structure::is_indexed(core, dir)
        || core.dir_changes(dir.nr()).is_some()
        || core.faults.lacks(Sabotage::ListingToOldEnd)
    {
        return visit_shown(core, dir, course, Through::Cache, guard, visit);
    }
    course.begin_piece(core, dir)?;
    let shown = names::shown(core, dir, structure::index_algorithm(core, dir, guard)?);
    let mut buf = Vec::new();
    if course.hash() == 0 {
        let (at, what) = (LogicalBlock(0), DirBlock::Root);
        blocks::visit_listed(core, dir, at, what, course, guard, &mut |entry| {
            show(&shown, dir, entry, &mut buf, visit).map(drop)
        })?;
    }
    let next = index::visit_leaves(core, dir, course.hash(), guard, &mut |at| {
        blocks::visit_listed(core, dir, at, DirBlock::Leaf, course, guard, &mut |entry| {
            show(&shown, dir, entry, &mut buf, visit).map(drop)
        })
    })?;
    Ok(match next {
        Some(hash) => {
            course.go_on_at_hash(hash);
            Left::More
        }
        None => Left::Nothing,
    })
}

/// See [`Fs::scan_entries`](crate::Fs::scan_entries).
pub(crate) fn scan_entries(
    core: &Core,
    dir: InodeNr,
    buf: &mut Vec<u8>,
    mut visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    if core.is_live() {
        // Blocks in memory are newer than on the device.
        return list_live(core, dir, &mut visit);
    }
    let is_cached = core.inodes.get(&dir, &epoch::pin()).is_some();
    let uncached = (!is_cached).then(|| cache::uncached_inode(core, dir));
    let list = Unchanging {
        core,
        dir,
        uncached: uncached.transpose()?,
        through: Through::Passing,
    };
    let mut loader = Loader::with_buffer(std::mem::take(buf));
    let visited = list.visit(&mut loader, &mut visit);
    *buf = loader.into_buffer();
    visited
}

/// Calls `visit` for the next entries of `dir` as users see them.
fn visit_shown(
    core: &Core,
    dir: &CachedInode,
    course: &mut Course,
    through: Through,
    guard: &Guard,
    visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<Left> {
    if let Some(changes) = core.dir_changes(dir.nr()) {
        return visit_changed(core, dir, changes, course, guard, visit);
    }
    let root = if structure::is_indexed(core, dir) {
        structure::index_algorithm(core, dir, guard)?
    } else {
        None
    };
    let shown = names::shown(core, dir, root);
    let mut name_buffer = Vec::new();
    blocks::visit_entries(core, dir, course, through, guard, &mut |entry| {
        show(&shown, dir, entry, &mut name_buffer, visit)
    })
}

/// As [`Fs::for_each_entry`](crate::Fs::for_each_entry), for a directory whose names fast commits
/// changed: first the names on disk that are left, then the new ones. Such a directory is not
/// encrypted.
fn visit_changed(
    core: &Core,
    dir: &CachedInode,
    changes: &DirChanges,
    course: &mut Course,
    guard: &Guard,
    visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<Left> {
    let mut flow = ControlFlow::Continue(());
    if changes.made_in().is_none() {
        let through = Through::Cache;
        let left = blocks::visit_entries(core, dir, course, through, guard, &mut |entry| {
            let wanted = names::wanted(core, dir, entry.name);
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

/// See [`Fs::read_dir`](crate::Fs::read_dir).
pub(crate) fn read_dir(core: &Core, dir: InodeNr) -> Result<Vec<OwnedDirEntry>> {
    let mut entries = Vec::new();
    for_each_entry(core, dir, |entry| {
        entries.push(entry.to_owned());
        ControlFlow::Continue(())
    })?;
    Ok(entries)
}

/// Calls `visit` for an entry as users see it; `buf` is a buffer for the name.
fn show(
    shown: &NamePresentation,
    dir: &CachedInode,
    entry: &Entry<'_>,
    buf: &mut Vec<u8>,
    visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let name = shown
        .name(entry, buf)
        .map_err(|error| Corrupt::from(error).in_inode(dir.nr()))?;
    Ok(visit(DirEntry {
        inode: entry.inode,
        name,
        file_type: file_type(entry.kind),
    }))
}

/// Returns the file type that the type byte of an entry stands for.
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
